//! Deadline queue: all live holds of a manager, sorted by their next deadline. A deadline is the time of a renewal, or
//! the end of the local validity.
//!
//! The queue stores no state of a hold, only the moment of its next deadline. Each hold is in the queue at most once. A
//! task that has changed a hold schedules the hold again. To schedule a hold means to read its state and to put it into
//! the queue, both under the mutex of the queue. The [background](crate::engine::background) sends the due renewals.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::futures::Notified;

use crate::base::attempt::Attempt;
use crate::base::error::LossReason;
use crate::base::events::{self, Limiter};
use crate::base::lease::Moment;
use crate::base::metrics::RenewalOutcome;
use crate::base::panics::catch_panic;
use crate::base::recalls::LiveSubscription;
use crate::engine::cache_policy::CachePolicy;
use crate::engine::releases::Releases;
use crate::engine::wake::Wake;
use crate::lock::hold::{self, CacheAnswer, Grant, Hold, Next};
use crate::lock::release::Release;
use crate::lock::table::Table;
use crate::store::{RenewalRequest, Renewed, loss_reason};

/// Longest time by which a renewal may be sent early, so that it is part of a batch. With 10,000 holds and a lease of
/// 10 s, about 30 renewals are due in this time. They form one batch.
pub(super) const BATCH_WINDOW: Duration = Duration::from_millis(10);

/// Deadline queue of one manager, with the actions that are due at the deadlines.
#[derive(Debug)]
pub(crate) struct Renewals {
    table: Arc<Table>,
    releases: Arc<Releases>,
    queue: Mutex<RenewalQueue>,
    wake: Arc<Wake>,
    /// Policy that decides which holds are worth caching. It learns from the outcomes of cached holds.
    uses: Option<Arc<CachePolicy>>,
    /// Limit on log lines about unanswered renewals.
    lines: Limiter,
}

#[derive(Debug, Default)]
struct RenewalQueue {
    due: BTreeMap<(Moment, u64), Arc<Hold>>,
    next: u64,
}

impl RenewalQueue {
    fn insert(&mut self, hold: Arc<Hold>, at: Moment) {
        self.next += 1;
        hold.queue_slot.store(self.next, Ordering::Relaxed);
        hold.queue_moment.store(at.as_nanos(), Ordering::Relaxed);
        self.due.insert((at, self.next), hold);
    }

    fn remove(&mut self, hold: &Hold) {
        let at = Moment::from_nanos(hold.queue_moment.load(Ordering::Relaxed));
        let slot = hold.queue_slot.load(Ordering::Relaxed);
        clear_slot(hold);
        self.due.remove(&(at, slot));
    }
}

/// Marks a hold as not in the queue. Until it is in the queue again, each task that changes the hold must schedule it.
fn clear_slot(hold: &Hold) {
    hold.queue_slot.store(0, Ordering::Relaxed);
    hold.queue_moment.store(Moment::NEVER.as_nanos(), Ordering::Relaxed);
}

/// Renewal that is due: the hold, and the lease to request.
pub(super) struct DueRenewal {
    pub(super) hold: Arc<Hold>,
    pub(super) lease: Duration,
    /// Live subscription to recalls. If it is present, the renewal tells the server that the hold may be cached.
    said: Option<LiveSubscription>,
}

impl DueRenewal {
    pub(super) fn new(hold: Arc<Hold>, lease: Duration) -> Self {
        let said = hold.live_subscription();
        Self { hold, lease, said }
    }

    pub(super) fn renewal(&self) -> RenewalRequest {
        let tokens = if self.said.is_some() { self.hold.missing_tokens() } else { 0 };
        RenewalRequest {
            key: Arc::clone(self.hold.key()),
            id: self.hold.id().clone(),
            lease: self.lease,
            caches: self.said.is_some(),
            tokens,
        }
    }
}

impl Renewals {
    pub(crate) fn new(
        table: Arc<Table>,
        releases: Arc<Releases>,
        wake: Arc<Wake>,
        uses: Option<Arc<CachePolicy>>,
    ) -> Self {
        Self { table, releases, queue: Mutex::default(), wake, uses, lines: Limiter::default() }
    }

    pub(super) fn now(&self) -> Moment {
        self.table.clock().now()
    }

    /// Puts a hold into the queue at its next deadline, which follows from its current state. Code that may have made
    /// the deadline earlier must call this method, unless the hold is over or [forgotten](Renewals::forget).
    pub(crate) fn schedule(&self, hold: &Arc<Hold>, now: Moment) {
        let mut queue = self.queue.lock();
        // The hold is removed from the queue before its state is read. A task that changes the hold after that sees
        // that the hold is not in the queue, and schedules it again. So no change is missed.
        queue.remove(hold);
        let at = match hold.due() {
            Next::At(at) => at,
            // The deadline is now, so that a driver takes the lost hold at once and reports the loss.
            Next::Lost(_) => now,
            Next::Released | Next::GivenUp => return,
        };
        if hold.is_retired() {
            return;
        }
        queue.insert(Arc::clone(hold), at);
        drop(queue);
        self.wake.at(at);
    }

    /// Schedules all holds of `due`, because their next deadlines may have become earlier.
    pub(crate) fn schedule_all(&self, due: hold::Due, now: Moment) {
        due.0.each(|hold| self.schedule(&hold, now));
    }

    /// Checks for stalled leaders. Returns the moment of the next check.
    pub(super) fn look_for_stalled(&self, now: Moment) -> Moment {
        let (next, due) = self.table.stalled.look(now);
        self.schedule_all(due, now);
        next
    }

    /// Returns a future that ends when the next check for stalled leaders must come earlier than planned. The driver
    /// enables the future before a check.
    pub(super) fn stalled_sooner(&self) -> Notified<'_> {
        self.table.stalled.sooner()
    }

    /// Removes a hold from the queue for good, because it has no further deadline.
    pub(crate) fn forget(&self, hold: &Hold) {
        // A driver may have taken the hold out of the queue before. Because of this flag, that driver does not schedule
        // the hold again.
        hold.retire();
        self.queue.lock().remove(hold);
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn is_idle(&self) -> bool {
        self.queue.lock().due.is_empty()
    }

    /// Returns the earliest deadline.
    pub(super) fn next(&self) -> Moment {
        self.queue.lock().due.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at)
    }

    /// Takes the holds whose deadline has come out of the queue. Releases the holds that are over, and returns the
    /// others. The caller must schedule the returned holds again.
    pub(super) fn take_due(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut due = self.pop_due(now);
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

    fn pop_due(&self, now: Moment) -> Vec<Arc<Hold>> {
        let mut queue = self.queue.lock();
        if queue.due.first_key_value().is_none_or(|((at, _), _)| *at > now) {
            return Vec::new();
        }
        let later = queue.due.split_off(&(now.after(BATCH_WINDOW), u64::MAX));
        let due: Vec<_> = std::mem::replace(&mut queue.due, later).into_values().collect();
        due.iter().for_each(|hold| clear_slot(hold));
        due
    }

    /// Applies the result of a renewal.
    pub(super) fn on_answer(&self, due: DueRenewal, attempt: Attempt<Renewed>, now: Moment) {
        let not_converted = catch_panic(|| self.is_answered(&due, attempt, now));
        self.schedule(&due.hold, now);
        if let Some(Some(release)) = not_converted {
            self.releases.in_background(release, None);
        }
    }

    /// Notes that a renewal will get no answer, because its driver has ended.
    pub(super) fn on_no_answer(&self, due: &DueRenewal, now: Moment) {
        due.hold.on_no_answer(now);
        self.schedule(&due.hold, now);
    }

    /// Applies the result of a renewal to the hold, and logs the result. The answer may prove that the server has not
    /// executed an open conversion of the hold. Then returns the release that ends this conversion.
    fn is_answered(
        &self,
        DueRenewal { hold, lease, said }: &DueRenewal,
        attempt: Attempt<Renewed>,
        now: Moment,
    ) -> Option<Release> {
        let metrics = self.table.metrics();
        match attempt {
            Ok(answer) => match answer.value {
                Renewed::Renewed { remaining, is_waited_for, tokens } => {
                    metrics.renewal(RenewalOutcome::Renewed);
                    if let Some(subscription) = said {
                        let said = Some(subscription.clone());
                        let cache_answer =
                            CacheAnswer { offered_on: said, sent: answer.sent, node: answer.node, is_waited_for };
                        // The caller schedules the hold in any case, so the returned deadlines are not needed.
                        drop(hold.on_cache_answer(cache_answer, tokens, now));
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
                events::renewal_unanswered(hold.key().name(), &failure, &self.lines, now);
            }
        }
        None
    }

    /// Releases a cached hold that was given up. Local waiters wait until the server has answered the release.
    fn give_up(&self, hold: &Arc<Hold>, now: Moment) {
        self.forget(hold);
        if let (Some(uses), Some(stay)) = (&self.uses, hold.cache_outcome()) {
            uses.note_outcome(hold.key().name_hash(), stay);
        }
        self.releases.give_back(hold, Some(Arc::clone(hold)), now);
    }

    /// Releases a lost hold, because the server may still have it. Then lets local waiters send their requests.
    ///
    /// The order of the steps matters. The release is counted before the table forgets the hold, so that `close` always
    /// finds the hold or its release. The release is also counted before the hold is retired, so that `flush` always
    /// finds one of them.
    fn clear_away(&self, hold: &Arc<Hold>, reason: LossReason, now: Moment) {
        if reason == LossReason::MaxHold {
            self.releases.give_back_later(hold);
            self.forget(hold);
        } else {
            self.releases.give_back(hold, None, now);
            self.forget(hold);
            self.releases.unblock(hold);
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/renewals/tests.rs"]
mod tests;
