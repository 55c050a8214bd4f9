//! What one attempt is about, and what may come of it: the words that schemes and transport have in common.

use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use tokio::sync::mpsc;

use crate::digits::Digits;
use crate::error::{AtNode, Refusal, Source};
use crate::lease::{FencingToken, Moment, ServerTime};

/// An owned future that can be sent, as [`try_read`](crate::RwLockManager::try_read) and others return it.
pub type BoxFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// The longest label in bytes.
pub(crate) const LABEL_MAX_BYTES: usize = 64;

/// The identity of one hold or waiter on the server: `<manager>.<n>.<label>`, n never reused by its manager.
///
/// The label tells people who it is; it has no blanks, and the manager's 128 random bits make the whole unique.
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub(crate) struct AcquisitionId(Arc<str>);

impl AcquisitionId {
    pub(crate) fn new(manager: &str, n: u64, label: &str) -> Self {
        // Put together by hand, as are keys: both are made at every acquisition, and `format!` costs ten times as much. It is
        // shared, which needs an allocation, so it is made in a place that needs none.
        let digits = Digits::of(n);
        let (mut room, mut len) = ([0; Self::MAX_BYTES], 0);
        for piece in [manager, ".", digits.as_str(), ".", label] {
            room[len..len + piece.len()].copy_from_slice(piece.as_bytes());
            len += piece.len();
        }
        Self(str::from_utf8(&room[..len]).expect("all pieces are texts").into())
    }

    /// A manager's 32, those of a number, those of a label, and two dots.
    const MAX_BYTES: usize = 32 + Digits::MAX + LABEL_MAX_BYTES + 2;

    pub(crate) fn as_str(&self) -> &str {
        &self.0
    }

    pub(crate) fn shared(&self) -> Arc<str> {
        Arc::clone(&self.0)
    }

    /// Whether this may be an id: a text that came from somebody else.
    pub(crate) fn is_one(text: &str) -> bool {
        (1..=Self::MAX_BYTES).contains(&text.len()) && !text.chars().any(|c| c.is_whitespace() || c.is_control())
    }

    /// The label within an id that a server listed.
    pub(crate) fn label_of(id: &str) -> &str {
        id.splitn(3, '.').nth(2).unwrap_or(id)
    }
}

/// Names a node, by its address.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct NodeId(u64);

impl NodeId {
    pub(crate) fn of(address: &str) -> Self {
        let mut hasher = DefaultHasher::new();
        address.hash(&mut hasher);
        Self(hasher.finish())
    }
}

/// An answer, and when the copy of the request that was answered had been sent.
#[derive(Clone, Debug)]
pub(crate) struct Answered<T> {
    pub(crate) sent: Moment,
    pub(crate) server: ServerTime,
    /// Who has answered.
    pub(crate) node: NodeId,
    pub(crate) value: T,
}

/// What came of one attempt.
pub(crate) type Attempt<T> = Result<Answered<T>, Failure>;

/// A hold as the server recorded it.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct Granted {
    pub(crate) token: FencingToken,
    /// How many tokens from `token` on are this hold's.
    pub(crate) tokens: u64,
    pub(crate) remaining: Duration,
    /// Somebody waits whom this hold keeps out: behind a reader's a writer, so no further reader may share it, behind a writer's anybody.
    pub(crate) is_waited_for: bool,
}

/// Why an attempt has no answer.
#[derive(Clone, Debug)]
pub(crate) enum Failure {
    /// It may have been carried out, or may yet be until `stray_until`.
    Unknown { stray_until: Moment, source: Option<Source> },
    /// It was certainly not carried out, and may be tried again.
    NotDone { source: Option<Source> },
    /// It was certainly not carried out, and trying again would not help.
    Refused { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// It was refused half way: trying again would not help, and something of it may be there.
    Broken { refusal: Refusal, node: Option<Arc<str>>, message: String },
    /// It was carried out, and counts for nothing: too few replicas have it.
    Unreplicated { asked: u8, acknowledged: u64, node: Option<Arc<str>> },
}

impl Failure {
    /// The same, of which it is known at which node it happened.
    pub(crate) fn at(self, address: &str) -> Self {
        match self {
            Self::Unknown { stray_until, source } => {
                Self::Unknown { stray_until, source: Some(at_node(source, address)) }
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

/// Where it happened first counts.
fn at_node(source: Option<Source>, address: &str) -> Source {
    match source {
        Some(source) if source.is::<AtNode>() => source,
        cause => Arc::new(AtNode { node: address.into(), cause }),
    }
}

/// What one node has said to anybody of late.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Hearing {
    /// When it last did what it was asked, if it has.
    pub(crate) served: Option<Moment>,
    /// It has answered nobody since, who asked.
    pub(crate) is_silent: bool,
}

/// Where requests for a lock go at the moment: renewals with equal routes travel together.
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) struct Route(pub(crate) Arc<str>);

impl Route {
    /// Nobody is known to own the lock, or it is on its way to another owner.
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
    /// Somebody waits for the lock, whose last token this is: holds that begin above it are not meant. A try names its id.
    Called { token: FencingToken, id: Option<Arc<str>> },
    /// This acquisition, a try, has called a lock that is used.
    Used { id: Arc<str> },
}

/// Largest number of notices that are kept for a waiter until it looks. Servers send a few for each attempt; more were published by
/// another client, and are dropped: a waiter that finds so many asks the server.
pub(crate) const MAX_NOTICES: usize = 64;

/// Makes the channel between a connection and one waiter.
pub(crate) fn notices() -> (mpsc::Sender<Notice>, mpsc::Receiver<Notice>) {
    mpsc::channel(MAX_NOTICES)
}

/// Notices for one waiter of a lock, as long as it is kept. One that comes while nobody looks is not forgotten.
pub(crate) struct Subscription {
    pub(crate) notices: mpsc::Receiver<Notice>,
    /// Ends the subscription when it is dropped.
    pub(crate) _end: Box<dyn Send + Sync>,
}

impl fmt::Debug for Subscription {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Subscription")
    }
}
