//! Limit of the number of acquisitions of one manager that are in progress (`max_waiters`). The limit exists because
//! each acquisition needs memory.

use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::base::error::{Error, Result};
use crate::base::key::Key;
use crate::engine::Engine;

/// Counter of the acquisitions that are in progress. There is no further acquisition when there are `max` of them.
#[derive(Debug)]
pub(super) struct WaiterLimit {
    max: usize,
    count: AtomicUsize,
}

/// Handle of the engine for one acquisition that is in progress. Its drop lets another acquisition start.
pub(super) struct WaiterPermit(Arc<Engine>);

impl WaiterLimit {
    pub(super) fn new(max: usize) -> Self {
        Self { max, count: AtomicUsize::new(0) }
    }
}

impl WaiterPermit {
    /// Counts one more acquisition, unless the limit is reached.
    pub(super) fn admit(engine: &Arc<Engine>, key: &Key) -> Result<Self> {
        let WaiterLimit { max, count } = &engine.waiters;
        // The counter is increased before the comparison, so that two concurrent acquisitions cannot both get the last
        // permit.
        let before = count.fetch_add(1, Ordering::Relaxed);
        let permit = Self(Arc::clone(engine));
        if before < *max {
            return Ok(permit);
        }
        Err(Error::TooManyWaiters { lock: key.shared_name(), waiting: before, max_waiters: *max })
    }
}

impl Deref for WaiterPermit {
    type Target = Arc<Engine>;

    fn deref(&self) -> &Arc<Engine> {
        &self.0
    }
}

impl Drop for WaiterPermit {
    fn drop(&mut self) {
        self.0.waiters.count.fetch_sub(1, Ordering::Relaxed);
    }
}
