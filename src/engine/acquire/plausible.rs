//! Bounds within which a notification of a grant is believed.
//!
//! The channel of a waiter takes messages from every user that may publish there, and a message proves nothing. So it is
//! compared with what the server's clock allows, as far as that is known here: tokens are microseconds of that clock and never run
//! ahead of it, and a waiter that is let in has its claim and no more. A message beyond these bounds makes the waiter ask the
//! server, which costs a round trip and grants nothing that the server has not granted. A forged message within the bounds is
//! believed until the claim is answered: the right to publish means trust (`docs/GUARANTEES.md`).

use std::time::Duration;

use crate::base::lease::{self, FencingToken, Moment, ServerTime};
use crate::base::mode::Mode;
use crate::lock::wait::WaitEntry;
use crate::store::{AcquireRequest, Answered, Granted, MAX_TOKENS};

use super::Acquisition;

/// Bounds of what a notification may say about the grant of one request.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    mode: Mode,
    /// Lease that the server gives to a waiter which it lets in.
    claim: Duration,
    max_clock_skew: Duration,
    /// Server's time in the newest answer to this acquisition, which would have told of an earlier grant.
    answered_at: ServerTime,
    /// Last token of the lock that this process has had.
    newest: Option<FencingToken>,
}

impl Acquisition<'_> {
    /// Returns the bounds for a grant of `request` that comes by a notification.
    pub(super) fn bounds(&self, request: &AcquireRequest) -> Bounds {
        Bounds {
            mode: request.mode,
            claim: request.claim(),
            max_clock_skew: self.engine.options().max_clock_skew,
            answered_at: self.answered_at,
            newest: self.entry.as_ref().and_then(WaitEntry::newest_token),
        }
    }
}

impl Bounds {
    /// Whether the server can have granted this at `at`, its own time. `answer` counts from an earlier answer of the same server.
    pub(super) fn admit(&self, at: ServerTime, answer: &Answered<Granted>, now: Moment) -> bool {
        self.admits_time(at, answer, now) && self.admits_tokens(at, answer.value) && self.admits_deadline(at, answer)
    }

    /// Not before the newest answer, and not later than the server's clock can be by now.
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::attempt::NodeId;

    const MARGIN: Duration = Duration::from_millis(100);
    const CLAIM: Duration = Duration::from_secs(3);
    /// Server's time in the answer from which the notification counts, and how long ago that was asked for.
    const ANCHOR_US: u64 = 1_000_000_000;
    const AGE: Duration = Duration::from_secs(1);
    /// Time of a genuine grant.
    const AT_US: u64 = ANCHOR_US + 900_000;

    fn token(raw: u64) -> FencingToken {
        FencingToken::from_wire(raw).expect("small")
    }

    fn bounds(mode: Mode) -> Bounds {
        let answered_at = ServerTime::from_micros(ANCHOR_US);
        Bounds { mode, claim: CLAIM, max_clock_skew: MARGIN, answered_at, newest: None }
    }

    /// A grant by its first token, their number, its deadline, and when it was made: all in microseconds of the server.
    #[derive(Clone, Copy)]
    struct TestAnswer {
        token: u64,
        tokens: u64,
        deadline_us: u64,
        at_us: u64,
    }

    const GENUINE: TestAnswer = TestAnswer { token: AT_US, tokens: 1, deadline_us: AT_US + 3_000_000, at_us: AT_US };

    fn admits(bounds: &Bounds, told: TestAnswer) -> bool {
        let sent = Moment::from_nanos(7);
        let value = Granted {
            token: token(told.token),
            tokens: told.tokens,
            remaining: Duration::from_micros(told.deadline_us - ANCHOR_US),
            is_waited_for: false,
        };
        let answer = Answered { sent, server: ServerTime::from_micros(ANCHOR_US), node: NodeId::default(), value };
        bounds.admit(ServerTime::from_micros(told.at_us), &answer, sent.after(AGE))
    }

    #[test]
    fn genuine_grants_are_believed() {
        let blocks = TestAnswer { token: AT_US - 63, tokens: 64, ..GENUINE };
        assert!(admits(&bounds(Mode::Write), GENUINE) && admits(&bounds(Mode::Write), blocks));
        assert!(admits(&bounds(Mode::Read), GENUINE));
        let short = TestAnswer { deadline_us: AT_US + 1, ..GENUINE };
        assert!(admits(&bounds(Mode::Write), short));
    }

    #[test]
    fn token_ahead_of_the_servers_clock_is_refused() {
        // The other primary's clock was ahead of this one's.
        assert!(admits(&bounds(Mode::Write), TestAnswer { token: AT_US + 100_000, ..GENUINE }));
        for raw in [AT_US + 100_001, 1 << 53] {
            assert!(!admits(&bounds(Mode::Write), TestAnswer { token: raw, ..GENUINE }), "{raw}");
            assert!(!admits(&bounds(Mode::Read), TestAnswer { token: raw, ..GENUINE }), "{raw}");
        }
        let block = TestAnswer { token: AT_US + 100_000, tokens: 2, ..GENUINE };
        assert!(!admits(&bounds(Mode::Write), block), "its last token is beyond");
    }

    #[test]
    fn token_that_is_not_above_the_last_one_here_is_refused() {
        for (mode, equal) in [(Mode::Read, true), (Mode::Write, false)] {
            let bounds = Bounds { newest: Some(token(AT_US - 5)), ..bounds(mode) };
            assert!(admits(&bounds, TestAnswer { token: AT_US - 4, ..GENUINE }));
            assert_eq!(admits(&bounds, TestAnswer { token: AT_US - 5, ..GENUINE }), equal, "{mode}");
            assert!(!admits(&bounds, TestAnswer { token: AT_US - 6, ..GENUINE }));
        }
        let bounds = Bounds { newest: Some(token(AT_US - 5)), ..bounds(Mode::Write) };
        assert!(
            !admits(&bounds, TestAnswer { token: AT_US - 5, tokens: 6, ..GENUINE }),
            "its first token is a used one"
        );
    }

    #[test]
    fn number_of_tokens_that_no_grant_has_is_refused() {
        assert!(!admits(&bounds(Mode::Write), TestAnswer { token: AT_US - 64, tokens: 65, ..GENUINE }));
        assert!(!admits(&bounds(Mode::Read), TestAnswer { token: AT_US - 1, tokens: 2, ..GENUINE }));
        assert!(!admits(&bounds(Mode::Write), TestAnswer { tokens: 0, ..GENUINE }));
    }

    #[test]
    fn time_to_come_is_refused() {
        // One second here is at most that, 1 %, 2 ms and the margin there.
        let latest = ANCHOR_US + 1_112_000;
        let at = |at_us| TestAnswer { token: AT_US, deadline_us: at_us + 1, tokens: 1, at_us };
        assert!(admits(&bounds(Mode::Write), at(latest)));
        assert!(!admits(&bounds(Mode::Write), at(latest + 1)));
    }

    #[test]
    fn time_before_the_last_answer_is_refused() {
        let bounds = Bounds { answered_at: ServerTime::from_micros(AT_US + 1), ..bounds(Mode::Write) };
        assert!(!admits(&bounds, GENUINE));
        assert!(admits(&bounds, TestAnswer { at_us: AT_US + 1, ..GENUINE }));
    }

    #[test]
    fn more_time_than_the_claim_is_refused() {
        assert!(!admits(&bounds(Mode::Write), TestAnswer { deadline_us: AT_US + 3_000_001, ..GENUINE }));
        assert!(!admits(&bounds(Mode::Write), TestAnswer { deadline_us: u64::MAX / 1000, ..GENUINE }));
    }
}
