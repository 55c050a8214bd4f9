//! What it costs that a replica has to know: acquire and release with `WAIT 1` and without, and what others feel of it. Rows take
//! turns operation by operation, so whatever else the machine does hits both alike.

mod figures;

use std::num::NonZeroU8;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use figures::process::{sleeps_of, time_of};
use figures::{Effort, Target, quantile, start_pair, tell};
use redis_rwlock::{Durability, RedisManager, RwLockManager};
use tokio::runtime::Runtime;
use tokio::task::JoinHandle;

/// Tasks that take locks all the time, beside whoever is measured.
const BUSY: usize = 4;

/// What a primary and its replica have done.
#[derive(Clone, Copy, Debug)]
struct Work {
    /// How often each has read from a connection.
    reads: [u64; 2],
    /// How often each was woken.
    wakes: [u64; 2],
    /// Of a processor, each.
    time: [Duration; 2],
}

impl Work {
    fn of(primary: &Node, replica: &Node) -> Self {
        let both = [primary, replica];
        Self {
            reads: both.map(|node| info(node, "stats", "total_reads_processed:")),
            wakes: both.map(|node| sleeps_of(node.pid())),
            time: both.map(|node| time_of(node.pid())),
        }
    }

    /// For each of so many pairs of an acquisition and a release.
    fn tell_since(self, before: Self, what: &str, pairs: usize) {
        let each = |now: [u64; 2], then: [u64; 2]| [0, 1].map(|n| (now[n] - then[n]) as f64 / pairs as f64);
        let ([read, reads], [wake, wakes]) = (each(self.reads, before.reads), each(self.wakes, before.wakes));
        let [time, times] = [0, 1].map(|n| (self.time[n] - before.time[n]).as_secs_f64() * 1e6 / pairs as f64);
        println!(
            "count: {what}: primary and replica read {read:.2}, {reads:.2} times, were woken {wake:.2}, {wakes:.2} times, \
             used {time:.0}, {times:.0} us"
        );
    }
}

fn info(node: &Node, section: &str, name: &str) -> u64 {
    let text = node.command(&["INFO", section]).expect("an answer").text().expect("a text").into_owned();
    text.lines().find_map(|line| line.strip_prefix(name)?.parse().ok()).expect("it counts them")
}

async fn manager(primary: &Node, durability: Durability) -> RedisManager {
    let builder = RedisManager::builder(primary.url()).response_timeout(Duration::from_secs(5)).durability(durability);
    builder.connect().await.expect("connected")
}

fn replicated() -> Durability {
    Durability::Replicated { replicas: NonZeroU8::MIN, timeout: Duration::from_secs(2) }
}

async fn acquire_and_release(manager: &RedisManager, name: &str) -> Duration {
    let began = Instant::now();
    manager.write(name).await.expect("granted").release().await.expect("ours to the end");
    began.elapsed()
}

/// Takes locks of their own without a pause.
fn keeps_busy(manager: &RedisManager) -> Vec<JoinHandle<()>> {
    let task = |n: usize| {
        let manager = manager.clone();
        tokio::spawn(async move {
            let name = format!("busy-{n}");
            loop {
                acquire_and_release(&manager, &name).await;
            }
        })
    };
    (0..BUSY).map(task).collect()
}

/// What a caller at the level of the primary feels beside those that keep the server busy.
async fn beside(other: &RedisManager, busy: &RedisManager, turns: usize) -> Vec<Duration> {
    let tasks = keeps_busy(busy);
    let mut times = Vec::with_capacity(turns);
    for _ in 0..turns {
        times.push(acquire_and_release(other, "other").await);
    }
    tasks.iter().for_each(JoinHandle::abort);
    times
}

fn main() {
    let effort = Effort::asked_for();
    let (turns, rounds) = (effort.of(4000, 1000, 20), effort.of(10, 4, 1));
    let (primary, replica) = start_pair();
    Runtime::new().expect("a runtime").block_on(async {
        let fast = manager(&primary, Durability::Primary).await;
        let safe = manager(&primary, replicated()).await;
        let (mut without, mut with) = (Vec::new(), Vec::new());
        for turn in 0..turns + turns / 10 {
            let times = [acquire_and_release(&fast, "fast").await, acquire_and_release(&safe, "safe").await];
            if turn >= turns / 10 {
                without.push(times[0]);
                with.push(times[1]);
            }
        }
        let (without, with) = (quantile(&mut without, 0.5), quantile(&mut with, 0.5));
        let ratio = with.as_secs_f64() / without.as_secs_f64();
        let sides = format!("{with:?} of {without:?}");
        tell(effort, "acquire and release, WAIT 1 of without, p50", &sides, ratio, Target::AtMost(2.5));

        for (manager, what) in [(&fast, "a pair"), (&safe, "a pair with WAIT 1")] {
            let before = Work::of(&primary, &replica);
            for _ in 0..turns {
                acquire_and_release(manager, "counted").await;
            }
            Work::of(&primary, &replica).tell_since(before, what, turns);
        }

        let (mut beside_fast, mut beside_safe) = (Vec::new(), Vec::new());
        let busy = manager(&primary, Durability::Primary).await;
        for _ in 0..rounds {
            beside_fast.extend(beside(&fast, &busy, turns / rounds).await);
            beside_safe.extend(beside(&fast, &safe, turns / rounds).await);
        }
        let (beside_fast, beside_safe) = (quantile(&mut beside_fast, 0.99), quantile(&mut beside_safe, 0.99));
        let ratio = beside_safe.as_secs_f64() / beside_fast.as_secs_f64();
        let sides = format!("{beside_safe:?} of {beside_fast:?}");
        tell(effort, "others beside four with WAIT 1, of beside four without, p99", &sides, ratio, Target::AtMost(1.3));
    });
}
