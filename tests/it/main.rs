//! Promises of the crate, case by case, on every manager, topology and server.
#![allow(
    missing_docs, // a test binary has no public face
    clippy::missing_panics_doc, // tests panic to fail
    unreachable_pub
)]

/// Asserts that a value matches a pattern. The failure shows the value.
macro_rules! assert_matches {
    ($value:expr, $pattern:pat $(if $guard:expr)?) => {
        match &$value {
            $pattern $(if $guard)? => {}
            other => panic!("{other:?} is not {}", stringify!($pattern)),
        }
    };
}

mod either;
mod errors;
mod fixture;
mod record;
mod servers;
mod wait;
mod wire;

#[path = "../../lua/scripts.rs"]
mod scripts;

mod blocking;
mod cached_holds;
mod callers;
mod cancellation;
mod conditions;
mod contract;
mod deadlocks;
mod dials;
mod drops;
mod durability;
mod faults;
mod health;
mod identity;
mod load;
mod logs;
mod memory;
mod names;
mod nodes;
mod options;
mod portable;
mod quorum;
mod router;
mod run;
mod security;
mod server;
mod silence;
mod slow_ways;
mod timestamps;
mod topology;
mod two_key;
mod waiting;
