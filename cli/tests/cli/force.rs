//! Tests that `force-release` ends the holds that it has shown, and nothing else.

use std::io::{Read, Write};
use std::process::{Child, Command, Stdio};

use cluster_testenv::Reply;
use redis_rwlock::{HoldState, LossReason};

use crate::program::{PROGRAM, SERVER, ask, at, hold_by, labelled, new_name, release, said, start_node, until};

/// Program `force-release` in its own terminal, after it has asked its question.
struct Asked {
    program: Child,
    shown: String,
}

impl Asked {
    fn about(name: &str) -> Self {
        // `script` makes a terminal, and forwards input and output.
        let mut program = Command::new("script")
            .args(["-qec", &format!("{PROGRAM} force-release {name}"), "/dev/null"])
            .env("RWLOCK_NODE", SERVER.url())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()
            .expect("`script` is part of every Debian and Ubuntu");
        let (mut shown, mut out) = (Vec::new(), program.stdout.take().expect("piped"));
        let mut byte = [0];
        while !shown.ends_with(b"[y/N] ") {
            let read = out.read(&mut byte).expect("readable");
            assert_eq!(read, 1, "it ended without a question: {}", String::from_utf8_lossy(&shown));
            shown.extend(byte);
        }
        program.stdout = Some(out);
        Self { program, shown: String::from_utf8(shown).expect("text") }
    }

    /// Sends the answer, and returns the exit code and the output since then.
    fn answer(mut self, answer: &str) -> (Option<i32>, String) {
        let mut keys = self.program.stdin.take().expect("piped");
        keys.write_all(answer.as_bytes()).expect("it reads");
        let mut rest = String::new();
        self.program.stdout.take().expect("piped").read_to_string(&mut rest).expect("text");
        drop(keys);
        (self.program.wait().expect("it is ours").code(), rest)
    }
}

#[test]
fn hold_that_was_shown_is_ended() {
    let name = new_name();
    let stuck = hold_by(&labelled(&SERVER, "stuck"), &name);
    let asked = Asked::about(&name);
    assert!(asked.shown.contains("stuck") && asked.shown.contains("write"), "{}", asked.shown);
    let (code, shown) = asked.answer("y\n");
    assert!(code == Some(0) && shown.contains("ended the write hold of stuck"), "{code:?}: {shown}");
    until("the holder learns of it", || stuck.state() == HoldState::Lost(LossReason::Forced));
}

#[test]
fn hold_that_was_not_shown_stays() {
    let name = new_name();
    let (first, second) = (labelled(&SERVER, "first"), labelled(&SERVER, "second"));
    let shown = hold_by(&first, &name);
    let asked = Asked::about(&name);
    assert!(asked.shown.contains("first"), "{}", asked.shown);
    // The lock changes while the operator thinks.
    release(shown);
    let unseen = hold_by(&second, &name);
    let (code, after) = asked.answer("y\n");
    assert!(code == Some(1) && after.contains("nothing was ended"), "{code:?}: {after}");
    unseen.release().expect("nobody has asked about it");
}

#[test]
fn no_is_no() {
    let name = new_name();
    let guard = hold_by(&labelled(&SERVER, "busy"), &name);
    let (code, shown) = Asked::about(&name).answer("n\n");
    assert!(code == Some(1) && shown.contains("nothing was done"), "{code:?}: {shown}");
    guard.release().expect("nothing was done");
}

#[test]
fn free_lock_is_only_looked_at() {
    let (node, name) = (start_node(), new_name());
    let scripts_of = |args: &[&str]| {
        said(at(&node.url(), args)).assert_code(1);
        let Reply::Bulk(info) = node.command(&["INFO", "commandstats"]).expect("answered") else { panic!("no text") };
        ask(&node, &["CONFIG", "RESETSTAT"]);
        let info = String::from_utf8(info).expect("text");
        let of_scripts = info.lines().filter_map(|line| line.strip_prefix("cmdstat_eval")?.split_once(":calls="));
        let calls =
            of_scripts.map(|(_, rest)| rest.split(',').next().expect("a number").parse::<u32>().expect("a number"));
        calls.sum::<u32>()
    };
    // The first command loads the script, so it counts one call more.
    scripts_of(&["inspect", &name]);
    let of_a_look = scripts_of(&["inspect", &name]);
    for args in [&["force-release", &name][..], &["force-release", "--yes", &name]] {
        assert_eq!(scripts_of(args), of_a_look, "{args:?}");
    }
}
