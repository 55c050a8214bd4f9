//! A channel, and whoever listens to it.

use std::num::NonZeroU64;
use std::sync::{Arc, Weak};

use tokio::sync::mpsc;
use tokio::time::Instant;

use crate::attempt::Notice;
use crate::calls::{Call, Calls};
use crate::lease::Moment;
use crate::transport::ReadNotice;

pub(super) struct Channel {
    pub(super) slot: u16,
    pub(super) read: ReadNotice,
    /// Calls for a lock come by it.
    pub(super) is_for_calls: bool,
    /// The server at home has it subscribed, on the link's connection.
    pub(super) is_confirmed: bool,
    /// Few, and mostly one.
    pub(super) listeners: Box<[(NonZeroU64, Listener)]>,
    /// Its number among those that linger.
    pub(super) lingers: Option<NonZeroU64>,
    /// The link to the owner of its slot.
    pub(super) home: Option<NonZeroU64>,
    /// It was, since it was confirmed.
    pub(super) refused: Option<Box<Refused>>,
}

#[derive(Default)]
pub(super) struct Refused {
    pub(super) times: u32,
    /// Until when it is not asked for again.
    pub(super) not_before: Option<Instant>,
}

/// Whoever wants to know what is published.
#[derive(Clone)]
pub(super) enum Listener {
    /// Waits for the lock.
    Waiter(mpsc::UnboundedSender<Notice>),
    /// Keeps the lock. That it does so no more is found out.
    Keeper(Weak<Calls>),
}

impl Listener {
    pub(super) fn keeper(&self) -> Option<Arc<Calls>> {
        match self {
            Self::Waiter(_) => None,
            Self::Keeper(calls) => calls.upgrade(),
        }
    }

    fn keeps(&self) -> bool {
        matches!(self, Self::Keeper(calls) if calls.strong_count() > 0)
    }

    /// Who waits says so itself.
    fn has_left(&self) -> bool {
        matches!(self, Self::Keeper(_)) && !self.keeps()
    }
}

impl Channel {
    pub(super) fn new(slot: u16, read: ReadNotice, first: &Listener) -> Self {
        Self {
            slot,
            read,
            is_for_calls: matches!(first, Listener::Keeper(_)),
            is_confirmed: false,
            listeners: Box::default(),
            lingers: None,
            home: None,
            refused: None,
        }
    }

    pub(super) fn add(&mut self, number: NonZeroU64, listener: Listener) {
        let listeners = std::mem::take(&mut self.listeners).into_iter();
        let there = listeners.filter(|(_, listener)| !listener.has_left());
        self.listeners = there.chain([(number, listener)]).collect();
    }

    /// Whoever left is to be dropped when no lock is held: the last sender wakes its receiver.
    pub(super) fn remove(&mut self, number: NonZeroU64) -> Option<Listener> {
        let place = self.listeners.iter().position(|(of, _)| *of == number)?;
        let mut listeners = std::mem::take(&mut self.listeners).into_vec();
        let (_, left) = listeners.remove(place);
        self.listeners = listeners.into();
        Some(left)
    }

    pub(super) fn is_kept(&self) -> bool {
        self.listeners.iter().any(|(_, listener)| listener.keeps())
    }

    pub(super) fn news(&self, notice: Notice) -> News {
        News { notice, listeners: self.listeners.iter().map(|(_, listener)| listener.clone()).collect() }
    }

    pub(super) fn keepers(&self) -> impl Iterator<Item = Arc<Calls>> {
        self.listeners.iter().filter_map(|(_, listener)| listener.keeper())
    }

    /// From now on nothing that is published is certain to be heard. Whoever relied on it is to be told.
    pub(super) fn unconfirm(&mut self, broken: &mut Vec<Arc<Calls>>) {
        self.is_confirmed = false;
        broken.extend(self.keepers().filter(|calls| calls.breaks()));
    }
}

/// What the listeners of a channel are to be told, when no lock is held.
pub(super) struct News {
    notice: Notice,
    listeners: Vec<Listener>,
}

impl News {
    pub(super) fn tell(self, now: Moment) {
        for listener in self.listeners {
            match (&listener, &self.notice) {
                // One that has gone has no use for it.
                (Listener::Waiter(waiter), notice) => drop(waiter.send(notice.clone())),
                (Listener::Keeper(_), Notice::Called { token, id }) => {
                    if let Some(calls) = listener.keeper() {
                        calls.called(&Call { token: *token, tries: id.clone() }, now);
                    }
                }
                (Listener::Keeper(_), _) => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::calls::OnCall;

    struct Deaf;

    impl OnCall for Deaf {
        fn called(&self, _: &Call) {}
        fn broken(&self) {}
    }

    #[test]
    fn who_keeps_a_lock_no_more_makes_room_for_the_next() {
        let keeper = || Arc::new(Calls::new(Box::new(Deaf)));
        let (left, stays) = (keeper(), keeper());
        let listener = |calls: &Arc<Calls>| Listener::Keeper(Arc::downgrade(calls));
        let mut channel = Channel::new(0, |_, _| Notice::AskAgain, &listener(&left));
        channel.add(NonZeroU64::MIN, listener(&left));
        channel.add(NonZeroU64::MIN, listener(&stays));
        assert_eq!(channel.listeners.len(), 2);
        drop(left);
        channel.add(NonZeroU64::MIN, listener(&stays));
        assert_eq!(channel.listeners.len(), 2);
        assert!(channel.is_kept());
        drop(stays);
        assert!(!channel.is_kept());
    }

    #[test]
    fn channel_is_small() {
        // There is one for each lock that stays.
        assert!(size_of::<Channel>() <= 56, "{} bytes", size_of::<Channel>());
        assert!(size_of::<(NonZeroU64, Listener)>() <= 24);
    }
}
