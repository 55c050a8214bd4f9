//! Bound of the acquisitions of one manager that are under way: each has a place in memory, and most of them wait.

use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::error::{Error, Result};
use crate::base::key::Key;

/// Counts the acquisitions that are under way, and refuses those beyond `max`.
#[derive(Debug)]
pub(super) struct WaiterLimit {
    max: usize,
    count: AtomicUsize,
}

/// Permit of one acquisition; dropping it frees its place.
#[derive(Debug)]
pub(super) struct WaiterPermit<'a>(&'a WaiterLimit);

impl WaiterLimit {
    pub(super) fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }

    /// Counts one more acquisition, if there is a place for it.
    pub(super) fn admit(&self, key: &Key) -> Result<WaiterPermit<'_>> {
        // Counted before it is compared: two that come at once cannot both take the last place.
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
