//! What a simulated server needs beyond operations: a look inside, a copy, a time of its own, and ways to go wrong.

use std::collections::BTreeMap;
use std::time::Duration;

use super::{Record, Store, millis};
use crate::key::Key;
use crate::lease::ServerTime;
use crate::scheme::{Acquisition, Ask, Mode};

/// All records at one moment, by key.
pub(crate) type Image = BTreeMap<Box<str>, Record>;

impl Record {
    /// The live holds: id, side, deadline in milliseconds.
    pub(crate) fn live_holds(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let writer =
            self.writer.iter().map(|writer| (writer.id.as_str().to_owned(), Mode::Write, writer.hold.deadline_ms));
        let readers = self.readers.iter().map(|(id, hold)| (String::from(&**id), Mode::Read, hold.deadline_ms));
        writer.chain(readers).filter(|(_, _, deadline_ms)| *deadline_ms > now_ms).collect()
    }

    /// The live waiters, likewise: the writers first, each side in its order.
    pub(crate) fn live_waiters(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let waiting = self.waiting_writers.iter().chain(&self.waiting_readers);
        let live = waiting.filter(|waiting| waiting.until_ms > now_ms);
        live.map(|waiting| (waiting.ask.id.as_str().to_owned(), waiting.ask.mode, waiting.until_ms)).collect()
    }

    pub(crate) fn forget_ms(&self) -> u64 {
        self.forget_ms
    }

    // What only a wrong server does.

    pub(crate) fn keep_for_ever(&mut self) {
        self.forget_ms = u64::MAX;
    }

    /// Lets somebody in whoever is there or waits.
    pub(crate) fn let_in(&mut self, now: ServerTime, ask: &Ask) {
        self.cancel(now.as_micros() / 1000, &ask.id);
        self.begin(now, ask, ask.lease);
    }

    /// Lets the first waiting writer in whoever is there.
    pub(crate) fn let_writer_in(&mut self, now: ServerTime) {
        if let Some(waiting) = self.waiting_writers.pop_front() {
            self.hand_over(now, &waiting.ask);
        }
    }

    /// A hold lasts from now on for `lease`, longer or shorter than before.
    pub(crate) fn set_lease(&mut self, now: ServerTime, id: &Acquisition, lease: Duration) {
        let deadline_ms = now.as_micros() / 1000 + millis(lease);
        if let Some(hold) = self.hold_of(id) {
            hold.deadline_ms = deadline_ms;
        }
        self.remember(deadline_ms);
    }

    /// The writer that came last is the first.
    pub(crate) fn newest_writer_first(&mut self) {
        if let Some(last) = self.waiting_writers.pop_back() {
            self.waiting_writers.push_front(last);
        }
    }

    pub(crate) fn a_writer_waits(&self) -> bool {
        !self.waiting_writers.is_empty()
    }

    pub(crate) fn is_read(&self) -> bool {
        self.writer.is_none() && !self.readers.is_empty()
    }
}

impl Store {
    /// Applies an operation at a time of the caller's choice, who also tells the news.
    pub(crate) fn operate<T>(&self, key: &Key, now: ServerTime, operation: impl FnOnce(&mut Record) -> T) -> T {
        let mut locks = self.locks.lock();
        let lock = locks.get(key, now);
        operation(&mut lock.record)
    }

    pub(crate) fn record(&self, key: &Key) -> Record {
        self.locks.lock().by_base.get(key.base()).map(|lock| lock.record.clone()).unwrap_or_default()
    }

    pub(crate) fn image(&self) -> Image {
        self.locks.lock().by_base.iter().map(|(base, lock)| (base.clone(), lock.record.clone())).collect()
    }

    /// Another server with this content takes over.
    pub(crate) fn replace(&self, mut image: Image) {
        for (base, lock) in &mut self.locks.lock().by_base {
            lock.record = image.remove(base).unwrap_or_default();
        }
    }

    /// How many records are left after the idle ones are forgotten.
    pub(crate) fn left_at(&self, now: ServerTime) -> usize {
        let mut locks = self.locks.lock();
        locks.forget_idle(now);
        locks.by_base.len()
    }
}
