//! State and end of a share. A share is the part that one guard has in a hold.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::base::error::LossReason;

/// State of a guard's hold by the local clock, as a [guard](crate::WriteGuard) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldState {
    /// The last renewal was answered in time.
    Held,
    /// A renewal was not answered and is being repeated. The local deadline has not come yet. The hold is also in this
    /// state after a [`try_upgrade`](crate::ReadGuard::try_upgrade) without an answer, while the result is unknown.
    Unconfirmed,
    /// The hold is over, and another process may hold the lock.
    Lost(LossReason),
}

/// End of a hold, as [`HoldWatch::ended`](crate::HoldWatch::ended) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The guard was released or dropped.
    Released,
    /// The hold ended before it was released.
    Lost(LossReason),
}

/// End of one share, and the signal that wakes its watchers.
#[derive(Debug, Default)]
pub(crate) struct End {
    ended: OnceLock<Ended>,
    pub(super) changed: Notify,
}

impl End {
    /// Records the end of the share, unless an end is recorded already. Wakes the watchers, which then read the end
    /// again. The caller has released the mutex of the cell.
    pub(super) fn tell(&self, ended: Option<Ended>) {
        if let Some(ended) = ended {
            self.ended.get_or_init(|| ended);
        }
        self.changed.notify_waiters();
    }

    pub(super) fn get(&self) -> Option<Ended> {
        self.ended.get().copied()
    }
}
