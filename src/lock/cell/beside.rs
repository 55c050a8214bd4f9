//! Things of a lock that are no part of its state, because they cannot be copied or compared.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::task::Waker;

use smallvec::SmallVec;
use tokio::sync::Notify;

use crate::base::attempt::Subscription;
use crate::base::mode::Mode;
use crate::base::panics::catch_panic;
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

/// Wakers and subscriptions of the waiters of one lock.
#[derive(Default)]
pub(in crate::lock) struct Beside {
    pub(super) wakers: BTreeMap<WaiterId, Waker>,
    sides: [OfSide; 2],
}

#[derive(Default)]
struct OfSide {
    /// Wakes the waiters that wait for the first answer to their leader.
    first_answer: Option<Arc<Notify>>,
    /// Left by a leader for the next one, which continues its request.
    left: Option<Notifications>,
}

impl Beside {
    fn side(&mut self, mode: Mode) -> &mut OfSide {
        &mut self.sides[usize::from(mode == Mode::Write)]
    }

    pub(super) fn first_answer(&mut self, mode: Mode) -> &mut Option<Arc<Notify>> {
        &mut self.side(mode).first_answer
    }

    pub(in crate::lock) fn notifications(&mut self, mode: Mode) -> &mut Option<Notifications> {
        &mut self.side(mode).left
    }

    /// Removes the task of a waiter that leaves.
    pub(in crate::lock) fn forget(&mut self, waiter_id: WaiterId) -> Option<Waker> {
        self.wakers.remove(&waiter_id)
    }

    pub(super) fn take_woken(&mut self, wakes: impl Iterator<Item = Wakes>, woken: &mut Woken) {
        for wakes in wakes {
            match wakes {
                Wakes::Waiter(waiter_id) => woken.tasks.extend(self.wakers.remove(&waiter_id)),
                Wakes::Listeners(mode) => woken.listeners.extend(self.side(mode).first_answer.take()),
            }
        }
    }

    pub(super) fn is_empty(&self) -> bool {
        let of_side = |side: &OfSide| side.first_answer.is_none() && side.left.is_none();
        self.wakers.is_empty() && self.sides.iter().all(of_side)
    }
}

/// Things that an event takes from beside the state, to be used and dropped after the mutex is released.
#[derive(Default)]
pub(in crate::lock) struct Woken {
    tasks: SmallVec<[Waker; 1]>,
    listeners: SmallVec<[Arc<Notify>; 1]>,
    /// Subscriptions that no leader needs. The end of a subscription wakes tasks.
    pub(super) left: SmallVec<[Option<Notifications>; 0]>,
}

impl Woken {
    #[cfg(test)]
    pub(in crate::lock) fn of(task: Waker) -> Self {
        Self { tasks: SmallVec::from_elem(task, 1), ..Self::default() }
    }

    pub(in crate::lock) fn is_empty(&self) -> bool {
        self.tasks.is_empty() && self.listeners.is_empty() && self.left.is_empty()
    }

    /// Wakes the tasks. A waker that panics keeps no other task from being woken.
    pub(in crate::lock) fn wake(self) {
        let Self { tasks, listeners, left } = self;
        tasks.into_iter().for_each(|task| {
            catch_panic(|| task.wake());
        });
        listeners.iter().for_each(|listener| {
            catch_panic(|| listener.notify_waiters());
        });
        drop(left);
    }
}
