//! Recalls, and the processes that subscribe to recalls of their cached holds. Subscriptions are confirmed, pinged and
//! lost as in the transport. Messages are lost, late and doubled as notices are.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{Parcel, World, lock_of};
use crate::base::attempt::NodeId;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::recalls::{LiveSubscription, Liveness, Recall, Recalls};
use crate::store::Notification;
use crate::store::memory::PendingRecall;
use crate::testing::simulation::history::{Called, Heard, Id, Lock, Process, What};
use crate::testing::simulation::mutants::{Mutant, parse};

/// Interval of pings, as in the transport.
const PING: Duration = Duration::from_millis(500);

/// Subscriber of a process to the recalls of one lock.
pub(super) struct Keeper {
    process: Process,
    lock: Lock,
    calls: Weak<Recalls>,
    /// Server at which the keeper is subscribed, and the time until which the subscription is live.
    stands: Option<(u32, Arc<Liveness>)>,
    /// Mutant: subscriptions at each server that the keeper learned of. A ping answered by any server confirms all of
    /// them.
    told: Vec<(u32, Arc<Liveness>)>,
}

impl World {
    /// Names the server that a process is connected to.
    fn name_of(&self, server: u32) -> NodeId {
        let server = if self.mutant == Some(Mutant::OtherNode) { 0 } else { server };
        NodeId::of(&server.to_string())
    }

    fn hears_of(&self, process: Process, lock: Lock, heard: Heard) {
        self.record(What::Hears { process, lock, heard });
    }

    pub(in crate::testing::simulation) fn listen_for_calls(
        self: &Arc<Self>,
        process: Process,
        key: &Key,
        calls: &Arc<Recalls>,
    ) {
        let (number, lock) = (self.number(3), lock_of(key));
        let keeper = Keeper { process, lock, calls: Arc::downgrade(calls), stands: None, told: Vec::new() };
        self.state.lock().keepers.insert(number, keeper);
        if self.mutant == Some(Mutant::KeepsUnconfirmed) {
            self.tell_stands(calls, &self.fresh_until(self.server_of(process), Moment::NEVER));
        }
        drop(tokio::spawn(Arc::clone(self).keeps_listening(number, process)));
    }

    /// Returns true while the keeper exists. Removes it otherwise.
    fn is_listening(&self, number: u32) -> bool {
        let mut state = self.state.lock();
        let is_kept = state.keepers.get(&number).is_some_and(|keeper| keeper.calls.strong_count() > 0);
        if !is_kept {
            state.keepers.remove(&number);
        }
        is_kept
    }

    /// Returns the node that answers a process.
    pub(in crate::testing::simulation) fn answering(&self, process: Process) -> NodeId {
        self.name_of(self.server_of(process))
    }

    pub(super) fn server_of(&self, process: Process) -> u32 {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        old.map_or(state.server.number, |old| old.number)
    }

    /// Subscribes, and pings as long as the keeper exists.
    async fn keeps_listening(self: Arc<Self>, number: u32, process: Process) {
        loop {
            let Some(gate) = self.state.lock().ears.get(&process).map(|ear| Arc::clone(&ear.gate)) else {
                return;
            };
            gate.pass().await;
            let (sent, server) = (self.clock.now(), self.server_of(process));
            let trip = self.draw(|rng| Duration::from_millis(rng.u64(0..4)));
            tokio::time::sleep(trip).await;
            let answers = self.answers_pings(process, server);
            tokio::time::sleep(trip).await;
            gate.pass().await;
            let is_in_time = self.clock.now().since(sent) <= PING;
            if !self.is_listening(number) {
                return;
            }
            let lost = match (answers && is_in_time).then(|| self.confirms(number, server)) {
                // The connection is silent.
                None if self.mutant == Some(Mutant::NoAge) => self.breaks(number).and(None),
                None => self.breaks(number),
                Some(None) => None,
                // Messages on the connection before this one are lost.
                Some(Some(fresh)) => {
                    let lost = self.breaks_unless(number, server);
                    self.answered(number, &fresh, sent);
                    self.stands(number, server, &fresh);
                    self.pinged(number, sent);
                    lost
                }
            };
            if let Some(calls) = lost {
                calls.notify_break();
                if self.mutant == Some(Mutant::StandsAgainAtOnce) {
                    self.tell_stands(&calls, &self.fresh_until(server, sent.after(PING * 2)));
                }
            }
            tokio::time::sleep(PING).await;
        }
    }

    fn answers_pings(&self, process: Process, server: u32) -> bool {
        let is_up = {
            let state = self.state.lock();
            state.server.number != server || (state.server.down.is_none() && !state.server.frozen)
        };
        is_up && self.hears(process, server)
    }

    /// Returns the validity of the keeper's subscription at that server, new or existing.
    fn confirms(&self, number: u32, server: u32) -> Option<Arc<Liveness>> {
        let new = self.fresh_until(server, self.first_fresh());
        let mut state = self.state.lock();
        let keeper = state.keepers.get_mut(&number)?;
        if let Some((_, fresh)) = keeper.stands.as_ref().filter(|(at, _)| *at == server) {
            return Some(Arc::clone(fresh));
        }
        if self.mutant == Some(Mutant::IgnoresBreak) {
            let told = keeper.told.iter().find(|(at, _)| *at == server).map(|(_, fresh)| Arc::clone(fresh));
            return Some(told.unwrap_or_else(|| {
                keeper.told.push((server, Arc::clone(&new)));
                new
            }));
        }
        Some(new)
    }

    fn fresh_until(&self, server: u32, until: Moment) -> Arc<Liveness> {
        Arc::new(Liveness::until(self.name_of(server), until))
    }

    /// Confirms the subscriptions of a keeper by an answer to a ping that was sent at `sent`.
    fn answered(&self, number: u32, fresh: &Liveness, sent: Moment) {
        fresh.on_answer(sent);
        if let Some(keeper) = self.state.lock().keepers.get(&number) {
            keeper.told.iter().for_each(|(_, told)| told.on_answer(sent));
        }
    }

    fn pinged(&self, number: u32, sent: Moment) {
        let keeper = self.state.lock().keepers.get(&number).map(|keeper| (keeper.process, keeper.lock));
        let sent = u64::try_from(sent.since(self.origin).as_micros()).expect("runs are short");
        if let Some((process, lock)) = keeper {
            self.hears_of(process, lock, Heard::Ping(sent));
        }
    }

    fn first_fresh(&self) -> Moment {
        if self.mutant == Some(Mutant::NoAge) { Moment::NEVER } else { Moment::from_nanos(0) }
    }

    fn breaks_unless(&self, number: u32, server: u32) -> Option<Arc<Recalls>> {
        let stands = self.state.lock().keepers.get(&number).and_then(|keeper| Some(keeper.stands.as_ref()?.0));
        if stands == Some(server) { None } else { self.breaks(number) }
    }

    /// Ends the subscription of a keeper. Returns the recalls that have to learn of it.
    fn breaks(&self, number: u32) -> Option<Arc<Recalls>> {
        let mut state = self.state.lock();
        let keeper = state.keepers.get_mut(&number)?;
        let stood = keeper.stands.take().is_some();
        let (process, lock, calls) = (keeper.process, keeper.lock, keeper.calls.upgrade()?);
        drop(state);
        if stood {
            self.hears_of(process, lock, Heard::Broken);
        }
        if self.mutant == Some(Mutant::IgnoresBreak) {
            return None;
        }
        calls.on_lost().then_some(calls)
    }

    fn stands(&self, number: u32, server: u32, fresh: &Arc<Liveness>) {
        let mut state = self.state.lock();
        let Some(keeper) = state.keepers.get_mut(&number).filter(|keeper| keeper.stands.is_none()) else {
            return;
        };
        keeper.stands = Some((server, Arc::clone(fresh)));
        let (process, lock, calls) = (keeper.process, keeper.lock, keeper.calls.upgrade());
        drop(state);
        self.hears_of(process, lock, Heard::Subscribed(server));
        if let Some(calls) = calls {
            self.tell_stands(&calls, fresh);
        }
    }

    fn tell_stands(&self, calls: &Recalls, fresh: &Arc<Liveness>) {
        let epoch = u64::from(self.number(3));
        calls.on_confirmed(LiveSubscription { epoch, liveness: Arc::clone(fresh) });
    }

    /// Passes a recall on to all keepers that are subscribed at that server.
    pub(super) fn publish_call(self: &Arc<Self>, lock: Lock, PendingRecall { token, id }: PendingRecall, server: u32) {
        let call = Recall { token, tries: id.map(|id| id.to_shared()) };
        let keepers: Vec<_> = {
            let state = self.state.lock();
            let there = state.keepers.values().filter(|keeper| keeper.lock == lock);
            let heard = there.filter(|keeper| keeper.stands.as_ref().is_some_and(|(at, _)| *at == server));
            heard.filter_map(|keeper| Some((keeper.process, keeper.calls.upgrade()?))).collect()
        };
        for (process, calls) in keepers {
            let (lost, late, twice) = {
                let mut state = self.state.lock();
                let healed = state.healed;
                let mut chance = |per_mille| !healed && state.rng.u32(0..1000) < per_mille;
                let profile = &self.profile;
                (chance(profile.notice_lost), chance(profile.notice_late), chance(profile.copied))
            };
            if lost || late {
                self.hears_of(process, lock, Heard::Missed);
            }
            for _ in 0..if lost { 0 } else { 1 + u32::from(twice) } {
                let by_ms = self.draw(|rng| if late { rng.u64(5..2_500) } else { rng.u64(0..4) });
                let (world, call, calls) = (Arc::clone(self), call.clone(), Arc::clone(&calls));
                drop(tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(by_ms)).await;
                    let gate = world.state.lock().ears.get(&process).map(|ear| Arc::clone(&ear.gate));
                    let Some(gate) = gate else { return };
                    gate.pass().await;
                    if world.hears(process, server) {
                        world.is_called((process, lock), &call, &calls).await;
                    } else {
                        world.hears_of(process, lock, Heard::Missed);
                    }
                }));
            }
        }
    }

    /// Delivers a recall to a process.
    async fn is_called(self: &Arc<Self>, (process, lock): (Process, Lock), call: &Recall, calls: &Recalls) {
        let called = Called { token: call.token.as_u64(), tries: call.tries.as_deref().map(Id::of) };
        self.hears_of(process, lock, Heard::Call(called));
        match self.mutant {
            Some(Mutant::DeafToCalls) => return,
            Some(Mutant::JoinsAfterCall) => tokio::time::sleep(Duration::from_millis(300)).await,
            Some(Mutant::LeavesUnderGuard) => self.leaves_at_once(process, lock),
            _ => {}
        }
        // All listeners of the process get it, because it comes on one channel.
        let all: Vec<_> = {
            let state = self.state.lock();
            let here = state.keepers.values().filter(|keeper| (keeper.process, keeper.lock) == (process, lock));
            here.filter_map(|keeper| keeper.calls.upgrade()).collect()
        };
        calls.on_recall(call, self.clock.now());
        for other in all.iter().filter(|other| !std::ptr::eq(Arc::as_ptr(other), calls)) {
            other.on_recall(call, self.clock.now());
        }
    }

    /// Mutant: releases the holds of a process although a guard is inside.
    fn leaves_at_once(self: &Arc<Self>, process: Process, lock: Lock) {
        let inside = self
            .state
            .lock()
            .live
            .iter()
            .find(|live| (live.process, live.lock) == (process, lock))
            .map(|live| Arc::clone(&live.key));
        let Some(key) = inside else { return };
        let now_ms = self.server_time().as_micros() / 1000;
        for (id, _, _) in self.store.record(&key).live_holds(now_ms) {
            if Id::of(&id).process == process {
                let leave = Parcel::Leave { id: parse(&id) };
                drop(self.post(process, &key, &leave, self.fates(&leave)));
            }
        }
    }

    /// Returns true if a guard of the process is inside.
    pub(in crate::testing::simulation) fn is_inside(&self, process: Process, lock: Lock) -> bool {
        self.state.lock().live.iter().any(|live| (live.process, live.lock) == (process, lock))
    }

    /// Notifies a try that a guard is inside.
    pub(in crate::testing::simulation) fn reply_in_use(&self, lock: Lock, id: &str) {
        self.tell(Id::of(id).process, lock, &Notification::Used { id: id.into() });
    }
}
