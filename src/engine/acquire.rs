//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Any other acquisition waits for its turn in this process, then
//! sends a request to the server. If the server refuses, the acquisition waits in the server's queue, repeats its request as
//! a heartbeat, and ends when a notification says that the server has granted the lock. Without a queue it repeats the
//! request after jittered pauses. A request without an answer is repeated under the same id, which counts once however many
//! copies arrive. If the future is dropped, the next waiter of the process continues its request. Without a next waiter,
//! the background withdraws the request.

mod accept;
mod arm;
mod denial;
mod first_wait;
mod limits;
mod local;
mod patience;
mod pending;
mod plausible;
mod recheck;
mod wait;
mod withdraw;

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/acquire/tests.rs"]
mod tests;

use std::future::ready;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use crate::base::denied::Denied;
use crate::base::error::{Error, LossReason, Result, Source};
use crate::base::key::{Key, LockName};
use crate::base::lease::{Moment, ServerTime};
use crate::base::options::{Options, Terms};
use crate::base::reentry::{OwnerId, Reentry};
use crate::base::throttle::Throttle;
use crate::engine::caching::CacheRequest;
use crate::engine::{Engine, Held};
use crate::lock::hold::Hold;
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::wait::{Notifications, WaitEntry};
use crate::store::{BoxFuture, Mode};

use self::arm::Arming;
use self::first_wait::{FirstEnd, FirstWait};
use self::limits::{Attempts, GivesUp, UnderwayAttempt, WaitEnd, given_up, heard_out, withdrawal_span};
use self::local::{Entered, LocalSignal, LocalWaiter, enter};
use self::patience::WaitEnds;
use self::pending::Pursued;
use self::withdraw::Withdrawn;

/// Longest time between two requests of a waiter in the server's queue.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Treatment of a lock that others hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Wait,
    /// The first answer ends it.
    AskOnce,
}

/// Returns a share of a hold that this process has, if a guard may join it without a request to the server.
#[inline]
pub(crate) fn join(engine: &Engine, name: &LockName, mode: Mode, terms: &Terms) -> Option<(Arc<Hold>, ShareId)> {
    if terms.reentry != Reentry::Off || engine.closing.is_closed() || engine.is_copied() {
        return None;
    }
    let wants = ShareRequest {
        owner: OwnerId::current(),
        lease: terms.lease,
        max_hold: terms.max_hold,
        cache_for: terms.cache_for,
    };
    match mode {
        Mode::Read => engine.table.join(name.hashed_name(), wants, engine.now()),
        Mode::Write => engine.table.take_cached(name.hashed_name(), wants, engine.now()),
    }
}

/// Outcome of an acquisition. The inner error is the refusal, for a caller that wants one answer.
pub(crate) type AcquireOutcome = Result<Result<Held, Box<Denied>>>;

/// Future of an acquisition that was started.
pub(crate) type StartedAcquire = BoxFuture<'static, AcquireOutcome>;

/// Options of an acquisition that count after the grant. Most acquisitions have none, so waiters keep them in a box.
#[derive(Default)]
struct AfterGrant {
    at_least: Option<Duration>,
    note: Option<Arc<str>>,
}

impl AfterGrant {
    fn into_box(self) -> Option<Box<Self>> {
        (self.at_least.is_some() || self.note.is_some()).then(|| Box::new(self))
    }
}

/// Starts an acquisition. The caller must poll or drop the future at once, because the acquisition has its place among the
/// waiters of the process already.
pub(crate) fn start(
    engine: &Arc<Engine>,
    key: &Arc<Key>,
    mode: Mode,
    terms: &Terms,
    patience: Patience,
    note: Option<Arc<str>>,
) -> Result<StartedAcquire> {
    let after = AfterGrant { at_least: terms.at_least, note };
    Ok(match enter(engine, key, mode, terms, patience)? {
        Entered::Held(held) => Box::pin(async move { with_note(held, after.note).await.map(Ok) }),
        Entered::Denied(denied) => Box::pin(ready(Ok(Err(denied)))),
        Entered::Waits(waiter) if waiter.is_leader() => run(waiter, FirstEnd::Leads, after),
        Entered::Waits(waiter) => Box::pin(FirstWait::new(waiter, after.into_box())),
    })
}

/// Acquires the lock. Returns `None` only if the caller wants one answer, and the server refused.
#[cfg(test)]
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    terms: Terms,
    patience: Patience,
) -> Result<Option<Held>> {
    Ok(acquire_or_denied(engine, &key, mode, &terms, patience).await?.ok())
}

/// Acquires the lock, or returns the refusal if the caller wants one answer.
pub(crate) async fn acquire_or_denied(
    engine: &Arc<Engine>,
    key: &Arc<Key>,
    mode: Mode,
    terms: &Terms,
    patience: Patience,
) -> AcquireOutcome {
    start(engine, key, mode, terms, patience, None)?.await
}

/// Returns the future that runs an acquisition from its first request or share on.
fn run(waiter: LocalWaiter, first: FirstEnd, after: AfterGrant) -> StartedAcquire {
    let (engine, key) = (Arc::clone(&waiter.engine), Arc::clone(&waiter.key));
    let AfterGrant { at_least, note } = after;
    // An acquisition with `at_least` sets its note before its hold may rest.
    let is_noted_early = at_least.is_some() && note.is_some();
    let arming = at_least.map(|span| Box::new(Arming::new(span, note.clone())));
    let mut acquisition = Acquisition::new(waiter, arming);
    Box::pin(async move {
        let outcome = {
            let ended = pin!(acquisition.until_its_end(first));
            engine.process.here(key.name(), ended).await?
        };
        drop(acquisition);
        match outcome {
            Ok(held) if !is_noted_early => Ok(Ok(with_note(held, note).await?)),
            outcome => Ok(outcome),
        }
    })
}

/// Sets the note of a hold that was just acquired, or removes that of the guard before. If that fails, the hold is released.
async fn with_note(held: Held, note: Option<Arc<str>>) -> Result<Held> {
    match note {
        // In a box, since most acquisitions have no note, and each future has room for the longest way.
        Some(note) => Box::pin(held.set_note(&note)).await?,
        None => held.engine().drop_old_note(held.hold()),
    }
    Ok(held)
}

/// Longest time between two polls of a leader whose task runs. The leader waits for one answer, or for its heartbeat.
pub(super) fn poll_within(options: &Options) -> Duration {
    HEARTBEAT + options.response_timeout * 2
}

/// Checks that the engine is still open. A grant that came after `close` has listed the holds is released here.
pub(super) fn check_still_open(engine: &Engine, key: &Key, held: Option<&Held>) -> Result<()> {
    engine.check_open(key).inspect_err(|_| {
        if let Some(held) = held
            && held.hold().lose(LossReason::Closed)
        {
            engine.release_in_background(held.hold());
        }
    })
}

/// Acquisition from its first request or share on. Its drop withdraws its request, which the cell keeps for its entry.
struct Acquisition {
    waiter: LocalWaiter,
    notices: Notifications,
    /// Time of the server in its last answer. A grant before that time would have been in the answer.
    answered_at: ServerTime,
    last_failure: Option<(Moment, Source)>,
    /// Start of the time in which the server has only answered that requests were late.
    late_since: Option<Moment>,
    /// Moment until which the server may have a hold or a place of an earlier request, which the background withdraws.
    earlier_until: Option<Moment>,
    /// Present if the acquisition has a limit.
    attempts: Option<Arc<Attempts>>,
    /// Label of the holder after a long wait, for the log line about the wait.
    holder: Option<Box<Option<String>>>,
    /// True if the process may cache the hold. Known from the first request on.
    may_stay: Option<bool>,
    /// Offer of the last request to cache the hold.
    keeping: Option<Box<CacheRequest>>,
    /// End of the time that recalled holders have to reply to a try.
    calls_until: Option<Moment>,
    /// True if that time has ended without a reply. The try then sends its last request.
    has_heard_nothing: bool,
    /// Limits the requests that notifications cause.
    told_to_ask: Throttle,
    /// Share that the acquisition has not taken yet, or whose hold it arms. It is here and not in the future that waits for
    /// a renewal, so that an acquisition that gives up can wait for its release.
    share: Option<Held>,
    /// Present for `at_least`.
    arming: Option<Box<Arming>>,
}

/// End of a caller's wait.
enum AcquireEnd {
    Over(Result<Option<Held>>),
    GivesUp(GivesUp),
}

impl Deref for Acquisition {
    type Target = LocalWaiter;

    fn deref(&self) -> &LocalWaiter {
        &self.waiter
    }
}

impl Acquisition {
    fn new(waiter: LocalWaiter, arming: Option<Box<Arming>>) -> Self {
        Self {
            waiter,
            notices: Notifications::default(),
            answered_at: ServerTime::default(),
            last_failure: None,
            late_since: None,
            earlier_until: None,
            attempts: None,
            holder: None,
            may_stay: None,
            keeping: None,
            calls_until: None,
            has_heard_nothing: false,
            told_to_ask: Throttle::new(),
            share: None,
            arming,
        }
    }

    /// Runs until the lock is granted, or until the wait ends without a grant. A caller that gives up gets its error when its
    /// request is withdrawn.
    async fn until_its_end(&mut self, first: FirstEnd) -> AcquireOutcome {
        let signal = match first {
            FirstEnd::Leads => None,
            FirstEnd::Signal(signal) => Some(signal),
            FirstEnd::GivesUp(given_up) => return Err(Box::pin(self.give_up(given_up)).await),
        };
        let held = match self.run_within(signal).await {
            AcquireEnd::GivesUp(given_up) => return Err(Box::pin(self.give_up(given_up)).await),
            // The arming has checked that the engine is open.
            AcquireEnd::Over(result) if self.arming.is_some() => result?,
            AcquireEnd::Over(result) => {
                let held = result?;
                check_still_open(&self.engine, &self.key, held.as_ref())?;
                held
            }
        };
        let Some(held) = held else {
            return Ok(Err(Box::pin(self.refused()).await?));
        };
        if self.holder.is_some() {
            self.tell_of_wait(WaitEnds::Granted);
        }
        Ok(Ok(held))
    }

    /// Withdraws the request of a caller that waits no longer, and returns the error for the caller.
    async fn give_up(&mut self, given_up: GivesUp) -> Error {
        let lock = self.key.shared_name();
        if given_up.why == WaitEnd::Closed {
            return Error::Closed { lock };
        }
        let waited = given_up.at.since(self.began);
        // A later failure is that of an attempt under way at the limit. It leaves a request in doubt, and is no outage.
        // After a refusal, which another waiter may have got, the server is not silent any more.
        let refused_at = self.entry.as_ref().and_then(WaitEntry::refused_at);
        let failure = self.last_failure.take().filter(|(at, _)| *at <= given_up.at && refused_at <= Some(*at));
        if failure.is_some() || given_up.why == WaitEnd::Silence || given_up.outage.is_some() {
            // A waiter that has sent no request names the failure of its leader.
            let of_asker = given_up.outage.and_then(|outage| outage.source);
            return Error::unreachable(lock, waited, failure.map(|(_, source)| source).or(of_asker));
        }
        self.tell_of_wait(WaitEnds::InVain);
        // Read before the entry is removed, because the cell keeps the refusals while a waiter is there.
        let denied = self.denial();
        let confirmed = self.withdraw(given_up.answer_by).await == Withdrawn::Surely;
        Error::WaitTimeout { lock, waited, confirmed, denied }
    }

    /// Returns the refusal that ends a try. Withdraws a place in the queue first, if the try has one or may have one.
    async fn refused(&mut self) -> Result<Box<Denied>> {
        let denied = self.denial();
        if self.has_left_nothing() && self.earlier_until.is_none() {
            return Ok(denied);
        }
        match self.withdraw(self.engine.now().after(withdrawal_span(&self.engine))).await {
            Withdrawn::Surely => Ok(denied),
            Withdrawn::Perhaps => {
                let (lock, waited) = (self.key.shared_name(), self.engine.now().since(self.began));
                Err(Error::WaitTimeout { lock, waited, confirmed: false, denied })
            }
        }
    }

    /// Runs until the acquisition is over, or until its limit. It waits for the end of an attempt that is under way at the limit:
    /// a grant counts, and a request that the server may still carry out cannot be withdrawn for good.
    async fn run_within(&mut self, signal: Option<LocalSignal>) -> AcquireEnd {
        let engine = &Arc::clone(&self.engine);
        let attempts = self.limit.map(|_| Arc::clone(self.attempts.insert(Arc::default())));
        let mut impatience = self.impatience(attempts.clone());
        let mut run = pin!(self.run(signal));
        // Biased, so that a grant counts even if the limit has passed too.
        let given_up = tokio::select! {
            biased;
            result = &mut run => return AcquireEnd::Over(result),
            given_up = given_up(engine, &mut impatience) => given_up,
        };
        if let (WaitEnd::Limit, Some(attempts)) = (given_up.why, &attempts)
            && let Some(result) = Box::pin(heard_out(engine, run, attempts, given_up.answer_by)).await
        {
            return AcquireEnd::Over(result);
        }
        AcquireEnd::GivesUp(given_up)
    }

    async fn run(&mut self, signal: Option<LocalSignal>) -> Result<Option<Held>> {
        let mut held = match signal {
            Some(signal) => Box::pin(self.on_signal(signal)).await?,
            None => None,
        };
        loop {
            if held.is_none() {
                held = self.run_to_hold().await?;
            }
            let Some(granted) = held.take() else {
                return Ok(None);
            };
            if self.arming.is_none() {
                return Ok(Some(granted));
            }
            if let Some(armed) = Box::pin(self.arm(granted)).await? {
                return Ok(Some(armed));
            }
        }
    }

    /// Runs until it has a share of a hold.
    async fn run_to_hold(&mut self) -> Result<Option<Held>> {
        let patience = self.patience;
        loop {
            while !self.is_leader() {
                let signal = Box::pin(self.waiter.signalled()).await?;
                if let Some(held) = Box::pin(self.on_signal(signal)).await? {
                    return Ok(Some(held));
                }
            }
            if self.engine.can_cache() {
                self.release_cached();
            }
            if self.mode == Mode::Read
                && let Some(held) = Box::pin(self.recheck_own()).await?
            {
                return Ok(Some(held));
            }
            match (self.pursue().await?, patience) {
                // One answer is enough, also for a guard that starts with little.
                (Pursued::Granted(held), _) if self.entry.is_none() || patience == Patience::AskOnce => {
                    self.waiter.entry = None;
                    return Ok(Some(held));
                }
                (Pursued::Granted(held), _) => {
                    if let Some(held) = Box::pin(self.accept(held)).await? {
                        return Ok(Some(held));
                    }
                }
                (Pursued::Refused, _) | (Pursued::PassedBy, Patience::AskOnce) => return Ok(None),
                (Pursued::PassedBy, Patience::Wait) => self.wait_again(),
            }
        }
    }

    /// Waits again as other waiters do, after the hand-over or the right to ask came to nothing.
    fn wait_again(&mut self) {
        self.notices = Notifications::Unwanted;
        self.waiter.wait_again();
    }

    /// Counts an attempt as under way, if the acquisition has a limit.
    fn begin_underway(&self) -> Option<UnderwayAttempt> {
        self.attempts.clone().map(Attempts::begin)
    }

    /// Never resolves if this acquisition gives up, so that it sends no further request.
    async fn stop_if_given_up(&self) {
        if self.attempts.as_ref().is_some_and(|attempts| attempts.has_stopped()) {
            std::future::pending().await
        }
    }
}

impl Drop for Acquisition {
    fn drop(&mut self) {
        let notices = std::mem::take(&mut self.notices);
        self.waiter.abandon(notices);
    }
}
