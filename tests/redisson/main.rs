//! Locks that clients of Redisson (Java) and managers of this crate share.
//!
//! The cases in [`layout`] need no Java. All others start clients of Redisson, for which they need a JDK and Maven. Those run in
//! `.ci/all`, with each [`java::Version`] of Redisson.
#![allow(
    missing_docs, // a test binary has no public face
    clippy::missing_panics_doc, // tests panic to fail
    unreachable_pub
)]

mod beside;
mod costs;
mod failover;
mod java;
mod layout;
mod places;
mod register;
mod soak;
mod theirs;
#[allow(dead_code)] // for the cases of `tests/it` too
#[path = "../it/wait.rs"]
mod wait;
mod wakes;
