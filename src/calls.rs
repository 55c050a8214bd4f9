//! What a process hears of a lock that it keeps: that somebody waits for it, and whether it would hear that at all.
//!
//! A hold may stay when its last guard has gone, as long as every call for it will be heard: then the process *relies* on it.
//! It relies on a hold from the first answer "nobody waits" to a request that was sent while the subscription stood, said that the
//! hold may stay, and was answered by the node where the subscription is, if it has stood without a break since. Whoever came before
//! is found by that answer, whoever comes later calls. After a break, and a second after the last word of the node, nothing is
//! relied on.
//!
//! Source: `docs/IDLE.md`, and the callbacks of distributed lock managers and of Chubby.

use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::attempt::NodeId;
use crate::lease::{FencingToken, Moment};

/// For so long after a node was asked something that it answered, a subscription there counts as one that is heard.
pub(crate) const FRESH: Duration = Duration::from_secs(1);

/// Until when what a connection has subscribed is heard, as far as its node has answered on it.
#[derive(Debug)]
pub(crate) struct Fresh {
    node: NodeId,
    until: AtomicU64,
}

impl Fresh {
    /// Until this moment.
    pub(crate) fn until(node: NodeId, moment: Moment) -> Self {
        Self { node, until: AtomicU64::new(moment.as_nanos()) }
    }

    /// The node has answered what was sent then.
    pub(crate) fn answered(&self, sent: Moment) {
        self.until.fetch_max(sent.after(FRESH).as_nanos(), Ordering::Release);
    }

    fn is_at(&self, now: Moment) -> bool {
        now.as_nanos() < self.until.load(Ordering::Acquire)
    }
}

/// A subscription that stands: from its confirmation to the next break.
#[derive(Clone, Debug)]
pub(crate) struct Standing {
    /// Never used again: after a break it is another one.
    pub(crate) epoch: u64,
    pub(crate) fresh: Arc<Fresh>,
}

impl Standing {
    /// Where it is.
    pub(crate) fn node(&self) -> NodeId {
        self.fresh.node
    }

    /// Whether the node has been heard of of late.
    pub(crate) fn is_fresh(&self, now: Moment) -> bool {
        self.fresh.is_at(now)
    }
}

/// Somebody waits for a lock whose last token was this.
#[derive(Clone, Debug)]
pub(crate) struct Call {
    pub(crate) token: FencingToken,
    /// Somebody who does not wait long, and is to be told if a guard is inside.
    pub(crate) tries: Option<Arc<str>>,
}

/// Whoever is told of calls and breaks. Each may come late or twice, and a call be lost.
pub(crate) trait OnCall: Send + Sync + 'static {
    fn called(&self, call: &Call);
    /// Calls may have been missed.
    fn broken(&self);
}

/// The calls for one lock. They are listened for as long as somebody has this.
pub(crate) struct Calls {
    heard: Mutex<Heard>,
    on_call: Box<dyn OnCall>,
}

struct Heard {
    standing: Option<Standing>,
    /// The highest token of those who wait, and when that was heard last. [`FencingToken::ZERO`]: nobody has called.
    token: FencingToken,
    at: Moment,
}

impl Calls {
    pub(crate) fn new(on_call: Box<dyn OnCall>) -> Self {
        let heard = Heard { standing: None, token: FencingToken::ZERO, at: Moment::from_nanos(0) };
        Self { heard: Mutex::new(heard), on_call }
    }

    /// The subscription, if it stands.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.heard.lock().standing.clone()
    }

    /// Whether it has stood without a break since it was this.
    pub(crate) fn still_stands(&self, standing: &Standing) -> bool {
        self.heard.lock().standing.as_ref().is_some_and(|now| now.epoch == standing.epoch)
    }

    /// When somebody has called last, if it was for a hold with this token or with a later one.
    pub(crate) fn last_for(&self, token: FencingToken) -> Option<Moment> {
        let heard = self.heard.lock();
        (heard.token != FencingToken::ZERO && heard.token >= token).then_some(heard.at)
    }

    /// It is confirmed.
    pub(crate) fn stands(&self, standing: Standing) {
        self.heard.lock().standing = Some(standing);
    }

    /// It does not stand any more. Whoever relied on it is [told](Calls::tell_broken) when no lock is held.
    pub(crate) fn breaks(&self) -> bool {
        self.heard.lock().standing.take().is_some()
    }

    pub(crate) fn tell_broken(&self) {
        self.on_call.broken();
    }

    /// A call has come. To be called where no lock is held.
    pub(crate) fn called(&self, call: &Call, now: Moment) {
        // Who does not wait is told, and changes nothing for those who come.
        if call.tries.is_none() {
            let heard = &mut *self.heard.lock();
            heard.token = heard.token.max(call.token);
            heard.at = now;
        }
        self.on_call.called(call);
    }
}

impl fmt::Debug for Calls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Calls")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_for_one_lock_are_small() {
        // There is one for each lock that stays.
        assert!(size_of::<Calls>() <= 56, "{} bytes", size_of::<Calls>());
    }
}
