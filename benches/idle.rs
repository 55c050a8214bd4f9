//! Holds that stay: how soon a process gives up what it does not use, beside two messages that do nothing else, and what 10,000 such
//! holds cost beside 10,000 that are held.

mod figures;
#[path = "idle/smallest.rs"]
mod smallest;

use std::env;
use std::io::{BufRead, stdin};
use std::process::Command;
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::child::Worker;
use figures::process::{processor_time, resident_bytes};
use figures::{Bare, CommandStats, Effort, Target, bare_connection, digest, foreign_id, median, start_node, tell};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{ReadGuard, RedisManager, RwLockManager, Topology};
use smallest::CallBacks;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

const PUBLISH: &str = "#!lua\nreturn redis.call('SPUBLISH', KEYS[1], ARGV[1])";
const CALL: &str = "{idle}:call";
const ANSWER: &str = "{idle}:answer";
const IDLE: Duration = Duration::from_secs(600);
/// So many processes read, and none of them is inside.
const MANY: usize = 100;
const LOCKS: usize = 10_000;
/// Set for the process that has locks, to the server's URL, and how it has them.
const URL: &str = "IDLE_URL";
const HOW: &str = "IDLE_HOW";

async fn connect(node: &Node) -> RedisManager {
    RedisManager::builder(Topology::node(node.url())).cache_for(IDLE).connect().await.expect("a manager")
}

/// Reads until the hold stays, and once more: whose hold is called for before it was of use keeps fewer.
async fn idles(manager: &RedisManager, name: &str) {
    while manager.stats().cached_holds == 0 {
        manager.read(name).await.expect("granted").release().await.expect("released");
    }
    manager.read(name).await.expect("granted").release().await.expect("released");
}

fn micros(began: Instant) -> f64 {
    began.elapsed().as_secs_f64() * 1e6
}

/// Everything between two processes but the lock: who is called answers, and the answer is waited for.
struct TwoHops {
    script: String,
    caller: MultiplexedConnection,
    answers: TcpStream,
}

impl TwoHops {
    async fn new(node: &Node) -> Self {
        let mut caller = bare_connection(&node.url()).await;
        redis::cmd("SCRIPT").arg("LOAD").arg(PUBLISH).query_async::<()>(&mut caller).await.expect("loaded");
        let (mut calls, answers) = (subscribed(node, CALL).await, subscribed(node, ANSWER).await);
        let (mut answerer, script) = (bare_connection(&node.url()).await, digest(PUBLISH));
        let own = script.clone();
        tokio::spawn(async move {
            let mut bytes = [0; 256];
            while calls.read(&mut bytes).await.is_ok_and(|read| read > 0) {
                publish(&mut answerer, &own, ANSWER).await;
            }
        });
        Self { script, caller, answers }
    }

    async fn go(&mut self) -> f64 {
        let began = Instant::now();
        publish(&mut self.caller, &self.script, CALL).await;
        assert!(self.answers.read(&mut [0; 256]).await.expect("an answer") > 0);
        micros(began)
    }
}

async fn subscribed(node: &Node, channel: &str) -> TcpStream {
    let mut stream = TcpStream::connect(node.addr()).await.expect("a connection");
    stream.set_nodelay(true).expect("a live socket");
    stream.write_all(format!("SSUBSCRIBE {channel}\r\n").as_bytes()).await.expect("sent");
    // The confirmation: one push, which fits.
    assert!(stream.read(&mut [0; 256]).await.expect("confirmed") > 0);
    stream
}

async fn publish(connection: &mut MultiplexedConnection, script: &str, channel: &str) {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(1).arg(channel).arg("now").query_async::<i64>(connection).await.expect("published");
}

/// What somebody does who wants the lock, each in microseconds.
#[derive(Default)]
struct Samples {
    write: Vec<f64>,
    try_idle: Vec<f64>,
    try_used: Vec<f64>,
    two_hops: Vec<f64>,
    round_trip: Vec<f64>,
    many: Vec<f64>,
    releases: Vec<f64>,
    smallest: Vec<f64>,
}

/// As many bare readers leave at once, each by a connection of its own.
async fn bare_releases(readers: &mut [Bare<MultiplexedConnection>]) -> f64 {
    let ids: Vec<_> = readers.iter().map(|_| foreign_id()).collect();
    let key = "rwlock:{bare}:lock";
    for (bare, id) in readers.iter_mut().zip(&ids) {
        bare.acquire(key, id, "r").await;
    }
    let began = Instant::now();
    join_all(readers.iter_mut().zip(&ids).map(|(bare, id)| bare.leave(key, id))).await;
    micros(began)
}

async fn call_backs(effort: Effort, node: &Node) -> Samples {
    let (keeper, other) = (connect(node).await, connect(node).await);
    let keepers = join_all((0..MANY).map(|_| connect(node))).await;
    let mut readers = Vec::new();
    for _ in 0..MANY {
        let connection = bare_connection(&node.url()).await;
        readers.push(Bare::new(connection.clone(), &mut [connection]).await);
    }
    let (mut hops, mut smallest) = (TwoHops::new(node).await, CallBacks::new(node, MANY).await);
    let mut all = Samples::default();
    for round in 0..=effort.of(200, 60, 2) {
        if round == 1 {
            all = Samples::default(); // warm
        }
        idles(&keeper, "one").await;
        let began = Instant::now();
        let guard = other.write("one").cache_for(Duration::ZERO).await.expect("granted");
        all.write.push(micros(began));
        guard.release().await.expect("released");

        idles(&keeper, "one").await;
        let began = Instant::now();
        let guard = other.write("one").cache_for(Duration::ZERO).try_now().await.expect("answered");
        all.try_idle.push(micros(began));
        guard.expect("nobody is inside").release().await.expect("released");

        idles(&keeper, "one").await;
        let inside: ReadGuard = keeper.read("one").await.expect("granted");
        let began = Instant::now();
        assert!(other.try_write("one").await.expect("answered").is_none());
        all.try_used.push(micros(began));
        inside.release().await.expect("released");

        all.two_hops.push(hops.go().await);
        let began = Instant::now();
        readers[0].no_op("idle").await;
        all.round_trip.push(micros(began));
        if round % 10 == 1 {
            join_all(keepers.iter().map(|keeper| idles(keeper, "many"))).await;
            let began = Instant::now();
            let guard = other.write("many").cache_for(Duration::ZERO).await.expect("granted");
            all.many.push(micros(began));
            guard.release().await.expect("released");
            all.releases.push(bare_releases(&mut readers).await);
            all.smallest.push(smallest.go().await);
        }
    }
    all
}

fn tell_call_backs(effort: Effort, mut all: Samples) {
    let hops = median(&mut all.two_hops);
    let write = median(&mut all.write);
    let sides = format!("p50 {write:.0} us against {hops:.0} us");
    tell(effort, "a writer beside an idle reader / two bare hops", &sides, write / hops, Target::AtMost(1.8));
    let (many, releases) = (median(&mut all.many), median(&mut all.releases));
    let floor = 1.8 * hops + releases;
    let sides = format!("p50 {many:.0} us against 1.8 x {hops:.0} us and {releases:.0} us for {MANY} bare releases");
    tell(effort, "a writer beside 100 idle readers / what that may take", &sides, many / floor, Target::AtMost(1.0));
    let smallest = median(&mut all.smallest);
    println!(
        "row: of 100 bare clients who leave when they are called the writer waits {smallest:.0} us: ours {:.2}",
        many / smallest
    );
    let trip = median(&mut all.round_trip);
    for (what, samples) in [("an idle", &mut all.try_idle), ("a used", &mut all.try_used)] {
        let took = median(samples);
        let sides = format!("p50 {took:.0} us against {trip:.0} us, two bare hops {hops:.0} us");
        tell(
            effort,
            &format!("try_write beside {what} reader / a round trip"),
            &sides,
            took / trip,
            Target::AtMost(3.0),
        );
    }
}

/// The other process: takes as many locks as a line says, and answers to each line with what it has used since the last.
fn have_locks() {
    let (url, is_idle) = (env::var(URL).expect("a URL"), env::var(HOW).is_ok_and(|how| how == "idle"));
    let runtime = Runtime::new().expect("a runtime");
    let cache_for = if is_idle { IDLE } else { Duration::ZERO };
    let builder = RedisManager::builder(Topology::node(url)).cache_for(cache_for).max_cached(2 * LOCKS);
    let manager = runtime.block_on(builder.connect()).expect("a manager");
    let (mut kept, mut time, bytes) = (Vec::new(), processor_time(), resident_bytes());
    for line in stdin().lock().lines() {
        let count: usize = line.expect("a line").parse().expect("a number");
        println!("{} {}", (processor_time() - time).as_micros(), resident_bytes().saturating_sub(bytes));
        if count > 0 {
            kept = runtime.block_on(take(&manager, count, is_idle));
            // The first use is not kept, the second subscribes.
            while manager.stats().cached_holds + kept.len() < count {
                drop(runtime.block_on(take(&manager, count, is_idle)));
            }
        }
        time = processor_time();
    }
    drop(kept);
}

async fn take(manager: &RedisManager, count: usize, is_idle: bool) -> Vec<ReadGuard> {
    let (mut guards, mut tasks) = (Vec::new(), JoinSet::new());
    for lock in 0..count {
        // Few at a time, or the memory of so many acquisitions under way would count as the locks'.
        if tasks.len() >= 16
            && let Some(done) = tasks.join_next().await
        {
            guards.extend(done.expect("it runs"));
        }
        let manager = manager.clone();
        tasks.spawn(async move {
            let name = format!("{}-lock-{lock:05}", if is_idle { "idle" } else { "held" });
            if !is_idle {
                return Some(manager.read(&name).await.expect("granted"));
            }
            manager.read(&name).await.expect("granted").release().await.expect("released");
            None
        });
    }
    guards.extend(tasks.join_all().await.into_iter().flatten());
    guards
}

/// What each process used, and how much its memory has grown.
fn ten_thousand(effort: Effort, node: &Node) {
    let (count, spans) = effort.of((LOCKS, 6), (LOCKS, 2), (20, 1));
    let span = effort.of(Duration::from_secs(10), Duration::from_secs(10), Duration::from_millis(100));
    let start = |how: &str| {
        Worker::start(Command::new(env::current_exe().expect("this program")).env(URL, node.url()).env(HOW, how))
    };
    let mut workers = [start("held"), start("idle")];
    let numbers = |line: String| -> Vec<f64> {
        line.split_whitespace().map(|number| number.parse().expect("a number")).collect()
    };
    for worker in &mut workers {
        worker.order(&count.to_string());
        worker.order("0");
    }
    CommandStats::reset(node);
    let (mut used, mut grown) = ([Vec::new(), Vec::new()], [0.0; 2]);
    for _ in 0..spans {
        thread::sleep(span);
        for (n, worker) in workers.iter_mut().enumerate() {
            let told = numbers(worker.order("0"));
            used[n].push(told[0] / 1e6 / span.as_secs_f64());
            grown[n] = told[1];
        }
    }
    let [held, idle] = &mut used;
    let (held, idle) = (median(held), median(idle));
    let sides = format!("{:.2} % of a core against {:.2} %", idle * 100.0, held * 100.0);
    tell(effort, "10,000 idle holds, CPU / of 10,000 held locks", &sides, idle / held, Target::AtMost(1.5));
    let sides =
        format!("{:.2} KiB each against {:.2} KiB", grown[1] / 1024.0 / count as f64, grown[0] / 1024.0 / count as f64);
    tell(
        effort,
        "10,000 idle holds, memory / of 10,000 held locks",
        &sides,
        grown[1] / grown[0].max(1.0),
        Target::AtMost(1.3),
    );
    let stats = CommandStats::of(node);
    let seconds = span.as_secs_f64() * f64::from(spans);
    for command in stats.commands() {
        println!("row: {command}: {:.1} a second, of both", stats.calls(command) as f64 / seconds);
    }
}

fn bench(_: &mut Criterion) {
    if env::var(URL).is_ok() {
        return have_locks();
    }
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let samples = runtime.block_on(call_backs(effort, &node));
    tell_call_backs(effort, samples);
    ten_thousand(effort, &node);
}

criterion_group!(benches, bench);
criterion_main!(benches);
