//! Waiting: what a reader that joins costs, how fast the lock goes from one writer to the next, here and elsewhere.

mod figures;
#[path = "waiting/wake_up.rs"]
mod wake_up;

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Barrier};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Effort, Target, median, start_node, tell};
use futures_util::future::join_all;
use parking_lot::Mutex;
use redis_rwlock::{RedisManager, RwLockManager, Topology, TwoKeyManager};
use tokio::runtime::Runtime;
use tokio::sync::{OwnedRwLockReadGuard, RwLock};

/// Reads and releases of a lock that this process reads already, in nanoseconds each.
async fn joins(manager: &RedisManager, name: &str, count: u32) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        drop(std::hint::black_box(manager.read(name).await.expect("joined")));
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

async fn tokio_reads(lock: &Arc<RwLock<u64>>, count: u32) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        drop(std::hint::black_box(Arc::clone(lock).read_owned().await));
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

/// The least that a reader must do whose hold may end: it finds its lock by the name, and looks at the clock.
struct Smallest(Mutex<HashMap<String, Arc<RwLock<u64>>>>, Instant);

impl Smallest {
    fn of(names: &[&str]) -> Self {
        Self(Mutex::new(names.iter().map(|name| ((*name).to_owned(), Arc::default())).collect()), Instant::now())
    }

    async fn read(&self, name: &str) -> OwnedRwLockReadGuard<u64> {
        let lock = self.0.lock().get(name).cloned().expect("it is there");
        assert!(std::hint::black_box(Instant::now()) >= self.1, "its time has not come");
        lock.read_owned().await
    }

    async fn reads(&self, name: &str, count: u32) -> f64 {
        let began = Instant::now();
        for _ in 0..count {
            drop(std::hint::black_box(self.read(name).await));
        }
        began.elapsed().as_nanos() as f64 / f64::from(count)
    }
}

/// A window that outlasts the run: what is measured is the join and not the question after each window.
async fn joinable(topology: &Topology) -> RedisManager {
    let builder = RedisManager::builder(topology.clone()).join_window(Duration::from_secs(3600));
    builder.lease(Duration::from_secs(3600)).max_hold(Duration::MAX).connect().await.expect("a manager")
}

fn join(effort: Effort, runtime: &Runtime, topology: &Topology) {
    let (rounds, count) = effort.of((101, 20_000), (41, 10_000), (1, 10));
    let (mut own, mut tokios, mut smallest, mut ratios) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    runtime.block_on(async {
        let manager = joinable(topology).await;
        let lock = Arc::new(RwLock::new(7));
        let least = Smallest::of(&["shared", "other"]);
        let kept = (manager.read("shared").await.expect("granted"), Arc::clone(&lock).read_owned().await);
        for _ in 0..rounds {
            let (ours, theirs) = (joins(&manager, "shared", count).await, tokio_reads(&lock, count).await);
            own.push(ours);
            tokios.push(theirs);
            ratios.push(ours / theirs);
            smallest.push(least.reads("shared", count).await);
        }
        drop(kept);
    });
    let (own, tokios, smallest) = (median(&mut own), median(&mut tokios), median(&mut smallest));
    let sides = format!("{own:.0} ns against {tokios:.0} ns, with the drop");
    println!(
        "row: a map of names, a clock and read_owned: {smallest:.0} ns, {:.2} of read_owned alone; ours {:.2} of that",
        smallest / tokios,
        own / smallest
    );
    let what = "join of a reader, ours / tokio's RwLock::read_owned";
    tell(effort, what, &sides, median(&mut ratios), Target::AtMost(4.0));
}

/// Runs what needs neither time nor sockets on this thread.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Two threads at once do something `count` times, each with its number; how often in a second, of both together.
fn two_threads(count: u32, work: impl Fn(usize) + Sync) -> f64 {
    let start = Barrier::new(3);
    let mut began = None;
    thread::scope(|scope| {
        for number in 0..2 {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(number);
            });
        }
        start.wait();
        began = Some(Instant::now());
    });
    f64::from(2 * count) / began.map_or(0.0, |began| began.elapsed().as_secs_f64())
}

/// Joins of two names by two threads, beside those of one thread; and the same with two locks of tokio's, to see what the
/// machine can do.
fn joins_on_two_threads(effort: Effort, runtime: &Runtime, topology: &Topology) {
    let (rounds, count) = effort.of((61, 40_000), (25, 20_000), (1, 10));
    let manager = runtime.block_on(joinable(topology));
    let names = ["one", "other"];
    let kept = names.map(|name| runtime.block_on(manager.read(name).into_future()).expect("granted"));
    let locks = [(); 2].map(|()| Arc::new(RwLock::new(7)));
    let (mut own, mut tokios, mut rates) = (Vec::new(), Vec::new(), [Vec::new(), Vec::new()]);
    for _ in 0..rounds {
        let one = 1e9 / block_on(joins(&manager, names[0], count));
        let join_one = |number: usize| {
            block_on(joins(&manager, names[number], count));
        };
        let both = two_threads(count, join_one);
        own.push(both / one);
        rates[0].push(one);
        rates[1].push(both);
        let one = 1e9 / block_on(tokio_reads(&locks[0], count));
        let read_one = |number: usize| {
            block_on(tokio_reads(&locks[number], count));
        };
        tokios.push(two_threads(count, read_one) / one);
    }
    let [one, both] = rates.each_mut().map(|rates| median(rates));
    let sides = format!("{both:.0}/s against {one:.0}/s; of two tokio locks {:.2} times", median(&mut tokios));
    let what = "joins of two names by two threads / by one thread";
    tell(effort, what, &sides, median(&mut own), Target::AtLeast(1.7));
    drop(kept);
}

/// Writers of one process take turns for a while; turns a second.
async fn local_turns(manager: &RedisManager, name: &str, span: Duration) -> f64 {
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
        let shared = RedisManager::connect(topology.clone()).await.expect("a manager");
        let single = RedisManager::builder(topology.clone()).max_handoffs(1).connect().await.expect("a manager");
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
            queueing.push(RedisManager::connect(topology.clone()).await.expect("a manager"));
            retrying.push(TwoKeyManager::connect(topology.clone()).await.expect("a manager"));
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
        "100 clients on one lock, handed over / told to ask again",
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
    joins_on_two_threads(effort, &runtime, &topology);
    hand_over_here(effort, &runtime, &topology);
    wake_up::measure(effort);
    crowds(effort, &runtime, &topology);
}

criterion_group!(benches, bench);
criterion_main!(benches);
