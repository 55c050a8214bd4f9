//! Adoption of a ticket, and the error of a guard that could not be detached.

use std::fmt;
use std::pin::pin;
use std::sync::Arc;

use crate::base::error::{Error, Result};
use crate::base::options::{Overrides, Terms};
use crate::base::reentry::Reentry;
use crate::base::ticket::Ticket;
use crate::engine::{Engine, tickets};
use crate::face::guard::Guard;
use crate::store::BoxFuture;

/// Returns the future that takes over the hold of a ticket, for an owner if `reentry` is present.
pub(crate) fn adopt<G: Guard>(
    engine: &Arc<Engine>,
    ticket: Ticket,
    reentry: Option<Reentry>,
) -> BoxFuture<'static, Result<G>> {
    let engine = Arc::clone(engine);
    Box::pin(async move {
        let terms = Terms::new(engine.options(), Overrides { reentry, ..Overrides::default() })?;
        let adopted = pin!(tickets::adopt(&engine, &ticket, G::MODE, terms));
        Ok(G::new(engine.process.here(ticket.name(), adopted).await?))
    })
}

/// Error of [`WriteGuard::detach`](crate::WriteGuard::detach) and [`ReadGuard::detach`](crate::ReadGuard::detach), which contains the guard.
#[derive(Debug)]
pub struct DetachError<G> {
    guard: G,
    error: Error,
}

impl<G> DetachError<G> {
    pub(crate) fn new(guard: G, error: Error) -> Self {
        Self { guard, error }
    }

    /// Replaces the guard by one that contains it.
    pub(crate) fn map<T>(self, outer: impl FnOnce(G) -> T) -> DetachError<T> {
        DetachError { guard: outer(self.guard), error: self.error }
    }

    /// Returns the reason for which the guard has no ticket; see [`WriteGuard::detach`](crate::WriteGuard::detach).
    #[must_use]
    pub fn error(&self) -> &Error {
        &self.error
    }

    /// Returns the guard, so that the caller can continue to use it, as with
    /// [`TryUpgradeError`](crate::ReadGuard::try_upgrade). Dropping the error instead drops the guard, which releases
    /// its hold.
    pub fn into_guard(self) -> G {
        self.guard
    }
}

impl<G> fmt::Display for DetachError<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.error.fmt(f)
    }
}

impl<G: fmt::Debug> std::error::Error for DetachError<G> {
    /// Returns the source of the inner error, because the `Display` output has the text of the inner error already.
    fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
        std::error::Error::source(&self.error)
    }
}

impl<G> From<DetachError<G>> for Error {
    /// Drops the guard, which releases its hold.
    fn from(error: DetachError<G>) -> Self {
        error.error
    }
}
