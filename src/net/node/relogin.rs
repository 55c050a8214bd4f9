//! Sends new credentials on an open connection, so that the server does not end the connection when the old ones are
//! over.
//!
//! `AUTH` is one more request on the connection, so earlier and later requests go on. If the server refuses it, the
//! connection keeps the rights that it had before. The holds do not depend on the outcome: if the server ends the
//! connection, the next dial logs in anew.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::task::AbortHandle;

use super::connection::Request;
use super::wire::{Wire, WireShared};
use crate::base::backoff::Backoff;
use crate::base::events;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::net::fault;
use crate::net::issuer::{Issued, Issuer};
use crate::net::secrets::Login;

/// Task that sends new credentials on one connection. The task ends when this value is dropped.
pub(super) struct Relogin(AbortHandle);

impl Drop for Relogin {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl Relogin {
    /// Starts the task for a connection that logged in with `login`. Returns `None` if no provider has returned these
    /// credentials, because they do not change then.
    pub(super) fn start(wire: &Wire, login: &Login, node: &Arc<str>, response_timeout: Duration) -> Option<Self> {
        let (issuer, number) = login.issuer.clone()?;
        let open =
            OpenLogin { wire: Arc::clone(&wire.shared), issuer, number, node: Arc::clone(node), response_timeout };
        Some(Self(process::spawn(open.follow()).abort_handle()))
    }
}

/// Open connection, with the number of the credentials that were sent last.
struct OpenLogin {
    wire: Arc<WireShared>,
    issuer: Arc<Issuer>,
    number: u64,
    node: Arc<str>,
    response_timeout: Duration,
}

impl OpenLogin {
    async fn follow(mut self) {
        // Credentials may have changed since the login, so the number is compared instead of waiting for a change.
        let (mut was_refused, mut backoff) = (false, Backoff::new());
        while let Some(issued) = self.issuer.newer_than(self.number).await {
            self.number = issued.number;
            match self.log_in(&issued).await {
                Sent::Accepted => {
                    was_refused = false;
                    backoff.reset();
                }
                Sent::Unanswered => {}
                // A provider may return other credentials at each call, and the server none of them.
                Sent::Refused(message) if was_refused => {
                    self.tell_refusal(&message);
                    backoff.wait().await;
                }
                Sent::Refused(message) => {
                    // The provider may have changed its mind since. Newer credentials are sent in the next round.
                    if self.issuer.after_refusal(self.number, self.response_timeout).await.is_none() {
                        self.tell_refusal(&message);
                    }
                    was_refused = true;
                }
                Sent::Closed => return,
            }
        }
    }

    async fn log_in(&self, issued: &Issued) -> Sent {
        let credentials = &issued.credentials;
        let user = Some(credentials.user()).filter(|user| !user.is_empty());
        let mut auth = redis::cmd("AUTH");
        auth.arg(user).arg(credentials.secret());
        let asking = self.wire.ask(|bytes| Request::Command(&auth).encode(bytes));
        match tokio::time::timeout(self.response_timeout, asking).await {
            Ok(Ok(answer)) => match fault::reply(answer) {
                Ok(_) => {
                    self.issuer.is_refusal_told.store(false, Ordering::Relaxed);
                    Sent::Accepted
                }
                Err(fault) => Sent::Refused(fault.into_source().map_or_else(String::new, |source| source.to_string())),
            },
            Ok(Err(_)) => Sent::Closed,
            // The requests of the connection decide whether it still works.
            Err(_) => Sent::Unanswered,
        }
    }

    fn tell_refusal(&self, message: &str) {
        if !self.issuer.is_refusal_told.swap(true, Ordering::Relaxed) {
            catch_panic(|| events::credentials_refused(&self.node, message));
        }
    }
}

/// Outcome of `AUTH` on an open connection.
enum Sent {
    Accepted,
    Refused(String),
    Unanswered,
    Closed,
}
