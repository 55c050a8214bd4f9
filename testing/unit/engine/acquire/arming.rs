//! Acquisitions whose lock stays taken for a time at least: when the guard is there, and what the requests carry.

use super::*;

const AT_LEAST: Duration = Duration::from_secs(300);
const RESTS: Overrides = Overrides { at_least: Some(AT_LEAST), lease: None, ..LONG };
const MOMENT: Duration = Duration::from_millis(1);

/// Returns true if the lock rests on the server.
async fn rests(stage: &Stage) -> bool {
    let view = stage.scheme.memory.inspect(&stage.key).await.expect("memory answers").value;
    view.holders.iter().any(|holder| AcquisitionId::before_rest(&holder.id).is_some())
}

#[tokio::test(start_paused = true)]
async fn guard_is_there_when_the_server_has_answered_the_arming() {
    let stage = Stage::new();
    let (word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let mut waits = stage.asks(Mode::Write, RESTS, Patience::AskOnce);
    assert!(tokio::time::timeout(MOMENT * 50, &mut waits).await.is_err(), "the arming is not answered");
    word.send(()).expect("it is waited for");
    let held = waits.await.expect("answered").expect("granted");
    assert_eq!((stage.scheme.requests(), stage.scheme.chunks().len()), (1, 1), "one request and one renewal");
    held.release().await.expect("ours to the end");
    assert!(rests(&stage).await);
    assert_eq!(stage.scheme.rest_times().len(), 2, "the renewal and the release carry it");
}

#[tokio::test(start_paused = true)]
async fn each_copy_and_each_later_renewal_and_the_release_carry_the_same_time() {
    let stage = Stage::new();
    stage.scheme.renewals_go_unheard(1);
    let began = stage.engine.clock.now();
    let held = stage.asks(Mode::Write, RESTS, Patience::Wait).await.expect("answered").expect("granted");
    tokio::time::sleep(Duration::from_secs(15)).await;
    assert_eq!(held.state(), HoldState::Held);
    drop(held);
    stage.engine.settled().await;
    let times = stage.scheme.rest_times();
    assert!(times.len() > 4 && times.iter().all(|time| *time == times[0]), "{times:?}");
    let now = stage.scheme.memory.inspect(&stage.key).await.expect("memory answers");
    let passed = stage.engine.clock.now().since(began);
    let left = now.value.holders[0].remaining;
    assert!(
        left + passed >= AT_LEAST && left + passed < AT_LEAST + Duration::from_secs(2),
        "{left:?} after {passed:?}"
    );
}

#[tokio::test(start_paused = true)]
async fn future_that_is_not_polled_while_it_arms_leaves_the_lock_free() {
    let stage = Stage::new();
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let mut stalls = stage.asks(Mode::Write, RESTS, Patience::Wait);
    start(&mut stalls);
    let other = stage.other();
    tokio::time::timeout(Duration::from_secs(5), other.take(Mode::Write)).await.expect("within the claim");
    drop(stalls);
}

/// The renewal is carried out, and no answer comes before the end of the lease.
#[tokio::test(start_paused = true)]
async fn hold_that_is_over_before_its_guard_is_given_back_and_the_next_one_is_armed_anew() {
    let stage = Stage::new();
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let held = stage.asks(Mode::Write, RESTS, Patience::Wait).await.expect("answered").expect("granted");
    assert_eq!(stage.scheme.requests(), 2);
    let times = stage.scheme.rest_times();
    assert!(times.len() == 2 && times[0] < times[1], "{times:?}");
    drop(held);
    stage.engine.settled().await;
    assert!(rests(&stage).await);
}

#[tokio::test(start_paused = true)]
async fn limit_is_told_when_the_hold_is_given_back() {
    let stage = Stage::new();
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let limit = Overrides { wait_timeout: Some(MOMENT * 100), ..RESTS };
    match stage.asks(Mode::Write, limit, Patience::Wait).await {
        Err(Error::WaitTimeout { confirmed, .. }) => assert_eq!(confirmed, stage.there().await == (0, 0)),
        other => panic!("{other:?}"),
    }
    stage.engine.settled().await;
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_that_close_ends_while_it_is_armed_leaves_no_rest() {
    let stage = Stage::new();
    let (word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let mut waits = stage.asks(Mode::Write, RESTS, Patience::Wait);
    assert!(tokio::time::timeout(MOMENT, &mut waits).await.is_err(), "the arming is not answered");
    stage.engine.close().await.expect("all is given back");
    word.send(()).expect("it is waited for");
    assert!(matches!(waits.await, Err(Error::Closed { .. })));
    assert_eq!(stage.there().await, (0, 0));
}

/// Waits behind an armed hold in the same process, until the lock rests and then is free.
async fn waits_for_the_rest(stage: &Stage) {
    let held = stage.asks(Mode::Write, RESTS, Patience::Wait).await.expect("answered").expect("granted");
    let mut next = stage.asks(Mode::Write, Overrides::default(), Patience::Wait);
    start(&mut next);
    drop(held);
    assert!(tokio::time::timeout(AT_LEAST / 2, &mut next).await.is_err(), "the lock rests");
    assert!(rests(stage).await);
    next.await.expect("answered").expect("granted after the rest");
}

#[tokio::test(start_paused = true)]
async fn hold_is_handed_to_no_local_writer() {
    let stage = Stage::new();
    // A lock that the server does not remember is granted with one token, for one writer.
    stage.take(Mode::Write).await.release().await.expect("ours to the end");
    tokio::time::sleep(MOMENT).await;
    waits_for_the_rest(&stage).await;
}

#[tokio::test(start_paused = true)]
async fn cached_hold_that_is_taken_rests_and_is_not_cached_again() {
    let stage = Stage::with(Options { cache_for: Duration::from_secs(600), ..Options::default() });
    for _ in 0..2 {
        drop(stage.take(Mode::Write).await);
        tokio::time::sleep(MOMENT).await;
    }
    stage.engine.settled().await;
    let asked = stage.scheme.requests();
    assert_eq!(stage.there().await, (1, 0), "it is cached");
    let held = stage.asks(Mode::Write, RESTS, Patience::Wait).await.expect("answered").expect("granted");
    assert_eq!(stage.scheme.requests(), asked, "it is taken without a request");
    drop(held);
    stage.engine.settled().await;
    assert!(rests(&stage).await);
    waits_for_the_rest(&stage).await;
}

/// Begins an acquisition with a note.
fn asks_with_note(stage: &Stage) -> StartedAcquire {
    let terms = Terms::new(stage.engine.options(), RESTS).expect("valid");
    let note = Some("report".into());
    crate::engine::acquire::start(&stage.engine, &stage.key, Mode::Write, &terms, Patience::Wait, note).expect("begun")
}

#[tokio::test(start_paused = true)]
async fn acquisition_that_is_dropped_while_it_sets_its_note_leaves_no_rest() {
    let stage = Stage::new();
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_note(answer);
    let mut waits = asks_with_note(&stage);
    assert!(tokio::time::timeout(MOMENT, &mut waits).await.is_err(), "the note is not answered");
    drop(waits);
    stage.engine.settled().await;
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_note_rests_after_its_use() {
    let stage = Stage::new();
    let Ok(Ok(held)) = asks_with_note(&stage).await else { panic!("it is free") };
    tokio::time::sleep(MOMENT).await;
    let view = stage.scheme.memory.inspect(&stage.key).await.expect("memory answers").value;
    assert_eq!(view.holders[0].note.as_deref(), Some("report"));
    held.release().await.expect("ours to the end");
    assert!(rests(&stage).await);
}
