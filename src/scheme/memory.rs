//! Locks in this process's memory: the executable specification of what a scheme does, and the manager for users' tests.
//!
//! [`Record`] is pure: the server's time comes in as an argument, so that the oracle can feed it the times that a real
//! server reported and compare answer by answer.

use std::collections::{BTreeSet, HashMap, VecDeque};
use std::fmt;
use std::io;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::mpsc;

mod published;
#[cfg(test)]
pub(crate) use published::PublishedLimitsMs;
#[cfg(test)]
mod explore;
#[cfg(test)]
pub(crate) mod replica;

use crate::clock::Clock;
use crate::health::{NodeHealth, NodeRole, Traffic};
use crate::key::{Key, Listing};
use crate::lease::{FencingToken, Moment, ServerTime};
use crate::scheme::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Forced,
    Granted, Holder, IfTaken, MAX_TOKENS, Mode, Notice, ReleaseReply, Renewal, Renewed, Route, Scheme, Subscription,
    View, Waiter,
};

/// How long an idle record remembers its last token, as on a server.
const RETENTION_MS: u64 = 60_000;
/// With these and the few that it touches beside them (its own, its neighbours, the first in line) an operation touches a hundred.
const MAX_RECORDS: usize = 96;
/// Fewer locks are not worth a look for idle ones.
const MIN_SWEEP: usize = 64;

/// How much one operation may do, so that no crowd makes a server stand still.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Limits {
    /// How many records of readers and waiters, live or dead, one operation removes, admits or shows. The rest is left to the
    /// operations after it.
    pub(crate) records: usize,
}

impl Default for Limits {
    fn default() -> Self {
        Self { records: MAX_RECORDS }
    }
}

/// One operation: when it is carried out, and how many records it may still touch.
#[derive(Clone, Copy, Debug)]
struct Step {
    now_us: u64,
    now_ms: u64,
    records: usize,
}

impl Step {
    fn new(now: ServerTime, limits: Limits) -> Self {
        let now_us = now.as_micros();
        Self { now_us, now_ms: now_us / 1000, records: limits.records }
    }

    /// Takes one of the records that may be touched.
    fn touch(&mut self) -> bool {
        let may = self.records > 0;
        self.records -= usize::from(may);
        may
    }
}

/// One lock.
///
/// Records of the dead stay where they are until an operation comes across them, as on a server: readers and waiting readers
/// lie in arrays that are worked off from the end, waiting writers in a list that is worked off from the front.
#[derive(Clone, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct Record {
    limits: Limits,
    /// The last token that was granted or reserved, 0 if none is remembered.
    token: u64,
    /// The first one that is known since: what was granted before may have gone with a record that was lost, or had somebody beside it
    /// who does not know us.
    first_token: u64,
    /// The last token that an operator has ended. All holds that are recorded have the last token: they are over if it is this.
    forced: u64,
    writer: Option<Writer>,
    readers: Vec<Reader>,
    /// First come, first served.
    waiting_writers: VecDeque<Waiting>,
    /// Readers that waited when a writer left: it is their turn, and no writer enters before all of them are in.
    turn_readers: Vec<Waiting>,
    /// Readers that have come since.
    waiting_readers: Vec<Waiting>,
    /// Who was granted since [`Record::take_news`].
    news: Vec<News>,
    /// Who is next of a turn that was too long for the last operation.
    call: Option<AcquisitionId>,
    /// When the record may be forgotten.
    forget_ms: u64,
    /// What clients of the published scheme see and have written, where there are any.
    stamps: Option<Box<published::Stamps>>,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Writer {
    id: AcquisitionId,
    /// The first of its tokens; the last one is the record's.
    token: u64,
    hold: Hold,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Reader {
    id: AcquisitionId,
    hold: Hold,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Hold {
    since_ms: u64,
    deadline_ms: u64,
    /// A foreign writer was beside this reader: it is not held to the end.
    overrun: bool,
}

impl Hold {
    fn new(now_ms: u64, lease: Duration) -> Self {
        Self { since_ms: now_ms, deadline_ms: now_ms + millis(lease), overrun: false }
    }

    fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms.saturating_sub(now_ms))
    }

    fn extend(&mut self, lease: Duration, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(now_ms + millis(lease));
    }
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
struct Waiting {
    /// As it was asked for last.
    request: AcquireRequest,
    since_ms: u64,
    /// When it counts as dead unless it is heard of.
    until_ms: u64,
}

/// An acquisition that was granted while it waited.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct News {
    pub(crate) id: AcquisitionId,
    pub(crate) granted: Granted,
}

/// What a look at the readers finds. Dead ones leave on the way.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Look {
    Nobody,
    Live,
    /// There were too many dead ones to tell.
    Crowded,
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 2)
}

fn position(waiting: &[Waiting], id: &AcquisitionId) -> Option<usize> {
    waiting.iter().position(|waiting| waiting.request.id == *id)
}

impl Record {
    /// The first and the last token of a grant. They reach back and never ahead of the clock, so that after a loss of this
    /// record the next grant's are higher. What a lost record had given away is not known: then it is one.
    fn tokens(&self, now_us: u64, max_tokens: u64) -> (u64, u64) {
        let last = now_us.max(self.token + 1);
        if self.token == 0 {
            return (last, last);
        }
        (last.saturating_sub(max_tokens.clamp(1, MAX_TOKENS) - 1).max(self.token + 1), last)
    }

    /// The first token of a grant; the last one is the record's from now on.
    fn take_tokens(&mut self, now_us: u64, max_tokens: u64) -> u64 {
        let (first, last) = self.tokens(now_us, max_tokens);
        if self.token == 0 {
            self.first_token = first;
        }
        self.token = last;
        first
    }

    fn is_live(&self, hold: &Hold, now_ms: u64) -> bool {
        hold.deadline_ms > now_ms && self.forced != self.token
    }

    fn live_writer(&self, now_ms: u64) -> Option<&Writer> {
        self.writer.as_ref().filter(|writer| self.is_live(&writer.hold, now_ms))
    }

    /// Every operation that takes something begins with this, every one that gives something up ends with it.
    fn settle(&mut self, step: &mut Step) {
        self.call = None;
        if self.live_writer(step.now_ms).is_none() {
            if let Some(writer) = self.writer.take() {
                self.hide_writer(writer.hold.deadline_ms);
                self.begin_turn();
            }
            self.admit(step);
        }
    }

    /// It is the turn of the readers who wait now. Nobody is left of the turn before: no writer enters earlier.
    fn begin_turn(&mut self) {
        if self.turn_readers.is_empty() {
            std::mem::swap(&mut self.turn_readers, &mut self.waiting_readers);
        }
    }

    /// Lets the next phase begin if the lock is free, and readers join readers if no writer waits. After a writer all waiting
    /// readers enter, after readers the first waiting writer.
    fn admit(&mut self, step: &mut Step) {
        if self.foreign_write_until(step.now_ms).is_some() {
            return;
        }
        let told = self.news.len();
        self.admit_next(step);
        if self.news.len() > told {
            let waits = self.writer_waits(step);
            for news in &mut self.news[told..] {
                news.granted.writers_waiting = waits;
            }
        }
        self.call = self.turn_readers.last().map(|next| next.request.id.clone());
    }

    fn admit_next(&mut self, step: &mut Step) {
        loop {
            if self.turn_readers.is_empty() && !self.waiting_readers.is_empty() && !self.writer_waits(step) {
                self.begin_turn();
            }
            if self.turn_readers.is_empty() {
                break;
            }
            self.admit_readers(step);
            if !self.turn_readers.is_empty() {
                return;
            }
        }
        if self.writer_waits(step)
            && let Some(head) = self.waiting_writers.front()
            && head.until_ms > step.now_ms
            && self.foreign_read_until(step.now_ms).is_none()
            && self.look(step) == Look::Nobody
            && let Some(waiting) = self.waiting_writers.pop_front()
        {
            self.hand_over(step, &waiting.request);
        }
    }

    /// Those whose turn it is, from the end.
    fn admit_readers(&mut self, step: &mut Step) {
        if self.look(step) == Look::Crowded {
            return;
        }
        while !self.turn_readers.is_empty() && step.touch() {
            if let Some(waiting) = self.turn_readers.pop()
                && waiting.until_ms > step.now_ms
            {
                self.hand_over(step, &waiting.request);
            }
        }
    }

    /// Looks for a live reader from the end of the array, and removes dead ones until there is one.
    fn look(&mut self, step: &mut Step) -> Look {
        loop {
            match self.readers.last() {
                None => return Look::Nobody,
                Some(reader) if self.is_live(&reader.hold, step.now_ms) => return Look::Live,
                Some(_) if !step.touch() => return Look::Crowded,
                Some(_) => self.readers.pop(),
            };
        }
    }

    /// Whether a writer waits. Dead ones at the head of the queue are removed; whoever is not reached counts as live.
    fn writer_waits(&mut self, step: &mut Step) -> bool {
        while self.waiting_writers.front().is_some_and(|head| head.until_ms <= step.now_ms) && step.touch() {
            self.waiting_writers.pop_front();
        }
        !self.waiting_writers.is_empty()
    }

    /// Grants the lock to a waiter, which has yet to learn of it.
    fn hand_over(&mut self, step: &mut Step, request: &AcquireRequest) {
        match request.mode {
            // In the order in which they leave the queue.
            Mode::Read => self.begin_read(step.now_us, &request.id, request.claim(), None),
            Mode::Write => self.begin_write(step.now_us, request, request.claim()),
        }
        let granted = self.granted(step.now_ms, &request.id, false).expect("it was granted just now");
        self.news.push(News { id: request.id.clone(), granted });
    }

    /// Records a reader that is not recorded, at the end or in the place of another, which goes there instead.
    fn begin_read(&mut self, now_us: u64, id: &AcquisitionId, lease: Duration, place: Option<usize>) {
        if self.readers.is_empty() {
            self.take_tokens(now_us, 1);
        }
        let hold = Hold::new(now_us / 1000, lease);
        self.show_reader(now_us, hold.deadline_ms);
        self.readers.push(Reader { id: id.clone(), hold });
        if let Some(place) = place {
            let end = self.readers.len() - 1;
            self.readers.swap(place, end);
        }
        self.remember(hold.deadline_ms);
    }

    /// Records a writer.
    fn begin_write(&mut self, now_us: u64, request: &AcquireRequest, lease: Duration) {
        let token = self.take_tokens(now_us, request.max_tokens);
        let hold = Hold::new(now_us / 1000, lease);
        self.writer = Some(Writer { id: request.id.clone(), token, hold });
        self.show_new_writer(hold.deadline_ms);
        self.remember(hold.deadline_ms);
    }

    fn remember(&mut self, until_ms: u64) {
        self.forget_ms = self.forget_ms.max(until_ms + RETENTION_MS);
    }

    fn reader(&self, id: &AcquisitionId) -> Option<usize> {
        self.readers.iter().position(|reader| reader.id == *id)
    }

    fn hold_of(&mut self, id: &AcquisitionId) -> Option<&mut Hold> {
        match &mut self.writer {
            Some(writer) if writer.id == *id => Some(&mut writer.hold),
            _ => self.readers.iter_mut().find(|reader| reader.id == *id).map(|reader| &mut reader.hold),
        }
    }

    fn live_hold_of(&mut self, now_ms: u64, id: &AcquisitionId) -> Option<&mut Hold> {
        let ended = self.forced == self.token;
        self.hold_of(id).filter(|hold| hold.deadline_ms > now_ms && !ended)
    }

    /// The hold of `id`, as its owner is told.
    fn granted(&self, now_ms: u64, id: &AcquisitionId, writers_waiting: bool) -> Option<Granted> {
        let (token, tokens, hold) = match &self.writer {
            Some(writer) if writer.id == *id => (writer.token, self.token - writer.token + 1, writer.hold),
            _ => (self.token, 1, self.readers[self.reader(id)?].hold),
        };
        Some(Granted {
            token: FencingToken::from_wire(token).expect("server time is below 2^53"),
            tokens,
            remaining: hold.remaining(now_ms),
            writers_waiting,
        })
    }

    fn answer_granted(&mut self, step: &mut Step, id: &AcquisitionId) -> Granted {
        let writers_waiting = self.writer_waits(step);
        self.granted(step.now_ms, id, writers_waiting).expect("it holds the lock")
    }

    pub(crate) fn acquire(&mut self, now: ServerTime, not_after_ms: u64, request: &AcquireRequest) -> Acquired {
        let mut step = Step::new(now, self.limits);
        if step.now_ms > not_after_ms {
            return Acquired::Late;
        }
        self.drop_unsound(step.now_us, request);
        self.settle(&mut step);
        if self.holds(step.now_ms, request) {
            self.extend(&step, request);
        } else if !self.enter(&mut step, request) {
            let refused = self.refuse(step.now_ms, request);
            self.uncover();
            return refused;
        }
        Acquired::Granted(self.answer_granted(&mut step, &request.id))
    }

    /// Whether this is a repeat of an acquisition that holds the lock.
    fn holds(&self, now_ms: u64, request: &AcquireRequest) -> bool {
        match request.mode {
            Mode::Read => {
                self.reader(&request.id).is_some_and(|reader| self.is_live(&self.readers[reader].hold, now_ms))
            }
            Mode::Write => self.live_writer(now_ms).is_some_and(|writer| writer.id == request.id),
        }
    }

    fn extend(&mut self, step: &Step, request: &AcquireRequest) {
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

    /// Records a hold for whoever asks, if nobody is in its way. Whoever waits was admitted before, if that could be.
    fn enter(&mut self, step: &mut Step, request: &AcquireRequest) -> bool {
        if self.writer.is_some() || self.foreign_write_until(step.now_ms).is_some() || self.writer_waits(step) {
            return false;
        }
        if request.mode == Mode::Write && self.foreign_read_until(step.now_ms).is_some() {
            return false;
        }
        let look = self.look(step);
        match request.mode {
            Mode::Read if look == Look::Crowded || self.waits(&request.id) => return false,
            Mode::Read => match self.reader(&request.id) {
                // A dead record of its own below a live reader is used again, for a hold that begins now.
                Some(reader) => {
                    let hold = Hold::new(step.now_ms, request.lease);
                    self.show_reader(step.now_us, hold.deadline_ms);
                    self.readers[reader].hold = hold;
                    self.remember(hold.deadline_ms);
                }
                // Any place will do, and the reader of that place goes to the end: sooner or later each dead one is there.
                None => {
                    let count = u64::try_from(self.readers.len()).expect("a small number");
                    let place = step.now_us.checked_rem(count).and_then(|place| usize::try_from(place).ok());
                    self.begin_read(step.now_us, &request.id, request.lease, place);
                }
            },
            Mode::Write if look != Look::Nobody || !self.turn_readers.is_empty() => return false,
            Mode::Write => self.begin_write(step.now_us, request, request.lease),
        }
        true
    }

    /// Whether a waiting reader is recorded under this id.
    fn waits(&self, id: &AcquisitionId) -> bool {
        position(&self.turn_readers, id).or_else(|| position(&self.waiting_readers, id)).is_some()
    }

    fn refuse(&mut self, now_ms: u64, request: &AcquireRequest) -> Acquired {
        let writer_ms = self.live_writer(now_ms).map(|writer| writer.hold.deadline_ms);
        let readers = self.readers.iter().filter(|reader| self.is_live(&reader.hold, now_ms));
        let waits_for_readers = request.mode == Mode::Write || !self.waiting_writers.is_empty();
        let foreign_read_ms = self.foreign_read_until(now_ms).filter(|_| waits_for_readers);
        let free_ms = writer_ms.or_else(|| self.foreign_write_until(now_ms)).or(foreign_read_ms);
        let free_ms = free_ms.or_else(|| readers.map(|reader| reader.hold.deadline_ms).min());
        let retry_in = Duration::from_millis(free_ms.unwrap_or(now_ms).saturating_sub(now_ms).max(1));
        match request.if_taken {
            // An id that holds the lock, of the other side, does not wait for itself.
            IfTaken::Queue { patience } if self.live_hold_of(now_ms, &request.id).is_none() => {
                self.enqueue(now_ms, request, patience);
                Acquired::Queued { retry_in }
            }
            IfTaken::Leave | IfTaken::Queue { .. } => Acquired::Contended { retry_in },
        }
    }

    /// Takes a place in the queue, or is heard of again and keeps it. One that was given up begins anew at the end.
    fn enqueue(&mut self, now_ms: u64, request: &AcquireRequest, patience: Duration) {
        let until_ms = now_ms + millis(patience);
        self.remember(until_ms);
        let waiting = self.waiting_writers.iter_mut().chain(&mut self.turn_readers).chain(&mut self.waiting_readers);
        let mut live = waiting.filter(|place| place.until_ms > now_ms);
        if let Some(place) = live.find(|place| place.request.id == request.id) {
            place.until_ms = place.until_ms.max(until_ms);
            // It waits for what it asked for first.
            place.request = AcquireRequest { mode: place.request.mode, ..request.clone() };
            return;
        }
        self.cancel(now_ms, &request.id);
        let waiting = Waiting { request: request.clone(), since_ms: now_ms, until_ms };
        match request.mode {
            Mode::Read => {
                // A dead record of its own must not be there when it is let in.
                if let Some(reader) = self.reader(&request.id) {
                    self.readers.swap_remove(reader);
                }
                self.waiting_readers.push(waiting);
            }
            Mode::Write => self.waiting_writers.push_back(waiting),
        }
    }

    /// Whoever leaves is not let in by that: it is gone before the next are admitted.
    pub(crate) fn leave(&mut self, now: ServerTime, id: &AcquisitionId) -> ReleaseReply {
        let mut step = Step::new(now, self.limits);
        let live = self.is_sound(step.now_ms, id);
        // Somebody who does not know us was beside it: what is remembered says nothing of it.
        let intruded = !live && self.live_hold_of(step.now_ms, id).is_some();
        self.note_intruder(step.now_ms, id);
        self.end(id);
        let waited = self.cancel(step.now_ms, id);
        self.settle(&mut step);
        self.uncover();
        if live {
            ReleaseReply::Held
        } else if waited {
            ReleaseReply::Queued
        } else {
            let known = |token: u64| FencingToken::from_wire(token).filter(|_| token > 0 && !intruded);
            let (last, first) = (known(self.token), known(self.first_token));
            ReleaseReply::None(Absence { forced: self.forced(), last, first })
        }
    }

    /// Removes the record of a hold, live or dead.
    fn end(&mut self, id: &AcquisitionId) {
        if let Some(writer) = self.writer.take_if(|writer| writer.id == *id) {
            self.hide_writer(writer.hold.deadline_ms);
            self.begin_turn();
        } else if let Some(reader) = self.reader(id) {
            self.readers.swap_remove(reader);
        }
    }

    /// Takes a waiter out of the queue, and whether it was alive until now.
    fn cancel(&mut self, now_ms: u64, id: &AcquisitionId) -> bool {
        let writer = self.waiting_writers.iter().position(|waiting| waiting.request.id == *id);
        let waiting = if let Some(writer) = writer {
            self.waiting_writers.remove(writer)
        } else if let Some(reader) = position(&self.turn_readers, id) {
            Some(self.turn_readers.swap_remove(reader))
        } else {
            position(&self.waiting_readers, id).map(|reader| self.waiting_readers.swap_remove(reader))
        };
        waiting.is_some_and(|waiting| waiting.until_ms > now_ms)
    }

    /// Does not settle: as long as the hold is live nobody can be admitted, but for readers behind a writer that died
    /// waiting, and those ask for themselves.
    pub(crate) fn renew(&mut self, now: ServerTime, id: &AcquisitionId, lease: Duration) -> Renewed {
        let now_ms = now.as_micros() / 1000;
        let forced = self.forced();
        if !self.is_sound(now_ms, id) {
            self.note_intruder(now_ms, id);
            self.bury(id);
        }
        let Some(hold) = self.live_hold_of(now_ms, id) else {
            return Renewed::Lost { forced };
        };
        hold.extend(lease, now_ms);
        let hold = *hold;
        self.show_renewed(id, hold.deadline_ms);
        self.remember(hold.deadline_ms);
        Renewed::Renewed { remaining: hold.remaining(now_ms) }
    }

    pub(crate) fn convert(
        &mut self,
        now: ServerTime,
        not_after_ms: u64,
        old: &AcquisitionId,
        request: &AcquireRequest,
    ) -> Converted {
        let mut step = Step::new(now, self.limits);
        if step.now_ms > not_after_ms {
            return Converted::Late;
        }
        self.settle(&mut step);
        let turned = self.turn_settled(&mut step, old, request);
        self.uncover();
        turned
    }

    fn turn_settled(&mut self, step: &mut Step, old: &AcquisitionId, request: &AcquireRequest) -> Converted {
        if self.holds(step.now_ms, request) && self.is_sound(step.now_ms, &request.id) {
            self.extend(step, request);
            return Converted::Granted(self.answer_granted(step, &request.id));
        }
        match request.mode {
            Mode::Read if self.sound_writer(step.now_ms).is_some_and(|writer| writer.id == *old) => {
                self.writer = None;
                self.begin_turn();
                self.cancel(step.now_ms, &request.id);
                self.begin_read(step.now_us, &request.id, request.lease, None);
                self.admit(step);
            }
            Mode::Write if self.sound_reader(step.now_ms, old).is_some() => {
                if !self.may_upgrade(step, old) {
                    return Converted::Refused;
                }
                self.readers.clear();
                self.cancel(step.now_ms, &request.id);
                self.begin_write(step.now_us, request, request.lease);
            }
            Mode::Read | Mode::Write => return Converted::Lost { forced: self.forced() },
        }
        Converted::Granted(self.answer_granted(step, &request.id))
    }

    /// Whether nobody but `old` reads, no writer waits, and nobody of the readers' turn. Dead readers leave on the way.
    fn may_upgrade(&mut self, step: &mut Step, old: &AcquisitionId) -> bool {
        let next = !self.turn_readers.is_empty() || self.writer_waits(step);
        if next || self.foreign_read_until(step.now_ms).is_some() {
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

    /// Changes nothing: whoever is dead is not shown, and whoever could be admitted waits until somebody asks. Looks at as many
    /// records as it may, of waiters at least half as many.
    pub(crate) fn inspect(&self, now: ServerTime) -> View {
        let now_ms = now.as_micros() / 1000;
        let most = self.limits.records;
        let waiting = self.waiting_writers.iter().chain(&self.turn_readers).chain(&self.waiting_readers);
        let holders_recorded = usize::from(self.writer.is_some()) + self.readers.len();
        let waiters_recorded = waiting.clone().count();
        let waiters_seen = waiters_recorded.min(most.saturating_sub(holders_recorded).max(most / 2));
        let holders_seen = holders_recorded.min(most - waiters_seen);
        let show = |id: &AcquisitionId, mode, hold: &Hold| {
            let (id, since_ms) = (id.as_str().to_owned(), hold.since_ms);
            self.is_live(hold, now_ms).then(|| Holder { id, mode, since_ms, remaining: hold.remaining(now_ms) })
        };
        let writer = self.sound_writer(now_ms).into_iter().map(|writer| show(&writer.id, Mode::Write, &writer.hold));
        let readers = self.readers.iter().map(|reader| show(&reader.id, Mode::Read, &reader.hold));
        let live = waiting.take(waiters_seen).filter(|waiting| waiting.until_ms > now_ms);
        let mut waiters: Vec<_> = live
            .map(|Waiting { request, since_ms, .. }| Waiter {
                id: request.id.as_str().to_owned(),
                mode: request.mode,
                since_ms: *since_ms,
            })
            .collect();
        waiters.sort_by_key(|waiter| waiter.since_ms);
        View {
            token: FencingToken::from_wire(self.token).filter(|_| self.token > 0),
            holders: writer.chain(readers).take(holders_seen).flatten().collect(),
            more_holders: holders_recorded - holders_seen,
            waiters,
            more_waiters: waiters_recorded - waiters_seen,
            foreign_write_ms: self.shown_write(),
            foreign_read_ms: self.shown_read(),
        }
    }

    /// As [`Record::force_seen`], where no published clients are.
    #[cfg(test)]
    pub(crate) fn force(&mut self, now: ServerTime, seen: Option<FencingToken>) -> Forced {
        self.force_seen(now, &View { token: seen, ..View::default() })
    }

    /// Ends all holds that were seen: with a newer token there are others by now, and this copy is late. All are over at once,
    /// but only so many records are removed: until there are none, nobody enters, and the same call again removes more. Whoever
    /// waits is next.
    pub(crate) fn force_seen(&mut self, now: ServerTime, seen: &View) -> Forced {
        if self.token > seen.token.map_or(0, FencingToken::as_u64) {
            return Forced::default();
        }
        let mut step = Step::new(now, self.limits);
        let writer = self.sound_writer(step.now_ms).map(|writer| (writer.id.clone(), writer.hold));
        let mut ended = Vec::from_iter(writer);
        self.forced = self.token;
        self.hide_seen(seen);
        if self.writer.take().is_some() {
            self.begin_turn();
        }
        while !self.readers.is_empty() && step.touch() {
            ended.extend(self.readers.pop().map(|reader| (reader.id, reader.hold)));
        }
        self.settle(&mut step);
        self.uncover();
        let live = ended.into_iter().filter(|(_, hold)| hold.deadline_ms > step.now_ms);
        let ids = live.map(|(id, _)| id.as_str().to_owned()).collect();
        Forced { ids, more: self.forced == self.token && !self.readers.is_empty() }
    }

    /// Who was granted while it waited, since the last time.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    /// Who is to ask again: its turn was too long for the last operation, and its question lets it and more of them in.
    pub(crate) fn take_call(&mut self) -> Option<AcquisitionId> {
        self.call.take()
    }

    fn forced(&self) -> Option<FencingToken> {
        FencingToken::from_wire(self.forced).filter(|_| self.forced > 0)
    }
}

/// The locks that a [`MemoryManager`](crate::MemoryManager) and its peers share.
pub(crate) struct Store {
    clock: Clock,
    /// The server's time when the clock stood at `origin`.
    epoch: ServerTime,
    origin: Moment,
    /// By how many microseconds each loss of all locks has set the clock forward.
    skipped_us: AtomicU64,
    locks: Mutex<Locks>,
}

#[derive(Default)]
struct Locks {
    by_base: HashMap<Box<str>, Lock>,
    /// How many there may be before the idle ones are looked for.
    sweep_at: usize,
}

impl Locks {
    fn get(&mut self, key: &Key, now: ServerTime) -> &mut Lock {
        if self.by_base.len() >= self.sweep_at && !self.by_base.contains_key(key.base()) {
            self.forget_idle(now);
        }
        self.by_base.entry(key.base().into()).or_default()
    }

    /// Forgets locks that nobody holds and nobody waits for, each time the store has doubled: constant work for each new one.
    fn forget_idle(&mut self, now: ServerTime) {
        let now_ms = now.as_micros() / 1000;
        self.by_base.retain(|_, lock| lock.record.forget_ms >= now_ms || lock.is_watched());
        self.sweep_at = (self.by_base.len() * 2).max(MIN_SWEEP);
    }
}

#[derive(Default)]
struct Lock {
    record: Record,
    subscribers: Vec<Subscriber>,
}

/// Waiters of one manager.
struct Subscriber {
    manager: Box<str>,
    wire: Arc<Wire>,
    notices: mpsc::UnboundedSender<Notice>,
}

const CUT: &str = "`MemoryManager::disconnect` has cut this manager off";

/// What connects one manager with the store. Cut, nothing gets through in either direction.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    is_cut: AtomicBool,
}

impl Wire {
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), Failure> {
        if !self.is_cut() {
            return Ok(());
        }
        Err(Failure::NotDone { source: Some(Arc::new(io::Error::new(io::ErrorKind::ConnectionRefused, CUT))) })
    }
}

impl Lock {
    fn is_watched(&self) -> bool {
        self.subscribers.iter().any(|subscriber| !subscriber.notices.is_closed())
    }

    /// Tells the managers whom it concerns.
    fn publish(&mut self, sent: Moment, server: ServerTime) {
        for News { id, granted } in self.record.take_news() {
            let answer = Answered { sent, server, value: granted };
            self.tell(&id, &Notice::Granted { id: id.shared(), at: server, answer });
        }
        if let Some(id) = self.record.take_call() {
            self.tell(&id, &Notice::AskAgain);
        }
    }

    fn tell(&mut self, id: &AcquisitionId, notice: &Notice) {
        self.subscribers.retain(|Subscriber { manager, wire, notices }| {
            wire.is_cut() || !id.as_str().starts_with(&**manager) || notices.send(notice.clone()).is_ok()
        });
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        let clock = Clock::runtime();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            clock,
            epoch: ServerTime::default().after(epoch),
            origin: clock.now(),
            skipped_us: AtomicU64::new(0),
            locks: Mutex::default(),
        }
    }

    fn server_time(&self) -> ServerTime {
        let skipped = Duration::from_micros(self.skipped_us.load(Ordering::SeqCst));
        self.epoch.after(self.clock.now().since(self.origin) + skipped)
    }

    /// Applies one operation to one lock, as a server does a script: at once and alone.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Answered<T> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        // Read under the lock, so that time does not run backwards between operations.
        let server = self.server_time();
        let lock = locks.get(key, server);
        let value = operation(&mut lock.record, server);
        lock.publish(sent, server);
        Answered { sent, server, value }
    }

    fn subscribe(&self, key: &Key, manager: &str, wire: &Arc<Wire>) -> mpsc::UnboundedReceiver<Notice> {
        let (sender, notices) = mpsc::unbounded_channel();
        if !wire.is_cut() {
            // The receiver is here: it cannot be closed.
            drop(sender.send(Notice::AskAgain));
        }
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        lock.subscribers.retain(|subscriber| !subscriber.notices.is_closed());
        lock.subscribers.push(Subscriber { manager: manager.into(), wire: Arc::clone(wire), notices: sender });
        notices
    }

    /// Cuts a manager off.
    pub(crate) fn cut(&self, wire: &Wire) {
        // Under the lock: what is being published gets through as a whole or not at all.
        let _locks = self.locks.lock();
        wire.is_cut.store(true, Ordering::SeqCst);
    }

    /// Connects it again. Its waiters may have missed something.
    pub(crate) fn mend(&self, wire: &Arc<Wire>) {
        let mut locks = self.locks.lock();
        wire.is_cut.store(false, Ordering::SeqCst);
        for lock in locks.by_base.values_mut() {
            lock.subscribers.retain(|subscriber| {
                !Arc::ptr_eq(&subscriber.wire, wire) || subscriber.notices.send(Notice::AskAgain).is_ok()
            });
        }
    }

    /// The names of the locks that a server would have a key for.
    fn names(&self, listing: &Listing) -> BTreeSet<String> {
        let locks = self.locks.lock();
        let now_ms = self.server_time().as_micros() / 1000;
        let known = locks.by_base.iter().filter(|(_, lock)| lock.record.forget_ms > now_ms);
        known.filter_map(|(base, _)| listing.name_of_base(base)).collect()
    }

    /// Forgets all locks, as a server that restarts empty. Nobody is told.
    pub(crate) fn lose_all(&self) {
        let mut locks = self.locks.lock();
        let last_us = locks.by_base.values().map(|lock| lock.record.token).max().unwrap_or(0);
        for lock in locks.by_base.values_mut() {
            lock.record = Record::default();
        }
        // A restart takes its time, which a clock that is paused does not show: no token is given twice.
        let behind_us = (last_us + 1).saturating_sub(self.server_time().as_micros());
        self.skipped_us.fetch_add(behind_us, Ordering::SeqCst);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// The scheme over a [`Store`].
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    store: Arc<Store>,
    wire: Arc<Wire>,
}

impl Memory {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, wire: Arc::default() }
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    /// Carries one operation out. A call within the process cannot arrive late.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Attempt<T> {
        self.wire.check()?;
        Ok(self.store.apply(key, operation))
    }
}

impl Scheme for Memory {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move { self.apply(key, |record, now| record.acquire(now, u64::MAX, request)) })
    }

    fn leave<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async move { self.apply(key, |record, now| record.leave(now, id)) })
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(async move { self.apply(key, |record, now| record.convert(now, u64::MAX, old, request)) })
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let renew = |renewal: &Renewal| {
            let Renewal { key, id, lease } = renewal;
            self.apply(key, |record, now| record.renew(now, id, *lease))
        };
        Box::pin(async move { batch.iter().map(renew).collect() })
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn route(&self, _: &Key) -> Route {
        Route("memory".into())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move { self.apply(key, |record, now| record.inspect(now)) })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move { self.apply(key, |record, now| record.force_seen(now, seen)) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(self.wire.check()))
    }

    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription> {
        Some(Subscription { notices: self.store.subscribe(key, manager, &self.wire), _end: Box::new(()) })
    }

    fn subscribed(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            self.wire.check()?;
            Ok(self.store.names(listing))
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        let mut node = NodeHealth::unknown("memory", NodeRole::Primary);
        node.is_reachable = !self.wire.is_cut();
        if node.is_reachable {
            (node.round_trip, node.clock_ahead_ms, node.noeviction) = (Some(Duration::ZERO), Some(0), Some(true));
        } else {
            node.problem = Some(CUT.to_owned());
        }
        Box::pin(std::future::ready(vec![node]))
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn clock(&self) -> Clock {
        self.store.clock
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const T0_US: u64 = 1_700_000_000_000_000;
    const FEW: Limits = Limits { records: 2 };

    fn at(ms: u64) -> ServerTime {
        ServerTime::from_micros(T0_US + ms * 1000)
    }

    fn ask(n: u64, mode: Mode) -> AcquireRequest {
        let (lease, patience) = (Duration::from_secs(10), Duration::from_secs(10));
        AcquireRequest { id: id(n), mode, lease, max_tokens: 64, if_taken: IfTaken::Queue { patience } }
    }

    fn id(n: u64) -> AcquisitionId {
        AcquisitionId::new("0123456789abcdef0123456789abcdef", n, "")
    }

    impl Record {
        fn with_limits(limits: Limits) -> Self {
            Self { limits, ..Self::default() }
        }

        fn queued(&mut self, ms: u64, n: u64, mode: Mode) {
            let acquired = self.acquire(at(ms), u64::MAX, &ask(n, mode));
            assert!(matches!(acquired, Acquired::Queued { .. }), "{n}: {acquired:?}");
        }

        fn granted_to(&mut self, ms: u64, n: u64, mode: Mode) -> Granted {
            let acquired = self.acquire(at(ms), u64::MAX, &ask(n, mode));
            let Acquired::Granted(granted) = acquired else { panic!("{n}: {acquired:?}") };
            granted
        }

        fn told(&mut self) -> Vec<AcquisitionId> {
            self.take_news().into_iter().map(|news| news.id).collect()
        }
    }

    #[test]
    fn whole_turn_of_readers_is_in_before_the_next_writer() {
        let mut record = Record::with_limits(FEW);
        record.granted_to(0, 1, Mode::Write);
        (11..=15).for_each(|n| record.queued(0, n, Mode::Read));
        record.queued(0, 2, Mode::Write);
        assert_eq!(record.leave(at(1), &id(1)), ReleaseReply::Held);
        assert_eq!(record.told(), [id(15), id(14)]);
        assert_eq!(record.take_call(), Some(id(13)));
        // Those inside leave, newcomers come, the writer asks again: the turn goes on, and the newcomer is not of it.
        record.queued(2, 20, Mode::Read);
        assert_eq!(record.told(), [id(13), id(12)]);
        for n in 12..=15 {
            record.leave(at(2), &id(n));
        }
        assert_eq!(record.told(), [id(11)]);
        assert_eq!(record.take_call(), None);
        record.leave(at(3), &id(11));
        assert_eq!(record.told(), [id(2)]);
        record.leave(at(3), &id(2));
        assert_eq!(record.told(), [id(20)]);
    }

    #[test]
    fn dead_ones_of_a_turn_count() {
        let mut record = Record::with_limits(FEW);
        record.granted_to(0, 1, Mode::Write);
        (11..=15).for_each(|n| record.queued(0, n, Mode::Read));
        record.queued(9_000, 2, Mode::Write);
        record.renew(at(9_000), &id(1), Duration::from_secs(10));
        record.leave(at(11_000), &id(1));
        assert_eq!((record.told(), record.take_call()), (vec![], Some(id(13))));
        record.queued(11_000, 3, Mode::Write);
        assert_eq!((record.told(), record.take_call()), (vec![], Some(id(11))));
        record.queued(11_000, 3, Mode::Write);
        assert_eq!((record.told(), record.take_call()), (vec![id(2)], None));
    }

    #[test]
    fn tokens_reach_back_and_never_ahead() {
        let mut record = Record::default();
        let first = record.granted_to(0, 1, Mode::Write);
        assert_eq!((first.token.as_u64(), first.tokens), (T0_US, 1), "a record without a past gives one");
        record.leave(at(0), &id(1));
        let soon = record.granted_to(0, 2, Mode::Write);
        assert_eq!((soon.token.as_u64(), soon.tokens), (T0_US + 1, 1), "no more than the clock has passed");
        record.leave(at(1), &id(2));
        let later = record.granted_to(1, 3, Mode::Write);
        assert_eq!((later.token.as_u64(), later.tokens), (T0_US + 1000 - 63, 64));
    }

    #[test]
    fn force_ends_all_at_once_and_removes_some() {
        let mut record = Record::with_limits(FEW);
        for n in 1..=5 {
            record.granted_to(0, n, Mode::Read);
        }
        record.queued(0, 9, Mode::Write);
        let seen = record.inspect(at(0));
        assert_eq!((seen.holders.len(), seen.more_holders, seen.waiters.len()), (1, 4, 1));
        let forced = record.force(at(0), seen.token);
        assert_eq!((forced.ids.len(), forced.more), (2, true));
        for n in 1..=5 {
            assert_eq!(record.renew(at(0), &id(n), Duration::from_secs(1)), Renewed::Lost { forced: seen.token });
        }
        assert_eq!(record.inspect(at(0)).holders, []);
        assert!(record.told().is_empty());
        assert!(record.force(at(0), seen.token).more);
        assert!(!record.force(at(0), seen.token).more);
        assert_eq!(record.told(), [id(9)]);
        assert_eq!(record.force(at(0), seen.token), Forced::default(), "what was seen is over");
        assert_eq!(record.inspect(at(0)).holders.len(), 1);
    }
}
