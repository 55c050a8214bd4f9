//! All that a process knows of one lock, as one pure state: an event goes in, effects come out.
//!
//! Redis sees at most one joinable hold and one waiter for each lock and side of this process, however many tasks want
//! it. On each side one task at a time, the leader, asks the server for that side. The others wait here. Readers join
//! the hold that the first of them got. A writer that leaves hands its hold off to the next. A waiting writer stops
//! readers from joining, here as on the server, where both sides wait in one queue of all processes.
//!
//! There is no I/O and no clock in it. `H` is a hold as code outside the cell knows it.

mod caching;
mod holding;
mod holds;
mod wait_queue;
mod waiting;

use std::sync::Arc;

use crate::base::attempt::Failure;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::Recalls;
use crate::lock::effects::{Effects, OnAgenda};
use crate::lock::record::{HoldRecord, Next};
use crate::lock::shares::ShareId;
use crate::lock::side::{LeaderState, Pending};
use crate::lock::state::holds::Holds;
use crate::lock::state::wait_queue::WaitQueue;

/// All that this process knows of a lock.
#[derive(Debug)]
pub(super) struct State<H> {
    /// True when the table has forgotten the cell.
    pub(super) is_gone: bool,
    last_waiter: u64,
    last_hold: u64,
    holds: Holds<H>,
    /// Waiters and leaders. Absent while there are none, which is most of the time that a lock is held.
    wait_queue: Option<Box<WaitQueue<H>>>,
    /// Moment at which the background looks for stalled leaders. `None`: never.
    looks_at: Option<Moment>,
    /// Receiver of recalls, while a hold may be cached.
    pub(super) calls: Option<Arc<Recalls>>,
}

/// Hold that is granted or shared.
#[derive(Debug)]
struct Entry<H> {
    number: u64,
    /// True while the server has granted it and no release was sent.
    is_listed: bool,
    /// Present as long as the hold is listed or shared.
    handle: Option<Arc<H>>,
    record: HoldRecord,
}

/// Things that a waiter leaves behind when it gives up its entry.
#[derive(Debug)]
pub(crate) struct LeftEntry<H> {
    /// Request under way that no other waiter continues.
    pub(crate) pending: Option<Pending>,
    /// Share that had been handed to it.
    pub(crate) handed: Option<(Arc<H>, ShareId)>,
    /// Subscription and backoff that no waiter needs. A subscription wakes others when it ends, so the caller drops
    /// this where no mutex is held.
    pub(crate) needless: Option<LeaderState>,
}

/// Result of a grant.
#[derive(Debug)]
pub(crate) enum GrantOutcome<H> {
    /// The grant is a hold now.
    Hold(Arc<H>, ShareId),
    /// Nothing of the grant is left.
    Over,
    /// Another task is the leader by now, and will find the grant.
    NotMine,
}

/// Reason to wake a waiter.
#[derive(Debug)]
pub(crate) enum WakeReason<H> {
    /// The waiter may ask the server.
    Ask,
    /// The waiter has the lock.
    Handed(Arc<H>, ShareId),
    /// The attempt failed that was made for this waiter too.
    Failed(Failure),
}

impl<H> Default for State<H> {
    fn default() -> Self {
        Self {
            is_gone: false,
            last_waiter: 0,
            last_hold: 0,
            holds: Holds::default(),
            wait_queue: None,
            looks_at: None,
            calls: None,
        }
    }
}

impl<H: OnAgenda> Entry<H> {
    /// Schedules the hold in the deadline queue, if its entry there is too late.
    fn due_if_sooner(&self, effects: &mut Effects<H>) {
        if let Some(hold) = self.due_sooner() {
            effects.due(hold);
        }
    }

    /// Returns the hold, if its entry in the deadline queue is too late.
    fn due_sooner(&self) -> Option<&Arc<H>> {
        let at = match self.record.due() {
            Next::At(at) => at,
            Next::Lost(_) => Moment::from_nanos(0),
            Next::Released | Next::GivenUp => return None,
        };
        self.handle.as_ref().filter(|hold| !hold.is_looked_at_by(at))
    }

    /// Returns the hold after a share has gone and nothing else has changed: it ends sooner if the remaining shares end
    /// sooner.
    fn ends_sooner(&self) -> Option<&Arc<H>> {
        let is_known = self.handle.as_ref().is_some_and(|hold| hold.is_looked_at_by(self.record.last_end()));
        if is_known { None } else { self.due_sooner() }
    }
}

impl<H: OnAgenda> State<H> {
    /// Number of local waiters and leaders.
    pub(super) fn waiting(&self) -> usize {
        self.wait_queue.as_deref().map_or(0, WaitQueue::len)
    }

    /// Returns the waiters and leaders; creates the empty queues if there are none.
    fn wait_queue(&mut self) -> &mut WaitQueue<H> {
        self.wait_queue.get_or_insert_default()
    }

    /// Returns true if a writer waits here, or asks.
    pub(super) fn writer_waits(&self) -> bool {
        self.wait_queue.as_deref().is_some_and(|crowd| !crowd.writes.is_idle())
    }

    fn listed(&self) -> impl Iterator<Item = &Entry<H>> {
        self.holds.iter().filter(|entry| entry.is_listed)
    }

    /// Holds that a guard uses, or is about to use. A hold that is being released counts for no one: the server may
    /// have it or not.
    fn used(&self) -> impl Iterator<Item = &Entry<H>> {
        self.listed().filter(|entry| entry.record.is_live() && !entry.record.is_cached())
    }

    fn holds_write(&self) -> bool {
        self.listed().any(|entry| entry.record.mode() == Mode::Write)
    }

    /// Returns true if the first waiter of this side may ask the server. A writer need not while this process holds the
    /// lock for another writer, which hands it off.
    fn may_ask(&self, mode: Mode) -> bool {
        mode == Mode::Read || !self.holds_write()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.listed().next().is_none() && self.wait_queue.as_deref().is_none_or(WaitQueue::is_idle)
    }

    /// Lets the next waiters ask.
    pub(super) fn advance(&mut self, now: Moment, effects: &mut Effects<H>) {
        let may_write = self.may_ask(Mode::Write);
        let Some(crowd) = self.wait_queue.as_deref_mut() else {
            return;
        };
        crowd.reads.promote_next(now, &mut effects.signals);
        if may_write {
            crowd.writes.promote_next(now, &mut effects.signals);
        }
        if crowd.is_empty() {
            self.wait_queue = None;
        }
    }

    /// Returns when the background has to look for stalled leaders, if that is sooner than it would.
    pub(super) fn next_look(&mut self) -> Option<Moment> {
        let crowd = self.wait_queue.as_deref()?;
        let writer = crowd.writes.stalled_at().filter(|_| self.may_ask(Mode::Write));
        let at = [crowd.reads.stalled_at(), writer].into_iter().flatten().min()?;
        let sooner = self.looks_at.is_none_or(|looks_at| at < looks_at);
        sooner.then(|| *self.looks_at.insert(at))
    }

    fn entry(&mut self, number: u64) -> &mut Entry<H> {
        self.holds.get_mut(number).expect("a hold is here as long as anybody has it")
    }

    pub(super) fn record(&mut self, number: u64) -> &mut HoldRecord {
        &mut self.entry(number).record
    }

    /// Changes one hold by an event that may make something due earlier.
    pub(super) fn change<T>(
        &mut self,
        number: u64,
        effects: &mut Effects<H>,
        change: impl FnOnce(&mut HoldRecord, &mut Effects<H>) -> T,
    ) -> T {
        let entry = self.entry(number);
        let changed = change(&mut entry.record, effects);
        entry.due_if_sooner(effects);
        changed
    }

    /// Removes a hold that no one has any more. The caller drops what is left of it where no mutex is held.
    pub(super) fn forget(&mut self, number: u64) -> Option<impl Sized + use<H>> {
        let entry = self.holds.remove(number)?;
        if let Some(crowd) = self.wait_queue.as_deref_mut() {
            // A grant in a notification that reaches a waiter later must have a newer token.
            crowd.newest = crowd.newest.max(Some(entry.record.current_token()));
        }
        Some(entry)
    }

    /// Last token of this lock that the process has had, as far back as its holds and waiters go.
    pub(super) fn newest_token(&self) -> Option<FencingToken> {
        let held = self.holds.iter().map(|entry| entry.record.current_token()).max();
        held.max(self.wait_queue.as_deref().and_then(|crowd| crowd.newest))
    }
}
