//! Our scripts, each on a connection that a pool hands out for it.

use deadpool_redis::{Config, Pool, Runtime};
use futures_util::future::BoxFuture;

use super::{Held, Mode, Peer};
use crate::setup::scripts::hash::{ACQUIRE, LEAVE};
use crate::setup::{LONG_LEASE, digest, foreign_id};

struct Pooled {
    pool: Pool,
    acquire: String,
    leave: String,
}

pub(super) async fn connect(url: &str) -> Box<dyn Peer> {
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1)).expect("a pool");
    let mut connection = pool.get().await.expect("a connection");
    for text in [ACQUIRE, LEAVE] {
        redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<()>(&mut connection).await.expect("a script loads");
    }
    let [acquire, leave] = [ACQUIRE, LEAVE].map(digest);
    Box::new(Pooled { pool, acquire, leave })
}

impl Peer for Pooled {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let id = foreign_id();
            let mut command = redis::cmd("EVALSHA");
            command.arg(&self.acquire).arg(1).arg(name).arg(9_000_000_000_000_u64).arg(&id);
            command.arg(if mode == Mode::Write { "w" } else { "r" }).arg(LONG_LEASE.as_millis() as u64);
            command.arg(0).arg(1).arg("1000 3000");
            let mut connection = self.pool.get().await.expect("a connection");
            command.query_async::<redis::Value>(&mut connection).await.expect("an answer");
            let (pool, leave) = (self.pool.clone(), self.leave.clone());
            Box::new(Hold { pool, leave, name: name.to_owned(), id }) as Box<dyn Held>
        })
    }
}

struct Hold {
    pool: Pool,
    leave: String,
    name: String,
    id: String,
}

impl Held for Hold {
    fn leave(self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            let mut command = redis::cmd("EVALSHA");
            command.arg(&self.leave).arg(1).arg(&self.name).arg(&self.id).arg("1000 3000");
            let mut connection = self.pool.get().await.expect("a connection");
            command.query_async::<redis::Value>(&mut connection).await.expect("an answer");
        })
    }
}
