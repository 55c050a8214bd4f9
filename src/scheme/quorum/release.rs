//! A hold is given back at all masters that may have it.

use std::sync::Arc;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::traces::{Standing, Telling};
use super::votes::{Verdict, Vote};
use super::{Asked, Heard, Quorum, answered, finish, unknown};
use crate::attempt::{AcquisitionId, Attempt};
use crate::key::Key;
use crate::scheme::{Absence, ReleaseReply};

impl Quorum {
    /// Gives a hold back at all masters that may have it.
    pub(super) async fn leave_everywhere(&self, key: &Key, id: &AcquisitionId) -> Attempt<ReleaseReply> {
        let key = Arc::new(key.clone());
        let (mut ballot, mut heard) = (self.ballot(), Heard::default());
        let mut asked: Asked<(usize, Option<bool>, Attempt<ReleaseReply>)> = FuturesUnordered::new();
        // What nobody knows anything of may be anywhere.
        let standings = self.traces.leaving(id).unwrap_or_else(|| vec![Standing::MayHold; self.masters.len()]);
        for (place, standing) in standings.into_iter().enumerate() {
            match standing {
                Standing::Nothing => ballot.says(place, Vote::No),
                Standing::Released { was_held } => ballot.says(place, self.released_vote(was_held)),
                Standing::MayHold => {
                    let telling = Telling::new(&self.traces, id, place);
                    if self.masters[place].is_silent() {
                        telling.not_sent();
                        ballot.says(place, Vote::Silent);
                        continue;
                    }
                    let (scheme, key, id) = (Arc::clone(&self.masters[place].scheme), Arc::clone(&key), id.clone());
                    asked.push(Box::pin(async move {
                        let attempt = scheme.leave(&key, &id).await;
                        (place, telling.told(&attempt), attempt)
                    }));
                }
            }
        }
        while ballot.is_open()
            && let Some((place, was_held, attempt)) = asked.next().await
        {
            let vote = was_held.map_or(Vote::Silent, |was_held| self.released_vote(was_held));
            match attempt {
                Ok(answer) => {
                    heard.server = heard.server.max(answer.server);
                    if let ReleaseReply::None(Absence { forced, .. }) = answer.value {
                        heard.forced = heard.forced.max(forced);
                    }
                }
                Err(failure) => heard.failures.push(failure),
            }
            ballot.says(place, vote);
        }
        finish(asked);
        let (sent, server) = (self.clock.now(), heard.server);
        let reply = match ballot.verdict() {
            Verdict::Won(_) => ReleaseReply::Held,
            Verdict::Lost => ReleaseReply::None(Absence { forced: heard.forced, ..Absence::default() }),
            Verdict::Open | Verdict::Raise { .. } | Verdict::Undecided => {
                return Err(unknown(heard.failure(self.masters.len()), sent));
            }
        };
        self.traces.has_left(id);
        Ok(answered(sent, server, reply))
    }
}
