//! Acquisition at a majority of the masters. Without a majority, the manager releases the acquisition.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use futures_util::StreamExt;

use super::outstanding::{AtMaster, RequestInFlight};
use super::votes::{Ballot, Verdict, Vote, Yes, minority};
use super::{
    AnswerSummary, MasterAnswer, NO_TOKEN, PendingAnswers, Quorum, Voters, finish, majority_answer, request_to_master,
};
use crate::base::attempt::{Answered, Attempt, BoxFuture, Granted};
use crate::base::key::Key;
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::store::{AcquireRequest, Acquired, Floor, NamedHolder, RenewalRequest, Renewed};

/// Time by which a proposed token is ahead of the latest clock. While a request takes no longer than this to arrive,
/// its proposed token is above the clocks of all masters.
const HEADROOM: Duration = Duration::from_millis(10);

impl Quorum {
    /// Sends one master a request for a hold, or a request to raise the token of a granted hold. `copy` records the
    /// request as sent before the first poll. So the request counts as sent even if the future is dropped.
    pub(super) fn send(
        &self,
        place: usize,
        key: &Arc<Key>,
        request: &Arc<AcquireRequest>,
        floor: Floor,
        copy: RequestInFlight,
    ) -> BoxFuture<'static, MasterAnswer<Acquired>> {
        let (master, key, request) = (Arc::clone(&self.masters[place]), Arc::clone(key), Arc::clone(request));
        Box::pin(async move {
            let attempt = master.scheme.acquire_above(&key, &request, floor).await;
            copy.resolve(&attempt, |acquired| match acquired {
                Acquired::Granted(granted) => Some(AtMaster::of_grant(granted)),
                Acquired::Queued { .. } | Acquired::Contended { .. } | Acquired::Cached { .. } => {
                    Some(AtMaster::Missing)
                }
                Acquired::Late => None,
            });
            (place, attempt)
        })
    }

    pub(super) fn vote_of(&self, place: usize, attempt: Attempt<Acquired>, summary: &mut AnswerSummary) -> Vote {
        #[cfg(redis_rwlock_plant)]
        if let Err(crate::store::Failure::Unknown { .. }) = attempt {
            return self.late_yes();
        }
        let Some(answer) = summary.note(attempt) else { return Vote::Silent };
        match answer.value {
            Acquired::Granted(granted) => self.yes(place, answer.sent, granted, summary),
            Acquired::Queued { .. } | Acquired::Contended { .. } | Acquired::Cached { .. }
                if summary.leftovers.contains(&place) =>
            {
                summary.refused_for_leftover += 1;
                Vote::Silent
            }
            Acquired::Queued { retry_in, holder, .. }
            | Acquired::Contended { retry_in, holder }
            | Acquired::Cached { retry_in, holder } => {
                summary.named.extend(holder);
                summary.retry_in = Some(summary.retry_in.map_or(retry_in, |least| least.min(retry_in)));
                Vote::No
            }
            Acquired::Late => Vote::Silent,
        }
    }

    /// Returns a yes for a missing answer. This fault is intentional: the program `torture` has to find it.
    #[cfg(redis_rwlock_plant)]
    fn late_yes(&self) -> Vote {
        const SECOND_US: u64 = 1_000_000;
        let (now, lease) = (self.clock.now(), self.longest_lease.load(std::sync::atomic::Ordering::Relaxed));
        // All masters without an answer get the same token. With different tokens, the ballot would ask some masters to
        // raise their token.
        let proposed = u64::from(self.proposed_token()) / SECOND_US * SECOND_US;
        let token = FencingToken::from_wire(proposed + SECOND_US).unwrap_or(NO_TOKEN);
        Vote::Yes(Yes { sent: now, until: now.after(Duration::from_nanos(lease)), token })
    }

    /// Returns the vote of a master for its grant: a yes if the master may vote, and silent otherwise.
    pub(super) fn yes(&self, place: usize, sent: Moment, granted: Granted, summary: &mut AnswerSummary) -> Vote {
        if summary.voters == Voters::Remembering && !self.may_vote(place) {
            summary.restarted += 1;
            return Vote::Silent;
        }
        let token = granted.token.plus(granted.tokens.saturating_sub(1));
        Vote::Yes(Yes { sent, until: sent.after(granted.remaining), token })
    }

    /// Sends a new acquisition to all masters and counts their votes.
    pub(super) async fn acquire_anew(&self, key: &Key, request: &AcquireRequest) -> Attempt<Acquired> {
        let key = Arc::new(key.clone());
        let request = Arc::new(request_to_master(&request.id, request.mode, request.lease));
        // The acquisition is recorded before any request is sent. If this future is dropped, the release then reaches
        // all masters that may have granted it.
        self.outstanding.begin(&request.id, request.mode, &key, request.lease);
        let (mut ballot, mut summary) = (self.ballot(), AnswerSummary::default());
        let floor = Floor::New(self.proposed_token());
        let mut asked = self.ask(&mut ballot, |place| {
            if self.outstanding.leftovers.contains(&key, place) {
                summary.leftovers.push(place);
            }
            let copy = self.outstanding.begin_request(&request.id, place);
            self.send(place, &key, &request, floor, copy)
        });
        let won = self.count(&mut ballot, &mut summary, &mut asked, &key, &request).await;
        if let Some(won) = won {
            self.outstanding.note_granted(&request.id, won.token);
            finish(asked);
            return Ok(majority_answer(won, Acquired::Granted));
        }
        // The in-doubt requests stay recorded. So a grant that arrives late is released at its master too.
        self.outstanding.give_back(&request.id);
        finish(asked);
        if ballot.is_silent() {
            if ballot.silent().count() - summary.refused_for_leftover <= minority(self.masters.len()) {
                // A majority answers, so this is no outage. The releases of the earlier acquisitions are on their way.
                return Ok(self.answer(summary.server, Acquired::Late));
            }
            if summary.restarted > 0 {
                summary.restarted = self.restarted_masters();
            }
            return Err(summary.failure(self.masters.len()));
        }
        // Other holders have the lock, or several acquisitions have a minority of the masters each.
        let retry_in = summary.retry_in.unwrap_or(Duration::from_millis(1));
        let holder = named_by_most(summary.named);
        Ok(self.answer(summary.server, Acquired::Contended { retry_in, holder }))
    }

    /// Returns the token that a new acquisition proposes. It is above the time of each right clock, and so normally
    /// above all stored tokens. If all masters grant this token, no second round has to raise a lower one.
    fn proposed_token(&self) -> FencingToken {
        let proposed = self.latest_clock().map_or(0, |latest| latest.after(HEADROOM).as_micros());
        FencingToken::from_wire(proposed).unwrap_or(NO_TOKEN)
    }

    /// Returns the highest token that can come from a right clock. The proposals of other managers count too.
    pub(super) fn reached_token(&self) -> Option<FencingToken> {
        let reached = self.latest_clock()?.after(HEADROOM).after(self.margins.max_clock_skew);
        FencingToken::from_wire(reached.as_micros())
    }

    /// Returns the latest time that a right clock of a master shows now. The clock of a minority may be wrong.
    fn latest_clock(&self) -> Option<ServerTime> {
        let now = self.clock.now();
        let clocks = self.masters.iter().filter_map(|master| master.time_at(now)).collect();
        latest_right(clocks, minority(self.masters.len()), self.margins.max_clock_skew)
    }

    /// Counts votes until a majority has stored the token. Returns `None` if no majority can do so any more.
    async fn count(
        &self,
        ballot: &mut Ballot,
        summary: &mut AnswerSummary,
        asked: &mut PendingAnswers<MasterAnswer<Acquired>>,
        key: &Arc<Key>,
        request: &Arc<AcquireRequest>,
    ) -> Option<Yes> {
        let mut raised = vec![false; self.masters.len()];
        loop {
            ballot.note_clocks(self.reached_token());
            match ballot.verdict() {
                Verdict::Open => {}
                Verdict::Raise { to, at } => {
                    for place in at {
                        if !std::mem::replace(&mut raised[place], true) {
                            let copy = self.outstanding.repeat_request(&request.id, place)?;
                            asked.push(self.send(place, key, request, Floor::Any(to), copy));
                        }
                    }
                }
                Verdict::Won(won) => return Some(won),
                Verdict::Lost | Verdict::Undecided => return None,
            }
            let (place, attempt) = asked.next().await?;
            let vote = self.vote_of(place, attempt, summary);
            ballot.cast(place, vote);
        }
    }

    /// Sends a renewal to ask whether a granted hold still exists, and for how long. A renewal never creates a hold
    /// again.
    pub(super) async fn confirm(&self, key: &Key, request: &AcquireRequest, token: FencingToken) -> Attempt<Acquired> {
        let renewal = RenewalRequest {
            key: Arc::new(key.clone()),
            id: request.id.clone(),
            lease: request.lease,
            caches: false,
            tokens: 0,
            rest_until: None,
        };
        let renewed = self.renew_all(&[renewal]).await.pop().expect("one answer each");
        let Answered { sent, server, node, value } = renewed?;
        let value = match value {
            Renewed::Renewed { remaining, .. } => {
                Acquired::Granted(Granted { token, tokens: 1, remaining, is_waited_for: false })
            }
            Renewed::Lost { .. } => Acquired::Contended { retry_in: Duration::from_millis(1), holder: None },
        };
        Ok(Answered { sent, server, node, value })
    }
}

/// Returns the holder that more masters name than any other holder, with the shortest remaining time that they report.
fn named_by_most(named: Vec<Arc<NamedHolder>>) -> Option<Arc<NamedHolder>> {
    let mut by_id: BTreeMap<String, Vec<Arc<NamedHolder>>> = BTreeMap::new();
    for holder in named {
        by_id.entry(holder.id.clone()).or_default().push(holder);
    }
    let most = by_id.values().map(Vec::len).max()?;
    let mut leading = by_id.into_values().filter(|holders| holders.len() == most);
    let holders = leading.next().filter(|_| leading.next().is_none())?;
    holders.into_iter().min_by_key(|holder| holder.deadline_ms)
}

/// Returns the latest of these clocks that is right. Right clocks differ by at most `max_skew`, and at most `minority`
/// of all clocks are ahead of the right ones. So the clock with exactly `minority` later clocks is not ahead. Each
/// clock counts as right that is at most `max_skew` later than that clock.
fn latest_right(mut clocks: Vec<ServerTime>, minority: usize, max_skew: Duration) -> Option<ServerTime> {
    clocks.sort_unstable();
    // If this clock were ahead, all later clocks would be ahead too. Together they would be more than a minority.
    let not_ahead = clocks.len().checked_sub(minority + 1)?;
    let limit = clocks[not_ahead].after(max_skew);
    clocks.into_iter().rfind(|clock| *clock <= limit)
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/acquire/tests.rs"]
mod tests;
