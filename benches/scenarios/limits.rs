//! Limits: each quantity grows step by step until it bends. docs/LIMITS.md explains the figures.
//!
//! `cargo bench --bench scenarios -- limits` measures all quantities, and `-- limits-names` only one. They have no
//! targets, so a run without names leaves them out.
//!
//! The load runs in another process, so that nothing else counts as its memory and processor time.

mod climb;
mod crowd;
mod holders;
mod list;
mod names;
mod nodes;
mod notes;
mod probe;
mod processes;
mod requests;
mod waiters;

use crate::Scenario;

/// Word that stands for all of them.
pub(crate) const ALL: &str = "limits";

pub(crate) const LIMITS: [Scenario; 8] = [
    ("limits-names", "locks that one manager holds and renews", names::run),
    ("limits-waiters", "waiters of one lock: tasks of a process, and the server's queue", waiters::run),
    ("limits-holders", "readers of one lock on the server, and guards that share a hold", holders::run),
    ("limits-processes", "managers with connections of their own that write under one lock", processes::run),
    ("limits-requests", "pairs a second on one node", requests::run),
    ("limits-nodes", "primaries of a cluster", nodes::run),
    ("limits-list", "locks in one `locks()`, with as many other keys", list::run),
    ("limits-notes", "bytes of a note", notes::run),
];

/// Runs as the process with the load.
pub(crate) fn serve_as(load: &str, url: &str) {
    match load {
        "names" => names::hold(url),
        "waiters" => waiters::wait(url),
        "guards" => holders::join(url),
        "processes" => processes::compete(url),
        "requests" => requests::load(url),
        "list" => list::list(url),
        _ => panic!("there is no load {load:?}"),
    }
}
