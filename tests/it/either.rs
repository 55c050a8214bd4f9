//! Guards and acquisitions of either side, for cases that do the same on both.

use std::time::Duration;

use redis_rwlock::{
    FencingToken, HoldState, HoldWatch, LossReason, Mode, ReadGuard, Result, RwLockManager, WriteGuard,
};

use crate::fixture::Manager;
use crate::wait::soon;

/// A guard of either side.
#[derive(Debug)]
pub(crate) enum AnyGuard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl AnyGuard {
    pub(crate) fn state(&self) -> HoldState {
        match self {
            Self::Read(guard) => guard.state(),
            Self::Write(guard) => guard.state(),
        }
    }

    pub(crate) fn watch(&self) -> HoldWatch {
        match self {
            Self::Read(guard) => guard.watch(),
            Self::Write(guard) => guard.watch(),
        }
    }

    pub(crate) fn token(&self) -> FencingToken {
        match self {
            Self::Read(guard) => guard.fencing_token(),
            Self::Write(guard) => guard.fencing_token(),
        }
    }

    pub(crate) fn remaining(&self) -> Duration {
        match self {
            Self::Read(guard) => guard.remaining(),
            Self::Write(guard) => guard.remaining(),
        }
    }

    pub(crate) async fn confirmed(&self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.confirmed().await,
            Self::Write(guard) => guard.confirmed().await,
        }
    }

    pub(crate) async fn lost(&self) -> LossReason {
        match self {
            Self::Read(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
        }
    }

    pub(crate) async fn release(self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    /// Releases a guard that was held all the time.
    pub(crate) async fn release_unharmed(self) {
        assert_eq!(self.state(), HoldState::Held);
        self.release().await.expect("ours to the end");
    }
}

pub(crate) async fn take(manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
    match mode {
        Mode::Read => AnyGuard::Read(soon("a grant", manager.read(name).into_future()).await.expect("granted")),
        Mode::Write => AnyGuard::Write(soon("a grant", manager.write(name).into_future()).await.expect("granted")),
    }
}

/// Acquires the lock for a lease that is never renewed.
pub(crate) async fn take_for(lease: Duration, manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
    match mode {
        Mode::Read => {
            let read = manager.read(name).lease(lease).max_hold(lease).into_future();
            AnyGuard::Read(soon("a grant", read).await.expect("granted"))
        }
        Mode::Write => {
            let write = manager.write(name).lease(lease).max_hold(lease).into_future();
            AnyGuard::Write(soon("a grant", write).await.expect("granted"))
        }
    }
}

/// Tries once to acquire the lock.
pub(crate) async fn try_take(manager: &Manager, name: &str, mode: Mode) -> Option<AnyGuard> {
    match mode {
        Mode::Read => manager.try_read(name).await.expect("answered").map(AnyGuard::Read),
        Mode::Write => manager.try_write(name).await.expect("answered").map(AnyGuard::Write),
    }
}
