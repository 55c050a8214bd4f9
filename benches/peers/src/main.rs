//! Locks side by side, in one run, on one machine: `cargo run --release -- [SCENARIO…]`. Without a scenario all are run.
//!
//! Each scenario takes the peers in turns, several times, and reports medians. Each turn has servers and processes of
//! its own. The program stores the result of each turn, so that the same command continues where it was ended. Peers
//! have their default settings. A peer is left out of a scenario that it cannot do, with a dash and a line with the
//! reason. Floors are no locks: they show the cost of the scripts and of the connection alone.

mod goals;
mod kept;
mod load;
mod lock_server;
mod machine;
mod measure;
mod peer;
mod place;
mod print;
mod process;
mod program;
mod report;
mod run;
mod scenario;
#[path = "../../scenarios/setup.rs"]
#[allow(dead_code)] // The scenarios of the crate use more of it.
mod setup;
mod table;
mod worker;

use std::path::{Path, PathBuf};
use std::sync::atomic::Ordering;
use std::sync::{Arc, LazyLock};
use std::thread;
use std::time::{Duration, Instant};

use clap::{Parser, Subcommand, ValueEnum};
use cluster_testenv::{Node, Server};
use futures_util::future::BoxFuture;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use serde::Deserialize;

use load::{ALL_WRITE, Load, Outcome, Shape};
use lock_server::LockServer;
use measure::Turn;
use peer::{Kind, LEASE, Mode, Peer, Role};
use place::{Place, Servers};
use process::{Worker, carry};
use program::Program;
use scenario::{Comparison, Scenario, Setting};
use setup::*;
use table::{Better, Chapter, Circumstances, Figure, Row, Table, Why};

/// Compares redis-rwlock with other locks, and with what they are made of.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: run::Arguments,
}

#[derive(Subcommand)]
enum Command {
    /// Carries a load: what this program starts itself for each turn.
    #[command(hide = true)]
    Worker(worker::Arguments),
    /// Writes tables and pictures of what was seen, and whether goals were met.
    Report(report::Arguments),
}

fn main() {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Worker(load)) => worker::run(load),
        Some(Command::Report(report)) => report::write(report),
        None => run::run(&arguments.run),
    }
}
