//! Measures this crate beside the least code that does the same job. docs/BENCHES.md explains the figures.
//!
//! `cargo bench` runs all scenarios of the table, `cargo bench -- NAME...` only these. `--quick` is a short run,
//! `--once` only shows that a scenario runs, and `--list` prints the table. `cargo bench -- limits` measures how far the
//! crate goes (docs/LIMITS.md); nothing else runs these scenarios.

mod burst;
mod caching;
mod durability;
mod faults;
mod hand_over;
mod held_locks;
mod joins;
mod limits;
mod local_crowds;
mod longest_scripts;
mod outage;
mod quorum;
mod read_release;
mod recalls;
mod schemes;
mod scripts;
mod setup;
mod throughput;
mod uncontended;
mod wake_up;

use std::num::NonZeroU32;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::mpsc;
use std::time::{Duration, Instant};
use std::{env, thread};

use cluster_testenv::{Client, Cluster, Node, Reply};
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis_rwlock::{
    Durability, Error, HoldState, QuorumManager, ReadGuard, RedisManager, Replicas, RwLockManager, Topology,
    TwoKeyManager, WriteGuard,
};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use setup::Target::{AtLeast, AtMost};
use setup::child::{Worker, obey};
use setup::process::{client_time, processor_time, resident_bytes, time_of_threads};
use setup::scripts::hash;
use setup::*;

/// A scenario: its name, its subject, and its function.
type Scenario = (&'static str, &'static str, fn(Effort));

const SCENARIOS: [Scenario; 27] = [
    ("uncontended", "time of a pair (an acquisition and its release) by one task", uncontended::run),
    ("groups", "time of an acquisition of three names in one step, beside that of one name", uncontended::run_groups),
    ("throughput", "pairs a second and client CPU of 256 tasks; BENCH_BEFORE: of another revision", throughput::run),
    ("read_release", "server time for a release, while others read the same lock", read_release::run),
    ("held_locks", "10,000 and 100,000 held locks: delay of others, client CPU, memory", held_locks::run),
    ("joins", "joins of local readers, by one thread and by two", joins::run),
    ("hand_over", "writers of one process, and 100 clients of one lock", hand_over::run),
    ("wake_up", "time from a release to the entry of a waiter in another process", wake_up::run),
    ("recalls", "waiters that recall cached holds; cost of 10,000 cached holds", recalls::run),
    ("caching", "locks that go from process to process, with cached holds and without", caching::run),
    ("durability", "pairs with WAIT 1, and the delay of others", durability::run),
    ("quorum", "pairs at five masters, with two of them killed, silent or frozen", quorum::run),
    ("faults", "a primary that is killed, stopped or replaced: other shards, and recovery", faults::run),
    ("burst", "50,000 acquisitions at once, then 50,000 dropped guards", burst::run),
    ("outage", "2,000 waiters and 5,000 holds while no server answers", outage::run),
    ("local_crowds", "client CPU of thousands of local waiters, subscriptions and watches", local_crowds::run),
    ("scripts", "server CPU of each script, beside a lock-shaped one and those of 42d087c", scripts::run),
    ("longest_scripts", "server CPU of the longest scripts, beside 10,000 readers", longest_scripts::run),
    ("schemes", "pairs a second of all schemes under the same loads, by criterion; no targets", schemes::run),
    ("limits-names", "locks that one manager holds and renews", limits::names::run),
    ("limits-waiters", "waiters of one lock: tasks of a process, and the server's queue", limits::waiters::run),
    ("limits-holders", "readers of one lock on the server, and guards that share a hold", limits::holders::run),
    ("limits-processes", "managers with connections of their own that write under one lock", limits::processes::run),
    ("limits-requests", "pairs a second on one node", limits::requests::run),
    ("limits-nodes", "primaries of a cluster", limits::nodes::run),
    ("limits-list", "locks in one `locks()`, with as many other keys", limits::list::run),
    ("limits-notes", "bytes of a note", limits::notes::run),
];

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let words: Vec<&str> = arguments.iter().map(String::as_str).collect();
    if let ["child", kind, rest @ ..] = &words[..] {
        run_child(kind, rest);
        return ExitCode::SUCCESS;
    }
    let (options, names): (Vec<&str>, Vec<&str>) = words.iter().copied().partition(|word| word.starts_with('-'));
    let is_limit = |name: &str| name.starts_with("limits-");
    let unknown = names.iter().find(|name| **name != "limits" && SCENARIOS.iter().all(|(known, ..)| known != *name));
    if options.contains(&"--list") || unknown.is_some() {
        SCENARIOS.iter().for_each(|(name, subject, _)| println!("{name:<16} {subject}"));
    }
    if let Some(name) = unknown {
        eprintln!("there is no scenario {name:?}");
        return ExitCode::from(2);
    }
    for (name, _, run) in SCENARIOS {
        let is_meant = if is_limit(name) { names.contains(&"limits") } else { names.is_empty() };
        if !options.contains(&"--list") && (is_meant || names.contains(&name)) {
            println!("scenario: {name}");
            run(Effort::asked_for());
        }
    }
    ExitCode::SUCCESS
}

/// Runs as another process of a scenario, until the standard input ends.
fn run_child(kind: &str, words: &[&str]) {
    match (kind, words) {
        ("hold", [url, lease_s]) => held_locks::hold(url, lease_s),
        ("hold-minimal", [url, lease_s]) => held_locks::minimal::hold(url, lease_s),
        ("cache", [url, how]) => recalls::have_locks(url, how),
        ("limits", [load, url]) => limits::serve_as(load, url),
        ("pairs", [url]) => throughput::pairs::serve(url),
        _ => panic!("there is no child {kind:?}"),
    }
}
