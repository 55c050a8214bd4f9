//! What the peers have to do.

mod crowd;
mod held;
mod market;
mod recovery;
mod shards;
mod sole_reader;
mod uncontended;
mod wake_up;

use std::time::Duration;

use clap::ValueEnum;
use cluster_testenv::Server;
use tokio::runtime::Runtime;

use crate::load::{ALL_WRITE, Load, Shape};
use crate::measure::Turn;
use crate::peer::{Kind, LEASE};
use crate::place::{Place, Servers};
use crate::print;
use crate::process::carry;
use crate::program::Program;
use crate::table::{Better, Row, Table};

#[derive(Clone, Copy, PartialEq, Eq, Debug, ValueEnum)]
pub(crate) enum Scenario {
    /// Locks of their own for 1, 16, 256 tasks.
    Uncontended,
    /// One lock that everybody writes.
    HotWrite,
    /// One lock that 99 of 100 read.
    HotRead,
    /// 10,000 locks are held and renewed: what others feel of it.
    Held,
    /// One waits, one leaves.
    WakeUp,
    /// The market of the articles in which the schemes were published.
    Market,
    /// The same load on 1, 2, 3 primaries.
    Shards,
    /// One task that reads one name again and again.
    SoleReader,
    /// A primary is killed: how soon locks are had again.
    Recovery,
}

impl Scenario {
    pub(crate) fn run(self, setting: &Setting) -> Vec<Table> {
        match self {
            Self::Uncontended => uncontended::run(setting),
            Self::HotWrite => crowd::write(setting),
            Self::HotRead => crowd::read(setting),
            Self::Held => held::run(setting),
            Self::WakeUp => wake_up::run(setting),
            Self::Market => market::run(setting),
            Self::Shards => shards::run(setting),
            Self::SoleReader => sole_reader::run(setting),
            Self::Recovery => recovery::run(setting),
        }
    }

    pub(crate) fn name(self) -> String {
        self.to_possible_value().expect("none is hidden").get_name().to_owned()
    }

    pub(crate) fn about(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_help().map(ToString::to_string).unwrap_or_default()
    }
}

/// How it is done.
pub(crate) struct Setting {
    pub(crate) server: Server,
    pub(crate) peers: Vec<Kind>,
    pub(crate) rounds: usize,
    pub(crate) span: Duration,
    pub(crate) market: Duration,
    pub(crate) lessened: Lessened,
    /// Programs that could not be built, and why.
    pub(crate) absent: Vec<(Program, String)>,
}

/// Whether counts are those of the issue, or small ones to see that all of it runs.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Lessened {
    No,
    Yes,
}

/// What a table is about.
pub(crate) struct About<'a> {
    pub(crate) group: &'a str,
    pub(crate) title: String,
    pub(crate) at: Option<(f64, &'a str)>,
    pub(crate) better: Better,
    pub(crate) columns: &'a [&'a str],
    /// What a reader has to know.
    pub(crate) notes: &'a [&'a str],
}

/// The figures of one turn, one for each column, and the versions of what took it.
pub(crate) type Figures = (Vec<f64>, String);

impl Setting {
    pub(crate) fn load(&self, shape: Shape, clients: usize, tasks: usize) -> Load {
        Load {
            shape,
            writes: ALL_WRITE,
            clients,
            tasks,
            pause_ms: 0,
            warm_ms: 0,
            span_ms: u64::try_from(self.span.as_millis()).expect("short"),
            lease_ms: u64::try_from(LEASE.as_millis()).expect("short"),
        }
    }

    /// The greatest of these, or a small one if all are to be small.
    pub(crate) fn count(&self, full: usize) -> usize {
        if self.lessened == Lessened::Yes { full.min(20) } else { full }
    }

    /// Each peer of `kinds` has its turn in each round. Who cannot do it, or fails, has a dash and a reason.
    pub(crate) fn compare(
        &self,
        about: &About<'_>,
        kinds: impl Fn(Kind) -> bool,
        turn: impl Fn(Kind) -> Result<Figures, String>,
    ) -> Table {
        let mut all: Vec<_> = self.peers.iter().filter(|kind| kinds(**kind)).map(|kind| Turns::of(*kind)).collect();
        for _ in 0..self.rounds {
            for turns in all.iter_mut().filter(|turns| turns.why.is_none()) {
                match self.is_there(turns.kind).and_then(|()| turn(turns.kind)) {
                    Ok((figures, versions)) => {
                        turns.rounds.push(figures);
                        turns.versions = versions;
                    }
                    Err(why) => turns.why = Some(why),
                }
            }
        }
        let table = Table {
            group: about.group.to_owned(),
            title: about.title.clone(),
            at: about.at.map(|(at, of)| (at, of.to_owned())),
            better: about.better,
            columns: about.columns.iter().map(ToString::to_string).collect(),
            rows: all.into_iter().map(Turns::row).collect(),
            notes: about.notes.iter().map(ToString::to_string).collect(),
        };
        println!("{}{}", print::table(&table), print::notes(std::slice::from_ref(&table)));
        table
    }

    fn is_there(&self, kind: Kind) -> Result<(), String> {
        let program = kind.facts().program;
        let absent = self.absent.iter().find(|(absent, _)| *absent == program);
        absent.map_or(Ok(()), |(_, why)| Err(why.clone()))
    }

    /// One turn at the place where this lock is at home.
    pub(crate) fn turn(&self, kind: Kind, load: &Load, processes: usize) -> Result<Turn, String> {
        self.turn_at(kind.facts().place, kind, load, processes)
    }

    pub(crate) fn turn_at(&self, place: Place, kind: Kind, load: &Load, processes: usize) -> Result<Turn, String> {
        let facts = kind.facts();
        if !facts.reads && load.writes < ALL_WRITE {
            return Err("it has no reads".to_owned());
        }
        let warm_ms = if load.shape == Shape::Held { 0 } else { facts.program.warm_ms() };
        let load = Load { warm_ms, ..load.clone() };
        let servers = Servers::start(place, self.server);
        let turn = carry(kind, &servers, &load, processes)?;
        if turn.is_empty() && load.shape != Shape::Held {
            return Err("nobody was served".to_owned());
        }
        Ok(turn)
    }
}

/// What one peer has shown so far.
struct Turns {
    kind: Kind,
    rounds: Vec<Vec<f64>>,
    versions: String,
    why: Option<String>,
}

impl Turns {
    fn of(kind: Kind) -> Self {
        Self { kind, rounds: Vec::new(), versions: String::new(), why: None }
    }

    /// Turns before one that failed count, and that it failed is told.
    fn row(self) -> Row {
        let (name, turns) = (self.kind.name(), self.rounds.len());
        let mut row = match &self.why {
            Some(why) if turns == 0 => Row::dash(name, why),
            _ => Row::of(name, &self.rounds),
        };
        row.why = self.why.map(|why| if turns == 0 { why } else { format!("it failed after {turns} turns: {why}") });
        row.versions = self.versions;
        row
    }
}

/// For what is measured in this process.
fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}
