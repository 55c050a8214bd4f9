//! The Lua scripts alone, on real servers: every return code and every branch, on each server.
//!
//! Nobody waits for a lease to end: a record is made dead by writing a deadline of the past into it. After every script the
//! lab checks the invariants of `lua/README.md`, so each case is a test of those as well.

mod contract;
mod costs;
mod invariants;
mod lab;
mod layout;
mod marks;
mod model;
mod pending;
mod published;
mod queue;
mod readers;
#[path = "../../lua/scripts.rs"]
mod scripts;
mod servers;
mod stamps;
mod transcripts;
mod turns;
mod two_key;
mod versions;
mod ways;
