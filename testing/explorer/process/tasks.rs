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
        for mode in [Mode::Read, Mode::Write] {
            goes_on |= self.poll_requester(mode);
        }
        for number in self.numbers() {
            // In a process with threads, that is a step of its own.
            let is_polled_later = self.has_threads() && matches!(self.task(number).stage, Stage::Waits(_));
            goes_on |= !is_polled_later && !self.task(number).is_asleep && self.poll(number);
        }
        goes_on
    }

    /// Polls the future of a task. Returns true if it has done something.
    pub fn poll(&mut self, number: u8) -> bool {
        let ExploredTask { waiter_id, mode, stage, .. } = self.task(number).clone();
        match stage {
            Stage::Waits(was_woken) => {
                let Some(reason) = self.process.state.take_signal(mode, waiter_id) else {
                    self.task(number).stage = Stage::Waits(false);
                    return false;
                };
                if !was_woken && !matches!(reason, WakeReason::PlaceLost) {
                    self.out.broken = Some(Broken::NotWoken);
                }
                match reason {
                    WakeReason::Requests(requester_id) => self.add_requester(mode, requester_id, waiter_id),
                    WakeReason::Handed(handed) => self.take_handed(number, &handed),
                    WakeReason::Denied => {
                        self.task(number).stage = Stage::Over;
                        self.leave(mode, waiter_id);
                    }
                    WakeReason::PlaceLost => self.wait_again(number, None),
                    WakeReason::Failed(_) => unreachable!("no attempt fails for good"),
                }
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
            Stage::Holds { .. } | Stage::Over => false,
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
