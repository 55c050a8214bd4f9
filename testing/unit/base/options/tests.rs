use super::*;

#[test]
fn defaults_are_valid() {
    Options::default().check().expect("valid");
}

#[test]
fn leases_that_margins_eat_are_refused() {
    let mut options = Options { lease: Duration::from_millis(150), ..Options::default() };
    assert!(matches!(options.check(), Err(Error::InvalidOption { option: "lease", .. })));
    options.max_clock_skew = Duration::ZERO;
    options.check().expect("valid without a margin");
    options.lease = Duration::MAX;
    assert!(options.check().is_err());
    options.lease = Duration::ZERO;
    assert!(options.check().is_err());
}

#[test]
fn rests_are_refused_where_a_foreign_grant_ends_them() {
    let overrides = Overrides { at_least: Some(Duration::from_secs(60)), ..Overrides::default() };
    let options = Options::default();
    assert_eq!(Terms::new(&options, overrides).expect("valid").at_least, overrides.at_least);
    let template = KeyTemplate::new("lock:*".to_owned());
    let options = Options { timestamp_keys: Some(template), ..options };
    let refused = Terms::new(&options, overrides).expect_err("refused");
    let Error::InvalidOption { option: "at_least", reason } = &refused else { panic!("{refused:?}") };
    assert!(reason.contains("timestamp_keys"), "{reason}");
    let refused = options.check_unrenewed("detach", Duration::from_secs(60)).expect_err("refused");
    assert!(matches!(refused, Error::InvalidOption { option: "detach", .. }), "{refused:?}");
}

#[test]
fn labels_with_blanks_are_refused() {
    for label in ["", "a b", "a\n", "\u{7}", &"x".repeat(65)] {
        assert!(check_label(label).is_err(), "{label:?}");
    }
}
