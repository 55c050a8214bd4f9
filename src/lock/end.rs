//! State and end of a share.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::base::error::LossReason;

/// Trust in a hold by the local clock, as a [guard](crate::WriteGuard) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldState {
    /// The last renewal was answered in time.
    Held,
    /// A renewal went unanswered and is being repeated; the local deadline is still ahead. Also after a
    /// [`try_upgrade`](crate::ReadGuard::try_upgrade) without an answer, while its result is unknown.
    Unconfirmed,
    /// The hold is over, and others may be inside.
    Lost(LossReason),
}

/// End of a hold, as [`HoldWatch::ended`](crate::HoldWatch::ended) reports it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// The guard released it, or was dropped.
    Released,
    /// The hold ended before it was released.
    Lost(LossReason),
}

/// End of one share, for its watchers.
#[derive(Debug, Default)]
pub(crate) struct End {
    ended: OnceLock<Ended>,
    pub(super) changed: Notify,
}

impl End {
    /// Records the end, unless one is recorded. The caller notifies the watchers later, when no mutex is held.
    pub(super) fn set(&self, ended: Ended) {
        self.ended.get_or_init(|| ended);
    }

    /// Wakes the watchers, which look again.
    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    pub(super) fn get(&self) -> Option<Ended> {
        self.ended.get().copied()
    }
}
