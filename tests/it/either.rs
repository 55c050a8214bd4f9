//! Guards and acquisitions of either side, for cases that do the same on both.

use std::time::Duration;

use redis_rwlock::{
    FencingToken, HoldState, HoldWatch, LossReason, Mode, ReadGuard, Result, RwLockManager, WriteGuard,
};

use crate::fixture::Manager;
use crate::wait::granted;

/// A guard of either side.
#[derive(Debug)]
pub enum AnyGuard {
    Read(ReadGuard),
    Write(WriteGuard),
}

impl AnyGuard {
    pub fn state(&self) -> HoldState {
        match self {
            Self::Read(guard) => guard.state(),
            Self::Write(guard) => guard.state(),
        }
    }

    pub fn watch(&self) -> HoldWatch {
        match self {
            Self::Read(guard) => guard.watch(),
            Self::Write(guard) => guard.watch(),
        }
    }

    pub fn token(&self) -> FencingToken {
        match self {
            Self::Read(guard) => guard.fencing_token(),
            Self::Write(guard) => guard.fencing_token(),
        }
    }

    pub fn remaining(&self) -> Duration {
        match self {
            Self::Read(guard) => guard.remaining(),
            Self::Write(guard) => guard.remaining(),
        }
    }

    pub async fn confirmed(&self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.confirmed().await,
            Self::Write(guard) => guard.confirmed().await,
        }
    }

    pub async fn lost(&self) -> LossReason {
        match self {
            Self::Read(guard) => guard.lost().await,
            Self::Write(guard) => guard.lost().await,
        }
    }

    pub async fn release(self) -> Result<()> {
        match self {
            Self::Read(guard) => guard.release().await,
            Self::Write(guard) => guard.release().await,
        }
    }

    /// Releases a guard that was held all the time.
    pub async fn release_unharmed(self) {
        assert_eq!(self.state(), HoldState::Held);
        self.release().await.expect("ours to the end");
    }
}

pub async fn take(manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
    match mode {
        Mode::Read => AnyGuard::Read(granted(manager.read(name)).await),
        Mode::Write => AnyGuard::Write(granted(manager.write(name)).await),
    }
}

/// Acquires the lock for a lease that is never renewed.
pub async fn take_for(lease: Duration, manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
    match mode {
        Mode::Read => {
            let read = manager.read(name).lease(lease).max_hold(lease).into_future();
            AnyGuard::Read(granted(read).await)
        }
        Mode::Write => {
            let write = manager.write(name).lease(lease).max_hold(lease).into_future();
            AnyGuard::Write(granted(write).await)
        }
    }
}

/// Tries once to acquire the lock.
pub async fn try_take(manager: &Manager, name: &str, mode: Mode) -> Option<AnyGuard> {
    match mode {
        Mode::Read => manager.try_read(name).await.expect("answered").map(AnyGuard::Read),
        Mode::Write => manager.try_write(name).await.expect("answered").map(AnyGuard::Write),
    }
}
