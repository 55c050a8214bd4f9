//! The courses of a ticket, at the specification: an owner that detaches its hold, two processes that adopt the ticket, and
//! another process that wants the lock. Each request may be repeated, arrive twice, arrive as late as its limit allows or
//! never, and so may its answer. One process may die at any step.
//!
//! A tick is a millisecond. The processes are a model of the rules at the top of `src/engine/tickets.rs`. Each planted fault
//! of a process must break a promise.

use super::courses::{Explored, explore};
use super::*;

const LEASE: u64 = 2;
const VALID_FOR: u64 = 2;
/// Time after which a conversion or an acquisition is not carried out.
const TRANSIT: u64 = 1;
const END: u64 = 6;
/// Copies of one request that a process sends.
const COPIES: u8 = 2;
/// Number of states of a scene after which the exploration ends. The shortest courses come first, and each planted fault
/// shows within a fraction of them.
const MAX_STATES: usize = 500_000;

const OWNER: usize = 0;
const PROCESSES: usize = 3;
/// Ids of the owner's hold, of the ticket, and of the hold of the first adopter.
const OWN: u64 = 1;
const TICKET: u64 = 2;
const ADOPTED: u64 = 3;
/// First id of the other process.
const OTHER: u64 = 10;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The owner stays inside for the rest of its lease.
    KeepsGuard,
    /// The detachment does not wait until no copy of the acquisition can arrive.
    IgnoresCopies,
    /// All adopters use one id.
    SharedId,
    /// A repeated adoption has another id.
    NewIdEach,
    /// A process that gives up releases only the id that it had.
    ReleasesOldOnly,
    /// A process that gives up releases only the id that it wanted.
    ReleasesNewOnly,
    /// A process that gives up does not repeat the releases after the last copy of its conversion.
    ReleasesOnce,
    /// An adopter counts the validity from the answer.
    CountsFromAnswer,
    /// The server carries out conversions at any time.
    NoLimit,
}

const FAULTS: [Fault; 6] = [
    Fault::KeepsGuard,
    Fault::IgnoresCopies,
    Fault::ReleasesOldOnly,
    Fault::ReleasesNewOnly,
    Fault::ReleasesOnce,
    Fault::NoLimit,
];

/// Faults that show after many states only.
const DEEP_FAULTS: [Fault; 3] = [Fault::SharedId, Fault::NewIdEach, Fault::CountsFromAnswer];

/// Scene: the mode, and the faults that may happen.
#[derive(Clone, Copy, Debug)]
struct Scene {
    mode: Mode,
    /// True if a copy of the acquisition that led to the owner's hold is on its way.
    has_late_acquisition: bool,
    /// Requests that arrive twice.
    copies: u8,
    /// Processes that die.
    deaths: u8,
}

const CALM: Scene = Scene { mode: Mode::Write, has_late_acquisition: false, copies: 0, deaths: 0 };

/// Request or answer on its way. `sender` is the process that sent the request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Message {
    /// Copy of the acquisition that led to the owner's hold.
    Acquire,
    Convert {
        sender: usize,
        new: u64,
        sent: u64,
    },
    Renew {
        sender: usize,
        sent: u64,
    },
    Release {
        sender: usize,
        id: u64,
        sent: u64,
    },
    Converted {
        sender: usize,
        sent: u64,
        remaining: u64,
    },
    Renewed {
        sender: usize,
        valid: u64,
    },
    Lost {
        sender: usize,
    },
    Released {
        sender: usize,
        id: u64,
        sent: u64,
    },
}

#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
enum Stage {
    #[default]
    Idle,
    /// The process has sent a conversion: the owner to the ticket's id, and an adopter from it.
    Converting,
    Guard,
    Over,
    /// The process has died.
    Dead,
}

/// Id that a process releases until the server has answered.
#[derive(Clone, Copy, Hash)]
struct Back {
    id: u64,
    /// Time from which no copy of the conversion arrives.
    after: u64,
    told: u8,
    is_answered: bool,
}

#[derive(Clone, Default, Hash)]
struct Process {
    stage: Stage,
    valid: u64,
    asked: u8,
    renewals: u8,
    /// Time until which a copy of a request that can begin a hold may arrive.
    arrives_until: Option<u64>,
    back: Vec<Back>,
    /// True if the process does not know whether its conversion was carried out, and gave up.
    gave_up: bool,
}

#[derive(Clone, Hash)]
struct State {
    now: u64,
    mode: Mode,
    record: Record,
    net: Vec<Message>,
    processes: [Process; PROCESSES],
    /// True if the owner has the ticket, and gives it to both adopters.
    has_ticket: bool,
    detached: u64,
    /// Ids of adopters under which the server has had the hold.
    adopted: Vec<u64>,
    others: u64,
    copies: u8,
    deaths: u8,
}

fn request(id: u64, mode: Mode, lease: u64) -> AcquireRequest {
    let lease = Duration::from_millis(lease);
    AcquireRequest { id: super::id(id), mode, lease, max_tokens: 1, if_taken: IfTaken::Leave, caches: false }
}

fn limit_ms(sent: u64, fault: Fault) -> u64 {
    if fault == Fault::NoLimit { u64::MAX } else { T0_US / 1000 + sent + TRANSIT }
}

/// Takes each change that can come next, and keeps the state after it.
type Branches<'a> = dyn FnMut(&dyn Fn(&mut State)) + 'a;

impl Process {
    fn hold_id(sender: usize, asked: u8, fault: Fault) -> u64 {
        let place = u64::try_from(sender).expect("small");
        match (sender, fault) {
            (OWNER, _) => OWN,
            (_, Fault::SharedId) => ADOPTED,
            (_, Fault::NewIdEach) => ADOPTED + place - 1 + 2 * u64::from(asked.saturating_sub(1)),
            _ => ADOPTED + place - 1,
        }
    }
}

impl State {
    fn new(scene: Scene) -> Self {
        let Scene { mode, has_late_acquisition, copies, deaths } = scene;
        let mut record = Record::default();
        record.acquire(at(0), u64::MAX, &request(OWN, mode, LEASE));
        let arrives_until = has_late_acquisition.then_some(TRANSIT);
        let owner = Process { stage: Stage::Guard, valid: LEASE, arrives_until, ..Process::default() };
        Self {
            now: 0,
            mode,
            record,
            net: Vec::from_iter(has_late_acquisition.then_some(Message::Acquire)),
            processes: [owner, Process::default(), Process::default()],
            has_ticket: false,
            detached: 0,
            adopted: Vec::new(),
            others: 0,
            copies,
            deaths,
        }
    }

    /// Carries out a request, and puts the answer into the network.
    fn serve(&mut self, message: Message, fault: Fault) {
        let now = at(self.now);
        match message {
            Message::Acquire => {
                self.record.acquire(now, limit_ms(0, Fault::None), &request(OWN, self.mode, LEASE));
            }
            Message::Convert { sender, new, sent } => {
                let (old, lease) = if sender == OWNER { (OWN, VALID_FOR) } else { (TICKET, LEASE) };
                let new_hold = request(new, self.mode, lease);
                match self.record.convert(now, limit_ms(sent, fault), &id(old), &new_hold) {
                    Converted::Granted(granted) => {
                        if sender != OWNER && !self.adopted.contains(&new) {
                            self.adopted.push(new);
                        }
                        let remaining = u64::try_from(granted.remaining.as_millis()).expect("short");
                        self.net.push(Message::Converted { sender, sent, remaining });
                    }
                    Converted::Lost { .. } => self.net.push(Message::Lost { sender }),
                    Converted::Refused | Converted::Cached | Converted::Late => {}
                }
            }
            Message::Renew { sender, sent } => {
                let own = id(Process::hold_id(sender, 0, fault));
                match self.record.renew(now, &own, Duration::from_millis(LEASE)) {
                    Renewed::Renewed { .. } => self.net.push(Message::Renewed { sender, valid: sent + LEASE }),
                    Renewed::Lost { .. } => self.net.push(Message::Lost { sender }),
                }
            }
            Message::Release { sender, id, sent } => {
                self.record.release(now, &super::id(id));
                self.net.push(Message::Released { sender, id, sent });
            }
            _ => unreachable!("it is an answer"),
        }
        self.record.take_notifications();
    }

    /// Receives an answer.
    fn hear(&mut self, message: Message, fault: Fault) {
        let now = self.now;
        match message {
            Message::Converted { sender: OWNER, .. } if self.processes[OWNER].stage == Stage::Converting => {
                self.processes[OWNER].stage = Stage::Over;
                self.has_ticket = true;
            }
            Message::Converted { sender, sent, remaining } if self.processes[sender].stage == Stage::Converting => {
                let process = &mut self.processes[sender];
                process.valid = if fault == Fault::CountsFromAnswer { now } else { sent } + remaining;
                process.stage = Stage::Guard;
                if process.valid <= now {
                    self.give_up(sender, fault);
                }
            }
            Message::Renewed { sender, valid } if self.processes[sender].stage == Stage::Guard => {
                self.processes[sender].valid = self.processes[sender].valid.max(valid);
            }
            // No copy of its requests can change that.
            Message::Lost { sender } if matches!(self.processes[sender].stage, Stage::Converting | Stage::Guard) => {
                self.processes[sender].stage = Stage::Over;
            }
            Message::Released { sender, id, sent } => {
                let process = &mut self.processes[sender];
                process.back.iter_mut().filter(|back| back.id == id).for_each(|back| back.is_answered = true);
                let is_over = |back: &Back| back.id == id && (sent >= back.after || fault == Fault::ReleasesOnce);
                process.back.retain(|back| !is_over(back));
            }
            _ => {}
        }
    }

    fn send_conversion(&mut self, sender: usize, fault: Fault) {
        let (now, process) = (self.now, &mut self.processes[sender]);
        process.asked += 1;
        process.stage = Stage::Converting;
        process.arrives_until = Some(now + TRANSIT);
        let new = if sender == OWNER { TICKET } else { Process::hold_id(sender, process.asked, fault) };
        if sender == OWNER {
            self.detached = now;
        }
        self.net.push(Message::Convert { sender, new, sent: now });
    }

    /// Releases both ids of a conversion whose result is unknown.
    fn give_up(&mut self, sender: usize, fault: Fault) {
        let own = Process::hold_id(sender, self.processes[sender].asked, fault);
        let (old, new) = if sender == OWNER { (OWN, TICKET) } else { (TICKET, own) };
        let ids = match fault {
            Fault::ReleasesOldOnly => vec![old],
            Fault::ReleasesNewOnly => vec![new],
            _ => vec![old, new],
        };
        self.processes[sender].gave_up = true;
        self.give_back(sender, ids);
    }

    fn give_back(&mut self, sender: usize, ids: Vec<u64>) {
        let process = &mut self.processes[sender];
        process.stage = Stage::Over;
        let after = process.arrives_until.map_or(0, |until| until + 1);
        process.back = ids.into_iter().map(|id| Back { id, after, told: 0, is_answered: false }).collect();
        for place in 0..self.processes[sender].back.len() {
            self.tell(sender, place);
        }
    }

    fn tell(&mut self, sender: usize, place: usize) {
        let back = &mut self.processes[sender].back[place];
        back.told += 1;
        self.net.push(Message::Release { sender, id: back.id, sent: self.now });
    }

    /// Returns the states after one step.
    fn next(&self, fault: Fault) -> Vec<Self> {
        let mut all = Vec::new();
        let mut step = |change: &dyn Fn(&mut Self)| {
            let mut state = self.clone();
            change(&mut state);
            state.tidy(fault);
            all.push(state);
        };
        if self.now < END {
            step(&|state| state.tick(fault));
        }
        for (place, message) in self.net.iter().copied().enumerate() {
            if self.net[..place].contains(&message) {
                continue;
            }
            let is_request = message.is_request();
            step(&|state| {
                state.net.remove(place);
                if is_request { state.serve(message, fault) } else { state.hear(message, fault) }
            });
            if is_request && self.copies > 0 {
                step(&|state| {
                    state.copies -= 1;
                    state.serve(message, fault);
                });
            }
        }
        self.other_steps(&mut step);
        for sender in 0..PROCESSES {
            self.process_steps(sender, fault, &mut step);
        }
        all
    }

    /// A process that wants the lock for writing.
    fn other_steps(&self, step: &mut Branches<'_>) {
        let other = OTHER + self.others;
        if self.live().any(|(id, _)| id == other) {
            step(&|state| {
                state.record.release(at(state.now), &id(other));
                state.others += 1;
            });
        } else if self.others < 1 {
            step(&|state| {
                state.record.acquire(at(state.now), u64::MAX, &request(other, Mode::Write, LEASE));
            });
        }
    }

    fn process_steps(&self, sender: usize, fault: Fault, step: &mut Branches<'_>) {
        let process = &self.processes[sender];
        if self.deaths > 0 && !matches!(process.stage, Stage::Idle | Stage::Dead) {
            step(&|state| {
                state.deaths -= 1;
                state.processes[sender].stage = Stage::Dead;
                state.processes[sender].back.clear();
            });
        }
        let may_copies_arrive = process.arrives_until.is_some_and(|until| self.now <= until);
        match process.stage {
            Stage::Guard => {
                if process.renewals < 1 {
                    step(&|state| {
                        state.processes[sender].renewals += 1;
                        state.net.push(Message::Renew { sender, sent: state.now });
                    });
                }
                if sender != OWNER {
                    step(&|state| state.give_back(sender, vec![Process::hold_id(sender, process.asked, fault)]));
                } else if !may_copies_arrive || fault == Fault::IgnoresCopies {
                    step(&|state| state.send_conversion(sender, fault));
                }
            }
            Stage::Idle if self.has_ticket => step(&|state| state.send_conversion(sender, fault)),
            Stage::Converting => {
                if process.asked < COPIES {
                    step(&|state| state.send_conversion(sender, fault));
                }
                step(&|state| state.give_up(sender, fault));
            }
            _ => {}
        }
        for (place, back) in process.back.iter().enumerate() {
            if back.told < COPIES && (!back.is_answered || self.now >= back.after) {
                step(&|state| state.tell(sender, place));
            }
        }
    }

    fn tick(&mut self, fault: Fault) {
        self.now += 1;
        for sender in 0..PROCESSES {
            let process = &self.processes[sender];
            if process.stage == Stage::Guard && process.valid <= self.now {
                self.give_back(sender, vec![Process::hold_id(sender, process.asked, fault)]);
            }
        }
    }

    /// Forgets messages that do nothing any more.
    fn tidy(&mut self, fault: Fault) {
        let (now, processes) = (self.now, &self.processes);
        self.net.retain(|message| match *message {
            Message::Acquire => now <= TRANSIT,
            Message::Convert { sent, .. } => now <= sent + TRANSIT || fault == Fault::NoLimit,
            Message::Renew { .. } | Message::Release { .. } => true,
            Message::Converted { sender, .. } => processes[sender].stage == Stage::Converting,
            Message::Renewed { sender, .. } => processes[sender].stage == Stage::Guard,
            Message::Lost { sender } => matches!(processes[sender].stage, Stage::Converting | Stage::Guard),
            Message::Released { sender, id, .. } => processes[sender].back.iter().any(|back| back.id == id),
        });
        self.net.sort_unstable();
        self.record.forget_ms = 0;
    }

    /// Returns the live holds with their deadlines.
    fn live(&self) -> impl Iterator<Item = (u64, u64)> {
        let live = self.record.live_holds(T0_US / 1000 + self.now).into_iter();
        live.map(|(holder, _, deadline_ms)| {
            let number = (OWN..=OTHER).find(|number| id(*number).as_str() == holder).expect("a known id");
            (number, deadline_ms - T0_US / 1000)
        })
    }

    /// Returns the promise that this state breaks.
    fn broken(&self, fault: Fault) -> Option<&'static str> {
        let now = self.now;
        let is_inside = |(sender, process): &(usize, &Process)| {
            let keeps = fault == Fault::KeepsGuard && *sender == OWNER && process.stage != Stage::Dead;
            (keeps || process.stage == Stage::Guard) && process.valid > now
        };
        let inside = self.processes.iter().enumerate().filter(is_inside).count();
        if inside > 1 || inside == 1 && self.live().any(|(id, _)| id >= OTHER) {
            return Some("two valid guards");
        }
        if self.adopted.len() > 1 {
            return Some("the ticket was used twice");
        }
        for (id, deadline) in self.live() {
            if id == TICKET && deadline > self.detached + TRANSIT + VALID_FOR {
                return Some("the ticket is valid for too long");
            }
            let is_held_for_nobody = |(sender, process): (usize, &Process)| {
                let is_through = process.stage == Stage::Over && process.back.is_empty();
                let is_own = (1..=COPIES).any(|asked| id == Process::hold_id(sender, asked, fault));
                is_through && (is_own || process.gave_up && id == TICKET)
            };
            if self.processes.iter().enumerate().any(is_held_for_nobody) {
                return Some("held for nobody");
            }
        }
        None
    }
}

impl Message {
    fn is_request(self) -> bool {
        matches!(self, Self::Acquire | Self::Convert { .. } | Self::Renew { .. } | Self::Release { .. })
    }
}

fn explored(scene: Scene, fault: Fault) -> Explored {
    explore([State::new(scene)], MAX_STATES, |state| state.next(fault), |state| state.broken(fault))
}

fn assert_found(fault: Fault) {
    let scene = Scene { has_late_acquisition: fault == Fault::IgnoresCopies, ..CALM };
    explored(scene, fault).assert_found(fault);
}

#[test]
fn each_planted_fault_breaks_a_promise() {
    FAULTS.into_iter().for_each(assert_found);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn each_planted_fault_after_many_states_breaks_a_promise() {
    DEEP_FAULTS.into_iter().for_each(assert_found);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn no_course_of_a_ticket_breaks_a_promise() {
    for mode in [Mode::Write, Mode::Read] {
        for has_late_acquisition in [false, true] {
            for (copies, deaths) in [(0, 0), (1, 0), (0, 1)] {
                let scene = Scene { mode, has_late_acquisition, copies, deaths };
                let Explored { broken, states, is_complete } = explored(scene, Fault::None);
                let extent = if is_complete { "all" } else { "those with the fewest steps" };
                println!("{states} states, {extent}: {scene:?}");
                assert_eq!(broken, None, "{scene:?}");
            }
        }
    }
}
