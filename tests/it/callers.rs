//! What callers do wrong, and what happens to them: what they get, what the guard says, what is left on the server.
//! `docs/RELIABILITY.md` has the table.

mod addresses;
mod durations;
mod messages;
mod processes;
mod reentry;
pub(crate) mod runtimes;
mod table;
mod troubles;
