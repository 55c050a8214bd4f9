//! Tests of the first things that users see: documents, examples, and the documentation of public items.
#![allow(missing_docs, clippy::missing_panics_doc)] // a test binary has no public items, and tests panic to fail

mod documents;
mod examples;
mod items;
#[cfg(feature = "metrics")]
mod metrics;
/// Example `service`, for its own tests. With `test = true` in `Cargo.toml`, Cargo would build only the tests of the
/// example, and not the program.
#[allow(dead_code, unused_imports)]
#[path = "../../examples/service.rs"]
mod service;
