//! Waiters of the lock in this process, and the requesters of its two sides.

use std::sync::Arc;

use super::{EnteredWaiter, LeftEntry, RequestTerms, State, WakeReason};
#[cfg(all(test, feature = "_testing"))]
use crate::base::attempt::AcquisitionId;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::lock::effects::{CellEvent, InRenewalQueue};
use crate::lock::local_waits::LocalWaits;
use crate::lock::shares::ShareRequest;
use crate::lock::side::{
    Awaits, LastRefusal, NoGrant, Patience, Pending, RequesterSignal, Side, SideOutage, SideRequester, Waiter, WaiterId,
};

impl<H: InRenewalQueue> State<H> {
    /// Returns the number of the next waiter or requester.
    pub(in crate::lock) fn waiter_id(&mut self) -> WaiterId {
        self.last_waiter.0 += 1;
        WaiterId(self.last_waiter.0)
    }

    /// Adds a waiter to a side. If the side has no request, the task of the waiter becomes its requester.
    pub(in crate::lock) fn enter(
        &mut self,
        mode: Mode,
        again: Option<WaiterId>,
        wants: ShareRequest,
        event: &mut CellEvent<'_, H>,
    ) -> EnteredWaiter {
        let waiter_id = again.unwrap_or_else(|| self.waiter_id());
        let waiter = Waiter::new(wants, Patience::Wait, event.now);
        if mode == Mode::Write && self.hand_cached(waiter_id, wants, event) {
            return EnteredWaiter { waiter_id, requester_id: None };
        }
        self.wait(mode, waiter_id, waiter, event)
    }

    /// Adds a try, unless a task of this process holds the lock or waits for it. If readers ask for the lock already, a read
    /// try waits for the answer to the next copy of their request.
    pub(in crate::lock) fn try_enter(
        &mut self,
        mode: Mode,
        wants: ShareRequest,
        event: &mut CellEvent<'_, H>,
    ) -> Option<EnteredWaiter> {
        let is_in_the_way = match mode {
            Mode::Read => self.used_holds().any(|entry| entry.record.mode() == Mode::Write) || self.writer_waits(),
            Mode::Write => self.used_holds().next().is_some() || self.waiting() > 0,
        };
        if is_in_the_way {
            return None;
        }
        let waiter_id = self.waiter_id();
        let waiter = Waiter::new(wants, Patience::AskOnce, event.now);
        if mode == Mode::Write && self.hand_cached(waiter_id, wants, event) {
            return Some(EnteredWaiter { waiter_id, requester_id: None });
        }
        Some(self.wait(mode, waiter_id, waiter, event))
    }

    fn wait(&mut self, mode: Mode, waiter_id: WaiterId, waiter: Waiter, event: &mut CellEvent<'_, H>) -> EnteredWaiter {
        // A try asks also while a hold of the process is being released, because its answer may not wait for that.
        let may_ask = self.may_ask(mode) || waiter.patience == Patience::AskOnce;
        let side = self.side(mode);
        let asks = may_ask && !side.has_waiters() && side.requester().is_none();
        let patience = waiter.patience;
        side.wait(waiter_id, waiter);
        if asks {
            let requester_id = self.waiter_id();
            self.side(mode).begin_here(requester_id, waiter_id, event);
            return EnteredWaiter { waiter_id, requester_id: Some(requester_id) };
        }
        if patience == Patience::AskOnce {
            side.ask_at_once(event);
        }
        self.recall_cached(mode, event);
        EnteredWaiter { waiter_id, requester_id: None }
    }

    /// Returns the reason for which a waiter is woken, if there is one.
    pub(in crate::lock) fn take_signal(&mut self, mode: Mode, waiter_id: WaiterId) -> Option<WakeReason<H>> {
        let Some(queue) = self.wait_queue.as_deref_mut() else { return Some(WakeReason::PlaceLost) };
        // Comes before a share, because a requester that no waiter needs has to withdraw the request.
        if let Some(requester_id) = queue.side_mut(mode).take_requester(waiter_id) {
            return Some(WakeReason::Requests(requester_id));
        }
        if let Some(handed) = queue.handed.remove(&waiter_id) {
            if queue.is_empty() {
                self.wait_queue = None;
            }
            return Some(WakeReason::Handed(handed));
        }
        let side = queue.side(mode);
        if side.is_waiting(waiter_id) {
            return None;
        }
        Some(match side.ended.get(&waiter_id) {
            Some(NoGrant::Denied) => WakeReason::Denied,
            Some(NoGrant::Failed(failure)) => WakeReason::Failed(failure.clone()),
            None => WakeReason::PlaceLost,
        })
    }

    /// Returns what a requester has to do before its next copy is due. Records that it is polled, and by when it will be polled
    /// again, or woken.
    pub(in crate::lock) fn requester_signal(
        &mut self,
        mode: Mode,
        requester_id: WaiterId,
        poll_deadline: Moment,
    ) -> Option<RequesterSignal> {
        let Some(side) = self.present_side(mode).filter(|side| side.has_waiters()) else {
            return Some(RequesterSignal::Stop);
        };
        let Some(requester) = side.requester_of(requester_id) else {
            return Some(RequesterSignal::Stop);
        };
        (requester.poll_deadline, requester.was_woken) = (poll_deadline, false);
        requester.asks_at_once.then_some(RequesterSignal::AskAtOnce)
    }

    /// Returns a side, if a waiter or a request is there.
    pub(in crate::lock) fn present_side(&mut self, mode: Mode) -> Option<&mut Side> {
        self.wait_queue.as_deref_mut().map(|queue| queue.side_mut(mode))
    }

    fn requester(&mut self, mode: Mode, requester_id: WaiterId) -> Option<&mut SideRequester> {
        self.present_side(mode)?.requester_of(requester_id)
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(in crate::lock) fn is_requester(&mut self, mode: Mode, requester_id: WaiterId) -> bool {
        self.requester(mode, requester_id).is_some()
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(in crate::lock) fn is_denied(&self, waiter_id: WaiterId) -> bool {
        let side = |mode| self.wait_queue.as_deref()?.side(mode).ended.get(&waiter_id);
        [Mode::Read, Mode::Write].into_iter().any(|mode| matches!(side(mode), Some(NoGrant::Denied)))
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(in crate::lock) fn pending_id(&self, mode: Mode) -> Option<&AcquisitionId> {
        self.wait_queue.as_deref()?.side(mode).pending.as_ref().map(|pending| &pending.id)
    }

    /// Returns the share that the first waiter wants, if this is the requester of the side.
    pub(in crate::lock) fn wants_of(&mut self, mode: Mode, requester_id: WaiterId) -> Option<ShareRequest> {
        let side = self.present_side(mode)?;
        side.requester_of(requester_id)?;
        side.first_waiter().map(|(_, waiter)| waiter.wants)
    }

    /// Records that this requester asks the server now, for all waiters that are here. Returns false if it is not the
    /// requester any more.
    pub(in crate::lock) fn note_asks(&mut self, mode: Mode, requester_id: WaiterId) -> bool {
        self.present_side(mode).is_some_and(|side| side.note_asks(requester_id))
    }

    /// Records until when the server may have something of an earlier request of the side.
    pub(in crate::lock) fn note_earlier(&mut self, mode: Mode, until: Option<Moment>) {
        if let Some(side) = self.present_side(mode) {
            side.earlier_until = side.earlier_until.max(until);
        }
    }

    /// Begins a copy of the side's request, or of the one that `begin` makes. Returns `None` if no waiter is left, or if
    /// another task is the requester.
    pub(in crate::lock) fn begin_attempt(
        &mut self,
        mode: Mode,
        requester_id: WaiterId,
        begin: impl FnOnce() -> Pending,
    ) -> Option<(&mut Pending, RequestTerms)> {
        if !self.note_asks(mode, requester_id) {
            return None;
        }
        let side = self.present_side(mode)?;
        let (_, first) = side.first_waiter()?;
        let (wants, has_patient) = (first.wants, side.has_patient_waiter());
        let pending = side.pending.get_or_insert_with(begin);
        pending.copies.begin();
        let terms = RequestTerms { wants, waits: has_patient, is_recorded: pending.is_recorded };
        Some((pending, terms))
    }

    /// Returns the request of the side, for the answer to a copy of this requester.
    pub(in crate::lock) fn end_attempt(&mut self, mode: Mode, requester_id: WaiterId) -> Option<&mut Pending> {
        let side = self.present_side(mode)?;
        side.requester_of(requester_id)?;
        side.pending.as_mut()
    }

    /// Takes the request of this requester out of the state, for its withdrawal.
    pub(in crate::lock) fn give_up_pending(&mut self, mode: Mode, requester_id: WaiterId) -> Option<Pending> {
        let side = self.present_side(mode)?;
        side.requester_of(requester_id)?;
        side.pending.take()
    }

    /// Records that the server does not answer, or answers again. `by` is the requester, or a waiter that needs a renewal.
    pub(in crate::lock) fn on_outage(
        &mut self,
        mode: Mode,
        by: WaiterId,
        outage: Option<SideOutage>,
        event: &mut CellEvent<'_, H>,
    ) {
        if let Some(side) = self.present_side(mode) {
            let asks = side.requester_of(by).is_some();
            side.on_outage(outage, asks, event);
        }
    }

    /// Returns the waits here, and the holds that guards of this process use. Returns `None` if no task waits.
    pub(in crate::lock) fn local_waits(&self) -> Option<LocalWaits<H>> {
        if self.waiting() == 0 {
            return None;
        }
        let queue = self.wait_queue.as_deref()?;
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

    /// Returns the answer for which a waiter at its limit waits. A hold that is being released here may keep the side from its
    /// first request.
    pub(in crate::lock) fn awaits(&mut self, mode: Mode) -> Awaits {
        let will_ask = self.may_ask(mode) || self.used_holds().next().is_none();
        self.side(mode).awaits(will_ask)
    }

    /// Looks for tasks that were not polled in time. Ends their requesters: the next waiters continue the requests.
    pub(in crate::lock) fn on_stalled(&mut self, event: &mut CellEvent<'_, H>) {
        if self.looks_at.is_some_and(|at| at > event.now) {
            return; // a later check is planned
        }
        self.looks_at = None;
        for mode in [Mode::Read, Mode::Write] {
            if self.may_ask(mode) {
                self.side(mode).end_if_stalled(event);
            }
        }
    }

    /// Ends a requester. Returns the request if no waiter is left that needs it, and the caller withdraws it. Otherwise the
    /// first waiter continues it.
    pub(in crate::lock) fn end_requester(
        &mut self,
        mode: Mode,
        requester_id: WaiterId,
        event: &mut CellEvent<'_, H>,
    ) -> Option<Pending> {
        self.requester(mode, requester_id)?;
        self.side(mode).remove_requester(event);
        self.take_unneeded(mode)
    }

    /// Takes the request of a side that needs none. So the first waiter that leaves such a side withdraws it.
    fn take_unneeded(&mut self, mode: Mode) -> Option<Pending> {
        let queue = self.wait_queue();
        if queue.side(mode).has_waiters() { None } else { queue.side_mut(mode).pending.take() }
    }

    /// Removes a waiter. The last one of a side gets its request, and the caller withdraws it.
    pub(in crate::lock) fn leave(
        &mut self,
        mode: Mode,
        waiter_id: WaiterId,
        event: &mut CellEvent<'_, H>,
    ) -> LeftEntry<H> {
        let queue = self.wait_queue();
        let handed = queue.handed.remove(&waiter_id).map(|handed| (handed.hold, handed.share_id));
        let side = queue.side_mut(mode);
        side.ended.remove(&waiter_id);
        side.stop_waiting(waiter_id);
        if !side.has_waiters() {
            side.remove_requester(event);
        }
        let earlier_until = side.earlier_until;
        LeftEntry { pending: self.take_unneeded(mode), handed, earlier_until }
    }
}
