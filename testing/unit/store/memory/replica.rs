//! Tools for a simulated server: a look inside, a copy, a time of its own, and faults.
#![allow(unreachable_pub)] // the module is private to the tests

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Store;
use super::record::{GrantedRecord, Record, RecordLimits, ServerStep, millis};
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::recalls::Recall;
use crate::store::{
    AcquireRequest, AcquisitionId, Forced, Mode, NamedHolder, Notification, ReleaseReply, Renewed, View,
};

/// All records at one moment, by key.
pub type Image = BTreeMap<Box<str>, Record>;

impl Record {
    /// Returns true if a reader with this id is recorded, live or dead.
    pub fn has_reader(&self, id: &AcquisitionId) -> bool {
        self.readers.iter().any(|reader| reader.id == *id)
    }

    /// Ends an acquisition as [`release_until`](Record::release_until) does, without a rest.
    pub fn release(&mut self, now: ServerTime, id: &AcquisitionId) -> ReleaseReply {
        self.release_until(now, id, None)
    }

    /// Ends holds as [`Record::force_seen`] does, for a lock without timestamp clients.
    pub fn force(&mut self, now: ServerTime, seen: Option<FencingToken>) -> Forced {
        self.force_seen(now, &View { token: seen, ..View::default() })
    }

    /// Renews a hold that does not rest.
    pub fn renew(&mut self, now: ServerTime, id: &AcquisitionId, lease: Duration) -> Renewed {
        self.renew_until(now, id, lease, None)
    }

    /// All holds that are recorded, live or dead.
    fn all_holds(&self) -> impl Iterator<Item = (&AcquisitionId, Mode, &GrantedRecord)> {
        let writer = self.writer.iter().map(|writer| (&writer.id, Mode::Write, &writer.hold));
        writer.chain(self.readers.iter().map(|reader| (&reader.id, Mode::Read, &reader.hold)))
    }

    /// Live holds: id, side, deadline in milliseconds.
    pub fn live_holds(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let live = self.all_holds().filter(|(_, mode, hold)| {
            hold.deadline_ms > now_ms && (*mode == Mode::Write || self.is_live(hold, now_ms))
        });
        live.map(|(id, mode, hold)| (id.as_str().to_owned(), mode, hold.deadline_ms)).collect()
    }

    /// Live holders, as a refusal names them.
    pub fn live_named(&self, now_ms: u64) -> Vec<NamedHolder> {
        let live = self.all_holds().filter(|(_, _, hold)| self.is_live(hold, now_ms));
        let more = |mode: Mode| if mode == Mode::Read { self.readers.len() - 1 } else { 0 };
        live.map(|(id, mode, hold)| NamedHolder::of(id, mode, hold, more(mode))).collect()
    }

    /// Live waiters: id, side, deadline in milliseconds. The writers come first, each side in its order.
    pub fn live_waiters(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let live = self.waiting().filter(|waiting| waiting.until_ms > now_ms);
        live.map(|waiting| (waiting.request.id.as_str().to_owned(), waiting.request.mode, waiting.until_ms)).collect()
    }

    pub fn set_limits(&mut self, limits: RecordLimits) {
        self.limits = limits;
    }

    /// Last token, and the last one that was ended by force.
    pub fn recallable_flag(&self) -> (u64, u64) {
        (self.token, self.forced)
    }

    pub fn forget_ms(&self) -> u64 {
        self.forget_ms
    }

    // Faults of a wrong server.

    pub fn keep_for_ever(&mut self) {
        self.forget_ms = u64::MAX;
    }

    /// Returns a hold whose time is over.
    pub fn last_dead(&self, now_ms: u64) -> Option<String> {
        self.all_holds().find(|(_, _, hold)| hold.deadline_ms <= now_ms).map(|(id, ..)| id.as_str().to_owned())
    }

    pub fn forget_force(&mut self) {
        self.forced = 0;
    }

    /// Admits a request whatever else is there or waits.
    pub fn let_in(&mut self, now: ServerTime, request: &AcquireRequest) {
        self.cancel(now.as_micros() / 1000, &request.id);
        match request.mode {
            Mode::Read => self.begin_read(now.as_micros(), &request.id, request.lease, None),
            Mode::Write => self.begin_write(now.as_micros(), request, request.lease),
        }
    }

    /// Admits the first waiting writer whatever else is there.
    pub fn let_writer_in(&mut self, now: ServerTime) {
        if let Some(waiting) = self.waiting_writers.pop_front() {
            self.grant_to_waiter(&mut ServerStep::new(now, self.limits), &waiting.request);
        }
    }

    /// Makes a hold last for `lease` from now on, longer or shorter than before.
    pub fn set_lease(&mut self, now: ServerTime, id: &AcquisitionId, lease: Duration) {
        let deadline_ms = now.as_micros() / 1000 + millis(lease);
        if let Some(hold) = self.hold_of(id) {
            hold.deadline_ms = deadline_ms;
        }
        self.remember(deadline_ms);
    }

    /// Moves the writer that came last to the front.
    pub fn newest_writer_first(&mut self) {
        if let Some(last) = self.waiting_writers.pop_back() {
            self.waiting_writers.push_front(last);
        }
    }

    pub fn a_writer_waits(&self) -> bool {
        !self.waiting_writers.is_empty()
    }

    pub fn is_read(&self) -> bool {
        self.writer.is_none() && !self.readers.is_empty()
    }
}

impl Store {
    /// Sets the server's clock back by `step`. A `step` of zero makes the clock right again.
    pub fn set_back(&self, step: Duration) {
        let step = u64::try_from(step.as_micros()).expect("short");
        self.skipped_us.store(step.wrapping_neg(), Ordering::SeqCst);
    }

    /// Publishes a notification that a client with the right to publish may have invented.
    pub fn publish_notification(&self, key: &Key, id: &str, notice: &Notification) {
        self.locks.lock().get(key, self.server_time()).deliver(id, notice);
    }

    /// Publishes a recall that a client with the right to publish may have invented.
    pub fn publish_recall(&self, key: &Key, call: &Recall, now: Moment) {
        let mut locks = self.locks.lock();
        let listeners = &locks.get(key, self.server_time()).recall_listeners;
        let listeners: Vec<_> = listeners.iter().filter_map(|listener| listener.recalls.upgrade()).collect();
        drop(locks);
        listeners.iter().for_each(|calls| calls.on_recall(call, now));
    }

    /// Applies an operation at a time of the caller's choice. The caller also delivers the notifications.
    pub fn operate<T>(&self, key: &Key, now: ServerTime, operation: impl FnOnce(&mut Record) -> T) -> T {
        let mut locks = self.locks.lock();
        let lock = locks.get(key, now);
        operation(&mut lock.record)
    }

    pub fn record(&self, key: &Key) -> Record {
        self.locks.lock().by_base.get(key.base()).map(|lock| lock.record.clone()).unwrap_or_default()
    }

    /// Builds a server with this content.
    pub fn with(image: Image) -> Self {
        let store = Self::new();
        let lock = |(base, record)| {
            (base, super::StoredLock { record, subscribers: Vec::new(), recall_listeners: Vec::new() })
        };
        store.locks.lock().by_base.extend(image.into_iter().map(lock));
        store
    }

    pub fn image(&self) -> Image {
        self.locks.lock().by_base.iter().map(|(base, lock)| (base.clone(), lock.record.clone())).collect()
    }

    /// Lets another server with this content take over.
    pub fn replace(&self, mut image: Image) {
        for (base, lock) in &mut self.locks.lock().by_base {
            lock.record = image.remove(base).unwrap_or_default();
        }
    }

    /// Number of records that are left after the idle ones are forgotten.
    pub fn left_at(&self, now: ServerTime) -> usize {
        let mut locks = self.locks.lock();
        locks.forget_idle(now);
        locks.by_base.len()
    }
}
