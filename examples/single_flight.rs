//! Single flight: many tasks and processes miss one cache entry at the same time, and one of them makes the value.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example single_flight`

use std::error::Error;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Client, Script};
use redis_rwlock::{FencingToken, RedisManager, RwLockManager};
use tokio::task::JoinSet;

type Result<T> = std::result::Result<T, Box<dyn Error + Send + Sync>>;

/// Longest wait for a value that another task or process makes.
const LIMIT: Duration = Duration::from_secs(10);

/// Script that stores a value for a minute, unless a later maker has stored one already.
const STORE: &str = "
    local highest = tonumber(redis.call('HGET', KEYS[1], 'token') or '0')
    if tonumber(ARGV[1]) < highest then return redis.error_reply('STALE a later maker was here') end
    redis.call('HSET', KEYS[1], 'token', ARGV[1], 'value', ARGV[2])
    return redis.call('PEXPIRE', KEYS[1], 60000)";

/// Cache of one process.
#[derive(Clone)]
struct Cache {
    locks: RedisManager,
    server: MultiplexedConnection,
    made: Arc<AtomicUsize>,
}

impl Cache {
    /// Returns the cached value, or makes it.
    async fn get(&self, name: &str) -> Result<String> {
        if let Some(value) = self.look_up(name).await? {
            return Ok(value); // the usual case takes no lock
        }
        let guard = match self.locks.try_write(name).await? {
            Some(guard) => guard,
            None => {
                // Another one makes the value. All readers that wait here enter together when it is done.
                let reading = self.locks.read(name).wait_timeout(LIMIT).await?;
                if let Some(value) = self.look_up(name).await? {
                    return Ok(value);
                }
                drop(reading); // the maker failed or died: now the waiters try, one after the other
                self.locks.write(name).wait_timeout(LIMIT).await?
            }
        };
        // Another maker may have stored the value before this grant.
        if let Some(value) = self.look_up(name).await? {
            return Ok(value);
        }
        let value = tokio::select! {
            value = self.make(name) => value?,
            reason = guard.lost() => return Err(reason.into()),
        };
        self.store(name, &value, guard.fencing_token()).await?;
        Ok(value) // the guard is dropped, and the manager releases the lock in the background
    }

    async fn look_up(&self, name: &str) -> Result<Option<String>> {
        Ok(self.server.clone().hget(format!("cache:{name}"), "value").await?)
    }

    async fn store(&self, name: &str, value: &str, token: FencingToken) -> Result<()> {
        let (script, mut server) = (Script::new(STORE), self.server.clone());
        let mut call = script.key(format!("cache:{name}"));
        Ok(call.arg(token.to_string()).arg(value).invoke_async(&mut server).await?)
    }

    /// Makes the value, which takes long.
    async fn make(&self, name: &str) -> Result<String> {
        self.made.fetch_add(1, Ordering::Relaxed);
        tokio::time::sleep(Duration::from_millis(100)).await;
        Ok(format!("the value of {name}"))
    }
}

/// Lets 20 tasks in each process ask for one entry. Returns how many of them made the value.
async fn ask_all(processes: &[Cache], name: &'static str) -> Result<usize> {
    let made = || processes.iter().map(|process| process.made.load(Ordering::Relaxed)).sum::<usize>();
    let (before, mut tasks) = (made(), JoinSet::new());
    for process in processes {
        for _ in 0..20 {
            let process = process.clone();
            tasks.spawn(async move { process.get(name).await });
        }
    }
    while let Some(value) = tasks.join_next().await {
        assert_eq!(value??, format!("the value of {name}"));
    }
    Ok(made() - before)
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let server = Client::open(&*url)?.get_multiplexed_async_connection().await?;
    let mut processes = Vec::new();
    for _ in 0..3 {
        let locks = RedisManager::connect(&url).await?;
        processes.push(Cache { locks, server: server.clone(), made: Arc::default() });
    }
    println!("60 callers in 3 processes, {} made the value", ask_all(&processes, "rates").await?);

    // A lease that is not renewed simulates a process that died while it made the value.
    let dead = RedisManager::connect(&url).await?;
    let left = dead.write("stock").fixed_lease(Duration::from_millis(500)).await?;
    println!("60 callers behind a dead maker, {} made the value", ask_all(&processes, "stock").await?);
    drop(left);

    for process in &processes {
        process.locks.close().await?;
    }
    Ok(dead.close().await?)
}
