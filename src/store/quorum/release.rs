//! Holds are given back at all masters that may have them, several in one pipeline for each master.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::traces::{Standing, Telling};
use super::votes::{Ballot, Verdict, Vote};
use super::{Asked, Heard, Quorum, answered, finish, unknown};
use crate::base::attempt::{Answered, Attempt, BoxFuture};
use crate::store::{Absence, ReleaseReply, ReleaseRequest, Scheme};

/// What is known of one of them.
type Count = (Ballot, Heard);

/// What one master has said to one of them, by its place among them, and whether the hold was ours to the end, if it says that.
struct Told {
    of: usize,
    was_held: Option<bool>,
    attempt: Attempt<ReleaseReply>,
}

/// What one master is to be told.
#[derive(Default)]
struct ToTell {
    batch: Vec<ReleaseRequest>,
    /// For each, its place among all, and that the master is being told.
    tellings: Vec<(usize, Telling)>,
}

impl Quorum {
    /// Gives holds back at all masters that may have them; one answer each, in order, when a majority has said it for each.
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

    /// What each master is to be told. Of the others it is known what they have to say.
    fn to_tell(&self, batch: &[ReleaseRequest], counts: &mut [Count]) -> Vec<ToTell> {
        let mut all: Vec<_> = self.masters.iter().map(|_| ToTell::default()).collect();
        for (of, (leave, (ballot, _))) in batch.iter().zip(counts).enumerate() {
            // What nobody knows anything of may be anywhere.
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

/// Tells one master. One alone goes ahead of whoever acquires, as a pipeline does.
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
