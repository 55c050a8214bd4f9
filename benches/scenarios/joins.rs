//! Joins of readers whose process has a read hold already, beside tokio's lock.

use std::collections::HashMap;
use std::hint::black_box;
use std::sync::Barrier;

use tokio::sync::{OwnedRwLockReadGuard, RwLock};

use super::*;

/// Returns the nanoseconds of one read with its release.
async fn nanoseconds<T>(count: u32, mut read: impl AsyncFnMut() -> T) -> f64 {
    let began = Instant::now();
    for _ in 0..count {
        drop(black_box(read().await));
    }
    began.elapsed().as_nanos() as f64 / f64::from(count)
}

async fn joins(manager: &RedisManager, name: &str, count: u32) -> f64 {
    nanoseconds(count, async || manager.read(name).await.expect("joined")).await
}

async fn tokio_reads(lock: &Arc<RwLock<u64>>, count: u32) -> f64 {
    nanoseconds(count, async || Arc::clone(lock).read_owned().await).await
}

/// Minimal code of a reader whose hold may end: it finds its lock by the name, and looks at the clock.
struct Minimal(Mutex<HashMap<String, Arc<RwLock<u64>>>>, Instant);

impl Minimal {
    async fn read(&self, name: &str) -> OwnedRwLockReadGuard<u64> {
        let lock = self.0.lock().get(name).cloned().expect("it is there");
        assert!(black_box(Instant::now()) >= self.1, "its time has not come");
        lock.read_owned().await
    }
}

fn one_thread(effort: Effort, runtime: &Runtime, manager: &RedisManager) {
    let (rounds, count) = effort.of((101, 20_000), (41, 10_000), (1, 10));
    let lock = Arc::new(RwLock::new(7));
    let names = ["shared", "other"].map(|name| (name.to_owned(), Arc::default()));
    let minimal = Minimal(Mutex::new(names.into()), Instant::now());
    let (mut sides, mut least) = (Sides::default(), Vec::new());
    runtime.block_on(async {
        let kept = (manager.read("shared").await.expect("granted"), Arc::clone(&lock).read_owned().await);
        for _ in 0..rounds {
            sides.push(joins(manager, "shared", count).await, tokio_reads(&lock, count).await);
            least.push(nanoseconds(count, async || minimal.read("shared").await).await);
        }
        drop(kept);
    });
    let ([own, tokios], least) = (sides.medians(), median(&mut least));
    println!(
        "row: a map of names, a clock and read_owned: {least:.0} ns, {:.2} of read_owned alone; ours {:.2} of that",
        least / tokios,
        own / least
    );
    sides.tell("join of a reader, ours / tokio's RwLock::read_owned", "ns", AtMost(4.0));
}

/// Polls on this thread what needs neither time nor sockets.
fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().build().expect("a runtime").block_on(future)
}

/// Does something `count` times on each of two threads at once. Returns how often in a second, of both together.
fn two_threads(count: u32, work: impl Fn(usize) -> f64 + Sync) -> f64 {
    let start = Barrier::new(3);
    let began = thread::scope(|scope| {
        for number in 0..2 {
            let (start, work) = (&start, &work);
            scope.spawn(move || {
                start.wait();
                work(number);
            });
        }
        start.wait();
        Instant::now()
    });
    f64::from(2 * count) / began.elapsed().as_secs_f64()
}

/// Joins two names by two threads and by one. Does the same with two locks of tokio, to see what the machine can do.
fn both_threads(effort: Effort, runtime: &Runtime, manager: &RedisManager) {
    let (rounds, count) = effort.of((61, 40_000), (25, 20_000), (1, 10));
    let names = ["one", "other"];
    let kept = names.map(|name| runtime.block_on(manager.read(name).into_future()).expect("granted"));
    let locks = [(); 2].map(|()| Arc::new(RwLock::new(7)));
    let (mut own, mut tokios) = (Sides::default(), Sides::default());
    for _ in 0..rounds {
        let one = 1e9 / block_on(joins(manager, names[0], count));
        own.push(two_threads(count, |number| block_on(joins(manager, names[number], count))), one);
        let one = 1e9 / block_on(tokio_reads(&locks[0], count));
        tokios.push(two_threads(count, |number| block_on(tokio_reads(&locks[number], count))), one);
    }
    own.tell("joins of two names by two threads / by one thread", "a second", AtLeast(1.7));
    println!("row: the same of two tokio locks: {:.2}", tokios.ratio());
    drop(kept);
}

pub(crate) fn run(effort: Effort) {
    let (node, runtime) = (start_node(), runtime());
    // A window that outlasts the run: the join is measured, and not the question after each window.
    let manager = runtime.block_on(joining_manager(&node));
    one_thread(effort, &runtime, &manager);
    both_threads(effort, &runtime, &manager);
}
