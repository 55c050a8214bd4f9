//! Steps of sellers and buyers: to list an item and to buy it, in each of the ways.

use redis::{AsyncCommands, Pipeline, pipe};

use super::goods::{PRICE, buyer_name, seller_name};
use super::*;

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
        let offer = Offer::new(item, seller);
        self.connection.sadd::<_, _, ()>(&offer.inventory, item).await.expect("written");
        let (is_listed, again) = self.carry_out(item, &Step::List(&offer)).await;
        assert!(is_listed, "nobody else has the item");
        again
    }

    /// Buys an item. Returns true if that succeeded, and the number of further tries.
    pub(super) async fn buy(&mut self, item: &str, seller: usize, buyer: usize) -> (bool, usize) {
        self.carry_out(item, &Step::Buy(&Offer::new(item, seller), &buyer_name(buyer))).await
    }

    async fn carry_out(&mut self, item: &str, step: &Step<'_>) -> (bool, usize) {
        match self.way {
            Way::Watch => self.watching(step).await,
            Way::ArticleLock => {
                let (token, again) = self.take_article_lock().await;
                let is_done = self.alone(step).await;
                self.leave_article_lock(&token).await;
                (is_done, again)
            }
            Way::OneLock(_) | Way::LockPerItem(_) | Way::LockPerItemDropped(_) => {
                let name = if matches!(self.way, Way::OneLock(_)) { "market" } else { item };
                let held = self.peer.as_ref().expect("a peer").enter(Mode::Write, name).await;
                let is_done = self.alone(step).await;
                if matches!(self.way, Way::LockPerItemDropped(_)) {
                    drop(held);
                } else {
                    held.leave().await;
                }
                (is_done, 0)
            }
        }
    }

    async fn alone(&mut self, step: &Step<'_>) -> bool {
        if !step.can_begin(&mut self.connection).await {
            return false;
        }
        let mut moves = pipe();
        step.moves(&mut moves);
        moves.query_async::<()>(&mut self.connection).await.expect("carried out");
        true
    }

    async fn watching(&mut self, step: &Step<'_>) -> (bool, usize) {
        for again in 0.. {
            match step {
                Step::List(offer) => self.watch(&[&offer.inventory]).await,
                Step::Buy(_, buyer) => self.watch(&["market:", &format!("users:{buyer}")]).await,
            }
            if !step.can_begin(&mut self.connection).await {
                redis::cmd("UNWATCH").query_async::<()>(&mut self.connection).await.expect("an answer");
                return (false, again);
            }
            let mut moves = pipe();
            moves.atomic();
            step.moves(&mut moves);
            if self.goes_through(&moves).await {
                return (true, again);
            }
        }
        unreachable!("it is tried until it goes through")
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

/// Item of a seller.
struct Offer<'a> {
    item: &'a str,
    seller: String,
    /// Items of the seller that are not listed.
    inventory: String,
    /// Entry of the market.
    entry: String,
}

impl<'a> Offer<'a> {
    fn new(item: &'a str, seller: usize) -> Self {
        let seller = seller_name(seller);
        Self { item, inventory: format!("inventory:{seller}"), entry: format!("{item}.{seller}"), seller }
    }
}

/// Step that excludes others.
enum Step<'a> {
    List(&'a Offer<'a>),
    /// Has the name of the buyer.
    Buy(&'a Offer<'a>, &'a str),
}

impl Step<'_> {
    async fn can_begin(&self, connection: &mut MultiplexedConnection) -> bool {
        match self {
            Self::List(offer) => connection.sismember(&offer.inventory, offer.item).await.expect("an answer"),
            Self::Buy(offer, buyer) => {
                let price: Option<f64> = connection.zscore("market:", &offer.entry).await.expect("an answer");
                let funds: i64 = connection.hget(format!("users:{buyer}"), "funds").await.expect("an answer");
                price.is_some() && funds >= PRICE
            }
        }
    }

    fn moves(&self, moves: &mut Pipeline) {
        match self {
            Self::List(Offer { item, inventory, entry, .. }) => {
                moves.zadd("market:", entry, PRICE).ignore().srem(inventory, item).ignore();
            }
            Self::Buy(Offer { item, seller, entry, .. }, buyer) => {
                moves.hincr(format!("users:{seller}"), "funds", PRICE).ignore();
                moves.hincr(format!("users:{buyer}"), "funds", -PRICE).ignore();
                moves.sadd(format!("inventory:{buyer}"), item).ignore().zrem("market:", entry).ignore();
            }
        }
    }
}
