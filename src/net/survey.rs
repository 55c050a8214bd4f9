//! Questions to all servers of a manager, such as those for their health and their keys.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::StreamExt;
use futures_util::stream;
use redis::Value;

use crate::base::attempt::{BoxFuture, Failure};
use crate::base::error::Refusal;
use crate::base::health::{NodeHealth, NodeRole};
use crate::base::key::slot_of;
use crate::base::lease::ServerTime;
use crate::base::topology::AddressSource;
use crate::net::CLOCK;
use crate::net::conditions::wall_clock;
use crate::net::fault::{Answer, Fault};
use crate::net::fleet::Fleet;
use crate::net::node::{Node, hello_field, info, info_field, info_text, list_items, parse_time};
use crate::net::slot_owners::SlotOwners;

/// Number of keys that a server examines for one answer to `SCAN`. This takes a fraction of a millisecond, in which the
/// server does nothing else.
const PAGE: &str = "500";
/// Limit for the nodes that are asked for their health at the same time. Each of them may need a new connection.
const ASKED_AT_ONCE: usize = 32;

/// Server that is asked for its health. `health` is what is known of the server before it answers.
struct Subject<'a> {
    health: NodeHealth,
    probe: BoxFuture<'a, Probed>,
}

/// Health of a server that has answered, or the fault of a server that has not.
type Probed = Result<NodeHealth, Fault>;

impl<'a> Subject<'a> {
    /// Returns the health of the server as soon as it answers. If it has not answered by the deadline, returns what is
    /// known of it. `late` is the whole time until the deadline, for the text of the problem.
    fn answer(self, deadline: tokio::time::Instant, late: Duration) -> BoxFuture<'a, NodeHealth> {
        let Self { health, probe } = self;
        Box::pin(async move {
            match tokio::time::timeout_at(deadline, probe).await {
                Ok(Ok(answer)) => answer,
                Ok(Err(fault)) => {
                    let reason = fault.into_source().map(|source| source.to_string());
                    NodeHealth { problem: reason.or_else(|| Some("no answer in time".to_owned())), ..health }
                }
                Err(_) => NodeHealth { problem: Some(format!("no answer within {late:?}")), ..health },
            }
        })
    }
}

impl SlotOwners {
    /// Searches every primary for keys that match `pattern`, and passes each of them to `found`.
    ///
    /// After a slot has left a server, this server may still show keys of the slot for a while, and may have kept them
    /// by mistake. So a key of a slot that another server owns counts only while the slot is on its way here.
    pub(super) async fn scan(&self, pattern: &str, found: &mut (dyn FnMut(&str) + Send)) -> Result<(), Fault> {
        for node in self.primaries().await? {
            let mut cursor = "0".to_owned();
            loop {
                let mut question = redis::cmd("SCAN");
                question.arg(&cursor).arg("MATCH").arg(pattern).arg("COUNT").arg(PAGE);
                let page = node.ask(&question).await.map_err(|fault| fault.at(node.shown()))?;
                let keys;
                (cursor, keys) = read_page(&page).ok_or_else(|| Fault::unreadable(node.shown(), "SCAN"))?;
                for key in keys {
                    if self.is_at_home(&node, key).await? {
                        found(key);
                    }
                }
                if cursor == "0" {
                    break;
                }
            }
        }
        Ok(())
    }

    /// Returns true if `node` owns the slot of the key, or imports it. A server that a slot leaves redirects requests for
    /// a key that has left already.
    async fn is_at_home(&self, node: &Node, key: &str) -> Result<bool, Fault> {
        let Some(fleet) = self.fleet() else { return Ok(true) };
        let slot = slot_of(key.as_bytes());
        if fleet.sentinels.is_some() || fleet.may_own(slot, node) {
            return Ok(true);
        }
        let owner = fleet.owner(slot).await?;
        // Locks need the right for this command anyway.
        let mut question = redis::cmd("HGET");
        match owner.ask(question.arg(key).arg("-")).await {
            // The owner shows the key itself if it has it.
            Ok(_) | Err(Fault::Moved { .. } | Fault::Refused { refusal: Refusal::ForeignKey, .. }) => Ok(false),
            Err(Fault::Ask { .. }) => Ok(true),
            Err(fault) => Err(fault.at(owner.shown())),
        }
    }

    /// Refuses a primary to which too few replicas are attached for the durability.
    pub(super) async fn check_replicas(&self) -> Result<(), Failure> {
        for node in self.primaries().await.map_err(Fault::into_failure)? {
            node.check_replicas().await.map_err(|fault| fault.into_failure().at(node.shown()))?;
        }
        Ok(())
    }

    /// Returns all primaries. Fails if a slot has no known owner, because a list without its keys would look complete.
    async fn primaries(&self) -> Result<Vec<Arc<Node>>, Fault> {
        match self {
            Self::Single(node) => Ok(vec![Arc::clone(node)]),
            Self::Many(fleet) => {
                fleet.refresh().await?;
                let map = fleet.known_map();
                match map.orphan() {
                    Some(slot) => Err(Fault::Again(Answer::error(format!("nobody owns slot {slot}")))),
                    None => map.owners().map(|owner| fleet.node(owner)).collect(),
                }
            }
        }
    }
}

/// Reads one answer to `SCAN`: the cursor for the next question, and the keys. Keys of locks are text, so other keys
/// are skipped.
fn read_page(reply: &Value) -> Option<(String, Vec<&str>)> {
    let [cursor, Value::Array(keys)] = list_items(reply)? else { return None };
    Some((info_text(cursor)?.to_owned(), keys.iter().filter_map(info_text).collect()))
}

/// Returns the health of all servers. Reports a server that has not answered by the deadline as unreachable.
pub(super) async fn health(slot_owners: &SlotOwners, response_timeout: Duration) -> Vec<NodeHealth> {
    let late = response_timeout * 4;
    let deadline = tokio::time::Instant::now() + late;
    let subjects = match slot_owners {
        SlotOwners::Single(node) => {
            vec![subject(node.address(), AddressSource::User, NodeRole::Primary, Ok(Arc::clone(node)))]
        }
        SlotOwners::Many(fleet) => {
            // The map is refreshed first, because a fleet does not refresh it while all nodes work. The result is
            // ignored. Without a new map, the known members are asked, or the members that the user named.
            drop(tokio::time::timeout(response_timeout * 2, fleet.refresh()).await);
            of_fleet(fleet)
        }
    };
    // A server may need one new connection and up to three answers. The deadline allows one response timeout for each
    // of them.
    let probes: Vec<_> = subjects.into_iter().map(|subject| subject.answer(deadline, late)).collect();
    let mut nodes: Vec<_> = stream::iter(probes).buffer_unordered(ASKED_AT_ONCE).collect().await;
    nodes.sort_by(|a, b| a.address.cmp(&b.address));
    nodes
}

fn of_fleet(fleet: &Fleet) -> Vec<Subject<'_>> {
    let map = fleet.known_map();
    let mut addresses: Vec<Arc<str>> = map.everybody().cloned().collect();
    if addresses.is_empty() {
        addresses = fleet.seeds();
    }
    addresses.sort();
    addresses.dedup();
    let owners: Vec<&Arc<str>> = map.owners().collect();
    let role = |address: &Arc<str>| match () {
        () if owners.contains(&address) => NodeRole::Primary,
        () if map.is_empty() => NodeRole::Unknown,
        () => NodeRole::Replica,
    };
    let nodes = addresses
        .iter()
        .map(|address| subject(address, fleet.announced.source(address), role(address), fleet.passing_node(address)));
    let sentinels = fleet.sentinels.iter().flat_map(|sentinels| sentinels.ask_each());
    let sentinels = sentinels.map(|(address, asking)| {
        let health = NodeHealth::new_unknown(&address, NodeRole::Sentinel);
        let known = health.clone();
        let probe = async move { asking.await.map(|_| NodeHealth { is_reachable: true, ..known }) };
        Subject { health, probe: Box::pin(probe) }
    });
    nodes.chain(sentinels).collect()
}

fn subject(
    address: &str,
    address_source: AddressSource,
    role: NodeRole,
    node: Result<Arc<Node>, Fault>,
) -> Subject<'static> {
    let health = NodeHealth { address_source, ..NodeHealth::new_unknown(address, role) };
    let known = health.clone();
    Subject { health, probe: Box::pin(async move { probe(&*node?, known).await }) }
}

/// Asks one node for its health. If the user lacks the right for a question, the health lacks only that answer.
async fn probe(node: &Node, known: NodeHealth) -> Probed {
    // The connection is opened first, so that the measured time is one round trip.
    node.ready().await?;
    let (sent, clock, began) = (Instant::now(), wall_clock(), CLOCK.now());
    let time = node.ask(&redis::cmd("TIME")).await?;
    let round_trip = sent.elapsed();
    node.note_time(&time, began, CLOCK.now());
    let server = parse_time(&time).ok_or_else(|| Fault::unreadable(node.shown(), "TIME"))?;
    let mut health = NodeHealth {
        is_reachable: true,
        round_trip: Some(round_trip),
        clock_ahead_ms: ahead_ms(server, clock + round_trip / 2),
        ..known
    };
    if let Ok(hello) = node.hello().await {
        health.server = hello_field(&hello, "server");
        health.version = hello_field(&hello, "version");
        health.role = match hello_field(&hello, "role").as_deref() {
            Some("master" | "primary") => NodeRole::Primary,
            Some("replica" | "slave") => NodeRole::Replica,
            _ => health.role,
        };
    }
    let memory = node.ask(&info("memory")).await;
    if let Ok(memory) = &memory {
        let policy = info_text(memory).and_then(|memory| info_field(memory, "maxmemory_policy"));
        health.noeviction = policy.map(|policy| policy == "noeviction");
    }
    node.note_memory(memory);
    health.findings = node.memory_findings();
    Ok(health)
}

fn ahead_ms(server: ServerTime, here: Duration) -> Option<i64> {
    let here_us = i64::try_from(here.as_micros()).ok()?;
    Some((i64::try_from(server.as_micros()).ok()? - here_us) / 1000)
}
