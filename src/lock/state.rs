//! All that a process knows of one lock, as one pure state: an event goes in, effects come out.
//!
//! Redis sees at most one joinable hold and one waiter per lock and side of this process, however many tasks want it. Per
//! side one task at a time *asks* the server for that side. The others wait here:
//! readers join the hold that the first of them got, a writer that leaves hands its hold to the next. A waiting writer
//! stops readers from joining, here as on the server, where both sides then wait in the one queue of all processes.
//!
//! There is no I/O and no clock in it. `H` is a hold as those know it who are outside.

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
    /// The table has forgotten it.
    pub(super) is_gone: bool,
    last_waiter: u64,
    last_hold: u64,
    holds: Holds<H>,
    /// Absent while nobody waits or asks, which is most of the time that a lock is held.
    wait_queue: Option<Box<WaitQueue<H>>>,
    /// When the agenda of askers looks. None: never.
    looks_at: Option<Moment>,
    /// Who calls for a hold that stays, while one may.
    pub(super) calls: Option<Arc<Recalls>>,
}

/// A hold, for as long as anybody has it.
#[derive(Debug)]
struct Entry<H> {
    number: u64,
    /// The server has granted it and has not been told to forget it.
    is_listed: bool,
    /// As long as it is listed or shared.
    handle: Option<Arc<H>>,
    record: HoldRecord,
}

/// What somebody finds that gives up its entry.
#[derive(Debug)]
pub(crate) struct LeftEntry<H> {
    /// Nobody goes on with it.
    pub(crate) pending: Option<Pending>,
    /// It had been handed this.
    pub(crate) handed: Option<(Arc<H>, ShareId)>,
    /// Nobody needs it. A subscription wakes others when it ends, so it is to be dropped where no mutex is held.
    pub(crate) needless: Option<LeaderState>,
}

/// What came of a grant.
#[derive(Debug)]
pub(crate) enum GrantOutcome<H> {
    /// It is a hold.
    Hold(Arc<H>, ShareId),
    /// Nothing is left of it.
    Over,
    /// Somebody else asks by now, and will find it.
    NotMine,
}

/// What a waiter is called for.
#[derive(Debug)]
pub(crate) enum WakeReason<H> {
    /// It may ask the server.
    Ask,
    /// It has the lock.
    Handed(Arc<H>, ShareId),
    /// The attempt failed that was made for it as well.
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
    /// Has the agenda told of the hold, if it would look later than something is due.
    fn due_if_sooner(&self, effects: &mut Effects<H>) {
        if let Some(hold) = self.due_sooner() {
            effects.due(hold);
        }
    }

    /// The hold, if the agenda would look later than something is due for it.
    fn due_sooner(&self) -> Option<&Arc<H>> {
        let at = match self.record.due() {
            Next::At(at) => at,
            Next::Lost(_) => Moment::from_nanos(0),
            Next::Released | Next::GivenUp => return None,
        };
        self.handle.as_ref().filter(|hold| !hold.is_looked_at_by(at))
    }

    /// The same when a share has gone and nothing else has changed: it is over earlier if those that are left want it for less long.
    fn ends_sooner(&self) -> Option<&Arc<H>> {
        let is_known = self.handle.as_ref().is_some_and(|hold| hold.is_looked_at_by(self.record.last_end()));
        if is_known { None } else { self.due_sooner() }
    }
}

impl<H: OnAgenda> State<H> {
    /// How many wait here, and ask.
    pub(super) fn waiting(&self) -> usize {
        self.wait_queue.as_deref().map_or(0, WaitQueue::len)
    }

    /// Those who wait and ask, also when nobody does.
    fn wait_queue(&mut self) -> &mut WaitQueue<H> {
        self.wait_queue.get_or_insert_default()
    }

    /// Whether a writer waits here, or asks.
    pub(super) fn writer_waits(&self) -> bool {
        self.wait_queue.as_deref().is_some_and(|crowd| !crowd.writes.is_idle())
    }

    fn listed(&self) -> impl Iterator<Item = &Entry<H>> {
        self.holds.iter().filter(|entry| entry.is_listed)
    }

    /// Those that somebody has a guard of, or is about to. What is on its way back is nobody's: the server has it, or not.
    fn used(&self) -> impl Iterator<Item = &Entry<H>> {
        self.listed().filter(|entry| entry.record.is_live() && !entry.record.is_cached())
    }

    fn holds_write(&self) -> bool {
        self.listed().any(|entry| entry.record.mode() == Mode::Write)
    }

    /// Whether somebody of this side may ask the server, if it is first. A writer need not while this process holds the
    /// lock for another, which hands it on.
    fn may_ask(&self, mode: Mode) -> bool {
        mode == Mode::Read || !self.holds_write()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.listed().next().is_none() && self.wait_queue.as_deref().is_none_or(WaitQueue::is_idle)
    }

    /// The next waiters may ask.
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

    /// When the agenda of askers has to look, if it would look later.
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

    /// An event of one hold, by which something may be due earlier.
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

    /// Nobody has this hold any more. What is left of it is to be dropped where no mutex is held.
    pub(super) fn forget(&mut self, number: u64) -> Option<impl Sized + use<H>> {
        let entry = self.holds.remove(number)?;
        if let Some(crowd) = self.wait_queue.as_deref_mut() {
            crowd.newest = crowd.newest.max(Some(entry.record.current_token()));
        }
        Some(entry)
    }

    /// Last token of this lock that the process has had, as far back as its holds and its waiters go.
    pub(super) fn newest_token(&self) -> Option<FencingToken> {
        let held = self.holds.iter().map(|entry| entry.record.current_token()).max();
        held.max(self.wait_queue.as_deref().and_then(|crowd| crowd.newest))
    }
}
