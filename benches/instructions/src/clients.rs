//! A hundred clients, each with connections of its own, want one lock.

use std::io::{BufRead, stdin};
use std::process;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis_rwlock::{RedisManager, Result, RwLockManager, Topology};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const CLIENTS: usize = 100;

async fn managers(url: &str) -> Result<Vec<RedisManager>> {
    let mut managers = Vec::with_capacity(CLIENTS);
    for _ in 0..CLIENTS {
        managers.push(RedisManager::builder(Topology::node(url)).connect().await?);
    }
    Ok(managers)
}

/// How often each of them had the lock in that time.
async fn turns(managers: &[RedisManager], span: Duration) -> Vec<u64> {
    let stop = Arc::new(AtomicBool::new(false));
    let mut clients = JoinSet::new();
    for manager in managers {
        let (manager, stop) = (manager.clone(), Arc::clone(&stop));
        clients.spawn(async move {
            // Another build has a lock of its own: each leaves it as its own scripts do.
            let name = format!("clients-{}", process::id());
            let mut turns = 0;
            while !stop.load(Ordering::Relaxed) {
                manager.write(&name).await.expect("granted").release().await.expect("released");
                turns += 1;
            }
            turns
        });
    }
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    clients.join_all().await
}

/// Does so for as many milliseconds as a line of the standard input says, and answers each with how often the lock was given back,
/// and how often the most and the least served had it.
pub(crate) fn serve(url: &str) {
    let runtime = Runtime::new().expect("a runtime starts");
    let managers = runtime.block_on(managers(url)).expect("the server answers");
    for line in stdin().lock().lines() {
        let span = Duration::from_millis(line.expect("a line").parse().expect("a number"));
        let turns = runtime.block_on(turns(&managers, span));
        let (most, least) = (turns.iter().max().expect("a client"), turns.iter().min().expect("a client"));
        println!("{} {most} {least}", turns.iter().sum::<u64>());
    }
}
