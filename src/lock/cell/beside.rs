//! Things of a lock that are no part of its state, because they cannot be copied or compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;

use crate::base::attempt::Subscription;
use crate::base::mode::Mode;
use crate::base::panics::catch_panic;
use crate::base::recalls::Recalls;
use crate::lock::effects::Wakes;
use crate::lock::side::WaiterId;

/// Notifications of the server for one waiter.
#[derive(Debug, Default)]
pub(crate) enum Notifications {
    /// No task has waited yet.
    #[default]
    Unwanted,
    /// The scheme has none.
    Never,
    Subscribed(Subscription),
}

/// Receiver of recalls, wakers and subscriptions of one lock.
#[derive(Default)]
pub(in crate::lock) struct Beside {
    /// Receiver of recalls. Present while a hold may be cached.
    pub(super) recalls: Option<Arc<Recalls>>,
    waiters: Option<Box<WaiterHandles>>,
}

/// Wakers and subscriptions of the waiters of one lock.
#[derive(Default)]
struct WaiterHandles {
    wakers: BTreeMap<WaiterId, Waker>,
    /// Subscriptions of the sides that a leader has left for the next one, which continues its request.
    left: [Option<Notifications>; 2],
}

impl WaiterHandles {
    fn left_to_next(&mut self, mode: Mode) -> &mut Option<Notifications> {
        &mut self.left[usize::from(mode == Mode::Write)]
    }

    fn is_empty(&self) -> bool {
        self.wakers.is_empty() && self.left.iter().all(Option::is_none)
    }
}

impl Beside {
    fn waiters(&mut self) -> &mut WaiterHandles {
        self.waiters.get_or_insert_default()
    }

    pub(in crate::lock) fn notifications(&mut self, mode: Mode) -> &mut Option<Notifications> {
        self.waiters().left_to_next(mode)
    }

    pub(super) fn take_notifications(&mut self, mode: Mode) -> Option<Notifications> {
        self.waiters.as_mut()?.left_to_next(mode).take()
    }

    /// Stores the task of a waiter. Returns the former one.
    pub(super) fn register(&mut self, waiter_id: WaiterId, task: Waker) -> Option<Waker> {
        self.waiters().wakers.insert(waiter_id, task)
    }

    /// Removes the task of a waiter that leaves.
    pub(in crate::lock) fn forget(&mut self, waiter_id: WaiterId) -> Option<Waker> {
        self.waiters.as_mut()?.wakers.remove(&waiter_id)
    }

    /// Takes the tasks that an event wakes, and the subscriptions of the sides that have no request any more.
    pub(super) fn take_woken(
        &mut self,
        wakes: impl Iterator<Item = Wakes>,
        has_request: impl Fn(Mode) -> bool,
    ) -> Woken {
        let mut woken = Woken::default();
        let Some(waiters) = &mut self.waiters else {
            return woken;
        };
        for wakes in wakes {
            match wakes {
                Wakes::Waiter(waiter_id) => woken.tasks.extend(waiters.wakers.remove(&waiter_id)),
                // One event may have two reasons to wake all, and the first one takes the tasks.
                Wakes::All => woken.all.get_or_insert_default().append(&mut waiters.wakers),
            }
        }
        for mode in [Mode::Read, Mode::Write] {
            if !has_request(mode) {
                woken.left.extend(waiters.left_to_next(mode).take());
            }
        }
        if waiters.is_empty() {
            self.waiters = None;
        }
        woken
    }

    pub(super) fn is_empty(&self) -> bool {
        self.recalls.is_none() && self.waiters.is_none()
    }
}

/// Things that an event takes from beside the state, to be used and dropped after the mutex is released.
#[derive(Default)]
pub(in crate::lock) struct Woken {
    tasks: SmallVec<[Waker; 1]>,
    /// All waiters of the lock. There may be many, so they are not moved under the mutex.
    all: Option<BTreeMap<WaiterId, Waker>>,
    /// Subscriptions that no leader needs. The end of a subscription wakes tasks.
    left: SmallVec<[Notifications; 0]>,
}

impl Woken {
    #[cfg(all(test, feature = "_testing"))]
    pub(in crate::lock) fn of(task: Waker) -> Self {
        Self { tasks: SmallVec::from_elem(task, 1), ..Self::default() }
    }

    pub(in crate::lock) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.left.is_empty() && self.all.is_none()
    }

    /// Wakes the tasks. A waker that panics keeps no other task from being woken.
    pub(in crate::lock) fn wake(self) {
        let Self { tasks, all, left } = self;
        let wake = |task: Waker| {
            catch_panic(|| task.wake());
        };
        tasks.into_iter().for_each(wake);
        if let Some(all) = all {
            all.into_values().for_each(wake);
        }
        drop(left);
    }
}
