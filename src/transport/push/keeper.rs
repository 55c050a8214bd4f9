//! The task that moves channels to the owners of their slots, and ends what nobody needs any more.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::watch;
use tokio::time::Instant;

use super::{Book, Shared};
use crate::transport::slots::SlotMap;

/// Between two looks at what lingers. Nobody who leaves a channel wakes anybody.
const LOOK: Duration = Duration::from_secs(1);
/// The least of it while a channel has no home.
const LOOK_FOR_HOME: Duration = Duration::from_millis(100);

/// Marks the keeper as ended, also when its runtime drops it.
pub(super) struct Keeping {
    shared: Arc<Shared>,
    number: u64,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Found {
    /// Nothing is subscribed any more.
    Nothing,
    /// Every channel has a home.
    Order,
    /// At least one has none.
    Strays,
}

impl Keeping {
    /// Begins one. It must be noted in the book under the same number.
    pub(super) fn new(shared: Arc<Shared>, number: u64) -> Self {
        Self { shared, number }
    }

    pub(super) async fn run(self) {
        let shared = &self.shared;
        let mut changes = shared.directory.changes();
        let mut look_for_home = LOOK_FOR_HOME;
        loop {
            let look = match shared.tend() {
                Found::Nothing => return,
                Found::Order => {
                    look_for_home = LOOK_FOR_HOME;
                    LOOK.min(shared.pace.linger)
                }
                Found::Strays => {
                    shared.directory.look();
                    let look = look_for_home;
                    look_for_home = LOOK.min(look * 2);
                    look
                }
            };
            tokio::select! {
                () = shared.strayed.notified() => {}
                () = changed(&mut changes) => {}
                () = tokio::time::sleep(look) => {}
            }
        }
    }
}

impl Drop for Keeping {
    fn drop(&mut self) {
        let keeper = &mut self.shared.book.lock().keeper;
        // It may have been marked already, and a newer one may be running.
        drop(keeper.take_if(|(number, _)| *number == self.number));
    }
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

impl Shared {
    fn tend(self: &Arc<Self>) -> Found {
        let mut book = self.book.lock();
        book.forget_lingering_since(Instant::now().checked_sub(self.pace.linger));
        self.count.store(book.channels.len(), Ordering::Release);
        let is_astray = |channel: &super::Channel| {
            let home = channel.home.and_then(|home| book.links.get(&home));
            home.is_none_or(|home| !self.directory.leaves(channel.slot, &home.node))
        };
        let astray = book.channels.iter().filter(|(_, channel)| is_astray(channel));
        let astray: Vec<_> = astray.map(|(name, _)| Arc::clone(name)).collect();
        let homeless = astray.iter().filter(|name| !self.place(&mut book, name)).count();
        let homes: HashSet<_> = book.channels.values().filter_map(|channel| channel.home).collect();
        let unused: Vec<_> = book.links.extract_if(|number, _| !homes.contains(number)).collect();
        let found = match (book.channels.is_empty(), homeless) {
            (true, _) => Found::Nothing,
            (false, 0) => Found::Order,
            (false, _) => Found::Strays,
        };
        if found == Found::Nothing {
            book.keeper = None;
        }
        drop(book);
        // Outside the lock, which a task takes when it ends. The server forgets what was subscribed there.
        unused.iter().for_each(|(_, link)| link.task.abort());
        found
    }
}

impl Book {
    fn forget_lingering_since(&mut self, moment: Option<Instant>) {
        while let Some(oldest) = self.lingering.first_entry() {
            let lingers = self.channels.get(oldest.get()).and_then(|channel| channel.lingers.as_ref());
            if lingers.is_some_and(|lingers| moment.is_none_or(|moment| lingers.since > moment)) {
                return;
            }
            let name = oldest.remove();
            self.forget(&name);
        }
    }
}
