//! An acquisition takes a share that was handed to it, by a grant of the server or by another task.

use std::sync::Arc;

use super::limits::{GivesUp, WaitEnd, at, withdrawal_span};
use super::local::{HandedHold, LocalWaiter};
use super::request::Silence;
use super::{Acquisition, Patience, Taken};
use crate::base::error::{LossReason, Result};
use crate::base::events;
use crate::base::lease::Moment;
use crate::engine::tries::Tries;
use crate::engine::{Engine, Held};
use crate::lock::hold::{Accepted, HoldState};
use crate::lock::shares::Share;
use crate::lock::side::SideOutage;
use crate::lock::wait::FirstGrant;
use crate::store::Failure;

impl Acquisition {
    /// Takes a share. A limit waits for the answer to the renewal that the share may need.
    pub(super) async fn take_handed(&mut self, HandedHold { held, grant }: HandedHold) -> Result<Taken> {
        // An outage that the requester has seen continues for this waiter, so its time limit does not start again.
        let (outage, now) = (self.outage(), self.engine.now());
        self.waiter.silent_since = outage.map_or(now, |outage| outage.since.max(self.silent_since));
        let refusal = grant.as_ref().and_then(|grant| grant.refusal.as_ref());
        self.kept_out_by = self.waiter.kept_out_by(refusal, now).map(Box::new);
        if let Some(FirstGrant { is_notified, .. }) = grant {
            let passage = if is_notified { "granted by notification" } else { "granted" };
            events::log_passage(self.key.name(), self.mode, held.share_id().token, passage);
        }
        if let Some(FirstGrant { share, enough_until, .. }) = grant
            && now <= enough_until
        {
            return Ok(self.take_granted(held, share, now));
        }
        let (engine, limit) = (Arc::clone(&self.engine), self.limit);
        tokio::select! {
            biased;
            taken = self.accept(held) => taken,
            given_up = unrenewed(&engine, limit) => {
                // No other process keeps this acquisition out, so the server is silent.
                let silence = SideOutage::new(now, Some(Arc::new(Silence)));
                Ok(Taken::GivesUp(Box::new(GivesUp { outage: Some(silence), ..given_up })))
            }
        }
    }

    /// Takes a share of a hold whose grant has enough time for it.
    fn take_granted(&mut self, held: Held, share: Share, now: Moment) -> Taken {
        match held.hold().accept_granted((held.share_id(), share), now) {
            Accepted::Taken(token) => {
                self.waiter.entry = None;
                Taken::Guard(held.with_token(token))
            }
            Accepted::Over | Accepted::Short { .. } => self.enter_after(held),
        }
    }

    /// Waits again after the end of a share.
    fn enter_after(&mut self, held: Held) -> Taken {
        match self.patience {
            Patience::Wait => self.waiter.wait_again(),
            Patience::AskOnce => {
                // Its own share must not refuse the try.
                drop(held);
                self.waiter.enter_again();
            }
        }
        Taken::Nothing
    }

    /// Takes a share. If too little of the lease is left, it waits for the answer to a renewal first. If the hold ends before,
    /// the acquisition waits again, and a try asks again. If the future is dropped, the share is released.
    async fn accept(&mut self, held: Held) -> Result<Taken> {
        let (since, mut was_late) = (self.engine.now(), false);
        let (hold, share_id) = (Arc::clone(held.hold()), held.share_id());
        let waiter_id = self.waiter.waiter_id();
        self.share = Some(held);
        loop {
            let now = self.engine.now();
            match hold.accept(waiter_id, (share_id, self.wants.from(now)), since, now) {
                Accepted::Taken(token) => {
                    if was_late {
                        self.waiter.on_answer(now);
                    }
                    self.waiter.entry = None;
                    let held = self.share.take().expect("put there above");
                    return Ok(Taken::Guard(held.with_token(token)));
                }
                Accepted::Over => {
                    // If an answer has ended the hold, the server is not silent.
                    if hold.state_of(share_id) != HoldState::Lost(LossReason::Expired) {
                        self.waiter.silent_since = now;
                    }
                    let held = self.share.take().expect("put there above");
                    return Ok(self.enter_after(held));
                }
                Accepted::Short { until, is_late } => {
                    if is_late {
                        was_late = true;
                        self.waiter.renewal_is_late()?;
                    }
                    tokio::select! {
                        biased;
                        true = self.engine.renew_from_here(&hold) => {}
                        () = hold.renewal_answered(waiter_id, until) => {}
                    }
                }
            }
        }
    }
}

impl LocalWaiter {
    /// Records that the server has answered a renewal for which it waited.
    pub(super) fn on_answer(&mut self, now: Moment) {
        self.silent_since = now;
        if let Some(entry) = &self.entry {
            entry.on_outage(None);
        }
    }

    /// Records that the renewal for which it waits has no answer. Fails after `unreachable_after`.
    pub(super) fn renewal_is_late(&self) -> Result<()> {
        if let Some(entry) = &self.entry {
            entry.on_outage(Some(SideOutage::new(self.silent_since, None)));
        }
        // The cause is known to the background, which sends the renewal.
        let silence = Failure::NotDone { source: self.outage().and_then(|outage| outage.source) };
        Tries::new(self.silent_since, self.bears()).verdict(&self.engine, &self.key, silence).map_or(Ok(()), Err)
    }
}

/// Resolves when the caller does not wait any longer for the answer to a renewal: two response timeouts after the limit, or
/// from now on if the limit has passed, or when the manager is closed.
pub(super) async fn unrenewed(engine: &Engine, limit: Option<Moment>) -> GivesUp {
    let until = limit.map_or(Moment::NEVER, |limit| limit.max(engine.now()).after(withdrawal_span(engine)));
    tokio::select! {
        biased;
        () = engine.closing.closed() => GivesUp::at_close(engine.now()),
        () = at(engine, until) => GivesUp { why: WaitEnd::Limit, at: until, outage: None, answer_by: until },
    }
}
