//! Clients of the timestamp scheme, and other events that may befall a record.
#![allow(unreachable_pub)] // the module is private to the tests

use super::super::RecordLimits;
use super::*;
use crate::base::lease::ServerTime;

/// Operations of a timestamp client, as its scripts do them.
impl Stamps {
    /// Locks as the script of a client does. `their_ms` is the time of the client's clock. A timestamp still counts in
    /// the millisecond in which it reaches its limit.
    fn lock(&mut self, mode: Mode, their_ms: u64) -> bool {
        let TimestampClientsMs { read_ms, write_ms } = self.limits;
        let is_over = |stamp: Option<u64>, limit_ms| stamp.is_none_or(|stamp| stamp + limit_ms < their_ms);
        let may_enter = is_over(self.write, write_ms) && (mode == Mode::Read || is_over(self.read, read_ms));
        if may_enter {
            *self.field(mode) = Some(their_ms);
            self.is_ours &= mode == Mode::Write;
        }
        may_enter
    }

    fn unlock(&mut self, mode: Mode, stamp_ms: u64) {
        if mode == Mode::Write || !self.is_ours {
            self.field(mode).take_if(|stamp| *stamp == stamp_ms);
        }
    }

    fn field(&mut self, mode: Mode) -> &mut Option<u64> {
        match mode {
            Mode::Read => &mut self.read,
            Mode::Write => &mut self.write,
        }
    }
}

impl Record {
    /// Makes this record a lock that timestamp clients use too.
    pub fn beside_timestamp_clients(self, limits: TimestampClientsMs) -> Self {
        Self { stamps: Some(Box::new(Stamps { limits, ..Stamps::default() })), ..self }
    }

    /// Creates a lock whose operations touch at most this number of records.
    pub fn with_limit(records: usize) -> Self {
        Self { limits: RecordLimits { records, ..RecordLimits::default() }, ..Self::default() }
    }

    /// Forgets all data, as a server does that loses the key.
    pub fn forget(&mut self) {
        let stamps = self.stamps.as_ref().map(|stamps| Box::new(Stamps { limits: stamps.limits, ..Stamps::default() }));
        *self = Self { limits: self.limits, stamps, ..Self::default() };
    }

    /// Tries to lock as a timestamp client. `their_ms` is the time of the client's clock, and becomes the timestamp.
    pub fn client_lock(&mut self, mode: Mode, their_ms: u64) -> bool {
        self.stamps.as_mut().is_some_and(|stamps| stamps.lock(mode, their_ms))
    }

    pub fn client_unlock(&mut self, mode: Mode, stamp_ms: u64) {
        if let Some(stamps) = &mut self.stamps {
            stamps.unlock(mode, stamp_ms);
        }
    }

    /// Sets or removes a timestamp, whatever the timestamps are.
    pub fn set_client_stamp(&mut self, mode: Mode, stamp_ms: Option<u64>) {
        if let Some(stamps) = &mut self.stamps {
            *stamps.field(mode) = stamp_ms;
            stamps.is_ours &= mode == Mode::Write;
        }
    }

    /// Removes all dead holds at once. In the two-key scheme, a script or the expiry of a key may do this.
    pub fn sweep(&mut self, now: ServerTime) {
        let now_ms = now.as_micros() / 1000;
        self.readers.retain(|reader| reader.hold.deadline_ms > now_ms);
        self.writer.take_if(|writer| writer.hold.deadline_ms <= now_ms);
    }
}
