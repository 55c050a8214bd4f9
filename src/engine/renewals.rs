//! Work that is due at the [deadlines](crate::lock::deadlines) of holds: renewals, and the releases of lost holds. The
//! [background](crate::engine::background) sends the due renewals.

use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::Attempt;
use crate::base::error::LossReason;
use crate::base::events::{self, Limiter};
use crate::base::lease::{Moment, ServerTime};
use crate::base::metrics::RenewalOutcome;
use crate::base::panics::catch_panic;
use crate::base::recalls::SubscriptionId;
use crate::engine::Engine;
use crate::engine::cache_policy::CachePolicy;
use crate::engine::releases::Releases;
use crate::lock::hold::{CacheAnswer, Grant, Hold, Next};
use crate::lock::release::Release;
use crate::lock::table::Table;
use crate::store::{Failure, RenewalRequest, Renewed, loss_reason};

/// Longest time by which a renewal may be sent early, so that it is part of a batch. With 10,000 holds and a lease of
/// 10 s, about 30 renewals are due in this time. They form one batch.
pub(super) const BATCH_WINDOW: Duration = Duration::from_millis(10);

/// Actions of one manager that are due at the deadlines of its holds.
#[derive(Debug)]
pub(crate) struct Renewals {
    table: Arc<Table>,
    releases: Arc<Releases>,
    /// Policy that decides which holds are worth caching. It learns from the outcomes of cached holds.
    uses: Option<Arc<CachePolicy>>,
    /// Limit on log lines about unanswered renewals.
    lines: Limiter,
}

/// Renewal that is due: the hold, and the lease to request.
pub(super) struct DueRenewal {
    pub(super) hold: Arc<Hold>,
    pub(super) lease: Duration,
    /// Live subscription to recalls. If it is present, the renewal tells the server that the hold may be cached.
    said: Option<SubscriptionId>,
    /// Time of the server's clock until which the renewal lets the hold last at least.
    rest_until: Option<ServerTime>,
}

impl DueRenewal {
    pub(super) fn new(hold: Arc<Hold>, lease: Duration, now: Moment) -> Self {
        let (said, rest_until) = hold.renewal_terms(now);
        Self { hold, lease, said, rest_until }
    }

    pub(super) fn renewal(&self) -> RenewalRequest {
        let tokens = if self.said.is_some() { self.hold.missing_tokens() } else { 0 };
        RenewalRequest {
            key: Arc::clone(self.hold.key()),
            id: self.hold.id().clone(),
            lease: self.lease,
            caches: self.said.is_some(),
            tokens,
            rest_until: self.rest_until,
        }
    }
}

impl Renewals {
    pub(crate) fn new(table: Arc<Table>, releases: Arc<Releases>, uses: Option<Arc<CachePolicy>>) -> Self {
        Self { table, releases, uses, lines: Limiter::default() }
    }

    /// Takes the holds whose deadline has come out of the deadline queue. Releases the holds that are over, and returns
    /// the others. The next event of each returned hold schedules it again.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut due = self.table.deadlines.take_due(now, BATCH_WINDOW);
        if due.is_empty() {
            return due;
        }
        let _unsettled = self.releases.begin_unsettled();
        due.retain(|hold| self.goes_on(hold, now));
        due
    }

    /// Releases the holds that are over and that no driver has released yet. Such holds exist because the timer of a
    /// guard may notice the end of its hold before a driver does.
    pub(crate) fn give_back_lost(&self, now: Moment) {
        let _unsettled = self.releases.begin_unsettled();
        for hold in self.table.all_holds().iter().filter(|hold| !hold.is_retired()) {
            self.goes_on(hold, now);
        }
    }

    /// Returns true if a hold is not over. Otherwise releases the hold.
    fn goes_on(&self, hold: &Arc<Hold>, now: Moment) -> bool {
        // The first call of `next` after the end of the hold wakes the watchers of the hold. A waker may panic.
        match catch_panic(|| hold.next(now)).unwrap_or_else(|| hold.due()) {
            Next::At(_) => return true,
            Next::Lost(reason) => self.clear_away(hold, reason, now),
            Next::GivenUp => self.give_up(hold, now),
            Next::Released => {}
        }
        false
    }

    /// Applies the result of a renewal.
    pub(super) fn on_answer(&self, due: DueRenewal, attempt: Attempt<Renewed>, now: Moment) {
        let not_converted = catch_panic(|| self.is_answered(&due, attempt, now));
        if let Some(Some(release)) = not_converted {
            self.releases.in_background(release, None);
        }
    }

    /// Applies the result of a renewal to the hold, and logs the result. The answer may prove that the server has not
    /// executed an open conversion of the hold. Then returns the release that ends this conversion.
    fn is_answered(
        &self,
        DueRenewal { hold, lease, said, rest_until }: &DueRenewal,
        attempt: Attempt<Renewed>,
        now: Moment,
    ) -> Option<Release> {
        let metrics = self.table.metrics();
        match attempt {
            Ok(answer) => match answer.value {
                Renewed::Renewed { remaining, is_waited_for, tokens } => {
                    metrics.renewal(RenewalOutcome::Renewed);
                    if let Some(subscription) = said {
                        let (offered_on, sent, node) = (Some(*subscription), answer.sent, answer.node);
                        let cache_answer = CacheAnswer { offered_on, sent, node, is_waited_for };
                        hold.on_cache_answer(cache_answer, tokens, now);
                    }
                    if rest_until.is_some() {
                        // Before the waiting acquisition wakes.
                        hold.note_armed();
                    }
                    let grant = Grant { sent: answer.sent, remaining, asked: *lease, server: answer.server };
                    let confirmed = hold.on_renewed(grant, now);
                    if confirmed.is_claim {
                        events::log_claim(hold.key().name(), hold.mode(), hold.token());
                    }
                    return confirmed.not_converted.map(|open| Release::of_conversion(hold, open, now));
                }
                Renewed::Lost { forced } => {
                    metrics.renewal(RenewalOutcome::Lost);
                    hold.on_unknown(loss_reason(hold.token(), forced));
                }
            },
            Err(failure) => {
                metrics.renewal(RenewalOutcome::Unanswered);
                hold.on_no_answer(now);
                events::unanswered_request(hold.key().name(), "a renewal", &failure, &self.lines, now);
            }
        }
        None
    }

    /// Releases a cached hold that was given up. Local waiters wait until the server has answered the release.
    fn give_up(&self, hold: &Arc<Hold>, now: Moment) {
        self.table.deadlines.forget(hold);
        if let (Some(uses), Some(stay)) = (&self.uses, hold.cache_outcome()) {
            uses.note_outcome(hold.key().name_hash(), stay);
        }
        self.releases.give_back(hold, Some(Arc::clone(hold)), now);
    }

    /// Ends a hold as lost, because a force of this process has ended it on the server. A new primary may lack the force,
    /// so the hold is released, too.
    pub(crate) fn end_by_force(&self, hold: &Arc<Hold>, now: Moment) {
        let _unsettled = self.releases.begin_unsettled();
        if hold.lose(LossReason::Forced) {
            self.clear_away(hold, LossReason::Forced, now);
        } else {
            self.releases.unblock(hold);
        }
    }

    /// Releases a lost hold, because the server may still have it. Then lets local waiters send their requests.
    ///
    /// The order of the steps matters. The release is counted before the table forgets the hold, so that `close` always
    /// finds the hold or its release. The release is also counted before the hold is retired, so that `flush` always
    /// finds one of them.
    fn clear_away(&self, hold: &Arc<Hold>, reason: LossReason, now: Moment) {
        if reason == LossReason::MaxHold {
            self.releases.give_back_later(hold);
            self.table.deadlines.forget(hold);
        } else {
            self.releases.give_back(hold, None, now);
            self.table.deadlines.forget(hold);
            self.releases.unblock(hold);
        }
    }
}

impl Engine {
    /// Sends the renewal of a write hold from here, if it is due and this runtime can send it at once. Returns true if it was
    /// answered. The background sends it soon, too, so this future may fail, be dropped, or not be polled.
    ///
    /// A waiter calls this because its share has too little time. To wake the background first takes longer than the request.
    pub(super) async fn renew_from_here(&self, hold: &Arc<Hold>) -> bool {
        let now = self.now();
        if !self.scheme.can_renew_inline(hold.key()) {
            return false;
        }
        let Some(lease) = hold.begin_own_renewal(now) else { return false };
        let due = DueRenewal::new(Arc::clone(hold), lease, now);
        let route = self.scheme.route(hold.key());
        match self.scheme.renew(&route, &[due.renewal()]).await.pop() {
            Some(answer @ Ok(_)) => {
                self.renewals.on_answer(due, answer, self.now());
                true
            }
            // The background repeats the request, and learns the reason.
            Some(Err(Failure::NotDone { .. })) => {
                hold.on_own_renewal_not_done(now, self.now());
                false
            }
            Some(Err(_)) | None => false,
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/renewals/tests.rs"]
mod tests;
