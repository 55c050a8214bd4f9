//! Handles of the waiters and of the requester of one side of a lock.

use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crate::base::attempt::{Acquired, AcquisitionId, Attempt, Failure};
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::{Recall, Recalls};
use crate::base::reentry::OwnerId;
use crate::lock::cell::Cell;
use crate::lock::hold::{Hold, NewHold};
use crate::lock::shares::ShareRequest;
use crate::lock::side::{Awaits, LastRefusal, NoGrant, OutageStage, Pending, RequesterSignal, SideOutage, WaiterId};
use crate::lock::state::{self, EnteredWaiter, RequestTerms};

pub(crate) use crate::lock::state::FirstGrant;

/// Reason for which a waiter is woken.
pub(crate) type Wake = state::WakeReason<Hold>;
/// Outcome of a grant.
pub(crate) type Installed = state::GrantOutcome<Hold>;
/// Request and share that a waiter leaves when it gives up its entry.
pub(crate) type Leaving = state::LeftEntry<Hold>;
/// Share that a waiter has not taken yet.
pub(crate) type Handed = state::HandedShare<Hold>;

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
    /// Present if the task of the acquisition is the requester of its side, and has not begun yet.
    requester_id: Option<WaiterId>,
}

/// Copy of a request that the caller sends now.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: AcquisitionId,
    pub(crate) terms: RequestTerms,
    /// True for the first copy, from which on `close` waits for the request.
    pub(crate) is_first: bool,
}

/// Side of a lock, as one of its waiters sees it.
#[derive(Debug)]
pub(crate) struct WaiterSide {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
}

impl WaiterSide {
    /// Returns the answer for which a waiter at its limit waits. Its task is woken when there is an answer, or none in time.
    pub(crate) fn awaits(&self) -> Awaits {
        self.cell.ask(|state| state.awaits(self.mode))
    }

    /// Returns the outage, while the server does not answer the requester of this side.
    pub(crate) fn outage(&self) -> Option<SideOutage> {
        self.cell.ask(|state| state.present_side(self.mode)?.outage.clone())
    }

    /// Returns until when recalled processes may release their cached holds, if this side has recalled any.
    pub(crate) fn recall_until(&self) -> Option<Moment> {
        self.cell.ask(|state| state.present_side(self.mode)?.recall_until)
    }
}

impl WaitEntry {
    pub(super) fn new(cell: Arc<Cell<Hold>>, mode: Mode, entered: EnteredWaiter) -> Self {
        let EnteredWaiter { waiter_id, requester_id } = entered;
        Self { cell, mode, waiter_id, requester_id }
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

    /// Returns true if the task of this waiter is the requester of its side, and has not begun.
    pub(crate) fn is_requester(&self) -> bool {
        self.requester_id.is_some()
    }

    /// Returns the requester, if the task of this waiter is it and has not begun. Later calls return `None`.
    pub(crate) fn take_requester(&mut self) -> Option<RequesterEntry> {
        let requester_id = self.requester_id.take()?;
        Some(self.requester(requester_id))
    }

    /// Returns the requester that the task of this waiter is from now on.
    pub(crate) fn requester(&self, requester_id: WaiterId) -> RequesterEntry {
        RequesterEntry { cell: Arc::clone(&self.cell), mode: self.mode, requester_id }
    }

    pub(crate) fn side(&self) -> WaiterSide {
        WaiterSide { cell: Arc::clone(&self.cell), mode: self.mode }
    }

    /// Is ready when this waiter is woken, or with `None` when the server does not answer the requester. A stage of an outage
    /// that is `known` is no reason.
    pub(crate) fn poll_wake(&self, known: Option<OutageStage>, cx: &Context<'_>) -> Poll<Option<Wake>> {
        self.cell.poll_waiter(self.waiter_id, cx, |state| match state.take_signal(self.mode, self.waiter_id) {
            Some(wake) => Some(Some(wake)),
            None => {
                let outage = state.present_side(self.mode).and_then(|side| side.outage.as_ref());
                outage.is_some_and(|outage| known != Some(outage.stage())).then_some(None)
            }
        })
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) async fn woken(&self, known: Option<OutageStage>) -> Option<Wake> {
        std::future::poll_fn(|cx| self.poll_wake(known, cx)).await
    }

    /// Takes its old place in the queue again. Returns false if the cell is gone, because the lock was idle meanwhile.
    pub(crate) fn waits_again(&mut self, wants: ShareRequest, now: Moment) -> bool {
        let (mode, waiter_id) = (self.mode, self.waiter_id);
        let entered = self
            .cell
            .event(now, |state, event| (!state.is_gone).then(|| state.enter(mode, Some(waiter_id), wants, event)));
        self.requester_id = entered.and_then(|entered| entered.requester_id);
        entered.is_some()
    }

    /// Returns true if it waits for a guard of `owner`.
    pub(crate) fn waits_for(&self, owner: OwnerId, now: Moment) -> bool {
        self.cell.quietly_at(now, |state, event| state.held_by(owner, event)).is_some()
    }

    /// Records that the server does not answer a renewal for which this waiter waits, or answers again.
    pub(crate) fn on_outage(&self, outage: Option<SideOutage>) {
        self.cell.quietly(|state, event| state.on_outage(self.mode, self.waiter_id, outage, event));
    }

    /// Removes the entry. The last waiter of a side gets its request, to withdraw it.
    pub(crate) fn leave(self, now: Moment) -> Leaving {
        let (leaving, waker) = self.cell.event_beside(now, |state, event, beside| {
            let leaving = state.leave(self.mode, self.waiter_id, event);
            (leaving, beside.as_mut().and_then(|beside| beside.forget(self.waiter_id)))
        });
        // The drop of a waker may run any code, so it comes when the mutex is free.
        drop(waker);
        leaving
    }
}

/// Entry of a requester in its cell. The requester must [end](RequesterEntry::end) it.
#[derive(Clone, Debug)]
pub(crate) struct RequesterEntry {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
    requester_id: WaiterId,
}

impl RequesterEntry {
    pub(crate) fn key(&self) -> &Arc<Key> {
        self.cell.key()
    }

    pub(crate) fn mode(&self) -> Mode {
        self.mode
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn requester_id(&self) -> WaiterId {
        self.requester_id
    }

    /// Is ready when this requester has something to do before its next copy is due. Records that it is polled.
    pub(crate) fn poll_signal(&self, cx: &Context<'_>) -> Poll<RequesterSignal> {
        let poll_deadline = self.poll_deadline();
        self.cell.poll_waiter(self.requester_id, cx, |state| {
            state.requester_signal(self.mode, self.requester_id, poll_deadline)
        })
    }

    /// Is ready when no waiter needs the answer to the copy under way. Records that the requester is polled.
    pub(crate) fn poll_stop(&self, cx: &Context<'_>) -> Poll<()> {
        let poll_deadline = self.poll_deadline();
        self.cell.poll_waiter(self.requester_id, cx, |state| {
            let signal = state.requester_signal(self.mode, self.requester_id, poll_deadline);
            (signal == Some(RequesterSignal::Stop)).then_some(())
        })
    }

    /// Returns the receiver of the recalls of this lock. If the cell has none, `listen` creates it.
    pub(crate) fn recalls(&self, listen: impl FnOnce(CachedCell) -> Option<Arc<Recalls>>) -> Option<Arc<Recalls>> {
        // `listen` runs without the mutex, because a recall may arrive at once.
        self.cell.recalls(None).or_else(|| self.cell.recalls(listen(CachedCell(Arc::downgrade(&self.cell)))))
    }

    /// Joins a read hold of this process, if there is one that may be joined and no writer of the process waits.
    pub(crate) fn join(&self, wants: ShareRequest, now: Moment) -> Option<Handed> {
        self.cell.ask_heard(|state, heard| state.join_unclaimed(wants, heard, now))
    }

    /// Returns the share that the first waiter wants, if this is still the requester.
    pub(crate) fn wants(&self) -> Option<ShareRequest> {
        self.cell.ask(|state| state.wants_of(self.mode, self.requester_id))
    }

    /// Returns the last token of the lock that this process has had.
    pub(crate) fn newest_token(&self) -> Option<FencingToken> {
        self.cell.ask(|state| state.newest_token())
    }

    /// Returns a read hold that may be joined if the server confirms it.
    pub(crate) fn to_recheck(&self) -> Option<Arc<Hold>> {
        self.cell.ask(|state| state.to_recheck())
    }

    /// Ends the cached holds that exclude this side, and returns them. The caller sends their releases.
    pub(crate) fn end_cached(&self) -> Vec<Arc<Hold>> {
        self.cell.quietly(|state, event| state.end_cached(self.mode, event))
    }

    /// Returns the moment by which a requester that is polled now is polled again, or woken.
    fn poll_deadline(&self) -> Moment {
        let rules = self.cell.rules();
        rules.clock.now().after(rules.poll_within)
    }

    /// Records that this requester asks the server now. Returns false if another task is the requester.
    pub(crate) fn note_asks(&self) -> bool {
        self.cell.ask(|state| state.note_asks(self.mode, self.requester_id))
    }

    /// Begins a copy of the side's request, or of the one that `begin` makes. Returns `None` if no waiter is left, or if another
    /// task is the requester.
    pub(crate) fn begin_attempt(&self, begin: impl FnOnce() -> Pending) -> Option<Begun> {
        self.cell.ask(|state| {
            let (pending, terms) = state.begin_attempt(self.mode, self.requester_id, begin)?;
            let is_first = !std::mem::replace(&mut pending.is_counted, true);
            pending.copies.ask_for(terms.lease());
            Some(Begun { id: pending.id.clone(), terms, is_first })
        })
    }

    /// Applies the outcome of a copy. Returns the value of `over`, or `None` if another task is the requester.
    pub(crate) fn end_attempt<T>(
        &self,
        attempt: &Attempt<Acquired>,
        over: impl FnOnce(&mut Pending) -> T,
    ) -> Option<T> {
        self.cell.ask(|state| {
            let pending = state.end_attempt(self.mode, self.requester_id)?;
            pending.note_attempt(attempt);
            Some(over(pending))
        })
    }

    /// Records that the server does not answer this requester, or answers again.
    pub(crate) fn on_outage(&self, outage: Option<SideOutage>) {
        self.cell.quietly(|state, event| state.on_outage(self.mode, self.requester_id, outage, event));
    }

    /// Ends the tries that were here when the newest copy was sent.
    pub(crate) fn deny_tries(&self, now: Moment) {
        self.cell
            .event(now, |state, event| state.side(self.mode).end_waiters(self.requester_id, &NoGrant::Denied, event));
    }

    /// Fails the waiters that were here when the newest copy was sent, because the copy was for them too. A failure that
    /// another copy may not have fails only the tries.
    pub(crate) fn fail_waiters(&self, failure: Failure, now: Moment) {
        let why = NoGrant::Failed(failure);
        self.cell.event(now, |state, event| state.side(self.mode).end_waiters(self.requester_id, &why, event));
    }

    /// Records until when recalled processes may release their cached holds.
    pub(crate) fn note_recall(&self, until: Moment) {
        self.cell.ask(|state| state.side(self.mode).note_recall(until));
    }

    /// Records a refusal of the server, for all that wait on this side.
    pub(crate) fn note_refusal(&self, refusal: LastRefusal) {
        self.cell.ask(|state| state.side(self.mode).refusal = Some(refusal));
    }

    /// Records that a guard uses a hold that the last refusal has taken for one that may only be cached.
    pub(crate) fn note_in_use(&self) {
        self.cell.ask(|state| state.side(self.mode).note_in_use());
    }

    /// Records until when the server may have something of an earlier request of the side.
    pub(crate) fn note_earlier(&self, until: Option<Moment>) {
        self.cell.ask(|state| state.note_earlier(self.mode, until));
    }

    /// Takes the request out of the cell, for its withdrawal.
    pub(crate) fn give_up_pending(&self) -> Option<Pending> {
        self.cell.ask(|state| state.give_up_pending(self.mode, self.requester_id))
    }

    /// Turns a grant into a hold of the first waiter. Returns the request too, which the caller drops.
    pub(crate) fn on_grant(&self, granted: NewHold, now: Moment) -> (Installed, Option<Pending>) {
        let can_be_cached = granted.cache.is_some();
        let make = |number, granting| Arc::new(Hold::new(&self.cell, number, granting, can_be_cached));
        let (outcome, waker) = self.cell.event_beside(now, |state, event, beside| {
            let outcome = state.on_grant(make, self.requester_id, granted, event);
            (outcome, beside.as_mut().and_then(|beside| beside.forget(self.requester_id)))
        });
        // The drop of a waker may run any code, so it comes when the mutex is free.
        drop(waker);
        outcome
    }

    /// Gives the first waiter the share of an older hold. Returns the request of the side, which the caller withdraws, or the
    /// share if no waiter takes it.
    pub(crate) fn on_joined(&self, handed: Handed, now: Moment) -> Result<Option<Pending>, Handed> {
        self.cell.event(now, |state, event| state.on_joined(self.mode, self.requester_id, handed, event))
    }

    /// Ends the requester. Returns the request if no waiter needs it, and the caller withdraws it. Otherwise the first waiter
    /// continues it.
    pub(crate) fn end(&self, now: Moment) -> Option<Pending> {
        let (pending, waker) = self.cell.event_beside(now, |state, event, beside| {
            let pending = state.end_requester(self.mode, self.requester_id, event);
            (pending, beside.as_mut().and_then(|beside| beside.forget(self.requester_id)))
        });
        drop(waker);
        pending
    }
}
