//! Questions of a fleet to its map source: when it asks, which member it asks, and what it does with the new map.

use std::collections::HashSet;
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;
use tokio::sync::oneshot;

use super::{Fleet, SuspectReason};
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::single_task::Running;
use crate::net::CLOCK;
use crate::net::fault::Fault;
use crate::net::members::{AskOrder, MAX_ASKED};
use crate::net::node::{not_sent, shown};
use crate::net::slots::{Moved, SlotMap};

/// First pause between two questions to the map source while a node is suspect. The pauses grow up to
/// [`MAX_LOOK_AGAIN`].
pub(super) const LOOK_AGAIN: Duration = Duration::from_millis(100);
const MAX_LOOK_AGAIN: Duration = Duration::from_millis(400);
/// Time in which all members usually learn of a failover.
const FAILOVER_KNOWN_AFTER: Duration = Duration::from_secs(2);
/// Limit for the suspects that are asked at the same time.
const MAX_SUSPECTS_ASKED: usize = 8;

impl Fleet {
    /// Asks the Sentinels for the primary, even if nothing suggests that it has changed. This is necessary because an
    /// old primary does not report that it was replaced, as long as the Sentinels cannot reach it.
    ///
    /// Does nothing for a cluster, because its map is large and its nodes redirect calls.
    pub(in crate::net) fn refresh_from_time_to_time(&self) {
        if self.sentinels.is_some() {
            self.look_in_background();
        }
    }

    /// Asks the Sentinels for the primary, because too few replicas have acknowledged a grant. The replicas may follow
    /// a new primary by now, and the old one still answers.
    ///
    /// Replicas may be missing for a long time, and then each grant fails. So this asks no more often than the refresh
    /// loop does for a silent node.
    pub(in crate::net) fn refresh_when_unreplicated(&self) {
        let is_old = |last: &(Moment, _)| CLOCK.now().since(last.0) >= MAX_LOOK_AGAIN;
        // If the lock is taken, another question is under way. If its answer is too old, a later grant fails as well.
        if self.refresh_lock.try_lock().is_ok_and(|last| last.as_ref().is_none_or(is_old)) {
            self.refresh_from_time_to_time();
        }
    }

    /// Refreshes the map again and again for [`FAILOVER_KNOWN_AFTER`], because not all members know of a recent change
    /// yet.
    pub(in crate::net) fn refresh_after_change(&self) {
        *self.look_until.lock() = CLOCK.now().after(FAILOVER_KNOWN_AFTER);
        self.look_in_background();
    }

    /// Starts the refresh loop, unless it runs already. The loop refreshes the map at least once, and goes on until no
    /// owner of slots is silent.
    pub(in crate::net) fn look_in_background(&self) {
        let Some(running) = self.refresh_task.begin() else {
            return;
        };
        let fleet = Weak::clone(&self.me);
        self.setup.background_runtime.spawn(async move {
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
    fn ask_suspects_in_background(&self) {
        if let Some(running) = self.suspects_task.begin()
            && let Some(fleet) = self.me.upgrade()
        {
            self.setup.background_runtime.spawn(async move {
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
        let asking = nodes.map(|node| async move {
            if node.ask(&redis::cmd("TIME")).await.is_ok() {
                self.trust(&node);
            }
        });
        join_all(asking).await;
    }

    /// Returns the mark of the refresh loop if the loop has to go on. If a node becomes suspect while the loop ends,
    /// either this loop goes on or a new loop begins.
    fn goes_on(&self, mark: Running) -> Option<Running> {
        if !self.is_well() {
            return Some(mark);
        }
        self.members.lock().begin_again();
        mark.end_unless(|| !self.is_well())
    }

    /// Returns true if no owner of slots is silent and no change is recent. Also forgets the suspects that own no slots
    /// and are no members. A suspect that is a member stays suspect, because it may be asked for the map.
    fn is_well(&self) -> bool {
        if CLOCK.now() < *self.look_until.lock() {
            return false;
        }
        let map = self.map.borrow();
        let mut is_well = true;
        self.change_suspects(|suspects| {
            suspects.retain(|suspect, _| map.has(suspect) || self.members.lock().has(suspect));
            is_well = !suspects
                .iter()
                .any(|(suspect, suspect_reason)| *suspect_reason == SuspectReason::Silent && map.has(suspect));
        });
        is_well
    }

    /// Asks the map source for the newest map.
    pub(in crate::net) async fn refresh(&self) -> Result<(), Fault> {
        self.ask_in_background(None).await
    }

    /// Asks the map source for the newest map, or only for the owner of `slot`. Callers that ask for an owner at about
    /// the same time share one answer. If this answer names no owner, another question would most likely give no owner
    /// either. A task on the background runtime asks. The task holds `refresh_lock`, so it must go on when the caller of
    /// this function is dropped.
    pub(super) async fn ask_in_background(&self, slot: Option<u16>) -> Result<(), Fault> {
        let (tell, told) = oneshot::channel();
        let fleet = Weak::clone(&self.me);
        self.setup.background_runtime.spawn(async move {
            if let Some(fleet) = fleet.upgrade() {
                // The result is ignored, because the caller may have stopped waiting.
                drop(tell.send(fleet.ask_in_turn(slot).await));
            }
        });
        match tokio::time::timeout(self.setup.limits.response_timeout * 3, told).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) | Err(_) => Err(Fault::unsent("the question for the map has no answer")),
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
                && CLOCK.now().since(*at) < LOOK_AGAIN
            {
                return Ok(refreshed.clone()?);
            }
        }
        let refreshed = self.ask_map_source().await.map_err(not_sent);
        *last = Some((CLOCK.now(), refreshed.clone()));
        Ok(refreshed?)
    }

    async fn ask_map_source(&self) -> Result<(), Fault> {
        self.map_refreshes.fetch_add(1, Ordering::Relaxed);
        self.map_refreshes_counter.add_one();
        let map = match &self.sentinels {
            None => self.ask_members().await?,
            Some(sentinels) => {
                let (primary, sentinel) = sentinels.primary().await?;
                SlotMap::whole(&self.announced.on_announced(&primary, &sentinel))
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
        let is_known = |node: &str| map.has(node) || self.members.lock().has(node);
        self.setup.outages.retain(is_known);
        self.setup.conditions.retain(is_known);
        self.announced.retain(is_known);
        let before = std::mem::replace(&mut *self.told.lock(), map.clone());
        let is_first = before.is_empty();
        for Moved { slots, owner, was } in map.moves_since(&before) {
            // Behind Sentinels the message names no slots, because one primary owns all of them.
            let slots = self.sentinels.is_none().then_some(&*slots);
            catch_panic(|| match owner {
                Some(owner) if is_first => events::primary_found(slots, &owner, &self.announced.source(&owner)),
                owner => {
                    let source = owner.as_deref().map(|owner| self.announced.source(owner)).unwrap_or_default();
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
            let is_kept = {
                let members = self.members.lock();
                members.is_seed(node.address()) || !has_owner && members.answered_last(node.address())
            };
            if !is_kept && self.nodes.lock().remove(node.address()).is_some() {
                // The count is saved here. If the address is used again later, a new node is created, whose count
                // begins at zero.
                self.past_reconnects.fetch_add(node.reconnects(), Ordering::Relaxed);
            }
        }
    }

    /// Asks a few members at a time for the map. Ends when a member gives a map, when all members were asked, or when
    /// the time is over.
    ///
    /// The next round begins when all members of the last round have failed, or when the round is slow. A later call of
    /// this function begins with the members that were not asked yet.
    async fn ask_members(&self) -> Result<SlotMap, Fault> {
        let response_timeout = self.setup.limits.response_timeout;
        let time_is_over = tokio::time::sleep(response_timeout * 2);
        tokio::pin!(time_is_over);
        let mut fault = Fault::NotSent(None);
        let mut unasked = self.members.lock().len();
        let mut answers = FuturesUnordered::new();
        loop {
            let round = if unasked > 0 { self.next_members() } else { Vec::new() };
            unasked = unasked.saturating_sub(if round.is_empty() { MAX_ASKED } else { round.len() });
            answers.extend(round.into_iter().map(|address| self.ask_for_slots(address)));
            let is_slow = tokio::time::sleep(response_timeout / 2);
            tokio::pin!(is_slow);
            loop {
                tokio::select! {
                    biased;
                    answer = answers.next() => match answer {
                        Some((address, Ok(map))) => {
                            let mut members = self.members.lock();
                            if members.believes(&address, &map) {
                                members.on_map(&address, &map);
                                return Ok(map);
                            }
                            fault = Fault::unsent(format!(
                                "{address} is a member of another cluster by now"
                            ));
                        }
                        Some((_, Err(other))) => fault.prefer(other),
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
    fn next_members(&self) -> Vec<Arc<str>> {
        let suspects = self.suspects.lock().clone();
        let mut nodes: Vec<_> = self.nodes.lock().values().cloned().collect();
        nodes.retain(|node| node.is_connected());
        let connected: HashSet<&str> = nodes.iter().map(|node| node.address()).collect();
        self.members.lock().next(|address| match address {
            _ if suspects.contains_key(address) => AskOrder::Suspect,
            _ if connected.contains(address) => AskOrder::Connected,
            _ => AskOrder::Unconnected,
        })
    }

    async fn ask_for_slots(&self, address: Arc<str>) -> (Arc<str>, Result<SlotMap, Fault>) {
        let asking = async {
            let question = redis::cmd("CLUSTER").arg("SLOTS").take();
            let reply = self.node(&address)?.ask_for_map(&question).await?;
            let map = SlotMap::parse(&reply, |announced| self.announced.on_announced(announced, &address));
            let map = map.filter(|map| !map.is_empty());
            map.ok_or_else(|| Fault::unsent("it knows no slots"))
        };
        // The time limit includes the dial. If the connection is ready later, the next question uses it.
        let answer = tokio::time::timeout(self.setup.limits.response_timeout, asking).await;
        let answer = answer
            .unwrap_or_else(|_| Err(Fault::unsent("no answer in time")))
            .map_err(|fault| fault.at(&shown(&address, &self.announced.source(&address))));
        (address, answer)
    }
}
