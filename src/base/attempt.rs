//! Types that lock schemes and the transport share: the answers, failures and notifications of one attempt of a
//! request.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::base::denied::NamedHolder;
use crate::base::digits::Digits;
use crate::base::error::{AtNode, Refusal, Source};
use crate::base::lease::{FencingToken, Moment, ServerTime};

/// Owned future that is `Send`. [`try_read`](crate::RwLockManager::try_read) and other methods return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// First character of the name of a rest, with which no id begins.
const REST_MARK: char = '@';

/// Number in the id of a detached hold. The acquisitions of a manager have numbers from 1 on.
const DETACHED: u64 = 0;

/// Longest label in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = 64;

/// Identity of one hold or waiter on the server: `<manager>.<n>.<label>`. A manager uses each `n` only once.
///
/// The label is for people, and contains no whitespace. The first part is the id of the manager. Its 128 random bits
/// make the whole id unique.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    pub(crate) fn new(manager: &str, n: u64, label: &str) -> Self {
        // Each acquisition builds an id, and `format!` would take ten times as long. The pieces are joined on the
        // stack, so the only allocation is the one for the shared text.
        let digits = Digits::of(n);
        let (mut room, mut len) = ([0; Self::MAX_BYTES], 0);
        for piece in [manager, ".", digits.as_str(), ".", label] {
            room[len..len + piece.len()].copy_from_slice(piece.as_bytes());
            len += piece.len();
        }
        Self(str::from_utf8(&room[..len]).expect("all pieces are texts").into())
    }

    /// Largest length of an id: 32 bytes for the manager, then a number, a label, and two dots.
    const MAX_BYTES: usize = 32 + Digits::MAX + MAX_LABEL_BYTES + 2;

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn to_shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Returns the name under which the server records the rest of this acquisition's hold. It is no id, so no request
    /// finds the rest.
    pub(crate) fn of_rest(&self) -> Self {
        Self(format!("{REST_MARK}{}", self.0).into())
    }

    /// Returns the id of the hold that rests, if the server's record of a holder is that of a rest.
    pub(crate) fn before_rest(holder: &str) -> Option<&str> {
        holder.strip_prefix(REST_MARK)
    }

    /// Returns the id of a detached hold, which has a random first part of its own.
    pub(crate) fn new_ticket(random: &str, label: &str) -> Self {
        Self::new(random, DETACHED, label)
    }

    /// Reads the id of a detached hold from a ticket.
    pub(crate) fn of_ticket(text: &str) -> Option<Self> {
        let first = text.split('.').next().unwrap_or_default();
        let is_whole = first.len() == 32 && first.bytes().all(|byte| byte.is_ascii_hexdigit());
        (is_whole && Self::is_one(text) && Self::is_detached(text)).then(|| Self(text.into()))
    }

    /// Returns true for the id of a detached hold.
    pub(crate) fn is_detached(id: &str) -> bool {
        id.split('.').nth(1) == Some("0")
    }

    /// Returns true if a text from a server or a user may be an id.
    pub(crate) fn is_one(text: &str) -> bool {
        (1..=Self::MAX_BYTES).contains(&text.len()) && !text.chars().any(|c| c.is_whitespace() || c.is_control())
    }

    /// Returns the label within an id that a server listed. Returns the whole id if it has another form.
    pub(crate) fn label_of(id: &str) -> &str {
        id.splitn(3, '.').nth(2).unwrap_or(id)
    }
}

/// Hash of a node's address, which identifies the node.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct NodeId(u64);

impl NodeId {
    pub(crate) fn of(address: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Answer of a node to one request.
#[derive(Clone, Debug)]
pub(crate) struct Answered<T> {
    pub(crate) sent: Moment,
    pub(crate) server: ServerTime,
    /// Node that answered.
    pub(crate) node: NodeId,
    pub(crate) value: T,
}

/// Outcome of one attempt.
pub(crate) type Attempt<T> = Result<Answered<T>, Failure>;

/// Hold as the server stored it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    /// Number of consecutive fencing tokens that belong to this hold. The first of them is `token`.
    pub(crate) tokens: u64,
    pub(crate) remaining: Duration,
    /// True if a waiter cannot enter because of this hold. A read hold excludes only writers. While a writer waits, no
    /// further reader may join the read hold. A write hold excludes readers and writers.
    pub(crate) is_waited_for: bool,
}

/// Answer to an acquisition.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(crate) enum Acquired {
    Granted(Granted),
    /// The acquisition waits in the queue. `retry_in` is the time to the first deadline at which the lock may become
    /// free.
    Queued {
        retry_in: Duration,
        /// True if the lock is recallable and a waiter has recalled the hold. Then it is possible that no guard uses
        /// the hold.
        is_cached: bool,
        /// Live holder of the lock. If several readers hold it, one of them. `None` if only waiters are ahead.
        holder: Option<Arc<NamedHolder>>,
    },
    /// The lock is held, or others wait for it, and the acquisition does not wait. `retry_in` and `holder` have the
    /// meaning that they have in `Queued`.
    Contended {
        retry_in: Duration,
        holder: Option<Arc<NamedHolder>>,
    },
    /// The acquisition is refused as by `Contended`, and the lock is recallable. Then it is possible that no guard uses
    /// the hold.
    Cached {
        retry_in: Duration,
        holder: Option<Arc<NamedHolder>>,
    },
    /// The request arrived after its time limit and changed nothing.
    Late,
}

impl Acquired {
    /// Returns the holder that a refusal names. `None` for a refusal that names none, and for every other answer.
    pub(crate) fn named_holder(&self) -> Option<&Arc<NamedHolder>> {
        match self {
            Self::Queued { holder, .. } | Self::Contended { holder, .. } | Self::Cached { holder, .. } => {
                holder.as_ref()
            }
            Self::Granted(_) | Self::Late => None,
        }
    }
}

/// Reason why an attempt has no usable answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server may have executed the request, or may still execute it until `arrives_until`.
    Unknown { arrives_until: Moment, source: Option<Source> },
    /// The server certainly did not execute the request. The request may be retried.
    NotDone { source: Option<Source> },
    /// The server certainly did not execute the request. A retry does not help.
    Refused { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// The server refused the request half way. Part of its effect may exist, and a retry does not help.
    Broken { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// The primary executed the request, but the effect does not count: too few replicas have acknowledged it.
    Unreplicated { asked: u64, acknowledged: u64, node: Option<Arc<str>> },
}

impl Failure {
    /// Adds the node at which the failure happened.
    pub(crate) fn at(mut self, address: &str) -> Self {
        match &mut self {
            Self::Unknown { source, .. } | Self::NotDone { source } => *source = Some(at_node(source.take(), address)),
            Self::Refused { node, .. } | Self::Broken { node, .. } | Self::Unreplicated { node, .. } => {
                node.get_or_insert_with(|| address.into());
            }
        }
        self
    }
}

/// Adds the node to a failure. If the failure names a node already, that node stays.
fn at_node(source: Option<Source>, address: &str) -> Source {
    match source {
        Some(source) if source.is::<AtNode>() => source,
        cause => Arc::new(AtNode { node: address.into(), cause }),
    }
}

/// Last contact with one node, by any request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ServerContact {
    /// Time at which the node last executed a request, if it has executed one.
    pub(crate) served: Option<Moment>,
    /// True if the node has not answered since that time, although requests were sent.
    pub(crate) is_silent: bool,
}

/// Current route of the requests for a lock. Renewals with equal routes are sent together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Route(pub(crate) Arc<str>);

impl Route {
    /// Returns true if no owner of the lock is known, or if its slot is moving to another owner.
    pub(crate) fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

/// Notification for a waiter of a lock. It may be lost, late, or delivered twice.
#[derive(Clone, Debug)]
pub(crate) enum Notification {
    /// The lock may have changed, so the waiter should ask the server again.
    AskAgain,
    /// The server granted the lock to the waiting acquisition `id` at the server's time `at`. `answer` contains the
    /// hold. A notification answers no request, so it has no send time of its own. The validity of the hold therefore
    /// counts from a clock sample, an earlier answer of the same node.
    Granted { id: Arc<str>, at: ServerTime, answer: Answered<Granted> },
    /// Recall: a waiter wants the lock. `token` was the last token of the lock when the server sent the recall. The
    /// recall does not concern holds whose first token is higher. `id` is present if a try caused the recall, and is
    /// the id of this try.
    Called { token: FencingToken, id: Option<Arc<str>> },
    /// Recall reply to the try `id`: a guard uses the hold that this try recalled, so the holder keeps it.
    Used { id: Arc<str> },
}

/// Largest number of unread notifications of a waiter. Servers send only a few for each attempt, so a full queue means
/// that another client sends them. Further notifications are dropped, and the waiter asks the server instead.
pub(crate) const MAX_NOTIFICATIONS: usize = 64;

/// Creates the queue between a connection and one waiter.
pub(crate) fn notifications() -> (mpsc::Sender<Notification>, mpsc::Receiver<Notification>) {
    mpsc::channel(MAX_NOTIFICATIONS)
}

/// Subscription to the notifications for one waiter of a lock. It ends when this value is dropped. Notifications that
/// arrive between two reads stay in the queue.
pub(crate) struct Subscription {
    pub(crate) notices: mpsc::Receiver<Notification>,
    /// Value whose drop ends the subscription.
    pub(crate) _end: Box<dyn Send + Sync>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}
