//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Any other acquisition waits for its turn in this process, then
//! sends a request to the server. If the server refuses, the acquisition waits in the server's queue, repeats its request as
//! a heartbeat, and ends when a notification says that the server has granted the lock. Without a queue it repeats the
//! request after jittered pauses. A request without an answer is repeated under the same id, which counts once however many
//! copies arrive. If the future is dropped, the next waiter of the process continues its request. Without a next waiter,
//! the background withdraws the request.

mod arm;
mod denial;
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

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::denied::Denied;
use crate::base::error::{Error, LossReason, Result, Source};
use crate::base::key::{Key, LockName};
use crate::base::lease::{Moment, ServerTime};
use crate::base::options::Terms;
use crate::base::reentry::{OwnerId, Reentry};
use crate::base::throttle::Throttle;
use crate::engine::caching::CacheRequest;
use crate::engine::tries::Tries;
use crate::engine::waiters::WaiterPermit;
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::hold::Hold;
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{Pending, SideOutage};
use crate::lock::wait::{FirstAnswer, Notifications, WaitEntry};
use crate::store::{Mode, ServerContact};

use self::arm::Arming;
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

/// Why an acquisition ends without a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitEnd {
    Closed,
    /// The server did not answer in time.
    Silence,
    /// The caller's limit.
    Limit,
}

/// End of a caller's wait.
enum AcquireEnd {
    Over(Result<Option<Held>>),
    GivesUp(GivesUp),
}

/// The end of an acquisition that is not granted in time.
#[derive(Debug)]
struct GivesUp {
    why: WaitEnd,
    at: Moment,
    /// Present if the server did not answer the requests of this side of the lock then.
    outage: Option<SideOutage>,
    /// Latest moment at which the caller gets its error.
    answer_by: Moment,
}

/// Attempts of an acquisition with a limit. Before the first attempt is over, the limit cannot tell a refusal from an outage.
/// An acquisition that gives up waits for the end of an attempt that is under way.
#[derive(Debug, Default)]
struct Attempts {
    /// More than one, because a share that was handed over may need a renewal during an attempt.
    underway: AtomicUsize,
    is_first_over: AtomicBool,
    has_stopped: AtomicBool,
    over: Notify,
}

/// An attempt that is under way. Its drop ends it.
struct UnderwayAttempt(Arc<Attempts>);

impl Drop for UnderwayAttempt {
    fn drop(&mut self) {
        self.0.is_first_over.store(true, Ordering::Release);
        self.0.underway.fetch_sub(1, Ordering::Release);
        self.0.over.notify_one();
    }
}

impl Attempts {
    fn begin(self: Arc<Self>) -> UnderwayAttempt {
        self.underway.fetch_add(1, Ordering::Release);
        UnderwayAttempt(self)
    }

    fn is_underway(&self) -> bool {
        self.underway.load(Ordering::Acquire) > 0
    }

    /// Returns at once before and after the first attempt.
    async fn first_over(&self) {
        while self.is_underway() && !self.is_first_over.load(Ordering::Acquire) {
            self.over.notified().await;
        }
    }

    /// Lets no further attempt begin, and resolves when none is under way.
    async fn stop(&self) {
        self.has_stopped.store(true, Ordering::Release);
        while self.is_underway() {
            self.over.notified().await;
        }
    }
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
        Mode::Read => engine.table.join(name.hashed_name(), wants, engine.clock.now()),
        Mode::Write => engine.table.take_cached(name.hashed_name(), wants, engine.clock.now()),
    }
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
    Ok(acquire_or_denied(engine, key, mode, terms, patience).await?.ok())
}

/// Acquires the lock, or returns the refusal if the caller wants one answer.
pub(crate) async fn acquire_or_denied(
    engine: &Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    terms: Terms,
    patience: Patience,
) -> Result<Result<Held, Box<Denied>>> {
    engine.check_open(&key)?;
    in_runtime()?;
    if terms.at_least.is_some() {
        arm::check(engine)?;
    }
    engine.keep_running();
    let began = engine.clock.now();
    let wants = ShareRequest {
        owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
        lease: terms.lease,
        max_hold: terms.max_hold,
        cache_for: terms.cache_for,
    };
    if terms.reentry.owner().is_some()
        && let Some(held) = join_own(engine, &key, wants, mode, began)?
    {
        return if terms.at_least.is_some() { Err(arm::nested_error()) } else { Ok(Ok(held)) };
    }
    if mode == Mode::Read
        && let Some((hold, share_id)) = engine.table.join(key.hashed_name(), wants, began)
    {
        return Ok(Ok(Held::new(engine, hold, share_id)));
    }
    let permit = engine.waiters.admit(&key)?;
    let grace = grace(engine);
    let entry = match patience {
        Patience::Wait => engine.table.enter(&key, mode, wants, grace, began),
        Patience::AskOnce => match engine.table.try_enter(&key, mode, wants, grace, began) {
            Some(entry) => entry,
            None => return Ok(Err(engine.denial_here(&key, mode, began))),
        },
    };
    let limit = terms.wait_timeout.map(|limit| began.after(limit));
    let tries = tries(engine, patience, began);
    let mut acquisition = Acquisition::new(engine, key, mode, wants, terms.reentry, (entry, permit), tries);
    acquisition.arming = terms.at_least.map(|span| Box::new(Arming::new(span)));
    acquisition.until_its_end(limit, patience).await
}

/// Longest time between two polls of a leader whose task runs. The leader waits for one answer, or for its heartbeat.
fn grace(engine: &Engine) -> Duration {
    HEARTBEAT + engine.options().response_timeout * 2
}

/// Returns the tries of an acquisition that begins now. A caller that wants one answer waits through an outage for at most
/// twice the response timeout.
fn tries(engine: &Engine, patience: Patience, began: Moment) -> Tries {
    let options = engine.options();
    let bears = match patience {
        Patience::Wait => options.unreachable_after,
        Patience::AskOnce => options.unreachable_after.min(options.response_timeout * 2),
    };
    Tries::new(began, bears)
}

/// Nests in a hold of the same owner, if it has one.
fn join_own(engine: &Arc<Engine>, key: &Key, wants: ShareRequest, mode: Mode, now: Moment) -> Result<Option<Held>> {
    let Some(hold) = engine.table.held_by(key, wants.owner, now) else {
        return Ok(None);
    };
    if hold.mode() == Mode::Read && mode == Mode::Write {
        return Err(Error::UpgradeConflict { lock: key.shared_name() });
    }
    // It may want the hold for longer than the others do.
    let share_id = hold.join_own(wants.from(now), now);
    Ok(share_id.map(|share_id| Held::new(engine, hold, share_id)))
}

/// Resolves when the wait is over: at the limit, but not before the first attempt is over. This is the attempt of the
/// acquisition itself, or that of the leader of its side. An attempt may wait for a permit behind many others. Then the wait
/// is over twice the response timeout after the limit, and it is no outage if the node answers other requests. A cached hold
/// must not refuse the acquisition, so the process that caches it gets its time to release it.
async fn limit_of(engine: &Engine, key: &Key, listening: &FirstAnswer, limit: Moment, attempts: &Attempts) -> WaitEnd {
    at(engine, limit).await;
    let shown = async {
        listening.first_answer().await;
        attempts.first_over().await;
    };
    tokio::select! {
        biased;
        () = Box::pin(shown) => {}
        () = at(engine, limit.after(engine.options().response_timeout * 2)) => match engine.scheme.contact(key) {
            ServerContact { served: Some(served), is_silent: false } if served >= limit => {}
            _ => return WaitEnd::Silence,
        },
    }
    if let Some(until) = listening.recall_until() {
        at(engine, until).await;
    }
    WaitEnd::Limit
}

/// Resolves when the node has answered no request for twice the response timeout, counted from `began`, or from the end of
/// the time that recalled holders have to reply.
async fn silence_of(engine: &Engine, key: &Key, listening: &FirstAnswer, began: Moment) -> WaitEnd {
    let patience = engine.options().response_timeout * 2;
    let mut until = began.after(patience);
    loop {
        at(engine, until).await;
        match engine.scheme.contact(key) {
            ServerContact { served: Some(served), is_silent: false } if served.after(patience) > until => {
                until = served.after(patience);
            }
            _ => match listening.recall_until() {
                Some(called) if called.after(patience) > until => until = called.after(patience),
                _ => return WaitEnd::Silence,
            },
        }
    }
}

/// Returns the longest time that a caller which gives up waits until its request is withdrawn.
fn withdrawal_span(engine: &Engine) -> Duration {
    engine.options().response_timeout * 2
}

/// Waits until the attempt that is under way is over, and returns its result if that ends the acquisition. No further
/// attempt begins.
async fn heard_out<T>(
    engine: &Engine,
    mut run: Pin<&mut impl Future<Output = T>>,
    attempts: &Attempts,
    until: Moment,
) -> Option<T> {
    tokio::select! {
        biased;
        result = &mut run => Some(result),
        () = attempts.stop() => None,
        () = at(engine, until) => None,
    }
}

/// Resolves at this moment. For most callers it is `NEVER`, and then no timer is allocated.
async fn at(engine: &Engine, moment: Moment) {
    if moment == Moment::NEVER {
        std::future::pending().await
    }
    Box::pin(engine.clock.sleep_until(moment)).await;
}

/// Checks that the engine is still open. A grant that came after `close` has listed the holds is released here.
fn hand_out(engine: &Engine, key: &Key, held: Option<Held>) -> Result<Option<Held>> {
    let checked = engine.check_open(key);
    if let (Err(_), Some(held)) = (&checked, &held)
        && held.hold().lose(LossReason::Closed)
    {
        engine.release_in_background(held.hold());
    }
    checked.map(|()| held)
}

/// Acquisition in progress. Its drop withdraws its request, which the cell keeps for its entry.
struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    wants: ShareRequest,
    reentry: Reentry,
    entry: Option<WaitEntry>,
    notices: Notifications,
    /// Time of the server in its last answer. A grant before that time would have been in the answer.
    answered_at: ServerTime,
    began: Moment,
    /// True after the log line about an acquisition that waits for its own hold.
    warned: bool,
    /// Requests without an answer, since the last answer or since the acquisition began.
    tries: Tries,
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
    /// Present for `at_least`.
    arming: Option<Box<Arming>>,
    /// Counts the acquisition among those of the manager that are in progress.
    _permit: WaiterPermit<'a>,
}

impl<'a> Acquisition<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        key: Arc<Key>,
        mode: Mode,
        wants: ShareRequest,
        reentry: Reentry,
        (entry, permit): (WaitEntry, WaiterPermit<'a>),
        tries: Tries,
    ) -> Self {
        Self {
            engine,
            key,
            mode,
            wants,
            reentry,
            entry: Some(entry),
            notices: Notifications::default(),
            answered_at: ServerTime::default(),
            began: tries.since,
            warned: false,
            tries,
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
            arming: None,
            _permit: permit,
        }
    }

    /// Runs until the lock is granted, or until the wait ends without a grant. A caller that gives up gets its error when its
    /// request is withdrawn.
    async fn until_its_end(&mut self, limit: Option<Moment>, patience: Patience) -> Result<Result<Held, Box<Denied>>> {
        let engine = self.engine;
        let given_up = match self.run_within(limit, patience).await {
            AcquireEnd::Over(result) => {
                let held = match &self.arming {
                    // The arming has checked that the engine is open.
                    Some(_) => result?,
                    None => hand_out(engine, &self.key, result?)?,
                };
                let Some(held) = held else {
                    return Ok(Err(self.refused().await?));
                };
                if self.holder.is_some() {
                    self.tell_of_wait(WaitEnds::Granted);
                }
                return Ok(Ok(held));
            }
            AcquireEnd::GivesUp(given_up) => given_up,
        };
        let lock = self.key.shared_name();
        if given_up.why == WaitEnd::Closed {
            return Err(Error::Closed { lock });
        }
        let waited = given_up.at.since(self.began);
        // A later failure is that of an attempt under way at the limit. It leaves a request in doubt, and is no outage.
        let failure = self.last_failure.take().filter(|(at, _)| *at <= given_up.at);
        if failure.is_some() || given_up.why == WaitEnd::Silence || given_up.outage.is_some() {
            // A waiter that has sent no request names the failure of its leader.
            let of_asker = given_up.outage.and_then(|outage| outage.source);
            return Err(Error::unreachable(lock, waited, failure.map(|(_, source)| source).or(of_asker)));
        }
        self.tell_of_wait(WaitEnds::InVain);
        // Read before the entry is removed, because the cell keeps the refusals while a waiter is there.
        let denied = self.denial();
        let confirmed = Box::pin(self.withdraw(given_up.answer_by)).await == Withdrawn::Surely;
        Err(Error::WaitTimeout { lock, waited, confirmed, denied })
    }

    /// Returns the refusal that ends a try. Withdraws a place in the queue first, if the try has one or may have one.
    async fn refused(&mut self) -> Result<Box<Denied>> {
        let denied = self.denial();
        if self.has_left_nothing() {
            return Ok(denied);
        }
        let (engine, now) = (self.engine, self.engine.clock.now());
        match Box::pin(self.withdraw(now.after(withdrawal_span(engine)))).await {
            Withdrawn::Surely => Ok(denied),
            Withdrawn::Perhaps => {
                let (lock, waited) = (self.key.shared_name(), engine.clock.now().since(self.began));
                Err(Error::WaitTimeout { lock, waited, confirmed: false, denied })
            }
        }
    }

    /// Runs until the acquisition is over, or until its limit. It waits for the end of an attempt that is under way at the limit:
    /// a grant counts, and a request that the server may still carry out cannot be withdrawn for good.
    async fn run_within(&mut self, limit: Option<Moment>, patience: Patience) -> AcquireEnd {
        let (engine, began) = (self.engine, self.began);
        let Some(listening) = self.entry.as_ref().map(WaitEntry::awaited_first_answer) else {
            return AcquireEnd::Over(Ok(None));
        };
        let limited = limit.map(|limit| (limit, Arc::clone(self.attempts.insert(Arc::default()))));
        let key = Arc::clone(&self.key);
        let impatience = async {
            match (&limited, patience) {
                (None, Patience::Wait) => std::future::pending().await,
                (None, Patience::AskOnce) => Box::pin(silence_of(engine, &key, &listening, began)).await,
                (Some((limit, attempts)), Patience::Wait) => {
                    Box::pin(limit_of(engine, &key, &listening, *limit, attempts)).await
                }
                (Some((limit, attempts)), Patience::AskOnce) => {
                    Box::pin(async {
                        tokio::select! {
                            biased;
                            end = silence_of(engine, &key, &listening, began) => end,
                            end = limit_of(engine, &key, &listening, *limit, attempts) => end,
                        }
                    })
                    .await
                }
            }
        };
        let mut run = std::pin::pin!(self.run(patience));
        // Biased, so that a grant counts even if the limit has passed too.
        let why = tokio::select! {
            biased;
            result = &mut run => return AcquireEnd::Over(result),
            () = engine.closing.closed() => WaitEnd::Closed,
            end = impatience => end,
        };
        let (at, outage) = (engine.clock.now(), listening.outage());
        let counts_from = limit.max(listening.recall_until()).unwrap_or(at);
        let answer_by = counts_from.after(withdrawal_span(engine));
        if let (WaitEnd::Limit, Some((_, attempts))) = (why, &limited)
            && let Some(result) = Box::pin(heard_out(engine, run, attempts, answer_by)).await
        {
            return AcquireEnd::Over(result);
        }
        AcquireEnd::GivesUp(GivesUp { why, at, outage, answer_by })
    }

    async fn run(&mut self, patience: Patience) -> Result<Option<Held>> {
        loop {
            let Some(held) = self.run_to_hold(patience).await? else {
                return Ok(None);
            };
            if self.arming.is_none() {
                return Ok(Some(held));
            }
            if let Some(held) = Box::pin(self.arm(held, patience)).await? {
                return Ok(Some(held));
            }
        }
    }

    /// Runs until it has a share of a hold.
    async fn run_to_hold(&mut self, patience: Patience) -> Result<Option<Held>> {
        loop {
            while !self.entry.as_ref().is_none_or(WaitEntry::is_leader) {
                if let Some(held) = Box::pin(self.signalled(patience)).await? {
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
            match (self.pursue(patience).await?, patience) {
                // One answer is enough, also for a guard that starts with little.
                (Pursued::Granted(held), _) if self.entry.is_none() || patience == Patience::AskOnce => {
                    self.entry = None;
                    return Ok(Some(held));
                }
                (Pursued::Granted(held), _) => {
                    if let Some(held) = Box::pin(self.accept(held, patience)).await? {
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
        let (table, now) = (&self.engine.table, self.engine.clock.now());
        let Some(entry) = &mut self.entry else {
            return;
        };
        if !entry.waits_again(now) {
            *entry = table.enter(&self.key, self.mode, self.wants, grace(self.engine), now);
        }
    }

    /// Counts an attempt as under way, if the acquisition has a limit.
    fn begin_underway(&self) -> Option<UnderwayAttempt> {
        self.attempts.clone().map(Attempts::begin)
    }

    /// Never resolves if this acquisition gives up, so that it sends no further request.
    async fn asks_on(&self) {
        if self.attempts.as_ref().is_some_and(|attempts| attempts.has_stopped.load(Ordering::Acquire)) {
            std::future::pending().await
        }
    }

    /// Withdraws a request in the background. Returns the moment until which the server may have a hold or a place of it.
    fn cancel(&self, mut pending: Pending) -> Option<Moment> {
        // Declared first, so that the release is counted before the request stops to count.
        let _unsettled = self.engine.releases.unsettled_of(&mut pending);
        if pending.is_unknown_to_server() {
            return None;
        }
        let release = self.release_of(&pending);
        let server_until = release.server_until;
        self.engine.releases.take_back_from_here(release, self.engine.clock.now());
        Some(server_until)
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        if self.engine.is_copied() {
            // After a fork the entry belongs to the parent process.
            std::mem::forget(self.entry.take());
            return;
        }
        if let Some(left) = self.leave() {
            self.give_back(left);
        }
    }
}
