//! What this process knows of its locks. One lock is one [cell](cell): its holds, the guards that share them, who waits for it
//! here, who asks the server, since when the server is silent, and which copies of a request may yet arrive there.
//!
//! All of that is one state, with no I/O and no clock in it. It changes at one entrance, under the mutex of its cell: an event
//! goes in, effects come out, and those are carried out when the mutex is free, since a waker may do anything.

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
