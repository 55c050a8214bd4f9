//! Pauses before an unanswered request is sent again. The pauses grow, so that many waiting tasks send few requests
//! during an outage. They are partly random, so that the tasks do not all send at the same time.
//!
//! Half of each pause is random. Source: Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015).

use std::time::Duration;

/// First pause. It is longer than the time that a new connection needs to replace a broken one.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause. It is short, so that a waiter asks soon after the server is back.
const MAX: Duration = Duration::from_millis(250);

/// Pauses of one request, or of one hold.
#[derive(Clone, Copy, Debug)]
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

    /// Returns the pause before the next try. The pause after that will be longer.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.longest = (self.longest * 2).min(MAX);
        pause
    }

    /// Waits before the next try.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
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
        assert!(backoff.pause() <= FIRST);
        let pauses: Vec<_> = std::iter::repeat_with(|| backoff.pause()).take(20).collect();
        assert!(pauses.iter().all(|pause| *pause <= MAX), "{pauses:?}");
        assert!(pauses[4..].iter().all(|pause| *pause >= MAX / 2), "{pauses:?}");
        backoff.reset();
        assert!(backoff.pause() <= FIRST);
    }
}
