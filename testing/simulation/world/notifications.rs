//! Notifications: subscriptions of processes, and the notifications that reach them.

use super::*;

/// Greatest age of a clock sample that can judge a notification, as in the transport.
const MAX_SAMPLE_AGE: Duration = Duration::from_secs(2);

/// Receiver of notifications for a lock in one process.
pub struct Subscriber {
    pub process: Process,
    pub lock: Lock,
    pub to: mpsc::Sender<Notification>,
}

/// Clock sample by which a process judges notifications.
pub struct ProcessLink {
    pub gate: Arc<Gate>,
    pub clock_sample: Arc<Mutex<Option<ClockSample>>>,
}

/// Notification on its way to a process.
#[derive(Clone, Debug)]
pub struct Message {
    pub key: Arc<Key>,
    pub id: AcquisitionId,
    pub granted: Granted,
    pub at: ServerTime,
    /// Number of the server that has sent it, in the order of their appearance.
    pub server: u32,
}

/// Ends a subscription when it is dropped.
pub struct Unsubscribe {
    world: Arc<World>,
    number: u32,
}

impl Drop for Unsubscribe {
    fn drop(&mut self) {
        self.world.state.lock().subscribers.remove(&self.number);
    }
}

impl World {
    /// Sets the clock sample by which a process judges notifications from now on.
    pub fn listens(&self, address: &Address, clock_sample: &Arc<Mutex<Option<ClockSample>>>) {
        let link = ProcessLink { gate: Arc::clone(&address.gate), clock_sample: Arc::clone(clock_sample) };
        self.state.lock().links.insert(address.process, link);
    }

    /// Subscribes a waiter to notifications.
    pub fn subscribe(self: &Arc<Self>, process: Process, key: &Key) -> (mpsc::Receiver<Notification>, Unsubscribe) {
        let lock = lock_of(key);
        let confirmed = self.state.lock().confirmed.contains(&(process, lock));
        let subscription = self.listen(process, lock);
        if confirmed {
            self.tell(process, lock, &Notification::AskAgain);
        } else {
            self.confirm(process, lock);
        }
        subscription
    }

    /// Subscribes a waiter if the channel of an earlier waiter still lingers.
    pub fn subscribed(
        self: &Arc<Self>,
        process: Process,
        key: &Key,
    ) -> Option<(mpsc::Receiver<Notification>, Unsubscribe)> {
        let lock = lock_of(key);
        let mut state = self.state.lock();
        let lingers = state.confirmed.contains(&(process, lock)) && state.rng.bool();
        drop(state);
        lingers.then(|| self.listen(process, lock))
    }

    fn listen(self: &Arc<Self>, process: Process, lock: Lock) -> (mpsc::Receiver<Notification>, Unsubscribe) {
        let number = self.number(3);
        let (to, notifications) = attempt::notifications();
        self.state.lock().subscribers.insert(number, Subscriber { process, lock, to });
        (notifications, Unsubscribe { world: Arc::clone(self), number })
    }

    /// Subscribes a channel at the server, after a delay.
    pub fn confirm(self: &Arc<Self>, process: Process, lock: Lock) {
        let (late, server) = {
            let mut state = self.state.lock();
            let late = !state.healed && state.rng.u32(0..1000) < self.profile.slow;
            (late, state.servers[ONLY].number)
        };
        let by_ms = self.draw(|rng| if late { rng.u64(50..2_500) } else { rng.u64(0..4) });
        let world = Arc::clone(self);
        drop(tokio::spawn(async move {
            sleep_ms(by_ms).await;
            {
                let mut state = world.state.lock();
                // The channel is subscribed again when the server is up.
                if state.servers[ONLY].down.is_some() || state.servers[ONLY].number != server {
                    return;
                }
                state.confirmed.insert((process, lock));
            }
            world.tell(process, lock, &Notification::AskAgain);
        }));
    }

    /// Draws whether a notification or recall is lost, late, or comes twice.
    pub fn push_fate(&self) -> (bool, bool, bool) {
        let mut state = self.state.lock();
        let healed = state.healed;
        let mut chance = |per_mille| !healed && state.rng.u32(0..1000) < per_mille;
        let profile = &self.profile;
        (chance(profile.notification_lost), chance(profile.notification_late), chance(profile.copied))
    }

    /// Passes one notification on: never, once or twice.
    pub fn publish(self: &Arc<Self>, message: Message) {
        let (process, lock) = (Id::of(message.id.as_str()).process, lock_of(&message.key));
        let (lost, late, twice) = self.push_fate();
        let unsubscribed = !self.state.lock().confirmed.contains(&(process, lock));
        if lost || unsubscribed {
            return self.record(What::NotificationLost { process, lock, unsubscribed });
        }
        for _ in 0..=u32::from(twice) {
            let by_ms = if late { self.draw(|rng| rng.u64(5..2_500)) } else { self.draw(|rng| rng.u64(0..4)) };
            if late {
                self.record(What::NotificationLate { process, lock, by_ms });
            }
            let (world, message) = (Arc::clone(self), message.clone());
            drop(tokio::spawn(async move {
                sleep_ms(by_ms).await;
                world.arrives(process, lock, message).await;
            }));
        }
    }

    /// Delivers a notification when the process runs, and counts its lease from the last clock sample.
    async fn arrives(&self, process: Process, lock: Lock, message: Message) {
        let Some((gate, clock_sample)) =
            self.state.lock().links.get(&process).map(|link| (Arc::clone(&link.gate), Arc::clone(&link.clock_sample)))
        else {
            return;
        };
        gate.pass().await;
        if !self.is_connected(process, message.server) {
            return self.record(What::NotificationLost { process, lock, unsubscribed: false });
        }
        let now = self.clock.now();
        let clock_sample = (*clock_sample.lock()).filter(|clock_sample| clock_sample.age_at(now) <= MAX_SAMPLE_AGE);
        let counted =
            clock_sample.and_then(|clock_sample| Some((clock_sample, remaining_from(clock_sample, &message)?)));
        let sample_us =
            counted.map(|(clock_sample, left)| (micros(clock_sample.sent.since(self.origin)), micros(left)));
        self.record(What::Notified { process, lock, id: Id::of(message.id.as_str()), clock_sample: sample_us });
        let notification = match counted {
            None => Notification::AskAgain,
            Some((clock_sample, remaining)) => {
                let value = Granted { remaining, ..message.granted };
                let answer =
                    Answered { sent: clock_sample.sent, server: clock_sample.server, node: NodeId::default(), value };
                Notification::Granted { id: message.id.to_shared(), at: message.at, answer }
            }
        };
        self.tell(process, lock, &notification);
    }

    /// Returns true if the process has a connection to that server.
    pub fn is_connected(&self, process: Process, server: u32) -> bool {
        let state = self.state.lock();
        match &state.old {
            Some(old) if state.behind.contains(&process) => old.number == server && !old.frozen,
            _ => state.servers[ONLY].number == server && !state.behind.contains(&process),
        }
    }

    pub fn tell(&self, process: Process, lock: Lock, notification: &Notification) {
        let state = self.state.lock();
        let to = state.subscribers.values().filter(|to| (to.process, to.lock) == (process, lock));
        for subscriber in to {
            subscriber.to.try_send(notification.clone()).ok();
        }
    }
}

/// Returns the remaining lease of a grant from the send time of the clock sample. `None` if it is over by then.
fn remaining_from(clock_sample: ClockSample, message: &Message) -> Option<Duration> {
    let deadline_ms = message.at.as_micros() / 1000 + millis(message.granted.remaining);
    let left_us = (deadline_ms * 1000).checked_sub(clock_sample.server.as_micros()).filter(|left_us| *left_us > 0)?;
    Some(Duration::from_micros(left_us))
}
