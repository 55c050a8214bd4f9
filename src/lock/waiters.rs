//! Waiters of one side of a lock, in the order of their numbers.
//!
//! Most acquisitions are alone on their side. One waiter needs no allocation.

use std::collections::BTreeMap;
use std::hash::{Hash, Hasher};

use crate::lock::side::{Waiter, WaiterId};

/// Waiters of one side. One of the two fields is empty.
#[derive(Clone, Debug, Default)]
pub(super) struct Waiters {
    only: Option<(WaiterId, Waiter)>,
    several: BTreeMap<WaiterId, Waiter>,
}

/// The place of a waiter in memory makes no difference for what happens next.
impl Hash for Waiters {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_usize(self.len());
        self.iter().for_each(|waiter| waiter.hash(state));
    }
}

impl Waiters {
    pub(super) fn is_empty(&self) -> bool {
        self.only.is_none() && self.several.is_empty()
    }

    pub(super) fn len(&self) -> usize {
        usize::from(self.only.is_some()) + self.several.len()
    }

    pub(super) fn iter(&self) -> impl Iterator<Item = (WaiterId, &Waiter)> {
        let only = self.only.iter().map(|(waiter_id, waiter)| (*waiter_id, waiter));
        only.chain(self.several.iter().map(|(waiter_id, waiter)| (*waiter_id, waiter)))
    }

    /// Returns the number of the last waiter.
    pub(super) fn last_id(&self) -> Option<WaiterId> {
        let only = self.only.as_ref().map(|(waiter_id, _)| *waiter_id);
        only.or_else(|| self.several.last_key_value().map(|(waiter_id, _)| *waiter_id))
    }

    pub(super) fn has(&self, waiter_id: WaiterId) -> bool {
        self.only.as_ref().is_some_and(|(only, _)| *only == waiter_id) || self.several.contains_key(&waiter_id)
    }

    pub(super) fn insert(&mut self, waiter_id: WaiterId, waiter: Waiter) {
        if self.is_empty() {
            self.only = Some((waiter_id, waiter));
            return;
        }
        self.several.extend(self.only.take());
        self.several.insert(waiter_id, waiter);
    }

    pub(super) fn remove(&mut self, waiter_id: WaiterId) -> Option<(WaiterId, Waiter)> {
        if self.only.is_some() {
            return self.only.take_if(|(only, _)| *only == waiter_id);
        }
        self.several.remove_entry(&waiter_id)
    }

    /// Removes the waiters for which `keeps` returns false.
    pub(super) fn retain(&mut self, mut keeps: impl FnMut(WaiterId, &Waiter) -> bool) {
        self.only.take_if(|(waiter_id, waiter)| !keeps(*waiter_id, waiter));
        self.several.retain(|waiter_id, waiter| keeps(*waiter_id, waiter));
    }
}
