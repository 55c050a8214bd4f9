//! State of this process's locks. Each lock has one [cell](cell). The cell has the holds, the guards that share them,
//! the local waiters, and the leader of each side, which asks the server. It also has the start of an outage and the
//! in-doubt requests.
//!
//! All of that is one state without I/O and without a clock. It changes only through the functions of the cell, under
//! the cell's mutex: an event goes in, effects come out. Effects are carried out after the mutex is released, since a
//! waker may run any code.
//!
//! Knows the layer `base` only. Must not know stores and connections.

mod cell;
pub(crate) mod effects;
pub(crate) mod end;
mod few;
pub(crate) mod hold;
mod record;
pub(crate) mod release;
pub(crate) mod shares;
pub(crate) mod side;
mod stalled;
mod state;
pub(crate) mod table;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/unit/lock/tests.rs"]
mod tests;
pub(crate) mod wait;
pub(crate) mod watch;
