//! Tries of a request. A failed try is repeated after a pause, or ends with an error.

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
    /// Start of the time without an answer.
    pub(super) since: Moment,
    /// Longest time without an answer.
    patience: Duration,
    pub(super) backoff: Backoff,
}

impl Tries {
    pub(super) fn new(since: Moment, patience: Duration) -> Self {
        Self { since, patience, backoff: Backoff::new() }
    }

    /// Returns the time without an answer, up to this failed try.
    fn time_unanswered(&self, engine: &Engine, key: &Key, failure: &Failure) -> Duration {
        engine.now().since(engine.unheard_since(key, failure, self.since))
    }

    /// Returns the error that ends the tries after this failure, or `None` if another try follows.
    pub(super) fn verdict(&self, engine: &Engine, key: &Key, failure: Failure) -> Option<Error> {
        let (lock, waited) = (key.shared_name(), self.time_unanswered(engine, key, &failure));
        match failure {
            Failure::Refused { refusal, node, message } | Failure::Broken { refusal, node, message } => {
                Some(Error::Refused { lock, refusal, node, message })
            }
            // The server has waited for the replicas already, and each further try would keep others from the lock.
            Failure::Unreplicated { asked, acknowledged, node } => {
                Some(Error::NotEnoughReplicas { lock, asked, acknowledged, node })
            }
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                (waited >= self.patience).then(|| Error::unreachable(lock, waited, source))
            }
        }
    }

    /// Waits until it is time for the next try. Fails if the tries are over.
    pub(super) async fn on_failure(&mut self, engine: &Engine, key: &Key, failure: Failure) -> Result<()> {
        let left = self.patience.saturating_sub(self.time_unanswered(engine, key, &failure));
        match self.verdict(engine, key, failure) {
            Some(error) => Err(error),
            None => {
                // While a node does not answer, the next try waits for the node's probe, as all other requests do.
                if !engine.scheme.contact(key).is_silent {
                    // No pause lasts longer than the rest of `patience`.
                    tokio::time::sleep(self.backoff.pause(Jitter::draw()).min(left)).await;
                }
                Ok(())
            }
        }
    }
}
