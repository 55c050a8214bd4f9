//! 256 tasks take and give back locks of their own on one node: what our side costs when the processor is the limit.

mod figures;

use std::time::{Duration, Instant};

use criterion::{Criterion, Throughput, criterion_group, criterion_main};
use figures::{Bare, Effort, LONG_LEASE, Target, bare_connection, foreign_id, median, start_node, tell};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{ClusterManager, RwLockManager, Topology};
use tokio::runtime::Runtime;

const TASKS: usize = 256;

/// How long all tasks together need for `each` acquisitions and releases per task through a manager.
async fn ours(manager: &ClusterManager, each: usize) -> Duration {
    let began = Instant::now();
    let tasks = (0..TASKS).map(|task| {
        let manager = manager.clone();
        tokio::spawn(async move {
            let name = format!("bench-{task}");
            for _ in 0..each {
                let guard = manager.write(&name).await.expect("granted");
                guard.release().await.expect("released");
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("it runs");
    }
    began.elapsed()
}

/// The same by bare calls of the same scripts.
async fn floor1(bare: &Bare<MultiplexedConnection>, each: usize) -> Duration {
    let began = Instant::now();
    let tasks = (0..TASKS).map(|task| {
        let mut bare = bare.clone();
        tokio::spawn(async move {
            let key = format!("rwlock:{{bare-{task}}}:lock");
            for _ in 0..each {
                bare.acquire_and_leave(&key, &foreign_id()).await;
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("it runs");
    }
    began.elapsed()
}

fn bench(criterion: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let (manager, bare) = runtime.block_on(async {
        let builder = ClusterManager::builder(Topology::node(node.url())).lease(LONG_LEASE).max_hold(LONG_LEASE * 2);
        let connection = bare_connection(&node.url()).await;
        let bare = Bare::new(connection.clone(), &mut [connection]).await;
        (builder.connect().await.expect("a manager"), bare)
    });

    let (rounds, each) = effort.of((61, 20), (25, 20), (1, 2));
    let (mut own_rates, mut bare_rates, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        ours(&manager, each).await;
        floor1(&bare, each).await;
        for _ in 0..rounds {
            let pairs = (TASKS * each) as f64;
            let own = pairs / ours(&manager, each).await.as_secs_f64();
            let floor = pairs / floor1(&bare, each).await.as_secs_f64();
            own_rates.push(own);
            bare_rates.push(floor);
            ratios.push(own / floor);
        }
    });
    let sides = format!(
        "medians {:.0}/s against {:.0}/s, acquisitions with their releases",
        median(&mut own_rates),
        median(&mut bare_rates)
    );
    tell(effort, "throughput, 256 tasks, ours / floor1", &sides, median(&mut ratios), Target::AtLeast(0.8));

    let mut group = criterion.benchmark_group("throughput");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group.throughput(Throughput::Elements(TASKS as u64));
    group.bench_function("ours", |bencher| {
        bencher.iter_custom(|turns| runtime.block_on(ours(&manager, turns as usize)));
    });
    group.bench_function("floor1", |bencher| {
        bencher.iter_custom(|turns| runtime.block_on(floor1(&bare, turns as usize)));
    });
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
