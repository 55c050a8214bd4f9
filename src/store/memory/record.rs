//! Specification of a lock on a server. Every script must behave as this module does.
//!
//! This module reads no clock, because the server's time is an argument. So a test can pass the times that a real
//! server reported, and compare each answer of the script with the answer of this module.

mod convert;
mod operate;
mod queue;
mod recallable;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/memory/record/tests.rs"]
mod tests;
mod timestamps;

use std::collections::VecDeque;
use std::time::Duration;

use self::queue::LiveReaders;
pub(crate) use self::recallable::PendingRecall;
#[cfg(all(test, feature = "_testing"))]
pub(super) use self::recallable::RECALL_INTERVAL_MS;
pub(super) use self::recallable::RecallableFlag;
#[cfg(all(test, feature = "_testing"))]
pub(crate) use self::timestamps::TimestampClientsMs;
use crate::base::lease::MAX_TOKENS;
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Floor, Granted, Mode, NamedHolder, Note, Noted, ReleaseReply,
    Renewed,
};

/// Time for which a record without holders and waiters keeps its last token, as on a server.
pub(super) const RETENTION_MS: u64 = 60_000;
/// Largest number of counted records that one operation touches. The operation also touches a few records that are not
/// counted: its own record, the neighbours of that record, and the first record of the queue. All of these together are
/// at most a hundred records.
const MAX_RECORDS: usize = 96;

/// Limits of one operation. Tests use lower ones.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct RecordLimits {
    /// Largest number of records of readers and waiters that one operation removes, admits or shows. Dead records count
    /// too. Later operations handle the other records. The limit keeps the server responsive, however many holders and
    /// waiters a lock has.
    pub(crate) records: usize,
    /// Largest number of tokens that one operation reserves.
    pub(crate) tokens: u64,
}

impl Default for RecordLimits {
    fn default() -> Self {
        Self { records: MAX_RECORDS, tokens: MAX_TOKENS }
    }
}

/// Time of one operation, and the number of records that it may still touch.
#[derive(Clone, Copy, Debug)]
pub(super) struct ServerStep {
    now_us: u64,
    now_ms: u64,
    records: usize,
}

impl ServerStep {
    pub(super) fn new(now: ServerTime, limits: RecordLimits) -> Self {
        let now_us = now.as_micros();
        Self { now_us, now_ms: now_us / 1000, records: limits.records }
    }

    /// Counts one more record as touched. Returns false if the limit is reached.
    fn touch(&mut self) -> bool {
        let may = self.records > 0;
        self.records -= usize::from(may);
        may
    }

    /// Lets the operation touch no further record.
    fn stop_touching(&mut self) {
        self.records = 0;
    }
}

/// Record of one lock.
///
/// A dead record stays until an operation finds it, as on a server. Readers and waiting readers are in arrays from
/// which operations take the last element. Waiting writers are in a list from which operations take the first element.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Record {
    pub(super) limits: RecordLimits,
    /// Last token that was granted or reserved, or 0 if none is remembered.
    pub(super) token: u64,
    /// First token since which the record is complete. Earlier grants may have been lost with an earlier record, or a
    /// foreign client was inside together with such a grant.
    pub(super) first_token: u64,
    /// Last token that an operator has ended. If this token equals `token`, all recorded holds are over, because all of
    /// them have the last token.
    pub(super) forced: u64,
    /// Highest token that an operator has ended at any master. A hold with such a token does not come back here, even
    /// if this record never had the hold.
    pub(super) barred: u64,
    pub(super) writer: Option<WriterRecord>,
    pub(super) readers: Vec<ReaderRecord>,
    /// Waiting writers, in the order of their arrival.
    pub(super) waiting_writers: VecDeque<WaiterRecord>,
    /// Readers that were waiting when a writer left. They are the next phase: no writer enters before all of them have
    /// entered.
    pub(super) batch_readers: Vec<WaiterRecord>,
    /// Waiting readers that came after the readers of `batch_readers`.
    pub(super) waiting_readers: Vec<WaiterRecord>,
    /// Latest deadline of any waiter since the queue was last empty.
    pub(super) waiters_until_ms: u64,
    /// Recallable flag: a process may cache a hold without a guard. The flag counts only while its token equals
    /// `token`.
    pub(super) recallable: Option<RecallableFlag>,
    /// Recall that is to be sent.
    pub(super) pending_recall: Option<PendingRecall>,
    /// Grants to waiters since the last [`Record::take_notifications`].
    pub(super) notifications: Vec<GrantNotification>,
    /// Next reader to notify, if the phase had more readers than the last operation could admit.
    pub(super) next_to_ask: Option<AcquisitionId>,
    /// Time after which the record may be forgotten.
    pub(super) forget_ms: u64,
    /// Timestamps of the lock, if clients of the timestamp scheme use the lock too.
    pub(super) stamps: Option<Box<timestamps::Stamps>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct WriterRecord {
    pub(super) id: AcquisitionId,
    /// First token of the writer. Its last token is `Record::token`.
    pub(super) token: u64,
    pub(super) hold: GrantedRecord,
    pub(super) note: Option<Note>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct ReaderRecord {
    pub(super) id: AcquisitionId,
    pub(super) hold: GrantedRecord,
    pub(super) note: Option<Note>,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct GrantedRecord {
    pub(super) since_ms: u64,
    pub(super) deadline_ms: u64,
    /// True if a foreign writer was inside together with this reader. The reader's hold then counts as lost.
    pub(super) is_overrun: bool,
}

impl GrantedRecord {
    fn new(now_ms: u64, lease: Duration) -> Self {
        Self { since_ms: now_ms, deadline_ms: now_ms + millis(lease), is_overrun: false }
    }

    fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms.saturating_sub(now_ms))
    }

    fn extend(&mut self, lease: Duration, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(now_ms + millis(lease));
    }
}

impl NamedHolder {
    pub(super) fn of(id: &AcquisitionId, mode: Mode, hold: &GrantedRecord, more: usize) -> Self {
        let GrantedRecord { since_ms, deadline_ms, .. } = *hold;
        Self { id: id.as_str().to_owned(), mode, since_ms: Some(since_ms), deadline_ms, more }
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(super) struct WaiterRecord {
    /// Last request of the waiter.
    pub(super) request: AcquireRequest,
    pub(super) since_ms: u64,
    /// Time from which the waiter counts as dead, unless it repeats its request before.
    pub(super) until_ms: u64,
}

/// Grant to an acquisition that was waiting.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct GrantNotification {
    pub(crate) id: AcquisitionId,
    pub(crate) granted: Granted,
}

pub(super) fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 2)
}

impl Record {
    /// Computes the first and the last token of a grant. No token is ahead of the clock. So the next grant has higher
    /// tokens even if the server loses this record. A new record does not know the earlier tokens, so its first grant
    /// has only one token.
    fn tokens(&self, now_us: u64, max_tokens: u64) -> (u64, u64) {
        let last = now_us.max(self.token + 1);
        if self.token == 0 {
            return (last, last);
        }
        (last.saturating_sub(max_tokens.clamp(1, self.limits.tokens) - 1).max(self.token + 1), last)
    }

    /// Takes the tokens of a grant and returns the first. The last one becomes `token`.
    fn take_tokens(&mut self, now_us: u64, max_tokens: u64) -> u64 {
        let (first, last) = self.tokens(now_us, max_tokens);
        if self.token == 0 {
            self.first_token = first;
        }
        self.token = last;
        first
    }

    pub(super) fn is_live(&self, hold: &GrantedRecord, now_ms: u64) -> bool {
        hold.deadline_ms > now_ms && self.forced != self.token
    }

    fn live_writer(&self, now_ms: u64) -> Option<&WriterRecord> {
        self.writer.as_ref().filter(|writer| self.is_live(&writer.hold, now_ms))
    }

    /// Removes dead records and admits waiters. An operation that acquires or converts begins with this step. An
    /// operation that releases a hold ends with this step.
    fn expire_dead(&mut self, step: &mut ServerStep) {
        self.next_to_ask = None;
        if self.live_writer(step.now_ms).is_none() {
            if let Some(writer) = self.writer.take() {
                self.hide_writer(writer.hold.deadline_ms);
                self.begin_batch();
            }
            self.admit(step);
        }
    }

    /// Records a new reader at the end of the array, or at `place`. In the second case, the reader that was at `place`
    /// moves to the end.
    pub(super) fn begin_read(&mut self, now_us: u64, id: &AcquisitionId, lease: Duration, place: Option<usize>) {
        if self.readers.is_empty() {
            self.take_tokens(now_us, 1);
        }
        let hold = GrantedRecord::new(now_us / 1000, lease);
        self.show_reader(now_us, hold.deadline_ms);
        self.readers.push(ReaderRecord { id: id.clone(), hold, note: None });
        if let Some(place) = place {
            let end = self.readers.len() - 1;
            self.readers.swap(place, end);
        }
        self.remember(hold.deadline_ms);
    }

    /// Records a writer.
    pub(super) fn begin_write(&mut self, now_us: u64, request: &AcquireRequest, lease: Duration) {
        let token = self.take_tokens(now_us, request.max_tokens);
        let hold = GrantedRecord::new(now_us / 1000, lease);
        self.writer = Some(WriterRecord { id: request.id.clone(), token, hold, note: None });
        self.show_new_writer(hold.deadline_ms);
        self.remember(hold.deadline_ms);
    }

    pub(super) fn remember(&mut self, until_ms: u64) {
        self.forget_ms = self.forget_ms.max(until_ms + RETENTION_MS);
    }

    fn reader(&self, id: &AcquisitionId) -> Option<usize> {
        self.readers.iter().position(|reader| reader.id == *id)
    }

    pub(super) fn hold_of(&mut self, id: &AcquisitionId) -> Option<&mut GrantedRecord> {
        match &mut self.writer {
            Some(writer) if writer.id == *id => Some(&mut writer.hold),
            _ => self.readers.iter_mut().find(|reader| reader.id == *id).map(|reader| &mut reader.hold),
        }
    }

    pub(super) fn live_hold_of(&mut self, now_ms: u64, id: &AcquisitionId) -> Option<&mut GrantedRecord> {
        let ended = self.forced == self.token;
        self.hold_of(id).filter(|hold| hold.deadline_ms > now_ms && !ended)
    }

    /// Returns the hold of `id`, in the form in which answers report it.
    pub(super) fn grant_of(&self, now_ms: u64, id: &AcquisitionId, is_waited_for: bool) -> Option<Granted> {
        let (token, tokens, hold) = match &self.writer {
            Some(writer) if writer.id == *id => (writer.token, self.token - writer.token + 1, writer.hold),
            _ => (self.token, 1, self.readers[self.reader(id)?].hold),
        };
        Some(Granted {
            token: FencingToken::from_wire(token).expect("server time is below 2^53"),
            tokens,
            remaining: hold.remaining(now_ms),
            is_waited_for,
        })
    }

    fn answer_granted(&mut self, step: &mut ServerStep, request: &AcquireRequest) -> Granted {
        let is_waited_for = self.is_waited_for(step);
        if request.caches {
            self.set_recallable(is_waited_for);
        }
        self.grant_of(step.now_ms, &request.id, is_waited_for).expect("it holds the lock")
    }

    pub(crate) fn acquire(&mut self, now: ServerTime, not_after_ms: u64, request: &AcquireRequest) -> Acquired {
        let mut step = ServerStep::new(now, self.limits);
        if step.now_ms > not_after_ms {
            return Acquired::Late;
        }
        self.forget_waiters();
        self.drop_unsound(step.now_us, request);
        self.expire_dead(&mut step);
        if self.holds(step.now_ms, request) {
            self.extend(&step, request);
        } else if !self.enter(&mut step, request) {
            let refused = self.refuse(step.now_ms, request);
            self.uncover();
            return refused;
        }
        Acquired::Granted(self.answer_granted(&mut step, request))
    }

    /// Acquires with a lower bound for the last token. If the bound raises the token, the grant has only one token.
    pub(crate) fn acquire_above(
        &mut self,
        now: ServerTime,
        not_after_ms: u64,
        request: &AcquireRequest,
        floor: Floor,
    ) -> Acquired {
        let before = self.token;
        let now_ms = now.as_micros() / 1000;
        if let Floor::Any(token) = floor
            && now_ms <= not_after_ms
            && token.as_u64() <= self.forced.max(self.barred)
            && self.live_hold_of(now_ms, &request.id).is_none()
        {
            // An operator has ended this token here by force, so a hold that other masters still have must not come
            // back.
            let holder = self.named_holder(now_ms, request.mode);
            return Acquired::Contended { retry_in: Duration::from_millis(1), holder };
        }
        let acquired = self.acquire(now, not_after_ms, request);
        let (floor, counts) = match floor {
            Floor::New(floor) => (floor, self.token > before),
            Floor::Any(floor) => (floor, true),
        };
        match acquired {
            Acquired::Granted(granted) if counts && floor.as_u64() > self.token => {
                self.token = floor.as_u64();
                if let Some(writer) = self.writer.as_mut() {
                    writer.token = self.token;
                }
                Acquired::Granted(Granted { token: floor, tokens: 1, ..granted })
            }
            other => other,
        }
    }

    /// Returns true if the request repeats an acquisition that holds the lock.
    fn holds(&self, now_ms: u64, request: &AcquireRequest) -> bool {
        match request.mode {
            Mode::Read => {
                self.reader(&request.id).is_some_and(|reader| self.is_live(&self.readers[reader].hold, now_ms))
            }
            Mode::Write => self.live_writer(now_ms).is_some_and(|writer| writer.id == request.id),
        }
    }

    fn extend(&mut self, step: &ServerStep, request: &AcquireRequest) {
        if let Some(hold) = self.hold_of(&request.id) {
            hold.extend(request.lease, step.now_ms);
            let deadline_ms = hold.deadline_ms;
            match request.mode {
                Mode::Read => self.show_reader(step.now_us, deadline_ms),
                Mode::Write => self.show_writer(deadline_ms),
            }
            self.remember(deadline_ms);
        }
    }

    /// Records a hold for this request if no hold and no waiter prevents it. Returns true if it has recorded the hold.
    /// All waiters that can enter have entered before this call.
    fn enter(&mut self, step: &mut ServerStep, request: &AcquireRequest) -> bool {
        if self.writer.is_some() || self.client_write_until(step.now_ms).is_some() || self.has_waiting_writer(step) {
            return false;
        }
        if request.mode == Mode::Write && self.client_read_until(step.now_ms).is_some() {
            return false;
        }
        let look = self.expire_readers(step);
        match request.mode {
            Mode::Read if look == LiveReaders::Crowded || self.is_waiting_reader(&request.id) => return false,
            Mode::Read => match self.reader(&request.id) {
                // A dead record of the same id may be left before a live reader. A hold that begins now reuses this
                // record.
                Some(reader) => {
                    let hold = GrantedRecord::new(step.now_ms, request.lease);
                    self.show_reader(step.now_us, hold.deadline_ms);
                    self.readers[reader].hold = hold;
                    self.readers[reader].note = None;
                    self.remember(hold.deadline_ms);
                }
                // The choice of the place does not matter. The reader of that place moves to the end, so each dead
                // reader reaches the end sooner or later and is removed there.
                None => {
                    let count = u64::try_from(self.readers.len()).expect("a small number");
                    let place = step.now_us.checked_rem(count).and_then(|place| usize::try_from(place).ok());
                    self.begin_read(step.now_us, &request.id, request.lease, place);
                }
            },
            Mode::Write if look != LiveReaders::Nobody || !self.batch_readers.is_empty() => return false,
            Mode::Write => self.begin_write(step.now_us, request, request.lease),
        }
        true
    }

    /// Ends an acquisition and then admits waiters. Because of this order, a release never admits the acquisition that
    /// it ends. A write hold rests if `rest_until` is later than now.
    pub(crate) fn release_until(
        &mut self,
        now: ServerTime,
        id: &AcquisitionId,
        rest_until: Option<ServerTime>,
    ) -> ReleaseReply {
        let mut step = ServerStep::new(now, self.limits);
        let live = self.is_sound(step.now_ms, id);
        if live && self.rest(step.now_ms, id, rest_until) {
            return ReleaseReply::Held;
        }
        // A foreign client was inside together with the hold, so the tokens do not show how the hold ended.
        let intruded = !live && self.live_hold_of(step.now_ms, id).is_some();
        self.note_intruder(step.now_ms, id);
        self.end(id);
        let waited = self.cancel(step.now_ms, id);
        self.expire_dead(&mut step);
        self.uncover();
        if live {
            ReleaseReply::Held
        } else if waited {
            ReleaseReply::Queued
        } else {
            let known = |token: u64| FencingToken::from_wire(token).filter(|_| token > 0 && !intruded);
            let (last, first) = (known(self.token), known(self.first_token));
            ReleaseReply::None(Absence { forced: self.forced_token(), last, first })
        }
    }

    /// Lets the live hold of a writer rest, if `rest_until` is later than now: the lock stays taken until then, under
    /// an id that no request has. No process is there to recall, so the recallable flag goes. Returns true if the hold
    /// rests.
    fn rest(&mut self, now_ms: u64, id: &AcquisitionId, rest_until: Option<ServerTime>) -> bool {
        let Some(until_ms) = rest_until.map(ServerTime::as_millis_up).filter(|&until_ms| until_ms > now_ms) else {
            return false;
        };
        let Some(writer) = self.writer.as_mut().filter(|writer| writer.id == *id) else {
            return false;
        };
        writer.id = id.of_rest();
        writer.note = None;
        // The lease may last longer than the rest.
        writer.hold.deadline_ms = until_ms;
        self.recallable = None;
        self.show_writer(until_ms);
        self.remember(until_ms);
        true
    }

    /// Removes the record of a hold, live or dead.
    pub(super) fn end(&mut self, id: &AcquisitionId) {
        if let Some(writer) = self.writer.take_if(|writer| writer.id == *id) {
            self.hide_writer(writer.hold.deadline_ms);
            self.begin_batch();
        } else if let Some(reader) = self.reader(id) {
            self.readers.swap_remove(reader);
        }
    }

    /// Renews a hold. A write hold lasts until `rest_until` at least. A renewal removes no dead record and admits no waiter,
    /// because no waiter can enter while the hold is live. The only exception are readers behind a writer that died in the
    /// queue, and these repeat their requests.
    pub(crate) fn renew_until(
        &mut self,
        now: ServerTime,
        id: &AcquisitionId,
        lease: Duration,
        rest_until: Option<ServerTime>,
    ) -> Renewed {
        let now_ms = now.as_micros() / 1000;
        let forced = self.forced_token();
        if !self.is_sound(now_ms, id) {
            self.note_intruder(now_ms, id);
            self.expire_hold(id);
        }
        let Some(hold) = self.live_hold_of(now_ms, id) else {
            return Renewed::Lost { forced };
        };
        hold.extend(lease, now_ms);
        let hold = *hold;
        let hold = self.extend_to(id, rest_until).unwrap_or(hold);
        self.show_renewed(id, hold.deadline_ms);
        self.remember(hold.deadline_ms);
        Renewed::of(hold.remaining(now_ms))
    }

    /// Extends the hold of a writer to `rest_until`, and returns the hold.
    fn extend_to(&mut self, id: &AcquisitionId, rest_until: Option<ServerTime>) -> Option<GrantedRecord> {
        let writer = self.writer.as_mut().filter(|writer| writer.id == *id)?;
        writer.hold.deadline_ms = writer.hold.deadline_ms.max(rest_until?.as_millis_up());
        Some(writer.hold)
    }

    /// Sets the note of a live hold, unless the hold has a later one. A note goes with its record, also through a
    /// conversion.
    pub(crate) fn set_note(&mut self, now: ServerTime, id: &AcquisitionId, note: &Note) -> Noted {
        if !self.is_sound(now.as_micros() / 1000, id) {
            return Noted::None;
        }
        if let Some(place) = self.note_of(id)
            && place.as_ref().is_none_or(|earlier| earlier.number < note.number)
        {
            *place = Some(note.clone());
        }
        Noted::Noted
    }

    /// Returns the place for the note of a recorded hold.
    fn note_of(&mut self, id: &AcquisitionId) -> Option<&mut Option<Note>> {
        match &mut self.writer {
            Some(writer) if writer.id == *id => Some(&mut writer.note),
            _ => self.readers.iter_mut().find(|reader| reader.id == *id).map(|reader| &mut reader.note),
        }
    }

    fn put_note(&mut self, id: &AcquisitionId, note: Option<Note>) {
        if let Some(place) = self.note_of(id) {
            *place = note;
        }
    }

    /// Takes the grants to waiters since the last call of this function.
    pub(crate) fn take_notifications(&mut self) -> Vec<GrantNotification> {
        std::mem::take(&mut self.notifications)
    }

    /// Takes the waiter that has to repeat its request. Its phase had more readers than the last operation could admit.
    /// The repeated request admits this waiter and more readers of the phase.
    pub(crate) fn take_next_to_ask(&mut self) -> Option<AcquisitionId> {
        self.next_to_ask.take()
    }
}
