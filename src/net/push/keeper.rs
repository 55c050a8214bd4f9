//! Maintenance task: moves channels to the owners of their slots, and ends channels without a listener.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::channel::{Channel, Listeners, Purpose};
use super::{PushShared, Subscriptions};
use crate::net::slots::SlotMap;

/// Pause between two checks of the channels that linger. A listener that leaves wakes no task.
const LOOK: Duration = Duration::from_secs(1);
/// First pause while a channel has no owner link.
const LOOK_FOR_HOME: Duration = Duration::from_millis(100);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum KeeperWork {
    /// No channel is left.
    Nothing,
    /// Every channel has an owner link.
    Order,
    /// At least one channel has no owner link.
    Strays,
}

async fn changed(map: &mut Option<watch::Receiver<SlotMap>>) {
    let is_open = match map {
        Some(map) => map.changed().await.is_ok(),
        None => false,
    };
    if !is_open {
        std::future::pending::<()>().await;
    }
}

/// Running maintenance task. If this value is dropped early, the runtime has ended, and no task reads messages any
/// more.
struct Runs(Option<Arc<PushShared>>);

impl Runs {
    fn end_well(mut self) {
        self.0 = None;
    }
}

impl Drop for Runs {
    fn drop(&mut self) {
        if let Some(shared) = self.0.take() {
            shared.has_ended.store(true, Ordering::Release);
            shared.end();
        }
    }
}

impl PushShared {
    pub(super) async fn keep(self: Arc<Self>) {
        let runs = Runs(Some(Arc::clone(&self)));
        let mut changes = self.slot_owners.changes();
        let mut look_for_home = LOOK_FOR_HOME;
        loop {
            let look = match self.tend() {
                KeeperWork::Nothing => return runs.end_well(),
                KeeperWork::Order => {
                    look_for_home = LOOK_FOR_HOME;
                    LOOK.min(self.pace.linger)
                }
                KeeperWork::Strays => {
                    self.slot_owners.look();
                    let look = look_for_home;
                    look_for_home = LOOK.min(look * 2);
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

    fn tend(self: &Arc<Self>) -> KeeperWork {
        let mut subscriptions = self.subscriptions.lock();
        subscriptions.bury();
        subscriptions.tidy(&self.pace);
        subscriptions.forget_lingering_since(Instant::now().checked_sub(self.pace.linger));
        self.counts(subscriptions.channels.len());
        let is_astray = |channel: &Channel| {
            let home = channel.home.and_then(|home| subscriptions.links.get(&home));
            home.is_none_or(|home| !self.slot_owners.leaves(channel.slot, &home.node))
        };
        let astray = subscriptions.channels.iter().filter(|(_, channel)| is_astray(channel));
        let astray: Vec<_> = astray.map(|(name, _)| Arc::clone(name)).collect();
        let homeless = astray.iter().filter(|name| !self.place(&mut subscriptions, name)).count();
        let homes: HashSet<_> = subscriptions.channels.values().filter_map(|channel| channel.home).collect();
        let unused: Vec<_> = subscriptions.links.extract_if(|number, _| !homes.contains(number)).collect();
        let found = match (subscriptions.channels.is_empty(), homeless) {
            (true, _) => KeeperWork::Nothing,
            (false, 0) => KeeperWork::Order,
            (false, _) => KeeperWork::Strays,
        };
        if found == KeeperWork::Nothing {
            subscriptions.keeper = None;
        }
        drop(subscriptions);
        self.notify_break();
        // The server ends the subscriptions with the connection.
        unused.iter().for_each(|(_, link)| link.task.abort());
        found
    }
}

impl Subscriptions {
    /// Lets channels linger whose cached hold is gone. The holder does not report that.
    pub(super) fn note_kept_no_more(&mut self) {
        let is_left =
            |channel: &Channel| channel.purpose == Purpose::Recalls && channel.lingers.is_none() && !channel.is_kept();
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
            while let Some(oldest) = self.lingering_of(purpose).first_entry() {
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
