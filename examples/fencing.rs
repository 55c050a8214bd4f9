//! Shows a holder that is paused past its lease and writes too late. The resource refuses the write by its fencing
//! token.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example fencing`

use std::error::Error;
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{Client, Script};
use redis_rwlock::{FencingToken, RedisManager, RwLockManager};

/// Script that reads the value, or writes it if a new value is given. It refuses a token below the highest one so far.
/// Reads raise the highest token too.
const VISIT: &str = "
    local highest = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
    if tonumber(ARGV[1]) < highest then return redis.error_reply('STALE a higher token was here') end
    redis.call('HSET', KEYS[1], 'token', ARGV[1])
    if ARGV[2] then redis.call('HSET', KEYS[1], 'value', ARGV[2]) end
    return redis.call('HGET', KEYS[1], 'value')";

async fn visit(
    mut server: MultiplexedConnection,
    token: FencingToken,
    value: Option<&str>,
) -> redis::RedisResult<Option<String>> {
    Script::new(VISIT).key("fencing:value").arg(token.to_string()).arg(value).invoke_async(&mut server).await
}

#[tokio::main]
async fn main() -> Result<(), Box<dyn Error>> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let server = Client::open(&*url)?.get_multiplexed_async_connection().await?;
    let locks = RedisManager::connect(&url).await?;
    let others = RedisManager::connect(&url).await?;

    // A lease without renewals simulates a paused process, for example one that swaps or whose virtual machine is
    // moved.
    let paused = locks.write("value").fixed_lease(Duration::from_millis(500)).await?;
    visit(server.clone(), paused.fencing_token(), Some("one")).await?;
    println!("{}: wrote \"one\", and is paused now", paused.fencing_token());
    tokio::time::sleep(Duration::from_millis(700)).await;

    let reading = others.read("value").await?;
    let value = visit(server.clone(), reading.fencing_token(), None).await?;
    println!("{}: read {value:?}, since the lease of the other one is over", reading.fencing_token());

    // The paused process continues, and assumes that it has the lock alone. But another holder has read the value, so
    // the value must not change now.
    match visit(server, paused.fencing_token(), Some("two")).await {
        Ok(_) => return Err("the late write got through".into()),
        Err(error) => println!("{}: woke up, and its write is refused: {error}", paused.fencing_token()),
    }
    println!("its release tells it, too: {}", paused.release().await.expect_err("it had ended"));
    reading.release().await?;
    Ok(())
}
