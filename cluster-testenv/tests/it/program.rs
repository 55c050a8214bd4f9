//! Tests the messages of the program and the library about missing or unknown things.

use cluster_testenv::Server;

use std::{
    fs,
    io::{BufRead, BufReader},
    path::Path,
    process::{Child, Command, Output, Stdio},
};

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
    for named in
        ["masters", "tls-cluster"].map(str::to_owned).into_iter().chain(Server::ALL.map(|server| server.to_string()))
    {
        assert!(stdout.contains(&named), "{stdout}");
    }
}

#[test]
fn wrong_arguments_are_refused() {
    let wrong: [&[&str]; 7] = [
        &[],
        &["swarm"],
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

#[test]
fn tls_program_says_where_the_certificates_are() {
    let mut program = Command::new(env!("CARGO_BIN_EXE_cluster-testenv"));
    let mut program = Running(program.arg("tls").stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap());
    let url = BufReader::new(program.0.stdout.take().unwrap()).lines().next().unwrap().unwrap();
    assert!(url.starts_with("rediss://127.0.0.1:"), "{url}");
    let remark = BufReader::new(program.0.stderr.take().unwrap()).lines().next().unwrap().unwrap();
    let (_, dir) = remark.split_once(" are in ").unwrap();
    for (file, content) in [("ca.pem", "CERTIFICATE"), ("client.pem", "CERTIFICATE"), ("client.key", "PRIVATE KEY")] {
        assert!(fs::read_to_string(Path::new(dir).join(file)).unwrap().contains(content), "{file}");
    }
}

/// Program that ends with the test.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        // Both calls fail only when it has ended already.
        drop(self.0.kill());
        drop(self.0.wait());
    }
}
