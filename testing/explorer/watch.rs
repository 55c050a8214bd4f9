//! Second, simpler model of the lock, which records the promises that each client got. It learns only from answers and
//! notifications, and judges them.

mod cached;

use super::renamed;
use super::server::{
    CLAIM, Grant, IDS, Id, LEASE, Outcome, PATIENCE, Reply, Request, ServerRecall, Side, TOKEN_GAP, Until, What,
};
use super::small::List;

/// Invariant of every state.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub enum Invariant {
    /// No two valid holds conflict.
    Exclusion,
    /// The tokens of a writer and of a read phase are above all earlier tokens. The readers of a phase share theirs.
    Tokens,
    /// Writers enter in the order in which they came.
    WritersInOrder,
    /// After a writer has left, all readers that waited at that time enter before the next writer. So at most one
    /// writer passes each reader.
    ReadersBatch,
    /// While a writer waits, no reader enters. Exceptions are readers that waited before this writer came, or when the
    /// previous writer left.
    WriterPassed,
    /// A waiter that is granted the lock has it for the time of a claim.
    Claim,
    /// A live hold is neither denied nor shortened, and an ended hold does not come back.
    HoldStands,
    /// A grant reports whether a writer waits.
    WaitedFor,
    /// A request is not carried out after its limit.
    Limit,
    /// The key outlives the records in it.
    Remembered,
    /// Some client enters from every state, by time and heartbeats alone.
    Progress,
    /// A finished client leaves no record, and no record is left when all clients have finished.
    Leftovers,
    /// A waiter recalls the cached hold that keeps it out, by its token, and no other client does.
    Call,
    /// A hold that may be cached is released when another client waits, as soon as no guard is inside.
    StandsAside,
    /// A try learns that a guard is inside only if that is true.
    Used,
    /// An operator ends the holds that it has seen, and no later ones.
    Forced,
    /// A rule within one process holds.
    Process,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Place {
    until: Until,
    side: Side,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WriterSeen {
    until: Until,
    /// First token of the writer, relative to the highest.
    back: i8,
}

/// State of this model.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Watch {
    /// Highest token that was given, relative to now, and its side.
    top: Option<(i8, Side)>,
    /// Writer. A dead writer stays until the next operation.
    writer: Option<WriterSeen>,
    readers: List<Until, IDS>,
    queue: List<Place, IDS>,
    /// Readers that were waiting when the last writer left, with one bit for each reader.
    batch: u16,
    /// Readers that were waiting before a writer came, with one bit for each reader.
    earlier: u16,
    /// Recallable flag of this phase, if it is set. True if a waiter has recalled in this tick.
    marked: Option<bool>,
    /// Token of the last guard, counted from the highest, and its side.
    handed: Option<(i8, Side)>,
    /// True if a guard's token was not above the earlier tokens.
    pub has_disorder: bool,
    /// True if the record was lost. Then earlier promises are void, except for tokens.
    pub was_wiped: bool,
}

/// Change of the highest token.
#[derive(Clone, Copy)]
pub struct Moved {
    /// Highest token, relative to now.
    pub top: i8,
    pub grown: i8,
}

type Judged = Result<(), Invariant>;

fn hold(when: bool, invariant: Invariant) -> Judged {
    if when { Ok(()) } else { Err(invariant) }
}

/// Cases in which the server may count a dead waiter as live.
#[derive(Clone, Copy)]
struct Unsure {
    /// True if the server may touch only few records, so that it does not reach all of them.
    behind_readers: bool,
    /// True if the server does not examine queued readers for a writer's answer.
    behind_writer: bool,
}

impl Watch {
    pub fn tick(&mut self) {
        self.top = self.top.map(|(_, side)| (-TOKEN_GAP, side));
        self.marked = self.marked.map(|_| false);
        if let Some(writer) = &mut self.writer {
            writer.until.ticks = writer.until.ticks.saturating_sub(1);
        }
        for until in self.readers.as_mut_slice() {
            until.ticks -= 1;
        }
        self.readers.retain(|until| until.ticks > 0);
        for place in self.queue.as_mut_slice() {
            place.until.ticks -= 1;
        }
        self.queue.retain(|place| place.until.ticks > 0);
        self.trim_batch();
    }

    /// Removes the acquisitions that no longer wait from the sets of readers.
    fn trim_batch(&mut self) {
        let waiting = self.queue.iter().fold(0, |waiting, place| waiting | 1 << place.until.id);
        self.batch &= waiting;
        self.earlier &= waiting;
    }

    pub fn rename(&mut self, name: impl Fn(Id) -> Id) {
        if let Some(writer) = &mut self.writer {
            writer.until.id = name(writer.until.id);
        }
        for until in self.readers.as_mut_slice() {
            until.id = name(until.id);
        }
        for place in self.queue.as_mut_slice() {
            place.until.id = name(place.until.id);
        }
        for set in [&mut self.batch, &mut self.earlier] {
            *set = renamed(*set, &name);
        }
        // The order of the records makes no difference here.
        self.readers.as_mut_slice().sort_unstable_by_key(|until| until.id);
    }

    /// Forgets everything but the tokens, because the record is gone.
    pub fn wipe(&mut self) {
        *self = Self { top: self.top, handed: self.handed, was_wiped: true, ..Self::default() };
    }

    fn holds(&mut self, id: Id) -> Option<&mut Until> {
        let writer = self.writer.as_mut().map(|writer| &mut writer.until).filter(|until| until.ticks > 0);
        writer.into_iter().chain(self.readers.as_mut_slice()).find(|until| until.id == id)
    }

    /// Applies an operation, and judges its answer and notifications. Returns the change of the highest token.
    pub fn judge(&mut self, request: Request, draw: u8, outcome: &Outcome, limited: bool) -> Result<Moved, Invariant> {
        // Time has passed since the last operation.
        let by = 1 + i8::try_from(draw).expect("small");
        self.top = self.top.map(|(top, side)| (top - by, side));
        let before = self.top;
        self.judge_outcome(request, outcome, limited)?;
        self.judge_call(request, outcome)?;
        let top = self.top.map_or(0, |(top, _)| top);
        let grown = before.map_or(0, |(before, _)| top - before);
        self.top = self.top.map(|(top, side)| (top.max(-TOKEN_GAP), side));
        Ok(Moved { top, grown })
    }

    fn judge_outcome(&mut self, request: Request, outcome: &Outcome, limited: bool) -> Judged {
        let unsure = Unsure { behind_readers: limited, behind_writer: limited || outcome.anybody_recorded };
        hold(outcome.remembered, Invariant::Remembered)?;
        let Request { id, what, limit, .. } = request;
        let has_limit = matches!(what, What::Acquire { .. } | What::Recheck | What::Convert { .. });
        hold(!has_limit || (limit < 0) == (outcome.reply == Reply::Late), Invariant::Limit)?;
        if outcome.reply == Reply::Late {
            return Ok(());
        }
        if what == What::Renew {
            return self.judge_renewal(request, outcome);
        }
        if let What::Force { seen, back } = what {
            self.judge_force(seen, back, outcome)?;
        }
        if self.writer.is_some_and(|writer| writer.until.ticks == 0) {
            self.on_writer_end();
        }
        if what == What::Leave {
            let held = self.holds(id).is_some();
            hold(self.was_wiped || outcome.reply == Reply::Left { held }, Invariant::HoldStands)?;
            self.queue.retain(|place| place.until.id != id);
            self.trim_batch();
            self.on_hold_end(id);
        }
        if let (What::Convert { from, to: Side::Read }, Reply::Granted(_)) = (what, outcome.reply)
            && self.holds(id).is_none()
        {
            hold(self.holds(from).is_some() || self.was_wiped, Invariant::HoldStands)?;
            self.on_hold_end(from);
        }
        if self.writer.is_none() && self.first_writer().is_none() {
            self.earlier |= self.waiting_readers();
        }
        // A waiter that asks again keeps its place until it enters, because the order counts.
        for (id, grant) in &outcome.news {
            if let Some(grant) = grant {
                self.judge_waiter_grant(*id, *grant, unsure)?;
            }
        }
        match what {
            What::Acquire { mode, waits } => self.judge_acquire(id, mode, waits, outcome.reply, unsure),
            What::Recheck if outcome.reply == Reply::Contended => {
                hold(self.holds(id).is_none() || self.was_wiped, Invariant::HoldStands)
            }
            What::Recheck => self.judge_acquire(id, Side::Read, false, outcome.reply, unsure),
            What::Convert { from, to } => self.judge_conversion((from, id), to, outcome.reply, unsure),
            What::Leave | What::Renew | What::Force { .. } => Ok(()),
        }
    }

    fn judge_renewal(&mut self, request: Request, outcome: &Outcome) -> Judged {
        let wiped = self.was_wiped;
        match (self.holds(request.id), outcome.reply) {
            (Some(until), Reply::Renewed { remaining, .. }) => {
                until.ticks = LEASE;
                hold(remaining == LEASE, Invariant::HoldStands)?;
                self.judge_what_a_renewal_tells(request, outcome)
            }
            (None, Reply::Lost) => Ok(()),
            _ => hold(wiped, Invariant::HoldStands),
        }
    }

    fn judge_acquire(&mut self, id: Id, side: Side, waits: bool, reply: Reply, unsure: Unsure) -> Judged {
        match reply {
            Reply::Granted(grant) => {
                hold(grant.remaining == LEASE, Invariant::HoldStands)?;
                if self.holds(id).is_some() {
                    self.judge_repeat(id, grant)?;
                } else {
                    self.on_enter(id, side, grant, false)?;
                }
                self.judge_waited_for(grant, unsure)
            }
            _ if self.holds(id).is_some() => hold(self.was_wiped, Invariant::HoldStands),
            Reply::Queued { .. } if waits || self.takes_a_place(id, side) => {
                let place = self.queue.as_mut_slice().iter_mut().find(|place| place.until.id == id);
                if let Some(place) = place {
                    place.until.ticks = PATIENCE;
                } else {
                    self.queue.push(Place { until: Until { id, ticks: PATIENCE }, side });
                }
                Ok(())
            }
            Reply::Contended if !waits && !self.takes_a_place(id, side) => Ok(()),
            _ => Err(Invariant::HoldStands),
        }
    }

    fn judge_conversion(&mut self, (from, id): (Id, Id), to: Side, reply: Reply, unsure: Unsure) -> Judged {
        let old = self.holds(from).is_some();
        match reply {
            Reply::Granted(grant) if self.holds(id).is_some() => self.judge_repeat(id, grant),
            Reply::Granted(grant) => {
                hold(old || to == Side::Read || self.was_wiped, Invariant::HoldStands)?;
                hold(grant.remaining == LEASE, Invariant::HoldStands)?;
                self.on_hold_end(from);
                self.on_enter(id, to, grant, true)?;
                self.judge_waited_for(grant, unsure)
            }
            Reply::Refused { .. } => hold(old && to == Side::Write, Invariant::HoldStands),
            // A conversion ends the old hold, even if it is a repeat.
            _ => hold(self.was_wiped || !old && self.holds(id).is_none(), Invariant::HoldStands),
        }
    }

    fn judge_waiter_grant(&mut self, id: Id, grant: Grant, unsure: Unsure) -> Judged {
        hold(grant.remaining == CLAIM, Invariant::Claim)?;
        let place = self.queue.iter().find(|place| place.until.id == id).copied();
        // Only a waiter can get a grant by a notification.
        let Some(Place { side, .. }) = place else {
            return hold(self.was_wiped, Invariant::Claim);
        };
        self.on_enter(id, side, grant, false)?;
        self.judge_waited_for(grant, unsure)
    }

    /// Judges a repeat: the same hold, extended, with the same tokens.
    fn judge_repeat(&mut self, id: Id, grant: Grant) -> Judged {
        if let Some(until) = self.holds(id) {
            until.ticks = LEASE;
        }
        let (top, _) = self.top.unwrap_or_default();
        let writer = self.writer.filter(|writer| writer.until.id == id && writer.until.ticks > 0);
        let back = writer.map_or(0, |writer| writer.back);
        hold(grant.first == top - back && i8::try_from(grant.tokens) == Ok(back + 1), Invariant::Tokens)
    }

    /// Begins a hold.
    fn on_enter(&mut self, id: Id, side: Side, grant: Grant, converts: bool) -> Judged {
        self.on_queue_let_in(id, side, converts)?;
        let until = Until { id, ticks: grant.remaining };
        if side == Side::Write || self.readers.is_empty() {
            self.marked = None;
        }
        let last = grant.first.saturating_add(i8::try_from(grant.tokens).unwrap_or(i8::MAX) - 1);
        let above = self.top.is_none_or(|(top, _)| grant.first > top);
        match side {
            Side::Read if self.readers.is_empty() => {
                hold(above && grant.tokens == 1, Invariant::Tokens)?;
                self.top = Some((last, side));
            }
            Side::Read => {
                hold(self.top == Some((grant.first, Side::Read)) && grant.tokens == 1, Invariant::Tokens)?;
            }
            Side::Write => {
                hold(above && grant.tokens >= 1, Invariant::Tokens)?;
                self.top = Some((last, side));
            }
        }
        match side {
            Side::Read => self.readers.push(until),
            Side::Write => self.writer = Some(WriterSeen { until, back: last - grant.first }),
        }
        Ok(())
    }

    /// Judges the order in which waiters enter.
    fn on_queue_let_in(&mut self, id: Id, side: Side, converts: bool) -> Judged {
        let first_writer = self.first_writer();
        match side {
            Side::Write => {
                hold(first_writer.is_none_or(|first| first == id), Invariant::WritersInOrder)?;
                hold(self.batch == 0, Invariant::ReadersBatch)?;
                self.queue.retain(|place| place.until.id != id);
                self.earlier = 0;
            }
            Side::Read => {
                self.queue.retain(|place| place.until.id != id);
                let is_in_batch = converts || (self.batch | self.earlier) & (1 << id) != 0;
                hold(first_writer.is_none() || is_in_batch, Invariant::WriterPassed)?;
                self.trim_batch();
            }
        }
        Ok(())
    }

    fn judge_waited_for(&self, grant: Grant, unsure: Unsure) -> Judged {
        let (waits, unsure) = match self.writer {
            Some(_) => (!self.queue.is_empty(), unsure.behind_writer),
            None => (self.first_writer().is_some(), unsure.behind_readers),
        };
        hold(grant.is_waited_for == waits || (unsure && grant.is_waited_for), Invariant::WaitedFor)
    }

    fn on_hold_end(&mut self, id: Id) {
        if self.writer.is_some_and(|writer| writer.until.id == id) {
            self.on_writer_end();
        }
        self.readers.retain(|until| until.id != id);
    }

    fn on_writer_end(&mut self) {
        self.writer = None;
        self.batch |= self.waiting_readers();
    }

    fn waiting_readers(&self) -> u16 {
        let readers = self.queue.iter().filter(|place| place.side == Side::Read);
        readers.fold(0, |waiting, place| waiting | 1 << place.until.id)
    }

    fn first_writer(&self) -> Option<Id> {
        self.queue.iter().find(|place| place.side == Side::Write).map(|place| place.until.id)
    }
}
