//! Waiters of one lock in this process, and the requests of its two sides.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::Event;
use crate::lock::shares::ShareId;
use crate::lock::side::{LastRefusal, Side, Waiter, WaiterId};

/// Acquisitions that have no share yet. Each is in exactly one place: it waits on its side, or it was refused there, or it has a
/// share to take.
#[derive(Clone, Hash, Debug)]
pub(super) struct WaitQueue<H> {
    pub(super) reads: Side,
    pub(super) writes: Side,
    /// Shares that were handed to waiters and have not been taken yet.
    pub(super) handed: BTreeMap<WaiterId, HandedShare<H>>,
    /// Writer that was handed a hold last.
    untaken_write: Option<UntakenWrite>,
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
    /// True if the grant had enough time for its first guard.
    pub(crate) has_enough: bool,
    /// True if a notification brought the grant.
    pub(crate) is_notified: bool,
    /// Last refusal of the server before.
    pub(crate) refusal: Option<LastRefusal>,
}

/// Writer that was handed a hold.
#[derive(Clone, Hash, Debug)]
struct UntakenWrite {
    waiter_id: WaiterId,
    waiter: Waiter,
    /// Moment from which the next waiter gets the hold.
    take_by: Moment,
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

    /// Hands a share to a reader, and wakes its task.
    pub(super) fn hand(&mut self, waiter_id: WaiterId, share: HandedShare<H>, event: &mut Event<'_>) {
        self.handed.insert(waiter_id, share);
        event.wake(waiter_id);
    }

    /// Hands a share to a writer, and wakes its task. The writer has to take it in time.
    pub(super) fn hand_write(
        &mut self,
        (waiter_id, waiter): (WaiterId, Waiter),
        share: HandedShare<H>,
        event: &mut Event<'_>,
    ) {
        let take_by = event.now.after(TAKE_WITHIN);
        self.untaken_write = Some(UntakenWrite { waiter_id, waiter, take_by });
        self.hand(waiter_id, share, event);
    }

    fn untaken_write(&self) -> Option<&UntakenWrite> {
        self.untaken_write.as_ref().filter(|untaken| self.handed.contains_key(&untaken.waiter_id))
    }

    /// Returns the moment from which the next writer gets a hold that another one was handed.
    pub(super) fn pass_on_at(&self) -> Option<Moment> {
        self.untaken_write().filter(|_| self.writes.has_waiters()).map(|untaken| untaken.take_by)
    }

    /// Takes the hold from a writer that has not taken it in time. The writer waits again, and others are served first until
    /// its task is polled.
    pub(super) fn take_back_untaken(&mut self, now: Moment) -> Option<HandedShare<H>> {
        self.pass_on_at().filter(|at| *at <= now)?;
        if !self.writes.has_polled_waiter() {
            self.untaken_write.iter_mut().for_each(|untaken| untaken.take_by = now.after(TAKE_WITHIN));
            return None;
        }
        let UntakenWrite { waiter_id, waiter, .. } = self.untaken_write.take()?;
        self.writes.wait(waiter_id, Waiter { is_stalled: true, ..waiter });
        self.handed.remove(&waiter_id)
    }
}
