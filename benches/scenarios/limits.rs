//! Limits: each quantity grows step by step until it bends. docs/LIMITS.md explains the figures.
//!
//! `cargo bench --bench scenarios -- limits` measures all quantities, and `-- limits-names` only one. They have no
//! targets, so a run without names leaves them out.
//!
//! The load runs in another process, so that nothing else counts as its memory and processor time.

mod climb;
mod crowd;
pub(crate) mod holders;
pub(crate) mod list;
pub(crate) mod names;
pub(crate) mod nodes;
pub(crate) mod notes;
mod probe;
pub(crate) mod processes;
pub(crate) mod requests;
pub(crate) mod waiters;

use super::*;
use climb::{Reading, climb};
use crowd::Members;
use probe::{Arrivals, Site, quantile_us, whole};

/// Connects the manager of a process with a load, on a runtime of its own.
fn connect_for_load(url: &str) -> (Runtime, RedisManager) {
    let runtime = runtime();
    let manager = runtime.block_on(connect(RedisManager::builder(url)));
    (runtime, manager)
}

/// Runs as the process with the load.
pub(crate) fn serve_as(load: &str, url: &str) {
    match load {
        "names" => held_locks::hold(url, "10"),
        "waiters" => waiters::wait(url),
        "guards" => holders::join(url),
        "processes" => processes::compete(url),
        "requests" => requests::load(url),
        "list" => list::list(url),
        _ => panic!("there is no load {load:?}"),
    }
}
