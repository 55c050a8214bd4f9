//! Who hears what a connection says without being asked.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OnLoss;
use crate::transport::pushed::{Hear, Pushed};

/// Kept by what drives the connection: dropped, that has ended, be it with its runtime.
pub(super) struct Ears {
    /// Set when the connection ends, before anybody else learns of it.
    is_closed: Arc<AtomicBool>,
    on_loss: Option<OnLoss>,
    hear: Option<Hear>,
}

impl Ears {
    pub(super) fn new(is_closed: Arc<AtomicBool>, on_loss: Option<OnLoss>) -> Self {
        Self { is_closed, on_loss, hear: None }
    }

    /// For a connection that subscribes.
    pub(super) fn hearing(mut self, hear: Hear) -> Self {
        self.hear = Some(hear);
        self
    }

    /// Whether it is for a connection that subscribes.
    pub(super) fn hears(&self) -> bool {
        self.hear.is_some()
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// The other side has ended it.
    pub(super) fn lose(&self) {
        if let Some(on_loss) = &self.on_loss {
            on_loss();
        }
    }

    pub(super) fn hear(&self, pushed: Pushed<'_>) {
        if let Some(hear) = &self.hear {
            hear(pushed);
        }
    }
}

impl Drop for Ears {
    fn drop(&mut self) {
        self.close();
    }
}
