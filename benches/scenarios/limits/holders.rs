//! Holders of one lock: readers of different managers, which the server records, and guards of one process, which share
//! a hold.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, ReadGuard, RedisManager, RwLockManager, Topology};
use tokio::runtime::Runtime;

use super::climb::{Quantity, Reading};
use super::crowd::Crowd;
use super::probe::{Arrivals, Meter, Prober, kib_each, micros, whole};
use super::{Loader, obey};
use crate::setup::process::resident_bytes;
use crate::setup::{Effort, connect, start_node};

const READERS: Quantity = Quantity {
    name: "reading managers",
    watched: "p99 of one more reader's pair, us",
    columns: &["p50", "others' p99", "inspect, us", "longest script, ms", "came a second", "server, KiB each"],
};
const GUARDS: Quantity = Quantity {
    name: "guards of a hold",
    watched: "ns for a join and its drop",
    columns: &["ns for a join", "ns for a drop", "client, bytes each"],
};
const LOCK: &str = "crowd";

/// The other process: lets so many guards share a hold, and drops them. Answers with the nanoseconds for the joins and
/// for the drops, and with the memory of the guards.
pub(super) fn join(url: &str) {
    let runtime = Runtime::new().expect("a runtime");
    let manager = runtime.block_on(connect(RedisManager::builder(Topology::node(url))));
    obey(|order| runtime.block_on(join_and_drop(&manager, order.parse().expect("a number"))));
}

async fn join_and_drop(manager: &RedisManager, count: usize) -> Result<Vec<f64>, Error> {
    let mut guards: Vec<ReadGuard> = Vec::with_capacity(count);
    let began = Instant::now();
    for _ in 0..count {
        guards.push(manager.read(LOCK).await?);
    }
    let joins = began.elapsed();
    let bytes = resident_bytes();
    let began = Instant::now();
    drop(guards);
    let drops = began.elapsed();
    manager.flush().await?;
    Ok(vec![joins.as_secs_f64() * 1e9, drops.as_secs_f64() * 1e9, bytes as f64])
}

fn climb_readers(effort: Effort) {
    let loads = effort.of(
        &[1_000, 4_000, 16_000, 64_000, 256_000, 500_000, 1_000_000][..],
        &[1_000, 16_000, 128_000],
        &[10, 20],
    );
    let (turns, looks) = effort.of((2_000, 20), (1_000, 20), (5, 2));
    let node = start_node();
    let prober = Prober::connect(Topology::node(node.url()));
    let one_more = Prober::connect(Topology::node(node.url()));
    let mut crowd = Crowd::connect(&node);
    let mut meter = Meter::start(&node, std::process::id());
    let [_, start] = meter.bytes();
    let (mut inside, mut arrivals) = (0, Arrivals::default());
    READERS.climb(loads, |count| {
        let began = Instant::now();
        crowd.acquire((inside, count), |_| LOCK.to_owned(), "r", "0");
        let rate = arrivals.note(count - inside, began);
        inside = count;
        let [_, bytes] = meter.bytes();
        meter.reset();
        let ((mut pairs, mut inspections), mut felt) = prober.probe_during(|| {
            let pairs: Result<Vec<Duration>, Error> = (0..turns).map(|_| one_more.read_pair(LOCK)).collect();
            (pairs.expect("granted"), one_more.inspections(LOCK, looks))
        });
        Reading {
            watched: micros(&mut pairs, 0.99),
            cells: vec![
                whole(micros(&mut pairs, 0.5)),
                whole(felt.micros(0.99)),
                whole(micros(&mut inspections, 0.5)),
                meter.longest(),
                rate,
                kib_each(bytes, start, count),
            ],
            bytes,
            failure: felt.failure.take(),
        }
    });
}

fn climb_guards(effort: Effort) {
    let loads = effort.of(
        &[1_000, 10_000, 100_000, 1_000_000, 2_000_000, 4_000_000, 8_000_000][..],
        &[1_000, 100_000],
        &[10, 20],
    );
    let node = start_node();
    let mut loader = Loader::start("guards", &node.url());
    let mut meter = Meter::start(&node, loader.pid());
    let [start, _] = meter.bytes();
    GUARDS.climb(loads, |count| match loader.order(&count.to_string()) {
        Err(failure) => Reading::of_failure(failure),
        Ok([joins, drops, bytes]) => {
            let each = count as f64;
            Reading {
                watched: (joins + drops) / each,
                cells: vec![whole(joins / each), whole(drops / each), whole((bytes - start).max(0.0) / each)],
                bytes,
                failure: None,
            }
        }
    });
}

pub(super) fn run(effort: Effort) {
    climb_readers(effort);
    climb_guards(effort);
}
