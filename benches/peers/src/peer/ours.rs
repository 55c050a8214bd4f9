use futures_util::future::BoxFuture;
use redis_rwlock::{MemoryManager, ReadGuard, RedisManager, RwLockManager, Topology, TwoKeyManager, WriteGuard};

use super::{Held, LEASE, Mode, Peer};

struct Ours<M>(M);

pub(super) async fn hash(url: &str) -> Box<dyn Peer> {
    Box::new(Ours(RedisManager::builder(Topology::node(url)).lease(LEASE).connect().await.expect("a server")))
}

pub(super) async fn two_keys(url: &str) -> Box<dyn Peer> {
    Box::new(Ours(TwoKeyManager::builder(Topology::node(url)).lease(LEASE).connect().await.expect("a server")))
}

pub(super) fn memory() -> Box<dyn Peer> {
    Box::new(Ours(MemoryManager::new()))
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
