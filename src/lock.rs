//! State of this process's locks. One lock is one [cell](cell): its holds, the guards that share them, the local
//! waiters, and the leader of each side, which asks the server. The cell also keeps the start of an outage, and
//! in-doubt requests.
//!
//! All of that is one state, with no I/O and no clock in it. It changes at one entrance, under the mutex of its cell:
//! an event goes in, effects come out. Effects are carried out when the mutex is free, since a waker may run any code.
//!
//! Knows the base only. Must not know stores and connections.

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
