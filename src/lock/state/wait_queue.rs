//! Waiters of one lock in this process, and the requests of its two sides.

use std::collections::BTreeMap;
use std::sync::Arc;

use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::Event;
use crate::lock::shares::{Share, ShareId};
use crate::lock::side::{LastRefusal, Side, WaiterId};

/// Acquisitions that have no share yet. Each is in at most one place: it waits on its side, or it was refused there, or it has a
/// share to take. One that is in none has given up its place, or its future has the share.
#[derive(Clone, Hash, Debug)]
pub(super) struct WaitQueue<H> {
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Shares that were handed to waiters and have not been taken yet.
    pub(super) handed: BTreeMap<WaiterId, HandedShare<H>>,
    /// Last token of the holds that ended while the queue had waiters.
    pub(super) newest: Option<FencingToken>,
}

/// Share that a waiter has not taken yet.
#[derive(Clone, Hash, Debug)]
pub(crate) struct HandedShare<H> {
    pub(crate) hold: Arc<H>,
    pub(crate) share_id: ShareId,
    /// Grant of the server to this waiter. `None` if another task of the process hands over a share of its hold.
    pub(crate) grant: Option<FirstGrant>,
}

/// Grant of a hold to its first waiter.
#[derive(Clone, Hash, Debug)]
pub(crate) struct FirstGrant {
    /// Share of its first guard, with the end that the grant has given it.
    pub(crate) share: Share,
    /// Moment until which the grant has enough time for this guard.
    pub(crate) enough_until: Moment,
    /// True if a notification brought the grant.
    pub(crate) is_notified: bool,
    /// Last refusal of the server before.
    pub(crate) refusal: Option<LastRefusal>,
}

impl<H> Default for WaitQueue<H> {
    fn default() -> Self {
        let (reads, writes) = (Side::default(), Side::default());
        Self { reads, writes, handed: BTreeMap::new(), newest: None }
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
        self.reads.len() + self.writes.len()
    }

    /// Returns true if there is no waiter and no request, and no waiter has anything to take.
    pub(super) fn is_empty(&self) -> bool {
        self.reads.is_empty() && self.writes.is_empty() && self.handed.is_empty()
    }

    /// Hands a share to a waiter, and wakes its task.
    pub(super) fn hand(&mut self, waiter_id: WaiterId, share: HandedShare<H>, event: &mut Event<'_>) {
        self.handed.insert(waiter_id, share);
        event.wake(waiter_id);
    }
}
