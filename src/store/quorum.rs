//! Scheme that keeps each lock at several independent masters and lets a majority of them decide (Redlock). It serves
//! both readers and writers.
//!
//! An attempt asks all masters in parallel. It ends as soon as a majority has decided, so it waits for no slow master.
//! An answer that comes later still counts: a late grant becomes part of the hold, or the manager releases it. A hold
//! lasts as long as a majority keeps it, and a majority stores its token ([`votes`]). If an acquisition has no
//! majority, the manager releases it at once at all masters that may have granted it. The next attempt has another id,
//! so a late release ends no later hold. Acquisitions do not queue at a master, because each master would have its own
//! order of waiters. The manager repeats a refused acquisition after a pause with jitter.
//!
//! A master that was restarted may have forgotten its grants. It has no vote until its uptime is longer than the
//! longest lease of this manager. By then, all grants that it may have forgotten are over.
//!
//! Source: Antirez, "Distributed locks with Redis" (Redlock), its section on delayed restarts.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use futures_util::stream::FuturesUnordered;

use self::master::Master;
use self::outstanding::Outstanding;
use self::votes::{Ballot, Vote, Yes, majority, minority};
use crate::base::attempt::NodeId;
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::clock::Clock;
use crate::base::error::NoMajority;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::process;
use crate::store::{
    Ability, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxAttempt, BoxFuture, Converted, Failure,
    Forced, Granted, IfTaken, MasterScheme, Mode, NamedHolder, QuorumScheme, ReleaseBackground, ReleaseReply,
    ReleaseRequest, RenewalRequest, Renewed, Route, Scheme, ServerContact, View,
};

mod acquire;
mod convert;
mod leftovers;
mod master;
mod outstanding;
mod release;
mod renew;
mod views;
mod votes;

/// Way to make sure that a restarted master does not vote too early.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Restarts {
    /// The manager checks the uptime of a master before it counts the vote.
    Checked,
    /// The operator delays the start of a restarted master.
    Delayed,
}

/// Margins for differences between clocks, and for delays in the network.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Margins {
    pub(crate) max_clock_skew: Duration,
    /// Longest time between the sending of a request and the moment at which a master may still carry it out.
    pub(crate) max_delay: Duration,
}

/// Scheme that combines several schemes, one for each master.
pub(crate) struct Quorum {
    masters: Vec<Arc<Master>>,
    outstanding: Arc<Outstanding>,
    clock: Clock,
    margins: Margins,
    restarts: Restarts,
    /// Longest lease that this manager has requested for any hold, in nanoseconds.
    longest_lease: AtomicU64,
}

impl fmt::Debug for Quorum {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Quorum").field(&self.masters).finish()
    }
}

/// Answer of one master, with its index.
type MasterAnswer<T> = (usize, Attempt<T>);
/// Requests whose answers are missing.
type PendingAnswers<T> = FuturesUnordered<BoxFuture<'static, T>>;
/// Votes and answers for one hold of a batch.
type HoldCount = (Ballot, AnswerSummary);

/// Rule that decides which masters may say yes.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
enum Voters {
    /// Only masters that remember all their live grants. At another master, a new hold might conflict with a grant that
    /// the master has forgotten.
    #[default]
    Remembering,
    /// All masters. The scheme uses this rule when a write hold becomes a read hold, because the write hold already
    /// excludes all other holders.
    Holding,
}

/// Details of the answers, for the result when no majority says yes.
#[derive(Debug, Default)]
struct AnswerSummary {
    retry_in: Option<Duration>,
    /// Holders that masters named in their refusals.
    named: Vec<Arc<NamedHolder>>,
    /// Latest server time in any answer.
    server: ServerTime,
    failures: Vec<Failure>,
    voters: Voters,
    /// Number of masters that may not vote yet.
    restarted: usize,
    /// Masters that may have had an earlier, failed acquisition of this manager when they were asked. Such a master
    /// may refuse only because of that acquisition.
    leftovers: Vec<usize>,
    /// Number of those masters that refused.
    refused_for_leftover: usize,
}

impl AnswerSummary {
    /// Notes the result of a request. Returns the answer, or `None` if the master has not answered.
    fn note<T>(&mut self, attempt: Attempt<T>) -> Option<Answered<T>> {
        match attempt {
            Ok(answer) => {
                self.server = self.server.max(answer.server);
                Some(answer)
            }
            Err(failure) => {
                self.failures.push(failure);
                None
            }
        }
    }

    /// Returns the failure that the attempt reports if too few masters answer.
    fn failure(self, masters: usize) -> Failure {
        let is_refusal = |failure: &&Failure| matches!(failure, Failure::Refused { .. } | Failure::Broken { .. });
        let mut refusals = self.failures.iter().filter(is_refusal);
        if refusals.clone().count() > minority(masters)
            && let Some(refusal) = refusals.next()
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
        masters: Vec<Arc<dyn MasterScheme>>,
        background_runtime: &BackgroundRuntime,
        any: &Key,
        margins: Margins,
        restarts: Restarts,
        lease: Duration,
    ) -> Self {
        let clock = masters.first().map_or(Clock::System, |master| master.clock());
        let masters = masters
            .into_iter()
            .enumerate()
            .map(|(place, scheme)| Arc::new(Master::new(scheme, place, background_runtime.clone(), any.clone())));
        let masters: Vec<_> = masters.collect();
        let outstanding = Outstanding::new(masters.clone(), clock, margins);
        let longest_lease = AtomicU64::new(nanos(lease));
        Self { masters, outstanding, clock, margins, restarts, longest_lease }
    }

    fn ballot(&self) -> Ballot {
        Ballot::new(self.masters.len())
    }

    /// Returns a count without votes for each request of a batch.
    fn counts<T>(&self, batch: &[T]) -> Vec<HoldCount> {
        batch.iter().map(|_| (self.ballot(), AnswerSummary::default())).collect()
    }

    /// Builds an answer of several masters at the present moment. The default id stands for no node, because several have
    /// answered.
    fn answer<T>(&self, server: ServerTime, value: T) -> Answered<T> {
        Answered { sent: self.clock.now(), server, node: NodeId::default(), value }
    }

    /// Returns true if a master may vote, because it must remember all its grants that are not over.
    fn may_vote(&self, master: usize) -> bool {
        self.time_to_vote(master).is_none()
    }

    /// Returns the time until a master may vote, or `None` if it may vote now.
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

    /// Returns the number of masters that answer requests but may not vote yet. It includes masters whose answers no
    /// attempt has awaited.
    fn restarted_masters(&self) -> usize {
        let answers = |(place, master): &(usize, &Arc<Master>)| !self.may_vote(*place) && !master.is_silent();
        self.masters.iter().enumerate().filter(answers).count()
    }

    /// Sends a request to every master that is not silent.
    fn ask<T>(&self, ballot: &mut Ballot, mut send: impl FnMut(usize) -> BoxFuture<'static, T>) -> PendingAnswers<T> {
        let asked = FuturesUnordered::new();
        for (place, master) in self.masters.iter().enumerate() {
            if master.is_silent() {
                ballot.cast(place, Vote::Silent);
            } else {
                asked.push(send(place));
            }
        }
        asked
    }

    fn released_vote(&self, was_held: bool) -> Vote {
        let now = self.clock.now();
        if was_held { Vote::Yes(Yes { sent: now, until: now, token: NO_TOKEN }) } else { Vote::No }
    }

    /// Asks the masters that are not silent. Returns the successful answers, if a majority of the masters gave a
    /// successful answer.
    async fn ask_majority<'a, T>(
        &'a self,
        ask: impl Fn(usize, &'a dyn MasterScheme) -> BoxFuture<'a, Result<T, Failure>> + Send + Sync,
    ) -> Result<Vec<(usize, T)>, Failure> {
        let (masters, ask) = (self.masters.len(), &ask);
        let live = self.masters.iter().enumerate().filter(|(_, master)| !master.is_silent());
        let asked = live.map(|(place, master)| async move { (place, ask(place, &*master.scheme).await) });
        let (mut summary, mut given) = (AnswerSummary::default(), Vec::new());
        for (place, answer) in join_all(asked).await {
            match answer {
                Ok(answer) => given.push((place, answer)),
                Err(failure) => summary.failures.push(failure),
            }
        }
        if given.len() >= majority(masters) { Ok(given) } else { Err(summary.failure(masters)) }
    }

    /// Notes a requested lease. A restarted master may vote only when all holds with a lease of this length are over.
    fn note_lease(&self, lease: Duration) {
        self.longest_lease.fetch_max(nanos(lease), Ordering::Relaxed);
    }
}

/// Token in a vote for which the masters need not agree on a token.
const NO_TOKEN: FencingToken = FencingToken::ZERO;

fn nanos(span: Duration) -> u64 {
    u64::try_from(span.as_nanos()).unwrap_or(u64::MAX)
}

/// Returns an acquisition as each master gets it. A master keeps no waiters, and reserves one token.
fn request_to_master(id: &AcquisitionId, mode: Mode, lease: Duration) -> AcquireRequest {
    AcquireRequest { id: id.clone(), mode, lease, max_tokens: 1, if_taken: IfTaken::Leave, caches: false }
}

/// Builds the answer for a grant by a majority. The answer has no server time, because the clocks of the masters
/// differ. The time of the hold counts by the local clock.
fn majority_answer<T>(Yes { sent, until, token }: Yes, value: impl FnOnce(Granted) -> T) -> Answered<T> {
    let granted = Granted { token, tokens: 1, remaining: until.since(sent), is_waited_for: false };
    Answered { sent, server: ServerTime::default(), node: NodeId::default(), value: value(granted) }
}

/// Turns the failure `NotDone` into an unknown result, because a minority of the masters may have carried out the
/// request.
fn into_unknown(failure: Failure, arrives_until: Moment) -> Failure {
    match failure {
        Failure::NotDone { source } => Failure::Unknown { arrives_until, source },
        other => other,
    }
}

/// Waits in the background for the remaining answers, so that a slow master does not delay the caller. If the runtime
/// ends before, the remaining requests stay recorded as sent.
fn finish<T: Send + 'static>(mut asked: PendingAnswers<T>) {
    if !asked.is_empty() {
        drop(process::spawn(async move { while asked.next().await.is_some() {} }));
    }
}

impl Scheme for Quorum {
    fn lacks(&self, ability: Ability) -> Option<&'static str> {
        Some(match ability {
            Ability::Rests => {
                "nobody renews a rest that one of several masters has lost in a restart, so a majority could forget it: \
                 use a manager of one server, of a cluster or of Sentinels"
            }
            Ability::Waiters => {
                "the masters of a quorum have no waiters, so a manager cannot see which process waits for which"
            }
            Ability::Tickets => {
                "nobody renews a detached hold that one of several masters has lost in a restart, so a majority could \
                 forget it: use a manager of one server, of a cluster or of Sentinels"
            }
        })
    }

    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxAttempt<'a, Acquired> {
        Box::pin(async move {
            self.note_lease(request.lease);
            match self.outstanding.token_of(&request.id) {
                Some(token) => self.confirm(key, request, token).await,
                None => self.acquire_anew(key, request).await,
            }
        })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxAttempt<'a, ReleaseReply> {
        Box::pin(
            async move { self.release_everywhere(std::slice::from_ref(request)).await.pop().expect("one answer each") },
        )
    }

    fn release_all<'a>(
        &'a self,
        route: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        match self.masters.iter().find(|master| master.route == *route) {
            Some(master) => Box::pin(master.release_all(batch)),
            None => Box::pin(self.release_everywhere(batch)),
        }
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxAttempt<'a, Converted> {
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

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxAttempt<'a, View> {
        Box::pin(async move {
            let answers = self.ask_majority(|_, scheme| scheme.inspect(key)).await?;
            let (server, view) = views::merge(self.masters.len(), answers);
            Ok(self.answer(server, view))
        })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxAttempt<'a, Forced> {
        Box::pin(async move {
            // A master may have no token in the view. It may have got the hold after the other masters answered
            // `inspect`.
            let token = |place| seen.tokens.get(place).copied().flatten();
            let answers = self.ask_majority(|place, scheme| scheme.force_shown(key, token(place), seen)).await?;
            let server = answers.iter().map(|(_, answer)| answer.server).max().unwrap_or_default();
            let forced = views::merge_forced(seen, answers.into_iter().map(|(_, answer)| answer.value).collect());
            Ok(self.answer(server, forced))
        })
    }

    fn contact(&self, key: &Key) -> ServerContact {
        let mut served: Vec<_> = self.masters.iter().map(|master| master.scheme.contact(key).served).collect();
        served.sort_unstable();
        // A majority has served a request at this moment or later. The value `is_silent` is always false: an attempt
        // fails as soon as a majority is missing, so no caller has to wait for a silent quorum.
        let served = served.len().checked_sub(majority(served.len())).and_then(|place| served[place]);
        ServerContact { served, is_silent: false }
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(async move {
            let masters = self.masters.len();
            let mut asked: PendingAnswers<Result<(), Failure>> = FuturesUnordered::new();
            for master in &self.masters {
                let scheme = Arc::clone(&master.scheme);
                asked.push(Box::pin(async move { scheme.ready().await }));
            }
            let (mut ready, mut summary) = (0, AnswerSummary::default());
            while ready < majority(masters)
                && summary.failures.len() <= minority(masters)
                && let Some(answer) = asked.next().await
            {
                match answer {
                    Ok(()) => ready += 1,
                    Err(failure) => summary.failures.push(failure),
                }
            }
            finish(asked);
            if ready < majority(masters) { Err(summary.failure(masters)) } else { Ok(()) }
        })
    }

    /// Treats a master that refuses a command as a master that does not vote. Fails only if a majority would be
    /// missing.
    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(async move {
            let asked = self.masters.iter().map(|master| master.scheme.check_rights(key, more));
            let mut asked: FuturesUnordered<_> = asked.collect();
            let (mut granted, mut spare) = (0, minority(self.masters.len()));
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

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            // A majority of the masters has recorded each held lock. Any two majorities share a master, so the answers
            // of a majority miss no held lock.
            let answers = self.ask_majority(|_, scheme| scheme.names(listing)).await?;
            Ok(answers.into_iter().flat_map(|(_, names)| names).collect())
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        Box::pin(async move {
            let asked = self.masters.iter().map(|master| master.scheme.health());
            let asked = join_all(asked).await;
            // The answer to this request contains the uptime of the master, so the time until its vote is computed
            // afterwards.
            let of_master = |(place, mut nodes): (usize, Vec<NodeHealth>)| {
                let votes_in = self.time_to_vote(place);
                nodes.iter_mut().filter(|node| node.is_reachable).for_each(|node| node.votes_in = votes_in);
                nodes
            };
            asked.into_iter().enumerate().flat_map(of_master).collect()
        })
    }

    fn quorum(&self) -> Option<&dyn QuorumScheme> {
        Some(self)
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

impl QuorumScheme for Quorum {
    fn needed_servers(&self) -> usize {
        majority(self.masters.len())
    }

    fn set_background(&self, background: Weak<dyn ReleaseBackground>) {
        self.outstanding.set_background(background);
    }
}
