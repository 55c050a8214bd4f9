//! Handle of a waiter or leader of one side of a lock.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Attempt, Failure};
use crate::base::backoff::Backoff;
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::{Recall, Recalls};
use crate::base::reentry::OwnerId;
use crate::lock::cell::{Beside, Cell};
use crate::lock::effects::InRenewalQueue;
use crate::lock::hold::{Hold, NewHold};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{LastRefusal, Pending, SideOutage, WaiterId};
use crate::lock::state;

pub(crate) use crate::lock::cell::Notifications;

/// Reason for which a waiter is woken.
pub(crate) type Wake = state::WakeReason<Hold>;
/// Outcome of a grant.
pub(crate) type Installed = state::GrantOutcome<Hold>;
/// Request and share that a waiter leaves when it gives up its entry.
pub(crate) type Leaving = state::LeftEntry<Hold>;

/// Receiver of the recalls of one lock. When the cell is gone, the process caches no hold of the lock.
#[derive(Debug)]
pub(crate) struct CachedCell(Weak<Cell<Hold>>);

impl CachedCell {
    /// Applies a recall. Returns the lock, and whether a guard uses the hold, which the waiter may want to know.
    pub(crate) fn on_recall(&self, call: &Recall) -> Option<(Arc<Key>, bool)> {
        let cell = self.0.upgrade()?;
        let now = cell.rules().clock.now();
        let is_used = cell.event(now, |state, event| state.on_recall(call, event));
        Some((Arc::clone(cell.key()), is_used))
    }

    /// Records that recalls may have been missed.
    pub(crate) fn on_break(&self) {
        if let Some(cell) = self.0.upgrade() {
            cell.event(cell.rules().clock.now(), |state, event| state.on_subscription_lost(event));
        }
    }
}

/// Entry of an acquisition in its cell. The acquisition must [leave](WaitEntry::leave) it, unless it has become a guard.
#[derive(Debug)]
pub(crate) struct WaitEntry {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
    waiter_id: WaiterId,
    /// False if it was the leader from the start, or was woken.
    waits: bool,
}

/// Copy of a request that the caller sends now.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: AcquisitionId,
    /// Backoff that the leader before has left.
    pub(crate) backoff: Option<Backoff>,
    /// True for the first copy, from which on `close` waits for the request.
    pub(crate) is_first: bool,
    /// True if other acquisitions wait behind it.
    pub(crate) is_waited_for: bool,
}

/// Side of a lock, as one of its waiters sees it.
#[derive(Debug)]
pub(crate) struct WaiterSide {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
    waiter_id: WaiterId,
}

impl WaiterSide {
    /// Returns true if this waiter waits for the first answer to its leader. Then its task is woken when the leader has had
    /// an answer, or none in time.
    pub(crate) fn awaits_first_answer(&self) -> bool {
        self.cell.ask(|state| state.awaits_first_answer(self.mode, self.waiter_id))
    }

    /// Returns the outage, while the server does not answer the leader of this side.
    pub(crate) fn outage(&self) -> Option<SideOutage> {
        self.cell.ask(|state| state.side(self.mode).outage.clone())
    }

    /// Returns until when recalled processes may release their cached holds, if this side has recalled any.
    pub(crate) fn recall_until(&self) -> Option<Moment> {
        self.cell.ask(|state| state.side(self.mode).recall_until)
    }
}

impl WaitEntry {
    pub(super) fn new(cell: Arc<Cell<Hold>>, mode: Mode, waiter_id: WaiterId, waits: bool) -> Self {
        Self { cell, mode, waiter_id, waits }
    }

    /// Returns the key that all waiters of the lock share.
    pub(crate) fn key(&self) -> &Arc<Key> {
        self.cell.key()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn cell(&self) -> &Arc<Cell<Hold>> {
        &self.cell
    }

    pub(crate) fn waiter_id(&self) -> WaiterId {
        self.waiter_id
    }

    /// Returns true if it was the leader when it last looked.
    pub(crate) fn is_leader(&self) -> bool {
        !self.waits
    }

    pub(crate) fn side(&self) -> WaiterSide {
        WaiterSide { cell: Arc::clone(&self.cell), mode: self.mode, waiter_id: self.waiter_id }
    }

    /// Is ready when this waiter is woken, or with `None` when the server does not answer the leader. An outage that began at
    /// `known` is no reason.
    pub(crate) fn poll_wake(&mut self, known: Option<Moment>, cx: &Context<'_>) -> Poll<Option<Wake>> {
        if !self.waits {
            return Poll::Ready(Some(Wake::Ask));
        }
        let wake =
            self.cell.poll_waiter(self.waiter_id, cx, |state| match state.take_signal(self.mode, self.waiter_id) {
                Some(wake) => Some(Some(wake)),
                None => {
                    let outage = state.side(self.mode).outage.as_ref();
                    outage.is_some_and(|outage| known != Some(outage.since)).then_some(None)
                }
            });
        self.waits = !matches!(wake, Poll::Ready(Some(_)));
        wake
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) async fn woken(&mut self, known: Option<Moment>) -> Option<Wake> {
        std::future::poll_fn(|cx| self.poll_wake(known, cx)).await
    }

    /// Takes its old place in the queue again. Returns false if the cell is gone, because the lock was idle meanwhile.
    pub(crate) fn waits_again(&mut self, wants: ShareRequest, now: Moment) -> bool {
        let (mode, waiter_id) = (self.mode, self.waiter_id);
        let entered = self
            .cell
            .event(now, |state, event| (!state.is_gone).then(|| state.enter(mode, Some(waiter_id), wants, event)));
        self.waits = entered.is_some_and(|(_, waits)| waits);
        entered.is_some()
    }

    /// Returns the receiver of the recalls of this lock. If the cell has none, `listen` creates it.
    pub(crate) fn recalls(&self, listen: impl FnOnce(CachedCell) -> Option<Arc<Recalls>>) -> Option<Arc<Recalls>> {
        // `listen` runs without the mutex, because a recall may arrive at once.
        self.cell.recalls(None).or_else(|| self.cell.recalls(listen(CachedCell(Arc::downgrade(&self.cell)))))
    }

    /// Joins a read hold of this process, if there is one that may be joined and no writer of the process waits.
    pub(crate) fn join(&self, wants: ShareRequest, now: Moment) -> Option<(Arc<Hold>, ShareId)> {
        self.cell.ask_heard(|state, heard| state.join(wants, heard, now))
    }

    /// Returns the last token of the lock that this process has had.
    pub(crate) fn newest_token(&self) -> Option<FencingToken> {
        self.cell.ask(|state| state.newest_token())
    }

    /// Returns a read hold that may be joined if the server confirms it.
    pub(crate) fn to_recheck(&self) -> Option<Arc<Hold>> {
        self.cell.ask(|state| state.to_recheck())
    }

    /// Ends the cached holds that exclude this waiter, and returns them. The caller sends their releases.
    pub(crate) fn end_cached(&self) -> Vec<Arc<Hold>> {
        self.cell.quietly(|state, event| state.end_cached(self.mode, event))
    }

    /// Returns true if it waits for a guard of `owner`.
    pub(crate) fn waits_for(&self, owner: OwnerId, now: Moment) -> bool {
        self.cell.quietly_at(now, |state, event| state.held_by(owner, event)).is_some()
    }

    /// Returns the moment by which a leader that is polled now must be polled again.
    fn poll_deadline(&self, now: Moment) -> Moment {
        now.after(self.cell.rules().poll_within)
    }

    /// Records that this leader is polled. Returns false if it is not the leader any more.
    pub(crate) fn note_polled(&self, now: Moment) -> bool {
        let poll_deadline = self.poll_deadline(now);
        self.cell.ask(|state| state.note_polled(self.mode, self.waiter_id, poll_deadline))
    }

    /// Begins a copy of the request in progress, or of the one that `begin` makes. The copy asks for this lease. Returns `None`
    /// if this waiter is not the leader any more.
    pub(crate) fn begin_attempt(&self, lease: Duration, now: Moment, begin: impl FnOnce() -> Pending) -> Option<Begun> {
        let poll_deadline = self.poll_deadline(now);
        self.cell.ask(|state| {
            let pending = state.begin_attempt(self.mode, self.waiter_id, poll_deadline, begin)?;
            let is_first = !std::mem::replace(&mut pending.is_counted, true);
            pending.copies.ask_for(lease);
            let (id, backoff) = (pending.id.clone(), pending.backoff.take());
            Some(Begun { id, backoff, is_first, is_waited_for: state.side(self.mode).has_waiters() })
        })
    }

    /// Returns the notifications that the leader before has left.
    pub(crate) fn take_left(&self) -> Option<Notifications> {
        self.cell.take_left(self.mode)
    }

    /// Applies the outcome of a copy. Returns the value of `over`, or `None` if this waiter is not the leader any more.
    pub(crate) fn end_attempt<T>(
        &self,
        attempt: &Attempt<Acquired>,
        now: Moment,
        over: impl FnOnce(&mut Pending) -> T,
    ) -> Option<T> {
        let poll_deadline = self.poll_deadline(now);
        self.cell.ask(|state| {
            let pending = state.end_attempt(self.mode, self.waiter_id, poll_deadline)?;
            pending.note_attempt(attempt);
            Some(over(pending))
        })
    }

    /// Records that the server does not answer this leader, or answers again.
    pub(crate) fn on_outage(&self, outage: Option<SideOutage>) {
        self.cell.quietly(|state, event| state.on_outage(self.mode, self.waiter_id, outage, event));
    }

    /// Fails all waiters that waited behind this leader when it sent its newest attempt, because the attempt was for them too.
    pub(crate) fn fail_waiters(&self, failure: &Failure) {
        self.cell.quietly(|state, event| state.fail_waiters(self.mode, self.waiter_id, failure, event));
    }

    /// Records until when recalled processes may release their cached holds.
    pub(crate) fn note_recall(&self, until: Moment) {
        self.cell.ask(|state| state.side(self.mode).note_recall(until));
    }

    /// Records a refusal of the server, for all that wait on this side.
    pub(crate) fn note_refusal(&self, refusal: LastRefusal) {
        self.cell.ask(|state| state.side(self.mode).refusal = Some(refusal));
    }

    /// Returns when the server last refused this side of the lock.
    pub(crate) fn refused_at(&self) -> Option<Moment> {
        self.cell.ask(|state| state.side(self.mode).refusal.as_ref().map(|refusal| refusal.at))
    }

    /// Records that a guard uses a hold that the last refusal has taken for one that may only be cached.
    pub(crate) fn note_in_use(&self) {
        self.cell.ask(|state| state.side(self.mode).note_in_use());
    }

    /// Returns true if the server may have a record of the request of this waiter.
    pub(crate) fn has_traces(&self) -> bool {
        self.cell.ask(|state| match state.pending(self.mode, self.waiter_id) {
            Some(Some(pending)) => !pending.is_unknown_to_server(),
            Some(None) | None => false,
        })
    }

    /// Takes the request out of the cell, for its withdrawal.
    pub(crate) fn give_up_pending(&self) -> Option<Pending> {
        self.cell.ask(|state| state.give_up_pending(self.mode, self.waiter_id))
    }

    /// Turns a grant into a hold. Returns the request too, which the caller drops.
    pub(crate) fn on_grant(&self, granted: NewHold, now: Moment) -> (Installed, Option<Pending>) {
        let can_be_cached = granted.cache.is_some();
        let make = |number, granting| Arc::new(Hold::new(&self.cell, number, granting, can_be_cached));
        self.cell.event(now, |state, event| state.on_grant(make, self.waiter_id, granted, event))
    }

    /// Records that this waiter has a share of an older hold. Returns its request, which the caller withdraws.
    pub(crate) fn on_seated(&self, hold: &Hold, now: Moment) -> Option<Pending> {
        self.cell.event(now, |state, event| state.on_seated(self.mode, self.waiter_id, hold.number(), event))
    }

    /// Removes the entry. The next waiter continues the request, if there is one that may.
    pub(crate) fn leave(self, notifications: Notifications, backoff: Backoff, now: Moment) -> Leaving {
        let (leaving, needless) = self.cell.event_beside(now, |state, event, beside| {
            let leaving = state.leave(self.mode, self.waiter_id, backoff, event);
            let waker = beside.as_mut().and_then(|beside| beside.forget(self.waiter_id));
            let needless = if leaving.goes_on { self.hand_on(notifications, beside) } else { Some(notifications) };
            (leaving, (waker, needless))
        });
        // The end of a subscription wakes tasks, so it comes when the mutex is free.
        drop(needless);
        leaving
    }

    /// Leaves the notifications to the next leader, unless those of an earlier one are still there.
    fn hand_on(&self, notifications: Notifications, beside: &mut Option<Box<Beside>>) -> Option<Notifications> {
        match beside.get_or_insert_default().notifications(self.mode) {
            Some(_) => Some(notifications),
            left => left.replace(notifications),
        }
    }
}
