//! State of a hold at some moment, by the events until then.

use super::*;

impl Facts<'_> {
    /// Returns how much of a span the future of an attempt, or the task with its guard, was not polled.
    pub fn asleep(&self, attempt: &AttemptFacts, from: Micros, to: Micros) -> Micros {
        let process = self.process(attempt.process);
        let stopped = process.stopped.get(&attempt.runtime).map_or(0, |stops| within(stops, from, to));
        process.paused_within(from, to) + stopped
    }

    /// Returns how much of a span the task with this guard was not polled.
    pub fn asleep_with(&self, guard: &GuardFacts, from: Micros, to: Micros) -> Micros {
        self.asleep(&self.attempts[&guard.attempt], from, to)
    }

    /// Returns how many times the server had lost data by then.
    pub fn lineage(&self, now: Micros) -> u32 {
        let losses = self.losses.iter().filter(|at| **at <= now).count();
        u32::try_from(losses).expect("few")
    }

    /// Returns true if a hold may be gone though no user let go of it. A server granted it and lost its data since, or
    /// an operator ended it. In both cases the process has no answer of the present server yet.
    pub fn excused(&self, id: Id, now: Micros) -> bool {
        // A converted hold may have its other id already.
        let mut ids = std::iter::once(id).chain(self.conversions_of(id).filter_map(|conversion| id_of(conversion.op)));
        if self.quorum.is_some() {
            // A process learns of a force at one master only from that master.
            return ids.any(|id| self.forced_at(id, now).is_some());
        }
        let Some((_, primary)) = self.granted.get(&id) else {
            return false;
        };
        let lineage = self.lineage(now);
        // For a hold that is being converted, the answer "unknown" may be the conversion.
        let was_answered_before = |request: &RequestFacts| match &request.answered {
            Some((at, Reply::Lost { .. })) if *at < now => !self.is_being_converted(id, now),
            Some((at, _)) => *at < now,
            None => false,
        };
        let applied =
            || self.about(id).filter(|request| was_answered_before(request)).filter_map(|request| request.applied);
        // Answers of a replaced primary count for a process until it learns of the new one.
        let lost = self.losses.iter().rfind(|at| **at <= now).copied().unwrap_or_default();
        let mut all = self.about(id).filter(|request| request.is_answered(now)).filter_map(|request| request.applied);
        let misled = all.any(|(at, primary)| at > lost && primary < lineage);
        let untold = || *primary < lineage && !applied().any(|(_, primary)| primary == lineage);
        let of_loss = !self.replicated && (misled || untold());
        of_loss || ids.any(|id| self.is_forced(id, now))
    }

    /// Returns the last time at which a hold was ended by force. A copy of its acquisition may have begun it anew
    /// before.
    pub fn forced_at(&self, id: Id, now: Micros) -> Option<Micros> {
        self.forced.get(&id).into_iter().flatten().copied().filter(|at| *at <= now).max()
    }

    /// Returns true if an operator has ended a hold, and its process has had no answer about it since.
    fn is_forced(&self, id: Id, now: Micros) -> bool {
        let Some(forced) = self.forced_at(id, now) else {
            return false;
        };
        let answered = self.about(id).filter(|request| request.answered.as_ref().is_some_and(|(at, _)| *at < now));
        !answered.filter_map(|request| request.applied).any(|(at, _)| at > forced)
    }

    /// Returns true if the server has lost data since it granted a hold.
    pub fn loss_since(&self, id: Id, now: Micros) -> bool {
        self.granted.get(&id).is_some_and(|(_, primary)| *primary < self.lineage(now))
    }

    /// Returns until when one answer alone lets a hold be trusted. A server whose clock goes back reports more than any
    /// request asked for. Other holders are inside when the clock is right again, so no process relies on that.
    pub fn covered_until(&self, request: &RequestFacts, remaining_ms: u64) -> Micros {
        let most_ms = self.asked_ms(request);
        request.sent + self.process(request.process).usable(remaining_ms.min(most_ms) * MS)
    }

    /// Returns the longest lease that was requested under an id until the answer to a request came.
    fn asked_ms(&self, request: &RequestFacts) -> u64 {
        let answered = request.answered.as_ref().map_or(request.sent, |(at, _)| *at);
        let id = id_of(request.op).expect("a grant has an id");
        let leases = self.about(id).filter(|copy| copy.sent <= answered).filter_map(|copy| match copy.op {
            Op::Acquire { lease_ms, .. } | Op::Conversion { lease_ms, .. } | Op::Renew { lease_ms, .. } => {
                Some(lease_ms)
            }
            _ => None,
        });
        leases.max().unwrap_or_default()
    }

    /// Returns until when the answers so far let a hold be trusted by the local clock.
    pub fn vouched(&self, id: Id, now: Micros) -> Micros {
        // A notification counts only if it began the hold, and no later answer did.
        let begun = self.guards_of(id).map(|guard| guard.granted).min();
        let was_answered = |since: Micros| {
            let answers = self.about(id).filter_map(|request| request.answered.as_ref());
            let mut grants = answers.filter(|(_, reply)| matches!(reply, Reply::Granted { .. })).map(|(at, _)| *at);
            grants.any(|at| since <= at && begun.is_some_and(|begun| at <= begun))
        };
        let notifications = begun
            .into_iter()
            .flat_map(|begun| self.notified_by(id, begun).filter(move |(at, until)| *at <= now && begun < *until));
        let notifications = notifications.filter(|(at, _)| !was_answered(*at)).map(|(at, until)| (at, until, None));
        let answers = self.about(id).filter_map(|request| match &request.answered {
            Some((at, Reply::Granted { remaining_ms, .. } | Reply::Renewed { remaining_ms, .. })) if *at <= now => {
                Some((*at, self.covered_until(request, *remaining_ms), Some((request, *remaining_ms))))
            }
            _ => None,
        });
        let mut confirmations: Vec<_> = answers.chain(notifications).collect();
        confirmations.sort_by_key(|(at, until, _)| (*at, *until));
        let mut trust = Trust::default();
        for (at, until, answer) in confirmations {
            match answer {
                _ if trust.is_over(at) => {}
                Some((request, remaining_ms)) => trust.is_answered(at, request, remaining_ms, until),
                None => trust.on_notification(until),
            }
        }
        trust.until()
    }

    /// Returns how long a guard may be trusted whose hold may have been converted. The new hold lasts at least as long,
    /// counted from the last request that showed the server knew the old hold.
    pub fn in_doubt_until(&self, held: &GuardFacts, now: Micros) -> Micros {
        let conversions = self.requests.values().filter_map(|request| match request.op {
            // A conversion leaves nothing open once its process knows that it was not carried out.
            Op::Conversion { old, lease_ms, .. } if old == held.id && request.sent <= now => {
                let is_known = request.not_done && request.failed.is_some_and(|at| at <= now);
                (!is_known).then_some((request, lease_ms))
            }
            _ => None,
        });
        let conversions: Vec<_> = conversions.collect();
        let unanswered = conversions.iter().filter(|(request, _)| {
            request.answered.as_ref().is_none_or(|(at, _)| *at > now) && !self.is_settled(held, request, now)
        });
        let Some(&(first, lease_ms)) = unanswered.min_by_key(|(request, _)| request.sent) else {
            return Micros::MAX;
        };
        if let Some(since) = self.open_since(held, now).filter(|_| held.mode == Mode::Write) {
            return since;
        }
        let renewed = self
            .about(held.id)
            .filter(|request| matches!(&request.answered, Some((at, Reply::Renewed { .. })) if *at <= now));
        let refused = conversions
            .iter()
            .map(|(request, _)| *request)
            .filter(|request| matches!(&request.answered, Some((at, Reply::Refused)) if *at <= now));
        let was_live = renewed.chain(refused).map(|request| request.sent).max().unwrap_or_default();
        first.sent.max(was_live) + self.process(held.process).usable(lease_ms * MS)
    }

    /// Returns true if an answer has shown that a conversion was not carried out and cannot be any more.
    fn is_settled(&self, held: &GuardFacts, request: &RequestFacts, now: Micros) -> bool {
        let arrives_by = request.sent + self.process(held.process).max_delay();
        let asked = |at: Micros| request.attempt.is_some_and(|attempt| self.is_asked(attempt, at));
        let was_live = |other: &RequestFacts| match &other.answered {
            // While an attempt is under way, only the answer to that attempt counts.
            Some((at, Reply::Renewed { .. })) => *at <= now && other.sent >= arrives_by && !asked(*at),
            Some((at, Reply::Refused)) => *at <= now && other.sent >= arrives_by,
            _ => false,
        };
        self.about(held.id).chain(self.conversions_of(held.id)).any(was_live)
    }

    /// Returns true while an attempt is under way.
    fn is_asked(&self, attempt: Attempt, now: Micros) -> bool {
        let attempt = &self.attempts[&attempt];
        attempt.asked <= now && attempt.ended.is_none_or(|(ended, _)| now < ended)
    }

    /// Returns the time from which no attempt asks for the outcome of a conversion, though it is unknown.
    pub fn open_since(&self, held: &GuardFacts, now: Micros) -> Option<Micros> {
        let open = self
            .conversions_of(held.id)
            .filter(|request| request.sent <= now && request.is_unanswered() && !self.is_settled(held, request, now));
        let attempts = open.filter_map(|request| request.attempt).map(|attempt| &self.attempts[&attempt]);
        let ended =
            attempts.filter(|attempt| attempt.end == Some(End::Unreachable)).filter_map(|attempt| attempt.ended);
        ended.map(|(ended, _)| ended).filter(|ended| *ended <= now).min()
    }

    /// Returns true if the server has converted the hold.
    pub fn was_converted(&self, held: &GuardFacts) -> bool {
        self.conversions_of(held.id).filter_map(|request| id_of(request.op)).any(|id| self.granted.contains_key(&id))
    }

    /// Returns true if its process has got a newer, conflicting grant, with a guard or without one yet.
    pub fn is_overtaken(&self, held: &GuardFacts, now: Micros) -> bool {
        let overtakes = |request: &RequestFacts| {
            let Op::Acquire { id, mode, .. } = request.op else { return false };
            let is_newer = match &request.answered {
                Some((at, Reply::Granted { token, .. })) => *at <= now && *token > held.token,
                _ => self.was_notified_of_newer(id, held.token, now),
            };
            is_newer && (mode == Mode::Write || held.mode == Mode::Write)
        };
        self.overtakers(held, now).next().is_some()
            || self.requests.values().any(|request| request.scope() == held.scope() && overtakes(request))
    }

    /// Returns the guards of its process with newer, conflicting grants.
    pub fn overtakers(&self, held: &GuardFacts, now: Micros) -> impl Iterator<Item = &GuardFacts> {
        self.guards.values().filter(move |other| {
            let same = other.scope() == held.scope();
            let conflict = other.mode == Mode::Write || held.mode == Mode::Write;
            same && conflict && other.token > held.token && other.granted <= now
        })
    }

    /// Returns true if its acquisition had a guard before the request was sent.
    pub fn is_had(&self, request: &RequestFacts) -> bool {
        let id = id_of(request.op);
        self.guards.values().any(|guard| Some(guard.id) == id && guard.index < request.index)
    }

    /// Returns true while an attempt waits for the outcome of a conversion of this hold. The attempt may not know
    /// whether a request has gone out, for example while the node is silent.
    pub fn is_being_converted(&self, id: Id, now: Micros) -> bool {
        if self.guards_of(id).any(|guard| guard.is_converting(now)) {
            return true;
        }
        let is_open = |conversion: &AttemptFacts| conversion.ended.is_none_or(|(ended, _)| ended >= now);
        let of_hold = |attempt: &AttemptFacts| {
            attempt.wish.converts.is_some_and(|guard| self.guards[&guard].id == id) && is_open(attempt)
        };
        // It asks for the server's time first.
        let has_sent = |number: Attempt| {
            self.requests.values().any(|request| request.attempt == Some(number) && request.sent <= now)
        };
        self.attempts.iter().any(|(number, attempt)| of_hold(attempt) && has_sent(*number))
    }
}
