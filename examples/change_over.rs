//! Changing over from Redisson's locks to those of this crate: while services of both kinds run, a service takes both locks.
//!
//! `REDIS_URL=redis://127.0.0.1:6379 cargo run --example change_over`
//!
//! Redisson's lock comes first, and ours second, in every service. Two services exclude each other if they have one of the
//! locks in common. So no service takes our lock alone while one of Redisson's runs. docs/MIGRATION.md has the steps.

use std::time::Duration;

use redis_rwlock::{FencingToken, LossReason, RedisManager, RedissonManager, Result, RwLockManager, WriteGuard};

/// Managers of both locks.
#[derive(Clone, Debug)]
struct BothManagers {
    theirs: RedissonManager,
    ours: RedisManager,
}

/// Guards of both locks. Their order is the order in which they are dropped: the lock that came last goes first.
#[derive(Debug)]
struct BothGuards {
    ours: WriteGuard,
    theirs: WriteGuard,
}

impl BothManagers {
    async fn connect(url: &str) -> Result<Self> {
        Ok(Self { theirs: RedissonManager::connect(url).await?, ours: RedisManager::connect(url).await? })
    }

    /// Takes both locks. `read` is written in the same way.
    async fn write(&self, name: &str, limit: Duration) -> Result<BothGuards> {
        let theirs = self.theirs.write(name).wait_timeout(limit).await?;
        let ours = self.ours.write(name).wait_timeout(limit).await?;
        // The wait for the second lock may have taken long.
        theirs.confirmed().await?;
        Ok(BothGuards { ours, theirs })
    }
}

impl BothGuards {
    /// Returns the token of our lock: all services that check tokens take this lock.
    fn fencing_token(&self) -> FencingToken {
        self.ours.fencing_token()
    }

    /// Resolves when either lock is lost. Then nothing excludes others any more, and the work must end.
    async fn lost(&self) -> LossReason {
        tokio::select! {
            reason = self.ours.lost() => reason,
            reason = self.theirs.lost() => reason,
        }
    }

    async fn release(self) -> Result<()> {
        let ours = self.ours.release().await;
        self.theirs.release().await?;
        ours
    }
}

#[tokio::main]
async fn main() -> Result<()> {
    let url = std::env::var("REDIS_URL").unwrap_or("redis://127.0.0.1:6379".into());
    let both = BothManagers::connect(&url).await?;
    let limit = Duration::from_secs(5);

    let guard = both.write("cfg", limit).await?;
    println!("holds both locks, with token {}", guard.fencing_token());
    let (java, new) = (RedissonManager::connect(url.as_str()).await?, RedisManager::connect(url.as_str()).await?);
    println!("a service with Redisson may enter: {}", java.try_write("cfg").await?.is_some());
    println!("a service with our lock alone may enter: {}", new.try_write("cfg").await?.is_some());

    let work = tokio::time::sleep(Duration::from_millis(50));
    tokio::select! {
        () = work => println!("the work is done"),
        reason = guard.lost() => println!("the work was dropped: {reason}"),
    }
    guard.release().await?;

    // As a service with Redisson that is inside: it keeps out who takes both.
    let inside = java.write("cfg").await?;
    let error = both.write("cfg", Duration::from_millis(100)).await.expect_err("a service with Redisson is inside");
    println!("{error}");
    inside.release().await?;
    both.ours.close().await?;
    both.theirs.close().await
}
