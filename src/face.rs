//! The public surface: managers, acquisitions, guards, configuration and views.
//!
//! Knows the engine and what is below it. Has no algorithm: each call goes to the engine, and answers become public types here.

pub(crate) mod acquire;
pub mod blocking;
#[cfg(feature = "serde")]
pub(crate) mod config;
pub(crate) mod guard;
pub(crate) mod manager;
