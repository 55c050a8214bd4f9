//! Calls without a runtime, and on runtimes that end, stand still or are blocked.

use std::sync::Arc;
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use redis_rwlock::{Error, HoldState, LossReason, MemoryManager, Mode, RedisManager, RwLockManager};
use tokio::runtime::Runtime;

use crate::fixture::{Fixture, RENEWED, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Outcome, granted, soon, until};

on_every_fixture![
    loss_is_told_though_the_runtime_has_ended,
    guard_without_its_manager_is_renewed,
    runtime_that_is_not_driven_keeps_nobody_from_its_answer,
];

// These cases look at the waiters.
on_every_queue![
    runtimes_that_end_stand_or_are_blocked_take_no_hold_along,
    waiter_goes_on_where_another_runtime_waited_before,
];

/// A thread with a runtime. The runtime does one work, and then no thread drives it until the end.
pub struct Elsewhere {
    /// Signal for the end: the runtime ends when this is dropped.
    end: Option<std::sync::mpsc::Sender<()>>,
    thread: Option<std::thread::JoinHandle<()>>,
}

/// State of a runtime after its work is done.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Then {
    /// No thread drives the runtime.
    Stands,
    /// A computation keeps the only thread of the runtime.
    IsBlocked,
}

impl Elsewhere {
    /// Does the work on the runtime, and returns its result.
    pub async fn after<T: Send + 'static>(then: Then, work: impl Future<Output = T> + Send + 'static) -> (Self, T) {
        let (end, ends) = std::sync::mpsc::channel::<()>();
        let (tell, told) = tokio::sync::oneshot::channel();
        let thread = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
            let wait = move || ends.recv().unwrap_or_default();
            match then {
                Then::Stands => {
                    drop(tell.send(runtime.block_on(work)));
                    wait();
                }
                Then::IsBlocked => runtime.block_on(async move {
                    drop(tell.send(work.await));
                    wait();
                }),
            }
        });
        let outcome = soon("the work", told).await.expect("no panic");
        (Self { end: Some(end), thread: Some(thread) }, outcome)
    }
}

impl Drop for Elsewhere {
    fn drop(&mut self) {
        self.end = None;
        if let Some(thread) = self.thread.take() {
            drop(thread.join());
        }
    }
}

async fn runtimes_that_end_stand_or_are_blocked_take_no_hold_along(f: &Fixture) {
    let names: Vec<String> = (0..4).map(|_| f.name()).collect();
    // The runtime that uses the manager first is the one that ends.
    let mut ends = f.elsewhere(Settings::lease(RENEWED)).await;
    let name = names[0].clone();
    let mut guards = vec![ends.run(|manager| Box::pin(async move { manager.write(&name).await })).await];
    let manager = Arc::clone(&ends.manager);
    let mut elsewhere = Vec::new();
    for (then, name) in [(Then::Stands, &names[1]), (Then::IsBlocked, &names[2])] {
        let (runtime, guard) = Elsewhere::after(then, manager.write(name).into_future()).await;
        elsewhere.push(runtime);
        guards.push(guard);
    }
    guards.push(manager.write(&names[3]).await);
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.expect("granted")).collect();
    ends.die().await;
    tokio::time::sleep(RENEWED * 2).await;
    let states: Vec<_> = guards.iter().map(|guard| guard.state()).collect();
    assert_eq!(states, [HoldState::Held; 4], "of the runtimes that ended, stands, is blocked, and runs");
    let others = f.manager().await;
    let waiters: Vec<_> = names.iter().map(|name| tokio::spawn(others.write(name).into_future())).collect();
    until("all wait", async || {
        let mut waiting = 0;
        for name in &names {
            waiting += f.view(name).await.waiters.len();
        }
        waiting == names.len()
    })
    .await;
    let dropped = Instant::now();
    std::thread::spawn(move || drop(guards)).join().expect("no panic");
    for waiter in waiters {
        granted(waiter).await.release().await.expect("released");
    }
    assert!(dropped.elapsed() < RENEWED / 2, "not released, but run out: {:?}", dropped.elapsed());
    drop(elsewhere);
}

async fn runtime_that_is_not_driven_keeps_nobody_from_its_answer(f: &Fixture) {
    let manager = f.lazy_manager(Settings::default()).await;
    let (other, name) = (manager.write(&f.name()).into_future(), f.name());
    // The acquisition on the runtime that stands has begun to connect and to ask for the owner of the slot.
    let (stopped, begun) = Elsewhere::after(Then::Stands, async move {
        let mut other = Box::pin(other);
        (&mut other).now_or_never().is_none().then_some(other)
    })
    .await;
    let guard = manager.write(&name).wait_timeout(Duration::from_secs(2)).into_future();
    tokio::time::timeout(Duration::from_secs(5), guard)
        .await
        .expect("in time")
        .expect("granted")
        .release()
        .await
        .expect("released");
    drop((begun, stopped));
}

async fn waiter_goes_on_where_another_runtime_waited_before(f: &Fixture) -> Outcome {
    let name = f.name();
    let holder = f.manager().await.write(&name).await?;
    let mut ends = f.elsewhere(Settings::default()).await;
    let manager = Arc::clone(&ends.manager);
    let first = name.clone();
    ends.run(|manager| {
        Box::pin(async move {
            drop(tokio::spawn(manager.write(&first).into_future()));
        })
    })
    .await;
    f.until_waiting(1, &name).await;
    let next = tokio::spawn(manager.write(&name).into_future());
    ends.die().await;
    holder.release().await?;
    granted(next).await.release().await?;
    Ok(())
}

async fn guard_without_its_manager_is_renewed(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let guard = manager.write(&name).await?;
    drop(manager);
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(guard.state(), HoldState::Held, "it keeps what renews it");
    assert!(f.manager().await.try_read(&name).await?.is_none());
    guard.release().await?;
    Ok(())
}

async fn loss_is_told_though_the_runtime_has_ended(f: &Fixture) {
    let name = f.name();
    let mut process = f.process(Settings::lease(RENEWED)).await;
    let guard = process.take(&name, Mode::Write).await;
    process.die().await;
    let dead = Instant::now();
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    assert!(dead.elapsed() < RENEWED * 2, "{:?}", dead.elapsed());
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Expired));
    assert_matches!(guard.release().await, Err(Error::Lost { .. }));
    f.becomes_free(&name).await;
}

/// Polls a future on a plain thread, without a runtime.
fn outside<T>(future: impl Future<Output = T>) -> T {
    future.now_or_never().expect("ready at once")
}

fn assert_wants_a_runtime(error: &Error) {
    assert_matches!(error, Error::InvalidOption { option: "runtime", .. });
    assert!(error.to_string().contains("tokio runtime"), "{error}");
}

#[test]
fn outside_of_a_runtime_everything_is_a_typed_error() {
    let memory = MemoryManager::new();
    let servers = RedisManager::builder("redis://127.0.0.1:1");
    assert_wants_a_runtime(&outside(servers.connect()).expect_err("no runtime"));
    let servers = RedisManager::builder("redis://127.0.0.1:1").build().expect("it needs none to be built");
    for manager in [&memory as &dyn RwLockManager, &servers] {
        let errors = [
            outside(manager.read("cfg").into_future()).map(drop),
            outside(manager.write("cfg").into_future()).map(drop),
            outside(manager.try_write("cfg")).map(drop),
            outside(manager.inspect("cfg")).map(drop),
            outside(manager.force_release("cfg")).map(drop),
            outside(manager.close()),
        ];
        errors.into_iter().for_each(|outcome| assert_wants_a_runtime(&outcome.expect_err("no runtime")));
    }
}

#[test]
fn guard_released_outside_of_a_runtime_is_released_in_its_own() -> Outcome {
    let runtime = Runtime::new()?;
    let manager = MemoryManager::new();
    let guard = runtime.block_on(manager.write("cfg").into_future())?;
    assert_wants_a_runtime(&outside(guard.release()).expect_err("no runtime"));
    let next = runtime.block_on(soon("the release", manager.peer().write("cfg").into_future()));
    runtime.block_on(next?.release())?;
    Ok(())
}

#[test]
fn guard_converted_outside_of_a_runtime_comes_back_with_its_hold() -> Outcome {
    let runtime = Runtime::new()?;
    let manager = MemoryManager::new();
    let writing = runtime.block_on(manager.write("cfg").into_future())?;
    let refused = outside(writing.downgrade()).expect_err("no runtime");
    assert_wants_a_runtime(refused.error());
    let writing = refused.into_guard();
    assert_eq!(writing.state(), HoldState::Held);
    let reading = runtime.block_on(writing.downgrade())?;
    let refused = outside(reading.try_upgrade()).expect_err("no runtime");
    assert_wants_a_runtime(refused.error());
    let reading = refused.into_guard();
    assert_eq!(reading.state(), HoldState::Held);
    let writing = runtime.block_on(reading.try_upgrade())?;
    runtime.block_on(writing.release())?;
    Ok(())
}

#[test]
fn claim_awaited_outside_of_a_runtime_stays_one() -> Outcome {
    let runtime = Runtime::new()?;
    let manager = MemoryManager::new();
    let guard = runtime.block_on(async {
        let before = manager.peer().write("cfg").await.expect("granted");
        let waiter = manager.write("cfg").lease(Duration::from_secs(30)).into_future();
        let (guard, released) = tokio::join!(waiter, before.release());
        released.expect("released");
        guard.expect("granted")
    });
    assert_wants_a_runtime(&outside(guard.confirmed()).expect_err("no runtime"));
    assert_eq!(guard.state(), HoldState::Held);
    runtime.block_on(guard.confirmed())?;
    outside(guard.confirmed()).expect("there is nothing to wait for");
    runtime.block_on(guard.release())?;
    Ok(())
}
