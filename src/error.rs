//! What can go wrong, told apart by what a caller would do next.

use std::fmt;
use std::io;
use std::sync::Arc;
use std::time::Duration;

use crate::span::Span;

/// The result of this crate's operations; what can go wrong is [`Error`].
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error below an [`Error`], as the client library or the operating system reported it.
pub type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Why an operation on a lock failed. Contention is not an error: an acquisition waits, and `try_*` answer `None`.
///
/// Three outcomes are never mixed up: *denied* (`Ok(None)` or [`WaitTimeout`](Error::WaitTimeout)), *lost*
/// ([`Lost`](Error::Lost)) and *unknown* ([`Unreachable`](Error::Unreachable)).
///
/// Each message names the lock, the server where one is known, and what to do. What the operating system or the client library said
/// is the [`source`](std::error::Error::source), and not repeated in the message:
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
    /// Others held the lock for as long as the caller was willing to wait.
    ///
    /// The error comes when the server has said that the caller's place in the queue is gone, and no copy of its request can be
    /// carried out any more: nothing of this acquisition is ever granted. Usually that takes one round trip. At the latest it
    /// comes two response timeouts after the limit, then with `confirmed: false`.
    #[non_exhaustive]
    WaitTimeout {
        /// The lock's name.
        lock: Arc<str>,
        /// How long the caller waited for the lock, without the time that it took to take its place back.
        waited: Duration,
        /// Whether nothing of the acquisition can be granted any more. If not, the server did not say in time that the place is
        /// gone: it is taken back in the background, and what is granted until then lasts no longer than one lease.
        confirmed: bool,
    },
    /// The hold ended before it was released: what it protected may have been touched by others.
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        lock: Arc<str>,
        /// How it ended.
        reason: LossReason,
    },
    /// A write was asked for by an owner that reads: it would wait for itself.
    #[non_exhaustive]
    UpgradeConflict {
        /// The lock's name.
        lock: Arc<str>,
    },
    /// No server answered in time. Whether the request was carried out is unknown; if it was, it ends with its lease.
    #[non_exhaustive]
    Unreachable {
        /// The lock's name; empty when it was a manager that could not connect, close or flush.
        lock: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// The address of the server that was tried last, if it is known; with the server that announced it, unless the user
        /// named it: `10.0.0.1:6379 (announced by the cluster at 127.0.0.1:7000)`.
        node: Option<Arc<str>>,
        /// The last failure, if there was one besides silence: an [`std::io::Error`] where a connection failed.
        source: Option<Source>,
    },
    /// Too few of the masters of a [`QuorumManager`](crate::QuorumManager) answered in time, or may vote. What some of them
    /// may have granted is given back, or ends with its lease.
    #[non_exhaustive]
    NoQuorum {
        /// The lock's name; empty when it was a manager that could not connect or close.
        lock: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// How many there are.
        masters: usize,
        /// How many of them have to agree.
        needed: usize,
        /// How many of them answered and may not vote yet, since they have been running for less than the longest lease.
        restarted: usize,
        /// What the others said, or did not.
        source: Option<Source>,
    },
    /// Fewer replicas acknowledged a grant than [`Durability::Replicated`](crate::Durability::Replicated) asks for, within its
    /// timeout. The grant does not count, and is given back in the background. Trying again helps as soon as the replicas follow;
    /// it is left to the caller, since each try keeps others from the lock for a moment. All acquisitions of the manager that
    /// waited behind the request when it was sent end with this error, too.
    ///
    /// Of a conversion: the primary has made it, and the replicas may not have heard of it. The guard is lost as
    /// [`Gone`](LossReason::Gone), and both what it was and what it was to be are given back.
    #[non_exhaustive]
    NotEnoughReplicas {
        /// The lock's name; empty when a manager found so few replicas attached that it did not connect.
        lock: Arc<str>,
        /// How many were asked for.
        asked: u8,
        /// How many acknowledged, or are attached.
        acknowledged: u64,
        /// The address of the primary, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
    },
    /// [`max_waiters`](crate::Builder::max_waiters) acquisitions of this manager are under way already.
    /// Nothing was sent. Waiting for fewer locks at once helps, or a higher limit.
    #[non_exhaustive]
    TooManyWaiters {
        /// The lock's name.
        lock: Arc<str>,
        /// Number of acquisitions that are under way.
        waiting: usize,
        /// The limit.
        max_waiters: usize,
    },
    /// The server answered and said no; repeating the request would not help.
    #[non_exhaustive]
    Refused {
        /// The lock's name; empty when it was the connection of a manager that was refused.
        lock: Arc<str>,
        /// What kind of no.
        refusal: Refusal,
        /// The address of the server, if it is known, as in [`Unreachable`](Error::Unreachable).
        node: Option<Arc<str>>,
        /// The server's words.
        message: String,
    },
    /// The name is empty or too long, or makes no key that can be used with
    /// [`published_keys`](crate::Builder::published_keys). Nothing was sent.
    #[non_exhaustive]
    InvalidName {
        /// The beginning of the name.
        lock: Arc<str>,
        /// What is wrong with it.
        reason: String,
    },
    /// An option has a value that cannot work. Nothing was sent.
    #[non_exhaustive]
    InvalidOption {
        /// The option, named like its setter.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The manager was closed.
    #[non_exhaustive]
    Closed {
        /// The lock's name.
        lock: Arc<str>,
    },
    /// The manager, or the guard, was made in another process, and `fork` copied it into this one. Nothing was sent, and what the
    /// other process holds is as it was. Build the manager after the fork.
    #[non_exhaustive]
    Forked {
        /// The lock's name; empty for a call that is not about one lock.
        lock: Arc<str>,
        /// The id of the process that made it.
        process: u32,
    },
}

impl fmt::Display for Error {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::WaitTimeout { lock, waited, confirmed } => {
                let waited = Span(*waited);
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
                write!(f, "{} within {}: {advice}, then try again", For(lock), Span(*waited))
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

/// Lock that was asked for, and for how long, in a message.
struct WithinFor<'a> {
    lock: &'a str,
    waited: Duration,
}

impl fmt::Display for WithinFor<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} within {}", For(self.lock), Span(self.waited))
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
            // Out of its `Arc`, or nobody could downcast it.
            Self::Unreachable { source: Some(source), .. } | Self::NoQuorum { source: Some(source), .. } => {
                Some(&**source)
            }
            _ => None,
        }
    }
}

impl Error {
    /// What an attempt failed with that was the last one: the node is told by itself, and the cause by itself.
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

/// Too few of several masters could be asked.
#[derive(Clone, Debug)]
pub(crate) struct NoMajority {
    pub(crate) masters: usize,
    pub(crate) needed: usize,
    /// Count of those that answered and may not vote yet.
    pub(crate) restarted: usize,
    /// What stood in the way, of those that did not answer and those that may not vote.
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

/// A failure, and the node where it happened.
#[derive(Clone, Debug)]
pub(crate) struct AtNode {
    pub(crate) node: Arc<str>,
    pub(crate) cause: Option<Source>,
}

impl fmt::Display for AtNode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Some(cause) = &self.cause else { return write!(f, "{}: no answer", self.node) };
        write!(f, "{}: {cause}", self.node)?;
        // What is below the cause is seen nowhere else.
        let mut below = cause.source();
        while let Some(error) = below {
            write!(f, ": {error}")?;
            below = error.source();
        }
        Ok(())
    }
}

impl std::error::Error for AtNode {}

/// Words of a server that is a replica, which is found at the address of a primary.
#[derive(Clone, Debug, thiserror::Error)]
#[error("{0}")]
pub(crate) struct NotPrimary(pub(crate) String);

/// There was a server, and no connection with TLS to it.
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

/// What to look at when a server does not answer.
fn advice_on(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> &'static str {
    if is_out_of_descriptors(cause) {
        return "this process has no file descriptors left, so raise `ulimit -n`, or find what keeps them open";
    }
    if let Some(NoTls(below)) = cause.and_then(|cause| cause.downcast_ref()) {
        // A server without TLS waits for the end of what it takes for a command, and a way may be slow.
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
        // It closed the connection before it had said anything.
        io::ErrorKind::UnexpectedEof | io::ErrorKind::BrokenPipe | io::ErrorKind::ConnectionReset => {
            "see that it runs, and whether it wants TLS there, which `rediss://` speaks"
        }
        io::ErrorKind::TimedOut => {
            "see that it runs and that the address is right; on a slow way raise `response_timeout`"
        }
        _ => "see that it runs and that the address is right",
    }
}

/// Whether this process may open no further connection (`EMFILE`), which is nothing that a server could help. The standard
/// library has no kind for it.
fn is_out_of_descriptors(cause: Option<&(dyn std::error::Error + Send + Sync + 'static)>) -> bool {
    const NUMBER: i32 = if cfg!(windows) { 10024 } else { 24 };
    let cause = cause.and_then(|cause| cause.downcast_ref::<io::Error>());
    cause.is_some_and(|cause| cause.raw_os_error() == Some(NUMBER))
}

/// What kind of no a server gave, with [`Error::Refused`](Error).
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
    /// The server cannot take writes now (`MISCONF`, `NOREPLICAS`), or was a replica (`READONLY`) for as long as
    /// [`unreachable_after`](crate::Builder::unreachable_after) says.
    #[error("read only")]
    ReadOnly,
    /// The lock's key holds something that is not a lock (`WRONGTYPE`). It was left as it is.
    #[error("foreign key")]
    ForeignKey,
    /// The server is older than Redis 7.0 or Valkey 7.2.
    #[error("unsupported server")]
    UnsupportedServer,
    /// The server's certificate is not of an authority that is trusted, has expired, or was made for another host. Nothing
    /// was sent to it, no password either.
    #[error("untrusted server")]
    Untrusted,
    /// The server is part of a cluster, or is not, other than the topology says; or the Sentinels know no primary of that
    /// name.
    #[error("other topology")]
    OtherTopology,
    /// Another version of this crate, which keeps its records differently, holds the lock or waits for it. Nothing was
    /// changed.
    #[error("other version")]
    OtherVersion,
    /// Any other answer.
    #[error("unexpected answer")]
    Other,
}

impl Refusal {
    /// What the caller, or who runs the server, can do about it; nothing where the message says it.
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

/// How a hold ended that was not released, as [`lost`](crate::WriteGuard::lost) tells it.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// It could not be renewed before its lease was over by the local clock. Also what is told of an exclusive hold whose
    /// [`downgrade`](crate::WriteGuard::downgrade) was not answered: readers may be in, so it is not exclusive any more.
    #[error("its lease expired before it could be renewed")]
    Expired,
    /// The server does not know the hold any more: it expired there, or the server lost its data. Also what is told if this
    /// manager was granted a newer hold that conflicts with it, which only shows that it is over.
    #[error("the server does not know it any more")]
    Gone,
    /// It reached the longest time it was allowed to last.
    #[error("it reached its longest time")]
    MaxHold,
    /// An operator ended it with [`force_release`](crate::RwLockManager::force_release).
    #[error("it was released by force")]
    Forced,
    /// Its manager was closed.
    #[error("its manager was closed")]
    Closed,
    /// `fork` copied its guard into this process. The process that took the lock still holds it; this one never did.
    #[error("fork copied its guard from the process that holds it")]
    Forked,
}

/// ` for lock "name"`, or nothing for a manager that speaks of no lock.
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

/// What is known of a failure that has no error of its own below it.
#[derive(Debug)]
pub(crate) struct UnreachableSource(pub(crate) String);

impl std::fmt::Display for UnreachableSource {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&self.0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const REFUSALS: [Refusal; 10] = [
        Refusal::OutOfMemory,
        Refusal::Unauthenticated,
        Refusal::Forbidden,
        Refusal::ReadOnly,
        Refusal::ForeignKey,
        Refusal::UnsupportedServer,
        Refusal::Untrusted,
        Refusal::OtherTopology,
        Refusal::OtherVersion,
        Refusal::Other,
    ];
    const REASONS: [LossReason; 6] = [
        LossReason::Expired,
        LossReason::Gone,
        LossReason::MaxHold,
        LossReason::Forced,
        LossReason::Closed,
        LossReason::Forked,
    ];

    fn failed(kind: io::ErrorKind) -> Option<Source> {
        Some(Arc::new(AtNode {
            node: "10.0.0.1:6379".into(),
            cause: Some(Arc::new(io::Error::new(kind, "the cause"))),
        }))
    }

    /// One of each kind, of a lock and of a manager, with and without a node.
    fn all() -> Vec<Error> {
        let (lock, nobody): (Arc<str>, Arc<str>) = ("cfg".into(), "".into());
        let waited = Duration::from_micros(5_016_789);
        let lock = || Arc::clone(&lock);
        let mut all = vec![
            Error::WaitTimeout { lock: lock(), waited, confirmed: true },
            Error::WaitTimeout { lock: lock(), waited, confirmed: false },
            Error::UpgradeConflict { lock: lock() },
            Error::Closed { lock: lock() },
            Error::Forked { lock: lock(), process: 4711 },
            Error::Forked { lock: Arc::clone(&nobody), process: 4711 },
            Error::InvalidName { lock: lock(), reason: "it is empty".to_owned() },
            Error::InvalidOption { option: "lease", reason: "make it longer".to_owned() },
            Error::unreachable(lock(), waited, None),
            Error::unreachable(Arc::clone(&nobody), waited, None),
        ];
        for kind in [io::ErrorKind::ConnectionRefused, io::ErrorKind::UnexpectedEof] {
            all.push(Error::unreachable(lock(), waited, failed(kind)));
        }
        let no_tls: Source = Arc::new(NoTls(Arc::new(io::Error::new(io::ErrorKind::InvalidData, "the cause"))));
        let no_tls: Source = Arc::new(AtNode { node: "10.0.0.1:6379".into(), cause: Some(no_tls) });
        all.push(Error::unreachable(lock(), waited, Some(no_tls)));
        all.push(Error::unreachable(nobody, waited, failed(io::ErrorKind::TimedOut)));
        let descriptors: Source = Arc::new(AtNode {
            node: "10.0.0.1:6379".into(),
            cause: Some(Arc::new(io::Error::from_raw_os_error(if cfg!(windows) { 10024 } else { 24 }))),
        });
        all.push(Error::unreachable(lock(), waited, Some(descriptors)));
        all.extend(REASONS.map(|reason| Error::Lost { lock: lock(), reason }));
        let message = || "the server's words".to_owned();
        all.extend(REFUSALS.map(|refusal| Error::Refused {
            lock: lock(),
            refusal,
            node: Some("10.0.0.1:6379".into()),
            message: message(),
        }));
        let node: Option<Arc<str>> = Some("10.0.0.1:6379".into());
        all.push(Error::NotEnoughReplicas { lock: lock(), asked: 2, acknowledged: 1, node: node.clone() });
        all.push(Error::NotEnoughReplicas { lock: "".into(), asked: 1, acknowledged: 0, node });
        for restarted in [0, 2, 5] {
            let no_majority = NoMajority { masters: 5, needed: 3, restarted, causes: Vec::new() };
            all.push(Error::unreachable(lock(), waited, Some(Arc::new(no_majority))));
        }
        all.push(Error::TooManyWaiters { lock: lock(), waiting: 100_000, max_waiters: 100_000 });
        all.push(Error::Refused { lock: "".into(), refusal: Refusal::Forbidden, node: None, message: message() });
        all
    }

    #[test]
    fn messages_are_as_they_were_agreed() {
        let shown: Vec<String> = all().iter().map(ToString::to_string).collect();
        let agreed: Vec<&str> = include_str!("error/messages.txt").lines().collect();
        for (shown, agreed) in shown.iter().zip(&agreed) {
            assert_eq!(shown, agreed);
        }
        assert_eq!(shown.len(), agreed.len(), "the rest: {:#?}", shown.get(agreed.len()..));
    }

    #[test]
    fn causes_are_told_once_and_can_be_downcast() {
        for error in all() {
            let below: Vec<_> =
                std::iter::successors(std::error::Error::source(&error), |error| error.source()).collect();
            for cause in &below {
                assert!(!error.to_string().contains(&cause.to_string()), "{error}");
            }
            let is_known =
                |root: &&(dyn std::error::Error + 'static)| root.is::<io::Error>() || root.is::<NoMajority>();
            assert!(below.last().is_none_or(is_known) && below.len() <= 2, "{error}: {below:?}");
        }
    }

    #[test]
    fn messages_of_managers_name_no_lock() {
        let of_managers = all().into_iter().filter(
            |error| matches!(error, Error::Unreachable { lock, .. } | Error::Refused { lock, .. } if lock.is_empty()),
        );
        let mut count = 0;
        for error in of_managers {
            assert!(!error.to_string().contains("lock"), "{error}");
            count += 1;
        }
        assert_eq!(count, 3);
    }
}
