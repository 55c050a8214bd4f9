//! Health checks of a node's memory and clock. The locks do not depend on the results, which are only reported.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use redis::Value;

use super::connection::Request;
use super::connections::{Connections, OpenConnection, Sharing};
use super::greeting::{info, info_field, info_text};
use super::{Node, parse_time};
use crate::base::error::Refusal;
use crate::base::health::NodeFinding;
use crate::base::lease::{Moment, ServerTime};
use crate::base::process;
use crate::net::CLOCK;
use crate::net::conditions::Memory;
use crate::net::fault::{self, Fault};

/// Least time between two clock checks that use the server time in an answer.
const CLOCK_PAUSE: Duration = Duration::from_secs(10);

impl Connections {
    /// Asks the server for its memory in use, unless this process did so a short time ago. The question is sent on the
    /// new connection `live`. No caller waits for the answer.
    pub(super) fn check_up_in_background(self: &Arc<Self>, live: &Arc<OpenConnection>) {
        if self.conditions.begins_asking(&self.address) {
            let (connections, live) = (Arc::clone(self), Arc::clone(live));
            process::spawn(async move { connections.ask_for_memory(&live).await });
        }
    }

    async fn ask_for_memory(&self, live: &OpenConnection) {
        let info = info("memory");
        let asking = live.connection.ask(Request::Command(&info));
        if let Ok(Ok(reply)) = tokio::time::timeout(self.limits.response_timeout, asking).await {
            self.note_memory(fault::reply(reply));
        }
    }

    /// Notes an answer to `INFO memory`. A refusal is no fault, because the user may lack the right to send `INFO`.
    pub(super) fn note_memory(&self, reply: Result<Value, Fault>) {
        match reply {
            Ok(info) => self.conditions.note_memory(&self.address, read_memory(&info)),
            Err(Fault::Refused { .. }) => self.conditions.note_memory(&self.address, None),
            Err(_) => {}
        }
        self.tell_findings();
    }

    /// Notes a refusal, if the server refused the request because it has no memory left.
    pub(super) fn note_refusal(&self, fault: &Fault) {
        if let Fault::Refused { refusal: Refusal::OutOfMemory, .. }
        | Fault::Broken { refusal: Refusal::OutOfMemory, .. } = fault
        {
            self.conditions.note_memory_refusal(&self.address);
            self.tell_findings();
        }
    }

    pub(super) fn note_time(&self, server: ServerTime, sent: Moment, answered: Moment) {
        self.clock_noted.store(answered.as_nanos(), Ordering::Relaxed);
        self.conditions.note_time(&self.address, server, sent, answered);
        self.tell_findings();
    }

    /// Checks the clock with the server time of an answer, at most once per [`CLOCK_PAUSE`].
    pub(super) fn note_time_if_due(&self, server: ServerTime, sent: Moment) {
        let noted = Moment::from_nanos(self.clock_noted.load(Ordering::Relaxed));
        if sent.since(noted) >= CLOCK_PAUSE {
            self.note_time(server, sent, CLOCK.now());
        }
    }

    fn tell_findings(&self) {
        if self.conditions.has_findings(&self.address) {
            self.outages.tell_trouble();
        }
    }
}

impl Node {
    /// Checks again a node that is in trouble: whether it answers, accepts connections, has enough memory, and has a
    /// correct clock.
    ///
    /// Uses a new connection. An existing connection may be dead. It may also work although the server refuses new
    /// connections.
    pub(in crate::net) async fn look_again(&self) {
        let connections = &self.connections;
        if connections.outage.is()
            && let Some(live) = connections.current()
        {
            connections.give_up(&live);
        }
        let began = CLOCK.now();
        let dialed = connections.dial(Sharing::Apart).await;
        connections.note_dial(&dialed, began, CLOCK.now());
        if let Ok(live) = dialed {
            connections.ask_for_memory(&live).await;
        }
    }

    /// Checks the clock with the server time in the answer to a health check.
    pub(in crate::net) fn note_time(&self, time: &Value, sent: Moment, answered: Moment) {
        if let Some(server) = parse_time(time) {
            self.connections.note_time(server, sent, answered);
        }
    }

    pub(in crate::net) fn note_memory(&self, reply: Result<Value, Fault>) {
        self.connections.note_memory(reply);
    }

    pub(in crate::net) fn memory_findings(&self) -> Vec<NodeFinding> {
        self.connections.conditions.memory_findings(&self.connections.address)
    }
}

/// Reads the memory in use, the limit and the memory policy from an answer to `INFO memory`.
fn read_memory(info: &Value) -> Option<Memory> {
    let text = info_text(info)?;
    let field = |name: &str| info_field(text, name);
    let number = |name: &str| field(name)?.parse::<u64>().ok();
    // The server does not count the buffers for its replicas against its memory limit, so they are subtracted.
    let used = number("used_memory")?.saturating_sub(number("mem_not_counted_for_evict").unwrap_or(0));
    Some(Memory { used, max: number("maxmemory")?, policy: field("maxmemory_policy")?.to_owned() })
}
