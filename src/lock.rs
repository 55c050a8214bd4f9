//! Locks as this process knows them. Each lock has one [cell](cell), which stores the holds of the lock, the guards
//! that share each hold, and the tasks that wait. The readers are one side of a lock, and the writers are the other. Each
//! side has at most one request at the server, and one task at a time sends its copies. The cell also stores when an
//! outage began, and which requests are in doubt.
//!
//! The contents of a cell are one state, which does no I/O and reads no clock. Each event changes the state under the
//! mutex of the cell and produces effects: tasks to wake, losses to report, and holds that the background has to look at
//! earlier. The cell carries out the effects after it has released the mutex, because a waker may run any code.
//!
//! Knows the layer `base` only. Must not know stores and connections.

mod cell;
pub(crate) mod deadlines;
pub(crate) mod effects;
pub(crate) mod end;
pub(crate) mod hold;
pub(crate) mod local_waits;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/explorer/process.rs"]
pub(crate) mod process;
mod record;
pub(crate) mod release;
pub(crate) mod shares;
pub(crate) mod side;
mod state;
pub(crate) mod table;
#[cfg(all(test, feature = "_testing"))]
#[path = "../testing/unit/lock/tests.rs"]
mod tests;
pub(crate) mod wait;
mod waiters;
pub(crate) mod wake;
pub(crate) mod watch;
