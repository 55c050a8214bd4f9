//! What a server is to be told of an acquisition that is over.

use std::sync::Arc;

use crate::attempt::AcquisitionId;
use crate::key::Key;
use crate::lease::Moment;
use crate::lock::hold::Hold;

/// One acquisition that is to end on the server.
#[derive(Clone, Debug)]
pub(crate) struct Release {
    pub(crate) key: Arc<Key>,
    pub(crate) id: AcquisitionId,
    /// The server has forgotten it by then, whatever arrived.
    pub(crate) server_until: Moment,
    pub(crate) stray_until: Option<Moment>,
}

impl Release {
    pub(crate) fn of(hold: &Hold, now: Moment) -> Self {
        let (server_until, stray_until) = hold.until(now);
        Self { key: Arc::clone(hold.key()), id: hold.id().clone(), server_until, stray_until }
    }

    /// Until when a copy of the acquisition may arrive behind what was sent then: it may have before that was answered.
    pub(crate) fn stray_after(&self, sent: Moment) -> Option<Moment> {
        self.stray_until.filter(|until| *until > sent)
    }
}
