//! Several nodes of which one owns a slot: a cluster, or a primary that Sentinels move.
//!
//! Who owns what is a map that the guide tells: the members of a cluster, or the Sentinels. A node that was silent is
//! *suspect*: as long as one is, the guide is asked again and again, never the suspect itself, until it answers or owns
//! nothing any more. So a shard works again as soon as the others know its new primary, whatever the old one does. One that
//! cannot serve its slots is suspect until it does: cut off from the others it would name itself for ever.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use redis::{ConnectionAddr, ConnectionInfo};
use tokio::sync::watch;

use crate::clock::Clock;
use crate::error::Result;
use crate::lease::Moment;
use crate::options::Options;
use crate::transport::address::{address_of, check_members, first, with_host};
use crate::transport::fault::{Answer, Fault};
use crate::transport::node::{DialFault, Limits, Node, Role, not_sent};
use crate::transport::sentinels::Sentinels;
use crate::transport::slots::SlotMap;

/// Pause between two questions to the guide while a node is suspect.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
const LOOK_AGAIN_LONGEST: Duration = Duration::from_millis(400);

pub(super) struct Fleet {
    guide: Guide,
    /// How to connect to a node but for its address.
    template: ConnectionInfo,
    limits: Limits,
    clock: Clock,
    nodes: Mutex<HashMap<String, Arc<Node>>>,
    map: watch::Sender<SlotMap>,
    suspects: Mutex<HashMap<String, Doubt>>,
    looking: AtomicBool,
    /// One question at a time; when the last one came to its end, and how.
    refresh_lock: tokio::sync::Mutex<Option<(Moment, Result<(), DialFault>)>>,
}

/// Why a node is suspect.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Doubt {
    /// It does not answer.
    Silent,
    /// It answers that it cannot serve its slots.
    Refuses,
}

/// Whom to ask who owns a slot.
enum Guide {
    /// Any member of the cluster: these to begin with.
    Members(Vec<String>),
    /// The Sentinels, who name one primary for all slots.
    Sentinels(Sentinels),
}

impl std::fmt::Debug for Fleet {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match &self.guide {
            Guide::Members(seeds) => f.debug_tuple("Cluster").field(seeds).finish(),
            Guide::Sentinels(sentinels) => sentinels.fmt(f),
        }
    }
}

impl Fleet {
    pub(super) fn cluster(infos: Vec<ConnectionInfo>, options: &Options, clock: Clock) -> Result<Self> {
        check_members(&infos)?;
        let seeds = infos.iter().map(|info| address_of(info.addr())).collect();
        Ok(Self::new(Guide::Members(seeds), first(infos)?, Limits::new(options, Role::ClusterMember), clock))
    }

    pub(super) fn behind_sentinels(
        primary: &str,
        infos: Vec<ConnectionInfo>,
        options: &Options,
        clock: Clock,
    ) -> Result<Self> {
        let sentinels = Sentinels::new(primary, infos.clone(), options.response_timeout);
        let template = first(infos)?;
        Ok(Self::new(Guide::Sentinels(sentinels), template, Limits::new(options, Role::Standalone), clock))
    }

    fn new(guide: Guide, template: ConnectionInfo, limits: Limits, clock: Clock) -> Self {
        Self {
            guide,
            template,
            limits,
            clock,
            nodes: Mutex::default(),
            map: watch::Sender::new(SlotMap::default()),
            suspects: Mutex::default(),
            looking: AtomicBool::new(false),
            refresh_lock: tokio::sync::Mutex::new(None),
        }
    }

    /// The node at `host:port`, with a connection as soon as it is used.
    pub(super) fn node(&self, address: &str) -> Result<Arc<Node>, Fault> {
        let mut nodes = self.nodes.lock();
        if let Some(node) = nodes.get(address) {
            return Ok(Arc::clone(node));
        }
        let unusable = || Fault::NotSent(Some(Arc::new(Answer(format!("{address:?} is no address of a node")))));
        let info = self.template.clone().set_addr(self.address_like_ours(address).ok_or_else(unusable)?);
        let node = Node::new(address.to_owned(), info, self.limits, self.clock).map_err(|_| unusable())?;
        let node = Arc::new(node);
        nodes.insert(address.to_owned(), Arc::clone(&node));
        Ok(node)
    }

    fn address_like_ours(&self, address: &str) -> Option<ConnectionAddr> {
        let (host, port) = address.rsplit_once(':')?;
        Some(with_host(self.template.addr(), host, port.parse().ok()?))
    }

    /// The address of a slot's owner, as far as is known.
    pub(super) fn owner_address(&self, slot: u16) -> Option<Arc<str>> {
        self.map.borrow().owner(slot).cloned()
    }

    /// Whether no other node is known to own the slot.
    pub(super) fn leaves(&self, slot: u16, to: &Node) -> bool {
        self.map.borrow().owner(slot).is_none_or(|owner| **owner == *to.address())
    }

    /// Tells when the map was asked for again, and may have changed.
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

    /// One slot has moved; others may have too.
    pub(super) fn moved(self: &Arc<Self>, slot: u16, address: &str) -> Result<Arc<Node>, Fault> {
        self.map.send_modify(|map| map.set_owner(slot, address));
        self.look_in_background();
        self.node(address)
    }

    /// A node answered.
    pub(super) fn trust(&self, node: &Node) {
        self.suspects.lock().remove(node.address());
    }

    /// A node was silent, or cannot serve its slots any more: others are asked who owns them now.
    pub(super) fn suspect(self: &Arc<Self>, node: &Node, doubt: Doubt) {
        self.suspects.lock().insert(node.address().to_owned(), doubt);
        self.look_in_background();
    }

    pub(super) fn suspects(&self, node: &Node) -> bool {
        self.suspects.lock().contains_key(node.address())
    }

    /// Returns when another node than this suspect owns the slot; never for a node that is trusted.
    pub(super) async fn abandoned(&self, slot: u16, node: &Node) {
        if !self.suspects(node) {
            return std::future::pending().await;
        }
        let mut map = self.map.subscribe();
        let moved = |map: &SlotMap| map.owner(slot).is_some_and(|owner| **owner != *node.address());
        if map.wait_for(moved).await.is_err() {
            // The sender lives as long as this fleet.
            std::future::pending::<()>().await;
        }
    }

    /// Asks the guide until no owner is suspect. One task does.
    pub(super) fn look_in_background(self: &Arc<Self>) {
        if self.looking.swap(true, Ordering::SeqCst) {
            return;
        }
        let looking = Looking(Arc::downgrade(self));
        drop(tokio::spawn(async move {
            let mut pause = LOOK_AGAIN;
            loop {
                let Some(fleet) = looking.0.upgrade() else {
                    return;
                };
                drop(fleet.refresh().await);
                fleet.ask_suspects().await;
                drop(fleet);
                // Also when all is well: questions come at this rate at most.
                tokio::time::sleep(pause).await;
                pause = (pause * 2).min(LOOK_AGAIN_LONGEST);
                if looking.0.upgrade().is_none_or(|fleet| fleet.ends_look_out()) {
                    // Its end is marked already, and another may have begun.
                    return looking.let_go();
                }
            }
        }));
    }

    /// Asks silent suspects that own slots as far as anybody knows: one that answers is trusted again, whoever has work for
    /// it.
    async fn ask_suspects(&self) {
        let owners = self.map.borrow().addresses().to_vec();
        let suspects = self.suspects.lock().clone();
        let silent = owners.iter().filter(|owner| suspects.get(&***owner) == Some(&Doubt::Silent));
        let nodes = silent.filter_map(|owner| self.node(owner).ok());
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

    /// Ends the look-out if all is well. A node that becomes suspect at the same time finds it either ended or going on.
    fn ends_look_out(&self) -> bool {
        if !self.is_well() {
            return false;
        }
        self.looking.store(false, Ordering::SeqCst);
        // Taken up again, unless somebody else has begun another meanwhile.
        self.is_well() || self.looking.swap(true, Ordering::SeqCst)
    }

    /// Whether all owners answer. A suspect that owns nothing stays one as long as it might be asked.
    fn is_well(&self) -> bool {
        let map = self.map.borrow();
        let mut suspects = self.suspects.lock();
        suspects.retain(|suspect, _| self.is_of_use(&map, suspect));
        !suspects.iter().any(|(suspect, doubt)| *doubt == Doubt::Silent && map.has(suspect))
    }

    /// Asks the guide for the owner of a slot, once for all who ask at the same time: what it does not say now it will not
    /// say to the next one either.
    async fn refresh_unless_known(&self, slot: u16) -> Result<(), Fault> {
        let mut last = self.refresh_lock.lock().await;
        if self.owner_address(slot).is_some() {
            return Ok(());
        }
        if let Some((at, refreshed)) = &*last
            && self.clock.now().since(*at) < LOOK_AGAIN
        {
            return Ok(refreshed.clone()?);
        }
        let refreshed = self.ask_guide().await.map_err(not_sent);
        *last = Some((self.clock.now(), refreshed.clone()));
        Ok(refreshed?)
    }

    /// Takes the first map that somebody who is not suspect tells.
    pub(super) async fn refresh(&self) -> Result<(), Fault> {
        let mut last = self.refresh_lock.lock().await;
        let refreshed = self.ask_guide().await.map_err(not_sent);
        *last = Some((self.clock.now(), refreshed.clone()));
        Ok(refreshed?)
    }

    async fn ask_guide(&self) -> Result<(), Fault> {
        let map = match &self.guide {
            Guide::Members(seeds) => self.ask_members(seeds).await?,
            Guide::Sentinels(sentinels) => SlotMap::whole(&sentinels.primary().await?),
        };
        self.forget_others(&map);
        self.map.send_replace(map);
        Ok(())
    }

    /// Forgets nodes that own nothing, but for those that the user named. Whoever still waits for one keeps it until then.
    fn forget_others(&self, map: &SlotMap) {
        self.nodes.lock().retain(|address, _| self.is_of_use(map, address));
    }

    fn is_of_use(&self, map: &SlotMap, address: &String) -> bool {
        let is_seed = match &self.guide {
            Guide::Members(seeds) => seeds.contains(address),
            Guide::Sentinels { .. } => false,
        };
        is_seed || map.has(address)
    }

    /// Succeeds when the guide answers, and with Sentinels the primary too.
    pub(super) async fn ready(&self) -> Result<(), Fault> {
        self.refresh().await?;
        match (&self.guide, self.owner_address(0)) {
            (Guide::Sentinels(_), Some(address)) => self.node(&address)?.ready().await,
            _ => Ok(()),
        }
    }

    async fn ask_members(&self, seeds: &[String]) -> Result<SlotMap, Fault> {
        let mut fault = Fault::NotSent(None);
        let members = self.members(seeds);
        let mut answers: FuturesUnordered<_> = members.iter().map(|node| ask_for_slots(node)).collect();
        while let Some(answer) = answers.next().await {
            match answer {
                Ok(map) => return Ok(map),
                // A refusal says more than a silence.
                Err(refused @ Fault::Refused { .. }) => fault = refused,
                Err(other) if matches!(fault, Fault::NotSent(None)) => fault = other,
                Err(_) => {}
            }
        }
        Err(fault)
    }

    fn members(&self, seeds: &[String]) -> Vec<Arc<Node>> {
        let mut addresses = self.map.borrow().addresses().to_vec();
        addresses.extend(seeds.iter().map(|seed| seed.as_str().into()));
        addresses.sort();
        addresses.dedup();
        let suspects = self.suspects.lock().clone();
        if !addresses.iter().all(|address| suspects.contains_key(&**address)) {
            addresses.retain(|address| !suspects.contains_key(&**address));
        }
        fastrand::shuffle(&mut addresses);
        addresses.iter().filter_map(|address| self.node(address).ok()).collect()
    }
}

/// Marks the look-out as ended, also when its runtime drops it.
struct Looking(Weak<Fleet>);

impl Looking {
    /// Ends without a mark.
    fn let_go(mut self) {
        self.0 = Weak::new();
    }
}

impl Drop for Looking {
    fn drop(&mut self) {
        if let Some(fleet) = self.0.upgrade() {
            fleet.looking.store(false, Ordering::SeqCst);
        }
    }
}

async fn ask_for_slots(node: &Node) -> Result<SlotMap, Fault> {
    let mut question = redis::cmd("CLUSTER");
    question.arg("SLOTS");
    let reply = node.ask(&question).await?;
    let map = SlotMap::parse(&reply, node.address()).filter(|map| !map.is_empty());
    map.ok_or_else(|| Fault::NotSent(Some(Arc::new(Answer(format!("{} knows no slots", node.address()))))))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::topology::Tls;
    use crate::transport::address::parse_all;

    #[tokio::test(start_paused = true)]
    async fn look_out_that_has_ended_leaves_nothing_of_a_dropped_fleet() {
        let nobody = parse_all(&["redis://127.0.0.1:1".to_owned()], &Tls::new()).expect("valid");
        let fleet = Fleet::cluster(nobody, &Options::default(), Clock::System).expect("valid");
        let fleet = Arc::new(fleet);
        fleet.look_in_background();
        assert!(fleet.looking.load(Ordering::SeqCst));
        let ended = async {
            while Arc::weak_count(&fleet) > 0 {
                tokio::time::sleep(LOOK_AGAIN).await;
            }
        };
        tokio::time::timeout(Duration::from_secs(60), ended)
            .await
            .expect("the look-out holds on to the fleet's memory");
        assert!(!fleet.looking.load(Ordering::SeqCst));
    }
}
