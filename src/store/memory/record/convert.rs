//! Conversions of holds.

use super::{GrantedRecord, Record, ServerStep};
use crate::base::lease::ServerTime;
use crate::store::{AcquireRequest, AcquisitionId, Converted, Mode, Note};

impl Record {
    pub(crate) fn convert(
        &mut self,
        now: ServerTime,
        not_after_ms: u64,
        old: &AcquisitionId,
        request: &AcquireRequest,
    ) -> Converted {
        let mut step = ServerStep::new(now, self.limits);
        if step.now_ms > not_after_ms {
            return Converted::Late;
        }
        let turned = self.convert_live(&mut step, old, request);
        self.uncover();
        turned
    }

    fn convert_live(&mut self, step: &mut ServerStep, old: &AcquisitionId, request: &AcquireRequest) -> Converted {
        // Clients give each hold a fresh id, so a read hold passes to no id that has a record.
        let is_fresh = self.reader(&request.id).is_none();
        self.expire_dead(step);
        if self.holds(step.now_ms, request) && self.is_sound(step.now_ms, &request.id) {
            self.extend(step, request);
            return Converted::Granted(self.answer_granted(step, request));
        }
        let writes = self.sound_writer(step.now_ms).is_some_and(|writer| writer.id == *old);
        let reads = self.sound_reader(step.now_ms, old).is_some();
        match request.mode {
            Mode::Read if writes => {
                let note = self.writer.take().and_then(|writer| writer.note);
                self.begin_batch();
                self.cancel(step.now_ms, &request.id);
                self.begin_read(step.now_us, &request.id, request.lease, None);
                self.put_note(&request.id, note);
                self.admit(step);
            }
            Mode::Read if reads && is_fresh => self.pass_read(step, old, request),
            Mode::Write if writes => {
                let note = self.writer.take().and_then(|writer| writer.note).map(Note::before_all);
                self.leave_queue_for_pass(step, &request.id);
                self.begin_write(step.now_us, request, request.lease);
                self.put_note(&request.id, note);
            }
            Mode::Write if reads => {
                if !self.may_upgrade(step, old) {
                    return self.refuse_upgrade(&request.id);
                }
                // No other reader is recorded by now.
                let note = self.readers.pop().and_then(|reader| reader.note);
                self.cancel(step.now_ms, &request.id);
                self.begin_write(step.now_us, request, request.lease);
                self.put_note(&request.id, note);
            }
            Mode::Read | Mode::Write => return Converted::Lost { forced: self.forced_token() },
        }
        Converted::Granted(self.answer_granted(step, request))
    }

    /// Removes the new id of a passed hold from the queue. The script looks for dead writers before that, and not again. So a
    /// dead writer behind the new id still counts as a waiter.
    fn leave_queue_for_pass(&mut self, step: &mut ServerStep, id: &AcquisitionId) {
        self.has_waiting_writer(step);
        self.cancel(step.now_ms, id);
        step.stop_touching();
    }

    /// Passes a read hold to a new id. The phase continues, and keeps its token.
    fn pass_read(&mut self, step: &mut ServerStep, old: &AcquisitionId, request: &AcquireRequest) {
        self.leave_queue_for_pass(step, &request.id);
        let hold = GrantedRecord::new(step.now_ms, request.lease);
        if let Some(place) = self.reader(old) {
            let reader = &mut self.readers[place];
            (reader.id, reader.hold) = (request.id.clone(), hold);
            reader.note = reader.note.take().map(Note::before_all);
        }
        self.show_reader(step.now_us, hold.deadline_ms);
        self.remember(hold.deadline_ms);
    }

    /// Returns true if `old` is the only reader, no writer waits, and no reader of the next phase waits. Removes dead
    /// readers that it finds.
    fn may_upgrade(&mut self, step: &mut ServerStep, old: &AcquisitionId) -> bool {
        let next = !self.batch_readers.is_empty() || self.has_waiting_writer(step);
        if next || self.client_read_until(step.now_ms).is_some() {
            return false;
        }
        if let Some(reader) = self.reader(old) {
            self.readers.swap(0, reader);
        }
        while self.readers.len() > 1 {
            let dead = self.readers.last().is_some_and(|reader| !self.is_live(&reader.hold, step.now_ms));
            if !dead || !step.touch() {
                return false;
            }
            self.readers.pop();
        }
        true
    }
}
