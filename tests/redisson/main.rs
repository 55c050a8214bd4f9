//! Locks that clients of Redisson (Java) and managers of this crate share.
//!
//! The cases in [`layout`] and [`alone`] need no Java. All others start clients of Redisson, for which they need a JDK and
//! Maven. Those run in `.ci/all`, once with each version of Redisson in [`java::VERSIONS`].
#![allow(
    missing_docs, // a test binary has no public face
    clippy::missing_panics_doc, // tests panic to fail
    unreachable_pub
)]

mod beside;
mod java;
mod layout;
mod places;
