//! Limit of the number of acquisitions of one manager that are in progress (`max_waiters`). The limit exists because
//! each acquisition needs memory.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::error::{Error, Result};
use crate::base::key::Key;

/// Counter of the acquisitions that are in progress. It refuses a further acquisition when there are `max` of them.
#[derive(Debug)]
pub(super) struct WaiterLimit {
    max: usize,
    count: AtomicUsize,
}

/// Permit of one acquisition. Its drop lets another acquisition start.
#[derive(Debug)]
pub(super) struct WaiterPermit<'a>(&'a WaiterLimit);

impl WaiterLimit {
    pub(super) fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    /// Counts one more acquisition, unless the limit is reached.
    pub(super) fn admit(&self, key: &Key) -> Result<WaiterPermit<'_>> {
        // The counter is increased before the comparison, so that two concurrent acquisitions cannot both get the last
        // permit.
        let before = self.count.fetch_add(1, Ordering::Relaxed);
        let permit = WaiterPermit(self);
        if before < self.max {
            return Ok(permit);
        }
        Err(Error::TooManyWaiters { lock: key.shared_name(), waiting: before, max_waiters: self.max })
    }
}

impl Drop for WaiterPermit<'_> {
    fn drop(&mut self) {
        self.0.count.fetch_sub(1, Ordering::Relaxed);
    }
}
