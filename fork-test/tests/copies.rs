//! Tests of processes that `fork` copies, with every manager. A copy never has the holds of the original process, and
//! does not harm that process. The copied manager returns a clear error, and a new manager works. Each case is a
//! program that copies itself.
#![cfg(unix)]

use std::process::{Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::{Masters, Node, Server, TlsClients};

const WITH_CACHE: &[&str] = &["unused", "used", "held", "waiting", "runtime", "blocking", "cached"];
/// Cases of managers that cache no hold.
const CASES: &[&str] = WITH_CACHE.split_at(6).0;

/// Runs a case, and returns its output. The time is bounded, since the copies have a time limit.
fn run(kind: &str, case: &str, urls: &[String]) -> String {
    let mut program = Command::new(env!("CARGO_BIN_EXE_fork-test"));
    if case == "no-thread" {
        // No machine has memory for such a stack, so no thread can start.
        program.env("RUST_MIN_STACK", (1_u64 << 60).to_string());
    }
    let ended = program.arg(kind).arg(case).args(urls).stderr(Stdio::inherit()).output().expect("it runs");
    assert!(ended.status.success(), "{kind}, {case}: {}", ended.status);
    String::from_utf8(ended.stdout).expect("text")
}

/// Panics unless one process at a time had the lock, and each had a higher token than the process before.
fn judge(kind: &str, case: &str, output: &str) {
    let lines: Vec<(&str, u64)> = output
        .lines()
        .map(|line| line.split_once(' ').expect("two words"))
        .map(|(word, token)| (word, token.parse().expect("a number")))
        .collect();
    let mut last = 0;
    for pair in lines.chunks(2) {
        let [("in", token), ("out", same)] = pair else {
            panic!("{kind}, {case}: two were inside: {lines:?}");
        };
        assert!(token == same && *token > last, "{kind}, {case}: {lines:?}");
        last = *token;
    }
}

fn copies_are_no_holders(kind: &str, cases: &[&str], urls: &[String]) {
    for case in cases {
        let output = run(kind, case, urls);
        // With this manager, each process has its own locks in its memory.
        if kind != "memory" {
            judge(kind, case, &output);
        }
    }
}

#[test]
fn of_one_key_on_redis() {
    let node = Node::start(Server::Redis70).expect("it starts");
    copies_are_no_holders("hash", WITH_CACHE, &[node.url()]);
}

#[test]
fn of_one_key_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("it starts");
    copies_are_no_holders("hash", WITH_CACHE, &[node.url()]);
}

#[test]
fn of_one_key_with_tls() {
    let node = Node::builder(Server::Redis70).tls(TlsClients::Optional).start().expect("it starts");
    let authority = node.certificates_dir().join("ca.pem").display().to_string();
    let place = [node.url(), authority];
    copies_are_no_holders("tls", WITH_CACHE, &place);
}

#[test]
fn of_two_keys() {
    let node = Node::start(Server::Valkey91).expect("it starts");
    copies_are_no_holders("two-key", CASES, &[node.url()]);
}

#[test]
fn of_a_quorum() {
    let masters = Masters::start(Server::Valkey91, 3).expect("they start");
    copies_are_no_holders("quorum", CASES, &masters.urls());
}

/// Writes a key, and returns true if the replica has acknowledged a write.
fn has_acknowledged(primary: &Node) -> bool {
    let ask = |command: &[&str]| primary.command(command).expect("answered").into_result().expect("granted");
    ask(&["SET", "written", "1"]);
    let info = ask(&["INFO", "replication"]);
    let info = info.text().expect("text");
    info.lines().any(|line| line.contains("state=online,offset=") && !line.contains("offset=0,"))
}

#[test]
fn of_a_primary_with_a_replica() {
    let primary = Node::builder(Server::Redis70).arg("--repl-diskless-sync-delay", "0").start().expect("it starts");
    let replica = Node::start(Server::Redis70).expect("it starts");
    replica.command(&["REPLICAOF", "127.0.0.1", &primary.port().to_string()]).expect("it follows");
    // Until the replica acknowledges writes, a grant does not count and the caller gets an error.
    let until = Instant::now() + Duration::from_secs(30);
    while !has_acknowledged(&primary) {
        assert!(Instant::now() < until, "the replica has acknowledged nothing");
        thread::sleep(Duration::from_millis(10));
    }
    copies_are_no_holders("replicated", CASES, &[primary.url()]);
}

#[test]
fn of_memory() {
    copies_are_no_holders("memory", WITH_CACHE, &[]);
}

#[test]
fn without_a_thread_work_goes_on_where_the_manager_is_used() {
    let node = Node::start(Server::Valkey91).expect("it starts");
    copies_are_no_holders("hash", &["no-thread"], &[node.url()]);
    copies_are_no_holders("two-key", &["no-thread"], &[node.url()]);
    copies_are_no_holders("memory", &["no-thread"], &[]);
}
