//! The raw trait below the engine: one attempt against one store of locks, and what it may answer.
//!
//! A scheme knows nothing of waiting, tasks, reentrancy or guards. Its contract, which `memory` specifies executably and
//! every other scheme must agree with:
//!
//! * every hold is one [`AcquisitionId`]; nothing matches on the manager alone;
//! * all operations are idempotent: a copy that is applied twice or late changes nothing more;
//! * an acquisition that was not applied before its limit is never applied ([`Acquired::Late`]);
//! * a repeated acquisition extends the hold, never shortens it, and has the same tokens;
//! * a renewal never re-creates a hold;
//! * whoever is refused and wants to wait is queued until it leaves, is granted, or is not heard of for its patience;
//! * whoever frees the lock grants it to the next in the queue: for as long as that one's claim, and tells it;
//! * an answer that did not come is [`Failure::Unknown`], never a denial.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;

pub(crate) use crate::base::attempt::{
    AcquisitionId, Answered, Attempt, BoxFuture, Failure, Granted, Notification, Route, ServerContact, Subscription,
};
use crate::base::clock::Clock;
use crate::base::error::{LossReason, Refusal};
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, Moment};
pub(crate) use crate::base::mode::Mode;
use crate::base::process::Process;
use crate::base::recalls::Recalls;

pub(crate) mod hash;
pub(crate) mod lua;
pub(crate) mod memory;
pub(crate) mod quorum;
#[path = "../lua/scripts.rs"]
pub(crate) mod scripts;
pub(crate) mod two_key;
pub(crate) mod view;

/// What an acquisition asks for.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// How many tokens in a row a writer wants at most, one for each writer of its process.
    pub(crate) max_tokens: u64,
    pub(crate) if_taken: IfTaken,
    /// The process may keep the hold when its last guard is gone: the lock is marked, if it can be.
    pub(crate) caches: bool,
}

/// What a grant's token is not to be below.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Floor {
    /// If it is a new one: the token of readers that are inside stays.
    New(FencingToken),
    /// Whatever it was: that of a hold or a phase that is there is raised. For a hold that others have granted: refused where that
    /// was ended by force.
    Any(FencingToken),
}

/// What becomes of an acquisition that cannot be granted now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum IfTaken {
    /// It is told so and forgotten.
    Leave,
    /// It waits in the queue, and is forgotten when it is not repeated for `patience`. Granted while it waits, it has
    /// `patience` as well (but not more than its lease) to claim the hold by a renewal.
    Queue { patience: Duration },
    /// It waits likewise, for a word: whoever is called by it is told its id, and answers that it is used or gives up. Where nobody
    /// is called, it is told so and forgotten, unless it waits already.
    Try { patience: Duration },
}

impl AcquireRequest {
    /// How long a hold lasts that is granted while this one waits, unless it is claimed.
    pub(crate) fn claim(&self) -> Duration {
        match self.if_taken {
            IfTaken::Leave => self.lease,
            IfTaken::Queue { patience } | IfTaken::Try { patience } => self.lease.min(patience),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    Granted(Granted),
    /// It waits in the queue. The first deadline that might free the lock is so far away.
    Queued {
        retry_in: Duration,
        /// The lock is marked, and was called for: perhaps nobody is inside of what is held.
        is_kept: bool,
    },
    /// Others hold the lock or wait for it, and it does not wait; likewise.
    Contended {
        retry_in: Duration,
    },
    /// Likewise, and the lock is marked: perhaps nobody is inside of what is held.
    Kept {
        retry_in: Duration,
    },
    /// It came after its limit and changed nothing.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReleaseReply {
    /// It was live and is gone now.
    Held,
    /// It waited and does not any more.
    Queued,
    /// There was none, or not to the end.
    None(Absence),
}

/// What a server knows of a lock of which it does not know a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Absence {
    /// The highest token that an operator has ended.
    pub(crate) forced: Option<FencingToken>,
    /// The last and the first token that were granted since the server knows the lock without interruption. None if it does
    /// not, or if the hold was there and somebody who knows nothing of us beside it.
    pub(crate) last: Option<FencingToken>,
    pub(crate) first: Option<FencingToken>,
}

impl Absence {
    /// Whether a hold with the tokens from `token` to `last` was known here and its record not lost: then it was ended.
    pub(crate) fn knew(&self, token: FencingToken, last: FencingToken) -> bool {
        let was_granted = self.last.is_some_and(|newest| newest >= last);
        was_granted && self.first.is_some_and(|first| first <= token)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Renewed {
        remaining: Duration,
        /// Of a renewal that keeps: as [`Granted::is_waited_for`].
        is_waited_for: bool,
        /// The first of the new tokens, and how many there are.
        tokens: Option<(FencingToken, u64)>,
    },
    Lost {
        forced: Option<FencingToken>,
    },
}

impl Renewed {
    /// One that is not kept.
    pub(crate) fn of(remaining: Duration) -> Self {
        Self::Renewed { remaining, is_waited_for: false, tokens: None }
    }
}

/// What came of giving one hold up for another of the other side, in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Converted {
    /// The old hold is gone, the new one is there.
    Granted(Granted),
    /// Others hold the lock too, or a writer waits: the old hold stands.
    Refused,
    /// Likewise, and the lock is marked: perhaps nobody is inside of what others hold. They have been called.
    Kept,
    /// The old hold is not there, nor the new one.
    Lost { forced: Option<FencingToken> },
    /// It came after its limit and changed nothing.
    Late,
}

/// How a hold ended that the server does not know: by force when a force came after its token.
pub(crate) fn loss_reason(token: FencingToken, forced: Option<FencingToken>) -> LossReason {
    match forced {
        Some(forced) if token <= forced => LossReason::Forced,
        _ => LossReason::Gone,
    }
}

/// What a server knows of one lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct View {
    pub(crate) token: Option<FencingToken>,
    pub(crate) holders: Vec<Holder>,
    /// How many more are recorded, dead ones too: a look is bounded.
    pub(crate) more_holders: usize,
    /// In the order in which they came, as far as the server's clock tells them apart.
    pub(crate) waiters: Vec<Waiter>,
    pub(crate) more_waiters: usize,
    /// Timestamps of clients of the published scheme, in milliseconds.
    pub(crate) foreign_write_ms: Option<u64>,
    pub(crate) foreign_read_ms: Option<u64>,
    /// The last token of each server, where a lock is kept by several.
    pub(crate) tokens: Vec<Option<FencingToken>>,
    /// What is held may be kept by processes that are not inside.
    pub(crate) is_marked: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
    pub(crate) remaining: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Waiter {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
}

/// What a force has ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Forced {
    /// The holds that were live until now, and whose records it has removed.
    pub(crate) ids: Vec<String>,
    /// More records are left to remove: the same call again goes on. Their holds are over all the same.
    pub(crate) more: bool,
}

/// One hold to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// As [`AcquireRequest::keeps`].
    pub(crate) keeps: bool,
    /// How many more tokens a write hold that is kept wants at most, [`MAX_TOKENS`](crate::base::lease::MAX_TOKENS) of them.
    pub(crate) tokens: u64,
}

/// One hold, or acquisition that is under way, to end.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
}

fn no_part_of_a_quorum() -> Failure {
    refused("this scheme is no part of a quorum")
}

pub(crate) fn without_recalls() -> Failure {
    refused("nobody is called in this scheme")
}

pub(crate) fn refused(why: &str) -> Failure {
    Failure::Refused { refusal: Refusal::Other, node: None, message: why.to_owned() }
}

/// One attempt at each operation on a lock.
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>>;
    /// The same where the tokens of several servers are to agree.
    fn acquire_above<'a>(
        &'a self,
        _key: &'a Key,
        _request: &'a AcquireRequest,
        _floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(std::future::ready(Err(no_part_of_a_quorum())))
    }
    /// Whether an acquisition that was not granted is over, and has been given back: the next attempt is to have another id.
    fn is_given_back(&self) -> bool {
        false
    }
    /// Ends a hold, or an acquisition that is under way.
    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>>;
    /// Whether this runtime can send [`leave`](Scheme::leave) without waiting for a connection.
    fn can_send_inline(&self, _leave: &ReleaseRequest) -> bool {
        false
    }
    /// Ends several of one route; one answer each, in order.
    fn release_all<'a>(
        &'a self,
        _route: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(join_all(batch.iter().map(|leave| self.release(&leave.key, &leave.id))))
    }
    /// Gives up the hold `old` for one of the other side: a writer for a read hold, always, and the only reader for a write
    /// hold if no writer waits.
    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>>;
    /// Renews holds of one route; one answer each, in order.
    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>>;
    fn route(&self, key: &Key) -> Route;
    /// Tells when routes may have changed; `None` where they never do.
    fn changes(&self) -> Option<BoxStream<'static, ()>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>>;
    /// Ends what a look has shown, and nothing newer; to be repeated while there is more.
    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>>;
    /// The same where several servers have it: this one has shown the token, and all together the view. What any of them has
    /// shown ends here, whatever its token is by now, and [`Floor::Any`] does not bring it here again.
    fn force_shown<'a>(
        &'a self,
        _key: &'a Key,
        _token: Option<FencingToken>,
        _seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(std::future::ready(Err(no_part_of_a_quorum())))
    }
    /// What is known of whoever serves this lock at the moment, from what it has said to anybody.
    fn contact(&self, _key: &Key) -> ServerContact {
        ServerContact::default()
    }
    /// What the server's clock has said last, if that is known.
    fn clock_sample(&self) -> Option<ClockSample> {
        None
    }
    /// Since when the server has been running, as far as it has said so: not later than that.
    fn up_since(&self) -> Option<Moment> {
        None
    }
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Succeeds if the user may run every command that it takes, and `more`, on the keys of this lock. Changes nothing.
    fn check_rights<'a>(&'a self, _key: &'a Key, _more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Notices for the waiters of this manager, if the scheme has any. The first is [`Notice::AskAgain`] when it is certain
    /// that none will be missed from then on.
    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription>;
    /// The same, if it is certain already that none will be missed; never waits, and costs next to nothing if not.
    fn subscribed(&self, key: &Key, manager: &str) -> Option<Subscription>;
    /// Tells `calls` who calls for the lock, and whether it would hear that, as long as somebody has `calls`. `false` if nobody can
    /// call.
    fn listen(&self, _key: &Key, _calls: &Arc<Recalls>) -> bool {
        false
    }
    /// Answers the call of a try: the lock is used. Its waiter is told so, and nothing else changes.
    fn reply_in_use<'a>(&'a self, _key: &'a Key, _id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        Box::pin(std::future::ready(Err(without_recalls())))
    }
    /// The names of the locks in `listing` that the servers know, in order.
    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>>;
    /// What each server says of itself. Ends in time whatever they do.
    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>>;
    /// How many servers have to answer, if not all.
    fn needed(&self) -> Option<usize> {
        None
    }
    /// How busy it is with its servers.
    fn traffic(&self) -> Traffic;
    fn clock(&self) -> Clock;
    /// Returns the process in which its locks are held; by default the current one.
    fn process(&self) -> Process {
        Process::current()
    }
}
