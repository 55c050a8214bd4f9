//! The market of the articles: sellers list items, buyers buy them, and nothing may be lost or sold twice. Four ways: WATCH with
//! retries, the article's own lock around each step, one lock of a peer for the whole market, and one for each item.

mod goods;
mod steps;

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use goods::Goods;
use steps::{Steps, Way};
use tokio::task::JoinSet;

use super::{Setting, runtime};
use crate::figures::quantile;
use crate::measure::micros;
use crate::peer::Kind;
use crate::report::{columns, heading, number, row};

pub(super) fn run(setting: &Setting) {
    for (sellers, buyers) in [(1, 1), (5, 1), (5, 5)] {
        heading(&format!("Market, {sellers} sellers, {buyers} buyers, {} s", setting.market.as_secs()));
        columns(&["", "listed", "bought", "both in 60 s", "tries again", "purchase p50 us", "p99 us"]);
        let node = setting.start_node();
        let peers = setting.peers.iter().copied().filter(|kind| kind.is_distributed());
        let locks = peers.flat_map(|kind| [Way::OneLock(kind), Way::LockPerItem(kind)]);
        for way in [Way::Watch, Way::ArticleLock].into_iter().chain(locks) {
            let market = open(&node, way, (sellers, buyers), setting.market);
            tell(way, market, setting.market);
        }
    }
}

/// What was done while it was open.
struct Market {
    listed: usize,
    /// How long each purchase took, with all its tries.
    purchases: Vec<Duration>,
    tries_again: usize,
}

fn tell(way: Way, mut market: Market, span: Duration) {
    let bought = market.purchases.len();
    let both = (market.listed + bought) as f64 * 60.0 / span.as_secs_f64();
    let purchases = &mut market.purchases;
    let latencies = if bought == 0 { [0.0; 2] } else { [0.5, 0.99].map(|share| micros(quantile(purchases, share))) };
    let counts = [market.listed as f64, bought as f64, both, market.tries_again as f64];
    row(&way.to_string(), &counts.into_iter().chain(latencies).map(number).collect::<Vec<_>>());
}

fn open(node: &Node, way: Way, (sellers, buyers): (usize, usize), span: Duration) -> Market {
    assert!(node.command(&["FLUSHALL"]).expect("an answer").is_ok());
    runtime().block_on(async {
        let goods = Arc::new(Goods::lay_out(&node.url(), sellers, buyers).await);
        let until = Instant::now() + span;
        let mut selling = JoinSet::new();
        for seller in 0..sellers {
            let mut steps = Steps::connect(&node.url(), way).await;
            let goods = Arc::clone(&goods);
            selling.spawn(async move {
                let (mut listed, mut again) = (0, 0);
                while Instant::now() < until {
                    let item = goods.next_of(seller);
                    again += steps.list(&item, seller).await;
                    goods.is_listed(item, seller);
                    listed += 1;
                }
                (listed, again)
            });
        }
        let mut buying = JoinSet::new();
        for buyer in 0..buyers {
            let mut steps = Steps::connect(&node.url(), way).await;
            let goods = Arc::clone(&goods);
            buying.spawn(async move {
                let (mut purchases, mut again) = (Vec::new(), 0);
                while Instant::now() < until {
                    let Some((item, seller)) = goods.any_listed() else {
                        tokio::task::yield_now().await;
                        continue;
                    };
                    let asked = Instant::now();
                    let (is_bought, tries) = steps.buy(&item, seller, buyer).await;
                    again += tries;
                    if is_bought {
                        purchases.push(asked.elapsed());
                    }
                }
                (purchases, again)
            });
        }
        let (sold, bought) = (selling.join_all().await, buying.join_all().await);
        goods.check(&node.url()).await;
        let tries_again = sold.iter().map(|(_, again)| again).chain(bought.iter().map(|(_, again)| again)).sum();
        Market {
            listed: sold.iter().map(|(listed, _)| listed).sum(),
            purchases: bought.into_iter().flat_map(|(purchases, _)| purchases).collect(),
            tries_again,
        }
    })
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let of = |kind: Kind| kind.name();
        match self {
            Self::Watch => write!(f, "WATCH"),
            Self::ArticleLock => write!(f, "the article's lock"),
            Self::OneLock(kind) => write!(f, "{}, one lock", of(*kind)),
            Self::LockPerItem(kind) => write!(f, "{}, a lock per item", of(*kind)),
        }
    }
}
