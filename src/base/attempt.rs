//! Requests, answers and failures of one attempt: the types that schemes and transport share.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::base::digits::Digits;
use crate::base::error::{AtNode, Refusal, Source};
use crate::base::lease::{FencingToken, Moment, ServerTime};

/// Owned future that is `Send`; [`try_read`](crate::RwLockManager::try_read) and others return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Longest label in bytes.
pub(crate) const MAX_LABEL_BYTES: usize = 64;

/// Identity of one hold or waiter on the server: `<manager>.<n>.<label>`. A manager never uses an `n` again.
///
/// The label is for people, and has no blanks. The manager's 128 random bits make the whole unique.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    pub(crate) fn new(manager: &str, n: u64, label: &str) -> Self {
        // Assembled without `format!`, as keys are: each acquisition makes both, and `format!` costs ten times as much.
        // The shared text is the only allocation, so its pieces are joined on the stack.
        let digits = Digits::of(n);
        let (mut room, mut len) = ([0; Self::MAX_BYTES], 0);
        for piece in [manager, ".", digits.as_str(), ".", label] {
            room[len..len + piece.len()].copy_from_slice(piece.as_bytes());
            len += piece.len();
        }
        Self(str::from_utf8(&room[..len]).expect("all pieces are texts").into())
    }

    /// Length of a manager's id (32), a number, a label, and two dots.
    const MAX_BYTES: usize = 32 + Digits::MAX + MAX_LABEL_BYTES + 2;

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Returns true if a text from elsewhere may be an id.
    pub(crate) fn is_one(text: &str) -> bool {
        (1..=Self::MAX_BYTES).contains(&text.len()) && !text.chars().any(|c| c.is_whitespace() || c.is_control())
    }

    /// Returns the label within an id that a server listed.
    pub(crate) fn label_of(id: &str) -> &str {
        id.splitn(3, '.').nth(2).unwrap_or(id)
    }
}

/// Hash of a node's address, as its name.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NodeId(u64);

impl NodeId {
    pub(crate) fn of(address: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// Answer, and the time when the answered copy of the request was sent.
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

/// Hold as the server recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    /// Number of tokens, from `token` on, that belong to this hold.
    pub(crate) tokens: u64,
    pub(crate) remaining: Duration,
    /// True if this hold keeps a waiter out. Behind a reader's hold the waiter is a writer, so no further reader may
    /// share it; behind a writer's hold it is any waiter.
    pub(crate) is_waited_for: bool,
}

/// Reason why an attempt has no usable answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// The server may have executed the request, or may still execute it until `arrives_until`.
    Unknown { arrives_until: Moment, source: Option<Source> },
    /// The server certainly did not execute the request, and it may be retried.
    NotDone { source: Option<Source> },
    /// The server certainly did not execute the request, and a retry does not help.
    Refused { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// The server refused the request half way: a retry does not help, and part of its effect may exist.
    Broken { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// The primary executed the request, and the effect does not count: too few replicas have it.
    Unreplicated { asked: u8, acknowledged: u64, node: Option<Arc<str>> },
}

impl Failure {
    /// Adds the node at which the failure happened.
    pub(crate) fn at(self, address: &str) -> Self {
        match self {
            Self::Unknown { arrives_until, source } => {
                Self::Unknown { arrives_until, source: Some(at_node(source, address)) }
            }
            Self::NotDone { source } => Self::NotDone { source: Some(at_node(source, address)) },
            Self::Refused { refusal, node, message } => {
                Self::Refused { refusal, node: node.or_else(|| Some(address.into())), message }
            }
            Self::Broken { refusal, node, message } => {
                Self::Broken { refusal, node: node.or_else(|| Some(address.into())), message }
            }
            Self::Unreplicated { asked, acknowledged, node } => {
                Self::Unreplicated { asked, acknowledged, node: node.or_else(|| Some(address.into())) }
            }
        }
    }
}

/// Adds the node to a failure, unless the failure has a node already: the first one counts.
fn at_node(source: Option<Source>, address: &str) -> Source {
    match source {
        Some(source) if source.is::<AtNode>() => source,
        cause => Arc::new(AtNode { node: address.into(), cause }),
    }
}

/// Last answers of one node, to any request.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct ServerContact {
    /// Time when the node last executed a request, if it has.
    pub(crate) served: Option<Moment>,
    /// True if the node has answered no request since then, though requests were sent.
    pub(crate) is_silent: bool,
}

/// Route of requests for a lock at the moment: renewals with equal routes are sent together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Route(pub(crate) Arc<str>);

impl Route {
    /// Returns true if no owner of the lock is known, or if its slot is moving to another owner.
    pub(crate) fn is_unknown(&self) -> bool {
        self.0.is_empty()
    }
}

/// Notification for a waiter of a lock. Each may be lost, late, or delivered twice.
#[derive(Clone, Debug)]
pub(crate) enum Notification {
    /// The lock may have changed: a waiter should ask again.
    AskAgain,
    /// Grant of this acquisition while it waited, `at` the server's time. The validity of `answer` counts from an
    /// earlier answer of the same node, its clock sample.
    Granted { id: Arc<str>, at: ServerTime, answer: Answered<Granted> },
    /// Recall: a waiter wants the lock, whose last token was `token`. Holds that begin with a higher token are not
    /// meant. A try gives its id.
    Called { token: FencingToken, id: Option<Arc<str>> },
    /// Recall reply: this acquisition, a try, has recalled a lock that a guard uses.
    Used { id: Arc<str> },
}

/// Largest number of notifications that are kept for a waiter until it reads them. Servers send a few for each attempt.
/// More must come from another client, and are dropped: a waiter with a full queue asks the server.
pub(crate) const MAX_NOTIFICATIONS: usize = 64;

/// Makes the channel between a connection and one waiter.
pub(crate) fn notifications() -> (mpsc::Sender<Notification>, mpsc::Receiver<Notification>) {
    mpsc::channel(MAX_NOTIFICATIONS)
}

/// Notifications for one waiter of a lock, until it is dropped. Notifications that come between two reads are kept.
pub(crate) struct Subscription {
    pub(crate) notices: mpsc::Receiver<Notification>,
    /// Ends the subscription when it is dropped.
    pub(crate) _end: Box<dyn Send + Sync>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}
