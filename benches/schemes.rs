//! All schemes under the same loads, by criterion alone: throughput, its report and its plots below `target/criterion`.
//!
//! * `schemes`: each task has a lock of its own, so that nobody waits: what a scheme costs by itself.
//! * `contention`: all tasks want one lock: what waiting and passing on cost.
//!
//! An element is an acquisition with its release. No figure is judged here: `benches/peers` compares.

mod figures;

use std::fmt;
use std::num::NonZeroU8;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Masters, Node};
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput, criterion_group, criterion_main};
use figures::{LONG_LEASE, server, start_node, start_pair};
use redis_rwlock::{Durability, MemoryManager, QuorumManager, RedisManager, RwLockManager, Topology, TwoKeyManager};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// With so many tasks a replica's word may take its time on a machine with two cores.
const REPLICATED_WITHIN: Duration = Duration::from_secs(2);
const STARTS: &str = "servers start; cluster-testenv/install brings them";

/// Of a hundred acquisitions so many write.
#[derive(Clone, Copy)]
struct Writes(usize);

impl Writes {
    /// Whether that one does: they are spread evenly.
    fn at(self, turn: usize) -> bool {
        turn * self.0 % 100 < self.0
    }
}

impl fmt::Display for Writes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("read"),
            100 => f.write_str("write"),
            writes => write!(f, "{}-{writes}", 100 - writes),
        }
    }
}

/// Which locks the tasks want.
#[derive(Clone, Copy)]
enum Names {
    /// Each one of its own.
    Own,
    /// All the same.
    One,
}

impl Names {
    fn of(self, task: usize) -> String {
        match self {
            Self::Own => format!("own-{task}"),
            Self::One => "one".to_owned(),
        }
    }
}

type Manager = Arc<dyn RwLockManager>;

/// A scheme, with servers of its own for as long as it is measured.
struct Place {
    name: &'static str,
    manager: Manager,
    _servers: Box<dyn Send>,
}

impl Place {
    fn new(name: &'static str, manager: impl RwLockManager, servers: impl Send + 'static) -> Self {
        Self { name, manager: Arc::new(manager), _servers: Box::new(servers) }
    }
}

fn memory() -> Place {
    Place::new("memory", MemoryManager::new(), ())
}

async fn two_keys() -> Place {
    let node = start_node();
    let builder = TwoKeyManager::builder(Topology::node(node.url())).lease(LONG_LEASE);
    Place::new("two-keys", builder.connect().await.expect("a server"), node)
}

async fn hash() -> Place {
    let node = start_node();
    let builder = RedisManager::builder(Topology::node(node.url())).lease(LONG_LEASE);
    Place::new("hash", builder.connect().await.expect("a server"), node)
}

async fn three_shards() -> Place {
    // A busy machine is no reason to call a node failed.
    let builder = Cluster::builder(server()).node_timeout(Duration::from_secs(10)).primaries(3).replicas(0);
    let cluster = builder.start().expect(STARTS);
    let urls: Vec<_> = cluster.nodes().iter().map(Node::url).collect();
    let builder = RedisManager::builder(Topology::cluster(urls)).lease(LONG_LEASE);
    Place::new("hash-on-three-shards", builder.connect().await.expect("a cluster"), cluster)
}

async fn replicated() -> Place {
    let (primary, replica) = start_pair();
    let durability = Durability::Replicated { replicas: NonZeroU8::MIN, timeout: REPLICATED_WITHIN };
    let builder = RedisManager::builder(Topology::node(primary.url())).lease(LONG_LEASE).durability(durability);
    let manager = builder.response_timeout(2 * REPLICATED_WITHIN).connect().await.expect("a server");
    Place::new("replicated", manager, (primary, replica))
}

async fn quorum() -> Place {
    let masters = Masters::start(server(), 5).expect(STARTS);
    let urls: Vec<_> = masters.nodes().iter().map(Node::url).collect();
    // Servers that have just started have no vote else.
    let builder = QuorumManager::builder(urls).lease(LONG_LEASE).restarts_are_delayed();
    Place::new("quorum", builder.connect().await.expect("a majority"), masters)
}

/// All tasks take and give back a lock so often; how long that took.
async fn carry(manager: &Manager, names: Names, writes: Writes, tasks: usize, turns: usize) -> Duration {
    let began = Instant::now();
    let mut all = JoinSet::new();
    for task in 0..tasks {
        let (manager, name) = (Arc::clone(manager), names.of(task));
        all.spawn(async move {
            // Not all write at once.
            for turn in (0..turns).map(|turn| turn + 7 * task) {
                if writes.at(turn) {
                    manager.write(&name).await.expect("granted").release().await.expect("released");
                } else {
                    manager.read(&name).await.expect("granted").release().await.expect("released");
                }
            }
        });
    }
    all.join_all().await;
    began.elapsed()
}

fn settings(group: &mut BenchmarkGroup<'_, WallTime>) {
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
}

fn measure(
    group: &mut BenchmarkGroup<'_, WallTime>,
    runtime: &Runtime,
    place: &Place,
    (names, writes, tasks): (Names, Writes, usize),
) {
    group.throughput(Throughput::Elements(tasks as u64));
    let id = BenchmarkId::new(format!("{}/{writes}", place.name), tasks);
    group.bench_function(id, |bencher| {
        bencher.iter_custom(|turns| {
            runtime.block_on(carry(&place.manager, names, writes, tasks, usize::try_from(turns).expect("few")))
        });
    });
}

fn schemes(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("schemes");
    settings(&mut group);
    // One after the other: servers that stand idle cost something, too.
    let places: [&dyn Fn() -> Place; 6] = [
        &memory,
        &|| runtime.block_on(two_keys()),
        &|| runtime.block_on(hash()),
        &|| runtime.block_on(three_shards()),
        &|| runtime.block_on(replicated()),
        &|| runtime.block_on(quorum()),
    ];
    for place in places {
        let place = place();
        for writes in [0, 100, 10, 1].map(Writes) {
            for tasks in [1, 16, 256] {
                measure(&mut group, &runtime, &place, (Names::Own, writes, tasks));
            }
        }
    }
    group.finish();
}

fn contention(criterion: &mut Criterion) {
    let runtime = Runtime::new().expect("a runtime");
    let mut group = criterion.benchmark_group("contention");
    settings(&mut group);
    let places: [&dyn Fn() -> Place; 3] = [&memory, &|| runtime.block_on(two_keys()), &|| runtime.block_on(hash())];
    for place in places {
        let place = place();
        for writes in [100, 10, 1].map(Writes) {
            for tasks in [2, 16, 256] {
                measure(&mut group, &runtime, &place, (Names::One, writes, tasks));
            }
        }
    }
    group.finish();
}

criterion_group!(benches, schemes, contention);
criterion_main!(benches);
