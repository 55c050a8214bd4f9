//! Network: the way of a request to the server, and of its answer back.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::oneshot;

use super::parcel::{Delivery, Fate, Fates, Parcel};
use super::{Down, World, lock_of, millis};
use crate::base::key::Key;
use crate::testing::simulation::history::{Op, Process, Request, What};

/// Shortest time that counts as slow.
const MIN_SLOW: Duration = Duration::from_millis(50);

/// Server that a request has reached.
enum Reached {
    Primary,
    Deposed,
    Frozen,
    /// No server. The server at this address is no primary any more, or is unreachable.
    Nobody(Down),
}

impl World {
    /// Sends a request. Its copies travel on even if the sender is gone.
    pub(in crate::testing::simulation) fn post(
        self: &Arc<Self>,
        process: Process,
        key: &Arc<Key>,
        parcel: &Parcel,
        (first, second): Fates,
    ) -> (Request, oneshot::Receiver<Delivery>) {
        let request = self.number(2);
        let (answer, answered) = oneshot::channel();
        let attempt = self.state.lock().acting;
        if let Op::Conversion { old, id, .. } = parcel.op() {
            self.state.lock().converted.insert(id, old);
        }
        let (lock, server) = (lock_of(key), self.server_of(process));
        self.record(What::Sent { request, process, lock, op: parcel.op(), attempt, server });
        let node = self.node_of(process);
        if first.there.max(first.back) >= MIN_SLOW {
            self.record(What::Slow { request });
        }
        let refused = Arc::default();
        if let Some(second) = second {
            self.deliver((request, node), (second, &refused), key, parcel, None);
        }
        self.deliver((request, node), (first, &refused), key, parcel, Some(answer));
        (request, answered)
    }

    /// Draws the fate of a request, or of several that travel together.
    pub(in crate::testing::simulation) fn fates(&self, parcel: &Parcel) -> Fates {
        let mut state = self.state.lock();
        let (healed, profile) = (state.healed, &self.profile);
        let rng = &mut state.rng;
        let mut chance = |per_mille: u32| !healed && rng.u32(0..1000) < per_mille;
        let lost = (chance(profile.lost_request), chance(profile.lost_reply));
        let slow = (chance(profile.slow), chance(profile.slow));
        let copied = chance(profile.copied);
        let mut trip =
            |slow| Duration::from_millis(if slow { rng.u64(millis(MIN_SLOW)..2_500) } else { rng.u64(0..4) });
        let (there, back) = (trip(slow.0), trip(slow.1));
        let late = if copied { trip(true) } else { Duration::ZERO };
        let first = Fate {
            copy: 1,
            there,
            back,
            request_lost: lost.0,
            // A late copy of an acquisition or conversion that was answered would be unknown to its sender. One
            // connection carries requests out in order, so that cannot happen there.
            reply_lost: lost.1 || (copied && matches!(parcel, Parcel::Acquire { .. } | Parcel::Conversion { .. })),
        };
        let second = copied.then(|| Fate { copy: 2, there: first.there + late, ..first });
        (first, second)
    }

    fn deliver(
        self: &Arc<Self>,
        (request, node): (Request, u32),
        (fate, refused): (Fate, &Arc<AtomicBool>),
        key: &Arc<Key>,
        parcel: &Parcel,
        answer: Option<oneshot::Sender<Delivery>>,
    ) {
        let (world, key, parcel) = (Arc::clone(self), Arc::clone(key), parcel.clone());
        let refused = Arc::clone(refused);
        drop(tokio::spawn(async move {
            let copy = fate.copy;
            world.travels(fate.there).await;
            let mut reached = world.reached(node).await;
            if matches!(reached, Reached::Primary) {
                world.served().await;
                reached = world.reached(node).await;
            }
            let deposed = match reached {
                // Without a connection, no copy was sent and none is repeated.
                _ if refused.load(Ordering::SeqCst) => return world.record(What::RequestLost { request, copy }),
                Reached::Nobody(Down::Refusing) => {
                    refused.store(true, Ordering::SeqCst);
                    if let Some(answer) = answer {
                        answer.send(Delivery::Refused).ok();
                    }
                    return;
                }
                _ if fate.request_lost || world.loses(&parcel) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Nobody(_) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Deposed => true,
                Reached::Primary | Reached::Frozen => false,
            };
            let (reply, server) = world.apply((request, copy), deposed, &key, &parcel);
            let counts = world.counts(&reply, deposed).await;
            world.travels(fate.back).await;
            let Some(answer) = answer else {
                return;
            };
            let down = !deposed && world.state.lock().server.down.is_some_and(|down| down != Down::ForConversions);
            if fate.reply_lost || down {
                return world.record(What::ReplyLost { request, copy });
            }
            let delivery = if counts { Delivery::Answered(reply, server) } else { Delivery::Unreplicated };
            answer.send(delivery).ok();
        }));
    }

    fn loses(&self, parcel: &Parcel) -> bool {
        let down = self.state.lock().server.down;
        down == Some(Down::ForConversions) && matches!(parcel, Parcel::Conversion { .. })
    }

    async fn travels(&self, time: Duration) {
        // A timer takes at least a millisecond.
        if !self.profile.hot {
            tokio::time::sleep(time).await;
        }
    }

    /// Returns the address that a process has for the primary.
    fn node_of(&self, process: Process) -> u32 {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        old.map_or(state.server.node, |old| old.node)
    }

    /// Returns the server at this address, as soon as it is not frozen.
    async fn reached(&self, node: u32) -> Reached {
        loop {
            let thawed = self.thawed.notified();
            tokio::pin!(thawed);
            thawed.as_mut().enable();
            match self.reaches(node) {
                Reached::Frozen => thawed.await,
                other => return other,
            }
        }
    }

    fn reaches(&self, node: u32) -> Reached {
        let state = self.state.lock();
        match (&state.old, state.server.down) {
            _ if state.server.frozen => Reached::Frozen,
            (_, Some(down)) if node == state.server.node && !down.is_reached() => Reached::Nobody(down),
            _ if node == state.server.node => Reached::Primary,
            (Some(old), _) if old.node == node && old.frozen => Reached::Frozen,
            (Some(old), _) if old.node == node => Reached::Deposed,
            _ => Reached::Nobody(Down::Refusing),
        }
    }

    /// Returns when the server has done the earlier work.
    async fn served(&self) {
        if self.profile.service_ms == 0 {
            return;
        }
        let now = self.now();
        let done = {
            let server = &mut self.state.lock().server;
            server.busy_until = server.busy_until.max(now) + self.profile.service_ms * 1000;
            server.busy_until
        };
        tokio::time::sleep(Duration::from_micros(done - now)).await;
    }
}
