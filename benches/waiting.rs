//! Waiting: what a reader that joins costs, how fast the lock goes from one writer to the next, here and elsewhere.

mod figures;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Bare, Effort, Target, bare_connection, median, start_node, tell};
use futures_util::future::join_all;
use redis_rwlock::{ClusterManager, RwLockManager, SingleNodeManager, Topology};
use tokio::runtime::Runtime;
use tokio::sync::mpsc;

/// Reads and releases of a lock that this process reads already, in nanoseconds each.
async fn joins(manager: &ClusterManager, count: u32) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        drop(std::hint::black_box(manager.read("shared").await.expect("joined")));
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

async fn tokio_reads(lock: &tokio::sync::RwLock<u64>, count: u32) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        drop(std::hint::black_box(lock.read().await));
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

fn join(effort: Effort, runtime: &Runtime, topology: &Topology) {
    let (rounds, count) = effort.of((101, 20_000), (41, 10_000), (1, 10));
    let (mut own, mut tokios, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        // A window that outlasts the run: what is measured is the join and not the question after each window.
        let builder = ClusterManager::builder(topology.clone()).share_window(Duration::from_secs(3600));
        let manager =
            builder.lease(Duration::from_secs(3600)).max_hold(Duration::MAX).connect().await.expect("a manager");
        let lock = tokio::sync::RwLock::new(7);
        let kept = (manager.read("shared").await.expect("granted"), lock.read().await);
        for _ in 0..rounds {
            let (ours, theirs) = (joins(&manager, count).await, tokio_reads(&lock, count).await);
            own.push(ours);
            tokios.push(theirs);
            ratios.push(ours / theirs);
        }
        drop(kept);
    });
    let sides = format!("{:.0} ns against {:.0} ns, with the drop", median(&mut own), median(&mut tokios));
    tell(effort, "join of a reader, ours / tokio's RwLock::read", &sides, median(&mut ratios), Target::AtMost(12.0));
}

/// Writers of one process take turns for a while; turns a second.
async fn local_turns(manager: &ClusterManager, name: &str, span: Duration) -> f64 {
    let (ends, turns) = (Instant::now() + span, Arc::new(AtomicU64::new(0)));
    let began = Instant::now();
    let tasks = (0..16).map(|_| {
        let (manager, turns, name) = (manager.clone(), Arc::clone(&turns), name.to_owned());
        tokio::spawn(async move {
            while Instant::now() < ends {
                manager.write(&name).await.expect("granted").release().await.expect("released");
                turns.fetch_add(1, Ordering::Relaxed);
            }
        })
    });
    for task in join_all(tasks).await {
        task.expect("it runs");
    }
    turns.load(Ordering::Relaxed) as f64 / began.elapsed().as_secs_f64()
}

fn hand_over_here(effort: Effort, runtime: &Runtime, topology: &Topology) {
    let (rounds, span) = effort.of((15, 200), (7, 150), (1, 10));
    let span = Duration::from_millis(span);
    let (mut with, mut without, mut ratios) = (Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let shared = ClusterManager::connect(topology.clone()).await.expect("a manager");
        let single = ClusterManager::builder(topology.clone()).hand_over_budget(1).connect().await.expect("a manager");
        for _ in 0..rounds {
            let many = local_turns(&shared, "turns", span).await;
            let one = local_turns(&single, "single-turns", span).await;
            with.push(many);
            without.push(one);
            ratios.push(many / one);
        }
    });
    let sides = format!("{:.0}/s against {:.0}/s", median(&mut with), median(&mut without));
    tell(effort, "writers of one process, budget of 64 / of 1", &sides, median(&mut ratios), Target::AtLeast(20.0));
}

/// How long after the call of `release` a writer of another process, which has a runtime of its own, is inside.
async fn wake_up(here: &ClusterManager, elsewhere: &Runtime, there: &ClusterManager) -> Duration {
    let held = here.write("wake").await.expect("granted");
    let waiting = there.clone();
    let (inside, mut told) = mpsc::unbounded_channel();
    let waiter = elsewhere.spawn(async move {
        let guard = waiting.write("wake").await.expect("granted");
        inside.send(Instant::now()).expect("somebody listens");
        guard.release().await.expect("released");
    });
    while here.inspect("wake").await.expect("inspected").waiters.is_empty() {}
    // Its second question, after it has subscribed, is over too.
    tokio::time::sleep(Duration::from_millis(3)).await;
    let released = Instant::now();
    held.release().await.expect("released");
    let at = told.recv().await.expect("it got in");
    waiter.await.expect("it runs");
    at - released
}

fn hand_over_there(effort: Effort, runtime: &Runtime, topology: &Topology, url: &str) {
    let rounds = effort.of(1001, 301, 1);
    let (mut own, mut trips) = (Vec::new(), Vec::new());
    let elsewhere = Runtime::new().expect("a runtime");
    let connecting = ClusterManager::connect(topology.clone());
    let there = elsewhere.block_on(connecting).expect("a manager");
    runtime.block_on(async {
        let here = ClusterManager::connect(topology.clone()).await.expect("a manager");
        let connection = bare_connection(url).await;
        let mut bare = Bare::new(connection.clone(), &mut [connection]).await;
        wake_up(&here, &elsewhere, &there).await;
        for _ in 0..rounds {
            own.push(wake_up(&here, &elsewhere, &there).await.as_secs_f64() * 1e6);
            tokio::time::sleep(Duration::from_millis(3)).await;
            let began = Instant::now();
            bare.no_op("rwlock:{wake}:lock").await;
            trips.push(began.elapsed().as_secs_f64() * 1e6);
        }
    });
    let (ours, trip) = (median(&mut own), median(&mut trips));
    let sides = format!("p50 {ours:.0} us against {trip:.0} us");
    tell(effort, "wake-up in another process / a bare round trip", &sides, ours / trip, Target::AtMost(1.5));
}

/// Independent clients on one write lock: hand-overs a second, and how often the most and the least served got it.
async fn crowd<M: RwLockManager + Clone>(managers: &[M], name: &str, span: Duration) -> (f64, f64) {
    let stop = Arc::new(AtomicBool::new(false));
    let began = Instant::now();
    let tasks = managers.iter().map(|manager| {
        let (manager, stop, name) = (manager.clone(), Arc::clone(&stop), name.to_owned());
        tokio::spawn(async move {
            let mut served = 0_u64;
            while !stop.load(Ordering::Relaxed) {
                let guard = manager.write(&name).await.expect("granted");
                served += 1;
                guard.release().await.expect("released");
            }
            served
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::Relaxed);
    let spent = began.elapsed().as_secs_f64();
    let served: Vec<u64> = join_all(tasks).await.into_iter().map(|served| served.expect("it runs")).collect();
    let (most, least) = (served.iter().max().copied().unwrap_or(0), served.iter().min().copied().unwrap_or(0));
    (served.iter().sum::<u64>() as f64 / spent, most as f64 / least.max(1) as f64)
}

fn crowds(effort: Effort, runtime: &Runtime, topology: &Topology) {
    let (rounds, span, clients) = effort.of((9, 2000, 100), (3, 2000, 100), (1, 20, 4));
    let span = Duration::from_millis(span);
    let (mut queued, mut retried, mut ratios, mut spreads) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let (mut queueing, mut retrying) = (Vec::new(), Vec::new());
        for _ in 0..clients {
            queueing.push(ClusterManager::connect(topology.clone()).await.expect("a manager"));
            retrying.push(SingleNodeManager::connect(topology.clone()).await.expect("a manager"));
        }
        crowd(&queueing, "crowd", span / 4).await;
        crowd(&retrying, "retrying-crowd", span / 4).await;
        for _ in 0..rounds {
            let (fast, spread) = crowd(&queueing, "crowd", span).await;
            let (slow, _) = crowd(&retrying, "retrying-crowd", span).await;
            queued.push(fast);
            retried.push(slow);
            ratios.push(fast / slow);
            spreads.push(spread);
        }
    });
    let sides = format!("{:.0}/s against {:.0}/s", median(&mut queued), median(&mut retried));
    tell(
        effort,
        "100 clients on one lock, queue / notify and retry",
        &sides,
        median(&mut ratios),
        Target::AtLeast(1.5),
    );
    tell(effort, "100 clients, most served / least served", "", median(&mut spreads), Target::AtMost(2.0));
}

fn bench(_: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let topology = Topology::node(node.url());
    let runtime = Runtime::new().expect("a runtime");
    join(effort, &runtime, &topology);
    hand_over_here(effort, &runtime, &topology);
    hand_over_there(effort, &runtime, &topology, &node.url());
    crowds(effort, &runtime, &topology);
}

criterion_group!(benches, bench);
criterion_main!(benches);
