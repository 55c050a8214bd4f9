//! Output of the program: for terminals, pipes and `jq`.

use std::io::{BufRead, BufReader, Read};
use std::process::{Command, Stdio};

use redis_rwlock::blocking::RedisManager;
use serde_json::Value;

use crate::program::{
    PROGRAM, Running, SERVER, ask, at, hold, hold_by, labelled, new_name, output_of, parsed, program, release, said,
    start_node, until, until_one_waits, view,
};

/// Runs the program with a standard output that no process reads.
fn with_closed_pipe(args: &[&str], url: &str) -> (Option<i32>, String) {
    let mut child = at(url, args).stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().expect("it starts");
    drop(child.stdout.take());
    let output = child.wait_with_output().expect("it is ours");
    (output.status.code(), String::from_utf8_lossy(&output.stderr).into_owned())
}

#[test]
fn closed_pipe_is_no_failure() {
    let (name, url) = (new_name(), SERVER.url());
    let guard = hold(&name);
    for args in [
        &["list"][..],
        &["list", "--json"],
        &["inspect", &name],
        &["doctor"],
        &["man"],
        &["completions", "bash"],
        &["--help"],
        // This command has no end of its own.
        &["top", "--json", &name],
    ] {
        assert_eq!(with_closed_pipe(args, &url), (Some(0), String::new()), "{args:?}");
    }
    assert_eq!(with_closed_pipe(&["inspect", &new_name()], &url), (Some(1), String::new()), "its answer");
    release(guard);
    // A device that accepts no data is a failure.
    let full = std::fs::File::options().write(true).open("/dev/full").expect("Linux has it");
    let output = program(&["list"]).stdout(full).stderr(Stdio::piped()).spawn().expect("it starts");
    assert_eq!(output.wait_with_output().expect("it is ours").status.code(), Some(70));
}

#[test]
fn list_in_a_pipe_to_head_is_quiet() {
    let node = start_node();
    // The list is longer than a pipe's buffer and than one read of `head`.
    let many =
        "for n = 1, 1000 do redis.call('HSET', 'rwlock:{' .. string.rep('x', 200) .. n .. '}:lock', 't', '7') end";
    ask(&node, &["EVAL", many, "0"]);
    let script = format!("{PROGRAM} list | head -n 1; echo ${{PIPESTATUS[0]}}");
    let mut bash = Command::new("bash");
    bash.args(["-c", &script]).env("RWLOCK_NODE", node.url());
    let said = said(bash);
    assert!(said.err.is_empty() && said.out.starts_with("LOCK") && said.out.ends_with("\n0\n"), "{said:?}");
}

#[test]
fn times_in_json_are_numbers_beside_the_texts() {
    let name = new_name();
    let guard = hold(&name);
    let waiter = Running::start(program(&["run", &name, "--", "true"]));
    until_one_waits(&name);
    let look = view(&name);
    for (of, texts) in [(&look["holders"][0], &["age", "remaining"][..]), (&look["waiters"][0], &["waiting"])] {
        for text in texts {
            assert!(of[text].as_str().is_some_and(|text| text.ends_with('s')), "{look}");
            assert!(of[&format!("{text}_ms")].as_u64().is_some_and(|ms| ms < 60_000), "{look}");
        }
    }
    let left = look["holders"][0]["remaining_ms"].as_u64().expect("a number");
    assert!((1..=10_000).contains(&left), "{look}");
    // This filters as a `jq` expression of a user would.
    let list = parsed(&output_of(&["list", "--json"]).out);
    let held_long = |lock: &Value| {
        lock["holders"].as_array().is_some_and(|all| all.iter().any(|h| h["age_ms"].as_u64() < Some(60_000)))
    };
    assert!(list.as_array().expect("a list").iter().any(|lock| lock["name"] == *name && held_long(lock)), "{list}");
    let ended = parsed(&output_of(&["force-release", "--yes", "--json", &name]).out);
    assert!(ended[0]["age_ms"].is_u64() && ended[0]["remaining_ms"].is_u64(), "{ended}");
    let report = parsed(&output_of(&["doctor", "--json"]).out);
    assert!(report["nodes"][0]["round_trip_us"].as_u64().is_some_and(|us| us > 0), "{report}");
    drop((waiter, guard));
}

#[test]
fn list_shows_held_ones_only_if_asked() {
    let node = start_node();
    let manager = RedisManager::connect(node.url()).expect("connected");
    hold_by(&manager, "was-held").release().expect("ours to the end");
    let guard = hold_by(&manager, "is-held");
    let list = |args: &[&str]| said(at(&node.url(), args));
    let (all, held) = (list(&["list"]), list(&["list", "--held"]));
    assert!(all.out.contains("is-held") && all.out.contains("was-held"), "{all:?}");
    assert!(held.code == Some(0) && held.out.contains("is-held") && !held.out.contains("was-held"), "{held:?}");
    let held = parsed(&list(&["list", "--held", "--json"]).out);
    assert_eq!((held.as_array().expect("a list").len(), held[0]["name"].as_str()), (1, Some("is-held")));
    release(guard);
}

#[test]
fn lock_that_was_never_there_is_told_from_one_that_is_free() {
    let (never, once) = (new_name(), new_name());
    hold(&once).release().expect("ours to the end");
    let (never, once) = (output_of(&["inspect", &never]), output_of(&["inspect", &once]));
    never.assert_out(1, "the server knows nothing of it");
    assert!(
        once.code == Some(1) && once.out.contains("is free, last token") && !once.out.contains("knows nothing"),
        "{once:?}"
    );
}

#[test]
fn odd_keys_hide_no_other_lock() {
    let node = start_node();
    let manager = RedisManager::connect(node.url()).expect("connected");
    let guard = hold_by(&manager, "good");
    ask(&node, &["SET", "rwlock:{another-type}:lock", "x"]);
    ask(&node, &["HSET", "rwlock:{another-layout}:lock", "t", "7", "h", "1 w 9999999999999 1 1 old.0:1"]);
    for args in [&["list"][..], &["list", "--held"]] {
        let list = said(at(&node.url(), args));
        list.assert_code(77);
        let line =
            |name: &str| list.out.lines().find(|line| line.starts_with(name)).unwrap_or_else(|| panic!("{list:?}"));
        assert!(line("good").contains("write"), "{list:?}");
        assert!(
            line("another-type").contains("unreadable") && line("another-layout").contains("unreadable"),
            "{list:?}"
        );
        assert!(list.out.contains("foreign key") && list.out.contains("other version"), "{list:?}");
    }
    let list = said(at(&node.url(), &["list", "--json"]));
    let locks = parsed(&list.out);
    let find =
        |name: &str| locks.as_array().expect("a list").iter().find(|lock| lock["name"] == *name).expect("it is there");
    assert_eq!((list.code, find("good")["holders"][0]["mode"].as_str()), (Some(77), Some("write")));
    assert!(find("another-type")["problem"].as_str().is_some_and(|problem| problem.contains("foreign key")), "{locks}");

    let mut top = at(&node.url(), &["top", "--json"]).stdout(Stdio::piped()).spawn().expect("it starts");
    let (mut line, mut out) = (String::new(), BufReader::new(top.stdout.take().expect("piped")));
    out.read_line(&mut line).expect("text");
    assert_eq!(parsed(&line).as_array().map(Vec::len), Some(3), "{line}");
    drop(out);
    until("the end of top, which nobody reads", || top.try_wait().expect("it is ours").is_some());
    release(guard);
}

/// Tests names and labels with invisible characters that change how a line is read.
#[test]
fn nothing_of_names_and_labels_acts_on_the_terminal() {
    let node = start_node();
    let bad = [
        '\u{1b}',
        '\u{9b}',
        '\u{7f}',
        '\u{202e}',
        '\u{2066}',
        '\u{200f}',
        '\u{200b}',
        '\u{feff}',
        '\u{2028}',
        '\u{61c}',
        '\u{e0041}',
    ];
    let all: String = bad.iter().collect();
    // A label must not contain control characters, but may contain characters that reverse the reading order.
    let of_labels: String = bad.iter().filter(|c| !c.is_control() && !c.is_whitespace()).collect();
    let (name, label) = (format!("lo{all}ck"), format!("bi{of_labels}lling"));
    let manager = labelled(&node, &label);
    let guard = hold_by(&manager, &name);
    ask(&node, &["SET", &format!("rwlock:{{{all}}}:lock"), "x"]);
    let clean = |what: &str, text: &str| {
        assert!(!text.contains(bad), "{what}: {text:?}");
        assert!(!what.starts_with("text") || text.contains("\\u{202e}"), "{what}: {text:?}");
    };
    for args in [&["inspect", &name][..], &["list"], &["run", "-n", &name, "--", "true"], &["inspect", &all]] {
        let text = said(at(&node.url(), args));
        clean("text", &format!("{}{}", text.out, text.err));
        let text = said(at(&node.url(), &[&["--json"][..], args].concat()));
        clean("json", &format!("{}{}", text.out, text.err));
    }
    // The JSON keeps its meaning.
    let look = parsed(&said(at(&node.url(), &["--json", "inspect", &name])).out);
    assert_eq!((look["name"].as_str(), look["holders"][0]["label"].as_str()), (Some(&*name), Some(&*label)));
    let mut waiting =
        at(&node.url(), &["run", "-w", "3", &name, "--", "true"]).stderr(Stdio::piped()).spawn().expect("it starts");
    let mut told = String::new();
    waiting.stderr.take().expect("piped").read_to_string(&mut told).expect("text");
    waiting.wait().expect("it is ours");
    clean("text of a wait", &told);
    let ended = said(at(&node.url(), &["force-release", "--yes", &name]));
    clean("text", &ended.out);
    drop(guard);
}
