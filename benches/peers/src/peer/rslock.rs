use ::rslock::LockManager;

use super::*;

struct Rslock(LockManager);

pub(super) fn connect(url: &str) -> Box<dyn Peer> {
    Box::new(Rslock(LockManager::new(vec![url])))
}

impl Client for Rslock {
    async fn enter(&self, _: Mode, name: &str) -> Held {
        let guard = self.0.acquire(name, LEASE).await.expect("granted");
        Held::new(async move || guard.release().await)
    }
}
