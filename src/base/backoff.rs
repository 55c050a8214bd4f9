//! Pauses before an unanswered request is sent again. Each pause is longer, so that an outage costs little however many
//! tasks wait. Each has jitter, so that the tasks do not all return at once.
//!
//! Source: Brooker, "Exponential Backoff And Jitter" (AWS Architecture Blog, 2015): half of the pause is random.

use std::time::Duration;

/// First pause. A broken connection is opened again in less time.
const FIRST: Duration = Duration::from_millis(20);
/// Longest pause, so that a waiter is served soon after the server is back.
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

    /// Returns the pause before the next try, and makes the one after it longer.
    pub(crate) fn pause(&mut self) -> Duration {
        let pause = self.longest.mul_f64(0.5 + fastrand::f64() / 2.0);
        self.longest = (self.longest * 2).min(MAX);
        pause
    }

    /// Waits before the next try.
    pub(crate) async fn wait(&mut self) {
        tokio::time::sleep(self.pause()).await;
    }

    /// Starts again with the first pause, after an answer.
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
