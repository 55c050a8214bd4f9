//! Exhaustive exploration of the specification and of the lock's state that ships. It visits every order of the steps of
//! a few processes, of messages, faults and ticks of time. It visits each state once.
//!
//! * `server` is a [`Record`](super::Record), the specification of the server. `watch` is a second, independent model,
//!   which judges its answers.
//! * Each process is the state of the lock as it ships, with a driver that does with it what the engine does (see
//!   `process.rs`). So the explorer runs the decisions that ship. `interned` has the states of the processes.
//! * `carrying` carries requests, answers, notifications and recalls between the processes and the server.
//! * `judging` has the invariants, `search` visits all states, and `scenes` has the scenes.
//! * `alone` explores one process without a server, against every answer that the trait `Scheme` allows. The effects of
//!   its events are steps of their own.
//!
//! A step is a *macro step*: what it makes due in its process is sent within it, and answered within it, unless a fault
//! meets one of these requests. The steps of a process are pure functions, so each is computed once: a state of the world
//! has only the number of the state of each process.
//!
//! Some runs have planted faults of the server or of a process. They show which invariant finds each fault.
//!
//! Unoptimised builds explore small scenes. Large scenes need an optimised build, which `.ci/all` makes.
#![allow(unreachable_pub)] // the module is private to the tests

mod alone;
mod carrying;
mod interned;
mod judging;
mod scenes;
mod search;
mod server;
mod small;
mod watch;

use std::collections::HashSet;
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::RecordLimits;
use crate::base::mode::Mode;
use crate::lock::process::{Asked, Blunder, Broken, Process, STALLED_AFTER, SentCopy, Slot, Told};
use crate::lock::side::WaiterId;
use interned::Processes;
use search::Explored;
use server::{
    Fault, Grant, IDS, Id, LEASE, LIMIT, OPERATOR, Outcome, PATIENCE, Reply, Request, Server, ServerRecall, Shelf,
    Side, What,
};
use small::List;
use watch::{Invariant, Moved, Watch};

/// Processes at most.
const PROCESSES: usize = 4;
/// Messages at a time.
const LETTERS: usize = 8;

/// Processes of a scene, and what may go wrong.
#[derive(Clone, Copy, Debug)]
struct Scene {
    processes: usize,
    /// Tasks of each process, which run at the same time.
    tasks: usize,
    /// Number of acquisitions for each task. A task begins the next one when the one before is over.
    each: usize,
    has_tries: bool,
    /// Number of records that an operation of the server may touch, if it is limited.
    records: Option<usize>,
    faults: Faults,
    caching: Caching,
    /// True if the server may not publish recalls.
    is_mute: bool,
}

/// Choice whether holds may be cached.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Caching {
    Nothing,
    /// Each process is subscribed to recalls from the start.
    Subscribed,
    /// Each process subscribes at any moment.
    Subscribing,
}

/// Subscription of a process to recalls.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug, Default)]
enum RecallLine {
    #[default]
    Down,
    Stands,
    /// The subscription is broken, and its process does not know it yet.
    Broken,
}

/// Numbers of faults that may still happen.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
struct Faults {
    /// Messages that are lost: requests, answers and notifications.
    losses: u8,
    /// Requests that arrive twice, the second time at any moment.
    copies: u8,
    /// Messages that are late by any time.
    delays: u8,
    deaths: u8,
    conversions: u8,
    /// Ticks in which a process is not scheduled.
    lapses: u8,
    /// Losses of the record.
    wipes: u8,
    /// Subscriptions that break.
    breaks: u8,
    /// Operators who look at the lock, and end the holds that they have seen.
    forces: u8,
    /// Futures of waiting tasks that are not polled any more.
    sleeps: u8,
}

/// Fate of a request.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Fate {
    Lost,
    Late,
    Twice,
    AnswerLost,
    AnswerLate,
    TooLate,
}

const FATES: [Fate; 6] = [Fate::Lost, Fate::Late, Fate::Twice, Fate::AnswerLost, Fate::AnswerLate, Fate::TooLate];

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
enum Letter {
    /// `copy` is absent if no task waits for the answer.
    Request {
        slot: Slot,
        copy: Option<u8>,
        what: What,
        limit: i8,
        keeps: Option<u8>,
    },
    Answer {
        copy: u8,
        slot: Slot,
        reply: Reply,
    },
    Notice {
        slot: Slot,
        grant: Option<Grant>,
        /// True if the server has answered since that the acquisition is in the queue.
        is_outdated: bool,
    },
    /// A waiter, or a try with this id, waits for the hold that has this token, counted from the highest one.
    Recall {
        token: i8,
        tries: Option<Id>,
    },
    /// Reply to a try: a guard is inside.
    InUse {
        slot: Slot,
    },
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Debug)]
struct Mail {
    process: u8,
    letter: Letter,
    late: bool,
}

impl Default for Mail {
    fn default() -> Self {
        Self { process: 0, letter: Letter::Notice { slot: 0, grant: None, is_outdated: false }, late: false }
    }
}

/// View of an operator: a bit for each hold, and the last token, counted from the highest by now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct OperatorView {
    ids: u16,
    token: i8,
}

/// Everything at one moment.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct World {
    shelf: Shelf,
    watch: Watch,
    processes: [u32; PROCESSES],
    dead: [bool; PROCESSES],
    lines: [RecallLine; PROCESSES],
    mail: List<Mail, LETTERS>,
    view: Option<OperatorView>,
    /// Holds that an operator has ended, with one bit for each hold. Their holders may not know it.
    forced: u16,
    faults: Faults,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Act {
    Tell {
        process: u8,
        told: Told,
    },
    Deliver {
        at: u8,
    },
    Lose {
        at: u8,
    },
    Die {
        process: u8,
    },
    /// The processes do what is due in this order. Those with a bit in `lapses` are not scheduled.
    Tick {
        order: u8,
        lapses: u8,
    },
    Wipe,
    /// Change of the subscription of a process.
    Turn {
        process: u8,
        to: RecallLine,
    },
    /// A recall that comes again.
    HearTwice {
        at: u8,
    },
    /// An operator looks at the lock.
    Look,
    Force,
}

/// A step, the fault that meets one of its requests, and the chance that decides where a reader is recorded.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Step {
    act: Act,
    fault: Option<(u8, Fate)>,
    draw: u8,
}

/// Data of an exploration beside the states.
struct Explorer<'a> {
    scene: &'a Scene,
    server: Server,
    processes: Processes,
    /// Requests that were sent in the present step, the fault that meets one of them, and the chance.
    sent: u8,
    fault: Option<(u8, Fate)>,
    draw: u8,
    /// Number of chances of the present step.
    chances: u8,
}

type Judged = Result<(), Invariant>;

fn side(mode: Mode) -> Side {
    match mode {
        Mode::Read => Side::Read,
        Mode::Write => Side::Write,
    }
}

/// Gives the acquisitions in a set other numbers.
fn renamed(set: u16, name: impl Fn(Id) -> Id) -> u16 {
    (0..OPERATOR).filter(|id| set & (1 << id) != 0).fold(0, |after, id| after | 1 << name(id))
}

impl Scene {
    /// Slots of each process.
    fn slots(&self) -> usize {
        IDS / self.processes
    }

    fn id(&self, process: u8, slot: Slot) -> Id {
        process * u8::try_from(self.slots()).expect("few") + slot
    }

    fn owner(&self, id: Id) -> (u8, Slot) {
        let slots = u8::try_from(self.slots()).expect("few");
        (id / slots, id % slots)
    }

    fn names(&self) -> impl Iterator<Item = u8> + use<> {
        0..u8::try_from(self.processes).expect("few")
    }

    fn explored(&self, fault: Option<Fault>, blunder: Option<Blunder>) -> Explored {
        let limits = self
            .records
            .map_or_else(RecordLimits::default, |records| RecordLimits { records, ..RecordLimits::default() });
        let server = Server::new(limits, fault);
        let server = if self.caching == Caching::Nothing { server } else { server.with_calling_tries() };
        let processes = Processes::new(self, blunder);
        Explorer { scene: self, server, processes, sent: 0, fault: None, draw: 0, chances: 1 }.explore()
    }
}

impl World {
    fn new(scene: &Scene) -> Self {
        Self {
            shelf: Shelf::default(),
            watch: Watch::default(),
            processes: [0; PROCESSES],
            dead: [false; PROCESSES],
            lines: [if scene.caching == Caching::Subscribed { RecallLine::Stands } else { RecallLine::Down };
                PROCESSES],
            mail: List::default(),
            view: None,
            forced: 0,
            faults: scene.faults,
        }
    }

    fn alive(&self, scene: &Scene) -> impl Iterator<Item = u8> + use<> {
        let dead = self.dead;
        scene.names().filter(move |process| !dead[usize::from(*process)])
    }

    /// Sorts the processes. They are alike, so worlds that differ only in the names of the processes are equal. Returns
    /// the former name of each process.
    fn sort(&mut self, scene: &Scene) -> [u8; PROCESSES] {
        let mut former = [0, 1, 2, 3];
        let key = |process: &u8| {
            let at = usize::from(*process);
            (self.dead[at], self.lines[at], self.processes[at])
        };
        former[..scene.processes].sort_by_key(key);
        if former.is_sorted() {
            return former;
        }
        let before = *self;
        let mut names = [0_u8; PROCESSES];
        for (new, old) in former.into_iter().map(usize::from).enumerate() {
            self.dead[new] = before.dead[old];
            self.lines[new] = before.lines[old];
            self.processes[new] = before.processes[old];
            names[old] = u8::try_from(new).expect("few");
        }
        let name = |id: Id| {
            let (process, slot) = scene.owner(id);
            scene.id(names[usize::from(process)], slot)
        };
        self.shelf.rename(name);
        self.watch.rename(name);
        self.forced = renamed(self.forced, name);
        self.view.iter_mut().for_each(|view| view.ids = renamed(view.ids, name));
        for mail in self.mail.as_mut_slice() {
            mail.process = names[usize::from(mail.process)];
            match &mut mail.letter {
                Letter::Request { what, .. } => what.rename(name),
                Letter::Recall { tries, .. } => *tries = tries.map(name),
                Letter::Answer { .. } | Letter::Notice { .. } | Letter::InUse { .. } => {}
            }
        }
        self.mail.as_mut_slice().sort_unstable();
        former
    }
}

/// Steps.
impl Explorer<'_> {
    fn of(&self, world: &World, process: u8) -> &Process {
        self.processes.get(world.processes[usize::from(process)])
    }

    /// Returns true if the receiver takes a message now. A notification waits until its task has the answer to its request.
    fn is_heard(&self, world: &World, mail: &Mail) -> bool {
        match mail.letter {
            Letter::Notice { slot, .. } | Letter::InUse { slot } => {
                self.processes.awaits_notification(world.processes[usize::from(mail.process)], slot)
            }
            Letter::Request { .. } | Letter::Answer { .. } | Letter::Recall { .. } => true,
        }
    }

    /// Returns the messages that are neither late nor lost. They arrive before the next tick.
    fn prompt(&self, world: &World) -> Vec<usize> {
        let is_prompt = |mail: &Mail| !mail.late && self.is_heard(world, mail);
        world.mail.iter().enumerate().filter(|(_, mail)| is_prompt(mail)).map(|(at, _)| at).collect()
    }

    fn acts(&self, world: &World) -> Vec<Act> {
        let mut acts = Vec::new();
        for process in world.alive(self.scene) {
            self.add_acts_of(world, process, &mut acts);
        }
        for (at, mail) in (0_u8..).zip(world.mail.iter()).filter(|(_, mail)| self.is_heard(world, mail)) {
            acts.push(Act::Deliver { at });
            if world.faults.losses > 0 && !mail.late {
                acts.push(Act::Lose { at });
            }
            if world.faults.copies > 0 && !mail.late && matches!(mail.letter, Letter::Recall { .. }) {
                acts.push(Act::HearTwice { at });
            }
        }
        if self.prompt(world).len() <= usize::from(world.faults.delays) {
            self.add_ticks(world, &mut acts);
        }
        if world.faults.wipes > 0 && !world.watch.was_wiped {
            acts.push(Act::Wipe);
        }
        match world.view {
            Some(_) => acts.push(Act::Force),
            None if world.faults.forces > 0 && world.shelf.holders().next().is_some() => acts.push(Act::Look),
            None => {}
        }
        acts
    }

    fn add_acts_of(&self, world: &World, process: u8, acts: &mut Vec<Act>) {
        let state = self.of(world, process);
        let mut tell = |told| acts.push(Act::Tell { process, told });
        if state.may_begin(self.scene.tasks, self.scene.each) {
            for mode in [Mode::Read, Mode::Write] {
                tell(Told::Acquire { mode, waits: true });
                if self.scene.has_tries {
                    tell(Told::Acquire { mode, waits: false });
                }
            }
        }
        state.waiting().chain(state.converting()).for_each(|task| tell(Told::Cancel { task }));
        if world.faults.sleeps > 0 {
            state.awake().for_each(|task| tell(Told::FallAsleep { task }));
        }
        state.asleep().for_each(|task| tell(Told::WakeUp { task }));
        state.pausing().for_each(|task| tell(Told::Retry { task }));
        state.pausing_sides().for_each(|mode| tell(Told::AskAgain { mode }));
        for task in state.holding() {
            tell(Told::Release { task });
            if world.faults.conversions > 0 {
                tell(Told::Convert { task });
            }
        }
        for (copy, converts) in state.copies() {
            tell(Told::Answer { copy, reply: None });
            if converts {
                tell(Told::Unreachable { copy });
            }
        }
        if state.is_behind {
            tell(Told::CatchUp);
        }
        if self.processes.has_cached(world.processes[usize::from(process)]) {
            tell(Told::GiveUpCached);
        }
        if self.scene.caching != Caching::Nothing && state.may_go_on(self.scene.tasks, self.scene.each) {
            let to = match world.lines[usize::from(process)] {
                RecallLine::Down => Some(RecallLine::Stands),
                RecallLine::Stands => (world.faults.breaks > 0).then_some(RecallLine::Broken),
                RecallLine::Broken => Some(RecallLine::Down),
            };
            acts.extend(to.map(|to| Act::Turn { process, to }));
        }
        if world.faults.deaths > 0 && state.begun > 0 && !state.is_idle() {
            acts.push(Act::Die { process });
        }
    }

    /// Adds a tick for each order of the processes, and for each choice of those that are not scheduled.
    fn add_ticks(&self, world: &World, acts: &mut Vec<Act>) {
        let busy = world.alive(self.scene).filter(|process| !self.of(world, *process).is_idle());
        let busy = busy.fold(0, |busy, process| busy | 1_u8 << process);
        let choices = (0..1_u8 << self.scene.processes)
            .filter(|lapses| lapses & !busy == 0 && lapses.count_ones() <= u32::from(world.faults.lapses));
        for lapses in choices {
            acts.extend(self.scene.names().map(|order| Act::Tick { order, lapses }));
        }
    }

    fn step(&mut self, world: &World, Step { act, fault, draw }: Step) -> Result<World, Invariant> {
        let mut next = *world;
        (self.sent, self.fault, self.draw, self.chances) = (0, fault, draw, 1);
        match act {
            Act::Tell { process, told } => {
                self.tell(&mut next, process, told)?;
                let has_converted = matches!(told, Told::Convert { .. }) && next.processes != world.processes;
                next.faults.conversions -= u8::from(has_converted);
                next.faults.sleeps -= u8::from(matches!(told, Told::FallAsleep { .. }));
            }
            Act::Deliver { at } => {
                let mail = next.mail.remove(at.into());
                self.deliver(&mut next, mail)?;
            }
            Act::Lose { at } => {
                next.faults.losses -= 1;
                next.mail.remove(at.into());
            }
            Act::Die { process } => self.die(&mut next, process),
            Act::Tick { order, lapses } => self.tick(&mut next, order, lapses)?,
            Act::Wipe => {
                next.faults.wipes -= 1;
                next.shelf = Shelf::default();
                next.watch.wipe();
            }
            Act::Turn { process, to } => self.turn(&mut next, process, to)?,
            Act::HearTwice { at } => {
                next.faults.copies -= 1;
                let mail = &mut next.mail.as_mut_slice()[usize::from(at)];
                mail.late = true;
                let mail = *mail;
                self.deliver(&mut next, mail)?;
            }
            Act::Look => {
                next.faults.forces -= 1;
                let ids = next.shelf.holders().fold(0, |ids, id| ids | 1 << id);
                next.view = Some(OperatorView { ids, token: 0 });
            }
            Act::Force => self.force(&mut next)?,
        }
        self.tidy(&mut next);
        Ok(next)
    }

    fn die(&self, world: &mut World, process: u8) {
        world.faults.deaths -= 1;
        world.dead[usize::from(process)] = true;
        world.lines[usize::from(process)] = RecallLine::Down;
        world.processes[usize::from(process)] = 0;
        world.mail.retain(|mail| mail.process != process || matches!(mail.letter, Letter::Request { .. }));
        for mail in world.mail.as_mut_slice().iter_mut().filter(|mail| mail.process == process) {
            if let Letter::Request { copy, .. } = &mut mail.letter {
                *copy = None;
            }
        }
    }
}
