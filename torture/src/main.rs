//! Tests the locks under faults. Worker processes use real servers while this program causes faults. Then a judge
//! checks the history.
//!
//! ```text
//! cargo run --release -p torture -- --level primary --server redis --minutes 1 --seed 7 --faults all
//! ```
//!
//! The servers come from `cluster-testenv/install`. The program needs Linux. No server and no worker outlives a run,
//! even if the run is killed.
//!
//! - `run`: starts everything, causes and heals faults by the seed, and ends everything
//! - `field`: the servers, and their repair
//! - `faults` and its folder: faults of servers, network and workers, and the levels that claim to survive them
//! - `crew`: start and end of the worker processes
//! - `worker`, `tasks`, `groups`: the work of a worker process
//! - `register`: the numbers that the locks protect, with and without a check of tokens
//! - `history`: the events, as the workers write them
//! - `observer`: views of the queues
//! - `judge`: the check of the history, and of the queues' order
//! - `report`: the table

mod args;
mod crew;
mod faults;
mod field;
mod groups;
mod history;
mod judge;
mod observer;
mod register;
mod report;
mod run;
mod tasks;
mod worker;

use std::collections::HashSet;
use std::env;
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::sync::{Arc, Mutex, PoisonError};
use std::thread;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Reply, Server, wait_for};
use fastrand::Rng;
use redis_rwlock::{Mode, QuorumManager, RedisManager, Replicas, RwLockManager, Topology};
use rustix::process::Signal;
use tokio::sync::watch;
use tokio::time::timeout;

use args::{Args, Asks, HELP, Level, Plant};
use crew::{Crew, Told};
use faults::{Column, Mixes};
use field::Field;
use history::{Gift, Journal, Moment, Origin, nanos, now};
use register::{Client, Kind};
use tasks::{COLD, LOCKS, SLOW, Task, lock_name};
use worker::Order;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// Prefix of all keys of the locks.
const PREFIX: &str = "torture";
/// Lease of most holds. It is short, so that there are many renewals, but longer than an ordered failover.
const LEASE: Duration = Duration::from_secs(3);
/// Lease of some holds, on a cluster.
const LONGEST_LEASE: Duration = Duration::from_secs(8);

fn main() -> ExitCode {
    if let Some(order) = Order::of_this_process() {
        return end(order.and_then(|order| worker::run(&order)).map(|()| true));
    }
    let args = match Args::parse(env::args().skip(1)) {
        Ok(args) => args,
        Err(complaint) => {
            eprintln!("{complaint}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match args.asks {
        Asks::Help => println!("{HELP}"),
        Asks::List => return end(faults::list(&args).map(|list| print!("{list}")).map(|()| true)),
        Asks::Run => return end(run::run(&args)),
    }
    ExitCode::SUCCESS
}

fn end(outcome: Result<bool>) -> ExitCode {
    match outcome {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("torture: {error}");
            ExitCode::FAILURE
        }
    }
}
