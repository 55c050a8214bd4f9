//! 10,000 locks held by one manager, renewed all the time: what others on the node feel of it, and what it costs.
//!
//! The holder is a process of its own (this program again), so that nothing else counts as its processor time and
//! memory. It takes and releases the locks in turns, and others' latency is measured with and without them.

mod figures;

use std::env;
use std::fs;
use std::io::{BufRead, BufReader, Write, stdin};
use std::process::{Child, ChildStdin, ChildStdout, Command, Stdio};
use std::thread;
use std::time::{Duration, Instant};

use criterion::{Criterion, criterion_group, criterion_main};
use figures::{CommandStats, Effort, LONG_LEASE, Target, median, quantile, start_node, tell};
use redis_rwlock::{ClusterManager, HoldState, RwLockManager, Topology, WriteGuard};
use rustix::time::{ClockId, clock_gettime};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const LEASE: Duration = Duration::from_secs(10);
/// Set for the process that holds the locks, to the server's URL.
const HOLDER_OF: &str = "HELD_LOCKS_URL";

/// The processor time that this process has used.
fn processor_time() -> Duration {
    let time = clock_gettime(ClockId::ProcessCPUTime);
    Duration::new(time.tv_sec.try_into().expect("positive"), time.tv_nsec.try_into().expect("positive"))
}

/// The memory of this process that is in use.
fn resident_bytes() -> u64 {
    let status = fs::read_to_string("/proc/self/status").expect("Linux");
    let line = status.lines().find_map(|line| line.strip_prefix("VmRSS:")).expect("a line of its own");
    line.trim().trim_end_matches(" kB").parse::<u64>().expect("a number") * 1024
}

/// The other process: holds as many locks as it is told on each line, and answers with what it has used since the last.
fn hold() {
    let url = env::var(HOLDER_OF).expect("a URL");
    let runtime = Runtime::new().expect("a runtime");
    let builder = ClusterManager::builder(Topology::node(url)).lease(LEASE);
    let manager = runtime.block_on(builder.connect()).expect("a manager");
    let mut guards = Vec::new();
    let (mut time, mut bytes) = (processor_time(), resident_bytes());
    for line in stdin().lock().lines() {
        let count: usize = line.expect("a line").parse().expect("a number");
        let used = processor_time().saturating_sub(time);
        let grown = resident_bytes().saturating_sub(bytes);
        let lost = guards.iter().filter(|guard: &&WriteGuard| guard.state() != HoldState::Held).count();
        assert_eq!(lost, 0, "locks were lost");
        if count != guards.len() {
            bytes = resident_bytes();
            runtime.block_on(change_to(count, &manager, &mut guards));
        }
        println!("{} {grown}", used.as_micros());
        time = processor_time();
    }
}

async fn change_to(count: usize, manager: &ClusterManager, guards: &mut Vec<WriteGuard>) {
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

struct Holder {
    process: Child,
    orders: ChildStdin,
    answers: BufReader<ChildStdout>,
}

impl Holder {
    fn start(url: &str) -> Self {
        let mut command = Command::new(env::current_exe().expect("this program"));
        command.env(HOLDER_OF, url).stdin(Stdio::piped()).stdout(Stdio::piped());
        let mut process = command.spawn().expect("it starts");
        let orders = process.stdin.take().expect("piped");
        let answers = BufReader::new(process.stdout.take().expect("piped"));
        Self { process, orders, answers }
    }

    /// Makes it hold so many. Returns the processor time and the bytes since the order before.
    fn order(&mut self, count: usize) -> (Duration, u64) {
        writeln!(self.orders, "{count}").expect("it listens");
        let mut line = String::new();
        self.answers.read_line(&mut line).expect("it answers");
        let mut numbers = line.split_whitespace().map(|number| number.parse::<u64>().expect("a number"));
        let mut next = || numbers.next().expect("two numbers");
        (Duration::from_micros(next()), next())
    }
}

impl Drop for Holder {
    fn drop(&mut self) {
        // Its guards go with it: the server ends before their leases do.
        if let Err(error) = self.process.kill().and_then(|()| self.process.wait()) {
            eprintln!("the holder could not be ended: {error}");
        }
    }
}

/// How long acquisitions with their releases take one caller, for a while.
async fn latencies(manager: &ClusterManager, span: Duration) -> Vec<Duration> {
    let mut samples = Vec::with_capacity(100_000);
    let began = Instant::now();
    while began.elapsed() < span {
        let asked = Instant::now();
        manager.write("other").await.expect("granted").release().await.expect("released");
        samples.push(asked.elapsed());
    }
    samples
}

fn bench(_: &mut Criterion) {
    if env::var_os(HOLDER_OF).is_some() {
        hold();
        return;
    }
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let mut holder = Holder::start(&node.url());
    let other = ClusterManager::builder(Topology::node(node.url())).lease(LONG_LEASE).max_hold(LONG_LEASE * 2);
    let other = runtime.block_on(other.connect()).expect("a manager");

    let locks = effort.of(10_000, 10_000, 100);
    let (cycles, span) = effort.of((3, 10), (1, 10), (1, 1));
    let span = Duration::from_secs(span);
    let (mut shares, mut ratios, mut bytes_each) = (Vec::new(), Vec::new(), Vec::new());
    let mut p99s: [Vec<f64>; 2] = Default::default();
    for _ in 0..cycles {
        let mut without = runtime.block_on(latencies(&other, span / 4));
        holder.order(locks);
        // Until the first renewals have spread over the interval; there are none for the first third of a lease.
        thread::sleep(LEASE * effort.of(4, 4, 0) / 10);
        holder.order(locks);
        CommandStats::reset(&node);
        let began = Instant::now();
        let mut with = runtime.block_on(latencies(&other, span));
        let renewals = CommandStats::of(&node).calls("evalsha") - 2 * with.len() as u64;
        let elapsed = began.elapsed();
        let (used, grown) = holder.order(0);
        without.extend(runtime.block_on(latencies(&other, span / 4)));

        let per_second = renewals as f64 / elapsed.as_secs_f64();
        println!(
            "row: {per_second:.0} renewals a second; others' p50 {:?} with, {:?} without",
            quantile(&mut with, 0.5),
            quantile(&mut without, 0.5)
        );
        shares.push(100.0 * used.div_duration_f64(elapsed));
        bytes_each.push(grown as f64 / locks as f64);
        let [with, without] = [&mut with, &mut without].map(|samples| quantile(samples, 0.99).as_secs_f64() * 1e6);
        ratios.push(with / without);
        p99s[0].push(with);
        p99s[1].push(without);
    }
    let [with, without] = p99s.each_mut().map(|p99s| median(p99s));
    let sides = format!("p99 {with:.0} us against {without:.0} us");
    let what = format!("{locks} held locks, others' p99, with / without");
    tell(effort, &what, &sides, median(&mut ratios), Target::AtMost(2.0));
    let what = format!("{locks} held locks, client's share of a core");
    tell(
        effort,
        &what,
        &format!("percent over {span:?}, median of {cycles}"),
        median(&mut shares),
        Target::AtMost(3.0),
    );
    // The first time: later the memory of the time before is used again.
    let what = format!("{locks} held locks, client memory per lock");
    tell(effort, &what, "KiB of growth", bytes_each[0] / 1024.0, Target::AtMost(1.5));
}

criterion_group!(benches, bench);
criterion_main!(benches);
