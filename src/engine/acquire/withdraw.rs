//! Withdrawal of an acquisition that is given up. Its caller gets the error when the server can grant nothing of it any more.
//!
//! The server may carry out a request after the `leave` that withdraws it. The `leave` is then answered `none`, and the
//! request later brings a place or a hold. So the caller gets its error when each copy of the request was answered before
//! the `leave` was sent, or is too late for the server. While a copy may still arrive, a caller whose `leave` is answered
//! waits for the end of that time, and the `leave` is sent again. Without an answer in time the error says so, and the
//! background continues.

use std::sync::Arc;

use super::Acquisition;
use super::limits::{at, withdrawal_span};
use super::local::LocalWaiter;
use crate::base::backoff::Backoff;
use crate::base::lease::{self, Moment};
use crate::engine::releases::Unsettled;
use crate::engine::{Engine, Held};
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::shares::ShareId;
use crate::lock::side::Pending;
use crate::lock::wait::Notifications;
use crate::store::Failure;

/// Tells whether the server may still grant an acquisition that was given up.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Withdrawn {
    /// The server has no hold and no place of it, and no request is in doubt.
    Surely,
    /// The server may still grant it, until the lease is over.
    Perhaps,
}

/// Request and share that an acquisition leaves when it ends without a guard.
pub(super) struct Left {
    pending: Option<Pending>,
    handed: Option<(Arc<Hold>, ShareId)>,
}

impl LocalWaiter {
    /// Returns true if the server can have no hold and no place of this acquisition.
    pub(super) fn has_left_nothing(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| !entry.has_traces())
    }

    /// Removes the entry. The next waiter of this process continues the request, if there is one that may. Then nothing is
    /// left to withdraw.
    fn leave(&mut self, notices: Notifications) -> Option<Left> {
        let entry = self.entry.take()?;
        let now = self.engine.now();
        let leaving = entry.leave(notices, self.tries.backoff, now);
        let pending = leaving.pending.and_then(|mut pending| {
            if pending.is_unknown_to_server() {
                drop(self.engine.releases.unsettled_of(&mut pending));
                return None;
            }
            Some(pending)
        });
        (pending.is_some() || leaving.handed.is_some()).then_some(Left { pending, handed: leaving.handed })
    }

    /// Withdraws the request and releases the share in the background.
    fn give_back(&self, left: Left) {
        if let Some(pending) = left.pending {
            self.cancel(pending);
        }
        if let Some((hold, share_id)) = left.handed {
            drop(Held::new(&self.engine, hold, share_id));
        }
    }

    /// Withdraws a request in the background. Returns the moment until which the server may have a hold or a place of it.
    pub(super) fn cancel(&self, mut pending: Pending) -> Option<Moment> {
        // Declared first, so that the release is counted before the request stops to count.
        let _unsettled = self.engine.releases.unsettled_of(&mut pending);
        if pending.is_unknown_to_server() {
            return None;
        }
        let release = self.release_of(&pending);
        let server_until = release.server_until;
        self.engine.releases.take_back_from_here(release, self.engine.now());
        Some(server_until)
    }

    /// Withdraws the request in progress, if there is one. Returns what [`cancel`](Self::cancel) does.
    pub(super) fn cancel_pending(&self) -> Option<Moment> {
        self.cancel(self.entry.as_ref()?.give_up_pending()?)
    }

    /// Removes the entry, with its request and its share, unless they belong to the parent process.
    pub(super) fn abandon(&mut self, notices: Notifications) {
        if self.entry.is_none() {
            return;
        }
        if self.engine.is_copied() {
            std::mem::forget(self.entry.take());
            return;
        }
        if let Some(left) = self.leave(notices) {
            self.give_back(left);
        }
    }

    /// Returns the release that withdraws a request.
    pub(super) fn release_of(&self, pending: &Pending) -> Release {
        let now = self.engine.now();
        let arrives_until = pending.copies.until(now.after(self.engine.max_delay()));
        let covers = lease::surely_over(self.lease(), self.engine.options().max_clock_skew);
        Release {
            key: Arc::clone(&self.key),
            id: pending.id.clone(),
            server_until: arrives_until.unwrap_or(now).max(now).after(covers),
            arrives_until,
            rest_until: None,
        }
    }
}

impl Acquisition {
    /// Removes the entry and waits until the request is withdrawn. Without an answer by `answer_by`, or if the future is
    /// dropped, the background continues.
    pub(super) async fn withdraw(&mut self, answer_by: Moment) -> Withdrawn {
        let engine = &Arc::clone(&self.engine);
        let untaken = self.share.take();
        let left = self
            .waiter
            .leave(std::mem::take(&mut self.notices))
            .or_else(|| untaken.is_some().then_some(Left { pending: None, handed: None }));
        if let Some(Left { pending, handed }) = left {
            let handed = handed.map(|(hold, share_id)| Held::new(engine, hold, share_id));
            let withdrawing = pending.map(|mut pending| Withdrawing {
                engine,
                release: Some(self.release_of(&pending)),
                _unsettled: engine.releases.unsettled_of(&mut pending),
            });
            let released = async {
                let mut is_released = true;
                for held in untaken.into_iter().chain(handed) {
                    is_released &= held.release().await.is_ok();
                }
                is_released
            };
            let is_released = tokio::select! {
                biased;
                is_released = released => is_released,
                () = at(engine, answer_by) => false,
            };
            if !is_released {
                return Withdrawn::Perhaps;
            }
            if let Some(mut withdrawing) = withdrawing
                && withdrawing.tell(answer_by).await == Withdrawn::Perhaps
            {
                return Withdrawn::Perhaps;
            }
        }
        match self.earlier_until {
            Some(until) if until > engine.now() => Withdrawn::Perhaps,
            _ => Withdrawn::Surely,
        }
    }
}

/// Withdrawal that the caller waits for. If it is dropped before the answer, the background continues.
struct Withdrawing<'a> {
    engine: &'a Engine,
    /// Present until the withdrawal is answered.
    release: Option<Release>,
    /// Dropped after the release that continues is counted.
    _unsettled: Option<Unsettled>,
}

impl Withdrawing<'_> {
    /// Sends the `leave` until it is answered and no copy of the request can come after it. Each answer is one more reason
    /// to wait: for the last moment at which a copy may arrive, and for the answer to one more `leave`.
    async fn tell(&mut self, mut answer_by: Moment) -> Withdrawn {
        let (engine, mut backoff) = (self.engine, Backoff::new());
        while let Some(release) = &self.release {
            let answer = tokio::select! {
                biased;
                answer = engine.releases.send_once(release) => answer,
                () = at(engine, answer_by) => return Withdrawn::Perhaps,
            };
            match answer {
                Ok(answer) => match release.arrives_after(answer.sent) {
                    Some(until) => {
                        at(engine, until).await;
                        answer_by = answer_by.max(until.after(withdrawal_span(engine)));
                    }
                    None => self.release = None,
                },
                // A request may fail at once, so the limit is looked at in the pause too.
                Err(Failure::Unknown { .. } | Failure::NotDone { .. }) => tokio::select! {
                    biased;
                    () = at(engine, answer_by) => return Withdrawn::Perhaps,
                    () = backoff.wait() => {}
                },
                // The server would refuse a repeat, too.
                Err(Failure::Refused { .. } | Failure::Broken { .. } | Failure::Unreplicated { .. }) => {
                    return Withdrawn::Perhaps;
                }
            }
        }
        Withdrawn::Surely
    }
}

impl Drop for Withdrawing<'_> {
    fn drop(&mut self) {
        if let Some(release) = self.release.take() {
            self.engine.releases.in_background(release, None);
        }
    }
}
