//! Breadth-first search through all states. It visits each state once, and reports a broken invariant with a shortest
//! path.

use std::collections::{HashSet, VecDeque};
use std::fmt;
use std::hash::{BuildHasherDefault, Hash, Hasher};

use super::watch::Invariant;
use super::words;
use super::world::{Act, CLIENTS, Rules, State};

/// Fingerprint of a state: two hashes side by side, 128 bits.
pub(super) struct Print(u64, u64);

impl Print {
    pub(super) fn of(state: &impl Hash) -> u128 {
        let mut print = Self(0, 1);
        state.hash(&mut print);
        (u128::from(mixed(print.0)) << 64) | u128::from(mixed(print.1))
    }

    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(5) ^ word).wrapping_mul(0x517c_c1b7_2722_0a95);
        self.1 =
            (self.1.rotate_left(23) ^ word).wrapping_mul(0x9e37_79b9_7f4a_7c15).wrapping_add(0x632b_e59b_d9b4_e019);
    }
}

pub(super) fn mixed(mut word: u64) -> u64 {
    for _ in 0..2 {
        word ^= word >> 32;
        word = word.wrapping_mul(0xd6e8_feb8_6659_fd93);
    }
    word ^ (word >> 32)
}

impl Hasher for Print {
    fn finish(&self) -> u64 {
        self.0
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

    fn write_i8(&mut self, byte: i8) {
        self.add(u64::from(byte.cast_unsigned()));
    }

    fn write_usize(&mut self, word: usize) {
        self.add(u64::try_from(word).expect("64 bits at most"));
    }

    fn write_isize(&mut self, word: isize) {
        self.write_usize(word.cast_unsigned());
    }
}

/// Hasher for fingerprints. A fingerprint is its own hash.
#[derive(Default)]
pub(super) struct Own(u64);

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
pub(super) struct Found {
    pub(super) invariant: Invariant,
    pub(super) way: Vec<String>,
}

impl fmt::Debug for Found {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{:?} is broken after {} steps:", self.invariant, self.way.len())?;
        self.way.iter().try_for_each(|step| writeln!(f, "  {step}"))
    }
}

/// Result of an exploration.
pub(super) struct Explored {
    pub(super) states: usize,
    pub(super) steps: u64,
    pub(super) depth: usize,
    pub(super) found: Option<Found>,
}

/// First step to each state, with the state before it.
struct Ways(Vec<(u32, Act)>);

pub(super) fn explore(rules: &Rules<'_>) -> Explored {
    let mut seen: HashSet<u128, BuildHasherDefault<Own>> = HashSet::default();
    let start = State::new(rules.scene);
    seen.insert(Print::of(&start));
    let mut ways = Ways(vec![(0, Act::Tick)]);
    let mut queue = VecDeque::from([(start, 0_u32, 0_usize)]);
    let (mut steps, mut depth) = (0, 0);
    let mut acts = Vec::new();
    let mut found = None;
    'all: while let Some((state, own, deep)) = queue.pop_front() {
        depth = deep;
        state.acts(rules, &mut acts);
        // From every other state, a few steps without a fault lead to one of these states.
        if acts.contains(&Act::Tick)
            && let Err(invariant) = state.judge_progress(rules)
        {
            found = Some(Found { invariant, way: ways.told(rules, own, None) });
            break;
        }
        for act in &acts {
            steps += 1;
            let broken = match state.step(rules, *act) {
                Ok(mut next) => {
                    next.sort(rules);
                    if !seen.insert(Print::of(&next)) {
                        continue;
                    }
                    ways.0.push((own, *act));
                    let judged = next.judge(rules);
                    queue.push_back((next, u32::try_from(ways.0.len() - 1).expect("it is in memory"), deep + 1));
                    judged.err()
                }
                Err(invariant) => Some(invariant),
            };
            if let Some(invariant) = broken {
                found = Some(Found { invariant, way: ways.told(rules, own, Some(*act)) });
                break 'all;
            }
        }
    }
    Explored { states: seen.len(), steps, depth, found }
}

impl Ways {
    /// Describes the path in text. Clients keep their first names, although the order of clients in a state changes.
    fn told(&self, rules: &Rules<'_>, mut at: u32, last: Option<Act>) -> Vec<String> {
        let mut acts: Vec<Act> = last.into_iter().collect();
        while at != 0 {
            let (before, act) = self.0[usize::try_from(at).expect("an index")];
            acts.push(act);
            at = before;
        }
        let mut state = State::new(rules.scene);
        let mut names: [u8; CLIENTS] = [0, 1, 2, 3];
        let mut lines = Vec::new();
        for act in acts.iter().rev() {
            let (line, next) = words::told(rules, &state, *act, &names);
            lines.push(line);
            let Ok(mut next) = next else { break };
            names = next.sort(rules).map(|old| names[usize::from(old)]);
            state = next;
        }
        lines
    }
}
