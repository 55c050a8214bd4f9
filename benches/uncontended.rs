//! One task takes and gives back a lock that nobody else wants: what our side adds to the round trips and the scripts.
//!
//! The rows take turns operation by operation, so whatever else the machine does hits all of them alike.

mod figures;

use std::hint::black_box;
use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Node};
use criterion::{Criterion, criterion_group, criterion_main};
use figures::{
    Bare, CommandStats, Effort, LONG_LEASE, Target, bare_connection, foreign_id, quantile, server, start_node, tell,
};
use redis::aio::MultiplexedConnection;
use redis::cluster_async::ClusterConnection;
use redis_rwlock::{Build, Builder, RedisManager, RwLockManager, Topology, TwoKeyManager};
use tokio::runtime::Runtime;

const LOCK: &str = "bench";
/// The key of that name's hash.
const KEY: &str = "rwlock:{bench}:lock";

/// Everything that a row needs.
struct Rows {
    hash: RedisManager,
    two_key: TwoKeyManager,
    on_cluster: RedisManager,
    bare: Bare<MultiplexedConnection>,
    bare_on_cluster: Bare<ClusterConnection>,
    /// The key that the bare calls use, not to meet ours.
    bare_key: String,
    shaped_key: String,
}

impl Rows {
    async fn new(node: &Node, cluster: &Cluster) -> Self {
        let connection = bare_connection(&node.url()).await;
        let bare = Bare::new(connection.clone(), &mut [connection]).await;
        let mut loaders = Vec::new();
        for url in cluster.urls() {
            loaders.push(bare_connection(&url).await);
        }
        let client = redis::cluster::ClusterClient::new(cluster.urls()).expect("a client");
        let connection = client.get_async_connection().await.expect("a cluster connection");
        Self {
            hash: connected(RedisManager::builder(Topology::node(node.url()))).await,
            two_key: connected(TwoKeyManager::builder(Topology::node(node.url()))).await,
            on_cluster: connected(RedisManager::builder(Topology::cluster(cluster.urls()))).await,
            bare,
            bare_on_cluster: Bare::new(connection, &mut loaders).await,
            bare_key: KEY.replace("lock", "bare"),
            shaped_key: KEY.replace("lock", "shaped"),
        }
    }
}

async fn connected<M: Build>(builder: Builder<M>) -> M {
    builder.lease(LONG_LEASE).max_hold(LONG_LEASE * 2).connect().await.expect("a manager")
}

async fn ours(manager: &impl RwLockManager) {
    let guard = manager.write(LOCK).await.expect("granted");
    black_box(&guard);
    guard.release().await.expect("released");
}

/// The first ones are what the figures compare.
const ROWS: [&str; 7] = ["ours", "floor0", "floor1", "lock-shaped", "two_key", "cluster", "redis-rs cluster, bare"];
const JUDGED: usize = 4;

impl Rows {
    async fn run(&mut self, row: usize) {
        match row {
            0 => ours(&self.hash).await,
            1 => self.bare.two_no_ops(&self.bare_key).await,
            2 => self.bare.acquire_and_leave(&self.bare_key, &foreign_id()).await,
            3 => self.bare.lock_shaped_pair(&self.shaped_key).await,
            4 => ours(&self.two_key).await,
            5 => ours(&self.on_cluster).await,
            _ => self.bare_on_cluster.acquire_and_leave(&self.bare_key, &foreign_id()).await,
        }
    }

    /// The first `N` rows once each; forwards and backwards by turns, so that none always follows the same other.
    async fn one_turn<const N: usize>(&mut self, turn: usize) -> [Duration; N] {
        let mut spans = [Duration::ZERO; N];
        for step in 0..N {
            let row = if turn.is_multiple_of(2) { step } else { N - 1 - step };
            let began = Instant::now();
            self.run(row).await;
            spans[row] = began.elapsed();
        }
        spans
    }
}

fn p50s<const N: usize>(turns: &[[Duration; N]]) -> [Duration; N] {
    std::array::from_fn(|row| quantile(&mut turns.iter().map(|turn| turn[row]).collect::<Vec<_>>(), 0.5))
}

async fn tell_figures(mut rows: Rows, effort: Effort, runtime: &str) -> Rows {
    let turns = effort.of(10_000, 3_000, 5);
    let mut judged = Vec::with_capacity(turns);
    let mut all = Vec::with_capacity(turns / 4 + 1);
    for turn in 0..turns / 10 {
        rows.one_turn::<JUDGED>(turn).await; // warm
    }
    // Without the other rows, which would cool the caches down for these.
    for turn in 0..turns {
        judged.push(rows.one_turn::<JUDGED>(turn).await);
    }
    for turn in 0..=turns / 4 {
        all.push(rows.one_turn::<{ ROWS.len() }>(turn).await);
    }
    let [own, floor0, floor1, shaped] = p50s(&judged);
    for (floor, name, bound) in [(floor0, "floor0", 1.35), (floor1, "floor1", 1.10)] {
        let sides = format!("p50 {own:?} against {floor:?}");
        let what = format!("uncontended, {runtime}, ours / {name}");
        tell(effort, &what, &sides, own.div_duration_f64(floor), Target::AtMost(bound));
    }
    let [own, shaped] = [own, shaped].map(|p50| p50.div_duration_f64(floor0));
    println!("row: {runtime}, of two no-ops: ours {own:.3}, two lock-shaped scripts, bare {shaped:.3}");
    for (name, p50) in ROWS.iter().zip(p50s(&all)) {
        println!("row: {runtime}, {name}: p50 {p50:?}, {:.3} x floor0", p50.div_duration_f64(p50s(&all)[1]));
    }
    rows
}

/// One command for an acquisition and one for a release, by the server's own count.
async fn count_commands(hash: &RedisManager, node: &Node, effort: Effort) {
    let rounds = effort.of(1000, 1000, 10);
    ours(hash).await;
    CommandStats::reset(node);
    for _ in 0..rounds {
        ours(hash).await;
    }
    let stats = CommandStats::of(node);
    let by_scripts = ["time", "hmget", "hset", "hdel", "pexpireat"];
    let alien: Vec<&str> = stats
        .commands()
        .filter(|name| !by_scripts.contains(name) && !["evalsha", "config|resetstat"].contains(name))
        .collect();
    assert!(alien.is_empty(), "nothing else is sent: {alien:?}");
    // Each script asks for the time once; a question of ours for the time would be one more.
    assert_eq!(stats.calls("time"), stats.calls("evalsha"), "scripts ask for the time, nobody else does");
    let sides = format!("{} commands for {rounds} acquisitions and releases", stats.calls("evalsha"));
    let each = stats.calls("evalsha") as f64 / (2 * rounds) as f64;
    tell(effort, "uncontended, commands per acquisition or release", &sides, each, Target::AtMost(1.0));
}

fn bench(criterion: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let cluster = Cluster::start(server()).expect("a cluster starts");
    for (name, mut builder) in [
        ("multi-thread runtime", tokio::runtime::Builder::new_multi_thread()),
        ("current-thread runtime", tokio::runtime::Builder::new_current_thread()),
    ] {
        let runtime = builder.enable_all().build().expect("a runtime");
        runtime.block_on(async {
            let rows = Rows::new(&node, &cluster).await;
            // A task of the runtime, as services have them.
            let rows = tokio::spawn(tell_figures(rows, effort, name)).await.expect("measured");
            count_commands(&rows.hash, &node, effort).await;
        });
    }
    micro(criterion, &node, &cluster);
}

/// The same as rows of criterion, for comparison from one version to the next.
fn micro(criterion: &mut Criterion, node: &Node, cluster: &Cluster) {
    let runtime = Runtime::new().expect("a runtime");
    let mut rows = runtime.block_on(Rows::new(node, cluster));
    let mut group = criterion.benchmark_group("uncontended");
    group.sample_size(20).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    for (row, name) in ROWS.iter().enumerate() {
        group.bench_function(*name, |bencher| {
            bencher.iter_custom(|turns| {
                runtime.block_on(async {
                    let mut sum = Duration::ZERO;
                    for turn in 0..turns {
                        sum += rows.one_turn::<{ ROWS.len() }>(turn as usize).await[row];
                    }
                    sum
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
