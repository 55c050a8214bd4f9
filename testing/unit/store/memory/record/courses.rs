//! Exploration of the courses of a model, those with the fewest steps first.

use std::collections::{HashSet, VecDeque};
use std::fmt::Debug;
use std::hash::{DefaultHasher, Hash, Hasher};

/// Result of an exploration.
pub(super) struct Explored {
    /// Promise that the last state breaks.
    pub(super) broken: Option<&'static str>,
    pub(super) states: usize,
    /// True if no state was left out.
    pub(super) is_complete: bool,
}

impl Explored {
    /// Asserts that a planted fault has broken a promise.
    pub(super) fn assert_found(&self, fault: impl Debug) {
        println!("{fault:?}: {:?} after {} states", self.broken, self.states);
        assert!(self.broken.is_some(), "{fault:?} breaks nothing in {} states", self.states);
    }
}

/// Explores the states after the first ones, until one breaks a promise or until `max` states are known.
pub(super) fn explore<S: Hash>(
    first: impl IntoIterator<Item = S>,
    max: usize,
    next: impl Fn(&S) -> Vec<S>,
    broken: impl Fn(&S) -> Option<&'static str>,
) -> Explored {
    let (mut seen, mut queue) = (HashSet::new(), VecDeque::from_iter(first));
    while let Some(state) = queue.pop_front() {
        let broken = broken(&state);
        if broken.is_some() || seen.len() >= max {
            return Explored { broken, states: seen.len(), is_complete: false };
        }
        for next in next(&state) {
            let mut hasher = DefaultHasher::new();
            next.hash(&mut hasher);
            if seen.insert(hasher.finish()) {
                queue.push_back(next);
            }
        }
    }
    Explored { broken: None, states: seen.len(), is_complete: true }
}
