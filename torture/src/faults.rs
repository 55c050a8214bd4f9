//! Faults of servers, network and workers, and the levels that claim to survive each.

use std::thread::sleep;
use std::time::Instant;

use super::*;

mod clocks;
mod cluster;
mod masters;
mod network;
mod servers;
mod workers;

/// Claim of a level about a fault, as one of the two columns in docs/GUARANTEES.md.
#[derive(Clone, Copy, Default, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Column {
    /// The level survives the fault.
    #[default]
    Left,
    /// The level does not survive the fault. The run counts violations and shows them.
    Right,
}

/// Compatibility of a fault with other faults at the same time.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mixes {
    /// The fault changes no server's role.
    Yes,
    No,
}

/// Targets of a fault.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) field: &'a Field,
    pub(crate) crew: &'a Crew,
    pub(crate) rng: Rng,
}

impl<'a> Scene<'a> {
    /// Returns a server that grants a random lock.
    fn any(&mut self) -> &'a Node {
        let grantors = self.field.grantors(self.rng.usize(..LOCKS));
        grantors[self.rng.usize(..grantors.len())]
    }

    fn millis(&mut self, from: u64, to: u64) -> Duration {
        Duration::from_millis(self.rng.u64(from..to))
    }

    fn sleep(&mut self, from_ms: u64, to_ms: u64) {
        sleep(self.millis(from_ms, to_ms));
    }
}

/// Gives the users of locks time to notice what has happened.
fn done_after(span: Duration) -> Result<()> {
    sleep(span);
    Ok(())
}

/// Causes a fault in a scene.
type Happen = fn(&mut Scene<'_>) -> Result<()>;

/// Fault that a run can cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) column: Column,
    pub(crate) mixes: Mixes,
    /// Causes the fault, and returns when the fault is over. The caller repairs the remains.
    pub(crate) happen: Happen,
}

/// Makes a fault that the level survives.
const fn left(name: &'static str, happen: Happen, about: &'static str) -> Fault {
    Fault { name, about, column: Column::Left, mixes: Mixes::No, happen }
}

/// Makes a fault that the level survives, together with any other fault.
const fn mixing(name: &'static str, happen: Happen, about: &'static str) -> Fault {
    Fault { mixes: Mixes::Yes, ..left(name, happen, about) }
}

/// Makes a fault that the level does not survive.
const fn right(name: &'static str, happen: Happen, about: &'static str) -> Fault {
    Fault { column: Column::Right, ..left(name, happen, about) }
}

/// Returns all faults for a level.
pub(crate) fn of(level: Level, server: Server) -> Result<Vec<Fault>> {
    let own = match level {
        Level::Primary => cluster::at_primary(server)?,
        Level::Replicated => cluster::at_replicated(server)?,
        Level::Quorum => masters::ALL.to_vec(),
    };
    Ok([own, network::ALL.to_vec(), servers::ALL.to_vec(), workers::ALL.to_vec(), clocks::ALL.to_vec()].concat())
}

/// Returns the faults that the command line names. Each item has one fault, or several faults that happen at the same
/// time.
pub(crate) fn chosen(args: &Args) -> Result<Vec<Vec<Fault>>> {
    let mut chosen = Vec::new();
    for word in args.faults.split(',') {
        match word.split_once('+') {
            Some(_) => chosen.push(word.split('+').map(|name| one(args, name)).collect::<Result<_>>()?),
            None => chosen.extend(some(args, word)?.into_iter().map(|fault| vec![fault])),
        }
    }
    Ok(chosen)
}

fn some(args: &Args, word: &str) -> Result<Vec<Fault>> {
    match word {
        "all" => of(args.level, args.server),
        "left" => Ok(of(args.level, args.server)?.into_iter().filter(|fault| fault.column == Column::Left).collect()),
        "right" => Ok(of(args.level, args.server)?.into_iter().filter(|fault| fault.column == Column::Right).collect()),
        name => Ok(vec![one(args, name)?]),
    }
}

fn one(args: &Args, name: &str) -> Result<Fault> {
    let found = of(args.level, args.server)?.into_iter().find(|fault| fault.name == name);
    found.ok_or_else(|| format!("at the level {} no fault is called {name:?}; see --list", args.level.name()).into())
}

/// Formats one line for each fault.
pub(crate) fn list(args: &Args) -> Result<String> {
    let line = |fault: Fault| {
        let column = if fault.column == Column::Left { "survived" } else { "not survived" };
        format!("{:<18} {column:<13} {}\n", fault.name, fault.about)
    };
    Ok(of(args.level, args.server)?.into_iter().map(line).collect())
}
