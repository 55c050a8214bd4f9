//! Reaction of a process to answers and notifications of the server.

use super::*;

/// Answers and notifications.
impl Driver<'_> {
    pub(super) fn on_answer(&mut self, number: u8, reply: Option<HeardReply>) {
        let Some(at) = self.process.copies.iter().position(|copy| copy.number == number) else { return };
        let copy = self.process.copies.remove(at);
        self.out.closed.push(number);
        match copy.purpose {
            Purpose::Acquire { task, slot } => self.on_acquire_answer(task, slot, copy.sent, reply),
            Purpose::Recheck { task, slot } => self.on_recheck_answer(task, slot, copy.sent, reply),
            Purpose::Renew { hold, lease, .. } => self.on_renew_answer(hold, lease, copy.sent, reply),
            Purpose::Leave { slot } => self.on_leave_answer(slot, copy.sent, reply),
        }
    }

    pub(super) fn answered<T>(&self, sent: Moment, value: T) -> Answered<T> {
        Answered { sent, server: ServerTime::default(), node: NodeId::default(), value }
    }

    pub(super) fn unknown(&self, sent: Moment) -> Failure {
        Failure::Unknown { arrives_until: sent.after(self.rules.max_delay), source: None }
    }

    pub(super) fn token(&self, first: i8) -> FencingToken {
        FencingToken::from_wire((self.process.top + i64::from(first)).cast_unsigned()).expect("small")
    }

    pub(super) fn granted(&self, HeardGrant { remaining, first, tokens, is_waited_for }: HeardGrant) -> Granted {
        let remaining = ticks(remaining.into());
        Granted { token: self.token(first), tokens: tokens.into(), remaining, is_waited_for }
    }

    /// The answer to an acquisition as the store gives it.
    pub(super) fn attempt(&self, sent: Moment, reply: Option<HeardReply>) -> Attempt<Acquired> {
        let retry_in = TICK;
        let value = match reply {
            Some(HeardReply::Granted(grant)) => Acquired::Granted(self.granted(grant)),
            Some(HeardReply::Queued) => Acquired::Queued { retry_in, is_cached: false, holder: None },
            Some(HeardReply::Contended) => Acquired::Contended { retry_in, holder: None },
            Some(HeardReply::Late) => Acquired::Late,
            Some(_) => unreachable!("no answer to an acquisition"),
            None => return Err(self.unknown(sent)),
        };
        Ok(self.answered(sent, value))
    }

    pub(super) fn on_acquire_answer(&mut self, number: u8, slot: Slot, sent: Moment, reply: Option<HeardReply>) {
        let now = self.now();
        let ExploredTask { waiter_id, mode, waits, .. } = *self.task(number);
        let attempt = self.attempt(sent, reply);
        if let Ok(Answered { value: Acquired::Granted(granted), .. }) = &attempt {
            let counts = if self.process.blunder == Some(Blunder::CountsFromAnswer) { now } else { sent };
            let grant =
                Grant { sent: counts, remaining: granted.remaining, asked: WANTS.lease, server: ServerTime::default() };
            // There is no join window: each reader that comes later asks the server.
            let share_until = (!granted.is_waited_for).then_some(sent);
            return self.on_grant(number, slot, *granted, grant, share_until, false);
        }
        self.task(number).stage = Stage::Asks(Ask::Pauses { is_queued: false });
        let is_mine = self.process.state.end_attempt(mode, waiter_id, now.after(GRACE)).map(|pending| {
            pending.note_attempt(&attempt);
            if self.process.blunder == Some(Blunder::ForgetsAbandoned) {
                pending.copies = InDoubt::default();
            }
        });
        if is_mine.is_none() {
            self.task(number).stage = Stage::Waits(true);
            return;
        }
        let outage = attempt.is_err().then_some(SideOutage { since: sent, source: None });
        self.event(|state, _, effects| state.on_outage(mode, waiter_id, outage, effects));
        let Ok(answer) = attempt else { return };
        match NextStep::after(&answer.value, waits, || unreachable!("nothing is recalled")) {
            NextStep::EndRefused => {
                self.task(number).stage = Stage::Over;
                self.leave(number, mode, waiter_id);
            }
            NextStep::AwaitTurn { .. } => self.task(number).stage = Stage::Asks(Ask::Pauses { is_queued: true }),
            NextStep::Take(_) | NextStep::Pause { .. } | NextStep::AskSoon => {}
        }
    }

    pub(super) fn on_grant(
        &mut self,
        number: u8,
        slot: Slot,
        granted: Granted,
        grant: Grant,
        share_until: Option<Moment>,
        is_claim: bool,
    ) {
        let now = self.now();
        let ExploredTask { waiter_id, mode, .. } = *self.task(number);
        let new_hold = NewHold {
            granting: GrantIdentity { id: id_of(slot), mode, token: granted.token, tokens: granted.tokens },
            grant,
            share: WANTS.from(if is_claim { now } else { grant.sent }),
            in_doubt_requests: InDoubt::default(),
            share_until,
            is_claim,
            cache: None,
            jitter: Jitter::of(0),
        };
        let has_enough = new_hold.has_enough(now, Duration::ZERO);
        let make = |number, _| Arc::new(ExploredHold(number));
        let (outcome, _) =
            self.event(|state, inputs, effects| state.on_grant(make, waiter_id, new_hold, now, inputs, effects));
        match outcome {
            GrantOutcome::Hold(hold, share_id) => {
                let hold = hold.number();
                if self.process.holds.iter().any(|(_, of)| *of == slot) {
                    self.out.broken = Some(Broken::TwoHolds);
                }
                self.process.holds.push((hold, slot));
                self.close(|copy| matches!(copy.purpose, Purpose::Acquire { task, .. } if task == number));
                match has_enough {
                    true => self.seat(number, hold, share_id, share_id.token),
                    false => self.accept(number, hold, share_id, now),
                }
            }
            GrantOutcome::Over => {
                let pending = self.process.state.give_up_pending(mode, waiter_id);
                pending.iter().for_each(|pending| self.take_back(pending));
                self.task(number).stage = Stage::Asks(Ask::Pauses { is_queued: false });
            }
            GrantOutcome::NotMine => self.task(number).stage = Stage::Waits(true),
        }
    }

    pub(super) fn seat(&mut self, number: u8, hold: u64, share_id: ShareId, token: FencingToken) {
        let ExploredTask { waiter_id, mode, waits, .. } = *self.task(number);
        let is_before = |task: &ExploredTask| {
            matches!(task.stage, Stage::Waits(_)) && task.mode == mode && task.waiter_id < waiter_id
        };
        if waits && mode == Mode::Write && self.process.tasks.iter().any(is_before) {
            self.out.broken = Some(Broken::Overtaken);
        }
        self.task(number).stage = Stage::Holds { hold, share_id };
        let relative = i64::try_from(token.as_u64()).expect("small") - self.process.top;
        self.out.entered.push((mode, i8::try_from(relative).unwrap_or(i8::MIN)));
    }

    pub(super) fn accept(&mut self, number: u8, hold: u64, share_id: ShareId, since: Moment) {
        let (now, rules, waiter_id) = (self.now(), self.rules, self.task(number).waiter_id);
        let share = (share_id, WANTS.from(now));
        let accepted = self.event(|state, _, effects| {
            state.change(hold, effects, |record, effects| {
                record.accept(waiter_id, share, since, now, rules, &mut effects.signals)
            })
        });
        match accepted {
            Accepted::Taken(token) => self.seat(number, hold, share_id, token),
            Accepted::Short { .. } => {
                self.task(number).stage = Stage::Accepts { hold, share_id, since };
                self.look_at(hold);
            }
            Accepted::Over => {
                self.remove_share(hold, share_id);
                let ExploredTask { mode, waits, .. } = *self.task(number);
                if !waits {
                    self.task(number).stage = Stage::Over;
                    return;
                }
                let entered = self.event(|state, inputs, effects| {
                    state.enter(mode, Some(waiter_id), (WANTS, GRACE), now, inputs, effects)
                });
                self.task(number).stage = if entered.1 { Stage::Waits(true) } else { Stage::Asks(Ask::First) };
            }
        }
    }

    pub(super) fn on_renew_answer(&mut self, hold: u64, lease: Duration, sent: Moment, reply: Option<HeardReply>) {
        let (now, rules) = (self.now(), self.rules);
        self.event(|state, _, effects| {
            state.change(hold, effects, |record, effects| match reply {
                Some(HeardReply::Renewed { remaining }) => {
                    let remaining = ticks(remaining.into());
                    let grant = Grant { sent, remaining, asked: lease, server: ServerTime::default() };
                    record.on_renewed(grant, now, rules, &mut effects.signals);
                }
                None => record.on_no_answer(now, &mut effects.signals),
                Some(_) => record.on_unknown(LossReason::Gone, now, &mut effects.signals),
            });
        });
        let next = self.process.state.record(hold).due();
        if matches!(next, Next::Lost(_)) {
            self.look_at(hold);
        }
    }

    pub(super) fn on_leave_answer(&mut self, slot: Slot, sent: Moment, reply: Option<HeardReply>) {
        let (now, retry) = (self.now(), self.now().after(TICK));
        let Some(at) = self.process.departing.iter().position(|departing| departing.slot == slot) else { return };
        let departing = &mut self.process.departing[at];
        // Others wait no longer than for the first answer, or for its absence.
        let hold = departing.hold.take();
        match (reply, departing.arrives_until) {
            (Some(_), Some(until)) if until > sent => departing.due = Some(until.max(now)),
            (Some(_), _) => {
                self.process.departing.remove(at);
            }
            (None, _) => departing.due = Some(retry),
        }
        hold.into_iter().for_each(|hold| self.on_end(hold));
    }

    pub(super) fn on_notice(&mut self, slot: Slot, grant: Option<HeardGrant>) {
        let id = id_of(slot);
        let now = self.now();
        for number in 0..u8::try_from(self.process.tasks.len()).expect("few") {
            let ExploredTask { waiter_id, mode, ref stage, .. } = *self.task(number);
            if *stage != Stage::Asks(Ask::Pauses { is_queued: true }) {
                continue;
            }
            let pending = self.process.state.pending(mode, waiter_id);
            let is_own = pending.is_some_and(|pending| pending.as_ref().is_some_and(|pending| pending.id == id));
            match grant.filter(|grant| grant.remaining > 0) {
                _ if !is_own => {}
                None => self.task(number).stage = Stage::Asks(Ask::Again),
                Some(heard) => {
                    let granted = self.granted(heard);
                    let grant = Grant {
                        sent: now,
                        remaining: granted.remaining,
                        asked: ticks(MAX_DELAY),
                        server: ServerTime::default(),
                    };
                    let share_until = (!granted.is_waited_for).then_some(now);
                    self.on_grant(number, slot, granted, grant, share_until, true);
                }
            }
        }
    }
}
