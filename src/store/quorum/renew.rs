//! Renewal at a majority of the masters, and repair of masters that lack the hold.
//!
//! A master may lack a hold for three reasons. An earlier release was on its way to the master, the master was
//! unreachable, or it came back without its data. When a majority has just renewed a hold, this manager acquires the
//! hold again at each master that lacks it. The answer to such an acquisition does not count for the renewal. A repair
//! does not save a lost hold: if a majority has lost the hold, no master is repaired. A master without a vote is
//! repaired too. This is safe, because the majority that has the hold refuses each conflicting hold.
//!
//! An operator may end a hold by force at a single master that has it. The hold is then over: the renewal that learns
//! of the force reports the loss, and no master is repaired any more. A master may also remember the force of an earlier
//! hold, with a higher token than the majority's if its clock is ahead. So a force counts only if the token that this
//! master gave to the hold is not above it. If a majority has lost the hold before the master of the force answers, the
//! loss does not name the force. A repair may already be on its way to a master. The master refuses it, because
//! it remembers the force even if it had no hold to end.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::outstanding::{AtMaster, Outstanding};
use super::votes::{Verdict, Vote, Yes};
use super::{HoldCount, NO_TOKEN, PendingAnswers, Quorum, majority_answer, request_to_master};
use crate::base::attempt::{AcquisitionId, Answered, Attempt};
use crate::base::lease::Moment;
use crate::base::process;
use crate::store::{Acquired, Floor, RenewalRequest, Renewed, Route};

/// Shortest time for which a master remembers that an operator has ended a hold.
const FORCE_REMEMBERED: Duration = Duration::from_secs(60);

/// Index of a master, and its answers: one for each renewal.
type RenewalAnswers = (usize, Vec<Attempt<Renewed>>);

/// Index of a master, and the indexes of the renewals in the batch whose holds the master lacks.
type LackingHolds = (usize, Vec<usize>);

impl Quorum {
    pub(super) async fn renew_all(&self, batch: &[RenewalRequest]) -> Vec<Attempt<Renewed>> {
        for renewal in batch {
            self.note_lease(renewal.lease);
            self.outstanding.extend(&renewal.id, renewal.lease);
        }
        let mut counts = self.counts(batch);
        let shared: Arc<[RenewalRequest]> = batch.into();
        let mut asked = self.ask_to_renew(&mut counts, &shared);
        let mut lacking = Vec::new();
        let begun = self.clock.now();
        while counts.iter_mut().any(|(ballot, _)| ballot.is_open())
            && let Some(answers) = asked.next().await
        {
            lacking.extend(lacking_holds(&self.outstanding, batch, &answers));
            let (place, attempts) = answers;
            for ((ballot, summary), attempt) in counts.iter_mut().zip(attempts) {
                let vote = match summary.note(attempt) {
                    Some(Answered { sent, value: Renewed::Renewed { remaining, .. }, .. }) => {
                        Vote::Yes(Yes { sent, until: sent.after(remaining), token: NO_TOKEN })
                    }
                    Some(Answered { value: Renewed::Lost { .. }, .. }) => Vote::No,
                    None => Vote::Silent,
                };
                ballot.cast(place, vote);
            }
        }
        let renewed = batch.iter().zip(counts).map(|(renewal, count)| self.renewal_answer(&renewal.id, count));
        let renewed: Vec<_> = renewed.collect();
        if !asked.is_empty() || !lacking.is_empty() {
            let fresh_until = begun.after(FORCE_REMEMBERED.saturating_sub(self.margins.max_delay) / 2);
            let kept_until = |attempt| held_until(attempt).map(|until| until.min(fresh_until));
            let kept_until = renewed.iter().map(kept_until).collect();
            let heal = Heal { outstanding: Arc::clone(&self.outstanding), batch: shared, held_until: kept_until };
            drop(process::spawn(heal.run(lacking, asked)));
        }
        renewed
    }

    fn ask_to_renew(&self, counts: &mut [HoldCount], batch: &Arc<[RenewalRequest]>) -> PendingAnswers<RenewalAnswers> {
        let mut silent = self.ballot();
        let asked = self.ask(&mut silent, |place| {
            let (scheme, batch) = (Arc::clone(&self.masters[place].scheme), Arc::clone(batch));
            Box::pin(async move {
                let route = batch.first().map_or_else(|| Route("".into()), |first| scheme.route(&first.key));
                (place, scheme.renew(&route, &batch).await)
            })
        });
        for place in silent.silent() {
            counts.iter_mut().for_each(|(ballot, _)| ballot.cast(place, Vote::Silent));
        }
        asked
    }

    fn renewal_answer(&self, id: &AcquisitionId, (mut ballot, summary): HoldCount) -> Attempt<Renewed> {
        let forced = self.outstanding.forced_token(id);
        match (forced, ballot.verdict()) {
            (None, Verdict::Won(won)) => Ok(majority_answer(won, |granted| Renewed::of(granted.remaining))),
            (Some(_), _) | (None, Verdict::Lost) => Ok(self.answer(summary.server, Renewed::Lost { forced })),
            (None, Verdict::Open | Verdict::Raise { .. } | Verdict::Undecided) => {
                Err(summary.failure(self.masters.len()))
            }
        }
    }
}

/// Returns the end of a renewed hold. A majority keeps the hold until then.
fn held_until(attempt: &Attempt<Renewed>) -> Option<Moment> {
    match attempt {
        Ok(Answered { sent, value: Renewed::Renewed { remaining, .. }, .. }) => Some(sent.after(*remaining)),
        _ => None,
    }
}

/// Notes the holds that this master lacks, and returns the indexes of their renewals in the batch.
fn lacking_holds(
    outstanding: &Outstanding,
    batch: &[RenewalRequest],
    (place, attempts): &RenewalAnswers,
) -> Option<LackingHolds> {
    let lacks = |(of, attempt): (usize, &Attempt<Renewed>)| match attempt {
        Ok(Answered { value: Renewed::Lost { forced }, .. }) => {
            outstanding.note_lacking(&batch[of].id, *place, *forced);
            Some(of)
        }
        _ => None,
    };
    let lacking: Vec<_> = attempts.iter().enumerate().filter_map(lacks).collect();
    (!lacking.is_empty()).then_some((*place, lacking))
}

/// Repair of masters that lack renewed holds.
struct Heal {
    outstanding: Arc<Outstanding>,
    batch: Arc<[RenewalRequest]>,
    /// Latest moment at which each hold may be acquired again at a master. `None` for a hold that no majority has
    /// renewed. Until this moment the majority keeps the hold, and each master remembers a force since the renewal.
    held_until: Vec<Option<Moment>>,
}

impl Heal {
    /// Waits for the remaining answers, and repairs the masters that lack holds. The repairs of different masters run
    /// at the same time.
    async fn run(self, lacking: Vec<LackingHolds>, asked: PendingAnswers<RenewalAnswers>) {
        let late = asked.filter_map(|answers| ready(lacking_holds(&self.outstanding, &self.batch, &answers)));
        let all = stream::iter(lacking).chain(late);
        all.for_each_concurrent(None, |(place, lacking)| self.heal(place, lacking)).await;
    }

    /// Acquires the lacking holds at a master, one after the other. A master that came back without its data lacks all
    /// of them.
    async fn heal(&self, place: usize, lacking: Vec<usize>) {
        for of in lacking {
            if let Some(until) = self.held_until[of]
                && !self.bring(place, &self.batch[of], until).await
            {
                return;
            }
        }
    }

    /// Acquires a hold again at a master, if this is still allowed. Returns false if the master did not answer.
    async fn bring(&self, place: usize, RenewalRequest { key, id, lease, .. }: &RenewalRequest, until: Moment) -> bool {
        let Some((copy, mode, token)) = self.outstanding.begin_heal(id, place, *lease, until) else {
            return true;
        };
        let request = request_to_master(id, mode, *lease);
        let attempt = self.outstanding.master(place).acquire_above(key, &request, Floor::Any(token)).await;
        // A refusal does not show that the master lacks the hold, because an undone conversion may have brought the
        // hold back meanwhile.
        copy.resolve(&attempt, |acquired| match acquired {
            Acquired::Granted(granted) => Some(AtMaster::of_grant(granted)),
            _ => None,
        });
        attempt.is_ok()
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/renew/tests.rs"]
mod tests;
