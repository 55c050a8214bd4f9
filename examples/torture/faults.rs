//! What can be done to servers, network and workers, and which level claims to survive it.

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

/// Whether a level claims to survive a fault: the two columns of docs/GUARANTEES.md.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum Column {
    /// It does.
    Left,
    /// It does not: what happens is counted and shown.
    Right,
}

/// Whether it can happen while another fault does.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Mixes {
    /// It changes nothing of who is who.
    Yes,
    No,
}

/// What a fault is done to.
#[derive(Debug)]
pub(crate) struct Scene<'a> {
    pub(crate) field: &'a Field,
    pub(crate) crew: &'a Crew,
}

/// One way to hurt.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Fault {
    pub(crate) name: &'static str,
    pub(crate) about: &'static str,
    pub(crate) column: Column,
    pub(crate) mixes: Mixes,
    /// Returns when it is over. What is left of it then is healed by whoever called.
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

/// All that a level meets.
pub(crate) fn of(level: Level, server: Server) -> Vec<Fault> {
    let own = match level {
        Level::Primary => cluster::at_primary(server),
        Level::Replicated => cluster::at_replicated(server),
        Level::Quorum => masters::all(),
    };
    [own, network::ALL.to_vec(), servers::ALL.to_vec(), workers::ALL.to_vec(), clocks::ALL.to_vec()].concat()
}

/// Those that the command line names: one, or several that happen at once.
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
        "all" => Ok(of(args.level, args.server)),
        "left" => Ok(of(args.level, args.server).into_iter().filter(|fault| fault.column == Column::Left).collect()),
        "right" => Ok(of(args.level, args.server).into_iter().filter(|fault| fault.column == Column::Right).collect()),
        name => Ok(vec![one(args, name)?]),
    }
}

fn one(args: &Args, name: &str) -> Result<Fault> {
    let found = of(args.level, args.server).into_iter().find(|fault| fault.name == name);
    found.ok_or_else(|| format!("at the level {} no fault is called {name:?}; see --list", args.level.name()).into())
}

/// One line each.
pub(crate) fn list(args: &Args) -> String {
    let line = |fault: Fault| {
        let column = if fault.column == Column::Left { "survived" } else { "not survived" };
        format!("{:<18} {column:<13} {}\n", fault.name, fault.about)
    };
    of(args.level, args.server).into_iter().map(line).collect()
}
