//! Holds that stay: how soon a process gives up what it does not use, beside two messages that do nothing else.

mod figures;

use std::time::{Duration, Instant};

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::{Bare, Effort, Target, bare_connection, digest, foreign_id, median, start_node, tell};
use futures_util::future::join_all;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{ReadGuard, RedisManager, RwLockManager, Topology};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::Runtime;

const PUBLISH: &str = "#!lua\nreturn redis.call('SPUBLISH', KEYS[1], ARGV[1])";
const CALL: &str = "{idle}:call";
const ANSWER: &str = "{idle}:answer";
const IDLE: Duration = Duration::from_secs(600);
/// So many processes read, and none of them is inside.
const MANY: usize = 100;

async fn connect(node: &Node) -> RedisManager {
    RedisManager::builder(Topology::node(node.url())).idle_hold(IDLE).connect().await.expect("a manager")
}

/// Reads until the hold stays, and once more: whose hold is called for before it was of use keeps fewer.
async fn idles(manager: &RedisManager, name: &str) {
    while manager.stats().idle_holds == 0 {
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
}

/// A hundred bare readers leave at once.
async fn bare_releases(bare: &Bare<MultiplexedConnection>) -> f64 {
    let ids: Vec<_> = (0..MANY).map(|_| foreign_id()).collect();
    let key = "rwlock:{bare}:lock";
    for id in &ids {
        bare.clone().acquire(key, id, "r").await;
    }
    let began = Instant::now();
    join_all(ids.iter().map(|id| {
        let mut bare = bare.clone();
        async move { bare.leave(key, id).await }
    }))
    .await;
    micros(began)
}

async fn call_backs(effort: Effort, node: &Node) -> Samples {
    let (keeper, other) = (connect(node).await, connect(node).await);
    let keepers = join_all((0..MANY).map(|_| connect(node))).await;
    let connection = bare_connection(&node.url()).await;
    let mut bare = Bare::new(connection.clone(), &mut [connection]).await;
    let mut hops = TwoHops::new(node).await;
    let mut all = Samples::default();
    for round in 0..=effort.of(200, 60, 2) {
        if round == 1 {
            all = Samples::default(); // warm
        }
        idles(&keeper, "one").await;
        let began = Instant::now();
        let guard = other.write("one").idle_hold(Duration::ZERO).await.expect("granted");
        all.write.push(micros(began));
        guard.release().await.expect("released");

        idles(&keeper, "one").await;
        let began = Instant::now();
        let guard = other.write("one").idle_hold(Duration::ZERO).try_now().await.expect("answered");
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
        bare.no_op("idle").await;
        all.round_trip.push(micros(began));
        if round % 10 == 1 {
            join_all(keepers.iter().map(|keeper| idles(keeper, "many"))).await;
            let began = Instant::now();
            let guard = other.write("many").idle_hold(Duration::ZERO).await.expect("granted");
            all.many.push(micros(began));
            guard.release().await.expect("released");
            all.releases.push(bare_releases(&bare).await);
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
    let trip = median(&mut all.round_trip);
    for (what, samples) in [("an idle", &mut all.try_idle), ("a used", &mut all.try_used)] {
        let took = median(samples);
        let sides = format!("p50 {took:.0} us against {trip:.0} us");
        tell(
            effort,
            &format!("try_write beside {what} reader / a round trip"),
            &sides,
            took / trip,
            Target::AtMost(3.0),
        );
    }
}

fn bench(_: &mut Criterion) {
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let samples = runtime.block_on(call_backs(effort, &node));
    tell_call_backs(effort, samples);
}

criterion_group!(benches, bench);
criterion_main!(benches);
