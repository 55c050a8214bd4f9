//! Renewals: by the background, and by readers that ask the server whether they may join.

use std::sync::Arc;
use std::time::Duration;

use tokio::sync::Notify;

use super::{Accepted, CLOSED, Grant, HoldRecord, Next, OpenConversion, Phase, RenewalState, renewal_interval};
use crate::base::error::LossReason;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{self, Moment};
use crate::base::mode::Mode;
use crate::base::recalls::LiveSubscription;
use crate::lock::effects::{Rules, Signals};
use crate::lock::end::Ended;
use crate::lock::shares::{Share, ShareId};

/// Smallest remaining time with which a guard may enter without asking: half of the shortest lease that can be
/// requested.
const MIN_RENEWAL: Duration = Duration::from_millis(5);

/// Findings of a renewal's answer.
#[derive(Debug, Default)]
pub(crate) struct RenewalConfirmed {
    /// True if the renewal was the claim.
    pub(crate) is_claim: bool,
    /// Conversion that was not carried out, since the old hold is still there.
    pub(crate) not_converted: Option<OpenConversion>,
}

/// Renewal.
impl HoldRecord {
    /// Schedules a renewal if a guard wants more than was requested.
    pub(super) fn renew_if_needed(&mut self, now: Moment) {
        if self.renewal == RenewalState::Needless && self.needs_renewal() {
            self.renewal = RenewalState::Due(now);
        }
    }

    fn is_renewal_due(&self, by: Moment) -> bool {
        self.phase.is_live() && matches!(self.renewal, RenewalState::Due(at) if at <= by)
    }

    /// Returns what is due for this hold as far as is known: a renewal, the local deadline, or the end of a watched
    /// share.
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

    /// Returns what is due by the clock. Notifies the watchers of shares that are over.
    pub(in crate::lock) fn next(&mut self, now: Moment, signals: &mut Signals) -> Next {
        self.look(now, signals);
        if self.phase.is_live() {
            for end in self.shares.take_over(now) {
                signals.ended(end, Ended::Lost(LossReason::MaxHold));
            }
            if self.has_to_give_up(now) {
                return self.give_up(signals);
            }
            if self.last_end() <= now {
                self.next_end(LossReason::MaxHold, now, signals);
            }
        }
        self.due()
    }

    /// Puts the hold into the queue of its route, if a renewal is due by `by`.
    pub(in crate::lock) fn enter_line(&mut self, by: Moment) -> bool {
        let due = self.is_renewal_due(by);
        if due {
            self.renewal = RenewalState::InLine;
        }
        due
    }

    /// Takes the hold out of a route's queue or of a request there: it belongs to another route. The renewal is due
    /// again at `then`.
    pub(in crate::lock) fn leave_line(&mut self, then: Moment) {
        if matches!(self.renewal, RenewalState::InLine | RenewalState::Underway) {
            self.renewal = RenewalState::Due(then);
        }
    }

    /// Returns the lease to ask for, if a renewal is due by `by` or waits in a queue. Then it counts as sent, and no
    /// other is due until its answer. If no guard wants more, the hold is over instead.
    pub(in crate::lock) fn begin_renewal(
        &mut self,
        now: Moment,
        by: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> Option<Duration> {
        let in_line = self.phase.is_live() && self.renewal == RenewalState::InLine;
        if !in_line && !self.is_renewal_due(by) {
            return None;
        }
        if self.is_cached() && !self.needs_renewal() {
            self.renewal = self.renewal_of_whoever_comes(now);
            return None;
        }
        let lease = self.shares.lease_at(now);
        if lease.is_zero() {
            self.next_end(LossReason::MaxHold, now, signals);
            return None;
        }
        let lease = self.awaited.as_ref().map_or(lease, |awaited| lease.max(awaited.lease));
        self.renewal = RenewalState::Underway;
        self.begin_request(now, lease, rules);
        Some(lease)
    }

    /// Schedules the renewal of a cached hold that needs none now. A later guard that enters without asking may need
    /// one, and has at least half of what is left now for it.
    fn renewal_of_whoever_comes(&self, now: Moment) -> RenewalState {
        if self.deadline().since(now) < MIN_RENEWAL {
            return RenewalState::Needless;
        }
        RenewalState::Due(now.after(renewal_interval(self.asked)).min(now.halfway_to(self.deadline())))
    }

    /// Begins a request for more tokens, for a writer without one. Returns the lease to ask for.
    pub(in crate::lock) fn begin_refill(
        &mut self,
        share: Share,
        now: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> Option<(LiveSubscription, Duration)> {
        self.look(now, signals);
        let standing = self.live_subscription().filter(|_| self.phase.is_live() && self.is_open_to_all(now))?;
        let lease = self.shares.lease_at(now).max(share.lease_at(now));
        self.begin_request(now, lease, rules);
        Some((standing, lease))
    }

    fn begin_request(&mut self, now: Moment, lease: Duration, rules: &Rules) {
        let covers = lease::surely_over(lease, rules.max_clock_skew);
        self.server_until = self.server_until.max(now.after(covers));
        self.copies.ask_for(lease);
    }

    /// Applies the answer to a renewal. It comes too late if the local deadline was reached meanwhile.
    pub(in crate::lock) fn on_renewed(
        &mut self,
        grant: Grant,
        now: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> RenewalConfirmed {
        // First the clock: an answer after the local deadline brings nothing back.
        self.look(now, signals);
        if !self.phase.is_live() {
            return RenewalConfirmed::default();
        }
        self.phase = Phase::Held;
        self.backoff.reset();
        self.stood_at(grant.sent, rules);
        let deadline = self.deadline();
        // `apply` must count this grant as an answer, not as a claim.
        let is_claim = std::mem::take(&mut self.is_claim);
        self.apply(grant, now, rules);
        if self.deadline() < deadline {
            self.shares.watched().for_each(|(_, end)| signals.changed(Arc::clone(end)));
        }
        let not_converted = self.resolve_open_conversion(grant.sent);
        self.renew_in_doubt(grant.sent);
        self.tell_awaiting(signals);
        if is_claim {
            self.shares.watched().for_each(|(_, end)| signals.changed(Arc::clone(end)));
        }
        // The answer may show a loss, after which the deadline is past.
        self.look(now, signals);
        RenewalConfirmed { is_claim, not_converted }
    }

    /// Schedules the renewal of a hold that may have been converted. It comes well before the new hold could be over,
    /// and as soon as an answer can decide for good.
    pub(super) fn renew_in_doubt(&mut self, since: Moment) {
        let Some(new) = &self.in_doubt else { return };
        let settles = new.open.as_ref().map_or(Moment::NEVER, |open| open.arrives_until.max(since));
        let next = since.after(renewal_interval(new.lease)).min(settles);
        self.renewal = match self.renewal {
            RenewalState::Due(at) => RenewalState::Due(at.min(next)),
            RenewalState::Needless => RenewalState::Due(next),
            asked @ (RenewalState::InLine | RenewalState::Underway) => asked,
        };
    }

    /// Notes a renewal without an answer; it is repeated after a pause.
    pub(in crate::lock) fn on_no_answer(&mut self, now: Moment, signals: &mut Signals) {
        if self.phase == Phase::Held {
            self.phase = Phase::Unconfirmed;
        }
        self.renewal = RenewalState::Due(now.after(self.backoff.pause()));
        self.tell_awaiting(signals);
    }

    /// Lets a waiter with too little to start with wait for a renewal. A renewal for its whole lease is due, and its
    /// answer wakes the waiter. Until then its share is unclaimed, since its future may not be polled any more.
    pub(super) fn await_renewal(&mut self, share_id: ShareId, share: Share, since: Moment, now: Moment) -> Accepted {
        if since == now {
            self.shares.replace(share_id.slot, share.unclaimed(now));
        }
        self.renew_at_once(now);
        let awaited = self.awaited.get_or_insert_default();
        awaited.lease = awaited.lease.max(share.lease_at(now));
        let answer = Arc::<Notify>::default();
        awaited.answers.push(Arc::clone(&answer));
        let until = self.deadline().min(self.shares.get(share_id.slot).ends);
        Accepted::Short { answer, until, is_late: self.is_unconfirmed() }
    }

    fn renew_at_once(&mut self, now: Moment) {
        self.renewal = match self.renewal {
            // An unanswered renewal is followed by a pause.
            RenewalState::Due(at) if self.phase == Phase::Held => RenewalState::Due(at.min(now)),
            RenewalState::Needless => RenewalState::Due(now),
            asked @ (RenewalState::Due(_) | RenewalState::InLine | RenewalState::Underway) => asked,
        };
    }

    /// Sends the claim now, since a guard waits for its answer. Otherwise the claim goes out when a renewal is due, so
    /// that a short hold costs no request.
    pub(in crate::lock) fn claim_now(&mut self, now: Moment) {
        if self.is_claim && self.phase.is_live() {
            self.renew_at_once(now);
        }
    }

    /// Returns true if the hold was granted by a notification and the server has yet to answer for it.
    pub(in crate::lock) fn is_claim(&self) -> bool {
        self.is_claim
    }

    /// Wakes the waiters for the answer to a renewal, which look again.
    pub(super) fn tell_awaiting(&mut self, signals: &mut Signals) {
        if let Some(awaited) = self.awaited.take() {
            awaited.answers.into_iter().for_each(|answer| signals.wake(answer));
        }
    }

    /// Applies an answer that says that the server does not know the hold. During a conversion that may be its effect,
    /// and the conversion's answer decides. A force has ended both.
    pub(in crate::lock) fn on_unknown(&mut self, reason: LossReason, now: Moment, signals: &mut Signals) {
        if self.is_converting && self.in_doubt.is_some() && reason != LossReason::Forced {
            self.renewal = RenewalState::Needless;
            self.is_missed = true;
            return;
        }
        self.lose(reason, now, signals);
    }
}

/// Readers that ask the server whether they may join.
impl HoldRecord {
    /// Returns true if a reader may join with the server's consent.
    pub(in crate::lock) fn is_recheckable(&self) -> bool {
        self.mode == Mode::Read && self.phase.is_live()
    }

    /// Adds a reader provisionally, which asks the server whether it may join. Returns the lease to ask for.
    pub(in crate::lock) fn begin_recheck(
        &mut self,
        share: Share,
        now: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> Option<(ShareId, Duration)> {
        self.look(now, signals);
        let is_open = self.is_open() && self.share_until != CLOSED && !self.shares.is_empty();
        if self.mode != Mode::Read || !is_open {
            return None;
        }
        let share_id = self.admit(share);
        let lease = self.shares.lease_at(now);
        self.begin_request(now, lease, rules);
        self.copies.begin();
        Some((share_id, lease))
    }

    pub(in crate::lock) fn copies_mut(&mut self) -> &mut InDoubt {
        &mut self.copies
    }

    /// Applies the answer of a server that knows the hold and has extended it. Returns whether it is still held here,
    /// and whether this was its claim.
    pub(in crate::lock) fn on_rechecked(
        &mut self,
        grant: Grant,
        share_until: Option<Moment>,
        now: Moment,
        rules: &Rules,
        signals: &mut Signals,
    ) -> (bool, bool) {
        let claims = self.on_renewed(grant, now, rules, signals).is_claim;
        // A recall came after the request: the asking reader enters behind that waiter.
        let is_called = self.was_recalled_since(grant.sent);
        self.share_until = share_until.filter(|_| !is_called).unwrap_or(CLOSED);
        (self.phase == Phase::Held && !is_called, claims)
    }

    /// Makes a renewal due now, since the server did not know the hold: its answer shows the reason.
    pub(in crate::lock) fn renew_now(&mut self, now: Moment) {
        self.share_until = CLOSED;
        if self.phase == Phase::Held && !matches!(self.renewal, RenewalState::InLine | RenewalState::Underway) {
            self.renewal = RenewalState::Due(now);
        }
    }
}
