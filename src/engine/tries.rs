//! Try, fail, and try again after a pause, or end with an error: how every request is repeated.

use std::time::Duration;

use crate::base::backoff::{Backoff, Jitter};
use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::engine::Engine;
use crate::store::Failure;

/// The tries of one request.
#[derive(Debug)]
pub(super) struct Tries {
    /// Silence counts from then.
    pub(super) since: Moment,
    /// For so long.
    patience: Duration,
    pub(super) backoff: Backoff,
}

impl Tries {
    pub(super) fn new(since: Moment, patience: Duration) -> Self {
        Self { since, patience, backoff: Backoff::new() }
    }

    /// An answer has come.
    pub(super) fn on_answer(&mut self, now: Moment) {
        self.since = now;
        self.backoff.reset();
    }

    /// Length of the silence that a failed try ends.
    fn waited(&self, engine: &Engine, key: &Key, failure: &Failure) -> Duration {
        engine.clock.now().since(engine.unheard_since(key, failure, self.since))
    }

    /// The error to end with after a try that failed, if it is time to end.
    pub(super) fn verdict(&self, engine: &Engine, key: &Key, failure: Failure) -> Option<Error> {
        let (lock, waited) = (key.shared_name(), self.waited(engine, key, &failure));
        match failure {
            Failure::Refused { refusal, node, message } | Failure::Broken { refusal, node, message } => {
                Some(Error::Refused { lock, refusal, node, message })
            }
            // The replicas were waited for already, and each try keeps others from the lock.
            Failure::Unreplicated { asked, acknowledged, node } => {
                Some(Error::NotEnoughReplicas { lock, asked, acknowledged, node })
            }
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                (waited >= self.patience).then(|| Error::unreachable(lock, waited, source))
            }
        }
    }

    /// Returns when it is time for the next try.
    pub(super) async fn on_failure(&mut self, engine: &Engine, key: &Key, failure: Failure) -> Result<()> {
        let left = self.patience.saturating_sub(self.waited(engine, key, &failure));
        match self.verdict(engine, key, failure) {
            Some(error) => Err(error),
            None => {
                // The next try waits for the word of a node that is silent, with all others.
                if !engine.scheme.contact(key).is_silent {
                    // No pause makes the caller wait for longer than it bears.
                    tokio::time::sleep(self.backoff.pause(Jitter::draw()).min(left)).await;
                }
                Ok(())
            }
        }
    }
}
