//! Complete state of one lock in this process. Each event changes the state and produces effects.
//!
//! The readers are one side of the lock, and the writers are the other. Each side has at most one request at the server,
//! and one task at a time, the requester, sends its copies. All acquisitions of the side wait in this process. So the
//! server sees at most one joinable hold and one waiter of this process for each side, however many tasks wait. The
//! first waiter gets the hold that the server grants, and waiting readers join it. When the guard of a writer is
//! released, the hold goes to the next waiting writer of the process. While a writer waits, no further reader joins.
//! The server follows the same rule: there, the processes of both sides wait in one queue.
//!
//! The state does no I/O. Times, random numbers and the recalls that have arrived are inputs. Tasks have numbers here,
//! and their wakers are kept beside the state. So a state can be copied, compared by its hash, and explored. `H` is the
//! type of the handle through which other code uses a hold.

mod caching;
mod holding;
mod holds;
mod wait_queue;
mod waiting;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::Failure;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::{CellEvent, Event, InRenewalQueue};
use crate::lock::record::{HoldRecord, Next};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{Pending, Side, WaiterId};
use crate::lock::state::holds::Holds;
use crate::lock::state::wait_queue::WaitQueue;

pub(crate) use wait_queue::{FirstGrant, HandedShare};

/// Complete state of one lock in this process.
#[derive(Clone, Hash, Debug)]
pub(super) struct State<H> {
    /// True if the table of locks has removed this lock. A task that still has the state then begins anew.
    pub(super) is_gone: bool,
    last_waiter: LastNumber,
    last_hold: u64,
    holds: Holds<H>,
    /// Waiters and requests. `None` while there are none, which is the usual case while a lock is held.
    wait_queue: Option<Box<WaitQueue<H>>>,
    /// Moment at which the background looks for stalled tasks, or `None` if no look is planned.
    looks_at: Option<Moment>,
}

/// Last number of a waiter or requester. Later ones are higher, and how much higher makes no difference for what happens next.
#[derive(Clone, Debug)]
struct LastNumber(u64);

impl Hash for LastNumber {
    fn hash<H: Hasher>(&self, _state: &mut H) {}
}

/// Hold that is granted or shared.
#[derive(Clone, Hash, Debug)]
struct Entry<H> {
    number: u64,
    /// True from the grant until the hold is over or a release is sent.
    is_listed: bool,
    /// Handle of the hold. Present as long as the hold is listed or has a guard.
    handle: Option<Arc<H>>,
    record: HoldRecord,
}

/// Entry of a new waiter.
#[derive(Clone, Copy, Debug)]
pub(crate) struct EnteredWaiter {
    pub(crate) waiter_id: WaiterId,
    /// Present if the task of the waiter is the requester of its side.
    pub(crate) requester_id: Option<WaiterId>,
}

/// Terms of the next copy of a side's request.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestTerms {
    /// Share that the first waiter wants.
    pub(crate) wants: ShareRequest,
    /// True if one of the waiters is no try.
    pub(crate) waits: bool,
    /// True if the server may have a place of the request in its queue.
    pub(crate) is_recorded: bool,
}

impl RequestTerms {
    /// Returns the lease to request.
    pub(crate) fn lease(&self) -> Duration {
        self.wants.lease.min(self.wants.max_hold)
    }
}

/// Parts of a waiter's entry that the caller has to handle when the waiter leaves.
#[derive(Debug)]
pub(crate) struct LeftEntry<H> {
    /// Request of the side, if no other waiter needs it.
    pub(crate) pending: Option<Pending>,
    /// Share that the waiter had been given and had not taken.
    pub(crate) handed: Option<(Arc<H>, ShareId)>,
    /// Moment until which the server may have a hold or a place of an earlier request of the side.
    pub(crate) earlier_until: Option<Moment>,
}

/// Result of a grant.
#[derive(Debug)]
pub(crate) enum GrantOutcome<H> {
    /// The grant is a hold now. The share is present if the first waiter is the one whose task is the requester, and if
    /// it may take the share at once.
    Hold(Arc<H>, Option<ShareId>),
    /// The grant is over already.
    Over,
    /// Another task is the requester by now, and will find the grant on the server. Or no waiter is left.
    NotMine,
}

/// Reason to wake a waiter.
#[derive(Debug)]
pub(crate) enum WakeReason<H> {
    /// The task of the waiter is the requester of its side, with this number, from now on.
    Requests(WaiterId),
    /// The waiter has the lock.
    Handed(HandedShare<H>),
    /// The server has refused this try.
    Denied,
    /// A request for this waiter has failed.
    Failed(Failure),
    /// The waiter has given up its place, because its task was not polled in time.
    PlaceLost,
}

impl<H> Default for State<H> {
    fn default() -> Self {
        Self {
            is_gone: false,
            last_waiter: LastNumber(0),
            last_hold: 0,
            holds: Holds::default(),
            wait_queue: None,
            looks_at: None,
        }
    }
}

impl<H: InRenewalQueue> Entry<H> {
    /// Returns the hold if its entry in the deadline queue is too late.
    fn due_sooner(&self) -> Option<&Arc<H>> {
        let at = match self.record.due() {
            Next::At(at) => at,
            Next::Lost(_) => Moment::START,
            Next::Released | Next::GivenUp => return None,
        };
        self.handle.as_ref().filter(|hold| !hold.is_looked_at_by(at))
    }

    /// Schedules the hold in the deadline queue, if its entry there is too late.
    fn due_if_sooner(&self, event: &mut CellEvent<'_, H>) {
        if let Some(hold) = self.due_sooner() {
            event.due(hold);
        }
    }

    /// Returns the hold if the removal of a share makes its entry in the deadline queue too late. The hold may now end
    /// sooner, with the last remaining share. The caller has changed nothing else.
    fn ends_sooner(&self) -> Option<&Arc<H>> {
        let is_known = self.handle.as_ref().is_some_and(|hold| hold.is_looked_at_by(self.record.last_end()));
        if is_known { None } else { self.due_sooner() }
    }
}

impl<H: InRenewalQueue> State<H> {
    /// Returns the number of local waiters.
    pub(super) fn waiting(&self) -> usize {
        self.wait_queue.as_deref().map_or(0, WaitQueue::len)
    }

    /// Returns the queue of waiters. Creates an empty queue if there is none.
    fn wait_queue(&mut self) -> &mut WaitQueue<H> {
        self.wait_queue.get_or_insert_default()
    }

    pub(super) fn side(&mut self, mode: Mode) -> &mut Side {
        self.wait_queue().side_mut(mode)
    }

    /// Returns true if a writer of this process waits here.
    pub(super) fn writer_waits(&self) -> bool {
        self.wait_queue.as_deref().is_some_and(|wait_queue| wait_queue.writes.has_waiters())
    }

    fn listed_holds(&self) -> impl Iterator<Item = &Entry<H>> {
        self.holds.iter().filter(|entry| entry.is_listed)
    }

    /// Returns the holds that a guard uses or is about to use. A hold that is being released does not count, since the
    /// server may have ended it already.
    fn used_holds(&self) -> impl Iterator<Item = &Entry<H>> {
        self.listed_holds().filter(|entry| entry.record.is_live() && !entry.record.is_cached())
    }

    fn holds_write(&self) -> bool {
        self.listed_holds().any(|entry| entry.record.mode() == Mode::Write)
    }

    /// Returns true if this side may ask the server. While this process has a write hold, it does not ask for waiting
    /// writers, because the hold may be handed off to them.
    fn may_ask(&self, mode: Mode) -> bool {
        mode == Mode::Read || !self.holds_write()
    }

    pub(super) fn is_idle(&self) -> bool {
        self.listed_holds().next().is_none() && self.wait_queue.as_deref().is_none_or(WaitQueue::is_empty)
    }

    /// Makes the task of the first waiter the requester of each side that needs one.
    pub(super) fn advance(&mut self, event: &mut CellEvent<'_, H>) {
        let Some(wait_queue) = self.wait_queue.as_deref() else {
            return;
        };
        if wait_queue.is_empty() {
            self.wait_queue = None;
            return;
        }
        for mode in [Mode::Read, Mode::Write] {
            let may_ask = self.may_ask(mode);
            let side = self.side(mode);
            side.end_without_carrier(event);
            if side.requester().is_some() {
                continue;
            }
            if !side.has_waiters() {
                side.forget_answers();
            } else if may_ask {
                let requester_id = self.waiter_id();
                self.side(mode).ask_first_waiter(requester_id, event);
            }
        }
    }

    /// Returns the moment at which the background has to look for stalled tasks, if that is sooner than planned.
    pub(super) fn next_look(&mut self) -> Option<Moment> {
        let wait_queue = self.wait_queue.as_deref()?;
        let writer = wait_queue.writes.looks_at().filter(|_| self.may_ask(Mode::Write));
        let at = [wait_queue.reads.looks_at(), writer].into_iter().flatten().min()?;
        let sooner = self.looks_at.is_none_or(|looks_at| at < looks_at);
        sooner.then(|| *self.looks_at.insert(at))
    }

    fn entry(&mut self, number: u64) -> &mut Entry<H> {
        self.holds.get_mut(number).expect("a hold is here as long as anybody has it")
    }

    pub(super) fn record(&mut self, number: u64) -> &mut HoldRecord {
        &mut self.entry(number).record
    }

    /// Applies an event to one hold that may have to be scheduled earlier afterwards.
    pub(super) fn change<T>(
        &mut self,
        number: u64,
        event: &mut CellEvent<'_, H>,
        change: impl FnOnce(&mut HoldRecord, &mut Event<'_>) -> T,
    ) -> T {
        let entry = self.entry(number);
        let changed = change(&mut entry.record, event);
        entry.due_if_sooner(event);
        changed
    }

    /// Removes a hold that has no handle any more. The caller drops the returned entry while it holds no mutex.
    pub(super) fn forget(&mut self, number: u64) -> Option<impl Sized + use<H>> {
        let entry = self.holds.remove(number)?;
        if let Some(wait_queue) = self.wait_queue.as_deref_mut() {
            // A waiter may later receive a grant by a notification. The token of such a grant is compared with this
            // token.
            wait_queue.newest = wait_queue.newest.max(Some(entry.record.current_token()));
        }
        Some(entry)
    }

    /// Returns the newest token of this lock that the present holds and waiters of this process know.
    pub(super) fn newest_token(&self) -> Option<FencingToken> {
        let held = self.holds.iter().map(|entry| entry.record.current_token()).max();
        held.max(self.wait_queue.as_deref().and_then(|wait_queue| wait_queue.newest))
    }
}
