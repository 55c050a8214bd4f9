//! Recalls of cached holds, and the subscription that receives them.
//!
//! A process may cache a hold after its last guard was dropped. A waiter of another process then sends a recall, so
//! every recall must reach the process. The subscription of the hold is *live* if this is certain. A subscription
//! becomes live when a server answers a request with "no waiter" and three conditions are met:
//!
//! * The request was sent while the subscription was confirmed, and the subscription has not broken since.
//! * The request told the server that the hold may be cached.
//! * The node of the subscription answered the request.
//!
//! Such an answer proves that no waiter came before, and later waiters send a recall. A subscription stops being live
//! when it breaks. It is also not live while its node has not answered for one second.
//!
//! Source: `docs/CACHED_HOLDS.md`, and the callbacks of distributed lock managers and of Chubby.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};

/// Time for which a subscription counts as live, counted from the last request that its node answered.
pub(crate) const LIVE_FOR: Duration = Duration::from_secs(1);

/// Moment until which the subscriptions of one connection count as live. Each answer of the node on this connection
/// makes it later.
#[derive(Debug)]
pub(crate) struct Liveness {
    node: NodeId,
    until: AtomicU64,
}

impl Liveness {
    /// Creates the value for a connection to `node`, whose subscriptions count as live until `moment`.
    pub(crate) fn until(node: NodeId, moment: Moment) -> Self {
        Self { node, until: AtomicU64::new(moment.as_nanos()) }
    }

    /// Notes that the node has answered a request that was sent at `sent`.
    pub(crate) fn on_answer(&self, sent: Moment) {
        self.until.fetch_max(sent.after(LIVE_FOR).as_nanos(), Ordering::Release);
    }

    fn live_until(&self) -> Moment {
        Moment::from_nanos(self.until.load(Ordering::Acquire))
    }
}

/// Confirmed subscription, from its confirmation to the next break.
#[derive(Clone, Debug)]
pub(crate) struct LiveSubscription {
    /// Number of this subscription. The subscription after a break has another number.
    pub(crate) epoch: u64,
    pub(crate) liveness: Arc<Liveness>,
}

impl LiveSubscription {
    fn id(&self) -> SubscriptionId {
        SubscriptionId { epoch: self.epoch, node: self.liveness.node }
    }
}

/// Subscription as the state of a lock stores it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SubscriptionId {
    pub(crate) epoch: u64,
    pub(crate) node: NodeId,
}

/// Recalls for one lock that a process has received, at one moment. They are an input of the lock's state.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Reception {
    /// Confirmed subscription, if there is one.
    pub(crate) subscription: Option<SubscriptionId>,
    /// Moment until which the confirmed subscription counts as live.
    pub(crate) live_until: Moment,
    /// Highest token of all recalls by waiters in the queue, and the time of the last recall.
    pub(crate) last_recall: Option<(FencingToken, Moment)>,
}

impl Reception {
    /// Reception of a process that does not listen for recalls of the lock.
    pub(crate) const NONE: Self = Self { subscription: None, live_until: Moment::START, last_recall: None };

    /// Returns true if the subscription with this number receives every recall.
    pub(crate) fn is_live(&self, epoch: u64, now: Moment) -> bool {
        self.is_confirmed(epoch) && now < self.live_until
    }

    /// Returns true if the subscription with this number is confirmed, and so has not broken since.
    pub(crate) fn is_confirmed(&self, epoch: u64) -> bool {
        self.subscription.is_some_and(|subscription| subscription.epoch == epoch)
    }

    /// Returns the time of the last recall, if some recall had this token or a higher one.
    pub(crate) fn last_recall_of(&self, token: FencingToken) -> Option<Moment> {
        self.last_recall.filter(|(recalled, _)| *recalled >= token).map(|(_, at)| at)
    }
}

/// Recall: a waiter wants a lock. `token` was the last token of the lock when the server sent the recall.
#[derive(Clone, Debug)]
pub(crate) struct Recall {
    pub(crate) token: FencingToken,
    /// Id of the acquisition, if `try_read` or `try_write` caused the recall. If a guard uses the hold, the holder
    /// sends a recall reply to this id.
    pub(crate) tries: Option<Arc<str>>,
}

/// Receiver of recalls, and of breaks of the subscription. Both may come late or twice, and a recall may be lost.
pub(crate) trait OnRecall: Send + Sync + 'static {
    fn on_recall(&self, call: &Recall);
    /// Handles a break of the subscription. Recalls may have been missed then.
    fn on_break(&self);
}

/// Recalls for one lock. The process is subscribed to them as long as this value exists.
pub(crate) struct Recalls {
    state: Mutex<RecallState>,
    on_recall: Box<dyn OnRecall>,
}

struct RecallState {
    subscription: Option<LiveSubscription>,
    /// Highest token of all recalls by waiters in the queue. [`FencingToken::ZERO`] means that no recall has arrived
    /// yet. `recalled_at` is the time of the last recall.
    token: FencingToken,
    recalled_at: Moment,
}

impl Recalls {
    pub(crate) fn new(on_recall: Box<dyn OnRecall>) -> Self {
        let state = RecallState { subscription: None, token: FencingToken::ZERO, recalled_at: Moment::START };
        Self { state: Mutex::new(state), on_recall }
    }

    /// Returns the subscription if it is confirmed.
    pub(crate) fn subscription(&self) -> Option<SubscriptionId> {
        self.state.lock().subscription.as_ref().map(LiveSubscription::id)
    }

    /// Returns what has been received so far.
    pub(crate) fn reception(&self) -> Reception {
        let state = self.state.lock();
        let subscription = state.subscription.as_ref();
        Reception {
            subscription: subscription.map(LiveSubscription::id),
            live_until: subscription.map_or(Moment::START, |now| now.liveness.live_until()),
            last_recall: (state.token != FencingToken::ZERO).then_some((state.token, state.recalled_at)),
        }
    }

    /// Notes that the subscription is confirmed.
    pub(crate) fn on_confirmed(&self, subscription: LiveSubscription) {
        self.state.lock().subscription = Some(subscription);
    }

    /// Notes that the subscription is broken. Returns true if it was confirmed before. The caller must then call
    /// [`notify_break`](Recalls::notify_break) while it holds no mutex.
    pub(crate) fn on_lost(&self) -> bool {
        self.state.lock().subscription.take().is_some()
    }

    pub(crate) fn notify_break(&self) {
        self.on_recall.on_break();
    }

    /// Notes a recall and notifies the holder. The caller must hold no mutex.
    pub(crate) fn on_recall(&self, call: &Recall, now: Moment) {
        // A try does not wait in the queue, so it must not count as a waiter later. The holder still receives its
        // recall.
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
