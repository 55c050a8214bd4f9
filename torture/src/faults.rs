//! Faults of servers, network and workers, and the levels that claim to survive each.

use cluster_testenv::Server;
use fastrand::Rng;

use crate::Result;
use crate::args::{Args, Level};
use crate::crew::Crew;
use crate::field::Field;

mod clocks;
mod cluster;
mod masters;
mod network;
mod servers;
mod workers;

/// Claim of a level about a fault, as one of the two columns in docs/GUARANTEES.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Column {
    /// The level survives the fault.
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
}

/// Fault that a run can cause.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) column: Column,
    pub(crate) mixes: Mixes,
    /// Causes the fault, and returns when the fault is over. The caller repairs the remains.
    pub(crate) happen: fn(&Scene<'_>, &mut Rng) -> Result<()>,
}

const fn left(
    name: &'static str,
    mixes: Mixes,
    happen: fn(&Scene<'_>, &mut Rng) -> Result<()>,
    about: &'static str,
) -> Fault {
    Fault { name, about, column: Column::Left, mixes, happen }
}

const fn right(name: &'static str, happen: fn(&Scene<'_>, &mut Rng) -> Result<()>, about: &'static str) -> Fault {
    Fault { name, about, column: Column::Right, mixes: Mixes::No, happen }
}

/// Returns all faults for a level.
pub(crate) fn of(level: Level, server: Server) -> Result<Vec<Fault>> {
    let own = match level {
        Level::Primary => cluster::at_primary(server)?,
        Level::Replicated => cluster::at_replicated(server)?,
        Level::Quorum => masters::all(),
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
