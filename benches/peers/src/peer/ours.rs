use std::time::Duration;

use futures_util::future::BoxFuture;
use redis_rwlock::{
    Durability, GroupGuard, MemoryManager, QuorumManager, ReadGuard, RedisManager, RedissonManager, Replicas,
    RwLockManager, Topology, TwoKeyManager, WriteGuard, write,
};

use super::{Held, Mode, Peer};

/// Time limit for the acknowledgement of a replica. It is long, because with this many tasks the acknowledgement may be
/// late on a machine with two cores.
const REPLICATED_WITHIN: Duration = Duration::from_secs(2);

struct Ours<M>(M);

pub(super) async fn hash(url: &str, lease: Duration) -> Box<dyn Peer> {
    Box::new(Ours(RedisManager::builder(Topology::node(url)).lease(lease).connect().await.expect("a server")))
}

pub(super) async fn idle(url: &str, lease: Duration) -> Box<dyn Peer> {
    let builder = RedisManager::builder(Topology::node(url)).lease(lease).cache_for(lease);
    Box::new(Ours(builder.connect().await.expect("a server")))
}

pub(super) async fn two_keys(url: &str, lease: Duration) -> Box<dyn Peer> {
    Box::new(Ours(TwoKeyManager::builder(Topology::node(url)).lease(lease).connect().await.expect("a server")))
}

pub(super) async fn redisson(url: &str, lease: Duration) -> Box<dyn Peer> {
    Box::new(Ours(RedissonManager::builder(Topology::node(url)).lease(lease).connect().await.expect("a server")))
}

pub(super) fn memory() -> Box<dyn Peer> {
    Box::new(Ours(MemoryManager::new()))
}

pub(super) async fn cluster(urls: &[String], lease: Duration) -> Box<dyn Peer> {
    let topology = Topology::cluster(urls.to_vec());
    Box::new(Ours(RedisManager::builder(topology).lease(lease).connect().await.expect("a cluster")))
}

pub(super) async fn replicated(url: &str, lease: Duration) -> Box<dyn Peer> {
    let durability = Durability::Replicated { replicas: Replicas::At(1), timeout: REPLICATED_WITHIN };
    let builder = RedisManager::builder(Topology::node(url)).lease(lease).durability(durability);
    Box::new(Ours(builder.response_timeout(2 * REPLICATED_WITHIN).connect().await.expect("a server")))
}

pub(super) async fn quorum(urls: &[String], lease: Duration) -> Box<dyn Peer> {
    // Without this option, servers that have just started have no vote.
    let builder = QuorumManager::builder(urls.to_vec()).lease(lease).restarts_are_delayed();
    Box::new(Ours(builder.connect().await.expect("a majority")))
}

/// Number of steps in which three locks are acquired.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) enum Steps {
    One,
    OneForEach,
}

struct Three {
    manager: RedisManager,
    steps: Steps,
}

pub(super) async fn three(url: &str, lease: Duration, steps: Steps) -> Box<dyn Peer> {
    let manager = RedisManager::builder(Topology::node(url)).lease(lease).connect().await.expect("a server");
    Box::new(Three { manager, steps })
}

impl Peer for Three {
    fn enter<'a>(&'a self, _: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let names = ["a", "b", "c"].map(|part| format!("{name} {part}"));
            if self.steps == Steps::One {
                let guard = self.manager.all(&names.map(write)).await.expect("granted");
                return Box::new(guard) as Box<dyn Held>;
            }
            let mut guards = Vec::with_capacity(names.len());
            for name in names {
                guards.push(self.manager.write(&name).await.expect("granted"));
            }
            Box::new(guards)
        })
    }
}

impl Held for GroupGuard {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await.expect("released") })
    }
}

impl Held for Vec<WriteGuard> {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            for guard in *self {
                guard.release().await.expect("released");
            }
        })
    }
}

impl<M: RwLockManager> Peer for Ours<M> {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            match mode {
                Mode::Read => Box::new(self.0.read(name).await.expect("granted")) as Box<dyn Held>,
                Mode::Write => Box::new(self.0.write(name).await.expect("granted")),
            }
        })
    }
}

impl Held for ReadGuard {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await.expect("released") })
    }
}

impl Held for WriteGuard {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await.expect("released") })
    }
}
