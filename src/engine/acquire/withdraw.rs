//! An acquisition is given up: its caller is told so when nothing of it can be granted any more.
//!
//! A request that was sent may be carried out behind the `leave` that takes it back: that was answered `none`, and then the
//! request brings a place, or a hold. So the caller hears of its limit when each copy of the request was answered before the
//! `leave` was sent, or can surely not be carried out behind it any more; for a copy without an answer the `leave` is repeated
//! until then. Without an answer in time the caller is told that, and the background goes on.

use std::sync::Arc;

use super::{Acquisition, at};
use crate::base::backoff::Backoff;
use crate::base::lease::{self, Moment};
use crate::engine::releases::Unsettled;
use crate::engine::{Engine, Held};
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::shares::ShareId;
use crate::lock::side::Pending;
use crate::store::Failure;

/// Whether anything of an acquisition that was given up may yet be granted.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Withdrawn {
    /// The server has nothing of it, and nothing is on its way there.
    Surely,
    /// Something may yet be granted, until its lease is over.
    Perhaps,
}

/// Place or share that an acquisition gives back when it ends without a guard.
pub(super) struct Left {
    pending: Option<Pending>,
    handed: Option<(Arc<Hold>, ShareId)>,
}

impl Acquisition<'_> {
    /// Whether there is nothing to take back, as far as the server is concerned.
    pub(super) fn has_left_nothing(&self) -> bool {
        self.entry.as_ref().is_none_or(|entry| !entry.has_traces())
    }

    /// Gives the place in this process up. What is under way goes to the next waiter here, if there is one that may go on with it:
    /// then nothing of it is to be taken back.
    pub(super) fn leave(&mut self) -> Option<Left> {
        let entry = self.entry.take()?;
        let now = self.engine.clock.now();
        let leaving = entry.leave(std::mem::take(&mut self.notices), self.tries.backoff, now);
        let pending = leaving.pending.and_then(|mut pending| {
            if pending.is_unknown_to_server() {
                drop(self.engine.releases.unsettled_of(&mut pending));
                return None;
            }
            Some(pending)
        });
        (pending.is_some() || leaving.handed.is_some()).then_some(Left { pending, handed: leaving.handed })
    }

    /// Gives back in the background what was left.
    pub(super) fn give_back(&self, left: Left) {
        if let Some(pending) = left.pending {
            self.cancel(pending);
        }
        if let Some((hold, share_id)) = left.handed {
            drop(Held::new(self.engine, hold, share_id));
        }
    }

    /// Gives the place up and waits until the server has nothing of it, until `answer_by` at most. Dropped, or without an answer by
    /// then, the background goes on.
    pub(super) async fn withdraw(&mut self, answer_by: Moment) -> Withdrawn {
        let engine = self.engine;
        let unarmed = self.take_unarmed();
        let left = self.leave().or_else(|| unarmed.is_some().then_some(Left { pending: None, handed: None }));
        if let Some(Left { pending, handed }) = left {
            let handed = handed.map(|(hold, share_id)| Held::new(engine, hold, share_id));
            let withdrawing = pending.map(|mut pending| Withdrawing {
                engine,
                release: Some(self.release_of(&pending)),
                _unsettled: engine.releases.unsettled_of(&mut pending),
            });
            let given_back = async {
                let mut is_released = true;
                for held in unarmed.into_iter().chain(handed) {
                    is_released &= held.release().await.is_ok();
                }
                match withdrawing {
                    Some(mut withdrawing) if is_released => withdrawing.tell().await,
                    None if is_released => Withdrawn::Surely,
                    _ => Withdrawn::Perhaps,
                }
            };
            let withdrawn = tokio::select! {
                biased;
                withdrawn = given_back => withdrawn,
                () = at(engine, answer_by) => Withdrawn::Perhaps,
            };
            if withdrawn == Withdrawn::Perhaps {
                return Withdrawn::Perhaps;
            }
        }
        match self.earlier_until {
            Some(until) if until > engine.clock.now() => Withdrawn::Perhaps,
            _ => Withdrawn::Surely,
        }
    }

    /// Returns the release that takes back a request which comes to nothing.
    pub(super) fn release_of(&self, pending: &Pending) -> Release {
        let now = self.engine.clock.now();
        let arrives_until = pending.copies.until(now.after(self.engine.max_delay()));
        let covers =
            lease::surely_over(self.wants.lease.min(self.wants.max_hold), self.engine.options().max_clock_skew);
        Release {
            key: Arc::clone(&self.key),
            id: pending.id.clone(),
            server_until: arrives_until.unwrap_or(now).max(now).after(covers),
            arrives_until,
            rest_until: None,
        }
    }
}

/// A request that is being taken back where its caller waits. Dropped before that was answered, the background goes on.
struct Withdrawing<'a> {
    engine: &'a Engine,
    /// Present until the server has nothing of it.
    release: Option<Release>,
    /// Given up after what goes on has been counted.
    _unsettled: Option<Unsettled>,
}

impl Withdrawing<'_> {
    /// Tells the server until no copy of the request can be carried out behind an answered `leave`.
    async fn tell(&mut self) -> Withdrawn {
        let (engine, mut backoff) = (self.engine, Backoff::new());
        while let Some(release) = &self.release {
            match engine.releases.send_once(release).await {
                Ok(answer) => match release.arrives_after(answer.sent) {
                    Some(until) => at(engine, until).await,
                    None => self.release = None,
                },
                Err(Failure::Unknown { .. } | Failure::NotDone { .. }) => backoff.wait().await,
                // Repeated at once it would be refused again.
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
