//! In-doubt requests: copies that may yet be carried out.
//!
//! A request that was sent may be carried out for a while, whatever becomes of its sender. It is on its way, or its
//! reply was lost. A release is final only after that time: before, a copy may still acquire under the same id.

use std::time::Duration;

use crate::base::attempt::{Attempt, Failure};
use crate::base::lease::Moment;

/// Copies of the requests with one id, from one sender or several.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct InDoubt {
    /// Number of copies that are sent or waited for.
    in_flight: u32,
    /// Latest moment at which a copy without a waiting sender may arrive.
    arrives_until: Option<Moment>,
    /// Longest lease that one of them has requested, answered or not.
    longest_lease: Duration,
}

impl InDoubt {
    /// Builds the in-doubt copies of an earlier try, which have requested this lease.
    pub(crate) fn of_earlier(arrives_until: Moment, lease: Duration) -> Self {
        Self { in_flight: 0, arrives_until: Some(arrives_until), longest_lease: lease }
    }

    /// Counts one more copy on its way.
    pub(crate) fn begin(&mut self) {
        self.in_flight += 1;
    }

    /// Notes that one of them asks for this lease.
    pub(crate) fn ask_for(&mut self, lease: Duration) {
        self.longest_lease = self.longest_lease.max(lease);
    }

    /// Longest lease that the server can have granted to them.
    pub(crate) fn longest_lease(&self) -> Duration {
        self.longest_lease
    }

    /// Notes the result of one copy, as far as it ever will be known.
    pub(crate) fn resolve<T>(&mut self, attempt: &Attempt<T>) {
        match attempt {
            Ok(answer) => self.on_answer(answer.sent),
            Err(Failure::Unknown { arrives_until, .. }) => self.abandon(*arrives_until),
            // A refused copy has come to its end, even if it was refused half way.
            Err(
                Failure::NotDone { .. }
                | Failure::Refused { .. }
                | Failure::Broken { .. }
                | Failure::Unreplicated { .. },
            ) => self.in_flight -= 1,
        }
    }

    /// Notes the answer to a copy from `sent`. Copies that could only arrive before it are covered by the answer.
    pub(crate) fn on_answer(&mut self, sent: Moment) {
        self.in_flight -= 1;
        self.arrives_until = self.arrives_until.filter(|until| *until > sent);
    }

    /// Notes that the sender of a copy on its way waits no more.
    pub(crate) fn abandon(&mut self, until: Moment) {
        self.in_flight -= 1;
        self.arrives_until = self.arrives_until.max(Some(until));
    }

    /// Notes that no sender of a copy on its way waits any more.
    pub(crate) fn abandon_all(&mut self, until: Moment) {
        if std::mem::take(&mut self.in_flight) > 0 {
            self.arrives_until = self.arrives_until.max(Some(until));
        }
    }

    /// Latest moment at which a copy may arrive, if those on their way may until `in_flight_until`.
    pub(crate) fn until(&self, in_flight_until: Moment) -> Option<Moment> {
        self.arrives_until.max((self.in_flight > 0).then_some(in_flight_until))
    }

    /// Latest moment at which a copy without a waiting sender may arrive.
    pub(crate) fn arrives_until(&self) -> Option<Moment> {
        self.arrives_until
    }

    /// Number of copies on their way whose senders wait.
    pub(crate) fn in_flight(&self) -> u32 {
        self.in_flight
    }

    /// Returns true if no copy is on its way, and none can be.
    pub(crate) fn is_none(&self) -> bool {
        self.in_flight == 0 && self.arrives_until.is_none()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::attempt::{Answered, NodeId};
    use crate::base::lease::ServerTime;

    fn at(nanos: u64) -> Moment {
        Moment::from_nanos(nanos)
    }

    fn answer(sent: Moment) -> Attempt<()> {
        Ok(Answered { sent, server: ServerTime::default(), node: NodeId::default(), value: () })
    }

    fn unknown(until: Moment) -> Attempt<()> {
        Err(Failure::Unknown { arrives_until: until, source: None })
    }

    #[test]
    fn copy_that_nobody_heard_of_may_arrive_until_its_limit() {
        let mut copies = InDoubt::default();
        copies.begin();
        assert_eq!(copies.until(at(7)), Some(at(7)), "it is on its way");
        copies.resolve(&unknown(at(10)));
        assert_eq!(copies.until(at(99)), Some(at(10)));
        copies.begin();
        copies.resolve(&answer(at(9)));
        assert_eq!(copies.until(at(99)), Some(at(10)), "the answer was sent for before that");
        copies.begin();
        copies.resolve(&answer(at(10)));
        assert!(copies.is_none());
    }

    #[test]
    fn copy_of_a_sender_that_died_counts_until_it_cannot_arrive() {
        let mut copies = InDoubt::default();
        copies.abandon_all(at(5));
        assert!(copies.is_none(), "there was none");
        copies.begin();
        copies.abandon_all(at(5));
        assert_eq!(copies.arrives_until(), Some(at(5)));
    }

    #[test]
    fn one_of_two_that_is_answered_leaves_the_other() {
        let mut copies = InDoubt::default();
        copies.begin();
        copies.begin();
        copies.resolve(&answer(at(1)));
        assert_eq!(copies.until(at(8)), Some(at(8)));
        copies.resolve(&unknown(at(4)));
        assert_eq!(copies.until(at(8)), Some(at(4)));
    }
}
