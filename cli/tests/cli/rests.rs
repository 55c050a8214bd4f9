//! Tests `run --at-least`: who gets the lock when the command has ended, and what the program shows until then.

use std::time::{Duration, Instant};

use rustix::process::Signal;

use crate::program::{Running, Said, is_free, new_name, output_of, program, until, view};

/// Longer than any case.
const LONG: &str = "300";

/// Runs a shell script as a cron job of one of several machines does.
fn job(options: &[&str], name: &str, script: &str) -> Said {
    let args = [&["run", "-n"], options, &[name, "--", "sh", "-c", script]].concat();
    output_of(&args)
}

#[test]
fn second_machine_is_refused_after_the_job_and_everybody_sees_why() {
    let name = new_name();
    job(&["--at-least", LONG, "--label", "web-1"], &name, "echo done by the first")
        .assert_whole_out(0, "done by the first\n");
    job(&["--at-least", LONG], &name, "echo and by the second").assert_whole_out(75, "");

    let people = output_of(&["inspect", &name]);
    let line = people.line("done");
    assert!(people.code == Some(0) && line.contains("web-1") && line.contains("free in "), "{people:?}");
    let list = output_of(&["list", "--held"]);
    let line = list.line(&format!("{name} "));
    assert!(line.contains(" done ") && line.contains("web-1"), "{line}");
    let json = view(&name);
    assert_eq!((&json["holders"][0]["resting"], &json["holders"][0]["label"]), (&true.into(), &"web-1".into()));
    assert!(json["holders"][0]["remaining_ms"].as_u64() > Some(200_000), "{json}");

    output_of(&["run", "-w", "2.5", &name, "--", "true"]).assert_err(75, "web-1 (done, free in 29");
    output_of(&["force-release", "--yes", &name]).assert_code(0);
    assert!(is_free(&name));
}

#[test]
fn one_that_waits_starts_after_the_rest() {
    let (name, began) = (new_name(), Instant::now());
    job(&["--at-least", "1.5"], &name, "true").assert_code(0);
    output_of(&["run", "-w", "20", &name, "--", "true"]).assert_code(0);
    assert!(began.elapsed() >= Duration::from_millis(1_500), "{:?}", began.elapsed());
    assert!(is_free(&name), "it asked for no rest");
}

#[test]
fn failed_command_rests_too_but_not_on_success_only() {
    let (name, on_success) = (new_name(), ["--at-least-on-success", LONG]);
    job(&["--at-least", LONG], &name, "exit 7").assert_code(7);
    assert!(!is_free(&name));
    let name = new_name();
    job(&on_success, &name, "exit 7").assert_code(7);
    assert!(is_free(&name), "the next machine may try");
    job(&on_success, &name, "kill -TERM $$").assert_code(128 + 15);
    assert!(is_free(&name), "the next machine may try");
    job(&on_success, &name, "true").assert_code(0);
    job(&on_success, &name, "true").assert_code(75);
}

#[test]
fn machine_that_dies_during_its_job_leaves_the_lock_taken() {
    let name = new_name();
    let args = ["run", "-n", "--at-least", LONG, "--lease", "0.6", &name, "--", "sleep", "60"];
    let running = Running::start(program(&args));
    until("it holds the lock", || !is_free(&name));
    until("the guard is armed", || {
        let json = view(&name);
        json["holders"][0]["remaining_ms"].as_u64() > Some(200_000)
    });
    running.signal(Signal::KILL);
    // Time itself is what is waited for: several leases.
    std::thread::sleep(Duration::from_secs(2));
    job(&["--at-least", LONG], &name, "true").assert_code(75);
}

#[test]
fn wrong_times_and_sides_are_refused_before_the_command_starts() {
    for (options, code, word) in [
        (&["--at-least", "soon"][..], 2, "soon"),
        (&["--at-least", "0"], 78, "at_least"),
        (&["--at-least", "5", "--read"], 2, "--read"),
        (&["--at-least", "5", "--at-least-on-success", "5"], 2, "--at-least"),
    ] {
        let said = job(options, &new_name(), "echo started");
        assert!(said.code == Some(code) && said.err.contains(word) && said.out.is_empty(), "{options:?}: {said:?}");
    }
}
