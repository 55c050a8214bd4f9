//! Drops of guards and managers in other threads, during panics, and after the end of a runtime. No drop panics, and
//! leases end the remaining holds.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use redis_rwlock::{HoldState, MemoryManager, RwLockManager};

use crate::fixture::{Fixture, RENEWED, SHORT, Settings, on_every_fixture};
use crate::wait::{granted, soon};

on_every_fixture![
    guard_dropped_in_a_thread_releases,
    guard_dropped_after_its_runtime_leaves_no_more_than_a_lease,
    guard_dropped_while_panicking_releases,
    panicking_task_releases,
    manager_dropped_with_its_guards_leaves_nothing,
    runtime_shut_down_with_guards_and_waiters_leaves_no_more_than_a_lease,
    manager_goes_on_in_another_runtime,
];

async fn guard_dropped_in_a_thread_releases(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).await.expect("granted");
    std::thread::spawn(move || drop(guard)).join().expect("no panic");
    f.becomes_free(&name).await;
}

async fn guard_dropped_after_its_runtime_leaves_no_more_than_a_lease(f: &Fixture) {
    let name = f.name();
    let mut process = f.process(Settings::lease(SHORT)).await;
    let write = name.clone();
    let guard = process.run(|manager| Box::pin(async move { manager.write(&write).await })).await.expect("granted");
    process.die().await;
    let watch = guard.watch();
    std::thread::spawn(move || {
        drop(guard);
        drop(process);
    })
    .join()
    .expect("no panic");
    drop(watch);
    f.becomes_free(&name).await;
}

async fn guard_dropped_while_panicking_releases(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).await.expect("granted");
    let outcome = catch_unwind(AssertUnwindSafe(move || {
        let _held = guard;
        std::panic::resume_unwind(Box::new("while it holds"));
    }));
    assert!(outcome.is_err());
    f.becomes_free(&name).await;
}

async fn panicking_task_releases(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let write = name.clone();
    let task = tokio::spawn(async move {
        let _held = manager.write(&write).await.expect("granted");
        std::panic::resume_unwind(Box::new("while it holds"));
    });
    assert!(soon("the panic", task).await.expect_err("it panics").is_panic());
    f.becomes_free(&name).await;
}

async fn manager_dropped_with_its_guards_leaves_nothing(f: &Fixture) {
    let manager = f.manager().await;
    let names: Vec<String> = (0..20).map(|_| f.name()).collect();
    let mut guards = Vec::new();
    for name in &names {
        guards.push(manager.write(name).await.expect("granted"));
    }
    drop(manager);
    drop(guards);
    for name in &names {
        f.becomes_free(name).await;
    }
}

async fn runtime_shut_down_with_guards_and_waiters_leaves_no_more_than_a_lease(f: &Fixture) {
    let name = f.name();
    let mut process = f.process(Settings::lease(SHORT)).await;
    let held = name.clone();
    let watch = process
        .run(|manager| {
            Box::pin(async move {
                let guard = manager.write(&held).await.expect("granted");
                let watch = guard.watch();
                let waiting = manager.read(&held).into_future();
                // Guard and waiter end with the runtime.
                drop(tokio::spawn(async move {
                    let _held = guard;
                    std::future::pending::<()>().await;
                }));
                drop(tokio::spawn(async move { drop(waiting.await) }));
                watch
            })
        })
        .await;
    process.die().await;
    assert_ne!(watch.state(), HoldState::Unconfirmed);
    drop(process);
    f.becomes_free(&name).await;
}

/// A manager in a static outlives runtimes, as in a test suite that has a runtime for each test.
async fn manager_goes_on_in_another_runtime(f: &Fixture) {
    let (name, other) = (f.name(), f.name());
    let mut process = f.elsewhere(Settings::lease(RENEWED)).await;
    let write = name.clone();
    let guard = process.run(|manager| Box::pin(async move { manager.write(&write).await })).await.expect("granted");
    let manager = Arc::clone(&process.manager);
    process.die().await;
    let here = granted(manager.write(&other)).await;
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(here.state(), HoldState::Held, "it is renewed here");
    here.release().await.expect("ours to the end");
    drop(guard);
    f.becomes_free(&name).await;
}

#[test]
fn managers_are_made_and_dropped_outside_of_runtimes() {
    drop(MemoryManager::new());
    drop(redis_rwlock::RedisManager::builder("redis://127.0.0.1:1").build().expect("built"));
    drop(redis_rwlock::TwoKeyManager::builder("redis://127.0.0.1:1").build().expect("built"));
    let manager = MemoryManager::new();
    drop(manager.write("cfg"));
    drop(manager.try_write("cfg"));
    drop(manager.close());
}
