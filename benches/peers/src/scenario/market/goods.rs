//! Who has what at the start, what is on offer, and whether it adds up in the end.

use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;
use redis::AsyncCommands;

use crate::setup::bare_connection;

/// So much that nobody runs out of it.
const FUNDS: i64 = 1 << 40;
pub(super) const PRICE: i64 = 7;

pub(super) struct Goods {
    sellers: usize,
    buyers: usize,
    next: AtomicU64,
    /// What a buyer may choose from, as it would see it in a list of offers.
    listed: Mutex<Vec<(String, usize)>>,
}

pub(super) fn seller_name(seller: usize) -> String {
    format!("seller{seller}")
}

pub(super) fn buyer_name(buyer: usize) -> String {
    format!("buyer{buyer}")
}

impl Goods {
    pub(super) async fn lay_out(url: &str, sellers: usize, buyers: usize) -> Self {
        let mut connection = bare_connection(url).await;
        let people = (0..sellers).map(seller_name).chain((0..buyers).map(buyer_name));
        for person in people {
            connection.hset::<_, _, _, ()>(format!("users:{person}"), "funds", FUNDS).await.expect("written");
        }
        Self { sellers, buyers, next: AtomicU64::new(0), listed: Mutex::default() }
    }

    /// The name of an item that nobody has yet. Its seller makes it as it lists it.
    pub(super) fn next_of(&self, seller: usize) -> String {
        format!("item{}-{seller}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn is_listed(&self, item: String, seller: usize) {
        self.listed.lock().push((item, seller));
    }

    /// One of the last offers. Several buyers may go for the same one, as they do in the articles.
    pub(super) fn any_listed(&self) -> Option<(String, usize)> {
        let mut listed = self.listed.lock();
        let count = listed.len();
        let pick = (count > 0).then(|| count - 1 - fastrand::usize(0..count.min(8)))?;
        Some(listed.swap_remove(pick))
    }

    /// All funds together are what they were, and each item is in one place.
    pub(super) async fn check(&self, url: &str) {
        let mut connection = bare_connection(url).await;
        let (mut funds, mut items) = (0, connection.zcard::<_, u64>("market:").await.expect("an answer"));
        let people: Vec<_> = (0..self.sellers).map(seller_name).chain((0..self.buyers).map(buyer_name)).collect();
        for person in &people {
            funds += connection.hget::<_, _, i64>(format!("users:{person}"), "funds").await.expect("an answer");
            items += connection.scard::<_, u64>(format!("inventory:{person}")).await.expect("an answer");
        }
        let everybody = i64::try_from(people.len()).expect("few");
        assert_eq!(funds, everybody * FUNDS, "money was lost or made");
        assert_eq!(items, self.next.load(Ordering::Relaxed), "an item was lost or is there twice");
    }
}
