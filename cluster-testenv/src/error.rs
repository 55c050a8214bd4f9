//! What can go wrong while servers are started and asked.

use std::{io, path::PathBuf, time::Duration};

use crate::Server;

/// Why an environment could not do what it was told.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum Error {
    /// The server is not installed.
    #[error(
        "no {server} at {}: run cluster-testenv/install, or name a binary in {}", path.display(), server.variable()
    )]
    #[non_exhaustive]
    NotInstalled {
        /// The server that was asked for.
        server: Server,
        /// Where it was looked for.
        path: PathBuf,
    },

    /// The server process ended before it answered.
    #[error("{server} did not start: {log}")]
    #[non_exhaustive]
    NotStarted {
        /// The server that was asked for.
        server: Server,
        /// The end of what it printed.
        log: String,
    },

    /// The operating system refused something, or a server could not be reached in time.
    #[error("{doing}")]
    #[non_exhaustive]
    Io {
        /// What was being done.
        doing: String,
        /// Why it failed.
        source: io::Error,
    },

    /// A server answered with an error reply.
    #[error("server refused: {0}")]
    Refused(String),

    /// A server answered something that is not RESP2, or not the reply that the command has.
    #[error("unexpected answer: {0}")]
    Unexpected(String),

    /// This environment, in its present state, has no way to do it.
    #[error("not possible: {0}")]
    Unsupported(String),

    /// A condition did not come true.
    #[error("{what} did not come true within {bound:?}")]
    #[non_exhaustive]
    NotInTime {
        /// The condition.
        what: String,
        /// How long it was waited for.
        bound: Duration,
    },
}

impl Error {
    /// Whether a server stayed silent for longer than the client waits, as a paused one does.
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
