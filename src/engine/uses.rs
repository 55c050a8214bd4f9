//! Which names come back: a hold stays only for a name that is used again and again, and not for one that others call for each time
//! before it is.
//!
//! The rule is BRAVO's (Dice and Kogan, "BRAVO: Biased Locking for Reader-Writer Locks", 2019) with a count in place of a time: a
//! hold that was called for before it was used again does not stay at the next 1, 3, 7 and then 15 uses.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

use crate::lease::Moment;
use crate::lock::hold::{CountsKept, Stay};
use crate::meter::Meter;

/// A name that was used longer ago is a new one.
const REMEMBERED: Duration = Duration::from_secs(10);
/// After so many calls in a row the pauses grow no longer.
const MAX_STRIKES: u8 = 4;
/// More names than this are known by those that come again soon.
const MAX_PLACES: usize = 1 << 16;

/// What is known of the names of a manager. Two that fall on one place push each other out: then neither stays.
#[derive(Debug)]
pub(crate) struct Uses {
    places: Box<[Mutex<Place>]>,
    /// How many holds may stay, and how many at most.
    kept: AtomicUsize,
    most: usize,
    meter: Meter,
}

#[derive(Clone, Copy, Debug, Default)]
struct Place {
    /// Part of the name's hash; zero for none.
    name: u32,
    /// When it was used last, in milliseconds.
    used_ms: u32,
    strikes: u8,
    /// At so many uses more it does not stay.
    skips: u8,
}

impl Uses {
    /// For about so many names.
    pub(crate) fn of(names: usize) -> Arc<Self> {
        let places = names.saturating_mul(2).clamp(64, MAX_PLACES).next_power_of_two();
        let places = std::iter::repeat_with(Mutex::default).take(places).collect();
        Arc::new(Self { places, kept: AtomicUsize::new(0), most: names, meter: Meter::default() })
    }

    pub(crate) fn one_more(&self) {
        self.kept.fetch_add(1, Ordering::Relaxed);
        self.meter.kept();
    }

    /// How many too many there are.
    pub(crate) fn excess(&self) -> usize {
        self.kept.load(Ordering::Relaxed).saturating_sub(self.most)
    }

    fn place(&self, hash: u64) -> (&Mutex<Place>, u32) {
        let place = &self.places[hash as usize & (self.places.len() - 1)];
        (place, (hash >> 32) as u32 | 1)
    }

    /// The server is to be asked for this name. Whether the hold may stay: the name was used before, and has not been called back in
    /// vain of late.
    pub(crate) fn begins(&self, hash: u64, now: Moment) -> bool {
        let (place, name) = self.place(hash);
        let now_ms = (now.as_nanos() / 1_000_000) as u32;
        let mut place = place.lock();
        let is_known = place.name == name && now_ms.wrapping_sub(place.used_ms) <= REMEMBERED.as_millis() as u32;
        if !is_known {
            *place = Place { name, used_ms: now_ms, strikes: 0, skips: 0 };
            return false;
        }
        place.used_ms = now_ms;
        let stays = place.skips == 0;
        place.skips = place.skips.saturating_sub(1);
        stays
    }

    /// A hold that stayed is over: called for before it was used again, or of use.
    pub(crate) fn ended(&self, hash: u64, stay: Stay) {
        let (place, name) = self.place(hash);
        let mut place = place.lock();
        if place.name != name {
            return;
        }
        match stay {
            Stay::ForNothing => {
                place.strikes = (place.strikes + 1).min(MAX_STRIKES);
                place.skips = (1 << place.strikes) - 1;
            }
            Stay::OfUse => (place.strikes, place.skips) = (0, 0),
            Stay::Unused => {}
        }
    }
}

impl CountsKept for Uses {
    fn one_less(&self) {
        self.kept.fetch_sub(1, Ordering::Relaxed);
        self.meter.kept_no_more();
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
        let uses = Uses::of(8);
        assert!(!uses.begins(NAME, at(0)));
        assert!(uses.begins(NAME, at(9_000)));
        assert!(!uses.begins(NAME, at(20_000)), "it was forgotten");
    }

    #[test]
    fn name_that_is_called_back_unused_pauses_longer_and_longer() {
        let uses = Uses::of(8);
        uses.begins(NAME, at(1));
        for pause in [1, 3, 7, 15, 15] {
            assert!(uses.begins(NAME, at(1)));
            uses.ended(NAME, Stay::ForNothing);
            for _ in 0..pause {
                assert!(!uses.begins(NAME, at(1)));
            }
        }
        assert!(uses.begins(NAME, at(1)));
        uses.ended(NAME, Stay::OfUse);
        assert!(uses.begins(NAME, at(1)), "it was of use");
        uses.ended(NAME, Stay::ForNothing);
        assert!(!uses.begins(NAME, at(1)) && uses.begins(NAME, at(1)), "and begins anew");
    }

    #[test]
    fn names_of_one_place_push_each_other_out() {
        let (uses, other) = (Uses::of(8), NAME + (1 << 33));
        uses.begins(NAME, at(0));
        assert!(!uses.begins(other, at(0)));
        assert!(!uses.begins(NAME, at(0)));
        uses.ended(other, Stay::ForNothing);
        assert!(uses.begins(NAME, at(0)), "the other one's calls are no matter of it");
    }
}
