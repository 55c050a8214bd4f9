//! Faults of a wrong server, before and after the operation of a right one.

use super::*;

impl Server {
    pub fn go_wrong_before(&self, record: &mut Record, now: ServerTime, request: &Request) {
        let now_ms = now.as_micros() / 1000;
        match (self.fault, request.what) {
            (Some(Fault::LastWriterForgotten), What::Leave) => {
                // The record forgets that it was a writer that left.
                let own = self.id(request.id);
                record.writer.take_if(|writer| writer.id == own);
            }
            (Some(Fault::LastWriterForgotten), What::Acquire { .. }) => {
                record.writer.take_if(|writer| writer.hold.deadline_ms <= now_ms);
            }
            (Some(Fault::ReleaseByLock), What::Leave) => {
                let own = self.id(request.id);
                if record.hold_of(&own).is_none() {
                    record.writer = None;
                }
            }
            (Some(Fault::RepeatBeginsAnew), What::Acquire { .. }) => {
                record.end(&self.id(request.id));
            }
            (Some(Fault::HeartbeatLosesPlace), What::Acquire { .. }) => {
                record.cancel(now_ms, &self.id(request.id));
            }
            (Some(Fault::WriterPhaseForgotten), _) if record.writer.is_none() && !record.readers.is_empty() => {
                // Readers still join the readers inside, although other clients wait.
                let waiting = std::mem::take(&mut record.waiting_readers);
                record.batch_readers.extend(waiting);
            }
            (Some(Fault::DeadReaderStays), _) => {
                for reader in &mut record.readers {
                    reader.hold.deadline_ms = reader.hold.deadline_ms.max(now_ms + TICK_MS);
                }
            }
            (Some(Fault::NewestWriterFirst), _) => {
                let mut waiting = std::mem::take(&mut record.waiting_writers).into_iter().collect::<Vec<_>>();
                let by = waiting.len().min(1);
                waiting.rotate_right(by);
                record.waiting_writers = VecDeque::from(waiting);
            }
            _ => {}
        }
    }

    pub fn go_wrong_after(
        &self,
        before: &Record,
        record: &mut Record,
        now: ServerTime,
        request: &Request,
        reply: &mut Reply,
    ) {
        let at_us = now.as_micros();
        let own = self.id(request.id);
        match (self.fault, request.what, *reply) {
            (
                Some(Fault::WriterBesideReaders),
                What::Acquire { mode: Side::Write, waits },
                Reply::Queued { .. } | Reply::Contended,
            ) if record.writer.is_none() => {
                record.let_in(now, &self.ask(request.id, Side::Write, waits));
                *reply = self.granted_to(record, &own, at_us);
            }
            (
                Some(Fault::UpgradeBesideReaders),
                What::Convert { from, to: to @ Side::Write },
                Reply::Refused { .. },
            ) => {
                record.end(&self.id(from));
                record.let_in(now, &self.ask(request.id, to, false));
                *reply = self.granted_to(record, &own, at_us);
            }
            (
                Some(Fault::ReaderPassesWaitingWriter),
                What::Acquire { mode: Side::Read, waits },
                Reply::Queued { .. },
            ) if record.writer.is_none() => {
                record.let_in(now, &self.ask(request.id, Side::Read, waits));
                *reply = self.granted_to(record, &own, at_us);
            }
            (Some(Fault::RenewalRecreates), What::Renew, Reply::Lost) if record.writer.is_none() => {
                record.let_in(now, &self.ask(request.id, Side::Read, false));
                *reply = Reply::Renewed { remaining: LEASE, is_waited_for: false, tokens: None };
            }
            (Some(Fault::RenewalShortens), What::Renew, Reply::Renewed { remaining, .. }) => {
                record.set_lease(now, &own, span(remaining - 1));
            }
            (Some(Fault::CancelLeavesPlace), What::Leave, Reply::Left { held: false }) => {
                record.waiting_writers = before.waiting_writers.clone();
            }
            (
                Some(Fault::TokensAhead | Fault::TokensReused),
                What::Acquire { mode: Side::Write, .. },
                Reply::Granted(_),
            ) if before.writer.is_none() && record.notifications.is_empty() => {
                self.reserve_wrongly(record);
                *reply = self.granted_to(record, &own, at_us);
            }
            (Some(Fault::LastWriterForgotten), What::Leave, _) => {
                let held = before.clone().live_hold_of(at_us / 1000, &own).is_some();
                *reply = Reply::Left { held };
            }
            (Some(Fault::KeyForgotten), _, Reply::Queued { .. }) => {
                record.forget_ms = at_us / 1000 + TICK_MS + RETENTION_MS
            }
            (Some(Fault::BatchForgotten), ..) => {
                let batch = std::mem::take(&mut record.batch_readers);
                record.waiting_readers.extend(batch);
            }
            (Some(Fault::WaiterGetsWholeLease | Fault::WritersWaitingUntold), ..) => self.tell_wrongly(record, now),
            _ => {}
        }
    }

    fn tell_wrongly(&self, record: &mut Record, now: ServerTime) {
        let mut notifications = record.take_notifications();
        for notification in &mut notifications {
            if self.fault == Some(Fault::WaiterGetsWholeLease) {
                record.set_lease(now, &notification.id, span(LEASE));
                notification.granted.remaining = span(LEASE);
            } else {
                notification.granted.is_waited_for = false;
            }
        }
        record.notifications = notifications;
    }

    fn reserve_wrongly(&self, record: &mut Record) {
        if self.fault == Some(Fault::TokensAhead) {
            record.token += TOKENS - 1;
        }
        if let Some(writer) = &mut record.writer {
            writer.token = record.token - (TOKENS - 1);
        }
    }

    fn granted_to(&self, record: &mut Record, id: &AcquisitionId, at_us: u64) -> Reply {
        let now_ms = at_us / 1000;
        let waits = !record.waiting_writers.is_empty();
        Reply::Granted(Self::grant(record.grant_of(now_ms, id, waits).expect("it was let in"), at_us))
    }

    pub fn distort(&self, notifications: Vec<(Id, Option<Grant>)>, record: &Record) -> Vec<(Id, Option<Grant>)> {
        match self.fault {
            Some(Fault::NotificationForAnother) => {
                let another = record.waiting_writers.front().map(|waiting| Self::number(&waiting.request.id));
                notifications.into_iter().map(|(id, grant)| (another.unwrap_or(id), grant)).collect()
            }
            _ => notifications,
        }
    }
}
