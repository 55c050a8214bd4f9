//! Limit for the requests that published messages cause. Each client that may publish can send such messages, so a
//! client could otherwise cause any number of requests.

use std::time::Duration;

use crate::base::lease::Moment;

/// Number of requests that messages may cause at once. Servers send only a few messages for each wait, so only a flood
/// of foreign messages reaches this limit.
const BURST: u32 = 16;
/// Time after which one more request is allowed. During a flood, this allows 200 requests per second.
const INTERVAL: Duration = Duration::from_millis(5);

/// Rate limit for requests that messages cause. It allows [`BURST`] requests at once, and then one request per
/// [`INTERVAL`].
///
/// Source: the generic cell rate algorithm (ITU-T I.371). It stores one moment and needs no timer.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Throttle {
    /// Moment at which the whole burst is available again.
    regained_at: Moment,
}

impl Throttle {
    pub(crate) fn new() -> Self {
        Self { regained_at: Moment::START }
    }

    /// Returns the moment from which the next request is allowed. It may be in the past.
    pub(crate) fn next_at(&self) -> Moment {
        // A request moves `regained_at` ahead by one interval, and `regained_at` may be ahead of the clock by at most
        // one burst. So there must be room for one interval.
        self.regained_at.before(INTERVAL * (BURST - 1))
    }

    /// Counts a request that is sent now.
    pub(crate) fn take(&mut self, now: Moment) {
        // The maximum makes sure that idle time never allows more than one burst.
        self.regained_at = self.regained_at.max(now).after(INTERVAL);
    }

    /// Counts a request if it is allowed now.
    pub(crate) fn try_take(&mut self, now: Moment) -> bool {
        let is_allowed = self.next_at() <= now;
        if is_allowed {
            self.take(now);
        }
        is_allowed
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn burst_is_allowed_and_then_one_for_each_interval() {
        let (mut throttle, begin) = (Throttle::new(), Moment::START.after(Duration::from_secs(1)));
        assert_eq!((0..100).filter(|_| throttle.try_take(begin)).count(), 16);
        assert_eq!(throttle.next_at(), begin.after(INTERVAL));
        let second = (0..1_000_u64).map(|millis| begin.after(Duration::from_millis(millis)));
        assert_eq!(second.filter(|now| throttle.try_take(*now)).count(), 199);
        let later = begin.after(Duration::from_secs(3));
        assert_eq!((0..100).filter(|_| throttle.try_take(later)).count(), 16, "all of the burst is regained");
    }
}
