//! Renewals of a hold: by the background, and by readers that ask the server whether they may join.

use std::time::Duration;

use super::{Accepted, CLOSED, Grant, HoldRecord, Next, OpenConversion, Phase, RenewalState};
use crate::base::error::LossReason;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{self, Moment};
use crate::base::mode::Mode;
use crate::lock::effects::Event;
use crate::lock::end::Ended;
use crate::lock::shares::{Share, ShareId};
use crate::lock::side::WaiterId;

/// Smallest remaining time with which a guard may enter without a request. It is half of the shortest lease that a
/// request can have.
const MIN_RENEWAL: Duration = Duration::from_millis(5);

/// Time that a waiter has for a renewal that it sends, before the background sends it, too. It is longer than most servers
/// take, and much shorter than a claim.
const OWN_RENEWAL_PATIENCE: Duration = Duration::from_millis(50);

/// Consequences of the answer to a renewal.
#[derive(Debug, Default)]
pub(crate) struct RenewalConfirmed {
    /// True if this was the first answer for a hold that a notification granted.
    pub(crate) is_claim: bool,
    /// Conversion that the server has not carried out and cannot carry out any more. The caller sends a release of the
    /// hold that this conversion was to create.
    pub(crate) not_converted: Option<OpenConversion>,
}

/// Renewals that the background sends.
impl HoldRecord {
    /// Schedules a renewal if a guard needs the hold for longer than the requested leases last.
    pub(super) fn renew_if_needed(&mut self, now: Moment) {
        if self.renewal == RenewalState::Needless && self.needs_renewal() {
            self.renewal = RenewalState::Due(now);
        }
    }

    fn is_renewal_due(&self, by: Moment) -> bool {
        self.phase.is_live() && matches!(self.renewal, RenewalState::Due(at) if at <= by)
    }

    /// Returns the next event of the hold. A live hold has these: the next renewal, the local deadline, the end of a
    /// watched share or of the last share, the end of the time in the cache.
    pub(in crate::lock) fn due(&self) -> Next {
        match self.phase {
            Phase::Held | Phase::Unconfirmed => {
                let ends = self.shares.first_watched_end().unwrap_or(Moment::NEVER).min(self.last_end());
                let over = self.deadline().min(ends).min(self.cached_until().unwrap_or(Moment::NEVER));
                Next::At(match self.renewal {
                    RenewalState::Due(at) => at.min(over),
                    RenewalState::InLine | RenewalState::Underway | RenewalState::Needless => over,
                })
            }
            Phase::Released => Next::Released,
            Phase::Lost(LossReason::Expired) if self.shares.last_end().is_none_or(|ends| self.was_to_end(ends)) => {
                Next::Lost(LossReason::MaxHold)
            }
            Phase::Lost(reason) => Next::Lost(reason),
        }
    }

    /// Ends the hold, or its shares, if they are over by the clock. Wakes the watchers of the ended shares, and returns
    /// the next event of the hold.
    pub(in crate::lock) fn next(&mut self, event: &mut Event<'_>) -> Next {
        self.look(event);
        if self.phase.is_live() {
            for end in self.shares.take_over(event.now) {
                event.add_end(end, Ended::Lost(LossReason::MaxHold));
            }
            if self.has_to_give_up(event.now) {
                return self.give_up(event);
            }
            if self.last_end() <= event.now {
                self.next_end(LossReason::MaxHold, event);
            }
        }
        self.due()
    }

    /// Marks a renewal that is due at `by` or earlier as waiting in the queue of its route. Returns false if no renewal
    /// is due by then.
    pub(in crate::lock) fn join_batch(&mut self, by: Moment) -> bool {
        let due = self.is_renewal_due(by);
        if due {
            self.renewal = RenewalState::InLine;
        }
        due
    }

    /// Plans the renewal anew at `then`, because another route serves the lock now. The renewal was waiting in the
    /// queue of the former route, or was under way on that route.
    pub(in crate::lock) fn leave_batch(&mut self, then: Moment) {
        if matches!(self.renewal, RenewalState::InLine | RenewalState::Underway) {
            self.renewal = RenewalState::Due(then);
        }
    }

    /// Begins a renewal that is due at `by` or that waits in a queue, and returns the lease to request. No other
    /// renewal becomes due before the answer. If no share has time left, the hold ends instead.
    pub(in crate::lock) fn begin_renewal(&mut self, by: Moment, event: &mut Event<'_>) -> Option<Duration> {
        let in_line = self.phase.is_live() && self.renewal == RenewalState::InLine;
        if !in_line && !self.is_renewal_due(by) {
            return None;
        }
        if self.is_cached() && !self.needs_renewal() {
            self.renewal = self.renewal_of_whoever_comes(event.now);
            return None;
        }
        let lease = self.shares.lease_at(event.now);
        if lease.is_zero() {
            self.next_end(LossReason::MaxHold, event);
            return None;
        }
        let lease = self.awaited.as_ref().map_or(lease, |awaited| lease.max(awaited.lease));
        self.renewal = RenewalState::Underway;
        self.begin_request(lease, event);
        Some(lease)
    }

    /// Begins the renewal of a write hold that is due, for a waiter that sends it. The next renewal is due soon, because the
    /// future of the waiter may be dropped, or not be polled any more.
    pub(in crate::lock) fn begin_own_renewal(&mut self, event: &mut Event<'_>) -> Option<Duration> {
        let now = event.now;
        if self.mode != Mode::Write || !self.is_renewal_due(now) {
            return None;
        }
        let lease = self.begin_renewal(now, event)?;
        self.renewal = RenewalState::Due(now.after(OWN_RENEWAL_PATIENCE).min(now.halfway_to(self.deadline())));
        Some(lease)
    }

    /// Notes that no server has carried out the renewal that a waiter sent at `sent`. The next try is due after a pause, as
    /// after a failure of the background, unless the background has begun a renewal meanwhile.
    pub(in crate::lock) fn on_own_renewal_not_done(&mut self, sent: Moment, event: &mut Event<'_>) {
        if matches!(self.renewal, RenewalState::Due(at) if at <= sent.after(OWN_RENEWAL_PATIENCE)) {
            self.on_no_answer(event);
        }
    }

    /// Plans a renewal of a cached hold that needs no renewal now. A guard may enter later without a request, and the
    /// hold then needs a renewal. The planned renewal comes early enough to leave such a guard at least half of the
    /// time that the hold has left now.
    fn renewal_of_whoever_comes(&self, now: Moment) -> RenewalState {
        if self.deadline().since(now) < MIN_RENEWAL {
            return RenewalState::Needless;
        }
        RenewalState::Due(now.after(self.renewal_interval(self.asked)).min(now.halfway_to(self.deadline())))
    }

    fn begin_request(&mut self, lease: Duration, event: &Event<'_>) {
        let covers = lease::surely_over(lease, event.max_clock_skew);
        self.server_until = self.server_until.max(event.now.after(covers));
        self.copies.ask_for(lease);
    }

    /// Applies the answer to a renewal. An answer after the local deadline changes nothing.
    pub(in crate::lock) fn on_renewed(&mut self, grant: Grant, event: &mut Event<'_>) -> RenewalConfirmed {
        // The clock comes first, since an answer after the local deadline must not bring the hold back.
        self.look(event);
        if !self.phase.is_live() {
            return RenewalConfirmed::default();
        }
        self.phase = Phase::Held;
        self.backoff.reset();
        self.stood_at(grant.sent, event);
        let deadline = self.deadline();
        // `is_claim` is cleared before `apply` runs, because `apply` limits the remaining time of an answer, but not
        // that of a claim.
        let (is_claim, asked) = (std::mem::take(&mut self.is_claim), self.asked);
        self.apply(grant, event);
        // A guard may wait for a longer lease than before, and may have come after this renewal was sent.
        let is_short = || self.asked < self.shares.lease_at(event.now);
        if is_claim || asked != self.asked || self.deadline() < deadline || is_short() {
            self.tell_watchers(event);
        }
        let not_converted = self.resolve_open_conversion(grant.sent);
        self.renew_in_doubt(grant.sent);
        self.tell_awaiting(event);
        // The answer may show that the server lost an earlier grant. Then the deadline may have passed already.
        self.look(event);
        RenewalConfirmed { is_claim, not_converted }
    }

    /// Schedules the renewal of a hold whose conversion is in doubt. The renewal is due well before the new hold could
    /// end. It is due no later than the moment from which an answer decides whether the hold was converted.
    pub(super) fn renew_in_doubt(&mut self, since: Moment) {
        let Some(new) = &self.in_doubt else { return };
        let settles = new.open.as_ref().map_or(Moment::NEVER, |open| open.arrives_until.max(since));
        let next = since.after(self.renewal_interval(new.lease)).min(settles);
        self.renewal = match self.renewal {
            RenewalState::Due(at) => RenewalState::Due(at.min(next)),
            RenewalState::Needless => RenewalState::Due(next),
            asked @ (RenewalState::InLine | RenewalState::Underway) => asked,
        };
    }

    /// Notes that a renewal was not answered. The next try is due after a pause.
    pub(in crate::lock) fn on_no_answer(&mut self, event: &mut Event<'_>) {
        if self.phase == Phase::Held {
            self.phase = Phase::Unconfirmed;
        }
        self.renewal = RenewalState::Due(event.now.after(self.backoff.pause(self.jitter)));
        self.tell_awaiting(event);
    }

    /// Lets a waiter whose share has too little time wait for a renewal. The renewal is due at once and requests the
    /// whole lease of the waiter. The answer wakes the waiter. Until then the share stays unclaimed and ends after a
    /// short time, because the waiter's future may not be polled any more.
    pub(super) fn await_renewal(
        &mut self,
        waiter_id: WaiterId,
        (share_id, share): (ShareId, Share),
        since: Moment,
        now: Moment,
    ) -> Accepted {
        if since == now {
            self.shares.replace(share_id.slot, share.as_unclaimed(now));
        }
        self.renew_at_once(now);
        let awaited = self.awaited.get_or_insert_default();
        awaited.lease = awaited.lease.max(share.lease_at(now));
        awaited.waiters.insert(waiter_id);
        let until = self.deadline().min(self.shares.get(share_id.slot).ends);
        Accepted::Short { until, is_late: self.is_unconfirmed() }
    }

    fn renew_at_once(&mut self, now: Moment) {
        self.renewal = match self.renewal {
            // After an unanswered renewal, the next try waits for the end of the pause.
            RenewalState::Due(at) if self.phase == Phase::Held => RenewalState::Due(at.min(now)),
            RenewalState::Needless => RenewalState::Due(now),
            asked @ (RenewalState::Due(_) | RenewalState::InLine | RenewalState::Underway) => asked,
        };
    }

    /// Makes a renewal due now if the server has not granted the whole lease of this share, because its guard waits for
    /// that. Without this call, the renewal comes as late as any other, so a short hold needs none.
    pub(in crate::lock) fn confirm_now(&mut self, share: &Share, now: Moment) {
        if self.phase.is_live() && !self.is_confirmed(share) {
            self.renew_at_once(now);
        }
    }

    /// Returns true if an answer of the server has granted the whole lease of this share. A notification is no answer.
    /// The renewal of a share that its waiter had not taken requests less.
    pub(in crate::lock) fn is_confirmed(&self, share: &Share) -> bool {
        !self.is_claim && self.covers(self.answered.after(share.lease_at(self.answered)))
    }

    /// Wakes the waiters that wait for the answer to a renewal. They then try again to take their shares.
    pub(super) fn tell_awaiting(&mut self, event: &mut Event<'_>) {
        if let Some(awaited) = self.awaited.take() {
            awaited.waiters.into_iter().for_each(|waiter_id| event.wake(waiter_id));
        }
    }

    /// Returns true if the waiter waits for the answer to a renewal.
    pub(in crate::lock) fn awaits_renewal(&self, waiter_id: WaiterId) -> bool {
        self.awaited.as_ref().is_some_and(|awaited| awaited.waiters.contains(&waiter_id))
    }

    /// Applies an answer that says that the server does not know the hold. If a conversion is under way, it may have
    /// replaced the hold, and the answer to the conversion decides. A force by an operator ends the hold in any case,
    /// because the force has ended both the old hold and the new one.
    pub(in crate::lock) fn on_unknown(&mut self, reason: LossReason, event: &mut Event<'_>) {
        if self.is_converting && self.in_doubt.is_some() && reason != LossReason::Forced {
            self.renewal = RenewalState::Needless;
            self.is_missed = true;
            return;
        }
        self.lose(reason, event);
    }
}

/// Renewals that readers send to ask the server whether they may join.
impl HoldRecord {
    /// Returns true if the hold is a live read hold. A reader may join such a hold if the server agrees.
    pub(in crate::lock) fn is_recheckable(&self) -> bool {
        self.mode == Mode::Read && self.phase.is_live()
    }

    /// Adds the share of a reader that asks the server whether it may join. The reader may use the share once the
    /// server has agreed. Until then the share ends after a short time, because the reader's future may not be polled any
    /// more. Returns the share and the lease to request.
    pub(in crate::lock) fn begin_recheck(
        &mut self,
        share: Share,
        event: &mut Event<'_>,
    ) -> Option<(ShareId, Duration)> {
        self.look(event);
        let is_open = self.is_open() && self.share_until != CLOSED && !self.shares.is_empty();
        if self.mode != Mode::Read || !is_open {
            return None;
        }
        let share_id = self.admit(share.as_unclaimed_for(event.max_delay, event.now));
        let lease = self.shares.lease_at(event.now).max(share.lease_at(event.now));
        self.begin_request(lease, event);
        self.copies.begin();
        Some((share_id, lease))
    }

    pub(in crate::lock) fn copies_mut(&mut self) -> &mut InDoubt {
        &mut self.copies
    }

    /// Applies the answer of a server that has extended the hold. Returns whether the reader may join, and whether this
    /// was the first answer for a hold that a notification granted.
    pub(in crate::lock) fn on_rechecked(
        &mut self,
        grant: Grant,
        share_until: Option<Moment>,
        event: &mut Event<'_>,
    ) -> (bool, bool) {
        let claims = self.on_renewed(grant, event).is_claim;
        // If a waiter recalled the hold after the request was sent, the reader must not pass that waiter.
        let is_called = self.was_recalled_since(grant.sent);
        self.share_until = share_until.filter(|_| !is_called).unwrap_or(CLOSED);
        (self.phase == Phase::Held && !is_called, claims)
    }

    /// Makes a renewal due now, because the server did not know the hold. The answer to the renewal shows the reason.
    pub(in crate::lock) fn renew_now(&mut self, now: Moment) {
        self.share_until = CLOSED;
        if self.phase == Phase::Held && !matches!(self.renewal, RenewalState::InLine | RenewalState::Underway) {
            self.renewal = RenewalState::Due(now);
        }
    }
}
