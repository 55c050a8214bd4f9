//! Client CPU of many local waiters, subscriptions and watches, when they come, wait and go. Each is measured at two
//! counts, to see that the cost grows with the count and no faster.

use std::iter::repeat_n;
use std::pin::Pin;
use std::task::{Context, Waker};

use redis_rwlock::Acquiring;

use super::*;

/// A count for comparison is the full one divided by this.
const FEWER: usize = 4;
/// Largest ratio between the cost of each at the full count and at the lower count.
const LINEAR: f64 = 1.5;

/// Costs of many and of a quarter as many, in milliseconds.
struct Costs {
    all: f64,
    fewer: f64,
}

impl Costs {
    async fn measure(effort: Effort, count: usize, mut cost: impl AsyncFnMut(usize) -> Duration) -> Self {
        // The first fetches the memory.
        cost(count).await;
        let (mut all, mut fewer) = (Vec::new(), Vec::new());
        for _ in 0..effort.of(5, 3, 1) {
            all.push(cost(count).await.as_secs_f64() * 1e3);
            fewer.push(cost(count / FEWER).await.as_secs_f64() * 1e3);
        }
        Self { all: median(&mut all), fewer: median(&mut fewer) }
    }

    fn tell(&self, what: &str, count: usize, most_ms: f64) {
        tell(&format!("{count} {what}"), "ms of CPU", self.all, AtMost(most_ms));
        self.tell_growth(what, count);
    }

    fn tell_growth(&self, what: &str, count: usize) {
        let each = [self.all, self.fewer.max(0.01) * FEWER as f64].map(|ms| 1e3 * ms / count as f64);
        tell_ratio(&format!("{count} {what}, each / each of a quarter"), each, "us of CPU", AtMost(LINEAR));
    }
}

/// Returns the CPU of the process while it waits for a while, in percent of a core.
async fn idle_share(span: Duration) -> f64 {
    let (cpu, began) = (processor_time(), Instant::now());
    tokio::time::sleep(span).await;
    100.0 * (processor_time() - cpu).div_duration_f64(began.elapsed())
}

/// Prints this share for tasks that have just begun to wait, beside the share without them.
async fn tell_idle_share(what: &str, span: Duration, empty: f64) {
    tokio::time::sleep(Duration::from_secs(1)).await;
    tell(what, &format!("percent of a core, {empty:.2} without them"), idle_share(span).await, AtMost(1.0));
}

/// Polls an acquisition until it has to wait for others.
fn poll_once(acquiring: &mut Acquiring<WriteGuard>) {
    let pending = Pin::new(acquiring).poll(&mut Context::from_waker(Waker::noop())).is_pending();
    assert!(pending, "others hold the lock");
}

/// Returns local waiters of one lock, in the order in which they came.
fn local_waiters(manager: &RedisManager, name: &str, count: usize) -> Vec<Acquiring<WriteGuard>> {
    let mut waiters: Vec<_> = (0..count).map(|_| manager.write(name).into_future()).collect();
    waiters.iter_mut().for_each(poll_once);
    waiters
}

/// Returns guards that share a hold.
async fn shares(manager: &RedisManager, name: &str, count: usize) -> Vec<ReadGuard> {
    let mut guards = Vec::with_capacity(count);
    for _ in 0..count {
        guards.push(manager.read(name).await.expect("joined"));
    }
    guards
}

async fn giving_up(effort: Effort, node: &Node) {
    let count = effort.of(20_000, 20_000, 200);
    let here = joining_manager(node).await;
    let held = here.write("given-up").await.expect("granted");
    for (order, is_last_first) in [("first come first", false), ("last come first", true)] {
        let mut coming = Vec::new();
        let costs = Costs::measure(effort, count, async |count| {
            let began = processor_time();
            let mut waiters = local_waiters(&here, "given-up", count);
            let came = processor_time();
            coming.push((count, (came - began).as_secs_f64() * 1e3));
            if is_last_first {
                waiters.reverse();
            }
            waiters.into_iter().for_each(drop);
            // What their going left to others to do.
            tokio::time::sleep(Duration::from_millis(20)).await;
            processor_time() - came
        })
        .await;
        costs.tell(&format!("local waiters that give up, {order}"), count, 100.0);
        let of = |meant| {
            let mut costs: Vec<f64> = coming.iter().filter(|(count, _)| *count == meant).map(|(_, ms)| *ms).collect();
            median(&mut costs)
        };
        Costs { all: of(count), fewer: of(count / FEWER) }.tell("local waiters that come", count, 100.0);
    }
    held.release().await.expect("released");
}

async fn subscriptions(effort: Effort, node: &Node) {
    let count = effort.of(8_000, 8_000, 50);
    let elsewhere = joining_manager(node).await;
    let names = |count| (0..count).map(|lock| format!("listened-{lock}"));
    let held: Result<Vec<_>, _> = spawn_writes(&elsewhere, names(count)).join_all().await.into_iter().collect();
    let held = held.expect("granted");
    let costs = Costs::measure(effort, count, async |count| {
        let here = joining_manager(node).await;
        let began = processor_time();
        CommandStats::reset(node);
        let mut waiters = spawn_writes(&here, names(count));
        while CommandStats::of(node).calls("ssubscribe") < count as u64 {
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
        let cost = processor_time() - began;
        waiters.shutdown().await;
        here.close().await.expect("closed");
        cost
    })
    .await;
    costs.tell_growth("subscriptions", count);
    let bare = Costs::measure(effort, count, async |count| bare_subscriptions(node, count).await).await;
    let sides = format!("ms of CPU above {:.1} of two scripts and an SSUBSCRIBE for each, bare", bare.all);
    tell(&format!("{count} subscriptions"), &sides, costs.all - bare.all, AtMost(100.0));
    drop(held);
}

/// Sends what a waiter of each of so many locks has to send, on a bare connection.
async fn bare_subscriptions(node: &Node, count: usize) -> Duration {
    let connection = bare_connection(&format!("{}?protocol=resp3", node.url())).await;
    let bare = Bare::new(connection.clone(), &mut [connection.clone()]).await;
    let began = processor_time();
    let mut tasks = JoinSet::new();
    for lock in 0..count {
        let (mut bare, mut connection) = (bare.clone(), connection.clone());
        tasks.spawn(async move {
            let key = lock_key(format_args!("bare-{lock}"));
            bare.lock_shaped_pair(&key).await;
            let mut subscribe = redis::cmd("SSUBSCRIBE");
            subscribe.arg(format!("{key}:wake")).query_async::<()>(&mut connection).await.expect("subscribed");
        });
    }
    tasks.join_all().await;
    processor_time() - began
}

async fn waiting(effort: Effort, node: &Node) {
    let (count, span) = effort.of((10_000, 5), (10_000, 3), (100, 1));
    let span = Duration::from_secs(span);
    let (here, elsewhere) = (joining_manager(node).await, joining_manager(node).await);
    // What earlier parts left to do, thousands of releases, is not the baseline of this one.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let empty = idle_share(span).await;
    let held = elsewhere.write("theirs").await.expect("granted");
    let mut waiters = spawn_writes(&here, repeat_n("theirs".to_owned(), count));
    tell_idle_share(&format!("{count} local waiters of a lock held elsewhere"), span, empty).await;
    waiters.shutdown().await;
    drop(held);

    let readers = shares(&here, "ours", count / 2).await;
    let mut waiters = spawn_writes(&here, repeat_n("ours".to_owned(), count / 2));
    tell_idle_share(&format!("{0} local waiters beside {0} readers", count / 2), span, empty).await;
    waiters.shutdown().await;
    drop(readers);
}

async fn watching(effort: Effort, node: &Node) {
    let (count, span) = effort.of((40_000, 5), (40_000, 3), (100, 1));
    let here = joining_manager(node).await;
    let shares = shares(&here, "watched", count).await;
    let costs = Costs::measure(effort, count, async |count| {
        let began = processor_time();
        let mut watchers: Vec<_> = shares[..count].iter().map(|guard| Box::pin(guard.lost())).collect();
        for watcher in &mut watchers {
            assert!(watcher.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending());
        }
        drop(watchers);
        processor_time() - began
    })
    .await;
    costs.tell("`lost()` that begin and end", count, 100.0);

    let span = Duration::from_secs(span);
    let empty = idle_share(span).await;
    let mut watchers = JoinSet::new();
    for guard in shares {
        watchers.spawn(async move { guard.lost().await });
    }
    tell_idle_share(&format!("{count} `lost()` that wait"), span, empty).await;
    watchers.shutdown().await;
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    type Part<'a> = Pin<Box<dyn Future<Output = ()> + 'a>>;
    let parts: [Part<'_>; 4] = [
        Box::pin(giving_up(effort, &node)),
        Box::pin(subscriptions(effort, &node)),
        Box::pin(waiting(effort, &node)),
        Box::pin(watching(effort, &node)),
    ];
    for part in parts {
        let runtime = runtime();
        runtime.block_on(part);
        runtime.shutdown_background();
    }
}
