//! The requester of one side of a lock sends the copies of the side's request to the server, until the server grants the
//! lock or no waiter is left.
//!
//! The requester is a part of the first waiter's acquisition, and runs in its task. So a grant, or the notification of one, is
//! in the task that wants it. If no task polls the acquisition, the next waiter of its process goes on.

mod plausible;
mod recheck;
mod rest;

use std::future::poll_fn;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use super::HEARTBEAT;
use super::withdraw::cancel;
use crate::base::backoff::{Backoff, Jitter};
use crate::base::error::{LossReason, NoMajority, Source};
use crate::base::events;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{MAX_TOKENS, Moment, ServerTime};
use crate::base::panics::catch_panic;
use crate::base::throttle::Throttle;
use crate::engine::caching::CacheRequest;
use crate::engine::convert::new_hold;
use crate::engine::{Engine, Held};
use crate::lock::hold::{Grant, NewHold};
use crate::lock::shares::ShareRequest;
use crate::lock::side::{LastRefusal, NextStep, Pending, RequesterSignal, SideOutage};
use crate::lock::wait::{Begun, Installed, RequesterEntry};
use crate::store::{AcquireRequest, Acquired, Answered, Attempt, Failure, Granted, IfTaken, Mode, Subscription};

use rest::Pause;

/// Time for which a try keeps its place in the queue after it has stopped to wait for replies to its recall. In this time its
/// claim reaches the server.
const CLAIM_OF_A_TRY: Duration = Duration::from_secs(1);

/// Notifications of the server for one requester.
#[derive(Debug, Default)]
enum Notifications {
    /// The requester has not waited yet.
    #[default]
    Unwanted,
    /// The scheme has none.
    Never,
    Subscribed(Subscription),
}

/// Requester of one side of a lock. Its drop ends it. The first waiter that is left then goes on. Without one, the drop withdraws
/// the request.
pub(super) struct Requesting {
    engine: Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    /// Present until the side needs this requester no more.
    entry: Option<RequesterEntry>,
    notifications: Notifications,
    /// Time of the server in its last answer. A grant before that time would have been in the answer.
    answered_at: ServerTime,
    /// Start of the time without an answer.
    silent_since: Moment,
    /// Start of the time in which the server has only answered that requests were late, and a failure in this time that
    /// found no majority of masters that may vote.
    late_since: Option<Moment>,
    no_majority: Option<Source>,
    /// Share that the first waiter wanted at the newest copy.
    wants: Option<ShareRequest>,
    backoff: Backoff,
    pause: Pause,
    /// True if the requester still looks for a hold of its process that a reader may join.
    rechecks: bool,
    /// True after the log line about the place in the server's queue.
    is_queued: bool,
    /// True if the process may cache the hold. Known from the first request on.
    may_stay: Option<bool>,
    /// Offer of the last request to cache the hold.
    keeping: Option<Box<CacheRequest>>,
    /// End of the time that recalled holders have to reply to a try.
    recalls_until: Option<Moment>,
    /// Limits the requests that notifications cause.
    told_to_ask: Throttle,
}

/// Result of one copy.
pub(super) enum CopyOutcome {
    /// The first waiter has the lock. It is the one whose task has sent the copy.
    Granted(Held),
    /// The side needs this requester no more.
    NotNeeded,
    /// The next copy is due after this rest.
    Rests(Rest),
}

/// Time between two copies of a request.
pub(super) enum Rest {
    /// Waits in the server's queue for a notification, and asks again as a heartbeat.
    AwaitTurn { request: Box<AcquireRequest>, retry_in: Duration },
    /// Pauses, because the server has no queue for the request.
    Pause { retry_in: Duration },
    /// Pauses after a copy without a usable answer.
    Backoff(Duration),
}

impl Requesting {
    pub(super) fn new(engine: &Arc<Engine>, entry: RequesterEntry) -> Self {
        let (key, mode) = (Arc::clone(entry.key()), entry.mode());
        Self {
            engine: Arc::clone(engine),
            key,
            mode,
            entry: Some(entry),
            notifications: Notifications::default(),
            answered_at: ServerTime::default(),
            silent_since: engine.now(),
            late_since: None,
            no_majority: None,
            wants: None,
            backoff: Backoff::new(),
            pause: Pause::new(),
            rechecks: mode == Mode::Read,
            is_queued: false,
            may_stay: None,
            keeping: None,
            recalls_until: None,
            told_to_ask: Throttle::new(),
        }
    }

    /// Goes on in an outage that an earlier requester of the side has seen.
    pub(super) fn after(mut self, outage: Option<SideOutage>) -> Self {
        if let Some(outage) = outage {
            // Requesters that follow each other ask together no more often than one.
            (self.silent_since, self.backoff) = (outage.since, Backoff::longest());
        }
        self
    }

    /// Rests, and sends further copies, until the side needs this requester no more.
    pub(super) async fn go_on(&mut self, mut rest: Rest) {
        while let Some(signals) = self.entry.clone() {
            let signal = poll_fn(|cx| signals.poll_signal(cx));
            tokio::select! {
                biased;
                signal = signal => match signal {
                    RequesterSignal::Stop => return,
                    RequesterSignal::AskAtOnce => {}
                },
                () = self.rest(rest) => {}
            }
            rest = match self.step_in_sight().await {
                CopyOutcome::Rests(next) => next,
                // After an answer, the share of a grant waits in the cell for the task of its waiter.
                CopyOutcome::NotNeeded | CopyOutcome::Granted(_) => return,
            };
        }
    }

    /// Makes a step. Ends early if no waiter needs the answer.
    pub(super) async fn step_in_sight(&mut self) -> CopyOutcome {
        let Some(signals) = self.entry.clone() else { return CopyOutcome::NotNeeded };
        let mut step = pin!(self.step());
        let mut is_out = false;
        poll_fn(|cx| {
            // Looked at first, so that a copy that waits for its turn is not sent for a side that has another requester.
            if is_out && signals.poll_stop(cx).is_ready() {
                return Poll::Ready(CopyOutcome::NotNeeded);
            }
            if let Poll::Ready(outcome) = step.as_mut().poll(cx) {
                return Poll::Ready(outcome);
            }
            if !std::mem::replace(&mut is_out, true) && signals.poll_stop(cx).is_ready() {
                return Poll::Ready(CopyOutcome::NotNeeded);
            }
            Poll::Pending
        })
        .await
    }

    /// Sends one copy, or finds a hold of this process that the first waiter may use.
    async fn step(&mut self) -> CopyOutcome {
        if self.engine.can_cache() && self.entry.as_ref().is_some_and(|entry| entry.wants().is_some()) {
            self.release_cached();
        }
        if self.rechecks
            && let Some(step) = Box::pin(self.recheck()).await
        {
            return step;
        }
        self.rechecks = false;
        let Some(request) = self.begin_attempt() else {
            return CopyOutcome::NotNeeded;
        };
        let attempt = self.engine.scheme.acquire(&self.key, &request).await;
        self.on_attempt(request, attempt)
    }

    /// Releases the cached holds of this process that exclude this side. On a runtime with a connection, the releases are
    /// sent before the request that follows, so the server carries them out first.
    fn release_cached(&self) {
        let Some(entry) = &self.entry else { return };
        let _unsettled = self.engine.releases.begin_unsettled();
        for hold in entry.end_cached() {
            self.engine.note_cache_outcome(&hold);
            self.engine.release_from_here(&hold);
        }
    }

    /// Begins a copy of the side's request. Returns `None` if the side needs this requester no more, or if the manager is
    /// closed.
    pub(super) fn begin_attempt(&mut self) -> Option<AcquireRequest> {
        let (engine, entry) = (&self.engine, self.entry.as_ref()?);
        // Counted before the check, so that the check sees `close`, or `close` waits for this copy.
        let counted = engine.releases.begin_unsettled();
        engine.check_open(&self.key).ok()?;
        let Begun { id, terms, is_first } = entry.begin_attempt(|| Pending::new(engine.next_id()))?;
        if is_first {
            counted.leave_to_cell();
        }
        // A process that caches holds expects that others do, too. So a try subscribes and recalls at once.
        // A try that has a place in the queue repeats its request in a form that keeps the place until it is withdrawn.
        let recalls = !terms.waits && (self.recalls_until.is_some() || terms.is_recorded || engine.can_cache());
        if (terms.waits || recalls) && matches!(self.notifications, Notifications::Unwanted) {
            let scheme = engine.scheme.notifications();
            let warm = scheme.and_then(|scheme| scheme.subscribe_if_live(&self.key, &engine.manager_id));
            self.notifications = warm.map_or(Notifications::Unwanted, Notifications::Subscribed);
        }
        self.wants = Some(terms.wants);
        let (now, cache_for) = (engine.now(), terms.wants.cache_for);
        let may_stay = *self.may_stay.get_or_insert_with(|| engine.may_cache(&self.key, cache_for, now));
        self.keeping = if may_stay && !cache_for.is_zero() {
            engine.cache_request(&self.key, entry, cache_for).map(Box::new)
        } else {
            None
        };
        let caches = self.keeping.as_ref().is_some_and(|keeping| keeping.offers_caching());
        Some(AcquireRequest {
            caches,
            id,
            mode: self.mode,
            lease: terms.lease(),
            // A cached hold is handed on for as long as no waiter recalls it.
            max_tokens: if caches { MAX_TOKENS } else { engine.options().max_handoffs },
            if_taken: match terms.waits {
                // Two heartbeats may be lost.
                true => {
                    IfTaken::Queue { waiter_ttl: (heartbeat_of(terms.lease()) + engine.options().response_timeout) * 2 }
                }
                false if recalls => IfTaken::Try { waiter_ttl: engine.options().recall_timeout + CLAIM_OF_A_TRY },
                false => IfTaken::Leave,
            },
        })
    }

    /// Applies the outcome of a copy.
    fn on_attempt(&mut self, request: AcquireRequest, attempt: Attempt<Acquired>) -> CopyOutcome {
        let now = self.engine.now();
        // A grant becomes a hold in one step, so no waiter can leave with the request between the two.
        if let Ok(answer) = &attempt
            && let Acquired::Granted(granted) = answer.value
        {
            return self.on_grant(&request, answer, granted, now);
        }
        let Some(entry) = &self.entry else { return CopyOutcome::NotNeeded };
        let releases = &self.engine.releases;
        let is_mine = entry.end_attempt(&attempt, |pending| {
            if attempt.is_ok() && pending.is_unknown_to_server() { releases.unsettled_of(pending) } else { None }
        });
        let Some(unsettled) = is_mine else { return CopyOutcome::NotNeeded };
        drop(unsettled);
        match attempt {
            Ok(answer) => self.on_refusal(request, &answer, now),
            Err(failure) => {
                self.begin_anew();
                self.on_failure(failure)
            }
        }
    }

    /// Applies an answer that is no grant.
    fn on_refusal(&mut self, request: AcquireRequest, answer: &Answered<Acquired>, now: Moment) -> CopyOutcome {
        self.answered_at = answer.server;
        let step = NextStep::after(&answer.value);
        if step == NextStep::AskSoon {
            self.on_answer(now);
            self.begin_anew();
            return self.on_late(answer.sent, now);
        }
        (self.late_since, self.no_majority) = (None, None);
        let ends_tries = self.note_refusal(answer, now);
        self.on_answer(now);
        self.begin_anew();
        if let Some(entry) = self.entry.as_ref().filter(|_| ends_tries) {
            entry.deny_tries(now);
            if entry.wants().is_none() {
                return CopyOutcome::NotNeeded;
            }
        }
        self.subscribe();
        match step {
            NextStep::AwaitTurn { retry_in } => {
                if !std::mem::replace(&mut self.is_queued, true) {
                    catch_panic(|| events::log_queued(self.key.name(), self.mode));
                }
                CopyOutcome::Rests(Rest::AwaitTurn { request: Box::new(request), retry_in })
            }
            NextStep::Pause { retry_in } => CopyOutcome::Rests(Rest::Pause { retry_in }),
            NextStep::Take(_) | NextStep::AskSoon => unreachable!("no refusal"),
        }
    }

    /// Records a refusal for all waiters of the side. Returns true if it ends the tries: no recalled holder may still reply.
    fn note_refusal(&mut self, answer: &Answered<Acquired>, now: Moment) -> bool {
        let Some(entry) = &self.entry else { return false };
        let is_cached = matches!(answer.value, Acquired::Queued { is_cached: true, .. } | Acquired::Cached { .. });
        let holder = answer.value.named_holder().cloned();
        entry.note_refusal(LastRefusal { at: now, server: answer.server, holder, is_cached });
        if !is_cached {
            self.recalls_until = None;
            return true;
        }
        let until = now.after(self.engine.options().recall_timeout);
        entry.note_recall(until);
        *self.recalls_until.get_or_insert(until) <= now
    }

    /// Rests after a request that came too late. Fails the tries if requests were late for twice the response timeout, although
    /// the server answers. If some of them found no majority of masters that may vote, the others met the releases of those, and
    /// that failure tells more.
    fn on_late(&mut self, sent: Moment, now: Moment) -> CopyOutcome {
        let waited = now.since(*self.late_since.get_or_insert(sent));
        if waited >= self.engine.options().response_timeout * 2
            && let Some(entry) = &self.entry
        {
            let source = self.no_majority.take().unwrap_or_else(|| Arc::new(AlwaysLate));
            entry.fail_waiters(Failure::NotDone { source: Some(source) }, now);
        }
        // The answer brought the server's time, so the next request has a better limit.
        CopyOutcome::Rests(Rest::Backoff(self.backoff.pause(Jitter::draw())))
    }

    /// Records that the server answers.
    fn on_answer(&mut self, now: Moment) {
        self.silent_since = now;
        self.backoff.reset();
        if let Some(entry) = &self.entry {
            entry.on_outage(None);
        }
    }

    /// Turns the grant of an answer into a hold, if it is still valid.
    fn on_grant(
        &mut self,
        request: &AcquireRequest,
        answer: &Answered<Acquired>,
        granted: Granted,
        now: Moment,
    ) -> CopyOutcome {
        let cache = self.keeping.take().map(|keeping| keeping.on_answer(answer, granted.is_waited_for));
        let granted = NewHold { cache, ..self.new_hold(request, answer, granted) };
        self.take(granted, now)
    }

    /// Turns a grant of a notification into a hold. A renewal has to claim it, and a request has to confirm it before readers
    /// join.
    pub(super) fn on_notification(&mut self, request: &AcquireRequest, answer: &Answered<Granted>) -> CopyOutcome {
        let (sent, granted, now) = (answer.sent, answer.value, self.engine.now());
        // Counted from an earlier answer. If the server's clock has jumped since, a claim from now on is the maximum.
        let remaining = granted.remaining.min(now.since(sent) + request.claim());
        // A notification answers no request. The answer to the claim tells whether the process may cache the hold.
        let cache = self.keeping.take().map(|keeping| (keeping.to_state(), None));
        let granted = NewHold {
            cache,
            grant: Grant { sent, remaining, asked: request.claim(), server: ServerTime::default() },
            share_until: (!granted.is_waited_for).then_some(sent),
            is_claim: true,
            ..self.new_hold(request, answer, granted)
        };
        self.take(granted, now)
    }

    fn new_hold<T>(&self, request: &AcquireRequest, answer: &Answered<T>, granted: Granted) -> NewHold {
        let wants = self.wants.expect("set by the copy that is granted");
        new_hold(&self.engine, request, answer, granted, wants.from(answer.sent), InDoubt::default())
    }

    /// Puts a granted hold into the cell, for the first waiter.
    fn take(&mut self, granted: NewHold, now: Moment) -> CopyOutcome {
        let Some(entry) = &self.entry else { return CopyOutcome::NotNeeded };
        let can_be_cached = granted.cache.is_some();
        let (installed, mut pending) = entry.on_grant(granted, now);
        match installed {
            Installed::Hold(hold, share_id) => {
                self.entry = None;
                hold.count();
                if can_be_cached {
                    self.engine.bound_cached(now);
                }
                // The hold may have come after `close` has listed the holds.
                if self.engine.closing.is_closed() && hold.lose(LossReason::Closed) {
                    self.engine.release_in_background(&hold);
                }
                // The hold is in the cell, where `close` finds it.
                drop(pending.as_mut().map(|pending| self.engine.releases.unsettled_of(pending)));
                // Made before the line is logged, so that a subscriber that panics leaves no share.
                let Some(share_id) = share_id else { return CopyOutcome::NotNeeded };
                let held = Held::new(&self.engine, hold, share_id);
                events::log_passage(self.key.name(), self.mode, share_id.token, "granted");
                CopyOutcome::Granted(held)
            }
            Installed::Over => {
                self.cancel_pending();
                self.on_failure(Failure::NotDone { source: Some(Arc::new(TooLate)) })
            }
            Installed::NotMine => CopyOutcome::NotNeeded,
        }
    }

    /// Withdraws a refused request of a quorum. The next copy has an id of its own.
    fn begin_anew(&self) {
        if self.engine.scheme.quorum().is_some() {
            self.withdraw_pending();
        }
    }

    /// Withdraws a request whose grant was over on arrival, so that the next copy has an id of its own.
    fn cancel_pending(&self) {
        let until = self.withdraw_pending();
        if let Some(entry) = &self.entry {
            entry.note_earlier(until);
        }
    }

    fn withdraw_pending(&self) -> Option<Moment> {
        self.cancel(self.entry.as_ref()?.give_up_pending()?)
    }

    /// Withdraws a request in the background. Returns the moment until which the server may have something of it.
    fn cancel(&self, pending: Pending) -> Option<Moment> {
        cancel(&self.engine, &self.key, pending)
    }

    /// Applies a failure. The next copy follows after a pause, unless it ends all waiters.
    fn on_failure(&mut self, failure: Failure) -> CopyOutcome {
        let now = self.engine.now();
        let since = self.engine.unheard_since(&self.key, &failure, self.silent_since);
        let limiter = &self.engine.attempt_lines;
        catch_panic(|| events::unanswered_request(self.key.name(), "an attempt", &failure, limiter, now));
        let Some(entry) = &self.entry else { return CopyOutcome::NotNeeded };
        match failure {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                let source = source.unwrap_or_else(|| -> Source { Arc::new(Silence) });
                if source.is::<NoMajority>() {
                    self.no_majority = Some(Arc::clone(&source));
                }
                entry.on_outage(Some(SideOutage::new(since, Some(source))));
            }
            Failure::Refused { .. } | Failure::Broken { .. } | Failure::Unreplicated { .. } => {
                entry.fail_waiters(failure, now);
            }
        }
        // While a node does not answer, the next copy waits for the node's probe, as all other requests do.
        let is_silent = self.engine.scheme.contact(&self.key).is_silent;
        let pause = if is_silent { Duration::ZERO } else { self.backoff.pause(Jitter::draw()) };
        CopyOutcome::Rests(Rest::Backoff(pause))
    }
}

impl Drop for Requesting {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else { return };
        if self.engine.is_copied() {
            // Their mutexes may have been copied while a thread of the parent process held them.
            std::mem::forget((entry, std::mem::take(&mut self.notifications)));
            return;
        }
        if let Some(pending) = entry.end(self.engine.now()) {
            entry.note_earlier(self.cancel(pending));
        }
    }
}

/// Returns the time between two copies of a request in the server's queue. A waiter gets at most its lease, so with a short
/// lease it has to learn of the grant sooner.
fn heartbeat_of(lease: Duration) -> Duration {
    HEARTBEAT.min(lease / 3)
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
