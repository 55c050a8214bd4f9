//! Recalls, and the processes that subscribe to recalls of their cached holds. Subscriptions are confirmed, pinged and
//! lost as in the transport. Messages are lost, late and doubled as notifications are.

use super::*;

/// Interval of pings, as in the transport.
const PING: Duration = Duration::from_millis(500);

/// Subscriber of a process to the recalls of one lock.
pub struct ListeningProcess {
    process: Process,
    lock: Lock,
    recalls: Weak<Recalls>,
    /// Server at which the listener is subscribed, and the time until which the subscription is live.
    live: Option<(u32, Arc<Liveness>)>,
    /// Mutant: subscriptions at each server that the listener learned of. A ping answered by any server confirms all of
    /// them.
    learned: Vec<(u32, Arc<Liveness>)>,
}

impl World {
    /// Names the server that a process is connected to.
    fn name_of(&self, server: u32) -> NodeId {
        let server = if self.mutant == Some(Mutant::OtherNode) { 0 } else { server };
        NodeId::of(&server.to_string())
    }

    fn note_recall_event(&self, process: Process, lock: Lock, input: RecallEvent) {
        self.record(What::RecallEvent { process, lock, input });
    }

    pub fn listen_for_recalls(self: &Arc<Self>, process: Process, key: &Key, recalls: &Arc<Recalls>) {
        let (number, lock) = (self.number(3), lock_of(key));
        let listener =
            ListeningProcess { process, lock, recalls: Arc::downgrade(recalls), live: None, learned: Vec::new() };
        self.state.lock().recall_listeners.insert(number, listener);
        if self.mutant == Some(Mutant::CachesUnconfirmed) {
            self.tell_live(recalls, &self.liveness_until(self.server_of(process), Moment::NEVER));
        }
        drop(tokio::spawn(Arc::clone(self).keep_listening(number, process)));
    }

    /// Returns true while the listener exists. Removes it otherwise.
    fn is_listening(&self, number: u32) -> bool {
        let mut state = self.state.lock();
        let exists = state.recall_listeners.get(&number).is_some_and(|listener| listener.recalls.strong_count() > 0);
        if !exists {
            state.recall_listeners.remove(&number);
        }
        exists
    }

    /// Returns the node that answers a process.
    pub fn answering(&self, process: Process) -> NodeId {
        self.name_of(self.server_of(process))
    }

    pub fn server_of(&self, process: Process) -> u32 {
        let state = self.state.lock();
        let old = state.old.as_ref().filter(|_| state.behind.contains(&process));
        old.map_or(state.servers[ONLY].number, |old| old.number)
    }

    /// Subscribes, and pings as long as the listener exists.
    async fn keep_listening(self: Arc<Self>, number: u32, process: Process) {
        loop {
            let Some(gate) = self.state.lock().links.get(&process).map(|link| Arc::clone(&link.gate)) else {
                return;
            };
            gate.pass().await;
            let (sent, server) = (self.clock.now(), self.server_of(process));
            let trip = self.draw(|rng| Duration::from_millis(rng.u64(0..4)));
            sleep(trip).await;
            let answers = self.answers_pings(process, server);
            sleep(trip).await;
            gate.pass().await;
            let is_in_time = self.clock.now().since(sent) <= PING;
            if !self.is_listening(number) {
                return;
            }
            let lost = match (answers && is_in_time).then(|| self.confirm_listener(number, server)) {
                // The connection is silent.
                None if self.mutant == Some(Mutant::NoAge) => None,
                None => self.end_subscription(number),
                Some(None) => None,
                // Messages on the connection before this one are lost.
                Some(Some(liveness)) => {
                    let lost = self.end_subscription_unless_at(number, server);
                    self.on_ping_answered(number, &liveness, sent);
                    self.note_live(number, server, &liveness);
                    self.note_ping(number, sent);
                    lost
                }
            };
            if let Some(recalls) = lost {
                recalls.notify_break();
                if self.mutant == Some(Mutant::LiveAgainAtOnce) {
                    self.tell_live(&recalls, &self.liveness_until(server, sent.after(PING * 2)));
                }
            }
            sleep(PING).await;
        }
    }

    fn answers_pings(&self, process: Process, server: u32) -> bool {
        let is_up = {
            let state = self.state.lock();
            state.servers[ONLY].number != server || (state.servers[ONLY].down.is_none() && !state.servers[ONLY].frozen)
        };
        is_up && self.is_connected(process, server)
    }

    /// Returns the validity of the listener's subscription at that server, new or existing.
    fn confirm_listener(&self, number: u32, server: u32) -> Option<Arc<Liveness>> {
        let new = self.liveness_until(server, self.first_liveness());
        let mut state = self.state.lock();
        let listener = state.recall_listeners.get_mut(&number)?;
        if let Some((_, liveness)) = listener.live.as_ref().filter(|(at, _)| *at == server) {
            return Some(Arc::clone(liveness));
        }
        if self.mutant == Some(Mutant::IgnoresBreak) {
            let learned =
                listener.learned.iter().find(|(at, _)| *at == server).map(|(_, liveness)| Arc::clone(liveness));
            return Some(learned.unwrap_or_else(|| {
                listener.learned.push((server, Arc::clone(&new)));
                new
            }));
        }
        Some(new)
    }

    fn liveness_until(&self, server: u32, until: Moment) -> Arc<Liveness> {
        Arc::new(Liveness::until(self.name_of(server), until))
    }

    /// Confirms the subscriptions of a listener by an answer to a ping that was sent at `sent`.
    fn on_ping_answered(&self, number: u32, liveness: &Liveness, sent: Moment) {
        liveness.on_answer(sent);
        if let Some(listener) = self.state.lock().recall_listeners.get(&number) {
            listener.learned.iter().for_each(|(_, learned)| learned.on_answer(sent));
        }
    }

    fn note_ping(&self, number: u32, sent: Moment) {
        let listener =
            self.state.lock().recall_listeners.get(&number).map(|listener| (listener.process, listener.lock));
        let sent = micros(sent.since(self.origin));
        if let Some((process, lock)) = listener {
            self.note_recall_event(process, lock, RecallEvent::Ping(sent));
        }
    }

    fn first_liveness(&self) -> Moment {
        if self.mutant == Some(Mutant::NoAge) { Moment::NEVER } else { Moment::from_nanos(0) }
    }

    fn end_subscription_unless_at(&self, number: u32, server: u32) -> Option<Arc<Recalls>> {
        let live = self.state.lock().recall_listeners.get(&number).and_then(|listener| Some(listener.live.as_ref()?.0));
        if live == Some(server) { None } else { self.end_subscription(number) }
    }

    /// Ends the subscription of a listener. Returns the recalls that have to learn of it.
    fn end_subscription(&self, number: u32) -> Option<Arc<Recalls>> {
        let mut state = self.state.lock();
        let listener = state.recall_listeners.get_mut(&number)?;
        let was_live = listener.live.take().is_some();
        let (process, lock, recalls) = (listener.process, listener.lock, listener.recalls.upgrade()?);
        drop(state);
        if was_live {
            self.note_recall_event(process, lock, RecallEvent::Broken(number));
        }
        if self.mutant == Some(Mutant::IgnoresBreak) {
            return None;
        }
        recalls.on_lost().then_some(recalls)
    }

    fn note_live(&self, number: u32, server: u32, liveness: &Arc<Liveness>) {
        let mut state = self.state.lock();
        let Some(listener) = state.recall_listeners.get_mut(&number).filter(|listener| listener.live.is_none()) else {
            return;
        };
        listener.live = Some((server, Arc::clone(liveness)));
        let (process, lock, recalls) = (listener.process, listener.lock, listener.recalls.upgrade());
        drop(state);
        self.note_recall_event(process, lock, RecallEvent::Subscribed { listener: number, server });
        if let Some(recalls) = recalls {
            self.tell_live(&recalls, liveness);
        }
    }

    fn tell_live(&self, recalls: &Recalls, liveness: &Arc<Liveness>) {
        let epoch = u64::from(self.number(3));
        recalls.on_confirmed(LiveSubscription { epoch, liveness: Arc::clone(liveness) });
    }

    /// Passes a recall on to all listeners that are subscribed at that server.
    pub fn publish_recall(self: &Arc<Self>, lock: Lock, PendingRecall { token, id }: PendingRecall, server: u32) {
        let recall = Recall { token, tries: id.map(|id| id.to_shared()) };
        let listeners: Vec<_> = {
            let state = self.state.lock();
            let there = state.recall_listeners.values().filter(|listener| listener.lock == lock);
            let subscribed = there.filter(|listener| listener.live.as_ref().is_some_and(|(at, _)| *at == server));
            subscribed.filter_map(|listener| Some((listener.process, listener.recalls.upgrade()?))).collect()
        };
        for (process, recalls) in listeners {
            let (lost, late, twice) = self.push_fate();
            if lost || late {
                self.note_recall_event(process, lock, RecallEvent::Missed);
            }
            for _ in 0..if lost { 0 } else { 1 + u32::from(twice) } {
                let by_ms = self.draw(|rng| if late { rng.u64(5..2_500) } else { rng.u64(0..4) });
                let (world, recall, recalls) = (Arc::clone(self), recall.clone(), Arc::clone(&recalls));
                drop(tokio::spawn(async move {
                    sleep_ms(by_ms).await;
                    let gate = world.state.lock().links.get(&process).map(|link| Arc::clone(&link.gate));
                    let Some(gate) = gate else { return };
                    gate.pass().await;
                    if world.is_connected(process, server) {
                        world.on_recalled((process, lock), &recall, &recalls).await;
                    } else {
                        world.note_recall_event(process, lock, RecallEvent::Missed);
                    }
                }));
            }
        }
    }

    /// Delivers a recall to a process.
    async fn on_recalled(self: &Arc<Self>, (process, lock): (Process, Lock), recall: &Recall, recalls: &Recalls) {
        let recalled = Recalled { token: recall.token.as_u64(), tries: recall.tries.as_deref().map(Id::of) };
        self.note_recall_event(process, lock, RecallEvent::Recalled(recalled));
        match self.mutant {
            Some(Mutant::IgnoresRecalls) => return,
            Some(Mutant::JoinsAfterRecall) => sleep_ms(300).await,
            Some(Mutant::LeavesUnderGuard) => self.release_at_once(process, lock),
            _ => {}
        }
        // All listeners of the process get it, because it comes on one channel.
        let all: Vec<_> = {
            let state = self.state.lock();
            let here =
                state.recall_listeners.values().filter(|listener| (listener.process, listener.lock) == (process, lock));
            here.filter_map(|listener| listener.recalls.upgrade()).collect()
        };
        recalls.on_recall(recall, self.clock.now());
        for other in all.iter().filter(|other| !std::ptr::eq(Arc::as_ptr(other), recalls)) {
            other.on_recall(recall, self.clock.now());
        }
    }

    /// Mutant: releases the holds of a process although a guard is inside.
    fn release_at_once(self: &Arc<Self>, process: Process, lock: Lock) {
        let inside = self
            .state
            .lock()
            .live
            .iter()
            .find(|live| (live.process, live.lock) == (process, lock))
            .map(|live| Arc::clone(&live.key));
        let Some(key) = inside else { return };
        let now_ms = self.server_time().as_micros() / 1000;
        for (id, _, _) in self.store().record(&key).live_holds(now_ms) {
            if Id::of(&id).process == process {
                let leave = Parcel::Leave { id: parse(&id), rest_until: None };
                drop(self.post(self.wire(process, ONLY), &key, &leave, self.fates(ONLY, &leave)));
            }
        }
    }

    /// Returns true if a guard of the process is inside.
    pub fn is_inside(&self, process: Process, lock: Lock) -> bool {
        self.state.lock().live.iter().any(|live| (live.process, live.lock) == (process, lock))
    }

    /// Notifies a try that a guard is inside.
    pub fn reply_in_use(&self, lock: Lock, id: &str) {
        self.tell(Id::of(id).process, lock, &Notification::Used { id: id.into() });
    }
}
