use futures_util::future::BoxFuture;
use rlock::async_lock::{RLock, RReadLockGuard, RWriteLockGuard};

use super::{Held, Mode, Peer};

struct Rlock(RLock);

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    Box::new(Rlock(RLock::new(url).await.expect("a server")))
}

impl Peer for Rlock {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            match mode {
                Mode::Read => Box::new(self.0.acquire_read(name).await.expect("granted")) as Box<dyn Held>,
                Mode::Write => Box::new(self.0.acquire_write(name).await.expect("granted")),
            }
        })
    }
}

impl Held for RReadLockGuard {
    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await.expect("released") })
    }
}

impl Held for RWriteLockGuard {
    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await.expect("released") })
    }
}
