//! Probe of a node during an outage. One task asks the node again and again, with growing pauses, and all callers wait
//! for its result.
//!
//! So the load on the node does not depend on the number of waiting callers. The first answer wakes all callers. The
//! task ends when no caller waits for the node any more.

use std::sync::{Arc, Weak};

use super::connections::Connections;
use super::outage::Waits;
use crate::net::fault::Fault;

impl Connections {
    /// Waits until the node answers again. Returns at once if the node is not in an outage. Fails after one response
    /// timeout, so that the caller can decide whether to wait again.
    pub(super) async fn wait_for_answer(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.outage.is() {
            return Ok(());
        }
        let answer = self.outage.next_answer();
        tokio::pin!(answer);
        // The future `answer` is enabled before the second check of the outage. Otherwise an answer between that check
        // and the wait would not wake this caller.
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

/// Task that probes a node.
struct Probe {
    connections: Weak<Connections>,
}

impl Probe {
    async fn run(self) {
        while let Some(connections) = self.connections.upgrade() {
            if !connections.outage.is() || !connections.outage.is_wanted() {
                return self.ends(&connections);
            }
            // The present connection may be dead without a sign of it. A request on this connection would fail only
            // after one response timeout, so the probe uses a new connection.
            if let Some(live) = connections.current() {
                connections.give_up(&live);
            }
            // A server that refuses the connection has answered as well, so a refusal also ends the outage.
            if matches!(connections.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&connections);
            }
            let pause = connections.outage.pause();
            drop(connections);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, connections: &Arc<Connections>) {
        // Gives up the right to probe before the check. A caller that begins to wait after this line can start a probe
        // task itself.
        drop(self);
        let is_wanted = connections.outage.is_waited_for();
        // A caller that began to wait before that line found the right taken, and started no probe task. This task must
        // start one for it.
        if is_wanted && connections.outage.is() {
            connections.probe();
        }
    }
}

/// Gives up the right to probe, but starts no other probe task. On a runtime that has ended, each new task is dropped
/// at once, so a start at this place would repeat without end.
impl Drop for Probe {
    fn drop(&mut self) {
        if let Some(connections) = self.connections.upgrade() {
            connections.outage.ends_probing();
        }
    }
}
