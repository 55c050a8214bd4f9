//! Holds of one lock in this process, and the effect of a grant.

use std::sync::Arc;

use super::{Entry, FirstGrant, GrantOutcome, HandedShare, State};
use crate::base::error::LossReason;
use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::base::recalls::Reception;
use crate::base::reentry::OwnerId;
use crate::lock::effects::{CellEvent, Event, InRenewalQueue};
use crate::lock::record::{GrantIdentity, HoldRecord, NewHold, Next, ShareRemoved};
use crate::lock::shares::{ShareId, ShareRequest};
use crate::lock::side::{First, Patience, Pending, WaiterId};

impl<H: InRenewalQueue> State<H> {
    /// Lets a reader join a hold, if a hold may be joined now and no writer waits here.
    #[inline]
    pub(in crate::lock) fn join(
        &mut self,
        wants: ShareRequest,
        heard: &Reception,
        now: Moment,
    ) -> Option<(Arc<H>, ShareId)> {
        if self.writer_waits() {
            return None;
        }
        self.holds.find_map(|entry| {
            let handle = entry.handle.as_ref().filter(|_| entry.is_listed)?;
            let share_id = entry.record.join(wants, heard, now)?;
            Some((Arc::clone(handle), share_id))
        })
    }

    /// Removes a guard from a hold that other guards share, if the share has no watcher. Otherwise returns `None` and
    /// changes nothing. The inner value is the hold, if it has to be scheduled earlier.
    #[inline]
    pub(in crate::lock) fn leave_others(&mut self, number: u64, share_id: ShareId) -> Option<Option<Arc<H>>> {
        let entry = self.entry(number);
        entry.record.leave_others(share_id).then(|| entry.ends_sooner().cloned())
    }

    /// Joins the first waiting reader, with a share that it has to take. The share wants what the waiter wants.
    pub(in crate::lock) fn join_unclaimed(
        &mut self,
        wants: ShareRequest,
        heard: &Reception,
        now: Moment,
    ) -> Option<HandedShare<H>> {
        let (hold, share_id) = self.join(wants, heard, now)?;
        self.record(hold.number()).note_unclaimed(share_id, now);
        Some(HandedShare { hold, share_id, grant: None })
    }

    /// Returns a read hold that a reader may join if the server agrees. Returns `None` while a writer waits here.
    pub(in crate::lock) fn to_recheck(&self) -> Option<Arc<H>> {
        let found = self.listed_holds().find(|entry| entry.record.is_recheckable());
        found.filter(|_| !self.writer_waits())?.handle.clone()
    }

    /// Returns a hold of which this owner has a guard.
    pub(in crate::lock) fn held_by(&mut self, owner: OwnerId, event: &mut CellEvent<'_, H>) -> Option<Arc<H>> {
        self.holds.listed_mut().find_map(|entry| {
            let is_owned = entry.record.is_held_by(owner, event);
            if is_owned { entry.handle.clone() } else { None }
        })
    }

    pub(in crate::lock) fn handles(&self) -> impl Iterator<Item = Arc<H>> {
        self.listed_holds().filter_map(|entry| entry.handle.clone())
    }

    /// Turns a grant into a hold, unless the grant is over already. No other function creates a hold.
    fn install(
        &mut self,
        make: impl FnOnce(u64, GrantIdentity) -> Arc<H>,
        granted: NewHold,
        event: &mut CellEvent<'_, H>,
    ) -> Option<(u64, Arc<H>, ShareId)> {
        let number = self.last_hold + 1;
        let granting = granted.granting.clone();
        let (mut record, share_id) = HoldRecord::new(granted, event);
        // A grant that is over on arrival was never a hold, so no end is reported.
        if !matches!(record.next(&mut Event::new(event.now, event.rules, event.heard)), Next::At(_)) {
            return None;
        }
        self.last_hold = number;
        let hold = make(number, granting);
        let entry = Entry { number, is_listed: true, handle: Some(Arc::clone(&hold)), record };
        entry.due_if_sooner(event);
        self.holds.push(entry);
        Some((number, hold, share_id))
    }

    /// Applies a grant that a requester has got, either by the answer to its request or by a notification. The first waiter
    /// of the side gets the hold, and readers that wait here join it.
    pub(in crate::lock) fn on_grant(
        &mut self,
        make: impl FnOnce(u64, GrantIdentity) -> Arc<H>,
        requester_id: WaiterId,
        mut granted: NewHold,
        event: &mut CellEvent<'_, H>,
    ) -> (GrantOutcome<H>, Option<Pending>) {
        let mode = granted.granting.mode;
        let side = self.side(mode);
        // After the first answer, a task that waits takes its share as others do.
        let takes_at_once = !side.is_answered();
        let carrier = side.requester_of(requester_id).map(|requester| requester.carrier);
        let (Some(carrier), Some(pending)) = (carrier, &mut side.pending) else {
            return (GrantOutcome::NotMine, None);
        };
        if let Some(sent) = granted.answers() {
            pending.copies.on_answer(sent);
        }
        pending.is_recorded = true;
        granted.in_doubt_requests = pending.copies;
        let Some((first, waiter)) = side.first_waiter() else {
            return (GrantOutcome::NotMine, None);
        };
        let is_notified = granted.is_claim;
        // The copy may have asked for what an earlier waiter wanted.
        let wants = waiter.wants;
        let asks_enough = is_notified || granted.grant.asked >= wants.lease.min(wants.max_hold);
        let enough_until = match waiter.patience {
            Patience::AskOnce => Moment::NEVER,
            Patience::Wait if asks_enough => granted.enough_until(event.max_clock_skew),
            Patience::Wait => Moment::START,
        };
        let takes_at_once = takes_at_once && event.now <= enough_until && carrier == first;
        let share = wants.from(granted.answers().unwrap_or(event.now));
        granted.share = share;
        if self.is_overtaken(&granted.granting) {
            return (GrantOutcome::Over, None);
        }
        let Some((number, hold, share_id)) = self.install(make, granted, event) else {
            return (GrantOutcome::Over, None);
        };
        self.record(number).set_cache_for(wants.cache_for);
        if !takes_at_once {
            // After the grant was applied, so that the hold is renewed as the whole share needs it.
            self.record(number).note_unclaimed(share_id, event.now);
        }
        let refusal = self.side(mode).refusal.clone();
        let grant = Some(FirstGrant { share, enough_until, is_notified, refusal });
        let handed = HandedShare { hold: Arc::clone(&hold), share_id, grant };
        let pending = self.seat_first(mode, (!takes_at_once).then_some(handed), event);
        self.join_others(mode, number, event);
        (GrantOutcome::Hold(hold, takes_at_once.then_some(share_id)), pending)
    }

    /// Gives the first waiter of a side the share of an older hold which it may join. The readers that came before the first
    /// waiting writer join the hold, too. Returns the share as an error if no such waiter is left, or another task is the
    /// requester. The inner value is the request of the side, which the caller withdraws.
    pub(in crate::lock) fn on_joined(
        &mut self,
        mode: Mode,
        requester_id: WaiterId,
        handed: HandedShare<H>,
        event: &mut CellEvent<'_, H>,
    ) -> Result<Option<Pending>, HandedShare<H>> {
        // A writer may have come while the answer was under way.
        let writer = self.wait_queue().writes.first_waiter().map(|(writer, _)| writer);
        let side = self.side(mode);
        let first = side.first_waiter().filter(|(first, _)| writer.is_none_or(|writer| *first < writer));
        let wants = first.map(|(_, waiter)| waiter.wants);
        let (Some(wants), Some(_)) = (wants, side.requester_of(requester_id)) else {
            return Err(handed);
        };
        // The copies under way are in doubt. Other waiters need another requester.
        side.remove_requester(event);
        let number = handed.hold.number();
        self.change(number, event, |record, event| record.hand_to(handed.share_id, wants, event));
        let pending = self.seat_first(mode, Some(handed), event);
        self.join_waiting(number, writer, event);
        self.lose_overtaken(number, event);
        Ok(pending)
    }

    /// Removes the first waiter, the requester and the request of a side, because the waiter has a share. `handed` is the
    /// share, if the waiter has still to take it.
    fn seat_first(
        &mut self,
        mode: Mode,
        handed: Option<HandedShare<H>>,
        event: &mut CellEvent<'_, H>,
    ) -> Option<Pending> {
        let queue = self.wait_queue();
        let side = queue.side_mut(mode);
        let first = side.pop_first();
        let pending = side.on_seated(event);
        if let (Some(first), Some(handed)) = (first, handed) {
            queue.hand(first.0, handed, event);
        }
        pending
    }

    /// Completes a grant: all readers that wait here join the hold. Older holds that conflict with this hold are lost, because
    /// the server would not have granted this hold if it still had them.
    fn join_others(&mut self, mode: Mode, number: u64, event: &mut CellEvent<'_, H>) {
        if mode == Mode::Read {
            self.join_waiting(number, None, event);
        }
        self.lose_overtaken(number, event);
    }

    /// Lets the readers that wait here and came before this writer join a hold, if the hold has enough time for them.
    fn join_waiting(&mut self, number: u64, writer: Option<WaiterId>, event: &mut CellEvent<'_, H>) {
        let (Some(entry), Some(wait_queue)) = (self.holds.get_mut(number), self.wait_queue.as_deref_mut()) else {
            return;
        };
        let Entry { record, handle: Some(hold), .. } = entry else {
            return;
        };
        let handed = &mut wait_queue.handed;
        wait_queue.reads.retain_waiters(|waiter_id, waiter| {
            let may_join = writer.is_none_or(|writer| waiter_id < writer);
            let joined = may_join.then(|| record.join_phase(waiter.wants.from(event.now), event)).flatten();
            if let Some(share_id) = joined {
                handed.insert(waiter_id, HandedShare { hold: Arc::clone(hold), share_id, grant: None });
                event.wake(waiter_id);
            }
            joined.is_none()
        });
        wait_queue.reads.stop_without_waiters(event);
    }

    /// Returns true if this process has a newer hold that excludes this grant. A notification may bring a grant long
    /// after a force has ended it.
    fn is_overtaken(&self, granting: &GrantIdentity) -> bool {
        self.listed_holds()
            .map(|entry| &entry.record)
            .any(|other| other.is_live() && other.mode().excludes(granting.mode) && other.token() > granting.token)
    }

    /// Ends the older of two live holds that conflict, as lost. The server granted the newer hold, so it must have lost
    /// the older one.
    fn lose_overtaken(&mut self, number: u64, event: &mut CellEvent<'_, H>) {
        let new = self.record(number);
        let (mode, token) = (new.mode(), new.token());
        let mut is_overtaken = false;
        for entry in self.holds.listed_mut().filter(|entry| entry.number != number) {
            let other = &mut entry.record;
            let conflicts = other.is_live() && other.mode().excludes(mode);
            if conflicts && other.token() < token {
                other.lose(LossReason::Gone, event);
                entry.due_if_sooner(event);
            } else {
                is_overtaken |= conflicts;
            }
        }
        if is_overtaken {
            self.change(number, event, |record, event| record.lose(LossReason::Gone, event));
        }
    }

    /// Removes a guard from its hold. The next waiting writer of this process then gets the hold, if the hold may be
    /// handed off.
    pub(in crate::lock) fn remove_share(
        &mut self,
        number: u64,
        share_id: ShareId,
        event: &mut CellEvent<'_, H>,
    ) -> ShareRemoved {
        let next = self.wait_queue.as_deref().map_or(First::Nobody, |wait_queue| wait_queue.writes.first());
        let entry = self.entry(number);
        let removed = entry.record.remove_share(share_id, next, event);
        entry.due_if_sooner(event);
        entry.release_handle(event);
        if let ShareRemoved::HandedOver(share_id) = removed
            && let Some(hold) = entry.handle.clone()
            && let Some(wait_queue) = self.wait_queue.as_deref_mut()
            && let Some((first, _)) = wait_queue.writes.pop_first()
        {
            wait_queue.hand(first, HandedShare { hold, share_id, grant: None }, event);
        }
        removed
    }

    /// Removes a hold that is over from the listed holds, so that it blocks no waiter any more.
    pub(in crate::lock) fn on_end(&mut self, number: u64, event: &mut CellEvent<'_, H>) {
        let entry = self.entry(number);
        entry.is_listed = false;
        entry.release_handle(event);
    }

    /// Replaces a converted hold by the new hold of the other side.
    pub(in crate::lock) fn on_converted(
        &mut self,
        make: impl FnOnce(u64, GrantIdentity) -> Arc<H>,
        old: u64,
        granted: NewHold,
        event: &mut CellEvent<'_, H>,
    ) -> Option<(Arc<H>, ShareId)> {
        let mode = granted.granting.mode;
        let (number, hold, share_id) = self.install(make, granted, event)?;
        self.on_end(old, event);
        self.join_others(mode, number, event);
        Some((hold, share_id))
    }

    /// Records a hold that a guard takes over from a ticket. Waiters of this process stay in their queues: the hold is
    /// no answer to them.
    pub(in crate::lock) fn on_adopted(
        &mut self,
        make: impl FnOnce(u64, GrantIdentity) -> Arc<H>,
        granted: NewHold,
        event: &mut CellEvent<'_, H>,
    ) -> Option<(Arc<H>, ShareId)> {
        let (number, hold, share_id) = self.install(make, granted, event)?;
        self.lose_overtaken(number, event);
        Some((hold, share_id))
    }

    /// Removes the guard's share from a converted hold. The guard has a share of the new hold.
    pub(in crate::lock) fn note_share_converted(
        &mut self,
        number: u64,
        share_id: ShareId,
        event: &mut CellEvent<'_, H>,
    ) {
        let entry = self.entry(number);
        entry.record.on_converted(share_id, event);
        entry.release_handle(event);
    }
}

impl<H> Entry<H> {
    /// Drops the cell's handle of a hold that is not listed and has no guard.
    fn release_handle(&mut self, event: &mut CellEvent<'_, H>) {
        if !self.is_listed && self.record.guards() == 0 {
            event.drop_later(self.handle.take());
        }
    }
}
