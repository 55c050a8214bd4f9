//! Polls of the tasks of a process, until none has anything to do at once.

use super::*;

/// Steps of the tasks, until nothing is left to do at once.
impl Driver<'_> {
    pub fn settle(&mut self) {
        while self.polls() {}
        self.look_at_cached();
        while self.polls() {}
        self.send_releases();
        self.forget_holds();
        self.forget_tasks();
    }

    pub fn polls(&mut self) -> bool {
        let mut goes_on = false;
        for number in self.numbers() {
            // In a process with threads, that is a step of its own.
            let is_polled_later = self.has_threads() && matches!(self.task(number).stage, Stage::Waits(_));
            goes_on |= !is_polled_later && !self.task(number).is_asleep && self.poll(number);
        }
        goes_on
    }

    /// Polls the future of a task. Returns true if it has done something.
    pub fn poll(&mut self, number: u8) -> bool {
        let ExploredTask { waiter_id, mode, waits, stage, .. } = self.task(number).clone();
        match stage {
            Stage::Waits(was_woken) => {
                let Some(reason) = self.process.state.take_signal(mode, waiter_id) else {
                    self.task(number).stage = Stage::Waits(false);
                    return false;
                };
                if !was_woken {
                    self.out.broken = Some(Broken::NotWoken);
                }
                match reason {
                    WakeReason::Ask => self.task(number).stage = Stage::Asks(Ask::First),
                    WakeReason::Handed(hold, share_id) => self.accept(number, hold.number(), share_id, self.now()),
                    WakeReason::Failed(_) => unreachable!("no attempt fails for good"),
                }
                true
            }
            Stage::Asks(Ask::First) => {
                self.release_cached(mode);
                if mode == Mode::Write || !self.recheck(number, waiter_id) {
                    self.ask(number, mode, waiter_id, waits);
                }
                true
            }
            Stage::Asks(Ask::Again) => {
                self.ask(number, mode, waiter_id, waits);
                true
            }
            Stage::Accepts { hold, share_id, since } => {
                let now = self.now();
                let record = self.record(hold);
                if record.awaits_renewal(waiter_id) && now < record.deadline() {
                    return false;
                }
                self.accept(number, hold, share_id, since);
                true
            }
            Stage::Converts { conversion, .. } => {
                let is_due = match conversion.stage {
                    ConversionStage::Pauses(at)
                    | ConversionStage::AwaitsHolders(at)
                    | ConversionStage::AwaitsStrays(at) => at <= self.now(),
                    ConversionStage::Asks => false,
                };
                if is_due {
                    self.send_conversion(number);
                }
                is_due
            }
            Stage::Asks(_) | Stage::Holds { .. } | Stage::Over => false,
        }
    }

    /// Asks the server, as the leader of a side.
    pub fn ask(&mut self, number: u8, mode: Mode, waiter_id: WaiterId, waits: bool) {
        let now = self.now();
        let slot = self.new_slot();
        let begin = || Pending::new(id_of(slot));
        if self.has(Blunder::AsksAnew) {
            self.process.state.give_up_pending(mode, waiter_id);
        }
        let begun = self.process.state.begin_attempt(mode, waiter_id, now.after(self.rules.poll_within), begin).map(
            |pending| {
                pending.copies.ask_for(HOLD_LEASE);
                slot_of(&pending.id)
            },
        );
        let Some(slot) = begun else {
            self.task(number).stage = Stage::Waits(true);
            return;
        };
        self.task(number).stage = Stage::Asks(Ask::Flying);
        self.send(slot, Asked::Acquire { mode, waits }, Purpose::Acquire { task: number, slot });
    }

    /// Joins a read hold of this process, by asking the server whether a writer waits.
    pub fn recheck(&mut self, number: u8, waiter_id: WaiterId) -> bool {
        let (now, wants) = (self.now(), self.wants());
        if let Some((hold, share_id)) = self.process.state.join(wants, &self.process.reception, now) {
            self.join(number, hold.number(), share_id);
            return true;
        }
        let Some(hold) = self.process.state.to_recheck() else { return false };
        let hold = hold.number();
        if !self.process.state.note_polled(Mode::Read, waiter_id, now.after(self.rules.poll_within)) {
            return false;
        }
        let begun = self.event_of(hold, |record, event| record.begin_recheck(wants.from(now), event));
        let Some((share_id, _)) = begun else { return false };
        let slot = self.process.slot_of_hold(hold);
        self.task(number).stage = Stage::Asks(Ask::Rechecks { hold, share_id });
        self.send(slot, Asked::Recheck, Purpose::Recheck { task: number, slot });
        true
    }

    pub fn join(&mut self, number: u8, hold: u64, share_id: ShareId) {
        let (now, waiter_id) = (self.now(), self.task(number).waiter_id);
        let pending = self.event(|state, event| state.on_seated(Mode::Read, waiter_id, hold, event));
        pending.iter().for_each(|pending| self.take_back(pending));
        self.accept(number, hold, share_id, now);
    }

    pub fn on_recheck_answer(&mut self, number: u8, copy: FlyingCopy, reply: Option<HeardReply>) {
        let sent = copy.sent;
        let Stage::Asks(Ask::Rechecks { hold, share_id }) = self.task(number).stage else { return };
        let attempt = self.attempt(sent, reply);
        self.record(hold).copies_mut().resolve(&attempt);
        self.task(number).stage = Stage::Asks(Ask::RechecksLater);
        let value = attempt.map(|answer| answer.value);
        match value {
            Ok(Acquired::Granted(granted)) if granted.token == self.record(hold).token() => {
                self.on_cache_answer(hold, &copy, granted.is_waited_for, None);
                let share_until = (!granted.is_waited_for).then_some(sent);
                let grant = self.grant(sent, granted.remaining, HOLD_LEASE);
                let (is_held, _) = self.event_of(hold, |record, event| record.on_rechecked(grant, share_until, event));
                if is_held && !granted.is_waited_for {
                    return self.join(number, hold, share_id);
                }
                self.remove_share(hold, share_id);
                self.task(number).stage = Stage::Asks(Ask::Again);
            }
            Ok(Acquired::Late) | Err(_) => self.remove_share(hold, share_id),
            Ok(_) => {
                let was_live = self.event_of(hold, |record, event| record.lose(LossReason::Gone, event));
                if was_live {
                    self.look_soon(hold);
                }
                self.remove_share(hold, share_id);
                self.task(number).stage = Stage::Asks(Ask::Again);
            }
        }
    }

    pub fn send_releases(&mut self) {
        let now = self.now();
        for at in 0..self.process.departing.len() {
            let departing = &mut self.process.departing[at];
            if departing.due.is_some_and(|due| due <= now) {
                departing.due = None;
                let slot = departing.slot;
                self.send(slot, Asked::Leave, Purpose::Leave { slot });
            }
        }
        if self.has(Blunder::ConfirmsAtOnce) {
            let departing = std::mem::take(&mut self.process.departing);
            departing.into_iter().filter_map(|departing| departing.hold).for_each(|hold| self.on_end(hold));
        }
    }

    /// Forgets the tasks whose acquisitions are over. A table removes a cell without holds and waiters, so a later task
    /// then begins with a new state.
    fn forget_tasks(&mut self) {
        while let Some(at) = self.process.tasks.iter().position(|task| task.stage == Stage::Over) {
            self.process.tasks.remove(at);
            self.process.copies.iter_mut().for_each(|copy| copy.purpose.forget_task(at));
        }
        self.process.departing.sort_by_key(|departing| departing.slot);
        if self.process.tasks.is_empty() && self.process.holds.is_empty() && self.process.state.is_idle() {
            self.process.state = State::default();
            self.process.reception.last_recall = None;
        }
    }

    /// Drops the handles that neither the state nor a task has.
    pub fn forget_holds(&mut self) {
        let listed: Vec<_> = self.process.state.handles().map(|hold| hold.number()).collect();
        let holds = std::mem::take(&mut self.process.holds);
        for (hold, slot) in holds {
            let flies = self
                .process
                .copies
                .iter()
                .any(|copy| matches!(copy.purpose, Purpose::Renew { hold: of, .. } if of == hold));
            let has_guards = self.record(hold).guards() > 0;
            let is_awaited = self.process.departing.iter().any(|departing| departing.hold == Some(hold));
            if listed.contains(&hold) || has_guards || flies || is_awaited {
                self.process.holds.push((hold, slot));
            } else {
                drop(self.process.state.forget(hold));
                self.forget_places(hold);
            }
        }
    }
}
