//! Waits that end without a grant: closed managers, limits, and force.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, HoldState, LossReason};

use super::{MACHINE, scene};
use crate::errors::assert_lost;
use crate::fixture::{Fixture, on_every_queue};
use crate::wait::{Outcome, granted, soon, spawn, stays_pending};

on_every_queue![
    close_ends_all_waits_here_and_lets_those_elsewhere_in,
    close_of_a_waiting_manager_leaves_no_place_in_the_queue,
    force_lets_the_queue_in_in_its_order,
    force_of_readers_lets_the_first_writer_in,
    writer_at_the_head_that_gives_up_lets_the_readers_behind_it_in,
    writer_at_the_head_that_gives_up_lets_the_next_be_the_head,
    waiter_in_the_middle_that_gives_up_changes_no_order,
];

/// Limit of a wait that ends by it: long enough for others to queue behind it.
const LIMIT: Duration = Duration::from_secs(2);

async fn close_ends_all_waits_here_and_lets_those_elsewhere_in(f: &Fixture) -> Outcome {
    let ([here, there], name) = scene(f).await;
    let other = f.name();
    let writing = here.write(&name).await?;
    let blocking = there.write(&other).await?;
    let elsewhere = f.queued(&name, there.write(&name)).await;
    let reading_elsewhere = f.queued(&name, there.read(&name)).await;
    let waits_there = f.queued(&other, here.read(&other)).await;
    let waits_here = spawn(here.write(&name));
    let began = Instant::now();
    soon("the close", here.close()).await?;
    assert_eq!(writing.state(), HoldState::Lost(LossReason::Closed));
    for error in [
        soon("the end of the wait here", waits_here).await?.expect_err("closed"),
        soon("the end of the wait there", waits_there).await?.expect_err("closed"),
    ] {
        assert_matches!(error, Error::Closed { .. });
    }
    assert!(f.view(&other).await.waiters.is_empty(), "the server knew when the close returned");
    // All readers enter after a writer, then the next writer.
    granted(reading_elsewhere).await.release().await?;
    granted(elsewhere).await.release().await?;
    assert!(began.elapsed() < MACHINE * 2, "nobody waited for a lease: {:?}", began.elapsed());
    blocking.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn close_of_a_waiting_manager_leaves_no_place_in_the_queue(f: &Fixture) -> Outcome {
    let ([holder, closes, behind], name) = scene(f).await;
    let writing = holder.write(&name).await?;
    let waits = f.queued(&name, closes.write(&name)).await;
    let reads = f.queued(&name, closes.read(&name)).await;
    let next = f.queued(&name, behind.write(&name)).await;
    soon("the close", closes.close()).await?;
    let labels: Vec<_> = f.view(&name).await.waiters.into_iter().map(|waiter| waiter.label).collect();
    assert_eq!(labels, ["process-2"]);
    soon("the end of the wait", waits).await?.expect_err("closed");
    soon("the end of the wait", reads).await?.expect_err("closed");
    writing.release().await?;
    granted(next).await.release().await?;
    Ok(())
}

async fn force_lets_the_queue_in_in_its_order(f: &Fixture) -> Outcome {
    let ([a, b, c, d], name) = scene(f).await;
    let stuck = a.write(&name).await?;
    let mut first = f.queued(&name, b.write(&name)).await;
    let reader = f.queued(&name, c.read(&name)).await;
    let mut second = f.queued(&name, d.write(&name)).await;
    f.manager().await.force_release(&name).await?;
    // The waiting reader enters first, as after any writer.
    let reading = granted(reader).await;
    assert!(reading.fencing_token() > stuck.fencing_token());
    stays_pending("the first write", &mut first).await;
    reading.release().await?;
    let writing = granted(first).await;
    stays_pending("the second write", &mut second).await;
    // The release of a guard that was forced out does not end the hold of another.
    let error = stuck.release().await.expect_err("forced");
    assert_lost(&error, LossReason::Forced);
    assert_eq!(writing.state(), HoldState::Held);
    writing.release().await?;
    granted(second).await.release().await?;
    Ok(())
}

async fn force_of_readers_lets_the_first_writer_in(f: &Fixture) -> Outcome {
    let ([a, b, c, d], name) = scene(f).await;
    let stuck = [a.read(&name).await?, b.read(&name).await?];
    let writer = f.queued(&name, c.write(&name)).await;
    let mut reader = f.queued(&name, d.read(&name)).await;
    f.manager().await.force_release(&name).await?;
    let writing = granted(writer).await;
    stays_pending("the read", &mut reader).await;
    for guard in stuck {
        assert!(guard.fencing_token() < writing.fencing_token());
        guard.release().await.expect_err("forced");
    }
    writing.release().await?;
    granted(reader).await.release().await?;
    Ok(())
}

async fn writer_at_the_head_that_gives_up_lets_the_readers_behind_it_in(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = scene(f).await;
    let reading = a.read(&name).await?;
    let writer = f.queued(&name, b.write(&name).wait_timeout(LIMIT)).await;
    let reader = f.queued(&name, c.read(&name)).await;
    let error = soon("the limit", writer).await?.expect_err("it is read");
    assert_matches!(error, Error::WaitTimeout { waited, .. } if *waited >= LIMIT);
    let gave_up = Instant::now();
    let beside = granted(reader).await;
    assert!(gave_up.elapsed() < MACHINE, "{:?}", gave_up.elapsed());
    assert_eq!(beside.fencing_token(), reading.fencing_token(), "one phase");
    for guard in [reading, beside] {
        guard.release().await?;
    }
    f.becomes_free(&name).await;
    Ok(())
}

async fn writer_at_the_head_that_gives_up_lets_the_next_be_the_head(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = scene(f).await;
    let writing = a.write(&name).await?;
    let head = f.queued(&name, b.write(&name).wait_timeout(LIMIT)).await;
    let next = f.queued(&name, c.write(&name)).await;
    soon("the limit", head).await?.expect_err("it is held");
    f.until_waiting(1, &name).await;
    let released = Instant::now();
    writing.release().await?;
    granted(next).await.release().await?;
    assert!(released.elapsed() < MACHINE, "{:?}", released.elapsed());
    Ok(())
}

async fn waiter_in_the_middle_that_gives_up_changes_no_order(f: &Fixture) -> Outcome {
    let ([a, b, c, d], name) = scene(f).await;
    let writing = a.write(&name).await?;
    let first = f.queued(&name, b.write(&name)).await;
    let middle = f.queued(&name, c.write(&name).wait_timeout(LIMIT)).await;
    let mut last = f.queued(&name, d.write(&name)).await;
    soon("the limit", middle).await?.expect_err("it is held");
    f.until_waiting(2, &name).await;
    writing.release().await?;
    let guard = granted(first).await;
    stays_pending("the last", &mut last).await;
    guard.release().await?;
    granted(last).await.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}
