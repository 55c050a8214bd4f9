//! Errors of this crate, with one variant for each kind that callers handle differently.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::base::denied::Denied;
use crate::base::duration_text::DurationText;

/// Result of this crate's operations. Its error type is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// Cause of an [`Error`], as the client library or the operating system reported it.
pub type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Cause of an error, if it is known.
pub(crate) type Cause<'a> = Option<&'a (dyn std::error::Error + Send + Sync + 'static)>;

/// Reason why an operation on a lock failed. Contention is not an error: an acquisition waits, and the `try_` methods
/// return `None`.
///
/// Three outcomes are always distinct: *denied*, *lost* and *unknown*. Denied is `Ok(None)` or
/// [`WaitTimeout`](Error::WaitTimeout): others hold the lock. Lost is [`Lost`](Error::Lost): a hold ended early.
/// Unknown is [`Unreachable`](Error::Unreachable): the server may have executed the request or not.
///
/// Each message names the lock, the server if one is known, and what to do. If an error of the operating system or of
/// the client library is the cause, [`source`](std::error::Error::source) returns it. The message does not repeat the
/// text of the source:
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
    /// Before the acquisition returns this error, it waits until the server confirms that the place in the queue is
    /// removed. From then on, the server executes no copy of the request, so it grants nothing to this acquisition.
    /// Usually the confirmation takes one round trip. If a request of the acquisition got no answer, it takes until the
    /// server can execute no copy of this request. After two response timeouts without an answer, the acquisition
    /// returns the error with `confirmed: false`.
    #[non_exhaustive]
    WaitTimeout {
        /// Name of the lock.
        lock: Arc<str>,
        /// Time for which the caller waited for the lock. The time to remove the place in the queue is not included.
        waited: Duration,
        /// True if the server can grant nothing to this acquisition any more. False if the server did not confirm in
        /// time that the place in the queue is removed. The background runtime then removes this place. If the server
        /// grants a hold before, this hold lasts one lease at most.
        confirmed: bool,
        /// Last refusal, which names the holder if it knows one.
        denied: Box<Denied>,
    },
    /// The hold ended before its release. Others may have changed the data that the lock protects.
    #[non_exhaustive]
    Lost {
        /// Name of the lock.
        lock: Arc<str>,
        /// Reason of the loss.
        reason: LossReason,
    },
    /// An owner that holds the lock for reading asked for the lock for writing. The owner would wait for itself.
    #[non_exhaustive]
    UpgradeConflict {
        /// Name of the lock.
        lock: Arc<str>,
    },
    /// No server answered in time. A server may have executed the request or not. If a server has executed it, the
    /// effect ends with the lease.
    #[non_exhaustive]
    Unreachable {
        /// Name of the lock. Empty if the operation concerned the whole manager: connect, close or flush.
        lock: Arc<str>,
        /// Time for which the request was retried.
        waited: Duration,
        /// Address of the server that was tried last, if it is known. If another server announced this address, the
        /// text names that server too: `10.0.0.1:6379 (announced by the cluster at 127.0.0.1:7000)`.
        node: Option<Arc<str>>,
        /// Cause of the last failure. `None` if an answer was only missing. If a connection failed, the cause is an
        /// [`std::io::Error`].
        source: Option<Source>,
    },
    /// Too few masters of a [`QuorumManager`](crate::QuorumManager) answered in time, or too few may vote. Grants of a
    /// minority are released, or end with their leases.
    #[non_exhaustive]
    NoQuorum {
        /// Name of the lock. Empty if the operation concerned the whole manager: connect or close.
        lock: Arc<str>,
        /// Time for which the request was retried.
        waited: Duration,
        /// Number of masters.
        masters: usize,
        /// Number of masters that must agree.
        needed: usize,
        /// Number of masters that answered but may not vote yet. These masters have been running for less than the
        /// longest lease.
        restarted: usize,
        /// Answers and failures of the other masters.
        source: Option<Source>,
    },
    /// Too few replicas acknowledged a grant in time. [`Durability::Replicated`](crate::Durability::Replicated) sets
    /// their number and the timeout.
    ///
    /// The grant does not count, and the background runtime releases it. A retry succeeds as soon as enough replicas
    /// follow the primary. The manager does not retry, because each try keeps others from the lock for a moment. So the
    /// caller decides about a retry. When the failed request was sent, other acquisitions of this manager may have
    /// waited for its outcome. They fail with the same error.
    ///
    /// If the operation was a conversion, the primary has executed it, but the replicas may not have received it. The
    /// guard is then lost with the reason [`Gone`](LossReason::Gone), and the manager releases both the old and the new
    /// hold.
    #[non_exhaustive]
    NotEnoughReplicas {
        /// Name of the lock. Empty if a manager could not connect because too few replicas were attached to the
        /// primary.
        lock: Arc<str>,
        /// Number of replicas that had to acknowledge. At [`Replicas::All`](crate::Replicas::All) it includes replicas
        /// that the servers name but that are not attached.
        asked: u64,
        /// Number of replicas that acknowledged the grant. If a manager could not connect, this is the number of
        /// replicas that were attached.
        acknowledged: u64,
        /// Address of the primary, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
    },
    /// This manager has [`max_waiters`](crate::Builder::max_waiters) acquisitions in progress already. Nothing was
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
    /// The server refused the request. Repeating the request does not help.
    #[non_exhaustive]
    Refused {
        /// Name of the lock. Empty if a server refused the connection of a manager.
        lock: Arc<str>,
        /// Kind of the refusal.
        refusal: Refusal,
        /// Address of the server, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
        /// Text of the server's error.
        message: String,
    },
    /// The name is empty or too long, or does not form a usable key with
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
    /// `fork` copied the manager or the guard into this process from another process. Nothing was sent, and the holds
    /// of the other process are unchanged. To use locks in this process, build a manager after the fork.
    #[non_exhaustive]
    Forked {
        /// Name of the lock. Empty for a call that concerns no single lock.
        lock: Arc<str>,
        /// Id of the process that built the manager.
        process: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitTimeout { lock, waited, confirmed, denied } => {
                let waited = DurationText(*waited);
                write!(
                    f,
                    "waited {waited} for lock {lock:?}: {denied}; raise `wait_timeout`, try again later, or look at the \
                     lock with `inspect`{}",
                    if *confirmed { "" } else { UNCONFIRMED }
                )
            }
            Self::Lost { lock, reason } => write!(
                f,
                "the hold of lock {lock:?} was lost: {reason}; others may have held the lock, so check or repeat the \
                 work"
            ),
            Self::UpgradeConflict { lock } => write!(
                f,
                "this owner reads lock {lock:?} and cannot get it for writing now: release the read guard, then acquire \
                 the lock for writing"
            ),
            Self::Unreachable { lock, waited, node, source } => {
                fmt_unreachable_node(f, node.as_deref(), source.as_deref())?;
                let advice = advice_on(source.as_deref());
                write!(f, "{} within {}: {advice}, then try again", For(lock), DurationText(*waited))
            }
            Self::NoQuorum { lock, waited, masters, needed, restarted, .. } => {
                let span = format!("{} within {}", For(lock), DurationText(*waited));
                fmt_no_quorum(f, &span, *masters, *needed, *restarted)
            }
            Self::NotEnoughReplicas { lock, asked, acknowledged, node } => {
                let node = node.as_deref().unwrap_or("the primary");
                write!(f, "{acknowledged} of the {asked} replicas that `durability` requires ")?;
                if lock.is_empty() {
                    return write!(f, "are attached to {node}: attach more, or require fewer");
                }
                write!(f, "acknowledged a grant of lock {lock:?}: check that they follow {node}, then try again")
            }
            Self::TooManyWaiters { lock, waiting, max_waiters } => write!(
                f,
                "lock {lock:?} was not requested, since `max_waiters` would be exceeded: {waiting} acquisitions of this \
                 manager are in progress, and the limit is {max_waiters}; acquire fewer locks at once, or raise \
                 `max_waiters`"
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
                write!(f, "fork copied the manager{of} from process {process}: build another manager in this process")
            }
        }
    }
}

/// End of the message of a wait whose place in the queue may still be there.
const UNCONFIRMED: &str = "; the server has not confirmed that the place in the queue is gone, so it may still \
     grant the lock to this caller, for one lease at most";

fn fmt_unreachable_node(f: &mut fmt::Formatter<'_>, node: Option<&str>, source: Cause<'_>) -> fmt::Result {
    match node {
        Some(node) if is_out_of_descriptors(source) || is_full(source) => write!(f, "no connection to {node}"),
        Some(node) => write!(f, "{node} did not answer"),
        None => f.write_str("no server answered"),
    }
}

fn fmt_no_quorum(
    f: &mut fmt::Formatter<'_>,
    span: &str,
    masters: usize,
    needed: usize,
    restarted: usize,
) -> fmt::Result {
    if restarted == 0 {
        return write!(
            f,
            "fewer than {needed} of {masters} masters answered{span}: check that they run and that the addresses are \
             right, then try again"
        );
    }
    write!(
        f,
        "fewer than {needed} of {masters} masters could vote{span}: {restarted} answered, but may vote only after they have \
         been running for the longest lease; "
    )?;
    let others = if restarted < masters { "check that the others run, and " } else { "" };
    write!(f, "{others}try again after that time")
}

impl std::error::Error for Error {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        match self {
            // Returns a reference to the error inside the `Arc`, because a downcast of the `Arc` to the type of that
            // error would fail.
            Self::Unreachable { source: Some(source), .. } | Self::NoQuorum { source: Some(source), .. } => {
                Some(&**source)
            }
            _ => None,
        }
    }
}

impl Error {
    /// Returns the refusal that kept the acquisition out, with the holder that it names. `None` for every error except
    /// [`WaitTimeout`](Error::WaitTimeout).
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::builder().label("web:12").build()?;
    /// let guard = manager.write("cfg").await?;
    /// let error = manager.peer().read("cfg").wait_timeout(Duration::ZERO).await.expect_err("a writer holds the lock");
    /// let holder = error.denial().and_then(|denied| denied.holder.as_ref()).expect("the refusal names it");
    /// assert_eq!(holder.label, "web:12");
    /// # drop(guard);
    /// # Ok(())
    /// # }
    /// ```
    #[must_use]
    pub fn denial(&self) -> Option<&Denied> {
        match self {
            Self::WaitTimeout { denied, .. } => Some(denied),
            _ => None,
        }
    }

    /// Returns the error of an option that cannot be used, for `reason`.
    pub(crate) fn invalid(option: &'static str, reason: impl Into<String>) -> Self {
        Self::InvalidOption { option, reason: reason.into() }
    }

    /// Creates the error of a request from the failure of its last attempt. Splits this failure into its node and its
    /// cause.
    pub(crate) fn unreachable(lock: Arc<str>, waited: Duration, failure: Option<Source>) -> Self {
        if let Some(&NoMajority { masters, needed, restarted, .. }) = downcast(failure.as_deref()) {
            return Self::NoQuorum { lock, waited, masters, needed, restarted, source: failure };
        }
        let (node, source) = match downcast(failure.as_deref()) {
            Some(AtNode { node, cause }) => (Some(Arc::clone(node)), cause.clone()),
            None => (None, failure),
        };
        if let Some(NotPrimary(words)) = downcast(source.as_deref()) {
            return Self::Refused { lock, refusal: Refusal::ReadOnly, node, message: words.clone() };
        }
        Self::Unreachable { lock, waited, node, source }
    }
}

/// Failure of an attempt in which too few of several masters answered or may vote.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{}", if .causes.is_empty() { "no cause is known".to_owned() } else { .causes.join("; ") })]
pub(crate) struct NoMajority {
    pub(crate) masters: usize,
    pub(crate) needed: usize,
    /// Number of masters that answered but may not vote yet.
    pub(crate) restarted: usize,
    /// Reasons, one for each master that did not answer or may not vote.
    pub(crate) causes: Vec<String>,
}

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
        // Adds the chain of causes, because nothing else prints it.
        let mut below = cause.source();
        while let Some(error) = below {
            write!(f, ": {error}")?;
            below = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for AtNode {}

/// Error of a server that is a replica, although the manager knows its address as that of a primary.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotPrimary(pub(crate) String);

/// Failure of TLS on a connection that was established.
#[derive(Clone, Debug)]
pub(crate) struct NoTls(pub(crate) Source);

impl fmt::Display for NoTls {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("the TLS handshake failed")
    }
}

impl std::error::Error for NoTls {
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        Some(&*self.0)
    }
}

/// Returns the cause as an error of this type, if it is one.
fn downcast<T: std::error::Error + 'static>(cause: Cause<'_>) -> Option<&T> {
    cause.and_then(|cause| cause.downcast_ref())
}

/// Returns advice for a user whose server does not answer.
fn advice_on(cause: Cause<'_>) -> &'static str {
    if is_out_of_descriptors(cause) {
        return "this process has no file descriptors left, so raise `ulimit -n`, or find the code that keeps them open";
    }
    if is_full(cause) {
        return "the server has as many clients as its `maxclients` allows, so raise it, or connect fewer managers";
    }
    if let Some(NoTls(below)) = downcast(cause) {
        // A server without TLS reads the handshake as the beginning of a command, and waits for the rest, so the client
        // runs into a timeout. A slow network causes the same timeout.
        return match below.downcast_ref::<io::Error>().map(io::Error::kind) {
            Some(io::ErrorKind::TimedOut) => {
                "check that the server runs and accepts TLS on this port, or use `redis://`; on a slow network raise \
                 `response_timeout`"
            }
            _ => "check that the server runs and accepts TLS on this port, or use `redis://`",
        };
    }
    match downcast(cause).map(io::Error::kind) {
        // The server closed the connection before its first answer.
        Some(io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset) => {
            "check that the server runs, and use `rediss://` if it requires TLS on this port"
        }
        Some(io::ErrorKind::TimedOut) => {
            "check that the server runs and that the address is right; on a slow network raise `response_timeout`"
        }
        _ => "check that the server runs and that the address is right",
    }
}

/// Returns true if this process may open no further connection (`EMFILE`). The server is not the cause then. The
/// function compares the number of the error, because the standard library has no error kind for it.
fn is_out_of_descriptors(cause: Cause<'_>) -> bool {
    const NUMBER: i32 = if cfg!(windows) { 10024 } else { 24 };
    downcast(cause).and_then(io::Error::raw_os_error) == Some(NUMBER)
}

/// Returns true if the server refused the connection because it has too many clients. The cause is the server's own
/// text, which no error kind stands for.
fn is_full(cause: Cause<'_>) -> bool {
    cause.is_some_and(|cause| cause.to_string().contains("max number of clients"))
}

/// Kind of a server's refusal, in [`Error::Refused`](Error).
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Refusal {
    /// The server is out of memory, and its policy is to evict no keys (`OOM`).
    #[error("out of memory")]
    OutOfMemory,
    /// The user name, the password or the client certificate is missing or wrong (`NOAUTH`, `WRONGPASS`).
    #[error("not authenticated")]
    Unauthenticated,
    /// The ACL of the server does not permit the user this command, key or channel (`NOPERM`).
    #[error("no permission")]
    Forbidden,
    /// The server cannot execute writes now (`MISCONF`, `NOREPLICAS`). Or the server was a replica (`READONLY`) for the
    /// whole time of [`unreachable_after`](crate::Builder::unreachable_after).
    #[error("read only")]
    ReadOnly,
    /// The lock's key has a value that is not a lock (`WRONGTYPE`). The value is unchanged.
    #[error("foreign key")]
    ForeignKey,
    /// The server is older than Redis 7.0 or Valkey 7.2, or runs no Lua scripts.
    #[error("unsupported server")]
    UnsupportedServer,
    /// The server's certificate is not from a trusted authority, has expired, or was made for another host. Nothing was
    /// sent to the server, not even a password.
    #[error("untrusted server")]
    Untrusted,
    /// The server does not fit the topology. For example, a single server was expected, but the server is part of a
    /// cluster. Or the Sentinels know no primary with the given name.
    #[error("other topology")]
    OtherTopology,
    /// Another version of this crate holds the lock or waits for it, and this version stores its records in another
    /// format. Nothing was changed.
    #[error("other version")]
    OtherVersion,
    /// Any other answer.
    #[error("unexpected answer")]
    Other,
}

impl Refusal {
    /// Returns advice for the caller or the operator. `None` if the message already contains advice.
    fn advice(self) -> Option<&'static str> {
        Some(match self {
            Self::OutOfMemory => "free memory or raise `maxmemory`",
            Self::Unauthenticated => "check user and password in the URL, and the client certificate",
            Self::Forbidden => "give the user the rights that docs/OPERATIONS.md lists",
            Self::ReadOnly => {
                "use the address of the primary instead of a replica, or find out why the server accepts no writes"
            }
            Self::OtherVersion => {
                "wait until the holds of that version are over, or update all processes that use the lock to one version"
            }
            Self::ForeignKey => "delete the key if nothing else uses it, or use another `key_prefix`",
            Self::UnsupportedServer => "use a newer server, or one that runs Lua scripts",
            Self::Untrusted => {
                "check the host in the URL or give `Tls::server_name`, and check the authority given to `Tls`"
            }
            Self::OtherTopology => return None,
            Self::Other => "read the log of the server",
        })
    }
}

/// Reason why a hold ended before its release. [`lost`](crate::WriteGuard::lost) returns it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// The lease was over by the local clock before a renewal succeeded. This is also the reason if a
    /// [`downgrade`](crate::WriteGuard::downgrade) got no answer in time. The server may have executed the downgrade,
    /// and readers may have entered. So the hold may no longer be exclusive.
    #[error("the lease expired before a renewal succeeded")]
    Expired,
    /// The server does not know the hold any more, because the hold expired there or the server lost its data. This is
    /// also the reason if a server granted this manager a newer hold that conflicts with this one. The newer grant
    /// proves that this hold is over, but not why.
    #[error("the server does not know the hold any more")]
    Gone,
    /// The hold reached its `max_hold`.
    #[error("max_hold exceeded")]
    MaxHold,
    /// An operator ended the hold with [`force_release`](crate::RwLockManager::force_release).
    #[error("an operator ended the hold by force")]
    Forced,
    /// The manager of the hold was closed.
    #[error("the manager was closed")]
    Closed,
    /// `fork` copied the guard of the hold into this process. The process that acquired the lock still holds it, and
    /// this process never held it.
    #[error("fork copied the guard, and the hold belongs to the original process")]
    Forked,
}

/// Text ` for lock "name"`. The text is empty if the error concerns no single lock.
struct For<'a>(&'a str);

impl fmt::Display for For<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            "" => Ok(()),
            lock => write!(f, " for lock {lock:?}"),
        }
    }
}

/// Error for a failure that has only a description, and no error of another library.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct UnreachableSource(pub(crate) String);

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/error/tests.rs"]
mod tests;
