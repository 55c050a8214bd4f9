//! Holds are kept by a majority of the masters, and brought to those that do not have them.
//!
//! A master may lack a hold: somebody's release was on its way to it, it was away, or it came back without its data. Where a
//! majority has just renewed a hold, such a master is asked for it anew. What it says does not count for this renewal. That gives
//! nobody a second chance: a hold that a majority has lost is brought nowhere. Nor does it matter whether the master may vote:
//! the majority that has the hold refuses whatever conflicts with it.
//!
//! What an operator has ended at any master is over: the renewal that hears of it says so, and nothing is brought any more. What
//! is on its way already is refused by the master, which remembers the force, also where it had found nothing to end.

use std::future::ready;
use std::sync::Arc;
use std::time::Duration;

use futures_util::{StreamExt, stream};

use super::traces::Traces;
use super::votes::{Ballot, Verdict, Vote, Yes};
use super::{Asked, Heard, NO_TOKEN, Quorum, answered, answered_by_majority};
use crate::base::attempt::{AcquisitionId, Answered, Attempt};
use crate::base::lease::Moment;
use crate::base::process;
use crate::store::{AcquireRequest, Acquired, Floor, IfTaken, Renewal, Renewed, Route};

/// How long a master remembers at least that a hold was ended by force.
const FORCE_REMEMBERED: Duration = Duration::from_secs(60);

/// What a master has said, by its place, to each of them.
type Answers = (usize, Vec<Attempt<Renewed>>);

/// What a master does not have, by its place and theirs.
type Lacking = (usize, Vec<usize>);

impl Quorum {
    pub(super) async fn renew_all(&self, batch: &[Renewal]) -> Vec<Attempt<Renewed>> {
        for renewal in batch {
            self.note_lease(renewal.lease);
            self.traces.extend(&renewal.id, renewal.lease);
        }
        let mut counts: Vec<_> = batch.iter().map(|_| (self.ballot(), Heard::default())).collect();
        let shared: Arc<[Renewal]> = batch.into();
        let mut asked = self.ask_to_renew(&mut counts, &shared);
        let mut lacking = Vec::new();
        let begun = self.clock.now();
        let is_open = |counts: &mut Vec<(Ballot, Heard)>| counts.iter_mut().any(|(ballot, _)| ballot.is_open());
        while is_open(&mut counts)
            && let Some(answers) = asked.next().await
        {
            lacking.extend(lacks(&self.traces, batch, &answers));
            let (place, attempts) = answers;
            for ((ballot, heard), attempt) in counts.iter_mut().zip(attempts) {
                let vote = renewal_vote(attempt, heard);
                ballot.says(place, vote);
            }
        }
        let renewed = batch.iter().zip(counts).map(|(renewal, count)| self.renewed(&renewal.id, count));
        let renewed: Vec<_> = renewed.collect();
        if !asked.is_empty() || !lacking.is_empty() {
            let fresh_until = begun.after(FORCE_REMEMBERED.saturating_sub(self.margins.stray_span) / 2);
            let kept_until = |attempt| kept_until(attempt).map(|until| until.min(fresh_until));
            let kept_until = renewed.iter().map(kept_until).collect();
            let heal = Heal { traces: Arc::clone(&self.traces), batch: shared, kept_until };
            drop(process::spawn(heal.run(lacking, asked)));
        }
        renewed
    }

    fn ask_to_renew(&self, counts: &mut [(Ballot, Heard)], batch: &Arc<[Renewal]>) -> Asked<Answers> {
        let mut silent = self.ballot();
        let asked = self.ask(&mut silent, |place, scheme| {
            let batch = Arc::clone(batch);
            async move {
                let route = batch.first().map_or_else(|| Route("".into()), |first| scheme.route(&first.key));
                (place, scheme.renew(&route, &batch).await)
            }
        });
        for place in silent.silent() {
            counts.iter_mut().for_each(|(ballot, _)| ballot.says(place, Vote::Silent));
        }
        asked
    }

    fn renewed(&self, id: &AcquisitionId, (mut ballot, heard): (Ballot, Heard)) -> Attempt<Renewed> {
        let forced = self.traces.forced(id);
        if forced.is_some() {
            return Ok(answered(self.clock.now(), heard.server, Renewed::Lost { forced }));
        }
        match ballot.verdict() {
            Verdict::Won(won) => Ok(answered_by_majority(won, Renewed::of(won.until.since(won.sent)))),
            Verdict::Lost => Ok(answered(self.clock.now(), heard.server, Renewed::Lost { forced: heard.forced })),
            Verdict::Open | Verdict::Raise { .. } | Verdict::Undecided => Err(heard.failure(self.masters.len())),
        }
    }
}

fn renewal_vote(attempt: Attempt<Renewed>, heard: &mut Heard) -> Vote {
    match attempt {
        Ok(Answered { sent, server, value, .. }) => {
            heard.server = heard.server.max(server);
            match value {
                Renewed::Renewed { remaining, .. } => {
                    Vote::Yes(Yes { sent, until: sent.after(remaining), token: NO_TOKEN })
                }
                Renewed::Lost { forced } => {
                    heard.forced = heard.forced.max(forced);
                    Vote::No
                }
            }
        }
        Err(failure) => {
            heard.failures.push(failure);
            Vote::Silent
        }
    }
}

/// Until when a majority keeps a hold that was renewed.
fn kept_until(attempt: &Attempt<Renewed>) -> Option<Moment> {
    match attempt {
        Ok(Answered { sent, value: Renewed::Renewed { remaining, .. }, .. }) => Some(sent.after(*remaining)),
        Ok(Answered { value: Renewed::Lost { .. }, .. }) | Err(_) => None,
    }
}

/// What a master does not have.
fn lacks(traces: &Traces, batch: &[Renewal], (place, attempts): &Answers) -> Option<Lacking> {
    let lacks = |(of, attempt): (usize, &Attempt<Renewed>)| match attempt {
        Ok(Answered { value: Renewed::Lost { forced }, .. }) => {
            traces.lacks(&batch[of].id, *forced);
            Some(of)
        }
        Ok(Answered { value: Renewed::Renewed { .. }, .. }) | Err(_) => None,
    };
    let lacking: Vec<_> = attempts.iter().enumerate().filter_map(lacks).collect();
    (!lacking.is_empty()).then_some((*place, lacking))
}

/// Holds that are brought to masters that do not have them.
struct Heal {
    traces: Arc<Traces>,
    batch: Arc<[Renewal]>,
    /// Until when they may be brought: a majority keeps them, if it has renewed them, and a force since then is remembered.
    kept_until: Vec<Option<Moment>>,
}

impl Heal {
    /// Sees the renewal through at those that have yet to answer. Masters wait for each other no more than in [`finish`].
    ///
    /// [`finish`]: super::finish
    async fn run(self, lacking: Vec<Lacking>, asked: Asked<Answers>) {
        let late = asked.filter_map(|answers| ready(lacks(&self.traces, &self.batch, &answers)));
        let all = stream::iter(lacking).chain(late);
        all.for_each_concurrent(None, |(place, lacking)| self.heals(place, lacking)).await;
    }

    /// One after the other, for a master that has come back without its data lacks all of them.
    async fn heals(&self, place: usize, lacking: Vec<usize>) {
        for of in lacking {
            if let Some(until) = self.kept_until[of]
                && !self.brings(place, &self.batch[of], until).await
            {
                return;
            }
        }
    }

    /// Whether the master has answered, as far as it was asked.
    async fn brings(&self, place: usize, Renewal { key, id, lease, .. }: &Renewal, until: Moment) -> bool {
        let Some((copy, mode, token)) = self.traces.brings(id, place, *lease, until) else {
            return true;
        };
        let request = AcquireRequest {
            id: id.clone(),
            mode,
            lease: *lease,
            max_tokens: 1,
            if_taken: IfTaken::Leave,
            caches: false,
        };
        let attempt = self.traces.master(place).acquire_above(key, &request, Floor::Any(token)).await;
        // A refusal says nothing of what a conversion that is undone has brought meanwhile.
        copy.settle(&attempt, |acquired| matches!(acquired, Acquired::Granted(_)).then_some(true));
        attempt.is_ok()
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/renew/tests.rs"]
mod tests;
