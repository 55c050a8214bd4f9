//! An acquisition takes a share that another task has handed over, or that the server has granted.

use std::sync::Arc;

use super::pending::Silence;
use super::{Acquisition, LocalSignal, Patience};
use crate::base::error::{LossReason, Result};
use crate::engine::Held;
use crate::lock::hold::{Accepted, HoldState};
use crate::lock::side::SideOutage;
use crate::lock::wait::WaitEntry;
use crate::store::{Failure, Mode};

impl Acquisition {
    /// Does what a waiter was woken for. Returns `None` if it may send requests, or waits again.
    pub(super) async fn on_signal(&mut self, signal: LocalSignal) -> Result<Option<Held>> {
        // An outage that the leader has seen continues for this waiter, so its time limit does not start again.
        let (outage, now) = (self.outage(), self.engine.now());
        self.waiter.tries.since = outage.map_or(now, |outage| outage.since.max(self.tries.since));
        match signal {
            LocalSignal::Ask => Ok(None),
            LocalSignal::Handed(held) => {
                if self.mode == Mode::Write {
                    self.note_kept_out(now);
                }
                self.accept(held).await
            }
            // Always an error, since waiters share no failure that is worth another try.
            LocalSignal::Failed(failure) => {
                self.waiter.tries.on_failure(&self.waiter.engine, &self.waiter.key, failure).await?;
                Ok(None)
            }
        }
    }

    /// Takes a share. If too little of the lease is left, it waits for the answer to a renewal first. If the hold ends before,
    /// the acquisition waits again, and a try sends a request. If the future is dropped, the share is released.
    pub(super) async fn accept(&mut self, held: Held) -> Result<Option<Held>> {
        let (since, mut underway, mut was_late) = (self.engine.now(), None, false);
        let (hold, share_id) = (Arc::clone(held.hold()), held.share_id());
        self.share = Some(held);
        loop {
            let now = self.engine.now();
            let Some(waiter_id) = self.entry.as_ref().map(WaitEntry::waiter_id) else { return Ok(self.share.take()) };
            match hold.accept(waiter_id, (share_id, self.wants.from(now)), since, now) {
                Accepted::Taken(token) => {
                    if was_late {
                        self.on_first_answer(now);
                    }
                    self.last_failure = None;
                    self.waiter.entry = None;
                    return Ok(self.share.take().map(|held| held.with_token(token)));
                }
                Accepted::Over => {
                    // If an answer has ended the hold, the server is not silent.
                    if hold.state_of(share_id) != HoldState::Lost(LossReason::Expired) {
                        self.last_failure = None;
                    }
                    let held = self.share.take();
                    match self.patience {
                        Patience::Wait => self.wait_again(),
                        Patience::AskOnce => {
                            // Its own share must not refuse the try.
                            drop(held);
                            self.waiter.enter_again();
                        }
                    }
                    return Ok(None);
                }
                Accepted::Short { until, is_late } => {
                    // The limit waits for this answer, as for the answer to an acquisition.
                    if underway.is_none() && self.limit.is_some() {
                        underway = self.begin_underway();
                        // Nobody else is inside. If the limit comes before the answer, the server is silent.
                        self.last_failure = Some((since, Arc::new(Silence)));
                    }
                    if is_late {
                        was_late = true;
                        self.renewal_is_late()?;
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

    /// Records that the renewal for which it waits has no answer. Fails after `unreachable_after`.
    pub(super) fn renewal_is_late(&self) -> Result<()> {
        if let Some(entry) = &self.entry {
            entry.on_outage(Some(SideOutage { since: self.tries.since, source: None }));
        }
        // The cause is known to the background, which sends the renewal.
        let silence = Failure::NotDone { source: self.outage().and_then(|outage| outage.source) };
        self.tries.verdict(&self.engine, &self.key, silence).map_or(Ok(()), Err)
    }
}
