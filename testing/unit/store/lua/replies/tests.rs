use super::*;
use crate::base::lease::Moment;

fn reply(words: &str) -> Answered<Value> {
    let value = Value::BulkString(words.as_bytes().to_vec());
    Answered { sent: Moment::from_nanos(5), server: ServerTime::default(), node: NodeId::default(), value }
}

fn token(raw: u64) -> FencingToken {
    FencingToken::from_wire(raw).expect("small")
}

#[test]
fn granted_reply_is_read() {
    for (flag, is_waited_for) in [(0, false), (1, true)] {
        let words = format!("granted a.1.x 3 7 72 64 500 {flag}");
        let read = read_reply(reply(&words), "a.1.x", parse_acquired).expect("readable");
        assert_eq!(read.server.as_micros(), 3_000_007);
        let (token, remaining) = (token(9), Duration::from_millis(500));
        assert_eq!(read.value, Acquired::Granted(Granted { token, tokens: 64, remaining, is_waited_for }));
    }
}

#[test]
fn reply_to_another_request_is_never_believed() {
    let read = read_reply(reply("granted b.1.x 3 7 9 1 500 0"), "a.1.x", parse_acquired);
    assert!(matches!(read, Err(Failure::Unknown { .. })));
}

#[test]
fn reply_of_another_shape_is_unknown_not_denied() {
    for words in [
        "",
        "granted",
        "granted a.1.x 3 7 9 64 500 0",
        "granted a.1.x 3 7 9 0 500 0",
        "late a.1.x soon 3",
        "late a.1.x 3",
        "granted a.1.x 3 7 9 1",
        "held a.1.x 3 7",
    ] {
        let read = read_reply(reply(words), "a.1.x", parse_acquired);
        assert!(matches!(read, Err(Failure::Unknown { .. })), "{words}");
    }
}

#[test]
fn reply_of_another_version_is_a_refusal() {
    let read = read_reply(reply("version a.1.x 3 7"), "a.1.x", parse_acquired);
    assert!(matches!(read, Err(Failure::Refused { refusal: Refusal::OtherVersion, .. })));
}

const ANCHOR: ClockSample = ClockSample { sent: Moment::from_nanos(3), server: ServerTime::from_micros(5_000_400) };

#[test]
fn notification_of_a_grant_counts_from_the_clock_sample() {
    for (flag, is_waited_for) in [("0", false), ("1", true)] {
        let message = format!("m.1.label 9007199254740992 64 6000 5900123 {flag}");
        let Notification::Granted { id, at, answer } = read_notification(message.as_bytes(), Some(ANCHOR)) else {
            panic!("it is one")
        };
        assert_eq!((&*id, at.as_micros()), ("m.1.label", 5_900_123));
        assert_eq!((answer.sent, answer.server), (ANCHOR.sent, ANCHOR.server));
        let (token, remaining) = (token((1 << 53) - 63), Duration::from_micros(999_600));
        assert_eq!(answer.value, Granted { token, tokens: 64, remaining, is_waited_for });
    }
}

#[test]
fn other_notices_mean_that_it_is_time_to_ask() {
    let granted = "m.1.label 72 64 6000 5900123 0";
    // Without a clock sample, no deadline can be trusted.
    assert!(matches!(read_notification(granted.as_bytes(), None), Notification::AskAgain));
    let others = [
        "",
        "m.1.label",                      // the two-key scheme names the next waiter
        "m.1.label 9 64 6000 5900123",    // too short
        "m.1.label 72 64 soon 5900123 0", // no number
        "m.1.label 72 64 5000 4900123 0", // over before the clock sample
        "m.1.label 9007199254740993 1 6000 5900123 0",
        "m.1.label 72 64 18446744073709551615 5900123 0",
        "m.1.label 9 64 6000 5900123 0", // more tokens than there are
    ];
    for other in others {
        assert!(matches!(read_notification(other.as_bytes(), Some(ANCHOR)), Notification::AskAgain), "{other}");
    }
    assert!(matches!(read_notification(b"\xff", Some(ANCHOR)), Notification::AskAgain));
}

#[test]
fn waiters_are_read_in_the_order_in_which_they_came() {
    let rows = ["view - 0 7 9 0 0 3 4", "hold h r 1 2", "wait a w 5", "wait b w 7", "wait c r 6"];
    let value = Value::Array(rows.map(|row| Value::BulkString(row.as_bytes().to_vec())).into());
    let view = read_reply(Answered { value, ..reply("") }, "", parse_view).expect("readable").value;
    let ids: Vec<_> = view.waiters.iter().map(|waiter| (waiter.id.as_str(), waiter.mode)).collect();
    assert_eq!(ids, [("a", Mode::Write), ("c", Mode::Read), ("b", Mode::Write)]);
    assert_eq!((view.holders.len(), view.more_holders, view.more_waiters), (1, 3, 4));
}

#[test]
fn writers_are_read_in_the_order_of_their_queue_after_a_clock_was_set_back() {
    let rows = ["view - 0 7 9 0 0 0 5", "wait a w 9", "wait b w 5", "wait c w 11", "wait d r 6", "wait e r 10"];
    let value = Value::Array(rows.map(|row| Value::BulkString(row.as_bytes().to_vec())).into());
    let view = read_reply(Answered { value, ..reply("") }, "", parse_view).expect("readable").value;
    let ids: Vec<_> = view.waiters.iter().map(|waiter| waiter.id.as_str()).collect();
    assert_eq!(ids, ["d", "a", "b", "e", "c"]);
}
