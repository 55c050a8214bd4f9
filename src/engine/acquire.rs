//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Any other acquisition waits on its side of the lock. If the side has
//! no requester, the task of the acquisition becomes it, and sends the copies of the side's request. If the server does not
//! grant it, the request waits in the server's queue, and the requester repeats it as a heartbeat. A notification says that
//! the server has granted the lock. Without a queue the requester repeats the request after jittered pauses. A request without
//! an answer is repeated under the same id, which counts once however many copies arrive. If the future of an acquisition is
//! dropped, the request stays for the other waiters of the side. Without another waiter, it is withdrawn.

mod accept;
mod arm;
mod denial;
mod limits;
mod local;
mod patience;
pub(super) mod request;
mod waiting;
mod withdraw;

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/acquire/tests.rs"]
mod tests;

use std::future::ready;
use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::task::Poll;
use std::time::Duration;

use crate::base::denied::Denied;
use crate::base::error::{Error, LossReason, Result};
use crate::base::key::{Key, LockName};
use crate::base::lease::Moment;
use crate::base::options::Terms;
use crate::base::reentry::{OwnerId, Reentry};
use crate::engine::{Engine, Held};
use crate::lock::hold::Hold;
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::Awaits;
use crate::lock::wait::{RequesterEntry, WaitEntry};
use crate::store::{BoxFuture, Failure, Mode};

pub(crate) use crate::lock::side::Patience;

use self::arm::Arming;
use self::limits::{GivesUp, WaitEnd, given_up, withdrawal_span};
use self::local::{Entered, LocalSignal, LocalWaiter, Looks, enter};
use self::patience::{KeptOutBy, WaitEnds};
use self::request::{CopyOutcome, Requesting, Rest};
use self::waiting::{FirstWait, WaitOutcome, Waiting};
use self::withdraw::Withdrawn;

/// Longest time between two requests of a waiter in the server's queue.
pub(super) const HEARTBEAT: Duration = Duration::from_secs(1);

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
        Entered::Waits(waiter) if waiter.is_requester() => run(waiter, None, after),
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
fn run(waiter: LocalWaiter, first: Option<WaitOutcome>, after: AfterGrant) -> StartedAcquire {
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

/// Acquisition from its first request or share on. Its drop removes its entry, and withdraws a request that no other waiter
/// needs.
struct Acquisition {
    waiter: LocalWaiter,
    /// Requester of the side, while it is the task of this acquisition. Dropped after the waiter, so that a waiter that leaves
    /// does not become the requester again.
    request: Option<Requesting>,
    /// Share that the acquisition has not taken yet, or whose hold it arms. It is here and not in the future that waits for
    /// a renewal, so that an acquisition that gives up can wait for its release.
    share: Option<Held>,
    /// Moment until which the server may have the hold of a share that was over before it was taken.
    earlier_until: Option<Moment>,
    /// Present if the acquisition has waited for long, for the log line about the wait.
    kept_out_by: Option<Box<KeptOutBy>>,
    /// Present for `at_least`.
    arming: Option<Box<Arming>>,
}

impl Deref for Acquisition {
    type Target = LocalWaiter;

    fn deref(&self) -> &LocalWaiter {
        &self.waiter
    }
}

impl Acquisition {
    fn new(waiter: LocalWaiter, arming: Option<Box<Arming>>) -> Self {
        Self { waiter, request: None, share: None, earlier_until: None, kept_out_by: None, arming }
    }

    /// Runs until the lock is granted, or until the wait ends without a grant. A caller that gives up gets its error when its
    /// request is withdrawn.
    async fn until_its_end(&mut self, first: Option<WaitOutcome>) -> AcquireOutcome {
        let mut end = first;
        loop {
            let signal = match end.take() {
                Some(WaitOutcome::Signal(signal)) => signal,
                Some(WaitOutcome::GivesUp(given_up)) => return Err(Box::pin(self.give_up(*given_up)).await),
                None => {
                    end = Some(self.next_end().await?);
                    continue;
                }
            };
            let held = match signal {
                LocalSignal::Granted(held) => held,
                LocalSignal::Handed(handed) => match Box::pin(self.take_handed(*handed)).await? {
                    Taken::Guard(held) => held,
                    Taken::Nothing => continue,
                    Taken::GivesUp(given_up) => {
                        end = Some(WaitOutcome::GivesUp(given_up));
                        continue;
                    }
                },
                LocalSignal::PlaceLost => {
                    end = self.enter_again_in_time();
                    continue;
                }
                LocalSignal::Denied => return Ok(Err(Box::pin(self.refused()).await?)),
                LocalSignal::Failed(failure) => return Err(self.error_of(failure)),
                LocalSignal::Requests(entry) => {
                    end = self.request_in_time(entry).await?;
                    continue;
                }
            };
            match self.finish(held).await? {
                Taken::Guard(held) => return Ok(Ok(held)),
                Taken::Nothing => {}
                Taken::GivesUp(given_up) => end = Some(WaitOutcome::GivesUp(given_up)),
            }
        }
    }

    /// Completes an acquisition that has a share.
    async fn finish(&mut self, held: Held) -> Result<Taken> {
        let held = if self.arming.is_some() {
            // The arming has checked that the engine is open.
            match Box::pin(self.arm_within(held)).await? {
                Taken::Guard(held) => held,
                other => return Ok(other),
            }
        } else {
            check_still_open(&self.engine, &self.key, Some(&held))?;
            held
        };
        if let Some(kept_out_by) = self.kept_out_by.take() {
            self.waiter.tell_of_wait(&kept_out_by, WaitEnds::Granted);
        }
        Ok(Taken::Guard(held))
    }

    /// Sends the copies of the side's request, if this task is the requester. Otherwise waits for the next signal.
    async fn next_end(&mut self) -> Result<WaitOutcome> {
        if self.entry.is_none() {
            // A waiter of this process is before the try by now.
            return Ok(WaitOutcome::Signal(LocalSignal::Denied));
        }
        let requester = self.waiter.entry.as_mut().and_then(WaitEntry::take_requester);
        if let Some(requester) = requester
            && let Some(end) = self.request(Requesting::new(&self.waiter.engine, requester)).await?
        {
            return Ok(end);
        }
        let mut waiting = Waiting::new(&self.waiter);
        std::future::poll_fn(|cx| waiting.poll_end(&mut self.waiter, cx)).await
    }

    /// Becomes the requester of its side, unless the manager is closed, or its limit has passed after an answer.
    async fn request_in_time(&mut self, entry: RequesterEntry) -> Result<Option<WaitOutcome>> {
        if self.engine.closing.is_closed() {
            return Ok(Some(WaitOutcome::GivesUp(Box::new(GivesUp::at_close(self.engine.now())))));
        }
        let side = self.entry.as_ref().map(WaitEntry::side);
        let is_answered = side.is_none_or(|side| side.awaits() != Awaits::FirstAnswer);
        // Without a waiter, this one has a share, and the requester only withdraws the request.
        let is_due = is_answered && entry.wants().is_some();
        match self.gives_up_at_limit().filter(|_| is_due) {
            None => {
                let requesting = Requesting::new(&self.waiter.engine, entry).after(self.outage());
                Box::pin(self.request(requesting)).await
            }
            given_up => Ok(given_up),
        }
    }

    /// Sends the copies of the side's request, until this task has the lock or another reason to end. A limit waits for the
    /// first answer. Returns `None` if the task is the requester no more, and waits on.
    async fn request(&mut self, requesting: Requesting) -> Result<Option<WaitOutcome>> {
        let mut impatience = self.waiter.impatience();
        let engine = &self.waiter.engine;
        let requesting = self.request.insert(requesting);
        // Biased, so that a grant counts even if the limit has passed too.
        let step = tokio::select! {
            biased;
            step = requesting.step_in_sight() => step,
            given_up = given_up(engine, &mut impatience) => {
                let Some(signalled) = self.look_again().await else {
                    return Ok(Some(WaitOutcome::GivesUp(Box::new(given_up))));
                };
                self.request = None;
                return Ok(Some(signalled));
            }
        };
        match step {
            CopyOutcome::Rests(rest) => Box::pin(self.request_again(rest)).await,
            CopyOutcome::Granted(held) => {
                self.request = None;
                self.waiter.entry = None;
                Ok(Some(WaitOutcome::Signal(LocalSignal::Granted(held))))
            }
            CopyOutcome::NotNeeded => {
                self.request = None;
                Ok(None)
            }
        }
    }

    /// Sends further copies, and waits for a share as the other waiters do.
    async fn request_again(&mut self, rest: Rest) -> Result<Option<WaitOutcome>> {
        let Some(requesting) = &mut self.request else { return Ok(None) };
        let mut waiting = Waiting::new(&self.waiter);
        let waiter = &mut self.waiter;
        let end = tokio::select! {
            biased;
            () = requesting.go_on(rest) => None,
            end = std::future::poll_fn(|cx| waiting.poll_end(waiter, cx)) => Some(end?),
        };
        if let None | Some(WaitOutcome::Signal(_)) = end {
            self.request = None;
        }
        Ok(end)
    }

    /// Waits again after the loss of its place, unless its limit has passed.
    fn enter_again_in_time(&mut self) -> Option<WaitOutcome> {
        let given_up = self.gives_up_at_limit();
        if given_up.is_none() {
            self.waiter.enter_again();
        }
        given_up
    }

    /// Returns the end of the wait if the limit has passed, because no request is sent after the limit, unless a recalled
    /// process still has time to release a cached hold.
    fn gives_up_at_limit(&self) -> Option<WaitOutcome> {
        let now = self.engine.now();
        let recall_until = self.entry.as_ref().and_then(|entry| entry.side().recall_until());
        self.limit.filter(|limit| *limit <= now && recall_until.is_none_or(|until| until <= now))?;
        let answer_by = now.after(withdrawal_span(&self.engine));
        let outage = self.outage();
        Some(WaitOutcome::GivesUp(Box::new(GivesUp { why: WaitEnd::Limit, at: now, outage, answer_by })))
    }

    /// Looks once for a share that was handed over while the copy was under way.
    async fn look_again(&mut self) -> Option<WaitOutcome> {
        let mut looks = Looks::new();
        std::future::poll_fn(|cx| {
            Poll::Ready(match self.waiter.poll_signal(&mut looks, cx) {
                Poll::Ready(Ok(LocalSignal::Requests(_)) | Err(_)) | Poll::Pending => None,
                Poll::Ready(Ok(signal)) => Some(WaitOutcome::Signal(signal)),
            })
        })
        .await
    }

    /// Withdraws the request of a caller that waits no longer, and returns the error for the caller.
    async fn give_up(&mut self, given_up: GivesUp) -> Error {
        let lock = self.key.shared_name();
        if given_up.why == WaitEnd::Closed {
            return Error::Closed { lock };
        }
        let waited = given_up.at.since(self.began);
        if given_up.why == WaitEnd::Silence || given_up.outage.is_some() {
            return Error::unreachable(lock, waited, given_up.outage.and_then(|outage| outage.source));
        }
        if let (_, Some(refusal)) = self.engine.table.obstacle(&self.key, self.mode)
            && let Some(kept_out_by) = self.waiter.kept_out_by(Some(&refusal), self.engine.now())
        {
            self.waiter.tell_of_wait(&kept_out_by, WaitEnds::InVain);
        }
        // Read before the entry is removed, because the cell keeps the refusals while a waiter is there.
        let denied = self.denial();
        let confirmed = self.withdraw(given_up.answer_by).await == Withdrawn::Surely;
        Error::WaitTimeout { lock, waited, confirmed, denied }
    }

    /// Returns the refusal that ends a try. Withdraws a place in the queue first, if the try has one or may have one.
    async fn refused(&mut self) -> Result<Box<Denied>> {
        let denied = self.denial();
        match self.withdraw(self.engine.now().after(withdrawal_span(&self.engine))).await {
            Withdrawn::Surely => Ok(denied),
            Withdrawn::Perhaps => {
                let (lock, waited) = (self.key.shared_name(), self.engine.now().since(self.began));
                Err(Error::WaitTimeout { lock, waited, confirmed: false, denied })
            }
        }
    }

    /// Returns the error for a request that has failed.
    fn error_of(&self, failure: Failure) -> Error {
        let (lock, waited) = (self.key.shared_name(), self.engine.now().since(self.began));
        match failure {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => Error::unreachable(lock, waited, source),
            Failure::Refused { refusal, node, message } | Failure::Broken { refusal, node, message } => {
                Error::Refused { lock, refusal, node, message }
            }
            Failure::Unreplicated { asked, acknowledged, node } => {
                Error::NotEnoughReplicas { lock, asked, acknowledged, node }
            }
        }
    }
}

/// Result of the attempt to take a share.
enum Taken {
    Guard(Held),
    /// The share was over. The acquisition waits again.
    Nothing,
    GivesUp(Box<GivesUp>),
}
