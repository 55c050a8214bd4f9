//! Release replay: releases that the next primary may lack. A release is lost if its primary fails before a replica has
//! it. The lock would then stay taken until the lease ends. So the process remembers each release until the lease ends,
//! and repeats it if another node owns the lock by then. It remembers a release for at most a minute, because a replica
//! that lags by more has lost other data too.

use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

use parking_lot::Mutex;

use crate::base::attempt::Route;
use crate::base::lease::Moment;
use crate::lock::release::Release;

/// Largest number of releases that are remembered for one node. The latest ones are remembered, because a replica lags
/// by milliseconds. A failed node executes no further releases, and the releases of other nodes do not replace those of
/// this node.
const MAX_RECENT: usize = 1024;
/// Longest time for which a release is remembered. By then a failover is over and known.
const MAX_AGE: Duration = Duration::from_secs(60);
/// Shortest time between two checks for releases that need not be remembered any more.
const LOOK: Duration = Duration::from_secs(1);

/// Releases that each node has executed recently.
#[derive(Debug, Default)]
pub(crate) struct ReleaseReplay {
    memory: Mutex<ReplayMemory>,
}

#[derive(Debug)]
struct ReplayMemory {
    releases: BTreeMap<Route, VecDeque<ReplayedRelease>>,
    /// Moment of the next check for releases to forget.
    look_at: Moment,
}

impl Default for ReplayMemory {
    fn default() -> Self {
        Self { releases: BTreeMap::new(), look_at: Moment::NEVER }
    }
}

#[derive(Debug)]
struct ReplayedRelease {
    release: Release,
    until: Moment,
}

impl ReleaseReplay {
    /// Forgets the releases whose time is over. Returns the moment of the next check.
    pub(crate) fn forget(&self, now: Moment) -> Moment {
        let ReplayMemory { releases, look_at } = &mut *self.memory.lock();
        if now < *look_at {
            return *look_at;
        }
        releases.retain(|_, recent| {
            while recent.front().is_some_and(|first| first.until <= now) {
                recent.pop_front();
            }
            !recent.is_empty()
        });
        let next = releases.values().filter_map(|recent| recent.front()).map(|first| first.until).min();
        // One check removes several releases, so that not each of them costs a check.
        *look_at = next.map_or(Moment::NEVER, |next| next.max(now.after(LOOK)));
        *look_at
    }

    /// Remembers a release that the node of this route has executed. If another node has executed it, that does no
    /// harm, because a repeated release changes nothing.
    pub(crate) fn remember(&self, route: Route, release: &Release, now: Moment) {
        let ReplayMemory { releases, look_at } = &mut *self.memory.lock();
        let recent = releases.entry(route).or_default();
        while recent.len() >= MAX_RECENT || recent.front().is_some_and(|first| first.until <= now) {
            recent.pop_front();
        }
        let until = release.server_until.min(now.after(MAX_AGE));
        *look_at = (*look_at).min(until.max(now.after(LOOK)));
        recent.push_back(ReplayedRelease { release: release.clone(), until });
    }

    /// Takes the releases whose lock another node owns now, as far as is known, and whose hold that node may still
    /// have.
    pub(crate) fn take_moved(&self, route: impl Fn(&Release) -> Route, now: Moment) -> Vec<Release> {
        let mut moved = Vec::new();
        self.memory.lock().releases.retain(|then, recent| {
            recent.retain(|ReplayedRelease { release, until }| {
                let at = route(release);
                let stays = at.is_unknown() || at == *then;
                let lives = *until > now;
                if lives && !stays {
                    moved.push(release.clone());
                }
                lives && stays
            });
            !recent.is_empty()
        });
        moved
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/replay/tests.rs"]
mod tests;
