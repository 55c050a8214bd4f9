//! Interface between the engine and the stores of locks. Each operation is one attempt, and its result is one of a few
//! answers.
//!
//! A [`Scheme`] knows nothing of tasks, reentrancy or guards. The scheme in the module `memory` is the executable
//! specification. Every other scheme must behave in the same way:
//!
//! * Every hold has one [`AcquisitionId`]. No operation identifies a hold by its manager alone.
//! * All operations are idempotent. A copy that is applied twice or late changes nothing more.
//! * An acquisition that was not applied before its limit is never applied ([`Acquired::Late`]).
//! * A repeated acquisition extends the hold and never shortens it. The hold keeps its tokens.
//! * A renewal never re-creates a hold.
//! * A release with a time lets a write hold rest until then: the lock stays taken, and no request finds the hold under
//!   its id any more.
//! * A refused acquisition that is to wait enters the queue. It leaves the queue by a release, by a grant, or when its
//!   `waiter_ttl` passes without a repeat.
//! * The operation that frees the lock grants it to the next waiter in the queue and notifies the waiter. The grant
//!   lasts for the waiter's [claim](AcquireRequest::claim). The two-key scheme only notifies the waiter, which then
//!   asks again.
//! * A missing answer is [`Failure::Unknown`], never a denial.
//!
//! Knows the layers `net`, which sends the scripts, and `base`. Must not know guards and waiting.

use std::collections::BTreeSet;
use std::fmt;
use std::sync::{Arc, Weak};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;

pub(crate) use crate::base::attempt::{
    Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Failure, Granted, Notification, Route, ServerContact,
    Subscription,
};
use crate::base::clock::Clock;
pub(crate) use crate::base::denied::NamedHolder;
use crate::base::error::{LossReason, Refusal};
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, Moment, ServerTime};
pub(crate) use crate::base::mode::Mode;
use crate::base::process::Process;
use crate::base::recalls::Recalls;

pub(crate) mod hash;
pub(crate) mod lua;
pub(crate) mod memory;
pub(crate) mod quorum;
pub(crate) mod redisson;
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
    /// Largest number of consecutive tokens for a writer. Each writer of the process that uses this hold after the
    /// first one takes the next of these tokens.
    pub(crate) max_tokens: u64,
    pub(crate) if_taken: IfTaken,
    /// True if the process may cache the hold when its last guard is gone. A server that supports recalls then sets the
    /// recallable flag of the lock.
    pub(crate) caches: bool,
}

/// Lower bound for the token of a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Floor {
    /// Bound for a new token only. Readers that hold the lock already keep their token.
    New(FencingToken),
    /// Bound for every token: the server raises the token of a live hold to it. The manager uses this bound for a hold
    /// that other masters have granted. A master refuses the request if an operator has ended this token there by
    /// force.
    Any(FencingToken),
}

/// Treatment of an acquisition that cannot be granted now.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) enum IfTaken {
    /// The server refuses the acquisition and keeps no record of it.
    Leave,
    /// The acquisition waits in the queue. The server forgets it if the request is not repeated within `waiter_ttl`. If
    /// the server grants the lock to this waiter, the hold lasts only for the [claim](AcquireRequest::claim). A renewal
    /// then extends the hold.
    Queue { waiter_ttl: Duration },
    /// The acquisition is a try that waits for a recall reply. The request recalls the hold, and the recall carries the
    /// id of the try to the processes that may cache the lock. Such a process releases the hold, or replies that a
    /// guard uses it. If the request recalls no hold, the server refuses the try and does not queue it, unless it is in
    /// the queue already.
    Try { waiter_ttl: Duration },
}

impl AcquireRequest {
    /// Time for which the server grants the lock to this request while the request waits in the queue. It is the
    /// shorter of the lease and `waiter_ttl`.
    pub(crate) fn claim(&self) -> Duration {
        match self.if_taken {
            IfTaken::Leave => self.lease,
            IfTaken::Queue { waiter_ttl } | IfTaken::Try { waiter_ttl } => self.lease.min(waiter_ttl),
        }
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum ReleaseReply {
    /// The hold was live and is gone now.
    Held,
    /// The acquisition waited and is out of the queue now.
    Queued,
    /// The server had no hold with this id, or the hold ended before the release.
    None(Absence),
}

/// Tokens of a lock, in the answer of a server that does not have the hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Absence {
    /// Highest token that an operator has ended.
    pub(crate) forced: Option<FencingToken>,
    /// Last and first token that the server granted while it kept the record of the lock without interruption. `None`
    /// if it kept no such record. Also `None` if a client that does not follow this protocol was inside while the hold
    /// was live.
    pub(crate) last: Option<FencingToken>,
    pub(crate) first: Option<FencingToken>,
}

impl Absence {
    /// Returns true if this server granted the tokens from `token` to `last` and has kept its record since. Such a
    /// server has not forgotten the hold, so the hold was ended there.
    pub(crate) fn has_known(&self, token: FencingToken, last: FencingToken) -> bool {
        let was_granted = self.last.is_some_and(|newest| newest >= last);
        was_granted && self.first.is_some_and(|first| first <= token)
    }
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Renewed {
        remaining: Duration,
        /// True if the hold may exclude a waiter, as in [`Granted::is_waited_for`]. The server reports waiters only for
        /// a renewal with `caches`.
        is_waited_for: bool,
        /// First of the new tokens, and the number of new tokens.
        tokens: Option<(FencingToken, u64)>,
    },
    Lost {
        forced: Option<FencingToken>,
    },
}

impl Renewed {
    /// Answer to a renewal of a hold that is not cached.
    pub(crate) fn of(remaining: Duration) -> Self {
        Self::Renewed { remaining, is_waited_for: false, tokens: None }
    }
}

/// Result of a conversion, which replaces a hold by a hold of the other side in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Converted {
    /// The old hold is gone, and the new hold is granted.
    Granted(Granted),
    /// Other holders or a waiting writer prevent the conversion. The old hold remains.
    Refused,
    /// The conversion is refused as by `Refused`, and the lock is recallable. It is possible that no guard uses the
    /// other holds, so the server has recalled them.
    Cached,
    /// The server has neither the old hold nor the new one.
    Lost { forced: Option<FencingToken> },
    /// The request arrived after its time limit and changed nothing.
    Late,
}

/// Returns the reason for the end of a hold that the server does not know. The reason is a force if an operator has
/// ended this token or a later one.
pub(crate) fn loss_reason(token: FencingToken, forced: Option<FencingToken>) -> LossReason {
    if Some(token) <= forced { LossReason::Forced } else { LossReason::Gone }
}

/// State of one lock on a server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct View {
    pub(crate) token: Option<FencingToken>,
    pub(crate) holders: Vec<Holder>,
    /// Number of further records of holders, dead ones included. An `inspect` reads only a limited number of records.
    pub(crate) more_holders: usize,
    /// Waiters in the order of their arrival.
    pub(crate) waiters: Vec<QueuedWaiter>,
    pub(crate) more_waiters: usize,
    /// Timestamps of clients of the timestamp scheme, in milliseconds.
    pub(crate) client_write_ms: Option<u64>,
    pub(crate) client_read_ms: Option<u64>,
    /// Last token of each server, if several servers have the lock.
    pub(crate) tokens: Vec<Option<FencingToken>>,
    /// True if the lock is recallable: a process may cache a hold that no guard uses.
    pub(crate) is_recallable: bool,
}

impl View {
    pub(crate) fn shows(&self, id: &AcquisitionId) -> bool {
        self.holders.iter().any(|holder| holder.id == id.as_str())
    }

    /// Puts the waiters into the order of their arrival. Writers keep the order of their queue, although a clock that was
    /// set back makes a later one look older. Readers have only their times.
    pub(crate) fn sort_waiters(&mut self) {
        let mut last_writer_ms = 0;
        let arrived_ms = |waiter: &QueuedWaiter| match waiter.mode {
            Mode::Read => waiter.since_ms,
            Mode::Write => {
                last_writer_ms = waiter.since_ms.max(last_writer_ms);
                last_writer_ms
            }
        };
        let times: Vec<u64> = self.waiters.iter().map(arrived_ms).collect();
        let mut sorted: Vec<_> = times.into_iter().zip(std::mem::take(&mut self.waiters)).collect();
        sorted.sort_by_key(|(arrived_ms, _)| *arrived_ms);
        self.waiters = sorted.into_iter().map(|(_, waiter)| waiter).collect();
    }
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct Holder {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
    pub(crate) remaining: Duration,
    pub(crate) note: Option<String>,
}

#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) struct QueuedWaiter {
    pub(crate) id: String,
    pub(crate) mode: Mode,
    pub(crate) since_ms: u64,
}

/// Holds that a force has ended on the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(crate) struct Forced {
    /// Ids of the holds that were live until now, if this force has already removed their records.
    pub(crate) ids: Vec<String>,
    /// True if more records are left to remove. All holds have ended already. The caller repeats the same request to
    /// remove the other records.
    pub(crate) has_more: bool,
}

/// Hold to renew.
#[derive(Clone, Debug)]
pub(crate) struct RenewalRequest {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    pub(crate) lease: Duration,
    /// True if the process may cache the hold, as in [`AcquireRequest::caches`].
    pub(crate) caches: bool,
    /// Largest number of further tokens for a write hold that may be cached. It is 0 or
    /// [`MAX_TOKENS`](crate::base::lease::MAX_TOKENS).
    pub(crate) tokens: u64,
    /// Time of the server's clock, in whole milliseconds, until which a write hold lasts at least. Such a hold is not
    /// cached.
    pub(crate) rest_until: Option<ServerTime>,
}

/// Text for people on a hold.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Note {
    /// Number that orders the notes of a hold. A copy of an earlier note that arrives late changes nothing.
    pub(crate) number: u64,
    /// Empty if the hold is to show no note.
    pub(crate) text: Arc<str>,
}

impl Note {
    /// Returns the note with a number below all others. Another process takes the hold over, and counts its notes anew.
    pub(crate) fn before_all(self) -> Self {
        Self { number: 0, ..self }
    }
}

/// Result of a request to set a note.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Noted {
    /// The hold has this note, or a later one.
    Noted,
    /// The server has no live hold with this id.
    None,
}

/// Hold or waiting acquisition that the server is to end.
#[derive(Clone, Debug)]
pub(crate) struct ReleaseRequest {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    /// Time of the server's clock, in whole milliseconds, until which a write hold rests. If that time is later than
    /// the server's present, the lock stays taken until then, and the id has no hold any more.
    pub(crate) rest_until: Option<ServerTime>,
}

pub(crate) fn refused_failure(why: &str) -> Failure {
    Failure::Refused { refusal: Refusal::Other, node: None, message: why.to_owned() }
}

/// Ability that some stores cannot have.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Ability {
    /// Keeps a lock taken without a holder, for `at_least`.
    Rests,
    /// Records who waits, for `deadlocks`.
    Waiters,
    /// Passes a hold to a new id, for `detach`.
    Tickets,
}

/// Attempt under way.
pub(crate) type BoxAttempt<'a, T> = BoxFuture<'a, Attempt<T>>;

/// Operations on locks. Each call is one attempt.
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxAttempt<'a, Acquired>;
    /// Returns the reason for which this store lacks an ability, or `None` if it has the ability.
    fn lacks(&self, _ability: Ability) -> Option<&'static str> {
        None
    }
    /// Ends a hold or a waiting acquisition, or lets a write hold rest.
    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxAttempt<'a, ReleaseReply>;
    /// Returns true if this runtime can send [`release`](Scheme::release) without waiting for a connection.
    fn can_send_inline(&self, _leave: &ReleaseRequest) -> bool {
        false
    }
    /// Returns true if this runtime can send [`renew`](Scheme::renew) for one hold of this lock without waiting for a
    /// connection.
    fn can_renew_inline(&self, _key: &Key) -> bool {
        false
    }
    /// Ends several holds or waiting acquisitions of one route. Returns one answer for each request, in order.
    fn release_all<'a>(
        &'a self,
        _route: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(join_all(batch.iter().map(|leave| self.release(leave))))
    }
    /// Converts the hold `old` into a hold of the other side. A writer always gets a read hold. A reader gets a write
    /// hold if no other reader is inside and no writer waits. A hold of the same side passes to the new id; a scheme may
    /// [lack](Scheme::lacks) this.
    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxAttempt<'a, Converted>;
    /// Renews holds of one route. Returns one answer for each request, in order.
    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>>;
    fn route(&self, key: &Key) -> Route;
    /// Returns a stream of signals that routes may have changed, or `None` if they never change.
    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxAttempt<'a, View>;
    /// Ends the holds that an `inspect` has shown, and no newer hold. The caller repeats the request as long as records
    /// are left.
    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxAttempt<'a, Forced>;
    /// Returns when the node that serves this lock now last answered a request of any caller, and whether the node is
    /// silent.
    fn contact(&self, key: &Key) -> ServerContact;
    /// Resolves to `Ok` when a usable server answers.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Resolves to `Ok` if the user of the connection has the necessary rights on the keys of this lock. These are the
    /// rights to run every command of the scheme and the commands in `more`. Changes nothing.
    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>>;
    /// Returns the notifications of the scheme. A scheme without them returns `None`, and its waiters ask again from time
    /// to time.
    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        None
    }
    /// Returns the recalls of the scheme. In a scheme without them no process can cache a hold.
    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        None
    }
    /// Returns the notes of the scheme. In a scheme without them no hold has a note.
    fn notes(&self) -> Option<&dyn NotingScheme> {
        None
    }
    /// Returns the names of the locks in `listing` that the servers know, in alphabetical order.
    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>>;
    /// Returns the health of each server. Ends in time even if servers do not answer.
    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>>;
    /// Returns the scheme as a quorum, if several servers have each lock.
    fn quorum(&self) -> Option<&dyn QuorumScheme> {
        None
    }
    /// Returns the numbers of requests in flight, reconnects and map refreshes of this scheme.
    fn traffic(&self) -> Traffic;
    fn clock(&self) -> Clock;
    /// Returns the process that owns the locks of this scheme; by default the current process.
    fn process(&self) -> Process {
        Process::current()
    }
}

/// Notifications for the waiters of a manager.
pub(crate) trait NotifyingScheme: Send + Sync {
    /// Subscribes to the notifications for the waiters of this manager. The first notification is
    /// [`Notification::AskAgain`]. It comes as soon as the subscription will miss no later notification.
    fn subscribe(&self, key: &Key, manager: &str) -> Subscription;
    /// Returns a subscription only if the subscription is live already, so that it will miss no notification. Never
    /// waits. If there is no such subscription, the call costs next to nothing.
    fn subscribe_if_live(&self, key: &Key, manager: &str) -> Option<Subscription>;
}

/// Recalls of holds that a process has cached.
pub(crate) trait RecallingScheme: Send + Sync {
    /// Passes recalls of the lock, and changes of the subscription to recalls, to `calls` as long as `calls` has an
    /// owner. Returns false if there is no background runtime for this work.
    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool;
    /// Sends the recall reply "in use" to the try with this id. The server notifies the waiting try and changes nothing
    /// else.
    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxAttempt<'a, ()>;
}

/// Notes on holds.
pub(crate) trait NotingScheme: Send + Sync {
    /// Sets the note of a live hold, unless the hold has a later note.
    fn set_note<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId, note: &'a Note) -> BoxAttempt<'a, Noted>;
}

/// Scheme in which a majority of several servers decides. It releases an acquisition that was not granted, so the next
/// attempt needs another id.
pub(crate) trait QuorumScheme: Send + Sync {
    /// Returns the number of servers that have to answer.
    fn needed_servers(&self) -> usize;
    /// Sets the background that repeats the releases at single masters. The scheme keeps it alive only while it counts
    /// an operation.
    fn set_background(&self, background: Weak<dyn ReleaseBackground>);
}

/// Background work of a manager, as a quorum uses it. It continues while the quorum counts an operation at a single
/// master, because the answer may make a release necessary after the manager is gone.
pub(crate) trait ReleaseBackground: fmt::Debug + Send + Sync {
    /// Counts an operation at a single master as in progress.
    fn begin_at_master(&self);
    /// Counts an operation at a single master as ended.
    fn end_at_master(&self);
    fn release_at_master(&self, release: MasterRelease);
}

/// Release at one master of a quorum. The background repeats it until the master has answered, and once more after
/// `arrives_until`.
#[derive(Debug)]
pub(crate) struct MasterRelease {
    pub(crate) route: Route,
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    /// Moment from which the master has no hold of the acquisition, even without the release.
    pub(crate) server_until: Moment,
    /// Latest moment at which a copy of the acquisition may reach the master.
    pub(crate) arrives_until: Option<Moment>,
    pub(crate) pending: Box<dyn PendingAtMaster>,
}

/// Count of a pending release, for the quorum. The background drops it when the release has ended.
pub(crate) trait PendingAtMaster: fmt::Debug + Send + Sync {
    /// Returns true if so many releases are pending at the master that the background must drop the oldest.
    fn is_beyond_limit(&self) -> bool;
}

/// Master of a quorum: a server that stores each lock together with other, independent servers.
pub(crate) trait MasterScheme: Scheme {
    /// Acquires at one of several servers that have to agree on the token. `floor` is a lower bound for the token.
    fn acquire_above<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest, floor: Floor)
    -> BoxAttempt<'a, Acquired>;
    /// Ends the holds of a lock that several servers store. `token` is the last token that this server has shown.
    /// `seen` has the holds that any of the servers has shown, and the highest token. This server ends each hold in
    /// `seen`, whatever the token of the hold is now. A later request with [`Floor::Any`] does not bring such a hold
    /// back to this server.
    fn force_shown<'a>(&'a self, key: &'a Key, token: Option<FencingToken>, seen: &'a View) -> BoxAttempt<'a, Forced>;
    /// Returns the last clock sample of the server, if there is one.
    fn clock_sample(&self) -> Option<ClockSample>;
    /// Returns the latest moment at which the server can have started, if it has reported its uptime.
    fn up_since(&self) -> Option<Moment>;
}
