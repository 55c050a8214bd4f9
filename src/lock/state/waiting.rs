//! Waiters of the lock in this process, and the leaders of its two sides.

use std::sync::Arc;

use super::wait_queue::ExtraRequest;
use super::{LeftEntry, State, WakeReason};
use crate::base::attempt::Failure;
use crate::base::backoff::Backoff;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::lock::effects::{CellEvent, InRenewalQueue};
use crate::lock::local_waits::LocalWaits;
use crate::lock::shares::ShareRequest;
use crate::lock::side::{LastRefusal, Pending, SideOutage, WaitStart, Waiter, WaiterId};

impl<H: InRenewalQueue> State<H> {
    /// Returns the number of the next waiter.
    pub(in crate::lock) fn waiter_id(&mut self) -> WaiterId {
        self.last_waiter += 1;
        WaiterId(self.last_waiter)
    }

    /// Adds an acquisition to a side, as its leader or as a waiter. The second value is true if it has to wait until it is
    /// woken.
    pub(in crate::lock) fn enter(
        &mut self,
        mode: Mode,
        again: Option<WaiterId>,
        wants: ShareRequest,
        event: &mut CellEvent<'_, H>,
    ) -> (WaiterId, bool) {
        let now = event.now;
        let waiter_id = again.unwrap_or_else(|| self.waiter_id());
        // A leader that was passed over is an ordinary waiter from here on, also if it gets a cached hold at once.
        if let (Some(again), Some(queue)) = (again, self.wait_queue.as_deref_mut()) {
            queue.extra_requests.remove(&again);
        }
        if mode == Mode::Write && self.hand_cached(waiter_id, wants, event) {
            return (waiter_id, true);
        }
        let may_ask = self.may_ask(mode);
        let side = self.side(mode);
        if may_ask && side.is_idle() {
            side.lead(waiter_id, (wants.owner, WaitStart(now)), event);
            return (waiter_id, false);
        }
        self.recall_cached(mode, event);
        let side = self.side(mode);
        side.wait(waiter_id, Waiter { wants, since: WaitStart(now) });
        (waiter_id, true)
    }

    /// Adds a try, unless a task of this process holds the lock or waits for it. If the side has a leader without waiters, the
    /// try sends an extra request beside it.
    pub(in crate::lock) fn try_enter(
        &mut self,
        mode: Mode,
        wants: ShareRequest,
        event: &mut CellEvent<'_, H>,
    ) -> Option<(WaiterId, bool)> {
        let has_waiters =
            || self.wait_queue.as_deref().is_some_and(|queue| queue.reads.has_waiters() || queue.writes.has_waiters());
        let is_in_the_way = match mode {
            Mode::Read => self.used_holds().any(|entry| entry.record.mode() == Mode::Write) || self.writer_waits(),
            Mode::Write => self.used_holds().next().is_some() || has_waiters(),
        };
        if is_in_the_way {
            return None;
        }
        let waiter_id = self.waiter_id();
        if mode == Mode::Write && self.hand_cached(waiter_id, wants, event) {
            return Some((waiter_id, true));
        }
        let queue = self.wait_queue();
        if queue.side_mut(mode).has_leader() {
            queue.extra_requests.insert(waiter_id, ExtraRequest { pending: None, has_lost_right: false });
        } else {
            queue.side_mut(mode).lead(waiter_id, (wants.owner, WaitStart(event.now)), event);
        }
        Some((waiter_id, false))
    }

    /// Returns the reason for which a waiter is woken, if there is one.
    pub(in crate::lock) fn take_signal(&mut self, mode: Mode, waiter_id: WaiterId) -> Option<WakeReason<H>> {
        let queue = self.wait_queue();
        let handed = queue.handed.remove(&waiter_id).map(|(hold, share_id)| WakeReason::Handed(hold, share_id));
        let taken = handed.or_else(|| queue.failed.remove(&waiter_id).map(WakeReason::Failed));
        if taken.is_some() {
            if queue.is_empty() {
                self.wait_queue = None;
            }
            return taken;
        }
        let leads = queue.side_mut(mode).leader(waiter_id).is_some();
        // It was woken as the leader, and has lost the right since. It learns that when it sends its request.
        let was_passed_by = queue.extra_requests.contains_key(&waiter_id);
        (leads || was_passed_by).then_some(WakeReason::Ask)
    }

    /// Returns the extra request of this try, if it may still send it.
    fn extra_request(&mut self, waiter_id: WaiterId) -> Option<&mut ExtraRequest> {
        self.wait_queue().extra_requests.get_mut(&waiter_id).filter(|extra| !extra.has_lost_right)
    }

    /// Returns the request of this waiter. The outer `Option` is `None` if the waiter may send none.
    pub(in crate::lock) fn pending(&mut self, mode: Mode, waiter_id: WaiterId) -> Option<&mut Option<Pending>> {
        if self.side(mode).leader(waiter_id).is_some() {
            return self.side(mode).leader(waiter_id).map(|leader| &mut leader.pending);
        }
        self.extra_request(waiter_id).map(|extra| &mut extra.pending)
    }

    /// Records until when this leader will be polled again. Returns false if it may not send requests any more.
    pub(in crate::lock) fn note_polled(&mut self, mode: Mode, waiter_id: WaiterId, poll_deadline: Moment) -> bool {
        if let Some(leader) = self.side(mode).leader(waiter_id) {
            leader.poll_deadline = poll_deadline;
            return true;
        }
        self.extra_request(waiter_id).is_some()
    }

    /// Begins an attempt of the request in progress, or of the one that `begin` makes. Returns `None` if the waiter may not
    /// send requests any more.
    pub(in crate::lock) fn begin_attempt(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        poll_deadline: Moment,
        begin: impl FnOnce() -> Pending,
    ) -> Option<&mut Pending> {
        if !self.note_polled(mode, waiter_id, poll_deadline) {
            return None;
        }
        let newest = WaiterId(self.last_waiter);
        if let Some(leader) = self.side(mode).leader(waiter_id) {
            leader.newest = newest;
        }
        let pending = self.pending(mode, waiter_id)?.get_or_insert_with(begin);
        pending.copies.begin();
        Some(pending)
    }

    /// Returns the request of this waiter, for the answer to an attempt.
    pub(in crate::lock) fn end_attempt(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        poll_deadline: Moment,
    ) -> Option<&mut Pending> {
        if !self.note_polled(mode, waiter_id, poll_deadline) {
            return None;
        }
        self.pending(mode, waiter_id)?.as_mut()
    }

    /// Takes the request out of the state, for its withdrawal.
    pub(in crate::lock) fn give_up_pending(&mut self, mode: Mode, waiter_id: WaiterId) -> Option<Pending> {
        self.pending(mode, waiter_id)?.take()
    }

    /// Records that the server does not answer, or answers again.
    pub(in crate::lock) fn on_outage(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        outage: Option<SideOutage>,
        event: &mut CellEvent<'_, H>,
    ) {
        let side = self.side(mode);
        let asks = side.leader(waiter_id).is_some();
        side.on_outage(outage, asks, event);
    }

    /// Fails all waiters that were here when the leader sent its newest attempt, because the attempt was for them too.
    pub(in crate::lock) fn fail_waiters(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        failure: &Failure,
        event: &mut CellEvent<'_, H>,
    ) {
        let queue = self.wait_queue();
        let Some(newest) = queue.side_mut(mode).leader(waiter_id).map(|leader| leader.newest) else {
            return;
        };
        for waiter_id in queue.side_mut(mode).take_waiters_up_to(newest).into_keys() {
            queue.failed.insert(waiter_id, failure.clone());
            event.wake(waiter_id);
        }
    }

    /// Returns the waits here, and the holds that guards of this process use. Returns `None` if no task waits.
    pub(in crate::lock) fn local_waits(&self) -> Option<LocalWaits<H>> {
        let queue = self.wait_queue.as_deref().filter(|queue| !queue.is_idle())?;
        let waits = queue.reads.local_waits(Mode::Read).chain(queue.writes.local_waits(Mode::Write)).collect();
        let used = self.used_holds().filter_map(|entry| Some((entry.handle.clone()?, entry.record.owners())));
        Some(LocalWaits { waits, holds: used.collect() })
    }

    /// Returns what keeps an acquisition of this side out: a hold that guards of this process use, and the last refusal of
    /// the server.
    pub(in crate::lock) fn obstacle(&self, mode: Mode) -> (Option<Arc<H>>, Option<LastRefusal>) {
        let own = self.used_holds().find(|entry| entry.record.mode().excludes(mode));
        let own = own.and_then(|entry| entry.handle.clone());
        let refusal = self.wait_queue.as_deref().and_then(|queue| queue.side(mode).refusal.clone());
        (own, refusal)
    }

    /// Returns true if the side of this waiter has had no answer yet: its leader awaits one, or a hold that is being
    /// released here keeps the side from its first request.
    pub(in crate::lock) fn awaits_first_answer(&mut self, mode: Mode, waiter_id: WaiterId) -> bool {
        // A try beside the leader waits for the answer to its own request.
        if self.wait_queue().extra_requests.contains_key(&waiter_id) {
            return false;
        }
        let awaits_release = !self.may_ask(mode) && self.used_holds().next().is_none();
        let side = self.side(mode);
        side.awaits_first_answer(waiter_id) || awaits_release && side.awaits_leader(waiter_id)
    }

    /// Replaces each leader that was not polled in time by the next waiter, which continues the request. When the former
    /// leader is polled again, it waits as others do.
    pub(in crate::lock) fn on_stalled_leader(&mut self, event: &CellEvent<'_, H>) {
        if self.looks_at.is_some_and(|at| at > event.now) {
            return; // a later check is planned
        }
        self.looks_at = None;
        for mode in [Mode::Read, Mode::Write] {
            if !self.may_ask(mode) {
                continue;
            }
            let queue = self.wait_queue();
            let side = queue.side_mut(mode);
            let Some(mut leader) = side.take_stalled(event.now) else {
                continue;
            };
            if let Some(pending) = &mut leader.pending {
                pending.copies.abandon_all(event.now.after(event.max_delay));
            }
            side.pending = leader.pending;
            queue.extra_requests.insert(leader.waiter_id, ExtraRequest { pending: None, has_lost_right: true });
        }
    }

    /// Removes a waiter. The next waiter continues the request, if there is one that may.
    pub(in crate::lock) fn leave(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        backoff: Backoff,
        event: &mut CellEvent<'_, H>,
    ) -> LeftEntry<H> {
        let may_ask = self.may_ask(mode);
        let queue = self.wait_queue();
        let handed = queue.handed.remove(&waiter_id);
        queue.failed.remove(&waiter_id);
        let side = queue.side_mut(mode);
        side.stop_waiting(waiter_id);
        let leader = side.take_leader(waiter_id);
        let goes_on = leader.is_some() && may_ask && side.has_waiters();
        if leader.is_some() {
            side.wake_at_first_answer(event);
        }
        let asked =
            leader.map(|leader| leader.pending).or_else(|| Some(queue.extra_requests.remove(&waiter_id)?.pending));
        let mut pending = asked.flatten();
        if let Some(pending) = &mut pending {
            pending.copies.abandon_all(event.now.after(event.max_delay));
            // A leader that has sent no copy leaves the backoff of the leader before.
            pending.backoff.get_or_insert(backoff);
        }
        let goes_on = goes_on && pending.is_some();
        if goes_on {
            queue.side_mut(mode).pending = pending.take();
        }
        LeftEntry { pending, handed, goes_on }
    }
}
