//! Functions for operators: the view of a lock, and the force that ends its holds.

use super::{GrantedRecord, Record, ServerStep, WaiterRecord};
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::{AcquisitionId, Forced, Holder, Mode, Note, QueuedWaiter, View};

impl Record {
    /// Returns a view of the lock and changes nothing. The view omits dead holders and waiters. `inspect` reads at most
    /// as many records as an operation may touch. If there are enough waiters, at least half of these records are
    /// records of waiters.
    pub(crate) fn inspect(&self, now: ServerTime) -> View {
        let now_ms = now.as_micros() / 1000;
        let most = self.limits.records;
        let waiting = self.waiting();
        let holders_recorded = usize::from(self.writer.is_some()) + self.readers.len();
        let waiters_recorded = waiting.clone().count();
        let waiters_seen = waiters_recorded.min(most.saturating_sub(holders_recorded).max(most / 2));
        let holders_seen = holders_recorded.min(most - waiters_seen);
        let show = |id: &AcquisitionId, mode, hold: &GrantedRecord, note: Option<&Note>| {
            let (id, since_ms) = (id.as_str().to_owned(), hold.since_ms);
            let note = note.map(|note| note.text.to_string()).filter(|text| !text.is_empty());
            self.is_live(hold, now_ms).then(|| Holder { id, mode, since_ms, remaining: hold.remaining(now_ms), note })
        };
        let writer = self
            .sound_writer(now_ms)
            .into_iter()
            .map(|writer| show(&writer.id, Mode::Write, &writer.hold, writer.note.as_ref()));
        let readers =
            self.readers.iter().map(|reader| show(&reader.id, Mode::Read, &reader.hold, reader.note.as_ref()));
        let live = waiting.take(waiters_seen).filter(|waiting| waiting.until_ms > now_ms);
        let waiters = live
            .map(|WaiterRecord { request, since_ms, .. }| QueuedWaiter {
                id: request.id.as_str().to_owned(),
                mode: request.mode,
                since_ms: *since_ms,
            })
            .collect();
        let mut view = View {
            token: FencingToken::from_wire(self.token).filter(|_| self.token > 0),
            holders: writer.chain(readers).take(holders_seen).flatten().collect(),
            more_holders: holders_recorded - holders_seen,
            waiters,
            more_waiters: waiters_recorded - waiters_seen,
            client_write_ms: self.shown_write(),
            client_read_ms: self.shown_read(),
            tokens: Vec::new(),
            is_recallable: self.is_recallable(),
        };
        view.sort_waiters();
        view
    }

    /// Ends all holds in the view `seen`. If the last token is newer than the token in the view, other holds have
    /// replaced them. Then this copy of the request is late and does nothing.
    ///
    /// All holds end at once, but one operation removes only a limited number of records. Until all records are
    /// removed, no request enters, and the caller repeats the force. Then the next waiters enter.
    pub(crate) fn force_seen(&mut self, now: ServerTime, seen: &View) -> Forced {
        // A renewal may have brought the writer new tokens since the view. So a writer whose id is in the view also
        // counts as seen.
        let is_there = self.writer.as_ref().is_some_and(|writer| seen.shows(&writer.id));
        if !is_there && self.token > seen.token.map_or(0, FencingToken::as_u64) {
            return Forced::default();
        }
        self.recall_forced();
        let mut step = ServerStep::new(now, self.limits);
        let writer = self.sound_writer(step.now_ms).map(|writer| (writer.id.clone(), writer.hold));
        let mut ended = Vec::from_iter(writer);
        self.forced = self.token;
        self.hide_seen(seen);
        if self.writer.take().is_some() {
            self.begin_batch();
        }
        while !self.readers.is_empty() && step.touch() {
            ended.extend(self.readers.pop().map(|reader| (reader.id, reader.hold)));
        }
        self.expire_dead(&mut step);
        self.uncover();
        let live = ended.into_iter().filter(|(_, hold)| hold.deadline_ms > step.now_ms);
        let ids = live.map(|(id, _)| id.as_str().to_owned()).collect();
        Forced { ids, has_more: self.forced == self.token && !self.readers.is_empty() }
    }

    /// Ends the holds that several servers have shown. A hold in the view ends here even if it came to this server
    /// after the view, or if its token was raised since. Other masters cannot bring such a hold back here.
    pub(crate) fn force_shown(&mut self, now: ServerTime, token: Option<FencingToken>, seen: &View) -> Forced {
        let now_ms = now.as_micros() / 1000;
        self.barred = self.barred.max(seen.token.map_or(0, FencingToken::as_u64));
        self.remember(now_ms);
        let is_there = self.live_writer(now_ms).is_some_and(|writer| seen.shows(&writer.id))
            || self.readers.iter().any(|reader| seen.shows(&reader.id) && self.is_live(&reader.hold, now_ms));
        // If an earlier force left records here, `force_seen` must go on to remove them.
        let is_over = self.forced == self.token;
        let token = if is_there || is_over { FencingToken::from_wire(self.token) } else { token };
        self.force_seen(now, &View { token, ..View::default() })
    }

    pub(super) fn forced_token(&self) -> Option<FencingToken> {
        FencingToken::from_wire(self.forced).filter(|_| self.forced > 0)
    }
}
