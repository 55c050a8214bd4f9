//! Waiting between processes: phase-fair, first come, first served, and without the dead.

use std::mem::ManuallyDrop;
use std::time::Duration;

use redis_rwlock::{Error, Mode};

use crate::fixture::{Fixture, Settings, on_every_queue};
use crate::wait::{Outcome, begin_to_wait, granted, soon, stays_pending, until};
use crate::waiting::{patient, scene};

on_every_queue![
    waiting_readers_enter_together_after_a_writer,
    readers_and_writers_take_turns,
    writers_are_served_in_the_order_in_which_they_came,
    inspect_shows_the_queue_in_order,
    waiter_that_gives_up_is_not_in_the_queue,
    waiter_that_gives_up_leaves_its_place_to_the_next_of_its_process,
    dead_waiter_is_skipped,
    writer_that_dies_waiting_lets_the_readers_behind_it_in,
    silent_death_of_a_holder_is_noticed,
];

async fn waiting_readers_enter_together_after_a_writer(f: &Fixture) -> Outcome {
    let ([a, b, c, d, e], name) = scene(f).await;
    let writing = a.write(&name).await?;
    let mut next_writer = f.queued(&name, b.write(&name)).await;
    let first = f.queued(&name, c.read(&name)).await;
    let second = f.queued(&name, d.read(&name)).await;
    let third = f.queued(&name, e.read(&name)).await;
    writing.release().await?;
    let guards = [granted(first).await, granted(second).await, granted(third).await];
    stays_pending("the write", &mut next_writer).await;
    assert!(guards.iter().all(|guard| guard.fencing_token() == guards[0].fencing_token()), "one phase");
    for guard in guards {
        guard.release().await?;
    }
    granted(next_writer).await.release().await?;
    Ok(())
}

async fn readers_and_writers_take_turns(f: &Fixture) -> Outcome {
    let ([a, b, c, d], name) = scene(f).await;
    let first = a.read(&name).await?;
    let write_one = f.queued(&name, b.write(&name)).await;
    let mut write_two = f.queued(&name, c.write(&name)).await;
    assert!(d.try_read(&name).await?.is_none(), "a writer waits");
    let mut read = f.queued(&name, d.read(&name)).await;
    first.release().await?;
    let one = granted(write_one).await;
    stays_pending("the read", &mut read).await;
    one.release().await?;
    let reading = granted(read).await;
    stays_pending("the second write", &mut write_two).await;
    reading.release().await?;
    granted(write_two).await.release().await?;
    Ok(())
}

async fn writers_are_served_in_the_order_in_which_they_came(f: &Fixture) {
    let (managers, name) = scene::<6>(f).await;
    let first = managers[0].write(&name).await.expect("granted");
    let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
    for (n, manager) in managers.iter().enumerate().skip(1) {
        let (writing, order) = (manager.write(&name).into_future(), order.clone());
        let served = async move {
            let guard = writing.await.expect("granted");
            order.send(n).expect("the case listens");
            guard.release().await.expect("ours to the end");
        };
        drop(f.queued(&name, served).await);
    }
    first.release().await.expect("ours to the end");
    for expected in 1..6 {
        assert_eq!(soon("the next writer", served.recv()).await, Some(expected));
    }
    f.becomes_free(&name).await;
}

async fn inspect_shows_the_queue_in_order(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = scene(f).await;
    let reading = a.read(&name).await?;
    let writer = f.queued(&name, b.write(&name)).await;
    // Waiting times are in milliseconds.
    until("time has passed", async || f.view(&name).await.waiters[0].waiting > Duration::from_millis(2)).await;
    let reader = f.queued(&name, c.read(&name)).await;
    let view = f.view(&name).await;
    let shown: Vec<_> = view.waiters.iter().map(|waiter| (waiter.label.as_str(), waiter.mode)).collect();
    assert_eq!(shown, [("process-1", Mode::Write), ("process-2", Mode::Read)]);
    assert!(view.waiters[0].waiting > view.waiters[1].waiting, "{view:?}");
    assert_eq!(view.holders.len(), 1);
    reading.release().await?;
    granted(writer).await.release().await?;
    granted(reader).await.release().await?;
    assert!(f.view(&name).await.waiters.is_empty());
    Ok(())
}

async fn waiter_that_gives_up_is_not_in_the_queue(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = scene(f).await;
    let reading = a.read(&name).await?;
    let waited = b.write(&name).wait_timeout(Duration::from_millis(100)).await;
    assert_matches!(waited, Err(Error::WaitTimeout { .. }));
    f.until_waiting(0, &name).await;
    let aborted = f.queued(&name, b.write(&name)).await;
    aborted.abort();
    f.until_waiting(0, &name).await;
    c.try_read(&name).await?.expect("nobody waits").release().await?;
    reading.release().await?;
    Ok(())
}

async fn waiter_that_gives_up_leaves_its_place_to_the_next_of_its_process(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = scene(f).await;
    let holding = a.write(&name).await?;
    let gives_up = f.queued(&name, b.write(&name)).await;
    let stays = begin_to_wait("the second of the process", b.write(&name)).await;
    let mut other = f.queued(&name, c.write(&name)).await;
    gives_up.abort();
    drop(gives_up.await);
    assert_eq!(f.view(&name).await.waiters[0].label, "process-1", "its place is kept");
    holding.release().await?;
    let guard = granted(stays).await;
    stays_pending("the other process", &mut other).await;
    guard.release().await?;
    granted(other).await.release().await?;
    Ok(())
}

/// Far less than a lease: two heartbeats and two response timeouts, a claim, another heartbeat, and a busy machine.
const SKIPPED: Duration = Duration::from_secs(15);

async fn dead_waiter_is_skipped(f: &Fixture) -> Outcome {
    let ([a, c], name) = scene(f).await;
    let holding = a.write(&name).lease(Duration::from_secs(300)).await?;
    let mut process = f.process(patient("dies")).await;
    process.start_to_write(&name);
    f.until_waiting(1, &name).await;
    let next = f.queued(&name, c.write(&name).lease(Duration::from_secs(300))).await;
    process.die().await;
    holding.release().await?;
    let began = std::time::Instant::now();
    granted(next).await.release().await?;
    assert!(began.elapsed() < SKIPPED, "{:?}", began.elapsed());
    Ok(())
}

async fn writer_that_dies_waiting_lets_the_readers_behind_it_in(f: &Fixture) -> Outcome {
    let ([a, c], name) = scene(f).await;
    let holding = a.read(&name).lease(Duration::from_secs(300)).await?;
    let mut process = f.process(patient("dies")).await;
    process.start_to_write(&name);
    f.until_waiting(1, &name).await;
    let reader = f.queued(&name, c.read(&name)).await;
    process.die().await;
    granted(reader).await.release().await?;
    holding.release().await?;
    Ok(())
}

async fn silent_death_of_a_holder_is_noticed(f: &Fixture) {
    let ([b], name) = scene(f).await;
    let lease = Duration::from_secs(2);
    let mut process = f.process(Settings { lease, ..Settings::label("dies") }).await;
    let left = ManuallyDrop::new(process.take(&name, Mode::Write).await);
    let waiting = f.queued(&name, b.write(&name)).await;
    process.die().await;
    let guard = granted(waiting).await;
    assert!(guard.fencing_token() > left.token());
    guard.release().await.expect("ours to the end");
}
