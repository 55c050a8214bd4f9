//! Releases that are to be sent for acquisitions that are over.

use std::sync::Arc;

use crate::base::attempt::AcquisitionId;
use crate::base::key::Key;
use crate::base::lease::{self, Moment, ServerTime};
use crate::lock::hold::{Hold, OpenConversion, ServerEnd};

/// Acquisition that is to end on the server.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    /// Moment from which the server has no hold or waiter of the acquisition, even without the release.
    pub(crate) server_until: Moment,
    pub(crate) arrives_until: Option<Moment>,
    /// Time of the server's clock until which a write hold rests after the release.
    pub(crate) rest_until: Option<ServerTime>,
}

impl Release {
    pub(crate) fn of(hold: &Hold, now: Moment) -> Self {
        Self::at(hold, hold.until(now))
    }

    fn at(hold: &Hold, end: ServerEnd) -> Self {
        let ServerEnd { server_until, arrives_until, rest_until } = end;
        Self { key: Arc::clone(hold.key()), id: hold.id().clone(), server_until, arrives_until, rest_until }
    }

    /// Returns the release of a hold that is over. If a conversion of the hold is open, it also returns the release of
    /// the new hold.
    pub(crate) fn all_of(hold: &Hold, now: Moment) -> (Self, Option<Self>) {
        let (end, open) = hold.gives_back(now);
        (Self::at(hold, end), open.map(|open| Self::of_conversion(hold, open, now)))
    }

    /// Returns the release of the hold that an open conversion may have created.
    pub(crate) fn of_conversion(hold: &Hold, open: OpenConversion, now: Moment) -> Self {
        let OpenConversion { id, lease, arrives_until } = open;
        let covers = lease::surely_over(lease, hold.rules().max_clock_skew);
        let server_until = arrives_until.max(now).after(covers);
        Self { key: Arc::clone(hold.key()), id, server_until, arrives_until: Some(arrives_until), rest_until: None }
    }

    /// Returns the latest moment at which a copy of the acquisition may reach the server, if that moment is after
    /// `sent`.
    pub(crate) fn arrives_after(&self, sent: Moment) -> Option<Moment> {
        self.arrives_until.filter(|until| *until > sent)
    }
}
