//! Locks side by side, in one run, on one machine: `cargo run --release -- [SCENARIO…]`. Without a scenario all are run.
//!
//! Each scenario takes the peers in turns, several times, and tells medians. Peers have the settings that they come with,
//! and are left out of what they cannot do: a dash says so. Floors are no locks: they show what the scripts and the
//! connection cost alone.

#[path = "../../figures/mod.rs"]
mod figures;
mod measure;
mod peer;
mod report;
mod scenario;

use std::time::Duration;

use clap::Parser;
use cluster_testenv::Server;
use peer::Kind;
use scenario::{Scenario, Setting};

/// Compares redis-rwlock with other locks, and with what they are made of.
#[derive(Parser)]
struct Arguments {
    /// What to run; all of it if nothing is named.
    #[arg(value_enum)]
    scenarios: Vec<Scenario>,
    /// Only peers whose names contain one of these.
    #[arg(long)]
    only: Vec<String>,
    /// The server of cluster-testenv.
    #[arg(long, default_value = "redis-7.0")]
    server: String,
    /// How often each peer's turn comes.
    #[arg(long, default_value_t = 5)]
    rounds: usize,
    /// How long a turn is, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    span_ms: u64,
    /// How long a market is open, in seconds.
    #[arg(long, default_value_t = 60)]
    market_s: u64,
}

fn main() {
    let arguments = Arguments::parse();
    let server: Server = arguments.server.parse().expect("a server of cluster-testenv");
    let is_asked =
        |kind: &Kind| arguments.only.is_empty() || arguments.only.iter().any(|part| kind.name().contains(part));
    let setting = Setting {
        server,
        peers: Kind::ALL.iter().copied().filter(is_asked).collect(),
        rounds: arguments.rounds,
        span: Duration::from_millis(arguments.span_ms),
        market: Duration::from_secs(arguments.market_s),
    };
    report::machine(server);
    let named = &arguments.scenarios;
    for scenario in Scenario::ALL.iter().filter(|scenario| named.is_empty() || named.contains(scenario)) {
        scenario.run(&setting);
    }
}
