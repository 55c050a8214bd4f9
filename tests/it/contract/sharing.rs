//! A process has one hold, its guards are many.

use std::time::Duration;

use redis_rwlock::{HoldState, LossReason};

use crate::fixture::{Fixture, RENEWED, SHORT, Settings, on_every_fixture, on_every_own_format, on_every_queue};
use crate::wait::{Outcome, begin, begin_to_wait, granted, soon, stays_pending};

on_every_fixture![
    readers_of_a_process_are_one_holder,
    hold_outlives_the_guard_that_took_it,
    guards_end_at_their_own_time,
    loss_reaches_all_guards,
    forgotten_guard_does_not_cut_its_neighbours,
];

// Leases in the format of Redisson are shorter, its listing is of the whole server, and it refuses some names.
on_every_own_format![
    longest_lease_of_the_guards_counts,
    reader_that_enters_with_anothers_hold_has_half_of_its_lease,
    writer_that_goes_on_with_anothers_hold_has_half_of_its_lease
];

on_every_queue![
    writers_of_a_process_have_a_token_each,
    handed_over_writer_is_renewed,
    writer_that_goes_on_with_a_claim_has_half_of_its_lease,
    writer_that_is_handed_the_lock_and_dropped_passes_it_on,
    reader_beside_a_waiting_writer_elsewhere_does_not_join,
];

async fn readers_of_a_process_are_one_holder(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let mut guards = Vec::new();
    for _ in 0..50 {
        guards.push(manager.read(&name).await?);
    }
    assert_eq!(f.view(&name).await.holders.len(), 1);
    let last = guards.pop().expect("fifty");
    for guard in guards {
        guard.release().await?;
    }
    assert_eq!(f.view(&name).await.holders.len(), 1, "one guard is left");
    last.release().await?;
    assert!(f.view(&name).await.is_free(), "the server knows when the last release returns");
    Ok(())
}

async fn hold_outlives_the_guard_that_took_it(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let first = manager.read(&name).await?;
    let second = manager.read(&name).await?;
    first.release().await?;
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(second.state(), HoldState::Held);
    assert!(f.manager().await.try_write(&name).await?.is_none());
    second.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn guards_end_at_their_own_time(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let long = manager.read(&name).await?;
    let short = manager.read(&name).max_hold(SHORT).await?;
    assert!(short.remaining() <= SHORT);
    assert_eq!(soon("its end", short.lost()).await, LossReason::MaxHold);
    assert_eq!((long.state(), short.state()), (HoldState::Held, HoldState::Lost(LossReason::MaxHold)));
    short.release().await.expect_err("it is over");
    tokio::time::sleep(RENEWED).await;
    long.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn longest_lease_of_the_guards_counts(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let short = manager.read(&name).await?;
    let long = manager.read(&name).lease(Duration::from_secs(60)).await?;
    let view = f.view(&name).await;
    let longest = view.holders.iter().map(|holder| holder.remaining).max().expect("held");
    assert!(longest > Duration::from_secs(50), "{longest:?}");
    assert!(long.remaining() > Duration::from_secs(20), "{:?}", long.remaining());
    short.release().await?;
    long.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn loss_reaches_all_guards(f: &Fixture) {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let guards = [0; 3].map(|_| manager.read(&name).into_future());
    let guards = futures_util::future::join_all(guards).await;
    f.manager().await.force_release(&name).await.expect("forced");
    for guard in guards {
        let guard = guard.expect("granted");
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Forced);
        guard.release().await.expect_err("it was lost");
    }
}

async fn forgotten_guard_does_not_cut_its_neighbours(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let kept = manager.read(&name).await?;
    std::mem::forget(manager.read(&name).max_hold(SHORT).await?);
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(kept.state(), HoldState::Held);
    kept.release().await?;
    // What is forgotten is over by itself, and then the hold is.
    f.becomes_free(&name).await;
    Ok(())
}

const LONG: Duration = Duration::from_secs(60);

async fn reader_that_enters_with_anothers_hold_has_half_of_its_lease(f: &Fixture) -> Outcome {
    let (here, there, name) = f.pair(Settings::lease(RENEWED)).await;
    let writing = there.write(&name).await?;
    let first = begin_to_wait("the first", here.read(&name)).await;
    let second = begin_to_wait("the second", here.read(&name).lease(LONG)).await;
    writing.release().await?;
    let first = granted(first).await;
    let second = soon("the second", second).await?;
    assert!(second.remaining() > LONG / 2, "{:?}", second.remaining());
    first.release().await?;
    second.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn writer_that_goes_on_with_anothers_hold_has_half_of_its_lease(f: &Fixture) {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    for _ in 0..20 {
        let first = manager.write(&name).await.expect("granted");
        let second = begin(manager.write(&name).lease(LONG));
        // At once, so that it is handed on within this process where there are turns.
        drop(first);
        let second = granted(second).await;
        assert!(second.remaining() > LONG / 2, "{:?}", second.remaining());
        second.release().await.expect("ours to the end");
    }
    f.becomes_free(&name).await;
}

async fn writer_that_goes_on_with_a_claim_has_half_of_its_lease(f: &Fixture) -> Outcome {
    let (here, there, name) = f.pair(Settings::lease(LONG)).await;
    let elsewhere = there.write(&name).await?;
    let first = begin_to_wait("the first", here.write(&name)).await;
    let second = begin_to_wait("the second", here.write(&name)).await;
    let first = tokio::spawn(async move { first.await.expect("granted").release().await });
    elsewhere.release().await?;
    let second = granted(second).await;
    assert!(second.remaining() > LONG / 2, "{:?}", second.remaining());
    soon("the first", first).await??;
    second.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn writers_of_a_process_have_a_token_each(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let first = manager.write(&name).await?;
    let mut waiting = [0; 4].map(|_| manager.write(&name).into_future());
    for waiter in &mut waiting {
        stays_pending("the write", waiter).await;
    }
    let mut tokens = vec![first.fencing_token()];
    // Long beyond the time of a turn: the hold goes back to the server and is asked for again.
    first.release().await?;
    for waiter in waiting {
        let guard = granted(waiter).await;
        tokens.push(guard.fencing_token());
        guard.release().await?;
    }
    assert!(tokens.is_sorted_by(|earlier, later| earlier < later), "{tokens:?}");
    f.becomes_free(&name).await;
    Ok(())
}

async fn handed_over_writer_is_renewed(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let (one, other) = (manager.write(&name).into_future(), manager.write(&name).into_future());
    let first = tokio::spawn(async move { one.await.expect("granted").release().await });
    let second = tokio::spawn(async move {
        let guard = other.await.expect("granted");
        tokio::time::sleep(RENEWED * 3 / 2).await;
        guard.state()
    });
    soon("the first", first).await??;
    assert_eq!(soon("the second", second).await?, HoldState::Held);
    f.becomes_free(&name).await;
    Ok(())
}

async fn writer_that_is_handed_the_lock_and_dropped_passes_it_on(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    for _ in 0..20 {
        let first = manager.write(&name).await.expect("granted");
        let second = begin(manager.write(&name));
        let third = begin(manager.write(&name));
        // At once, so that it is handed on within this process where there are turns.
        drop(first);
        drop(second);
        granted(third).await.release().await.expect("ours to the end");
    }
    f.becomes_free(&name).await;
}

async fn reader_beside_a_waiting_writer_elsewhere_does_not_join(f: &Fixture) -> Outcome {
    let window = Settings { join_window: Duration::ZERO, ..Settings::default() };
    let (here, there, name) = f.pair(window).await;
    let reading = here.read(&name).await?;
    let joined = here.read(&name).await.expect("nobody waits: it is asked and joins");
    let writer = f.queued(&name, there.write(&name)).await;
    let mut late = begin_to_wait("the read", here.read(&name)).await;
    reading.release().await?;
    stays_pending("the read", &mut late).await;
    joined.release().await?;
    let writing = granted(writer).await;
    stays_pending("the read", &mut late).await;
    writing.release().await?;
    granted(late).await.release().await?;
    Ok(())
}
