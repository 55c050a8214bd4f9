//! Scripts on a bare connection.

use futures_util::future::BoxFuture;
use redis::aio::ConnectionLike;
use redis::cluster::ClusterClient;

use super::{Held, Mode, Peer};
use crate::setup::{Bare, bare_connection, foreign_id};

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

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Peer for Floor<C> {
    fn enter<'a>(&'a self, mode: Mode, name: &'a str) -> BoxFuture<'a, Box<dyn Held>> {
        Box::pin(async move {
            let (mut bare, pair, name) = (self.bare.clone(), self.pair, name.to_owned());
            let id = foreign_id();
            match pair {
                Pair::Ours => bare.acquire(&name, &id, if mode == Mode::Write { "w" } else { "r" }).await,
                Pair::LockShaped => bare.lock_shaped(&name, &id).await,
                Pair::NoOp => bare.no_op(&name).await,
            }
            Box::new(Hold { bare, pair, name, id }) as Box<dyn Held>
        })
    }
}

struct Hold<C> {
    bare: Bare<C>,
    pair: Pair,
    name: String,
    id: String,
}

impl<C: ConnectionLike + Clone + Send + Sync + 'static> Held for Hold<C> {
    fn leave(mut self: Box<Self>) -> BoxFuture<'static, ()> {
        Box::pin(async move {
            match self.pair {
                Pair::Ours => self.bare.leave(&self.name, &self.id).await,
                Pair::LockShaped => self.bare.lock_shaped(&self.name, "-").await,
                Pair::NoOp => self.bare.no_op(&self.name).await,
            }
        })
    }
}
