//! What the program and the library say when they are asked for something that is not there.

use std::process::{Command, Output};

fn run(args: &[&str]) -> Output {
    let mut program = Command::new(env!("CARGO_BIN_EXE_cluster-testenv"));
    // Every case here ends before a server would start.
    program.env("TESTENV_REDIS_7_0", "/no/such/server").args(args).output().unwrap()
}

#[test]
fn missing_server_names_the_way_to_get_it() {
    let output = run(&["single"]);
    assert_eq!(output.status.code(), Some(1));
    let stderr = String::from_utf8(output.stderr).unwrap();
    for needed in ["redis-7.0", "/no/such/server", "cluster-testenv/install", "TESTENV_REDIS_7_0"] {
        assert!(stderr.contains(needed), "{stderr}");
    }
}

#[test]
fn help_is_printed_when_asked_for() {
    let output = run(&["--help"]);
    assert!(output.status.success());
    let stdout = String::from_utf8(output.stdout).unwrap();
    for named in ["single", "masters", "cluster", "redis-7.0", "valkey-9.1", "redis-6.2"] {
        assert!(stdout.contains(named), "{stdout}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let wrong: [&[&str]; 7] = [
        &[],
        &["sentinel"],
        &["masters"],
        &["masters", "none"],
        &["masters", "0"],
        &["single", "cluster"],
        &["--server", "redis-1.0", "single"],
    ];
    for args in wrong {
        let output = run(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8(output.stderr).unwrap().contains("usage:"), "{args:?}");
    }
}
