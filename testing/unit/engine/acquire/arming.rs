//! Acquisitions whose lock stays taken for a time at least: when the guard is there, and what the requests carry.

use super::*;

const AT_LEAST: Duration = Duration::from_secs(300);
const RESTS: Overrides = Overrides { at_least: Some(AT_LEAST), lease: None, ..LONG };

/// Returns true if the lock rests on the server.
async fn rests(stage: &Stage) -> bool {
    let view = stage.view().await;
    view.holders.iter().any(|holder| AcquisitionId::before_rest(&holder.id).is_some())
}

#[tokio::test(start_paused = true)]
async fn guard_is_there_when_the_server_has_answered_the_arming() {
    let stage = Stage::new();
    let word = stage.next_renewals_wait();
    let mut waits = stage.asks(Write, RESTS, Patience::AskOnce);
    still_waits(&mut waits, MS * 50).await;
    send(word);
    let held = granted(waits).await;
    assert_eq!((stage.scheme.requests(), stage.scheme.chunks().len()), (1, 1), "one request and one renewal");
    release(held).await;
    assert!(rests(&stage).await);
    assert_eq!(stage.scheme.rest_times().len(), 2, "the renewal and the release carry it");
}

#[tokio::test(start_paused = true)]
async fn each_copy_and_each_later_renewal_and_the_release_carry_the_same_time() {
    let stage = Stage::new();
    stage.scheme.renewals_go_unheard(1);
    let began = Instant::now();
    let held = granted(stage.waits_with(Write, RESTS)).await;
    sleep(15 * SECOND).await;
    assert_eq!(held.state(), HoldState::Held);
    drop(held);
    stage.engine.settled().await;
    let times = stage.scheme.rest_times();
    assert!(times.len() > 4 && times.iter().all(|time| *time == times[0]), "{times:?}");
    let now = stage.scheme.memory.inspect(&stage.key).await.expect("memory answers");
    let passed = began.elapsed();
    let left = now.value.holders[0].remaining;
    assert!(left + passed >= AT_LEAST && left + passed < AT_LEAST + 2 * SECOND, "{left:?} after {passed:?}");
}

#[tokio::test(start_paused = true)]
async fn future_that_is_not_polled_while_it_arms_leaves_the_lock_free() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    let mut stalls = stage.waits_with(Write, RESTS);
    start(&mut stalls);
    let other = stage.other();
    timeout(5 * SECOND, other.take(Write)).await.expect("within the claim");
    drop(stalls);
}

/// The renewal is carried out, and no answer comes before the end of the lease.
#[tokio::test(start_paused = true)]
async fn hold_that_is_over_before_its_guard_is_given_back_and_the_next_one_is_armed_anew() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    let held = granted(stage.waits_with(Write, RESTS)).await;
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
    let _word = stage.next_renewals_wait();
    let limit = Overrides { wait_timeout: Some(MS * 100), ..RESTS };
    match stage.waits_with(Write, limit).await {
        Err(Error::WaitTimeout { confirmed, .. }) => assert_eq!(confirmed, stage.there().await == (0, 0)),
        other => panic!("{other:?}"),
    }
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_that_close_ends_while_it_is_armed_leaves_no_rest() {
    let stage = Stage::new();
    let word = stage.next_renewals_wait();
    let mut waits = stage.waits_with(Write, RESTS);
    still_waits(&mut waits, MS).await;
    stage.engine.close().await.expect("all is given back");
    send(word);
    assert!(matches!(waits.await, Err(Error::Closed { .. })));
    assert_eq!(stage.there().await, (0, 0));
}

/// Waits behind an armed hold in the same process, until the lock rests and then is free.
async fn waits_for_the_rest(stage: &Stage) {
    let held = granted(stage.waits_with(Write, RESTS)).await;
    let mut next = stage.waits(Write);
    start(&mut next);
    drop(held);
    still_waits(&mut next, AT_LEAST / 2).await;
    assert!(rests(stage).await);
    granted(next).await;
}

#[tokio::test(start_paused = true)]
async fn hold_is_handed_to_no_local_writer() {
    let stage = Stage::new();
    // A lock that the server does not remember is granted with one token, for one writer.
    release(stage.take(Write).await).await;
    sleep(MS).await;
    waits_for_the_rest(&stage).await;
}

#[tokio::test(start_paused = true)]
async fn cached_hold_that_is_taken_rests_and_is_not_cached_again() {
    let stage = Stage::with(Options { cache_for: 600 * SECOND, ..Options::default() });
    for _ in 0..2 {
        drop(stage.take(Write).await);
        sleep(MS).await;
    }
    stage.engine.settled().await;
    let asked = stage.scheme.requests();
    assert_eq!(stage.there().await, (1, 0), "it is cached");
    let held = granted(stage.waits_with(Write, RESTS)).await;
    assert_eq!(stage.scheme.requests(), asked, "it is taken without a request");
    drop(held);
    stage.engine.settled().await;
    assert!(rests(&stage).await);
    waits_for_the_rest(&stage).await;
}

/// Begins an acquisition with a note.
fn asks_with_note(stage: &Stage) -> StartedAcquire {
    let terms = terms(&stage.engine, RESTS);
    let note = Some("report".into());
    crate::engine::acquire::start(&stage.engine, &stage.key, Write, &terms, Patience::Wait, note).expect("begun")
}

#[tokio::test(start_paused = true)]
async fn acquisition_that_is_dropped_while_it_sets_its_note_leaves_no_rest() {
    let stage = Stage::new();
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_note(answer);
    let mut waits = asks_with_note(&stage);
    still_waits(&mut waits, MS).await;
    drop(waits);
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn hold_with_a_note_rests_after_its_use() {
    let stage = Stage::new();
    let Ok(Ok(held)) = asks_with_note(&stage).await else { panic!("it is free") };
    sleep(MS).await;
    let view = stage.view().await;
    assert_eq!(view.holders[0].note.as_deref(), Some("report"));
    release(held).await;
    assert!(rests(&stage).await);
}
