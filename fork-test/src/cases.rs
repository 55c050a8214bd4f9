//! Cases, which differ in the state of the process that is copied. A copy may build a manager of its own. The copied
//! manager must refuse all its calls.

use std::time::Duration;

use redis_rwlock::blocking::Blocking;
use redis_rwlock::{Ended, Error, HoldState, LossReason, Result, WriteGuard};
use tokio::runtime::{Builder, Runtime};

use crate::copy::Copy;
use crate::kinds::{Kind, Manager};

/// Lock that all processes take, each process with a manager of its own.
const COMMON: &str = "common";
/// Locks that the copied manager holds in some cases, and one lock that it never holds.
const NAMES: [&str; 4] = ["written", "read", "cached", "other"];
const LOST: HoldState = HoldState::Lost(LossReason::Forked);

pub fn run(case: &str, kind: &Kind) {
    match case {
        "unused" => unused(kind),
        "used" => used(kind),
        "held" => held(kind),
        "cached" => cached(kind),
        "waiting" => waiting(kind),
        "runtime" => runtime_is_dropped(kind),
        "blocking" => blocking(kind),
        "no-thread" => no_thread(kind),
        _ => panic!("no such case: {case}"),
    }
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

#[track_caller]
fn is_forked<T>(outcome: Result<T>) {
    match outcome {
        Err(error @ Error::Forked { .. }) => {
            let words = error.to_string();
            assert!(words.ends_with("build another manager in this process"), "{words}");
        }
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("the copy may do it"),
    }
}

/// Asserts that the copy of a manager refuses all calls.
async fn refuses_all(manager: &Manager) {
    for name in NAMES {
        is_forked(manager.write(name).await);
        is_forked(manager.read(name).await);
        is_forked(manager.read(name).reentrant().await);
        is_forked(manager.write(name).wait_timeout(Duration::ZERO).await);
        is_forked(manager.try_write(name).await);
        is_forked(manager.try_read(name).await);
        is_forked(manager.write(name).run(async |_| ()).await);
        is_forked(manager.inspect(name).await);
        is_forked(manager.force_release(name).await);
    }
    is_forked(manager.locks().await);
    is_forked(manager.health().await);
    is_forked(manager.flush().await);
    is_forked(manager.close().await);
    assert_eq!(manager.stats().holds, 0);
}

async fn is_renewed(guard: &WriteGuard) {
    let mut before = guard.remaining();
    while guard.remaining() <= before {
        assert_eq!(guard.state(), HoldState::Held);
        before = guard.remaining();
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
}

/// Takes the common lock and keeps it until a renewal. The renewal shows that the background runtime of this process
/// works.
async fn is_inside(manager: &Manager) {
    let guard = manager.write(COMMON).await.expect("granted");
    println!("in {}", u64::from(guard.fencing_token()));
    is_renewed(&guard).await;
    println!("out {}", u64::from(guard.fencing_token()));
    guard.release().await.expect("held to the end");
}

/// Takes the common lock with a manager that is built in this process.
fn is_another_holder(kind: &Kind) {
    runtime().block_on(is_inside(&kind.build()));
}

/// Makes two copies of this process. In each, the copied manager refuses all calls, and a new manager works.
fn copies(kind: &Kind, manager: &Manager) -> [Copy; 2] {
    [(); 2].map(|()| {
        Copy::of_this(|| {
            runtime().block_on(refuses_all(manager));
            is_another_holder(kind);
        })
    })
}

/// Takes the common lock with the original manager while the copies run.
fn goes_on_beside(copies: [Copy; 2], runtime: &Runtime, manager: &Manager) {
    runtime.block_on(is_inside(manager));
    copies.into_iter().for_each(Copy::ends_well);
    assert_eq!(manager.stats().reconnects, 0, "no connection has suffered");
}

fn unused(kind: &Kind) {
    let manager = kind.build();
    let copies = copies(kind, &manager);
    goes_on_beside(copies, &runtime(), &manager);
}

fn used(kind: &Kind) {
    let (runtime, manager) = (runtime(), kind.build());
    runtime.block_on(async { manager.write(COMMON).await?.release().await }).expect("used");
    let copies = copies(kind, &manager);
    goes_on_beside(copies, &runtime, &manager);
}

fn held(kind: &Kind) {
    let (runtime, manager) = (runtime(), kind.build());
    let take = async |name| manager.write(name).await.expect("granted");
    let (written, second, third) =
        runtime.block_on(async { (take("written").await, take("2").await, take("3").await) });
    let (read, again) = runtime.block_on(async { (manager.read("read").await, manager.read("read").await) });
    let (watch, token) = (written.watch(), written.fencing_token());
    let mut guards = Some((written, second, third, read.expect("granted"), again.expect("joined")));
    let copy = Copy::of_this(|| {
        let (written, second, third, read, again) = guards.take().expect("there");
        let runtime = self::runtime();
        runtime.block_on(async {
            assert_eq!((written.state(), written.remaining()), (LOST, Duration::ZERO));
            assert_eq!((read.state(), watch.state(), written.watch().state()), (LOST, LOST, LOST));
            assert_eq!((read.lost().await, watch.ended().await), (LossReason::Forked, Ended::Lost(LossReason::Forked)));
            is_forked(written.confirmed().await);
            refuses_all(&manager).await;
            is_forked(second.downgrade().await.map_err(Error::from));
            is_forked(read.try_upgrade().await.map_err(Error::from));
            is_forked(written.release().await);
        });
        drop((third, again, watch, manager));
        is_another_holder(kind);
    });
    copy.ends_well();
    let (written, second, third, read, again) = guards.expect("the copy has taken its own");
    runtime.block_on(async {
        assert_eq!(written.fencing_token(), token);
        is_renewed(&written).await;
        if kind.is_shared() {
            assert!(kind.build().try_write("written").await.expect("answered").is_none(), "it is held");
        }
        for guard in [written, second, third] {
            guard.release().await.expect("held to the end");
        }
        read.release().await.expect("held to the end");
        again.release().await.expect("held to the end");
    });
}

fn cached(kind: &Kind) {
    let (runtime, manager) = (runtime(), kind.build_caching());
    let cache = async || {
        while manager.stats().cached_holds == 0 {
            manager.write("cached").await.expect("granted").release().await.expect("held to the end");
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    runtime.block_on(cache());
    let copies = copies(kind, &manager);
    copies.into_iter().for_each(Copy::ends_well);
    assert_eq!(manager.stats().cached_holds, 1, "the copies have left it alone");
    runtime.block_on(async { manager.write("cached").await?.release().await }).expect("taken from the cache");
}

/// Copies an acquisition that has a place in the queue. One copy of the process polls it, and the other copy drops it.
fn waiting(kind: &Kind) {
    let (runtime, manager) = (runtime(), kind.build());
    let guard = runtime.block_on(manager.write("written").into_future()).expect("granted");
    let mut waits = Some(manager.write("written").into_future());
    runtime.block_on(async {
        let mut waits = std::pin::pin!(waits.as_mut().expect("there"));
        let queued = async {
            while manager.stats().waiters == 0 {
                tokio::time::sleep(Duration::from_millis(5)).await;
            }
        };
        tokio::select! {
            biased;
            _ = &mut waits => panic!("the lock is taken"),
            () = queued => {}
        }
    });
    let polls = Copy::of_this(|| is_forked(self::runtime().block_on(waits.take().expect("there"))));
    let drops = Copy::of_this(|| drop(waits.take()));
    polls.ends_well();
    drops.ends_well();
    let next = runtime.block_on(async {
        guard.release().await.expect("held to the end");
        waits.expect("the copies have taken their own").await.expect("granted")
    });
    assert_eq!(next.state(), HoldState::Held);
}

/// Makes a copy that uses the copied runtime, and that drops the copied guard, manager and runtime at its end.
fn runtime_is_dropped(kind: &Kind) {
    let (runtime, manager) = (runtime(), kind.build());
    let guard = runtime.block_on(manager.write("written").into_future()).expect("granted");
    let mut all = Some((guard, manager, runtime));
    let copy = Copy::of_this(|| {
        let (guard, manager, runtime) = all.take().expect("there");
        runtime.block_on(async {
            // A connection is open, and the original process would send the release on it. The copy must not send it.
            drop(guard);
            is_forked(manager.write("other").await);
        });
        drop((manager, runtime));
    });
    copy.ends_well();
    let (guard, manager, runtime) = all.expect("the copy has dropped its own");
    runtime.block_on(is_inside(&manager));
    runtime.block_on(guard.release()).expect("held to the end");
    assert_eq!(manager.stats().reconnects, 0, "no connection has suffered");
}

fn blocking(kind: &Kind) {
    let manager = Blocking::over(kind.build()).expect("a thread");
    let mut guard = Some(manager.write("written").wait().expect("granted"));
    let copy = Copy::of_this(|| {
        let guard = guard.take().expect("there");
        assert_eq!(guard.state(), LOST);
        for name in NAMES {
            is_forked(manager.write(name).wait());
            is_forked(manager.read(name).wait_timeout(Duration::ZERO).wait());
            is_forked(manager.try_write(name));
            is_forked(manager.inspect(name));
            is_forked(manager.force_release(name));
        }
        is_forked(manager.health());
        is_forked(manager.locks());
        is_forked(guard.confirmed());
        is_forked(guard.release());
        is_forked(manager.flush());
        is_forked(manager.close());
        drop(manager);
        let own = Blocking::over(kind.build()).expect("a thread");
        let guard = own.write(COMMON).wait().expect("granted");
        println!("in {token}\nout {token}", token = u64::from(guard.fencing_token()));
        guard.release().expect("held to the end");
    });
    copy.ends_well();
    guard.expect("the copy has taken its own").release().expect("held to the end");
}

/// Asserts that background work runs on the caller's runtime if the process can start no thread. A blocking manager is
/// refused then.
fn no_thread(kind: &Kind) {
    assert!(std::thread::Builder::new().spawn(|| ()).is_err(), "this process may start no thread");
    let manager = kind.build();
    runtime().block_on(async {
        is_inside(&manager).await;
        drop(manager.write(COMMON).await.expect("granted"));
        is_inside(&manager).await;
    });
    match Blocking::over(manager) {
        Err(Error::InvalidOption { option: "runtime", .. }) => {}
        Err(other) => panic!("{other}"),
        Ok(_) => panic!("a blocking manager has a thread"),
    }
}
