//! Tests of the first things that users see: documents, examples, and the documentation of public items.
#![allow(missing_docs, clippy::missing_panics_doc)] // a test binary has no public items, and tests panic to fail

mod documents;
mod examples;
mod items;
#[cfg(feature = "metrics")]
mod metrics;
mod recipes;

// Examples with tests of their own. With `test = true` in `Cargo.toml`, Cargo would build only the tests of an example,
// and not the program.
#[allow(dead_code, unused_imports)]
#[path = "../../examples/leader.rs"]
mod leader;
#[allow(dead_code, unused_imports)]
#[path = "../../examples/nightly.rs"]
mod nightly;
#[allow(dead_code, unused_imports)]
#[path = "../../examples/service.rs"]
mod service;
