//! Metrics for the facade of the crate `metrics`. `docs/METRICS.md` lists them, and a test compares the list with the
//! code. Without the cargo feature `metrics`, these types do nothing.
//!
//! A manager takes its metric handles when it is built, so an application must install its recorder before that. Each
//! event then costs an addition or two.

#[cfg(not(feature = "metrics"))]
mod off;
#[cfg(feature = "metrics")]
mod on;
#[cfg(all(test, feature = "_testing", feature = "metrics"))]
#[path = "../../testing/unit/base/metrics/recording.rs"]
pub(crate) mod recording;
#[cfg(all(test, feature = "_testing", feature = "metrics"))]
#[path = "../../testing/unit/base/metrics/tests.rs"]
mod tests;

#[cfg(not(feature = "metrics"))]
pub(crate) use off::{Counted, Counter, Metrics, NodeFindings, UnusableNodes};
#[cfg(feature = "metrics")]
pub(crate) use on::{Counted, Counter, Metrics, NodeFindings, UnusableNodes};

/// True if metrics are compiled in.
pub(crate) const IS_ON: bool = cfg!(feature = "metrics");

/// Outcome of a renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum RenewalOutcome {
    Renewed,
    Unanswered,
    Lost,
}
