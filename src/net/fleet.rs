//! Fleet: several nodes, of which one owns a given slot. A fleet is a cluster, or a primary and its successors behind
//! Sentinels.
//!
//! The *map source* gives the slot map. It is the members of a cluster, or the Sentinels. The fleet asks the map source
//! after a missing answer, a refusal or a redirect, and when a connection breaks. While all nodes work, the fleet does
//! not ask the map source.
//!
//! A node that does not answer is *suspect* until it answers or owns no slot any more. While such a node owns slots,
//! the fleet asks the map source again and again. It asks a suspect for the map only if no other member has answered.
//! So the slots of the node can be used again as soon as the other members know their new owner.
//!
//! A node that answers but cannot serve its slots is suspect until it can serve them. So the fleet asks such a node for
//! the map last. A node that is cut off from the others would name itself as the owner for ever.

use std::collections::{HashMap, HashSet};
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::{oneshot, watch};

use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::error::Result;
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::metrics::Counter;
use crate::base::options::Options;
use crate::base::panics::catch_panic;
use crate::base::single_task::{Running, SingleTask};
use crate::base::topology::{Access, AddressSource};
use crate::net::address::{address_of, check_members, first, with_credentials, with_host};
use crate::net::announced::{Announced, Announcer};
use crate::net::conditions::Conditions;
use crate::net::fault::{Answer, Fault};
use crate::net::members::{AskOrder, MAX_ASKED, Members};
use crate::net::node::{DialFault, Limits, Node, OnLoss, ReplicaNames, Reports, Role, not_sent, shown};
use crate::net::outages::Outages;
use crate::net::secrets::Secrets;
use crate::net::sentinels::Sentinels;
use crate::net::slots::{Moved, SlotMap};

/// First pause between two questions to the map source while a node is suspect. The pauses grow up to
/// [`MAX_LOOK_AGAIN`].
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const MAX_LOOK_AGAIN: Duration = Duration::from_millis(400);
/// Time in which all members usually learn of a failover.
const FAILOVER_KNOWN_AFTER: Duration = Duration::from_secs(2);
/// Time for which a slot counts as migrating after a node has redirected a call with `ASK`.
const MIGRATION: Duration = Duration::from_secs(1);
/// Limit for the suspects that are asked at the same time.
const MAX_SUSPECTS_ASKED: usize = 8;

pub(super) struct Fleet {
    me: Weak<Self>,
    map_source: MapSource,
    announced: Announced,
    /// Connection settings of all nodes. The address in these settings is not used.
    template: ConnectionInfo,
    secrets: Arc<Secrets>,
    limits: Limits,
    clock: Clock,
    background_runtime: BackgroundRuntime,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    map: watch::Sender<SlotMap>,
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
    map_refreshes: AtomicU64,
    map_refreshes_counter: Counter,
    /// Slot map at the time of the last log message about owners.
    told: Mutex<SlotMap>,
    outages: Arc<Outages>,
    conditions: Arc<Conditions>,
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

/// Source of the slot map.
enum MapSource {
    /// Members of the cluster. Any member can give the map.
    Members(Mutex<Members>),
    /// Sentinels. They name one primary, which owns all slots.
    Sentinels(Arc<Sentinels>),
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.map_source {
            MapSource::Members(members) => f.debug_tuple("Cluster").field(&members.lock().len()).finish(),
            MapSource::Sentinels(sentinels) => sentinels.fmt(f),
        }
    }
}

impl Fleet {
    pub(super) fn cluster(
        infos: Vec<ConnectionInfo>,
        access: &Access,
        secrets: &Arc<Secrets>,
        options: &Options,
        background_runtime: BackgroundRuntime,
        conditions: &Arc<Conditions>,
    ) -> Result<Arc<Self>> {
        check_members(&infos)?;
        let seeds = || infos.iter().map(|info| address_of(info.addr()));
        let map_source = MapSource::Members(Mutex::new(Members::new(seeds())));
        let announced = Announced::new(access.remap.clone(), seeds());
        Ok(Self::new(
            map_source,
            announced,
            first(infos)?,
            Arc::clone(secrets),
            Limits::new(options, Role::ClusterMember),
            background_runtime,
            Arc::clone(conditions),
        ))
    }

    pub(super) fn behind_sentinels(
        primary: &str,
        infos: Vec<ConnectionInfo>,
        access: &Access,
        secrets: &Arc<Secrets>,
        options: &Options,
        background_runtime: BackgroundRuntime,
        conditions: &Arc<Conditions>,
    ) -> Result<Arc<Self>> {
        let sentinels = Sentinels::new(primary, infos.clone(), Arc::clone(secrets), options.response_timeout);
        let template = with_credentials(first(infos)?, access.primary_credentials.as_ref());
        Ok(Self::new(
            MapSource::Sentinels(Arc::new(sentinels)),
            Announced::new(access.remap.clone(), []),
            template,
            Arc::clone(secrets),
            Limits::new(options, Role::Standalone),
            background_runtime,
            Arc::clone(conditions),
        ))
    }

    fn new(
        map_source: MapSource,
        announced: Announced,
        template: ConnectionInfo,
        secrets: Arc<Secrets>,
        limits: Limits,
        background_runtime: BackgroundRuntime,
        conditions: Arc<Conditions>,
    ) -> Arc<Self> {
        Arc::new_cyclic(|me| Self {
            me: Weak::clone(me),
            map_source,
            announced,
            template,
            secrets,
            limits,
            clock: Clock::System,
            background_runtime,
            nodes: Mutex::default(),
            map: watch::Sender::new(SlotMap::default()),
            suspects: Mutex::default(),
            suspect_count: AtomicUsize::new(0),
            migrating: Mutex::default(),
            migrating_count: AtomicUsize::new(0),
            refresh_task: SingleTask::default(),
            suspects_task: SingleTask::default(),
            look_until: Mutex::new(Moment::from_nanos(0)),
            refresh_lock: tokio::sync::Mutex::new(None),
            map_refreshes: AtomicU64::new(0),
            map_refreshes_counter: Counter::of_map_refreshes(),
            told: Mutex::default(),
            outages: Arc::default(),
            conditions,
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
        let unusable = || Fault::NotSent(Some(Arc::new(Answer(format!("{address:?} is no address of a node")))));
        let (outages, conditions) = (Arc::clone(&self.outages), Arc::clone(&self.conditions));
        let (source, secrets) = (self.announced.source(address), Arc::clone(&self.secrets));
        let replica_names = match &self.map_source {
            MapSource::Members(_) => ReplicaNames::Primary,
            MapSource::Sentinels(sentinels) => ReplicaNames::Sentinels(Arc::clone(sentinels)),
        };
        let reports = Reports { on_loss, outages, conditions, source, secrets, replica_names };
        let info = self.template.clone().set_addr(self.address_like_ours(address).ok_or_else(unusable)?);
        Node::new(address, info, self.limits, self.clock, self.background_runtime.clone(), reports)
            .map_err(|_| unusable())
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

    /// Yields the slot map after each refresh and after each change of one slot. A refreshed map may be the same as
    /// before.
    pub(super) fn changes(&self) -> watch::Receiver<SlotMap> {
        self.map.subscribe()
    }

    pub(super) async fn owner(&self, slot: u16) -> Result<Arc<Node>, Fault> {
        let mut address = self.owner_address(slot);
        let mut asked = Ok(());
        if address.is_none() {
            asked = Box::pin(self.refresh_unless_known(slot)).await;
            address = self.owner_address(slot);
        }
        match (address, asked) {
            (Some(address), _) => self.node(&address),
            (None, Err(fault)) => Err(fault),
            (None, Ok(())) => Err(Fault::NotSent(Some(Arc::new(Answer(format!("nobody says who owns slot {slot}")))))),
        }
    }

    /// Returns the address at which this process reaches a server. `member` has announced this server at `address`.
    pub(super) fn on_announced(&self, address: &str, member: &str) -> String {
        self.announced.on_announced(address, Announcer::Member(member))
    }

    /// Notes that `member` has named `address` as the new owner of a slot. Refreshes the map, because other slots may
    /// have moved too.
    pub(super) fn on_moved(self: &Arc<Self>, slot: u16, address: &str, member: &str) -> Result<Arc<Node>, Fault> {
        let address = self.on_announced(address, member);
        self.map.send_modify(|map| map.set_owner(slot, &address));
        self.look_in_background();
        self.node(&address)
    }

    /// Returns the source of a node's address.
    pub(super) fn address_source(&self, address: &str) -> AddressSource {
        self.announced.source(address)
    }

    /// Returns a node's address for error messages. If the user did not name the address, the text includes its source.
    fn shown(&self, address: &str) -> String {
        shown(address, &self.announced.source(address))
    }

    /// Notes that a slot is migrating to another node. Requests for this slot are sent one by one, because its owner
    /// redirects requests for keys that have already moved.
    pub(super) fn migrates(&self, slot: u16) {
        let now = self.clock.now();
        let mut migrating = self.migrating.lock();
        migrating.retain(|_, until| *until > now);
        migrating.insert(slot, now.after(MIGRATION));
        self.migrating_count.store(migrating.len(), Ordering::Release);
    }

    pub(super) fn is_migrating(&self, slot: u16) -> bool {
        if self.migrating_count.load(Ordering::Acquire) == 0 {
            return false;
        }
        let now = self.clock.now();
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
    pub(super) fn suspect(self: &Arc<Self>, node: &Node, suspect_reason: SuspectReason) {
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

    /// Asks the Sentinels for the primary, even if nothing suggests that it has changed. This is necessary because an
    /// old primary does not report that it was replaced, as long as the Sentinels cannot reach it.
    ///
    /// Does nothing for a cluster, because its map is large and its nodes redirect calls.
    pub(super) fn refresh_from_time_to_time(self: &Arc<Self>) {
        if let MapSource::Sentinels(_) = self.map_source {
            self.look_in_background();
        }
    }

    /// Refreshes the map again and again for [`FAILOVER_KNOWN_AFTER`], because not all members know of a recent change
    /// yet.
    pub(super) fn refresh_after_change(self: &Arc<Self>) {
        *self.look_until.lock() = self.clock.now().after(FAILOVER_KNOWN_AFTER);
        self.look_in_background();
    }

    /// Starts the refresh loop, unless it runs already. The loop refreshes the map at least once, and goes on until no
    /// owner of slots is silent.
    pub(super) fn look_in_background(self: &Arc<Self>) {
        let Some(running) = self.refresh_task.begin() else {
            return;
        };
        let fleet = Arc::downgrade(self);
        self.background_runtime.spawn(async move {
            let (mut pause, mut running) = (LOOK_AGAIN, Some(running));
            while let (Some(mark), Some(this)) = (running.take(), fleet.upgrade()) {
                this.ask_suspects_in_background();
                drop(this.ask_in_turn(None).await);
                drop(this);
                // The loop pauses even if all nodes work, because this limits the rate of the questions.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(MAX_LOOK_AGAIN);
                running = fleet.upgrade().and_then(|fleet| fleet.goes_on(mark));
            }
        });
    }

    /// Asks the suspects in a separate task, because a suspect without an answer must not delay the question to the map
    /// source.
    fn ask_suspects_in_background(self: &Arc<Self>) {
        if let Some(running) = self.suspects_task.begin() {
            let fleet = Arc::clone(self);
            self.background_runtime.spawn(async move {
                fleet.ask_suspects().await;
                drop(running);
            });
        }
    }

    /// Asks silent suspects that own slots. So a suspect that answers again becomes trusted even if no caller sends it
    /// a request.
    async fn ask_suspects(&self) {
        let mut silent: Vec<String> = {
            let map = self.map.borrow();
            let suspects = self.suspects.lock();
            let silent = suspects
                .iter()
                .filter(|(address, suspect_reason)| **suspect_reason == SuspectReason::Silent && map.has(address));
            silent.map(|(address, _)| address.clone()).collect()
        };
        fastrand::shuffle(&mut silent);
        let nodes = silent.iter().take(MAX_SUSPECTS_ASKED).filter_map(|owner| self.node(owner).ok());
        let mut answers: FuturesUnordered<_> = nodes
            .map(|node| async move {
                let answer = node.ask(&redis::cmd("TIME")).await;
                answer.is_ok().then_some(node)
            })
            .collect();
        while let Some(answer) = answers.next().await {
            if let Some(node) = answer {
                self.trust(&node);
            }
        }
    }

    /// Returns the mark of the refresh loop if the loop has to go on. If a node becomes suspect while the loop ends,
    /// either this loop goes on or a new loop begins.
    fn goes_on(&self, mark: Running) -> Option<Running> {
        if !self.is_well() {
            return Some(mark);
        }
        if let MapSource::Members(members) = &self.map_source {
            members.lock().begin_again();
        }
        mark.end_unless(|| !self.is_well())
    }

    /// Returns true if no owner of slots is silent and no change is recent. Also forgets the suspects that own no slots
    /// and are no members. A suspect that is a member stays suspect, because it may be asked for the map.
    fn is_well(&self) -> bool {
        if self.clock.now() < *self.look_until.lock() {
            return false;
        }
        let map = self.map.borrow();
        let mut is_well = true;
        self.change_suspects(|suspects| {
            suspects.retain(|suspect, _| map.has(suspect) || self.is_member(suspect));
            is_well = !suspects
                .iter()
                .any(|(suspect, suspect_reason)| *suspect_reason == SuspectReason::Silent && map.has(suspect));
        });
        is_well
    }

    fn is_member(&self, address: &str) -> bool {
        match &self.map_source {
            MapSource::Members(members) => members.lock().has(address),
            MapSource::Sentinels(_) => false,
        }
    }

    /// Asks the map source for the owner of a slot. Callers at about the same time share one answer. If this answer
    /// names no owner, another question would most likely give no owner either.
    async fn refresh_unless_known(&self, slot: u16) -> Result<(), Fault> {
        self.ask_in_background(Some(slot)).await
    }

    /// Asks the map source for the newest map.
    pub(super) async fn refresh(&self) -> Result<(), Fault> {
        self.ask_in_background(None).await
    }

    /// Asks the map source in a task on the background runtime. The task holds `refresh_lock`, so it must go on when
    /// the caller of this function is dropped.
    async fn ask_in_background(&self, slot: Option<u16>) -> Result<(), Fault> {
        let (tell, told) = oneshot::channel();
        let fleet = Weak::clone(&self.me);
        self.background_runtime.spawn(async move {
            if let Some(fleet) = fleet.upgrade() {
                // The result is ignored, because the caller may have stopped waiting.
                drop(tell.send(fleet.ask_in_turn(slot).await));
            }
        });
        match tokio::time::timeout(self.limits.response_timeout * 3, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => {
                Err(Fault::NotSent(Some(Arc::new(Answer("the question for the map has no answer".to_owned())))))
            }
        }
    }

    /// Asks the map source, after earlier questions have ended. If `slot` is given and its owner is known by then, asks
    /// nothing.
    async fn ask_in_turn(&self, slot: Option<u16>) -> Result<(), Fault> {
        let mut last = self.refresh_lock.lock().await;
        if let Some(slot) = slot {
            if self.owner_address(slot).is_some() {
                return Ok(());
            }
            if let Some((at, refreshed)) = &*last
                && self.clock.now().since(*at) < LOOK_AGAIN
            {
                return Ok(refreshed.clone()?);
            }
        }
        let refreshed = self.ask_map_source().await.map_err(not_sent);
        *last = Some((self.clock.now(), refreshed.clone()));
        Ok(refreshed?)
    }

    async fn ask_map_source(&self) -> Result<(), Fault> {
        self.map_refreshes.fetch_add(1, Ordering::Relaxed);
        self.map_refreshes_counter.add_one();
        let map = match &self.map_source {
            MapSource::Members(members) => self.ask_members(members).await?,
            MapSource::Sentinels(sentinels) => {
                let (primary, sentinel) = sentinels.primary().await?;
                SlotMap::whole(&self.announced.on_announced(&primary, Announcer::Sentinel(&sentinel)))
            }
        };
        self.forget_others(&map);
        self.notify_change(&map);
        self.map.send_replace(map);
        Ok(())
    }

    /// Logs the slots whose owner has changed since the last log message about owners. Also forgets what is known of
    /// nodes that are no longer members.
    fn notify_change(&self, map: &SlotMap) {
        self.outages.retain(|node| map.has(node) || self.is_member(node));
        self.conditions.retain(|node| map.has(node) || self.is_member(node));
        self.announced.retain(|node| map.has(node) || self.is_member(node));
        let before = std::mem::replace(&mut *self.told.lock(), map.clone());
        let is_first = before.is_empty();
        for Moved { slots, owner, was } in map.moves_since(&before) {
            // Behind Sentinels the message names no slots, because one primary owns all of them.
            let slots = matches!(self.map_source, MapSource::Members(_)).then_some(&*slots);
            catch_panic(|| match owner {
                Some(owner) if is_first => events::primary_found(slots, &owner, &self.address_source(&owner)),
                owner => {
                    let source = owner.as_deref().map(|owner| self.address_source(owner)).unwrap_or_default();
                    events::primary_changed(slots, owner.as_deref(), &source, was.as_deref());
                }
            });
        }
    }

    /// Forgets the nodes that own no slots, except the nodes that the user named. A caller that still waits for an
    /// answer of such a node can go on.
    ///
    /// If no owner of slots is connected, the member that gave the map stays as well. Its connection is then the only
    /// one, and the fleet would notice its end as a sign of changes.
    fn forget_others(&self, map: &SlotMap) {
        let nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        let has_owner = nodes.iter().any(|node| map.has(node.address()) && node.is_connected());
        for node in nodes.iter().filter(|node| !map.has(node.address())) {
            let is_kept = match &self.map_source {
                MapSource::Members(members) => {
                    let members = members.lock();
                    members.is_seed(node.address()) || !has_owner && members.answered_last(node.address())
                }
                MapSource::Sentinels(_) => false,
            };
            if !is_kept && self.nodes.lock().remove(node.address()).is_some() {
                // The count is saved here. If the address is used again later, a new node is created, whose count
                // begins at zero.
                self.past_reconnects.fetch_add(node.reconnects(), Ordering::Relaxed);
            }
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
        match &self.map_source {
            MapSource::Members(members) => members.lock().seeds(),
            MapSource::Sentinels(_) => Vec::new(),
        }
    }

    pub(super) fn outages(&self) -> &Arc<Outages> {
        &self.outages
    }

    pub(super) fn sentinels(&self) -> Option<&Sentinels> {
        match &self.map_source {
            MapSource::Members(_) => None,
            MapSource::Sentinels(sentinels) => Some(sentinels),
        }
    }

    pub(super) fn reconnects(&self) -> u64 {
        let nodes: u64 = self.nodes.lock().values().map(|node| node.reconnects()).sum();
        nodes + self.past_reconnects.load(Ordering::Relaxed)
    }

    pub(super) fn map_refreshes(&self) -> u64 {
        self.map_refreshes.load(Ordering::Relaxed)
    }

    /// Succeeds as soon as a primary has answered. Behind Sentinels, this is the primary that they name. In a cluster,
    /// any primary is enough.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.refresh().await?;
        let mut owners: Vec<_> = self.known_map().owners().cloned().collect();
        let is_connected = |owner: &Arc<str>| self.nodes.lock().get(&**owner).is_some_and(|node| node.is_connected());
        if let MapSource::Members(_) = self.map_source
            && owners.iter().any(is_connected)
        {
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

    /// Asks a few members at a time for the map. Ends when a member gives a map, when all members were asked, or when
    /// the time is over.
    ///
    /// The next round begins when all members of the last round have failed, or when the round is slow. A later call of
    /// this function begins with the members that were not asked yet.
    async fn ask_members(&self, members: &Mutex<Members>) -> Result<SlotMap, Fault> {
        let response_timeout = self.limits.response_timeout;
        let time_is_over = tokio::time::sleep(response_timeout * 2);
        tokio::pin!(time_is_over);
        let mut fault = Fault::NotSent(None);
        let mut unasked = members.lock().len();
        let mut answers = FuturesUnordered::new();
        loop {
            let round = if unasked > 0 { self.next_members(members) } else { Vec::new() };
            unasked = unasked.saturating_sub(if round.is_empty() { MAX_ASKED } else { round.len() });
            answers.extend(round.into_iter().map(|address| self.ask_for_slots(address)));
            let is_slow = tokio::time::sleep(response_timeout / 2);
            tokio::pin!(is_slow);
            loop {
                tokio::select! {
                    biased;
                    answer = answers.next() => match answer {
                        Some((address, Ok(map))) => {
                            let mut members = members.lock();
                            if members.believes(&address, &map) {
                                members.on_map(&address, &map);
                                return Ok(map);
                            }
                            fault = Fault::NotSent(Some(Arc::new(Answer(format!(
                                "{address} is a member of another cluster by now"
                            )))));
                        }
                        // A refusal replaces other faults, because it tells more than a missing answer.
                        Some((_, Err(refused @ Fault::Refused { .. }))) => fault = refused,
                        Some((_, Err(other))) if matches!(fault, Fault::NotSent(None)) => fault = other,
                        Some((_, Err(_))) => {}
                        None if unasked > 0 => break,
                        None => return Err(fault),
                    },
                    // This timer is checked before `is_slow`. On a busy machine both timers may be over at the same
                    // time.
                    () = &mut time_is_over => return Err(fault),
                    () = &mut is_slow, if unasked > 0 => break,
                }
            }
        }
    }

    /// Returns the members to ask next. Copies the state of the nodes before it locks the members. Otherwise calls,
    /// which need the locks of this state, would have to wait.
    fn next_members(&self, members: &Mutex<Members>) -> Vec<Arc<str>> {
        let suspects = self.suspects.lock().clone();
        let mut nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        nodes.retain(|node| node.is_connected());
        let connected: HashSet<&str> = nodes.iter().map(|node| node.address()).collect();
        members.lock().next(|address| match address {
            _ if suspects.contains_key(address) => AskOrder::Suspect,
            _ if connected.contains(address) => AskOrder::Connected,
            _ => AskOrder::Unconnected,
        })
    }

    async fn ask_for_slots(&self, address: Arc<str>) -> (Arc<str>, Result<SlotMap, Fault>) {
        let asking = async {
            let mut question = redis::cmd("CLUSTER");
            question.arg("SLOTS");
            let reply = self.node(&address)?.ask_for_map(&question).await?;
            let map = SlotMap::parse(&reply, |announced| self.on_announced(announced, &address));
            let map = map.filter(|map| !map.is_empty());
            map.ok_or_else(|| Fault::NotSent(Some(Arc::new(Answer("it knows no slots".to_owned())))))
        };
        // The time limit includes the dial. If the connection is ready later, the next question uses it.
        let answer = tokio::time::timeout(self.limits.response_timeout, asking).await;
        let no_answer = || Fault::NotSent(Some(Arc::new(Answer("no answer in time".to_owned()))));
        let answer = answer.unwrap_or_else(|_| Err(no_answer())).map_err(|fault| fault.at(&self.shown(&address)));
        (address, answer)
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/net/fleet/tests.rs"]
mod tests;
