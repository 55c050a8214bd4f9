//! Holds that stay when their last guard has left: which names are worth it, who hears of those who call for them, and what is
//! given up when they become too many.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/caching/tests.rs"]
mod tests;

use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::events;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::recalls::{OnRecall, Recall, Recalls, SubscriptionId};
use crate::base::throttle::Throttle;
use crate::engine::Engine;
use crate::lock::hold::{CacheAnswer, CacheState, Hold};
use crate::lock::wait::{CachedCell, WaitEntry};
use crate::store::{Answered, Scheme};

/// What a request says of the hold that it wants.
#[derive(Clone, Debug)]
pub(super) struct CacheRequest {
    recalls: Arc<Recalls>,
    cache_for: Duration,
    /// It says that the hold may stay, and this is the subscription that stands.
    subscription: Option<SubscriptionId>,
}

impl CacheRequest {
    /// What is said now.
    pub(super) fn note_subscription(&mut self) {
        self.subscription = self.recalls.subscription();
    }

    /// Whether the request says that the hold may stay.
    pub(super) fn offers_caching(&self) -> bool {
        self.subscription.is_some()
    }

    /// For the hold that was granted. A notification answers no request: its claim does.
    pub(super) fn to_state(&self) -> Box<CacheState> {
        Box::new(CacheState::new(self.cache_for))
    }

    /// What the answer to the request says of it.
    pub(super) fn answer<T>(&self, answer: &Answered<T>, is_waited_for: bool) -> CacheAnswer {
        CacheAnswer { offered_on: self.subscription, sent: answer.sent, node: answer.node, is_waited_for }
    }
}

/// What hears of all locks of a manager have in common.
pub(super) struct RecallContext {
    scheme: Weak<dyn Scheme>,
    home: BackgroundRuntime,
    clock: Clock,
    /// Bounds the answers to tries that are on their way, of all locks.
    answers: Arc<Semaphore>,
}

/// Limit of the answers to tries that are on their way at once. A try that hears nothing is refused after [`Options::recall_timeout`] twice, so one
/// that is left out only learns later what it would have been told.
const MAX_RECALL_REPLIES: usize = 256;

impl RecallContext {
    pub(super) fn new(scheme: &Arc<dyn Scheme>, home: BackgroundRuntime) -> Arc<Self> {
        let (clock, scheme) = (scheme.clock(), Arc::downgrade(scheme));
        let answers = Arc::new(Semaphore::new(MAX_RECALL_REPLIES));
        Arc::new(Self { scheme, home, clock, answers })
    }
}

/// Hears who calls for one lock.
struct RecallHandler {
    cell: CachedCell,
    common: Arc<RecallContext>,
    /// Bounds the answers to those who try: a call is a message that anybody may have sent.
    answers: Mutex<Throttle>,
}

impl RecallHandler {
    /// Whether one more try is answered, and what counts it until it is.
    fn may_answer(&self) -> Option<OwnedSemaphorePermit> {
        let permit = Arc::clone(&self.common.answers).try_acquire_owned().ok()?;
        self.answers.lock().try_take(self.common.clock.now()).then_some(permit)
    }
}

impl OnRecall for RecallHandler {
    fn on_recall(&self, call: &Recall) {
        let Some((key, is_used)) = self.cell.on_recall(call) else {
            return;
        };
        events::log_recall(key.name(), call.token, is_used);
        let common = &*self.common;
        if let (true, Some(id), Some(scheme)) = (is_used, call.tries.clone(), common.scheme.upgrade())
            && let Some(permit) = self.may_answer()
        {
            // Whoever tries waits for no longer than it can: lost, it is not told.
            common.home.spawn(async move {
                if let Some(recalls) = scheme.recalls() {
                    drop(recalls.reply_in_use(&key, &id).await);
                }
                drop(permit);
            });
        }
    }

    fn on_break(&self) {
        self.cell.on_break();
    }
}

impl Engine {
    /// Whether any may.
    pub(super) fn can_cache(&self) -> bool {
        self.uses.is_some()
    }

    /// The server is to be asked for a lock: whether its hold may stay.
    pub(super) fn may_cache(&self, key: &Key, cache_for: Duration, now: Moment) -> bool {
        !cache_for.is_zero() && self.uses.as_ref().is_some_and(|uses| uses.may_cache(key.name_hash(), now))
    }

    /// What an attempt says of keeping its hold.
    pub(super) fn cache_request(&self, key: &Arc<Key>, entry: &WaitEntry, cache_for: Duration) -> Option<CacheRequest> {
        let calls = entry.recalls(|cell| self.listen(key, cell))?;
        let standing = calls.subscription();
        Some(CacheRequest { recalls: calls, cache_for, subscription: standing })
    }

    /// What a conversion says of keeping its hold: the same as of the one before.
    pub(super) fn cache_request_on(&self, hold: &Hold) -> Option<CacheRequest> {
        let (recalls, cache_for) = hold.cache_terms()?;
        Some(CacheRequest { recalls, cache_for, subscription: None })
    }

    /// One more hold may stay: if these are too many by now, those that were used longest ago are given up.
    pub(super) fn bound_cached(&self, now: Moment) {
        let Some(excess) = self.uses.as_ref().map_or(0, |uses| uses.excess(self.table.cached_count())).checked_sub(1)
        else {
            return;
        };
        let mut idle = self.table.cached_holds();
        idle.sort_unstable_by_key(|(until, _)| *until);
        // Some more at once: each look takes as long as there are holds.
        for (_, hold) in idle.iter().take(excess + idle.len() / 16 + 1) {
            hold.note_wanted(now);
        }
    }

    /// The last guard of a hold has gone.
    pub(super) fn note_cache_outcome(&self, hold: &Hold) {
        if let Some(uses) = &self.uses
            && let Some(stay) = hold.cache_outcome()
        {
            uses.note_outcome(hold.key().name_hash(), stay);
        }
    }

    fn listen(&self, key: &Arc<Key>, cell: CachedCell) -> Option<Arc<Recalls>> {
        let scheme = self.scheme.recalls()?;
        let ear =
            RecallHandler { cell, common: Arc::clone(&self.recall_context), answers: Mutex::new(Throttle::new()) };
        let calls = Arc::new(Recalls::new(Box::new(ear)));
        scheme.listen(key, &calls).then_some(calls)
    }
}
