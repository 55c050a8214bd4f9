//! Owners of nested acquisitions.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Owner that may hold a lock several times at once.
///
/// A nested acquisition of the same owner only changes a counter; see [`Reentry`].
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, OwnerId, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// let job = OwnerId::new(); // or OwnerId::current(), the task that runs this
/// let outer = manager.write("cfg").owner(job).await?;
/// let inner = manager.read("cfg").owner(job).await?; // counts, sends nothing
/// outer.release().await?; // still held: the hold ends with the last guard
/// inner.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct OwnerId(Owner);

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Owner {
    Task(tokio::task::Id),
    Thread(NonZeroU64),
    Named(NonZeroU64),
    Nobody,
}

/// Returns a number that is unique in this process.
fn next() -> NonZeroU64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX)
}

impl OwnerId {
    /// Owner that no acquisition has. Shares without a guard have this owner.
    pub(crate) const NOBODY: Self = Self(Owner::Nobody);

    /// Creates a new owner, different from all others in this process.
    #[must_use]
    #[allow(clippy::new_without_default)] // two new owners differ, but defaults should be equal
    pub fn new() -> Self {
        Self(Owner::Named(next()))
    }

    /// Returns the current thread as an owner, even if a task runs on it.
    pub(crate) fn of_thread() -> Self {
        // This number is faster than the thread id of the standard library, whose handle counts references at each
        // call.
        thread_local!(static THREAD: NonZeroU64 = next());
        Self(Owner::Thread(THREAD.with(|thread| *thread)))
    }

    /// Returns the current tokio task as an owner. Outside of tasks, returns the current thread.
    #[must_use]
    pub fn current() -> Self {
        match tokio::task::try_id() {
            Some(task) => Self(Owner::Task(task)),
            None => Self::of_thread(),
        }
    }
}

/// Rule that decides which acquisitions of one owner nest. Options set it for a manager, and
/// [`reentry`](crate::Acquire::reentry) sets it for one acquisition.
///
/// A nested acquisition is one whose owner holds the lock already. A read nests in a read or in a write, and a write
/// nests in a write. A nested acquisition only changes a counter, and sends nothing. The guards may be dropped in any
/// order, and the hold ends with the last guard. A write in a read fails with
/// [`UpgradeConflict`](crate::Error::UpgradeConflict) at once.
///
/// An acquisition nests only in a guard that exists when the acquisition is first polled. So two acquisitions of one
/// owner at the same time do not nest: the second waits for the guard of the first.
///
/// This is off by default. In async code a guard can move to another task. One task can also run several futures, for
/// example under `join!`. All of them would then hold the lock at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Reentry {
    /// No acquisition nests. An inner one waits for the outer one, as with tokio's `RwLock`.
    #[default]
    Off,
    /// Acquisitions of one tokio task nest. Outside of tasks, acquisitions of one thread nest.
    PerTask,
    /// Acquisitions of this owner nest.
    Named(OwnerId),
}

impl Reentry {
    /// Returns the owner whose acquisitions nest with an acquisition of the calling code.
    pub(crate) fn owner(self) -> Option<OwnerId> {
        match self {
            Self::Off => None,
            Self::PerTask => Some(OwnerId::current()),
            Self::Named(owner) => Some(owner),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn new_owners_differ() {
        assert_ne!(OwnerId::new(), OwnerId::new());
    }

    #[test]
    fn one_thread_is_one_owner_outside_of_tasks() {
        assert_eq!(OwnerId::current(), OwnerId::current());
        let other = std::thread::spawn(OwnerId::current).join().expect("no panic");
        assert_ne!(other, OwnerId::current());
    }

    #[tokio::test]
    async fn each_task_is_its_own_owner() {
        let a = tokio::spawn(async { OwnerId::current() }).await.expect("no panic");
        let b = tokio::spawn(async { OwnerId::current() }).await.expect("no panic");
        assert_ne!(a, b);
    }
}
