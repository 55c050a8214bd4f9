use super::*;
use crate::base::attempt::NodeId;
use crate::base::lease::{FencingToken, Moment};
use crate::base::mode::Mode;

fn token(raw: u64) -> FencingToken {
    FencingToken::from_wire(raw).expect("small")
}

fn holder(id: &str, since_ms: u64, remaining_ms: u64) -> Holder {
    Holder { id: id.to_owned(), mode: Mode::Read, since_ms, remaining: Duration::from_millis(remaining_ms), note: None }
}

/// Answer of a master whose clock shows `server_ms`.
fn shown(server_ms: u64, last: Option<u64>, holders: Vec<Holder>) -> Answered<View> {
    let value = View { token: last.map(token), holders, ..View::default() };
    Answered {
        sent: Moment::from_nanos(0),
        server: ServerTime::from_micros(server_ms * 1000),
        node: NodeId::default(),
        value,
    }
}

#[test]
fn hold_is_one_that_a_majority_has_for_as_long_as_it_has_it() {
    let (_, view) = merge(
        5,
        vec![
            (0, shown(1000, Some(4), vec![holder("a", 10, 50), holder("b", 10, 50)])),
            (1, shown(1000, Some(5), vec![holder("a", 20, 70), holder("b", 10, 50)])),
            (3, shown(1000, None, vec![holder("a", 15, 60)])),
            (4, shown(1000, Some(9), vec![holder("a", 15, 90)])),
        ],
    );
    assert_eq!(view.holders, [holder("a", 10, 60)], "of b two of five know");
    assert_eq!(view.token, Some(token(9)));
    assert_eq!(view.tokens, [Some(token(4)), Some(token(5)), None, None, Some(token(9))]);
}

#[test]
fn times_are_those_of_the_clock_that_is_ahead() {
    let (server, view) = merge(
        3,
        vec![(0, shown(1000, None, vec![holder("a", 990, 5)])), (1, shown(1100, None, vec![holder("a", 1095, 5)]))],
    );
    assert_eq!(server, ServerTime::from_micros(1_100_000));
    assert_eq!(view.holders, [holder("a", 1090, 5)], "by its own clock the first has had it for 10 ms");
}

#[test]
fn nothing_is_held_where_nobody_answers() {
    let (server, view) = merge(3, Vec::new());
    assert_eq!((server, view.holders, view.token), (ServerTime::default(), Vec::new(), None));
}

#[test]
fn force_tells_what_was_shown_and_not_what_a_minority_had() {
    let seen = View { holders: vec![holder("a", 0, 1)], ..View::default() };
    let forced = |ids: &[&str], more| Forced { ids: ids.iter().map(|id| (*id).to_owned()).collect(), has_more: more };
    let merged = merge_forced(&seen, vec![forced(&["a", "b"], false), forced(&["a"], true)]);
    assert_eq!(merged, forced(&["a"], true));
    // A view is limited, so a hold beyond it may belong to any process.
    let bounded = View { more_holders: 1, ..seen };
    assert_eq!(merge_forced(&bounded, vec![forced(&["b"], false)]), forced(&["b"], false));
}
