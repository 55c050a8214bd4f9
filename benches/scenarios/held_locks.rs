//! 10,000 locks held by one manager, renewed all the time: the delay of others on the node, and the cost; and whether
//! 100,000 with a longer lease cost ten times what 10,000 do.
//!
//! The holder is another process, so that nothing else counts as its processor time and memory. It takes and releases
//! the locks, and the latency of others is measured with and without them, in turns; and so beside minimal code that
//! renews as many.

pub(crate) mod minimal;

use super::*;

const LEASE: Duration = Duration::from_secs(10);

/// The other process: holds as many locks as the order says. Answers with the CPU time since the last order, the growth
/// of memory, the lost holds, those whose renewal went unanswered so far, and the shortest local validity of the others
/// in milliseconds.
pub(crate) fn hold(url: &str, lease_s: &str) {
    let (runtime, lease) = (runtime(), lease_s.parse().expect("seconds"));
    let lease = Duration::from_secs(lease);
    let builder = RedisManager::builder(url).lease(lease);
    let manager = runtime.block_on(builder.connect()).expect("a manager");
    let mut guards: Vec<WriteGuard> = Vec::new();
    let (mut time, mut bytes) = (processor_time(), resident_bytes());
    obey(|order| {
        let count: usize = order.parse().expect("a number");
        let used = processor_time().saturating_sub(time);
        let grown = resident_bytes().saturating_sub(bytes);
        let states: Vec<_> = guards.iter().map(WriteGuard::state).collect();
        let in_doubt = states.iter().filter(|state| **state == HoldState::Unconfirmed).count();
        let lost = states.iter().filter(|state| matches!(state, HoldState::Lost(_))).count();
        if count != guards.len() {
            bytes = resident_bytes();
            runtime.block_on(change_to(count, &manager, &mut guards))?;
        }
        time = processor_time();
        let held = guards.iter().zip(&states).filter(|(_, state)| **state == HoldState::Held);
        let least_ms = 1e3 * held.map(|(guard, _)| guard.remaining()).min().unwrap_or(lease).as_secs_f64();
        Ok(vec![micros(used), grown as f64, lost as f64, in_doubt as f64, least_ms])
    });
}

async fn change_to(count: usize, manager: &RedisManager, guards: &mut Vec<WriteGuard>) -> Result<(), Error> {
    while guards.len() > count {
        let releases = guards.drain(count.max(guards.len().saturating_sub(16))..).map(WriteGuard::release);
        futures_util::future::try_join_all(releases).await?;
    }
    let taken = few_at_a_time(guards.len()..count, async |lock| manager.write(&format!("held-lock-{lock:05}")).await);
    for guard in taken.await {
        guards.push(guard?);
    }
    Ok(())
}

/// Report of the other process for the time since the order before.
struct Report {
    used: Duration,
    bytes: f64,
    lost: f64,
    in_doubt: f64,
}

/// Makes the other process hold so many locks.
fn order(holder: &mut Worker, count: usize) -> Report {
    let [micros, bytes, lost, in_doubt, _] = holder.order(count).expect("it holds them");
    Report { used: Duration::from_secs_f64(micros / 1e6), bytes, lost, in_doubt }
}

fn start_holder(node: &Node, kind: &str, lease: Duration) -> Worker {
    Worker::start_child(&[kind, &node.url(), &lease.as_secs().to_string()])
}

/// Acquires and releases for a while. Returns how long each pair took.
async fn latencies(manager: &RedisManager, span: Duration) -> Vec<Duration> {
    let (mut samples, began) = (Vec::with_capacity(100_000), Instant::now());
    while began.elapsed() < span {
        samples.push(pair(manager, "other").await);
    }
    samples
}

/// Figures of all cycles with one holder.
#[derive(Default)]
struct Cycles {
    /// Percent of a core that the holder takes.
    shares: Vec<f64>,
    bytes_each: Vec<f64>,
    /// The p99 of others, in microseconds, with and without the held locks.
    p99: Sides,
}

impl Cycles {
    /// Lets a new process take so many locks, hold them while others are measured, and release them.
    fn add(&mut self, kind: &str, (node, other): (&Node, &RedisManager), locks: usize, span: Duration, warm: Duration) {
        let runtime = runtime();
        let mut holder = start_holder(node, kind, LEASE);
        let mut without = runtime.block_on(latencies(other, span / 4));
        order(&mut holder, locks);
        // Until the first renewals have spread over the interval. There are none for the first third of a lease.
        thread::sleep(warm);
        order(&mut holder, locks);
        CommandStats::reset(node);
        let began = Instant::now();
        let mut with = runtime.block_on(latencies(other, span));
        let renewals = CommandStats::of(node).calls("evalsha") - 2 * with.len() as u64;
        let elapsed = began.elapsed();
        let Report { used, bytes, lost, .. } = order(&mut holder, 0);
        assert!(lost == 0.0, "locks were lost");
        without.extend(runtime.block_on(latencies(other, span / 4)));
        let (share, rate) = (100.0 * used.div_duration_f64(elapsed), renewals as f64 / elapsed.as_secs_f64());
        println!("row: {kind}: {rate:.0} renewals a second, {share:.2} % of a core");
        self.shares.push(share);
        self.bytes_each.push(bytes / locks as f64);
        let [with, without] = [&mut with, &mut without].map(|samples| micros(quantile(samples, 0.99)));
        self.p99.push(with, without);
    }
}

fn beside_others(effort: Effort, node: &Node) {
    let other = manager(node);
    let runtime = runtime();
    let other = runtime.block_on(other);
    let locks = effort.of(10_000, 10_000, 100);
    let (cycles, span) = effort.of((9, 10), (1, 10), (1, 1));
    let (span, warm) = (Duration::from_secs(span), LEASE * effort.of(4, 4, 0) / 10);
    let (mut own, mut minimal) = (Cycles::default(), Cycles::default());
    for _ in 0..cycles {
        own.add("hold", (node, &other), locks, span, warm);
        minimal.add("hold-minimal", (node, &other), locks, span, warm);
    }
    own.p99.tell(&format!("{locks} held locks, others' p99, with / without"), "us", AtMost(1.5));
    println!("row: the same beside minimal code: {:.2}", minimal.p99.ratio());
    let sides = format!("percent over {span:?}, median of {cycles}; minimal code {:.2}", median(&mut minimal.shares));
    tell(&format!("{locks} held locks, client's share of a core"), &sides, median(&mut own.shares), AtMost(2.0));
    let kib = median(&mut own.bytes_each) / 1024.0;
    tell(&format!("{locks} held locks, client memory per lock"), "KiB of growth", kib, AtMost(1.0));
}

/// Compares ten times as many locks, with so long a lease that a third of it is enough to take them.
fn many(effort: Effort, node: &Node) {
    let (locks, lease) = effort.of((100_000, 60), (100_000, 60), (200, 3));
    let (fewer, lease) = (locks / 10, Duration::from_secs(lease));
    let [all, few] = [locks, fewer].map(|locks| {
        let mut holder = start_holder(node, "hold", lease);
        order(&mut holder, locks);
        // Renewals have begun, and are spread as they will be. Each lock is renewed once in a third of the lease.
        thread::sleep(lease * 4 / 10);
        order(&mut holder, locks);
        thread::sleep(lease / 3);
        order(&mut holder, locks)
    });
    let what = format!("{locks} held locks with a lease of {lease:?}");
    let each = [micros(all.used) / locks as f64, micros(few.used) / fewer as f64];
    tell_ratio(&format!("{what}, each / each of a tenth"), each, "us of CPU in a third of it", AtMost(1.5));
    let sides = format!("{} lost, {} in doubt at the end", all.lost, all.in_doubt);
    tell(&format!("{what}, lost or in doubt"), &sides, all.lost + all.in_doubt, AtMost(0.0));
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    beside_others(effort, &node);
    many(effort, &node);
}
