//! 10,000 locks held by one manager, renewed all the time: what others on the node feel of it, and what it costs; and whether
//! 100,000 with a longer lease cost ten times what 10,000 do.
//!
//! The holder is a process of its own (this program again), so that nothing else counts as its processor time and
//! memory. It takes and releases the locks, and others' latency is measured with and without them, in turns; and so beside the
//! least that can renew as many.

#[path = "held_locks/bare.rs"]
mod bare;
mod figures;

use std::env;
use std::io::{BufRead, stdin};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::child::Worker;
use figures::process::{processor_time, resident_bytes};
use figures::{CommandStats, Effort, LONG_LEASE, Target, median, quantile, start_node, tell};
use redis_rwlock::{HoldState, RedisManager, RwLockManager, Topology, WriteGuard};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(10);
/// Set for the process that holds the locks, to the server's URL.
const HOLDER_OF: &str = "HELD_LOCKS_URL";
/// And the lease, in seconds.
const HOLDER_LEASE: &str = "HELD_LOCKS_LEASE_S";
/// And which it is.
const HOLDER_IS: &str = "HELD_LOCKS_BY";

/// Who holds the locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum By {
    Manager,
    /// The least that does it.
    Bare,
}

/// The other process: holds as many locks as it is told on each line, and answers with what it has used since the last.
fn hold() {
    let url = env::var(HOLDER_OF).expect("a URL");
    let lease = env::var(HOLDER_LEASE).ok().and_then(|seconds| seconds.parse().ok()).map(Duration::from_secs);
    let lease = lease.expect("a number of seconds");
    if env::var(HOLDER_IS).is_ok_and(|by| by == format!("{:?}", By::Bare)) {
        return bare::hold(&url, lease);
    }
    let runtime = Runtime::new().expect("a runtime");
    let builder = RedisManager::builder(Topology::node(url)).lease(lease);
    let manager = runtime.block_on(builder.connect()).expect("a manager");
    let mut guards = Vec::new();
    let (mut time, mut bytes) = (processor_time(), resident_bytes());
    for line in stdin().lock().lines() {
        let count: usize = line.expect("a line").parse().expect("a number");
        let used = processor_time().saturating_sub(time);
        let grown = resident_bytes().saturating_sub(bytes);
        let is_lost = |guard: &&WriteGuard| matches!(guard.state(), HoldState::Lost(_));
        let in_doubt = guards.iter().filter(|guard: &&WriteGuard| guard.state() == HoldState::Unconfirmed).count();
        let lost = guards.iter().filter(is_lost).count();
        if count != guards.len() {
            bytes = resident_bytes();
            runtime.block_on(change_to(count, &manager, &mut guards));
        }
        println!("{} {grown} {lost} {in_doubt}", used.as_micros());
        time = processor_time();
    }
}

async fn change_to(count: usize, manager: &RedisManager, guards: &mut Vec<WriteGuard>) {
    let mut tasks = JoinSet::new();
    for guard in guards.drain(count.min(guards.len())..) {
        tasks.spawn(async move { guard.release().await.map(|()| None) });
    }
    for lock in guards.len()..count {
        // Few at a time, or the memory of so many acquisitions under way would count as the locks'.
        if tasks.len() >= 16
            && let Some(done) = tasks.join_next().await
        {
            guards.extend(done.expect("it runs").expect("granted"));
        }
        let manager = manager.clone();
        tasks.spawn(async move { manager.write(&format!("held-lock-{lock:05}")).await.map(Some) });
    }
    while let Some(done) = tasks.join_next().await {
        guards.extend(done.expect("it runs").expect("granted or released"));
    }
}

/// How it was for the other process since the order before.
struct Report {
    used: Duration,
    /// In bytes.
    grown: u64,
    lost: u64,
    /// Locks whose renewal went unanswered so far.
    in_doubt: u64,
}

/// The other process.
struct Holder(Worker);

impl Holder {
    fn start(url: &str, lease: Duration, by: By) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env(HOLDER_OF, url).env(HOLDER_LEASE, lease.as_secs().to_string()).env(HOLDER_IS, format!("{by:?}"));
        Self(Worker::start(&mut command))
    }

    /// Makes it hold so many, and tells how it was until then.
    fn order(&mut self, count: usize) -> Report {
        let answer = self.0.order(&count.to_string());
        let mut numbers = answer.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("four numbers");
        Report { used: Duration::from_micros(next()), grown: next(), lost: next(), in_doubt: next() }
    }
}

/// How long acquisitions with their releases take one caller, for a while.
async fn latencies(manager: &RedisManager, span: Duration) -> Vec<Duration> {
    let mut samples = Vec::with_capacity(100_000);
    let began = Instant::now();
    while began.elapsed() < span {
        let asked = Instant::now();
        manager.write("other").await.expect("granted").release().await.expect("released");
        samples.push(asked.elapsed());
    }
    samples
}

/// What one cycle showed.
struct Cycle {
    /// Others' latencies with and without the held locks.
    with: Vec<Duration>,
    without: Vec<Duration>,
    renewals_per_second: f64,
    /// The holder's share of a core, in percent.
    share: f64,
    bytes_each: f64,
}

/// Where they are measured.
struct Around<'a> {
    effort: Effort,
    node: &'a Node,
    runtime: &'a Runtime,
    other: &'a RedisManager,
}

/// A new process takes so many locks, holds them while others are looked at, and gives them back.
fn cycle(around: &Around<'_>, by: By, locks: usize, span: Duration) -> Cycle {
    let Around { effort, node, runtime, other } = *around;
    let mut holder = Holder::start(&node.url(), LEASE, by);
    let mut without = runtime.block_on(latencies(other, span / 4));
    holder.order(locks);
    // Until the first renewals have spread over the interval; there are none for the first third of a lease.
    thread::sleep(LEASE * effort.of(4, 4, 0) / 10);
    holder.order(locks);
    CommandStats::reset(node);
    let began = Instant::now();
    let with = runtime.block_on(latencies(other, span));
    let renewals = CommandStats::of(node).calls("evalsha") - 2 * with.len() as u64;
    let elapsed = began.elapsed();
    let Report { used, grown, lost, .. } = holder.order(0);
    assert_eq!(lost, 0, "locks were lost");
    without.extend(runtime.block_on(latencies(other, span / 4)));
    Cycle {
        with,
        without,
        renewals_per_second: renewals as f64 / elapsed.as_secs_f64(),
        share: 100.0 * used.div_duration_f64(elapsed),
        bytes_each: grown as f64 / locks as f64,
    }
}

/// What all cycles with one holder showed.
#[derive(Default)]
struct Cycles {
    shares: Vec<f64>,
    ratios: Vec<f64>,
    bytes_each: Vec<f64>,
    with: Vec<f64>,
    without: Vec<f64>,
}

impl Cycles {
    fn add(&mut self, by: By, mut cycle: Cycle) {
        let [with, without] = [&mut cycle.with, &mut cycle.without]
            .map(|samples| [0.5, 0.99].map(|share| quantile(samples, share).as_secs_f64() * 1e6));
        println!(
            "row: by {by:?}: {:.0} renewals a second, {:.2} % of a core; others' p50 {:.0} us with, {:.0} us without, p99 {:.0} and {:.0}",
            cycle.renewals_per_second, cycle.share, with[0], without[0], with[1], without[1]
        );
        self.shares.push(cycle.share);
        self.bytes_each.push(cycle.bytes_each);
        self.ratios.push(with[1] / without[1]);
        self.with.push(with[1]);
        self.without.push(without[1]);
    }

    /// The p99 in words.
    fn sides(&mut self) -> String {
        format!("p99 {:.0} us against {:.0} us", median(&mut self.with), median(&mut self.without))
    }
}

fn beside_others(effort: Effort, node: &Node) {
    let runtime = Runtime::new().expect("a runtime");
    let other = RedisManager::builder(Topology::node(node.url())).lease(LONG_LEASE).max_hold(LONG_LEASE * 2);
    let other = runtime.block_on(other.connect()).expect("a manager");
    let around = Around { effort, node, runtime: &runtime, other: &other };
    let locks = effort.of(10_000, 10_000, 100);
    let (cycles, span) = effort.of((9, 10), (1, 10), (1, 1));
    let span = Duration::from_secs(span);
    let (mut own, mut bare) = (Cycles::default(), Cycles::default());
    for _ in 0..cycles {
        own.add(By::Manager, cycle(&around, By::Manager, locks, span));
        bare.add(By::Bare, cycle(&around, By::Bare, locks, span));
    }
    let what = format!("{locks} held locks, others' p99, with / without");
    let sides =
        format!("{}; renewed by the least that can: {}: {:.2}", own.sides(), bare.sides(), median(&mut bare.ratios));
    tell(effort, &what, &sides, median(&mut own.ratios), Target::AtMost(1.5));
    let what = format!("{locks} held locks, client's share of a core");
    let sides =
        format!("percent over {span:?}, median of {cycles}; of the least that can: {:.2}", median(&mut bare.shares));
    tell(effort, &what, &sides, median(&mut own.shares), Target::AtMost(2.0));
    let what = format!("{locks} held locks, client memory per lock");
    tell(effort, &what, "KiB of growth", median(&mut own.bytes_each) / 1024.0, Target::AtMost(1.0));
}

/// How it is to hold so many locks over a third of the long lease, in which each is renewed once.
fn report_of(node: &Node, locks: usize, lease: Duration) -> Report {
    let mut holder = Holder::start(&node.url(), lease, By::Manager);
    holder.order(locks);
    // Renewals have begun, and are spread as they will be.
    thread::sleep(lease * 4 / 10);
    holder.order(locks);
    thread::sleep(lease / 3);
    holder.order(locks)
}

/// What ten times as many locks cost, with so long a lease that a third of it is enough to take them.
fn many(effort: Effort, node: &Node) {
    let (locks, lease) = effort.of((100_000, 60), (100_000, 60), (200, 3));
    let lease = Duration::from_secs(lease);
    let fewer = locks / 10;
    let [all, few] = [locks, fewer].map(|locks| report_of(node, locks, lease));
    let (cost, of_fewer) = (all.used, few.used);
    let sides = format!("{cost:.0?} for {locks}, {of_fewer:.0?} for {fewer}, of CPU in {:?}", lease / 3);
    let growth = cost.div_duration_f64(of_fewer) / 10.0;
    let what = format!("{locks} held locks with a lease of {lease:?}, each / each of a tenth");
    tell(effort, &what, &sides, growth, Target::AtMost(1.5));
    let sides = format!("{} lost, {} in doubt at the end", all.lost, all.in_doubt);
    let what = format!("{locks} held locks with a lease of {lease:?}, lost or in doubt");
    tell(effort, &what, &sides, (all.lost + all.in_doubt) as f64, Target::AtMost(0.0));
}

fn bench(_: &mut Criterion) {
    if env::var_os(HOLDER_OF).is_some() {
        hold();
        return;
    }
    let effort = Effort::asked_for();
    let node = start_node();
    beside_others(effort, &node);
    many(effort, &node);
}

criterion_group!(benches, bench);
criterion_main!(benches);
