//! Locks side by side, in one run, on one machine: `cargo run --release -- [SCENARIO…]`. Without a scenario all are run.
//!
//! Each scenario takes the peers in turns, several times, and tells medians. Each turn has servers and processes of its own.
//! Peers have the settings that they come with, and are left out of what they cannot do: a dash and a line say so. Floors are no
//! locks: they show what the scripts and the connection cost alone.

#[path = "../../scenarios/setup.rs"]
#[allow(dead_code)] // The scenarios of the crate use more of it.
mod setup;
mod load;
mod machine;
mod measure;
mod peer;
mod place;
mod print;
mod process;
mod program;
mod report;
mod scenario;
mod table;
mod worker;

use std::path::PathBuf;
use std::time::Duration;

use clap::{Parser, Subcommand, ValueEnum};
use cluster_testenv::Server;
use peer::Kind;
use program::Program;
use scenario::{Lessened, Scenario, Setting};
use table::{Chapter, Table};

/// Compares redis-rwlock with other locks, and with what they are made of.
#[derive(Parser)]
#[command(args_conflicts_with_subcommands = true)]
struct Arguments {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    run: Run,
}

#[derive(Subcommand)]
enum Command {
    /// Carries a load: what this program starts itself for each turn.
    #[command(hide = true)]
    Worker(worker::Arguments),
    /// Writes tables and pictures of what was seen.
    Report(report::Arguments),
}

#[derive(clap::Args)]
struct Run {
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
    /// Where what was seen is kept for the report: a file for each scenario, which its next run replaces.
    #[arg(long, default_value = report::FIGURES)]
    figures: PathBuf,
    /// With 20 where there should be more tasks, clients or locks: to see that all of it runs.
    #[arg(long)]
    lessened: bool,
}

fn main() {
    let arguments = Arguments::parse();
    match &arguments.command {
        Some(Command::Worker(load)) => worker::run(load),
        Some(Command::Report(report)) => report::write(report),
        None => run(&arguments.run),
    }
}

fn run(run: &Run) {
    let server: Server = run.server.parse().expect("a server of cluster-testenv");
    let is_asked = |kind: &Kind| run.only.is_empty() || run.only.iter().any(|part| kind.name().contains(part));
    let peers: Vec<_> = Kind::all().iter().copied().filter(is_asked).collect();
    let absent = build(&peers);
    for (program, why) in &absent {
        eprintln!("{program:?} is left out: {why}");
    }
    let setting = Setting {
        server,
        peers,
        rounds: run.rounds,
        span: Duration::from_millis(run.span_ms),
        market: Duration::from_secs(run.market_s),
        lessened: if run.lessened { Lessened::Yes } else { Lessened::No },
        absent,
    };
    let named = &run.scenarios;
    for scenario in Scenario::value_variants().iter().filter(|scenario| named.is_empty() || named.contains(scenario)) {
        let tables = scenario.run(&setting);
        let file = run.figures.join(format!("{}.json", scenario.name()));
        report::keep(&file, &chapter(&setting, *scenario, tables));
    }
}

fn chapter(setting: &Setting, scenario: Scenario, tables: Vec<Table>) -> Chapter {
    let Setting { server, rounds, span, market, .. } = setting;
    // A page of such a run must not pass for one of a full run.
    let lessened = if setting.lessened == Lessened::Yes { " (lessened: with 20 at most)" } else { "" };
    let (rounds, span) = if scenario == Scenario::Market { (1, market) } else { (*rounds, span) };
    Chapter {
        scenario: scenario.name(),
        about: scenario.about().trim_end_matches('.').to_owned() + lessened,
        date: machine::date(),
        machine: machine::description(),
        server: server.to_string(),
        commit: machine::commit(),
        rounds,
        span_ms: u64::try_from(span.as_millis()).expect("short"),
        tables,
    }
}

/// Builds what the peers are in, and tells what is not to be had and why.
fn build(peers: &[Kind]) -> Vec<(Program, String)> {
    let is_asked = |program: &Program| peers.iter().any(|kind| kind.facts().program == *program);
    let asked = Program::FOREIGN.into_iter().filter(is_asked);
    asked.filter_map(|program| program.build().err().map(|why| (program, why))).collect()
}
