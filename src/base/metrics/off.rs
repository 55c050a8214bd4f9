//! Metrics that do nothing, for builds without the cargo feature `metrics`.

use super::RenewalOutcome;
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::health::FindingKind;
use crate::base::mode::Mode;

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Metrics {}

impl Metrics {
    pub(crate) fn count_join(self, _: Mode) {}

    pub(crate) fn begin(self, _: Mode, _: Clock) -> Underway {
        Underway
    }

    pub(crate) fn count_loss(self, _: Mode, _: LossReason) {}

    pub(crate) fn count_cached(self) {}

    pub(crate) fn cached_no_more(self) {}

    pub(crate) fn cached_lost(self) {}

    pub(crate) fn renewal(self, _: RenewalOutcome) {}
}

/// Acquisition in progress.
#[derive(Debug)]
pub(crate) struct Underway;

impl Underway {
    pub(crate) fn end(self, _: &'static str) {}
}

/// Metrics of a hold.
#[derive(Debug, Default)]
pub(crate) struct Counted {}

impl Counted {
    pub(crate) fn begin(&self, _: &Metrics, _: Mode, _: Clock) {}

    pub(crate) fn end(&self) {}
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counter;

impl Counter {
    pub(crate) fn of(_: &'static str) -> Self {
        Self
    }

    pub(crate) fn add_one(self) {}
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct UnusableNodes;

impl UnusableNodes {
    pub(crate) fn one_more(self) {}

    pub(crate) fn fewer(self, _: usize) {}
}

#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct NodeFindings {}

impl NodeFindings {
    pub(crate) fn one_more(self, _: FindingKind) {}

    pub(crate) fn fewer(self, _: FindingKind) {}
}
