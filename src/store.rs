//! The raw trait below the engine: one attempt against one store of locks, and its possible answers.
//!
//! A scheme knows nothing of waiting, tasks, reentrancy or guards. `memory` is its executable specification. Every
//! other scheme must agree with it:
//!
//! * every hold is one [`AcquisitionId`]; nothing matches on the manager alone;
//! * all operations are idempotent: a copy that is applied twice or late changes nothing more;
//! * an acquisition that was not applied before its limit is never applied ([`Acquired::Late`]);
//! * a repeated acquisition extends the hold, never shortens it, and has the same tokens;
//! * a renewal never re-creates a hold;
//! * a refused acquisition that wants to wait is queued. It leaves the queue by a release, by a grant, or when its
//!   patience passes without a repeat;
//! * the operation that frees the lock grants it to the next in the queue, for the length of that one's claim, and
//!   notifies it;
//! * a missing answer is [`Failure::Unknown`], never a denial.
//!
//! Knows the net, on which scripts are sent, and the base. Must not know guards and waiting.

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

/// Request for a hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AcquireRequest {
    pub(crate) id: AcquisitionId,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// Largest number of consecutive tokens for a writer: one for each writer of its process.
    pub(crate) max_tokens: u64,
    pub(crate) if_taken: IfTaken,
    /// True if the process may cache the hold when its last guard is gone. The server then sets the recallable flag, if
    /// it can.
    pub(crate) caches: bool,
}

/// Lower bound for the token of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Floor {
    /// Bound for a new token only. Readers that are inside keep theirs.
    New(FencingToken),
    /// Bound for every token: that of a present hold or phase is raised. Used for a hold that other masters have
    /// granted. A master refuses it where an operator has ended that token by force.
    Any(FencingToken),
}

/// Fate of an acquisition that cannot be granted now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum IfTaken {
    /// The server refuses and keeps no record.
    Leave,
    /// The acquisition waits in the queue. The server forgets it when no repeat comes for `patience`. When it is
    /// granted while it waits, it has `patience` (at most its lease) to claim the hold by a renewal.
    Queue { waiter_ttl: Duration },
    /// The acquisition waits for a recall reply. The recall carries its id to the holders, which answer that the lock
    /// is in use, or give it up. Where no holder can be recalled, the server refuses and forgets it, unless it waits
    /// already.
    Try { waiter_ttl: Duration },
}

impl AcquireRequest {
    /// Length of a hold that is granted while this request waits, unless it is claimed.
    pub(crate) fn claim(&self) -> Duration {
        match self.if_taken {
            IfTaken::Leave => self.lease,
            IfTaken::Queue { waiter_ttl: patience } | IfTaken::Try { waiter_ttl: patience } => self.lease.min(patience),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    Granted(Granted),
    /// The acquisition waits in the queue. `retry_in` is the time to the first deadline that might free the lock.
    Queued {
        retry_in: Duration,
        /// True if the lock is recallable and this request recalled it: perhaps no guard is inside the hold.
        is_cached: bool,
    },
    /// The lock is held or waited for, and the acquisition does not wait. `retry_in` as in `Queued`.
    Contended {
        retry_in: Duration,
    },
    /// Refusal as by `Contended`, of a recallable lock: perhaps no guard is inside the hold.
    Cached {
        retry_in: Duration,
    },
    /// The request arrived after its limit and changed nothing.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReleaseReply {
    /// The hold was live and is gone now.
    Held,
    /// The acquisition waited and is out of the queue now.
    Queued,
    /// No hold was there, or it ended before the release.
    None(Absence),
}

/// The server's knowledge of a lock where it does not know a hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Absence {
    /// Highest token that an operator has ended.
    pub(crate) forced: Option<FencingToken>,
    /// Last and first token that were granted while the server knew the lock without interruption. `None` if it did
    /// not, or if a client that does not follow this protocol was beside the hold.
    pub(crate) last: Option<FencingToken>,
    pub(crate) first: Option<FencingToken>,
}

impl Absence {
    /// Returns true if this server knew a hold with the tokens from `token` to `last` and has kept its record since.
    /// Such a hold was ended, not forgotten.
    pub(crate) fn has_known(&self, token: FencingToken, last: FencingToken) -> bool {
        let was_granted = self.last.is_some_and(|newest| newest >= last);
        was_granted && self.first.is_some_and(|first| first <= token)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Renewed {
        remaining: Duration,
        /// True if waiters are recorded, as [`Granted::is_waited_for`], in the answer to a renewal with `keeps`.
        is_waited_for: bool,
        /// First of the new tokens, and their number.
        tokens: Option<(FencingToken, u64)>,
    },
    Lost {
        forced: Option<FencingToken>,
    },
}

impl Renewed {
    /// Renewal of a hold that is not cached.
    pub(crate) fn of(remaining: Duration) -> Self {
        Self::Renewed { remaining, is_waited_for: false, tokens: None }
    }
}

/// Result of giving up one hold for another of the other side, in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Converted {
    /// The old hold is gone, the new one is there.
    Granted(Granted),
    /// Others hold the lock too, or a writer waits: the old hold remains.
    Refused,
    /// Refusal as by `Refused`, of a recallable lock: perhaps no guard is inside the other holds. The server has
    /// recalled them.
    Cached,
    /// Neither the old hold nor the new one is there.
    Lost { forced: Option<FencingToken> },
    /// The request arrived after its limit and changed nothing.
    Late,
}

/// Returns why a hold ended that the server does not know: by force if a force came with its token or a later one.
pub(crate) fn loss_reason(token: FencingToken, forced: Option<FencingToken>) -> LossReason {
    match forced {
        Some(forced) if token <= forced => LossReason::Forced,
        _ => LossReason::Gone,
    }
}

/// A server's knowledge of one lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct View {
    pub(crate) token: Option<FencingToken>,
    pub(crate) holders: Vec<Holder>,
    /// Number of further records, dead ones included: one look is bounded.
    pub(crate) more_holders: usize,
    /// Waiters in the order of their arrival, as far as the server's clock tells them apart.
    pub(crate) waiters: Vec<QueuedWaiter>,
    pub(crate) more_waiters: usize,
    /// Timestamps of clients of the timestamp scheme, in milliseconds.
    pub(crate) client_write_ms: Option<u64>,
    pub(crate) client_read_ms: Option<u64>,
    /// Last token of each server, where several keep the lock.
    pub(crate) tokens: Vec<Option<FencingToken>>,
    /// True if processes that are not inside may cache the holds.
    pub(crate) is_recallable: bool,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
    pub(crate) remaining: Duration,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueuedWaiter {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
}

/// Holds that a force has ended.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Forced {
    /// Ids of the holds that were live until now and whose records the force has removed.
    pub(crate) ids: Vec<String>,
    /// True if more records are left: the same call again continues. Their holds are over already.
    pub(crate) has_more: bool,
}

/// Hold to renew.
#[derive(Clone, Debug)]
pub(crate) struct RenewalRequest {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// Asks to cache the hold, as [`AcquireRequest::caches`].
    pub(crate) caches: bool,
    /// Largest number of further tokens for a write hold that may be cached: 0 or [`MAX_TOKENS`](crate::base::lease::MAX_TOKENS).
    pub(crate) tokens: u64,
}

/// Hold, or acquisition under way, to end.
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

/// Attempts at the operations on a lock, one at a time.
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>>;
    /// Acquires where the tokens of several servers have to agree.
    fn acquire_above<'a>(
        &'a self,
        _key: &'a Key,
        _request: &'a AcquireRequest,
        _floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(std::future::ready(Err(no_part_of_a_quorum())))
    }
    /// Returns true if an acquisition without a grant is over and given back. The next attempt then needs another id.
    fn is_given_back(&self) -> bool {
        false
    }
    /// Ends a hold, or an acquisition under way.
    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>>;
    /// Returns true if this runtime can send [`release`](Scheme::release) without waiting for a connection.
    fn can_send_inline(&self, _leave: &ReleaseRequest) -> bool {
        false
    }
    /// Ends several of one route; returns one answer for each, in order.
    fn release_all<'a>(
        &'a self,
        _route: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(join_all(batch.iter().map(|leave| self.release(&leave.key, &leave.id))))
    }
    /// Converts the hold `old` into one of the other side. A writer always gets a read hold. The only reader gets a
    /// write hold if no writer waits.
    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>>;
    /// Renews holds of one route; returns one answer for each, in order.
    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>>;
    fn route(&self, key: &Key) -> Route;
    /// Stream of signals that routes may have changed; `None` where they never do.
    fn changes(&self) -> Option<BoxStream<'static, ()>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>>;
    /// Ends the holds that a look has shown, and nothing newer. The caller repeats it while there is more.
    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>>;
    /// Ends the holds of a lock that several servers have: this server has shown `token`, all together have shown
    /// `seen`. A hold that any of them has shown ends here, whatever its token is now. [`Floor::Any`] does not bring it
    /// back here.
    fn force_shown<'a>(
        &'a self,
        _key: &'a Key,
        _token: Option<FencingToken>,
        _seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(std::future::ready(Err(no_part_of_a_quorum())))
    }
    /// Returns the newest signs of life of the node that serves this lock now, from its answers to any caller.
    fn contact(&self, _key: &Key) -> ServerContact {
        ServerContact::default()
    }
    /// Last clock sample of the server, if there is one.
    fn clock_sample(&self) -> Option<ClockSample> {
        None
    }
    /// Start of the server, as far as it has reported it: the server did not start later.
    fn up_since(&self) -> Option<Moment> {
        None
    }
    /// Succeeds when a usable server answers.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Succeeds if the user may run every command of the scheme, and those in `more`, on the keys of this lock. Changes
    /// nothing.
    fn check_rights<'a>(&'a self, _key: &'a Key, _more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }
    /// Subscribes to the notifications for the waiters of this manager, if the scheme has any. The first one is
    /// [`Notice::AskAgain`], sent when it is certain that none will be missed from then on.
    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription>;
    /// Returns a subscription only if it is certain already that no notification will be missed. Never waits, and costs
    /// next to nothing otherwise.
    fn subscribed(&self, key: &Key, manager: &str) -> Option<Subscription>;
    /// Passes recalls of the lock to `calls`, and whether the subscription is live, as long as `calls` has an owner.
    /// Returns false if the scheme has no recalls.
    fn listen(&self, _key: &Key, _calls: &Arc<Recalls>) -> bool {
        false
    }
    /// Answers the recall of a try: the lock is in use. The server notifies the waiter; nothing else changes.
    fn reply_in_use<'a>(&'a self, _key: &'a Key, _id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        Box::pin(std::future::ready(Err(without_recalls())))
    }
    /// Returns the names of the locks in `listing` that the servers know, in order.
    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>>;
    /// Returns each server's report of itself. Ends in time even if servers do not answer.
    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>>;
    /// Number of servers that have to answer, if not all.
    fn needed(&self) -> Option<usize> {
        None
    }
    /// Returns the load between this scheme and its servers.
    fn traffic(&self) -> Traffic;
    fn clock(&self) -> Clock;
    /// Returns the process in which its locks are held; by default the current one.
    fn process(&self) -> Process {
        Process::current()
    }
}
