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
use crate::base::key::Key;
use crate::base::lease::{self, Moment};
use crate::engine::releases::Unsettled;
use crate::engine::{Engine, Held};
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::shares::ShareId;
use crate::lock::side::Pending;
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
    /// Moment until which the server may have something of an earlier request of the side.
    earlier_until: Option<Moment>,
}

impl LocalWaiter {
    /// Removes the entry. The request of the side stays if another waiter needs it. Then nothing is left to withdraw.
    fn leave(&mut self) -> Option<Left> {
        let entry = self.entry.take()?;
        let leaving = entry.leave(self.engine.now());
        let pending = leaving.pending.and_then(|mut pending| {
            if pending.is_unknown_to_server() {
                drop(self.engine.releases.unsettled_of(&mut pending));
                return None;
            }
            Some(pending)
        });
        Some(Left { pending, handed: leaving.handed, earlier_until: leaving.earlier_until })
    }

    /// Withdraws the request and releases the share in the background.
    fn give_back(&self, left: Left) {
        if let Some(pending) = left.pending {
            cancel(&self.engine, &self.key, pending);
        }
        if let Some((hold, share_id)) = left.handed {
            drop(Held::new(&self.engine, hold, share_id));
        }
    }

    /// Removes the entry, with its request and its share, unless they belong to the parent process.
    pub(super) fn abandon(&mut self) {
        if self.entry.is_none() {
            return;
        }
        if self.engine.is_copied() {
            std::mem::forget(self.entry.take());
            return;
        }
        if let Some(left) = self.leave() {
            self.give_back(left);
        }
    }
}

/// Withdraws a request in the background. Returns the moment until which the server may have a hold or a place of it.
pub(super) fn cancel(engine: &Engine, key: &Arc<Key>, mut pending: Pending) -> Option<Moment> {
    // Declared first, so that the release is counted before the request stops to count.
    let _unsettled = engine.releases.unsettled_of(&mut pending);
    if pending.is_unknown_to_server() {
        return None;
    }
    let release = release_of(engine, key, &pending);
    let server_until = release.server_until;
    engine.releases.take_back_from_here(release, engine.now());
    Some(server_until)
}

/// Returns the release that withdraws a request.
fn release_of(engine: &Engine, key: &Arc<Key>, pending: &Pending) -> Release {
    let now = engine.now();
    let arrives_until = pending.copies.until(now.after(engine.max_delay()));
    let covers = lease::surely_over(pending.copies.longest_lease(), engine.options().max_clock_skew);
    Release {
        key: Arc::clone(key),
        id: pending.id.clone(),
        server_until: arrives_until.unwrap_or(now).max(now).after(covers),
        arrives_until,
        rest_until: None,
    }
}

impl Acquisition {
    /// Removes the entry and waits until the request is withdrawn. Without an answer by `answer_by`, or if the future is
    /// dropped, the background continues.
    pub(super) async fn withdraw(&mut self, answer_by: Moment) -> Withdrawn {
        let engine = &Arc::clone(&self.engine);
        let untaken = self.share.take();
        let left = self.waiter.leave();
        let earlier_until = self.earlier_until.max(left.as_ref().and_then(|left| left.earlier_until));
        let (pending, handed) = left.map_or((None, None), |left| (left.pending, left.handed));
        if pending.is_some() || handed.is_some() || untaken.is_some() {
            let handed = handed.map(|(hold, share_id)| Held::new(engine, hold, share_id));
            let withdrawing = pending.map(|mut pending| Withdrawing {
                engine,
                release: Some(release_of(engine, &self.waiter.key, &pending)),
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
        match earlier_until {
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
