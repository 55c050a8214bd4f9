//! Bounds within which a notification of a grant is believed.
//!
//! The channel of a waiter takes messages from every user that may publish there, and a message proves nothing. So it is
//! compared with what the server's clock allows, as far as that is known here: tokens are microseconds of that clock and never run
//! ahead of it, and a waiter that is let in has its claim and no more. A message beyond these bounds makes the waiter ask the
//! server, which costs a round trip and grants nothing that the server has not granted. A forged message within the bounds is
//! believed until the claim is answered: the right to publish means trust (`docs/GUARANTEES.md`).

use std::time::Duration;

use crate::base::lease::MAX_TOKENS;
use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::mode::Mode;
use crate::lock::wait::RequesterEntry;
use crate::store::{AcquireRequest, Answered, Granted};

use super::Requesting;

/// Bounds of what a notification may say about the grant of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    mode: Mode,
    /// Lease that the server gives to a waiter which it lets in.
    claim: Duration,
    max_clock_skew: Duration,
    /// Server's time in the newest answer to this acquisition. The answer would have named an earlier grant.
    answered_at: ServerTime,
    /// Last token of the lock that this process has had.
    newest: Option<FencingToken>,
}

impl Requesting {
    /// Returns the bounds for a grant of `request` that comes by a notification.
    pub(super) fn bounds(&self, request: &AcquireRequest) -> Bounds {
        Bounds {
            mode: request.mode,
            claim: request.claim(),
            max_clock_skew: self.engine.options().max_clock_skew,
            answered_at: self.answered_at,
            newest: self.entry.as_ref().and_then(RequesterEntry::newest_token),
        }
    }
}

impl Bounds {
    /// Returns true if the server can have granted this at `at`, by its own clock. `answer` counts from an earlier answer of
    /// the same server.
    pub(super) fn admit(&self, at: ServerTime, answer: &Answered<Granted>, now: Moment) -> bool {
        self.admits_time(at, answer, now) && self.admits_tokens(at, answer.value) && self.admits_deadline(at, answer)
    }

    /// Returns true if `at` is not before the newest answer, and not later than the server's clock can be by now.
    fn admits_time(&self, at: ServerTime, answer: &Answered<Granted>, now: Moment) -> bool {
        let latest = answer.server.after(lease::surely_over(now.since(answer.sent), self.max_clock_skew));
        (self.answered_at..=latest).contains(&at)
    }

    /// Tokens end at the server's clock. After a failover they may be ahead of it by as much as the servers' clocks differ.
    fn admits_tokens(&self, at: ServerTime, Granted { token, tokens, .. }: Granted) -> bool {
        let most = match self.mode {
            Mode::Read => 1,
            Mode::Write => MAX_TOKENS,
        };
        let is_new = self.newest.is_none_or(|newest| match self.mode {
            // Readers of a phase share their token.
            Mode::Read => token >= newest,
            Mode::Write => token > newest,
        });
        let last = token.as_u64().saturating_add(tokens.saturating_sub(1));
        is_new && (1..=most).contains(&tokens) && last <= at.after(self.max_clock_skew).as_micros()
    }

    fn admits_deadline(&self, at: ServerTime, answer: &Answered<Granted>) -> bool {
        answer.server.after(answer.value.remaining) <= at.after(self.claim)
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../../testing/unit/engine/acquire/request/plausible/tests.rs"]
mod tests;
