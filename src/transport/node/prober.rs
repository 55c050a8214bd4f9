//! A node that does not answer: one prober asks it again and again, the others wait for its word.
//!
//! However many callers wait, a silent node is asked by one of them all, with pauses that grow; the word that it answers
//! again wakes the rest. Nobody probes a node that nobody asks.

use std::sync::{Arc, Weak};

use super::lines::Lines;
use super::silence::Waits;
use crate::transport::fault::Fault;

impl Lines {
    /// Returns at once, unless the node is silent: then when it answers again. Not after a response timeout, with which whoever
    /// waits has to decide.
    pub(super) async fn word(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.silence.is() {
            return Ok(());
        }
        let word = self.silence.word();
        tokio::pin!(word);
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

/// The one who asks.
struct Prober {
    lines: Weak<Lines>,
}

impl Prober {
    async fn run(self) {
        while let Some(lines) = self.lines.upgrade() {
            if !lines.silence.is() || !lines.silence.is_wanted() {
                return self.ends(&lines);
            }
            // The connection that is there may be dead without our knowing, and would take a response timeout to show it.
            if let Some(live) = lines.current() {
                lines.give_up(&live);
            }
            // One that greets us speaks, and so does one that refuses us: that ends the silence.
            if matches!(lines.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&lines);
            }
            let pause = lines.silence.pause();
            drop(lines);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, lines: &Arc<Lines>) {
        drop(self);
        let is_wanted = lines.silence.is_waited_for();
        // Somebody came who found this one still there.
        if is_wanted && lines.silence.is() {
            lines.probe();
        }
    }
}

/// Begins no other: a runtime that has ended drops it as soon as it begins, and there would be no end to it.
impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.upgrade() {
            lines.silence.ends_probing();
        }
    }
}
