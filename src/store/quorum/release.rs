//! Releases at all masters that may have a hold. Each master gets the releases of a batch in one pipeline.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::master::Master;
use super::outstanding::{ReleaseInFlight, ReleaseState};
use super::votes::{Verdict, Vote};
use super::{HoldCount, PendingAnswers, Quorum, finish, into_unknown};
use crate::base::attempt::{Attempt, BoxFuture, Failure};
use crate::store::{Absence, ReleaseReply, ReleaseRequest};

/// Answer of one master to one release. `of` is the index of the release in the batch. `was_held` tells whether the
/// hold was live until the release. It is `None` if the answer does not show that.
struct MasterReleaseAnswer {
    of: usize,
    was_held: Option<bool>,
    attempt: Attempt<ReleaseReply>,
}

/// Releases to send to one master.
#[derive(Default)]
struct MasterReleases {
    batch: Vec<ReleaseRequest>,
    /// Index of each release in the whole batch, and the record of the release as in flight.
    in_flight: Vec<(usize, ReleaseInFlight)>,
}

impl Quorum {
    /// Releases holds at all masters that may have them. Waits until a majority of the masters has decided each
    /// release. Returns one answer for each release, in order.
    pub(super) async fn release_everywhere(&self, batch: &[ReleaseRequest]) -> Vec<Attempt<ReleaseReply>> {
        let mut counts = self.counts(batch);
        let mut asked: PendingAnswers<(usize, Vec<MasterReleaseAnswer>)> = FuturesUnordered::new();
        for (place, to_tell) in self.releases_by_master(batch, &mut counts).into_iter().enumerate() {
            if !to_tell.batch.is_empty() {
                asked.push(send_releases(place, Arc::clone(&self.masters[place]), to_tell));
            }
        }
        while counts.iter_mut().any(|(ballot, _)| ballot.is_open())
            && let Some((place, told)) = asked.next().await
        {
            for MasterReleaseAnswer { of, was_held, attempt } in told {
                let (ballot, summary) = &mut counts[of];
                let _ = summary.note(attempt);
                ballot.cast(place, was_held.map_or(Vote::Silent, |was_held| self.released_vote(was_held)));
            }
        }
        finish(asked);
        batch.iter().zip(counts).map(|(request, count)| self.reply(request, count)).collect()
    }

    /// Sorts the releases by master. Omits a release at a master if the answer of that master is known already.
    fn releases_by_master(&self, batch: &[ReleaseRequest], counts: &mut [HoldCount]) -> Vec<MasterReleases> {
        let mut all: Vec<_> = self.masters.iter().map(|_| MasterReleases::default()).collect();
        for (of, (request, (ballot, _))) in batch.iter().zip(counts).enumerate() {
            // If this manager has no record of the hold, any master may have the hold.
            let states = self.outstanding.begin_release(&request.id);
            let states = states.unwrap_or_else(|| vec![ReleaseState::MayHold; self.masters.len()]);
            for (place, state) in states.into_iter().enumerate() {
                match state {
                    ReleaseState::Nothing => ballot.cast(place, Vote::No),
                    ReleaseState::Released { was_held } => ballot.cast(place, self.released_vote(was_held)),
                    ReleaseState::MayHold => {
                        let in_flight = ReleaseInFlight::new(&self.outstanding, &request.id, place);
                        if self.masters[place].is_silent() {
                            in_flight.on_answer(&Err(Failure::NotDone { source: None }));
                            ballot.cast(place, Vote::Silent);
                        } else {
                            all[place].batch.push(request.clone());
                            all[place].in_flight.push((of, in_flight));
                        }
                    }
                }
            }
        }
        all
    }

    fn reply(&self, request: &ReleaseRequest, (mut ballot, summary): HoldCount) -> Attempt<ReleaseReply> {
        let server = summary.server;
        let reply = match ballot.verdict() {
            Verdict::Won(_) => ReleaseReply::Held,
            Verdict::Lost => {
                let forced = self.outstanding.forced_token(&request.id);
                ReleaseReply::None(Absence { forced, ..Absence::default() })
            }
            Verdict::Open | Verdict::Raise { .. } | Verdict::Undecided => {
                return Err(into_unknown(summary.failure(self.masters.len()), self.clock.now()));
            }
        };
        self.outstanding.note_released(&request.id);
        Ok(self.answer(server, reply))
    }
}

/// Sends the releases to one master. A single release overtakes acquisitions on the connection, as a pipeline does.
fn send_releases(
    place: usize,
    master: Arc<Master>,
    to_tell: MasterReleases,
) -> BoxFuture<'static, (usize, Vec<MasterReleaseAnswer>)> {
    Box::pin(async move {
        let MasterReleases { batch, in_flight: tellings } = to_tell;
        let attempts = match &*batch {
            [request] => vec![master.scheme.release(request).await],
            batch => master.release_all(batch).await,
        };
        let told = tellings.into_iter().zip(attempts);
        let told = told.map(|((of, in_flight), attempt)| MasterReleaseAnswer {
            of,
            was_held: in_flight.on_answer(&attempt),
            attempt,
        });
        (place, told.collect())
    })
}
