//! Detached holds: a guard becomes a ticket, and another guard, in this process or in another one, takes the hold over.
//!
//! Each step passes the hold to a new id, as a conversion to the same side. So no request for an earlier guard can end
//! or extend the hold of a later one, and a second adopter finds no hold under the ticket's id.
//!
//! `detach` first waits until no copy of the acquisition can arrive any more. Nearly always this is at once. Otherwise
//! a late copy could acquire the lock again under the old id, a late copy of the detachment could pass that hold to the
//! ticket's id, and a used ticket would be valid again.
//!
//! While the result of a step is unknown, no guard is inside. If the caller gives up, the process releases both ids,
//! and again when no copy can arrive any more.

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/tickets/tests.rs"]
mod tests;

use std::sync::Arc;
use std::time::Duration;

use crate::base::attempt::AcquisitionId;
use crate::base::error::{Error, LossReason, Result};
use crate::base::events;
use crate::base::in_doubt::InDoubt;
use crate::base::key::Key;
use crate::base::lease::{self, FencingToken, Moment};
use crate::base::mode::Mode;
use crate::base::options::Terms;
use crate::base::reentry::OwnerId;
use crate::base::ticket::Ticket;
use crate::engine::acquire::check_still_open;
use crate::engine::convert::{ConversionOutcome, Converting, NotConverted, loss_error, new_hold, resolve};
use crate::engine::releases::Unsettled;
use crate::engine::{Engine, Held, in_runtime, random_id};
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::shares::ShareRequest;
use crate::store::{Ability, AcquireRequest, Answered, Converted, Failure, Granted, IfTaken, loss_reason};

/// Passes the hold of a guard to a ticket. No guard is inside then.
pub(crate) async fn detach(held: Held, valid_for: Duration) -> Result<Ticket, NotConverted> {
    let closed = match close(&held, valid_for) {
        Ok(closed) => closed,
        Err(error) => return Err(NotConverted { held, error }),
    };
    wait_for_copies(&held).await;
    if let Some(error) = held.check_process().err().or_else(|| loss_error(&held)) {
        drop(closed);
        return Err(NotConverted { held, error });
    }
    closed.keep();
    let id = AcquisitionId::new_ticket(&random_id(), &held.engine().label);
    let request = request(id.clone(), held.hold().mode(), valid_for, 1);
    let mut detaching = Converting::of(&held, request, InDoubt::default());
    let outcome = detaching.ask().await;
    if let Err(error) = held.check_process() {
        return Err(NotConverted { held, error });
    }
    let error = match outcome {
        ConversionOutcome::Granted { granted, .. } => {
            detaching.end_well();
            let (engine, hold, share_id) = held.into_parts();
            hold.note_share_converted(share_id);
            engine.note_cache_outcome(&hold);
            engine.table.deadlines.forget(&hold);
            engine.table.on_end(&hold);
            events::log_passage(hold.key().name(), hold.mode(), granted.token, "detached");
            return Ok(Ticket::new(hold.key(), hold.mode(), (&id, granted.token), valid_for));
        }
        ConversionOutcome::Stays(error) => {
            detaching.end_well();
            held.hold().refuse_conversion(held.engine().now());
            error
        }
        // It is unknown which of the two holds the server has. The drop of `detaching` ends the hold as lost, and
        // releases both.
        ConversionOutcome::Open(error) | ConversionOutcome::Unreplicated(error) => error,
        ConversionOutcome::Lost(reason) => detaching.loss_of(&held, reason),
    };
    drop(detaching);
    Err(NotConverted { held, error })
}

/// Hold that is closed to all guards but the one that detaches it. Its drop opens the hold again.
struct ClosedHold(Option<Arc<Hold>>);

impl ClosedHold {
    fn keep(mut self) {
        self.0 = None;
    }
}

impl Drop for ClosedHold {
    fn drop(&mut self) {
        if let Some(hold) = &self.0 {
            hold.reopen();
        }
    }
}

/// Checks the guard and the options, and closes the hold.
fn close(held: &Held, valid_for: Duration) -> Result<ClosedHold> {
    held.check_process()?;
    in_runtime()?;
    let (engine, hold) = (held.engine(), held.hold());
    let refused = |reason| Error::invalid("detach", reason);
    if let Some(reason) = engine.scheme.lacks(Ability::Tickets) {
        return Err(refused(reason));
    }
    engine.options().check_ticket(valid_for)?;
    if let Some(error) = loss_error(held) {
        return Err(error);
    }
    if hold.is_to_rest() {
        return Err(refused("the hold of a guard with `at_least` rests after its use, and cannot pass to a ticket"));
    }
    if hold.has_open_conversion() {
        let reason =
            "the server has not answered an upgrade of this guard: wait until its state is `Held`, or release it";
        return Err(refused(reason));
    }
    if !hold.begin_conversion(engine.now()) {
        let shared = refused("other guards share the hold, for example nested ones: detach the last one");
        return Err(loss_error(held).unwrap_or(shared));
    }
    Ok(ClosedHold(Some(Arc::clone(hold))))
}

/// Waits until no copy of the acquisition can arrive any more. The manager renews the hold meanwhile.
async fn wait_for_copies(held: &Held) {
    let clock = held.engine().clock;
    loop {
        let now = clock.now();
        match held.hold().until(now).arrives_until {
            Some(until) if until > now && loss_error(held).is_none() => clock.sleep_until(until).await,
            _ => return,
        }
    }
}

fn request(id: AcquisitionId, mode: Mode, lease: Duration, max_tokens: u64) -> AcquireRequest {
    AcquireRequest { id, mode, lease, max_tokens, if_taken: IfTaken::Leave, caches: false }
}

/// Takes the hold of a ticket over.
pub(crate) async fn adopt(engine: &Arc<Engine>, ticket: &Ticket, mode: Mode, terms: Terms) -> Result<Held> {
    let key = engine.key(ticket.name())?;
    let id = ticket.id_for(&key, mode)?;
    engine.options().check_unrenewed("ticket", ticket.valid_for())?;
    engine.check_open(&key)?;
    in_runtime()?;
    if let Some(reason) = engine.scheme.lacks(Ability::Tickets) {
        return Err(Error::invalid("ticket", reason));
    }
    engine.keep_running();
    let wants = ShareRequest {
        owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
        lease: terms.lease,
        max_hold: terms.max_hold,
        cache_for: Duration::ZERO,
    };
    let lease = terms.lease.min(terms.max_hold);
    let adopting = Adopting {
        request: request(engine.next_id(), mode, lease, engine.options().max_handoffs),
        engine: Arc::clone(engine),
        key,
        ticket: id,
        token: ticket.fencing_token(),
        valid_for: ticket.valid_for(),
        copies: InDoubt::default(),
        is_settled: false,
        _unsettled: engine.releases.begin_unsettled(),
    };
    adopting.run(wants).await
}

/// Adoption in progress. If it is dropped before its result is known, it releases the ticket's hold and its own.
struct Adopting {
    engine: Arc<Engine>,
    key: Arc<Key>,
    ticket: AcquisitionId,
    token: FencingToken,
    valid_for: Duration,
    request: AcquireRequest,
    copies: InDoubt,
    is_settled: bool,
    _unsettled: Unsettled,
}

impl Adopting {
    async fn run(mut self, wants: ShareRequest) -> Result<Held> {
        let (engine, key) = (Arc::clone(&self.engine), Arc::clone(&self.key));
        let mut tries = engine.tries();
        loop {
            // If this future is dropped at the next await, a copy is under way.
            self.copies.begin();
            let attempt = engine.scheme.convert(&key, &self.ticket, &self.request).await;
            engine.process.check(key.name())?;
            resolve(&mut self.copies, &attempt);
            let failure = match attempt {
                Ok(answer) => match answer.value {
                    Converted::Granted(granted) => return self.begin(&answer, granted, wants),
                    // The server refuses no pass to the same side. So the ticket names the wrong mode, and the drop of
                    // this value releases its hold.
                    Converted::Refused | Converted::Cached => return Err(self.key.loss(LossReason::Gone)),
                    Converted::Lost { forced } => {
                        // No copy of the request can change that.
                        self.is_settled = true;
                        return Err(self.key.loss(loss_reason(self.token, forced)));
                    }
                    Converted::Late => Failure::NotDone { source: None },
                },
                Err(failure) => failure,
            };
            // The server executed a part of the script, or too few replicas have the new hold.
            let is_unknown = matches!(failure, Failure::Broken { .. } | Failure::Unreplicated { .. });
            if let Some(error) = tries.verdict(&engine, &key, failure) {
                // If no copy was or can be executed, the ticket stays as it was.
                self.is_settled = self.copies.is_none() && !is_unknown;
                return Err(error);
            }
            tries.backoff.wait().await;
        }
    }

    /// Puts the new hold into its cell.
    fn begin(&mut self, answer: &Answered<Converted>, granted: Granted, wants: ShareRequest) -> Result<Held> {
        let (engine, now) = (&self.engine, self.engine.now());
        let granted = new_hold(engine, &self.request, answer, granted, wants.from(answer.sent), self.copies);
        let Some((hold, share_id)) = engine.table.adopt(&self.key, granted, now) else {
            return Err(self.key.loss(LossReason::Expired));
        };
        self.is_settled = true;
        let held = Held::new(engine, hold, share_id);
        check_still_open(engine, &self.key, Some(&held))?;
        let hold = held.hold();
        // The server may have a note of an earlier guard.
        hold.set_noted(engine.scheme.notes().is_some());
        hold.count();
        hold.begin_span();
        events::log_passage(self.key.name(), hold.mode(), hold.token(), "adopted");
        Ok(held)
    }
}

impl Drop for Adopting {
    fn drop(&mut self) {
        if self.is_settled || self.engine.is_copied() {
            return;
        }
        let (engine, now) = (&self.engine, self.engine.now());
        self.copies.abandon_all(now.after(engine.max_delay()));
        let arrives_until = self.copies.arrives_until();
        let release = |id: &AcquisitionId, span: Duration, from: Moment| Release {
            key: Arc::clone(&self.key),
            id: id.clone(),
            server_until: from.after(lease::surely_over(span, engine.options().max_clock_skew)),
            arrives_until,
            rest_until: None,
        };
        engine.keep_running();
        engine.releases.in_background(release(&self.ticket, self.valid_for, now), None);
        let last = arrives_until.unwrap_or(now).max(now);
        engine.releases.in_background(release(&self.request.id, self.request.lease, last), None);
    }
}
