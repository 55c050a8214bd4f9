//! Pauses before an unanswered request is sent again. The pauses grow, so that many waiting tasks send few requests
//! during an outage. They are partly random, so that the tasks do not all send at the same time.
//!
//! Half of each pause is random. Source: Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).

use std::time::Duration;

/// First pause. It is longer than the time that a new connection needs to replace a broken one.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause. It is short, so that a waiter asks soon after the server is back.
const MAX: Duration = Duration::from_millis(250);

/// Random share of a pause or interval. Code without randomness gets it as an input.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Jitter(u16);

impl Jitter {
    /// Draws a new random share.
    pub(crate) fn draw() -> Self {
        Self(fastrand::u16(..))
    }

    /// Returns a share that is not random, for tests.
    #[cfg(test)]
    pub(crate) const fn of(share: u16) -> Self {
        Self(share)
    }

    /// Returns the share as a number from 0 to less than 1.
    pub(crate) fn fraction(self) -> f64 {
        f64::from(self.0) / 65_536.0
    }
}

/// Pauses of one request, or of one hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Backoff {
    longest: Duration,
}

impl Default for Backoff {
    fn default() -> Self {
        Self::new()
    }
}

impl Backoff {
    pub(crate) const fn new() -> Self {
        Self { longest: FIRST }
    }

    /// Returns the pauses after many failures.
    pub(crate) const fn longest() -> Self {
        Self { longest: MAX }
    }

    /// Returns the pause before the next try. The pause after that will be longer.
    pub(crate) fn pause(&mut self, jitter: Jitter) -> Duration {
        let pause = self.longest.mul_f64(0.5 + jitter.fraction() / 2.0);
        self.longest = (self.longest * 2).min(MAX);
        pause
    }

    /// Waits before the next try.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.pause(Jitter::draw())).await;
    }

    /// Starts again with the first pause. The calling code does so after an answer.
    pub(crate) fn reset(&mut self) {
        *self = Self::new();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_grow_to_the_longest_and_begin_anew_after_an_answer() {
        let mut backoff = Backoff::new();
        assert!(backoff.pause(Jitter::draw()) <= FIRST);
        let pauses: Vec<_> = std::iter::repeat_with(|| backoff.pause(Jitter::draw())).take(20).collect();
        assert!(pauses.iter().all(|pause| *pause <= MAX), "{pauses:?}");
        assert!(pauses[4..].iter().all(|pause| *pause >= MAX / 2), "{pauses:?}");
        backoff.reset();
        assert!(backoff.pause(Jitter::draw()) <= FIRST);
    }
}
