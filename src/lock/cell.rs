//! Cell of one lock: the state of the lock, behind a mutex.
//!
//! An event changes the state under the mutex. Its effects are carried out when the mutex is free, for three reasons.
//! Wakers and notifications may run any code. The deadline queue has a mutex of its own. The drop of a hold is an event
//! again.

use std::fmt;
use std::sync::{Arc, Weak};

use parking_lot::Mutex;

use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::lock::effects::{Due, Effects, InRenewalQueue, Rules};
use crate::lock::state::State;

/// Services that a cell needs from the table.
pub(super) trait Surroundings<H>: Send + Sync {
    /// Plans a check of the cell for stalled leaders at this moment.
    fn look_at(&self, cell: &Arc<Cell<H>>, at: Moment);
    /// Removes the cell, unless a task has entered it meanwhile.
    fn forget(&self, cell: &Arc<Cell<H>>);
}

/// Cell of one lock. `H` is a hold of the lock.
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

    /// Applies an event. None of its effects happens before the mutex is free.
    pub(super) fn event<T>(
        self: &Arc<Self>,
        now: Moment,
        event: impl FnOnce(&mut State<H>, &Rules, &mut Effects<H>) -> T,
    ) -> (T, Due<H>) {
        let mut effects = Effects::default();
        let mut state = self.state.lock();
        let outcome = event(&mut state, &self.rules, &mut effects);
        // Any event may have freed a side, so the next waiters may ask now.
        state.advance(now, &mut effects);
        let looks_at = state.next_look();
        let is_idle = state.is_idle();
        drop(state);
        let due = effects.carry_out(&self.key, &self.rules);
        if is_idle || looks_at.is_some() {
            self.tell_around(is_idle, looks_at);
        }
        (outcome, due)
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

    /// Applies an event that changes neither the waiters nor the deadlines of holds.
    pub(super) fn quietly<T>(&self, event: impl FnOnce(&mut State<H>, &Rules, &mut Effects<H>) -> T) -> T {
        let mut effects = Effects::default();
        let outcome = self.with(&mut effects, event);
        drop(effects.carry_out(&self.key, &self.rules));
        outcome
    }

    /// Applies an event that may change the deadlines of holds. The caller carries out the effects.
    pub(super) fn with<T>(
        &self,
        effects: &mut Effects<H>,
        event: impl FnOnce(&mut State<H>, &Rules, &mut Effects<H>) -> T,
    ) -> T {
        event(&mut self.state.lock(), &self.rules, effects)
    }

    /// Checks for stalled leaders.
    pub(super) fn look_for_stalled(self: &Arc<Self>, now: Moment) -> Due<H> {
        self.event(now, |state, rules, _| state.on_stalled_leader(now, rules)).1
    }

    /// Removes a hold whose last handle was dropped.
    pub(super) fn hold_dropped(&self, number: u64) {
        let forgotten = self.state.lock().forget(number);
        // Dropped without the mutex, since the drop of the record may have effects of its own.
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
