//! Mistakes of callers and their outcome: the caller's error, the state of the guard, the rest on the server.
//! `docs/RELIABILITY.md` has the table.

mod addresses;
mod durations;
mod messages;
mod processes;
mod reentry;
pub mod runtimes;
mod table;
mod troubles;
