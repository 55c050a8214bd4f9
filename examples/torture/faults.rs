//! What can be done to servers, network and workers, and which level claims to survive it.

use fastrand::Rng;

use crate::Result;
use crate::args::{Args, Level};
use crate::crew::Crew;
use crate::field::Field;

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
pub(crate) fn of(level: Level) -> Vec<Fault> {
    let own = match level {
        Level::Primary => cluster::at_primary(),
        Level::Replicated => cluster::at_replicated(),
        Level::Quorum => masters::all(),
    };
    [own, network::ALL.to_vec(), servers::ALL.to_vec(), workers::ALL.to_vec()].concat()
}

/// Those that the command line names.
pub(crate) fn chosen(args: &Args) -> Result<Vec<Fault>> {
    let all = of(args.level);
    let mut chosen = Vec::new();
    for word in args.faults.split(',') {
        let before = chosen.len();
        chosen.extend(all.iter().filter(|fault| match word {
            "all" => true,
            "left" => fault.column == Column::Left,
            "right" => fault.column == Column::Right,
            name => fault.name == name,
        }));
        if chosen.len() == before {
            return Err(format!("at the level {} no fault is called {word:?}; see --list", args.level.name()).into());
        }
    }
    Ok(chosen)
}

/// One line each.
pub(crate) fn list(level: Level) -> String {
    let line = |fault: Fault| {
        let column = if fault.column == Column::Left { "survived" } else { "not survived" };
        format!("{:<18} {column:<13} {}\n", fault.name, fault.about)
    };
    of(level).into_iter().map(line).collect()
}
