//! Timestamps of the timestamp scheme. With them, this crate and the clients of that scheme see each other's holds.
//!
//! The clients know two fields of a lock, `read` and `write`. Each field is a time of day in milliseconds. A client
//! writes the time of its grant, which is called a *foreign* timestamp here. This crate writes the deadline of the
//! hold. `lua/README.md` has the rules and the reasons, in its section on this scheme.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../../testing/unit/store/memory/record/clients.rs"]
mod clients;

use super::{GrantedRecord, Record, WriterRecord};
use crate::store::{AcquireRequest, AcquisitionId, Mode, View};

/// Timestamps of one lock. They include the foreign `read` that the `read` of this crate has replaced.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Stamps {
    limits: TimestampClientsMs,
    write: Option<u64>,
    read: Option<u64>,
    /// True if this crate wrote `read`. The number alone does not show this, since a foreign timestamp may be equal.
    is_ours: bool,
    /// Last value of `read` that this crate wrote. Present only while readers are recorded.
    ours: Option<u64>,
    /// Newest foreign `read` that a value of this crate has replaced. It still counts, and it is present only while
    /// readers are recorded.
    covered: Option<u64>,
}

/// Times for which a foreign `read` and a foreign `write` count.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct TimestampClientsMs {
    pub(crate) read_ms: u64,
    pub(crate) write_ms: u64,
}

/// Returns the timestamp if it is a possible time in milliseconds. A larger number excludes no client.
fn time(stamp: Option<u64>) -> Option<u64> {
    stamp.filter(|&stamp| stamp <= 9_007_199_254_740_000)
}

impl Stamps {
    /// Returns `write` if it is foreign, which means that it is not the deadline of the recorded writer.
    fn client_write(&self, writer: Option<&GrantedRecord>) -> Option<u64> {
        self.write.filter(|&write| writer.is_none_or(|hold| hold.deadline_ms != write))
    }

    /// Returns `read` if it is foreign.
    fn client_read(&self) -> Option<u64> {
        self.read.filter(|_| !self.is_ours)
    }

    /// Writes `read` for a reader that enters or extends its hold. `joins` is true if other readers are recorded. A
    /// `write` that is present here does not count any more.
    fn show_reader(&mut self, now_ms: u64, deadline_ms: u64, joins: bool) {
        self.write = None;
        let foreign = time(self.client_read()).filter(|read| read + self.limits.read_ms >= now_ms);
        self.covered = foreign.max(self.covered);
        self.write_read_stamp(self.ours.filter(|_| joins), deadline_ms);
    }

    /// Writes `read` for a reader whose hold was renewed.
    fn renew_reader(&mut self, deadline_ms: u64) {
        self.covered = time(self.client_read()).max(self.covered);
        self.write_read_stamp(self.ours, deadline_ms);
    }

    /// Writes the latest deadline of the readers to `read`, but no time before the foreign timestamp that it replaces.
    /// So the new value excludes each writer that the replaced timestamp excludes.
    fn write_read_stamp(&mut self, before: Option<u64>, deadline_ms: u64) {
        self.ours = before.max(Some(deadline_ms)).max(self.covered);
        (self.read, self.is_ours) = (self.ours, true);
    }

    /// Removes the `read` of this crate when the last record of a reader is gone. Restores the foreign `read` that was
    /// replaced, because its client may still be inside.
    fn hide_readers(&mut self) {
        self.read = self.client_read().or(self.covered);
        (self.is_ours, self.ours, self.covered) = (false, None, None);
    }

    /// Removes the foreign timestamps that are in the view of an operator. Newer foreign timestamps stay.
    fn hide_seen(&mut self, writer: Option<&GrantedRecord>, seen: &View) {
        let client_write = self.client_write(writer);
        self.write = client_write.filter(|_| time(client_write) != seen.client_write_ms);
        let client_read = self.client_read();
        if client_read.is_some() && time(client_read) == seen.client_read_ms {
            self.read = None;
        }
        self.covered = self.covered.filter(|_| self.covered != seen.client_read_ms);
    }
}

/// Functions that use both the timestamps and the recorded holds.
impl Record {
    fn writer_hold(&self) -> Option<&GrantedRecord> {
        self.writer.as_ref().map(|writer| &writer.hold)
    }

    /// Returns the live writer, unless a timestamp client has overwritten its timestamp.
    pub(super) fn sound_writer(&self, now_ms: u64) -> Option<&WriterRecord> {
        let is_shown =
            |hold: &GrantedRecord| self.stamps.as_ref().is_none_or(|stamps| stamps.write == Some(hold.deadline_ms));
        self.live_writer(now_ms).filter(|writer| is_shown(&writer.hold))
    }

    /// Returns the hold of a live reader, unless a foreign writer is, or was, inside together with the reader.
    pub(super) fn sound_reader(&self, now_ms: u64, id: &AcquisitionId) -> Option<&GrantedRecord> {
        let hold = &self.readers[self.reader(id)?].hold;
        let is_sound = self.is_live(hold, now_ms) && !hold.is_overrun && self.client_write().is_none();
        is_sound.then_some(hold)
    }

    /// Returns true if `id` holds the lock and the timestamps show no foreign client that was inside together with this
    /// hold.
    pub(super) fn is_sound(&self, now_ms: u64, id: &AcquisitionId) -> bool {
        self.sound_writer(now_ms).is_some_and(|writer| writer.id == *id) || self.sound_reader(now_ms, id).is_some()
    }

    /// Returns the foreign `write` for the view of an operator.
    pub(super) fn shown_write(&self) -> Option<u64> {
        time(self.client_write())
    }

    fn client_write(&self) -> Option<u64> {
        self.stamps.as_ref()?.client_write(self.writer_hold())
    }

    /// Returns the foreign `read` for the view of an operator, or else the foreign `read` that was replaced.
    pub(super) fn shown_read(&self) -> Option<u64> {
        let stamps = self.stamps.as_ref()?;
        time(stamps.client_read().or(stamps.covered))
    }

    /// Returns the newest foreign `read`, also if a value of this crate has replaced it.
    pub(super) fn newest_client_read(&self) -> Option<u64> {
        let stamps = self.stamps.as_ref()?;
        time(stamps.client_read()).max(stamps.covered)
    }

    /// Returns the first time at which the foreign `write` excludes no client any more, if it still counts. In the
    /// millisecond in which it reaches its limit it still counts, as for timestamp clients.
    pub(super) fn client_write_until(&self, now_ms: u64) -> Option<u64> {
        let stamps = self.stamps.as_ref()?;
        let last_ms = time(stamps.client_write(self.writer_hold()))? + stamps.limits.write_ms;
        (last_ms >= now_ms).then_some(last_ms + 1)
    }

    /// Returns the first time at which foreign `read`s exclude no writer any more, if one of them still counts.
    pub(super) fn client_read_until(&self, now_ms: u64) -> Option<u64> {
        let stamps = self.stamps.as_ref()?;
        let last_ms = self.newest_client_read()? + stamps.limits.read_ms;
        (last_ms >= now_ms).then_some(last_ms + 1)
    }

    /// Writes `write` for a writer that enters. No other timestamp counts at this time.
    pub(super) fn show_new_writer(&mut self, deadline_ms: u64) {
        if let Some(stamps) = &mut self.stamps {
            **stamps = Stamps { limits: stamps.limits, write: Some(deadline_ms), ..Stamps::default() };
        }
    }

    /// Writes `write` for a writer that extends its hold.
    pub(super) fn show_writer(&mut self, deadline_ms: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps.write = Some(deadline_ms);
        }
    }

    /// Writes the timestamp for a reader that enters or extends its hold.
    ///
    /// If readers are recorded, a foreign `write` shows that a foreign writer was inside together with them. The
    /// timestamp of that writer does not count any more, but these readers have lost their holds and their token.
    /// Readers that entered in this millisecond are not marked, because it is unknown who entered first.
    pub(super) fn show_reader(&mut self, now_us: u64, deadline_ms: u64) {
        let now_ms = now_us / 1000;
        if self.client_write().is_some() && !self.readers.is_empty() {
            self.disown();
            (_, self.token) = self.tokens(now_us, 1);
            for reader in &mut self.readers {
                reader.hold.is_overrun |= reader.hold.since_ms < now_ms;
            }
        }
        if let Some(stamps) = &mut self.stamps {
            stamps.show_reader(now_ms, deadline_ms, !self.readers.is_empty());
        }
    }

    pub(super) fn show_renewed(&mut self, id: &AcquisitionId, deadline_ms: u64) {
        let writes = self.writer.as_ref().is_some_and(|writer| writer.id == *id);
        match &mut self.stamps {
            Some(stamps) if writes => stamps.write = Some(deadline_ms),
            Some(stamps) => stamps.renew_reader(deadline_ms),
            None => {}
        }
    }

    /// Removes `write` if it is the timestamp of the recorded writer. A foreign `write` stays.
    pub(super) fn hide_writer(&mut self, deadline_ms: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps.write.take_if(|write| *write == deadline_ms);
        }
    }

    /// Removes the `read` of this crate if no reader is recorded any more, live or dead.
    pub(super) fn uncover(&mut self) {
        if let Some(stamps) = self.stamps.as_mut().filter(|stamps| self.readers.is_empty() && stamps.ours.is_some()) {
            stamps.hide_readers();
        }
    }

    /// Removes the foreign timestamps that are in the view of an operator.
    pub(super) fn hide_seen(&mut self, seen: &View) {
        if let Some(stamps) = &mut self.stamps {
            stamps.hide_seen(self.writer.as_ref().map(|writer| &writer.hold), seen);
        }
    }

    /// Removes the hold of a repeated acquisition if a foreign client was inside together with the hold. The
    /// acquisition then counts as a new one.
    pub(super) fn drop_unsound(&mut self, now_us: u64, request: &AcquireRequest) {
        let now_ms = now_us / 1000;
        if self.is_sound(now_ms, &request.id) {
            return;
        }
        let writes = |writer: &&WriterRecord| writer.id == request.id && request.mode == Mode::Write;
        if self.live_writer(now_ms).filter(writes).is_some() {
            self.disown();
            self.writer = None;
            self.begin_batch();
        }
        if let Some(reader) = self.reader(&request.id).filter(|&at| self.is_live(&self.readers[at].hold, now_ms)) {
            if self.client_write().is_some() {
                self.disown();
                // The reader must not get the old token again, even if other readers still have it.
                (_, self.token) = self.tokens(now_us, 1);
            }
            self.readers.swap_remove(reader);
        }
    }

    /// Notes that a foreign client was inside together with a hold. The answer to this request removes the timestamps
    /// that show it. So the tokens up to now count as unknown. Otherwise a later copy of the request could conclude
    /// that the hold was released.
    fn disown(&mut self) {
        self.first_token = self.token + 1;
    }

    /// Notes a foreign client that is inside together with this hold now. Earlier foreign clients are noted already.
    pub(super) fn note_intruder(&mut self, now_ms: u64, id: &AcquisitionId) {
        let is_beside = self.writer.is_some() || self.client_write().is_some();
        if is_beside && !self.is_sound(now_ms, id) && self.live_hold_of(now_ms, id).is_some() {
            self.disown();
        }
    }

    /// Makes a lost hold dead, even if the clock is set back later. An operation removes the hold as it removes any
    /// dead hold.
    pub(super) fn expire_hold(&mut self, id: &AcquisitionId) {
        if let Some(writer) = self.writer.as_mut().filter(|writer| writer.id == *id) {
            let deadline_ms = std::mem::take(&mut writer.hold.deadline_ms);
            self.hide_writer(deadline_ms);
        }
        if let Some(reader) = self.reader(id) {
            self.readers[reader].hold.deadline_ms = 0;
        }
    }
}
