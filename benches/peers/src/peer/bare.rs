//! Scripts on a connection and nothing around.

use futures_util::future::BoxFuture;
use redis::aio::MultiplexedConnection;

use super::{Held, Mode, Peer};
use crate::figures::{Bare, bare_connection, foreign_id};

/// What stands for a lock and its release.
#[derive(Clone, Copy)]
pub(super) enum Pair {
    Ours,
    LockShaped,
    NoOp,
}

struct Floor {
    bare: Bare<MultiplexedConnection>,
    pair: Pair,
}

pub(super) async fn connect(url: &str, pair: Pair) -> Box<dyn Peer> {
    let connection = bare_connection(url).await;
    let bare = Bare::new(connection.clone(), &mut [connection]).await;
    Box::new(Floor { bare, pair })
}

impl Peer for Floor {
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

struct Hold {
    bare: Bare<MultiplexedConnection>,
    pair: Pair,
    name: String,
    id: String,
}

impl Held for Hold {
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
