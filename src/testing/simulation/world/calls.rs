//! Calls: who listens for a lock that it keeps, and what it hears. Subscriptions are confirmed, pinged and lost as the transport does
//! it; messages are lost, late and doubled as notices are.

use std::sync::{Arc, Weak};
use std::time::Duration;

use super::{World, lock_of};
use crate::attempt::NodeId;
use crate::calls::{Call, Calls, Fresh, Standing};
use crate::key::Key;
use crate::scheme::Notice;
use crate::scheme::memory::CallBack;
use crate::testing::simulation::history::{Id, Lock, Process, What};

/// As the transport has it.
const PING: Duration = Duration::from_millis(500);

/// Somebody who keeps a lock.
pub(super) struct Keeper {
    process: Process,
    lock: Lock,
    calls: Weak<Calls>,
    /// The server at which it is subscribed, and until when that is heard.
    stands: Option<(u32, Arc<Fresh>)>,
}

/// Ends it when it is dropped.
pub(in crate::testing::simulation) struct StopListening {
    world: Arc<World>,
    number: u32,
}

impl Drop for StopListening {
    fn drop(&mut self) {
        self.world.state.lock().keepers.remove(&self.number);
    }
}

/// Names the server that a process is connected to.
fn node(server: u32) -> NodeId {
    NodeId::of(&server.to_string())
}

impl World {
    pub(in crate::testing::simulation) fn listen_for_calls(
        self: &Arc<Self>,
        process: Process,
        key: &Key,
        calls: &Arc<Calls>,
    ) -> StopListening {
        let (number, lock) = (self.number(3), lock_of(key));
        let keeper = Keeper { process, lock, calls: Arc::downgrade(calls), stands: None };
        self.state.lock().keepers.insert(number, keeper);
        drop(tokio::spawn(Arc::clone(self).keeps_listening(number, process)));
        StopListening { world: Arc::clone(self), number }
    }

    /// Who has answered a process.
    pub(in crate::testing::simulation) fn answering(&self, process: Process) -> NodeId {
        node(self.server_of(process))
    }

    fn server_of(&self, process: Process) -> u32 {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        old.map_or(state.server.number, |old| old.number)
    }

    /// Subscribes, and pings as long as anybody listens.
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
            if !self.state.lock().keepers.contains_key(&number) {
                return;
            }
            let lost = match (answers && is_in_time).then(|| self.confirms(number, server)) {
                None => self.breaks(number),
                Some(None) => None,
                // On another connection: what the one before had is lost.
                Some(Some(fresh)) => {
                    let lost = self.breaks_unless(number, server);
                    fresh.answered(sent);
                    self.stands(number, server, &fresh);
                    lost
                }
            };
            if let Some(calls) = lost {
                calls.tell_broken();
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

    /// Until when that server is heard, of a subscription that is there.
    fn confirms(&self, number: u32, server: u32) -> Option<Arc<Fresh>> {
        let state = self.state.lock();
        let keeper = state.keepers.get(&number)?;
        Some(match &keeper.stands {
            Some((at, fresh)) if *at == server => Arc::clone(fresh),
            _ => Arc::new(Fresh::until(crate::lease::Moment::from_nanos(0))),
        })
    }

    fn breaks_unless(&self, number: u32, server: u32) -> Option<Arc<Calls>> {
        let stands = self.state.lock().keepers.get(&number).and_then(|keeper| Some(keeper.stands.as_ref()?.0));
        if stands == Some(server) { None } else { self.breaks(number) }
    }

    fn breaks(&self, number: u32) -> Option<Arc<Calls>> {
        let mut state = self.state.lock();
        let keeper = state.keepers.get_mut(&number)?;
        keeper.stands = None;
        let calls = keeper.calls.upgrade()?;
        drop(state);
        calls.breaks().then_some(calls)
    }

    fn stands(&self, number: u32, server: u32, fresh: &Arc<Fresh>) {
        let epoch = u64::from(self.number(3));
        let mut state = self.state.lock();
        let Some(keeper) = state.keepers.get_mut(&number).filter(|keeper| keeper.stands.is_none()) else {
            return;
        };
        keeper.stands = Some((server, Arc::clone(fresh)));
        let calls = keeper.calls.upgrade();
        drop(state);
        if let Some(calls) = calls {
            calls.stands(Standing { epoch, node: node(server), fresh: Arc::clone(fresh) });
        }
    }

    /// Passes a call on to all who are subscribed at that server.
    pub(super) fn publish_call(self: &Arc<Self>, lock: Lock, CallBack { token, id }: CallBack, server: u32) {
        let call = Call { token, tries: id.map(|id| id.shared()) };
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
            if lost {
                continue;
            }
            for _ in 0..=u32::from(twice) {
                let by_ms = self.draw(|rng| if late { rng.u64(5..2_500) } else { rng.u64(0..4) });
                let (world, call, calls) = (Arc::clone(self), call.clone(), Arc::clone(&calls));
                drop(tokio::spawn(async move {
                    tokio::time::sleep(Duration::from_millis(by_ms)).await;
                    let gate = world.state.lock().ears.get(&process).map(|ear| Arc::clone(&ear.gate));
                    let Some(gate) = gate else { return };
                    gate.pass().await;
                    if world.hears(process, server) {
                        world.record(What::Called { process, lock, token: call.token.as_u64() });
                        calls.called(&call, world.clock.now());
                    }
                }));
            }
        }
    }

    /// Whoever tries is told that a guard is inside.
    pub(in crate::testing::simulation) fn tell_used(&self, lock: Lock, id: &str) {
        self.tell(Id::of(id).process, lock, &Notice::Used { id: id.into() });
    }
}
