use super::*;

#[test]
fn spans_are_rounded_for_people() {
    let spans = [
        (Duration::ZERO, "0ns"),
        (Duration::from_micros(70), "70µs"),
        (Duration::from_nanos(532_456_789), "532ms"),
        (Duration::from_millis(1_200), "1.2s"),
        (Duration::from_millis(5_019), "5.01s"),
        (Duration::from_secs(3600), "3600s"),
    ];
    for (span, expected) in spans {
        assert_eq!(DurationText(span).to_string(), expected);
    }
}

#[test]
fn periods_are_read_as_they_are_written() {
    for (text, nanos) in [
        ("10s", 10_000_000_000),
        ("1.5s", 1_500_000_000),
        ("0.05s", 50_000_000),
        ("500ms", 500_000_000),
        ("70us", 70_000),
        ("70µs", 70_000),
        ("0ns", 0),
        ("2m", 120_000_000_000),
        ("2min", 120_000_000_000),
        ("1.5h", 5_400_000_000_000),
        ("1d", 86_400_000_000_000),
    ] {
        assert_eq!(text.parse(), Ok(DurationText(Duration::from_nanos(nanos))), "{text}");
    }
    assert_eq!("max".parse(), Ok(DurationText(Duration::MAX)));
    for text in ["", "10", "s", "-1s", "1 s", "1e3s", "1.s", ".5s", "1.2.3s", "1w", "99999999999s", "1.0000000001s"] {
        let error = text.parse::<DurationText>().expect_err(text);
        assert!(error.to_string().contains("write it as 10s"), "{error}");
    }
    for span in [Duration::ZERO, Duration::from_millis(1_200), Duration::from_micros(70), Duration::from_secs(3600)] {
        assert_eq!(DurationText(span).to_string().parse(), Ok(DurationText(span)), "what is written is read");
    }
}
