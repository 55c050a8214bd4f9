//! Tools for a simulated server: a look inside, a copy, a time of its own, and faults.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use super::Store;
use super::record::{Record, RecordLimits, ServerStep, millis};
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::recalls::Recall;
use crate::store::{
    AcquireRequest, AcquisitionId, Forced, Mode, NamedHolder, Notification, ReleaseReply, Renewed, View,
};

/// All records at one moment, by key.
pub(crate) type Image = BTreeMap<Box<str>, Record>;

impl Record {
    /// Returns true if a reader with this id is recorded, live or dead.
    pub(crate) fn has_reader(&self, id: &AcquisitionId) -> bool {
        self.readers.iter().any(|reader| reader.id == *id)
    }

    /// Ends an acquisition as [`release_until`](Record::release_until) does, without a rest.
    pub(crate) fn release(&mut self, now: ServerTime, id: &AcquisitionId) -> ReleaseReply {
        self.release_until(now, id, None)
    }

    /// Ends holds as [`Record::force_seen`] does, for a lock without timestamp clients.
    pub(crate) fn force(&mut self, now: ServerTime, seen: Option<FencingToken>) -> Forced {
        self.force_seen(now, &View { token: seen, ..View::default() })
    }

    /// Renews a hold that does not rest.
    pub(crate) fn renew(&mut self, now: ServerTime, id: &AcquisitionId, lease: Duration) -> Renewed {
        self.renew_until(now, id, lease, None)
    }

    /// Live holds: id, side, deadline in milliseconds.
    pub(crate) fn live_holds(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let writer =
            self.writer.iter().map(|writer| (writer.id.as_str().to_owned(), Mode::Write, writer.hold.deadline_ms));
        let readers = self.readers.iter().filter(|reader| self.is_live(&reader.hold, now_ms));
        let readers = readers.map(|reader| (reader.id.as_str().to_owned(), Mode::Read, reader.hold.deadline_ms));
        writer.chain(readers).filter(|(_, _, deadline_ms)| *deadline_ms > now_ms).collect()
    }

    /// Live holders, as a refusal names them.
    pub(crate) fn live_named(&self, now_ms: u64) -> Vec<NamedHolder> {
        let writer = self.writer.iter().filter(|writer| self.is_live(&writer.hold, now_ms));
        let writer = writer.map(|writer| NamedHolder::of(&writer.id, Mode::Write, &writer.hold, 0));
        let readers = self.readers.iter().filter(|reader| self.is_live(&reader.hold, now_ms));
        let more = self.readers.len().saturating_sub(1);
        let readers = readers.map(|reader| NamedHolder::of(&reader.id, Mode::Read, &reader.hold, more));
        writer.chain(readers).collect()
    }

    /// Live waiters: id, side, deadline in milliseconds. The writers come first, each side in its order.
    pub(crate) fn live_waiters(&self, now_ms: u64) -> Vec<(String, Mode, u64)> {
        let live = self.waiting().filter(|waiting| waiting.until_ms > now_ms);
        live.map(|waiting| (waiting.request.id.as_str().to_owned(), waiting.request.mode, waiting.until_ms)).collect()
    }

    pub(crate) fn set_limits(&mut self, limits: RecordLimits) {
        self.limits = limits;
    }

    /// Last token, and the last one that was ended by force.
    pub(crate) fn recallable_flag(&self) -> (u64, u64) {
        (self.token, self.forced)
    }

    pub(crate) fn forget_ms(&self) -> u64 {
        self.forget_ms
    }

    // Faults of a wrong server.

    pub(crate) fn keep_for_ever(&mut self) {
        self.forget_ms = u64::MAX;
    }

    /// Returns a hold whose time is over.
    pub(crate) fn last_dead(&self, now_ms: u64) -> Option<String> {
        let writer = self.writer.iter().map(|writer| (writer.id.as_str(), writer.hold));
        let readers = self.readers.iter().map(|reader| (reader.id.as_str(), reader.hold));
        writer.chain(readers).find(|(_, hold)| hold.deadline_ms <= now_ms).map(|(id, _)| id.to_owned())
    }

    pub(crate) fn forget_force(&mut self) {
        self.forced = 0;
    }

    /// Admits a request whatever else is there or waits.
    pub(crate) fn let_in(&mut self, now: ServerTime, request: &AcquireRequest) {
        self.cancel(now.as_micros() / 1000, &request.id);
        match request.mode {
            Mode::Read => self.begin_read(now.as_micros(), &request.id, request.lease, None),
            Mode::Write => self.begin_write(now.as_micros(), request, request.lease),
        }
    }

    /// Admits the first waiting writer whatever else is there.
    pub(crate) fn let_writer_in(&mut self, now: ServerTime) {
        if let Some(waiting) = self.waiting_writers.pop_front() {
            self.grant_to_waiter(&mut ServerStep::new(now, self.limits), &waiting.request);
        }
    }

    /// Makes a hold last for `lease` from now on, longer or shorter than before.
    pub(crate) fn set_lease(&mut self, now: ServerTime, id: &AcquisitionId, lease: Duration) {
        let deadline_ms = now.as_micros() / 1000 + millis(lease);
        if let Some(hold) = self.hold_of(id) {
            hold.deadline_ms = deadline_ms;
        }
        self.remember(deadline_ms);
    }

    /// Moves the writer that came last to the front.
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
    /// Sets the server's clock back by `step`. A `step` of zero makes the clock right again.
    pub(crate) fn set_back(&self, step: Duration) {
        let step = u64::try_from(step.as_micros()).expect("short");
        self.skipped_us.store(step.wrapping_neg(), Ordering::SeqCst);
    }

    /// Publishes a notification that a client with the right to publish may have invented.
    pub(crate) fn publish_notification(&self, key: &Key, id: &str, notice: &Notification) {
        self.locks.lock().get(key, self.server_time()).deliver(id, notice);
    }

    /// Publishes a recall that a client with the right to publish may have invented.
    pub(crate) fn publish_recall(&self, key: &Key, call: &Recall, now: Moment) {
        let mut locks = self.locks.lock();
        let listeners = &locks.get(key, self.server_time()).recall_listeners;
        let listeners: Vec<_> = listeners.iter().filter_map(|listener| listener.recalls.upgrade()).collect();
        drop(locks);
        listeners.iter().for_each(|calls| calls.on_recall(call, now));
    }

    /// Applies an operation at a time of the caller's choice. The caller also delivers the notifications.
    pub(crate) fn operate<T>(&self, key: &Key, now: ServerTime, operation: impl FnOnce(&mut Record) -> T) -> T {
        let mut locks = self.locks.lock();
        let lock = locks.get(key, now);
        operation(&mut lock.record)
    }

    pub(crate) fn record(&self, key: &Key) -> Record {
        self.locks.lock().by_base.get(key.base()).map(|lock| lock.record.clone()).unwrap_or_default()
    }

    /// Builds a server with this content.
    pub(crate) fn with(image: Image) -> Self {
        let store = Self::new();
        let lock = |(base, record)| {
            (base, super::StoredLock { record, subscribers: Vec::new(), recall_listeners: Vec::new() })
        };
        store.locks.lock().by_base.extend(image.into_iter().map(lock));
        store
    }

    pub(crate) fn image(&self) -> Image {
        self.locks.lock().by_base.iter().map(|(base, lock)| (base.clone(), lock.record.clone())).collect()
    }

    /// Lets another server with this content take over.
    pub(crate) fn replace(&self, mut image: Image) {
        for (base, lock) in &mut self.locks.lock().by_base {
            lock.record = image.remove(base).unwrap_or_default();
        }
    }

    /// Number of records that are left after the idle ones are forgotten.
    pub(crate) fn left_at(&self, now: ServerTime) -> usize {
        let mut locks = self.locks.lock();
        locks.forget_idle(now);
        locks.by_base.len()
    }
}
