//! Conversions: from a write hold to a read hold and back, in one step of the server. So no other holder enters between
//! the two holds.
//!
//! The new hold is an acquisition of its own, so that no request for the old hold can change it. While the server has
//! not answered, no other guard of this process may share the old hold. The background renews the old hold
//! nevertheless, because it stays valid if the server refuses the conversion. If a renewal then does not find the old
//! hold, the hold is not lost yet: the server may have converted it.
//!
//! If no answer comes, it is unknown which of the two holds the server has. A guard that reads goes on in doubt,
//! because both holds exclude writers of other processes. The answer to a renewal then shows whether the old hold is
//! still valid, or a further conversion asks the server under the same id. A guard that writes loses its hold, because
//! readers may have entered.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/convert/tests.rs"]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::base::backoff::Jitter;
use crate::base::error::{Error, LossReason};
use crate::base::events;
use crate::base::in_doubt::InDoubt;
use crate::base::lease::{MAX_TOKENS, Moment};
use crate::engine::caching::CacheRequest;
use crate::engine::releases::Unsettled;
use crate::engine::tries::Tries;
use crate::engine::{Engine, Held, in_runtime};
use crate::lock::hold::{Grant, GrantIdentity, Hold, HoldState, LeftOpen, NewHold, OpenConversion, Share, ShareId};
use crate::lock::release::Release;
use crate::store::{AcquireRequest, Answered, Attempt, Converted, Failure, Granted, IfTaken, Mode, loss_reason};

/// Why a guard could not be converted, and the guard.
pub(crate) struct NotConverted {
    pub(crate) held: Held,
    pub(crate) error: Error,
}

/// Makes a write hold a read hold. All readers that wait enter with it.
pub(crate) async fn downgrade(held: Held) -> Result<Held, NotConverted> {
    if let Some(error) = refusal(&held) {
        return Err(NotConverted { held, error });
    }
    if held.hold().is_to_rest() {
        let reason =
            "the hold of a guard with `at_least` stays exclusive: release it, and acquire the lock for reading";
        return Err(NotConverted { held, error: Error::invalid("at_least", reason) });
    }
    // Other guards share the hold, for example nested ones. The guard then keeps its share, as a nested read does.
    if !held.hold().begin_conversion(held.engine().now()) {
        return match loss_error(&held) {
            Some(error) => Err(NotConverted { held, error }),
            None => Ok(held),
        };
    }
    Converting::new(&held, Mode::Read).run(held).await.inspect(|held| held.hold().begin_span())
}

/// Makes a read hold a write hold, if there is no other reader and no writer waits.
pub(crate) async fn upgrade(held: Held) -> Result<Held, NotConverted> {
    if let Some(error) = refusal(&held) {
        return Err(NotConverted { held, error });
    }
    if held.hold().mode() == Mode::Write {
        // A read that is nested in a write. The guard shares the write hold.
        return Ok(held);
    }
    let writer_waits = held.engine().table.writer_waits(held.hold().key());
    if writer_waits || !held.hold().begin_conversion(held.engine().now()) {
        let conflict = || Error::UpgradeConflict { lock: held.hold().key().shared_name() };
        let error = loss_error(&held).unwrap_or_else(conflict);
        return Err(NotConverted { held, error });
    }
    Converting::new(&held, Mode::Write).run(held).await.inspect(|held| held.hold().begin_span())
}

/// Returns the error for a guard that cannot be converted here. The runtime is checked before the conversion begins,
/// because a timer or a socket that panics in the middle of it would lose the hold.
fn refusal(held: &Held) -> Option<Error> {
    held.check_process().err().or_else(|| loss_error(held)).or_else(|| in_runtime().err())
}

/// Returns the error for a guard whose hold is over.
pub(super) fn loss_error(held: &Held) -> Option<Error> {
    match held.state() {
        HoldState::Lost(reason) => Some(held.hold().key().loss(reason)),
        HoldState::Held | HoldState::Unconfirmed => None,
    }
}

/// Conversion in progress. If it is dropped before its result is known, the old hold is lost, and the background
/// releases both holds.
pub(super) struct Converting {
    engine: Arc<Engine>,
    old: Arc<Hold>,
    request: AcquireRequest,
    /// Offer to cache the new hold. Present if the old hold may be cached.
    keeping: Option<CacheRequest>,
    word: ConversionNews,
    copies: InDoubt,
    settled: bool,
    _unsettled: Unsettled,
}

/// Result of a conversion.
pub(super) enum ConversionOutcome {
    Granted {
        answer: Answered<()>,
        granted: Granted,
    },
    /// The server has the old hold, and no copy is in doubt that could end it.
    Stays(Error),
    /// The server has one of the two holds, and it is unknown which one.
    Open(Error),
    /// The server has the new hold, but too few replicas have acknowledged it.
    Unreplicated(Error),
    Lost(LossReason),
}

/// Wait of an upgrade until other processes have released their cached holds.
#[derive(Default)]
struct ConversionNews {
    until: Option<Moment>,
    pause: Duration,
}

impl ConversionNews {
    fn is_awaited(&mut self, engine: &Engine, now: Moment) -> bool {
        now < *self.until.get_or_insert(now.after(engine.options().recall_timeout))
    }

    /// Waits for a pause. Each pause is twice as long as the one before.
    async fn pause(&mut self, engine: &Engine, now: Moment) {
        self.pause = (self.pause * 2).max(Duration::from_millis(2));
        engine.clock.sleep_until(now.after(self.pause)).await;
    }
}

impl Converting {
    fn new(held: &Held, mode: Mode) -> Self {
        let engine = held.engine();
        let share = held.hold().share(held.share_id());
        // Continues an open conversion under its id, so that the server finds what an earlier copy has done.
        let earlier = held.hold().take_open_conversion();
        let copies =
            earlier.as_ref().map(|open| InDoubt::of_earlier(open.arrives_until, open.lease)).unwrap_or_default();
        let request = AcquireRequest {
            id: earlier.map_or_else(|| engine.next_id(), |open| open.id),
            mode,
            lease: share.lease.min(share.ends.since(engine.now())),
            max_tokens: engine.options().max_handoffs,
            if_taken: IfTaken::Leave,
            caches: false,
        };
        let mut converting = Self::of(held, request, copies);
        converting.keeping = engine.cache_request_on(held.hold());
        converting
    }

    /// Prepares a request that converts a hold, of which `copies` are in doubt already.
    pub(super) fn of(held: &Held, request: AcquireRequest, copies: InDoubt) -> Self {
        let engine = Arc::clone(held.engine());
        let unsettled = engine.releases.begin_unsettled();
        Self {
            engine,
            old: Arc::clone(held.hold()),
            request,
            keeping: None,
            word: ConversionNews::default(),
            copies,
            settled: false,
            _unsettled: unsettled,
        }
    }

    /// Notes that the result is known, so that there is nothing to release.
    pub(super) fn end_well(&mut self) {
        self.settled = true;
    }

    async fn run(mut self, held: Held) -> Result<Held, NotConverted> {
        let outcome = self.ask().await;
        if let Err(error) = held.check_process() {
            return Err(NotConverted { held, error });
        }
        let now = self.engine.now();
        let error = match outcome {
            ConversionOutcome::Granted { answer, granted } => match self.begin(&held, &answer, granted, now) {
                Some((hold, share_id)) => {
                    self.settled = true;
                    let (engine, _, _) = held.into_parts();
                    return Ok(Held::new(&engine, hold, share_id));
                }
                None if self.engine.closing.is_closed() => self.loss_of(&held, LossReason::Closed),
                None => {
                    self.old.end_with_conversion(now);
                    self.loss_of(&held, LossReason::Expired)
                }
            },
            ConversionOutcome::Stays(error) => {
                self.settled = true;
                self.old.refuse_conversion(now);
                error
            }
            ConversionOutcome::Open(error) => self.left_open(&held, error, now),
            ConversionOutcome::Unreplicated(error) => {
                self.old.lose(LossReason::Gone);
                error
            }
            ConversionOutcome::Lost(reason) => self.loss_of(&held, reason),
        };
        Err(NotConverted { held, error })
    }

    pub(super) fn loss_of(&self, held: &Held, reason: LossReason) -> Error {
        self.old.lose(reason);
        // The hold may have ended before, for another reason.
        loss_error(held).unwrap_or_else(|| self.old.key().loss(reason))
    }

    /// Leaves the conversion open with the old hold, unless the old hold is over.
    fn left_open(&mut self, held: &Held, error: Error, now: Moment) -> Error {
        let open = self.open(self.copies.arrives_until().unwrap_or(now));
        match self.old.leave_conversion_open(open, now) {
            LeftOpen::InDoubt => {
                self.settled = true;
                error
            }
            LeftOpen::NotAlone => error,
            LeftOpen::Lost => loss_error(held).unwrap_or(error),
        }
    }

    fn open(&self, arrives_until: Moment) -> OpenConversion {
        OpenConversion { id: self.request.id.clone(), lease: self.request.lease, arrives_until }
    }

    /// Sends the request until the server answers, until the tries are used up, or until the old hold is over.
    pub(super) async fn ask(&mut self) -> ConversionOutcome {
        let engine = Arc::clone(&self.engine);
        let mut tries = engine.tries();
        loop {
            let now = engine.now();
            self.note_subscription();
            // If this future is dropped at the next await, a copy is under way.
            self.copies.begin();
            self.old.send_conversion(self.request.lease, now);
            let attempt = engine.scheme.convert(self.old.key(), self.old.id(), &self.request).await;
            if engine.is_copied() {
                return ConversionOutcome::Lost(LossReason::Forked);
            }
            let now = engine.now();
            resolve(&mut self.copies, &attempt);
            self.note_refusal(&attempt);
            let failure = match attempt {
                Ok(Answered { sent, server, node, value }) => match value {
                    Converted::Granted(granted) => {
                        return ConversionOutcome::Granted {
                            answer: Answered { sent, server, node, value: () },
                            granted,
                        };
                    }
                    Converted::Cached
                        if self.copies.arrives_until().is_none() && self.word.is_awaited(&engine, now) =>
                    {
                        self.word.pause(&engine, now).await;
                        continue;
                    }
                    Converted::Refused | Converted::Cached => match self.copies.arrives_until() {
                        // An earlier copy may still arrive after the other readers have left. The server would then
                        // convert the hold, and the old hold would be gone.
                        Some(until) => {
                            engine.clock.sleep_until(until).await;
                            self.begin_anew();
                            continue;
                        }
                        None => {
                            let lock = self.old.key().shared_name();
                            return ConversionOutcome::Stays(Error::UpgradeConflict { lock });
                        }
                    },
                    Converted::Lost { forced } => {
                        return ConversionOutcome::Lost(loss_reason(self.old.token(), forced));
                    }
                    Converted::Late => Failure::NotDone { source: None },
                },
                Err(failure) => failure,
            };
            match self.end_after(failure, &tries, now) {
                Some(outcome) => return outcome,
                None => tries.backoff.wait().await,
            }
        }
    }

    /// Returns the end of the conversion after a failed try, or `None` if another try follows.
    fn end_after(&self, failure: Failure, tries: &Tries, now: Moment) -> Option<ConversionOutcome> {
        let is_broken = matches!(failure, Failure::Broken { .. });
        let is_unreplicated = matches!(failure, Failure::Unreplicated { .. });
        if self.copies.is_none() && !is_broken && !is_unreplicated {
            self.old.cancel_conversion();
        } else {
            // If the answer to this renewal finds the old hold, the server has not converted it before.
            self.old.renew_now(now);
        }
        let is_over = now >= self.old.deadline();
        match tries.verdict(&self.engine, self.old.key(), failure) {
            // The primary has the new hold, and a replica may still have the old one. So the guard can rely on
            // neither.
            Some(error) if is_unreplicated => Some(ConversionOutcome::Unreplicated(error)),
            // The server executed a part of the script. So it is unknown which of the two holds it has, and for how
            // long.
            Some(error) if is_broken => {
                events::conversion_broke_off(self.old.key().name(), &error);
                Some(ConversionOutcome::Lost(LossReason::Gone))
            }
            // The server may have executed an earlier copy.
            Some(error) if !self.copies.is_none() => Some(ConversionOutcome::Open(error)),
            Some(error) => Some(ConversionOutcome::Stays(error)),
            None if is_over => Some(ConversionOutcome::Lost(LossReason::Expired)),
            None => None,
        }
    }

    /// Notes that the server had the old hold when it refused the conversion.
    fn note_refusal(&self, attempt: &Attempt<Converted>) {
        if let Ok(Answered { sent, value: Converted::Refused | Converted::Cached, .. }) = attempt {
            match self.copies.arrives_until() {
                None => self.old.cancel_conversion(),
                Some(_) => self.old.stood_at(*sent),
            }
        }
    }

    /// Sets the offer of the next copy to cache the new hold, because each copy must name the subscription that is
    /// confirmed when it is sent.
    fn note_subscription(&mut self) {
        if let Some(keeping) = &mut self.keeping {
            keeping.note_subscription();
            self.request.caches = keeping.offers_caching();
            self.request.max_tokens =
                if keeping.offers_caching() { MAX_TOKENS } else { self.engine.options().max_handoffs };
        }
    }

    /// Takes a new id for the next request to a quorum of masters. The scheme has undone the refused conversion there,
    /// and a release of its id may still be on its way.
    fn begin_anew(&mut self) {
        if self.engine.scheme.quorum().is_some() {
            self.request.id = self.engine.next_id();
        }
    }

    /// Puts the new hold in the place of the old one.
    fn begin(
        &mut self,
        held: &Held,
        answer: &Answered<()>,
        granted: Granted,
        now: Moment,
    ) -> Option<(Arc<Hold>, ShareId)> {
        let (engine, sent) = (&self.engine, answer.sent);
        let keep = self.keeping.take().map(|keeping| keeping.on_answer(answer, granted.is_waited_for));
        let share = self.old.share(held.share_id());
        let granted = NewHold { cache: keep, ..new_hold(engine, &self.request, answer, granted, share, self.copies) };
        let (hold, share_id) = self.old.convert_into(granted, now)?;
        // If `close` listed the holds before this one was in its cell, this check finds the engine closed.
        if engine.closing.is_closed() {
            hold.lose(LossReason::Closed);
            engine.release_in_background(&hold);
            drop(Held::new(engine, hold, share_id));
            return None;
        }
        self.old.note_share_converted(held.share_id());
        engine.note_cache_outcome(&self.old);
        engine.table.deadlines.forget(&self.old);
        let release = Release::of(&self.old, now);
        if release.arrives_after(sent).is_some() {
            engine.releases.in_background(release, None);
        }
        events::log_passage(hold.key().name(), hold.mode(), hold.token(), "converted");
        hold.count();
        Some((hold, share_id))
    }
}

/// Notes the outcome of a copy. The answer that a copy came too late says nothing of earlier copies, because the server
/// has not looked for what they did.
pub(super) fn resolve(copies: &mut InDoubt, attempt: &Attempt<Converted>) {
    match attempt {
        Ok(Answered { value: Converted::Late, .. }) => copies.on_late(),
        _ => copies.resolve(attempt),
    }
}

/// Returns the hold that an answer grants, without a cache.
pub(super) fn new_hold<T>(
    engine: &Engine,
    request: &AcquireRequest,
    answer: &Answered<T>,
    granted: Granted,
    share: Share,
    in_doubt_requests: InDoubt,
) -> NewHold {
    let (sent, Granted { token, tokens, remaining, is_waited_for }) = (answer.sent, granted);
    NewHold {
        granting: GrantIdentity { id: request.id.clone(), mode: request.mode, token, tokens },
        grant: Grant { sent, remaining, asked: request.lease, server: answer.server },
        share,
        in_doubt_requests,
        cache: None,
        share_until: (!is_waited_for).then(|| sent.after(engine.options().join_window)),
        is_claim: false,
        jitter: Jitter::draw(),
    }
}

impl Drop for Converting {
    fn drop(&mut self) {
        if self.settled || self.engine.is_copied() {
            return;
        }
        // It is unknown which of the two holds the server has. The guard can rely on neither, so both are released.
        self.old.lose(LossReason::Gone);
        let now = self.engine.now();
        self.copies.abandon_all(now.after(self.engine.max_delay()));
        let open = self.open(self.copies.arrives_until().unwrap_or(now));
        self.engine.release_in_background(&self.old);
        self.engine.releases.in_background(Release::of_conversion(&self.old, open, now), None);
    }
}
