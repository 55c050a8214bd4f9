//! Public interface: managers, acquisitions, guards and configuration.
//!
//! Each public call calls the engine, and this module converts the results of the engine into public types. The module
//! has no algorithm of its own.
//!
//! Knows the engine and all layers below the engine.

pub(crate) mod acquire;
pub mod blocking;
#[cfg(feature = "serde")]
pub(crate) mod config;
pub(crate) mod group;
pub(crate) mod guard;
pub(crate) mod manager;
pub(crate) mod ticket;
