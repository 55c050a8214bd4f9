//! One process of the exploration: the state of the lock as it ships, and a driver that does what the engine does with
//! it. The driver sends requests, feeds answers, and gives back what is over. All that it decides about holds, waiters,
//! leaders and shares is decided by the state.
//!
//! A process is a value. The exploration computes each step of a process once, and remembers it.

#[path = "process/answers.rs"]
mod answers;
#[path = "process/tasks.rs"]
mod tasks;
#[path = "process/told.rs"]
mod told;

use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::{Acquired, AcquisitionId, Answered, Attempt, Failure, Granted, NodeId};
use crate::base::backoff::{Backoff, Jitter};
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::metrics::Metrics;
use crate::base::mode::Mode;
use crate::base::process::Process as OsProcess;
use crate::base::recalls::Reception;
use crate::base::reentry::OwnerId;
use crate::lock::effects::{Effects, InRenewalQueue, Inputs, Rules};
use crate::lock::end::HoldState;
use crate::lock::record::{Accepted, Grant, GrantIdentity, NewHold, Next, ShareRemoved};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{NextStep, Pending, SideOutage, WaiterId};
use crate::lock::state::{GrantOutcome, State, WakeReason};

/// Length of a tick, and times in ticks.
pub(crate) const TICK: Duration = Duration::from_millis(500);
/// A copy without an answer may be carried out until it is so old. Its sender gives it up at the same age.
const MAX_DELAY: u32 = 2;
const MAX_HANDOFFS: u64 = 2;
/// Token of the world's highest token at the start of a process.
const TOKENS: i64 = 1 << 40;

fn ticks(ticks: u32) -> Duration {
    TICK * ticks
}

/// Handle of a hold in the state of an explored process.
#[derive(Debug)]
pub(crate) struct ExploredHold(u64);

impl InRenewalQueue for ExploredHold {
    fn number(&self) -> u64 {
        self.0
    }

    /// The driver looks at each hold in each tick.
    fn is_looked_at_by(&self, _: Moment) -> bool {
        true
    }
}

/// Acquisition of this process, by its number on the server.
pub(crate) type Slot = u8;

/// What a process is told.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Told {
    /// A task acquires the lock. Without `waits`, it only tries.
    Acquire { mode: Mode, waits: bool },
    /// The future of a waiting task is dropped.
    Cancel { task: u8 },
    /// The guard of a task is dropped.
    Release { task: u8 },
    /// A copy has this answer. `None`: its sender does not wait for the answer any more.
    Answer { copy: u8, reply: Option<HeardReply> },
    /// The server says that it has granted the lock, or that the waiter is to ask again.
    Notice { slot: Slot, grant: Option<HeardGrant> },
    /// A tick has passed.
    Tick,
    /// The highest token of the lock is so much higher.
    Grown(i8),
}

/// A grant, with its first token relative to the highest token of the lock.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct HeardGrant {
    pub(crate) remaining: u8,
    pub(crate) first: i8,
    pub(crate) tokens: u8,
    pub(crate) is_waited_for: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum HeardReply {
    Granted(HeardGrant),
    Queued,
    Contended,
    Late,
    Renewed { remaining: u8 },
    Lost,
    Left,
}

/// What a process asks the server for.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Asked {
    Acquire { mode: Mode, waits: bool },
    Renew,
    Leave,
}

/// Copy of a request that is sent now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct SentCopy {
    pub(crate) copy: u8,
    pub(crate) slot: Slot,
    pub(crate) asked: Asked,
}

/// What a step of a process has led to.
#[derive(Clone, Default, Debug)]
pub(crate) struct Outputs {
    pub(crate) sent: Vec<SentCopy>,
    /// Copies whose answers nobody awaits any more.
    pub(crate) closed: Vec<u8>,
    /// Tokens that guards have got, relative to the highest token.
    pub(crate) entered: Vec<(Mode, i8)>,
    /// A rule within the process is broken.
    pub(crate) broken: Option<Broken>,
}

/// Broken rule within one process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Broken {
    /// A waiter entered before another of its side that came before it.
    Overtaken,
    /// A waiter has something to take, and no effect woke it.
    NotWoken,
    /// Two holds have the same acquisition.
    TwoHolds,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// Waits in the process. True if it was woken.
    Waits(bool),
    Asks(Ask),
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
    Over,
}

#[derive(Clone, PartialEq, Eq, Hash, Debug)]
enum Ask {
    /// Asks at once. A reader first asks for a hold of this process.
    First,
    /// Asks at once, for a hold of its own.
    Again,
    Flying,
    /// Until the next tick. `is_queued`: in the queue of the server, so a notification may come.
    Pauses {
        is_queued: bool,
    },
    Rechecks {
        hold: u64,
        share_id: ShareId,
    },
    /// Until the next tick, after a request for a hold of this process.
    RechecksLater,
}

#[derive(Clone, Hash, Debug)]
struct ExploredTask {
    waiter_id: WaiterId,
    mode: Mode,
    waits: bool,
    stage: Stage,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Purpose {
    Acquire { task: u8, slot: Slot },
    Recheck { task: u8, slot: Slot },
    Renew { hold: u64, lease: Duration, slot: Slot },
    Leave { slot: Slot },
}

#[derive(Clone, Copy, Hash, Debug)]
struct FlyingCopy {
    number: u8,
    sent: Moment,
    purpose: Purpose,
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

/// Faults of a wrong process.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum Blunder {
    /// Counts the validity from the answer, not from the request.
    CountsFromAnswer,
    /// Takes an abandoned copy for one that cannot arrive.
    ForgetsAbandoned,
    /// Gives an acquisition back once, although a copy of it may still arrive.
    LeavesOnce,
    /// Gives nothing back for the last waiter that leaves.
    KeepsRequest,
    /// Asks again under a new id.
    AsksAnew,
}

impl Blunder {
    pub(crate) const ALL: [Self; 5] =
        [Self::CountsFromAnswer, Self::ForgetsAbandoned, Self::LeavesOnce, Self::KeepsRequest, Self::AsksAnew];
}

#[derive(Clone)]
pub(crate) struct Process {
    state: State<ExploredHold>,
    now: Moment,
    /// Highest token of the lock.
    top: i64,
    tasks: Vec<ExploredTask>,
    copies: Vec<FlyingCopy>,
    departing: Vec<Departing>,
    /// Holds that the state has, with their slots.
    holds: Vec<(u64, Slot)>,
    blunder: Option<Blunder>,
}

/// The present moment and the highest token are the bases of all others.
impl Hash for Process {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { state: lock, now: _, top: _, tasks, copies, departing, holds, blunder: _ } = self;
        (lock, tasks, copies, departing, holds).hash(state);
    }
}

fn rules() -> Rules {
    Rules {
        process: OsProcess::current(),
        clock: Clock::System,
        max_clock_skew: Duration::ZERO,
        max_delay: ticks(MAX_DELAY),
        max_handoffs: MAX_HANDOFFS,
        handoff_span: Duration::from_secs(3600),
        metrics: Metrics::default(),
        cached: Arc::default(),
    }
}

const WANTS: ShareRequest = ShareRequest {
    owner: OwnerId::NOBODY,
    lease: Duration::from_millis(1500),
    max_hold: Duration::from_secs(3600),
    cache_for: Duration::ZERO,
};
/// Longer than any task waits between two polls.
const GRACE: Duration = Duration::from_secs(60);

/// One step: the process as it was, and what comes of it.
struct Driver<'a> {
    process: Process,
    rules: &'a Rules,
    /// Slots that neither the server nor a message knows.
    free: u16,
    out: Outputs,
}

impl Process {
    pub(crate) fn new(blunder: Option<Blunder>) -> Self {
        Self {
            state: State::default(),
            now: Moment::from_nanos(3_600_000_000_000),
            top: TOKENS,
            tasks: Vec::new(),
            copies: Vec::new(),
            departing: Vec::new(),
            holds: Vec::new(),
            blunder,
        }
    }

    /// Takes a step. `free` has the slots that neither the server nor a message knows.
    pub(crate) fn step(&self, told: Told, free: u16) -> (Self, Outputs) {
        let rules = rules();
        let mut driver = Driver { process: self.clone(), rules: &rules, free, out: Outputs::default() };
        driver.hear(told);
        driver.settle();
        (driver.process, driver.out)
    }

    pub(crate) fn moment(&self) -> Moment {
        self.now
    }

    pub(crate) fn top(&self) -> i64 {
        self.top
    }

    pub(crate) fn tasks(&self) -> usize {
        self.tasks.len()
    }

    pub(crate) fn is_over(&self) -> bool {
        self.tasks.iter().all(|task| task.stage == Stage::Over) && self.departing.is_empty() && self.copies.is_empty()
    }

    /// Returns true if all tasks have ended, and the server has been told.
    pub(crate) fn has_left(&self) -> bool {
        self.tasks.iter().all(|task| task.stage == Stage::Over) && self.departing.is_empty()
    }

    pub(crate) fn waiting(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| matches!(stage, Stage::Waits(_) | Stage::Asks(_) | Stage::Accepts { .. }))
    }

    /// Returns the tasks that wait for as long as it takes.
    pub(crate) fn patient(&self) -> impl Iterator<Item = u8> {
        self.waiting().filter(|task| self.tasks[usize::from(*task)].waits)
    }

    pub(crate) fn holding(&self) -> impl Iterator<Item = u8> {
        self.numbered(|stage| matches!(stage, Stage::Holds { .. }))
    }

    fn numbered(&self, is: impl Fn(&Stage) -> bool) -> impl Iterator<Item = u8> {
        (0_u8..).zip(&self.tasks).filter(move |(_, task)| is(&task.stage)).map(|(number, _)| number)
    }

    /// Returns the guards that take their hold for valid, by mode.
    pub(crate) fn valid(&self) -> (usize, usize) {
        let mut valid = (0, 0);
        let mut state = self.state.clone();
        for task in &self.tasks {
            if let Stage::Holds { hold, share_id } = task.stage {
                let record = state.record(hold);
                record.look(self.now, &mut Effects::<ExploredHold>::default().signals);
                let share = record.share(share_id);
                if record.state_of(&share, self.now) != HoldState::Lost(LossReason::Expired) && record.is_live() {
                    match record.mode() {
                        Mode::Read => valid.0 += 1,
                        Mode::Write => valid.1 += 1,
                    }
                }
            }
        }
        valid
    }

    /// Returns the copies whose answers are awaited.
    pub(crate) fn copies(&self) -> impl Iterator<Item = (u8, Slot)> {
        self.copies.iter().map(|copy| (copy.number, copy.purpose.slot()))
    }
}

impl Purpose {
    fn slot(self) -> Slot {
        match self {
            Self::Acquire { slot, .. }
            | Self::Recheck { slot, .. }
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
    fn event<T>(
        &mut self,
        event: impl FnOnce(&mut State<ExploredHold>, &Inputs<'_>, &mut Effects<ExploredHold>) -> T,
    ) -> T {
        let mut effects = Effects::default();
        let inputs = Inputs { rules: self.rules, heard: &Reception::NONE };
        let outcome = event(&mut self.process.state, &inputs, &mut effects);
        self.process.state.advance(self.process.now, &mut effects);
        for wakes in effects.wakes() {
            if let crate::lock::effects::Wakes::Waiter(waiter_id) = wakes {
                let mut tasks = self.process.tasks.iter_mut();
                if let Some(task) = tasks.find(|task| task.waiter_id == waiter_id)
                    && task.stage == Stage::Waits(false)
                {
                    task.stage = Stage::Waits(true);
                }
            }
        }
        outcome
    }

    fn now(&self) -> Moment {
        self.process.now
    }

    fn task(&mut self, task: u8) -> &mut ExploredTask {
        &mut self.process.tasks[usize::from(task)]
    }

    fn send(&mut self, slot: Slot, asked: Asked, purpose: Purpose) {
        let taken = |number| self.process.copies.iter().any(|copy| copy.number == number);
        let number = (0..).find(|number| !taken(*number)).expect("few are under way");
        self.process.copies.push(FlyingCopy { number, sent: self.process.now, purpose });
        self.out.sent.push(SentCopy { copy: number, slot, asked });
    }

    /// Nobody awaits the answers of these copies any more.
    fn close(&mut self, is: impl Fn(&FlyingCopy) -> bool) {
        let closed = self.process.copies.extract_if(.., |copy| is(copy)).map(|copy| copy.number);
        self.out.closed.extend(closed);
    }

    /// Returns a slot that nothing knows.
    fn new_slot(&self) -> Slot {
        let known = format!("{:?}", self.process.state);
        let is_known = |slot: Slot| {
            let departs = self.process.departing.iter().any(|departing| departing.slot == slot);
            let flies = self.process.copies.iter().any(|copy| copy.purpose.slot() == slot);
            departs || flies || known.contains(&format!("(\".{slot}.\")"))
        };
        (0..16).find(|slot| self.free & (1 << slot) != 0 && !is_known(*slot)).expect("there are enough slots")
    }
}
