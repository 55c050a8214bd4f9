//! Reaction of a process to answers and notifications of the server.

use super::*;

/// Answers and notifications.
impl Driver<'_> {
    /// Applies the answer to a copy. `is_unreachable`: there is none, and the conversion ends with that.
    pub fn on_answer(&mut self, number: u8, reply: Option<HeardReply>, is_unreachable: bool) {
        let Some(at) = self.process.copies.iter().position(|copy| copy.number == number) else { return };
        // A task that is not polled reads no answer. When it is polled again, the answer is too late for it.
        if self.is_for_sleeper(self.process.copies[at].purpose) {
            return;
        }
        let copy = self.process.copies.remove(at);
        self.out.closed.push(number);
        match copy.purpose {
            Purpose::Acquire { mode, slot, .. } => self.on_acquire_answer(mode, slot, copy, reply),
            Purpose::Recheck { .. } => self.on_recheck_answer(copy, reply),
            Purpose::Convert { task, .. } => self.on_convert_answer(task, copy, reply, is_unreachable),
            Purpose::Renew { hold, lease, .. } => self.on_renew_answer(hold, lease, copy, reply),
            Purpose::Leave { slot } => self.on_leave_answer(slot, copy.sent, reply),
        }
    }

    pub fn answered<T>(&self, sent: Moment, value: T) -> Answered<T> {
        Answered { sent, server: ServerTime::default(), node: NodeId::default(), value }
    }

    pub fn unknown(&self, sent: Moment) -> Failure {
        Failure::Unknown { arrives_until: sent.after(self.rules.max_delay), source: None }
    }

    pub fn token(&self, first: i8) -> FencingToken {
        FencingToken::from_wire((self.process.top + i64::from(first)).cast_unsigned()).expect("small")
    }

    pub fn granted(&self, HeardGrant { remaining, first, tokens, is_waited_for }: HeardGrant) -> Granted {
        let remaining = ticks(remaining.into());
        Granted { token: self.token(first), tokens: tokens.into(), remaining, is_waited_for }
    }

    /// Returns the time that an answer to a request from `sent` grants.
    pub fn grant(&self, sent: Moment, remaining: Duration, asked: Duration) -> Grant {
        let counts = if self.has(Blunder::CountsFromAnswer) { self.now() } else { sent };
        let outlives = matches!(self.process.blunder, Some(Blunder::OutlivesItsLease | Blunder::EntersWhatIsOver));
        let longer = if outlives { ticks(20) } else { Duration::ZERO };
        Grant { sent: counts, remaining: remaining + longer, asked: asked + longer, server: ServerTime::default() }
    }

    /// The answer to an acquisition as the store gives it.
    pub fn attempt(&self, sent: Moment, reply: Option<HeardReply>) -> Attempt<Acquired> {
        let retry_in = TICK;
        let value = match reply {
            Some(HeardReply::Granted(grant)) => Acquired::Granted(self.granted(grant)),
            Some(HeardReply::Queued { is_cached }) => Acquired::Queued { retry_in, is_cached, holder: None },
            Some(HeardReply::Contended) => Acquired::Contended { retry_in, holder: None },
            Some(HeardReply::Late) => Acquired::Late,
            Some(_) => unreachable!("no answer to an acquisition"),
            None => return Err(self.unknown(sent)),
        };
        Ok(self.answered(sent, value))
    }

    /// Returns the hold that a grant at `sent` gives. `answer` is absent for a grant by a notification.
    pub fn new_hold(
        &self,
        (slot, mode): (Slot, Mode),
        granted: &Granted,
        (sent, asked): (Moment, Duration),
        answer: Option<CacheAnswer>,
    ) -> NewHold {
        NewHold {
            granting: GrantIdentity { id: id_of(slot), mode, token: granted.token, tokens: granted.tokens },
            grant: self.grant(sent, granted.remaining, asked),
            share: self.wants().from(sent),
            in_doubt_requests: InDoubt::default(),
            // There is no join window: each reader that comes later asks the server.
            share_until: (!granted.is_waited_for).then_some(sent),
            is_claim: answer.is_none(),
            cache: self.cache_state(answer),
            jitter: Jitter::of(0),
        }
    }

    pub fn note_new_hold(&mut self, hold: u64, slot: Slot) {
        if self.process.holds.iter().any(|(_, of)| *of == slot) {
            self.out.broken = Some(Broken::TwoHolds);
        }
        self.process.holds.push((hold, slot));
    }

    pub fn seat(&mut self, number: u8, hold: u64, share_id: ShareId, token: FencingToken) {
        let ExploredTask { waiter_id, mode, waits, .. } = *self.task(number);
        // A task that is not polled in time may be overtaken.
        let is_late = |task: &ExploredTask| self.has_threads() && (task.was_late || task.stage == Stage::Waits(true));
        let is_before = |task: &ExploredTask| {
            let waits = matches!(task.stage, Stage::Waits(_)) && !task.is_asleep && !is_late(task);
            waits && task.mode == mode && task.waiter_id < waiter_id
        };
        if waits && mode == Mode::Write && self.process.tasks.iter().any(is_before) {
            self.out.broken = Some(Broken::Overtaken);
        }
        self.enter_hold(number, mode, (hold, share_id), token);
    }

    /// Hands a guard of this hold to its task.
    pub fn enter_hold(&mut self, number: u8, mode: Mode, (hold, share_id): (u64, ShareId), token: FencingToken) {
        self.task(number).stage = Stage::Holds { hold, share_id };
        let relative = i64::try_from(token.as_u64()).expect("small") - self.process.top;
        let slot = self.process.slot_of_hold(hold);
        self.out.entered.push((mode, i8::try_from(relative).unwrap_or(i8::MIN), slot));
    }

    /// Takes a share that was handed to a task.
    pub fn take_handed(&mut self, number: u8, handed: &HandedShare<ExploredHold>) {
        let (now, hold, share_id) = (self.now(), handed.hold.number(), handed.share_id);
        let Some(grant) = handed.grant.as_ref().filter(|grant| now <= grant.enough_until) else {
            return self.accept(number, hold, share_id, now);
        };
        let share = (share_id, grant.share);
        match self.event_of(hold, |record, event| record.accept_granted(share, event)) {
            Accepted::Taken(token) => self.seat(number, hold, share_id, token),
            Accepted::Over | Accepted::Short { .. } => self.wait_after(number, hold, share_id),
        }
    }

    pub fn accept(&mut self, number: u8, hold: u64, share_id: ShareId, since: Moment) {
        let (now, waiter_id) = (self.now(), self.task(number).waiter_id);
        let share = (share_id, self.wants().from(now));
        let accepted = self.event_of(hold, |record, event| record.accept(waiter_id, share, since, event));
        match accepted {
            Accepted::Taken(token) => self.seat(number, hold, share_id, token),
            Accepted::Short { .. } => {
                self.task(number).stage = Stage::Accepts { hold, share_id, since };
                self.renew_from_here(hold);
                self.look_soon(hold);
            }
            Accepted::Over => self.wait_after(number, hold, share_id),
        }
    }

    /// Waits again after the end of a share.
    fn wait_after(&mut self, number: u8, hold: u64, share_id: ShareId) {
        self.remove_share(hold, share_id);
        let place = self.task(number).waiter_id;
        self.wait_again(number, Some(place));
    }

    /// Waits again, at its old place or behind the others. A try asks at once, unless a waiter of this process is before it.
    pub fn wait_again(&mut self, number: u8, place: Option<WaiterId>) {
        self.task(number).was_late = self.has_threads();
        let ExploredTask { mode, waits, .. } = *self.task(number);
        let wants = self.wants();
        let entered = self.event(|state, event| match waits {
            true => Some(state.enter(mode, place, wants, event)),
            false => state.try_enter(mode, wants, event),
        });
        self.note_entered(number, entered);
    }

    /// Does what a waiter does whose share has too little time, before it waits.
    fn renew_from_here(&mut self, hold: u64) {
        if let Some(lease) = self.event_of(hold, |record, event| record.begin_own_renewal(event)) {
            let slot = self.process.slot_of_hold(hold);
            self.send(slot, Asked::Renew, Purpose::Renew { hold, lease, slot });
        }
    }

    pub fn on_renew_answer(&mut self, hold: u64, lease: Duration, copy: FlyingCopy, reply: Option<HeardReply>) {
        let renewed = match reply {
            Some(HeardReply::Renewed { remaining, is_waited_for, tokens }) => {
                self.on_cache_answer(hold, &copy, is_waited_for, tokens);
                Some(self.grant(copy.sent, ticks(remaining.into()), lease))
            }
            _ => None,
        };
        let not_converted = self.event_of(hold, |record, event| match (reply, renewed) {
            (_, Some(grant)) => record.on_renewed(grant, event).not_converted,
            (None, None) => {
                record.on_no_answer(event);
                None
            }
            (Some(_), None) => {
                record.on_unknown(LossReason::Gone, event);
                None
            }
        });
        not_converted.iter().for_each(|open| self.depart_conversion(open));
        let next = self.record(hold).due();
        if matches!(next, Next::Lost(_)) {
            self.look_soon(hold);
        }
    }

    pub fn on_leave_answer(&mut self, slot: Slot, sent: Moment, reply: Option<HeardReply>) {
        let (now, retry) = (self.now(), self.now().after(TICK));
        let Some(at) = self.process.departing.iter().position(|departing| departing.slot == slot) else { return };
        let departing = &mut self.process.departing[at];
        // Others wait no longer than for the first answer, or for its absence.
        let hold = departing.hold.take();
        let counts = match (self.process.blunder, reply) {
            (Some(Blunder::ConfirmsWhenAnswered), _) => now,
            (Some(Blunder::ConfirmsWhatItFound), Some(HeardReply::Left { held: true })) => Moment::NEVER,
            _ => sent,
        };
        match (reply, departing.arrives_until) {
            (Some(_), Some(until)) if until > counts => departing.due = Some(until.max(now)),
            (Some(_), _) => {
                self.process.departing.remove(at);
            }
            (None, _) => departing.due = Some(retry),
        }
        hold.into_iter().for_each(|hold| self.on_end(hold));
    }
}
