//! Prober of a node that does not answer: one task asks the node again and again, all callers wait for its result.
//!
//! However many callers wait, only one task asks a silent node, with pauses that grow. Its first answer wakes the
//! callers. No task probes a node that no caller wants.

use std::sync::{Arc, Weak};

use super::connections::Connections;
use super::outage::Waits;
use crate::net::fault::Fault;

impl Connections {
    /// Waits until the node answers again; returns at once if it is not silent. Fails after a response timeout, so that
    /// the caller can decide.
    pub(super) async fn word(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.silence.is() {
            return Ok(());
        }
        let word = self.silence.word();
        tokio::pin!(word);
        // Enabled before the second look: a wake-up between that look and the wait is not lost.
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
            // The present connection may be dead without our knowledge, and would take a response timeout to show it.
            if let Some(live) = lines.current() {
                lines.give_up(&live);
            }
            // A greeting ends the outage, and so does a refusal: both are answers.
            if matches!(lines.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&lines);
            }
            let pause = lines.silence.pause();
            drop(lines);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, lines: &Arc<Connections>) {
        // Gives up the right to probe first: callers that come from now on start a prober themselves.
        drop(self);
        let is_wanted = lines.silence.is_waited_for();
        // A caller came while this prober was still registered, and so began none of its own.
        if is_wanted && lines.silence.is() {
            lines.probe();
        }
    }
}

/// Starts no other prober: a runtime that has ended drops each new task at once, and that would never end.
impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.upgrade() {
            lines.silence.ends_probing();
        }
    }
}
