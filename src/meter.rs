//! What is counted for the facade of the crate `metrics`: `docs/METRICS.md`, which a test compares. Without the cargo feature of
//! that name there is nothing of it.
//!
//! The handles are asked for when a manager is built, so whoever counts is to be installed before that. Then each event is an
//! addition or two.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;
#[cfg(all(test, feature = "metrics"))]
pub(crate) mod recording;
#[cfg(all(test, feature = "metrics"))]
mod tests;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{Counted, Meter, NodeFindings, Tally, UnusableNodes};
#[cfg(feature = "metrics")]
pub(crate) use on::{Counted, Meter, NodeFindings, Tally, UnusableNodes};

/// Whether there is anything to count for.
pub(crate) const IS_ON: bool = cfg!(feature = "metrics");

/// What came of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RenewalOutcome {
    Renewed,
    Unanswered,
    Lost,
}
