//! Queue of a lock, and the admission of its waiters.

use std::sync::Arc;
use std::time::Duration;

use super::{GrantNotification, Record, ServerStep, WaiterRecord, millis};
use crate::store::{AcquireRequest, Acquired, AcquisitionId, IfTaken, Mode, NamedHolder};

/// Result of a search for a live reader. The search removes the dead readers that it finds.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum LiveReaders {
    Nobody,
    Live,
    /// The search reached its limit among dead readers and found no live one.
    Crowded,
}

fn position(waiting: &[WaiterRecord], id: &AcquisitionId) -> Option<usize> {
    waiting.iter().position(|waiting| waiting.request.id == *id)
}

impl Record {
    /// Returns all recorded waiters, live or dead. The writers come first.
    pub(in crate::store::memory) fn waiting(&self) -> impl Iterator<Item = &WaiterRecord> + Clone {
        self.waiting_writers.iter().chain(&self.batch_readers).chain(&self.waiting_readers)
    }

    /// Begins the phase of the readers that wait now. Does nothing if readers of the last phase still wait, because
    /// these enter before any writer.
    pub(super) fn begin_batch(&mut self) {
        if self.batch_readers.is_empty() {
            std::mem::swap(&mut self.batch_readers, &mut self.waiting_readers);
        }
    }

    /// Begins the next phase if the lock is free. After a writer, all waiting readers enter. After readers, the first
    /// waiting writer enters. If no writer waits, the waiting readers join the readers inside.
    pub(super) fn admit(&mut self, step: &mut ServerStep) {
        if self.client_write_until(step.now_ms).is_some() {
            return;
        }
        let told = self.notifications.len();
        self.admit_next(step);
        if self.notifications.len() > told {
            let waits = self.is_waited_for(step);
            for notification in &mut self.notifications[told..] {
                notification.granted.is_waited_for = waits;
            }
        }
        self.next_to_ask = self.batch_readers.last().map(|next| next.request.id.clone());
    }

    fn admit_next(&mut self, step: &mut ServerStep) {
        loop {
            if self.batch_readers.is_empty() && !self.waiting_readers.is_empty() && !self.has_waiting_writer(step) {
                self.begin_batch();
            }
            if self.batch_readers.is_empty() {
                break;
            }
            self.admit_readers(step);
            if !self.batch_readers.is_empty() {
                return;
            }
        }
        if self.has_waiting_writer(step)
            && let Some(head) = self.waiting_writers.front()
            && head.until_ms > step.now_ms
            && self.client_read_until(step.now_ms).is_none()
            && self.expire_readers(step) == LiveReaders::Nobody
            && let Some(waiting) = self.waiting_writers.pop_front()
        {
            self.grant_to_waiter(step, &waiting.request);
        }
    }

    /// Admits the readers of the phase, from the last array element to the first.
    fn admit_readers(&mut self, step: &mut ServerStep) {
        if self.expire_readers(step) == LiveReaders::Crowded {
            return;
        }
        while !self.batch_readers.is_empty() && step.touch() {
            if let Some(waiting) = self.batch_readers.pop()
                && waiting.until_ms > step.now_ms
            {
                self.grant_to_waiter(step, &waiting.request);
            }
        }
    }

    /// Searches for a live reader from the end of the array, and removes dead ones on the way.
    pub(super) fn expire_readers(&mut self, step: &mut ServerStep) -> LiveReaders {
        loop {
            match self.readers.last() {
                None => return LiveReaders::Nobody,
                Some(reader) if self.is_live(&reader.hold, step.now_ms) => return LiveReaders::Live,
                Some(_) if !step.touch() => return LiveReaders::Crowded,
                Some(_) => self.readers.pop(),
            };
        }
    }

    /// Returns true if a writer waits. Removes dead writers at the head of the queue. If the operation reaches its
    /// limit of records, the next writer counts as live.
    pub(super) fn has_waiting_writer(&mut self, step: &mut ServerStep) -> bool {
        while self.waiting_writers.front().is_some_and(|head| head.until_ms <= step.now_ms) && step.touch() {
            self.waiting_writers.pop_front();
        }
        !self.waiting_writers.is_empty()
    }

    /// Grants the lock to a waiter, and adds a notification of the grant.
    pub(in crate::store::memory) fn grant_to_waiter(&mut self, step: &mut ServerStep, request: &AcquireRequest) {
        match request.mode {
            // Readers are recorded in the order in which they leave the queue.
            Mode::Read => self.begin_read(step.now_us, &request.id, request.claim(), None),
            Mode::Write => self.begin_write(step.now_us, request, request.claim()),
        }
        let granted = self.grant_of(step.now_ms, &request.id, false).expect("it was granted just now");
        self.notifications.push(GrantNotification { id: request.id.clone(), granted });
    }

    /// Returns true if a waiting reader is recorded under this id.
    pub(super) fn is_waiting_reader(&self, id: &AcquisitionId) -> bool {
        position(&self.batch_readers, id).or_else(|| position(&self.waiting_readers, id)).is_some()
    }

    pub(super) fn refuse(&mut self, now_ms: u64, request: &AcquireRequest) -> Acquired {
        let writer_ms = self.live_writer(now_ms).map(|writer| writer.hold.deadline_ms);
        let readers = self.readers.iter().filter(|reader| self.is_live(&reader.hold, now_ms));
        let waits_for_readers = request.mode == Mode::Write || !self.waiting_writers.is_empty();
        let client_read_ms = self.client_read_until(now_ms).filter(|_| waits_for_readers);
        let free_ms = writer_ms.or_else(|| self.client_write_until(now_ms)).or(client_read_ms);
        let free_ms = free_ms.or_else(|| readers.map(|reader| reader.hold.deadline_ms).min());
        let retry_in = Duration::from_millis(free_ms.unwrap_or(now_ms).saturating_sub(now_ms).max(1));
        let is_kept = self.may_be_cached_for(now_ms, request.mode);
        match request.if_taken {
            // An acquisition that holds the lock on the other side must not wait for its own hold.
            IfTaken::Queue { waiter_ttl } | IfTaken::Try { waiter_ttl }
                if self.live_hold_of(now_ms, &request.id).is_none()
                    && (is_kept || self.may_wait_without_recall(now_ms, request)) =>
            {
                self.enqueue(now_ms, request, waiter_ttl);
                if is_kept {
                    self.recall(now_ms, request);
                }
                Acquired::Queued { retry_in, is_cached: is_kept, holder: self.named_holder(now_ms, request.mode) }
            }
            IfTaken::Leave if is_kept => Acquired::Cached { retry_in, holder: self.named_holder(now_ms, request.mode) },
            IfTaken::Leave | IfTaken::Queue { .. } | IfTaken::Try { .. } => {
                Acquired::Contended { retry_in, holder: self.named_holder(now_ms, request.mode) }
            }
        }
    }

    /// Returns the live holder that a refusal names. Of several readers, any may be named. A timestamp client that
    /// excludes the request comes before readers.
    pub(super) fn named_holder(&self, now_ms: u64, mode: Mode) -> Option<Arc<NamedHolder>> {
        let foreign = |mode, since_ms: Option<u64>, deadline_ms| NamedHolder {
            id: NamedHolder::FOREIGN_ID.to_owned(),
            mode,
            since_ms,
            deadline_ms,
            more: self.readers.len(),
        };
        let named = if let Some(writer) = self.live_writer(now_ms) {
            NamedHolder::of(&writer.id, Mode::Write, &writer.hold, 0)
        } else if let Some(until_ms) = self.client_write_until(now_ms) {
            foreign(Mode::Write, self.shown_write(), until_ms)
        } else if let Some(until_ms) = self.client_read_until(now_ms)
            && (mode == Mode::Write || !self.waiting_writers.is_empty())
        {
            foreign(Mode::Read, self.newest_client_read(), until_ms)
        } else {
            let reader = self.readers.iter().rfind(|reader| self.is_live(&reader.hold, now_ms))?;
            NamedHolder::of(&reader.id, Mode::Read, &reader.hold, self.readers.len() - 1)
        };
        Some(Arc::new(named))
    }

    /// Returns true if the request may wait although it recalls no hold. A try may do so only if it has a place in the
    /// queue already.
    fn may_wait_without_recall(&self, now_ms: u64, request: &AcquireRequest) -> bool {
        let mut live = self.waiting().filter(|place| place.until_ms > now_ms);
        !matches!(request.if_taken, IfTaken::Try { .. }) || live.any(|place| place.request.id == request.id)
    }

    /// Adds the request to the queue. A live waiter with this id keeps its place and lives longer. A dead waiter with
    /// this id gets a new place at the end.
    fn enqueue(&mut self, now_ms: u64, request: &AcquireRequest, waiter_ttl: Duration) {
        let until_ms = now_ms + millis(waiter_ttl);
        self.remember(until_ms);
        let waiting = self.waiting_writers.iter_mut().chain(&mut self.batch_readers).chain(&mut self.waiting_readers);
        let mut live = waiting.filter(|place| place.until_ms > now_ms);
        if let Some(place) = live.find(|place| place.request.id == request.id) {
            place.until_ms = place.until_ms.max(until_ms);
            self.waiters_until_ms = self.waiters_until_ms.max(place.until_ms);
            // The waiter keeps the side of its first request.
            place.request = AcquireRequest { mode: place.request.mode, ..request.clone() };
            return;
        }
        self.cancel(now_ms, &request.id);
        self.waiters_until_ms = self.waiters_until_ms.max(until_ms);
        let waiting = WaiterRecord { request: request.clone(), since_ms: now_ms, until_ms };
        match request.mode {
            Mode::Read => {
                // A dead record of the same id must be gone before the reader enters. Otherwise the id would be
                // recorded twice.
                if let Some(reader) = self.reader(&request.id) {
                    self.readers.swap_remove(reader);
                }
                self.waiting_readers.push(waiting);
            }
            Mode::Write => self.waiting_writers.push_back(waiting),
        }
    }

    /// Removes a waiter from the queue. Returns true if the waiter was live until now.
    pub(crate) fn cancel(&mut self, now_ms: u64, id: &AcquisitionId) -> bool {
        let writer = self.waiting_writers.iter().position(|waiting| waiting.request.id == *id);
        let waiting = if let Some(writer) = writer {
            self.waiting_writers.remove(writer)
        } else if let Some(reader) = position(&self.batch_readers, id) {
            Some(self.batch_readers.swap_remove(reader))
        } else {
            position(&self.waiting_readers, id).map(|reader| self.waiting_readers.swap_remove(reader))
        };
        waiting.is_some_and(|waiting| waiting.until_ms > now_ms)
    }
}
