//! Does one lock operation so and so often, on one thread. `.ci/instructions` runs it under callgrind at two counts: their
//! difference is what the operations cost, without the start and the end.
//!
//! usage: instructions memory_pair|memory_join COUNT, or instructions server_pair|server_join|server_hold|server_waiter COUNT URL
//!
//! For `server_hold` and `server_waiter` the memory counts that is in use at the end.
//!
//! `instructions pairs URL` is the worker of the scenario `throughput`, for builds of other revisions (`benches/before`).

mod pairs;

use std::hint::black_box;
use std::pin::Pin;
use std::process::ExitCode;
use std::task::{Context, Waker};
use std::time::Duration;

use redis_rwlock::{Build, Builder, MemoryManager, RedisManager, Result, RwLockManager, Topology};

/// Lease with which no renewal is due while this runs.
const LONG: Duration = Duration::from_secs(24 * 3600);

async fn connected<M: Build>(builder: Builder<M>) -> Result<M> {
    // With this join window, no join sends a request.
    builder.lease(LONG).max_hold(LONG * 2).join_window(LONG).connect().await
}

/// Acquires and releases a lock that no other task wants.
async fn take_and_give_back(manager: &impl RwLockManager, count: u32) -> Result<()> {
    for _ in 0..count {
        black_box(manager.write("pair").await?).release().await?;
    }
    Ok(())
}

/// Reads, and no longer, a lock that this process reads all the time.
async fn joins(manager: &impl RwLockManager, count: u32) -> Result<()> {
    let kept = manager.read("join").await?;
    for _ in 0..count {
        drop(black_box(manager.read("join").await?));
    }
    kept.release().await
}

/// Acquires this number of locks, and ends the process with them, because the memory in use at the end is counted. No
/// process releases them on the server, so each count has names of its own.
async fn holds(manager: &impl RwLockManager, count: u32) -> Result<()> {
    let mut guards = Vec::with_capacity(count as usize);
    for lock in 0..count {
        guards.push(manager.write(&format!("held-{count:05}-{lock:05}")).await?);
    }
    exit_with(guards)
}

/// Adds this number of waiters of this process, and ends the process with them, because the memory in use at the end is
/// counted.
async fn waiters(manager: &impl RwLockManager, count: u32) -> Result<()> {
    let name = format!("waited-for-{count:05}");
    let held = manager.write(&name).await?;
    let mut waiting = Vec::with_capacity(count as usize);
    for _ in 0..count {
        let mut acquiring = manager.write(&name).into_future();
        assert!(Pin::new(&mut acquiring).poll(&mut Context::from_waker(Waker::noop())).is_pending(), "it is held");
        waiting.push(acquiring);
    }
    exit_with((held, waiting))
}

fn exit_with<T>(kept: T) -> ! {
    black_box(&kept);
    std::process::exit(0)
}

async fn run(what: &str, count: u32, url: &str) -> Result<()> {
    match what {
        "memory_pair" => take_and_give_back(&connected(MemoryManager::builder()).await?, count).await,
        "memory_join" => joins(&connected(MemoryManager::builder()).await?, count).await,
        "server_pair" => take_and_give_back(&connected(RedisManager::builder(Topology::node(url))).await?, count).await,
        "server_join" => joins(&connected(RedisManager::builder(Topology::node(url))).await?, count).await,
        "server_hold" => holds(&connected(RedisManager::builder(Topology::node(url))).await?, count).await,
        "server_waiter" => waiters(&connected(RedisManager::builder(Topology::node(url))).await?, count).await,
        other => panic!("{other} is none of the operations"),
    }
}

fn main() -> ExitCode {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let (what, count, url) = match &arguments[..] {
        [what, url] if what == "pairs" => {
            pairs::serve(url);
            return ExitCode::SUCCESS;
        }
        [what, count] => (what, count, ""),
        [what, count, url] => (what, count, url.as_str()),
        _ => panic!("two or three arguments are needed"),
    };
    let count = count.parse().expect("the second argument is a number");
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime starts");
    match runtime.block_on(run(what, count, url)) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("{error}");
            ExitCode::FAILURE
        }
    }
}
