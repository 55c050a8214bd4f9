//! Waits within this process, for a search for deadlocks. Servers do not know them.

use std::sync::Arc;

use crate::base::lease::Moment;
use crate::base::mode::Mode;
use crate::base::reentry::OwnerId;

/// Waits for one lock in this process, and the holds that guards of this process use.
#[derive(Debug)]
pub(crate) struct LocalWaits<H> {
    pub(crate) waits: Vec<LocalWait>,
    /// Holds, and the owners of their guards.
    pub(crate) holds: Vec<(Arc<H>, Vec<OwnerId>)>,
}

/// Acquisition that waits here, or that asks the server for its side.
#[derive(Clone, Copy, Debug)]
pub(crate) struct LocalWait {
    /// Number within the lock, higher for later waiters.
    pub(crate) number: u64,
    pub(crate) mode: Mode,
    pub(crate) owner: OwnerId,
    pub(crate) since: Moment,
}
