//! Handlers for unsolicited events of a connection: its pushes, and its end.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OnLoss;
use crate::net::pushed::{OnPush, Pushed};

/// Handlers of one connection. The driver of the connection owns them. If they are dropped, the driver has ended,
/// perhaps with its runtime.
pub(super) struct PushHandler {
    /// Set when the connection ends, before any task learns of it.
    is_closed: Arc<AtomicBool>,
    on_loss: Option<OnLoss>,
    on_push: Option<OnPush>,
}

impl PushHandler {
    pub(super) fn new(is_closed: Arc<AtomicBool>, on_loss: Option<OnLoss>) -> Self {
        Self { is_closed, on_loss, on_push: None }
    }

    /// Adds the handler for pushes, for a connection that subscribes.
    pub(super) fn with_on_push(mut self, on_push: OnPush) -> Self {
        self.on_push = Some(on_push);
        self
    }

    /// Returns true if the connection subscribes.
    pub(super) fn is_subscribing(&self) -> bool {
        self.on_push.is_some()
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Reports that the connection failed, or that the server closed it.
    pub(super) fn lose(&self) {
        if let Some(on_loss) = &self.on_loss {
            on_loss();
        }
    }

    pub(super) fn on_push(&self, pushed: Pushed<'_>) {
        if let Some(on_push) = &self.on_push {
            on_push(pushed);
        }
    }
}

impl Drop for PushHandler {
    fn drop(&mut self) {
        self.close();
    }
}
