//! The raw trait below the engine: one attempt against one store of locks, and what it may answer.
//!
//! A scheme knows nothing of waiting, tasks, reentrancy or guards. Its contract, which `memory` specifies executably and
//! every other scheme must agree with:
//!
//! * every hold is one [`Acquisition`]; nothing matches on the manager alone;
//! * all operations are idempotent: a copy that is applied twice or late changes nothing more;
//! * an acquisition that was not applied before its limit is never applied ([`Acquired::Late`]);
//! * a repeated acquisition extends the hold, never shortens it, and has the same tokens;
//! * a renewal never re-creates a hold;
//! * whoever is refused and wants to wait is queued until it leaves, is granted, or is not heard of for its patience;
//! * whoever frees the lock grants it to the next in the queue: for as long as that one's claim, and tells it;
//! * an answer that did not come is [`Failure::Unknown`], never a denial.

use std::fmt;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use futures_util::stream::BoxStream;
use tokio::sync::mpsc;

use crate::clock::Clock;
use crate::error::{LossReason, Refusal, Source};
use crate::key::Key;
use crate::lease::{FencingToken, Moment, ServerTime};

pub(crate) mod hash;
mod lua;
pub(crate) mod memory;
#[cfg(test)]
mod oracle;
#[path = "../lua/scripts.rs"]
mod scripts;
#[cfg(test)]
pub(crate) mod staged;
pub(crate) mod two_key;

/// An owned future that can be sent.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Which of the two sides of a lock.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize))]
#[allow(clippy::exhaustive_enums)] // there is no third side to a read-write lock
pub enum Mode {
    /// Shared with other readers.
    Read,
    /// Alone.
    Write,
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Read => "read",
            Self::Write => "write",
        })
    }
}

/// The identity of one hold or waiter on the server: `<manager>.<n>.<label>`, n never reused by its manager.
///
/// The label tells people who it is; it has no blanks, and the manager's 128 random bits make the whole unique.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Acquisition(Arc<str>);

impl Acquisition {
    pub(crate) fn new(manager: &str, n: u64, label: &str) -> Self {
        // Put together by hand, as are keys: both are made at every acquisition, and `format!` costs ten times as much.
        Self([manager, ".", &n.to_string(), ".", label].concat().into())
    }

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// The label within an id that a server listed.
    pub(crate) fn label_of(id: &str) -> &str {
        id.splitn(3, '.').nth(2).unwrap_or(id)
    }
}

/// What an acquisition asks for.
#[derive(Clone, Debug)]
pub(crate) struct Ask {
    pub(crate) id: Acquisition,
    pub(crate) mode: Mode,
    pub(crate) lease: Duration,
    /// How many tokens in a row a writer wants, one for each turn in its process.
    pub(crate) turns: u64,
    pub(crate) if_taken: IfTaken,
}

/// What becomes of an acquisition that cannot be granted now.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum IfTaken {
    /// It is told so and forgotten.
    Leave,
    /// It waits in the queue, and is forgotten when it is not repeated for `patience`. Granted while it waits, it has
    /// `patience` as well (but not more than its lease) to claim the hold by a renewal.
    Queue { patience: Duration },
}

impl Ask {
    /// How long a hold lasts that is granted while this one waits, unless it is claimed.
    pub(crate) fn claim(&self) -> Duration {
        match self.if_taken {
            IfTaken::Leave => self.lease,
            IfTaken::Queue { patience } => self.lease.min(patience),
        }
    }
}

/// The most tokens that one grant reserves.
pub(crate) const TURNS_MOST: u64 = 64;
/// A grant never reserves tokens that lie further ahead of the server's clock than this, in microseconds.
pub(crate) const TOKENS_AHEAD_US: u64 = 1_000_000;

/// An answer, and when the copy of the request that was answered had been sent.
#[derive(Clone, Debug)]
pub(crate) struct Answered<T> {
    pub(crate) sent: Moment,
    pub(crate) server: ServerTime,
    pub(crate) value: T,
}

/// What came of one attempt.
pub(crate) type Attempt<T> = Result<Answered<T>, Failure>;

/// A hold as the server recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    /// How many tokens from `token` on are this hold's.
    pub(crate) turns: u64,
    pub(crate) remaining: Duration,
    /// A writer waits in the queue, so no further reader may share this hold.
    pub(crate) writers_waiting: bool,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    Granted(Granted),
    /// It waits in the queue. The first deadline that might free the lock is so far away.
    Queued {
        retry_in: Duration,
    },
    /// Others hold the lock or wait for it, and it does not wait; likewise.
    Contended {
        retry_in: Duration,
    },
    /// It came after its limit and changed nothing.
    Late,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Left {
    /// It was live and is gone now.
    Held,
    /// It waited and does not any more.
    Queued,
    /// There was none. `forced` is the highest token that an operator has ended.
    None { forced: Option<FencingToken> },
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Renewed {
    Renewed { remaining: Duration },
    Lost { forced: Option<FencingToken> },
}

/// What came of giving one hold up for another of the other side, in one step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Turned {
    /// The old hold is gone, the new one is there.
    Granted(Granted),
    /// Others hold the lock too, or a writer waits: the old hold stands.
    Refused,
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
    /// In the order in which they came, as far as the server's clock tells them apart.
    pub(crate) waiters: Vec<Waiter>,
    /// Timestamps of clients of the published scheme, in milliseconds.
    pub(crate) foreign_write_ms: Option<u64>,
    pub(crate) foreign_read_ms: Option<u64>,
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

/// Why an attempt has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It may have been carried out, or may yet be until `stray_until`.
    Unknown { stray_until: Moment, source: Option<Source> },
    /// It was certainly not carried out, and may be tried again.
    NotDone { source: Option<Source> },
    /// It was certainly not carried out, and trying again would not help.
    Refused { refusal: Refusal, message: String },
}

/// One hold to renew.
#[derive(Clone, Debug)]
pub(crate) struct Renewal {
    pub(crate) key: Arc<Key>,
    pub(crate) id: Acquisition,
    pub(crate) lease: Duration,
}

/// Where requests for a lock go at the moment: renewals with equal routes travel together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Route(pub(crate) Arc<str>);

impl Route {
    /// Nobody is known to own the lock.
    pub(crate) fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

/// What a waiter of a lock is told without asking. Each may be lost, late, or told twice.
#[derive(Clone, Debug)]
pub(crate) enum Notice {
    /// Something may have changed: whoever waits does well to ask.
    AskAgain,
    /// This acquisition was granted while it waited, `at` the server's time. The answer counts from an earlier one of the
    /// same node, its anchor.
    Granted { id: Arc<str>, at: ServerTime, answer: Answered<Granted> },
}

/// Notices for one waiter of a lock, as long as it is kept. One that comes while nobody looks is not forgotten.
pub(crate) struct Subscription {
    pub(crate) notices: mpsc::UnboundedReceiver<Notice>,
    /// Ends the subscription when it is dropped.
    pub(crate) _end: Box<dyn Send + Sync>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}

/// One attempt at each operation on a lock.
pub(crate) trait Scheme: fmt::Debug + Send + Sync + 'static {
    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a Ask) -> BoxFuture<'a, Attempt<Acquired>>;
    /// Ends a hold, or an acquisition that is under way.
    fn leave<'a>(&'a self, key: &'a Key, id: &'a Acquisition) -> BoxFuture<'a, Attempt<Left>>;
    /// Gives up the hold `old` for one of the other side: a writer for a read hold, always, and the only reader for a write
    /// hold if no writer waits.
    fn turn<'a>(&'a self, key: &'a Key, old: &'a Acquisition, ask: &'a Ask) -> BoxFuture<'a, Attempt<Turned>>;
    /// Renews holds of one route; one answer each, in order.
    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>>;
    fn route(&self, key: &Key) -> Route;
    /// Tells when routes may have changed; `None` where they never do.
    fn changes(&self) -> Option<BoxStream<'static, ()>>;
    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>>;
    /// Ends what a look has shown, and nothing newer. Answers the holds that were live until now.
    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>>;
    /// Succeeds when a server answers that we can work with.
    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>>;
    /// Notices for the waiters of this manager, if the scheme has any. The first is [`Notice::AskAgain`] when it is certain
    /// that none will be missed from then on.
    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription>;
    /// The same, if it is certain already that none will be missed; never waits, and costs next to nothing if not.
    fn subscribed(&self, key: &Key, manager: &str) -> Option<Subscription>;
    fn clock(&self) -> Clock;
}
