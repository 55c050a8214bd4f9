//! Cell of one lock: the state of the lock, behind a mutex.
//!
//! The state is data. What cannot be compared or copied is kept beside it: the wakers of the waiters by their ids, and the
//! receiver of recalls.
//!
//! An event changes the state under the mutex. The cell carries out the effects of the event after it has released the
//! mutex, for three reasons. A waker may run any code. The deadline queue has a mutex of its own. The drop of a hold is
//! an event of the cell too.

mod beside;

use std::fmt;
use std::sync::{Arc, Weak};
use std::task::{Context, Poll};

use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::recalls::{Recalls, Reception};
use crate::base::sync::Mutex;
use crate::lock::effects::{CellEvent, InRenewalQueue, Rules};
use crate::lock::side::WaiterId;
use crate::lock::state::State;

pub(super) use beside::{Beside, Woken};

/// Services that a cell needs from the table.
pub(super) trait Surroundings<H>: Send + Sync {
    /// Puts a hold into the deadline queue at its next deadline, which has become earlier.
    fn schedule(&self, hold: &Arc<H>);
    /// Plans a look at the cell at `at`, for stalled tasks, which are not polled any more.
    fn look_at(&self, cell: &Arc<Cell<H>>, at: Moment);
    /// Removes the cell from the table if the cell is still idle.
    fn forget(&self, cell: &Arc<Cell<H>>);
}

/// Cell of one lock. `H` is the type of the lock's holds.
pub(super) struct Cell<H> {
    key: Arc<Key>,
    rules: Arc<Rules>,
    around: Weak<dyn Surroundings<H>>,
    contents: Mutex<Contents<H>>,
}

/// State of a lock, and the things that belong to the lock and are no part of its state.
struct Contents<H> {
    state: State<H>,
    beside: Option<Box<Beside>>,
}

impl<H: InRenewalQueue> Contents<H> {
    fn beside(&mut self) -> &mut Beside {
        self.beside.get_or_insert_default()
    }

    /// Returns the recalls that have arrived. Most cells have nothing beside the state, and do not call this function.
    #[inline(never)]
    fn reception(&self) -> Reception {
        let recalls = self.beside.as_ref().and_then(|beside| beside.recalls.as_ref());
        recalls.map_or(Reception::NONE, |recalls| recalls.reception())
    }

    /// Applies an event that depends on the recalls.
    #[inline]
    fn apply<T>(&mut self, event: impl FnOnce(&mut State<H>, &Reception) -> T) -> T {
        let reception;
        let heard = if self.beside.is_none() {
            &Reception::NONE
        } else {
            reception = self.reception();
            &reception
        };
        event(&mut self.state, heard)
    }

    /// Takes the tasks that the event wakes.
    #[inline]
    fn take_woken(&mut self, event: &CellEvent<'_, H>) -> Woken {
        let Some(beside) = &mut self.beside else {
            return Woken::default();
        };
        let woken = beside.take_woken(event.wakes());
        if beside.is_empty() {
            self.beside = None;
        }
        woken
    }
}

impl<H: InRenewalQueue> Cell<H> {
    pub(super) fn new(key: &Arc<Key>, rules: &Arc<Rules>, around: Weak<dyn Surroundings<H>>) -> Self {
        let contents = Contents { state: State::default(), beside: None };
        Self { key: Arc::clone(key), rules: Arc::clone(rules), around, contents: Mutex::new(contents) }
    }

    pub(super) fn key(&self) -> &Arc<Key> {
        &self.key
    }

    pub(super) fn rules(&self) -> &Rules {
        &self.rules
    }

    /// Applies an event. Carries out its effects after it has released the mutex.
    pub(super) fn event<T>(
        self: &Arc<Self>,
        now: Moment,
        change: impl FnOnce(&mut State<H>, &mut CellEvent<'_, H>) -> T,
    ) -> T {
        self.event_beside(now, |state, event, _| change(state, event))
    }

    /// Applies an event that also concerns what is kept beside the state.
    pub(super) fn event_beside<T>(
        self: &Arc<Self>,
        now: Moment,
        change: impl FnOnce(&mut State<H>, &mut CellEvent<'_, H>, &mut Option<Box<Beside>>) -> T,
    ) -> T {
        let (mut looks_at, mut is_idle) = (None, false);
        let outcome = self.change(now, |contents, event| {
            let outcome = change(&mut contents.state, event, &mut contents.beside);
            // Any event may leave a side without a requester that its waiters need.
            contents.state.advance(event);
            (looks_at, is_idle) = (contents.state.next_look(), contents.state.is_idle());
            outcome
        });
        if is_idle || looks_at.is_some() {
            self.tell_around(is_idle, looks_at);
        }
        outcome
    }

    /// Changes the contents under the mutex, and carries out the effects after it has released the mutex.
    #[inline]
    fn change<T>(&self, now: Moment, change: impl FnOnce(&mut Contents<H>, &mut CellEvent<'_, H>) -> T) -> T {
        // Declared before the guard, so that a panic drops the handles of the event after the mutex is free.
        let (heard, mut event);
        let mut guard = self.contents.lock();
        let contents = &mut *guard;
        heard = contents.beside.is_some().then(|| contents.reception());
        event = CellEvent::new(now, &self.rules, heard.as_ref().unwrap_or(&Reception::NONE));
        let outcome = change(contents, &mut event);
        let woken = contents.take_woken(&event);
        drop(guard);
        self.carry_out(event, woken);
        outcome
    }

    fn tell_around(self: &Arc<Self>, is_idle: bool, looks_at: Option<Moment>) {
        let Some(around) = self.around.upgrade() else {
            return;
        };
        if let Some(at) = looks_at {
            around.look_at(self, at);
        }
        if is_idle {
            around.forget(self);
        }
    }

    /// Applies an event without effects.
    pub(super) fn ask<T>(&self, event: impl FnOnce(&mut State<H>) -> T) -> T {
        event(&mut self.contents.lock().state)
    }

    /// Applies an event without effects that depends on the recalls.
    #[inline]
    pub(super) fn ask_heard<T>(&self, event: impl FnOnce(&mut State<H>, &Reception) -> T) -> T {
        self.contents.lock().apply(event)
    }

    /// Applies an event as [`ask_heard`](Self::ask_heard) does, or returns `None` if another task has the mutex.
    #[inline]
    pub(super) fn try_ask_heard<T>(&self, event: impl FnOnce(&mut State<H>, &Reception) -> T) -> Option<T> {
        Some(self.contents.try_lock()?.apply(event))
    }

    /// Returns the receiver of recalls, if there is one. `new` becomes the receiver if there is none.
    pub(super) fn recalls(&self, new: Option<Arc<Recalls>>) -> Option<Arc<Recalls>> {
        let contents = &mut *self.contents.lock();
        if new.is_none() {
            return contents.beside.as_ref()?.recalls.clone();
        }
        let recalls = &mut contents.beside().recalls;
        if recalls.is_none() {
            *recalls = new;
        }
        recalls.clone()
    }

    /// Returns what a waiter waits for, or registers its task, which an effect wakes. The outer `Option` of `look` is
    /// `None` as long as the waiter has to wait.
    pub(super) fn poll_waiter<T>(
        &self,
        waiter_id: WaiterId,
        cx: &Context<'_>,
        look: impl FnOnce(&mut State<H>) -> Option<T>,
    ) -> Poll<T> {
        // A waker may run any code when it is cloned or dropped, so both happen without the mutex.
        let waker = cx.waker().clone();
        let mut guard = self.contents.lock();
        let contents = &mut *guard;
        let found = look(&mut contents.state);
        let former = match &found {
            None => contents.beside().register(waiter_id, waker),
            Some(_) => contents.beside.as_mut().and_then(|beside| beside.forget(waiter_id)),
        };
        drop(guard);
        drop(former);
        found.map_or(Poll::Pending, Poll::Ready)
    }

    /// Removes the task of a waiter that does not wait any more.
    pub(super) fn forget_waiter(&self, waiter_id: WaiterId) {
        let waker = self.contents.lock().beside.as_mut().and_then(|beside| beside.forget(waiter_id));
        // Dropped without the mutex, because the drop of a waker may run any code.
        drop(waker);
    }

    /// Applies an event that leaves the requesters as they are and removes no hold. Carries out its effects after it has
    /// released the mutex.
    pub(super) fn quietly<T>(&self, change: impl FnOnce(&mut State<H>, &mut CellEvent<'_, H>) -> T) -> T {
        self.quietly_at(self.rules.clock.now(), change)
    }

    /// Applies an event at `now`, otherwise as [`quietly`](Self::quietly) does.
    pub(super) fn quietly_at<T>(
        &self,
        now: Moment,
        change: impl FnOnce(&mut State<H>, &mut CellEvent<'_, H>) -> T,
    ) -> T {
        self.change(now, |contents, event| change(&mut contents.state, event))
    }

    /// Removes a guard, if the only effect may be that its hold has to be scheduled earlier. Otherwise `event` returns
    /// `None` and changes nothing, and this function returns false. It is faster than an event with any effects.
    #[inline]
    pub(super) fn leave(&self, event: impl FnOnce(&mut State<H>, &Reception) -> Option<Option<Arc<H>>>) -> bool {
        let left = self.ask_heard(event);
        if let Some(Some(hold)) = &left
            && let Some(around) = self.around.upgrade()
        {
            around.schedule(hold);
        }
        left.is_some()
    }

    #[inline]
    fn carry_out(&self, event: CellEvent<'_, H>, woken: Woken) {
        event.carry_out(&self.key, woken, |due| {
            if let Some(around) = self.around.upgrade() {
                due.iter().for_each(|hold| around.schedule(hold));
            }
        });
    }

    /// Looks for tasks that are not polled any more.
    pub(super) fn look_for_stalled(self: &Arc<Self>, now: Moment) {
        self.event(now, |state, event| state.on_stalled(event));
    }

    /// Removes a hold whose last handle was dropped.
    pub(super) fn hold_dropped(&self, number: u64) {
        let forgotten = self.contents.lock().state.forget(number);
        // Dropped after the mutex is released, because the drop of the record may have effects of its own.
        drop(forgotten);
    }

    /// Marks the cell as gone if it is idle, so that a later task creates a new cell. Returns true if it is idle.
    pub(super) fn leave_if_idle(&self) -> bool {
        let state = &mut self.contents.lock().state;
        let is_idle = state.is_idle();
        state.is_gone |= is_idle;
        is_idle
    }
}

impl<H> fmt::Debug for Cell<H> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cell").field("lock", &self.key.name()).finish_non_exhaustive()
    }
}
