//! A place among those who wait for one side of a lock here, or the right to ask the server for it.

use std::future::poll_fn;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Attempt, Failure};
use crate::base::backoff::Backoff;
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::{Recall, Recalls};
use crate::lock::cell::{Beside, Cell};
use crate::lock::effects::InRenewalQueue;
use crate::lock::hold::{Accepted, Hold, NewHold};
use crate::lock::shares::{Share, ShareId, ShareRequest};
use crate::lock::side::{LastRefusal, Pending, SideOutage, WaiterId};
use crate::lock::state;

pub(crate) use crate::lock::cell::Notifications;

/// What a waiter is called for.
pub(crate) type Wake = state::WakeReason<Hold>;
/// What came of a grant.
pub(crate) type Installed = state::GrantOutcome<Hold>;
/// What somebody finds that gives up its entry.
pub(crate) type Leaving = state::LeftEntry<Hold>;

/// A lock that is kept, for whoever hears of those who call for it. Without the cell nobody keeps it.
#[derive(Debug)]
pub(crate) struct CachedCell(Weak<Cell<Hold>>);

impl CachedCell {
    /// Somebody calls. For which lock, and whether a guard is inside that it may want to know of.
    pub(crate) fn on_recall(&self, call: &Recall) -> Option<(Arc<Key>, bool)> {
        let cell = self.0.upgrade()?;
        let now = cell.rules().clock.now();
        let is_used = cell.event(now, |state, _, effects| state.on_recall(call, now, effects));
        Some((Arc::clone(cell.key()), is_used))
    }

    /// Calls may have been missed.
    pub(crate) fn on_break(&self) {
        if let Some(cell) = self.0.upgrade() {
            cell.event(cell.rules().clock.now(), |state, _, effects| state.on_subscription_lost(effects));
        }
    }
}

/// To be [left](WaitEntry::leave), unless it has become a guard.
#[derive(Debug)]
pub(crate) struct WaitEntry {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
    waiter_id: WaiterId,
    /// False when it may ask at once, or was called.
    waits: bool,
    wants: ShareRequest,
    /// An leader is seen again within this time.
    grace: Duration,
}

/// One of the copies that are sent now.
#[derive(Debug)]
pub(crate) struct Begun {
    pub(crate) id: AcquisitionId,
    /// Backoff that the one that asked before has left.
    pub(crate) backoff: Option<Backoff>,
    /// `close` waits for the request from now on.
    pub(crate) is_first: bool,
    /// Somebody waits behind it.
    pub(crate) is_waited_for: bool,
}

/// What whoever asks for one side of a lock hears, for those who wait behind it.
#[derive(Clone, Debug)]
pub(crate) struct FirstAnswer {
    cell: Arc<Cell<Hold>>,
    mode: Mode,
    waiter_id: WaiterId,
}

impl FirstAnswer {
    /// Returns when it is known what there is to wait for: whoever asks the server for this side has had an answer since it
    /// does, or none in time. At once if nobody else asks.
    pub(crate) async fn first_answer(&self) {
        let awaits = || self.cell.first_answer(self.mode, |state| state.awaits_first_answer(self.mode, self.waiter_id));
        while let Some(signal) = awaits() {
            let heard = signal.notified();
            tokio::pin!(heard);
            heard.as_mut().enable();
            match awaits() {
                None => return,
                Some(now) if Arc::ptr_eq(&now, &signal) => heard.await,
                // Somebody else asks by now, and this one's word has been given.
                Some(_) => {}
            }
        }
    }

    /// Present while the server does not answer for this side of the lock.
    pub(crate) fn outage(&self) -> Option<SideOutage> {
        self.cell.ask(|state| state.outage(self.mode))
    }

    /// Until when those have time who keep the lock elsewhere and may not be inside, if any were called for this side of it.
    pub(crate) fn recall_until(&self) -> Option<Moment> {
        self.cell.ask(|state| state.recall_until(self.mode))
    }
}

impl WaitEntry {
    pub(super) fn new(
        cell: Arc<Cell<Hold>>,
        mode: Mode,
        waiter_id: WaiterId,
        waits: bool,
        wants: ShareRequest,
        grace: Duration,
    ) -> Self {
        Self { cell, mode, waiter_id, waits, wants, grace }
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn cell(&self) -> &Arc<Cell<Hold>> {
        &self.cell
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn waiter_id(&self) -> WaiterId {
        self.waiter_id
    }

    /// Whether it may ask, as far as this waiter has looked.
    pub(crate) fn is_leader(&self) -> bool {
        !self.waits
    }

    pub(crate) fn awaited_first_answer(&self) -> FirstAnswer {
        FirstAnswer { cell: Arc::clone(&self.cell), mode: self.mode, waiter_id: self.waiter_id }
    }

    /// Returns when this waiter is called. Dropping the future keeps the entry.
    pub(crate) async fn signalled(&mut self) -> Wake {
        if !self.waits {
            return Wake::Ask;
        }
        let wake = poll_fn(|cx| self.poll_wake(cx)).await;
        self.waits = false;
        wake
    }

    fn poll_wake(&self, cx: &Context<'_>) -> Poll<Wake> {
        self.cell.poll_waiter(self.waiter_id, cx, |state| state.take_signal(self.mode, self.waiter_id))
    }

    /// Takes a share that this waiter was handed or granted. With too little of its lease left, the waiter waits for the
    /// answer to a renewal that is sent from `since` on, when it looked first.
    pub(crate) fn accept(&self, hold: &Hold, share_id: ShareId, share: Share, since: Moment, now: Moment) -> Accepted {
        hold.accept(self.waiter_id, (share_id, share), since, now)
    }

    /// Returns when the renewal for which this waiter waits was answered, or has gone unanswered.
    pub(crate) async fn renewal_answered(&self, hold: &Hold) {
        hold.renewal_answered(self.waiter_id).await;
    }

    /// Waits again, where it was in the queue. `false` if the lock was idle meanwhile: then it is to enter anew.
    pub(crate) fn waits_again(&mut self, now: Moment) -> bool {
        let (mode, waiter_id, wants, grace) = (self.mode, self.waiter_id, self.wants, self.grace);
        let entered = self.cell.event(now, |state, inputs, effects| {
            (!state.is_gone).then(|| state.enter(mode, Some(waiter_id), (wants, grace), now, inputs, effects))
        });
        self.waits = entered.is_some_and(|(_, waits)| waits);
        entered.is_some()
    }

    /// Who calls for a hold of this lock that stays: as others have found out here, or `listen` does.
    pub(crate) fn recalls(&self, listen: impl FnOnce(CachedCell) -> Option<Arc<Recalls>>) -> Option<Arc<Recalls>> {
        // It listens with no mutex held: it may be told at once that somebody calls.
        self.cell.recalls(None).or_else(|| self.cell.recalls(listen(CachedCell(Arc::downgrade(&self.cell)))))
    }

    /// A reader joins a hold of this process, if it has one that may be joined now and no writer waits here.
    pub(crate) fn join(&self, now: Moment) -> Option<(Arc<Hold>, ShareId)> {
        self.cell.ask_heard(|state, heard| state.join(self.wants, heard, now))
    }

    /// Last token of the lock that this process is known to have had.
    pub(crate) fn newest_token(&self) -> Option<FencingToken> {
        self.cell.ask(|state| state.newest_token())
    }

    /// A read hold that may be joined if the server says so.
    pub(crate) fn to_recheck(&self) -> Option<Arc<Hold>> {
        self.cell.ask(|state| state.to_recheck())
    }

    /// Ends the cached holds that exclude this waiter, and returns them. The caller sends their releases.
    pub(crate) fn end_cached(&self) -> Vec<Arc<Hold>> {
        self.cell.quietly(|state, _, effects| state.end_cached(self.mode, effects))
    }

    /// Whether it waits for a guard of its own owner.
    pub(crate) fn waits_for_itself(&self, now: Moment) -> bool {
        self.cell.quietly(|state, _, effects| state.held_by(self.wants.owner, now, effects)).is_some()
    }

    /// States that this waiter is polled, and will be again. `false` if it may not ask any more.
    pub(crate) fn note_polled(&self, now: Moment) -> bool {
        let poll_deadline = now.after(self.grace);
        self.cell.ask(|state| state.note_polled(self.mode, self.waiter_id, poll_deadline))
    }

    /// A copy of the request is sent: of what is under way, or of what `begin` makes. `None` if it may not ask any more.
    pub(crate) fn begin_attempt(&self, now: Moment, begin: impl FnOnce() -> Pending) -> Option<Begun> {
        let poll_deadline = now.after(self.grace);
        self.cell.ask(|state| {
            let pending = state.begin_attempt(self.mode, self.waiter_id, poll_deadline, begin)?;
            let is_first = !std::mem::replace(&mut pending.is_counted, true);
            pending.copies.ask_for(self.wants.lease.min(self.wants.max_hold));
            let (id, backoff) = (pending.id.clone(), pending.backoff.take());
            Some(Begun { id, backoff, is_first, is_waited_for: state.is_waited_for(self.mode) })
        })
    }

    /// Returns the notifications that the one that asked before has left.
    pub(crate) fn take_left(&self) -> Option<Notifications> {
        self.cell.take_left(self.mode)
    }

    /// What became of a copy is known. `over` answers what is to be dropped;
    /// `None` if this one may not ask any more.
    pub(crate) fn end_attempt<T>(
        &self,
        attempt: &Attempt<Acquired>,
        now: Moment,
        over: impl FnOnce(&mut Pending) -> T,
    ) -> Option<T> {
        let poll_deadline = now.after(self.grace);
        self.cell.ask(|state| {
            let pending = state.end_attempt(self.mode, self.waiter_id, poll_deadline)?;
            pending.note_attempt(attempt);
            Some(over(pending))
        })
    }

    /// The server does not answer this one, or does again.
    pub(crate) fn on_outage(&self, outage: Option<SideOutage>) {
        self.cell.quietly(|state, _, effects| state.on_outage(self.mode, self.waiter_id, outage, effects));
    }

    /// Ends the wait of all that waited behind this one when its newest attempt was sent: it has failed for them as well.
    pub(crate) fn fail_waiters(&self, failure: &Failure) {
        self.cell.quietly(|state, _, effects| state.fail_waiters(self.mode, self.waiter_id, failure, effects));
    }

    /// Those who keep the lock elsewhere and may not be inside have been called, and have until then to give it up.
    pub(crate) fn note_recall(&self, until: Moment) {
        self.cell.ask(|state| state.note_recall(self.mode, until));
    }

    /// Records a refusal of the server, for all that wait on this side.
    pub(crate) fn note_refusal(&self, refusal: LastRefusal) {
        self.cell.ask(|state| state.note_refusal(self.mode, refusal));
    }

    /// Records that a guard uses a hold that the last refusal has taken for one that may only be cached.
    pub(crate) fn note_in_use(&self) {
        self.cell.ask(|state| state.note_in_use(self.mode));
    }

    /// Whether the server may have something of what this one asked for.
    pub(crate) fn has_traces(&self) -> bool {
        self.cell.ask(|state| match state.pending(self.mode, self.waiter_id) {
            Some(Some(pending)) => !pending.is_unknown_to_server(),
            Some(None) | None => false,
        })
    }

    /// What is under way is to be taken back.
    pub(crate) fn give_up_pending(&self) -> Option<Pending> {
        self.cell.ask(|state| state.give_up_pending(self.mode, self.waiter_id))
    }

    /// The server has granted what this one asked for. Answers also what was under way, to be dropped.
    pub(crate) fn on_grant(&self, granted: NewHold, now: Moment) -> (Installed, Option<Pending>) {
        let can_be_cached = granted.cache.is_some();
        let make = |number, granting| Arc::new(Hold::new(&self.cell, number, granting, can_be_cached));
        self.cell
            .event(now, |state, inputs, effects| state.on_grant(make, self.waiter_id, granted, now, inputs, effects))
    }

    /// It has a share of a hold that the server has granted or confirmed before. What it has under way is to be taken back.
    pub(crate) fn on_seated(&self, hold: &Hold, now: Moment) -> Option<Pending> {
        self.cell
            .event(now, |state, _, effects| state.on_seated(self.mode, self.waiter_id, hold.number(), now, effects))
    }

    /// Gives the place up. What is under way goes to the next waiter, if there is one that may go on with it now.
    pub(crate) fn leave(self, notifications: Notifications, backoff: Backoff, now: Moment) -> Leaving {
        let (leaving, needless) = self.cell.event_beside(now, |state, inputs, effects, beside| {
            let leaving = state.leave(self.mode, self.waiter_id, backoff, now, inputs, effects);
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
