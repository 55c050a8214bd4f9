//! The command line of `torture`, as far as it needs no server. `.ci/run` uses the program for its short runs.

use std::process::{Command, Output};

fn torture(args: &[&str]) -> Output {
    Command::new(env!("CARGO_BIN_EXE_torture")).args(args).output().expect("it starts")
}

#[test]
fn each_level_lists_its_faults() {
    for level in ["primary", "replicated", "quorum"] {
        let Output { status, stdout, .. } = torture(&["--level", level, "--list"]);
        assert!(status.success(), "{level}");
        let list = String::from_utf8(stdout).expect("text");
        assert!(list.contains("kill-worker"), "{level} has no fault of a worker:\n{list}");
    }
}

#[test]
fn wrong_arguments_are_refused_with_the_reason_and_the_help() {
    for (args, reason) in [
        (&["--level", "cluster"][..], "cluster"),
        (&["--workers", "1"][..], "--workers"),
        (&["--nothing"][..], "--nothing"),
    ] {
        let Output { status, stdout, stderr } = torture(args);
        let told = String::from_utf8(stderr).expect("text");
        assert_eq!((status.code(), stdout.len()), (Some(2), 0), "{args:?}: {told}");
        let first = told.lines().next().unwrap_or_default();
        assert!(first.contains(reason), "{args:?}: {told}");
    }
}
