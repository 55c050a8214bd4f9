//! Tests of the first things that users see: documents, examples, and the documentation of public items.
#![allow(missing_docs, clippy::missing_panics_doc)] // a test binary has no public face, and tests panic to fail

mod documents;
mod examples;
mod items;
#[cfg(feature = "metrics")]
mod metrics;
/// Example `service`, for its own tests. With `test = true` in `Cargo.toml`, Cargo would build it for its tests only,
/// and not to be run.
#[allow(dead_code, unused_imports)]
#[path = "../../examples/service.rs"]
mod service;
