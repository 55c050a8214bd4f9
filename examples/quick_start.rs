//! Takes a lock to read and to write, and shows what other processes see meanwhile.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example quick_start`

use std::time::Duration;

use redis_rwlock::{Error, RedisManager, RwLockManager};

#[tokio::main]
async fn main() -> redis_rwlock::Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let locks = RedisManager::connect(&url).await?;
    // The server treats a second manager like a second process.
    let others = RedisManager::connect(&url).await?;

    let (ours, theirs) = (locks.read("cfg").await?, others.read("cfg").await?);
    println!("two read at the same time, with the tokens {} and {}", ours.fencing_token(), theirs.fencing_token());
    ours.release().await?;
    theirs.release().await?;

    let writing = locks.write("cfg").await?;
    println!("one writes, with token {}", writing.fencing_token());
    println!("without a word from the server it may trust its lock for {:.1?}", writing.remaining());

    // Other processes ask once, or wait with a limit of their choice.
    println!("may another one read now? {}", others.try_read("cfg").await?.is_some());
    match others.read("cfg").wait_timeout(Duration::from_millis(200)).await {
        Err(error @ Error::WaitTimeout { .. }) => println!("another one gave up: {error}"),
        other => drop(other?),
    }
    for holder in others.inspect("cfg").await?.holders {
        println!("inspect: {} holds it to {} since {:.1?}", holder.label, holder.mode, holder.age);
    }

    writing.release().await?; // Ok: the server has released the lock, and the hold was valid until then
    println!("released; may another one read now? {}", others.try_read("cfg").await?.is_some());

    // At its end, a program releases all remaining holds.
    others.close().await?;
    locks.close().await
}
