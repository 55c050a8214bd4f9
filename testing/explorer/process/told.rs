//! Reactions of a process to its inputs, except answers.

use super::*;
use crate::lock::state::EnteredWaiter;

/// Inputs of the process.
impl Driver<'_> {
    pub fn hear(&mut self, told: Told) {
        match told {
            Told::Acquire { mode, waits } => self.enter(mode, waits),
            Told::Cancel { task } => self.cancel(task),
            Told::FallAsleep { task } => self.task(task).is_asleep = true,
            Told::WakeUp { task } => self.task(task).is_asleep = false,
            Told::Release { task } => self.release(task),
            Told::Convert { task } => self.convert(task),
            Told::Answer { copy, reply } => self.on_answer(copy, reply, false),
            Told::Unreachable { copy } => self.on_answer(copy, None, true),
            Told::Retry { task } => self.retry(task),
            Told::AskAgain { mode } => self.ask_again(mode),
            Told::Notice { slot, grant } => self.on_notice(slot, grant),
            Told::Recall { token, tries } => self.on_recall(token, tries),
            Told::InUse { slot } => self.on_in_use(slot),
            Told::Subscribed => self.on_subscribed(),
            Told::SubscriptionBroken => self.on_subscription_broken(),
            Told::SubscriptionLost => self.on_subscription_lost(),
            Told::GiveUpCached => self.give_up_cached(),
            Told::Tick => {
                self.process.now = self.process.now.after(TICK);
                self.do_what_is_due();
            }
            Told::Lapse => {
                self.process.now = self.process.now.after(TICK);
                self.process.is_behind = true;
            }
            Told::CatchUp => self.do_what_is_due(),
            Told::Grown(by) => self.process.top += i64::from(by),
            Told::Poll { task } => {
                self.poll(task);
            }
            Told::Schedule { effect } => self.schedule(effect),
            Told::Drive => self.drive(),
        }
    }

    /// Does what `acquire` does before its loop.
    pub fn enter(&mut self, mode: Mode, waits: bool) {
        let now = self.now();
        self.process.begun += 1;
        let (wants, reception) = (self.wants(), self.process.reception);
        let joined = match mode {
            Mode::Read => self.process.state.join(wants, &reception, now),
            Mode::Write => self.process.state.take_cached(wants, &reception, now),
        };
        let stage = Stage::Over;
        let task = ExploredTask { waiter_id: WaiterId::of(0), mode, waits, was_late: false, is_asleep: false, stage };
        if let Some((hold, share_id)) = joined {
            let number = u8::try_from(self.process.tasks.len()).expect("few");
            self.process.tasks.push(task);
            let first = self.process.state.record(hold.number()).token();
            let token = if self.has(Blunder::ReusesToken) { first } else { share_id.token };
            return self.enter_hold(number, mode, (hold.number(), share_id), token);
        }
        let entered = self.event(|state, event| match waits {
            true => Some(state.enter(mode, None, wants, event)),
            false => state.try_enter(mode, wants, event),
        });
        self.process.tasks.push(task);
        let number = u8::try_from(self.process.tasks.len() - 1).expect("few");
        self.note_entered(number, entered);
        if self.has_threads() {
            // The future of a new task goes on in the same poll.
            self.poll(number);
            self.poll_requester(mode);
        }
    }

    /// Notes the entry of a waiter. `None`: a hold or a waiter of this process prevents a try.
    pub fn note_entered(&mut self, number: u8, entered: Option<EnteredWaiter>) {
        let task = self.task(number);
        task.stage = if entered.is_some() { Stage::Waits(true) } else { Stage::Over };
        let Some(EnteredWaiter { waiter_id, requester_id }) = entered else { return };
        task.waiter_id = waiter_id;
        let mode = task.mode;
        requester_id.into_iter().for_each(|id| self.add_requester(mode, id, waiter_id));
    }

    /// Ends the acquisition of a task whose future is dropped or has got its answer.
    pub fn cancel(&mut self, number: u8) {
        let ExploredTask { waiter_id, mode, stage, .. } = self.task(number).clone();
        if let Stage::Converts { hold, share_id, .. } = stage {
            self.drop_conversion(number);
            self.task(number).stage = Stage::Over;
            return self.remove_share(hold, share_id);
        }
        self.task(number).stage = Stage::Over;
        if let Stage::Accepts { hold, share_id, .. } = stage {
            self.remove_share(hold, share_id);
        }
        self.leave(mode, waiter_id);
    }

    pub fn leave(&mut self, mode: Mode, waiter_id: WaiterId) {
        let is_answered_try = self.process.state.is_denied(waiter_id) || self.has_recalled(mode);
        let left = self.event(|state, event| state.leave(mode, waiter_id, event));
        let stays = match self.process.blunder {
            Some(Blunder::KeepsRequest) => true,
            Some(Blunder::TryStays) => is_answered_try,
            _ => false,
        };
        if let Some(pending) = left.pending
            && !stays
        {
            self.take_back(&pending);
        }
        if let Some((hold, share_id)) = left.handed {
            self.remove_share(hold.number(), share_id);
        }
    }

    pub fn take_back(&mut self, pending: &Pending) {
        if !pending.is_unknown_to_server() {
            let arrives_until = pending.copies.until(self.now().after(self.rules.max_delay));
            self.depart(slot_of(&pending.id), arrives_until, None);
        }
    }

    pub fn depart(&mut self, slot: Slot, arrives_until: Option<Moment>, hold: Option<u64>) {
        let arrives_until = arrives_until.and_then(|until| match self.process.blunder {
            Some(Blunder::LeavesOnce) => None,
            Some(Blunder::ConfirmsTooSoon) => Some(Moment::from_nanos(until.as_nanos() - TICK_NANOS)),
            _ => Some(until),
        });
        let due = Some(self.now());
        match self.process.departing.iter_mut().find(|departing| departing.slot == slot) {
            // The release of a lost hold is sent again when its conversion ends.
            Some(departing) => {
                departing.arrives_until = departing.arrives_until.max(arrives_until);
                departing.hold = departing.hold.or(hold);
                departing.due = due;
            }
            None => self.process.departing.push(Departing { slot, arrives_until, hold, due }),
        }
    }

    pub fn release(&mut self, number: u8) {
        if let Stage::Holds { hold, share_id } = self.task(number).stage {
            self.task(number).stage = Stage::Over;
            self.remove_share(hold, share_id);
        }
    }

    /// Does what the drop of a guard does.
    pub fn remove_share(&mut self, hold: u64, share_id: ShareId) {
        let now = self.now();
        let reception = self.process.reception;
        let others_stay = self.process.state.leave_others(hold, share_id);
        let stays = others_stay.or_else(|| self.process.state.cache(hold, share_id, &reception, now));
        if let Some(sooner) = stays {
            sooner.iter().for_each(|hold| self.schedule_later(hold.number()));
            return;
        }
        let removed = self.event(|state, event| state.remove_share(hold, share_id, event));
        match removed {
            ShareRemoved::Shared | ShareRemoved::HandedOver(_) | ShareRemoved::Kept | ShareRemoved::Lost(_) => {}
            ShareRemoved::Last | ShareRemoved::LastLate(_) if self.has(Blunder::LeavesUntold) => {
                self.on_end(hold);
            }
            ShareRemoved::Last | ShareRemoved::LastLate(_) => self.give_back(hold, Some(hold)),
        }
    }

    /// Releases a hold that is over. Local waiters wait for the release of `waited_for`.
    pub fn give_back(&mut self, hold: u64, waited_for: Option<u64>) {
        let now = self.now();
        self.retire(hold);
        let arrives_until = self.process.state.record(hold).arrives_until(now, self.rules);
        let open = self.record(hold).take_open_conversion();
        let slot = self.process.slot_of_hold(hold);
        self.close(|copy| matches!(copy.purpose, Purpose::Renew { hold: of, .. } if of == hold));
        self.depart(slot, arrives_until, waited_for);
        open.iter().for_each(|open| self.depart_conversion(open));
    }

    /// Ends the pause of a task.
    fn retry(&mut self, number: u8) {
        let now = self.now();
        if let Stage::Converts { conversion, .. } = &mut self.task(number).stage {
            conversion.stage = ConversionStage::Pauses(now);
        }
    }

    /// Does what timers do: copies and pauses end, and the background looks at the holds.
    fn do_what_is_due(&mut self) {
        self.process.is_behind = false;
        let (now, overdue) = (self.now(), ticks(MAX_DELAY));
        let late: Vec<_> =
            self.process.copies.iter().filter(|copy| now.since(copy.sent) >= overdue).map(|copy| copy.number).collect();
        late.into_iter().for_each(|copy| self.on_answer(copy, None, false));
        self.replace_stalled();
        self.requesters_ask_again();
        let holds: Vec<_> = self.process.state.handles().map(|hold| hold.number()).collect();
        holds.into_iter().for_each(|hold| self.look_soon(hold));
    }

    /// Does what the background does with requesters that are not polled.
    fn replace_stalled(&mut self) {
        let looks = !self.has(Blunder::NeverLooksForStalled);
        if looks && self.process.tasks.iter().any(|task| task.is_asleep) {
            self.event(|state, event| state.on_stalled(event));
        }
    }

    /// Lets the background look at a hold. In a process with threads, its queue of deadlines says when.
    pub fn look_soon(&mut self, hold: u64) {
        if !self.has_threads() {
            self.look_at(hold);
        }
    }

    /// Does what the background does with a hold whose deadline may have come.
    pub fn look_at(&mut self, hold: u64) {
        let now = self.now();
        let slot = self.process.slot_of_hold(hold);
        if self.process.departing.iter().any(|departing| departing.slot == slot) {
            return;
        }
        let next = self.event(|state, event| state.record(hold).next(event));
        match next {
            Next::At(_) => {
                let lease = self.event_of(hold, |record, event| record.begin_renewal(now, event));
                if let Some(lease) = lease {
                    self.send(slot, Asked::Renew, Purpose::Renew { hold, lease, slot });
                }
            }
            Next::Lost(_) => {
                self.give_back(hold, None);
                self.on_end(hold);
            }
            Next::GivenUp => self.give_back(hold, Some(hold)),
            Next::Released => {}
        }
    }

    pub fn on_end(&mut self, hold: u64) {
        self.event(|state, event| state.on_end(hold, event));
    }
}
