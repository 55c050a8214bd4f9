//! Waits that end without a grant: closed managers, limits, and force.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, HoldState, LossReason};

use super::{MACHINE, got, managers, queued};
use crate::fixture::{Fixture, on_every_queue};
use crate::wait::{soon, stays_pending, until};

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

async fn close_ends_all_waits_here_and_lets_those_elsewhere_in(f: &Fixture) {
    let ([here, there], name, other) = (managers(f).await, f.name(), f.name());
    let writing = here.write(&name).await.expect("granted");
    let blocking = there.write(&other).await.expect("granted");
    let elsewhere = queued(f, &name, there.write(&name).into_future()).await;
    let reading_elsewhere = queued(f, &name, there.read(&name).into_future()).await;
    let waits_there = queued(f, &other, here.read(&other).into_future()).await;
    let waits_here = tokio::spawn(here.write(&name).into_future());
    let began = Instant::now();
    soon("the close", here.close()).await.expect("the server knows");
    assert_eq!(writing.state(), HoldState::Lost(LossReason::Closed));
    for error in [
        soon("the end of the wait here", waits_here).await.expect("no panic").expect_err("closed"),
        soon("the end of the wait there", waits_there).await.expect("no panic").expect_err("closed"),
    ] {
        assert!(matches!(error, Error::Closed { .. }), "{error:?}");
    }
    assert!(f.view(&other).await.waiters.is_empty(), "the server knew when the close returned");
    // All readers enter after a writer, then the next writer.
    got("the reader elsewhere", reading_elsewhere).await.release().await.expect("ours to the end");
    got("the writer elsewhere", elsewhere).await.release().await.expect("ours to the end");
    assert!(began.elapsed() < MACHINE * 2, "nobody waited for a lease: {:?}", began.elapsed());
    blocking.release().await.expect("ours to the end");
    f.becomes_free(&name).await;
}

async fn close_of_a_waiting_manager_leaves_no_place_in_the_queue(f: &Fixture) {
    let ([holder, closes, behind], name) = (managers(f).await, f.name());
    let writing = holder.write(&name).await.expect("granted");
    let waits = queued(f, &name, closes.write(&name).into_future()).await;
    let reads = queued(f, &name, closes.read(&name).into_future()).await;
    let next = queued(f, &name, behind.write(&name).into_future()).await;
    soon("the close", closes.close()).await.expect("the server knows");
    let labels: Vec<_> = f.view(&name).await.waiters.into_iter().map(|waiter| waiter.label).collect();
    assert_eq!(labels, ["process-2"]);
    soon("the end of the wait", waits).await.expect("no panic").expect_err("closed");
    soon("the end of the wait", reads).await.expect("no panic").expect_err("closed");
    writing.release().await.expect("ours to the end");
    got("the one behind", next).await.release().await.expect("ours to the end");
}

async fn force_lets_the_queue_in_in_its_order(f: &Fixture) {
    let ([a, b, c, d], name) = (managers(f).await, f.name());
    let stuck = a.write(&name).await.expect("granted");
    let mut first = queued(f, &name, b.write(&name).into_future()).await;
    let reader = queued(f, &name, c.read(&name).into_future()).await;
    let mut second = queued(f, &name, d.write(&name).into_future()).await;
    f.manager().await.force_release(&name).await.expect("forced");
    // The waiting reader enters first, as after any writer.
    let reading = got("the reader", reader).await;
    assert!(reading.fencing_token() > stuck.fencing_token());
    stays_pending("the first write", &mut first).await;
    reading.release().await.expect("ours to the end");
    let writing = got("the first writer", first).await;
    stays_pending("the second write", &mut second).await;
    // The release of a guard that was forced out does not end the hold of another.
    let error = stuck.release().await.expect_err("forced");
    assert!(matches!(error, Error::Lost { reason: LossReason::Forced, .. }), "{error:?}");
    assert_eq!(writing.state(), HoldState::Held);
    writing.release().await.expect("ours to the end");
    got("the second writer", second).await.release().await.expect("ours to the end");
}

async fn force_of_readers_lets_the_first_writer_in(f: &Fixture) {
    let ([a, b, c, d], name) = (managers(f).await, f.name());
    let stuck = [a.read(&name).await.expect("granted"), b.read(&name).await.expect("granted")];
    let writer = queued(f, &name, c.write(&name).into_future()).await;
    let mut reader = queued(f, &name, d.read(&name).into_future()).await;
    f.manager().await.force_release(&name).await.expect("forced");
    let writing = got("the writer", writer).await;
    stays_pending("the read", &mut reader).await;
    for guard in stuck {
        assert!(guard.fencing_token() < writing.fencing_token());
        guard.release().await.expect_err("forced");
    }
    writing.release().await.expect("ours to the end");
    got("the reader", reader).await.release().await.expect("ours to the end");
}

async fn writer_at_the_head_that_gives_up_lets_the_readers_behind_it_in(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let reading = a.read(&name).await.expect("granted");
    let writer = queued(f, &name, b.write(&name).wait_timeout(LIMIT).into_future()).await;
    let reader = queued(f, &name, c.read(&name).into_future()).await;
    let error = soon("the limit", writer).await.expect("no panic").expect_err("it is read");
    assert!(matches!(error, Error::WaitTimeout { waited, .. } if waited >= LIMIT), "{error:?}");
    let gave_up = Instant::now();
    let beside = got("the reader", reader).await;
    assert!(gave_up.elapsed() < MACHINE, "{:?}", gave_up.elapsed());
    assert_eq!(beside.fencing_token(), reading.fencing_token(), "one phase");
    for guard in [reading, beside] {
        guard.release().await.expect("ours to the end");
    }
    f.becomes_free(&name).await;
}

async fn writer_at_the_head_that_gives_up_lets_the_next_be_the_head(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let writing = a.write(&name).await.expect("granted");
    let head = queued(f, &name, b.write(&name).wait_timeout(LIMIT).into_future()).await;
    let next = queued(f, &name, c.write(&name).into_future()).await;
    soon("the limit", head).await.expect("no panic").expect_err("it is held");
    until("it is forgotten", async || f.view(&name).await.waiters.len() == 1).await;
    let released = Instant::now();
    writing.release().await.expect("ours to the end");
    got("the next", next).await.release().await.expect("ours to the end");
    assert!(released.elapsed() < MACHINE, "{:?}", released.elapsed());
}

async fn waiter_in_the_middle_that_gives_up_changes_no_order(f: &Fixture) {
    let ([a, b, c, d], name) = (managers(f).await, f.name());
    let writing = a.write(&name).await.expect("granted");
    let first = queued(f, &name, b.write(&name).into_future()).await;
    let middle = queued(f, &name, c.write(&name).wait_timeout(LIMIT).into_future()).await;
    let mut last = queued(f, &name, d.write(&name).into_future()).await;
    soon("the limit", middle).await.expect("no panic").expect_err("it is held");
    until("it is forgotten", async || f.view(&name).await.waiters.len() == 2).await;
    writing.release().await.expect("ours to the end");
    let guard = got("the first", first).await;
    stays_pending("the last", &mut last).await;
    guard.release().await.expect("ours to the end");
    got("the last", last).await.release().await.expect("ours to the end");
    f.becomes_free(&name).await;
}
