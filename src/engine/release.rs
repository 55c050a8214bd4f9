//! Release of a guard. If other guards or writers of this process need the hold, it stays. Otherwise the manager caches
//! the hold, or sends its release to the server.

use std::sync::Arc;

use crate::base::error::{LossReason, Result};
use crate::base::events::{self, Loss};
use crate::base::lease::Moment;
use crate::engine::tries::Tries;
use crate::engine::{Engine, in_runtime};
use crate::lock::hold::{Hold, ShareId, ShareRemoved};
use crate::lock::release::Release;
use crate::store::{Absence, Answered, Failure, ReleaseReply, loss_reason};

impl Engine {
    fn remove_share(&self, hold: &Hold, share_id: ShareId, now: Moment) -> ShareRemoved {
        let removed = hold.remove_share(share_id, now);
        if let ShareRemoved::HandedOver(next) = removed {
            events::handed_off(hold.key().name(), next.token);
        }
        removed
    }

    /// Gives back the last share of a valid hold and caches the hold. Returns false if the hold cannot be cached. The
    /// share is then unchanged, and the caller must release it.
    fn cache(&self, hold: &Hold, share_id: ShareId) -> bool {
        self.can_cache() && hold.cache(share_id, self.now())
    }

    /// Gives back the share of a dropped guard.
    #[inline]
    pub(super) fn guard_dropped(&self, hold: &Arc<Hold>, share_id: ShareId) {
        if hold.leave_quietly(share_id) {
            return;
        }
        let _unsettled = self.releases.begin_unsettled();
        let removed = self.remove_share(hold, share_id, self.now());
        self.releases.has_changed_hold();
        match removed {
            ShareRemoved::Shared | ShareRemoved::HandedOver(_) | ShareRemoved::Kept | ShareRemoved::Lost(_) => {}
            ShareRemoved::Last | ShareRemoved::LastLate(_) => {
                self.note_cache_outcome(hold);
                self.release_from_here(hold);
            }
        }
    }

    /// Gives back the share of a guard. If the hold ends with this share, waits for the server's answer to the release.
    pub(super) async fn release(&self, hold: &Arc<Hold>, share_id: ShareId) -> Result<()> {
        let lost = |reason| hold.key().loss(reason);
        if self.cache(hold, share_id) {
            return Ok(());
        }
        in_runtime().inspect_err(|_| self.guard_dropped(hold, share_id))?;
        let began = self.now();
        // Declared before `goes_on`, so it is dropped after `goes_on`. So the operation counts as in progress until the
        // background has the release.
        let _unsettled = self.releases.begin_unsettled();
        let removed = self.remove_share(hold, share_id, began);
        self.releases.has_changed_hold();
        match removed {
            ShareRemoved::Shared | ShareRemoved::HandedOver(_) | ShareRemoved::Kept => return Ok(()),
            ShareRemoved::Lost(reason) => return Err(lost(reason)),
            ShareRemoved::LastLate(reason) => {
                self.release_in_background(hold);
                return Err(lost(reason));
            }
            ShareRemoved::Last => {}
        }
        self.note_cache_outcome(hold);
        self.table.deadlines.forget(hold);
        let (release, conversion) = Release::all_of(hold, began);
        // If this future is dropped or the server does not answer, the drop of `goes_on` hands the release to the
        // background.
        let mut goes_on = GoesOn { engine: self, hold: Some(hold), conversion };
        // The retries end when the lease is surely over on the server, because nothing is left to release then.
        let retry_for = self.options().unreachable_after.min(release.server_until.since(began));
        let mut tries = Tries::new(began, retry_for);
        let told = self.told(hold, &release, &mut tries).await?;
        if release.arrives_after(told.answer.sent).is_none() {
            goes_on.hold = None;
            self.table.on_end(hold);
        }
        match told.answer.value {
            ReleaseReply::Held => Ok(()),
            // The server still had the acquisition as a waiter. So a failover promoted a replica that lacks the later
            // grant, and the hold was lost.
            ReleaseReply::Queued => Err(lost(self.found_lost(hold, share_id, LossReason::Gone))),
            ReleaseReply::None(absence) => {
                let in_time = self.now() < hold.deadline();
                if let Some(conversion) = goes_on.conversion.clone() {
                    let new = Box::pin(self.told(hold, &conversion, &mut tries)).await?.answer;
                    if conversion.arrives_after(new.sent).is_none() {
                        goes_on.conversion = None;
                    }
                    // The server has executed the conversion, so this process held the lock until this release.
                    if new.value == ReleaseReply::Held {
                        return Ok(());
                    }
                }
                judge_absence(hold, share_id, absence, told.in_doubt && in_time)
                    .map_err(|reason| lost(self.found_lost(hold, share_id, reason)))
            }
        }
    }

    /// Counts and logs a loss that was noticed only at the release.
    fn found_lost(&self, hold: &Hold, share_id: ShareId, reason: LossReason) -> LossReason {
        let held = self.now().since(hold.began());
        self.table.metrics().count_loss(hold.mode(), reason);
        events::log_loss(hold.key().name(), &Loss { mode: hold.mode(), token: share_id.token, reason, held });
        reason
    }

    /// Sends a release until a server answers it.
    async fn told(&self, hold: &Arc<Hold>, release: &Release, tries: &mut Tries) -> Result<ReleaseAnswer> {
        let mut in_doubt = false;
        loop {
            let failure = match self.releases.send_once(release).await {
                Ok(answer) => return Ok(ReleaseAnswer { answer, in_doubt }),
                Err(failure) => failure,
            };
            in_doubt |= !matches!(failure, Failure::NotDone { .. });
            // Local waiters must no longer wait for this release. They send their own requests, and so notice the
            // outage themselves.
            self.table.on_end(hold);
            Box::pin(tries.on_failure(self, hold.key(), failure)).await?;
        }
    }

    /// Hands the release of a hold to the background, and does not wait for it.
    pub(crate) fn release_in_background(&self, hold: &Arc<Hold>) {
        self.table.deadlines.forget(hold);
        self.keep_running();
        self.releases.give_back(hold, Some(Arc::clone(hold)), self.now());
    }

    /// Sends the release of a dropped guard. If the current runtime has a connection that can send at once, it sends
    /// the release. Otherwise the background sends it.
    pub(super) fn release_from_here(&self, hold: &Arc<Hold>) {
        self.table.deadlines.forget(hold);
        self.keep_running();
        self.releases.give_back_from_here(hold, self.now());
    }
}

/// Decides why the server does not know a hold at its release. Either the hold was lost, or an earlier copy of the
/// release ended it and got no reply.
///
/// If the server has kept its record of the lock since the grant, only three events can have ended the hold: a release,
/// a force, and the end of the lease. The reply excludes a force, and the local clock excludes the end of the lease. So
/// the earlier copy of the release ended the hold. If the server has lost its record, others may have held the lock, so
/// the hold counts as lost.
fn judge_absence(hold: &Hold, share_id: ShareId, absence: Absence, may_be_ours: bool) -> Result<(), LossReason> {
    let (first, last) = hold.tokens();
    match loss_reason(share_id.token, absence.forced) {
        LossReason::Gone if may_be_ours && absence.has_known(first, last) => Ok(()),
        reason => Err(reason),
    }
}

/// Answer of the server to a release.
struct ReleaseAnswer {
    answer: Answered<ReleaseReply>,
    /// True if an earlier copy of the release got no reply, so the server may have executed it.
    in_doubt: bool,
}

/// Release in progress. Its drop hands the release to the background, unless the release was completed.
struct GoesOn<'a> {
    engine: &'a Engine,
    hold: Option<&'a Arc<Hold>>,
    /// Release of the hold that an in-doubt conversion may have created.
    conversion: Option<Release>,
}

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        if self.engine.is_copied() {
            return;
        }
        if let Some(hold) = self.hold.take() {
            self.engine.release_in_background(hold);
        }
        if let Some(release) = self.conversion.take() {
            self.engine.keep_running();
            self.engine.releases.in_background(release, None);
        }
    }
}
