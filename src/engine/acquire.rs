//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Everybody else waits for its turn in this process, then asks the
//! server. Whoever cannot be granted there waits in the server's queue, repeats the question as a heartbeat, and starts as
//! soon as a notification says that it was granted; a scheme without a queue is asked again with jittered pauses. An attempt
//! without an answer is repeated under the same id, which counts once however many copies arrive. A future that is dropped
//! leaves what it has under way to the next waiter of its process; without one it is taken back in the background.

mod local;
mod own;
mod patience;
mod pending;
mod recheck;
mod wait;

#[cfg(test)]
mod tests;

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

use tokio::sync::Notify;

use crate::engine::keep::Keeping;
use crate::engine::tries::Tries;
use crate::engine::{Engine, Held, in_runtime};
use crate::error::{Error, LossReason, Result, Source};
use crate::key::{Key, LockName};
use crate::lease::{self, Moment, ServerTime};
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{Asking, Notices, Pending};
use crate::lock::wait::{Listening, WaitEntry};
use crate::options::Terms;
use crate::reentry::{OwnerId, Reentry};
use crate::scheme::{Hearing, Mode};

use self::patience::WaitEnds;
use self::pending::Pursued;

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

/// Whether the first attempt of an acquisition is over. Until then a limit cannot tell a denial from a silence.
#[derive(Debug, Default)]
struct FirstAttempt {
    underway: AtomicBool,
    over: Notify,
}

/// The first attempt. Dropped, it is over.
struct UnderwayFirst(Arc<FirstAttempt>);

impl Drop for UnderwayFirst {
    fn drop(&mut self) {
        self.0.underway.store(false, Ordering::Release);
        self.0.over.notify_one();
    }
}

impl FirstAttempt {
    fn begins(self: Arc<Self>) -> UnderwayFirst {
        self.underway.store(true, Ordering::Release);
        UnderwayFirst(self)
    }

    /// Returns at once before and after the first attempt.
    async fn over(&self) {
        while self.underway.load(Ordering::Acquire) {
            self.over.notified().await;
        }
    }
}

/// A share of a hold that this process has, if it may be joined without a word to the server.
#[inline]
pub(crate) fn join(engine: &Engine, name: &LockName, mode: Mode, terms: &Terms) -> Option<(Arc<Hold>, ShareId)> {
    if terms.reentry != Reentry::Off || engine.closing.is_closed() {
        return None;
    }
    let wants = ShareRequest {
        owner: OwnerId::current(),
        lease: terms.lease,
        max_hold: terms.max_hold,
        idle_hold: terms.idle_hold,
    };
    match mode {
        Mode::Read => engine.table.join(name.hashed(), wants, engine.clock.now()),
        Mode::Write => engine.table.take_idle(name.hashed(), wants, engine.clock.now()),
    }
}

/// Takes the lock. `None` only if the caller wants one answer and that was no.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    terms: Terms,
    patience: Patience,
) -> Result<Option<Held>> {
    engine.check_open(&key)?;
    in_runtime()?;
    engine.keep_running();
    let began = engine.clock.now();
    let wants = ShareRequest {
        owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
        lease: terms.lease,
        max_hold: terms.max_hold,
        idle_hold: terms.idle_hold,
    };
    if terms.reentry.owner().is_some()
        && let Some(held) = join_own(engine, &key, wants, mode, began)?
    {
        return Ok(Some(held));
    }
    if mode == Mode::Read
        && let Some((hold, share_id)) = engine.table.join(key.hashed_name(), wants, began)
    {
        return Ok(Some(Held::new(engine, hold, share_id)));
    }
    let grace = grace(engine);
    let (entry, due) = match patience {
        Patience::Wait => engine.table.enter(&key, mode, wants, grace, began),
        Patience::AskOnce => match engine.table.try_enter(&key, mode, wants, grace, began) {
            Some(entry) => entry,
            None => return Ok(None),
        },
    };
    engine.carry_out(due, began);
    let limit = terms.wait_timeout.map(|limit| began.after(limit));
    let mut acquisition = Acquisition::new(engine, key, mode, wants, terms.reentry, entry, began);
    acquisition.until_its_end(limit, patience).await
}

/// An asker whose future is polled is seen again within this time: it waits for one answer, or for its heartbeat.
fn grace(engine: &Engine) -> Duration {
    HEARTBEAT + engine.options().response_timeout * 2
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
    let (share_id, due) = hold.join_own(wants.from(now), now);
    engine.carry_out(due, now);
    Ok(share_id.map(|share_id| Held::new(engine, hold, share_id)))
}

/// Returns when the wait is over: at the limit, but not before the first attempt has shown what there is to wait for, its own or
/// that of whoever asks for this side of the lock before it. These may wait for room behind many others: then it is over when
/// it takes longer than two answers, and it is no silence if the node answers others. Nobody is refused by a hold that nobody is
/// inside of: whoever keeps the lock elsewhere has time to give it up.
async fn limit_of(
    engine: &Engine,
    key: &Key,
    listening: &Listening,
    limit: Moment,
    first: Option<Arc<FirstAttempt>>,
) -> WaitEnd {
    at(engine, limit).await;
    let shown = async {
        listening.heard().await;
        if let Some(first) = first {
            first.over().await;
        }
    };
    tokio::select! {
        biased;
        () = Box::pin(shown) => {}
        () = at(engine, limit.after(engine.options().response_timeout * 2)) => match engine.scheme.hearing(key) {
            Hearing { served: Some(served), is_silent: false } if served >= limit => {}
            _ => return WaitEnd::Silence,
        },
    }
    if let Some(until) = listening.called_until() {
        at(engine, until).await;
    }
    WaitEnd::Limit
}

/// Returns when the node has answered nobody for as long as it takes to ask twice, from `began` on, or since whoever was called had
/// time to say a word.
async fn silence_of(engine: &Engine, key: &Key, listening: &Listening, began: Moment) -> WaitEnd {
    let patience = engine.options().response_timeout * 2;
    let mut until = began.after(patience);
    loop {
        at(engine, until).await;
        match engine.scheme.hearing(key) {
            Hearing { served: Some(served), is_silent: false } if served.after(patience) > until => {
                until = served.after(patience);
            }
            _ => match listening.called_until() {
                Some(called) if called.after(patience) > until => until = called.after(patience),
                _ => return WaitEnd::Silence,
            },
        }
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
    notices: Notices,
    /// The server's time in the last answer: what it granted before that, the answer would have told.
    answered_at: ServerTime,
    began: Moment,
    /// Of waiting for itself.
    warned: bool,
    /// Without an answer: since the last one came, else since it began.
    tries: Tries,
    last_failure: Option<Source>,
    /// Present until it has begun.
    first: Option<Arc<FirstAttempt>>,
    /// Present when it has waited long, and that is to be told.
    holder: Option<Arc<OnceLock<String>>>,
    /// Whether the hold may stay. Known when the server is asked.
    may_stay: Option<bool>,
    /// What the last attempt has said of that.
    keeping: Option<Box<Keeping>>,
    /// It tries, and somebody has the lock who may not be inside: until then it waits for the word.
    calls_until: Option<Moment>,
    /// Until then, and asks for the last time.
    has_heard_nothing: bool,
}

impl<'a> Acquisition<'a> {
    fn new(
        engine: &'a Arc<Engine>,
        key: Arc<Key>,
        mode: Mode,
        wants: ShareRequest,
        reentry: Reentry,
        entry: WaitEntry,
        began: Moment,
    ) -> Self {
        Self {
            engine,
            key,
            mode,
            wants,
            reentry,
            entry: Some(entry),
            notices: Notices::default(),
            answered_at: ServerTime::default(),
            began,
            warned: false,
            tries: Tries::new(began, engine.options().unreachable_after),
            last_failure: None,
            first: None,
            holder: None,
            may_stay: None,
            keeping: None,
            calls_until: None,
            has_heard_nothing: false,
        }
    }

    /// Runs until it is granted, or it is no use to wait any longer.
    async fn until_its_end(&mut self, limit: Option<Moment>, patience: Patience) -> Result<Option<Held>> {
        let (engine, began) = (self.engine, self.began);
        let Some(listening) = self.entry.as_ref().map(WaitEntry::listening) else {
            return Ok(None);
        };
        let first = limit.map(|_| Arc::clone(self.first.insert(Arc::default())));
        let key = Arc::clone(&self.key);
        let impatience = async {
            match (limit, patience) {
                // As most do.
                (None, Patience::Wait) => std::future::pending().await,
                (None, Patience::AskOnce) => Box::pin(silence_of(engine, &key, &listening, began)).await,
                (Some(limit), Patience::Wait) => Box::pin(limit_of(engine, &key, &listening, limit, first)).await,
                (Some(limit), Patience::AskOnce) => {
                    Box::pin(async {
                        tokio::select! {
                            biased;
                            end = silence_of(engine, &key, &listening, began) => end,
                            end = limit_of(engine, &key, &listening, limit, first) => end,
                        }
                    })
                    .await
                }
            }
        };
        // Biased: a grant that is there counts, whatever else is due. Dropping the acquisition takes back what it left.
        let end = tokio::select! {
            biased;
            result = self.run(patience) => {
                let held = hand_out(engine, &self.key, result?)?;
                if self.holder.is_some() {
                    self.tell_of_wait(WaitEnds::Granted);
                }
                return Ok(held);
            }
            () = engine.closing.closed() => WaitEnd::Closed,
            end = impatience => end,
        };
        let lock = self.key.shared_name();
        if end == WaitEnd::Closed {
            return Err(Error::Closed { lock });
        }
        let waited = engine.clock.now().since(began);
        let source = self.last_failure.take();
        if source.is_some() || end == WaitEnd::Silence || listening.silent_since().is_some() {
            return Err(Error::unreachable(lock, waited, source));
        }
        self.tell_of_wait(WaitEnds::InVain);
        Err(Error::WaitTimeout { lock, waited })
    }

    async fn run(&mut self, patience: Patience) -> Result<Option<Held>> {
        loop {
            while !self.entry.as_ref().is_none_or(WaitEntry::asks) {
                if let Some(held) = Box::pin(self.called(patience)).await? {
                    return Ok(Some(held));
                }
            }
            if self.engine.holds_may_stay() {
                if let Some(held) = Box::pin(self.turn_own(patience)).await? {
                    return Ok(Some(held));
                }
                // What was turned was over before anybody could begin with it: it waits again.
                if !self.entry.as_ref().is_none_or(WaitEntry::asks) {
                    continue;
                }
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
                    if let Some(held) = Box::pin(self.accepted(held, patience)).await? {
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
        self.notices = Notices::Unwanted;
        let (table, now) = (&self.engine.table, self.engine.clock.now());
        let Some(entry) = &mut self.entry else {
            return;
        };
        let (is_here, due) = entry.waits_again(now);
        self.engine.carry_out(due, now);
        if !is_here {
            let (anew, due) = table.enter(&self.key, self.mode, self.wants, grace(self.engine), now);
            *entry = anew;
            self.engine.carry_out(due, now);
        }
    }

    /// Takes back what an acquisition may have left on the server.
    fn cancel(&self, pending: Pending) {
        if pending.is_traceless() {
            return;
        }
        let now = self.engine.clock.now();
        let stray_until = pending.copies.until(now.after(self.engine.stray_span()));
        let covers = lease::surely_over(self.wants.lease.min(self.wants.max_hold), self.engine.options().clock_margin);
        let release = Release {
            key: Arc::clone(&self.key),
            id: pending.id.clone(),
            server_until: stray_until.unwrap_or(now).max(now).after(covers),
            stray_until,
        };
        self.engine.releases.in_background(release, None);
        // `pending.keeps_open` goes now: what was taken back has been counted.
    }
}

impl Drop for Acquisition<'_> {
    fn drop(&mut self) {
        let Some(entry) = self.entry.take() else {
            return;
        };
        let now = self.engine.clock.now();
        let asking = Asking { notices: std::mem::take(&mut self.notices), backoff: self.tries.backoff };
        let (leaving, due) = entry.leave(asking, now);
        self.engine.carry_out(due, now);
        drop(leaving.needless);
        if let Some(pending) = leaving.pending {
            self.cancel(pending);
        }
        if let Some((hold, share_id)) = leaving.handed {
            drop(Held::new(self.engine, hold, share_id));
        }
    }
}
