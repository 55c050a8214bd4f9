//! Holds that stay when their last guard has left: who takes them, and who has them given up.

use std::sync::Arc;

use tokio::sync::Notify;

use super::State;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::base::recalls::Recall;
use crate::lock::effects::{Effects, InRenewalQueue};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::WaiterId;

impl<H: InRenewalQueue> State<H> {
    /// A writer takes an idle hold, if there is one that has enough for it and nobody here is before it.
    pub(in crate::lock) fn take_cached(&mut self, wants: ShareRequest, now: Moment) -> Option<(Arc<H>, ShareId)> {
        if self.wait_queue.is_some() {
            return None;
        }
        self.holds.find_map(|entry| {
            let handle = entry.handle.as_ref().filter(|_| entry.is_listed)?;
            let share_id = entry.record.take_cached_at_once(wants.from(now), wants.cache_for, now)?;
            Some((Arc::clone(handle), share_id))
        })
    }

    /// Removes the last guard of a hold that is cached then. Returns `None` if there is more to do, and changes nothing. The
    /// inner value is the hold, if it has to be scheduled earlier.
    #[inline]
    pub(in crate::lock) fn cache(&mut self, number: u64, share_id: ShareId, now: Moment) -> Option<Option<Arc<H>>> {
        if self.wait_queue.is_some() {
            return None;
        }
        let entry = self.entry(number);
        let is_cached = entry.is_listed && entry.record.cache_at_once(share_id, now);
        is_cached.then(|| entry.due_sooner().cloned())
    }

    /// The same as [`take_idle`](Self::take_idle), whatever is left of it: the writer that comes waits for the answer to a renewal then, as others do that go on with
    /// a hold. Answers what is notified.
    pub(super) fn hand_cached(
        &mut self,
        waiter_id: WaiterId,
        wants: ShareRequest,
        now: Moment,
        effects: &mut Effects<H>,
    ) -> Option<Arc<Notify>> {
        if self.wait_queue.as_deref().is_some_and(|crowd| !crowd.writes.is_idle()) {
            return None;
        }
        let handed = self.holds.find_map(|entry| {
            let handle = Arc::clone(entry.handle.as_ref().filter(|_| entry.is_listed)?);
            let share_id = entry.record.take_cached(wants.from(now).as_unclaimed(now), wants.cache_for, now)?;
            entry.due_if_sooner(effects);
            Some((handle, share_id))
        })?;
        self.wait_queue().handed.insert(waiter_id, handed);
        Some(Arc::default())
    }

    /// Whoever asks for one side, and has nothing under way, takes an idle hold of the other side to have it turned. If that cannot
    /// be, idle holds that are in the way are given up.
    pub(in crate::lock) fn take_to_convert(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        wants: ShareRequest,
        now: Moment,
        effects: &mut Effects<H>,
    ) -> Option<(Arc<H>, ShareId)> {
        let asks_anew = matches!(self.pending(mode, waiter_id), Some(None));
        let may = asks_anew && self.listed_holds().take(2).count() == 1;
        let taken = self.holds.find_map(|entry| {
            let is_to_turn = may && entry.is_listed && entry.record.may_convert_cached(mode, now);
            let handle = entry.handle.clone().filter(|_| is_to_turn)?;
            Some((handle, entry.record.take_to_convert(wants.from(now), wants.cache_for)))
        });
        if taken.is_none() {
            self.give_up_cached(mode, now, effects);
        }
        taken
    }

    /// Somebody here wants the other side, or more of this one than there is: idle holds that are in the way are given up.
    pub(super) fn give_up_cached(&mut self, mode: Mode, now: Moment, effects: &mut Effects<H>) {
        for entry in self.holds.iter_mut().filter(|entry| entry.is_listed) {
            let is_in_the_way = mode == Mode::Write || entry.record.mode() == Mode::Write;
            if is_in_the_way && entry.record.is_cached() {
                entry.record.note_wanted(now);
                entry.due_if_sooner(effects);
            }
        }
    }

    /// Somebody elsewhere calls. Whether a guard is inside that it may want to know of.
    pub(in crate::lock) fn on_recall(&mut self, call: &Recall, now: Moment, effects: &mut Effects<H>) -> bool {
        let mut is_used = false;
        for entry in self.holds.iter_mut().filter(|entry| entry.is_listed) {
            is_used |= entry.record.on_recall(call, now);
            entry.due_if_sooner(effects);
        }
        is_used
    }

    /// Calls may have been missed.
    pub(in crate::lock) fn on_subscription_lost(&mut self, effects: &mut Effects<H>) {
        for entry in self.holds.iter_mut().filter(|entry| entry.is_listed) {
            entry.record.on_subscription_lost();
            entry.due_if_sooner(effects);
        }
    }

    /// The idle holds, and until when each may stay.
    pub(in crate::lock) fn cached(&self) -> impl Iterator<Item = (Moment, Arc<H>)> {
        self.listed_holds().filter_map(|entry| Some((entry.record.cached_until()?, entry.handle.clone()?)))
    }
}
