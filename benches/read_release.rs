//! What the release of a read hold costs the server when 1, 100 and 1,000 other managers read the same lock.
//!
//! The server does one thing at a time, so a cost that grows with the readers would be everybody's.

mod figures;

use std::time::Duration;

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Bare, CommandStats, Effort, LONG_LEASE, Target, bare_connection, foreign_id, median, start_node, tell};
use redis::aio::MultiplexedConnection;
use redis_rwlock::{ReadGuard, RedisManager, RwLockManager, Topology};
use tokio::runtime::Runtime;

const OTHERS: [usize; 3] = [1, 100, 1000];
/// Managers of our own among the others. The rest are ids of managers that do not exist, which is all the server sees.
const REAL: usize = 100;
/// Locks with each number of other readers; one release from each lies between two looks at the server's statistics.
const LOCKS: usize = 8;

/// Locks that so many others read.
struct Crowded {
    others: usize,
    locks: Vec<String>,
    _guards: Vec<ReadGuard>,
}

impl Crowded {
    async fn new(others: usize, managers: &[RedisManager], bare: &mut Bare<MultiplexedConnection>) -> Self {
        let locks: Vec<String> = (0..LOCKS).map(|lock| format!("{others}-others-{lock}")).collect();
        let mut guards = Vec::new();
        for lock in &locks {
            for manager in managers.iter().take(others) {
                guards.push(manager.read(lock).await.expect("granted"));
            }
            let key = format!("rwlock:{{{lock}}}:lock");
            for _ in managers.len().min(others)..others {
                bare.acquire(&key, &foreign_id(), "r").await;
            }
        }
        Self { others, locks, _guards: guards }
    }

    async fn read(&self, manager: &RedisManager) -> Vec<ReadGuard> {
        let mut guards = Vec::with_capacity(LOCKS);
        for lock in &self.locks {
            guards.push(manager.read(lock).await.expect("granted"));
        }
        guards
    }
}

/// Microseconds of the server's for the release of one guard.
async fn release(guards: Vec<ReadGuard>, node: &Node) -> f64 {
    let count = guards.len();
    let before = CommandStats::of(node);
    for guard in guards {
        guard.release().await.expect("released");
    }
    let after = CommandStats::of(node);
    assert_eq!(after.calls("evalsha") - before.calls("evalsha"), count as u64, "one command for each release");
    (after.micros("evalsha") - before.micros("evalsha")) / count as f64
}

async fn manager(node: &Node) -> RedisManager {
    let builder = RedisManager::builder(Topology::node(node.url())).lease(LONG_LEASE).max_hold(LONG_LEASE * 2);
    builder.connect().await.expect("a manager")
}

fn bench(criterion: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let (crowded, own) = runtime.block_on(async {
        let connection = bare_connection(&node.url()).await;
        let mut bare = Bare::new(connection.clone(), &mut [connection]).await;
        let mut managers = Vec::with_capacity(REAL);
        for _ in 0..effort.of(REAL, REAL, 5) {
            managers.push(manager(&node).await);
        }
        let mut crowded = Vec::new();
        for others in OTHERS {
            crowded.push(Crowded::new(others, &managers, &mut bare).await);
        }
        (crowded, manager(&node).await)
    });

    let mut costs: Vec<Vec<f64>> = vec![Vec::new(); OTHERS.len()];
    runtime.block_on(async {
        for _ in 0..effort.of(400, 150, 2) {
            for (crowd, costs) in crowded.iter().zip(&mut costs) {
                let guards = crowd.read(&own).await;
                costs.push(release(guards, &node).await);
            }
        }
    });
    let medians: Vec<f64> = costs.iter_mut().map(|costs| median(costs)).collect();
    for (at, bound) in [(1, 2.0), (2, 1.3)] {
        let sides = format!("{:.2} us of the server against {:.2} us", medians[at], medians[0]);
        let what = format!("read release, {} other managers / {}", OTHERS[at], OTHERS[0]);
        tell(effort, &what, &sides, medians[at] / medians[0], Target::AtMost(bound));
    }

    let mut group = criterion.benchmark_group("read release, server time");
    group.sample_size(10).warm_up_time(Duration::from_millis(200)).measurement_time(Duration::from_secs(1));
    for crowd in &crowded {
        group.bench_function(format!("{} others", crowd.others), |bencher| {
            bencher.iter_custom(|turns| {
                runtime.block_on(async {
                    let mut micros = 0.0;
                    for _ in 0..turns {
                        let guards = crowd.read(&own).await;
                        micros += release(guards, &node).await;
                    }
                    Duration::from_secs_f64(micros / 1e6)
                })
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
