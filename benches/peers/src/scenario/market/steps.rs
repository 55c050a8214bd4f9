//! Steps of sellers and buyers: to list an item and to buy it, in each of the ways.

use std::time::{Duration, Instant};

use redis::aio::MultiplexedConnection;
use redis::{AsyncCommands, Pipeline, pipe};

use super::goods::{PRICE, buyer_name, seller_name};
use crate::peer::{Held, Kind, LEASE, Mode, Peer};
use crate::setup::bare_connection;

/// Way to exclude other steps during a step.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Way {
    Watch,
    ArticleLock,
    OneLock(Kind),
    LockPerItem(Kind),
    /// Guards go out of scope, and no task waits for the answers to their releases.
    LockPerItemDropped(Kind),
}

impl Way {
    /// Returns the lock, if the way uses the lock of a peer.
    pub(super) fn kind(self) -> Option<Kind> {
        match self {
            Self::Watch | Self::ArticleLock => None,
            Self::OneLock(kind) | Self::LockPerItem(kind) | Self::LockPerItemDropped(kind) => Some(kind),
        }
    }
}

/// Seller or buyer, with a connection of its own, because WATCH belongs to a connection.
pub(super) struct Steps {
    way: Way,
    connection: MultiplexedConnection,
    peer: Option<Box<dyn Peer>>,
}

impl Steps {
    pub(super) async fn connect(url: &str, way: Way) -> Self {
        let peer = match way.kind() {
            Some(kind) => Some(kind.connect(&[url.to_owned()], LEASE).await),
            None => None,
        };
        Self { way, connection: bare_connection(url).await, peer }
    }

    /// Creates and lists an item. Returns the number of further tries.
    pub(super) async fn list(&mut self, item: &str, seller: usize) -> usize {
        let inventory = format!("inventory:{}", seller_name(seller));
        self.connection.sadd::<_, _, ()>(&inventory, item).await.expect("written");
        let offer = format!("{item}.{}", seller_name(seller));
        match self.way {
            Way::Watch => self.list_watching(&inventory, item, &offer).await,
            Way::ArticleLock => {
                let (token, again) = self.take_article_lock().await;
                self.list_alone(&inventory, item, &offer).await;
                self.leave_article_lock(&token).await;
                again
            }
            Way::OneLock(_) | Way::LockPerItem(_) | Way::LockPerItemDropped(_) => {
                let held = self.enter(item).await;
                self.list_alone(&inventory, item, &offer).await;
                self.leave(held).await;
                0
            }
        }
    }

    /// Buys an item. Returns true if that succeeded, and the number of further tries.
    pub(super) async fn buy(&mut self, item: &str, seller: usize, buyer: usize) -> (bool, usize) {
        let deal = Deal::new(item, seller, buyer);
        match self.way {
            Way::Watch => self.buy_watching(&deal).await,
            Way::ArticleLock => {
                let (token, again) = self.take_article_lock().await;
                let bought = self.buy_alone(&deal).await;
                self.leave_article_lock(&token).await;
                (bought, again)
            }
            Way::OneLock(_) | Way::LockPerItem(_) | Way::LockPerItemDropped(_) => {
                let held = self.enter(item).await;
                let bought = self.buy_alone(&deal).await;
                self.leave(held).await;
                (bought, 0)
            }
        }
    }

    async fn enter(&self, item: &str) -> Held {
        let name = if matches!(self.way, Way::OneLock(_)) { "market" } else { item };
        self.peer.as_ref().expect("a peer").enter(Mode::Write, name).await
    }

    async fn leave(&self, held: Held) {
        if matches!(self.way, Way::LockPerItemDropped(_)) {
            drop(held);
        } else {
            held.leave().await;
        }
    }

    async fn list_alone(&mut self, inventory: &str, item: &str, offer: &str) {
        assert!(self.connection.sismember::<_, _, bool>(inventory, item).await.expect("an answer"));
        let mut moves = pipe();
        moves.zadd("market:", offer, PRICE).ignore().srem(inventory, item).ignore();
        moves.query_async::<()>(&mut self.connection).await.expect("carried out");
    }

    async fn list_watching(&mut self, inventory: &str, item: &str, offer: &str) -> usize {
        for again in 0.. {
            self.watch(&[inventory]).await;
            assert!(self.connection.sismember::<_, _, bool>(inventory, item).await.expect("an answer"));
            let mut moves = pipe();
            moves.atomic().zadd("market:", offer, PRICE).ignore().srem(inventory, item).ignore();
            if self.goes_through(&moves).await {
                return again;
            }
        }
        unreachable!("it is tried until it goes through")
    }

    async fn buy_alone(&mut self, deal: &Deal) -> bool {
        if !self.can_buy(deal).await {
            return false;
        }
        let mut moves = pipe();
        deal.moves(&mut moves);
        moves.query_async::<()>(&mut self.connection).await.expect("carried out");
        true
    }

    async fn buy_watching(&mut self, deal: &Deal) -> (bool, usize) {
        for again in 0.. {
            self.watch(&["market:", &deal.buyer]).await;
            if !self.can_buy(deal).await {
                redis::cmd("UNWATCH").query_async::<()>(&mut self.connection).await.expect("an answer");
                return (false, again);
            }
            let mut moves = pipe();
            moves.atomic();
            deal.moves(&mut moves);
            if self.goes_through(&moves).await {
                return (true, again);
            }
        }
        unreachable!("it is tried until it goes through")
    }

    async fn can_buy(&mut self, deal: &Deal) -> bool {
        let price: Option<f64> = self.connection.zscore("market:", &deal.offer).await.expect("an answer");
        let funds: i64 = self.connection.hget(&deal.buyer, "funds").await.expect("an answer");
        price.is_some() && funds >= PRICE
    }

    async fn watch(&mut self, keys: &[&str]) {
        redis::cmd("WATCH").arg(keys).query_async::<()>(&mut self.connection).await.expect("an answer");
    }

    /// Executes the commands. Returns false if a watched key has changed.
    async fn goes_through(&mut self, moves: &Pipeline) -> bool {
        moves.query_async::<Option<()>>(&mut self.connection).await.expect("an answer").is_some()
    }

    /// Takes the article's lock as published: SETNX, then EXPIRE, with a try every millisecond.
    async fn take_article_lock(&mut self) -> (String, usize) {
        let token = format!("{:032x}", fastrand::u128(..));
        let began = Instant::now();
        for again in 0.. {
            if self.connection.set_nx::<_, _, bool>("lock:market", &token).await.expect("an answer") {
                self.connection.expire::<_, ()>("lock:market", 10).await.expect("an answer");
                return (token, again);
            }
            if self.connection.ttl::<_, i64>("lock:market").await.expect("an answer") == -1 {
                self.connection.expire::<_, ()>("lock:market", 10).await.expect("an answer");
            }
            assert!(began.elapsed() < Duration::from_secs(60), "nobody gives the lock back");
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
        unreachable!("it is tried until it is had")
    }

    async fn leave_article_lock(&mut self, token: &str) {
        loop {
            self.watch(&["lock:market"]).await;
            let held: Option<String> = self.connection.get("lock:market").await.expect("an answer");
            assert_eq!(held.as_deref(), Some(token), "somebody else has it");
            let mut moves = pipe();
            moves.atomic().del("lock:market").ignore();
            if self.goes_through(&moves).await {
                return;
            }
        }
    }
}

/// Item that goes from a seller to a buyer.
struct Deal {
    offer: String,
    item: String,
    seller: String,
    buyer: String,
    inventory: String,
}

impl Deal {
    fn new(item: &str, seller: usize, buyer: usize) -> Self {
        Self {
            offer: format!("{item}.{}", seller_name(seller)),
            item: item.to_owned(),
            seller: format!("users:{}", seller_name(seller)),
            buyer: format!("users:{}", buyer_name(buyer)),
            inventory: format!("inventory:{}", buyer_name(buyer)),
        }
    }

    fn moves(&self, moves: &mut Pipeline) {
        moves.hincr(&self.seller, "funds", PRICE).ignore().hincr(&self.buyer, "funds", -PRICE).ignore();
        moves.sadd(&self.inventory, &self.item).ignore().zrem("market:", &self.offer).ignore();
    }
}
