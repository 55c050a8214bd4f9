use futures_util::FutureExt;

use super::*;

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(800);
const START: Moment = Moment::from_nanos(0);

/// Takes all free permits and gives them back, as if their requests had been sent at `sent` and answered after
/// `took`.
fn answered_after(space: &InFlightLimit, sent: Moment, took: Duration) -> usize {
    let permits: Vec<_> = std::iter::from_fn(|| space.try_take()).collect();
    permits.iter().for_each(|_| space.is_back(sent, sent.after(took)));
    permits.len()
}

fn grown() -> InFlightLimit {
    let space = InFlightLimit::new(RESPONSE_TIMEOUT);
    while answered_after(&space, START, RESPONSE_TIMEOUT / 10) < MAX_IN_FLIGHT {}
    space
}

#[test]
fn room_grows_while_it_is_used_and_answers_are_fast() {
    assert_eq!(grown().size.load(Ordering::Relaxed), MAX_IN_FLIGHT);
    let idle = InFlightLimit::new(RESPONSE_TIMEOUT);
    for _ in 0..1_000 {
        drop(idle.try_take());
        idle.is_back(START, START);
    }
    assert_eq!(idle.size.load(Ordering::Relaxed), MIN_IN_FLIGHT, "nobody has tried more");
}

#[test]
fn room_shrinks_when_answers_wait_for_others_and_not_for_the_way() {
    let space = grown();
    let later = START.after(RESPONSE_TIMEOUT);
    assert_eq!(answered_after(&space, later, RESPONSE_TIMEOUT), MAX_IN_FLIGHT);
    assert_eq!(space.size.load(Ordering::Relaxed), MAX_IN_FLIGHT / 2, "once for all of them");
    for n in 2..10 {
        answered_after(&space, START.after(RESPONSE_TIMEOUT * 2 * n), RESPONSE_TIMEOUT);
    }
    assert_eq!(answered_after(&space, later, Duration::ZERO), MIN_IN_FLIGHT);
    let far = InFlightLimit::new(RESPONSE_TIMEOUT);
    while answered_after(&far, START, RESPONSE_TIMEOUT / 2) < MAX_IN_FLIGHT {}
    assert_eq!(far.size.load(Ordering::Relaxed), MAX_IN_FLIGHT, "a long way is no queue");
}

#[tokio::test]
async fn request_ahead_takes_a_free_permit_of_either_kind() {
    let space = InFlightLimit::new(RESPONSE_TIMEOUT);
    let take = || space.take(Precedence::Ahead, RESPONSE_TIMEOUT).now_or_never().flatten();
    let mut ahead: Vec<_> = (0..AHEAD).map(|_| take().expect("an additional permit is free")).collect();
    assert!(ahead.iter().all(|permit| permit.of == Precedence::Ahead), "these come first");
    let next = take().expect("all regular permits are free");
    assert_eq!(next.of, Precedence::InTurn);
    let regular: Vec<_> = std::iter::from_fn(|| space.try_take()).collect();
    assert_eq!(regular.len(), MIN_IN_FLIGHT - 1, "one of them is ahead");
    assert!(take().is_none(), "no permit is free");
    drop(next);
    assert!(space.has_free_permit(), "it went back to its own kind");
    ahead.pop();
    assert_eq!(take().map(|permit| permit.of), Some(Precedence::Ahead), "both kinds are free");
}
