//! Cell of one lock: the state of the lock, behind a mutex.
//!
//! An event changes the state under the mutex. The cell carries out the effects of the event after it has released the
//! mutex, for three reasons. A waker may run any code. The deadline queue has a mutex of its own. The drop of a hold is
//! an event of the cell too.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::lock::effects::{Effects, InRenewalQueue, Rules};
use crate::lock::state::State;

/// Services that a cell needs from the table.
pub(super) trait Surroundings<H>: Send + Sync {
    /// Puts a hold into the deadline queue at its next deadline, which has become earlier.
    fn schedule(&self, hold: &Arc<H>);
    /// Plans a check of the cell at `at`. The check replaces each leader that is stalled, which means that its future
    /// is not polled any more.
    fn look_at(&self, cell: &Arc<Cell<H>>, at: Moment);
    /// Removes the cell from the table if the cell is still idle.
    fn forget(&self, cell: &Arc<Cell<H>>);
}

/// Cell of one lock. `H` is the type of the lock's holds.
pub(super) struct Cell<H> {
    key: Arc<Key>,
    rules: Arc<Rules>,
    around: Weak<dyn Surroundings<H>>,
    state: Mutex<State<H>>,
}

impl<H: InRenewalQueue> Cell<H> {
    pub(super) fn new(key: &Arc<Key>, rules: &Arc<Rules>, around: Weak<dyn Surroundings<H>>) -> Self {
        Self { key: Arc::clone(key), rules: Arc::clone(rules), around, state: Mutex::default() }
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
        event: impl FnOnce(&mut State<H>, &Rules, &mut Effects<H>) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let outcome = event(&mut state, &self.rules, &mut effects);
        // Any event may leave a side without a leader. The next waiter of that side then becomes the leader.
        state.advance(now, &mut effects);
        let looks_at = state.next_look();
        let is_idle = state.is_idle();
        drop(state);
        self.carry_out(effects);
        if is_idle || looks_at.is_some() {
            self.tell_around(is_idle, looks_at);
        }
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
        event(&mut self.state.lock())
    }

    /// Applies an event without effects. Returns `None` if another task has the mutex.
    pub(super) fn try_ask<T>(&self, event: impl FnOnce(&mut State<H>) -> T) -> Option<T> {
        self.state.try_lock().map(|mut state| event(&mut state))
    }

    /// Applies an event that leaves the leaders as they are and removes no hold. Carries out its effects after it has
    /// released the mutex.
    pub(super) fn quietly<T>(&self, event: impl FnOnce(&mut State<H>, &Rules, &mut Effects<H>) -> T) -> T {
        let mut effects = Effects::default();
        let outcome = event(&mut self.state.lock(), &self.rules, &mut effects);
        self.carry_out(effects);
        outcome
    }

    /// Removes a guard, if the only effect may be that its hold has to be scheduled earlier. Otherwise `event` returns
    /// `None` and changes nothing, and this function returns false. It is faster than an event with any effects.
    #[inline]
    pub(super) fn leave(&self, event: impl FnOnce(&mut State<H>) -> Option<Option<Arc<H>>>) -> bool {
        let left = event(&mut self.state.lock());
        if let Some(Some(hold)) = &left
            && let Some(around) = self.around.upgrade()
        {
            around.schedule(hold);
        }
        left.is_some()
    }

    #[inline]
    fn carry_out(&self, effects: Effects<H>) {
        effects.carry_out(&self.key, &self.rules, |due| {
            if let Some(around) = self.around.upgrade() {
                due.iter().for_each(|hold| around.schedule(hold));
            }
        });
    }

    /// Replaces the leaders that are not polled any more.
    pub(super) fn look_for_stalled(self: &Arc<Self>, now: Moment) {
        self.event(now, |state, rules, _| state.on_stalled_leader(now, rules));
    }

    /// Removes a hold whose last handle was dropped.
    pub(super) fn hold_dropped(&self, number: u64) {
        let forgotten = self.state.lock().forget(number);
        // Dropped after the mutex is released, because the drop of the record may have effects of its own.
        drop(forgotten);
    }

    /// Marks the cell as gone if it is idle, so that a later task creates a new cell. Returns true if it is idle.
    pub(super) fn leave_if_idle(&self) -> bool {
        let mut state = self.state.lock();
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
