//! Manager of locks that clients of Redisson share.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use super::sealed::FromDeployment;
use super::{Builder, Deployment, RedisManager, RwLockManager, Sealed, topology_router};
#[allow(unused_imports)] // only links in the documentation use this import
use crate::base::durability::Durability;
#[allow(unused_imports)] // only links in the documentation use this import
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::options::Options;
use crate::base::topology::Topology;
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::store::redisson;

/// Manager of locks on one node, behind Sentinel, or on a cluster, in the format of Redisson's `RReadWriteLock`. Services
/// in Java, with Redisson 3.24.1 or later, and services with this manager exclude each other on the same lock. The name of
/// a lock is its key, as in Redisson, so [`key_prefix`](Builder::key_prefix) has no effect.
///
/// The format carries less than that of [`RedisManager`](crate::RedisManager):
///
/// * No queue, so no order: new readers can keep a waiting writer out, as between clients of Redisson. Waiters learn of a
///   release from Redisson's messages, and repeat their requests once a second.
/// * A reader of Redisson sets the time of the whole lock to its watchdog's 30 s with each renewal. So a hold of this
///   manager is valid for less than 30 s from its last renewal, whatever its [`lease`](Builder::lease): the manager takes
///   8/9 of [`lock_watchdog_timeout`](Builder::lock_watchdog_timeout) as the longest lease. A longer
///   [`fixed_lease`](crate::Acquire::fixed_lease) is renewed until its end.
/// * Grants of this manager have fencing tokens, and those of Redisson have none. So a resource that checks tokens detects
///   late writes of this manager's holders among each other only (`docs/GUARANTEES.md`).
/// * Each guard, or share of a hold, counts once on the server, under an id of its own. Redisson's threads hold a lock
///   several times under one id.
///
/// [`try_upgrade`](crate::ReadGuard::try_upgrade) and [`downgrade`](crate::WriteGuard::downgrade) work in one step.
/// [`locks`](RwLockManager::locks) lists the locks that managers of this crate have held within the last minute.
///
/// An acquisition fails with [`InvalidName`](Error::InvalidName) if its name has a brace but no hash tag.
///
/// # Examples
///
/// ```no_run
/// # use redis_rwlock::{RedissonManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = RedissonManager::connect("redis://127.0.0.1:6379").await?;
/// let guard = manager.write("cfg").await?; // redisson.getReadWriteLock("cfg").writeLock() waits
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedissonManager {
    handles: Handles,
}
manager!(RedissonManager);

on_servers! {
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) for [`Topology::proxy`], for
    /// [`cache_for`](Builder::cache_for), and for [`Durability::Server`].
    RedissonManager
}

impl Builder<RedissonManager> {
    /// Returns a builder with the servers and options of a builder for another manager.
    #[cfg_attr(not(feature = "serde"), expect(dead_code, reason = "only a configuration needs it"))]
    pub(crate) fn of_same_options(other: Builder<RedisManager>) -> Self {
        Self { deployment: other.deployment, options: other.options, manager: PhantomData }
    }

    /// Sets the shortest `lockWatchdogTimeout` of the clients of Redisson that share the locks. Defaults to 30 s, as in
    /// Redisson. Accepts 1 s and more.
    ///
    /// Each renewal of a reader of Redisson sets the time of the whole lock to this value, also for the holds of this
    /// manager. So a value that is longer than theirs lets this manager rely on holds that the server has ended. A shorter
    /// value makes the manager renew more often.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) for less than 1 s.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::RedissonManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// // In Java: config.setLockWatchdogTimeout(12_000)
    /// let builder = RedissonManager::builder("redis://127.0.0.1:6379");
    /// let manager = builder.lock_watchdog_timeout(Duration::from_secs(12)).build()?;
    /// # Ok(())
    /// # }
    /// ```
    pub fn lock_watchdog_timeout(mut self, watchdog: Duration) -> Self {
        self.options.redisson_watchdog = Some(watchdog);
        self
    }
}

impl FromDeployment for RedissonManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let topology = place.servers();
        let options = redisson::adapt(&topology, options)?;
        let scheme = redisson::scheme(topology_router(&topology, &options)?, options.longest_lease);
        Ok(Self { handles: Handles::new(Arc::new(scheme), options) })
    }
}
