//! Tests `run` with several locks: all or none, in both modes, behind others, and what the command and the user see.

use std::process::Command;

use rustix::process::Signal;
use serde_json::Value;

use crate::program::{
    Folder, PROGRAM, Running, SERVER, Said, hold, is_free, labelled, new_name, output_of, parsed, program, release,
    said, until, until_one_waits, view,
};

/// Returns the command that runs a script with the locks and options of `args`.
fn group(args: &[&str], script: &str) -> Command {
    program(&[&["run"], args, &["--", "sh", "-c", script]].concat())
}

fn run(args: &[&str], script: &str) -> Said {
    said(group(args, script))
}

fn start(args: &[&str], script: &str) -> Running {
    Running::start(group(args, script))
}

#[test]
fn command_holds_all_locks_in_their_modes_and_knows_the_tokens() {
    let (stock, rates) = (new_name(), new_name());
    let script = format!(
        "env | grep ^RWLOCK_ | grep -v NODE | sort; for name in {stock} {rates}; do {PROGRAM} inspect --json $name; done; exit 7"
    );
    let done = run(&["--write", &stock, "--read", &rates], &script);
    done.assert_code(7);
    let lines: Vec<&str> = done.out.lines().collect();
    let [first, second, name_1, name_2, of_stock, of_rates] = &*lines else { panic!("{done:?}") };
    assert_eq!((*name_1, *name_2), (&*format!("RWLOCK_NAME_1={stock}"), &*format!("RWLOCK_NAME_2={rates}")));
    let token = |line: &str, variable: &str| {
        line.strip_prefix(variable).and_then(|token| token.parse::<u64>().ok()).unwrap_or_else(|| panic!("{line}"))
    };
    assert!(token(first, "RWLOCK_FENCING_TOKEN_1=") > 0 && token(second, "RWLOCK_FENCING_TOKEN_2=") > 0);
    let mode = |text: &str| parsed(text)["holders"][0]["mode"].clone();
    assert_eq!((mode(of_stock), mode(of_rates)), ("write".into(), "read".into()));
    assert!(is_free(&stock) && is_free(&rates));
}

#[test]
fn order_of_the_options_is_the_order_of_the_variables() {
    let names = [new_name(), new_name(), new_name()];
    let locks = ["--read", &names[2], "--write", &names[0], "--read", &names[1]];
    let done = run(&locks, "echo $RWLOCK_NAME_1 $RWLOCK_NAME_2 $RWLOCK_NAME_3 ${RWLOCK_NAME-none}");
    assert_eq!(done.out.trim_end(), format!("{} {} {} none", names[2], names[0], names[1]), "{done:?}");
}

#[test]
fn command_of_one_run_inside_another_sees_only_its_own_locks() {
    let names = [new_name(), new_name(), new_name()];
    let inner = format!("{PROGRAM} run {} -- env | grep -c -e ^RWLOCK_NAME -e ^RWLOCK_FENCING_TOKEN", names[2]);
    let done = run(&["--write", &names[0], "--write", &names[1]], &inner);
    assert_eq!((done.code, &*done.out, &*done.err), (Some(0), "2\n", ""), "{done:?}");
    let inner = format!(
        "{PROGRAM} run --read {} --read {} -- env | grep -c -e ^RWLOCK_NAME= -e ^RWLOCK_FENCING_TOKEN=",
        names[1], names[2]
    );
    let done = run(&["--write", &names[0]], &inner);
    assert_eq!((&*done.out, &*done.err), ("0\n", ""), "{done:?}");
}

#[test]
fn refusal_names_the_lock_and_leaves_the_others_free() {
    let (free, taken) = (new_name(), new_name());
    let web = labelled(&SERVER, "web-2");
    let guard = web.read(&taken).wait().expect("granted");
    for limit in [&["-n"][..], &["-w", "0.3"]] {
        let refused = run(&[limit, &["--write", &free, "--write", &taken]].concat(), "echo started");
        assert_eq!((refused.code, &*refused.out), (Some(75), ""), "{limit:?}: {refused:?}");
        let names = refused.err.contains("web-2") && refused.err.contains(&taken) && !refused.err.contains(&free);
        assert!(names, "{limit:?}: {refused:?}");
        assert!(is_free(&free), "{limit:?}");
    }
    run(&["-n", "--write", &free, "--read", &taken], "echo started").assert_whole_out(0, "started\n");
    guard.release().expect("ours to the end");
}

#[test]
fn wait_tells_for_whom_and_starts_after_the_holder() {
    let (free, taken) = (new_name(), new_name());
    let guard = hold(&taken);
    let folder = Folder::new();
    let running = Running::told_in(&folder, group(&["--write", &free, "--write", &taken], "echo started"));
    folder.until_told(&format!("waiting for lock {taken}, held by"));
    assert!(!folder.read("err").contains(&free), "{}", folder.read("err"));
    release(guard);
    running.said().assert_code(0);
    assert!(is_free(&free) && is_free(&taken));
}

#[test]
fn signal_during_the_wait_leaves_nothing() {
    let (first, taken) = (new_name(), new_name());
    let guard = hold(&taken);
    let running = start(&["--write", &first, "--read", &taken], "echo started");
    until_one_waits(&taken);
    running.signal(Signal::TERM);
    running.said().assert_code(128 + 15);
    assert!(is_free(&first) && view(&taken)["waiters"] == Value::Array(vec![]));
    release(guard);
}

#[test]
fn loss_of_one_lock_ends_the_command_and_frees_the_others() {
    let (kept, lost) = (new_name(), new_name());
    let running = start(&["--lease", "0.6", "--write", &kept, "--write", &lost], "sleep 60");
    until("it holds the locks", || !is_free(&kept) && !is_free(&lost));
    output_of(&["force-release", "--yes", &lost]).assert_code(0);
    let ended = running.said();
    ended.assert_code(76);
    assert!(ended.err.contains(&format!("the hold of lock {lost} was lost")), "{ended:?}");
    assert!(is_free(&kept) && is_free(&lost));
}

#[test]
fn runs_with_the_locks_in_opposite_orders_all_end() {
    let (one, other) = (new_name(), new_name());
    let runs: Vec<Running> = (0..6)
        .map(|number| {
            let (first, second) = if number % 2 == 0 { (&one, &other) } else { (&other, &one) };
            start(&["-w", "60", "--write", first, "--write", second], "sleep 0.1")
        })
        .collect();
    for running in runs {
        running.said().assert_code(0);
    }
    assert!(is_free(&one) && is_free(&other));
}

#[test]
fn killed_run_leaves_all_locks_to_their_leases() {
    let (one, other) = (new_name(), new_name());
    let running = start(&["--lease", "1", "--write", &one, "--read", &other], "sleep 60");
    until("it holds the locks", || !is_free(&one) && !is_free(&other));
    running.signal(Signal::KILL);
    until("the leases are over", || is_free(&one) && is_free(&other));
}

#[test]
fn one_name_is_written_in_every_way_that_worked_before() {
    for (before, mode) in [
        (&["-x"][..], "write"),
        (&["-s"], "read"),
        (&["-xn"], "write"),
        (&["-sn"], "read"),
        (&["--read"], "read"),
        (&["--write"], "write"),
        (&["--shared"], "read"),
        (&["--exclusive"], "write"),
        (&["--read", "--wait", "5"], "read"),
        (&["--write", "-n"], "write"),
        (&[], "write"),
    ] {
        let name = new_name();
        let script = format!("echo $RWLOCK_NAME; {PROGRAM} inspect --json {name}");
        let done = output_of(&[&["run"], before, &[&name, "--", "sh", "-c", &script]].concat());
        let (told, json) = done.out.split_once('\n').unwrap_or_else(|| panic!("{before:?}: {done:?}"));
        let json = parsed(json);
        assert_eq!((told, &json["holders"][0]["mode"]), (&*name, &mode.into()), "{before:?}");
    }
    let name = new_name();
    output_of(&["run", &name, "--read", "--", "true"]).assert_code(0);
}

#[test]
fn unclear_lines_are_refused_before_anything_is_sent() {
    let (a, b) = (&*new_name(), &*new_name());
    for (line, code) in [
        (&[][..], 2),
        (&["--read"], 2),
        (&["--read", "--write", a], 2),
        (&["-s", "--write", a], 2),
        (&["-s", "-x", a], 2),
        (&["--read", a, b], 2),
        (&["--read", a, "--write", b, "-x"], 2),
        (&["--read", a, "--write", b, "--note", "deploy"], 2),
        (&["--write", a, "--write", b, "--at-least", "5"], 2),
        (&["--write", a, "--write", b, "--at-least-on-success", "5"], 2),
        (&["--write", ""], 78),
        (&["--write", a, "--read", ""], 78),
    ] {
        let refused = output_of(&[&["run", "-n"], line, &["--", "echo", "started"]].concat());
        assert!(
            refused.code == Some(code) && refused.out.is_empty() && !refused.err.is_empty(),
            "{line:?}: {refused:?}"
        );
        assert!(is_free(a) && is_free(b), "{line:?}");
    }
}

#[test]
fn end_of_the_longest_hold_names_all_locks() {
    let (one, other) = (new_name(), new_name());
    let done = run(&["--max-hold", "0.8", "--lease", "0.6", "--write", &one, "--write", &other], "sleep 60");
    done.assert_code(76);
    assert!(done.err.contains(&format!("locks {one}, {other}: the hold was not extended in time")), "{done:?}");
    until("the locks are free", || is_free(&one) && is_free(&other));
}
