use futures_util::future::BoxFuture;
use rslock::{LockGuard, LockManager};

use super::{Held, LEASE, Mode, Peer};

struct Rslock(LockManager);

pub(super) fn connect(url: &str) -> Box<dyn Peer> {
    Box::new(Rslock(LockManager::new(vec![url])))
}

impl Peer for Rslock {
    fn enter<'a>(&'a self, _: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let guard = self.0.acquire(name, LEASE).await.expect("granted");
            Box::new(guard) as Box<dyn Held>
        })
    }
}

impl Held for LockGuard {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move { self.release().await })
    }
}
