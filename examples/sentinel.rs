//! Follows a failover by Sentinels. The manager finds the new primary, and holds that the new primary knows go on.
//!
//! `SENTINELS=redis://10.0.0.1:26379,redis://10.0.0.2:26379 PRIMARY=mymaster cargo run --example sentinel`

use std::env;
use std::time::Duration;

use redis_rwlock::{NodeRole, RedisManager, RwLockManager, Topology};

#[tokio::main]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let sentinels = env::var("SENTINELS")?; // all of them, since the primary needs a majority of the Sentinels
    let topology = Topology::sentinel(env::var("PRIMARY")?, sentinels.split(','));
    // This time is longer than a failover, so no hold ends and no caller gives up during the failover.
    let patience = Duration::from_secs(20);
    let locks = RedisManager::builder(topology).lease(patience).unreachable_after(patience).connect().await?;

    let held = locks.write("held").await?;
    let first = primary(&locks).await?;
    println!("the primary is {first}");

    // Meanwhile run `redis-cli -p 26379 sentinel failover mymaster` in another terminal, or kill the primary.
    let rounds = env::var("ROUNDS").map_or(Ok(10), |rounds| rounds.parse())?;
    for round in 1..=rounds {
        let guard = locks.write("cfg").await?;
        println!("round {round}: token {}", guard.fencing_token());
        guard.release().await?;
        if primary(&locks).await? != first {
            println!("the primary is {} now", primary(&locks).await?);
            break;
        }
        tokio::time::sleep(Duration::from_millis(200)).await;
    }
    println!("the hold from the beginning is {:?}, {:.1?} left", held.state(), held.remaining());
    held.release().await?;
    Ok(locks.close().await?)
}

/// Returns the address of the primary.
async fn primary(locks: &RedisManager) -> redis_rwlock::Result<String> {
    let health = locks.health().await?;
    let primary = health.nodes.into_iter().find(|node| node.role == NodeRole::Primary && node.is_reachable);
    Ok(primary.map_or("none".to_owned(), |node| node.address))
}
