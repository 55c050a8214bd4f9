//! States of processes, and the steps between them. Each step is computed once, by the code that ships.

use std::collections::HashMap;
use std::hash::{BuildHasherDefault, Hash, Hasher};
use std::rc::Rc;

use super::search::{Own, Print};
use super::{Caching, Scene};
use crate::lock::process::{Blunder, Outputs, Process, Slot, Told};

/// Fingerprint of a process: moments relative to its present moment, tokens relative to the highest one.
pub struct ProcessPrint {
    now: i128,
    top: i64,
    print: Print,
}

impl ProcessPrint {
    const TICK: i128 = crate::lock::process::TICK.as_nanos().cast_signed();
    /// Moments farther away are alike: all that is compared is within this distance.
    const NEAR: i128 = 9 * Self::TICK;
    const BEFORE: i128 = -5 * Self::TICK;

    pub fn of(process: &Process) -> u128 {
        let now = i128::from(process.now.as_nanos()) + 1;
        let mut print = Self { now, top: process.top, print: Print::default() };
        process.hash(&mut print);
        print.print.mixed()
    }
}

impl Hasher for ProcessPrint {
    fn finish(&self) -> u64 {
        self.print.finish()
    }

    fn write(&mut self, bytes: &[u8]) {
        self.print.write(bytes);
    }

    /// Adds a moment.
    fn write_u128(&mut self, moment: u128) {
        let relative = moment.cast_signed() - self.now;
        let relative = i64::try_from(relative.clamp(Self::BEFORE, Self::NEAR)).expect("it is near");
        self.print.add(relative.cast_unsigned());
    }

    /// Adds a token.
    fn write_i64(&mut self, token: i64) {
        self.print.add((token - self.top).max(-8).cast_unsigned());
    }

    /// Adds a time of the server, which is zero here.
    fn write_i128(&mut self, time: i128) {
        self.print.add(u64::from(time != 0));
    }
}

/// State of a process, with what the world asks of it again and again.
struct InternedProcess {
    process: Process,
    /// Slots of acquisitions that the process accounts for.
    slots: u16,
    /// Slots of acquisitions that may get notifications.
    slots_in_state: u16,
    /// Slots of acquisitions whose tasks wait for notifications.
    slots_in_queue: u16,
    has_cached: bool,
}

/// Step of a process: its number, its input, and the slots that it may use.
type StepOf = (u32, Told, u16);

/// All states of processes that were met, and the steps between them.
pub struct Processes {
    blunder: Option<Blunder>,
    all: Vec<InternedProcess>,
    numbers: HashMap<u128, u32, BuildHasherDefault<Own>>,
    steps: HashMap<StepOf, (u32, Rc<Outputs>), BuildHasherDefault<Print>>,
}

impl Processes {
    pub fn new(scene: &Scene, blunder: Option<Blunder>) -> Self {
        let mut processes = Self { blunder, all: Vec::new(), numbers: HashMap::default(), steps: HashMap::default() };
        let caching = scene.caching;
        let process = Process::new(caching != Caching::Nothing, blunder);
        let process = if scene.faults.sleeps > 0 { process.with_sleepers() } else { process };
        let is_subscribed = caching == Caching::Subscribed || blunder == Some(Blunder::ReliesUnconfirmed);
        processes.number(if is_subscribed { process.into_subscriber() } else { process });
        processes
    }

    /// Returns true if the processes take a grant from before their acquisition was queued again.
    pub fn takes_older_grants(&self) -> bool {
        self.blunder == Some(Blunder::TakesGrantFromBefore)
    }

    pub fn len(&self) -> usize {
        self.all.len()
    }

    fn number(&mut self, process: Process) -> u32 {
        let next = u32::try_from(self.all.len()).expect("they are in memory");
        let number = *self.numbers.entry(ProcessPrint::of(&process)).or_insert(next);
        if number == next {
            let (slots, slots_in_state) = (process.slots(), process.slots_in_state());
            let has_cached = process.has_cached();
            let slots_in_queue = process.queued().into_iter().fold(0, |slots, (_, slot)| slots | 1 << slot);
            self.all.push(InternedProcess { process, slots, slots_in_state, slots_in_queue, has_cached });
        }
        number
    }

    fn at(&self, number: u32) -> &InternedProcess {
        &self.all[usize::try_from(number).expect("an index")]
    }

    pub fn get(&self, number: u32) -> &Process {
        &self.at(number).process
    }

    pub fn accounts_for(&self, number: u32, slot: Slot) -> bool {
        self.at(number).slots & (1 << slot) != 0
    }

    pub fn may_be_notified(&self, number: u32, slot: Slot) -> bool {
        self.at(number).slots_in_state & (1 << slot) != 0
    }

    pub fn awaits_notification(&self, number: u32, slot: Slot) -> bool {
        self.at(number).slots_in_queue & (1 << slot) != 0
    }

    pub fn has_cached(&self, number: u32) -> bool {
        self.at(number).has_cached
    }

    /// Takes a step of a process. `free` has the slots that neither the server nor a message knows.
    pub fn step(&mut self, number: u32, told: Told, free: u16) -> (u32, Rc<Outputs>) {
        let free = lowest(free & !self.at(number).slots);
        if let Some((next, outputs)) = self.steps.get(&(number, told, free)) {
            return (*next, Rc::clone(outputs));
        }
        let (process, outputs) = self.get(number).step(told, free);
        let (next, outputs) = (self.number(process), Rc::new(outputs));
        self.steps.insert((number, told, free), (next, Rc::clone(&outputs)));
        (next, outputs)
    }
}

/// Returns the three lowest slots, because a process begins no more acquisitions in one step. Other slots would only
/// make equal steps look different.
fn lowest(slots: u16) -> u16 {
    let rest = (0..3).fold(slots, |rest, _| rest & rest.wrapping_sub(1));
    slots & !rest
}
