//! Model of acquisitions of several locks, explored to its end: three processes, three names, both modes.
//!
//! Each process acquires one group of locks and releases it. Each lock has a fair queue, as in the hash scheme. Requests
//! of a process arrive in any order. A state without a step in which a process still waits is a deadlock.

use std::collections::{BTreeMap, HashSet};
use std::ops::RangeInclusive;

use crate::base::mode::Mode;

const NAMES: usize = 3;
const PROCESSES: usize = 3;

/// Wanted mode of each name, or `None` if the group does not contain the name.
type Wants = [Option<Mode>; NAMES];

/// Rule for the locks that a group holds while it waits for the first missing one.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Rule {
    /// The locks that come before the missing one.
    KeepsLower,
    /// Wrong: all locks that it was granted.
    KeepsAll,
    /// Wrong: as `KeepsLower`, but the third process orders the names the other way round.
    OwnOrder,
    /// Wrong: the group has a place in the queue of each missing lock at once.
    QueuesEverywhere,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
enum Stage {
    /// The process sends its tries.
    Asks,
    /// Tries are under way.
    Tries,
    /// The process waits for a place in the queues that it has asked for.
    Waits,
    Done,
}

/// Process of the model. The numbers are bit sets of names.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Process {
    stage: Stage,
    held: u8,
    /// Tries that have not arrived, and names whose tries were refused.
    tries: u8,
    refused: u8,
    /// Requests for a place in a queue that have not arrived, and places for which the process waits.
    queueing: u8,
    waits: u8,
    /// Releases that have not arrived.
    releasing: u8,
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct Lock {
    /// Bit set of the processes that hold the lock.
    holders: u8,
    /// Processes that wait, the first one first. The free places behind them contain `NOBODY`.
    queue: [u8; PROCESSES],
}

const NOBODY: u8 = u8::MAX;

impl Lock {
    fn waiters(&self) -> impl Iterator<Item = usize> {
        self.queue.into_iter().filter(|process| *process != NOBODY).map(usize::from)
    }

    fn set_queue(&mut self, waiters: impl Iterator<Item = usize>) {
        let mut queue = [NOBODY; PROCESSES];
        for (place, process) in queue.iter_mut().zip(waiters) {
            *place = u8::try_from(process).expect("there are few processes");
        }
        self.queue = queue;
    }

    fn holders(&self) -> impl Iterator<Item = usize> {
        bits(self.holders)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
struct World {
    processes: [Process; PROCESSES],
    locks: [Lock; NAMES],
}

struct Scene {
    wants: [Wants; PROCESSES],
    rule: Rule,
}

fn bits(set: u8) -> impl Iterator<Item = usize> {
    (0..8).filter(move |bit| set & (1 << bit) != 0)
}

impl Scene {
    fn mode(&self, process: usize, name: usize) -> Mode {
        self.wants[process][name].expect("the process wants this name")
    }

    fn wanted(&self, process: usize) -> u8 {
        (0..NAMES).filter(|name| self.wants[process][*name].is_some()).map(|name| 1 << name).sum()
    }

    fn start(&self) -> World {
        let process =
            Process { stage: Stage::Asks, held: 0, tries: 0, refused: 0, queueing: 0, waits: 0, releasing: 0 };
        let lock = Lock { holders: 0, queue: [NOBODY; PROCESSES] };
        World { processes: [process; PROCESSES], locks: [lock; NAMES] }
    }

    /// Returns true if this process may enter beside the holders.
    fn fits(&self, lock: &Lock, process: usize, name: usize) -> bool {
        let reads = |process: usize| self.mode(process, name) == Mode::Read;
        lock.holders == 0 || reads(process) && lock.holders().all(reads)
    }

    /// Lets the first waiters enter: one writer, or all waiting readers.
    fn hand_over(&self, world: &mut World, name: usize) {
        let lock = world.locks[name];
        let Some(first) = lock.waiters().next().filter(|first| self.fits(&lock, *first, name)) else {
            return;
        };
        let enters = |process: usize| {
            process == first || self.mode(first, name) == Mode::Read && self.mode(process, name) == Mode::Read
        };
        for process in lock.waiters().filter(|process| enters(*process)) {
            world.locks[name].holders |= 1 << process;
            world.processes[process].held |= 1 << name;
            world.processes[process].waits &= !(1 << name);
        }
        world.locks[name].set_queue(lock.waiters().filter(|process| !enters(*process)));
    }

    /// Returns the names that come before `name` in the order of this process.
    fn below(&self, process: usize, name: usize) -> u8 {
        let is_reversed = self.rule == Rule::OwnOrder && process == PROCESSES - 1;
        (0..NAMES).filter(|other| if is_reversed { *other > name } else { *other < name }).map(|other| 1 << other).sum()
    }

    /// Decides after all tries of a process were answered.
    fn decide(&self, world: &mut World, process: usize) {
        let own = &mut world.processes[process];
        if own.refused == 0 {
            own.stage = Stage::Done;
            own.releasing = own.held;
            return;
        }
        let first = bits(own.refused)
            .find(|name| self.below(process, *name) & own.refused == 0)
            .expect("one of the refused names is the first");
        let given_back = match self.rule {
            Rule::KeepsLower | Rule::OwnOrder => own.held & !self.below(process, first),
            Rule::KeepsAll | Rule::QueuesEverywhere => 0,
        };
        own.releasing |= given_back;
        own.queueing = if self.rule == Rule::QueuesEverywhere { own.refused } else { 1 << first };
        own.refused = 0;
        own.stage = Stage::Waits;
    }

    /// Returns all states that one step leads to.
    fn steps(&self, world: &World) -> Vec<World> {
        let mut next = Vec::new();
        let mut step = |change: &dyn Fn(&mut World)| {
            let mut world = *world;
            change(&mut world);
            next.push(world);
        };
        for (process, own) in world.processes.iter().enumerate() {
            for name in bits(own.releasing) {
                step(&|world| self.release_arrives(world, process, name));
            }
            // A request for a lock follows the release of the same lock on its connection.
            for name in bits(own.tries & !own.releasing) {
                step(&|world| self.try_arrives(world, process, name));
            }
            for name in bits(own.queueing & !own.releasing) {
                step(&|world| self.queue_arrives(world, process, name));
            }
            match own.stage {
                Stage::Asks => step(&|world| {
                    let own = &mut world.processes[process];
                    own.tries = self.wanted(process) & !(own.held & !own.releasing);
                    own.stage = Stage::Tries;
                }),
                Stage::Tries if own.tries == 0 => step(&|world| self.decide(world, process)),
                Stage::Waits if own.queueing | own.waits == 0 => {
                    step(&|world| world.processes[process].stage = Stage::Asks);
                }
                Stage::Tries | Stage::Waits | Stage::Done => {}
            }
        }
        next
    }

    fn release_arrives(&self, world: &mut World, process: usize, name: usize) {
        world.processes[process].releasing &= !(1 << name);
        world.processes[process].held &= !(1 << name);
        world.locks[name].holders &= !(1 << process);
        self.hand_over(world, name);
    }

    fn try_arrives(&self, world: &mut World, process: usize, name: usize) {
        let is_free = world.locks[name].waiters().next().is_none() && self.fits(&world.locks[name], process, name);
        let own = &mut world.processes[process];
        own.tries &= !(1 << name);
        if is_free {
            own.held |= 1 << name;
            world.locks[name].holders |= 1 << process;
        } else {
            own.refused |= 1 << name;
        }
    }

    fn queue_arrives(&self, world: &mut World, process: usize, name: usize) {
        let own = &mut world.processes[process];
        own.queueing &= !(1 << name);
        own.waits |= 1 << name;
        let lock = world.locks[name];
        world.locks[name].set_queue(lock.waiters().chain([process]));
        self.hand_over(world, name);
    }

    /// Explores all states. Returns their number, or the state of a deadlock.
    fn explore(&self) -> Result<usize, Box<World>> {
        let (mut seen, mut open) = (HashSet::new(), vec![self.start()]);
        while let Some(world) = open.pop() {
            if !seen.insert(world) {
                continue;
            }
            self.check_exclusion(&world);
            let next = self.steps(&world);
            if next.is_empty() && !is_over(&world) {
                return Err(Box::new(world));
            }
            open.extend(next);
        }
        Ok(seen.len())
    }

    fn check_exclusion(&self, world: &World) {
        for (name, lock) in world.locks.iter().enumerate() {
            let writes = lock.holders().any(|process| self.mode(process, name) == Mode::Write);
            assert!(!writes || lock.holders.count_ones() == 1, "{world:?}");
        }
    }
}

/// Returns true if all processes are done and nothing is left.
fn is_over(world: &World) -> bool {
    let all_done = world.processes.iter().all(|process| process.stage == Stage::Done && process.held == 0);
    all_done && world.locks.iter().all(|lock| lock.holders == 0 && lock.waiters().next().is_none())
}

/// Returns all groups with such a number of names.
fn groups(sizes: &RangeInclusive<usize>) -> Vec<Wants> {
    let modes = [None, Some(Mode::Read), Some(Mode::Write)];
    let all = (0..27).map(|number| [modes[number / 9], modes[number / 3 % 3], modes[number % 3]]);
    all.filter(|wants| sizes.contains(&wants.iter().flatten().count())).collect()
}

/// Returns each choice of three groups once, without regard to their order.
fn scenes(rule: Rule, sizes: &RangeInclusive<usize>) -> impl Iterator<Item = Scene> + use<> {
    let groups = groups(sizes);
    let count = groups.len();
    (0..count)
        .flat_map(move |a| (a..count).flat_map(move |b| (b..count).map(move |c| [a, b, c])))
        .map(move |chosen| Scene { wants: chosen.map(|index| groups[index]), rule })
}

fn explore_all(sizes: RangeInclusive<usize>) {
    let mut states: BTreeMap<usize, usize> = BTreeMap::new();
    for scene in scenes(Rule::KeepsLower, &sizes) {
        let explored = scene.explore().unwrap_or_else(|world| panic!("{:?}: deadlock in {world:?}", scene.wants));
        *states.entry(scene.wants.iter().flatten().flatten().count()).or_default() += explored;
    }
    println!("states by the number of wanted locks: {states:?}");
}

#[test]
fn groups_of_two_names_never_deadlock() {
    explore_all(2..=2);
}

#[test]
#[ignore = "takes minutes; .ci/all runs it"]
fn groups_of_any_number_of_names_never_deadlock() {
    explore_all(1..=3);
}

/// Each wrong rule must lead to a deadlock, or the model could not show one.
#[test]
fn each_wrong_rule_deadlocks() {
    for rule in [Rule::KeepsAll, Rule::OwnOrder, Rule::QueuesEverywhere] {
        let found = scenes(rule, &(2..=3)).find_map(|scene| scene.explore().err());
        assert!(found.is_some(), "{rule:?}");
    }
}
