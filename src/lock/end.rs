//! How a share stands, and how it ended.

use std::sync::OnceLock;

use tokio::sync::Notify;

use crate::base::error::LossReason;

/// How much a hold can be trusted, by the local clock, as a [guard](crate::WriteGuard) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum HoldState {
    /// The last renewal was answered in time.
    Held,
    /// A renewal went unanswered and is being repeated, or [`try_upgrade`](crate::ReadGuard::try_upgrade) did and it is not known
    /// what came of it; the local deadline still stands.
    Unconfirmed,
    /// It is over, and others may be inside.
    Lost(LossReason),
}

/// How a hold ended, as [`HoldWatch::ended`](crate::HoldWatch::ended) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Ended {
    /// Its guard released it, or was dropped.
    Released,
    /// It ended before it was released.
    Lost(LossReason),
}

/// The end of one share, for those who watch it.
#[derive(Debug, Default)]
pub(crate) struct End {
    ended: OnceLock<Ended>,
    pub(super) changed: Notify,
}

impl End {
    /// The first word counts. To be told when no mutex is held.
    pub(super) fn set(&self, ended: Ended) {
        self.ended.get_or_init(|| ended);
    }

    /// Those who watch look again.
    pub(super) fn tell(&self) {
        self.changed.notify_waiters();
    }

    pub(super) fn get(&self) -> Option<Ended> {
        self.ended.get().copied()
    }
}
