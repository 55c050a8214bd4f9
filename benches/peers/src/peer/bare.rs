//! Scripts on a bare connection.

use deadpool_redis::{Config, Pool, Runtime};
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;
use redis::{Cmd, Pipeline, RedisFuture, Value};

use super::*;

/// Pair of scripts in place of an acquisition and its release.
#[derive(Clone, Copy)]
pub(super) enum Pair {
    Ours,
    LockShaped,
    NoOp,
}

struct Floor<C> {
    bare: Bare<C>,
    pair: Pair,
}

pub(super) async fn connect(url: &str, pair: Pair) -> Box<dyn Peer> {
    let connection = bare_connection(url).await;
    let bare = Bare::new(connection.clone(), &mut [connection]).await;
    Box::new(Floor { bare, pair })
}

pub(super) async fn connect_to_cluster(urls: &[String]) -> Box<dyn Peer> {
    let client = ClusterClient::new(urls.to_vec()).expect("URLs");
    let connection = client.get_async_connection().await.expect("a cluster");
    let mut loaders = Vec::new();
    for url in urls {
        loaders.push(bare_connection(url).await);
    }
    Box::new(Floor { bare: Bare::new(connection, &mut loaders).await, pair: Pair::Ours })
}

pub(super) async fn connect_by_pool(url: &str) -> Box<dyn Peer> {
    let pool = Config::from_url(url).create_pool(Some(Runtime::Tokio1)).expect("a pool");
    let bare = Bare::new(Pooled(pool), &mut [bare_connection(url).await]).await;
    Box::new(Floor { bare, pair: Pair::Ours })
}

/// Pool that hands out a connection for each command.
#[derive(Clone)]
struct Pooled(Pool);

impl ConnectionLike for Pooled {
    fn req_packed_command<'a>(&'a mut self, command: &'a Cmd) -> RedisFuture<'a, Value> {
        Box::pin(async move { self.0.get().await.expect("a connection").req_packed_command(command).await })
    }

    fn req_packed_commands<'a>(&'a mut self, _: &'a Pipeline, _: usize, _: usize) -> RedisFuture<'a, Vec<Value>> {
        unreachable!("no pair of scripts is a pipeline")
    }

    fn get_db(&self) -> i64 {
        0
    }
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Client for Floor<C> {
    async fn enter(&self, mode: Mode, name: &str) -> Held {
        let (mut bare, pair, name) = (self.bare.clone(), self.pair, name.to_owned());
        let id = foreign_id();
        match pair {
            Pair::Ours => bare.acquire(&name, &id, mode.letter()).await,
            Pair::LockShaped => bare.lock_shaped(&name, &id).await,
            Pair::NoOp => bare.no_op(&name).await,
        }
        Held::new(async move || match pair {
            Pair::Ours => bare.leave(&name, &id).await,
            Pair::LockShaped => bare.lock_shaped(&name, "-").await,
            Pair::NoOp => bare.no_op(&name).await,
        })
    }
}
