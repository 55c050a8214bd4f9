//! Recalls of a lock whose hold this process caches, and the state of the subscription that receives them.
//!
//! A process may cache a hold after its last guard was dropped, as long as it will receive every recall for it. Then
//! the hold's subscription is *live*. The process may count on that from one answer on, if the subscription has been
//! live without a break since. The answer says "no waiter", and meets three conditions:
//!
//! * the request was sent while the subscription was live;
//! * the request said that the hold may be cached;
//! * the node of the subscription answered it.
//!
//! This answer shows a waiter that came before; a waiter that comes later sends a recall. After a break, and a second
//! after the last answer of the node, the process counts on nothing.
//!
//! Source: `docs/CACHED_HOLDS.md`, and the callbacks of distributed lock managers and of Chubby.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};

/// Time after the sending of an answered request for which the subscriptions on that node count as live.
pub(crate) const LIVE_FOR: Duration = Duration::from_secs(1);

/// Time until which a connection's subscriptions count as live, by the answers of its node on that connection.
#[derive(Debug)]
pub(crate) struct Liveness {
    node: NodeId,
    until: AtomicU64,
}

impl Liveness {
    /// Creates a value that ends at `moment`.
    pub(crate) fn until(node: NodeId, moment: Moment) -> Self {
        Self { node, until: AtomicU64::new(moment.as_nanos()) }
    }

    /// Notes that the node has answered a request sent at `sent`.
    pub(crate) fn on_answer(&self, sent: Moment) {
        self.until.fetch_max(sent.after(LIVE_FOR).as_nanos(), Ordering::Release);
    }

    fn is_live_at(&self, now: Moment) -> bool {
        now.as_nanos() < self.until.load(Ordering::Acquire)
    }
}

/// Live subscription: from its confirmation to the next break.
#[derive(Clone, Debug)]
pub(crate) struct LiveSubscription {
    /// Number of the subscription, never used again: after a break there is another one.
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
    /// Id of the acquisition if it is a try, which waits only briefly: the holder replies to it if a guard uses the
    /// hold.
    pub(crate) tries: Option<Arc<str>>,
}

/// Receiver of recalls and breaks. Each may come late or twice, and a recall may be lost.
pub(crate) trait OnRecall: Send + Sync + 'static {
    fn on_recall(&self, call: &Recall);
    /// Handles a break: recalls may have been missed.
    fn on_break(&self);
}

/// Recalls for one lock. The process is subscribed to them as long as this value exists.
pub(crate) struct Recalls {
    state: Mutex<RecallState>,
    on_recall: Box<dyn OnRecall>,
}

struct RecallState {
    subscription: Option<LiveSubscription>,
    /// Highest token of all recalls by waiters, and the time of the last of them. [`FencingToken::ZERO`]: no recall
    /// yet.
    token: FencingToken,
    recalled_at: Moment,
}

impl Recalls {
    pub(crate) fn new(on_call: Box<dyn OnRecall>) -> Self {
        let heard = RecallState { subscription: None, token: FencingToken::ZERO, recalled_at: Moment::from_nanos(0) };
        Self { state: Mutex::new(heard), on_recall: on_call }
    }

    /// Returns the subscription if it is live.
    pub(crate) fn subscription(&self) -> Option<LiveSubscription> {
        self.state.lock().subscription.clone()
    }

    /// Returns true if the subscription has been live without a break since it was `standing`.
    pub(crate) fn is_still(&self, standing: &LiveSubscription) -> bool {
        self.state.lock().subscription.as_ref().is_some_and(|now| now.epoch == standing.epoch)
    }

    /// Returns the time of the last recall, if it was for a hold with this token or a later one.
    pub(crate) fn last_recall_of(&self, token: FencingToken) -> Option<Moment> {
        let heard = self.state.lock();
        (heard.token != FencingToken::ZERO && heard.token >= token).then_some(heard.recalled_at)
    }

    /// Notes that the subscription is confirmed.
    pub(crate) fn on_confirmed(&self, standing: LiveSubscription) {
        self.state.lock().subscription = Some(standing);
    }

    /// Notes that the subscription is broken, and returns true if it was live. The caller then notifies the holder with
    /// [`notify_break`](Recalls::notify_break), while it holds no mutex.
    pub(crate) fn on_lost(&self) -> bool {
        self.state.lock().subscription.take().is_some()
    }

    pub(crate) fn notify_break(&self) {
        self.on_recall.on_break();
    }

    /// Notes a recall and notifies the holder. The caller must hold no mutex.
    pub(crate) fn called(&self, call: &Recall, now: Moment) {
        // A try does not wait: the holder learns of it, but it must not count as a waiter for later decisions.
        if call.tries.is_none() {
            let heard = &mut *self.state.lock();
            heard.token = heard.token.max(call.token);
            heard.recalled_at = now;
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
        // Each cached lock has one of these.
        assert!(size_of::<Recalls>() <= 56, "{} bytes", size_of::<Recalls>());
    }
}
