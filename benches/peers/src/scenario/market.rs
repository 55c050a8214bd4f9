//! The market of the articles: sellers list items, buyers buy them, and no item may be lost or sold twice. There are
//! four ways: WATCH with retries, the article's own lock around each step, one lock of a peer for the whole market, and
//! one lock of a peer for each item. The last way is also measured with guards that go out of scope, so that no task
//! waits for the release.

mod goods;
mod steps;

use goods::Goods;
use steps::{Steps, Way};
use tokio::task::JoinSet;

use super::*;
use crate::peer::Facts;

const COLUMNS: [&str; 6] = ["both in 60 s", "listed", "bought", "tries again", "purchase p50 us", "p99 us"];

const PUBLISHED: &str = "The articles tell, of a machine of theirs: a lock per item 220,000 to 230,000 operations in 60 s at any \
    mix, below 3 ms; WATCH 3 to 250 tries again and 10 to 500 ms. Funds and items added up after each run here";

pub(super) fn comparisons(setting: &Setting) -> Vec<Comparison<'_>> {
    [(1, 1), (5, 1), (5, 5)].map(|(sellers, buyers)| mix(setting, sellers, buyers)).into()
}

fn mix(setting: &Setting, sellers: usize, buyers: usize) -> Comparison<'_> {
    let about = About {
        group: "Market",
        title: format!("Market, {sellers} sellers, {buyers} buyers, {} s", setting.market.as_secs()),
        at: None,
        better: Better::More,
        columns: &COLUMNS,
        notes: &[PUBLISHED],
    };
    let entrant = |way: Way| Entrant {
        name: way.to_string(),
        refusal: None,
        take: Box::new(move || turn(setting, way, (sellers, buyers))),
    };
    let why = "the market is one program of this language, on one node";
    let others = Kind::all().iter().filter(|kind| kind.role() == Role::Lock && !is_of_this_program(**kind));
    let others = others.map(|kind| Entrant::refused(kind.name(), why));
    setting.compare(&about, ways().map(entrant).chain(others).collect())
}

fn ways() -> impl Iterator<Item = Way> {
    let locks = Kind::all().iter().copied().filter(|kind| is_of_this_program(*kind)).flat_map(|kind| {
        // With other peers, the drop of a guard does not always release the lock, which then stays taken until its
        // lease ends.
        let dropped = (kind == Kind::Ours).then_some(Way::LockPerItemDropped(kind));
        [Way::OneLock(kind), Way::LockPerItem(kind)].into_iter().chain(dropped)
    });
    [Way::Watch, Way::ArticleLock].into_iter().chain(locks)
}

fn is_of_this_program(kind: Kind) -> bool {
    let Facts { role, program, place, .. } = kind.facts();
    role == Role::Lock && program == Program::Own && place == Place::Node && kind != Kind::OursBlocking
}

fn turn(setting: &Setting, way: Way, people: (usize, usize)) -> Result<Figures, String> {
    let servers = Servers::start(Place::Node, setting.server);
    let market = open(&servers.nodes()[0], way, people, setting.market);
    Ok((figures(market, setting.market), String::new()))
}

/// Work that was done while the market was open.
#[derive(Default)]
struct Market {
    listed: usize,
    /// Time of each purchase, with all its tries.
    purchases: Vec<Duration>,
    tries_again: usize,
}

fn figures(mut market: Market, span: Duration) -> Vec<f64> {
    let bought = market.purchases.len();
    let both = (market.listed + bought) as f64 * 60.0 / span.as_secs_f64();
    let purchases = &mut market.purchases;
    let latencies = if bought == 0 { [0.0; 2] } else { [0.5, 0.99].map(|share| micros(quantile(purchases, share))) };
    let counts = [both, market.listed as f64, bought as f64, market.tries_again as f64];
    counts.into_iter().chain(latencies).collect()
}

#[derive(Clone, Copy)]
enum Person {
    Seller(usize),
    Buyer(usize),
}

fn open(node: &Node, way: Way, (sellers, buyers): (usize, usize), span: Duration) -> Market {
    runtime().block_on(async {
        let goods = Arc::new(Goods::lay_out(&node.url(), sellers, buyers).await);
        let until = Instant::now() + span;
        let mut people = JoinSet::new();
        for person in (0..sellers).map(Person::Seller).chain((0..buyers).map(Person::Buyer)) {
            let (mut steps, goods) = (Steps::connect(&node.url(), way).await, Arc::clone(&goods));
            people.spawn(async move {
                let mut market = Market::default();
                while Instant::now() < until {
                    match person {
                        Person::Seller(seller) => {
                            let item = goods.next_of(seller);
                            market.tries_again += steps.list(&item, seller).await;
                            goods.is_listed(item, seller);
                            market.listed += 1;
                        }
                        Person::Buyer(buyer) => {
                            let Some((item, seller)) = goods.any_listed() else {
                                tokio::task::yield_now().await;
                                continue;
                            };
                            let asked = Instant::now();
                            let (is_bought, again) = steps.buy(&item, seller, buyer).await;
                            market.tries_again += again;
                            market.purchases.extend(is_bought.then(|| asked.elapsed()));
                        }
                    }
                }
                market
            });
        }
        let mut all = Market::default();
        for part in people.join_all().await {
            all.listed += part.listed;
            all.purchases.extend(part.purchases);
            all.tries_again += part.tries_again;
        }
        goods.check(&node.url()).await;
        all
    })
}

impl std::fmt::Display for Way {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self {
            Self::Watch => write!(f, "WATCH"),
            Self::ArticleLock => write!(f, "the article's lock"),
            Self::OneLock(kind) => write!(f, "{}, one lock", kind.name()),
            Self::LockPerItem(kind) => write!(f, "{}, a lock per item", kind.name()),
            Self::LockPerItemDropped(kind) => write!(f, "{}, a lock per item, guards dropped", kind.name()),
        }
    }
}
