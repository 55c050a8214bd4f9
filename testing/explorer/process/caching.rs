//! Cached holds, recalls and subscriptions. The driver does what `src/engine/caching.rs` and `src/base/recalls.rs` do with
//! the decisions of the state.

use super::*;

/// Number of tokens that a request for tokens brings at most.
const MAX_BLOCK: u8 = 2;

impl Process {
    /// Returns a process that is subscribed to recalls from the start, or believes that.
    pub fn into_subscriber(mut self) -> Self {
        self.last_epoch += 1;
        self.reception.subscription = Some(SubscriptionId { epoch: self.last_epoch, node: NodeId::default() });
        self.reception.live_until = Moment::NEVER;
        self
    }

    /// Returns true if a recall may concern a hold of this process, or one that it asks for.
    pub fn hears_recalls(&self) -> bool {
        let asks = |copy: &FlyingCopy| matches!(copy.purpose, Purpose::Acquire { .. } | Purpose::Convert { .. });
        self.caches && (!self.holds.is_empty() || self.copies.iter().any(asks))
    }

    /// Returns true if holds are cached and no guard is inside.
    pub fn has_cached(&self) -> bool {
        let mut state = self.state.clone();
        self.holds.iter().any(|(hold, _)| state.record(*hold).is_cached())
    }

    /// Returns the slots of the holds that a further guard could use without a request.
    pub fn open_holds(&self) -> Vec<Slot> {
        let mut state = self.state.clone();
        let wants = self.wants();
        let joined = state.join(wants, &self.reception, self.now);
        let taken = state.take_cached(wants, &self.reception, self.now);
        joined.into_iter().chain(taken).map(|(hold, _)| self.slot_of_hold(hold.number())).collect()
    }

    /// Returns true if no answer is on its way to this process or has failed to come, and nothing is to be given back.
    pub fn is_quiet(&self) -> bool {
        // The renewal for which such a task waits has failed, and the next one comes with the next tick.
        let awaits_renewal = self.tasks.iter().any(|task| matches!(task.stage, Stage::Accepts { .. }));
        let is_answered = self.copies.is_empty() && self.pausing().next().is_none() && !awaits_renewal;
        let is_answered = is_answered && self.pausing_sides().next().is_none();
        is_answered && self.departing.is_empty() && !self.is_behind
    }

    pub fn wants(&self) -> ShareRequest {
        let cache_for = if self.caches { LONG } else { Duration::ZERO };
        ShareRequest { owner: OwnerId::NOBODY, lease: HOLD_LEASE, max_hold: LONG, cache_for }
    }
}

impl Driver<'_> {
    pub fn wants(&self) -> ShareRequest {
        self.process.wants()
    }

    /// Returns the subscription on which a request that is sent now offers to cache the hold.
    pub fn offered(&self) -> Option<SubscriptionId> {
        self.process.reception.subscription.filter(|_| self.process.caches)
    }

    /// Returns the number of tokens that a request asks for.
    pub fn missing_tokens(&mut self, purpose: Purpose) -> u8 {
        let missing = match purpose {
            Purpose::Renew { hold, .. } => self.record(hold).missing_tokens(),
            _ => 0,
        };
        u8::try_from(missing).unwrap_or(MAX_BLOCK).min(MAX_BLOCK)
    }

    /// Returns the cache state of a new hold. `answer` is absent for a grant by a notification.
    pub fn cache_state(&self, answer: Option<CacheAnswer>) -> Option<(Box<CacheState>, Option<CacheAnswer>)> {
        self.process.caches.then(|| (Box::new(CacheState::new(self.wants().cache_for)), answer))
    }

    /// Returns the parts of the answer to a copy that concern caching.
    pub fn cache_answer(&self, copy: &FlyingCopy, is_waited_for: bool) -> CacheAnswer {
        let blunder = self.process.blunder;
        let relies_late = blunder == Some(Blunder::ReliesOnWhatItAskedBefore);
        let offered_on = if relies_late { self.offered() } else { copy.offered };
        let later = self.now().after(Duration::from_nanos(1));
        let sent = if blunder == Some(Blunder::BelievesOlderAnswer) { later } else { copy.sent };
        let is_waited_for = is_waited_for && blunder != Some(Blunder::IgnoresWhatARenewalTells);
        CacheAnswer { offered_on, sent, node: NodeId::default(), is_waited_for }
    }

    /// Applies the answer to a copy to the cache state of its hold.
    pub fn on_cache_answer(&mut self, hold: u64, copy: &FlyingCopy, is_waited_for: bool, tokens: Option<(i8, u8)>) {
        if copy.offered.is_none() {
            return;
        }
        let answer = self.cache_answer(copy, is_waited_for);
        let tokens = tokens.map(|(first, count)| (self.token(first), u64::from(count)));
        self.event_of(hold, |record, event| {
            record.on_cache_answer(answer, event);
            tokens.into_iter().for_each(|(first, count)| record.add_tokens(first, count));
        });
    }

    pub fn on_recall(&mut self, token: i8, tries: Option<u8>) {
        let (now, token, blunder) = (self.now(), self.token(token), self.process.blunder);
        if blunder == Some(Blunder::StaysWhenRecalled) {
            return;
        }
        if tries.is_none() && blunder != Some(Blunder::ForgetsEarlyRecall) {
            let earlier = self.process.reception.last_recall.map(|(token, _)| token);
            self.process.reception.last_recall = Some((earlier.map_or(token, |earlier| earlier.max(token)), now));
        }
        if blunder == Some(Blunder::GivesUpUnderGuard) {
            let used: Vec<_> = self.process.holds.clone();
            used.into_iter().for_each(|(hold, _)| self.give_back(hold, None));
        }
        let is_try = tries.is_some();
        let recall = Recall { token, tries: tries.map(|id| id.to_string().into()) };
        let is_used = self.event(|state, event| state.on_recall(&recall, event));
        let holds: Vec<_> = self.process.state.handles().collect();
        let has_guard = holds.iter().any(|hold| self.process.state.record(hold.number()).guards() > 0);
        let is_wrong = blunder == Some(Blunder::AnswersInUseWhenIdle) && is_try && !holds.is_empty();
        self.out.is_in_use = is_used || is_wrong;
        if self.out.is_in_use && !has_guard {
            self.out.broken = Some(Broken::InUseWhenIdle);
        }
    }

    pub fn on_subscribed(&mut self) {
        if !self.has(Blunder::ReliesAcrossBreak) {
            self.process.last_epoch += 1;
        }
        let epoch = self.process.last_epoch;
        self.process.reception.subscription = Some(SubscriptionId { epoch, node: NodeId::default() });
        self.process.reception.live_until = Moment::NEVER;
    }

    pub fn on_subscription_broken(&mut self) {
        if !self.has(Blunder::KeepsUnheard) {
            self.process.reception.live_until = self.now().after(TICK);
        }
    }

    pub fn on_subscription_lost(&mut self) {
        if self.has(Blunder::KeepsUnheard) {
            return;
        }
        (self.process.reception.subscription, self.process.reception.live_until) = (None, Moment::from_nanos(0));
        self.event(|state, event| state.on_subscription_lost(event));
    }

    /// Gives up the cached holds, because they are too many.
    pub fn give_up_cached(&mut self) {
        let now = self.now();
        for (hold, _) in self.process.holds.clone() {
            if self.record(hold).is_cached() {
                self.event_of(hold, |record, _| record.note_wanted(now));
            }
        }
    }

    /// Does what the background does with the cached holds that are to be given up now.
    pub fn look_at_cached(&mut self) {
        let now = self.now();
        let holds: Vec<_> = self.process.state.handles().map(|hold| hold.number()).collect();
        for hold in holds {
            if self.record(hold).cached_until().is_some_and(|until| until <= now) {
                self.look_at(hold);
            }
        }
    }

    /// Ends the cached holds of this process that exclude an acquisition. Their releases are sent before its request.
    pub fn release_cached(&mut self, mode: Mode) {
        let ended = self.event(|state, event| state.end_cached(mode, event));
        ended.iter().for_each(|hold| self.give_back(hold.number(), Some(hold.number())));
        if !ended.is_empty() {
            self.send_releases();
        }
    }
}
