//! Errors of starting and asking servers.

use std::{io, path::PathBuf, time::Duration};

use crate::Server;

/// Reason why an environment could not do what its caller asked.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server is not installed.
    #[error(
        "no {server} at {}: run cluster-testenv/install, or name a binary in {}", path.display(), server.variable()
    )]
    #[non_exhaustive]
    NotInstalled {
        /// Requested server.
        server: Server,
        /// Path at which no binary was found.
        path: PathBuf,
    },

    /// The server process ended before it answered.
    #[error("{server} did not start: {log}")]
    #[non_exhaustive]
    NotStarted {
        /// Requested server.
        server: Server,
        /// End of its output.
        log: String,
    },

    /// The operating system refused an operation, or a server could not be reached in time.
    #[error("{doing}")]
    #[non_exhaustive]
    Io {
        /// Operation that failed.
        doing: String,
        /// Cause.
        source: io::Error,
    },

    /// A server answered with an error reply.
    #[error("server refused: {0}")]
    Refused(String),

    /// A server answered with something that is not RESP2, or that the command does not return.
    #[error("unexpected answer: {0}")]
    Unexpected(String),

    /// The environment cannot do this in its present state.
    #[error("not possible: {0}")]
    Unsupported(String),

    /// A condition did not come true.
    #[error("{what} did not come true within {bound:?}")]
    #[non_exhaustive]
    NotInTime {
        /// Condition that was awaited.
        what: String,
        /// Limit of the wait.
        bound: Duration,
    },
}

impl Error {
    /// Returns true if a server stayed silent for longer than the client waits, as a paused one does.
    #[must_use]
    pub fn is_timeout(&self) -> bool {
        matches!(self, Self::Io { source, .. }
            if matches!(source.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut))
    }

    /// Makes the `map_err` argument for an operation that `doing` names.
    pub(crate) fn io(doing: impl Into<String>) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Io { doing: doing.into(), source }
    }
}
