//! Guards are values: they are dropped, moved, stored and shared.

use std::sync::Arc;

use redis_rwlock::{HoldState, ReadGuard, RwLockManager, WriteGuard};

use crate::fixture::{Fixture, Manager, on_every_fixture};
use crate::wait::{Outcome, granted, soon};

on_every_fixture![
    dropped_guard_releases_in_the_background,
    release_is_done_when_it_returns,
    guard_works_in_another_task,
    services_take_any_manager,
    nothing_is_sent_before_the_first_poll,
    guards_and_managers_show_their_lock_and_no_more,
];

async fn dropped_guard_releases_in_the_background(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    drop(manager.write(&name).await?);
    f.becomes_free(&name).await;
    drop(manager.read(&name).await?);
    f.becomes_free(&name).await;
    // A drop frees the way here too.
    drop(manager.write(&name).await?);
    granted(manager.write(&name)).await.release().await?;
    Ok(())
}

async fn release_is_done_when_it_returns(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    for _ in 0..10 {
        a.write(&name).await?.release().await?;
        b.try_write(&name).await?.expect("free at once").release().await?;
    }
    Ok(())
}

async fn guard_works_in_another_task(f: &Fixture) -> Outcome {
    fn sendable<T: Send + Sync + 'static>(value: T) -> T {
        value
    }
    let ([manager], name) = f.scene().await;
    let guard: WriteGuard = sendable(manager.write(&name).await?);
    let moved = tokio::spawn(async move {
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await
    });
    soon("the release", moved).await??;
    let guard: ReadGuard = sendable(manager.read(&name).await?);
    let moved = tokio::task::spawn_blocking(move || drop(guard));
    soon("the drop", moved).await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn services_take_any_manager(f: &Fixture) -> Outcome {
    async fn service(locks: impl RwLockManager, name: &str) -> Outcome {
        locks.write(name).await?.release().await?;
        Ok(())
    }
    async fn object(locks: &dyn RwLockManager, name: &str) -> Outcome {
        locks.try_read(name).await?.expect("free").release().await?;
        Ok(())
    }
    let ([manager], name) = f.scene().await;
    let shared: Manager = Arc::clone(&manager);
    service(shared, &name).await?;
    service(Arc::new(Arc::clone(&manager)), &name).await?;
    object(&*manager, &name).await?;
    object(&manager, &name).await?;
    Ok(())
}

async fn nothing_is_sent_before_the_first_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let builder = manager.write(&name);
    let waiting = manager.write(&name).into_future();
    let trying = manager.try_write(&name);
    assert!(f.view(&name).await.is_free());
    // Nor do they stand in a queue here.
    manager.try_write(&name).await?.expect("free").release().await?;
    drop((builder, trying));
    waiting.await?.release().await?;
    Ok(())
}

async fn guards_and_managers_show_their_lock_and_no_more(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let acquire = manager.read(&name);
    assert!(format!("{acquire:?}").contains(&name));
    let guard = acquire.await.expect("granted");
    let shown = format!("{guard:?}");
    assert!(shown.starts_with("ReadGuard") && shown.contains(&name), "{shown}");
    assert!(format!("{:?}", guard.watch()).contains(&name));
    assert!(!format!("{manager:?}").is_empty());
    guard.release().await.expect("released");
}
