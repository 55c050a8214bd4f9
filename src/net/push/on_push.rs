//! Pushes on a link, handled by the task that reads the connection.

use std::sync::Arc;

use super::channel::ChannelNotification;
use super::link::Lost;
use super::{Link, Origin, PushShared, Subscriptions};
use crate::base::attempt::Notification;
use crate::base::lease::{ClockSample, Moment};
use crate::net::pushed::Pushed;

impl PushShared {
    /// Handles one push of a server.
    pub(super) fn take(&self, from: Origin, pushed: Pushed<'_>) {
        match pushed {
            Pushed::Message { channel, message } => self.deliver(from, channel, message),
            Pushed::Subscribed { channel } => self.confirm(from, channel),
            Pushed::Unsubscribed { channel } => self.on_unsubscribed(from, channel),
        }
    }

    fn deliver(&self, from: Origin, name: &str, message: &[u8]) {
        // The lock is released at the end of this line, before wakers of users run.
        let notification = self.read(&mut self.subscriptions.lock(), from, name, message);
        if let Some(notification) = notification {
            notification.tell(self.clock.now());
        }
    }

    fn read(
        &self,
        subscriptions: &mut Subscriptions,
        from: Origin,
        name: &str,
        message: &[u8],
    ) -> Option<ChannelNotification> {
        let channel = subscriptions.channels.get(name).filter(|channel| !channel.listeners.is_empty())?;
        let is_of_owner_link = channel.owner_link == Some(from.link);
        // Messages on a connection that was given up do not count. The next confirmation makes the waiters ask again
        // instead.
        let link = subscriptions.links.get_mut(&from.link).filter(|link| link.connection == from.connection)?;
        let clock_sample = if is_of_owner_link { self.clock_sample(link) } else { None };
        Some(channel.notification((channel.read)(message, clock_sample)))
    }

    fn clock_sample(&self, link: &mut Link) -> Option<ClockSample> {
        let (connection, clock_sample) = link.node.clock_sample()?;
        if link.proven != Some(connection) {
            link.must_prove = true;
            link.wake.notify_one();
            return None;
        }
        let is_fresh = clock_sample.age_at(self.clock.now()) <= self.pace.max_clock_sample_age;
        (is_fresh && !self.slot_owners.suspects(&link.node)).then_some(clock_sample)
    }

    fn confirm(&self, from: Origin, channel: &str) {
        let confirmed = self.subscriptions.lock().confirm(from, channel);
        match confirmed {
            Confirmation::Wanted(notification) => notification.tell(self.clock.now()),
            Confirmation::NotWanted => {}
            // Each such channel would need an unsubscription. A server that sends confirmations without end would make
            // this process store names and send requests without end.
            Confirmation::Unasked => self.replace(from, Lost::Surprise),
        }
    }

    /// Handles the end of a subscription. If this process did not request that end, the slot has most likely moved.
    fn on_unsubscribed(&self, from: Origin, channel: &str) {
        let now = self.clock.now();
        let is_wanted = self.subscriptions.lock().note_unsubscribed(from, channel, now);
        if is_wanted {
            self.notify_break();
            self.slot_owners.refresh_after_change();
        }
    }

    pub(super) fn lose(&self, from: Origin) {
        self.replace(from, Lost::Closed);
    }

    /// Gives the connection up. Later pushes on it do not count.
    fn replace(&self, from: Origin, lost: Lost) {
        let mut subscriptions = self.subscriptions.lock();
        if let Some(link) = subscriptions.current(from) {
            link.lost = Some(lost);
            link.wake.notify_one();
            subscriptions.unconfirm(from.link);
        }
        drop(subscriptions);
        self.notify_break();
    }
}

/// Outcome of a confirmation that a server has pushed.
pub(super) enum Confirmation {
    Wanted(ChannelNotification),
    /// The channel is not wanted on this link any more, or the connection was given up.
    NotWanted,
    /// No confirmation of the channel was expected.
    Unasked,
}

impl Subscriptions {
    /// Returns the link that a push comes from, unless its connection was given up.
    pub(super) fn current(&mut self, from: Origin) -> Option<&mut Link> {
        self.links.get_mut(&from.link).filter(|link| link.connection == from.connection)
    }

    /// Notes the end of a subscription. Returns true if the channel is still wanted on this link.
    fn note_unsubscribed(&mut self, from: Origin, channel: &str, now: Moment) -> bool {
        let Some(link) = self.current(from) else {
            return false;
        };
        let was_left_over = link.leftovers.remove(channel);
        let Some((name, entry)) = self.channels.get_key_value(channel) else {
            return false;
        };
        let (name, was_confirmed) = (Arc::clone(name), entry.is_confirmed_at(from.link));
        let is_wanted = was_confirmed || was_left_over && entry.owner_link == Some(from.link);
        if is_wanted {
            // Only subscriptions that the server ended count against the limit. This process itself has ended a
            // leftover.
            let again =
                if was_confirmed { self.current(from).and_then(|link| link.subscribes_again_at(now)) } else { None };
            if let Some(entry) = self.channels.get_mut(channel) {
                entry.unconfirm(&mut self.broken);
                if again.is_some() {
                    entry.refused.get_or_insert_default().not_before = again;
                }
            }
            if let Some(link) = self.current(from) {
                link.look_at(&name);
            }
        }
        is_wanted
    }

    fn confirm(&mut self, from: Origin, name: &str) -> Confirmation {
        let epoch = self.next_number().get();
        let Some(link) = self.links.get_mut(&from.link).filter(|link| link.connection == from.connection) else {
            return Confirmation::NotWanted;
        };
        // Usually the first, since confirmations come in the order of the commands.
        let Some(place) = link.awaited.iter().position(|awaited| **awaited == *name) else {
            return Confirmation::Unasked;
        };
        link.awaited.remove(place);
        // Set here already, since a message may come next. Only the last commands are under way.
        link.proven = link.asked;
        let Some(channel) = self.channels.get_mut(name).filter(|channel| channel.owner_link == Some(from.link)) else {
            // The channel has moved meanwhile, or is no longer wanted.
            let name = name.into();
            link.look_at(&name);
            link.leftovers.insert(name);
            return Confirmation::NotWanted;
        };
        link.leftovers.remove(name);
        // A channel that stayed confirmed has missed nothing.
        let was_confirmed = std::mem::replace(&mut channel.is_confirmed, true);
        let handlers = channel.recalls().filter(|_| !was_confirmed);
        if handlers.map(|recalls| recalls.on_confirmed(link.subscription(epoch))).count() > 0 {
            link.is_pinged_from_now_on();
        }
        channel.refused = None;
        Confirmation::Wanted(channel.notification(Notification::AskAgain))
    }
}
