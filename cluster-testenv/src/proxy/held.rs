//! Handles for requests and replies that the proxy holds.

use std::{sync::Arc, time::Duration};

use super::{
    engine::{Remote, State},
    rules::{Progress, Rule, RuleId, Stage},
};
use crate::Result;

/// Link from a handle to its rule.
#[derive(Debug)]
struct Grip {
    remote: Remote,
    id: RuleId,
    progress: Arc<Progress>,
}

impl Grip {
    fn new(remote: &Remote, rule: Rule) -> Self {
        Self { remote: remote.clone(), id: rule.id, progress: rule.progress }
    }

    /// Lets the proxy do something about the rule. A proxy that was dropped holds nothing, so this has no effect then.
    fn order(&self, order: fn(&mut State, RuleId)) {
        let id = self.id;
        self.remote.ask(move |state| order(state, id));
    }
}

/// Reply to one request, which [`Proxy::hold_reply`](crate::Proxy::hold_reply) holds back. The drop of this handle
/// releases the reply.
#[derive(Debug)]
#[must_use = "dropping it releases the reply"]
pub struct HeldReply {
    grip: Grip,
    /// True once the test has decided about the reply, so that dropping the handle does not release it.
    is_settled: bool,
}

impl HeldReply {
    pub(super) fn new(remote: &Remote, rule: Rule) -> Self {
        Self { grip: Grip::new(remote, rule), is_settled: false }
    }

    /// Waits until the server's reply is at the proxy. The server has applied the request then, and the client does not
    /// know it.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when the reply has not arrived after `timeout`.
    pub fn wait_applied(&self, timeout: Duration) -> Result<()> {
        self.grip.progress.wait_for(Stage::Applied, "the reply that is to be held", timeout)
    }

    /// Forwards the reply now, or as soon as it comes.
    pub fn release(self) {}

    /// Drops the reply as soon as it comes, and forwards all others. The client gets each later reply one request too
    /// early. No network does that, but clients that miscount replies do.
    pub fn drop_reply(mut self) {
        self.is_settled = true;
        self.grip.order(State::drop_reply);
    }

    /// Drops the reply with all bytes after it, and resets the connection on both sides. Does nothing before the
    /// request has come.
    pub fn cut(self) {
        self.grip.order(State::cut_one);
    }
}

impl Drop for HeldReply {
    fn drop(&mut self) {
        if !self.is_settled {
            self.grip.order(State::release);
        }
    }
}

/// Request that [`Proxy::hold_request`](crate::Proxy::hold_request) holds back from the server. The drop of this handle
/// releases the request.
#[derive(Debug)]
#[must_use = "dropping it lets the request go"]
pub struct HeldRequest(Grip);

impl HeldRequest {
    pub(super) fn new(remote: &Remote, rule: Rule) -> Self {
        Self(Grip::new(remote, rule))
    }

    /// Waits until the request is at the proxy.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when the request has not arrived after `timeout`.
    pub fn wait_held(&self, timeout: Duration) -> Result<()> {
        self.0.progress.wait_for(Stage::Seen, "the request that is to be held", timeout)
    }

    /// Sends the request to the server, even when the client has closed its connection meanwhile.
    pub fn release(self) {}

    /// Releases the request, and waits until the server has applied it.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when the server has not answered after `timeout`, or the request
    /// had not come to the proxy.
    pub fn release_and_wait(self, timeout: Duration) -> Result<()> {
        self.0.order(State::release);
        self.0.progress.wait_for(Stage::Applied, "the request that was held", timeout)
    }

    /// Drops the request with all bytes after it, and resets the connection on both sides. The server never receives
    /// the request. Does nothing before the request has come.
    pub fn cut(self) {
        self.0.order(State::cut_one);
    }
}

impl Drop for HeldRequest {
    fn drop(&mut self) {
        self.0.order(State::release);
    }
}

/// Fault of one request. It happens even if this handle is dropped.
#[derive(Debug)]
pub struct Fault(Grip);

impl Fault {
    pub(super) fn new(remote: &Remote, rule: Rule) -> Self {
        Self(Grip::new(remote, rule))
    }

    /// Waits until the server has applied the request and the reply was dropped. A request to be duplicated must have
    /// been applied twice.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime) when the fault has not happened after `timeout`.
    pub fn wait_applied(&self, timeout: Duration) -> Result<()> {
        self.0.progress.wait_for(Stage::Applied, "the request that a fault waits for", timeout)
    }

    /// Cancels the fault, unless it has happened.
    pub fn cancel(self) {
        self.0.order(State::release);
    }
}
