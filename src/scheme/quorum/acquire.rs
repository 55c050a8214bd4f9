//! A majority of the masters grants a lock, or none does.

use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;

use super::traces::Copy;
use super::votes::{Ballot, Verdict, Vote, Yes};
use super::{Asked, Heard, NO_TOKEN, Quorum, Said, Voters, answered, answered_by_majority, finish, granted};
use crate::attempt::{Answered, Attempt, BoxFuture, Failure, Granted};
use crate::key::Key;
use crate::lease::{FencingToken, Moment};
use crate::scheme::{AcquireRequest, Acquired, Floor, IfTaken, Renewal, Renewed};

/// How late a request may arrive for all masters to grant the token that was proposed.
const HEADROOM: Duration = Duration::from_millis(10);

impl Quorum {
    /// Asks a master for a hold, or to raise the token of the one that it has granted. The copy is counted from before, whether the
    /// future is polled or not.
    pub(super) fn send(
        &self,
        place: usize,
        key: &Arc<Key>,
        request: &Arc<AcquireRequest>,
        floor: Floor,
        copy: Copy,
    ) -> BoxFuture<'static, Said<Acquired>> {
        let (master, key, request) = (Arc::clone(&self.masters[place]), Arc::clone(key), Arc::clone(request));
        Box::pin(async move {
            let attempt = master.scheme.acquire_above(&key, &request, floor).await;
            copy.settle(&attempt, |acquired| match acquired {
                Acquired::Granted(_) => Some(true),
                Acquired::Queued { .. } | Acquired::Contended { .. } | Acquired::Kept { .. } => Some(false),
                Acquired::Late => None,
            });
            (place, attempt)
        })
    }

    pub(super) fn vote_of(&self, place: usize, attempt: Attempt<Acquired>, heard: &mut Heard) -> Vote {
        let answer = match attempt {
            Ok(answer) => answer,
            #[cfg(redis_rwlock_plant)]
            Err(Failure::Unknown { .. }) => return self.late_yes(),
            Err(failure) => {
                heard.failures.push(failure);
                return Vote::Silent;
            }
        };
        heard.server = heard.server.max(answer.server);
        match answer.value {
            Acquired::Granted(granted) => self.yes(place, answer.sent, granted, heard),
            Acquired::Queued { retry_in, .. } | Acquired::Contended { retry_in } | Acquired::Kept { retry_in } => {
                heard.retry_in = Some(heard.retry_in.map_or(retry_in, |least| least.min(retry_in)));
                Vote::No
            }
            Acquired::Late => Vote::Silent,
        }
    }

    /// A planted fault, which the example `torture` has to find: an answer counts that did not come in time.
    #[cfg(redis_rwlock_plant)]
    fn late_yes(&self) -> Vote {
        const SECOND_US: u64 = 1_000_000;
        let (now, lease) = (self.clock.now(), self.longest_lease.load(std::sync::atomic::Ordering::Relaxed));
        // The same for all whose answers are missing, or it would have to be raised.
        let proposed = u64::from(self.proposed_token()) / SECOND_US * SECOND_US;
        let token = FencingToken::from_wire(proposed + SECOND_US).unwrap_or(NO_TOKEN);
        Vote::Yes(Yes { sent: now, until: now.after(Duration::from_nanos(lease)), token })
    }

    /// A new grant counts if its master may vote.
    pub(super) fn yes(&self, place: usize, sent: Moment, granted: Granted, heard: &mut Heard) -> Vote {
        if heard.voters == Voters::Remembering && !self.may_vote(place) {
            heard.young += 1;
            return Vote::Silent;
        }
        let token = granted.token.plus(granted.tokens.saturating_sub(1));
        Vote::Yes(Yes { sent, until: sent.after(granted.remaining), token })
    }

    /// A new acquisition.
    pub(super) async fn acquire_anew(&self, key: &Key, request: &AcquireRequest) -> Attempt<Acquired> {
        let key = Arc::new(key.clone());
        let request =
            Arc::new(AcquireRequest { max_tokens: 1, if_taken: IfTaken::Leave, keeps: false, ..request.clone() });
        self.traces.begin(&request.id, request.mode, &key, request.lease);
        let (mut ballot, mut heard) = (self.ballot(), Heard::default());
        let mut asked = self.ask_for(&mut ballot, &key, &request);
        let won = self.count(&mut ballot, &mut heard, &mut asked, &key, &request).await;
        if let Some(won) = won {
            self.traces.granted(&request.id, won.token);
            finish(asked);
            return Ok(answered_by_majority(won, Acquired::Granted(granted(won))));
        }
        self.traces.give_back(&request.id);
        finish(asked);
        if ballot.is_silent() {
            return Err(heard.failure(self.masters.len()));
        }
        // Others have it, or as many of them as there are have divided the masters among them.
        let retry_in = heard.retry_in.unwrap_or(Duration::from_millis(1));
        Ok(answered(self.clock.now(), heard.server, Acquired::Contended { retry_in }))
    }

    fn ask_for(&self, ballot: &mut Ballot, key: &Arc<Key>, request: &Arc<AcquireRequest>) -> Asked<Said<Acquired>> {
        let (asked, floor) = (FuturesUnordered::new(), self.proposed_token());
        for (place, master) in self.masters.iter().enumerate() {
            if master.is_silent() {
                ballot.says(place, Vote::Silent);
            } else {
                let copy = self.traces.sends(&request.id, place);
                asked.push(self.send(place, key, request, Floor::New(floor), copy));
            }
        }
        asked
    }

    /// A token that no master's clock has reached, and that is above what they have stored, as far as is known: then all of them
    /// grant this one, and nothing has to be raised.
    fn proposed_token(&self) -> FencingToken {
        let now = self.clock.now();
        let latest = self.masters.iter().filter_map(|master| master.time_at(now)).max();
        let proposed = latest.map_or(0, |latest| latest.after(HEADROOM).as_micros());
        FencingToken::from_wire(proposed).unwrap_or(NO_TOKEN)
    }

    /// Counts until there is a majority that has stored the token, or can be none.
    async fn count(
        &self,
        ballot: &mut Ballot,
        heard: &mut Heard,
        asked: &mut Asked<Said<Acquired>>,
        key: &Arc<Key>,
        request: &Arc<AcquireRequest>,
    ) -> Option<Yes> {
        let mut raised = vec![false; self.masters.len()];
        loop {
            match ballot.verdict() {
                Verdict::Open => {}
                Verdict::Raise { to, at } => {
                    for place in at {
                        if !std::mem::replace(&mut raised[place], true) {
                            let copy = self.traces.sends_again(&request.id, place)?;
                            asked.push(self.send(place, key, request, Floor::Any(to), copy));
                        }
                    }
                }
                Verdict::Won(won) => return Some(won),
                Verdict::Lost | Verdict::Undecided => return None,
            }
            let (place, attempt) = asked.next().await?;
            let vote = self.vote_of(place, attempt, heard);
            ballot.says(place, vote);
        }
    }

    /// Whether a hold still stands, and for how long: it is renewed, which re-creates nothing.
    pub(super) async fn confirm(&self, key: &Key, request: &AcquireRequest, token: FencingToken) -> Attempt<Acquired> {
        let renewal = Renewal {
            key: Arc::new(key.clone()),
            id: request.id.clone(),
            lease: request.lease,
            keeps: false,
            tokens: 0,
        };
        let renewed = self.renew_all(&[renewal]).await.into_iter().next();
        let Some(renewed) = renewed else {
            return Err(Failure::NotDone { source: None });
        };
        let Answered { sent, server, value, .. } = renewed?;
        Ok(answered(
            sent,
            server,
            match value {
                Renewed::Renewed { remaining, .. } => {
                    Acquired::Granted(Granted { token, tokens: 1, remaining, is_waited_for: false })
                }
                Renewed::Lost { .. } => Acquired::Contended { retry_in: Duration::from_millis(1) },
            },
        ))
    }
}
