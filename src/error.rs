//! What can go wrong, told apart by what a caller would do next.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// The result of this crate's operations.
pub type Result<T, E = Error> = std::result::Result<T, E>;

/// The error below an [`Error`], as the client library or the operating system reported it.
pub type Source = Arc<dyn std::error::Error + Send + Sync + 'static>;

/// Why an operation on a lock failed. Contention is not an error: an acquisition waits, and `try_*` answer `None`.
///
/// Three outcomes are never mixed up: *denied* (`Ok(None)` or [`WaitTimeout`](Error::WaitTimeout)), *lost*
/// ([`Lost`](Error::Lost)) and *unknown* ([`Unreachable`](Error::Unreachable)).
#[derive(Clone, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// Others held the lock for as long as the caller was willing to wait. Nothing is left on the server.
    #[error("waited {} for lock {lock:?}, which others hold: try again later, or see who with `inspect`", Span(*.waited))]
    #[non_exhaustive]
    WaitTimeout {
        /// The lock's name.
        lock: Arc<str>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The hold ended before it was released: what it protected may have been touched by others.
    #[error(
        "the hold of lock {lock:?} was lost: {reason}; others may have been inside, so check what was done or do it again"
    )]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        lock: Arc<str>,
        /// How it ended.
        reason: LossReason,
    },
    /// A write was asked for by an owner that reads: it would wait for itself.
    #[error("the owner reads lock {lock:?} already and cannot write it at the same time: release the read first")]
    #[non_exhaustive]
    UpgradeConflict {
        /// The lock's name.
        lock: Arc<str>,
    },
    /// No server answered in time. Whether the request was carried out is unknown; if it was, it ends with its lease.
    #[error(
        "no server answered{} within {}: see that it runs and that the address is right, then try again",
        For(.lock), Span(*.waited)
    )]
    #[non_exhaustive]
    Unreachable {
        /// The lock's name; empty when it was a manager that could not connect or close.
        lock: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// The last failure, if there was one besides silence.
        source: Option<Source>,
    },
    /// The server answered and said no; repeating the request would not help.
    #[error("the server refused the request{} ({refusal}): {message}; {}", For(.lock), .refusal.advice())]
    #[non_exhaustive]
    Refused {
        /// The lock's name; empty when it was the connection of a manager that was refused.
        lock: Arc<str>,
        /// What kind of no.
        refusal: Refusal,
        /// The server's words.
        message: String,
    },
    /// The name is empty or too long. Nothing was sent.
    #[error("lock name {lock:?} is not valid: {reason}")]
    #[non_exhaustive]
    InvalidName {
        /// The beginning of the name.
        lock: Arc<str>,
        /// What is wrong with it.
        reason: String,
    },
    /// An option has a value that cannot work. Nothing was sent.
    #[error("option {option} is not valid: {reason}")]
    #[non_exhaustive]
    InvalidOption {
        /// The option, named like its setter.
        option: &'static str,
        /// What is wrong with it.
        reason: String,
    },
    /// The manager was closed.
    #[error("the manager of lock {lock:?} is closed: build another")]
    #[non_exhaustive]
    Closed {
        /// The lock's name.
        lock: Arc<str>,
    },
}

/// What kind of no a server gave.
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
    /// The server cannot take writes now (`READONLY`, `MISCONF`, `NOREPLICAS`).
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
    /// Any other answer.
    #[error("unexpected answer")]
    Other,
}

impl Refusal {
    /// What the caller, or who runs the server, can do about it.
    fn advice(self) -> &'static str {
        match self {
            Self::OutOfMemory => "free memory or raise `maxmemory`",
            Self::Unauthenticated => "check user and password in the URL, and the client certificate",
            Self::Forbidden => "give the user the rights that the README lists",
            Self::ReadOnly => "name the primary instead of a replica, or look into why the server takes no writes",
            Self::ForeignKey => "remove what is at the key, or use another `key_prefix`",
            Self::UnsupportedServer => "use a newer server",
            Self::Untrusted => "check the host in the URL, and the authority given to `Tls`",
            Self::OtherTopology => "use `Topology::cluster` for clusters and `Topology::node` for others",
            Self::Other => "look into the server's log",
        }
    }
}

/// How a hold ended that was not released.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[non_exhaustive]
pub enum LossReason {
    /// It could not be renewed before its lease was over by the local clock.
    #[error("its lease expired before it could be renewed")]
    Expired,
    /// The server does not know the hold any more: it expired there, or the server lost its data.
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

/// A duration for people: whole milliseconds, from a second on hundredths of one.
pub(crate) struct Span(pub(crate) Duration);

impl fmt::Display for Span {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            span if span < Duration::from_millis(1) => write!(f, "{span:?}"),
            span if span < Duration::from_secs(1) => {
                write!(f, "{:?}", Duration::new(0, span.subsec_millis() * 1_000_000))
            }
            span => write!(f, "{:?}", Duration::new(span.as_secs(), span.subsec_millis() / 10 * 10_000_000)),
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

    #[test]
    fn messages_name_the_lock_and_what_to_do() {
        let lock: Arc<str> = "cfg".into();
        let waited = Duration::from_micros(5_016_789);
        let source = None;
        let message = "NOPERM no".to_owned();
        let messages = [
            (
                Error::Lost { lock: Arc::clone(&lock), reason: LossReason::Forced },
                "the hold of lock \"cfg\" was lost: it was released by force; others may have been inside, so check what was \
                 done or do it again",
            ),
            (
                Error::WaitTimeout { lock: Arc::clone(&lock), waited },
                "waited 5.01s for lock \"cfg\", which others hold: try again later, or see who with `inspect`",
            ),
            (
                Error::Unreachable { lock: Arc::clone(&lock), waited, source },
                "no server answered for lock \"cfg\" within 5.01s: see that it runs and that the address is right, then \
                 try again",
            ),
            (
                Error::Refused { lock, refusal: Refusal::Forbidden, message },
                "the server refused the request for lock \"cfg\" (no permission): NOPERM no; give the user the rights that \
                 the README lists",
            ),
        ];
        for (error, expected) in messages {
            assert_eq!(error.to_string(), expected);
        }
    }

    #[test]
    fn messages_of_managers_name_no_lock() {
        let waited = Duration::from_millis(600);
        let message = "-".to_owned();
        let errors = [
            Error::Unreachable { lock: "".into(), waited, source: None },
            Error::Refused { lock: "".into(), refusal: Refusal::Unauthenticated, message },
        ];
        for error in errors {
            assert!(!error.to_string().contains("lock"), "{error}");
        }
    }

    #[test]
    fn spans_are_rounded_for_people() {
        let spans = [
            (Duration::ZERO, "0ns"),
            (Duration::from_micros(70), "70µs"),
            (Duration::from_nanos(532_456_789), "532ms"),
            (Duration::from_millis(5_019), "5.01s"),
            (Duration::from_secs(3600), "3600s"),
        ];
        for (span, expected) in spans {
            assert_eq!(Span(span).to_string(), expected);
        }
    }
}
