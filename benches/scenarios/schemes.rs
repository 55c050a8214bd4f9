//! All schemes under the same loads, by criterion, with its report and its plots below `target/criterion`. No figure is
//! judged here: `benches/peers` compares.
//!
//! In the group `schemes` each task has a lock of its own, so that no task waits. In `contention` all tasks want one
//! lock. An element is an acquisition with its release.

use std::fmt;

use cluster_testenv::Masters;
use criterion::measurement::WallTime;
use criterion::{BenchmarkGroup, BenchmarkId, Criterion, Throughput};
use redis_rwlock::{Build, Builder, MemoryManager};

use super::*;

/// Time limit for the acknowledgement of a replica. It is long, because with this many tasks the acknowledgement may be
/// late on a machine with two cores.
const REPLICATED_WITHIN: Duration = Duration::from_secs(2);
const STARTS: &str = "servers start; cluster-testenv/install brings them";

/// Writes of a hundred acquisitions.
#[derive(Clone, Copy)]
struct Writes(usize);

impl Writes {
    /// Returns whether this acquisition writes. The writes are spread evenly.
    fn is_at(self, turn: usize) -> bool {
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

/// A scheme, with servers of its own for as long as it is measured.
struct Place {
    name: &'static str,
    manager: Arc<dyn RwLockManager>,
    _servers: Box<dyn Send>,
}

impl Place {
    async fn new<M: Build>(name: &'static str, builder: Builder<M>, servers: impl Send + 'static) -> Self {
        Self { name, manager: Arc::new(connect(builder).await), _servers: Box::new(servers) }
    }
}

const SCHEMES: [&str; 6] = ["memory", "two-keys", "hash", "hash-on-three-shards", "replicated", "quorum"];

async fn start(name: &'static str) -> Place {
    match name {
        "memory" => Place::new(name, MemoryManager::builder(), ()).await,
        "two-keys" => {
            let node = start_node();
            Place::new(name, TwoKeyManager::builder(node.url()), node).await
        }
        "hash" => {
            let node = start_node();
            Place::new(name, RedisManager::builder(node.url()), node).await
        }
        "hash-on-three-shards" => {
            // A busy machine is no reason to call a node failed.
            let builder = Cluster::builder(server()).node_timeout(Duration::from_secs(10)).primaries(3).replicas(0);
            let cluster = builder.start().expect(STARTS);
            let topology = Topology::cluster(cluster.nodes().iter().map(Node::url).collect::<Vec<_>>());
            Place::new(name, RedisManager::builder(topology), cluster).await
        }
        "replicated" => {
            let [primary, replica] = start_pair(server());
            let durability = Durability::Replicated { replicas: Replicas::At(1), timeout: REPLICATED_WITHIN };
            let builder = RedisManager::builder(primary.url()).durability(durability);
            Place::new(name, builder.response_timeout(2 * REPLICATED_WITHIN), (primary, replica)).await
        }
        _ => {
            let masters = Masters::start(server(), 5).expect(STARTS);
            let urls: Vec<_> = masters.nodes().iter().map(Node::url).collect();
            // Servers that have just started have no vote else.
            Place::new(name, QuorumManager::builder(urls).restarts_are_delayed(), masters).await
        }
    }
}

/// Returns the name of the lock that a task wants.
type Name = fn(usize) -> String;

/// Lets all tasks acquire and release a lock so often. Returns how long that took.
async fn carry(manager: &Arc<dyn RwLockManager>, name: Name, writes: Writes, tasks: usize, turns: usize) -> Duration {
    let (began, mut all) = (Instant::now(), JoinSet::new());
    for task in 0..tasks {
        let (manager, name) = (Arc::clone(manager), name(task));
        all.spawn(async move {
            // Not all write at once.
            for turn in (0..turns).map(|turn| turn + 7 * task) {
                if writes.is_at(turn) {
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

/// Group, schemes, names of the locks, writes of a hundred acquisitions, and numbers of tasks.
type Load = (&'static str, &'static [&'static str], Name, &'static [usize], [usize; 3]);

const LOADS: [Load; 2] = [
    ("schemes", &SCHEMES, |task| format!("own-{task}"), &[0, 100, 10, 1], [1, 16, 256]),
    ("contention", SCHEMES.split_at(3).0, |_| "one".to_owned(), &[100, 10, 1], [2, 16, 256]),
];

fn measure(group: &mut BenchmarkGroup<'_, WallTime>, (_, schemes, name, writes, tasks): Load) {
    let runtime = Runtime::new().expect("a runtime");
    for scheme in schemes {
        // One after the other: servers that stand idle cost something, too.
        let place = runtime.block_on(start(scheme));
        for writes in writes.iter().copied().map(Writes) {
            for tasks in tasks {
                group.throughput(Throughput::Elements(tasks as u64));
                let id = BenchmarkId::new(format!("{}/{writes}", place.name), tasks);
                group.bench_function(id, |bencher| {
                    bencher.iter_custom(|turns| {
                        let turns = usize::try_from(turns).expect("few");
                        runtime.block_on(carry(&place.manager, name, writes, tasks, turns))
                    });
                });
            }
        }
    }
}

pub(crate) fn run(effort: Effort) {
    let mut criterion = Criterion::default();
    for load in LOADS {
        let mut group = criterion.benchmark_group(load.0);
        let millis = effort.of(1000, 200, 1);
        group.sample_size(10).measurement_time(Duration::from_millis(millis));
        group.warm_up_time(Duration::from_millis(millis.div_ceil(5)));
        measure(&mut group, load);
        group.finish();
    }
}
