//! Errors of this crate, distinguished by what a caller does next.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::base::duration_text::DurationText;

/// Result of this crate's operations; its error is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Cause of an [`Error`], as the client library or the operating system reported it.
pub type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Reason why an operation on a lock failed. Contention is not an error: an acquisition waits, and `try_*` return
/// `None`.
///
/// The crate never confuses three outcomes: *denied* (`Ok(None)` or [`WaitTimeout`](Error::WaitTimeout)), *lost*
/// ([`Lost`](Error::Lost)) and *unknown* ([`Unreachable`](Error::Unreachable)).
///
/// Each message names the lock, the server if one is known, and what to do. An error of the operating system or of the
/// client library is the [`source`](std::error::Error::source). The message does not repeat it:
///
/// ```
/// use std::error::Error as _;
/// use std::io;
/// use std::time::Duration;
/// use redis_rwlock::{RedisManager, RwLockManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = RedisManager::builder("redis://127.0.0.1:1").unreachable_after(Duration::from_millis(50)).build()?;
/// let error = manager.write("cfg").await.expect_err("nobody listens there");
/// assert!(error.to_string().starts_with("127.0.0.1:1 did not answer for lock \"cfg\""));
/// let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).expect("the system's");
/// assert_eq!(cause.kind(), io::ErrorKind::ConnectionRefused);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Debug)]
#[non_exhaustive]
pub enum Error {
    /// Others held the lock until the caller's `wait_timeout` was over.
    ///
    /// The error comes when the server has confirmed that the caller's place in the queue is gone. At that time it can
    /// execute no copy of the request any more, so it never grants anything of this acquisition. Usually that takes one
    /// round trip. It takes two response timeouts at most; the error then has `confirmed: false`.
    #[non_exhaustive]
    WaitTimeout {
        /// Name of the lock.
        lock: Arc<str>,
        /// Time for which the caller waited for the lock, without the time to cancel its place in the queue.
        waited: Duration,
        /// True if nothing of the acquisition can be granted any more. False if the server did not confirm in time that
        /// the place is gone. Then the background cancels the place, and a hold that is granted before that lasts one
        /// lease at most.
        confirmed: bool,
    },
    /// The hold ended before its release: others may have touched what it protected.
    #[non_exhaustive]
    Lost {
        /// Name of the lock.
        lock: Arc<str>,
        /// Reason of the loss.
        reason: LossReason,
    },
    /// An owner that reads asked for a write: it would wait for itself.
    #[non_exhaustive]
    UpgradeConflict {
        /// Name of the lock.
        lock: Arc<str>,
    },
    /// No server answered in time. Whether a server executed the request is unknown; if one did, the effect ends with
    /// its lease.
    #[non_exhaustive]
    Unreachable {
        /// Name of the lock; empty if a manager could not connect, close or flush.
        lock: Arc<str>,
        /// Time for which the request was retried.
        waited: Duration,
        /// Address of the last server that was tried, if it is known. If another server announced the address, the text
        /// names that one too: `10.0.0.1:6379 (announced by the cluster at 127.0.0.1:7000)`.
        node: Option<Arc<str>>,
        /// Last failure, if there was one besides a missing answer: an [`std::io::Error`] if a connection failed.
        source: Option<Source>,
    },
    /// Too few of the masters of a [`QuorumManager`](crate::QuorumManager) answered in time, or may vote. Grants of a
    /// minority are released, or end with their leases.
    #[non_exhaustive]
    NoQuorum {
        /// Name of the lock; empty if a manager could not connect or close.
        lock: Arc<str>,
        /// Time for which the request was retried.
        waited: Duration,
        /// Number of masters.
        masters: usize,
        /// Number of masters that must agree.
        needed: usize,
        /// Number of masters that answered and may not vote yet, since they have been running for less than the longest
        /// lease.
        restarted: usize,
        /// Answers and failures of the other masters.
        source: Option<Source>,
    },
    /// Fewer replicas acknowledged a grant than [`Durability::Replicated`](crate::Durability::Replicated) requires,
    /// within its timeout.
    ///
    /// The grant does not count, and the background releases it. A retry succeeds as soon as the replicas follow the
    /// primary. The caller decides about it, since each try keeps others from the lock for a moment. All acquisitions
    /// of the manager that waited behind the request when it was sent end with this error, too.
    ///
    /// For a conversion: the primary has executed it, and the replicas may not have received it. The guard is lost as
    /// [`Gone`](LossReason::Gone), and both holds, the old and the new, are released.
    #[non_exhaustive]
    NotEnoughReplicas {
        /// Name of the lock; empty if a manager did not connect because too few replicas were attached.
        lock: Arc<str>,
        /// Number of replicas that the option requires.
        asked: u8,
        /// Number of replicas that acknowledged, or are attached.
        acknowledged: u64,
        /// Address of the primary, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
    },
    /// [`max_waiters`](crate::Builder::max_waiters) acquisitions of this manager are in progress already. Nothing was
    /// sent. Wait for fewer locks at once, or raise the limit.
    #[non_exhaustive]
    TooManyWaiters {
        /// Name of the lock.
        lock: Arc<str>,
        /// Number of acquisitions that are in progress.
        waiting: usize,
        /// Limit of the manager.
        max_waiters: usize,
    },
    /// The server refused the request; repeating the request does not help.
    #[non_exhaustive]
    Refused {
        /// Name of the lock; empty if a server refused the connection of a manager.
        lock: Arc<str>,
        /// Kind of the refusal.
        refusal: Refusal,
        /// Address of the server, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
        /// Text of the server's error.
        message: String,
    },
    /// The name is empty or too long, or it makes no usable key with
    /// [`timestamp_keys`](crate::Builder::timestamp_keys). Nothing was sent.
    #[non_exhaustive]
    InvalidName {
        /// Beginning of the name.
        lock: Arc<str>,
        /// Defect of the name.
        reason: String,
    },
    /// An option has a value that cannot work. Nothing was sent.
    #[non_exhaustive]
    InvalidOption {
        /// Name of the option, which is the name of its setter.
        option: &'static str,
        /// Defect of the value.
        reason: String,
    },
    /// The manager is closed.
    #[non_exhaustive]
    Closed {
        /// Name of the lock.
        lock: Arc<str>,
    },
    /// The manager, or the guard, was made in another process, and `fork` copied it into this one. Nothing was sent,
    /// and the holds of the other process are unchanged. Build the manager after the fork.
    #[non_exhaustive]
    Forked {
        /// Name of the lock; empty for a call that is not about one lock.
        lock: Arc<str>,
        /// Id of the process that made the manager.
        process: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitTimeout { lock, waited, confirmed } => {
                let waited = DurationText(*waited);
                write!(
                    f,
                    "waited {waited} for lock {lock:?}, which others hold: try again later, or see who with `inspect`"
                )?;
                if *confirmed {
                    return Ok(());
                }
                f.write_str(
                    "; no server confirmed within two response timeouts that the place in the queue is gone: the lock may yet be granted \
                     to this caller, for one lease at most",
                )
            }
            Self::Lost { lock, reason } => write!(
                f,
                "the hold of lock {lock:?} was lost: {reason}; others may have been inside, so check what was done or do it again"
            ),
            Self::UpgradeConflict { lock } => write!(
                f,
                "the owner reads lock {lock:?} already and cannot write it at the same time: release the read first"
            ),
            Self::Unreachable { lock, waited, node, source } => {
                match node {
                    Some(node) if is_out_of_descriptors(source.as_deref()) => {
                        write!(f, "{node} could not be asked")?;
                    }
                    Some(node) => write!(f, "{node} did not answer")?,
                    None => f.write_str("no server answered")?,
                }
                let advice = advice_on(source.as_deref());
                write!(f, "{} within {}: {advice}, then try again", For(lock), DurationText(*waited))
            }
            Self::NoQuorum { lock, waited, masters, needed, restarted, .. } => {
                let span = WithinFor { lock, waited: *waited };
                fmt_no_quorum(f, &span, *masters, *needed, *restarted)
            }
            Self::NotEnoughReplicas { lock, asked, acknowledged, node } => {
                let node = node.as_deref().unwrap_or("the primary");
                write!(f, "{acknowledged} of the {asked} replicas that `durability` asks for ")?;
                if lock.is_empty() {
                    return write!(f, "are attached to {node}: attach more, or ask for fewer");
                }
                write!(f, "acknowledged a grant of lock {lock:?}: see that they follow {node}, then try again")
            }
            Self::TooManyWaiters { lock, waiting, max_waiters } => write!(
                f,
                "lock {lock:?} was not asked for: {waiting} acquisitions of this manager are under way, and `max_waiters` is \
                 {max_waiters}: wait for fewer at once, or raise it"
            ),
            Self::Refused { lock, refusal, node, message } => {
                let node = node.as_deref().unwrap_or("the server");
                write!(f, "{node} refused the request{} ({refusal}): {message}", For(lock))?;
                refusal.advice().map_or(Ok(()), |advice| write!(f, "; {advice}"))
            }
            Self::InvalidName { lock, reason } => write!(f, "lock name {lock:?} is not valid: {reason}"),
            Self::InvalidOption { option, reason } => write!(f, "option {option} is not valid: {reason}"),
            Self::Closed { lock } => write!(f, "the manager of lock {lock:?} is closed: build another"),
            Self::Forked { lock, process } => {
                let of = if lock.is_empty() { String::new() } else { format!(" of lock {lock:?}") };
                write!(
                    f,
                    "the manager{of} was made in process {process} and copied into this one by fork: build another in this process"
                )
            }
        }
    }
}

/// Lock of a request and the time it took, as a part of a message.
struct WithinFor<'a> {
    lock: &'a str,
    waited: Duration,
}

impl fmt::Display for WithinFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within {}", For(self.lock), DurationText(self.waited))
    }
}

fn fmt_no_quorum(
    f: &mut fmt::Formatter<'_>,
    span: &WithinFor<'_>,
    masters: usize,
    needed: usize,
    restarted: usize,
) -> fmt::Result {
    if restarted == 0 {
        return write!(
            f,
            "fewer than {needed} of {masters} masters answered{span}: see that they run and that the addresses are right, \
             then try again"
        );
    }
    write!(
        f,
        "fewer than {needed} of {masters} masters could vote{span}: {restarted} answered and may not vote before they have \
         been running for the longest lease; "
    )?;
    let others = if restarted < masters { "see that the others run, and " } else { "" };
    write!(f, "{others}try again when they may")
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Taken out of its `Arc`: callers downcast to the error itself, which an `Arc` around it would prevent.
            Self::Unreachable { source: Some(source), .. } | Self::NoQuorum { source: Some(source), .. } => {
                Some(&**source)
            }
            _ => None,
        }
    }
}

impl Error {
    /// Makes the error of a request from the failure of its last attempt. The error has the node and its cause in
    /// fields of their own.
    pub(crate) fn unreachable(lock: Arc<str>, waited: Duration, failure: Option<Source>) -> Self {
        if let Some(&NoMajority { masters, needed, restarted, .. }) =
            failure.as_deref().and_then(|failure| failure.downcast_ref::<NoMajority>())
        {
            return Self::NoQuorum { lock, waited, masters, needed, restarted, source: failure };
        }
        let at_node = failure.as_deref().and_then(|failure| failure.downcast_ref::<AtNode>());
        let (node, source) = match at_node {
            Some(AtNode { node, cause }) => (Some(Arc::clone(node)), cause.clone()),
            None => (None, failure),
        };
        if let Some(NotPrimary(words)) = source.as_deref().and_then(|source| source.downcast_ref::<NotPrimary>()) {
            return Self::Refused { lock, refusal: Refusal::ReadOnly, node, message: words.clone() };
        }
        Self::Unreachable { lock, waited, node, source }
    }
}

/// Failure of an attempt in which too few of several masters could be asked.
#[derive(Clone, Debug)]
pub(crate) struct NoMajority {
    pub(crate) masters: usize,
    pub(crate) needed: usize,
    /// Number of masters that answered and may not vote yet.
    pub(crate) restarted: usize,
    /// Causes at the masters that did not answer and at those that may not vote.
    pub(crate) causes: Vec<String>,
}

impl fmt::Display for NoMajority {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.causes.as_slice() {
            [] => f.write_str("nobody has said why"),
            causes => f.write_str(&causes.join("; ")),
        }
    }
}

impl std::error::Error for NoMajority {}

/// Failure, and the node at which it happened.
#[derive(Clone, Debug)]
pub(crate) struct AtNode {
    pub(crate) node: Arc<str>,
    pub(crate) cause: Option<Source>,
}

impl fmt::Display for AtNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = &self.cause else { return write!(f, "{}: no answer", self.node) };
        write!(f, "{}: {cause}", self.node)?;
        // No other code shows the errors below the cause.
        let mut below = cause.source();
        while let Some(error) = below {
            write!(f, ": {error}")?;
            below = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for AtNode {}

/// Answer of a server that is a replica, at the address of a primary.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotPrimary(pub(crate) String);

/// Failure of TLS with a server to which the connection was made.
#[derive(Clone, Debug)]
pub(crate) struct NoTls(pub(crate) Source);

impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("no connection with TLS")
    }
}

impl std::error::Error for NoTls {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Returns advice on a server that does not answer.
fn advice_on(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> &'static str {
    if is_out_of_descriptors(cause) {
        return "this process has no file descriptors left, so raise `ulimit -n`, or find what keeps them open";
    }
    if let Some(NoTls(below)) = cause.and_then(|cause| cause.downcast_ref()) {
        // A server without TLS takes the handshake for a command and waits for its end. Slow networks cause the same
        // timeout.
        return match below.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => {
                "see that it runs and speaks TLS there, or use `redis://`; on a slow way raise `response_timeout`"
            }
            _ => "see that it runs and speaks TLS there, or use `redis://`",
        };
    }
    let Some(cause) = cause.and_then(|cause| cause.downcast_ref::<io::Error>()) else {
        return "see that it runs and that the address is right";
    };
    match cause.kind() {
        // The server closed the connection before it answered anything.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "see that it runs, and whether it wants TLS there, which `rediss://` speaks"
        }
        io::ErrorKind::TimedOut => {
            "see that it runs and that the address is right; on a slow way raise `response_timeout`"
        }
        _ => "see that it runs and that the address is right",
    }
}

/// Returns true if this process may open no further connection (`EMFILE`), which is no fault of the server. The
/// standard library has no kind for it.
fn is_out_of_descriptors(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> bool {
    const NUMBER: i32 = if cfg!(windows) { 10024 } else { 24 };
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.raw_os_error() == Some(NUMBER))
}

/// Kind of the refusal of a server, with [`Error::Refused`](Error).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server is out of memory and evicts nothing (`OOM`).
    #[error("out of memory")]
    OutOfMemory,
    /// User name or password are missing or wrong (`NOAUTH`, `WRONGPASS`), or the client certificate is.
    #[error("not authenticated")]
    Unauthenticated,
    /// The user may not run a command or touch the key or channel (`NOPERM`).
    #[error("no permission")]
    Forbidden,
    /// The server cannot execute writes now (`MISCONF`, `NOREPLICAS`), or it was a replica (`READONLY`) until
    /// [`unreachable_after`](crate::Builder::unreachable_after) was over.
    #[error("read only")]
    ReadOnly,
    /// The lock's key has a value that is not a lock (`WRONGTYPE`). The value is unchanged.
    #[error("foreign key")]
    ForeignKey,
    /// The server is older than Redis 7.0 or Valkey 7.2.
    #[error("unsupported server")]
    UnsupportedServer,
    /// The server's certificate is not from a trusted authority, has expired, or was made for another host. The server
    /// received nothing, no password either.
    #[error("untrusted server")]
    Untrusted,
    /// The topology of the server differs from the option: it is part of a cluster, or is not. Or the Sentinels know no
    /// primary of that name.
    #[error("other topology")]
    OtherTopology,
    /// Another version of this crate, with another format of its records, holds the lock or waits for it. Nothing was
    /// changed.
    #[error("other version")]
    OtherVersion,
    /// Any other answer.
    #[error("unexpected answer")]
    Other,
}

impl Refusal {
    /// Returns what the caller or the operator can do; nothing if the message says it.
    fn advice(self) -> Option<&'static str> {
        Some(match self {
            Self::OutOfMemory => "free memory or raise `maxmemory`",
            Self::Unauthenticated => "check user and password in the URL, and the client certificate",
            Self::Forbidden => "give the user the rights that docs/OPERATIONS.md lists",
            Self::ReadOnly => "name the primary instead of a replica, or look into why the server takes no writes",
            Self::OtherVersion => {
                "wait until its holds are over, or update all processes that use the lock to one version"
            }
            Self::ForeignKey => "remove what is at the key, or use another `key_prefix`",
            Self::UnsupportedServer => "use a newer server",
            Self::Untrusted => {
                "check the host in the URL or give `Tls::server_name`, and check the authority given to `Tls`"
            }
            Self::OtherTopology => return None,
            Self::Other => "look into the server's log",
        })
    }
}

/// Reason why a hold ended before its release; [`lost`](crate::WriteGuard::lost) returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The hold was not renewed before its lease was over by the local clock. Also the reason for an exclusive hold
    /// whose [`downgrade`](crate::WriteGuard::downgrade) was not answered: readers may have entered, so it is not
    /// exclusive any more.
    #[error("its lease expired before it could be renewed")]
    Expired,
    /// The server does not know the hold any more: the hold expired there, or the server lost its data. Also the reason
    /// if this manager was granted a newer hold that conflicts with it, which proves only that the hold is over.
    #[error("the server does not know it any more")]
    Gone,
    /// The hold reached its `max_hold`.
    #[error("it reached its longest time")]
    MaxHold,
    /// An operator ended the hold with [`force_release`](crate::RwLockManager::force_release).
    #[error("it was released by force")]
    Forced,
    /// The manager of the hold was closed.
    #[error("its manager was closed")]
    Closed,
    /// `fork` copied the guard of the hold into this process. The process that acquired the lock still holds it; this
    /// process never did.
    #[error("fork copied its guard from the process that holds it")]
    Forked,
}

/// Text ` for lock "name"`, or nothing for an error of a manager.
struct For<'a>(&'a str);

impl fmt::Display for For<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            lock => write!(f, " for lock {lock:?}"),
        }
    }
}

impl std::error::Error for UnreachableSource {}

/// Description of a failure that has no source error.
#[derive(Debug)]
pub(crate) struct UnreachableSource(pub(crate) String);

impl std::fmt::Display for UnreachableSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/error/tests.rs"]
mod tests;
