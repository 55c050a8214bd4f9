//! Probe of a node during an outage. One task asks the node again and again, with growing pauses, and all callers wait
//! for its result.
//!
//! So the load on the node does not depend on the number of waiting callers. The first answer wakes all callers. The
//! task ends when no caller waits for the node any more.

use std::sync::{Arc, Weak};

use super::Node;
use super::connections::Connections;
use super::outage::Waits;
use crate::base::single_task::Running;
use crate::net::fault::Fault;

impl Node {
    /// Waits until the node answers again. Returns at once if the node is not in an outage. Fails after one response
    /// timeout, so that the caller can decide whether to wait again.
    pub(in crate::net) async fn wait_for_answer(&self) -> Result<(), Fault> {
        let outage = &self.connections.outage;
        if !outage.is() {
            return Ok(());
        }
        let answer = outage.answered.notified();
        tokio::pin!(answer);
        // The future `answer` is enabled before the second check of the outage. Otherwise an answer between that check
        // and the wait would not wake this caller.
        answer.as_mut().enable();
        let _waits = Waits::begin(outage);
        if !outage.is() {
            return Ok(());
        }
        if let Some(running) = outage.probe_task.begin() {
            let connections = Arc::downgrade(&self.connections);
            self.connections.background_runtime.spawn(probe(connections, running));
        }
        let in_time = tokio::time::timeout(self.limits.response_timeout, answer).await;
        in_time.map_err(|_| Fault::NotSent(outage.source()))
    }
}

/// Probes a node until it answers or no caller waits for it.
async fn probe(connections: Weak<Connections>, mut running: Running) {
    while let Some(connections) = connections.upgrade() {
        let outage = &connections.outage;
        if !outage.is() || !outage.is_wanted() || is_answered(&connections).await {
            let goes_on = running.end_unless(|| outage.is_waited_for() && outage.is());
            let Some(goes_on) = goes_on else { return };
            running = goes_on;
            continue;
        }
        let pause = outage.pause();
        drop(connections);
        tokio::time::sleep(pause).await;
    }
}

/// Returns true if the node answers. The present connection may be dead without a sign of it, and a request on it would
/// fail only after one response timeout. So this function uses a new connection.
async fn is_answered(connections: &Arc<Connections>) -> bool {
    if let Some(live) = connections.current() {
        connections.give_up(&live);
    }
    // A server that refuses the connection has answered as well.
    matches!(connections.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. }))
}
