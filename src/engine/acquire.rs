//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Everybody else waits for its turn in this process, then asks the
//! server. Whoever cannot be granted there waits in the server's queue, repeats the question as a heartbeat, and starts as
//! soon as a notification says that it was granted; a scheme without a queue is asked again with jittered pauses. An attempt
//! without an answer is repeated under the same id, which counts once however many copies arrive. A future that is dropped
//! leaves what it has under way to the next waiter of its process; without one it is taken back in the background.

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

/// A waiter in the server's queue is heard of at least so often.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// How an acquisition treats a lock that others hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Wait,
    /// One answer is enough.
    AskOnce,
}

/// Why an acquisition ends without a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum WaitEnd {
    Closed,
    /// There was no answer to whoever wanted one.
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
    /// Present if the server did not answer for this side of the lock then.
    outage: Option<SideOutage>,
    /// Latest moment at which the caller is told.
    answer_by: Moment,
}

/// Attempts of an acquisition with a limit, as its limit sees them. Before the first is over a limit cannot tell a denial from a
/// silence, and one that is under way when the acquisition gives up is heard out.
#[derive(Debug, Default)]
struct Attempts {
    /// A share that was handed over may need a renewal while its acquisition counts as under way.
    underway: AtomicUsize,
    is_first_over: AtomicBool,
    has_stopped: AtomicBool,
    over: Notify,
}

/// An attempt. Dropped, it is over.
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

    /// Lets no further attempt begin, and returns when none is under way.
    async fn stop(&self) {
        self.has_stopped.store(true, Ordering::Release);
        while self.is_underway() {
            self.over.notified().await;
        }
    }
}

/// A share of a hold that this process has, if it may be joined without a word to the server.
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

/// Takes the lock. `None` only if the caller wants one answer and that was no.
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

/// Takes the lock, or returns the refusal if the caller wants one answer and that was no.
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
        return if terms.at_least.is_some() { Err(arm::nested()) } else { Ok(Ok(held)) };
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
            None => return Ok(Err(engine.denied_here(&key, mode, began))),
        },
    };
    let limit = terms.wait_timeout.map(|limit| began.after(limit));
    let tries = tries(engine, patience, began);
    let mut acquisition = Acquisition::new(engine, key, mode, wants, terms.reentry, (entry, permit), tries);
    acquisition.arming = terms.at_least.map(|span| Box::new(Arming::new(span)));
    acquisition.until_its_end(limit, patience).await
}

/// An asker whose future is polled is seen again within this time: it waits for one answer, or for its heartbeat.
fn grace(engine: &Engine) -> Duration {
    HEARTBEAT + engine.options().response_timeout * 2
}

/// Tries of an acquisition that begins now. A caller that wants one answer bears no silence for longer than two take.
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

/// Returns when the wait is over: at the limit, but not before the first attempt has shown what there is to wait for, its own or
/// that of whoever asks for this side of the lock before it. These may wait for room behind many others: then it is over when
/// it takes longer than two answers, and it is no silence if the node answers others. Nobody is refused by a hold that nobody is
/// inside of: whoever keeps the lock elsewhere has time to give it up.
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

/// Returns when the node has answered nobody for as long as it takes to ask twice, from `began` on, or since whoever was called had
/// time to say a word.
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

/// Returns the longest time that a caller which gives up waits for its own place to be taken back.
fn withdrawal_span(engine: &Engine) -> Duration {
    engine.options().response_timeout * 2
}

/// Hears out the attempt that is under way, and returns its result if that ends the acquisition. No further attempt begins.
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

/// Returns at this moment. Mostly that is never: then there is no room for a timer either.
async fn at(engine: &Engine, moment: Moment) {
    if moment == Moment::NEVER {
        std::future::pending().await
    }
    Box::pin(engine.clock.sleep_until(moment)).await;
}

/// A grant that crossed with `close` is given back: `close` has listed its holds already.
fn hand_out(engine: &Engine, key: &Key, held: Option<Held>) -> Result<Option<Held>> {
    let checked = engine.check_open(key);
    if let (Err(_), Some(held)) = (&checked, &held)
        && held.hold().lose(LossReason::Closed)
    {
        engine.release_in_background(held.hold());
    }
    checked.map(|()| held)
}

/// One acquisition on its way: what the steps need, and what is to be taken back if it is dropped. What it has under way on the
/// server is with its entry.
struct Acquisition<'a> {
    engine: &'a Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    wants: ShareRequest,
    reentry: Reentry,
    entry: Option<WaitEntry>,
    notices: Notifications,
    /// The server's time in the last answer: what it granted before that, the answer would have told.
    answered_at: ServerTime,
    began: Moment,
    /// Of waiting for itself.
    warned: bool,
    /// Without an answer: since the last one came, else since it began.
    tries: Tries,
    last_failure: Option<(Moment, Source)>,
    /// Begin of the time in which the server has answered only that requests were late.
    late_since: Option<Moment>,
    /// Moment until which the server may have something of an earlier request, which the background takes back.
    earlier_until: Option<Moment>,
    /// Present where there is a limit.
    attempts: Option<Arc<Attempts>>,
    /// Label of the holder when it had waited long, if that is to be told.
    holder: Option<Box<Option<String>>>,
    /// Whether the hold may stay. Known when the server is asked.
    may_stay: Option<bool>,
    /// What the last attempt has said of that.
    keeping: Option<Box<CacheRequest>>,
    /// It tries, and somebody has the lock who may not be inside: until then it waits for the word.
    calls_until: Option<Moment>,
    /// Until then, and asks for the last time.
    has_heard_nothing: bool,
    /// Bounds the requests that notifications cause.
    told_to_ask: Throttle,
    /// Present if the lock is to stay taken for a time at least.
    arming: Option<Box<Arming>>,
    /// Its place among those of the manager that are under way.
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

    /// Runs until it is granted, or it is no use to wait any longer. A caller that gives up is told so when nothing is left of it.
    async fn until_its_end(&mut self, limit: Option<Moment>, patience: Patience) -> Result<Result<Held, Box<Denied>>> {
        let engine = self.engine;
        let given_up = match self.run_within(limit, patience).await {
            AcquireEnd::Over(result) => {
                let held = match &self.arming {
                    // It was marked as handed out already.
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
        // What failed later was under way at the limit: then it is in doubt, and no silence.
        let failure = self.last_failure.take().filter(|(at, _)| *at <= given_up.at);
        if failure.is_some() || given_up.why == WaitEnd::Silence || given_up.outage.is_some() {
            // A waiter that has not asked itself names the failure of the asker.
            let of_asker = given_up.outage.and_then(|outage| outage.source);
            return Err(Error::unreachable(lock, waited, failure.map(|(_, source)| source).or(of_asker)));
        }
        self.tell_of_wait(WaitEnds::InVain);
        // Before the place here is given up, as the refusals are with it.
        let denied = self.denied();
        let confirmed = Box::pin(self.withdraw(given_up.answer_by)).await == Withdrawn::Surely;
        Err(Error::WaitTimeout { lock, waited, confirmed, denied })
    }

    /// The one answer was no. A place that it took, or may have taken, is taken back first.
    async fn refused(&mut self) -> Result<Box<Denied>> {
        let denied = self.denied();
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

    /// Runs until it is over, or the caller is not to wait any longer. An attempt that is under way at the limit is heard out:
    /// what it brings counts, and as long as it may yet be carried out nothing can be taken back for good.
    async fn run_within(&mut self, limit: Option<Moment>, patience: Patience) -> AcquireEnd {
        let (engine, began) = (self.engine, self.began);
        let Some(listening) = self.entry.as_ref().map(WaitEntry::awaited_first_answer) else {
            return AcquireEnd::Over(Ok(None));
        };
        let limited = limit.map(|limit| (limit, Arc::clone(self.attempts.insert(Arc::default()))));
        let key = Arc::clone(&self.key);
        let impatience = async {
            match (&limited, patience) {
                // As most do.
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
        // Biased: a grant that is there counts, whatever else is due.
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

    /// What it was called for came to nothing: it waits, as others do.
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

    /// Marks an attempt as under way, for a limit.
    fn begin_underway(&self) -> Option<UnderwayAttempt> {
        self.attempts.clone().map(Attempts::begin)
    }

    /// Never returns if this acquisition gives up: then it asks for nothing more.
    async fn asks_on(&self) {
        if self.attempts.as_ref().is_some_and(|attempts| attempts.has_stopped.load(Ordering::Acquire)) {
            std::future::pending().await
        }
    }

    /// Takes back what an acquisition may have left on the server, while nobody waits for that. Returns until when it may be there.
    fn cancel(&self, mut pending: Pending) -> Option<Moment> {
        // Declared first: what is taken back is counted before it is not counted here any more.
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
            // Its place is the other process's.
            std::mem::forget(self.entry.take());
            return;
        }
        if let Some(left) = self.leave() {
            self.give_back(left);
        }
    }
}
