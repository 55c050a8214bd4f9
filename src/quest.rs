//! What an acquisition has under way on the server, apart from the future that drives it.
//!
//! A process has at most one waiter per lock and side on the server, however many tasks wait. When the task that drives it
//! goes away, the next one takes it over and keeps the place in the server's queue.

use crate::departure::Pending;
use crate::lease::{Moment, ServerTime};
use crate::scheme::{Acquisition, Subscription};

/// One acquisition on its way.
#[derive(Debug)]
pub(crate) struct Quest {
    pub(crate) id: Acquisition,
    pub(crate) trail: Trail,
    pub(crate) notices: Notices,
    /// The server's time in the last answer: what it granted before that, the answer would have told.
    pub(crate) answered_at: ServerTime,
    /// As long as something of this may be on the server or on its way there. Given up after what is taken back has been
    /// counted.
    pub(crate) pending: Option<Pending>,
}

/// What copies of an acquisition may have left, or may yet leave, on the server.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Trail {
    /// A copy is being sent or waited for.
    pub(crate) in_flight: bool,
    /// An unanswered copy may arrive until then.
    pub(crate) stray_until: Option<Moment>,
    /// An answered one has left a hold or a waiter, or may have.
    pub(crate) recorded: bool,
}

/// What the server tells without being asked.
#[derive(Debug)]
pub(crate) enum Notices {
    /// Nobody has waited yet.
    Unwanted,
    /// The scheme has none.
    Never,
    Subscribed(Subscription),
}

impl Quest {
    pub(crate) fn new(id: Acquisition, notices: Notices) -> Self {
        Self { id, trail: Trail::default(), notices, answered_at: ServerTime::default(), pending: None }
    }

    /// The server has nothing of it, and nothing of it is on its way.
    pub(crate) fn is_traceless(&self) -> bool {
        let Trail { in_flight, stray_until, recorded } = self.trail;
        !in_flight && stray_until.is_none() && !recorded
    }
}
