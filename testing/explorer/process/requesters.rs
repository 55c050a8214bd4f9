//! Requesters of the sides. The driver does what `src/engine/acquire/request.rs` does with the decisions of the state.

use super::*;

impl Process {
    /// Returns the sides whose requesters may ask again before the next tick.
    pub fn pausing_sides(&self) -> impl Iterator<Item = Mode> {
        let pauses = |ask: &Ask| matches!(ask, Ask::Pauses { is_queued: false } | Ask::RechecksLater);
        let pauses = move |requester: &&ExploredRequester| self.polls(requester) && pauses(&requester.ask);
        self.requesters.iter().filter(pauses).map(|requester| requester.mode)
    }

    /// Returns true if the future of the requester is polled.
    fn polls(&self, requester: &ExploredRequester) -> bool {
        let mut tasks = self.tasks.iter();
        tasks.any(|task| task.waiter_id == requester.carrier && !task.is_asleep)
    }

    /// Returns the first waiters of the sides in the queue of the server that no answer is on its way to, with their slots.
    pub fn queued(&self) -> Vec<(WaiterId, Slot)> {
        let mut state = self.state.clone();
        let is_queued = |requester: &ExploredRequester| requester.ask == (Ask::Pauses { is_queued: true });
        let queued = |requester: &&ExploredRequester| self.polls(requester) && is_queued(requester);
        let slot = |requester: &ExploredRequester| {
            let first = state.side(requester.mode).first_waiter()?.0;
            let slot = slot_of(&state.side(requester.mode).pending.as_ref()?.id);
            Some((first, slot))
        };
        self.requesters.iter().filter(queued).filter_map(slot).collect()
    }

    /// Returns the slots of the acquisitions in the queue of the server, with their sides.
    pub fn queued_sides(&self) -> Vec<(Slot, Mode)> {
        let mut state = self.state.clone();
        let queued = |requester: &&ExploredRequester| requester.ask == (Ask::Pauses { is_queued: true });
        let slot = |requester: &ExploredRequester| {
            let pending = state.side(requester.mode).pending.as_ref()?;
            Some((slot_of(&pending.id), requester.mode))
        };
        self.requesters.iter().filter(queued).filter_map(slot).collect()
    }

    /// Returns true if this waiter still waits.
    pub fn still_waits(&self, waiter_id: WaiterId) -> bool {
        self.tasks.iter().any(|task| task.waiter_id == waiter_id && matches!(task.stage, Stage::Waits(_)))
    }
}

impl Driver<'_> {
    fn requester(&mut self, mode: Mode) -> Option<&mut ExploredRequester> {
        self.process.requesters.iter_mut().find(|requester| requester.mode == mode)
    }

    pub fn add_requester(&mut self, mode: Mode, requester_id: WaiterId, carrier: WaiterId) {
        let ask = Ask::First;
        let requester = ExploredRequester { requester_id, mode, carrier, recalls_until: None, was_woken: false, ask };
        self.process.requesters.push(requester);
        self.process.requesters.sort_by_key(|requester| requester.mode == Mode::Write);
    }

    /// Drops the requesters that the state has ended.
    pub fn forget_requesters(&mut self) {
        let state = &mut self.process.state;
        let is_over = |requester: &mut ExploredRequester| !state.is_requester(requester.mode, requester.requester_id);
        let over: Vec<_> = self.process.requesters.extract_if(.., is_over).collect();
        over.into_iter().for_each(|requester| self.drop_copies(&requester));
    }

    /// Drops the future of a requester.
    fn drop_copies(&mut self, requester: &ExploredRequester) {
        let mode = requester.mode;
        self.close(|copy| match copy.purpose {
            Purpose::Acquire { mode: of, .. } => of == mode,
            Purpose::Recheck { .. } => mode == Mode::Read,
            _ => false,
        });
        if let Ask::Rechecks { hold, share_id } = requester.ask {
            let until = self.now().after(self.rules.max_delay);
            let until = if self.has(Blunder::ForgetsAbandoned) { Moment::from_nanos(0) } else { until };
            self.record(hold).copies_mut().abandon(until);
            self.remove_share(hold, share_id);
        }
    }

    /// Returns true if an answer is for a requester whose future is not polled.
    pub fn is_for_sleeper(&self, purpose: Purpose) -> bool {
        let mode = match purpose {
            Purpose::Acquire { mode, .. } => mode,
            Purpose::Recheck { .. } => Mode::Read,
            Purpose::Convert { .. } | Purpose::Renew { .. } | Purpose::Leave { .. } => return false,
        };
        let mut requesters = self.process.requesters.iter();
        requesters.any(|requester| requester.mode == mode && !self.process.polls(requester))
    }

    /// Returns true if the requester of this side has recalled a hold.
    pub fn has_recalled(&self, mode: Mode) -> bool {
        let mut requesters = self.process.requesters.iter();
        requesters.any(|requester| requester.mode == mode && requester.recalls_until.is_some())
    }

    /// Polls the requester of a side. Returns true if it has done something.
    pub fn poll_requester(&mut self, mode: Mode) -> bool {
        let Some(requester) = self.requester(mode).map(|requester| requester.clone()) else { return false };
        if !self.process.polls(&requester) {
            return false;
        }
        let poll_deadline = self.now().after(self.rules.poll_within);
        let signal = self.process.state.requester_signal(mode, requester.requester_id, poll_deadline);
        let rests = matches!(requester.ask, Ask::Pauses { .. } | Ask::RechecksLater);
        let is_new = matches!(requester.ask, Ask::First | Ask::Again);
        match signal {
            Some(_) if !is_new && !requester.was_woken && (rests || signal == Some(RequesterSignal::Stop)) => {
                self.out.broken = Some(Broken::NotWoken);
            }
            _ => {}
        }
        match signal {
            Some(RequesterSignal::Stop) => {
                self.end_requester(&requester);
                return true;
            }
            Some(RequesterSignal::AskAtOnce) if rests => self.set_ask(mode, after_pause(requester.ask.clone())),
            Some(RequesterSignal::AskAtOnce) | None => {}
        }
        let Some(requester) = self.requester(mode) else { return false };
        requester.was_woken &= signal.is_some();
        match requester.ask {
            Ask::First => {
                self.release_cached(mode);
                if mode == Mode::Write || !self.recheck() {
                    self.ask(mode);
                }
                true
            }
            Ask::Again => {
                self.ask(mode);
                true
            }
            _ => false,
        }
    }

    fn set_ask(&mut self, mode: Mode, ask: Ask) {
        if let Some(requester) = self.requester(mode) {
            requester.ask = ask;
        }
    }

    /// Drops a requester that no waiter needs.
    fn end_requester(&mut self, requester: &ExploredRequester) {
        let ExploredRequester { mode, requester_id, .. } = *requester;
        let pending = self.event(|state, event| state.end_requester(mode, requester_id, event));
        pending.iter().for_each(|pending| self.take_back(pending));
        self.forget_requesters();
    }

    /// Asks the server.
    fn ask(&mut self, mode: Mode) {
        let slot = self.new_slot();
        let Some(requester_id) = self.requester(mode).map(|requester| requester.requester_id) else { return };
        if self.has(Blunder::AsksAnew) {
            self.process.state.give_up_pending(mode, requester_id);
        }
        let begin = || Pending::new(id_of(slot));
        let begun = self.process.state.begin_attempt(mode, requester_id, begin).map(|(pending, terms)| {
            pending.copies.ask_for(HOLD_LEASE);
            (slot_of(&pending.id), terms.waits)
        });
        let Some((slot, waits)) = begun else { return };
        self.set_ask(mode, Ask::Flying);
        self.send(slot, Asked::Acquire { mode, waits }, Purpose::Acquire { mode, waits, slot });
    }

    pub fn on_acquire_answer(&mut self, mode: Mode, slot: Slot, copy: FlyingCopy, reply: Option<HeardReply>) {
        let sent = copy.sent;
        let Some(requester_id) = self.requester(mode).map(|requester| requester.requester_id) else { return };
        let attempt = self.attempt(sent, reply);
        if let Ok(Answered { value: Acquired::Granted(granted), .. }) = &attempt {
            let cache = self.cache_answer(&copy, granted.is_waited_for);
            let new_hold = self.new_hold((slot, mode), granted, (sent, HOLD_LEASE), Some(cache));
            return self.on_grant(mode, slot, new_hold);
        }
        self.set_ask(mode, Ask::Pauses { is_queued: false });
        let blunder = self.process.blunder;
        if let Some(pending) = self.process.state.end_attempt(mode, requester_id) {
            pending.note_attempt(&attempt);
            if blunder == Some(Blunder::ForgetsAbandoned) {
                pending.copies = InDoubt::default();
            }
            if reply == Some(HeardReply::Late) && blunder == Some(Blunder::LateForgetsRecord) {
                pending.is_recorded = false;
            }
        }
        let outage = attempt.is_err().then_some(SideOutage::new(sent, None));
        self.event(|state, event| state.on_outage(mode, requester_id, outage, event));
        let Ok(answer) = attempt else { return };
        if self.ends_tries(mode, &answer.value) {
            self.deny_tries(mode);
        }
        if let NextStep::AwaitTurn { .. } = NextStep::after(&answer.value) {
            self.set_ask(mode, Ask::Pauses { is_queued: true });
        }
    }

    /// Returns true if a refusal ends the tries: no recalled holder may still reply.
    fn ends_tries(&mut self, mode: Mode, refusal: &Acquired) -> bool {
        let (now, then) = (self.now(), self.now().after(TICK));
        match refusal {
            Acquired::Queued { is_cached: true, .. } | Acquired::Cached { .. } => {
                self.requester(mode).is_some_and(|requester| *requester.recalls_until.get_or_insert(then) <= now)
            }
            Acquired::Queued { .. } | Acquired::Contended { .. } => true,
            Acquired::Granted(_) | Acquired::Late => false,
        }
    }

    fn deny_tries(&mut self, mode: Mode) {
        if let Some(requester_id) = self.requester(mode).map(|requester| requester.requester_id) {
            self.event(|state, event| state.side(mode).end_waiters(requester_id, &NoGrant::Denied, event));
        }
    }

    /// A guard is inside, so the tries end.
    pub fn on_in_use(&mut self, slot: Slot) {
        for mode in [Mode::Read, Mode::Write] {
            if self.awaits_as(mode, slot) {
                self.deny_tries(mode);
            }
        }
    }

    /// Returns true if the requester of this side waits for notifications under this slot.
    fn awaits_as(&mut self, mode: Mode, slot: Slot) -> bool {
        let Some(requester) = self.requester(mode).map(|requester| requester.clone()) else { return false };
        let awaits = requester.ask == (Ask::Pauses { is_queued: true }) && self.process.polls(&requester);
        awaits && self.process.state.pending_id(mode) == Some(&id_of(slot))
    }

    pub fn on_notice(&mut self, slot: Slot, grant: Option<HeardGrant>) {
        let now = self.now();
        let takes_old = self.has(Blunder::TakesGrantsThatAreOver);
        let grant = grant.map(|grant| match grant.remaining {
            0 if takes_old => HeardGrant { remaining: 2, ..grant },
            _ => grant,
        });
        for mode in [Mode::Read, Mode::Write] {
            if !self.awaits_as(mode, slot) {
                continue;
            }
            match grant.filter(|grant| grant.remaining > 0) {
                None => self.set_ask(mode, Ask::Again),
                Some(heard) => {
                    // The answer to the claim says whether the hold may be cached.
                    let granted = self.granted(heard);
                    let new_hold = self.new_hold((slot, mode), &granted, (now, ticks(MAX_DELAY)), None);
                    self.on_grant(mode, slot, new_hold);
                }
            }
        }
    }

    fn on_grant(&mut self, mode: Mode, slot: Slot, new_hold: NewHold) {
        let Some(requester) = self.requester(mode).map(|requester| requester.clone()) else { return };
        let ExploredRequester { requester_id, carrier, .. } = requester;
        let make = |number, _| Arc::new(ExploredHold(number));
        let (outcome, _) = self.event(|state, event| state.on_grant(make, requester_id, new_hold, event));
        match outcome {
            GrantOutcome::Hold(hold, share_id) => {
                let hold = hold.number();
                self.note_new_hold(hold, slot);
                if let Some(share_id) = share_id {
                    let task = self.numbers().find(|task| self.task(*task).waiter_id == carrier);
                    self.seat(task.expect("it has asked"), hold, share_id, share_id.token);
                }
            }
            GrantOutcome::Over => {
                let pending = self.process.state.give_up_pending(mode, requester_id);
                pending.iter().for_each(|pending| self.take_back(pending));
                self.set_ask(mode, Ask::Pauses { is_queued: false });
            }
            GrantOutcome::NotMine => self.end_requester(&requester),
        }
    }

    /// Lets the first waiting reader join a read hold of this process, by asking the server whether a writer waits.
    fn recheck(&mut self) -> bool {
        let (now, mode) = (self.now(), Mode::Read);
        let Some(requester_id) = self.requester(mode).map(|requester| requester.requester_id) else { return true };
        let Some(wants) = self.process.state.wants_of(mode, requester_id) else { return true };
        if let Some(handed) = self.process.state.join_unclaimed(wants, &self.process.reception, now) {
            self.hand(handed);
            return true;
        }
        let Some(hold) = self.process.state.to_recheck() else { return false };
        let hold = hold.number();
        self.process.state.note_asks(mode, requester_id);
        let begun = self.event_of(hold, |record, event| record.begin_recheck(wants.from(now), event));
        let Some((share_id, _)) = begun else { return false };
        let slot = self.process.slot_of_hold(hold);
        self.set_ask(mode, Ask::Rechecks { hold, share_id });
        self.send(slot, Asked::Recheck, Purpose::Recheck { slot });
        true
    }

    /// Gives the first waiting reader a share of an older hold.
    fn hand(&mut self, handed: HandedShare<ExploredHold>) {
        let Some(requester_id) = self.requester(Mode::Read).map(|requester| requester.requester_id) else { return };
        self.set_ask(Mode::Read, Ask::Again);
        match self.event(|state, event| state.on_joined(Mode::Read, requester_id, handed, event)) {
            Ok(pending) => pending.iter().for_each(|pending| self.take_back(pending)),
            Err(handed) => self.remove_share(handed.hold.number(), handed.share_id),
        }
    }

    pub fn on_recheck_answer(&mut self, copy: FlyingCopy, reply: Option<HeardReply>) {
        let sent = copy.sent;
        let Some(ExploredRequester { ask: Ask::Rechecks { hold, share_id }, .. }) = self.requester(Mode::Read) else {
            return;
        };
        let (hold, share_id) = (*hold, *share_id);
        let attempt = self.attempt(sent, reply);
        self.record(hold).copies_mut().resolve(&attempt);
        self.set_ask(Mode::Read, Ask::RechecksLater);
        match attempt.map(|answer| answer.value) {
            Ok(Acquired::Granted(granted)) if granted.token == self.record(hold).token() => {
                self.on_cache_answer(hold, &copy, granted.is_waited_for, None);
                let share_until = (!granted.is_waited_for).then_some(sent);
                let grant = self.grant(sent, granted.remaining, HOLD_LEASE);
                let (is_held, _) = self.event_of(hold, |record, event| record.on_rechecked(grant, share_until, event));
                if is_held && !granted.is_waited_for {
                    let hold = self.handle(hold);
                    return self.hand(HandedShare { hold, share_id, grant: None });
                }
                self.remove_share(hold, share_id);
                self.set_ask(Mode::Read, Ask::Again);
            }
            Ok(Acquired::Late) | Err(_) => self.remove_share(hold, share_id),
            Ok(_) => {
                let was_live = self.event_of(hold, |record, event| record.lose(LossReason::Gone, event));
                if was_live {
                    self.look_soon(hold);
                }
                self.remove_share(hold, share_id);
                self.set_ask(Mode::Read, Ask::Again);
            }
        }
    }

    fn handle(&self, number: u64) -> Arc<ExploredHold> {
        self.process.state.handles().find(|hold| hold.number() == number).unwrap_or(Arc::new(ExploredHold(number)))
    }

    /// The pause of a requester is over.
    pub fn ask_again(&mut self, mode: Mode) {
        if let Some(requester) = self.requester(mode) {
            requester.ask = after_pause(requester.ask.clone());
        }
    }

    /// Does what the timers of the requesters do at a tick.
    pub fn requesters_ask_again(&mut self) {
        let sends_no_heartbeat = self.has(Blunder::NeverAsksAgain);
        for mode in [Mode::Read, Mode::Write] {
            let Some(requester) = self.requester(mode).map(|requester| requester.clone()) else { continue };
            let rests_on = sends_no_heartbeat && requester.ask == (Ask::Pauses { is_queued: true });
            if self.process.polls(&requester) && !rests_on {
                self.set_ask(mode, after_pause(requester.ask));
            }
        }
    }
}

fn after_pause(ask: Ask) -> Ask {
    match ask {
        Ask::Pauses { .. } => Ask::Again,
        Ask::RechecksLater => Ask::First,
        ask => ask,
    }
}
