//! One hold, for those who have to do with it: guards, renewals, releases. What is known of it is in its [cell](super::cell).

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
use crate::lock::effects::{InRenewalQueue, Inputs, Rules, Signals};
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

/// A hold of its cell.
pub(crate) struct Hold {
    cell: Arc<Cell<Self>>,
    number: u64,
    granting: GrantIdentity,
    /// Place of this hold in the [deadline queue](super::deadlines). Both fields are written under the mutex of the queue
    /// only. Zero and never: it is not in the queue.
    pub(crate) queue_slot: AtomicU64,
    pub(crate) queue_moment: AtomicU64,
    /// Nothing is due for it any more: it was given back, or its loss was told.
    retired: AtomicBool,
    /// True if the hold may have a note on the server.
    noted: AtomicBool,
    /// It counts among the holds that may be cached.
    can_be_cached: bool,
    span: HoldSpan,
    counted: Counted,
}

impl Hold {
    pub(super) fn new(cell: &Arc<Cell<Self>>, number: u64, granting: GrantIdentity, can_be_cached: bool) -> Self {
        if can_be_cached {
            cell.rules().cached.add();
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

    /// Whether another process holds this, and this one has a copy of what that knew. The cell is not asked then: its mutex may have
    /// been copied locked.
    pub(super) fn is_copied(&self) -> bool {
        !self.rules().process.is_current()
    }

    pub(crate) fn id(&self) -> &AcquisitionId {
        &self.granting.id
    }

    pub(crate) fn mode(&self) -> Mode {
        self.granting.mode
    }

    /// The first of its tokens.
    pub(crate) fn token(&self) -> FencingToken {
        self.granting.token
    }

    /// The first and the last of them.
    pub(crate) fn tokens(&self) -> (FencingToken, FencingToken) {
        let first = self.granting.token;
        (first, first.plus(self.granting.tokens.saturating_sub(1)))
    }

    /// Reads the state.
    fn ask<T>(&self, question: impl FnOnce(&HoldRecord) -> T) -> T {
        self.cell.ask(|state| question(state.record(self.number)))
    }

    /// Applies an event. If the background has to look at the hold earlier than planned, it is scheduled again.
    fn event<T>(&self, event: impl FnOnce(&mut HoldRecord, &Inputs<'_>, &mut Signals) -> T) -> T {
        self.cell.quietly(|state, inputs, effects| {
            state.change(self.number, effects, |record, effects| event(record, inputs, &mut effects.signals))
        })
    }

    /// Applies an event that does not schedule the hold. Either the clock has ended the hold, and the background looks
    /// at it at the same moment, or the caller gives the hold back.
    fn quietly<T>(&self, event: impl FnOnce(&mut HoldRecord, &mut Signals) -> T) -> T {
        self.cell.quietly(|state, _, effects| event(state.record(self.number), &mut effects.signals))
    }

    // What guards ask.

    pub(crate) fn state_of(&self, share_id: ShareId) -> HoldState {
        if self.is_copied() {
            return HoldState::Lost(LossReason::Forked);
        }
        let now = self.clock().now();
        self.quietly(|record, signals| {
            record.look(now, signals);
            record.state_of(&record.share(share_id), now)
        })
    }

    pub(super) fn state_of_share(&self, share: &Share) -> HoldState {
        if self.is_copied() {
            return HoldState::Lost(LossReason::Forked);
        }
        let now = self.clock().now();
        self.quietly(|record, signals| {
            record.look(now, signals);
            record.state_of(share, now)
        })
    }

    /// How long the hold may be trusted without hearing from the server.
    pub(crate) fn remaining(&self, share_id: ShareId) -> Duration {
        if self.is_copied() {
            return Duration::ZERO;
        }
        let now = self.clock().now();
        self.quietly(|record, signals| {
            record.look(now, signals);
            let share = record.share(share_id);
            match record.state_of(&share, now) {
                HoldState::Lost(_) => Duration::ZERO,
                HoldState::Held | HoldState::Unconfirmed => record.deadline().min(share.ends).since(now),
            }
        })
    }

    /// For a watch that outlives its guard.
    pub(super) fn watch(&self, share_id: ShareId) -> (Share, Arc<End>) {
        if self.is_copied() {
            let nobodys = Share { owner: OwnerId::NOBODY, lease: Duration::ZERO, ends: Moment::from_nanos(0) };
            return (nobodys, Arc::default());
        }
        self.event(|record, _, _| record.watch(share_id))
    }

    /// What this guard wants.
    pub(crate) fn share(&self, share_id: ShareId) -> Share {
        self.ask(|record| record.share(share_id))
    }

    /// One more guard of an owner that has one, with a lease and an end of its own.
    pub(crate) fn join_own(&self, share: Share, now: Moment) -> Option<ShareId> {
        self.event(|record, _, signals| record.join_own(share, now, signals))
    }

    /// A waiter takes what it was handed or granted. With too little left of it to start with, it waits for the answer to a
    /// renewal that is sent from `since` on, when it looked first.
    pub(crate) fn accept(&self, waiter_id: WaiterId, taken: (ShareId, Share), since: Moment, now: Moment) -> Accepted {
        self.event(|record, rules, signals| record.accept(waiter_id, taken, since, now, rules, signals))
    }

    /// Lets a waiter take its share after the answer to a renewal that is sent at `since` or later.
    pub(crate) fn accept_renewed(
        &self,
        waiter_id: WaiterId,
        taken: (ShareId, Share),
        since: Moment,
        now: Moment,
    ) -> Accepted {
        self.event(|record, rules, signals| record.accept_renewed(waiter_id, taken, since, now, rules, signals))
    }

    /// Returns a number for a task that waits for renewals of this hold and has no place in the queue.
    pub(crate) fn new_waiter(&self) -> WaiterId {
        self.cell.ask(|state| state.waiter_id())
    }

    /// Returns when the renewal for which this waiter waits was answered, or has gone unanswered.
    pub(crate) async fn renewal_answered(&self, waiter_id: WaiterId) {
        let _registered = Registered { hold: self, waiter_id };
        let is_answered =
            |state: &mut State<Self>| (!state.record(self.number).awaits_renewal(waiter_id)).then_some(());
        poll_fn(|cx| self.cell.poll_waiter(waiter_id, cx, is_answered)).await;
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

    /// A guard lets go, and the next writer of this process has the hold then, if it may.
    pub(crate) fn remove_share(&self, share_id: ShareId, now: Moment) -> ShareRemoved {
        self.cell.event(now, |state, inputs, effects| state.remove_share(self.number, share_id, now, inputs, effects))
    }

    /// Sends the claim now, if the server has yet to answer for the hold. A guard waits for that.
    pub(super) fn claim_now(&self, now: Moment) {
        self.event(|record, _, _| record.claim_now(now));
    }

    /// Whether the server has yet to answer for a hold that it granted by a notification.
    pub(crate) fn is_claim(&self) -> bool {
        self.ask(|record| record.is_claim())
    }

    /// Ends the hold as lost; `false` if it has ended before.
    pub(crate) fn lose(&self, reason: LossReason) -> bool {
        let now = self.clock().now();
        self.quietly(|record, signals| record.lose(reason, now, signals))
    }

    /// Returns true if the hold may have a note on the server.
    #[inline]
    pub(crate) fn is_noted(&self) -> bool {
        self.noted.load(Ordering::Relaxed)
    }

    pub(crate) fn set_noted(&self, is_noted: bool) {
        self.noted.store(is_noted, Ordering::Relaxed);
    }

    /// How many guards share it, with those that are on their way to a waiter, and whether its renewal is late.
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

    /// When it was granted.
    pub(crate) fn began(&self) -> Moment {
        self.ask(|record| record.began())
    }

    /// The moment of the local deadline.
    pub(crate) fn deadline(&self) -> Moment {
        self.ask(|record| record.deadline())
    }

    /// When the server's hold is over, whatever arrives, what may arrive, and until when it rests.
    pub(crate) fn until(&self, now: Moment) -> ServerEnd {
        let rules = self.rules();
        self.ask(|record| ServerEnd::of(record, now, rules))
    }

    /// The same, and the conversion that is to be given back as well: once.
    pub(super) fn gives_back(&self, now: Moment) -> (ServerEnd, Option<OpenConversion>) {
        let rules = self.rules();
        self.quietly(|record, _| (ServerEnd::of(record, now, rules), record.take_open_conversion()))
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

/// Steps of a hold that is to rest after its use.
impl Hold {
    /// Arms the hold for an acquisition, which waits and tries again until the server has answered.
    pub(crate) fn arm(
        &self,
        waiter_id: WaiterId,
        (share_id, at_least): (ShareId, AtLeast),
        since: Moment,
        now: Moment,
    ) -> Accepted {
        self.event(|record, _, signals| record.arm(waiter_id, (share_id, at_least), since, now, signals))
    }

    /// Notes that the guard is handed out now. Returns false if the hold is over.
    pub(crate) fn hand_out(&self, now: Moment) -> bool {
        self.event(|record, _, signals| record.hand_out(now, signals))
    }

    /// Lets the release of the hold leave no rest.
    pub(crate) fn forgo_rest(&self) {
        self.event(|record, _, _| record.forgo_rest());
    }

    /// Returns true if the hold is to rest after its use.
    pub(crate) fn is_to_rest(&self) -> bool {
        self.ask(|record| record.is_to_rest())
    }

    /// Notes that the server has answered a renewal with the time until which the hold lasts at least.
    pub(crate) fn note_armed(&self) {
        self.event(|record, _, _| record.note_armed());
    }
}

/// What the renewal asks and tells.
impl Hold {
    /// When something is due for this hold by what is known. Has no effects: for the deadline queue, under its mutex.
    pub(crate) fn due(&self) -> Next {
        self.ask(|record| record.due())
    }

    /// When something is due for this hold: a renewal, or its local deadline.
    pub(crate) fn next(&self, now: Moment) -> Next {
        self.quietly(|record, signals| record.next(now, signals))
    }

    /// If a renewal is due by `by`, it waits in a line from now on.
    pub(crate) fn join_batch(&self, by: Moment) -> bool {
        self.event(|record, _, _| record.enter_line(by))
    }

    /// The line that it waited in, or was sent from, is not its own any more. It enters another one then.
    pub(crate) fn leave_batch(&self, then: Moment) {
        self.event(|record, _, _| record.leave_line(then));
    }

    /// Nothing is due for it from now on.
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

    /// It counts until it is retired.
    pub(crate) fn count(&self) {
        self.counted.begin(&self.rules().metrics, self.mode(), self.clock());
    }

    /// Those who trace see it from now on, below what is going on here.
    pub(crate) fn begin_span(&self) {
        self.span.begin(self.key().name(), self.mode(), self.token());
    }

    pub(crate) fn is_retired(&self) -> bool {
        self.retired.load(Ordering::Acquire)
    }

    /// The lease to ask for, if a renewal is due by `by` or waits in a line. Then it counts as sent, and no other is due until
    /// it is answered. Without a guard that wants more, the hold is over instead.
    pub(crate) fn begin_renewal(&self, now: Moment, by: Moment) -> Option<Duration> {
        self.event(|record, rules, signals| record.begin_renewal(now, by, rules, signals))
    }

    /// A renewal was answered. Comes too late if the local deadline was reached meanwhile.
    pub(crate) fn on_renewed(&self, grant: Grant, now: Moment) -> RenewalConfirmed {
        self.event(|record, rules, signals| record.on_renewed(grant, now, rules, signals))
    }

    // What lets it stay.

    /// The subscription that is confirmed now, for a request that says that the hold may stay.
    pub(crate) fn offered_subscription(&self) -> Option<SubscriptionId> {
        self.cell.ask_heard(|state, heard| heard.subscription.filter(|_| state.record(self.number).can_be_cached()))
    }

    /// The subscription that stands now, for a renewal that says that the hold may stay; or the time until which the renewal
    /// lets the hold last at least.
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

    /// What the hold needs that takes its place: who hears of calls, and for how long it may stay.
    pub(crate) fn cache_terms(&self) -> Option<(Arc<Recalls>, Duration)> {
        let cache_for = self.ask(|record| record.cache_for())?;
        Some((self.cell.recalls(None)?, cache_for))
    }

    /// How many tokens to ask for.
    pub(crate) fn missing_tokens(&self) -> u64 {
        self.ask(|record| record.missing_tokens())
    }

    /// What an answer says to those who keep the hold, and the tokens that it brought.
    pub(crate) fn on_cache_answer(&self, word: CacheAnswer, tokens: Option<(FencingToken, u64)>, now: Moment) {
        self.event(|record, inputs, _| {
            record.on_cache_answer(word, inputs.heard, now);
            tokens.into_iter().for_each(|(first, count)| record.add_tokens(first, count));
        });
    }

    /// Whether no guard is inside.
    pub(crate) fn is_cached(&self) -> bool {
        self.ask(|record| record.is_cached())
    }

    /// It is to be given up, if it is idle, or behind its last guard.
    pub(crate) fn note_wanted(&self, now: Moment) {
        self.event(|record, _, _| record.note_wanted(now));
    }

    /// What has come of letting it stay. `None` if it was not to.
    pub(crate) fn cache_outcome(&self) -> Option<CacheOutcome> {
        self.ask(|record| record.cache_outcome())
    }

    /// A renewal was not answered; it is tried again after a pause.
    pub(crate) fn on_no_answer(&self, now: Moment) {
        self.event(|record, _, signals| record.on_no_answer(now, signals));
    }

    /// A renewal was answered: the server does not know the hold. While it is being converted, that may be the conversion, and the
    /// answer to that will tell; a force has ended both.
    pub(crate) fn on_unknown(&self, reason: LossReason) {
        let now = self.clock().now();
        self.event(|record, _, signals| record.on_unknown(reason, now, signals));
    }
}

/// What whoever asks the server for more readers does.
impl Hold {
    /// A reader joins for the time being, to ask the server whether it may; with the lease to ask for. A repeat of the acquisition
    /// is on its way from then on.
    pub(crate) fn begin_recheck(&self, share: Share, now: Moment) -> Option<(ShareId, Duration)> {
        self.event(|record, rules, signals| record.begin_recheck(share, now, rules, signals))
    }

    /// What became of the repeat is known, as far as it ever will be.
    pub(crate) fn end_recheck<T>(&self, attempt: &Attempt<T>) {
        self.event(|record, _, _| record.copies_mut().resolve(attempt));
    }

    /// Nobody waits for the repeat any more.
    pub(crate) fn abandon_recheck(&self, now: Moment) {
        self.event(|record, rules, _| record.copies_mut().abandon(now.after(rules.max_delay)));
    }

    /// The server knows the hold and has extended it. Answers whether it is held here still, and whether this was its claim.
    pub(crate) fn on_rechecked(&self, grant: Grant, share_until: Option<Moment>, now: Moment) -> (bool, bool) {
        self.event(|record, rules, signals| record.on_rechecked(grant, share_until, now, rules, signals))
    }

    /// The server did not know it: the next renewal, which is due now, tells why.
    pub(crate) fn renew_now(&self, now: Moment) {
        self.event(|record, _, _| record.renew_now(now));
    }
}

/// What a conversion does.
impl Hold {
    /// Closes the hold for all but its one guard; `false` if it has others, or is not what it was.
    pub(crate) fn begin_conversion(&self, now: Moment) -> bool {
        self.event(|record, _, signals| record.begin_conversion(now, signals))
    }

    /// A request to convert it is sent now: from its being carried out on the server keeps only the new hold, for `lease`.
    pub(crate) fn send_conversion(&self, now: Moment, lease: Duration) {
        self.event(|record, rules, signals| record.conversion_begins(now, lease, rules, signals));
    }

    /// The server knew the old hold when it answered what was sent then: it had not been converted before.
    pub(crate) fn stood_at(&self, sent: Moment) {
        self.event(|record, rules, _| record.stood_at(sent, rules));
    }

    /// No request to convert it was carried out so far, nor can one be that was sent.
    pub(crate) fn cancel_conversion(&self) {
        self.event(|record, _, _| record.conversion_was_not_done());
    }

    /// Returns true if the server has not answered an earlier conversion, which no task repeats.
    pub(crate) fn has_open_conversion(&self) -> bool {
        self.ask(HoldRecord::has_open_conversion)
    }

    /// An earlier conversion that nobody was answered, for whoever goes on with it.
    pub(crate) fn take_open_conversion(&self) -> Option<OpenConversion> {
        self.event(|record, _, _| record.take_open_conversion())
    }

    /// The server has converted it into a hold that was over when the answer came.
    pub(crate) fn end_with_conversion(&self, now: Moment) {
        self.event(|record, _, signals| record.end_with_conversion(now, signals));
    }

    /// Nobody has answered, and nobody asks any more.
    pub(crate) fn leave_conversion_open(&self, open: OpenConversion, now: Moment) -> LeftOpen {
        self.event(|record, _, signals| record.conversion_left_open(open, now, signals))
    }

    /// Opens the hold again to other guards, because no conversion was sent.
    pub(crate) fn reopen(&self) {
        if !self.is_copied() {
            self.refuse_conversion(self.clock().now());
        }
    }

    /// The server has not converted it: it is what it was, confirmed or not.
    pub(crate) fn refuse_conversion(&self, now: Moment) {
        self.event(|record, _, _| record.conversion_refused(now));
    }

    /// The server has converted it into another hold, which takes its place. `None` if that one is over already.
    pub(crate) fn convert_into(&self, granted: NewHold, now: Moment) -> Option<(Arc<Self>, ShareId)> {
        let cell = &self.cell;
        let can_be_cached = granted.cache.is_some();
        let make = |number, granting| {
            let new = Self::new(cell, number, granting, can_be_cached);
            // The note goes with the hold.
            new.set_noted(self.is_noted());
            Arc::new(new)
        };
        cell.event(now, |state, inputs, effects| state.on_converted(make, self.number, granted, now, inputs, effects))
    }

    /// The guard has the new hold: there is nothing to give back.
    pub(crate) fn note_share_converted(&self, share_id: ShareId) {
        self.cell.quietly(|state, _, effects| state.note_share_converted(self.number, share_id, effects));
    }
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
            self.rules().cached.remove();
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
