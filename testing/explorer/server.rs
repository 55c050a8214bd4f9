//! Server of the exploration, which is a [`Record`] between operations, and its possible faults. The form is small.
//! Equivalent states have equal forms.

mod cached;
mod wrong;

use std::collections::{HashMap, VecDeque};
use std::hash::BuildHasherDefault;
use std::time::Duration;

use super::search::{Own, Print};
use super::small::List;
use crate::base::lease::{FencingToken, ServerTime};
use crate::store::memory::record::{
    GrantedRecord, RECALL_INTERVAL_MS, RETENTION_MS, ReaderRecord, RecallableFlag, Record, RecordLimits, WaiterRecord,
    WriterRecord,
};
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Converted, Granted, Holder, IfTaken, Mode, ReleaseReply, Renewed, View,
};

pub use crate::lock::process::{HeardGrant as Grant, HeardReply as Reply};

/// Number of an acquisition, across clients.
pub type Id = u8;
/// Greatest number of acquisitions at a time.
pub const IDS: usize = 12;
/// Sender of requests that belong to no acquisition.
pub const OPERATOR: Id = 12;

/// Length of a tick. It is long compared with the margins of a lease, so that validity ends with a tick. Waiters recall
/// once in each tick.
pub const TICK_MS: u64 = RECALL_INTERVAL_MS;
/// Time of every operation, since times are relative. It is divisible by every number of readers.
const NOW_MS: u64 = 12_000_000;

/// Ticks of a lease, of the stay of a waiter, and of a claim.
pub const LEASE: u8 = 3;
pub const PATIENCE: u8 = 2;
pub const CLAIM: u8 = if PATIENCE < LEASE { PATIENCE } else { LEASE };
/// Ticks after its sending within which a request with a limit may be carried out.
pub const LIMIT: i8 = 1;
/// Tokens of a write grant.
pub const TOKENS: u64 = 2;
/// Distance of the last token behind the clock from which larger distances make no difference.
pub const TOKEN_GAP: i8 = 1;

fn span(ticks: u8) -> Duration {
    Duration::from_millis(u64::from(ticks) * TICK_MS)
}

/// Acquisition with the ticks until its limit or deadline.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Until {
    pub id: Id,
    pub ticks: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct WriterShelf {
    hold: Until,
    /// Distance of the writer's first token from the last one.
    back: u8,
}

/// Record with times relative to now. Details that cannot change later answers are left out.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub struct Shelf {
    /// Last token, relative to now in microseconds.
    token: Option<i8>,
    writer: Option<WriterShelf>,
    readers: List<Until, IDS>,
    waiting_writers: List<Until, IDS>,
    batch_readers: List<Until, IDS>,
    waiting_readers: List<Until, IDS>,
    /// Recallable flag, if it is set. True if a waiter has recalled in this tick.
    mark: Option<bool>,
}

impl Shelf {
    pub fn tick(&mut self) {
        self.mark = self.mark.map(|_| false);
        self.token = self.token.map(|_| -TOKEN_GAP);
        self.all_mut().for_each(|until| until.ticks = until.ticks.saturating_sub(1));
    }

    /// Returns all holds and waiters, live or dead.
    fn all(&self) -> impl Iterator<Item = &Until> {
        self.queues().into_iter().flat_map(List::iter).chain(self.held())
    }

    fn held(&self) -> impl Iterator<Item = &Until> {
        self.readers.iter().chain(self.writer.as_ref().map(|writer| &writer.hold))
    }

    fn queues(&self) -> [&List<Until, IDS>; 3] {
        [&self.waiting_writers, &self.batch_readers, &self.waiting_readers]
    }

    fn all_mut(&mut self) -> impl Iterator<Item = &mut Until> {
        let lists = [&mut self.readers, &mut self.waiting_writers, &mut self.batch_readers, &mut self.waiting_readers];
        lists.into_iter().flat_map(List::as_mut_slice).chain(self.writer.as_mut().map(|writer| &mut writer.hold))
    }

    /// Gives the acquisitions other numbers.
    pub fn rename(&mut self, name: impl Fn(Id) -> Id) {
        self.all_mut().for_each(|until| until.id = name(until.id));
    }

    /// Returns the live holds and waiters.
    pub fn live(&self) -> impl Iterator<Item = Id> {
        self.all().filter(|until| until.ticks > 0).map(|until| until.id)
    }

    /// Returns the recorded acquisitions, live or dead, with one bit for each.
    pub fn known(&self) -> u16 {
        self.all().fold(0, |ids, until| ids | 1 << until.id)
    }

    /// Returns true if the acquisition is recorded, live or dead.
    pub fn knows(&self, id: Id) -> bool {
        self.known() & (1 << id) != 0
    }

    /// Returns the live holds.
    pub fn holders(&self) -> impl Iterator<Item = Id> {
        self.held().filter(|until| until.ticks > 0).map(|until| until.id)
    }

    pub fn readers(&self) -> usize {
        self.readers.len()
    }
}

/// Request to the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum What {
    #[default]
    Leave,
    Renew,
    Acquire {
        mode: Side,
        waits: bool,
    },
    /// Repeat of the acquisition of a read hold, which asks whether a further reader may join it.
    Recheck,
    /// Conversion of the hold `from` into a hold of the other side.
    Convert {
        from: Id,
        to: Side,
    },
    /// Force by an operator. `seen` has a bit for each hold that the inspection showed, and `back` is the distance of
    /// the last token at that time.
    Force {
        seen: u16,
        back: u8,
    },
}

impl What {
    /// Gives the acquisitions other numbers.
    pub fn rename(&mut self, name: impl Fn(Id) -> Id) {
        if let Self::Convert { from, .. } = self {
            *from = name(*from);
        }
    }
}

/// [`Mode`] with an order.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub enum Side {
    #[default]
    Read,
    Write,
}

impl Side {
    fn mode(self) -> Mode {
        match self {
            Self::Read => Mode::Read,
            Self::Write => Mode::Write,
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
pub struct Request {
    pub id: Id,
    pub what: What,
    /// Ticks until the limit. Below zero, the limit is over.
    pub limit: i8,
    /// `Some` if the hold may be cached, with the number of further tokens that a renewal brings.
    pub keeps: Option<u8>,
}

/// Recall, which reports a waiter for a lock with the recallable flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct ServerRecall {
    /// Last token, relative to now.
    pub token: i8,
    /// Acquisition that recalls, if that acquisition only tries.
    pub tries: Option<Id>,
}

#[derive(Clone)]
pub struct Outcome {
    pub reply: Reply,
    /// Notifications. Each has a grant, or `None` as the order to ask again.
    pub news: Vec<(Id, Option<Grant>)>,
    pub call: Option<ServerRecall>,
    /// True if the record is kept for long enough.
    pub remembered: bool,
    /// True if a waiter is in the queue, live or dead.
    pub anybody_recorded: bool,
}

/// Fault of a wrong server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Fault {
    /// A writer enters while there are readers.
    WriterBesideReaders,
    /// A reader enters while other readers hold the lock and a writer waits.
    ReaderPassesWaitingWriter,
    /// Waiting readers enter while other readers hold the lock and a writer waits.
    WriterPhaseForgotten,
    /// A writer leaves, and the record forgets that the last holder was a writer. The next writer enters before the
    /// readers.
    LastWriterForgotten,
    /// Readers of a phase too long for one operation wait like any others.
    BatchForgotten,
    NewestWriterFirst,
    /// A heartbeat moves the waiter to the end of the queue.
    HeartbeatLosesPlace,
    LateIsCarriedOut,
    /// The release of an acquisition without a hold ends the hold of another writer.
    ReleaseByLock,
    CancelLeavesPlace,
    /// The notification of a grant goes to another waiter.
    NotificationForAnother,
    WritersWaitingUntold,
    /// A block begins at the clock's time.
    TokensAhead,
    /// A block reaches back below the last token.
    TokensReused,
    /// A repeat ends the hold and begins another.
    RepeatBeginsAnew,
    /// A grant to a waiter lasts for a whole lease, even if the waiter is dead.
    WaiterGetsWholeLease,
    RenewalRecreates,
    RenewalShortens,
    UpgradeBesideReaders,
    DeadReaderStays,
    /// The key lives for the last lease that was given, not for the longest.
    KeyForgotten,
    /// The recallable flag passes to later phases.
    FlagOutlives,
    /// A new flag has the token before.
    FlagTooLate,
    /// No waiter recalls.
    NobodyRecalls,
    /// A heartbeat does not recall.
    RecallsOnce,
    /// A recall has the token of the phase before.
    RecallsByOlderToken,
    /// A try recalls as waiters do, without its id.
    TriesRecallUnnamed,
    /// A try stays outside the queue where it could recall.
    TriesAreRefused,
    /// A renewal does not report waiters.
    RenewalTellsNothing,
    /// A renewal brings the present tokens again.
    RenewalBringsOldTokens,
    /// Renewed tokens run ahead of the clock.
    RenewedTokensAhead,
    /// A force finds newer tokens and ends nothing.
    ForceMissesNewBlock,
    /// The holder whose hold is forced is not recalled.
    ForceRecallsNobody,
    /// A conversion forgets that the hold may be cached.
    ConversionClearsFlag,
    /// The holder in the way of a conversion is not recalled.
    ConversionRecallsNobody,
}

/// Server that carries operations out.
pub struct Server {
    ids: Vec<AcquisitionId>,
    limits: RecordLimits,
    pub fault: Option<Fault>,
    /// Treatment of an acquisition that does not wait.
    if_tried: IfTaken,
    /// Operations that were carried out, by the fingerprints of the record and the request. Each is computed once.
    carried_out: HashMap<u128, (Shelf, Outcome), BuildHasherDefault<Own>>,
}

impl Server {
    pub fn new(limits: RecordLimits, fault: Option<Fault>) -> Self {
        let ids = (0..=IDS).map(|n| AcquisitionId::new("", u64::try_from(n).expect("small"), "")).collect();
        Self { ids, limits, fault, if_tried: IfTaken::Leave, carried_out: HashMap::default() }
    }

    /// Lets a try take a place in the queue where it recalls.
    pub fn with_calling_tries(self) -> Self {
        Self { if_tried: IfTaken::Try { waiter_ttl: span(PATIENCE) }, ..self }
    }

    fn id(&self, id: Id) -> AcquisitionId {
        self.ids[usize::from(id)].clone()
    }

    fn number(id: &AcquisitionId) -> Id {
        Self::number_in(id.as_str())
    }

    fn number_in(id: &str) -> Id {
        id.trim_matches('.').parse().expect("a number")
    }

    fn ask(&self, id: Id, side: Side, waits: bool) -> AcquireRequest {
        let if_taken = if waits { IfTaken::Queue { waiter_ttl: span(PATIENCE) } } else { self.if_tried };
        AcquireRequest {
            id: self.id(id),
            mode: side.mode(),
            lease: span(LEASE),
            max_tokens: TOKENS,
            if_taken,
            caches: false,
        }
    }

    fn unpack(&self, shelf: &Shelf) -> Record {
        let deadline_ms = |until: &Until| NOW_MS + u64::from(until.ticks) * TICK_MS;
        let hold =
            |until: &Until| GrantedRecord { since_ms: NOW_MS, deadline_ms: deadline_ms(until), is_overrun: false };
        let waiting = |side| {
            move |until: &Until| WaiterRecord {
                request: self.ask(until.id, side, true),
                since_ms: NOW_MS,
                until_ms: deadline_ms(until),
            }
        };
        let waiters = shelf.queues().into_iter().flat_map(List::iter);
        // The key lives no longer than necessary, so that the exploration finds a key that expires too early.
        let forget_ms = shelf.all().map(|until| deadline_ms(until) + RETENTION_MS).max().unwrap_or(0);
        let token = shelf.token.map_or(0, |token| (NOW_MS * 1000).saturating_add_signed(token.into()));
        Record {
            limits: self.limits,
            token,
            // Only unknown acquisitions get this value, and the clients here ignore it.
            first_token: token,
            forced: 0,
            barred: 0,
            writer: shelf.writer.map(|writer| WriterRecord {
                id: self.id(writer.hold.id),
                token: token - u64::from(writer.back),
                hold: hold(&writer.hold),
                note: None,
            }),
            readers: shelf
                .readers
                .iter()
                .map(|until| ReaderRecord { id: self.id(until.id), hold: hold(until), note: None })
                .collect(),
            waiting_writers: shelf.waiting_writers.iter().map(waiting(Side::Write)).collect(),
            batch_readers: shelf.batch_readers.iter().map(waiting(Side::Read)).collect(),
            waiting_readers: shelf.waiting_readers.iter().map(waiting(Side::Read)).collect(),
            // This time is as early as possible.
            waiters_until_ms: waiters.map(deadline_ms).max().unwrap_or(0),
            recallable: shelf.mark.map(|recalled| RecallableFlag { token, recalled_ms: recalled.then_some(NOW_MS) }),
            pending_recall: None,
            notifications: Vec::new(),
            next_to_ask: None,
            // The exploration has no clients of the timestamp scheme.
            stamps: None,
            forget_ms,
        }
    }

    /// Packs a record. A new field of `Record` does not compile here until it is handled.
    fn pack(record: &Record, at_us: u64) -> Shelf {
        let Record {
            limits: _,
            token,
            first_token: _,
            forced,
            barred,
            writer,
            readers,
            waiting_writers,
            batch_readers,
            waiting_readers,
            waiters_until_ms: _,
            recallable: mark,
            pending_recall: call_back,
            notifications: news,
            next_to_ask: call,
            stamps,
            forget_ms: _,
        } = record;
        assert!(stamps.is_none());
        assert!(*barred == 0 && news.is_empty() && call.is_none(), "it is one of one server, and who is told is told");
        assert!(call_back.is_none(), "who is called is called");
        assert!(forced < token || writer.is_none() && readers.is_empty(), "one force removes all");
        let hold = |id, hold: &GrantedRecord| Until { id: Self::number(id), ticks: ticks_until(hold.deadline_ms) };
        let place = |waiting: &WaiterRecord| Until {
            id: Self::number(&waiting.request.id),
            ticks: ticks_until(waiting.until_ms),
        };
        Shelf {
            token: (*token > 0).then(|| relative(*token, at_us).max(-TOKEN_GAP)),
            writer: writer.as_ref().map(|writer| WriterShelf {
                hold: hold(&writer.id, &writer.hold),
                back: u8::try_from(token.saturating_sub(writer.token)).unwrap_or(u8::MAX),
            }),
            readers: readers.iter().map(|reader| hold(&reader.id, &reader.hold)).collect(),
            waiting_writers: waiting_writers.iter().map(place).collect(),
            batch_readers: batch_readers.iter().map(place).collect(),
            waiting_readers: waiting_readers.iter().map(place).collect(),
            // A flag of an earlier phase has no effect.
            mark: mark.filter(|mark| mark.token == *token).map(|mark| mark.recalled_ms == Some(NOW_MS)),
        }
    }

    /// Carries one request out. `draw` is the number of microseconds, beyond one, that have passed since the last
    /// operation.
    pub fn carry_out(&mut self, shelf: &mut Shelf, request: Request, draw: u8) -> Outcome {
        let print = Print::of(&(*shelf, request, draw));
        if let Some((after, outcome)) = self.carried_out.get(&print) {
            *shelf = *after;
            return outcome.clone();
        }
        let outcome = self.operate_on(shelf, request, draw);
        self.carried_out.insert(print, (*shelf, outcome.clone()));
        outcome
    }

    fn operate_on(&self, shelf: &mut Shelf, request: Request, draw: u8) -> Outcome {
        let mut record = self.unpack(shelf);
        let at_us = NOW_MS * 1000 + 1 + u64::from(draw);
        let now = ServerTime::from_micros(at_us);
        let before = self.fault.map(|_| record.clone());
        self.go_wrong_before(&mut record, now, &request);
        let mut reply = self.operate(&mut record, now, at_us, &request);
        if let Some(before) = &before {
            self.go_wrong_after(before, &mut record, now, &request, &mut reply);
            self.keep_wrongly(before, &mut record, &request, &mut reply);
        }
        let grant = |granted: Granted| Self::grant(granted, at_us);
        let granted = record
            .take_notifications()
            .into_iter()
            .map(|notification| (notification.id, Some(grant(notification.granted))))
            .collect::<Vec<_>>();
        let next = record.take_next_to_ask().map(|id| (id, None));
        let told = granted.into_iter().chain(next);
        let call = record.take_recall().map(|call| ServerRecall {
            token: relative(call.token.as_u64(), at_us),
            tries: call.id.as_ref().map(Self::number),
        });
        let call = self.call_wrongly(call, &request, shelf);
        let news = self.distort(told.map(|(id, grant)| (Self::number(&id), grant)).collect(), &record);
        *shelf = Self::pack(&record, at_us);
        let lasts = |until: &Until| NOW_MS + u64::from(until.ticks) * TICK_MS + RETENTION_MS;
        let remembered = shelf.all().filter(|until| until.ticks > 0).all(|until| record.forget_ms >= lasts(until));
        let anybody_recorded = shelf.queues().iter().any(|queue| !queue.is_empty());
        Outcome { reply, news, call, remembered, anybody_recorded }
    }

    fn operate(&self, record: &mut Record, now: ServerTime, at_us: u64, request: &Request) -> Reply {
        let Request { id, what, limit, keeps } = *request;
        let late_ms = if self.fault == Some(Fault::LateIsCarriedOut) { u64::MAX } else { 0 };
        let not_after_ms =
            NOW_MS.saturating_add_signed(i64::from(limit) * i64::try_from(TICK_MS).expect("small")).max(late_ms);
        let own = self.id(id);
        let ask = |id, side, waits| AcquireRequest { caches: keeps.is_some(), ..self.ask(id, side, waits) };
        match what {
            What::Acquire { mode, waits } => {
                Self::acquired(record.acquire(now, not_after_ms, &ask(id, mode, waits)), at_us)
            }
            What::Recheck => {
                let request = AcquireRequest { if_taken: IfTaken::Leave, ..ask(id, Side::Read, false) };
                Self::acquired(record.acquire(now, not_after_ms, &request), at_us)
            }
            What::Leave => Reply::Left { held: record.release(now, &own) == ReleaseReply::Held },
            What::Renew => match keeps {
                Some(tokens) => Self::renewed(record.renew_cached(now, &own, span(LEASE), tokens.into()), at_us),
                None => Self::renewed(record.renew(now, &own, span(LEASE)), at_us),
            },
            What::Convert { from, to } => {
                match record.convert(now, not_after_ms, &self.id(from), &ask(id, to, false)) {
                    Converted::Granted(granted) => Reply::Granted(Self::grant(granted, at_us)),
                    Converted::Refused => Reply::Refused { is_cached: false },
                    Converted::Cached => Reply::Refused { is_cached: true },
                    Converted::Lost { .. } => Reply::Lost,
                    Converted::Late => Reply::Late,
                }
            }
            What::Force { seen, back } => self.force(record, now, seen, back),
        }
    }

    fn force(&self, record: &mut Record, now: ServerTime, seen: u16, back: u8) -> Reply {
        // A record that was lost has no token, and is older than any view.
        let token = FencingToken::from_wire(record.token.saturating_sub(u64::from(back)));
        let seen = if self.fault == Some(Fault::ForceMissesNewBlock) { 0 } else { seen };
        let holder = |id| Holder {
            id: self.id(id).as_str().to_owned(),
            mode: Mode::Write,
            since_ms: NOW_MS,
            remaining: span(LEASE),
            note: None,
        };
        let holders = (0..OPERATOR).filter(|id| seen & (1 << id) != 0).map(holder).collect();
        let forced = record.force_seen(now, &View { token, holders, ..View::default() });
        Reply::Forced { ended: forced.ids.iter().fold(0, |ended, id| ended | 1 << Self::number_in(id)) }
    }

    fn acquired(acquired: Acquired, at_us: u64) -> Reply {
        match acquired {
            Acquired::Granted(granted) => Reply::Granted(Self::grant(granted, at_us)),
            Acquired::Queued { is_cached, .. } => Reply::Queued { is_cached },
            Acquired::Contended { .. } | Acquired::Cached { .. } => Reply::Contended,
            Acquired::Late => Reply::Late,
        }
    }

    fn renewed(renewed: Renewed, at_us: u64) -> Reply {
        let Renewed::Renewed { remaining, is_waited_for, tokens } = renewed else { return Reply::Lost };
        let block = |(first, count): (FencingToken, u64)| {
            (relative(first.as_u64(), at_us), u8::try_from(count).unwrap_or(u8::MAX))
        };
        Reply::Renewed { remaining: ticks_of(remaining), is_waited_for, tokens: tokens.map(block) }
    }

    fn grant(granted: Granted, at_us: u64) -> Grant {
        let Granted { token, tokens, remaining, is_waited_for } = granted;
        let tokens = u8::try_from(tokens).unwrap_or(u8::MAX);
        Grant { remaining: ticks_of(remaining), first: relative(token.as_u64(), at_us), tokens, is_waited_for }
    }
}

fn ticks_of(d: Duration) -> u8 {
    u8::try_from(d.as_millis() / u128::from(TICK_MS)).expect("spans are short")
}

fn ticks_until(deadline_ms: u64) -> u8 {
    u8::try_from(deadline_ms.saturating_sub(NOW_MS) / TICK_MS).expect("spans are short")
}

fn relative(token: u64, at_us: u64) -> i8 {
    let signed = |us| i64::try_from(us).expect("small");
    i8::try_from(signed(token) - signed(at_us)).unwrap_or(if token > at_us { i8::MAX } else { i8::MIN })
}
