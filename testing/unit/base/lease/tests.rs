use super::*;

#[test]
fn validity_ends_before_the_servers_lease() {
    let sent = Moment::from_nanos(0);
    let valid = valid_until(sent, Duration::from_secs(10), Duration::from_millis(100));
    assert_eq!(valid.since(sent), Duration::from_millis(9798));
}

#[test]
fn nothing_is_valid_when_the_margins_eat_the_lease() {
    let sent = Moment::from_nanos(7);
    let margin = Duration::from_millis(100);
    assert_eq!(valid_until(sent, Duration::from_millis(50), margin), sent);
}

#[test]
fn absurd_spans_saturate() {
    assert_eq!(Moment::from_nanos(1).after(Duration::MAX), Moment::NEVER);
    assert_eq!(surely_over(Duration::MAX, Duration::MAX), Duration::MAX);
}

#[test]
fn clock_sample_runs_with_the_local_clock() {
    let clock_sample = ClockSample { sent: Moment::from_nanos(1_000_000), server: ServerTime::from_micros(5_000_001) };
    let later = Moment::from_nanos(3_000_000);
    assert_eq!(clock_sample.server_time_at(later).as_micros(), 5_002_001);
    assert_eq!(clock_sample.server_time_at(later).as_millis_up(), 5_003);
}

#[test]
fn tokens_beyond_a_double_are_not_believed() {
    assert!(FencingToken::from_wire(1 << 53).is_some());
    assert!(FencingToken::from_wire((1 << 53) + 1).is_none());
}

#[test]
fn tokens_come_back_from_integers() {
    for stored in [0, 1, 1 << 53] {
        let token = FencingToken::try_from(stored).expect("in range");
        assert_eq!((u64::from(token), i64::from(token)), (stored, i64::try_from(stored).expect("small")));
        assert_eq!(FencingToken::try_from(i64::from(token)), Ok(token));
    }
    assert!(FencingToken::try_from((1_u64 << 53) + 1).is_err());
    assert!(FencingToken::try_from((1_i64 << 53) + 1).is_err());
    assert_eq!(FencingToken::try_from(u64::MAX), Err(InvalidToken(i128::from(u64::MAX))));
    let negative = FencingToken::try_from(-1_i64).expect_err("no token");
    assert!(negative.to_string().starts_with("-1 is no fencing token"), "{negative}");
}
