//! Breadth-first search through all states. It visits each state once, and reports a broken invariant with a shortest
//! path.

use super::*;

/// Fingerprint of a state: two hashes side by side, 128 bits.
pub struct Print(u64, u64);

impl Default for Print {
    fn default() -> Self {
        Self(0, 1)
    }
}

impl Print {
    pub fn of(state: &impl Hash) -> u128 {
        let mut print = Self::default();
        state.hash(&mut print);
        print.mixed()
    }

    pub fn mixed(&self) -> u128 {
        (u128::from(mixed(self.0)) << 64) | u128::from(mixed(self.1))
    }

    pub fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.1 =
            (self.1.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x632b_e59b_d9b4_e019);
    }
}

fn mixed(mut word: u64) -> u64 {
    for _ in 0..2 {
        word ^= word >> 32;
        word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    word ^ (word >> 32)
}

impl Hasher for Print {
    fn finish(&self) -> u64 {
        mixed(self.0)
    }

    fn write(&mut self, bytes: &[u8]) {
        for chunk in bytes.chunks(8) {
            let mut word = [0; 8];
            word[..chunk.len()].copy_from_slice(chunk);
            self.add(u64::from_le_bytes(word));
        }
    }

    fn write_u8(&mut self, byte: u8) {
        self.add(u64::from(byte));
    }

    fn write_usize(&mut self, word: usize) {
        self.add(u64::try_from(word).expect("64 bits at most"));
    }
}

/// Hasher for fingerprints. A fingerprint is its own hash.
#[derive(Default)]
pub struct Own(u64);

impl Hasher for Own {
    fn finish(&self) -> u64 {
        self.0
    }

    fn write(&mut self, bytes: &[u8]) {
        if let Some(Ok(half)) = bytes.get(..8).map(<[u8; 8]>::try_from) {
            self.0 = u64::from_ne_bytes(half);
        }
    }
}

/// Broken invariant, and a shortest path to it.
pub struct Found {
    pub invariant: Invariant,
    pub way: Vec<String>,
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} is broken after {} steps:", self.invariant, self.way.len())?;
        self.way.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Result of an exploration.
pub struct Explored {
    pub states: usize,
    pub processes: usize,
    pub steps: u64,
    pub depth: usize,
    pub found: Option<Found>,
}

/// First step to each world, with the number of the world before it.
type Ways = Vec<(u32, Step)>;

/// Largest number of worlds of one depth that stay in memory.
const MAX_KEPT: usize = 2_000_000;

/// Worlds of the last depth that had room in memory, and the path from one of them to the world of the last number. Deeper
/// worlds are made again from these, one step for each depth. Numbers come in order, so neighbours share most of a path.
struct Kept {
    first: usize,
    worlds: Vec<World>,
    path: Vec<(usize, World)>,
}

impl Kept {
    fn get(&self, number: usize) -> Option<World> {
        self.worlds.get(number.checked_sub(self.first)?).copied()
    }
}

/// Search.
impl Explorer<'_> {
    pub fn explore(mut self) -> Explored {
        let mut seen: HashSet<u128, BuildHasherDefault<Own>> = HashSet::default();
        let start = World::new(self.scene);
        seen.insert(Print::of(&start));
        let mut ways: Ways = vec![(0, Step { act: Act::Wipe, fault: None, draw: 0 })];
        let mut kept = Kept { first: 0, worlds: vec![start], path: Vec::new() };
        let (mut steps, mut depth, mut found, mut numbers) = (0, 0, None, 0..1);
        'all: loop {
            let mut fresh = Vec::new();
            for own in numbers.clone() {
                let world = self.world_of(own, &mut kept, &ways);
                if let Err(invariant) = self.judge_progress(&world) {
                    found = Some(self.found(invariant, &ways, own, None));
                    break 'all;
                }
                for act in self.acts(&world) {
                    let mut todo = vec![Step { act, fault: None, draw: 0 }];
                    while let Some(step) = todo.pop() {
                        steps += 1;
                        let next = self.step(&world, step);
                        self.add_variants(&world, step, &mut todo);
                        let judged = next.and_then(|mut next| {
                            next.sort(self.scene);
                            if seen.insert(Print::of(&next)) {
                                ways.push((u32::try_from(own).expect("it is in memory"), step));
                                // One more than may stay, so that the length tells whether all are there.
                                if fresh.len() <= MAX_KEPT {
                                    fresh.push(next);
                                }
                                return self.judge(&next);
                            }
                            Ok(())
                        });
                        if let Err(invariant) = judged {
                            found = Some(self.found(invariant, &ways, own, Some(step)));
                            break 'all;
                        }
                    }
                }
            }
            numbers = numbers.end..ways.len();
            if numbers.is_empty() {
                break;
            }
            depth += 1;
            if fresh.len() <= MAX_KEPT {
                kept = Kept { first: numbers.start, worlds: fresh, path: Vec::new() };
            }
        }
        Explored { states: seen.len(), processes: self.processes.len(), steps, depth, found }
    }

    fn world_of(&mut self, number: usize, kept: &mut Kept, ways: &Ways) -> World {
        if let Some(world) = kept.get(number) {
            return world;
        }
        let before = |number: usize| usize::try_from(ways[number].0).expect("an index");
        let mut missing = vec![number];
        let mut world = loop {
            let before = before(missing[missing.len() - 1]);
            if let Some(at) = kept.path.iter().rposition(|(number, _)| *number == before) {
                kept.path.truncate(at + 1);
                break kept.path[at].1;
            }
            if let Some(world) = kept.get(before) {
                kept.path.clear();
                break world;
            }
            missing.push(before);
        };
        for number in missing.into_iter().rev() {
            let next = self.step(&world, ways[number].1);
            world = next.unwrap_or_else(|invariant| panic!("{invariant:?} is broken now, and was not before"));
            world.sort(self.scene);
            kept.path.push((number, world));
        }
        world
    }

    /// Adds the same step with each fault of each of its requests, and with each chance.
    fn add_variants(&self, world: &World, step: Step, todo: &mut Vec<Step>) {
        if step.draw == 0 && self.scene.records.is_some() {
            todo.extend((1..self.chances).map(|draw| Step { draw, ..step }));
        }
        if step.draw == 0 && step.fault.is_none() {
            let fates: Vec<_> = Self::fates(world.faults).collect();
            let faults = (0..self.sent).flat_map(|at| fates.iter().map(move |fate| Some((at, *fate))));
            todo.extend(faults.map(|fault| Step { fault, ..step }));
        }
    }

    /// Describes the path in text. Processes keep their first names, although their order in a state changes.
    fn found(&mut self, invariant: Invariant, ways: &Ways, mut at: usize, last: Option<Step>) -> Found {
        let mut taken: Vec<Step> = last.into_iter().collect();
        while at != 0 {
            let (before, step) = ways[at];
            taken.push(step);
            at = usize::try_from(before).expect("an index");
        }
        let (mut world, mut names) = (World::new(self.scene), [b'A', b'B', b'C', b'D']);
        let mut way = Vec::new();
        for step in taken.into_iter().rev() {
            way.push(line_of(&world, step, names));
            let Ok(mut next) = self.step(&world, step) else { break };
            names = next.sort(self.scene).map(|former| names[usize::from(former)]);
            world = next;
        }
        Found { invariant, way }
    }
}

/// Describes a step in text.
fn line_of(world: &World, Step { act, fault, .. }: Step, names: [u8; PROCESSES]) -> String {
    let name = |process: u8| char::from(names[usize::from(process)]);
    let message = |at: u8| {
        let Mail { process, letter, .. } = world.mail.as_slice()[usize::from(at)];
        format!("{}: {letter:?}", name(process))
    };
    let line = match act {
        Act::Tell { process, told } => format!("{}: {told:?}", name(process)),
        Act::Deliver { at } => format!("{} arrives", message(at)),
        Act::HearTwice { at } => format!("{} arrives, and is to arrive again", message(at)),
        Act::Lose { at } => format!("{} is lost", message(at)),
        Act::Die { process } => format!("{} dies", name(process)),
        Act::Turn { process, to } => format!("{}: its subscription is {to:?}", name(process)),
        Act::Tick { .. } | Act::Wipe | Act::Look | Act::Force => format!("{act:?}"),
    };
    match fault {
        Some((at, fate)) => format!("{line}, and request {at} is {fate:?}"),
        None => line,
    }
}
