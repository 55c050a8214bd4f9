//! Process of the exploration: the state of the lock as it ships, and a driver that does with it what the engine does.
//! The driver sends requests, applies answers, and releases what is over. The state makes all decisions about holds,
//! waiters, requesters and shares.
//!
//! A process is a value. The exploration computes each step of a process once, and remembers it.
#![allow(unreachable_pub)] // the module is private to the tests

#[path = "process/answers.rs"]
mod answers;
#[path = "process/blunder.rs"]
mod blunder;
#[path = "process/caching.rs"]
mod caching;
#[path = "process/conversions.rs"]
mod conversions;
#[path = "process/requesters.rs"]
mod requesters;
#[path = "process/tasks.rs"]
mod tasks;
#[path = "process/threads.rs"]
mod threads;
#[path = "process/told.rs"]
mod told;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Answered, Attempt, Failure, Granted, NodeId};
use crate::base::backoff::Jitter;
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::metrics::Metrics;
use crate::base::mode::Mode;
use crate::base::process::Process as OsProcess;
use crate::base::recalls::{Recall, Reception, SubscriptionId};
use crate::base::reentry::OwnerId;
use crate::lock::effects::{CellEvent, Event, InRenewalQueue, Rules, Wakes};
use crate::lock::end::HoldState;
use crate::lock::record::{
    Accepted, CacheAnswer, CacheState, Grant, GrantIdentity, HoldRecord, LeftOpen, NewHold, Next, OpenConversion,
    ShareRemoved,
};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{NextStep, NoGrant, Pending, RequesterSignal, SideOutage, WaiterId};
use crate::lock::state::{GrantOutcome, HandedShare, State, WakeReason};

pub use blunder::Blunder;
pub use threads::AwaitedAnswer;
use threads::PendingEffects;

/// Length of a tick, and times in ticks.
pub const TICK: Duration = Duration::from_nanos(TICK_NANOS);
const TICK_NANOS: u64 = 500_000_000;
/// Age up to which a copy without an answer may be carried out. Its sender gives it up at the same age.
const MAX_DELAY: u32 = 2;
const MAX_HANDOFFS: u64 = 2;
/// Token of the world's highest token at the start of a process.
const TOKENS: i64 = 1 << 40;

fn ticks(ticks: u32) -> Duration {
    TICK * ticks
}

/// Handle of a hold in the state of an explored process.
#[derive(Clone, Hash, Debug)]
pub struct ExploredHold(u64);

impl InRenewalQueue for ExploredHold {
    fn number(&self) -> u64 {
        self.0
    }

    fn is_looked_at_by(&self, at: Moment) -> bool {
        threads::is_looked_at_by(self.0, at)
    }
}

/// Acquisition of this process, by its number on the server.
pub type Slot = u8;

/// Input of a process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Told {
    /// A task acquires the lock. Without `waits`, it only tries.
    Acquire {
        mode: Mode,
        waits: bool,
    },
    /// The future of a waiting task is dropped.
    Cancel {
        task: u8,
    },
    /// The future of a waiting task is not polled from now on.
    FallAsleep {
        task: u8,
    },
    /// The future of this task is polled again.
    WakeUp {
        task: u8,
    },
    /// The guard of a task is dropped.
    Release {
        task: u8,
    },
    /// The guard of a task is upgraded or downgraded.
    Convert {
        task: u8,
    },
    /// A copy has this answer. `None`: its sender does not wait for the answer any more.
    Answer {
        copy: u8,
        reply: Option<HeardReply>,
    },
    /// A copy of a conversion has no answer, and the conversion has lasted too long for another one.
    Unreachable {
        copy: u8,
    },
    /// The pause of a task that converts is over before the next tick.
    Retry {
        task: u8,
    },
    /// The pause of the requester of a side is over before the next tick.
    AskAgain {
        mode: Mode,
    },
    /// The server says that it has granted the lock, or that the waiter is to ask again.
    Notice {
        slot: Slot,
        grant: Option<HeardGrant>,
    },
    /// A waiter recalls the hold that has this token, counted from the highest one, or a try does.
    Recall {
        token: i8,
        tries: Option<u8>,
    },
    /// A try gets the recall reply that a guard is inside.
    InUse {
        slot: Slot,
    },
    Subscribed,
    /// Recalls are lost from now on. The process does not know it yet, but its clock shows it before the next tick.
    SubscriptionBroken,
    SubscriptionLost,
    /// The process has too many cached holds.
    GiveUpCached,
    /// A tick has passed.
    Tick,
    /// A tick has passed in which the process is not scheduled.
    Lapse,
    /// The process is scheduled again, before the next tick.
    CatchUp,
    /// The highest token of the lock has grown by this number.
    Grown(i8),
    /// A task that was woken is polled.
    Poll {
        task: u8,
    },
    /// A thread puts a hold into the queue of deadlines: the one with this place among those that are to be put.
    Schedule {
        effect: u8,
    },
    /// The background looks at the holds that are due.
    Drive,
}

/// Grant, with its first token relative to the highest token of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub struct HeardGrant {
    pub remaining: u8,
    pub first: i8,
    pub tokens: u8,
    pub is_waited_for: bool,
}

/// Answer of the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
pub enum HeardReply {
    Granted(HeardGrant),
    /// True if the acquisition has recalled the hold that excludes it.
    Queued {
        is_cached: bool,
    },
    Contended,
    Late,
    /// Answer to a release. True if the acquisition held the lock until now.
    Left {
        held: bool,
    },
    /// The tokens are the first one, relative to the highest token, and their number.
    Renewed {
        remaining: u8,
        is_waited_for: bool,
        tokens: Option<(i8, u8)>,
    },
    Lost,
    /// Refusal of a conversion. True if it has recalled other holds.
    Refused {
        is_cached: bool,
    },
    /// Answer to an operator: holds that the force has ended, with one bit for each hold.
    Forced {
        ended: u16,
    },
}

/// Request of a process to the server.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Asked {
    Acquire { mode: Mode, waits: bool },
    Recheck,
    Convert { from: Slot, to: Mode },
    Renew,
    Leave,
}

/// Copy of a request that is sent now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub struct SentCopy {
    pub copy: u8,
    pub slot: Slot,
    pub asked: Asked,
    /// Present if the request offers to cache the hold, with the number of tokens that it asks for.
    pub keeps: Option<u8>,
}

/// Results of a step of a process.
#[derive(Clone, Default, Debug)]
pub struct Outputs {
    pub sent: Vec<SentCopy>,
    /// Copies whose answers no task awaits any more.
    pub closed: Vec<u8>,
    /// Tokens that guards have got, relative to the highest token, with the slots of their holds.
    pub entered: Vec<(Mode, i8, Slot)>,
    /// The process answers a try that a guard is inside.
    pub is_in_use: bool,
    /// A rule within the process is broken.
    pub broken: Option<Broken>,
}

/// Broken rule within one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub enum Broken {
    /// A waiter entered before another of its side that came before it.
    Overtaken,
    /// A waiter has something to take, and no effect woke it.
    NotWoken,
    /// Two holds have the same acquisition.
    TwoHolds,
    /// The queue of deadlines has a hold too late, or not at all, and no thread is about to change that.
    LateTimer,
    /// The process replies to a try that a guard is inside, and none is.
    InUseWhenIdle,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// Waits in the process. True if it was woken.
    Waits(bool),
    /// Has a share with too little time left.
    Accepts {
        hold: u64,
        share_id: ShareId,
        since: Moment,
    },
    Holds {
        hold: u64,
        share_id: ShareId,
    },
    Converts {
        hold: u64,
        share_id: ShareId,
        conversion: ExploredConversion,
    },
    Over,
}

/// Conversion of a hold that is under way.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct ExploredConversion {
    /// Slot of the new hold.
    slot: Slot,
    to: Mode,
    copies: InDoubt,
    /// End of the time for the holders that it has recalled, if it has recalled any.
    recalls_until: Option<Moment>,
    stage: ConversionStage,
}

/// Progress of a conversion.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum ConversionStage {
    Asks,
    /// Asks again at this moment, because the last copy had no usable answer.
    Pauses(Moment),
    /// Asks again at this moment, when the holders that it has recalled have had their time.
    AwaitsHolders(Moment),
    /// Asks again at this moment, when no earlier copy can be carried out after the refusal of the last one.
    AwaitsStrays(Moment),
}

/// Progress of a requester.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Ask {
    /// Asks at once. A reader first asks for a hold of this process.
    First,
    /// Asks at once, for a hold of its own.
    Again,
    Flying,
    /// Pauses until the next tick. If `is_queued` is true, it is in the queue of the server, so a notification may
    /// come.
    Pauses {
        is_queued: bool,
    },
    Rechecks {
        hold: u64,
        share_id: ShareId,
    },
    /// Pauses until the next tick, after a request for a hold of this process.
    RechecksLater,
}

/// Requester of a side.
#[derive(Clone, Debug)]
struct ExploredRequester {
    requester_id: WaiterId,
    mode: Mode,
    /// Waiter whose task it is.
    carrier: WaiterId,
    /// End of the time for the replies to its recalls, once it has recalled a hold.
    recalls_until: Option<Moment>,
    /// True if an effect has woken it, and it has not looked since.
    was_woken: bool,
    ask: Ask,
}

/// The number of a requester makes no difference for what happens next.
impl Hash for ExploredRequester {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { requester_id: _, mode, carrier, recalls_until, was_woken, ask } = self;
        (mode, carrier, recalls_until, was_woken, ask).hash(state);
    }
}

#[derive(Clone, Hash, Debug)]
struct ExploredTask {
    waiter_id: WaiterId,
    mode: Mode,
    waits: bool,
    /// True if this task was polled so late that a share which it was handed was over, in a process with threads.
    was_late: bool,
    /// True if the future of this task is not polled.
    is_asleep: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Purpose {
    Acquire { mode: Mode, waits: bool, slot: Slot },
    Recheck { slot: Slot },
    Convert { task: u8, slot: Slot },
    Renew { hold: u64, lease: Duration, slot: Slot },
    Leave { slot: Slot },
}

#[derive(Clone, Copy, Hash, Debug)]
struct FlyingCopy {
    number: u8,
    sent: Moment,
    purpose: Purpose,
    /// Subscription on which it offers to cache the hold.
    offered: Option<SubscriptionId>,
}

/// Acquisition that is being given back.
#[derive(Clone, Hash, Debug)]
struct Departing {
    slot: Slot,
    arrives_until: Option<Moment>,
    /// Hold for whose release local waiters wait.
    hold: Option<u64>,
    /// `None` while a copy is under way.
    due: Option<Moment>,
}

#[derive(Clone)]
pub struct Process {
    state: State<ExploredHold>,
    pub now: Moment,
    /// Highest token of the lock.
    pub top: i64,
    /// Tasks whose acquisitions are not over.
    tasks: Vec<ExploredTask>,
    /// Requesters of the sides, that of the readers first.
    requesters: Vec<ExploredRequester>,
    /// Number of acquisitions that have begun so far.
    pub begun: u8,
    copies: Vec<FlyingCopy>,
    departing: Vec<Departing>,
    /// Holds that the state has, with their slots.
    holds: Vec<(u64, Slot)>,
    /// True if the last tick has passed and the process was not scheduled.
    pub is_behind: bool,
    /// True if holds may be cached.
    caches: bool,
    /// Time after which a requester that was not polled is woken.
    poll_within: Duration,
    /// Recalls that have arrived.
    reception: Reception,
    /// Number of the last subscription.
    last_epoch: u64,
    /// Present if the effects of events are steps of their own.
    pending: Option<PendingEffects>,
    blunder: Option<Blunder>,
}

/// Hashes all but the present moment and the highest token, which are the bases of all other moments and tokens.
impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { state: lock, now: _, top: _, tasks, requesters, begun, copies, departing, holds, .. } = self;
        (lock, tasks, requesters, begun, copies, departing, holds).hash(state);
        let Self { is_behind, caches: _, poll_within: _, reception, last_epoch, pending, blunder: _, .. } = self;
        let Reception { subscription, live_until, last_recall } = reception;
        (is_behind, subscription, live_until, last_recall, last_epoch, pending).hash(state);
    }
}

thread_local! {
    /// Metrics of all explored processes. To make new ones at each step would take more time than the step.
    static METRICS: Metrics = Metrics::default();
}

fn rules(poll_within: Duration) -> Rules {
    Rules {
        process: OsProcess::current(),
        clock: Clock::System,
        max_clock_skew: Duration::ZERO,
        max_delay: ticks(MAX_DELAY),
        poll_within,
        try_within: poll_within / 2,
        max_handoffs: MAX_HANDOFFS,
        handoff_span: Duration::from_secs(3600),
        metrics: METRICS.with(Metrics::clone),
        cached: Arc::default(),
    }
}

/// Lease of each acquisition.
const HOLD_LEASE: Duration = Duration::from_millis(1500);
/// Time that is longer than any exploration.
const LONG: Duration = Duration::from_secs(3600);
/// Time after which a requester is woken, where no task falls asleep.
const POLL_WITHIN: Duration = Duration::from_secs(60);
/// Ticks after which a requester is woken, where tasks fall asleep. After as many again another one takes its place. Together
/// they are longer than a heartbeat, and two times the age up to which a copy may be carried out.
pub const STALLED_AFTER: u8 = 3;

/// Step in progress: the process, and the results so far.
struct Driver<'a> {
    process: Process,
    rules: &'a Rules,
    /// Slots that neither the server nor a message knows.
    free: u16,
    out: Outputs,
}

impl Process {
    pub fn new(caches: bool, blunder: Option<Blunder>) -> Self {
        Self {
            state: State::default(),
            now: Moment::from_nanos(3_600_000_000_000),
            top: TOKENS,
            tasks: Vec::new(),
            requesters: Vec::new(),
            begun: 0,
            copies: Vec::new(),
            departing: Vec::new(),
            holds: Vec::new(),
            is_behind: false,
            caches,
            poll_within: POLL_WITHIN,
            reception: Reception::NONE,
            last_epoch: 0,
            pending: None,
            blunder,
        }
    }

    /// Returns a process whose requesters are replaced when their futures are not polled.
    pub fn with_sleepers(self) -> Self {
        Self { poll_within: ticks(STALLED_AFTER.into()), ..self }
    }

    /// Takes a step. `free` has the slots that neither the server nor a message knows.
    pub fn step(&self, told: Told, free: u16) -> (Self, Outputs) {
        let rules = rules(self.poll_within);
        self.note_places();
        let mut driver = Driver { process: self.clone(), rules: &rules, free, out: Outputs::default() };
        driver.hear(told);
        // A process that is not scheduled does nothing.
        if !matches!(told, Told::Lapse | Told::Grown(_) | Told::SubscriptionBroken) {
            driver.settle();
        }
        driver.check_effects();
        (driver.process, driver.out)
    }

    /// Returns true if one more acquisition may begin: at most `tasks` at the same time, and `each` of a task in all.
    pub fn may_begin(&self, tasks: usize, each: usize) -> bool {
        self.tasks.len() < tasks && usize::from(self.begun) < tasks * each
    }

    /// Returns true if an acquisition is under way or to come.
    pub fn may_go_on(&self, tasks: usize, each: usize) -> bool {
        !self.is_idle() || usize::from(self.begun) < tasks * each
    }

    /// Returns true if nothing is left to do but to begin.
    pub fn is_idle(&self) -> bool {
        self.tasks.is_empty() && self.departing.is_empty() && self.copies.is_empty() && self.holds.is_empty()
    }

    /// Returns the slots of acquisitions that this process holds, waits for, converts, or still gives back.
    pub fn slots(&self) -> u16 {
        let converted = self.tasks.iter().filter_map(|task| match &task.stage {
            Stage::Converts { conversion, .. } => Some(conversion.slot),
            _ => None,
        });
        let departing = self.departing.iter().map(|departing| departing.slot);
        let copies = self.copies.iter().map(|copy| copy.purpose.slot());
        let holds = self.holds.iter().map(|(_, slot)| *slot);
        let all = converted.chain(departing).chain(copies).chain(holds);
        all.fold(self.slots_in_state(), |slots, slot| slots | 1 << slot)
    }

    /// Returns the slots of acquisitions in the state, which may get notifications.
    pub fn slots_in_state(&self) -> u16 {
        let state = format!("{:?}", self.state);
        (0..16).filter(|slot| state.contains(&format!("(\".{slot}.\")"))).fold(0, |slots, slot| slots | 1 << slot)
    }

    pub fn waiting(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| matches!(stage, Stage::Waits(_) | Stage::Accepts { .. }))
    }

    pub fn converting(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| matches!(stage, Stage::Converts { .. }))
    }

    /// Returns the waiting tasks whose futures are polled.
    pub fn awake(&self) -> impl Iterator<Item = u8> {
        self.waiting().filter(|task| !self.is_asleep(*task))
    }

    /// Returns the waiting tasks whose futures are not polled.
    pub fn asleep(&self) -> impl Iterator<Item = u8> {
        self.waiting().filter(|task| self.is_asleep(*task))
    }

    fn is_asleep(&self, task: u8) -> bool {
        self.tasks[usize::from(task)].is_asleep
    }

    /// Returns the tasks whose conversions may ask again before the next tick.
    pub fn pausing(&self) -> impl Iterator<Item = u8> {
        let pauses = self.numbered(|stage| match stage {
            Stage::Converts { conversion, .. } => matches!(conversion.stage, ConversionStage::Pauses(_)),
            _ => false,
        });
        pauses.filter(|task| !self.is_asleep(*task))
    }

    /// Returns the numbers of the waiters that wait for as long as it takes, and whose futures are polled.
    pub fn patient(&self) -> impl Iterator<Item = WaiterId> {
        let waits = |task: &&ExploredTask| {
            let waits = matches!(task.stage, Stage::Waits(_) | Stage::Accepts { .. });
            task.waits && !task.is_asleep && waits
        };
        self.tasks.iter().filter(waits).map(|task| task.waiter_id)
    }

    pub fn holding(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| matches!(stage, Stage::Holds { .. }))
    }

    fn numbered(&self, is: impl Fn(&Stage) -> bool) -> impl Iterator<Item = u8> {
        (0_u8..).zip(&self.tasks).filter(move |(_, task)| is(&task.stage)).map(|(number, _)| number)
    }

    /// Returns the modes in which guards take their holds for valid, with the slots of the holds. A guard whose hold is
    /// being converted may come back, and no other client may write in between, so it counts as a reader.
    pub fn valid(&self) -> Vec<(Mode, Slot)> {
        let mut valid = Vec::new();
        let mut state = self.state.clone();
        let rules = rules(self.poll_within);
        for task in &self.tasks {
            let (hold, share_id, converts) = match task.stage {
                Stage::Holds { hold, share_id } => (hold, share_id, false),
                Stage::Converts { hold, share_id, .. } => (hold, share_id, true),
                _ => continue,
            };
            let record = state.record(hold);
            record.look(&mut Event::new(self.now, &rules, &self.reception));
            let share = record.share(share_id);
            if record.state_of(&share, self.now) != HoldState::Lost(LossReason::Expired) && record.is_live() {
                valid.push((if converts { Mode::Read } else { record.mode() }, self.slot_of_hold(hold)));
            }
        }
        valid
    }

    fn slot_of_hold(&self, hold: u64) -> Slot {
        let mut slots = self.holds.iter();
        slots.find(|(number, _)| *number == hold).map(|(_, slot)| *slot).expect("it was granted")
    }

    /// Returns the copies whose answers are awaited, and whether each belongs to a conversion.
    pub fn copies(&self) -> impl Iterator<Item = (u8, bool)> {
        self.copies.iter().map(|copy| (copy.number, matches!(copy.purpose, Purpose::Convert { .. })))
    }
}

impl Purpose {
    /// Counts the tasks without the one at `at`.
    fn forget_task(&mut self, at: usize) {
        if let Self::Convert { task, .. } = self
            && usize::from(*task) > at
        {
            *task -= 1;
        }
    }

    fn slot(self) -> Slot {
        match self {
            Self::Acquire { slot, .. }
            | Self::Recheck { slot }
            | Self::Convert { slot, .. }
            | Self::Renew { slot, .. }
            | Self::Leave { slot } => slot,
        }
    }
}

fn id_of(slot: Slot) -> AcquisitionId {
    AcquisitionId::new("", slot.into(), "")
}

fn slot_of(id: &AcquisitionId) -> Slot {
    id.as_str().trim_matches('.').parse().expect("a slot")
}

impl Driver<'_> {
    /// Applies an event to the state, with what the cell does after each.
    fn event<T>(&mut self, change: impl FnOnce(&mut State<ExploredHold>, &mut CellEvent<'_, ExploredHold>) -> T) -> T {
        let reception = self.process.reception;
        let mut event = CellEvent::new(self.process.now, self.rules, &reception);
        let outcome = change(&mut self.process.state, &mut event);
        self.process.state.advance(&mut event);
        event.due_holds().for_each(|hold| self.schedule_later(hold.number()));
        let wakes_one = self.has(Blunder::WakesOne);
        for wakes in event.wakes().take(if wakes_one { 1 } else { usize::MAX }) {
            match wakes {
                Wakes::Waiter(waiter_id) => {
                    let mut tasks = self.process.tasks.iter_mut();
                    if let Some(task) = tasks.find(|task| task.waiter_id == waiter_id)
                        && task.stage == Stage::Waits(false)
                    {
                        task.stage = Stage::Waits(true);
                    }
                    let mut requesters = self.process.requesters.iter_mut();
                    if let Some(requester) = requesters.find(|requester| requester.requester_id == waiter_id) {
                        requester.was_woken = true;
                    }
                }
                // No limit of a caller, and no outage that lasts too long, is explored. So nothing comes of these.
                Wakes::All => {}
            }
        }
        self.forget_requesters();
        outcome
    }

    fn now(&self) -> Moment {
        self.process.now
    }

    fn has(&self, blunder: Blunder) -> bool {
        self.process.blunder == Some(blunder)
    }

    fn record(&mut self, hold: u64) -> &mut HoldRecord {
        self.process.state.record(hold)
    }

    /// Returns the numbers of the tasks.
    fn numbers(&self) -> std::ops::Range<u8> {
        0..u8::try_from(self.process.tasks.len()).expect("few")
    }

    fn task(&mut self, task: u8) -> &mut ExploredTask {
        &mut self.process.tasks[usize::from(task)]
    }

    fn send(&mut self, slot: Slot, asked: Asked, purpose: Purpose) {
        let taken = |number| self.process.copies.iter().any(|copy| copy.number == number);
        let number = (0..).find(|number| !taken(*number)).expect("few are under way");
        let offered = self.offered();
        self.process.copies.push(FlyingCopy { number, sent: self.process.now, purpose, offered });
        let keeps = offered.filter(|_| asked != Asked::Leave).map(|_| self.missing_tokens(purpose));
        self.out.sent.push(SentCopy { copy: number, slot, asked, keeps });
    }

    /// Closes copies whose answers no task awaits any more.
    fn close(&mut self, is: impl Fn(&FlyingCopy) -> bool) {
        let closed = self.process.copies.extract_if(.., |copy| is(copy)).map(|copy| copy.number);
        self.out.closed.extend(closed);
    }

    /// Applies an event to one hold, which may have to be looked at earlier afterwards.
    fn event_of<T>(&mut self, hold: u64, change: impl FnOnce(&mut HoldRecord, &mut Event<'_>) -> T) -> T {
        self.event(|state, event| state.change(hold, event, change))
    }

    /// Returns a slot that nothing knows.
    fn new_slot(&self) -> Slot {
        let slots = self.free & !self.process.slots();
        assert!(slots != 0, "there are enough slots");
        u8::try_from(slots.trailing_zeros()).expect("few")
    }
}
