//! Nested acquisitions, which are off by default in asynchronous code, and three ways to enable them.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example reentrancy`

use std::time::Duration;

use redis_rwlock::{Error, OwnerId, RedisManager, Reentry, RwLockManager};

#[tokio::main]
async fn main() -> redis_rwlock::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let locks = RedisManager::connect(&url).await?;

    // By default a task waits for its own guard, as with tokio's `RwLock`.
    let outer = locks.write("cfg").await?;
    let inner = locks.write("cfg").wait_timeout(Duration::from_millis(100)).await;
    println!("by default: {}", inner.expect_err("the outer guard has the lock"));
    outer.release().await?;

    // First way, for one acquisition, which may nest in any hold of this task.
    let outer = locks.write("cfg").await?;
    let inner = locks.read("cfg").reentrant().await?;
    println!("reentrant: a read in a write, with token {}", inner.fencing_token());
    outer.release().await?;
    println!("the outer guard is gone; still held: {:?}", inner.state());
    inner.release().await?;

    // Second way, by a named owner, for a job that runs in several tasks.
    let job = OwnerId::new();
    let outer = locks.read("cfg").owner(job).await?;
    let inner = {
        let locks = locks.clone();
        tokio::spawn(async move { locks.read("cfg").owner(job).await })
    };
    let inner = inner.await.expect("no panic")?;
    println!("one owner, two tasks, {} guards", locks.inspect("cfg").await?.holders[0].guards);

    // A write within a read would wait for its own read, so the manager refuses the write at once.
    match locks.write("cfg").owner(job).await {
        Err(error @ Error::UpgradeConflict { .. }) => println!("a write in a read: {error}"),
        other => drop(other?),
    }
    drop((outer, inner));

    // Third way, for a whole manager.
    let nesting = RedisManager::builder(&url).reentry(Reentry::PerTask).connect().await?;
    let (outer, inner) = (nesting.write("cfg").await?, nesting.write("cfg").await?);
    println!("the manager nests: {} and {}", outer.fencing_token(), inner.fencing_token());
    drop((outer, inner));
    nesting.close().await?;
    locks.close().await
}
