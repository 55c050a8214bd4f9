//! Maintenance task: moves channels to the owners of their slots, and removes channels that have lingered long enough.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::channel::{Channel, Listeners, Purpose};
use super::{PushShared, Subscriptions};
use crate::net::slots::SlotMap;

/// Longest pause between two checks of the channels. Regular checks are necessary, because a listener that leaves wakes
/// no task.
const LOOK: Duration = Duration::from_secs(1);
/// First pause between two checks while a channel has no owner link.
const MIN_LINK_PAUSE: Duration = Duration::from_millis(100);

async fn changed(map: &mut Option<watch::Receiver<SlotMap>>) {
    let is_open = match map {
        Some(map) => map.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        std::future::pending::<()>().await;
    }
}

/// Guard of the running maintenance task. If it is dropped before the task ends itself, the runtime has ended, and no
/// task reads messages any more.
struct Runs(Option<Arc<PushShared>>);

impl Drop for Runs {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.has_ended.store(true, Ordering::Release);
            shared.end();
        }
    }
}

impl PushShared {
    pub(super) async fn maintain(self: Arc<Self>) {
        let mut runs = Runs(Some(Arc::clone(&self)));
        let mut changes = self.slot_owners.changes();
        let mut link_pause = MIN_LINK_PAUSE;
        loop {
            let look = match self.maintain_once() {
                None => {
                    runs.0 = None;
                    return;
                }
                Some(0) => {
                    link_pause = MIN_LINK_PAUSE;
                    LOOK.min(self.pace.linger)
                }
                Some(_) => {
                    if let Some(fleet) = self.slot_owners.fleet() {
                        fleet.look_in_background();
                    }
                    let look = link_pause;
                    link_pause = LOOK.min(look * 2);
                    look
                }
            };
            tokio::select! {
                () = self.strayed.notified() => {}
                () = changed(&mut changes) => {}
                () = tokio::time::sleep(look) => {}
            }
        }
    }

    /// Returns the number of channels without an owner link. Returns `None` if no channel exists any more, so that the
    /// task ends.
    fn maintain_once(self: &Arc<Self>) -> Option<usize> {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        subscriptions.tidy(&self.pace);
        subscriptions.forget_lingering_since(Instant::now().checked_sub(self.pace.linger));
        self.counts(subscriptions.channels.len());
        let is_astray = |channel: &Channel| {
            let owner_link = channel.owner_link.and_then(|owner_link| subscriptions.links.get(&owner_link));
            owner_link.is_none_or(|owner_link| !self.slot_owners.leaves(channel.slot, &owner_link.node))
        };
        let astray = subscriptions.channels.iter().filter(|(_, channel)| is_astray(channel));
        let astray: Vec<_> = astray.map(|(name, _)| Arc::clone(name)).collect();
        let without_link = astray.iter().filter(|name| !self.place(&mut subscriptions, name)).count();
        let owner_links: HashSet<_> =
            subscriptions.channels.values().filter_map(|channel| channel.owner_link).collect();
        let unused: Vec<_> = subscriptions.links.extract_if(|number, _| !owner_links.contains(number)).collect();
        let has_channels = !subscriptions.channels.is_empty();
        if !has_channels {
            subscriptions.maintenance = None;
        }
        drop(subscriptions);
        self.notify_break();
        // No unsubscription is necessary, because the server ends all subscriptions of a closed connection.
        unused.iter().for_each(|(_, link)| link.task.abort());
        has_channels.then_some(without_link)
    }
}

impl Subscriptions {
    /// Lets channels of recalls linger if their cached holds are gone. The task must search for them, because a process
    /// does not report that it drops a cached hold.
    pub(super) fn note_dropped_holds(&mut self) {
        let is_left = |channel: &Channel| {
            channel.purpose == Purpose::Recalls && channel.lingers.is_none() && !channel.has_cached_hold()
        };
        let left = self.channels.iter().filter(|(_, channel)| is_left(channel));
        let left: Vec<_> = left.map(|(name, _)| Arc::clone(name)).collect();
        for name in left {
            if let Some(channel) = self.channels.get_mut(&name) {
                channel.listeners = Listeners::Nobody;
            }
            self.begin_to_linger(&name);
        }
    }

    fn forget_lingering_since(&mut self, moment: Option<Instant>) {
        for purpose in [Purpose::Turns, Purpose::Recalls] {
            while let Some(oldest) = self.lingering[purpose as usize].first_entry() {
                let (_, since) = oldest.get();
                if moment.is_none_or(|moment| *since > moment) {
                    break;
                }
                let (name, _) = oldest.remove();
                self.forget(&name);
            }
        }
    }
}
