//! A requester asks the server whether a reader may join a hold that its process has.
//!
//! A repeat of the acquisition extends that hold and answers whether a writer waits.

use std::sync::Arc;
use std::time::Duration;

use super::{CopyOutcome, Requesting};
use crate::base::error::LossReason;
use crate::base::events;
use crate::base::panics::catch_panic;
use crate::base::recalls::SubscriptionId;
use crate::engine::{Engine, Held};
use crate::lock::hold::{CacheAnswer, Grant, Hold};
use crate::lock::wait::Handed;
use crate::store::{AcquireRequest, Acquired, Answered, Attempt, Granted, IfTaken, Mode};

impl Requesting {
    /// Lets the waiting readers join a read hold that their process has, by asking the server whether a writer waits.
    /// Returns `None` if they need a hold of their own.
    pub(super) async fn recheck(&mut self) -> Option<CopyOutcome> {
        let (now, Some(entry)) = (self.engine.now(), &self.entry) else { return Some(CopyOutcome::NotNeeded) };
        let Some(wants) = entry.wants() else { return Some(CopyOutcome::NotNeeded) };
        if let Some(handed) = entry.join(wants, now) {
            return Some(self.seat(handed));
        }
        let hold = entry.to_recheck()?;
        if !entry.note_asks() {
            return Some(CopyOutcome::NotNeeded);
        }
        let (share_id, lease) = hold.begin_recheck(wants.from(now), now)?;
        let held = Held::new(&self.engine, Arc::clone(&hold), share_id);
        let offered_on = hold.offered_subscription();
        let attempt = self.repeat(&hold, lease, offered_on).await;
        self.on_rechecked(held, (lease, offered_on), attempt)
    }

    /// Gives the first waiter a share of an older hold. The other waiting readers of the process join it as well, and the
    /// request of the side is withdrawn.
    fn seat(&mut self, handed: Handed) -> CopyOutcome {
        let Some(entry) = self.entry.take() else { return CopyOutcome::NotNeeded };
        match entry.on_joined(handed, self.engine.now()) {
            Ok(pending) => entry.note_earlier(pending.and_then(|pending| self.cancel(pending))),
            Err(Handed { hold, share_id, .. }) => {
                drop(Held::new(&self.engine, hold, share_id));
                self.entry = Some(entry);
            }
        }
        CopyOutcome::NotNeeded
    }

    /// Repeats the acquisition of a hold.
    async fn repeat(&self, hold: &Arc<Hold>, lease: Duration, offered_on: Option<SubscriptionId>) -> Attempt<Acquired> {
        let request = AcquireRequest {
            id: hold.id().clone(),
            mode: Mode::Read,
            lease,
            max_tokens: 1,
            if_taken: IfTaken::Leave,
            caches: offered_on.is_some(),
        };
        let repeat = Repeat { engine: &self.engine, hold, is_known: false };
        let attempt = self.engine.scheme.acquire(&self.key, &request).await;
        repeat.resolve(&attempt);
        attempt
    }

    /// Applies the answer to a repeat. Returns `None` if no reader may join the hold.
    fn on_rechecked(
        &mut self,
        held: Held,
        (lease, offered_on): (Duration, Option<SubscriptionId>),
        attempt: Attempt<Acquired>,
    ) -> Option<CopyOutcome> {
        let (now, hold) = (self.engine.now(), Arc::clone(held.hold()));
        let Answered { sent, server, node, value } = match attempt {
            Ok(answer) => answer,
            Err(failure) => {
                drop(held);
                return Some(self.on_failure(failure));
            }
        };
        self.on_answer(now);
        match value {
            Acquired::Granted(Granted { token, remaining, is_waited_for, .. }) if token == hold.token() => {
                if offered_on.is_some() {
                    hold.on_cache_answer(CacheAnswer { offered_on, sent, node, is_waited_for }, None, now);
                }
                let share_until = (!is_waited_for).then(|| sent.after(self.engine.options().join_window));
                let (is_held, claims) =
                    hold.on_rechecked(Grant { sent, remaining, asked: lease, server }, share_until, now);
                if claims {
                    catch_panic(|| events::log_claim(hold.key().name(), hold.mode(), hold.token()));
                }
                // A writer waits, so this reader must not join, although its request has extended the hold of the others.
                if !is_held || is_waited_for {
                    return None;
                }
                let (_, hold, share_id) = held.into_parts();
                Some(self.seat(Handed { hold, share_id, grant: None }))
            }
            Acquired::Late => {
                // The reader has no share during the pause.
                drop(held);
                Some(self.on_late(sent, now))
            }
            // The server does not have the hold, so other processes may hold the lock. Or the hold was lost, and this
            // request has begun another one under its id.
            Acquired::Granted(_) | Acquired::Queued { .. } | Acquired::Contended { .. } | Acquired::Cached { .. } => {
                if hold.lose(LossReason::Gone) {
                    self.engine.release_in_background(&hold);
                }
                None
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
