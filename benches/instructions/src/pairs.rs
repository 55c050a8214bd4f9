//! 256 tasks take and give back locks of their own.

use std::hint::black_box;
use std::io::{BufRead, stdin};
use std::time::Duration;

use redis_rwlock::{RedisManager, Result, RwLockManager, Topology};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

pub(crate) const TASKS: usize = 256;
/// Nothing is renewed meanwhile.
const LONG_LEASE: Duration = Duration::from_secs(3600);

pub(crate) async fn manager(url: &str) -> Result<RedisManager> {
    RedisManager::builder(Topology::node(url)).lease(LONG_LEASE).max_hold(LONG_LEASE * 2).connect().await
}

/// Each of the tasks takes and gives back its lock so often.
pub(crate) async fn pairs(manager: &RedisManager, each: usize) {
    let mut tasks = JoinSet::new();
    for task in 0..TASKS {
        let manager = manager.clone();
        tasks.spawn(async move {
            let name = format!("bench-{task}");
            for _ in 0..each {
                let guard = manager.write(&name).await.expect("granted");
                black_box(&guard);
                guard.release().await.expect("released");
            }
        });
    }
    tasks.join_all().await;
}

/// Does so for each number on a line of the standard input, and answers each with a line.
pub(crate) fn serve(url: &str) {
    let runtime = Runtime::new().expect("a runtime starts");
    let manager = runtime.block_on(manager(url)).expect("the server answers");
    for line in stdin().lock().lines() {
        let each = line.expect("a line").parse().expect("a number");
        runtime.block_on(pairs(&manager, each));
        println!("done");
    }
}
