use Mode::{Read, Write};

use super::*;
use crate::base::attempt::NodeId;

const MARGIN: Duration = Duration::from_millis(100);
const CLAIM: Duration = Duration::from_secs(3);
/// Server's time in the answer of the clock sample that judges the notification.
const ANCHOR_US: u64 = 1_000_000_000;
/// Time since the request of that sample.
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

fn admits_write(told: TestAnswer) -> bool {
    admits(&bounds(Write), told)
}

fn admits_read(told: TestAnswer) -> bool {
    admits(&bounds(Read), told)
}

#[test]
fn genuine_grants_are_believed() {
    let blocks = TestAnswer { token: AT_US - 63, tokens: 64, ..GENUINE };
    assert!(admits_write(GENUINE) && admits_write(blocks));
    assert!(admits_read(GENUINE));
    let short = TestAnswer { deadline_us: AT_US + 1, ..GENUINE };
    assert!(admits_write(short));
}

#[test]
fn token_ahead_of_the_servers_clock_is_refused() {
    // The other primary's clock was ahead of this one's.
    assert!(admits_write(TestAnswer { token: AT_US + 100_000, ..GENUINE }));
    for raw in [AT_US + 100_001, 1 << 53] {
        assert!(!admits_write(TestAnswer { token: raw, ..GENUINE }), "{raw}");
        assert!(!admits_read(TestAnswer { token: raw, ..GENUINE }), "{raw}");
    }
    let block = TestAnswer { token: AT_US + 100_000, tokens: 2, ..GENUINE };
    assert!(!admits_write(block), "its last token is beyond");
}

#[test]
fn token_that_is_not_above_the_last_one_here_is_refused() {
    for (mode, equal) in [(Read, true), (Write, false)] {
        let bounds = Bounds { newest: Some(token(AT_US - 5)), ..bounds(mode) };
        assert!(admits(&bounds, TestAnswer { token: AT_US - 4, ..GENUINE }));
        assert_eq!(admits(&bounds, TestAnswer { token: AT_US - 5, ..GENUINE }), equal, "{mode}");
        assert!(!admits(&bounds, TestAnswer { token: AT_US - 6, ..GENUINE }));
    }
    let bounds = Bounds { newest: Some(token(AT_US - 5)), ..bounds(Write) };
    assert!(!admits(&bounds, TestAnswer { token: AT_US - 5, tokens: 6, ..GENUINE }), "its first token is a used one");
}

#[test]
fn number_of_tokens_that_no_grant_has_is_refused() {
    assert!(!admits_write(TestAnswer { token: AT_US - MAX_TOKENS, tokens: MAX_TOKENS + 1, ..GENUINE }));
    assert!(!admits_read(TestAnswer { token: AT_US - 1, tokens: 2, ..GENUINE }));
    assert!(!admits_write(TestAnswer { tokens: 0, ..GENUINE }));
}

#[test]
fn time_to_come_is_refused() {
    // One second here is at most that, 1 %, 2 ms and the margin there.
    let latest = ANCHOR_US + 1_112_000;
    let at = |at_us| TestAnswer { token: AT_US, deadline_us: at_us + 1, tokens: 1, at_us };
    assert!(admits_write(at(latest)));
    assert!(!admits_write(at(latest + 1)));
}

#[test]
fn time_before_the_last_answer_is_refused() {
    let bounds = Bounds { answered_at: ServerTime::from_micros(AT_US + 1), ..bounds(Write) };
    assert!(!admits(&bounds, GENUINE));
    assert!(admits(&bounds, TestAnswer { at_us: AT_US + 1, ..GENUINE }));
}

#[test]
fn more_time_than_the_claim_is_refused() {
    assert!(!admits_write(TestAnswer { deadline_us: AT_US + 3_000_001, ..GENUINE }));
    assert!(!admits_write(TestAnswer { deadline_us: u64::MAX / 1000, ..GENUINE }));
}
