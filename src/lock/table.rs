//! Table of the locks that this process uses, by name. The table removes idle locks. Tasks that use locks with
//! different names do not wait for each other's locks.

use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use hashbrown::HashTable;

use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::metrics::Metrics;
use crate::base::mode::Mode;
use crate::base::reentry::OwnerId;
use crate::base::sync::{Mutex, MutexGuard};
use crate::lock::cell::{Cell, Surroundings};
use crate::lock::deadlines::Deadlines;
use crate::lock::effects::{InRenewalQueue, Rules};
use crate::lock::hold::{Hold, NewHold};
use crate::lock::local_waits::LocalWaits;
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::LastRefusal;
use crate::lock::wait::WaitEntry;

/// Number of shards, a power of two. It is larger than the number of parallel threads on most machines.
pub(crate) const SHARDS: usize = 64;

/// Returns the index of the shard for names with this hash.
pub(crate) fn shard_of(hash: u64) -> usize {
    // The hash table in a shard uses the lowest bits and the highest seven, so the shard is chosen by other bits.
    (hash >> 32) as usize % SHARDS
}

#[derive(Debug)]
pub(crate) struct Table {
    rules: Arc<Rules>,
    shards: Box<[Shard]>,
    pub(crate) deadlines: Deadlines,
}

/// Shard on a cache line of its own, so that a change of one shard does not slow threads that use the next shard.
#[derive(Debug, Default)]
#[repr(align(64))]
struct Shard(Mutex<Cells>);

/// Cells of one shard. The key of each lock stores the hash of its name.
#[derive(Debug, Default)]
struct Cells(HashTable<Arc<Cell<Hold>>>);

impl Cells {
    fn get(&self, name: (u64, &[u8])) -> Option<&Arc<Cell<Hold>>> {
        self.0.find(name.0, |cell| cell.key().hashed_name() == name)
    }

    fn insert(&mut self, cell: Arc<Cell<Hold>>) {
        let hash_of = |cell: &Arc<Cell<Hold>>| cell.key().name_hash();
        self.0.insert_unique(hash_of(&cell), cell, hash_of);
    }

    /// Removes the cell if it is idle and the table has not replaced it by another cell. A later task creates a new
    /// cell.
    fn remove_if_idle(&mut self, cell: &Arc<Cell<Hold>>) -> Option<Arc<Cell<Hold>>> {
        let here = self.0.find_entry(cell.key().name_hash(), |here| Arc::ptr_eq(here, cell)).ok()?;
        cell.leave_if_idle().then(|| here.remove().0)
    }
}

/// Numbers of the holds, guards and waiters in a table.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Counts {
    pub(crate) holds: usize,
    pub(crate) guards: usize,
    /// Number of cached holds, which have no guard.
    pub(crate) idle: usize,
    /// Number of holds whose last renewal was not answered.
    pub(crate) late: usize,
    pub(crate) waiters: usize,
}

impl Counts {
    fn add(&mut self, hold: &Hold) {
        let (guards, is_late) = hold.usage();
        self.holds += 1;
        self.idle += usize::from(hold.is_cached());
        self.guards += guards;
        self.late += usize::from(is_late);
    }
}

impl Table {
    pub(crate) fn new(rules: Rules) -> Self {
        let shards = std::iter::repeat_with(Shard::default).take(SHARDS).collect();
        Self { rules: Arc::new(rules), shards, deadlines: Deadlines::default() }
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.rules.metrics
    }

    /// Returns the number of holds that may be cached.
    pub(crate) fn cached_count(&self) -> usize {
        self.rules.cached.load(Ordering::Relaxed)
    }

    fn shard(&self, hash: u64) -> MutexGuard<'_, Cells> {
        self.shards[shard_of(hash)].0.lock()
    }

    /// Returns all cells. The mutex of a shard is free again when its first cell is returned.
    fn cells(&self) -> impl Iterator<Item = Arc<Cell<Hold>>> {
        self.shards.iter().flat_map(|shard| shard.0.lock().0.iter().cloned().collect::<Vec<_>>())
    }

    fn of(&self, key: &Key) -> Option<Arc<Cell<Hold>>> {
        self.shard(key.name_hash()).get(key.hashed_name()).cloned()
    }

    pub(super) fn cell(self: &Arc<Self>, key: &Arc<Key>) -> Arc<Cell<Hold>> {
        let mut shard = self.shard(key.name_hash());
        if let Some(cell) = shard.get(key.hashed_name()) {
            return Arc::clone(cell);
        }
        let cell = Arc::new(Cell::new(key, &self.rules, self.around()));
        shard.insert(Arc::clone(&cell));
        cell
    }

    fn around(self: &Arc<Self>) -> Weak<dyn Surroundings<Hold>> {
        // The `Arc` is cloned before the conversion to a trait object, because the conversion needs a sized type.
        let around: Arc<dyn Surroundings<Hold>> = Arc::<Self>::clone(self);
        Arc::downgrade(&around)
    }

    /// Lets a reader join a hold of this process, if a hold may be joined now and no writer waits here. `name` is the
    /// hash of the name, and the name.
    #[inline]
    pub(crate) fn join(&self, name: (u64, &[u8]), wants: ShareRequest, now: Moment) -> Option<(Arc<Hold>, ShareId)> {
        let shard = self.shard(name.0);
        let cell = shard.get(name)?;
        // Usually no other task has the mutex. Then this function need not change the reference count of the cell.
        if let Some(joined) = cell.try_ask_heard(|state, heard| state.join(wants, heard, now)) {
            return joined;
        }
        let cell = Arc::clone(cell);
        drop(shard);
        cell.ask_heard(|state, heard| state.join(wants, heard, now))
    }

    /// Lets a writer take a cached hold of this process, if the hold has enough time and a token, and no task waits
    /// here.
    pub(crate) fn take_cached(
        &self,
        name: (u64, &[u8]),
        wants: ShareRequest,
        now: Moment,
    ) -> Option<(Arc<Hold>, ShareId)> {
        let shard = self.shard(name.0);
        let cell = Arc::clone(shard.get(name)?);
        drop(shard);
        cell.ask_heard(|state, heard| state.take_cached(wants, heard, now))
    }

    /// Adds a waiter to one side of the lock `key`. Its task becomes the requester of the side if the side has no request.
    /// A requester that is not polled again within `Rules::poll_within` is woken, and stalled after as long again.
    pub(crate) fn enter(self: &Arc<Self>, key: &Arc<Key>, mode: Mode, wants: ShareRequest, now: Moment) -> WaitEntry {
        loop {
            let cell = self.cell(key);
            let entered =
                cell.event(now, |state, event| (!state.is_gone).then(|| state.enter(mode, None, wants, event)));
            if let Some(entered) = entered {
                return WaitEntry::new(cell, mode, entered);
            }
        }
    }

    /// Adds an acquisition that does not wait. Returns `None` if a hold or a waiter of this process prevents it.
    pub(crate) fn try_enter(
        self: &Arc<Self>,
        key: &Arc<Key>,
        mode: Mode,
        wants: ShareRequest,
        now: Moment,
    ) -> Option<WaitEntry> {
        loop {
            let cell = self.cell(key);
            let entered = cell.event(now, |state, event| (!state.is_gone).then(|| state.try_enter(mode, wants, event)));
            if let Some(entered) = entered {
                return Some(WaitEntry::new(cell, mode, entered?));
            }
        }
    }

    /// Records a hold that this process has taken over from another guard, and its share. Returns `None` if the hold is
    /// over already.
    pub(crate) fn adopt(
        self: &Arc<Self>,
        key: &Arc<Key>,
        granted: NewHold,
        now: Moment,
    ) -> Option<(Arc<Hold>, ShareId)> {
        let mut granted = Some(granted);
        loop {
            let cell = self.cell(key);
            let make = |number, granting| Arc::new(Hold::new(&cell, number, granting, false));
            let adopted = cell.event(now, |state, event| {
                let granted = granted.take_if(|_| !state.is_gone)?;
                Some(state.on_adopted(make, granted, event))
            });
            if let Some(adopted) = adopted {
                return adopted;
            }
        }
    }

    /// Removes a hold that is over, so that it blocks no waiter any more.
    pub(crate) fn on_end(&self, hold: &Hold) {
        let cell = hold.cell();
        cell.event(self.rules.clock.now(), |state, event| state.on_end(hold.number(), event));
    }

    /// Returns true if a writer of this process waits for the lock.
    pub(crate) fn writer_waits(&self, key: &Key) -> bool {
        self.of(key).is_some_and(|cell| cell.ask(|state| state.writer_waits()))
    }

    /// Returns what keeps an acquisition of this side out: a hold that guards of this process use, and the last refusal of
    /// the server.
    pub(crate) fn obstacle(&self, key: &Key, mode: Mode) -> (Option<Arc<Hold>>, Option<LastRefusal>) {
        self.of(key).map_or((None, None), |cell| cell.ask(|state| state.obstacle(mode)))
    }

    /// Returns the holds of a lock.
    pub(crate) fn holds(&self, key: &Key) -> Vec<Arc<Hold>> {
        self.of(key).map_or_else(Vec::new, |cell| cell.ask(|state| state.handles().collect()))
    }

    /// Wakes all waiters, because the manager is closed.
    pub(crate) fn wake_waiters(&self) {
        self.cells().for_each(|cell| cell.quietly(|_, event| event.wake_all()));
    }

    /// Returns the numbers of holds, guards, holds with a late renewal, and waiting acquisitions.
    pub(crate) fn counts(&self) -> Counts {
        let mut counts = Counts::default();
        for cell in self.cells() {
            let (waiters, holds): (_, Vec<_>) = cell.ask(|state| (state.waiting(), state.handles().collect()));
            counts.waiters += waiters;
            holds.iter().for_each(|hold| counts.add(hold));
        }
        counts
    }

    /// Returns the waits of this process, by lock.
    pub(crate) fn local_waits(&self) -> Vec<(Arc<Key>, LocalWaits<Hold>)> {
        let waits = |cell: Arc<Cell<Hold>>| Some((Arc::clone(cell.key()), cell.ask(|state| state.local_waits())?));
        self.cells().filter_map(waits).collect()
    }

    /// Returns a hold of which this owner has a guard.
    pub(crate) fn held_by(&self, key: &Key, owner: OwnerId, now: Moment) -> Option<Arc<Hold>> {
        self.of(key)?.quietly_at(now, |state, event| state.held_by(owner, event))
    }

    /// Returns all holds of this process for all locks, oldest first.
    pub(crate) fn all_holds(&self) -> Vec<Arc<Hold>> {
        let handles = |cell: Arc<Cell<Hold>>| cell.ask(|state| state.handles().collect::<Vec<_>>());
        let mut holds: Vec<_> = self.cells().flat_map(handles).collect();
        holds.sort_by(|a, b| (a.token(), a.key().name()).cmp(&(b.token(), b.key().name())));
        holds
    }

    /// Returns the cached holds, each with the moment until which it may stay cached.
    pub(crate) fn cached_holds(&self) -> Vec<(Moment, Arc<Hold>)> {
        self.cells().flat_map(|cell| cell.ask(|state| state.cached_holds().collect::<Vec<_>>())).collect()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn is_idle(&self) -> bool {
        self.shards.iter().all(|shard| shard.0.lock().0.is_empty())
    }
}

impl Surroundings<Hold> for Table {
    fn schedule(&self, hold: &Arc<Hold>) {
        self.deadlines.schedule(hold);
    }

    fn look_at(&self, cell: &Arc<Cell<Hold>>, at: Moment) {
        self.deadlines.look_at(cell, at);
    }

    fn forget(&self, cell: &Arc<Cell<Hold>>) {
        let mut shard = self.shard(cell.key().name_hash());
        let removed = shard.remove_if_idle(cell);
        drop(shard);
        drop(removed);
    }
}
