//! Cached holds of one lock: which task takes them, and when they are released.

use std::sync::Arc;

use super::{HandedShare, State};
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::base::recalls::{Recall, Reception};
use crate::lock::effects::{CellEvent, InRenewalQueue};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::WaiterId;

impl<H: InRenewalQueue> State<H> {
    /// Lets a writer take a cached hold that has enough time, if no task waits here.
    pub(in crate::lock) fn take_cached(
        &mut self,
        wants: ShareRequest,
        heard: &Reception,
        now: Moment,
    ) -> Option<(Arc<H>, ShareId)> {
        if self.wait_queue.is_some() {
            return None;
        }
        self.holds.find_map(|entry| {
            let handle = entry.handle.as_ref().filter(|_| entry.is_listed)?;
            let share_id = entry.record.take_cached_at_once(wants.from(now), wants.cache_for, heard, now)?;
            Some((Arc::clone(handle), share_id))
        })
    }

    /// Removes the last guard of a hold and caches the hold. Returns `None` if there is more to do, and changes
    /// nothing. The inner value is the hold, if it has to be scheduled earlier.
    #[inline]
    pub(in crate::lock) fn cache(
        &mut self,
        number: u64,
        share_id: ShareId,
        heard: &Reception,
        now: Moment,
    ) -> Option<Option<Arc<H>>> {
        if self.wait_queue.is_some() {
            return None;
        }
        let entry = self.entry(number);
        let is_cached = entry.is_listed && entry.record.cache_at_once(share_id, heard, now);
        is_cached.then(|| entry.due_sooner().cloned())
    }

    /// Lets a writer take a cached hold, also one with little time left. The writer then waits for the answer to a
    /// renewal. Returns false if there is no such hold.
    pub(super) fn hand_cached(
        &mut self,
        waiter_id: WaiterId,
        wants: ShareRequest,
        event: &mut CellEvent<'_, H>,
    ) -> bool {
        if self.writer_waits() {
            return false;
        }
        let now = event.now;
        let handed = self.holds.find_map(|entry| {
            let handle = Arc::clone(entry.handle.as_ref().filter(|_| entry.is_listed)?);
            let share_id =
                entry.record.take_cached(wants.from(now).as_unclaimed(now), wants.cache_for, event.heard, now)?;
            entry.due_if_sooner(event);
            Some(HandedShare { hold: handle, share_id, grant: None })
        });
        let Some(handed) = handed else { return false };
        self.wait_queue().hand(waiter_id, handed, event);
        true
    }

    /// Ends the cached holds that exclude this mode, because an acquisition of this process wants the mode. Returns
    /// these holds. The caller sends their releases.
    pub(in crate::lock) fn end_cached(&mut self, mode: Mode, event: &mut CellEvent<'_, H>) -> Vec<Arc<H>> {
        let mut ended = Vec::new();
        for entry in self.holds.listed_mut() {
            if entry.record.mode().excludes(mode) && entry.record.is_cached() {
                entry.record.give_up(event);
                ended.extend(entry.handle.clone());
            }
        }
        ended
    }

    /// Marks the cached holds that exclude this mode as wanted, because a waiter of this process wants the mode. The
    /// background then releases these holds.
    pub(super) fn recall_cached(&mut self, mode: Mode, event: &mut CellEvent<'_, H>) {
        for entry in self.holds.listed_mut() {
            if entry.record.mode().excludes(mode) && entry.record.is_cached() {
                entry.record.note_wanted(event.now);
                entry.due_if_sooner(event);
            }
        }
    }

    /// Applies a recall. Returns true if a guard is inside, and a try sent the recall.
    pub(in crate::lock) fn on_recall(&mut self, call: &Recall, event: &mut CellEvent<'_, H>) -> bool {
        let mut is_used = false;
        for entry in self.holds.listed_mut() {
            is_used |= entry.record.on_recall(call, event.now);
            entry.due_if_sooner(event);
        }
        is_used
    }

    /// Notes that recalls may have been missed.
    pub(in crate::lock) fn on_subscription_lost(&mut self, event: &mut CellEvent<'_, H>) {
        for entry in self.holds.listed_mut() {
            entry.record.on_subscription_lost();
            entry.due_if_sooner(event);
        }
    }

    /// Returns the cached holds, each with the moment until which it may stay cached.
    pub(in crate::lock) fn cached_holds(&self) -> impl Iterator<Item = (Moment, Arc<H>)> {
        self.listed_holds().filter_map(|entry| Some((entry.record.cached_until()?, entry.handle.clone()?)))
    }
}
