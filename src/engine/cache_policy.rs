//! Which names come back: a hold stays only for a name that is used again and again, and not for one that others call for each time
//! before it is.
//!
//! The rule is BRAVO's (Dice and Kogan, "BRAVO: Biased Locking for Reader-Writer Locks", 2019) with a count in place of a time: a
//! hold that was called for before it was used again does not stay at the next 1, 3, 7 and then 15 uses.

use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::lease::Moment;
use crate::lock::hold::CacheOutcome;

/// A name that was used longer ago is a new one.
const REMEMBERED: Duration = Duration::from_secs(10);
/// After so many calls in a row the pauses grow no longer.
const MAX_PENALTY: u8 = 4;
/// More names than this are known by those that come again soon.
const MAX_PLACES: usize = 1 << 16;

/// So many names whose hashes end alike are known side by side.
const WAYS: usize = 8;

/// What is known of the names of a manager. Of more than eight whose hashes end alike one is forgotten, any of them: were it the one
/// used longest ago, then nine that are used in turn would all be forgotten each time. Those that stay come no more, and so all do
/// in the end.
#[derive(Debug)]
pub(crate) struct CachePolicy {
    places: Box<[Mutex<[NameUse; WAYS]>]>,
    /// How many holds may stay at most.
    most: usize,
}

#[derive(Clone, Copy, Debug, Default)]
struct NameUse {
    /// Part of the name's hash; zero for none.
    name: u32,
    /// When it was used last, in milliseconds.
    used_ms: u32,
    penalty: u8,
    /// At so many uses more it does not stay.
    skips: u8,
}

impl CachePolicy {
    /// For about so many names.
    pub(crate) fn of(names: usize) -> Arc<Self> {
        let places = names.saturating_mul(2).clamp(64, MAX_PLACES).next_power_of_two() / WAYS;
        let places = std::iter::repeat_with(Mutex::default).take(places).collect();
        Arc::new(Self { places, most: names })
    }

    /// How many too many there are of so many.
    pub(crate) fn excess(&self, cached: usize) -> usize {
        cached.saturating_sub(self.most)
    }

    /// Where what is known of a name is, and what it goes by there.
    fn place(&self, hash: u64) -> (&Mutex<[NameUse; WAYS]>, u32) {
        let places = &self.places[hash as usize & (self.places.len() - 1)];
        (places, (hash >> 32) as u32 | 1)
    }

    /// The server is to be asked for this name. Whether the hold may stay: the name was used before, and has not been called back in
    /// vain of late.
    pub(crate) fn may_cache(&self, hash: u64, now: Moment) -> bool {
        let (places, name) = self.place(hash);
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        let mut places = places.lock();
        let Some(place) = places.iter_mut().find(|place| place.name == name && place.is_known(now_ms)) else {
            let same = places.iter().position(|place| place.name == name);
            let forgotten = same.or_else(|| places.iter().position(|place| !place.is_known(now_ms)));
            // Any number will do. Clocks tick in round ones, so by a prime.
            let forgotten = forgotten.unwrap_or(now.as_nanos() as usize % 1009 % WAYS);
            places[forgotten] = NameUse { name, used_ms: now_ms, penalty: 0, skips: 0 };
            return false;
        };
        place.used_ms = now_ms;
        let stays = place.skips == 0;
        place.skips = place.skips.saturating_sub(1);
        stays
    }

    /// A hold that stayed is over: called for before it was used again, or of use.
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
    /// Whether it is a name that was used not long ago. Another thread may have looked at the clock later, and been here before.
    fn is_known(self, now_ms: u32) -> bool {
        let passed_ms = now_ms.wrapping_sub(self.used_ms) as i32;
        self.name != 0 && passed_ms <= REMEMBERED.as_millis() as i32
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NAME: u64 = 7 << 33;

    fn at(ms: u64) -> Moment {
        Moment::from_nanos(0).after(Duration::from_millis(ms))
    }

    #[test]
    fn name_stays_from_its_second_use_on() {
        let uses = CachePolicy::of(8);
        assert!(!uses.may_cache(NAME, at(0)));
        assert!(uses.may_cache(NAME, at(9_000)));
        assert!(!uses.may_cache(NAME, at(20_000)), "it was forgotten");
    }

    #[test]
    fn name_that_is_called_back_unused_pauses_longer_and_longer() {
        let uses = CachePolicy::of(8);
        uses.may_cache(NAME, at(1));
        for pause in [1, 3, 7, 15, 15] {
            assert!(uses.may_cache(NAME, at(1)));
            uses.note_outcome(NAME, CacheOutcome::Recalled);
            for _ in 0..pause {
                assert!(!uses.may_cache(NAME, at(1)));
            }
        }
        assert!(uses.may_cache(NAME, at(1)));
        uses.note_outcome(NAME, CacheOutcome::Reused);
        assert!(uses.may_cache(NAME, at(1)), "it was of use");
        uses.note_outcome(NAME, CacheOutcome::Recalled);
        assert!(!uses.may_cache(NAME, at(1)) && uses.may_cache(NAME, at(1)), "and begins anew");
    }

    #[test]
    fn names_that_end_alike_know_nothing_of_each_other() {
        let (uses, other) = (CachePolicy::of(8), NAME + (1 << 33));
        uses.may_cache(NAME, at(0));
        assert!(!uses.may_cache(other, at(0)));
        uses.note_outcome(other, CacheOutcome::Recalled);
        assert!(uses.may_cache(NAME, at(0)), "the other one's calls are no matter of it");
        assert!(!uses.may_cache(other, at(0)), "it was called for in vain");
    }

    #[test]
    fn as_many_names_as_may_stay_all_do_though_they_are_used_in_turn() {
        let uses = CachePolicy::of(10_000);
        // Any hash will do whose bits are as good as random ones (splitmix64).
        let hash = |name: u64| {
            let hash = (name.wrapping_mul(0x9e37_79b9_7f4a_7c15) ^ 0x1234_5678).wrapping_mul(0xbf58_476d_1ce4_e5b9);
            hash ^ (hash >> 29)
        };
        let mut left: Vec<u64> = (0..10_000).map(hash).collect();
        let mut now = at(0);
        for round in 0..4 {
            left.retain(|name| {
                now = now.after(Duration::from_nanos(12_345));
                !uses.may_cache(*name, now)
            });
            assert!(round == 0 || left.len() < 100, "{} names do not stay at use {}", left.len(), round + 1);
        }
        assert_eq!(left.len(), 0, "names that do not stay");
    }
}
