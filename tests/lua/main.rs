//! The Lua scripts alone, on real servers: every return code and every branch, on each server.
//!
//! The promises of the scripts are in `transcripts/`. The other files have what no transcript can say: the cost of a
//! script, its fields, random states, full servers, keys of other clients. No test waits for a lease to end: time
//! stands still, or a deadline of the past is written into a record. After a script, the lab checks the invariants of
//! `lua/README.md`, so each case is a test of those as well.
#![allow(unreachable_pub)] // a test binary has no public items

mod contract;
mod costs;
mod dialects;
mod fast_paths;
mod full_memory;
mod hash;
mod interpreter;
mod invariants;
mod lab;
mod layout;
#[path = "../../lua/portable.rs"]
mod portable;
mod published;
#[path = "../../lua/scripts.rs"]
mod scripts;
mod servers;
mod transcripts;
mod two_key;
mod versions;
