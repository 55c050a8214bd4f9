//! Shares of the guards of one hold, each with a lease and an end of its own.
//!
//! Most events of a hold need the end of its last share, and the longest lease that a share wants. While there are few
//! shares, the code searches all of them. For more shares it also has an index. So an event of a hold costs about the
//! same for any number of guards.

use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::hash::{Hash, Hasher};
use std::sync::Arc;
use std::time::Duration;

use slab::Slab;

use crate::base::lease::{FencingToken, Moment};
use crate::base::reentry::OwnerId;
use crate::lock::end::End;

/// Largest number of shares for which there is no index.
const MAX_SCANNED: usize = 8;
/// Time in which a waiter has to take a share that was handed to it. Afterwards the share is over, because the waiter's
/// future may not be polled any more.
const UNCLAIMED_FOR: Duration = Duration::from_secs(3);

/// Share that one guard has of a hold.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct Share {
    pub(crate) owner: OwnerId,
    /// Time for which the server keeps the hold without a further renewal.
    pub(crate) lease: Duration,
    /// Latest end of the share, even if the hold lives longer.
    pub(crate) ends: Moment,
}

impl Share {
    /// Returns this share with an early end. The share keeps this end until its waiter takes it.
    pub(super) fn as_unclaimed(self, now: Moment) -> Self {
        self.as_unclaimed_for(UNCLAIMED_FOR, now)
    }

    /// Returns this share with an early end, but not before `span` is over.
    pub(super) fn as_unclaimed_for(self, span: Duration, now: Moment) -> Self {
        Self { ends: self.ends.min(now.after(span.max(UNCLAIMED_FOR))), ..self }
    }

    /// Returns the lease that the share needs at `now`. It is never longer than the time until the share ends.
    pub(super) fn lease_at(&self, now: Moment) -> Duration {
        self.lease.min(self.ends.since(now))
    }
}

/// Request of a waiter for a share of a hold. The share begins when the waiter gets it.
#[derive(Clone, Copy, Hash, Debug)]
pub(crate) struct ShareRequest {
    pub(crate) owner: OwnerId,
    pub(crate) lease: Duration,
    pub(crate) max_hold: Duration,
    /// Time for which the hold may stay cached after its use.
    pub(crate) cache_for: Duration,
}

impl ShareRequest {
    pub(crate) fn from(self, moment: Moment) -> Share {
        Share { owner: self.owner, lease: self.lease, ends: moment.after(self.max_hold) }
    }
}

/// Identity of a guard's share in a hold.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ShareId {
    pub(super) slot: usize,
    pub(crate) token: FencingToken,
}

#[derive(Clone, Debug)]
struct OrderedShares {
    share: Share,
    /// Present once the share has a watcher.
    end: Option<Arc<End>>,
}

/// All shares of a hold.
#[derive(Clone, Debug)]
pub(super) struct Shares {
    all: Slab<OrderedShares>,
    order: Option<Box<Order>>,
    /// Ends and slots of the watched shares, the earliest end first.
    watched: BTreeSet<(Moment, usize)>,
}

/// Index of the shares by end, lease and owner.
#[derive(Clone, Debug, Default)]
struct Order {
    by_end: BTreeSet<(Moment, usize)>,
    by_lease: BTreeMap<Duration, BTreeSet<(Moment, usize)>>,
    by_owner: HashMap<OwnerId, BTreeSet<(Moment, usize)>>,
}

/// The index and the watchers follow from the shares.
impl Hash for Shares {
    fn hash<H: Hasher>(&self, state: &mut H) {
        let Self { all, order: _, watched: _ } = self;
        state.write_usize(all.len());
        for (slot, OrderedShares { share, end }) in all {
            (slot, share, end.is_some()).hash(state);
        }
    }
}

impl Order {
    fn add(&mut self, share: &Share, slot: usize) {
        self.by_end.insert((share.ends, slot));
        self.by_lease.entry(share.lease).or_default().insert((share.ends, slot));
        self.by_owner.entry(share.owner).or_default().insert((share.ends, slot));
    }

    fn remove(&mut self, share: &Share, slot: usize) {
        self.by_end.remove(&(share.ends, slot));
        if let Some(same) = self.by_lease.get_mut(&share.lease) {
            same.remove(&(share.ends, slot));
            if same.is_empty() {
                self.by_lease.remove(&share.lease);
            }
        }
        if let Some(own) = self.by_owner.get_mut(&share.owner) {
            own.remove(&(share.ends, slot));
            if own.is_empty() {
                self.by_owner.remove(&share.owner);
            }
        }
    }

    fn last_end(&self) -> Option<Moment> {
        self.by_end.last().map(|(ends, _)| *ends)
    }

    fn lease_at(&self, now: Moment) -> Duration {
        let mut longest = Duration::ZERO;
        for (lease, same) in self.by_lease.iter().rev() {
            // No remaining share has a longer lease than this one.
            if *lease <= longest {
                break;
            }
            if let Some((ends, _)) = same.last() {
                longest = longest.max(ends.since(now).min(*lease));
            }
        }
        longest
    }
}

impl Shares {
    pub(super) fn new() -> Self {
        Self { all: Slab::with_capacity(1), order: None, watched: BTreeSet::new() }
    }

    #[inline]
    pub(super) fn add(&mut self, share: Share) -> usize {
        let slot = self.all.insert(OrderedShares { share, end: None });
        match &mut self.order {
            Some(order) => order.add(&share, slot),
            None if self.all.len() > MAX_SCANNED => {
                let mut order = Order::default();
                self.all.iter().for_each(|(slot, shared)| order.add(&shared.share, slot));
                self.order = Some(Box::new(order));
            }
            None => {}
        }
        slot
    }

    /// Removes a share. Also returns its end, if the share has a watcher.
    pub(super) fn remove(&mut self, slot: usize) -> (Share, Option<Arc<End>>) {
        let OrderedShares { share, end } = self.all.remove(slot);
        if end.is_some() {
            self.watched.remove(&(share.ends, slot));
        }
        match &mut self.order {
            // The index stays until the last share is removed. Otherwise a number of shares that varies around
            // `MAX_SCANNED` would build the index again and again.
            _ if self.all.is_empty() => self.order = None,
            Some(order) => order.remove(&share, slot),
            None => {}
        }
        (share, end)
    }

    #[inline]
    pub(super) fn replace(&mut self, slot: usize, share: Share) {
        let old = std::mem::replace(&mut self.all[slot].share, share);
        if let Some(order) = &mut self.order {
            order.remove(&old, slot);
            order.add(&share, slot);
        }
        if self.watched.remove(&(old.ends, slot)) {
            self.watched.insert((share.ends, slot));
        }
    }

    pub(super) fn get(&self, slot: usize) -> Share {
        self.all[slot].share
    }

    pub(super) fn len(&self) -> usize {
        self.all.len()
    }

    pub(super) fn is_empty(&self) -> bool {
        self.all.is_empty()
    }

    fn few(&self) -> impl Iterator<Item = &Share> {
        self.all.iter().map(|(_, shared)| &shared.share)
    }

    /// Returns the end of the share that ends last, or `None` if there is no share. The share of a leaked guard counts
    /// too.
    pub(super) fn last_end(&self) -> Option<Moment> {
        match &self.order {
            Some(order) => order.last_end(),
            None => self.few().map(|share| share.ends).max(),
        }
    }

    /// Returns the longest lease that a share still needs at `now`.
    pub(super) fn lease_at(&self, now: Moment) -> Duration {
        match &self.order {
            Some(order) => order.lease_at(now),
            None => self.few().map(|share| share.lease_at(now)).max().unwrap_or_default(),
        }
    }

    /// Returns the owners of the shares.
    pub(super) fn owners(&self) -> Vec<OwnerId> {
        match &self.order {
            Some(order) => order.by_owner.keys().copied().collect(),
            None => self.few().map(|share| share.owner).collect(),
        }
    }

    /// Returns true if this owner has a share that is not over.
    pub(super) fn has_owner(&self, owner: OwnerId, now: Moment) -> bool {
        match &self.order {
            Some(order) => order.by_owner.get(&owner).and_then(BTreeSet::last).is_some_and(|(ends, _)| now < *ends),
            None => self.few().any(|share| share.owner == owner && now < share.ends),
        }
    }

    /// Marks a share as watched, and returns its end.
    pub(super) fn watch(&mut self, slot: usize) -> Arc<End> {
        let shared = &mut self.all[slot];
        if shared.end.is_none() {
            self.watched.insert((shared.share.ends, slot));
        }
        Arc::clone(shared.end.get_or_insert_default())
    }

    /// Returns true if the share has or had a watcher.
    pub(super) fn is_watched(&self, slot: usize) -> bool {
        self.all[slot].end.is_some()
    }

    /// Returns the earliest end of a watched share.
    pub(super) fn first_watched_end(&self) -> Option<Moment> {
        self.watched.first().map(|(ends, _)| *ends)
    }

    /// Returns the ends of the watched shares that are over. Each end is returned once.
    pub(super) fn take_over(&mut self, now: Moment) -> Vec<Arc<End>> {
        let mut over = Vec::new();
        while let Some((ends, slot)) = self.watched.first().copied()
            && ends <= now
        {
            self.watched.remove(&(ends, slot));
            over.extend(self.all[slot].end.clone());
        }
        over
    }

    /// Returns the watched shares that `take_over` has not returned.
    pub(super) fn watched_shares(&self) -> impl Iterator<Item = (&Share, &Arc<End>)> {
        self.watched.iter().filter_map(|(_, slot)| {
            let shared = &self.all[*slot];
            Some((&shared.share, shared.end.as_ref()?))
        })
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/lock/shares/tests.rs"]
mod tests;
