//! Metrics, reported through the crate `metrics`. `docs/METRICS.md` lists them, and a test compares this list with the
//! code. Without the cargo feature `metrics`, the types of this module do nothing.
//!
//! A manager takes its metric handles from the recorder when it is built. So an application must install its recorder
//! before it builds a manager. Each event then costs one or two additions.

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
