//! What can go wrong, told apart by what a caller would do next.

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
    #[error("waited {waited:?} for lock {lock:?}, which others hold")]
    #[non_exhaustive]
    WaitTimeout {
        /// The lock's name.
        lock: Arc<str>,
        /// How long the caller waited.
        waited: Duration,
    },
    /// The hold ended before it was released: what it protected may have been touched by others.
    #[error("the hold of lock {lock:?} was lost: {reason}")]
    #[non_exhaustive]
    Lost {
        /// The lock's name.
        lock: Arc<str>,
        /// How it ended.
        reason: LossReason,
    },
    /// A write was asked for by an owner that reads: it would wait for itself.
    #[error("the owner reads lock {lock:?} already and cannot write it at the same time")]
    #[non_exhaustive]
    UpgradeConflict {
        /// The lock's name.
        lock: Arc<str>,
    },
    /// No server answered in time. Whether the request was carried out is unknown; if it was, it ends with its lease.
    #[error("no server answered for lock {lock:?} within {waited:?}")]
    #[non_exhaustive]
    Unreachable {
        /// The lock's name; empty when it was the connection of a manager that failed.
        lock: Arc<str>,
        /// How long it was tried.
        waited: Duration,
        /// The last failure, if there was one besides silence.
        source: Option<Source>,
    },
    /// The server answered and said no; repeating the request would not help.
    #[error("the server refused the request for lock {lock:?} ({refusal}): {message}")]
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
    #[error("the manager of lock {lock:?} is closed")]
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
    fn messages_name_the_lock() {
        let lost = Error::Lost { lock: "cfg".into(), reason: LossReason::Forced };
        assert_eq!(lost.to_string(), "the hold of lock \"cfg\" was lost: it was released by force");
    }
}
