//! Things of a lock that are no part of its state, because they cannot be copied or compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use crate::base::panics::catch_panic;
use crate::base::recalls::Recalls;
use crate::lock::effects::Wakes;
use crate::lock::side::WaiterId;

/// Receiver of recalls, and wakers of the tasks of one lock.
#[derive(Default)]
pub(in crate::lock) struct Beside {
    /// Receiver of recalls. Present while a hold may be cached.
    pub(super) recalls: Option<Arc<Recalls>>,
    wakers: BTreeMap<WaiterId, Waker>,
}

impl Beside {
    /// Stores the task of a waiter. Returns the former one.
    pub(super) fn register(&mut self, waiter_id: WaiterId, task: Waker) -> Option<Waker> {
        self.wakers.insert(waiter_id, task)
    }

    /// Removes the task of a waiter that leaves.
    pub(in crate::lock) fn forget(&mut self, waiter_id: WaiterId) -> Option<Waker> {
        self.wakers.remove(&waiter_id)
    }

    /// Takes the tasks that an event wakes.
    pub(super) fn take_woken(&mut self, wakes: impl Iterator<Item = Wakes>) -> Woken {
        let mut woken = Woken::default();
        for wakes in wakes {
            match wakes {
                Wakes::Waiter(waiter_id) => woken.tasks.extend(self.wakers.remove(&waiter_id)),
                // One event may have two reasons to wake all, and the first one takes the tasks.
                Wakes::All => woken.all.get_or_insert_default().append(&mut self.wakers),
            }
        }
        woken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.recalls.is_none() && self.wakers.is_empty()
    }
}

/// Things that an event takes from beside the state, to be used and dropped after the mutex is released.
#[derive(Default)]
pub(in crate::lock) struct Woken {
    tasks: SmallVec<[Waker; 1]>,
    /// All waiters of the lock. There may be many, so they are not moved under the mutex.
    all: Option<BTreeMap<WaiterId, Waker>>,
}

impl Woken {
    #[cfg(all(test, feature = "_testing"))]
    pub(in crate::lock) fn of(task: Waker) -> Self {
        Self { tasks: SmallVec::from_elem(task, 1), ..Self::default() }
    }

    pub(in crate::lock) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.all.is_none()
    }

    /// Wakes the tasks. A waker that panics keeps no other task from being woken.
    pub(in crate::lock) fn wake(self) {
        let Self { tasks, all } = self;
        let wake = |task: Waker| {
            catch_panic(|| task.wake());
        };
        tasks.into_iter().for_each(wake);
        if let Some(all) = all {
            all.into_values().for_each(wake);
        }
    }
}
