//! An acquisition asks the server, until that grants the lock.

use std::sync::Arc;
use std::time::Duration;

use super::wait::{Pause, RecallReply};
use super::{Acquisition, HEARTBEAT, Patience, grace};
use crate::base::backoff::Jitter;
use crate::base::error::{Error, Result, Source};
use crate::base::events;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::MAX_TOKENS;
use crate::base::lease::{self, Moment, ServerTime};
use crate::engine::Held;
use crate::lock::hold::{self, Grant, GrantIdentity};
use crate::lock::side::{LastRefusal, NextStep, Pending, SideOutage};
use crate::lock::wait::{Installed, Notifications, WaitEntry};
use crate::store::{AcquireRequest, Acquired, Answered, Attempt, Failure, Granted, IfTaken};

/// By so much longer than it waits for the word of those who keep the lock, whoever tries has a place in the queue: its claim is on
/// its way.
const CLAIM_OF_A_TRY: Duration = Duration::from_secs(1);

/// What came of asking.
pub(super) enum Pursued {
    Granted(Held),
    /// The one answer was no.
    Refused,
    /// It was not polled for so long that the next one asks by now.
    PassedBy,
}

/// What came of a grant.
pub(super) enum Taken {
    Held(Held),
    /// Nothing is left of it.
    Over,
    /// The next one asks by now, and finds it.
    PassedBy,
}

impl Acquisition<'_> {
    /// Asks the server until it grants the lock. What it mostly does not come to has its room elsewhere: the future is moved.
    pub(super) async fn pursue(&mut self, patience: Patience) -> Result<Pursued> {
        let (mut pause, mut queued) = (Pause::new(), false);
        loop {
            self.asks_on().await;
            let engine = self.engine;
            let Some((request, is_waited_for)) = self.begin_attempt(patience)? else {
                return Ok(Pursued::PassedBy);
            };
            let Some((attempt, now)) = self.attempt(&request, is_waited_for).await else {
                return Ok(Pursued::PassedBy);
            };
            let answer = match attempt {
                Ok(answer) => answer,
                Err(failure) => {
                    self.begin_anew();
                    Box::pin(self.on_no_answer(failure)).await?;
                    continue;
                }
            };
            self.note_answer(&answer.value);
            let waits = patience == Patience::Wait;
            match NextStep::after(&answer.value, waits, || self.recalls_from(now) <= now) {
                NextStep::Take(granted) => match self.on_grant(&request, &answer, granted, now) {
                    Taken::Held(held) => return Ok(Pursued::Granted(held)),
                    Taken::PassedBy => return Ok(Pursued::PassedBy),
                    Taken::Over => {
                        let failure = self.too_late();
                        Box::pin(self.on_no_answer(failure)).await?;
                    }
                },
                NextStep::EndRefused => return Ok(Pursued::Refused),
                NextStep::Pause { retry_in } => {
                    self.note_wait(engine.clock.now());
                    Box::pin(self.pause(&mut pause, retry_in)).await;
                }
                NextStep::AwaitTurn { retry_in } => {
                    self.note_wait(engine.clock.now());
                    if !std::mem::replace(&mut queued, true) {
                        events::log_queued(self.key.name(), self.mode);
                    }
                    match Box::pin(self.recall_reply(&request, retry_in, patience, now)).await {
                        RecallReply::Granted(answer) => match self.on_notification(&request, answer) {
                            Taken::Held(held) => return Ok(Pursued::Granted(held)),
                            Taken::PassedBy => return Ok(Pursued::PassedBy),
                            Taken::Over => {}
                        },
                        RecallReply::AskAgain => {}
                        RecallReply::Refused | RecallReply::Silence => return Ok(Pursued::Refused),
                    }
                }
                // The answer brought the server's time along: the next one has a better limit.
                NextStep::AskSoon => {
                    self.check_late(answer.sent, patience, now)?;
                    Box::pin(self.tries.backoff.wait()).await;
                }
            }
        }
    }

    /// Notes what an answer means for the next request.
    fn note_answer(&mut self, answer: &Acquired) {
        if !matches!(answer, Acquired::Granted(_)) {
            self.begin_anew();
        }
        if !matches!(answer, Acquired::Late) {
            self.late_since = None;
        }
    }

    /// A try ends when all of its requests were late for as long as it takes to ask twice: the server answers, and nothing comes of it.
    fn check_late(&mut self, sent: Moment, patience: Patience, now: Moment) -> Result<()> {
        let waited = now.since(*self.late_since.get_or_insert(sent));
        if patience == Patience::Wait || waited < self.engine.options().response_timeout * 2 {
            return Ok(());
        }
        Err(Error::unreachable(self.key.shared_name(), waited, Some(Arc::new(AlwaysLate))))
    }

    /// A copy of the request is to be sent: of what the one before left, or of something new. `None` if this one may not ask any
    /// more. Answers also whether somebody waits behind it.
    pub(super) fn begin_attempt(&mut self, patience: Patience) -> Result<Option<(AcquireRequest, bool)>> {
        let engine = self.engine;
        let Some(entry) = &self.entry else {
            return Ok(None);
        };
        // Counted before the look, so that `close` either is seen here or waits for this attempt.
        let counted = engine.releases.begin_unsettled();
        engine.check_open(&self.key)?;
        let mut is_new = false;
        let begun = entry.begin_attempt(engine.clock.now(), || {
            is_new = true;
            Pending::new(engine.next_id())
        });
        let Some(begun) = begun else {
            return Ok(None);
        };
        if begun.is_first {
            counted.leave_to_cell();
        }
        if let Some(backoff) = begun.backoff {
            self.tries.backoff = backoff;
            self.notices = entry.take_left().unwrap_or_default();
        }
        // A process that keeps holds knows that others may, too. It asks and calls at once.
        let tries = patience == Patience::AskOnce && (self.calls_until.is_some() || engine.can_cache());
        if (is_new && patience == Patience::Wait || tries) && matches!(self.notices, Notifications::Unwanted) {
            let scheme = engine.scheme.notifications();
            let warm = scheme.and_then(|scheme| scheme.subscribe_if_live(&self.key, &engine.manager_id));
            self.notices = warm.map_or(Notifications::Unwanted, Notifications::Subscribed);
        }
        let now = engine.clock.now();
        let may_stay = *self.may_stay.get_or_insert_with(|| engine.may_cache(&self.key, self.wants.cache_for, now));
        self.keeping =
            if may_stay { engine.cache_request(&self.key, entry, self.wants.cache_for).map(Box::new) } else { None };
        let keeps = self.keeping.as_ref().is_some_and(|keeping| keeping.offers_caching());
        let request = AcquireRequest {
            caches: keeps,
            id: begun.id,
            mode: self.mode,
            lease: self.wants.lease.min(self.wants.max_hold),
            // Who keeps a hold passes it on for as long as nobody calls.
            max_tokens: if keeps { MAX_TOKENS } else { engine.options().max_handoffs },
            if_taken: match patience {
                Patience::AskOnce if tries => {
                    IfTaken::Try { waiter_ttl: engine.options().recall_timeout + CLAIM_OF_A_TRY }
                }
                Patience::AskOnce => IfTaken::Leave,
                // Two heartbeats may be lost.
                Patience::Wait => {
                    IfTaken::Queue { waiter_ttl: (self.heartbeat() + engine.options().response_timeout) * 2 }
                }
            },
        };
        Ok(Some((request, begun.is_waited_for)))
    }

    /// It is queued, and is told what there is to be told. Who tries, and hears nothing in time, asks once more: the word may have
    /// been lost.
    async fn recall_reply(
        &mut self,
        request: &AcquireRequest,
        retry_in: Duration,
        patience: Patience,
        now: Moment,
    ) -> RecallReply {
        if patience == Patience::Wait {
            return self.notice(request, retry_in).await.map_or(RecallReply::AskAgain, RecallReply::Granted);
        }
        let until = self.recalls_from(now);
        match self.word(request, until).await {
            RecallReply::Silence if !std::mem::replace(&mut self.has_heard_nothing, true) => RecallReply::AskAgain,
            RecallReply::Refused => {
                self.entry.iter().for_each(WaitEntry::note_in_use);
                RecallReply::Refused
            }
            word => word,
        }
    }

    /// It tries, and those who keep the lock have been called, or are to be: until then they have time to say a word.
    fn recalls_from(&mut self, now: Moment) -> Moment {
        *self.calls_until.get_or_insert(now.after(self.engine.options().recall_timeout))
    }

    /// A waiter with a short lease is granted for no longer than that, and has to learn of it in time.
    pub(super) fn heartbeat(&self) -> Duration {
        HEARTBEAT.min(self.wants.lease.min(self.wants.max_hold) / 3)
    }

    /// One attempt, which a time limit hears out, and when it was over. `None` if this one may not ask any more.
    /// If its future dies meanwhile, a copy is under way.
    async fn attempt(&mut self, request: &AcquireRequest, is_waited_for: bool) -> Option<(Attempt<Acquired>, Moment)> {
        let engine = self.engine;
        let underway = self.begin_underway();
        let attempt = if is_waited_for {
            Box::pin(self.attempt_in_sight(request)).await
        } else {
            engine.scheme.acquire(&self.key, request).await
        };
        drop(underway);
        let now = engine.clock.now();
        // A grant that is there becomes a hold in one step.
        if let Ok(answer) = &attempt
            && matches!(answer.value, Acquired::Granted(_))
        {
            if self.is_worth_having(answer, now) {
                self.tries.since = now;
            }
            self.last_failure = None;
            return Some((attempt, now));
        }
        let entry = self.entry.as_ref()?;
        let unsettled = entry.end_attempt(&attempt, now, |pending| {
            if attempt.is_ok() && pending.is_unknown_to_server() { engine.releases.unsettled_of(pending) } else { None }
        })?;
        drop(unsettled);
        if let Ok(answer) = &attempt {
            let is_cached = matches!(answer.value, Acquired::Queued { is_cached: true, .. } | Acquired::Cached { .. });
            if is_cached {
                entry.note_recall(now.after(engine.options().recall_timeout));
            }
            if !matches!(answer.value, Acquired::Late) {
                let holder = answer.value.named_holder().cloned();
                entry.note_refusal(LastRefusal { at: now, server: answer.server, holder, is_cached });
            }
            self.answered_at = answer.server;
            self.on_first_answer(now);
            self.last_failure = None;
        }
        Some((attempt, now))
    }

    /// The same while others wait behind it: it states again and again that it is polled, however long the answer takes.
    async fn attempt_in_sight(&self, request: &AcquireRequest) -> Attempt<Acquired> {
        let clock = self.engine.clock;
        let attempt = self.engine.scheme.acquire(&self.key, request);
        tokio::pin!(attempt);
        loop {
            let restates = clock.now().after(grace(self.engine) / 2);
            tokio::select! {
                biased;
                attempt = &mut attempt => return attempt,
                () = clock.timer(restates) => {
                    if let Some(entry) = &self.entry {
                        entry.note_polled(clock.now());
                    }
                }
            }
        }
    }

    /// The server answers.
    pub(super) fn on_first_answer(&mut self, now: Moment) {
        self.tries.on_answer(now);
        if let Some(entry) = &self.entry {
            entry.on_outage(None);
        }
    }

    /// A grant that is over when it comes is as good as silence; one that is not becomes a hold.
    fn is_worth_having(&self, answer: &Answered<Acquired>, now: Moment) -> bool {
        let Acquired::Granted(Granted { remaining, .. }) = answer.value else {
            return false;
        };
        lease::valid_until(answer.sent, remaining, self.engine.options().max_clock_skew) > now
    }

    /// Makes a grant a hold, if there is enough left of it.
    fn on_grant<T>(&mut self, request: &AcquireRequest, answer: &Answered<T>, granted: Granted, now: Moment) -> Taken {
        let sent = answer.sent;
        self.note_clock(answer);
        let keep = self.keeping.take().map(|keeping| {
            let word = keeping.answer(answer, granted.is_waited_for);
            (keeping.to_state(), Some(word))
        });
        let granted = hold::NewHold {
            cache: keep,
            granting: self.granting(request, granted),
            grant: Grant { sent, remaining: granted.remaining, asked: request.lease, server: answer.server },
            share: self.wants.from(sent),
            in_doubt_requests: InDoubt::default(),
            share_until: (!granted.is_waited_for).then(|| sent.after(self.engine.options().join_window)),
            is_claim: false,
            jitter: Jitter::draw(),
        };
        let taken = self.take(granted, now);
        if let Taken::Held(held) = &taken {
            events::log_grant(self.key.name(), self.mode, held.share_id().token);
        }
        taken
    }

    /// The same for a grant that came by a notification. It is to be claimed by a renewal, and asked about before it is shared.
    pub(super) fn on_notification(&mut self, request: &AcquireRequest, answer: Answered<Granted>) -> Taken {
        self.note_clock(&answer);
        let Answered { sent, value: granted, .. } = answer;
        let now = self.engine.clock.now();
        // Counted from an earlier answer; should the server's clock have jumped since, a claim from now on is the most.
        let remaining = granted.remaining.min(now.since(sent) + request.claim());
        // It answers no request: what answers the claim says whether it may stay.
        let keep = self.keeping.take().map(|keeping| (keeping.to_state(), None));
        let granted = hold::NewHold {
            cache: keep,
            granting: self.granting(request, granted),
            grant: Grant { sent, remaining, asked: request.claim(), server: ServerTime::default() },
            share: self.wants.from(now),
            in_doubt_requests: InDoubt::default(),
            share_until: (!granted.is_waited_for).then_some(sent),
            is_claim: true,
            jitter: Jitter::draw(),
        };
        let taken = self.take(granted, now);
        if let Taken::Held(held) = &taken {
            events::granted_by_notice(self.key.name(), self.mode, held.share_id().token);
        }
        taken
    }

    fn granting(&self, request: &AcquireRequest, granted: Granted) -> GrantIdentity {
        GrantIdentity { id: request.id.clone(), mode: self.mode, token: granted.token, tokens: granted.tokens }
    }

    fn take(&mut self, granted: hold::NewHold, now: Moment) -> Taken {
        let engine = self.engine;
        let may_stay = granted.cache.is_some();
        let Some(entry) = &self.entry else {
            return Taken::PassedBy;
        };
        let has_enough = granted.has_enough(now, engine.options().max_clock_skew);
        let (installed, mut pending) = entry.on_grant(granted, now);
        match installed {
            Installed::Hold(hold, share_id) => {
                hold.count();
                if may_stay {
                    engine.bound_cached(now);
                }
                // With too little to start with it keeps its place.
                if has_enough {
                    self.entry = None;
                }
                // The cell has it: `close` finds it there.
                drop(pending.as_mut().map(|pending| engine.releases.unsettled_of(pending)));
                Taken::Held(Held::new(engine, hold, share_id))
            }
            Installed::Over => Taken::Over,
            Installed::NotMine => Taken::PassedBy,
        }
    }

    /// Where an attempt that was not granted is given back, the next one has an id of its own.
    fn begin_anew(&self) {
        if self.engine.scheme.quorum().is_some()
            && let Some(pending) = self.entry.as_ref().and_then(WaitEntry::give_up_pending)
        {
            self.cancel(pending);
        }
    }

    /// The answer was too long on its way. The old id is given back, and a new one asks again.
    fn too_late(&mut self) -> Failure {
        if let Some(entry) = &self.entry {
            entry.on_outage(None);
            if let Some(pending) = entry.give_up_pending() {
                self.earlier_until = self.earlier_until.max(self.cancel(pending));
            }
        }
        Failure::NotDone { source: Some(Arc::new(TooLate)) }
    }

    pub(super) async fn on_no_answer(&mut self, failure: Failure) -> Result<()> {
        let now = self.engine.clock.now();
        let since = self.engine.unheard_since(&self.key, &failure, self.tries.since);
        let source = match &failure {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                Some(source.clone().unwrap_or_else(|| -> Source { Arc::new(Silence) }))
            }
            Failure::Refused { .. } | Failure::Broken { .. } | Failure::Unreplicated { .. } => None,
        };
        if let Some(entry) = &self.entry {
            entry.on_outage(Some(SideOutage { since, source: source.clone() }));
        }
        if let Some(source) = source {
            self.last_failure = Some((now, source));
        }
        // Each would wait for the replicas anew, one after the other.
        if let (Failure::Unreplicated { .. }, Some(entry)) = (&failure, &self.entry) {
            entry.fail_waiters(&failure);
        }
        events::attempt_unanswered(self.key.name(), &failure, &self.engine.attempt_lines, now);
        self.tries.on_failure(self.engine, &self.key, failure).await
    }
}

/// The round trip took longer than the grant was worth.
#[derive(Debug, thiserror::Error)]
#[error("the answer came when its lease was over")]
struct TooLate;

/// The server's clock runs ahead faster than requests come, or the server says so. Or masters of a quorum still have an
/// earlier acquisition of this manager.
#[derive(Debug, thiserror::Error)]
#[error(
    "each request came too late for the server's clock, or met an earlier request whose release is still under way: \
     compare the server's clock with this machine's"
)]
struct AlwaysLate;

/// Nothing came back.
#[derive(Debug, thiserror::Error)]
#[error("no answer within the response timeout")]
struct Silence;
