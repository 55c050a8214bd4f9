//! Pairs with `WAIT 1` and without, and the delay of others. Rows take turns operation by operation, so whatever else
//! the machine does hits both alike.

use tokio::task::JoinHandle;

use super::*;
use crate::setup::process::{time_of, wake_ups_of};

const REPLICATED: Durability = Durability::Replicated { replicas: Replicas::At(1), timeout: Duration::from_secs(2) };
/// Tasks that take locks all the time, beside the measured one.
const BUSY: usize = 4;

async fn manager(primary: &Node, durability: Durability) -> RedisManager {
    let builder = RedisManager::builder(primary.url()).response_timeout(Duration::from_secs(5)).durability(durability);
    builder.connect().await.expect("connected")
}

/// Returns the reads from connections, the wake-ups and the microseconds of a server so far.
fn work_of(node: &Node) -> [f64; 3] {
    let stats = info(&mut node.client().expect("connected"), "stats");
    let reads = info_number(&stats, "total_reads_processed");
    [reads, wake_ups_of(node.pid()) as f64, micros(time_of(node.pid()))]
}

async fn keep_busy(manager: RedisManager, name: String) {
    loop {
        pair(&manager, &name).await;
    }
}

/// Measures a caller with `Durability::Primary` beside tasks that keep the server busy.
async fn beside(other: &RedisManager, busy: &RedisManager, turns: usize) -> Vec<Duration> {
    let tasks: Vec<_> = (0..BUSY).map(|n| tokio::spawn(keep_busy(busy.clone(), format!("busy-{n}")))).collect();
    let mut times = Vec::with_capacity(turns);
    for _ in 0..turns {
        times.push(pair(other, "other").await);
    }
    tasks.iter().for_each(JoinHandle::abort);
    times
}

/// Prints the time with `WAIT 1`, of the time without.
fn tell_times(what: &str, mut with: Vec<Duration>, mut without: Vec<Duration>, share: f64, bound: f64) {
    let times = [&mut with, &mut without].map(|times| micros(quantile(times, share)));
    tell_ratio(what, times, "us", AtMost(bound));
}

pub(crate) fn run(effort: Effort) {
    let (turns, rounds) = (effort.of(4000, 1000, 20), effort.of(10, 4, 1));
    let [primary, replica] = start_pair(server());
    runtime().block_on(async {
        let (fast, safe) = (manager(&primary, Durability::Primary).await, manager(&primary, REPLICATED).await);
        let (sides, mut samples) = ([(&fast, "fast"), (&safe, "safe")], [const { Vec::new() }; 2]);
        for (side, counts) in in_turns(2, turns) {
            let took = pair(sides[side].0, sides[side].1).await;
            samples[side].extend(counts.then_some(took));
        }
        let [without, with] = samples;
        tell_times("acquire and release, WAIT 1 of without, p50", with, without, 0.5, 2.5);

        for (manager, what) in [(&fast, "a pair"), (&safe, "a pair with WAIT 1")] {
            let before = [work_of(&primary), work_of(&replica)];
            for _ in 0..turns {
                pair(manager, "counted").await;
            }
            for (n, (node, name)) in [(&primary, "primary"), (&replica, "replica")].into_iter().enumerate() {
                let now = work_of(node);
                let [reads, woken, us] = [0, 1, 2].map(|part| (now[part] - before[n][part]) / turns as f64);
                println!("row: {what}: the {name} read {reads:.2} times, was woken {woken:.2} times, used {us:.0} us");
            }
        }

        let (mut without, mut with) = (Vec::new(), Vec::new());
        let busy = manager(&primary, Durability::Primary).await;
        for _ in 0..rounds {
            without.extend(beside(&fast, &busy, turns / rounds).await);
            with.extend(beside(&fast, &safe, turns / rounds).await);
        }
        tell_times("others beside four with WAIT 1, of beside four without, p99", with, without, 0.99, 1.3);
    });
}
