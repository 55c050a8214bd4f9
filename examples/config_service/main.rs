//! A service whose workers share their configuration under one read-write lock.
//!
//! Workers read under `read("cfg")` and update under `write("cfg")`. One of them is killed in the middle of an update,
//! while it holds the lock. The others get in when its lease is over, find the update half done, and finish it. In the
//! end the run checks that no update was lost and that nobody ever saw what they should not.
//!
//! - `store`: where the configuration lies; refuses whoever comes with an old fencing token
//! - `config`: what it is, and how an update survives its writer
//! - `worker`: the work under the locks, which is what you would write
//! - `team`: workers as processes, or as runtimes of their own in this one
//! - `event`: what workers and parent tell each other
//! - `parent`: shows who holds the lock, kills one worker, ends the run
//! - `report`: what was heard from the workers, and whether it can be true

mod config;
mod event;
mod parent;
mod report;
mod store;
mod team;
mod worker;

use std::env;
use std::process::ExitCode;
use std::time::Duration;

use crate::store::Servers;

type Error = Box<dyn std::error::Error + Send + Sync>;
type Result<T, E = Error> = std::result::Result<T, E>;

/// The lock that guards the configuration.
const LOCK: &str = "cfg";
/// How long a killed worker keeps the others out. Short, so that the run is short; the default is 10 s.
const LEASE: Duration = Duration::from_secs(2);

const HELP: &str = "\
usage: config_service [OPTIONS]

Workers read and update a shared configuration under one read-write lock. One is killed while it writes.
Exits with 0 if the invariant held.

OPTIONS
  (none)               everything in this process, no server needed
  --redis URL          worker processes; locks and configuration on one Redis or Valkey
  --cluster URL[,URL]  the same on a cluster, found through any of these nodes
  --workers N          2 to 64, if not given 4
  --seconds S          at least 4, if not given 6
  --help";

/// What the command line says.
struct Args {
    /// None: in memory.
    servers: Option<Servers>,
    workers: usize,
    duration: Duration,
    role: Role,
}

enum Role {
    Parent,
    /// One of the parent's worker processes: its name, and the key of the configuration.
    Worker {
        name: String,
        data_key: String,
    },
}

#[tokio::main]
async fn main() -> ExitCode {
    let words: Vec<String> = env::args().skip(1).collect();
    if words.iter().any(|word| word == "--help" || word == "-h") {
        println!("{HELP}");
        return ExitCode::SUCCESS;
    }
    let args = match parse(words) {
        Ok(args) => args,
        Err(complaint) => {
            eprintln!("{complaint}\n\n{HELP}");
            return ExitCode::from(2);
        }
    };
    match run(args).await {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(error) => {
            eprintln!("config_service: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Whether the invariant held.
async fn run(args: Args) -> Result<bool> {
    match (args.role, args.servers) {
        (Role::Parent, servers) => parent::run(servers, args.workers, args.duration).await,
        (Role::Worker { name, data_key }, Some(servers)) => {
            team::be_process(&name, &data_key, &servers, args.workers).await.map(|()| true)
        }
        (Role::Worker { .. }, None) => Err("a worker process needs a server".into()),
    }
}

fn parse(words: Vec<String>) -> Result<Args> {
    let mut args = Args { servers: None, workers: 4, duration: Duration::from_secs(6), role: Role::Parent };
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let mut value = || words.next().ok_or_else(|| format!("{word} needs a value"));
        let servers = match word.as_str() {
            "--redis" => Servers::Node(value()?),
            "--cluster" => Servers::Cluster(value()?.split(',').map(str::to_owned).collect()),
            "--workers" => {
                args.workers = value()?.parse().ok().filter(|n| (2..=64).contains(n)).ok_or("--workers: 2 to 64")?;
                continue;
            }
            "--seconds" => {
                let seconds = value()?.parse().ok().filter(|n| (4..=86_400).contains(n));
                args.duration = Duration::from_secs(seconds.ok_or("--seconds: at least 4")?);
                continue;
            }
            // What `team` starts this program with.
            "worker" => {
                args.role = Role::Worker { name: value()?, data_key: value()? };
                continue;
            }
            // Not repeated: it might be a URL with a password in it.
            _ => return Err("there is an argument that is not known".into()),
        };
        if args.servers.replace(servers).is_some() {
            return Err("one of --redis and --cluster, and once".into());
        }
    }
    Ok(args)
}
