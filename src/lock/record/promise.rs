//! Deadline of a hold by the server's clock.

use super::Grant;
use crate::base::lease::ServerTime;

/// Deadline that an answer of the server named, and the server time of the answer. Both are zero if the answer has no
/// server time.
#[derive(Clone, Copy, Hash, Debug, Default)]
pub(super) struct Promise {
    said: ServerTime,
    until: ServerTime,
}

impl Promise {
    pub(super) fn of(grant: &Grant) -> Self {
        if grant.server == ServerTime::default() {
            return Self::default();
        }
        // Scripts compute the remaining time in whole milliseconds of the server's clock. The same rounding here gives
        // the same deadline for two answers about one deadline.
        Self { said: grant.server, until: grant.server.in_whole_millis().after(grant.remaining) }
    }

    /// Returns the newest server time that an answer had, or zero.
    pub(super) fn server_time(self) -> ServerTime {
        self.said
    }

    /// Returns true if the server answered with `other` without knowing this promise.
    ///
    /// The server stores a deadline as a time of its clock. A replica has the same deadline, and no script makes it
    /// earlier. So a later answer with an earlier deadline comes from a server that has lost this grant, however long
    /// the answer took.
    pub(super) fn is_unknown_to(self, other: Self) -> bool {
        other.said >= self.said && other.until < self.until
    }

    /// Combines two promises that are both valid.
    pub(super) fn and(self, other: Self) -> Self {
        Self { said: self.said.max(other.said), until: self.until.max(other.until) }
    }
}
