//! Scheme with one lock at several independent masters: a majority of them decides (Redlock), for both modes.
//!
//! Each attempt asks all masters in parallel and is over when a majority has decided it: it waits for no slow master.
//! Later answers still count: a late grant is part of the hold, or is released. A hold lasts as long as a majority
//! keeps it, and a majority stores its token ([`votes`]). An acquisition without a majority is released at once at all
//! masters that may have it. The next attempt has another id, so a late release ends no hold that counts. Acquisitions
//! do not queue at a master, since each master would have an order of its own. A refused one asks again after a pause
//! with jitter.
//!
//! A master that was restarted may have forgotten its grants. It has no vote until it has been running for longer than
//! the longest lease of this manager: by then all that it may have forgotten is over.
//! Source: Antirez, "Distributed locks with Redis" (Redlock), its section on delayed restarts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::{BoxStream, FuturesUnordered};

use self::master::Master;
use self::outstanding::Outstanding;
use self::votes::{Ballot, Verdict, Vote, Yes, majority};
use crate::base::attempt::NodeId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::error::NoMajority;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::process;
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Forced, Granted,
    ReleaseReply, ReleaseRequest, RenewalRequest, Renewed, Route, Scheme, ServerContact, Subscription, View,
};

mod acquire;
mod convert;
mod master;
mod outstanding;
mod release;
mod renew;
mod views;
mod votes;

/// Responsibility that a restarted master does not vote too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restarts {
    /// The manager checks the uptime before it counts a vote.
    Checked,
    /// The operator delays the start of the master.
    Delayed,
}

/// Margins for the masters' clocks and for the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Margins {
    pub(crate) max_clock_skew: Duration,
    /// Longest time for which a request that is sent now may yet be carried out.
    pub(crate) max_delay: Duration,
}

/// Scheme over several schemes, each of one master.
pub(crate) struct Quorum {
    masters: Vec<Arc<Master>>,
    outstanding: Arc<Outstanding>,
    clock: Clock,
    margins: Margins,
    restarts: Restarts,
    /// Longest lease of any hold that this manager has requested, in nanoseconds.
    longest_lease: AtomicU64,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quorum").field(&self.masters).finish()
    }
}

/// Answer of one master, with its index.
type MasterAnswer<T> = (usize, Attempt<T>);
/// Requests that have yet to be answered.
type PendingAnswers<T> = FuturesUnordered<BoxFuture<'static, T>>;

/// Masters whose yes counts.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Voters {
    /// Masters that may remember all their grants: a new hold may conflict with a forgotten one.
    #[default]
    Remembering,
    /// All masters that have the hold, when it is kept as it is or made a lesser one.
    Holding,
}

/// Details for the answer when no majority says yes.
#[derive(Debug, Default)]
struct AnswerSummary {
    retry_in: Option<Duration>,
    forced: Option<FencingToken>,
    /// Latest server time of any answer.
    server: ServerTime,
    failures: Vec<Failure>,
    voters: Voters,
    /// Number of masters that may not vote yet.
    restarted: usize,
}

impl AnswerSummary {
    /// Failure to report when too few masters answer.
    fn failure(self, masters: usize) -> Failure {
        let minority = masters - majority(masters);
        let is_refusal = |failure: &&Failure| matches!(failure, Failure::Refused { .. } | Failure::Broken { .. });
        if self.failures.iter().filter(is_refusal).count() > minority
            && let Some(refusal) = self.failures.iter().find(is_refusal)
        {
            return refusal.clone();
        }
        let sources = self.failures.iter().filter_map(|failure| match failure {
            Failure::Unknown { source, .. } | Failure::NotDone { source } => source.as_ref().map(ToString::to_string),
            Failure::Refused { message, .. } | Failure::Broken { message, .. } => Some(message.clone()),
            Failure::Unreplicated { .. } => unreachable!("masters of a quorum have no replicas"),
        });
        let young = (self.restarted > 0).then(|| format!("{} restarted less than a lease ago", self.restarted));
        let causes = sources.chain(young).collect();
        let no_majority = NoMajority { masters, needed: majority(masters), restarted: self.restarted, causes };
        Failure::NotDone { source: Some(Arc::new(no_majority)) }
    }
}

impl Quorum {
    pub(crate) fn new(
        masters: Vec<Arc<dyn Scheme>>,
        background_runtime: &BackgroundRuntime,
        any: &Key,
        margins: Margins,
        restarts: Restarts,
        lease: Duration,
    ) -> Self {
        let clock = masters.first().map_or(Clock::System, |master| master.clock());
        let tended =
            masters.into_iter().map(|scheme| Arc::new(Master::new(scheme, background_runtime.clone(), any.clone())));
        let masters: Vec<_> = tended.collect();
        let traces = Outstanding::new(masters.clone(), clock, margins.max_clock_skew, margins.max_delay);
        let longest_lease = AtomicU64::new(nanos(lease));
        Self { masters, outstanding: traces, clock, margins, restarts, longest_lease }
    }

    fn ballot(&self) -> Ballot {
        Ballot::new(self.masters.len())
    }

    /// Returns true if a master may remember all its grants that are not over.
    fn may_vote(&self, master: usize) -> bool {
        self.time_to_vote(master).is_none()
    }

    /// Time until a master may vote. `None` if it may.
    fn time_to_vote(&self, master: usize) -> Option<Duration> {
        if self.restarts == Restarts::Delayed {
            return None;
        }
        let longest = Duration::from_nanos(self.longest_lease.load(Ordering::Relaxed));
        let forgotten = lease::surely_over(longest, self.margins.max_clock_skew);
        let up_since = self.masters[master].scheme.up_since()?;
        let left = forgotten.saturating_sub(self.clock.now().since(up_since));
        (!left.is_zero()).then_some(left)
    }

    /// Number of masters that answer and may not vote yet, including those that no attempt waited for.
    fn restarted_masters(&self) -> usize {
        let answers = |(place, master): &(usize, &Arc<Master>)| !self.may_vote(*place) && !master.is_silent();
        self.masters.iter().enumerate().filter(answers).count()
    }

    /// Asks every master that is not silent.
    fn ask<T: Send + 'static, F: Future<Output = T> + Send + 'static>(
        &self,
        ballot: &mut Ballot,
        asks: impl Fn(usize, Arc<dyn Scheme>) -> F,
    ) -> PendingAnswers<T> {
        let asked = FuturesUnordered::new();
        for (place, master) in self.masters.iter().enumerate() {
            if master.is_silent() {
                ballot.cast(place, Vote::Silent);
            } else {
                asked.push(Box::pin(asks(place, Arc::clone(&master.scheme))) as BoxFuture<'static, T>);
            }
        }
        asked
    }

    fn released_vote(&self, was_held: bool) -> Vote {
        let now = self.clock.now();
        if was_held { Vote::Yes(Yes { sent: now, until: now, token: NO_TOKEN }) } else { Vote::No }
    }

    /// Masters that are not silent.
    fn live_masters(&self) -> impl Iterator<Item = (usize, &dyn Scheme)> {
        let masters = self.masters.iter().enumerate().filter(|(_, master)| !master.is_silent());
        masters.map(|(place, master)| (place, &*master.scheme))
    }

    /// Returns the answers if a majority has answered.
    fn majority_of<T>(&self, answers: Vec<(usize, Result<T, Failure>)>) -> Result<Vec<(usize, T)>, Failure> {
        let (mut summary, mut given) = (AnswerSummary::default(), Vec::new());
        for (place, answer) in answers {
            match answer {
                Ok(answer) => given.push((place, answer)),
                Err(failure) => summary.failures.push(failure),
            }
        }
        let masters = self.masters.len();
        if given.len() >= majority(masters) { Ok(given) } else { Err(summary.failure(masters)) }
    }

    /// Notes a lease: a master must have forgotten all holds of this length before it may vote again.
    fn note_lease(&self, lease: Duration) {
        self.longest_lease.fetch_max(nanos(lease), Ordering::Relaxed);
    }
}

/// Token of a vote in which no token has to be agreed upon.
const NO_TOKEN: FencingToken = FencingToken::ZERO;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

fn answer_of<T>(sent: Moment, server: ServerTime, value: T) -> Answered<T> {
    // The answer comes from several nodes.
    Answered { sent, server, node: NodeId::default(), value }
}

/// Answers with the grant of a majority. It counts by the local clock, since the masters' deadlines and clocks differ.
fn majority_answer<T>(won: Yes, value: T) -> Answered<T> {
    answer_of(won.sent, ServerTime::default(), value)
}

fn majority_grant(won: Yes) -> Granted {
    Granted { token: won.token, tokens: 1, remaining: won.until.since(won.sent), is_waited_for: false }
}

/// Turns a failure into an unknown result: a minority may have carried out the request.
fn into_unknown(failure: Failure, arrives_until: Moment) -> Failure {
    match failure {
        Failure::NotDone { source } => Failure::Unknown { arrives_until, source },
        other => other,
    }
}

/// Waits in the background for the remaining answers, so a master that never answers delays no caller. If this runtime
/// ends, requests under way count as sent.
fn finish<T: Send + 'static>(mut asked: PendingAnswers<T>) {
    if !asked.is_empty() {
        drop(process::spawn(async move { while asked.next().await.is_some() {} }));
    }
}

impl Scheme for Quorum {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move {
            self.note_lease(request.lease);
            match self.outstanding.token_of(&request.id) {
                Some(token) => self.confirm(key, request, token).await,
                None => self.acquire_anew(key, request).await,
            }
        })
    }

    fn is_given_back(&self) -> bool {
        true
    }

    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async move {
            let request = ReleaseRequest { key: Arc::new(key.clone()), id: id.clone() };
            self.release_everywhere(&[request]).await.pop().expect("one answer each")
        })
    }

    fn release_all<'a>(
        &'a self,
        _: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(self.release_everywhere(batch))
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(async move {
            self.note_lease(request.lease);
            self.convert_by_majority(key, old, request).await
        })
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        Box::pin(self.renew_all(batch))
    }

    fn route(&self, _: &Key) -> Route {
        Route("quorum".into())
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        Box::pin(async move {
            let asks = self.live_masters().map(|(place, scheme)| async move { (place, scheme.inspect(key).await) });
            let answers = self.majority_of(join_all(asks).await)?;
            let (server, view) = views::merge(self.masters.len(), answers);
            Ok(answer_of(self.clock.now(), server, view))
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move {
            let asks = self.live_masters().map(|(place, scheme)| {
                // A master that has shown nothing may have got the hold since the look at the others.
                let token = seen.tokens.get(place).copied().flatten();
                async move { (place, scheme.force_shown(key, token, seen).await) }
            });
            let answers = self.majority_of(join_all(asks).await)?;
            let server = answers.iter().map(|(_, answer)| answer.server).max().unwrap_or_default();
            let forced = views::merge_forced(seen, answers.into_iter().map(|(_, answer)| answer.value).collect());
            Ok(answer_of(self.clock.now(), server, forced))
        })
    }

    fn contact(&self, key: &Key) -> ServerContact {
        let mut served: Vec<_> = self.masters.iter().map(|master| master.scheme.contact(key).served).collect();
        served.sort_unstable();
        // The moment at which a majority had served last. Never silent: a caller that learns that there is no majority
        // has not waited for an answer.
        let served = served.len().checked_sub(majority(served.len())).and_then(|place| served[place]);
        ServerContact { served, is_silent: false }
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            let mut ballot = self.ballot();
            let mut asked: PendingAnswers<(usize, Result<(), Failure>)> = FuturesUnordered::new();
            for (place, master) in self.masters.iter().enumerate() {
                let scheme = Arc::clone(&master.scheme);
                asked.push(Box::pin(async move { (place, scheme.ready().await) }));
            }
            let mut summary = AnswerSummary::default();
            while ballot.is_open()
                && let Some((place, answer)) = asked.next().await
            {
                let vote = match answer {
                    Ok(()) => self.released_vote(true),
                    Err(failure) => {
                        summary.failures.push(failure);
                        Vote::Silent
                    }
                };
                ballot.cast(place, vote);
            }
            finish(asked);
            match ballot.verdict() {
                Verdict::Won(_) => Ok(()),
                _ => Err(summary.failure(self.masters.len())),
            }
        })
    }

    /// Counts a minority without rights as masters that do not vote.
    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let asked = self.masters.iter().map(|master| master.scheme.check_rights(key, more));
            let mut asked: FuturesUnordered<_> = asked.collect();
            let (mut granted, mut spare) = (0, self.masters.len() - majority(self.masters.len()));
            while let Some(answer) = asked.next().await {
                match answer {
                    Ok(()) => granted += 1,
                    Err(failure) if spare == 0 => return Err(failure),
                    Err(_) => spare -= 1,
                }
                if granted == majority(self.masters.len()) {
                    break;
                }
            }
            Ok(())
        })
    }

    fn subscribe(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }

    fn subscribed(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            let asks = self.live_masters().map(|(place, scheme)| async move { (place, scheme.names(listing).await) });
            // A majority has the lock, so any majority includes a master that knows it.
            let answers = self.majority_of(join_all(asks).await)?;
            Ok(answers.into_iter().flat_map(|(_, names)| names).collect())
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        Box::pin(async move {
            let asked = self.masters.iter().map(|master| master.scheme.health());
            let asked = join_all(asked).await;
            // The uptime is known only after the master has answered.
            let of_master = |(place, mut nodes): (usize, Vec<NodeHealth>)| {
                let votes_in = self.time_to_vote(place);
                nodes.iter_mut().filter(|node| node.is_reachable).for_each(|node| node.votes_in = votes_in);
                nodes
            };
            asked.into_iter().enumerate().flat_map(of_master).collect()
        })
    }

    fn needed(&self) -> Option<usize> {
        Some(majority(self.masters.len()))
    }

    fn traffic(&self) -> Traffic {
        let all = self.masters.iter().map(|master| master.scheme.traffic());
        all.fold(Traffic::default(), |sum, one| Traffic {
            in_flight: sum.in_flight + one.in_flight,
            reconnects: sum.reconnects + one.reconnects,
            map_refreshes: sum.map_refreshes + one.map_refreshes,
        })
    }

    fn clock(&self) -> Clock {
        self.clock
    }
}
