//! Cached holds: how soon a process gives up what it does not use, beside two messages that do nothing else, and what
//! 10,000 such holds cost beside 10,000 that are held.

mod minimal;

use super::*;

const CACHE_FOR: Duration = Duration::from_secs(600);
/// Processes that read, none of which is inside.
const MANY: usize = 100;
const LOCKS: usize = 10_000;

async fn connect(node: &Node) -> RedisManager {
    RedisManager::builder(node.url()).cache_for(CACHE_FOR).connect().await.expect("a manager")
}

async fn read(manager: &RedisManager, name: &str) {
    manager.read(name).await.expect("granted").release().await.expect("released");
}

/// Reads until the hold is cached, and once more: a hold that is recalled before it was of use is cached less often.
async fn cache(manager: &RedisManager, name: &str) {
    while manager.stats().cached_holds == 0 {
        read(manager, name).await;
    }
    read(manager, name).await;
}

/// Two bare hops: a message to a task that answers with a message. Everything between two processes but the lock.
struct TwoHops {
    caller: Bare,
    answers: Messages,
}

impl TwoHops {
    async fn new(node: &Node) -> Self {
        let (mut calls, answers) = (
            Messages::subscribe(&node.url(), "{hop}:call").await,
            Messages::subscribe(&node.url(), "{hop}:answer").await,
        );
        let mut answerer = Bare::connect(node).await;
        tokio::spawn(async move {
            while calls.is_next().await {
                answerer.publish("{hop}:answer").await;
            }
        });
        Self { caller: Bare::connect(node).await, answers }
    }

    async fn measure(&mut self) -> f64 {
        let began = Instant::now();
        self.caller.publish("{hop}:call").await;
        self.answers.next().await;
        micros(began.elapsed())
    }
}

/// Waits of a caller that wants the lock, and times to compare with, all in microseconds.
#[derive(Default)]
struct Samples {
    write: Vec<f64>,
    try_cached: Vec<f64>,
    try_used: Vec<f64>,
    two_hops: Vec<f64>,
    round_trip: Vec<f64>,
    many: Vec<f64>,
    releases: Vec<f64>,
    minimal: Vec<f64>,
}

/// Lets bare readers leave at once, each by a connection of its own.
async fn bare_releases(readers: &mut [Bare]) -> f64 {
    let ids: Vec<_> = readers.iter().map(|_| foreign_id()).collect();
    let key = &lock_key("bare");
    for (bare, id) in readers.iter_mut().zip(&ids) {
        bare.acquire(key, id, "r").await;
    }
    micros(timed(join_all(readers.iter_mut().zip(&ids).map(|(bare, id)| bare.leave(key, id)))).await.1)
}

async fn measure_recalls(effort: Effort, node: &Node) -> Samples {
    let (keeper, other) = (connect(node).await, connect(node).await);
    let keepers = join_all((0..MANY).map(|_| connect(node))).await;
    let mut readers = join_all((0..MANY).map(|_| Bare::connect(node))).await;
    let (mut hops, mut minimal) = (TwoHops::new(node).await, minimal::Recalls::new(node, MANY).await);
    let mut all = Samples::default();
    for round in 0..=effort.of(200, 60, 2) {
        if round == 1 {
            all = Samples::default(); // warm
        }
        cache(&keeper, "one").await;
        let (guard, took) = timed(other.write("one").cache_for(Duration::ZERO)).await;
        all.write.push(micros(took));
        guard.expect("granted").release().await.expect("released");

        cache(&keeper, "one").await;
        let (guard, took) = timed(other.write("one").cache_for(Duration::ZERO).try_now()).await;
        all.try_cached.push(micros(took));
        guard.expect("answered").expect("nobody is inside").release().await.expect("released");

        cache(&keeper, "one").await;
        let inside: ReadGuard = keeper.read("one").await.expect("granted");
        let (refused, took) = timed(other.try_write("one")).await;
        assert!(refused.expect("answered").is_none());
        all.try_used.push(micros(took));
        inside.release().await.expect("released");

        all.two_hops.push(hops.measure().await);
        all.round_trip.push(micros(timed(readers[0].no_op("hop")).await.1));
        if round % 10 == 1 {
            join_all(keepers.iter().map(|keeper| cache(keeper, "many"))).await;
            let (guard, took) = timed(other.write("many").cache_for(Duration::ZERO)).await;
            all.many.push(micros(took));
            guard.expect("granted").release().await.expect("released");
            all.releases.push(bare_releases(&mut readers).await);
            all.minimal.push(minimal.measure().await);
        }
    }
    all
}

fn tell_recalls(mut all: Samples) {
    let (hops, write) = (median(&mut all.two_hops), median(&mut all.write));
    tell_ratio("a writer beside a cached read hold / two bare hops", [write, hops], "us", AtMost(1.8));
    let (many, releases, minimal) = (median(&mut all.many), median(&mut all.releases), median(&mut all.minimal));
    let limit = 1.8 * hops + releases;
    let sides = format!("p50 {many:.0} us against 1.8 x {hops:.0} us and {releases:.0} us for {MANY} bare releases");
    tell("a writer beside 100 cached read holds / what that may take", &sides, many / limit, AtMost(1.0));
    println!("row: beside 100 bare readers that leave when they are recalled the writer waits {minimal:.0} us");
    let trip = median(&mut all.round_trip);
    for (what, samples) in [("cached", &mut all.try_cached), ("used", &mut all.try_used)] {
        let what = format!("try_write beside a {what} read hold / an empty script");
        tell_ratio(&what, [median(samples), trip], "us", AtMost(3.0));
    }
}

/// The other process: takes as many locks as an order says. Answers to each with the CPU time since the last, and the
/// growth of memory.
pub(crate) fn have_locks(url: &str, how: &str) {
    let (runtime, is_cached) = (runtime(), how == "cached");
    let builder = RedisManager::builder(url).max_cached(2 * LOCKS);
    let builder = builder.cache_for(if is_cached { CACHE_FOR } else { Duration::ZERO });
    let manager = runtime.block_on(builder.connect()).expect("a manager");
    let (mut held, mut time, bytes) = (Vec::new(), processor_time(), resident_bytes());
    obey(|order| {
        let count: usize = order.parse().expect("a number");
        let (used, grown) = (processor_time() - time, resident_bytes().saturating_sub(bytes));
        // The first use is not cached, the second subscribes.
        while manager.stats().cached_holds + held.len() < count {
            held = runtime.block_on(few_at_a_time(0..count, async |lock| {
                let guard = manager.read(&format!("{how}-lock-{lock:05}")).await.expect("granted");
                if !is_cached {
                    return Some(guard);
                }
                guard.release().await.expect("released");
                None
            }));
            held.retain(Option::is_some);
        }
        time = processor_time();
        Ok(vec![micros(used), grown as f64])
    });
}

/// Compares CPU time and memory of a process with cached holds and of one with held locks.
fn ten_thousand(effort: Effort, node: &Node) {
    let (count, spans) = effort.of((LOCKS, 6), (LOCKS, 2), (20, 1));
    let span = effort.of(Duration::from_secs(10), Duration::from_secs(10), Duration::from_millis(100));
    let url = node.url();
    let mut workers = ["held", "cached"].map(|how| Worker::start_child(&["cache", &url, how]));
    for worker in &mut workers {
        worker.ask(count);
    }
    CommandStats::reset(node);
    let (mut used, mut grown) = ([Vec::new(), Vec::new()], [0.0; 2]);
    for _ in 0..spans {
        thread::sleep(span);
        for (n, worker) in workers.iter_mut().enumerate() {
            let [micros, bytes] = worker.order(0).expect("it has them");
            used[n].push(micros / 1e4 / span.as_secs_f64());
            grown[n] = bytes / 1024.0 / count as f64;
        }
    }
    let ([held, cached], [held_kib, cached_kib]) = (used.each_mut().map(|used| median(used)), grown);
    tell_ratio("10,000 cached holds, CPU / of 10,000 held locks", [cached, held], "% of a core", AtMost(1.5));
    let kib = [cached_kib, held_kib.max(0.001)];
    tell_ratio("10,000 cached holds, memory / of 10,000 held locks", kib, "KiB each", AtMost(1.3));
    let stats = CommandStats::of(node);
    // A run may begin just before a ping.
    let pings = (stats.calls("ping") as f64 / span.as_secs_f64() / f64::from(spans)).round();
    tell("10,000 cached holds, pings a second beside renewals", "of both processes", pings, AtMost(2.0));
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    tell_recalls(runtime().block_on(measure_recalls(effort, &node)));
    ten_thousand(effort, &node);
}
