//! Deadline of a hold as the server has it, by the server's clock.

use super::Grant;
use crate::base::lease::ServerTime;

/// Deadline that the server named, and its time then. Both are zero where an answer brings no server time.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Promise {
    said: ServerTime,
    until: ServerTime,
}

impl Promise {
    pub(super) fn of(grant: &Grant) -> Self {
        if grant.server == ServerTime::default() {
            return Self::default();
        }
        // Scripts count in whole milliseconds, so two answers about one deadline name the same time.
        Self { said: grant.server, until: grant.server.in_whole_millis().after(grant.remaining) }
    }

    /// Returns true if the server cannot have known this promise when it gave the other.
    ///
    /// The server keeps a deadline as a time of its clock, a replica has the same, and no script makes it earlier. So a
    /// later answer with an earlier deadline comes from data that lack the grant, however long the answer was on its
    /// way.
    pub(super) fn is_unknown_to(self, other: Self) -> bool {
        other.said >= self.said && other.until < self.until
    }

    /// Combines two promises that both hold.
    pub(super) fn and(self, other: Self) -> Self {
        Self { said: self.said.max(other.said), until: self.until.max(other.until) }
    }
}
