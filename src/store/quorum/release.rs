//! Releases at all masters that may have the hold, several in one pipeline for each master.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::traces::{Standing, Telling};
use super::votes::{Ballot, Verdict, Vote};
use super::{Asked, Heard, Quorum, answered, finish, unknown};
use crate::base::attempt::{Answered, Attempt, BoxFuture};
use crate::store::{Absence, ReleaseReply, ReleaseRequest, Scheme};

/// Votes and answers for one of the releases.
type Count = (Ballot, Heard);

/// Answer of one master to one release. `of` is the index in the batch. `was_held` says if the hold was ours to the
/// end, if the answer shows it.
struct Told {
    of: usize,
    was_held: Option<bool>,
    attempt: Attempt<ReleaseReply>,
}

/// Releases to send to one master.
#[derive(Default)]
struct ToTell {
    batch: Vec<ReleaseRequest>,
    /// Index in the whole batch, and the record that the release is being sent, for each release.
    tellings: Vec<(usize, Telling)>,
}

impl Quorum {
    /// Releases holds at all masters that may have them. Returns one answer for each, in order, once a majority has
    /// decided each.
    pub(super) async fn leave_everywhere(&self, batch: &[ReleaseRequest]) -> Vec<Attempt<ReleaseReply>> {
        let mut counts: Vec<Count> = batch.iter().map(|_| (self.ballot(), Heard::default())).collect();
        let mut asked: Asked<(usize, Vec<Told>)> = FuturesUnordered::new();
        for (place, to_tell) in self.to_tell(batch, &mut counts).into_iter().enumerate() {
            if !to_tell.batch.is_empty() {
                asked.push(tell(place, Arc::clone(&self.masters[place].scheme), to_tell));
            }
        }
        while counts.iter_mut().any(|(ballot, _)| ballot.is_open())
            && let Some((place, told)) = asked.next().await
        {
            for Told { of, was_held, attempt } in told {
                let (ballot, heard) = &mut counts[of];
                hear(heard, attempt);
                ballot.says(place, was_held.map_or(Vote::Silent, |was_held| self.released_vote(was_held)));
            }
        }
        finish(asked);
        batch.iter().zip(counts).map(|(leave, count)| self.reply(leave, count)).collect()
    }

    /// Sorts the releases by master. A master whose answer is known already gets none.
    fn to_tell(&self, batch: &[ReleaseRequest], counts: &mut [Count]) -> Vec<ToTell> {
        let mut all: Vec<_> = self.masters.iter().map(|_| ToTell::default()).collect();
        for (of, (leave, (ballot, _))) in batch.iter().zip(counts).enumerate() {
            // A hold without a record may be at any master.
            let standings = self.traces.leaving(&leave.id);
            let standings = standings.unwrap_or_else(|| vec![Standing::MayHold; self.masters.len()]);
            for (place, standing) in standings.into_iter().enumerate() {
                match standing {
                    Standing::Nothing => ballot.says(place, Vote::No),
                    Standing::Released { was_held } => ballot.says(place, self.released_vote(was_held)),
                    Standing::MayHold => {
                        let telling = Telling::new(&self.traces, &leave.id, place);
                        if self.masters[place].is_silent() {
                            telling.not_sent();
                            ballot.says(place, Vote::Silent);
                        } else {
                            all[place].batch.push(leave.clone());
                            all[place].tellings.push((of, telling));
                        }
                    }
                }
            }
        }
        all
    }

    fn reply(&self, leave: &ReleaseRequest, (mut ballot, heard): Count) -> Attempt<ReleaseReply> {
        let (sent, server) = (self.clock.now(), heard.server);
        let reply = match ballot.verdict() {
            Verdict::Won(_) => ReleaseReply::Held,
            Verdict::Lost => ReleaseReply::None(Absence { forced: heard.forced, ..Absence::default() }),
            Verdict::Open | Verdict::Raise { .. } | Verdict::Undecided => {
                return Err(unknown(heard.failure(self.masters.len()), sent));
            }
        };
        self.traces.has_left(&leave.id);
        Ok(answered(sent, server, reply))
    }
}

/// Sends the releases to one master. A single one goes ahead of acquisitions, as a pipeline does.
fn tell(place: usize, scheme: Arc<dyn Scheme>, to_tell: ToTell) -> BoxFuture<'static, (usize, Vec<Told>)> {
    Box::pin(async move {
        let ToTell { batch, tellings } = to_tell;
        let attempts = match &*batch {
            [leave] => vec![scheme.release(&leave.key, &leave.id).await],
            [] => Vec::new(),
            [first, ..] => scheme.release_all(&scheme.route(&first.key), &batch).await,
        };
        let told = tellings.into_iter().zip(attempts);
        let told = told.map(|((of, telling), attempt)| Told { of, was_held: telling.told(&attempt), attempt });
        (place, told.collect())
    })
}

fn hear(heard: &mut Heard, attempt: Attempt<ReleaseReply>) {
    match attempt {
        Ok(Answered { server, value, .. }) => {
            heard.server = heard.server.max(server);
            if let ReleaseReply::None(Absence { forced, .. }) = value {
                heard.forced = heard.forced.max(forced);
            }
        }
        Err(failure) => heard.failures.push(failure),
    }
}
