//! Who counts as one owner, for nested acquisitions.

use std::num::NonZeroU64;
use std::sync::atomic::{AtomicU64, Ordering};

/// Somebody who may hold a lock several times over.
///
/// A nested acquisition of the same owner only counts; see [`Reentry`].
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

/// A number that nobody else in this process has.
fn next() -> NonZeroU64 {
    static NEXT: AtomicU64 = AtomicU64::new(1);
    NonZeroU64::new(NEXT.fetch_add(1, Ordering::Relaxed)).unwrap_or(NonZeroU64::MAX)
}

impl OwnerId {
    /// Of the share of a hold that nobody has a guard of. No owner is this one.
    pub(crate) const NOBODY: Self = Self(Owner::Nobody);

    /// A new owner, different from all others in this process.
    #[must_use]
    #[allow(clippy::new_without_default)] // two defaults would not be equal, which nobody expects of a default
    pub fn new() -> Self {
        Self(Owner::Named(next()))
    }

    /// The thread that runs this code, also where that is a task.
    pub(crate) fn of_thread() -> Self {
        // The standard library's would be counted each time.
        thread_local!(static THREAD: NonZeroU64 = next());
        Self(Owner::Thread(THREAD.with(|thread| *thread)))
    }

    /// The tokio task that runs this code, else the thread.
    #[must_use]
    pub fn current() -> Self {
        match tokio::task::try_id() {
            Some(task) => Self(Owner::Task(task)),
            None => Self::of_thread(),
        }
    }
}

/// Whether acquisitions of one owner nest. Set for a manager, or for one acquisition by [`reentry`](crate::Acquire::reentry).
///
/// Nested, a read in a read, a write in a write and a read in a write only count and send nothing, and the hold ends
/// with the last of its guards, in any order. A write in a read is
/// [`UpgradeConflict`](crate::Error::UpgradeConflict) at once.
///
/// An acquisition nests in a guard that is there when it is first polled. Two of one owner that are under way at the same
/// time are two strangers: the second waits for the first one's guard.
///
/// In async code this is off unless asked for: a guard can be moved to another task, and one task can run many futures,
/// for example under `join!`, which would then all be inside at once.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Reentry {
    /// Every acquisition stands for itself: a nested one waits for the outer one, as with tokio's `RwLock`.
    #[default]
    Off,
    /// Acquisitions of one tokio task nest; outside of tasks, those of one thread.
    PerTask,
    /// Acquisitions of this owner nest.
    Named(OwnerId),
}

impl Reentry {
    /// The owner whose acquisitions nest with one that is made here and now.
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
