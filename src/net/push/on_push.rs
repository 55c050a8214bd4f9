//! Handling of the pushes on a link. The task that reads the connection calls these functions.

use std::collections::HashMap;
use std::sync::Arc;

use super::channel::{ChannelNotification, LinkId};
use super::link::Lost;
use super::{Link, Origin, PushShared, Subscriptions};
use crate::base::attempt::Notification;
use crate::base::lease::{ClockSample, Moment};
use crate::net::CLOCK;
use crate::net::pushed::Pushed;

impl PushShared {
    /// Handles one push of a server. `from` is the connection on which it arrived.
    pub(super) fn take(&self, from: Origin, pushed: Pushed<'_>) {
        match pushed {
            Pushed::Message { channel, message } => self.deliver(from, channel, message),
            Pushed::Subscribed { channel } => self.confirm(from, channel),
            Pushed::Unsubscribed { channel } => self.on_unsubscribed(from, channel),
        }
    }

    fn deliver(&self, from: Origin, name: &str, message: &[u8]) {
        // The lock is released at the end of this statement, before wakers of users run.
        let notification = self.read(&mut self.subscriptions.lock(), from, name, message);
        if let Some(notification) = notification {
            notification.tell(CLOCK.now());
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
        // Messages on a connection that was given up do not count. Nothing is lost, because the waiters ask the server
        // again after the next confirmation.
        let link = current_link(&mut subscriptions.links, from)?;
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
        let is_fresh = clock_sample.age_at(CLOCK.now()) <= self.pace.max_clock_sample_age;
        (is_fresh && !self.slot_owners.suspects(&link.node)).then_some(clock_sample)
    }

    fn confirm(&self, from: Origin, channel: &str) {
        let confirmed = self.subscriptions.lock().confirm(from, channel);
        match confirmed {
            Ok(Some(notification)) => notification.tell(CLOCK.now()),
            Ok(None) => {}
            Err(lost) => self.replace(from, lost),
        }
    }

    /// Handles the end of a subscription. If this process did not request the end, the slot has most likely moved, so
    /// the slot map is refreshed.
    fn on_unsubscribed(&self, from: Origin, channel: &str) {
        let now = CLOCK.now();
        let is_wanted = self.subscriptions.lock().note_unsubscribed(from, channel, now);
        if is_wanted {
            self.notify_break();
            if let Some(fleet) = self.slot_owners.fleet() {
                fleet.refresh_after_change();
            }
        }
    }

    /// Gives up a connection. Pushes that arrive on this connection later do not count.
    pub(super) fn replace(&self, from: Origin, lost: Lost) {
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

fn current_link(links: &mut HashMap<LinkId, Link>, from: Origin) -> Option<&mut Link> {
    links.get_mut(&from.link).filter(|link| link.connection == from.connection)
}

impl Subscriptions {
    /// Returns the link on which a push arrived. Returns `None` if the connection of the push was given up.
    pub(super) fn current(&mut self, from: Origin) -> Option<&mut Link> {
        current_link(&mut self.links, from)
    }

    /// Notes the end of a subscription. Returns true if the channel is still wanted on this link, so that it must be
    /// subscribed again.
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
            // The rate limit counts only subscriptions that the server ended without a request. If the channel was left
            // over, this process requested the end itself.
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

    /// Notes a confirmation that a server has pushed. Returns the notification for the listeners. Returns `None` if the
    /// channel is no longer wanted on this link, or if the connection was given up. Fails if this process expected no
    /// confirmation of the channel.
    fn confirm(&mut self, from: Origin, name: &str) -> Result<Option<ChannelNotification>, Lost> {
        let epoch = self.next_number().get();
        let Some(link) = current_link(&mut self.links, from) else { return Ok(None) };
        // Usually finds the first entry, because confirmations arrive in the order of the commands.
        let Some(place) = link.awaited.iter().position(|awaited| **awaited == *name) else {
            // This process would have to unsubscribe from each such channel. A server that sends such confirmations
            // without end would make the process store names and send requests without end. So the connection is
            // replaced.
            return Err(Lost::Surprise);
        };
        link.awaited.remove(place);
        // Set now, because the next push may be a message that needs this value. `asked` belongs to the answered
        // command, because only one batch of commands is under way at a time.
        link.proven = link.asked;
        let Some(channel) = self.channels.get_mut(name).filter(|channel| channel.owner_link == Some(from.link)) else {
            // The channel has moved to another link since the command was sent, or is no longer wanted.
            let name = name.into();
            link.look_at(&name);
            link.leftovers.insert(name);
            return Ok(None);
        };
        link.leftovers.remove(name);
        // If the channel was confirmed before, no message was missed, so the recall handlers need no new confirmation.
        let was_confirmed = std::mem::replace(&mut channel.is_confirmed, true);
        let handlers = channel.recalls().filter(|_| !was_confirmed);
        if handlers.map(|recalls| recalls.on_confirmed(link.subscription(epoch))).count() > 0 {
            link.is_pinged_from_now_on();
        }
        channel.refused = None;
        Ok(Some(channel.notification(Notification::AskAgain)))
    }
}
