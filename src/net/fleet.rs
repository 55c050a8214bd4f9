//! Fleet: several nodes, of which one owns a given slot. A fleet is a cluster, or a primary and its successors behind
//! Sentinels.
//!
//! The *map source* gives the slot map. It is the members of a cluster, or the Sentinels. The fleet asks the map source
//! after a missing answer, a refusal or a redirect, and when a connection breaks. It also asks Sentinels when replicas
//! do not acknowledge a grant. While all nodes work, the fleet does not ask the map source.
//!
//! A node that does not answer is *suspect* until it answers or owns no slot any more. While such a node owns slots,
//! the fleet asks the map source again and again. It asks a suspect for the map only if no other member has answered.
//! So the slots of the node can be used again as soon as the other members know their new owner.
//!
//! A node that answers but cannot serve its slots is suspect until it can serve them. So the fleet asks such a node for
//! the map last. A node that is cut off from the others would name itself as the owner for ever.

mod refresh;

use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::watch;

use crate::base::error::Result;
use crate::base::lease::Moment;
use crate::base::metrics::Counter;
use crate::base::single_task::SingleTask;
use crate::base::topology::{Access, AddressSource};
use crate::net::CLOCK;
use crate::net::address::{address_of, check_members, first, with_credentials, with_host};
use crate::net::announced::Announced;
use crate::net::fault::Fault;
use crate::net::members::{MAX_ASKED, Members};
use crate::net::node::{DialFault, Node, NodeSetup, OnLoss, ReplicaNames};
use crate::net::sentinels::Sentinels;
use crate::net::slots::SlotMap;

/// Time for which a slot counts as migrating after a node has redirected a call with `ASK`.
const MIGRATION: Duration = Duration::from_secs(1);

pub(super) struct Fleet {
    me: Weak<Self>,
    /// Members of the cluster. Any member can give the map. There are none behind Sentinels.
    members: Mutex<Members>,
    /// Sentinels. They name one primary, which owns all slots. `None` in a cluster.
    pub(super) sentinels: Option<Arc<Sentinels>>,
    pub(super) announced: Announced,
    /// Connection settings of all nodes. The address in these settings is not used.
    template: ConnectionInfo,
    pub(super) setup: NodeSetup,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    pub(super) map: watch::Sender<SlotMap>,
    suspects: Mutex<HashMap<String, SuspectReason>>,
    /// Number of suspects. It is usually zero, and then a call need not lock `suspects`.
    suspect_count: AtomicUsize,
    /// Migrating slots. Each has the time until which it counts as migrating.
    migrating: Mutex<HashMap<u16, Moment>>,
    /// Number of migrating slots. It is usually zero, and then a call need not lock `migrating`.
    migrating_count: AtomicUsize,
    refresh_task: SingleTask,
    /// Task that asks suspects whether they answer again.
    suspects_task: SingleTask,
    /// Time before which the refresh loop does not end.
    look_until: Mutex<Moment>,
    /// Lock for a question to the map source, so that only one task asks at a time. It holds the outcome of the last
    /// question.
    refresh_lock: tokio::sync::Mutex<Asked>,
    pub(super) map_refreshes: AtomicU64,
    map_refreshes_counter: Counter,
    /// Slot map at the time of the last log message about owners.
    told: Mutex<SlotMap>,
    /// Number of reconnects of the nodes that the fleet has forgotten.
    past_reconnects: AtomicU64,
}

/// Time at which the last question to the map source ended, and its outcome.
type Asked = Option<(Moment, Result<(), DialFault>)>;

/// Reason why a node is suspect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum SuspectReason {
    /// The node did not answer.
    Silent,
    /// The node answered that it cannot serve its slots.
    Refuses,
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.sentinels {
            None => f.debug_tuple("Cluster").field(&self.members.lock().len()).finish(),
            Some(sentinels) => sentinels.fmt(f),
        }
    }
}

impl Fleet {
    pub(super) fn cluster(infos: &[ConnectionInfo], access: &Access, setup: NodeSetup) -> Result<Arc<Self>> {
        check_members(infos)?;
        let seeds = || infos.iter().map(|info| address_of(info.addr()));
        let announced =
            Announced::new(access.remap.clone(), seeds(), |at, announced| AddressSource::Cluster { at, announced });
        let setup = NodeSetup { replica_names: ReplicaNames::Primary, ..setup };
        Ok(Self::new(Members::new(seeds()), None, announced, first(infos)?.clone(), setup))
    }

    pub(super) fn behind_sentinels(
        primary: &str,
        infos: Vec<ConnectionInfo>,
        access: &Access,
        setup: NodeSetup,
    ) -> Result<Arc<Self>> {
        let secrets = Arc::clone(&setup.secrets);
        let template = with_credentials(first(&infos)?.clone(), access.primary_credentials.as_ref());
        let sentinels = Arc::new(Sentinels::new(primary, infos, secrets, setup.limits.response_timeout));
        let announced =
            Announced::new(access.remap.clone(), [], |at, announced| AddressSource::Sentinel { at, announced });
        let setup = NodeSetup { replica_names: ReplicaNames::Sentinels(Arc::clone(&sentinels)), ..setup };
        Ok(Self::new(Members::new([]), Some(sentinels), announced, template, setup))
    }

    fn new(
        members: Members,
        sentinels: Option<Arc<Sentinels>>,
        announced: Announced,
        template: ConnectionInfo,
        setup: NodeSetup,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            members: Mutex::new(members),
            sentinels,
            announced,
            template,
            setup,
            nodes: Mutex::default(),
            map: watch::Sender::new(SlotMap::default()),
            suspects: Mutex::default(),
            suspect_count: AtomicUsize::new(0),
            migrating: Mutex::default(),
            migrating_count: AtomicUsize::new(0),
            refresh_task: SingleTask::default(),
            suspects_task: SingleTask::default(),
            look_until: Mutex::new(Moment::START),
            refresh_lock: tokio::sync::Mutex::new(None),
            map_refreshes: AtomicU64::new(0),
            map_refreshes_counter: Counter::of("rwlock_map_refreshes_total"),
            told: Mutex::default(),
            past_reconnects: AtomicU64::new(0),
        })
    }

    /// Returns the node at `host:port`. A new node connects when it is first used.
    pub(super) fn node(&self, address: &str) -> Result<Arc<Node>, Fault> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let fleet = Weak::clone(&self.me);
        // A broken connection may mean that the node's slots have a new owner, so the map is refreshed.
        let on_loss: OnLoss = Arc::new(move || {
            if let Some(fleet) = fleet.upgrade() {
                fleet.look_in_background();
            }
        });
        let node = Arc::new(self.new_node(address, Some(on_loss))?);
        nodes.insert(address.to_owned(), Arc::clone(&node));
        Ok(node)
    }

    fn new_node(&self, address: &str, on_loss: Option<OnLoss>) -> Result<Node, Fault> {
        let setup = NodeSetup { on_loss, source: self.announced.source(address), ..self.setup.clone() };
        let unusable = || Fault::unsent(format!("{address:?} is no address of a node"));
        let info = self.template.clone().set_addr(self.address_like_ours(address).ok_or_else(unusable)?);
        Ok(Node::new(address, info, setup))
    }

    fn address_like_ours(&self, address: &str) -> Option<ConnectionAddr> {
        let (host, port) = address.rsplit_once(':')?;
        Some(with_host(self.template.addr(), host, port.parse().ok()?))
    }

    /// Returns the address of a slot's owner, or `None` if no owner is known.
    pub(super) fn owner_address(&self, slot: u16) -> Option<Arc<str>> {
        self.map.borrow().owner(slot).cloned()
    }

    /// Returns true if `to` may be the owner of the slot, because no other node is known to own it.
    pub(super) fn may_own(&self, slot: u16, to: &Node) -> bool {
        self.map.borrow().owner(slot).is_none_or(|owner| **owner == *to.address())
    }

    pub(super) async fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        if let Some(address) = self.owner_address(slot) {
            return self.node(&address);
        }
        let asked = Box::pin(self.ask_in_background(Some(slot))).await;
        match (self.owner_address(slot), asked) {
            (Some(address), _) => self.node(&address),
            (None, Err(fault)) => Err(fault),
            (None, Ok(())) => Err(Fault::unsent(format!("nobody says who owns slot {slot}"))),
        }
    }

    /// Notes that `member` has named `address` as the new owner of a slot. Refreshes the map, because other slots may
    /// have moved too.
    pub(super) fn on_moved(&self, slot: u16, address: &str, member: &str) -> Result<Arc<Node>, Fault> {
        let address = self.announced.on_announced(address, member);
        self.map.send_modify(|map| map.set_owner(slot, &address));
        self.look_in_background();
        self.node(&address)
    }

    /// Notes that a slot is migrating to another node. Requests for this slot are sent one by one, because its owner
    /// redirects requests for keys that have already moved.
    pub(super) fn migrates(&self, slot: u16) {
        let now = CLOCK.now();
        let mut migrating = self.migrating.lock();
        migrating.retain(|_, until| *until > now);
        migrating.insert(slot, now.after(MIGRATION));
        self.migrating_count.store(migrating.len(), Ordering::Release);
    }

    pub(super) fn is_migrating(&self, slot: u16) -> bool {
        if self.migrating_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = CLOCK.now();
        let mut migrating = self.migrating.lock();
        migrating.retain(|_, until| *until > now);
        self.migrating_count.store(migrating.len(), Ordering::Release);
        migrating.contains_key(&slot)
    }

    /// Marks a node as trusted, because it has answered.
    pub(super) fn trust(&self, node: &Node) {
        if self.suspect_count.load(Ordering::Acquire) > 0 {
            self.change_suspects(|suspects| {
                suspects.remove(node.address());
            });
        }
    }

    /// Marks a node as suspect, because it did not answer or cannot serve its slots. Then asks the map source for the
    /// owners.
    pub(super) fn suspect(&self, node: &Node, suspect_reason: SuspectReason) {
        self.change_suspects(|suspects| {
            suspects.insert(node.address().to_owned(), suspect_reason);
        });
        self.look_in_background();
    }

    pub(super) fn suspects(&self, node: &Node) -> bool {
        self.suspect_count.load(Ordering::Acquire) > 0 && self.suspects.lock().contains_key(node.address())
    }

    fn change_suspects(&self, change: impl FnOnce(&mut HashMap<String, SuspectReason>)) {
        let mut suspects = self.suspects.lock();
        change(&mut suspects);
        self.suspect_count.store(suspects.len(), Ordering::Release);
    }

    /// Resolves when another node owns the slot, so that a call to the suspect `node` can be given up. Never resolves
    /// if `node` is trusted.
    pub(super) async fn abandoned(&self, slot: u16, node: &Node) {
        if !self.suspects(node) {
            return std::future::pending().await;
        }
        let mut map = self.map.subscribe();
        let moved = |map: &SlotMap| map.owner(slot).is_some_and(|owner| **owner != *node.address());
        if map.wait_for(moved).await.is_err() {
            // This cannot happen, because the sender lives as long as the fleet.
            std::future::pending::<()>().await;
        }
    }

    /// Returns a node for a single question. If the fleet does not have the node, creates it without adding it to the
    /// fleet.
    pub(super) fn passing_node(&self, address: &str) -> Result<Arc<Node>, Fault> {
        if let Some(node) = self.nodes.lock().get(address) {
            return Ok(Arc::clone(node));
        }
        self.new_node(address, None).map(Arc::new)
    }

    /// Returns the newest map that this process has, which may be empty.
    pub(super) fn known_map(&self) -> SlotMap {
        self.map.borrow().clone()
    }

    /// Returns the addresses of the cluster members that the user named.
    pub(super) fn seeds(&self) -> Vec<Arc<str>> {
        self.members.lock().seeds()
    }

    pub(super) fn reconnects(&self) -> u64 {
        let nodes: u64 = self.nodes.lock().values().map(|node| node.reconnects()).sum();
        nodes + self.past_reconnects.load(Ordering::Relaxed)
    }

    /// Succeeds as soon as a primary has answered. Behind Sentinels, this is the primary that they name. In a cluster,
    /// any primary is enough.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.refresh().await?;
        let mut owners: Vec<_> = self.known_map().owners().cloned().collect();
        let is_connected = |owner: &Arc<str>| self.nodes.lock().get(&**owner).is_some_and(|node| node.is_connected());
        if self.sentinels.is_none() && owners.iter().any(is_connected) {
            return Ok(());
        }
        fastrand::shuffle(&mut owners);
        // Asks a few primaries instead of all, so that a process that starts does not connect to all nodes of a large
        // cluster. If no primary can be reached, a few failures are enough to show it.
        let mut answers: FuturesUnordered<_> = owners.iter().take(MAX_ASKED).map(|owner| self.greet(owner)).collect();
        let mut fault = Ok(());
        while let Some(answer) = answers.next().await {
            if answer.is_ok() {
                return Ok(());
            }
            fault = answer;
        }
        fault
    }

    async fn greet(&self, owner: &str) -> Result<(), Fault> {
        let node = self.node(owner)?;
        node.ready().await.map_err(|fault| fault.at(node.shown()))
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/fleet/tests.rs"]
mod tests;
