//! Release of a guard: the next waiter of its process takes the hold, or the server is notified.

use std::sync::Arc;

use crate::base::error::{Error, LossReason, Result};
use crate::base::events::{self, Loss};
use crate::base::lease::Moment;
use crate::engine::tries::Tries;
use crate::engine::{Engine, in_runtime};
use crate::lock::hold::{Hold, ShareId, ShareRemoved};
use crate::lock::release::Release;
use crate::store::{Absence, Answered, Failure, ReleaseReply, loss_reason};

impl Engine {
    fn remove_share(&self, hold: &Hold, share_id: ShareId, now: Moment) -> ShareRemoved {
        let (removed, due) = hold.remove_share(share_id, now);
        self.carry_out(due, now);
        if let ShareRemoved::HandedOver(next) = removed {
            events::handed_off(hold.key().name(), next.token);
        }
        removed
    }

    /// Caches a valid hold whose last guard leaves. Returns false if there is more to do.
    fn cache(&self, hold: &Hold, share_id: ShareId) -> bool {
        if !self.can_cache() {
            return false;
        }
        let now = self.clock.now();
        let rests = hold.cache(share_id, now);
        let is_over = rests.is_some();
        if let Some(due) = rests.filter(|due| !due.0.is_empty()) {
            self.carry_out(due, now);
        }
        is_over
    }

    /// Gives a dropped guard's share back.
    #[inline]
    pub(super) fn guard_dropped(&self, hold: &Arc<Hold>, share_id: ShareId) {
        if let Some(due) = hold.leave_quietly(share_id) {
            if !due.0.is_empty() {
                self.carry_out(due, self.clock.now());
            }
            return;
        }
        let _unsettled = self.releases.unsettled();
        let removed = self.remove_share(hold, share_id, self.clock.now());
        self.releases.has_changed_hold();
        match removed {
            ShareRemoved::Shared | ShareRemoved::HandedOver(_) | ShareRemoved::Kept | ShareRemoved::Lost(_) => {}
            ShareRemoved::Last | ShareRemoved::LastLate(_) => {
                self.note_cache_outcome(hold);
                self.release_from_here(hold);
            }
        }
    }

    /// Gives a guard's share back and waits for the server's answer.
    pub(super) async fn release(&self, hold: &Arc<Hold>, share_id: ShareId) -> Result<()> {
        let lost = |reason| Error::Lost { lock: hold.key().shared_name(), reason };
        if self.cache(hold, share_id) {
            return Ok(());
        }
        in_runtime().inspect_err(|_| self.guard_dropped(hold, share_id))?;
        let began = self.clock.now();
        // Dropped after `goes_on`.
        let _unsettled = self.releases.unsettled();
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
        self.renewals.forget(hold);
        let (release, conversion) = Release::all_of(hold, began);
        // If this future is dropped or gets no answer, the background continues.
        let mut goes_on = GoesOn { engine: self, hold: Some(hold), conversion };
        // When the server has surely forgotten the hold, there is nothing left to release.
        let patience = self.options().unreachable_after.min(release.server_until.since(began));
        let mut tries = Tries::new(began, patience);
        let told = self.told(hold, &release, &mut tries).await?;
        if release.arrives_after(told.answer.sent).is_none() {
            goes_on.hold = None;
            self.table.on_end(hold);
        }
        match told.answer.value {
            ReleaseReply::Held => Ok(()),
            // The new primary lacked the last writes: it knows that the acquisition waited, and nothing of its grant.
            ReleaseReply::Queued => Err(lost(self.found_lost(hold, share_id, LossReason::Gone))),
            ReleaseReply::None(absence) => {
                let in_time = self.clock.now() < hold.deadline();
                if let Some(conversion) = goes_on.conversion.clone() {
                    let new = Box::pin(self.told(hold, &conversion, &mut tries)).await?.answer;
                    if conversion.arrives_after(new.sent).is_none() {
                        goes_on.conversion = None;
                    }
                    // The hold had been converted, and was ours as the new one.
                    if new.value == ReleaseReply::Held {
                        return Ok(());
                    }
                }
                judge_absence(hold, share_id, absence, told.in_doubt && in_time)
                    .map_err(|reason| lost(self.found_lost(hold, share_id, reason)))
            }
        }
    }

    /// Reports a loss from before the release that was not reported yet.
    fn found_lost(&self, hold: &Hold, share_id: ShareId, reason: LossReason) -> LossReason {
        let held = self.clock.now().since(hold.began());
        self.table.meter().lost(hold.mode(), reason);
        events::lost(hold.key().name(), &Loss { mode: hold.mode(), token: share_id.token, reason, held });
        reason
    }

    /// Sends a release until it is answered.
    async fn told(&self, hold: &Arc<Hold>, release: &Release, tries: &mut Tries) -> Result<ReleaseAnswer> {
        let mut in_doubt = false;
        loop {
            let failure = match self.releases.send_once(release).await {
                Ok(answer) => return Ok(ReleaseAnswer { answer, in_doubt }),
                Err(failure) => failure,
            };
            in_doubt |= !matches!(failure, Failure::NotDone { .. });
            // Local waiters ask for themselves, so that they see the outage too.
            self.table.on_end(hold);
            Box::pin(tries.on_failure(self, hold.key(), failure)).await?;
        }
    }

    /// Sends the release in the background, while no caller waits for it.
    pub(crate) fn release_in_background(&self, hold: &Arc<Hold>) {
        self.renewals.forget(hold);
        self.keep_running();
        self.releases.give_back(hold, Some(Arc::clone(hold)), self.clock.now());
    }

    /// Sends the release of a dropped guard from this runtime, if that can send at once, or in the background.
    fn release_from_here(&self, hold: &Arc<Hold>) {
        self.renewals.forget(hold);
        self.keep_running();
        self.releases.give_back_from_here(hold, self.clock.now());
    }
}

/// Judges a release of a hold that the server does not know. An earlier copy of the release without an answer may have
/// ended it. It has if the server has remembered the lock all the while. Then only a release, a force or the end of its
/// lease can have ended the hold, and the local clock excludes the last. Otherwise the server has lost it, before or
/// after that copy: others may have been inside.
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
    /// True if an earlier copy went unanswered.
    in_doubt: bool,
}

/// Hands a release to the background unless it was completed.
struct GoesOn<'a> {
    engine: &'a Engine,
    hold: Option<&'a Arc<Hold>>,
    /// Release of the hold that this one may have been converted into.
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
