//! Managers of every kind.

use std::sync::Arc;
use std::time::Duration;

use redis_rwlock::{
    Builder, Durability, MemoryManager, QuorumManager, RedisManager, Replicas, Result, RwLockManager, Tls, Topology,
    TwoKeyManager,
};

pub type Manager = Arc<dyn RwLockManager>;

/// Lease of all holds. The first renewal is due after 2 s, so a busy machine has 4 s for it.
pub const LEASE: Duration = Duration::from_secs(6);
/// Time for which managers cache a hold. It is long, so that the hold is still cached when a case checks.
const CACHED_FOR: Duration = Duration::from_secs(60);

/// Kind of a manager, and its servers.
#[derive(Debug)]
pub struct Kind {
    name: String,
    urls: Vec<String>,
}

impl Kind {
    pub fn new(name: &str, urls: Vec<String>) -> Self {
        Self { name: name.to_owned(), urls }
    }

    /// Returns true if managers of different processes share their locks.
    pub fn is_shared(&self) -> bool {
        self.name != "memory"
    }

    pub fn build(&self) -> Manager {
        self.built(Duration::ZERO)
    }

    /// Builds a manager that caches holds.
    pub fn build_caching(&self) -> Manager {
        self.built(CACHED_FOR)
    }

    fn built(&self, cached_for: Duration) -> Manager {
        let manager: Result<Manager> = match (self.name.as_str(), self.urls.first()) {
            ("hash", Some(url)) => as_dyn(RedisManager::builder(url.as_str()).cache_for(cached_for)),
            ("tls", Some(url)) => {
                // The argument after the URL is the authority's file. It is read here, because a manager would read its
                // files on a thread of the runtime. Tokio waits for such threads when a runtime is dropped, but a copy
                // does not have these threads.
                let read = |path: &String| std::fs::read(path).expect("a file");
                let tls = self.urls.iter().skip(1).fold(Tls::new(), |tls, path| tls.ca_pem(read(path)));
                as_dyn(RedisManager::builder(Topology::node(url.as_str()).tls(tls)).cache_for(cached_for))
            }
            ("replicated", Some(url)) => {
                let level = Durability::Replicated { replicas: Replicas::At(1), timeout: Duration::from_millis(200) };
                as_dyn(RedisManager::builder(url.as_str()).durability(level))
            }
            ("two-key", Some(url)) => as_dyn(TwoKeyManager::builder(url.as_str())),
            ("quorum", Some(_)) => as_dyn(QuorumManager::builder(self.urls.clone()).restarts_are_delayed()),
            ("memory", None) => as_dyn(MemoryManager::builder().cache_for(cached_for)),
            _ => panic!("no such manager: {self:?}"),
        };
        manager.expect("valid options")
    }
}

fn as_dyn<M: redis_rwlock::Build + RwLockManager>(builder: Builder<M>) -> Result<Manager> {
    Ok(Arc::new(builder.lease(LEASE).build()?))
}
