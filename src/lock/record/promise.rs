//! Deadline of a hold as the server has it, by the server's clock.

use super::Grant;
use crate::base::lease::ServerTime;

/// The deadline that the server named, and its time then. Both are zero where an answer brings no server's time.
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
        // Scripts count in whole milliseconds, so that two answers about one deadline name the same.
        Self { said: grant.server, until: grant.server.in_whole_millis().after(grant.remaining) }
    }

    /// Whether the server cannot have known this one when it said the other.
    ///
    /// The server keeps a deadline as a time of its clock, a replica has the same, and no script brings it forward. So a later word
    /// with an earlier deadline comes from data that lack what was granted, however long the answer was on its way.
    pub(super) fn is_unknown_to(self, other: Self) -> bool {
        other.said >= self.said && other.until < self.until
    }

    /// Both hold.
    pub(super) fn and(self, other: Self) -> Self {
        Self { said: self.said.max(other.said), until: self.until.max(other.until) }
    }
}
