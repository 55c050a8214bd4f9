//! Channel with its listeners.

use std::num::{NonZeroU32, NonZeroU64};
use std::ops::Deref;
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::base::attempt::Notification;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::recalls::{Recall, Recalls};
use crate::net::ReadNotification;

/// Number of a link. It is stored in few bytes, because each channel stores such a number.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(super) struct LinkId(NonZeroU32);

impl LinkId {
    pub(super) const FIRST: Self = Self(NonZeroU32::MIN);

    /// Returns the next number. A process needs few numbers, because it has few nodes and runtimes. So the numbers
    /// never run out.
    pub(super) fn next(self) -> Self {
        Self(self.0.saturating_add(1))
    }
}

pub(super) struct Channel {
    pub(super) slot: u16,
    pub(super) read: ReadNotification,
    pub(super) purpose: Purpose,
    /// True if the server has confirmed the subscription on the present connection of the owner link.
    pub(super) is_confirmed: bool,
    pub(super) listeners: Listeners,
    /// Number of this channel among the lingering channels. `None` if this channel does not linger.
    pub(super) lingers: Option<NonZeroU64>,
    /// Link to the owner of the channel's slot. `None` if there is no such link.
    pub(super) owner_link: Option<LinkId>,
    /// Refusals of the subscription by the server since its last confirmation.
    pub(super) refused: Option<Box<Refused>>,
}

/// Listeners of one channel. Usually there is one listener, which is stored without an allocation of its own.
pub(super) enum Listeners {
    Nobody,
    One((NonZeroU64, Listener)),
    #[expect(clippy::box_collection, reason = "a pointer leaves the channel as small as with one listener")]
    Many(Box<Vec<(NonZeroU64, Listener)>>),
}

impl Listeners {
    fn take(&mut self) -> Vec<(NonZeroU64, Listener)> {
        match std::mem::replace(self, Self::Nobody) {
            Self::Nobody => Vec::new(),
            Self::One(listener) => vec![listener],
            Self::Many(listeners) => *listeners,
        }
    }
}

impl Deref for Listeners {
    type Target = [(NonZeroU64, Listener)];

    fn deref(&self) -> &Self::Target {
        match self {
            Self::Nobody => &[],
            Self::One(listener) => std::slice::from_ref(listener),
            Self::Many(listeners) => listeners,
        }
    }
}

impl FromIterator<(NonZeroU64, Listener)> for Listeners {
    fn from_iter<I: IntoIterator<Item = (NonZeroU64, Listener)>>(listeners: I) -> Self {
        let mut listeners = listeners.into_iter().fuse();
        match (listeners.next(), listeners.next()) {
            (None, _) => Self::Nobody,
            (Some(one), None) => Self::One(one),
            (Some(first), Some(second)) => Self::Many(Box::new([first, second].into_iter().chain(listeners).collect())),
        }
    }
}

#[derive(Default)]
pub(super) struct Refused {
    pub(super) times: u32,
    /// Time before which this process does not subscribe to the channel again.
    pub(super) not_before: Option<Instant>,
}

/// Receiver of the messages that are published on a channel.
#[derive(Clone)]
pub(super) enum Listener {
    /// Waiter for the lock, by the sender of its notification queue.
    Waiter(mpsc::Sender<Notification>),
    /// Handler of recalls, for a process with a cached hold of the lock. The process does not report that it has
    /// dropped the hold. The maintenance task finds that out.
    Holder(Weak<Recalls>),
}

/// Purpose of a channel.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Purpose {
    /// Notifications for waiters of the lock.
    Turns,
    /// Recalls of cached holds of the lock.
    Recalls,
}

impl Listener {
    fn purpose(&self) -> Purpose {
        match self {
            Self::Waiter(_) => Purpose::Turns,
            Self::Holder(_) => Purpose::Recalls,
        }
    }

    pub(super) fn recalls(&self) -> Option<Arc<Recalls>> {
        match self {
            Self::Waiter(_) => None,
            Self::Holder(recalls) => recalls.upgrade(),
        }
    }

    fn has_cached_hold(&self) -> bool {
        matches!(self, Self::Holder(recalls) if recalls.strong_count() > 0)
    }

    fn on_notification(self, notification: &Notification, now: Moment) {
        match (&self, notification) {
            // The result is ignored. A waiter that has left needs no notification, and a waiter with a full queue will
            // ask the server anyway.
            (Self::Waiter(waiter), notification) => drop(waiter.try_send(notification.clone())),
            (Self::Holder(_), Notification::Called { token, id }) => {
                if let Some(recalls) = self.recalls() {
                    recalls.on_recall(&Recall { token: *token, tries: id.clone() }, now);
                }
            }
            (Self::Holder(_), _) => {}
        }
    }

    /// Returns true for the listener of a cached hold that is gone. Returns false for a waiter, because a waiter
    /// unsubscribes itself.
    fn has_left(&self) -> bool {
        matches!(self, Self::Holder(_)) && !self.has_cached_hold()
    }
}

impl Channel {
    pub(super) fn new(slot: u16, read: ReadNotification, first: &Listener) -> Self {
        Self {
            slot,
            read,
            purpose: first.purpose(),
            is_confirmed: false,
            listeners: Listeners::Nobody,
            lingers: None,
            owner_link: None,
            refused: None,
        }
    }

    pub(super) fn is_confirmed_at(&self, link: LinkId) -> bool {
        self.owner_link == Some(link) && self.is_confirmed
    }

    pub(super) fn add(&mut self, number: NonZeroU64, listener: Listener) {
        let there = self.listeners.take().into_iter().filter(|(_, listener)| !listener.has_left());
        self.listeners = there.chain([(number, listener)]).collect();
    }

    /// Removes a listener. The caller must drop the returned listener while no lock is held, because a dropped sender
    /// wakes its receiver.
    pub(super) fn remove(&mut self, number: NonZeroU64) -> Option<Listener> {
        let place = self.listeners.iter().position(|(of, _)| *of == number)?;
        let mut listeners = self.listeners.take();
        let (_, left) = listeners.remove(place);
        self.listeners = listeners.into_iter().collect();
        Some(left)
    }

    pub(super) fn has_cached_hold(&self) -> bool {
        self.listeners.iter().any(|(_, listener)| listener.has_cached_hold())
    }

    pub(super) fn notification(&self, notification: Notification) -> ChannelNotification {
        ChannelNotification {
            notification,
            listeners: self.listeners.iter().map(|(_, listener)| listener.clone()).collect(),
        }
    }

    pub(super) fn recalls(&self) -> impl Iterator<Item = Arc<Recalls>> {
        self.listeners.iter().filter_map(|(_, listener)| listener.recalls())
    }

    /// Notes that messages of this channel may be missed from now on. Adds the recall handlers with live subscriptions
    /// to `broken`.
    pub(super) fn unconfirm(&mut self, broken: &mut Vec<Arc<Recalls>>) {
        self.is_confirmed = false;
        broken.extend(self.recalls().filter(|recalls| recalls.on_lost()));
    }
}

/// Notification with the listeners of its channel. It is passed to the listeners while no lock is held.
pub(super) struct ChannelNotification {
    notification: Notification,
    listeners: Vec<Listener>,
}

impl ChannelNotification {
    pub(super) fn tell(self, now: Moment) {
        for listener in self.listeners {
            // Listeners call wakers and subscribers of `tracing`, which are the user's code. If this code panics, the
            // link must go on working for the other listeners.
            catch_panic(|| listener.on_notification(&self.notification, now));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::recalls::OnRecall;

    struct Deaf;

    impl OnRecall for Deaf {
        fn on_recall(&self, _: &Recall) {}
        fn on_break(&self) {}
    }

    #[test]
    fn holder_that_dropped_its_hold_makes_room_for_the_next() {
        let recalls = || Arc::new(Recalls::new(Box::new(Deaf)));
        let (left, stays) = (recalls(), recalls());
        let listener = |recalls: &Arc<Recalls>| Listener::Holder(Arc::downgrade(recalls));
        let mut channel = Channel::new(0, |_, _| Notification::AskAgain, &listener(&left));
        channel.add(NonZeroU64::MIN, listener(&left));
        channel.add(NonZeroU64::MIN, listener(&stays));
        assert_eq!(channel.listeners.len(), 2);
        drop(left);
        channel.add(NonZeroU64::MIN, listener(&stays));
        assert_eq!(channel.listeners.len(), 2);
        assert!(channel.has_cached_hold());
        drop(stays);
        assert!(!channel.has_cached_hold());
    }

    #[test]
    fn channel_is_small() {
        // A process may have very many channels, because each cached hold has one.
        assert!(size_of::<Channel>() <= 56, "{} bytes", size_of::<Channel>());
        assert!(size_of::<(NonZeroU64, Listener)>() <= 24);
    }
}
