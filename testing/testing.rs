//! Tests with access to the private items of the crate.

mod oracle;
mod simulation;
pub(crate) mod staged;
mod transcripts;
