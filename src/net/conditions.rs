//! Defects of servers that answer: full memory, an unsafe memory policy, or a wrong clock. The function `health` and a
//! gauge report them, and the log reports each change once. This module also logs the first connection of a manager.
//!
//! Most facts come from answers to other requests: refusals because of full memory, and server times in replies. In
//! addition, each new connection may send `INFO memory`.

use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;

use crate::base::events;
use crate::base::health::{ClockReading, FindingKind, NodeFinding, clock_skews, micros};
use crate::base::lease::{Moment, ServerTime};
use crate::base::metrics::{Counter, NodeFindings};
use crate::base::panics::catch_panic;
use crate::net::CLOCK;

/// Time for which the memory of a server counts as full after the server has refused a request for this reason. It
/// applies only if the user may not send `INFO memory`, because otherwise the answer shows the memory in use.
const MAX_REFUSAL_AGE: Duration = Duration::from_secs(60);
/// Least time between two `INFO memory` on new connections to the same node.
const MEMORY_PAUSE: Duration = Duration::from_secs(5);

/// Texts for the log: the addresses that the user named, and the durability.
#[derive(Clone, Debug, Default)]
pub(crate) struct ConditionsOf {
    pub(crate) servers: String,
    pub(crate) durability: String,
}

/// Conditions of all servers of one manager. Log and gauge are changed while the mutex is not locked.
#[derive(Debug)]
pub(crate) struct Conditions {
    place: ConditionsOf,
    max_skew: Duration,
    has_connected: AtomicBool,
    nodes: Mutex<BTreeMap<String, Condition>>,
    counts: NodeFindings,
    unpublished: Counter,
}

/// Facts about one server, with the findings that the log has reported.
#[derive(Clone, Debug, Default)]
struct Condition {
    memory: Option<Memory>,
    asked: Option<Moment>,
    may_not_ask: bool,
    refused: Option<Moment>,
    clock: Option<ClockReading>,
    findings: Vec<NodeFinding>,
    /// True if the log has reported that the server takes scripts in the portable form only.
    is_form_told: bool,
    /// True if the log has reported that the server refuses notifications of scripts.
    is_unpublished_told: bool,
}

/// Facts from an answer to `INFO memory`.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Memory {
    pub(crate) used: u64,
    /// Memory limit in bytes. Zero if the server has no limit.
    pub(crate) max: u64,
    pub(crate) policy: String,
}

/// Node, with its finding of one kind before a change and after it. Exactly one of the two exists.
type FindingChange = (String, Option<NodeFinding>, Option<NodeFinding>);

impl Condition {
    fn memory_findings(&self) -> impl Iterator<Item = NodeFinding> {
        let evicts = self.memory.as_ref().filter(|memory| memory.policy != "noeviction");
        let evicts = evicts.map(|memory| NodeFinding::Evicts { policy: memory.policy.clone() });
        let is_over = |memory: &Memory| memory.max > 0 && memory.used > memory.max && memory.policy == "noeviction";
        let memory = self.memory.as_ref();
        let full = (self.refused.is_some() || memory.is_some_and(is_over)).then(|| NodeFinding::MemoryFull {
            used: memory.map(|memory| memory.used),
            maxmemory: memory.map(|memory| memory.max),
        });
        full.into_iter().chain(evicts)
    }
}

impl Conditions {
    pub(crate) fn new(place: ConditionsOf, max_skew: Duration) -> Self {
        Self {
            place,
            max_skew,
            has_connected: AtomicBool::new(false),
            nodes: Mutex::default(),
            counts: NodeFindings::default(),
            unpublished: Counter::of("rwlock_unpublished_total"),
        }
    }

    /// Logs the first connection of the manager.
    pub(super) fn note_connected(&self, node: &str, server: &str, version: &str) {
        if !self.has_connected.swap(true, Ordering::Relaxed) {
            let ConditionsOf { servers, durability } = &self.place;
            catch_panic(|| events::log_connection(node, servers, &format!("{server} {version}"), durability));
        }
    }

    /// Returns true if a new connection should send `INFO memory` now. If so, notes the time of this question.
    pub(super) fn begins_asking(&self, node: &str) -> bool {
        let now = CLOCK.now();
        let mut nodes = self.nodes.lock();
        let known = nodes.entry(node.to_owned()).or_default();
        let is_due = !known.may_not_ask && known.asked.is_none_or(|asked| now.since(asked) >= MEMORY_PAUSE);
        if is_due {
            known.asked = Some(now);
        }
        is_due
    }

    /// Notes the answer to `INFO memory`. `None` means that the user may not send `INFO memory`.
    pub(super) fn note_memory(&self, node: &str, memory: Option<Memory>) {
        let now = CLOCK.now();
        self.change(node, |known| {
            known.may_not_ask = memory.is_none();
            known.asked = Some(now);
            let is_recent = |refused: &Moment| now.since(*refused) < MAX_REFUSAL_AGE;
            known.refused = known.refused.filter(|refused| memory.is_none() && is_recent(refused));
            known.memory = memory;
        });
    }

    /// Notes that the server refused a request because its memory is full.
    pub(super) fn note_memory_refusal(&self, node: &str) {
        let now = CLOCK.now();
        self.change(node, |known| known.refused = Some(now));
    }

    /// Notes the time of a server's clock. The server read this clock between `sent` and `answered`.
    pub(super) fn note_time(&self, node: &str, server: ServerTime, sent: Moment, answered: Moment) {
        let here = micros(Duration::from_nanos(sent.halfway_to(answered).as_nanos()));
        let server = i64::try_from(server.as_micros()).unwrap_or(i64::MAX);
        let uncertain_us = micros(answered.since(sent)) / 2 + 1000;
        let reading = ClockReading { ahead_us: server.saturating_sub(here), uncertain_us };
        self.change(node, |known| known.clock = Some(reading));
    }

    /// Notes that the server refused the fast form of a script, with these words. The log reports this once per server.
    pub(super) fn note_refused_form(&self, node: &str, words: &str) {
        if self.is_first(node, |known| &mut known.is_form_told) {
            catch_panic(|| events::form_refused(node, words));
        }
    }

    /// Counts an answer of a script whose notification the server refused. The log reports this once per server.
    pub(super) fn note_unpublished(&self, node: &str) {
        self.unpublished.add_one();
        if self.is_first(node, |known| &mut known.is_unpublished_told) {
            catch_panic(|| events::publishing_refused(node));
        }
    }

    /// Sets a flag of a server, and returns true if it was not set before.
    fn is_first(&self, node: &str, flag: impl FnOnce(&mut Condition) -> &mut bool) -> bool {
        !std::mem::replace(flag(self.nodes.lock().entry(node.to_owned()).or_default()), true)
    }

    /// Returns the findings about a server's memory. A finding about its clock is not included, because it depends on
    /// the clocks of other servers.
    pub(super) fn memory_findings(&self, node: &str) -> Vec<NodeFinding> {
        self.nodes.lock().get(node).into_iter().flat_map(Condition::memory_findings).collect()
    }

    /// Returns the addresses of the servers with findings.
    pub(super) fn servers_with_findings(&self) -> Vec<String> {
        let nodes = self.nodes.lock();
        nodes.iter().filter(|(_, known)| !known.findings.is_empty()).map(|(node, _)| node.clone()).collect()
    }

    pub(super) fn has_findings(&self, node: &str) -> bool {
        self.nodes.lock().get(node).is_some_and(|known| !known.findings.is_empty())
    }

    /// Forgets servers that are no longer members.
    pub(super) fn retain(&self, is_member: impl Fn(&str) -> bool) {
        let mut gone = Vec::new();
        self.nodes.lock().retain(|node, known| {
            let is_member = is_member(node);
            if !is_member {
                gone.append(&mut known.findings);
            }
            is_member
        });
        gone.iter().for_each(|finding| self.counts.fewer(finding.kind()));
    }

    fn change(&self, node: &str, change: impl FnOnce(&mut Condition)) {
        let mut nodes = self.nodes.lock();
        change(nodes.entry(node.to_owned()).or_default());
        let changes = self.judge(&mut nodes);
        // The mutex is released first, because log and gauge may call code of the user.
        drop(nodes);
        for (node, before, after) in changes {
            if let Some(finding) = after {
                self.counts.one_more(finding.kind());
                catch_panic(|| events::node_found(&node, &finding));
            }
            if let Some(finding) = before {
                self.counts.fewer(finding.kind());
                catch_panic(|| events::node_mended(&node, finding.kind()));
            }
        }
    }

    /// Determines the findings of all servers again, because a new time of one clock can change the findings of other
    /// servers. Returns the changes.
    fn judge(&self, nodes: &mut BTreeMap<String, Condition>) -> Vec<FindingChange> {
        let readings: Vec<_> = nodes.values().filter_map(|known| known.clock).collect();
        // How far this machine's clock is ahead of the clock that gives moments.
        let wall_ahead_us = micros(wall_clock()).saturating_sub(micros(Duration::from_nanos(CLOCK.now().as_nanos())));
        let mut skews = clock_skews(&readings, wall_ahead_us, self.max_skew).into_iter();
        let mut changes = Vec::new();
        for (node, known) in nodes {
            let skew = known.clock.and_then(|_| skews.next().flatten());
            let findings: Vec<_> = known.memory_findings().chain(skew).collect();
            let before = std::mem::replace(&mut known.findings, findings);
            for kind in FindingKind::ALL {
                let of_kind = |findings: &[NodeFinding]| findings.iter().find(|other| other.kind() == kind).cloned();
                let (before, after) = (of_kind(&before), of_kind(&known.findings));
                if before.is_some() != after.is_some() {
                    changes.push((node.clone(), before, after));
                }
            }
        }
        changes
    }
}

impl Drop for Conditions {
    fn drop(&mut self) {
        let findings = self.nodes.get_mut().values().flat_map(|known| &known.findings);
        findings.for_each(|finding| self.counts.fewer(finding.kind()));
    }
}

/// Returns the time of this machine's clock since 1970.
pub(super) fn wall_clock() -> Duration {
    SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default()
}

#[cfg(all(test, feature = "metrics"))]
mod tests {
    use super::*;
    use crate::base::metrics::recording::Recording;

    #[test]
    fn each_refused_notification_is_counted() {
        let recording = Recording::default();
        let make = || Conditions::new(ConditionsOf::default(), Duration::from_secs(1));
        let conditions = metrics::with_local_recorder(&recording, make);
        for node in ["a:1", "a:1", "b:1"] {
            conditions.note_unpublished(node);
        }
        assert_eq!(recording.told("rwlock_unpublished_total").1, 3.0);
    }
}
