//! Funds and items: their owners at the start, the offers, and the check at the end.

use std::sync::atomic::AtomicU64;

use redis::AsyncCommands;

use super::*;

/// Funds of each seller and buyer, more than they can spend.
const FUNDS: i64 = 1 << 40;
pub(super) const PRICE: i64 = 7;

pub(super) struct Goods {
    /// Names of sellers and buyers.
    people: Vec<String>,
    next: AtomicU64,
    /// Offers from which a buyer chooses, as it would see them in a list.
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
        let people: Vec<_> = (0..sellers).map(seller_name).chain((0..buyers).map(buyer_name)).collect();
        for person in &people {
            connection.hset::<_, _, _, ()>(format!("users:{person}"), "funds", FUNDS).await.expect("written");
        }
        Self { people, next: AtomicU64::new(0), listed: Mutex::default() }
    }

    /// Returns the name of a new item. Its seller creates the item when it lists the item.
    pub(super) fn next_of(&self, seller: usize) -> String {
        format!("item{}-{seller}", self.next.fetch_add(1, Ordering::Relaxed))
    }

    pub(super) fn is_listed(&self, item: String, seller: usize) {
        self.listed.lock().push((item, seller));
    }

    /// Takes one of the last offers. Several buyers may choose the same one, as in the articles.
    pub(super) fn any_listed(&self) -> Option<(String, usize)> {
        let mut listed = self.listed.lock();
        let count = listed.len();
        let pick = (count > 0).then(|| count - 1 - fastrand::usize(0..count.min(8)))?;
        Some(listed.swap_remove(pick))
    }

    /// Checks that the sum of all funds has not changed, and that each item is in one place.
    pub(super) async fn check(&self, url: &str) {
        let mut connection = bare_connection(url).await;
        let (mut funds, mut items) = (0, connection.zcard::<_, u64>("market:").await.expect("an answer"));
        for person in &self.people {
            funds += connection.hget::<_, _, i64>(format!("users:{person}"), "funds").await.expect("an answer");
            items += connection.scard::<_, u64>(format!("inventory:{person}")).await.expect("an answer");
        }
        let everybody = i64::try_from(self.people.len()).expect("few");
        assert_eq!(funds, everybody * FUNDS, "money was lost or made");
        assert_eq!(items, self.next.load(Ordering::Relaxed), "an item was lost or is there twice");
    }
}
