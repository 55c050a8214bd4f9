//! Network: the way of a request to the server, and of its answer back.

use super::*;

/// Shortest time that counts as slow.
const MIN_SLOW: Duration = Duration::from_millis(50);

/// Way of a process to a server. `node` is the address that the process has for the primary, or the one of the master
/// to which it is connected.
#[derive(Clone, Copy, Debug)]
pub struct Wire {
    pub process: Process,
    pub place: Place,
    node: u32,
}

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
    pub fn post(
        self: &Arc<Self>,
        wire: Wire,
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
        let Wire { process, place, .. } = wire;
        let (lock, server) = (lock_of(key), self.server_of(process));
        self.record(What::Sent { request, process, place, lock, op: parcel.op(), attempt, server });
        if first.there.max(first.back) >= MIN_SLOW {
            self.record(What::Slow { request });
        }
        let refused = Arc::default();
        if let Some(second) = second {
            self.deliver((request, wire), (second, &refused), key, parcel, None);
        }
        self.deliver((request, wire), (first, &refused), key, parcel, Some(answer));
        (request, answered)
    }

    /// Draws the fate of a request, or of several that travel together.
    pub fn fates(&self, place: Place, parcel: &Parcel) -> Fates {
        let mut state = self.state.lock();
        let (healed, profile) = (state.healed, &self.profile);
        let (is_slow, answers_after) = (state.servers[place].is_slow, state.servers[place].answers_after);
        let rng = &mut state.rng;
        let mut chance = |per_mille: u32| !healed && rng.u32(0..1000) < per_mille;
        let lost = (chance(profile.lost_request), chance(profile.lost_reply));
        let slow = (chance(profile.slow) || is_slow, chance(profile.slow) || is_slow);
        let copied = chance(profile.copied);
        let mut trip =
            |slow| Duration::from_millis(if slow { rng.u64(millis(MIN_SLOW)..2_500) } else { rng.u64(0..4) });
        let (there, back) = (trip(slow.0), trip(slow.1) + answers_after);
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
        (request, wire): (Request, Wire),
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
            let mut reached = world.reached(wire).await;
            if matches!(reached, Reached::Primary) {
                world.served(wire.place).await;
                reached = world.reached(wire).await;
            }
            let deposed = match reached {
                // Without a connection, no copy was sent and none is repeated.
                _ if refused.load(Ordering::SeqCst) => return world.record(What::RequestLost { request, copy }),
                Reached::Nobody(Down::Refusing | Down::Dead) => {
                    refused.store(true, Ordering::SeqCst);
                    if let Some(answer) = answer {
                        answer.send(Delivery::Refused).ok();
                    }
                    return;
                }
                _ if fate.request_lost || world.loses(wire.place, &parcel) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Nobody(_) => {
                    return world.record(What::RequestLost { request, copy });
                }
                Reached::Deposed => true,
                Reached::Primary | Reached::Frozen => false,
            };
            let applied = world.now();
            let (reply, server) = world.apply((request, copy), (wire.place, deposed), &key, &parcel);
            let counts = world.counts(&reply, deposed).await;
            world.travels(fate.back).await;
            let Some(answer) = answer else {
                return;
            };
            if fate.reply_lost || (!deposed && world.loses_reply(wire, applied)) {
                return world.record(What::ReplyLost { request, copy });
            }
            let delivery = if counts { Delivery::Answered(reply, server) } else { Delivery::Unreplicated };
            answer.send(delivery).ok();
        }));
    }

    fn loses(&self, place: Place, parcel: &Parcel) -> bool {
        let down = self.state.lock().servers[place].down;
        down == Some(Down::ForConversions) && matches!(parcel, Parcel::Conversion { .. })
    }

    /// Returns true if the answer to a request that was carried out at `applied` does not reach its process now.
    fn loses_reply(&self, Wire { process, place, .. }: Wire, applied: Micros) -> bool {
        let state = self.state.lock();
        let server = &state.servers[place];
        server.down.is_some_and(|down| down != Down::ForConversions)
            || server.died.is_some_and(|died| died >= applied)
            || state.cut.contains(&(process, place))
    }

    async fn travels(&self, time: Duration) {
        // A timer takes at least a millisecond.
        if !self.profile.hot {
            sleep(time).await;
        }
    }

    /// Returns the way of a new request to a server.
    pub fn wire(&self, process: Process, place: Place) -> Wire {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        Wire { process, place, node: old.map_or(state.servers[place].node, |old| old.node) }
    }

    /// Returns the server at this address, as soon as it is not frozen.
    async fn reached(&self, wire: Wire) -> Reached {
        loop {
            let thawed = self.thawed.notified();
            tokio::pin!(thawed);
            thawed.as_mut().enable();
            match self.reaches(wire) {
                Reached::Frozen => thawed.await,
                other => return other,
            }
        }
    }

    fn reaches(&self, Wire { process, place, node }: Wire) -> Reached {
        let state = self.state.lock();
        let server = &state.servers[place];
        match (&state.old, server.down) {
            _ if state.cut.contains(&(process, place)) => Reached::Nobody(Down::Silent),
            _ if server.frozen => Reached::Frozen,
            (_, Some(down)) if node == server.node && !down.is_reached() => Reached::Nobody(down),
            _ if node == server.node => Reached::Primary,
            (Some(old), _) if old.node == node && old.frozen => Reached::Frozen,
            (Some(old), _) if old.node == node => Reached::Deposed,
            _ => Reached::Nobody(Down::Refusing),
        }
    }

    /// Returns when the server has done the earlier work.
    async fn served(&self, place: Place) {
        if self.profile.service_ms == 0 {
            return;
        }
        let now = self.now();
        let done = {
            let server = &mut self.state.lock().servers[place];
            server.busy_until = server.busy_until.max(now) + self.profile.service_ms * 1000;
            server.busy_until
        };
        sleep(Duration::from_micros(done - now)).await;
    }
}
