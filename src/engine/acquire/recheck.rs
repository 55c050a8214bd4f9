//! A reader asks the server whether it may join a hold that its process has.
//!
//! It repeats the acquisition of that hold, which extends it and answers whether a writer waits.

use std::sync::Arc;
use std::time::Duration;

use super::Acquisition;
use crate::base::error::{LossReason, Result};
use crate::base::events;
use crate::engine::{Engine, Held};
use crate::lock::hold::{CacheAnswer, Grant, Hold};
use crate::store::{AcquireRequest, Acquired, Answered, Attempt, Granted, IfTaken, Mode};

/// Outcome of a repeated acquisition of a hold that the process has.
enum RecheckOutcome {
    Joined(Held),
    /// No reader may join the hold. The acquisition has to ask for another hold.
    Closed,
    /// No answer yet.
    Again,
}

impl Acquisition {
    /// Joins a read hold that its process has, by asking the server whether a writer waits.
    pub(super) async fn recheck_own(&mut self) -> Result<Option<Held>> {
        loop {
            self.stop_if_given_up().await;
            let (now, Some(entry)) = (self.engine.now(), &self.entry) else {
                return Ok(None);
            };
            if let Some((hold, share_id)) = entry.join(self.wants, now) {
                let held = Held::new(&self.engine, hold, share_id);
                self.on_seated(&held);
                self.waiter.entry = None;
                return Ok(Some(held));
            }
            let Some(hold) = entry.to_recheck() else {
                return Ok(None);
            };
            if !entry.note_polled(now) {
                return Ok(None);
            }
            let Some((share_id, lease)) = hold.begin_recheck(self.wants.from(now), now) else {
                return Ok(None);
            };
            match self.recheck(Held::new(&self.engine, hold, share_id), lease).await? {
                RecheckOutcome::Joined(held) => {
                    self.on_seated(&held);
                    return Box::pin(self.accept(held)).await;
                }
                RecheckOutcome::Closed => return Ok(None),
                RecheckOutcome::Again => {}
            }
        }
    }

    /// Notes that the acquisition has a share of an older hold. Lets the other waiting readers of the process join it as
    /// well, and withdraws the own request. The entry stays: the caller removes it when the share is long enough.
    fn on_seated(&mut self, held: &Held) {
        if let Some(entry) = &self.entry {
            let now = self.engine.now();
            // The acquisition needs no hold of its own any more.
            if let Some(pending) = entry.on_seated(held.hold(), now) {
                self.earlier_until = self.earlier_until.max(self.cancel(pending));
            }
        }
    }

    async fn recheck(&mut self, held: Held, lease: Duration) -> Result<RecheckOutcome> {
        let engine = &Arc::clone(&self.engine);
        let hold = &Arc::clone(held.hold());
        let standing = hold.offered_subscription();
        let request = AcquireRequest {
            id: hold.id().clone(),
            mode: Mode::Read,
            lease,
            max_tokens: 1,
            if_taken: IfTaken::Leave,
            caches: standing.is_some(),
        };
        let underway = self.begin_underway();
        let repeat = Repeat { engine, hold, is_known: false };
        let attempt = engine.scheme.acquire(&self.key, &request).await;
        repeat.resolve(&attempt);
        drop(underway);
        let now = engine.now();
        let Answered { sent, server, node, value } = match attempt {
            Ok(answer) => answer,
            Err(failure) => {
                drop(held);
                self.on_no_answer(failure).await?;
                return Ok(RecheckOutcome::Again);
            }
        };
        self.on_first_answer(now);
        match value {
            Acquired::Granted(Granted { token, remaining, is_waited_for, .. }) if token == hold.token() => {
                if standing.is_some() {
                    let word = CacheAnswer { offered_on: standing, sent, node, is_waited_for };
                    hold.on_cache_answer(word, None, now);
                }
                let share_until = (!is_waited_for).then(|| sent.after(engine.options().join_window));
                let grant = Grant { sent, remaining, asked: lease, server };
                let (is_held, claims) = hold.on_rechecked(grant, share_until, now);
                if claims {
                    events::log_claim(hold.key().name(), hold.mode(), hold.token());
                }
                // A writer waits, so this reader must not join, although its request has extended the hold of the others.
                Ok(if is_held && !is_waited_for { RecheckOutcome::Joined(held) } else { RecheckOutcome::Closed })
            }
            Acquired::Late => {
                // The answer brought the server's time. The reader has no share during the pause.
                drop(held);
                self.waiter.tries.backoff.wait().await;
                Ok(RecheckOutcome::Again)
            }
            // The server does not have the hold, so other processes may hold the lock. Or the hold was lost, and this
            // request has begun another one under its id.
            Acquired::Granted(_) | Acquired::Queued { .. } | Acquired::Contended { .. } | Acquired::Cached { .. } => {
                if hold.lose(LossReason::Gone) {
                    engine.release_in_background(hold);
                }
                Ok(RecheckOutcome::Closed)
            }
        }
    }
}

/// A repeat of the acquisition of a hold, without an answer yet. A late copy would begin the hold again after its end, so a
/// dropped repeat is in doubt.
struct Repeat<'a> {
    engine: &'a Engine,
    hold: &'a Hold,
    /// True when the answer is known.
    is_known: bool,
}

impl Repeat<'_> {
    fn resolve<T>(mut self, attempt: &Attempt<T>) {
        self.is_known = true;
        self.hold.end_recheck(attempt);
    }
}

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if !self.is_known {
            self.hold.abandon_recheck(self.engine.now());
        }
    }
}
