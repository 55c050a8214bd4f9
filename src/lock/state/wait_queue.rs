//! Waiters and leaders of one lock in this process.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};
use std::sync::Arc;

use crate::base::attempt::Failure;
use crate::base::lease::FencingToken;
use crate::base::mode::Mode;
use crate::lock::shares::ShareId;
use crate::lock::side::{Pending, Side, WaiterId};

/// Acquisitions that have no share yet. Each is in exactly one place: it waits or leads on its side, or it is in one of the maps.
#[derive(Clone, Debug)]
pub(super) struct WaitQueue<H> {
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Shares that were handed to waiters and have not been taken yet.
    pub(super) handed: BTreeMap<WaiterId, (Arc<H>, ShareId)>,
    /// Failures of attempts that waiters share and have not taken yet.
    pub(super) failed: BTreeMap<WaiterId, Failure>,
    /// Requests of tries beside the leader, and former leaders. The table keeps the cell while there are any.
    pub(super) extra_requests: BTreeMap<WaiterId, ExtraRequest>,
    /// Last token of the holds that ended while the queue had waiters.
    pub(super) newest: Option<FencingToken>,
}

#[derive(Clone, Hash, Debug)]
pub(super) struct ExtraRequest {
    pub(super) pending: Option<Pending>,
    /// True if the acquisition has to wait again before it sends a request.
    pub(super) has_lost_right: bool,
}

impl<H: Hash> Hash for WaitQueue<H> {
    fn hash<S: Hasher>(&self, state: &mut S) {
        let Self { reads, writes, handed, failed, extra_requests, newest } = self;
        (reads, writes, handed, extra_requests, newest).hash(state);
        // The cause of a failure makes no difference for what happens next.
        state.write_usize(failed.len());
        failed.keys().for_each(|waiter_id| waiter_id.hash(state));
    }
}

impl<H> Default for WaitQueue<H> {
    fn default() -> Self {
        let (handed, failed, extra_requests) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        Self { reads: Side::default(), writes: Side::default(), handed, failed, extra_requests, newest: None }
    }
}

impl<H> WaitQueue<H> {
    pub(super) fn side(&self, mode: Mode) -> &Side {
        match mode {
            Mode::Read => &self.reads,
            Mode::Write => &self.writes,
        }
    }

    pub(super) fn side_mut(&mut self, mode: Mode) -> &mut Side {
        match mode {
            Mode::Read => &mut self.reads,
            Mode::Write => &mut self.writes,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.reads.len() + self.writes.len() + self.extra_requests.len()
    }

    /// Returns true if there is no waiter, leader or extra request.
    pub(super) fn is_idle(&self) -> bool {
        self.reads.is_idle() && self.writes.is_idle() && self.extra_requests.is_empty()
    }

    /// Returns true if it is idle, and no waiter has a share or a failure to take.
    pub(super) fn is_empty(&self) -> bool {
        self.is_idle() && self.handed.is_empty() && self.failed.is_empty()
    }
}
