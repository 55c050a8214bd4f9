//! An acquisition sends its request to the server, until the server grants the lock.

use std::sync::Arc;
use std::time::Duration;

use super::wait::{Pause, QueueWaitEnd};
use super::{Acquisition, Patience, poll_within};
use crate::base::error::{Error, NoMajority, Result, Source};
use crate::base::events;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::MAX_TOKENS;
use crate::base::lease::{self, Moment, ServerTime};
use crate::engine::Held;
use crate::engine::convert::new_hold;
use crate::lock::hold::{Grant, NewHold};
use crate::lock::side::{LastRefusal, NextStep, Pending, SideOutage};
use crate::lock::wait::{Installed, Notifications, WaitEntry};
use crate::store::{AcquireRequest, Acquired, Answered, Attempt, Failure, Granted, IfTaken};

/// Time for which a try keeps its place in the queue after it has stopped to wait for replies to its recall. In this time its
/// claim reaches the server.
const CLAIM_OF_A_TRY: Duration = Duration::from_secs(1);

/// Outcome of the requests of a leader.
pub(super) enum Pursued {
    Granted(Held),
    /// The server has refused a try.
    Refused,
    /// The task was not polled for so long that the next waiter is the leader by now.
    PassedBy,
}

impl Acquisition {
    /// Sends the request until the server grants the lock. The rare futures are boxed, because this future is moved.
    pub(super) async fn pursue(&mut self) -> Result<Pursued> {
        let (mut pause, mut queued) = (Pause::new(), false);
        loop {
            self.stop_if_given_up().await;
            let Some((request, is_waited_for)) = self.begin_attempt()? else {
                return Ok(Pursued::PassedBy);
            };
            let Some((attempt, now)) = self.attempt(&request, is_waited_for).await else {
                return Ok(Pursued::PassedBy);
            };
            let answer = match attempt {
                Ok(answer) => answer,
                Err(failure) => {
                    self.begin_anew();
                    Box::pin(self.on_no_answer(failure)).await?;
                    continue;
                }
            };
            self.note_answer(&answer.value);
            let waits = self.patience == Patience::Wait;
            match NextStep::after(&answer.value, waits, || self.recalls_until(now) <= now) {
                NextStep::Take(granted) => match self.on_grant(&request, &answer, granted, now) {
                    Some(pursued) => return Ok(pursued),
                    None => {
                        let failure = self.too_late();
                        Box::pin(self.on_no_answer(failure)).await?;
                    }
                },
                NextStep::EndRefused => return Ok(Pursued::Refused),
                NextStep::Pause { retry_in } => {
                    self.note_wait();
                    Box::pin(self.pause(&mut pause, retry_in)).await;
                }
                NextStep::AwaitTurn { retry_in } => {
                    self.note_wait();
                    if !std::mem::replace(&mut queued, true) {
                        events::log_queued(self.key.name(), self.mode);
                    }
                    match Box::pin(self.await_turn(&request, retry_in, now)).await {
                        QueueWaitEnd::Granted(answer) => {
                            if let Some(pursued) = self.on_notification(&request, answer) {
                                return Ok(pursued);
                            }
                        }
                        QueueWaitEnd::AskAgain => {}
                        QueueWaitEnd::Refused | QueueWaitEnd::Silence => return Ok(Pursued::Refused),
                    }
                }
                // The answer brought the server's time, so the next request has a better limit.
                NextStep::AskSoon => {
                    self.check_late(answer.sent, now)?;
                    Box::pin(self.waiter.tries.backoff.wait()).await;
                }
            }
        }
    }

    /// Notes what an answer means for the next request.
    fn note_answer(&mut self, answer: &Acquired) {
        if !matches!(answer, Acquired::Granted(_)) {
            self.begin_anew();
        }
        if !matches!(answer, Acquired::Late) {
            self.late_since = None;
        }
    }

    /// Fails a try if its requests were late for twice the response timeout, although the server answers. If some of them
    /// found no majority of masters that may vote, the others met the releases of those, and that failure tells more.
    fn check_late(&mut self, sent: Moment, now: Moment) -> Result<()> {
        let waited = now.since(*self.late_since.get_or_insert(sent));
        if self.patience == Patience::Wait || waited < self.engine.options().response_timeout * 2 {
            return Ok(());
        }
        let failure = self.last_failure.take().map(|(_, source)| source).filter(|source| source.is::<NoMajority>());
        let source = failure.unwrap_or_else(|| Arc::new(AlwaysLate));
        Err(Error::unreachable(self.key.shared_name(), waited, Some(source)))
    }

    /// Begins a copy of the request that the leader before has left, or of a new request. Returns `None` if this waiter is not
    /// the leader any more. The second value is true if others wait behind it.
    pub(super) fn begin_attempt(&mut self) -> Result<Option<(AcquireRequest, bool)>> {
        let waiter = &mut self.waiter;
        let engine = &waiter.engine;
        let Some(entry) = &waiter.entry else {
            return Ok(None);
        };
        // Counted before the check, so that the check sees `close`, or `close` waits for this attempt.
        let counted = engine.releases.begin_unsettled();
        engine.check_open(&waiter.key)?;
        let mut is_new = false;
        let begun = entry.begin_attempt(waiter.lease(), engine.now(), || {
            is_new = true;
            Pending::new(engine.next_id())
        });
        let Some(begun) = begun else {
            return Ok(None);
        };
        if begun.is_first {
            counted.leave_to_cell();
        }
        if let Some(backoff) = begun.backoff {
            waiter.tries.backoff = backoff;
            self.notices = entry.take_left().unwrap_or_default();
        }
        // A process that caches holds expects that others do, too. So a try subscribes and recalls at once.
        let tries = waiter.patience == Patience::AskOnce && (self.calls_until.is_some() || engine.can_cache());
        if (is_new && waiter.patience == Patience::Wait || tries) && matches!(self.notices, Notifications::Unwanted) {
            let scheme = engine.scheme.notifications();
            let warm = scheme.and_then(|scheme| scheme.subscribe_if_live(&waiter.key, &engine.manager_id));
            self.notices = warm.map_or(Notifications::Unwanted, Notifications::Subscribed);
        }
        let now = engine.now();
        let may_stay = *self.may_stay.get_or_insert_with(|| engine.may_cache(&waiter.key, waiter.wants.cache_for, now));
        self.keeping = if may_stay {
            engine.cache_request(&waiter.key, entry, waiter.wants.cache_for).map(Box::new)
        } else {
            None
        };
        let keeps = self.keeping.as_ref().is_some_and(|keeping| keeping.offers_caching());
        let request = AcquireRequest {
            caches: keeps,
            id: begun.id,
            mode: waiter.mode,
            lease: waiter.lease(),
            // A cached hold is handed on for as long as no waiter recalls it.
            max_tokens: if keeps { MAX_TOKENS } else { engine.options().max_handoffs },
            if_taken: match waiter.patience {
                Patience::AskOnce if tries => {
                    IfTaken::Try { waiter_ttl: engine.options().recall_timeout + CLAIM_OF_A_TRY }
                }
                Patience::AskOnce => IfTaken::Leave,
                // Two heartbeats may be lost.
                Patience::Wait => {
                    IfTaken::Queue { waiter_ttl: (waiter.heartbeat() + engine.options().response_timeout) * 2 }
                }
            },
        };
        Ok(Some((request, begun.is_waited_for)))
    }

    /// Waits in the queue for a notification. A try without a reply in time sends its request once more, because the reply may
    /// have been lost.
    async fn await_turn(&mut self, request: &AcquireRequest, retry_in: Duration, now: Moment) -> QueueWaitEnd {
        if self.patience == Patience::Wait {
            // A little after the deadline that may free the lock, so that the attempt does not come too early.
            let nap = self.heartbeat().min(retry_in + Duration::from_millis(1));
            let asks_again = self.engine.now().after(nap);
            return self.await_notification(request, asks_again, None).await;
        }
        let until = self.recalls_until(now);
        match self.await_notification(request, Moment::NEVER, Some(until)).await {
            QueueWaitEnd::Silence if !std::mem::replace(&mut self.has_heard_nothing, true) => QueueWaitEnd::AskAgain,
            QueueWaitEnd::Refused => {
                self.entry.iter().for_each(WaitEntry::note_in_use);
                QueueWaitEnd::Refused
            }
            word => word,
        }
    }

    /// Returns the end of the time that recalled holders have to reply to a try. The time starts at the first call.
    fn recalls_until(&mut self, now: Moment) -> Moment {
        *self.calls_until.get_or_insert(now.after(self.engine.options().recall_timeout))
    }

    /// Makes one attempt, and returns it with the time at which it was over. A limit waits for its end. Returns `None` if this
    /// waiter is not the leader any more. If the future is dropped meanwhile, a copy is in doubt.
    async fn attempt(&mut self, request: &AcquireRequest, is_waited_for: bool) -> Option<(Attempt<Acquired>, Moment)> {
        let engine = &self.waiter.engine;
        let underway = self.begin_underway();
        let attempt = if is_waited_for {
            Box::pin(self.attempt_in_sight(request)).await
        } else {
            engine.scheme.acquire(&self.waiter.key, request).await
        };
        drop(underway);
        let now = engine.now();
        // A grant becomes a hold in one step, so no other waiter can see the request between the two.
        if let Ok(answer) = &attempt
            && matches!(answer.value, Acquired::Granted(_))
        {
            if self.is_worth_having(answer, now) {
                self.waiter.tries.since = now;
            }
            self.last_failure = None;
            return Some((attempt, now));
        }
        let entry = self.waiter.entry.as_ref()?;
        let unsettled = entry.end_attempt(&attempt, now, |pending| {
            if attempt.is_ok() && pending.is_unknown_to_server() { engine.releases.unsettled_of(pending) } else { None }
        })?;
        drop(unsettled);
        if let Ok(answer) = &attempt {
            let is_cached = matches!(answer.value, Acquired::Queued { is_cached: true, .. } | Acquired::Cached { .. });
            if is_cached {
                entry.note_recall(now.after(engine.options().recall_timeout));
            }
            if !matches!(answer.value, Acquired::Late) {
                let holder = answer.value.named_holder().cloned();
                entry.note_refusal(LastRefusal { at: now, server: answer.server, holder, is_cached });
            }
            self.answered_at = answer.server;
            self.on_first_answer(now);
            if self.patience == Patience::Wait || !matches!(answer.value, Acquired::Late) {
                self.last_failure = None;
            }
        }
        Some((attempt, now))
    }

    /// Makes one attempt while others wait. Records from time to time that the task is polled, however long the answer takes.
    async fn attempt_in_sight(&self, request: &AcquireRequest) -> Attempt<Acquired> {
        let clock = self.engine.clock;
        let attempt = self.engine.scheme.acquire(&self.key, request);
        tokio::pin!(attempt);
        loop {
            let restates = clock.now().after(poll_within(self.engine.options()) / 2);
            tokio::select! {
                biased;
                attempt = &mut attempt => return attempt,
                () = clock.timer(restates) => {
                    if let Some(entry) = &self.entry {
                        entry.note_polled(clock.now());
                    }
                }
            }
        }
    }

    /// Records that the server answers.
    pub(super) fn on_first_answer(&mut self, now: Moment) {
        self.waiter.tries.on_answer(now);
        if let Some(entry) = &self.entry {
            entry.on_outage(None);
        }
    }

    /// Returns true if the answer is a grant that is still valid. A grant that is over counts as no answer.
    fn is_worth_having(&self, answer: &Answered<Acquired>, now: Moment) -> bool {
        let Acquired::Granted(Granted { remaining, .. }) = answer.value else {
            return false;
        };
        lease::valid_until(answer.sent, remaining, self.engine.options().max_clock_skew) > now
    }

    /// Turns a grant into a hold, if it is still valid.
    fn on_grant<T>(
        &mut self,
        request: &AcquireRequest,
        answer: &Answered<T>,
        granted: Granted,
        now: Moment,
    ) -> Option<Pursued> {
        self.note_clock(answer);
        let keep = self.keeping.take().map(|keeping| keeping.on_answer(answer, granted.is_waited_for));
        let share = self.wants.from(answer.sent);
        let granted =
            NewHold { cache: keep, ..new_hold(&self.engine, request, answer, granted, share, InDoubt::default()) };
        self.take(granted, "granted", now)
    }

    /// Turns a grant of a notification into a hold. A renewal has to claim it, and a request has to confirm it before readers
    /// join.
    pub(super) fn on_notification(&mut self, request: &AcquireRequest, answer: Answered<Granted>) -> Option<Pursued> {
        self.note_clock(&answer);
        let (sent, granted, now) = (answer.sent, answer.value, self.engine.now());
        // Counted from an earlier answer. If the server's clock has jumped since, a claim from now on is the maximum.
        let remaining = granted.remaining.min(now.since(sent) + request.claim());
        // A notification answers no request. The answer to the claim tells whether the process may cache the hold.
        let keep = self.keeping.take().map(|keeping| (keeping.to_state(), None));
        let share = self.wants.from(now);
        let granted = NewHold {
            cache: keep,
            grant: Grant { sent, remaining, asked: request.claim(), server: ServerTime::default() },
            share_until: (!granted.is_waited_for).then_some(sent),
            is_claim: true,
            ..new_hold(&self.engine, request, &answer, granted, share, InDoubt::default())
        };
        self.take(granted, "granted by notification", now)
    }

    /// Puts a granted hold into the cell. Returns `None` if the grant is over already. A waiter that was passed by leaves
    /// it to the next leader, which gets the hold from the server.
    fn take(&mut self, granted: NewHold, passage: &'static str, now: Moment) -> Option<Pursued> {
        let engine = &self.waiter.engine;
        let may_stay = granted.cache.is_some();
        let Some(entry) = &self.waiter.entry else {
            return Some(Pursued::PassedBy);
        };
        let has_enough = granted.has_enough(now, engine.options().max_clock_skew);
        let (installed, mut pending) = entry.on_grant(granted, now);
        match installed {
            Installed::Hold(hold, share_id) => {
                hold.count();
                if may_stay {
                    engine.bound_cached(now);
                }
                // With too little of the lease left, the waiter stays until a renewal is answered.
                if has_enough {
                    self.waiter.entry = None;
                }
                // The hold is in the cell, where `close` finds it.
                drop(pending.as_mut().map(|pending| engine.releases.unsettled_of(pending)));
                // Made before the line is logged, so that a subscriber that panics leaves no share.
                let held = Held::new(engine, hold, share_id);
                events::log_passage(self.waiter.key.name(), self.waiter.mode, share_id.token, passage);
                Some(Pursued::Granted(held))
            }
            Installed::Over => None,
            Installed::NotMine => Some(Pursued::PassedBy),
        }
    }

    /// Withdraws a refused request of a quorum. The next attempt has an id of its own.
    fn begin_anew(&self) {
        if self.engine.scheme.quorum().is_some() {
            self.cancel_pending();
        }
    }

    /// Handles a grant whose answer came when it was over. Releases the old id, so that the next request has a new one.
    fn too_late(&mut self) -> Failure {
        self.earlier_until = self.earlier_until.max(self.cancel_pending());
        Failure::NotDone { source: Some(Arc::new(TooLate)) }
    }

    pub(super) async fn on_no_answer(&mut self, failure: Failure) -> Result<()> {
        let now = self.engine.now();
        let since = self.engine.unheard_since(&self.key, &failure, self.tries.since);
        let source = match &failure {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                Some(source.clone().unwrap_or_else(|| -> Source { Arc::new(Silence) }))
            }
            Failure::Refused { .. } | Failure::Broken { .. } | Failure::Unreplicated { .. } => None,
        };
        if let Some(source) = source {
            if let Some(entry) = &self.entry {
                entry.on_outage(Some(SideOutage { since, source: Some(Arc::clone(&source)) }));
            }
            self.last_failure = Some((now, source));
        }
        // Otherwise each waiter would wait for the replicas again, one after the other.
        if let (Failure::Unreplicated { .. }, Some(entry)) = (&failure, &self.entry) {
            entry.fail_waiters(&failure);
        }
        let limiter = &self.engine.attempt_lines;
        events::unanswered_request(self.key.name(), "an attempt", &failure, limiter, now);
        self.waiter.tries.on_failure(&self.waiter.engine, &self.waiter.key, failure).await
    }
}

/// The round trip took longer than the grant was valid.
#[derive(Debug, thiserror::Error)]
#[error("the answer came when its lease was over")]
struct TooLate;

/// The server found each request late, because its clock runs too fast. Or masters of a quorum still have an earlier request
/// of this manager.
#[derive(Debug, thiserror::Error)]
#[error(
    "each request came too late for the server's clock, or met an earlier request whose release is still under way: \
     compare the server's clock with this machine's"
)]
struct AlwaysLate;

/// No answer came.
#[derive(Debug, thiserror::Error)]
#[error("no answer within the response timeout")]
pub(super) struct Silence;
