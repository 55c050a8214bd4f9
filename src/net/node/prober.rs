//! Prober of a silent node: one task asks the node again and again, and all callers wait for its result.
//!
//! The number of waiting callers does not matter: one task asks a silent node, with pauses that grow. The first answer
//! wakes all callers. The prober ends when no caller waits for the node.

use std::sync::{Arc, Weak};

use super::connections::Connections;
use super::outage::Waits;
use crate::net::fault::Fault;

impl Connections {
    /// Waits until the node answers again. Returns at once if the node is not silent. Fails after one response timeout,
    /// so that the caller can decide what to do.
    pub(super) async fn word(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.silence.is() {
            return Ok(());
        }
        let word = self.silence.word();
        tokio::pin!(word);
        // Enabled before the second check, so that a wake-up between this check and the wait is not lost.
        word.as_mut().enable();
        let _waits = Waits::begin(&self.silence);
        if !self.silence.is() {
            return Ok(());
        }
        self.probe();
        let in_time = tokio::time::timeout(self.limits.response_timeout, word).await;
        in_time.map_err(|_| Fault::NotSent(self.silence.source()))
    }

    fn probe(self: &Arc<Self>) {
        if self.silence.begins_probing() {
            let prober = Prober { lines: Arc::downgrade(self) };
            self.home.spawn(prober.run());
        }
    }
}

/// Task that probes.
struct Prober {
    lines: Weak<Connections>,
}

impl Prober {
    async fn run(self) {
        while let Some(lines) = self.lines.upgrade() {
            if !lines.silence.is() || !lines.silence.is_wanted() {
                return self.ends(&lines);
            }
            // The present connection may be dead without a sign. A request on it would show that only after a response
            // timeout.
            if let Some(live) = lines.current() {
                lines.give_up(&live);
            }
            // A greeting and a refusal are both answers, so both end the outage.
            if matches!(lines.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&lines);
            }
            let pause = lines.silence.pause();
            drop(lines);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, lines: &Arc<Connections>) {
        // Gives up the right to probe first. Callers that come from now on start a prober themselves.
        drop(self);
        let is_wanted = lines.silence.is_waited_for();
        // A caller that came before that saw this prober, and started none.
        if is_wanted && lines.silence.is() {
            lines.probe();
        }
    }
}

/// Starts no other prober. A runtime that has ended drops each new task at once, so new probers would be started
/// without end.
impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.upgrade() {
            lines.silence.ends_probing();
        }
    }
}
