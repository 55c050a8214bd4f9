//! Waiting between processes: phase-fair, first come, first served, and without the dead.

use std::time::Duration;

use redis_rwlock::{Error, Mode};

use crate::fixture::{Fixture, Manager, Settings, on_every_queue};
use crate::wait::{soon, stays_pending, until};

on_every_queue![
    waiting_writer_stops_new_readers_elsewhere,
    waiting_readers_enter_together_after_a_writer,
    readers_and_writers_take_turns,
    writers_are_served_in_the_order_in_which_they_came,
    inspect_shows_the_queue_in_order,
    waiter_that_gives_up_is_not_in_the_queue,
    waiter_that_gives_up_leaves_its_place_to_the_next_of_its_process,
    dead_waiter_is_skipped,
    writer_that_dies_waiting_lets_the_readers_behind_it_in,
    silent_death_of_a_holder_is_noticed,
    forced_lock_goes_to_the_next_in_the_queue,
];

/// Waits in the background, and in the queue when this returns.
async fn queued<G: redis_rwlock::Guard>(
    f: &Fixture,
    name: &str,
    acquiring: redis_rwlock::Acquiring<G>,
) -> tokio::task::JoinHandle<Result<G, Error>> {
    let before = f.view(name).await.waiters.len();
    let waiting = tokio::spawn(acquiring);
    until("it waits", async || f.view(name).await.waiters.len() > before).await;
    waiting
}

async fn got<G>(what: &str, waiting: tokio::task::JoinHandle<Result<G, Error>>) -> G {
    soon(what, waiting).await.expect("no panic").expect("granted")
}

async fn managers<const N: usize>(f: &Fixture) -> [Manager; N] {
    let mut all = Vec::new();
    for n in 0..N {
        all.push(f.manager_with(Settings::label(&format!("process-{n}"))).await);
    }
    all.try_into().unwrap_or_else(|_| panic!("as many as asked for"))
}

async fn waiting_writer_stops_new_readers_elsewhere(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let reading = a.read(&name).await.expect("granted");
    let writer = queued(f, &name, b.write(&name).into_future()).await;
    assert!(c.try_read(&name).await.expect("answered").is_none(), "a writer waits");
    let reader = queued(f, &name, c.read(&name).into_future()).await;
    reading.release().await.expect("ours to the end");
    let writing = got("the writer", writer).await;
    let mut reader = reader;
    stays_pending("the read", &mut reader).await;
    writing.release().await.expect("ours to the end");
    got("the reader", reader).await.release().await.expect("ours to the end");
}

async fn waiting_readers_enter_together_after_a_writer(f: &Fixture) {
    let ([a, b, c, d, e], name) = (managers(f).await, f.name());
    let writing = a.write(&name).await.expect("granted");
    let next_writer = queued(f, &name, b.write(&name).into_future()).await;
    let first = queued(f, &name, c.read(&name).into_future()).await;
    let second = queued(f, &name, d.read(&name).into_future()).await;
    let third = queued(f, &name, e.read(&name).into_future()).await;
    writing.release().await.expect("ours to the end");
    let guards = [got("one reader", first).await, got("another", second).await, got("all", third).await];
    let mut next_writer = next_writer;
    stays_pending("the write", &mut next_writer).await;
    assert!(guards.iter().all(|guard| guard.fencing_token() == guards[0].fencing_token()), "one phase");
    for guard in guards {
        guard.release().await.expect("ours to the end");
    }
    got("the writer", next_writer).await.release().await.expect("ours to the end");
}

async fn readers_and_writers_take_turns(f: &Fixture) {
    let ([a, b, c, d], name) = (managers(f).await, f.name());
    let first = a.read(&name).await.expect("granted");
    let write_one = queued(f, &name, b.write(&name).into_future()).await;
    let write_two = queued(f, &name, c.write(&name).into_future()).await;
    let mut read = queued(f, &name, d.read(&name).into_future()).await;
    first.release().await.expect("ours to the end");
    let one = got("the first writer", write_one).await;
    stays_pending("the read", &mut read).await;
    let mut write_two = write_two;
    one.release().await.expect("ours to the end");
    let reading = got("the reader, between the writers", read).await;
    stays_pending("the second write", &mut write_two).await;
    reading.release().await.expect("ours to the end");
    got("the second writer", write_two).await.release().await.expect("ours to the end");
}

async fn writers_are_served_in_the_order_in_which_they_came(f: &Fixture) {
    let (managers, name) = (managers::<6>(f).await, f.name());
    let first = managers[0].write(&name).await.expect("granted");
    let (order, mut served) = tokio::sync::mpsc::unbounded_channel();
    for (n, manager) in managers.iter().enumerate().skip(1) {
        let (writing, order) = (manager.write(&name).into_future(), order.clone());
        let before = f.view(&name).await.waiters.len();
        drop(tokio::spawn(async move {
            let guard = writing.await.expect("granted");
            order.send(n).expect("somebody listens");
            guard.release().await.expect("ours to the end");
        }));
        until("it waits", async || f.view(&name).await.waiters.len() > before).await;
    }
    first.release().await.expect("ours to the end");
    for expected in 1..6 {
        assert_eq!(soon("the next writer", served.recv()).await, Some(expected));
    }
    f.becomes_free(&name).await;
}

async fn inspect_shows_the_queue_in_order(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let reading = a.read(&name).await.expect("granted");
    let writer = queued(f, &name, b.write(&name).into_future()).await;
    // Waiting times are in milliseconds.
    until("time has passed", async || f.view(&name).await.waiters[0].waiting > Duration::from_millis(2)).await;
    let reader = queued(f, &name, c.read(&name).into_future()).await;
    let view = f.view(&name).await;
    let shown: Vec<_> = view.waiters.iter().map(|waiter| (waiter.label.as_str(), waiter.mode)).collect();
    assert_eq!(shown, [("process-1", Mode::Write), ("process-2", Mode::Read)]);
    assert!(view.waiters[0].waiting > view.waiters[1].waiting, "{view:?}");
    assert_eq!(view.holders.len(), 1);
    reading.release().await.expect("ours to the end");
    got("the writer", writer).await.release().await.expect("ours to the end");
    got("the reader", reader).await.release().await.expect("ours to the end");
    assert!(f.view(&name).await.waiters.is_empty());
}

async fn waiter_that_gives_up_is_not_in_the_queue(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let reading = a.read(&name).await.expect("granted");
    let waited = b.write(&name).wait_timeout(Duration::from_millis(100)).await;
    assert!(matches!(waited, Err(Error::WaitTimeout { .. })), "{waited:?}");
    until("it is forgotten", async || f.view(&name).await.waiters.is_empty()).await;
    let aborted = queued(f, &name, b.write(&name).into_future()).await;
    aborted.abort();
    until("it is forgotten", async || f.view(&name).await.waiters.is_empty()).await;
    c.try_read(&name).await.expect("answered").expect("nobody waits").release().await.expect("ours to the end");
    reading.release().await.expect("ours to the end");
}

async fn waiter_that_gives_up_leaves_its_place_to_the_next_of_its_process(f: &Fixture) {
    let ([a, b, c], name) = (managers(f).await, f.name());
    let holding = a.write(&name).await.expect("granted");
    let gives_up = queued(f, &name, b.write(&name).into_future()).await;
    let mut stays = b.write(&name).into_future();
    stays_pending("the second of the process", &mut stays).await;
    let mut other = queued(f, &name, c.write(&name).into_future()).await;
    gives_up.abort();
    drop(gives_up.await);
    assert_eq!(f.view(&name).await.waiters[0].label, "process-1", "its place is kept");
    holding.release().await.expect("ours to the end");
    let guard = soon("the second of the process", stays).await.expect("granted");
    stays_pending("the other process", &mut other).await;
    guard.release().await.expect("ours to the end");
    got("the other process", other).await.release().await.expect("ours to the end");
}

/// Far less than a lease: two heartbeats and two response timeouts, a claim, another heartbeat, and a busy machine.
const SKIPPED: Duration = Duration::from_secs(15);

async fn dead_waiter_is_skipped(f: &Fixture) {
    let ([a, c], name) = (managers(f).await, f.name());
    let holding = a.write(&name).lease(Duration::from_secs(300)).await.expect("granted");
    let mut process = f.process(Settings { lease: Duration::from_secs(300), ..Settings::label("dies") }).await;
    let written = name.clone();
    process.start(|manager| Box::pin(manager.write(&written).into_future()));
    until("it waits", async || f.view(&name).await.waiters.len() == 1).await;
    let next = queued(f, &name, c.write(&name).lease(Duration::from_secs(300)).into_future()).await;
    process.die().await;
    holding.release().await.expect("ours to the end");
    let began = std::time::Instant::now();
    got("the one behind it", next).await.release().await.expect("ours to the end");
    assert!(began.elapsed() < SKIPPED, "{:?}", began.elapsed());
}

async fn writer_that_dies_waiting_lets_the_readers_behind_it_in(f: &Fixture) {
    let ([a, c], name) = (managers(f).await, f.name());
    let holding = a.read(&name).lease(Duration::from_secs(300)).await.expect("granted");
    let mut process = f.process(Settings { lease: Duration::from_secs(300), ..Settings::label("dies") }).await;
    let written = name.clone();
    process.start(|manager| Box::pin(manager.write(&written).into_future()));
    until("it waits", async || f.view(&name).await.waiters.len() == 1).await;
    let reader = queued(f, &name, c.read(&name).into_future()).await;
    process.die().await;
    got("the reader", reader).await.release().await.expect("ours to the end");
    holding.release().await.expect("ours to the end");
}

async fn silent_death_of_a_holder_is_noticed(f: &Fixture) {
    let ([b], name) = (managers(f).await, f.name());
    let lease = Duration::from_secs(2);
    let mut process = f.process(Settings { lease, ..Settings::label("dies") }).await;
    let written = name.clone();
    let watch = process
        .run(|manager| {
            Box::pin(async move {
                let guard = manager.write(&written).await.expect("granted");
                let watch = guard.watch();
                std::mem::forget(guard);
                watch
            })
        })
        .await;
    let waiting = queued(f, &name, b.write(&name).into_future()).await;
    process.die().await;
    let guard = got("the next", waiting).await;
    assert!(guard.fencing_token() > watch.fencing_token());
    guard.release().await.expect("ours to the end");
}

async fn forced_lock_goes_to_the_next_in_the_queue(f: &Fixture) {
    let ([a, b], name) = (managers(f).await, f.name());
    let stuck = a.write(&name).await.expect("granted");
    let next = queued(f, &name, b.write(&name).into_future()).await;
    f.manager().await.force_release(&name).await.expect("forced");
    let guard = got("the next", next).await;
    assert!(guard.fencing_token() > stuck.fencing_token());
    guard.release().await.expect("ours to the end");
    drop(stuck);
}
