use ::rslock::LockManager;

use super::*;

struct Rslock(LockManager);

pub(super) fn connect(url: &str) -> Box<dyn Peer> {
    Box::new(Rslock(LockManager::new(vec![url])))
}

impl Peer for Rslock {
    fn enter<'a>(&'a self, _: Mode, name: &'a str) -> BoxFuture<'a, Held> {
        Box::pin(async move {
            let guard = self.0.acquire(name, LEASE).await.expect("granted");
            Held::new(async move || guard.release().await)
        })
    }
}
