//! Policy that selects the names whose holds are cached: names that the process uses again and again. It leaves out
//! names whose holds are recalled each time before the process uses them again.
//!
//! The rule is BRAVO's (Dice and Kogan, "BRAVO: Biased Locking for Reader-Writer Locks", 2019) with a count in place of
//! a time: after a recall of a hold that the process has not used again, the process does not cache that name at the
//! next 1, 3, 7 and then 15 uses.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::lease::Moment;
use crate::lock::hold::CacheOutcome;

/// Time after its last use for which a name is known. After this time it counts as a new name.
const REMEMBERED: Duration = Duration::from_secs(10);
/// Number of recalls in a row after which the pauses do not grow any more.
const MAX_PENALTY: u8 = 4;
/// Largest number of places for names. With more names than places, only the names are known that the process uses
/// again soon.
const MAX_PLACES: usize = 1 << 16;

/// Number of places for names whose hashes end alike.
const WAYS: usize = 8;

/// Recent uses of the names of a manager. Up to eight names whose hashes end alike are known, and a further one
/// replaces any of them. It does not replace the one that was used longest ago, because nine names that are used in
/// turn would then all be forgotten each time. A use of a cached hold does not come here, so cached names do not
/// replace others. So all names are cached in the end.
#[derive(Debug)]
pub(crate) struct CachePolicy {
    places: Box<[Mutex<[NameUse; WAYS]>]>,
    /// Largest number of holds that may be cached.
    most: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct NameUse {
    /// Part of the name's hash. Zero means that the place is empty.
    name: u32,
    /// Time of the last use, in milliseconds.
    used_ms: u32,
    penalty: u8,
    /// Number of further uses at which the hold is not cached.
    skips: u8,
}

impl CachePolicy {
    /// Creates the policy for about this number of names. It is also the limit of the holds that may be cached.
    pub(crate) fn of(names: usize) -> Arc<Self> {
        let places = names.saturating_mul(2).clamp(64, MAX_PLACES).next_power_of_two() / WAYS;
        let places = std::iter::repeat_with(Mutex::default).take(places).collect();
        Arc::new(Self { places, most: names })
    }

    /// Returns by how many the number `cached` of holds is above the limit.
    pub(crate) fn excess(&self, cached: usize) -> usize {
        cached.saturating_sub(self.most)
    }

    /// Returns the places that a name may have, and the part of its hash by which it is known there.
    fn place(&self, hash: u64) -> (&Mutex<[NameUse; WAYS]>, u32) {
        let places = &self.places[hash as usize & (self.places.len() - 1)];
        (places, (hash >> 32) as u32 | 1)
    }

    /// Notes a use of a name for which the process will send a request. Returns true if the hold may be cached: the
    /// name was used not long ago, and no recall makes the process skip this use.
    pub(crate) fn may_cache(&self, hash: u64, now: Moment) -> bool {
        let (places, name) = self.place(hash);
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        let mut places = places.lock();
        let Some(place) = places.iter_mut().find(|place| place.name == name && place.is_known(now_ms)) else {
            let same = places.iter().position(|place| place.name == name);
            let forgotten = same.or_else(|| places.iter().position(|place| !place.is_known(now_ms)));
            // Any place will do. The remainder by a prime is taken first, because the times of many clocks are
            // multiples of a round number.
            let forgotten = forgotten.unwrap_or(now.as_nanos() as usize % 1009 % WAYS);
            places[forgotten] = NameUse { name, used_ms: now_ms, penalty: 0, skips: 0 };
            return false;
        };
        place.used_ms = now_ms;
        let stays = place.skips == 0;
        place.skips = place.skips.saturating_sub(1);
        stays
    }

    /// Notes the outcome of a hold that was allowed to be cached. A recall before the next use makes the pauses longer,
    /// and a further use ends them.
    pub(crate) fn note_outcome(&self, hash: u64, stay: CacheOutcome) {
        let (places, name) = self.place(hash);
        let mut places = places.lock();
        let Some(place) = places.iter_mut().find(|place| place.name == name) else {
            return;
        };
        match stay {
            CacheOutcome::Recalled => {
                place.penalty = (place.penalty + 1).min(MAX_PENALTY);
                place.skips = (1 << place.penalty) - 1;
            }
            CacheOutcome::Reused => (place.penalty, place.skips) = (0, 0),
            CacheOutcome::Unused => {}
        }
    }
}

impl NameUse {
    /// Returns true if the place has a name that was used not long ago. The passed time may be negative, because
    /// another thread may have read the clock later and changed the place first.
    fn is_known(self, now_ms: u32) -> bool {
        let passed_ms = now_ms.wrapping_sub(self.used_ms) as i32;
        self.name != 0 && passed_ms <= REMEMBERED.as_millis() as i32
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/cache_policy/tests.rs"]
mod tests;
