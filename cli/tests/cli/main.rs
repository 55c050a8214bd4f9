//! Tests of the program `redis-rwlock` on real servers.
#![allow(
    missing_docs, // a test binary has no public items
    clippy::missing_panics_doc, // tests panic to fail
    unreachable_pub
)]

mod program;

mod doctor;
mod force;
mod groups;
mod look;
mod options;
mod output;
mod places;
mod recipes;
mod redisson;
mod rests;
mod run;
mod terminal;
