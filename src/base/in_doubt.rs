//! In-doubt requests: requests that have no answer, so that the server may still execute them.
//!
//! A request may be sent several times. Each copy has a time limit, after which no server executes it. Until then, a
//! server may execute a copy even if the sender of the copy is gone. A copy that arrives after the release would
//! acquire the lock again under the same id. So a release is final only when no copy can arrive any more.

use std::time::Duration;

use crate::base::attempt::{Attempt, Failure};
use crate::base::lease::Moment;

/// Copies of the requests with one acquisition id. Several tasks may have sent them.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug, Default)]
pub(crate) struct InDoubt {
    /// Number of copies for whose answers their senders still wait.
    in_flight: u32,
    /// Latest moment at which an abandoned copy may arrive. The sender of an abandoned copy no longer waits for the
    /// answer.
    arrives_until: Option<Moment>,
    /// Longest lease that a copy has requested, whether it was answered or not.
    longest_lease: Duration,
}

impl InDoubt {
    /// Creates the value for an earlier conversion that is still in doubt. Its copies requested this lease, and may
    /// arrive until `arrives_until`.
    pub(crate) fn of_earlier(arrives_until: Moment, lease: Duration) -> Self {
        Self { in_flight: 0, arrives_until: Some(arrives_until), longest_lease: lease }
    }

    /// Counts a copy that is sent now.
    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// Notes the lease that a copy requests.
    pub(crate) fn ask_for(&mut self, lease: Duration) {
        self.longest_lease = self.longest_lease.max(lease);
    }

    /// Returns the longest lease that the server may have granted to a copy.
    pub(crate) fn longest_lease(&self) -> Duration {
        self.longest_lease
    }

    /// Notes the outcome of one copy.
    pub(crate) fn resolve<T>(&mut self, attempt: &Attempt<T>) {
        match attempt {
            Ok(answer) => self.on_answer(answer.sent),
            Err(Failure::Unknown { arrives_until, .. }) => self.abandon(*arrives_until),
            // The server executes such a copy no further, even if it refused the copy half way.
            Err(
                Failure::NotDone { .. }
                | Failure::Refused { .. }
                | Failure::Broken { .. }
                | Failure::Unreplicated { .. },
            ) => self.in_flight -= 1,
        }
    }

    /// Notes that the server did not execute one copy, because the copy came too late. This says nothing of earlier
    /// copies: a server that answers so has not looked for what they left.
    pub(crate) fn on_late(&mut self) {
        self.in_flight -= 1;
    }

    /// Notes the answer to a copy that was sent at `sent`. Abandoned copies that could arrive only before `sent` are
    /// then no longer in doubt.
    pub(crate) fn on_answer(&mut self, sent: Moment) {
        self.in_flight -= 1;
        self.arrives_until = self.arrives_until.filter(|until| *until > sent);
    }

    /// Notes that the sender of one copy no longer waits for its answer. The copy may arrive until the moment `until`.
    pub(crate) fn abandon(&mut self, until: Moment) {
        self.in_flight -= 1;
        self.arrives_until = self.arrives_until.max(Some(until));
    }

    /// Notes that no sender waits for an answer any more. Their copies may arrive until the moment `until`.
    pub(crate) fn abandon_all(&mut self, until: Moment) {
        if std::mem::take(&mut self.in_flight) > 0 {
            self.arrives_until = self.arrives_until.max(Some(until));
        }
    }

    /// Returns the latest moment at which any copy may arrive. Copies that are not abandoned may arrive until
    /// `in_flight_until`.
    pub(crate) fn until(&self, in_flight_until: Moment) -> Option<Moment> {
        self.arrives_until.max((self.in_flight > 0).then_some(in_flight_until))
    }

    /// Returns the latest moment at which an abandoned copy may arrive.
    pub(crate) fn arrives_until(&self) -> Option<Moment> {
        self.arrives_until
    }

    /// Returns the number of copies for whose answers their senders still wait.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns true if a copy of a request may still arrive at `now` or later.
    pub(crate) fn may_arrive(&self, now: Moment) -> bool {
        self.in_flight > 0 || self.arrives_until > Some(now)
    }

    /// Returns true if each copy was answered. An abandoned copy counts, however old it is, until a later answer shows
    /// that it cannot arrive any more.
    pub(crate) fn is_none(&self) -> bool {
        self.in_flight == 0 && self.arrives_until.is_none()
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/in_doubt/tests.rs"]
mod tests;
