//! Deadlines of a manager's locks: the moments at which the [background](crate::engine::background) has to look at a
//! hold, or at a requester whose future may not be polled any more.
//!
//! The queues store no state. A hold is in its queue at most once, at the moment of its next deadline: a renewal, or the
//! end of the local validity. To schedule a hold means to read its state and to put it into the queue, both under the
//! mutex of the queue. After each event, the [cell](super::cell) schedules the holds whose places are too late.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use crate::base::deadline_queue::{DeadlineQueue, Place};
use crate::base::lease::Moment;
use crate::base::sync::Mutex;
use crate::lock::cell::Cell;
use crate::lock::hold::{Hold, Next};
use crate::lock::wake::Wake;

#[derive(Debug, Default)]
pub(crate) struct Deadlines {
    holds: Mutex<DeadlineQueue<Arc<Hold>>>,
    requesters: Mutex<DeadlineQueue<Weak<Cell<Hold>>>>,
    pub(crate) wake: Wake,
}

/// Place of a hold that is not in the queue: any event of it schedules it.
const NOWHERE: Place = Place { at: Moment::NEVER, number: 0 };

impl Deadlines {
    /// Puts a hold into the queue at its next deadline, which follows from its current state. Does nothing if the hold
    /// is over or [forgotten](Self::forget).
    pub(crate) fn schedule(&self, hold: &Arc<Hold>) {
        let mut holds = self.holds.lock();
        // The hold is removed from the queue before its state is read. An event that changes the hold after that finds
        // it outside of the queue, and schedules it again. So no change is missed.
        remove(&mut holds, hold);
        let at = match hold.due() {
            Next::At(at) => at,
            // The background takes the lost hold at once and reports the loss.
            Next::Lost(_) => Moment::START,
            Next::Released | Next::GivenUp => return,
        };
        if hold.is_retired() {
            return;
        }
        let place = holds.insert(at, Arc::clone(hold));
        set_place(hold, place);
        drop(holds);
        self.wake.at(at);
    }

    /// Removes a hold for good, because it has no further deadline.
    pub(crate) fn forget(&self, hold: &Hold) {
        // The background may have taken the hold out of the queue before. Because of this flag, it does not schedule
        // the hold again.
        hold.retire();
        remove(&mut self.holds.lock(), hold);
    }

    /// Takes the holds whose deadline has come out of the queue, and with them those that are due within `window`. The
    /// next event of each hold schedules it again, so the caller must cause one, or [forget](Self::forget) the hold.
    pub(crate) fn take_due(&self, now: Moment, window: Duration) -> Vec<Arc<Hold>> {
        let mut holds = self.holds.lock();
        if holds.next() > now {
            return Vec::new();
        }
        let due = holds.take_due(now.after(window));
        due.iter().for_each(|hold| set_place(hold, NOWHERE));
        due
    }

    /// Plans a check of a cell at `at`, or soon after.
    pub(super) fn look_at(&self, cell: &Arc<Cell<Hold>>, at: Moment) {
        self.requesters.lock().insert(at, Arc::downgrade(cell));
        self.wake.at(at);
    }

    /// Ends the requesters that should have been polled again by now.
    pub(crate) fn look_for_stalled(&self, now: Moment) {
        let due = self.requesters.lock().take_due(now);
        due.iter().filter_map(Weak::upgrade).for_each(|cell| cell.look_for_stalled(now));
    }

    /// Returns the earliest deadline.
    pub(crate) fn next(&self) -> Moment {
        let holds = self.holds.lock().next();
        holds.min(self.requesters.lock().next())
    }

    /// Puts a hold into the queue at a moment that the caller has read before. This is the fault of a wrong queue, for a
    /// test.
    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn schedule_at(&self, hold: &Arc<Hold>, at: Moment) {
        let mut holds = self.holds.lock();
        remove(&mut holds, hold);
        let place = holds.insert(at, Arc::clone(hold));
        set_place(hold, place);
        drop(holds);
        self.wake.at(at);
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn has_no_holds(&self) -> bool {
        self.holds.lock().is_empty()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn requesters(&self) -> usize {
        self.requesters.lock().len()
    }
}

fn remove(holds: &mut DeadlineQueue<Arc<Hold>>, hold: &Hold) {
    let at = Moment::from_nanos(hold.queue_moment.load(Ordering::Relaxed));
    let number = hold.queue_slot.load(Ordering::Relaxed);
    set_place(hold, NOWHERE);
    holds.remove(Place { at, number });
}

fn set_place(hold: &Hold, Place { at, number }: Place) {
    hold.queue_slot.store(number, Ordering::Relaxed);
    hold.queue_moment.store(at.as_nanos(), Ordering::Relaxed);
}
