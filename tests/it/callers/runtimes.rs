//! Runtimes that are not there, or not any more.

use std::time::Instant;

use redis_rwlock::{ClusterManager, Error, HoldState, LossReason, MemoryManager, RwLockManager};
use tokio::runtime::Runtime;

use crate::fixture::{Fixture, RENEWED, Settings, on_every_fixture};
use crate::wait::soon;

on_every_fixture![loss_is_told_though_the_runtime_has_ended, guard_without_its_manager_is_renewed];

async fn guard_without_its_manager_is_renewed(f: &Fixture) {
    let (manager, name) = (f.manager_with(Settings::lease(RENEWED)).await, f.name());
    let guard = manager.write(&name).await.expect("granted");
    drop(manager);
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(guard.state(), HoldState::Held, "it keeps what renews it");
    assert!(f.manager().await.try_read(&name).await.expect("answered").is_none());
    guard.release().await.expect("ours to the end");
}

async fn loss_is_told_though_the_runtime_has_ended(f: &Fixture) {
    let name = f.name();
    let mut process = f.process(Settings::lease(RENEWED)).await;
    let write = name.clone();
    let guard = process.run(|manager| Box::pin(async move { manager.write(&write).await })).await.expect("granted");
    process.die().await;
    let dead = Instant::now();
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    assert!(dead.elapsed() < RENEWED * 2, "{:?}", dead.elapsed());
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Expired));
    let error = guard.release().await.expect_err("it was lost");
    assert!(matches!(error, Error::Lost { .. }), "{error:?}");
    f.becomes_free(&name).await;
}

/// Polls by hand: a plain thread.
fn outside<T>(future: impl Future<Output = T>) -> T {
    futures_util::FutureExt::now_or_never(future).expect("ready at once")
}

fn assert_wants_a_runtime(error: &Error) {
    assert!(matches!(error, Error::InvalidOption { option: "runtime", .. }), "{error:?}");
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

#[test]
fn outside_of_a_runtime_everything_is_a_typed_error() {
    let memory = MemoryManager::new();
    let servers = ClusterManager::builder("redis://127.0.0.1:1");
    assert_wants_a_runtime(&outside(servers.connect()).expect_err("no runtime"));
    let servers = ClusterManager::builder("redis://127.0.0.1:1").build().expect("it needs none to be built");
    for manager in [&memory as &dyn RwLockManager, &servers] {
        let errors = [
            outside(manager.read("cfg").into_future()).map(drop),
            outside(manager.write("cfg").into_future()).map(drop),
            outside(manager.try_write("cfg")).map(drop),
            outside(manager.inspect("cfg")).map(drop),
            outside(manager.force_release("cfg")),
            outside(manager.close()),
        ];
        errors.into_iter().for_each(|outcome| assert_wants_a_runtime(&outcome.expect_err("no runtime")));
    }
}

#[test]
fn guard_released_outside_of_a_runtime_is_released_in_its_own() {
    let runtime = Runtime::new().expect("a runtime starts");
    let manager = MemoryManager::new();
    let guard = runtime.block_on(manager.write("cfg").into_future()).expect("granted");
    assert_wants_a_runtime(&outside(guard.release()).expect_err("no runtime"));
    let next = runtime.block_on(soon("the release", manager.peer().write("cfg").into_future()));
    runtime.block_on(next.expect("granted").release()).expect("released");
}
