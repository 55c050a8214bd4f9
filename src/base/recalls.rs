//! Recalls of a lock whose hold this process caches, and the subscription that receives them.
//!
//! A process may cache a hold after its last guard was dropped, as long as every recall for the hold will reach the
//! process. The subscription of the hold is then *live*. A subscription becomes live with an answer "no waiter" that
//! meets three conditions, and stays live until it breaks:
//!
//! * The request was sent while the subscription was confirmed, and the subscription has not broken since.
//! * The request said that the hold may be cached.
//! * The node of the subscription answered the request.
//!
//! Such an answer rules out earlier waiters, and later waiters send a recall. After a break the subscription is not
//! live. Neither is it live when its node has not answered for one second.
//!
//! Source: `docs/CACHED_HOLDS.md`, and the callbacks of distributed lock managers and of Chubby.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};

/// Time for which a subscription counts as live after its node was sent a request that the node answered.
pub(crate) const LIVE_FOR: Duration = Duration::from_secs(1);

/// Time until which the subscriptions of one connection count as live. It depends on the answers of the node on this
/// connection.
#[derive(Debug)]
pub(crate) struct Liveness {
    node: NodeId,
    until: AtomicU64,
}

impl Liveness {
    /// Creates a value for subscriptions that count as live until `moment`.
    pub(crate) fn until(node: NodeId, moment: Moment) -> Self {
        Self { node, until: AtomicU64::new(moment.as_nanos()) }
    }

    /// Notes that the node has answered a request that was sent at `sent`.
    pub(crate) fn on_answer(&self, sent: Moment) {
        self.until.fetch_max(sent.after(LIVE_FOR).as_nanos(), Ordering::Release);
    }

    fn is_live_at(&self, now: Moment) -> bool {
        now.as_nanos() < self.until.load(Ordering::Acquire)
    }
}

/// Confirmed subscription, from its confirmation to the next break.
#[derive(Clone, Debug)]
pub(crate) struct LiveSubscription {
    /// Number of this subscription. After a break, the next subscription has another number.
    pub(crate) epoch: u64,
    pub(crate) liveness: Arc<Liveness>,
}

impl LiveSubscription {
    /// Returns the node of the subscription.
    pub(crate) fn node(&self) -> NodeId {
        self.liveness.node
    }

    /// Returns true if the node has answered recently enough.
    pub(crate) fn is_live(&self, now: Moment) -> bool {
        self.liveness.is_live_at(now)
    }
}

/// Recall: a waiter wants a lock, whose last token was `token`.
#[derive(Clone, Debug)]
pub(crate) struct Recall {
    pub(crate) token: FencingToken,
    /// Id of the acquisition, if it is a try, which waits only briefly. If a guard uses the hold, the holder sends a
    /// recall reply to this id.
    pub(crate) tries: Option<Arc<str>>,
}

/// Receiver of recalls and breaks. Both may come late or twice, and a recall may be lost.
pub(crate) trait OnRecall: Send + Sync + 'static {
    fn on_recall(&self, call: &Recall);
    /// Handles a break of the subscription, after which recalls may have been missed.
    fn on_break(&self);
}

/// Recalls for one lock. The process is subscribed to them as long as this value exists.
pub(crate) struct Recalls {
    state: Mutex<RecallState>,
    on_recall: Box<dyn OnRecall>,
}

struct RecallState {
    subscription: Option<LiveSubscription>,
    /// Highest token of all recalls by waiters. [`FencingToken::ZERO`] means that there was no recall yet.
    /// `recalled_at` is the time of the last recall.
    token: FencingToken,
    recalled_at: Moment,
}

impl Recalls {
    pub(crate) fn new(on_recall: Box<dyn OnRecall>) -> Self {
        let state = RecallState { subscription: None, token: FencingToken::ZERO, recalled_at: Moment::from_nanos(0) };
        Self { state: Mutex::new(state), on_recall }
    }

    /// Returns the subscription if it is confirmed.
    pub(crate) fn subscription(&self) -> Option<LiveSubscription> {
        self.state.lock().subscription.clone()
    }

    /// Returns true if `subscription` is still the present subscription, so that it has not broken.
    pub(crate) fn is_still(&self, subscription: &LiveSubscription) -> bool {
        self.state.lock().subscription.as_ref().is_some_and(|now| now.epoch == subscription.epoch)
    }

    /// Returns the time of the last recall, if a recall had this token or a higher one.
    pub(crate) fn last_recall_of(&self, token: FencingToken) -> Option<Moment> {
        let state = self.state.lock();
        (state.token != FencingToken::ZERO && state.token >= token).then_some(state.recalled_at)
    }

    /// Notes that the subscription is confirmed.
    pub(crate) fn on_confirmed(&self, subscription: LiveSubscription) {
        self.state.lock().subscription = Some(subscription);
    }

    /// Notes that the subscription is broken. Returns true if it was confirmed. The caller must then call
    /// [`notify_break`](Recalls::notify_break) while it holds no mutex.
    pub(crate) fn on_lost(&self) -> bool {
        self.state.lock().subscription.take().is_some()
    }

    pub(crate) fn notify_break(&self) {
        self.on_recall.on_break();
    }

    /// Notes a recall and notifies the holder. The caller must hold no mutex.
    pub(crate) fn on_recall(&self, call: &Recall, now: Moment) {
        // A try does not wait in the queue. So the holder learns of its recall, but must not count it as a waiter
        // later.
        if call.tries.is_none() {
            let state = &mut *self.state.lock();
            state.token = state.token.max(call.token);
            state.recalled_at = now;
        }
        self.on_recall.on_recall(call);
    }
}

impl fmt::Debug for Recalls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Recalls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_one_lock_are_small() {
        // Each cached lock has one such value.
        assert!(size_of::<Recalls>() <= 56, "{} bytes", size_of::<Recalls>());
    }
}
