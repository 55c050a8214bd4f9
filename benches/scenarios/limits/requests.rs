//! Requests per second on one node: pairs of independent locks, as many a second as are asked for.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, RedisManager, RwLockManager, Topology};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;
use tokio::time::MissedTickBehavior;

use super::climb::{Quantity, Reading};
use super::probe::{Meter, Prober, whole};
use super::{Loader, obey};
use crate::setup::{Effort, connect, start_node};

/// Tasks of the client, each with a lock of its own.
const TASKS: usize = 512;
/// Smallest share of the pairs that have to be done in time.
const DONE: f64 = 0.95;
const REQUESTS: Quantity = Quantity {
    name: "pairs a second",
    watched: "others' p99, us",
    columns: &[
        "others' p50",
        "done a second",
        "client, % of a core",
        "server, %",
        "us of client a pair",
        "us of server a pair",
    ],
};

/// The other process: makes so many pairs a second for so many milliseconds. Answers with the number of pairs, and with
/// the time they took.
pub(super) fn load(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let manager = runtime.block_on(connect(RedisManager::builder(Topology::node(url))));
    obey(|order| {
        let numbers: Vec<f64> = order.split(' ').map(|word| word.parse().expect("a number")).collect();
        let (rate, span) = (numbers[0], Duration::from_secs_f64(numbers[1] / 1e3));
        runtime.block_on(pairs(&manager, rate, span))
    });
}

async fn pairs(manager: &RedisManager, rate: f64, span: Duration) -> Result<Vec<f64>, Error> {
    let (mut tasks, began) = (JoinSet::new(), tokio::time::Instant::now());
    let interval = Duration::from_secs_f64(TASKS as f64 / rate);
    for task in 0..TASKS {
        let manager = manager.clone();
        // The tasks begin one after the other, so that the pairs are spread over the interval.
        let first = began + interval.mul_f64(task as f64 / TASKS as f64);
        tasks.spawn(async move {
            let (name, mut done) = (format!("load-{task}"), 0_u32);
            let mut ticks = tokio::time::interval_at(first, interval);
            // A late task catches up, so that the load stays what was asked for.
            ticks.set_missed_tick_behavior(MissedTickBehavior::Burst);
            while began.elapsed() < span {
                ticks.tick().await;
                manager.write(&name).await?.release().await?;
                done += 1;
            }
            Ok::<_, Error>(done)
        });
    }
    let mut done = 0;
    while let Some(end) = tasks.join_next().await {
        done += end.expect("no panic")?;
    }
    Ok(vec![f64::from(done), began.elapsed().as_secs_f64()])
}

pub(super) fn run(effort: Effort) {
    let loads = effort.of(
        &[1_000, 2_000, 4_000, 8_000, 12_000, 16_000, 20_000, 24_000, 28_000, 32_000, 40_000, 48_000, 56_000][..],
        &[1_000, 8_000, 24_000, 48_000],
        &[1_000],
    );
    let span_ms = effort.of(6_000, 4_000, 100);
    let node = start_node();
    let prober = Prober::connect(Topology::node(node.url()));
    let mut loader = Loader::start("requests", &node.url());
    let mut meter = Meter::start(&node, loader.pid());
    REQUESTS.climb(loads, |rate| {
        let began = Instant::now();
        meter.reset();
        let (pairs, mut felt) = prober.probe_during(|| loader.order(&format!("{rate} {span_ms}")));
        let [client, server] = meter.shares();
        let elapsed_us = began.elapsed().as_secs_f64() * 1e6;
        let [done, took_s] = match pairs {
            Ok(numbers) => numbers,
            Err(failure) => return Reading::of_failure(failure),
        };
        let achieved = done / took_s;
        let each = |share: f64| format!("{:.1}", share / 100.0 * elapsed_us / done);
        let is_short = achieved < DONE * rate as f64 && effort != Effort::Once;
        Reading {
            watched: felt.micros(0.99),
            cells: vec![
                whole(felt.micros(0.5)),
                whole(achieved),
                whole(client),
                whole(server),
                each(client),
                each(server),
            ],
            bytes: 0.0,
            failure: felt.failure.take().or_else(|| is_short.then(|| format!("only {achieved:.0} a second are done"))),
        }
    });
}
