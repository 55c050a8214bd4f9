//! Cached holds: the offers of requests to cache their holds, the handlers of recalls, and the limit on the number of
//! cached holds.

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
use crate::lock::wait::{CachedCell, RequesterEntry};
use crate::store::{Answered, Scheme};

/// Offer of a request to cache the hold that it wants.
#[derive(Clone, Debug)]
pub(super) struct CacheRequest {
    recalls: Arc<Recalls>,
    cache_for: Duration,
    /// Confirmed subscription to recalls. If it is present, the request tells the server that the hold may be cached.
    subscription: Option<SubscriptionId>,
}

impl CacheRequest {
    /// Notes the subscription that is confirmed now.
    pub(super) fn note_subscription(&mut self) {
        self.subscription = self.recalls.subscription();
    }

    /// Returns true if the request tells the server that the hold may be cached.
    pub(super) fn offers_caching(&self) -> bool {
        self.subscription.is_some()
    }

    /// Returns the cache state of the hold that was granted. Its subscription is not live yet: only an answer makes it
    /// live. A notification is no answer, but the claim after it gets one.
    pub(super) fn to_state(&self) -> Box<CacheState> {
        Box::new(CacheState::new(self.cache_for))
    }

    /// Returns the cache state of the hold that an answer grants, and the parts of the answer that concern caching.
    pub(super) fn on_answer<T>(
        &self,
        answer: &Answered<T>,
        is_waited_for: bool,
    ) -> (Box<CacheState>, Option<CacheAnswer>) {
        let Answered { sent, node, .. } = *answer;
        (self.to_state(), Some(CacheAnswer { offered_on: self.subscription, sent, node, is_waited_for }))
    }
}

/// Data that the recall handlers of all locks of a manager share.
pub(super) struct RecallContext {
    scheme: Weak<dyn Scheme>,
    home: BackgroundRuntime,
    clock: Clock,
    /// Limits the recall replies in flight, for all locks.
    answers: Arc<Semaphore>,
}

/// Largest number of recall replies in flight. A try without a recall reply is refused after twice the
/// `recall_timeout`. So a try that gets no reply because of this limit has the same result, only later.
const MAX_RECALL_REPLIES: usize = 256;

impl RecallContext {
    pub(super) fn new(scheme: &Arc<dyn Scheme>, home: BackgroundRuntime) -> Arc<Self> {
        let (clock, scheme) = (scheme.clock(), Arc::downgrade(scheme));
        let answers = Arc::new(Semaphore::new(MAX_RECALL_REPLIES));
        Arc::new(Self { scheme, home, clock, answers })
    }
}

/// Handler of the recalls of one lock.
struct RecallHandler {
    cell: CachedCell,
    common: Arc<RecallContext>,
    /// Limits the recall replies for this lock, because each client that may publish can send any number of recalls.
    answers: Mutex<Throttle>,
}

impl RecallHandler {
    /// Returns a permit for one more recall reply, or `None` if a limit is reached.
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
            // The reply is sent once and may be lost. The try waits for it no longer than its own limit.
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
    /// Returns true if the options allow cached holds.
    pub(super) fn can_cache(&self) -> bool {
        self.uses.is_some()
    }

    /// Returns true if the hold may be cached that the next request for this lock acquires. Notes a use of the name.
    pub(super) fn may_cache(&self, key: &Key, cache_for: Duration, now: Moment) -> bool {
        !cache_for.is_zero() && self.uses.as_ref().is_some_and(|uses| uses.may_cache(key.name_hash(), now))
    }

    /// Returns the offer of an attempt to cache its hold, or `None` if the scheme does not listen for recalls of the
    /// lock.
    pub(super) fn cache_request(
        &self,
        key: &Arc<Key>,
        entry: &RequesterEntry,
        cache_for: Duration,
    ) -> Option<CacheRequest> {
        let calls = entry.recalls(|cell| self.listen(key, cell))?;
        let standing = calls.subscription();
        Some(CacheRequest { recalls: calls, cache_for, subscription: standing })
    }

    /// Returns the offer of a conversion to cache the new hold, with the terms of the old one. Returns `None` if the
    /// old hold may not be cached.
    pub(super) fn cache_request_on(&self, hold: &Hold) -> Option<CacheRequest> {
        let (recalls, cache_for) = hold.cache_terms()?;
        Some(CacheRequest { recalls, cache_for, subscription: None })
    }

    /// Applies the limit on the number of cached holds, after the grant of one more hold that may be cached. If there
    /// are too many, the background releases the cached holds that were used longest ago.
    pub(super) fn bound_cached(&self, now: Moment) {
        let Some(excess) = self.uses.as_ref().map_or(0, |uses| uses.excess(self.table.cached_count())).checked_sub(1)
        else {
            return;
        };
        let mut idle = self.table.cached_holds();
        idle.sort_unstable_by_key(|(until, _)| *until);
        // Releases some more at once, because each call looks at all holds.
        for (_, hold) in idle.iter().take(excess + idle.len() / 16 + 1) {
            hold.note_wanted(now);
        }
    }

    /// Passes the outcome of a hold that is over to the policy.
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
