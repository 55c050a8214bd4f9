//! This process's locks: who holds them here, and who waits for them, first come first served.
//!
//! Per lock there is one queue, and at most one waiter has the *turn*, which is the right to ask the server. A waiter
//! gets the turn when it stands first, nobody else has it, and no local holder is in its way: so one task per process
//! contends, and nobody asks for what this process holds itself. Pure: no I/O, no clock.

use std::collections::{HashMap, VecDeque};
use std::sync::Arc;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::hold::Hold;
use crate::key::Key;
use crate::lease::Moment;
use crate::reentry::OwnerId;
use crate::scheme::Mode;

#[derive(Debug, Default)]
pub(crate) struct Table {
    locks: Mutex<Locks>,
}

#[derive(Debug, Default)]
struct Locks {
    by_name: HashMap<Arc<str>, Lock>,
    next_ticket: u64,
}

#[derive(Debug, Default)]
struct Lock {
    holders: Vec<Arc<Hold>>,
    queue: VecDeque<Waiter>,
    turn: Option<Ticket>,
    /// Since when the server has not answered whoever had the turn.
    silent_since: Option<Moment>,
}

#[derive(Debug)]
struct Waiter {
    ticket: Ticket,
    mode: Mode,
    wake: Arc<Notify>,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Ticket(u64);

/// A place in a lock's queue, or its turn. Given back when dropped.
#[derive(Debug)]
pub(crate) struct Place {
    table: Arc<Table>,
    key: Arc<Key>,
    ticket: Ticket,
    /// Absent when the turn came at once.
    wake: Option<Arc<Notify>>,
    /// The waiter has become a holder: there is nothing to give back.
    done: bool,
}

impl Lock {
    fn admits(&self, mode: Mode) -> bool {
        match mode {
            Mode::Read => self.holders.iter().all(|hold| hold.mode() == Mode::Read),
            Mode::Write => self.holders.is_empty(),
        }
    }

    fn takes_at_once(&self, mode: Mode) -> bool {
        self.turn.is_none() && self.queue.is_empty() && self.admits(mode)
    }

    /// Gives the turn to the first waiter if it can use it.
    fn advance(&mut self) {
        if self.turn.is_some() || !self.queue.front().is_some_and(|first| self.admits(first.mode)) {
            return;
        }
        if let Some(first) = self.queue.pop_front() {
            self.turn = Some(first.ticket);
            first.wake.notify_one();
        }
    }

    fn is_idle(&self) -> bool {
        self.holders.is_empty() && self.queue.is_empty() && self.turn.is_none()
    }
}

impl Locks {
    fn ticket(&mut self) -> Ticket {
        self.next_ticket += 1;
        Ticket(self.next_ticket)
    }

    /// Changes a lock, lets the next waiter have its turn, and forgets the lock when it is idle.
    fn change(&mut self, key: &Key, change: impl FnOnce(&mut Lock)) {
        let Some(lock) = self.by_name.get_mut(key.name()) else {
            return;
        };
        change(lock);
        lock.advance();
        if lock.turn.is_none() {
            // Nobody asks, so nothing is known of the server.
            lock.silent_since = None;
        }
        if lock.is_idle() {
            self.by_name.remove(key.name());
        }
    }
}

impl Table {
    /// Joins the queue of `key`.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<Key>, mode: Mode) -> Place {
        let mut locks = self.locks.lock();
        let ticket = locks.ticket();
        let lock = locks.by_name.entry(key.shared_name()).or_default();
        let wake = if lock.takes_at_once(mode) {
            lock.turn = Some(ticket);
            None
        } else {
            let wake = Arc::new(Notify::new());
            lock.queue.push_back(Waiter { ticket, mode, wake: Arc::clone(&wake) });
            Some(wake)
        };
        drop(locks);
        self.place(key, ticket, wake)
    }

    /// The right to ask the server once, unless somebody here holds the lock or waits for it. Somebody else who only asks
    /// is in nobody's way: then both do, this one without the turn.
    pub(crate) fn try_enter(self: &Arc<Self>, key: &Arc<Key>, mode: Mode) -> Option<Place> {
        let mut locks = self.locks.lock();
        let ticket = locks.ticket();
        let lock = locks.by_name.entry(key.shared_name()).or_default();
        if !lock.queue.is_empty() || !lock.admits(mode) {
            return None;
        }
        lock.turn.get_or_insert(ticket);
        drop(locks);
        Some(self.place(key, ticket, None))
    }

    fn place(self: &Arc<Self>, key: &Arc<Key>, ticket: Ticket, wake: Option<Arc<Notify>>) -> Place {
        Place { table: Arc::clone(self), key: Arc::clone(key), ticket, wake, done: false }
    }

    /// A hold is over: it is in nobody's way any more.
    pub(crate) fn ended(&self, hold: &Hold) {
        self.locks.lock().change(hold.key(), |lock| {
            if let Some(at) = lock.holders.iter().position(|other| other.id() == hold.id()) {
                lock.holders.swap_remove(at);
            }
        });
    }

    /// The holds of a lock.
    pub(crate) fn holders(&self, key: &Key) -> Vec<Arc<Hold>> {
        self.locks.lock().by_name.get(key.name()).map_or_else(Vec::new, |lock| lock.holders.clone())
    }

    /// A hold of this owner, if it has one that is not over.
    pub(crate) fn held_by(&self, key: &Key, owner: OwnerId) -> Option<Arc<Hold>> {
        let locks = self.locks.lock();
        let holders = &locks.by_name.get(key.name())?.holders;
        holders.iter().find(|hold| hold.owner() == owner && hold.how_it_ended().is_none()).cloned()
    }

    /// All holds of this process, of all locks.
    pub(crate) fn all_holders(&self) -> Vec<Arc<Hold>> {
        self.locks.lock().by_name.values().flat_map(|lock| &lock.holders).cloned().collect()
    }

    /// Since when the server has not answered for this lock.
    pub(crate) fn silent_since(&self, key: &Key) -> Option<Moment> {
        self.locks.lock().by_name.get(key.name())?.silent_since
    }
}

impl Place {
    /// Whether the turn has come, as far as this waiter has looked.
    pub(crate) fn has_turn(&self) -> bool {
        self.wake.is_none()
    }

    /// Returns when it is this waiter's turn. Dropping the future keeps the place.
    pub(crate) async fn turn(&mut self) {
        if let Some(wake) = &self.wake {
            wake.notified().await;
            self.wake = None;
        }
    }

    /// The server has not answered whoever has the turn since this moment, or has again.
    pub(crate) fn silent_since(&self, since: Option<Moment>) {
        let mut locks = self.table.locks.lock();
        if let Some(lock) = locks.by_name.get_mut(self.key.name()) {
            lock.silent_since = match (lock.silent_since, since) {
                (Some(earlier), Some(_)) => Some(earlier),
                (_, since) => since,
            };
        }
    }

    /// The waiter has become a holder.
    pub(crate) fn granted(mut self, hold: &Arc<Hold>) {
        let mut locks = self.table.locks.lock();
        // Without the turn, the lock may have been forgotten meanwhile.
        locks.by_name.entry(self.key.shared_name()).or_default();
        locks.change(&self.key, |lock| {
            lock.turn.take_if(|turn| *turn == self.ticket);
            lock.silent_since = None;
            lock.holders.push(Arc::clone(hold));
        });
        drop(locks);
        self.done = true;
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        if self.done {
            return;
        }
        let ticket = self.ticket;
        self.table.locks.lock().change(&self.key, |lock| {
            if lock.turn == Some(ticket) {
                lock.turn = None;
            } else {
                lock.queue.retain(|waiter| waiter.ticket != ticket);
            }
        });
    }
}

#[cfg(test)]
mod tests {
    use std::task::{Context, Poll, Waker};

    use super::*;

    fn key() -> Arc<Key> {
        Arc::new(Key::new("p", "cfg").expect("valid"))
    }

    fn has_turn(place: &mut Place) -> bool {
        let mut turn = std::pin::pin!(place.turn());
        turn.as_mut().poll(&mut Context::from_waker(Waker::noop())) == Poll::Ready(())
    }

    #[test]
    fn one_waiter_has_the_turn() {
        let table = Arc::new(Table::default());
        let mut first = table.enter(&key(), Mode::Read);
        let mut second = table.enter(&key(), Mode::Read);
        assert!(has_turn(&mut first));
        assert!(!has_turn(&mut second));
        assert!(table.try_enter(&key(), Mode::Read).is_none());
        drop(first);
        assert!(has_turn(&mut second));
    }

    #[test]
    fn waiter_that_leaves_does_not_stop_those_behind_it() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write);
        let second = table.enter(&key(), Mode::Write);
        let mut third = table.enter(&key(), Mode::Write);
        drop(second);
        drop(first);
        assert!(has_turn(&mut third));
    }

    #[test]
    fn turn_is_passed_on_when_it_came_to_a_future_that_died() {
        let table = Arc::new(Table::default());
        let first = table.enter(&key(), Mode::Write);
        let second = table.enter(&key(), Mode::Write);
        let mut third = table.enter(&key(), Mode::Write);
        drop(first); // the turn is second's now, though it never looked
        drop(second);
        assert!(has_turn(&mut third));
    }

    #[test]
    fn idle_locks_are_forgotten() {
        let table = Arc::new(Table::default());
        drop(table.enter(&key(), Mode::Read));
        drop(table.try_enter(&key(), Mode::Write));
        assert!(table.locks.lock().by_name.is_empty());
    }
}
