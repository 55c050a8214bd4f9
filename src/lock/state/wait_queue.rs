//! Waiters of one lock in this process, and the requests of its two sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::Event;
use crate::lock::shares::{Share, ShareId};
use crate::lock::side::{LastRefusal, Side, WaiterId};

/// Acquisitions that have no share yet. Each is in at most one place: it waits on its side, or it was refused there, or it has a
/// share to take. One that is in none has given up its place.
#[derive(Clone, Hash, Debug)]
pub(super) struct WaitQueue<H> {
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Shares that were handed to waiters and have not been taken yet.
    pub(super) handed: BTreeMap<WaiterId, HandedShare<H>>,
    /// Writer that was handed a hold last, and the moment from which the next waiter gets the hold.
    untaken_write: Option<(WaiterId, Moment)>,
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

/// Time in which a writer has to take a hold before the next one gets it. A task is polled within this time, except on a machine
/// with far too much work.
const TAKE_WITHIN: Duration = Duration::from_secs(1);

impl<H> Default for WaitQueue<H> {
    fn default() -> Self {
        let (reads, writes) = (Side::default(), Side::default());
        Self { reads, writes, handed: BTreeMap::new(), untaken_write: None, newest: None }
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

    /// Hands a share to a writer, and wakes its task. If the writer does not take it in time, the next waiter gets it.
    pub(super) fn hand_write(&mut self, waiter_id: WaiterId, share: HandedShare<H>, event: &mut Event<'_>) {
        self.untaken_write = Some((waiter_id, event.now.after(TAKE_WITHIN)));
        self.hand(waiter_id, share, event);
    }

    /// Returns the moment from which the next writer gets a hold that another one was handed.
    pub(super) fn pass_on_at(&self) -> Option<Moment> {
        let (waiter_id, take_by) = self.untaken_write?;
        (self.writes.has_waiters() && self.handed.contains_key(&waiter_id)).then_some(take_by)
    }

    /// Returns the writer that has not taken its hold in time. Later calls return `None`.
    pub(super) fn overdue_writer(&mut self, now: Moment) -> Option<WaiterId> {
        self.pass_on_at().filter(|at| *at <= now)?;
        self.untaken_write.take().map(|(waiter_id, _)| waiter_id)
    }
}
