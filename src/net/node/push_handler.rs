//! Handlers that a connection calls without a request: for pushes of the server, and for the end of the connection.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use super::OnLoss;
use crate::net::pushed::{OnPush, Pushed};

/// Handlers of one connection. The task that reads the connection owns this value. So if this value is dropped, the
/// task has ended, perhaps together with its runtime.
pub(super) struct PushHandler {
    /// Flag that is set when the connection ends, before any other task can notice the end.
    is_closed: Arc<AtomicBool>,
    on_loss: Option<OnLoss>,
    on_push: Option<OnPush>,
}

impl PushHandler {
    /// Returns the handlers of one connection. Only a connection that carries subscriptions needs a handler for pushes.
    pub(super) fn new(is_closed: Arc<AtomicBool>, on_loss: Option<OnLoss>, on_push: Option<OnPush>) -> Self {
        Self { is_closed, on_loss, on_push }
    }

    /// Returns true if the connection carries subscriptions.
    pub(super) fn is_subscribing(&self) -> bool {
        self.on_push.is_some()
    }

    pub(super) fn close(&self) {
        self.is_closed.store(true, Ordering::Release);
    }

    /// Runs the handler for a connection that failed or that the server closed.
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
