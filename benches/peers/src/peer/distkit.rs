use std::collections::HashMap;

use ::distkit::DistkitRedisKey;
use ::distkit::lock::{LockOptions, RwLock};
use redis::aio::ConnectionManager;

use super::*;

/// Distkit has an object for each lock. Tasks that share an object share its owner: two tasks both got `write`. So each
/// acquisition has an object of its own, unless only one task uses the name.
struct Distkit {
    connection: ConnectionManager,
    lease: Duration,
    own: Mutex<HashMap<String, Arc<RwLock>>>,
}

pub(super) async fn connect(url: &str, lease: Duration) -> Box<dyn Peer> {
    let client = redis::Client::open(url).expect("a URL");
    let connection = client.get_connection_manager().await.expect("a server");
    Box::new(Distkit { connection, lease, own: Mutex::default() })
}

impl Distkit {
    fn lock(&self, name: &str) -> Arc<RwLock> {
        let make = || {
            let key = DistkitRedisKey::try_from(name.to_owned()).expect("a name");
            let mut options = LockOptions::new(key, self.connection.clone());
            options.ttl = self.lease;
            RwLock::new(options)
        };
        if !name.starts_with("own") {
            return make();
        }
        Arc::clone(self.own.lock().entry(name.to_owned()).or_insert_with(make))
    }
}

impl Client for Distkit {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        let lock = self.lock(name);
        if mode == Mode::Read {
            let guard = lock.read().await.expect("granted");
            return Held::new(async move || {
                guard.release().await.expect("released");
            });
        }
        let guard = lock.write().await.expect("granted");
        Held::new(async move || {
            guard.release().await.expect("released");
        })
    }
}
