//! Public interface: managers, acquisitions, guards and configuration.
//!
//! Each call goes to the engine, and this module turns the answers of the engine into public types. The module has no
//! algorithm of its own.
//!
//! Knows the engine and all layers below the engine.

pub(crate) mod acquire;
pub mod blocking;
#[cfg(feature = "serde")]
pub(crate) mod config;
pub(crate) mod guard;
pub(crate) mod manager;
