//! Who may be inside with whom, and who comes next.

use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis_rwlock::{Error, Mode};

use crate::either::{AnyGuard, take};
use crate::fixture::{Fixture, Manager, Settings, on_every_fixture};
use crate::wait::{Outcome, begin, begin_to_wait, granted, soon};

on_every_fixture![
    writer_excludes_everybody,
    readers_share,
    readers_exclude_writers,
    locks_of_different_names_are_independent,
    waiter_gets_in_after_a_release_here,
    waiter_gets_in_after_a_release_elsewhere,
    waiting_reader_gets_in_after_a_writer,
    local_waiters_are_served_in_order,
    try_does_not_overtake_local_waiters,
    wait_timeout_ends_the_wait_and_leaves_nothing,
    wait_timeout_of_a_manager_is_the_default,
    futures_of_one_task_exclude_each_other,
    joined_futures_exclude_each_other,
    nested_acquisition_without_opt_in_waits,
    random_workload_never_overlaps,
];

async fn writer_excludes_everybody(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let guard = a.write(&name).await?;
    for other in [&a, &b] {
        assert!(other.try_write(&name).await?.is_none());
        assert!(other.try_read(&name).await?.is_none());
    }
    guard.release().await?;
    b.try_write(&name).await?.expect("free").release().await?;
    Ok(())
}

async fn readers_share(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let here = a.read(&name).await?;
    let beside = a.try_read(&name).await?.expect("readers share");
    let there = b.try_read(&name).await?.expect("readers share");
    assert_eq!(f.view(&name).await.holders.len(), 2, "readers of one process share its hold");
    for guard in [here, beside, there] {
        guard.release().await?;
    }
    Ok(())
}

async fn readers_exclude_writers(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let first = a.read(&name).await?;
    let second = b.read(&name).await?;
    for other in [&a, &b] {
        assert!(other.try_write(&name).await?.is_none());
    }
    first.release().await?;
    for other in [&a, &b] {
        assert!(other.try_write(&name).await?.is_none(), "one reader is left");
    }
    second.release().await?;
    a.try_write(&name).await?.expect("free").release().await?;
    Ok(())
}

async fn locks_of_different_names_are_independent(f: &Fixture) -> Outcome {
    let manager = f.manager().await;
    let one = manager.write(&f.name()).await?;
    let other = manager.try_write(&f.name()).await?.expect("another lock");
    one.release().await?;
    other.release().await?;
    Ok(())
}

async fn waiter_gets_in_after_a_release_here(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).await?;
    let waiter = begin_to_wait("a second writer's grant", manager.write(&name)).await;
    guard.release().await?;
    granted(waiter).await.release().await?;
    Ok(())
}

async fn waiter_gets_in_after_a_release_elsewhere(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let reader = a.read(&name).await?;
    let waiter = begin_to_wait("a writer's grant beside a reader", b.write(&name)).await;
    reader.release().await?;
    granted(waiter).await.release().await?;
    Ok(())
}

async fn waiting_reader_gets_in_after_a_writer(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let writer = a.write(&name).await?;
    let here = begin_to_wait("a reader's grant beside a writer", a.read(&name)).await;
    let there = begin_to_wait("a reader's grant beside a writer", b.read(&name)).await;
    writer.release().await?;
    let (here, there) = soon("the readers' grants", async { tokio::join!(here, there) }).await;
    let both = [here?, there?];
    assert_eq!(f.view(&name).await.holders.len(), 2);
    drop(both);
    f.becomes_free(&name).await;
    Ok(())
}

async fn local_waiters_are_served_in_order(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).await?;
    let served = Arc::new(Mutex::new(Vec::new()));
    let mut tasks = Vec::new();
    for place in 0..5 {
        // Its first poll takes the place in the queue.
        let waiter = begin(manager.write(&name));
        let served = Arc::clone(&served);
        tasks.push(tokio::spawn(async move {
            let guard = waiter.await.expect("granted");
            served.lock().push(place);
            guard.release().await.expect("released");
        }));
    }
    guard.release().await?;
    for task in tasks {
        soon("the waiter's turn", task).await?;
    }
    assert_eq!(*served.lock(), [0, 1, 2, 3, 4]);
    Ok(())
}

async fn try_does_not_overtake_local_waiters(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let reader = manager.read(&name).await?;
    let writer = begin(manager.write(&name));
    assert!(manager.try_read(&name).await?.is_none(), "a local writer waits");
    reader.release().await?;
    granted(writer).await.release().await?;
    Ok(())
}

async fn wait_timeout_ends_the_wait_and_leaves_nothing(f: &Fixture) {
    let ([a, b], name) = f.scene().await;
    let guard = a.write(&name).await.expect("granted");
    let limit = Duration::from_millis(60);
    for other in [&a, &b] {
        for outcome in [
            other.write(&name).wait_timeout(limit).await.map(drop),
            other.read(&name).wait_timeout(limit).await.map(drop),
        ] {
            assert_matches!(
                outcome,
                Err(Error::WaitTimeout { lock, waited, .. }) if **lock == *name && *waited >= limit
            );
        }
    }
    let view = f.view(&name).await;
    assert_eq!((view.holders.len(), view.holders[0].mode), (1, Mode::Write));
    guard.release().await.expect("released");
    f.becomes_free(&name).await;
}

async fn wait_timeout_of_a_manager_is_the_default(f: &Fixture) -> Outcome {
    let settings = Settings { wait_timeout: Some(Duration::from_millis(50)), ..Settings::default() };
    let (a, b, name) = (f.manager().await, f.manager_with(settings).await, f.name());
    let guard = a.write(&name).await?;
    assert!(matches!(b.read(&name).await, Err(Error::WaitTimeout { .. })));
    guard.release().await?;
    b.read(&name).await?.release().await?;
    Ok(())
}

/// Counts who is inside. A writer weighs too much for anybody beside it.
#[derive(Default)]
struct Inside(AtomicI64);

impl Inside {
    const WRITER: i64 = 1_000_000;

    /// Acquires the lock, and asserts that no guard that it excludes is inside.
    async fn visit(&self, manager: &Manager, name: &str, mode: Mode) -> AnyGuard {
        let guard = take(manager, name, mode).await;
        let weight = if mode == Mode::Write { Self::WRITER } else { 1 };
        let before = self.0.fetch_add(weight, Ordering::SeqCst);
        assert!(before == 0 || mode == Mode::Read && before < Self::WRITER, "a {mode} came in beside others: {before}");
        tokio::task::yield_now().await;
        self.0.fetch_sub(weight, Ordering::SeqCst);
        guard
    }
}

async fn futures_of_one_task_exclude_each_other(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let inside = Inside::default();
    let turns = futures_util::stream::iter(0..8)
        .map(|_| async { inside.visit(&manager, &name, Mode::Write).await.release_unharmed().await });
    let served = soon("all turns", turns.buffer_unordered(8).count()).await;
    assert_eq!(served, 8);
}

async fn joined_futures_exclude_each_other(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let inside = Inside::default();
    let turn = async |mode: Mode| {
        for _ in 0..3 {
            let guard = inside.visit(&manager, &name, mode).await;
            match mode {
                Mode::Write => guard.release_unharmed().await,
                Mode::Read => drop(guard),
            }
        }
    };
    soon("all turns", async { tokio::join!(turn(Mode::Write), turn(Mode::Read), turn(Mode::Write), turn(Mode::Read)) })
        .await;
}

async fn nested_acquisition_without_opt_in_waits(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let limit = Duration::from_millis(50);
    let outer = manager.write(&name).await.expect("granted");
    let inner = manager.write(&name).wait_timeout(limit).await;
    assert_matches!(inner, Err(Error::WaitTimeout { .. }));
    let inner = manager.read(&name).wait_timeout(limit).await;
    assert_matches!(inner, Err(Error::WaitTimeout { .. }));
    outer.release().await.expect("released");
}

async fn random_workload_never_overlaps(f: &Fixture) {
    let name: Arc<str> = f.name().into();
    let inside = Arc::new(Inside::default());
    // Nobody is notified behind a proxy, so each hand-over takes up to a second there.
    let turns = if f.is_proxied() { 2 } else { 6 };
    let mut tasks = Vec::new();
    for n in 0..9 {
        let (name, inside) = (Arc::clone(&name), Arc::clone(&inside));
        let manager = f.manager().await;
        tasks.push(tokio::spawn(async move {
            for turn in 0..turns {
                let mode = if (n + turn) % 3 == 0 { Mode::Write } else { Mode::Read };
                inside.visit(&manager, &name, mode).await.release_unharmed().await;
            }
        }));
    }
    for outcome in soon("all turns", join_all(tasks)).await {
        outcome.expect("no panic");
    }
    f.becomes_free(&name).await;
}
