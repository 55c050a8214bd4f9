//! Handle of one hold, for the guards, the renewals and the releases. The state of the hold is in its
//! [cell](super::cell).

use std::fmt;
use std::future::poll_fn;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use crate::base::attempt::{AcquisitionId, Attempt};
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::events::{self, HoldSpan};
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::metrics::Counted;
use crate::base::mode::Mode;
use crate::base::panics::catch_panic;
use crate::base::recalls::{Recalls, SubscriptionId};
use crate::base::reentry::OwnerId;
use crate::base::sync::{AtomicBool, AtomicU64};
use crate::lock::cell::Cell;
use crate::lock::effects::{Event, InRenewalQueue, Rules};
use crate::lock::end::End;
use crate::lock::record::HoldRecord;
use crate::lock::side::WaiterId;
use crate::lock::state::State;

pub(crate) use crate::lock::end::{Ended, HoldState};
pub(crate) use crate::lock::record::{
    Accepted, AtLeast, CacheAnswer, CacheOutcome, CacheState, Grant, GrantIdentity, LeftOpen, NewHold, Next,
    OpenConversion, RenewalConfirmed, ShareRemoved,
};
pub(crate) use crate::lock::shares::{Share, ShareId};

/// Handle of one hold. Its cell has the state of the hold.
pub(crate) struct Hold {
    cell: Arc<Cell<Self>>,
    number: u64,
    granting: GrantIdentity,
    /// Place of this hold in the [deadline queue](super::deadlines). Both fields are written under the mutex of the
    /// queue only. They are zero and [`Moment::NEVER`] while the hold is not in the queue.
    pub(crate) queue_slot: AtomicU64,
    pub(crate) queue_moment: AtomicU64,
    /// True if nothing is due for the hold any more, because it was released or its loss was reported.
    retired: AtomicBool,
    /// True if the hold may have a note on the server.
    noted: AtomicBool,
    /// True if the manager counts the hold among those that may be cached.
    can_be_cached: bool,
    span: HoldSpan,
    counted: Counted,
}

impl Hold {
    pub(super) fn new(cell: &Arc<Cell<Self>>, number: u64, granting: GrantIdentity, can_be_cached: bool) -> Self {
        if can_be_cached {
            cell.rules().count_cached();
        }
        Self {
            cell: Arc::clone(cell),
            number,
            granting,
            queue_slot: AtomicU64::new(0),
            queue_moment: AtomicU64::new(Moment::NEVER.as_nanos()),
            retired: AtomicBool::new(false),
            noted: AtomicBool::new(false),
            can_be_cached,
            span: HoldSpan::default(),
            counted: Counted::default(),
        }
    }

    pub(super) fn cell(&self) -> &Arc<Cell<Self>> {
        &self.cell
    }

    pub(super) fn rules(&self) -> &Rules {
        self.cell.rules()
    }

    pub(super) fn clock(&self) -> Clock {
        self.cell.rules().clock
    }

    pub(crate) fn key(&self) -> &Arc<Key> {
        self.cell.key()
    }

    /// Returns true if this process is a copy, made by `fork`, of the process that has the hold. The caller must not
    /// use the cell then, because `fork` may have copied its mutex in the locked state.
    pub(super) fn is_copied(&self) -> bool {
        !self.rules().process.is_current()
    }

    pub(crate) fn id(&self) -> &AcquisitionId {
        &self.granting.id
    }

    pub(crate) fn mode(&self) -> Mode {
        self.granting.mode
    }

    /// Returns the first token of the hold.
    pub(crate) fn token(&self) -> FencingToken {
        self.granting.token
    }

    /// Returns the first and the last of the tokens that the server granted with the hold.
    pub(crate) fn tokens(&self) -> (FencingToken, FencingToken) {
        let first = self.granting.token;
        (first, first.plus(self.granting.tokens.saturating_sub(1)))
    }

    /// Reads the state.
    fn ask<T>(&self, question: impl FnOnce(&HoldRecord) -> T) -> T {
        self.cell.ask(|state| question(state.record(self.number)))
    }

    /// Applies an event. If the background has to look at the hold earlier than planned, it is scheduled again.
    fn event<T>(&self, now: Moment, event: impl FnOnce(&mut HoldRecord, &mut Event<'_>) -> T) -> T {
        self.cell.quietly_at(now, |state, cell_event| state.change(self.number, cell_event, event))
    }

    /// Applies an event that needs the record alone. Schedules the hold as [`event`](Self::event) does.
    fn change<T>(&self, change: impl FnOnce(&mut HoldRecord) -> T) -> T {
        self.event(self.clock().now(), |record, _| change(record))
    }

    /// Applies an event that does not schedule the hold. Either the clock has ended the hold, and the background looks
    /// at it at the same moment, or the caller gives the hold back.
    fn quietly<T>(&self, now: Moment, event: impl FnOnce(&mut HoldRecord, &mut Event<'_>) -> T) -> T {
        self.cell.quietly_at(now, |state, cell_event| event(state.record(self.number), cell_event))
    }

    // Questions and steps of guards.

    pub(crate) fn state_of(&self, share_id: ShareId) -> HoldState {
        self.after_look(HoldState::Lost(LossReason::Forked), |record, now| {
            record.state_of(&record.share(share_id), now)
        })
    }

    pub(super) fn state_of_share(&self, share: &Share) -> HoldState {
        self.after_look(HoldState::Lost(LossReason::Forked), |record, now| record.state_of(share, now))
    }

    /// Looks at the hold by the clock, then reads its state. Returns `in_copy` in a copy of the process.
    fn after_look<T>(&self, in_copy: T, question: impl FnOnce(&HoldRecord, Moment) -> T) -> T {
        if self.is_copied() {
            return in_copy;
        }
        self.quietly(self.clock().now(), |record, event| {
            record.look(event);
            question(record, event.now)
        })
    }

    /// Returns the time for which the guard may rely on the hold without a further answer of the server.
    pub(crate) fn remaining(&self, share_id: ShareId) -> Duration {
        self.after_look(Duration::ZERO, |record, now| {
            let share = record.share(share_id);
            match record.state_of(&share, now) {
                HoldState::Lost(_) => Duration::ZERO,
                HoldState::Held | HoldState::Unconfirmed => record.deadline().min(share.ends).since(now),
            }
        })
    }

    /// Returns the share and its end, for a watcher. The watcher may live longer than the guard.
    pub(super) fn watch(&self, share_id: ShareId) -> (Share, Arc<End>) {
        if self.is_copied() {
            let nobodys = Share { owner: OwnerId::NOBODY, lease: Duration::ZERO, ends: Moment::START };
            return (nobodys, Arc::default());
        }
        self.change(|record| record.watch(share_id))
    }

    /// Returns a number for a task that waits for renewals of this hold and has no place in the queue.
    pub(crate) fn new_waiter(&self) -> WaiterId {
        self.cell.ask(|state| state.waiter_id())
    }

    /// Resolves when the renewal for which this waiter waits was answered, or has failed, or at `until`.
    pub(crate) async fn renewal_answered(&self, waiter_id: WaiterId, until: Moment) {
        let _registered = Registered { hold: self, waiter_id };
        let is_answered =
            |state: &mut State<Self>| (!state.record(self.number).awaits_renewal(waiter_id)).then_some(());
        tokio::select! {
            biased;
            () = poll_fn(|cx| self.cell.poll_waiter(waiter_id, cx, is_answered)) => {}
            () = self.clock().timer(until) => {}
        }
    }

    /// Removes a guard from a hold that others share or that is cached then. Returns false if there is more to do, and
    /// changes nothing.
    #[inline]
    pub(crate) fn leave_quietly(&self, share_id: ShareId) -> bool {
        self.cell.leave(|state, heard| {
            let others = state.leave_others(self.number, share_id);
            others.or_else(|| state.cache(self.number, share_id, heard, self.clock().now()))
        })
    }

    /// Removes the last guard of a hold that is cached then. Returns false if there is more to do, and changes nothing.
    pub(crate) fn cache(&self, share_id: ShareId, now: Moment) -> bool {
        self.cell.leave(|state, heard| state.cache(self.number, share_id, heard, now))
    }

    /// Removes the share of a guard. After the last guard, the next writer of this process takes the hold, if it may.
    pub(crate) fn remove_share(&self, share_id: ShareId, now: Moment) -> ShareRemoved {
        self.cell.event(now, |state, event| state.remove_share(self.number, share_id, event))
    }

    /// Makes a renewal due now if the server has not granted the whole lease of this share, because its guard waits for
    /// that.
    pub(super) fn confirm_now(&self, share: &Share) {
        self.change(|record| record.confirm_now(share, self.clock().now()));
    }

    /// Returns true if an answer of the server has granted the whole lease of this share.
    pub(crate) fn is_confirmed(&self, share: &Share) -> bool {
        self.ask(|record| record.is_confirmed(share))
    }

    /// Ends the hold as lost. Returns false if it ended before.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        self.quietly(self.clock().now(), |record, event| record.lose(reason, event))
    }

    /// Returns true if the hold may have a note on the server.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_noted(&self, is_noted: bool) {
        self.noted.store(is_noted, Ordering::Relaxed);
    }

    /// Returns the number of guards of the hold, with the unclaimed shares of waiters, and true if the hold is
    /// unconfirmed.
    pub(crate) fn usage(&self) -> (usize, bool) {
        self.ask(|record| (record.guards(), record.is_unconfirmed()))
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn is_live(&self) -> bool {
        self.ask(|record| record.is_live())
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn is_valid(&self, now: Moment) -> bool {
        self.ask(|record| record.is_live() && now < record.deadline())
    }

    /// Returns the end of the hold on the server, as a release of the hold needs it.
    pub(crate) fn until(&self, now: Moment) -> ServerEnd {
        let rules = self.rules();
        self.ask(|record| ServerEnd::of(record, now, rules))
    }

    /// Returns the end of the hold on the server, and takes its open conversion. The caller has to release the new hold
    /// of the conversion too. A later call finds no conversion.
    pub(super) fn gives_back(&self, now: Moment) -> (ServerEnd, Option<OpenConversion>) {
        let rules = self.rules();
        self.quietly(now, |record, _| (ServerEnd::of(record, now, rules), record.take_open_conversion()))
    }
}

/// Registration of a task that waits for a renewal. Its drop removes the task.
struct Registered<'a> {
    hold: &'a Hold,
    waiter_id: WaiterId,
}

impl Drop for Registered<'_> {
    fn drop(&mut self) {
        if !self.hold.is_copied() {
            self.hold.cell.forget_waiter(self.waiter_id);
        }
    }
}

/// End of a hold on the server.
#[derive(Clone, Copy, Debug)]
pub(crate) struct ServerEnd {
    /// Moment from which the server has no hold, whatever arrives.
    pub(crate) server_until: Moment,
    /// Latest moment at which a copy of the acquisition may arrive.
    pub(crate) arrives_until: Option<Moment>,
    /// Time until which the release lets the hold rest.
    pub(crate) rest_until: Option<ServerTime>,
}

impl ServerEnd {
    fn of(record: &HoldRecord, now: Moment, rules: &Rules) -> Self {
        Self {
            server_until: record.server_until(now, rules),
            arrives_until: record.arrives_until(now, rules),
            rest_until: record.rest_until(),
        }
    }
}

/// Steps of the renewals, and of caching.
impl Hold {
    /// Ends the hold, or its shares, if they are over by the clock. Returns the next event of the hold, for example a
    /// renewal or the local deadline.
    pub(crate) fn next(&self, now: Moment) -> Next {
        self.quietly(now, |record, event| record.next(event))
    }

    /// Retires the hold: nothing is due for it from now on. Ends its tracing span and its count in the metrics.
    pub(crate) fn retire(&self) {
        self.retired.store(true, Ordering::Release);
        self.counted.end();
        if self.span.has_begun() {
            let how = match self.due() {
                Next::Lost(reason) => events::word_for(reason),
                Next::At(_) | Next::Released | Next::GivenUp => "released",
            };
            catch_panic(|| self.span.end(how));
        }
    }

    /// Counts the hold in the metrics until it is retired.
    pub(crate) fn count(&self) {
        self.counted.begin(&self.rules().metrics, self.mode(), self.clock());
    }

    /// Begins the tracing span of the hold. Its parent is the current span of the calling task.
    pub(crate) fn begin_span(&self) {
        self.span.begin(self.key().name(), self.mode(), self.token());
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    // Caching.

    /// Returns the subscription that is confirmed now, for a request that offers to cache the hold.
    pub(crate) fn offered_subscription(&self) -> Option<SubscriptionId> {
        self.cell.ask_heard(|state, heard| heard.subscription.filter(|_| state.record(self.number).can_be_cached()))
    }

    /// Returns the subscription that is confirmed now, for a renewal that offers to cache the hold. For a hold that is
    /// to rest, returns the time until which the renewal lets the hold last at least instead.
    pub(crate) fn renewal_terms(&self, now: Moment) -> (Option<SubscriptionId>, Option<ServerTime>) {
        let rules = self.rules();
        self.cell.ask_heard(|state, heard| {
            let record = state.record(self.number);
            match record.fix_rest(now, rules) {
                Some(until) => (None, Some(until)),
                None => (heard.subscription.filter(|_| record.can_be_cached()), None),
            }
        })
    }

    /// Returns the receiver of recalls, and the time for which the hold may stay cached. The hold that replaces this
    /// one after a conversion needs both.
    pub(crate) fn cache_terms(&self) -> Option<(Arc<Recalls>, Duration)> {
        let cache_for = self.ask(|record| record.cache_for())?;
        Some((self.cell.recalls(None)?, cache_for))
    }

    /// Applies an answer about the hold to its cache state, and adds the tokens that the answer brought.
    pub(crate) fn on_cache_answer(&self, word: CacheAnswer, tokens: Option<(FencingToken, u64)>, now: Moment) {
        self.event(now, |record, event| {
            record.on_cache_answer(word, event);
            tokens.into_iter().for_each(|(first, count)| record.add_tokens(first, count));
        });
    }

    /// Applies an answer to a renewal that says that the server does not know the hold. If a conversion is under way,
    /// it may have replaced the hold, and the answer to the conversion decides. A force has ended both the old hold and
    /// the new one.
    pub(crate) fn on_unknown(&self, reason: LossReason) {
        self.event(self.clock().now(), |record, event| record.on_unknown(reason, event));
    }
}

/// Steps of a recheck: a reader asks the server whether it may join, by a repeat of the acquisition of the hold.
impl Hold {
    /// Notes the outcome of the repeated request.
    pub(crate) fn end_recheck<T>(&self, attempt: &Attempt<T>) {
        self.change(|record| record.copies_mut().resolve(attempt));
    }

    /// Notes that no task waits for the answer to the repeated request any more.
    pub(crate) fn abandon_recheck(&self, now: Moment) {
        self.event(now, |record, event| record.copies_mut().abandon(now.after(event.max_delay)));
    }
}

/// Steps of a conversion.
impl Hold {
    /// Notes that the server had the old hold when it answered a request that was sent at `sent`. So the server has not
    /// converted the hold before `sent`.
    pub(crate) fn stood_at(&self, sent: Moment) {
        self.change(|record| record.stood_at(sent, self.rules()));
    }

    /// Opens the hold again to other guards, because no conversion was sent.
    pub(crate) fn reopen(&self) {
        if !self.is_copied() {
            self.refuse_conversion(self.clock().now());
        }
    }

    /// Replaces the hold by the one into which the server has converted it. Returns `None` if the new hold is over
    /// already.
    pub(crate) fn convert_into(&self, granted: NewHold, now: Moment) -> Option<(Arc<Self>, ShareId)> {
        let cell = &self.cell;
        let can_be_cached = granted.cache.is_some();
        let make = |number, granting| {
            let new = Self::new(cell, number, granting, can_be_cached);
            // The server has moved the note to the new hold.
            new.set_noted(self.is_noted());
            Arc::new(new)
        };
        cell.event(now, |state, event| state.on_converted(make, self.number, granted, event))
    }

    /// Removes the share of the guard, because the server has converted the hold. The old hold needs no release.
    pub(crate) fn note_share_converted(&self, share_id: ShareId) {
        self.cell.quietly(|state, event| state.note_share_converted(self.number, share_id, event));
    }
}

/// Writes questions that the record of a hold answers under the same names.
macro_rules! record_questions {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) -> $answer:ty;)*) => {
        impl Hold {$(
            $(#[$doc])*
            pub(crate) fn $name(&self, $($argument: $type),*) -> $answer {
                self.ask(|record| record.$name($($argument),*))
            }
        )*}
    };
}

/// Writes events that the record of a hold handles under the same names. The caller passes their moment as the last
/// argument.
macro_rules! record_events {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Hold {$(
            $(#[$doc])*
            pub(crate) fn $name(&self, $($argument: $type,)* now: Moment) $(-> $result)? {
                self.event(now, |record, event| record.$name($($argument,)* event))
            }
        )*}
    };
}

/// Writes events that the record of a hold handles under the same names and without the inputs of its cell.
macro_rules! record_changes {
    ($($(#[$doc:meta])* fn $name:ident($($argument:ident: $type:ty),*) $(-> $result:ty)?;)*) => {
        impl Hold {$(
            $(#[$doc])*
            pub(crate) fn $name(&self, $($argument: $type),*) $(-> $result)? {
                self.change(|record| record.$name($($argument),*))
            }
        )*}
    };
}

record_questions! {
    /// Returns the share of this guard.
    fn share(share_id: ShareId) -> Share;

    /// Returns the time of the grant.
    fn began() -> Moment;

    /// Returns the local deadline.
    fn deadline() -> Moment;

    /// Returns true if the hold is to rest after its use.
    fn is_to_rest() -> bool;

    /// Returns the next event of the hold, as its state is now. Has no effects, because the deadline queue calls it
    /// under its mutex.
    fn due() -> Next;

    /// Returns the number of tokens that the next renewal requests.
    fn missing_tokens() -> u64;

    /// Returns true if the hold is cached and no guard is inside.
    fn is_cached() -> bool;

    /// Returns the result of caching the hold, or `None` if the hold may not be cached.
    fn cache_outcome() -> Option<CacheOutcome>;

    /// Returns true if the server has not answered an earlier conversion, which no task repeats.
    fn has_open_conversion() -> bool;
}

record_events! {
    // Steps of guards.

    /// Adds a guard for an owner that has a guard of this hold already. The new guard has a lease and an end of its
    /// own.
    fn join_own(share: Share) -> Option<ShareId>;

    /// Lets a waiter take its share. If the hold has too little time left, the waiter waits for the answer to a renewal
    /// that is sent at `since` or later. `since` is the time of the waiter's first attempt.
    fn accept(waiter_id: WaiterId, taken: (ShareId, Share), since: Moment) -> Accepted;

    /// Lets a waiter take its share of a hold whose grant has enough time for it.
    fn accept_granted(taken: (ShareId, Share)) -> Accepted;

    /// Lets a waiter take its share after the answer to a renewal that is sent at `since` or later.
    fn accept_renewed(waiter_id: WaiterId, taken: (ShareId, Share), since: Moment) -> Accepted;

    // Steps of a hold that is to rest after its use.

    /// Arms the hold for an acquisition, which waits and tries again until the server has answered.
    fn arm(waiter_id: WaiterId, armed: (ShareId, AtLeast), since: Moment) -> Accepted;

    /// Notes that the guard is handed out now. Returns false if the hold is over.
    fn hand_out() -> bool;

    // Steps of the renewals, and of caching.

    /// Begins a renewal that is due at `by` or that waits in a queue, and returns the lease to request. No other
    /// renewal becomes due before the answer. If no share has time left, the hold ends instead.
    fn begin_renewal(by: Moment) -> Option<Duration>;

    /// Begins the renewal of a write hold that is due, for a waiter that sends it. Returns the lease to request. The
    /// background sends the renewal, too, if no answer comes soon.
    fn begin_own_renewal() -> Option<Duration>;

    /// Notes that no server has carried out the renewal that a waiter sent at `sent`. The next try is due after a pause.
    fn on_own_renewal_not_done(sent: Moment);

    /// Applies the answer to a renewal. An answer after the local deadline changes nothing.
    fn on_renewed(grant: Grant) -> RenewalConfirmed;

    /// Notes that a renewal was not answered. The next try is due after a pause.
    fn on_no_answer();

    // Steps of a recheck: a reader asks the server whether it may join, by a repeat of the acquisition of the hold.

    /// Adds the share of a reader that asks the server whether it may join. Returns the share and the lease to request.
    /// From now on, the repeated request counts as in flight.
    fn begin_recheck(share: Share) -> Option<(ShareId, Duration)>;

    /// Applies the answer of a server that has extended the hold. Returns whether the reader may join, and whether this
    /// was the first answer for a hold that a notification granted.
    fn on_rechecked(grant: Grant, share_until: Option<Moment>) -> (bool, bool);

    // Steps of a conversion.

    /// Begins a conversion, during which no further guard may share the hold. Returns false if the hold has several
    /// guards, is over, or is being converted already.
    fn begin_conversion() -> bool;

    /// Notes that a request to convert the hold is sent now. Once the server has executed it, the server has only the
    /// new hold, for `lease`.
    fn send_conversion(lease: Duration);

    /// Ends the hold now, because the server has converted it into a hold that was over when the answer came.
    fn end_with_conversion();

    /// Leaves a conversion open that the server did not answer and that no task repeats any more.
    fn leave_conversion_open(open: OpenConversion) -> LeftOpen;
}

record_changes! {
    // Steps of a hold that is to rest after its use.

    /// Lets the release of the hold leave no rest.
    fn forgo_rest();

    /// Notes that the server has answered a renewal with the time until which the hold lasts at least.
    fn note_armed();

    // Steps of the renewals, and of caching.

    /// Marks a renewal that is due at `by` or earlier as waiting in the queue of its route. Returns false if no renewal
    /// is due by then.
    fn join_batch(by: Moment) -> bool;

    /// Plans the renewal anew at `then`, because another route serves the lock now. The renewal was waiting in the
    /// queue of the former route, or was under way there.
    fn leave_batch(then: Moment);

    /// Notes that the hold is not to be cached any longer. If it is cached, the background releases it. If a guard uses
    /// it, the release comes after the last guard.
    fn note_wanted(now: Moment);

    // Steps of a recheck: a reader asks the server whether it may join, by a repeat of the acquisition of the hold.

    /// Makes a renewal due now, and closes the join window. The answer shows whether the server still has the hold.
    fn renew_now(now: Moment);

    // Steps of a conversion.

    /// Notes that the server has executed no request to convert the hold, and cannot execute one any more.
    fn cancel_conversion();

    /// Takes the conversion that an earlier task left open. The caller continues it, or releases its new hold.
    fn take_open_conversion() -> Option<OpenConversion>;

    /// Applies a refusal of the conversion. The hold is as it was before the conversion, confirmed or not.
    fn refuse_conversion(now: Moment);
}

impl InRenewalQueue for Hold {
    fn number(&self) -> u64 {
        self.number
    }

    fn is_looked_at_by(&self, at: Moment) -> bool {
        self.queue_moment.load(Ordering::Relaxed) <= at.as_nanos() || self.is_retired()
    }
}

impl Drop for Hold {
    fn drop(&mut self) {
        if self.is_copied() {
            return;
        }
        self.cell.hold_dropped(self.number);
        if self.can_be_cached {
            self.rules().cached_no_more();
        }
    }
}

impl fmt::Debug for Hold {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_copied() {
            return f
                .debug_struct("Hold")
                .field("lock", &self.key().name())
                .field("state", &"Forked")
                .finish_non_exhaustive();
        }
        let (token, state) = self.ask(|record| (record.current_token(), record.to_string()));
        f.debug_struct("Hold")
            .field("lock", &self.key().name())
            .field("id", &self.id().as_str())
            .field("mode", &self.mode())
            .field("token", &token)
            .field("state", &state)
            .finish_non_exhaustive()
    }
}
