use ::rlock::async_lock::RLock;

use super::*;

struct Rlock(RLock);

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    Box::new(Rlock(RLock::new(url).await.expect("a server")))
}

impl Client for Rlock {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        if mode == Mode::Read {
            let mut guard = self.0.acquire_read(name).await.expect("granted");
            return Held::new(async move || guard.release().await.expect("released"));
        }
        let mut guard = self.0.acquire_write(name).await.expect("granted");
        Held::new(async move || guard.release().await.expect("released"))
    }
}
