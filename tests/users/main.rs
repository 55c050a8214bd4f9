//! What users see first: documents, examples, and the documentation of public items.
#![allow(missing_docs, clippy::missing_panics_doc)] // a test binary has no public face, and tests panic to fail

mod documents;
mod examples;
mod items;
#[cfg(feature = "metrics")]
mod metrics;
/// Its own tests. As `test = true` it would be built for them only, and not to be run.
#[allow(dead_code, unused_imports)]
#[path = "../../examples/service.rs"]
mod service;
