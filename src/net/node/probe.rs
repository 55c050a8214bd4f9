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
    pub(super) async fn wait_for_answer(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.outage.is() {
            return Ok(());
        }
        let answer = self.outage.next_answer();
        tokio::pin!(answer);
        // Enabled before the second check, so that a wake-up between this check and the wait is not lost.
        answer.as_mut().enable();
        let _waits = Waits::begin(&self.outage);
        if !self.outage.is() {
            return Ok(());
        }
        self.probe();
        let in_time = tokio::time::timeout(self.limits.response_timeout, answer).await;
        in_time.map_err(|_| Fault::NotSent(self.outage.source()))
    }

    fn probe(self: &Arc<Self>) {
        if self.outage.begins_probing() {
            let probe = Probe { connections: Arc::downgrade(self) };
            self.background_runtime.spawn(probe.run());
        }
    }
}

/// Task that probes.
struct Probe {
    connections: Weak<Connections>,
}

impl Probe {
    async fn run(self) {
        while let Some(connections) = self.connections.upgrade() {
            if !connections.outage.is() || !connections.outage.is_wanted() {
                return self.ends(&connections);
            }
            // The present connection may be dead without a sign. A request on it would show that only after a response
            // timeout.
            if let Some(live) = connections.current() {
                connections.give_up(&live);
            }
            // A greeting and a refusal are both answers, so both end the outage.
            if matches!(connections.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&connections);
            }
            let pause = connections.outage.pause();
            drop(connections);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, connections: &Arc<Connections>) {
        // Gives up the right to probe first. Callers that come from now on start a prober themselves.
        drop(self);
        let is_wanted = connections.outage.is_waited_for();
        // A caller that came before that saw this prober, and started none.
        if is_wanted && connections.outage.is() {
            connections.probe();
        }
    }
}

/// Starts no other prober. A runtime that has ended drops each new task at once, so new probers would be started
/// without end.
impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.upgrade() {
            connections.outage.ends_probing();
        }
    }
}
