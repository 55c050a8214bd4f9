//! How soon a waiter in another process is inside after a release, when all was quiet for a while, beside a bare message that
//! the server pushes: time, and how often threads were woken and tasks polled for it.

use std::io::{Read, Write};
use std::net::TcpStream;
use std::sync::mpsc::{self, Receiver, Sender};
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use redis::aio::MultiplexedConnection;
use redis_rwlock::{RedisManager, RwLockManager, Topology, WriteGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::runtime::{Builder, Runtime};

use crate::figures::process::wake_ups;
use crate::figures::{Effort, Target, bare_connection, digest, median, start_node, tell};

const PUBLISH: &str = "#!lua\nreturn redis.call('SPUBLISH', KEYS[1], ARGV[1])";
const CHANNEL: &str = "{wake}:bare";
/// How long all was quiet, and how many times a bare message's a wake-up may take.
const PAUSES_MS: [(u64, f64); 3] = [(1, 1.9), (20, 1.7), (150, 1.7)];
/// What follows a wake-up is over by then.
const AFTERWARDS: Duration = Duration::from_millis(2);

/// The runtimes of two processes, whose threads are told apart by their names.
struct Runtimes {
    here: Runtime,
    there: Runtime,
}

impl Runtimes {
    fn new() -> Self {
        let named = |name: &str| {
            let mut builder = Builder::new_multi_thread();
            builder.worker_threads(2).thread_name(name).enable_all().build().expect("a runtime")
        };
        Self { here: named("here"), there: named("there") }
    }

    /// Thread wake-ups and, where tokio counts them, polls of tasks, on both.
    fn hops(&self) -> Hops {
        Hops { wake_ups: wake_ups("here") + wake_ups("there"), polls: polls(&self.here) + polls(&self.there) }
    }
}

#[derive(Clone, Copy)]
struct Hops {
    wake_ups: u64,
    polls: u64,
}

/// Tokio counts them in builds with `RUSTFLAGS='--cfg tokio_unstable'`.
fn polls(runtime: &Runtime) -> u64 {
    #[cfg(tokio_unstable)]
    let polls = (0..runtime.metrics().num_workers()).map(|worker| runtime.metrics().worker_poll_count(worker)).sum();
    #[cfg(not(tokio_unstable))]
    let polls = u64::try_from(runtime.metrics().num_workers()).map_or(0, |_| 0);
    polls
}

/// Something was there at this moment, and what goes with it stays until it has been measured.
struct Happened {
    at: Instant,
    _guard: Option<WriteGuard>,
}

/// One side: what it did in all rounds.
#[derive(Default)]
struct Samples {
    micros: Vec<f64>,
    wake_ups: Vec<f64>,
    polls: Vec<f64>,
}

impl Samples {
    /// Lets `act` cause something and say when it began; what it causes says on `ended` when it was there.
    fn measure(&mut self, runtimes: &Runtimes, ended: &Receiver<Happened>, act: impl FnOnce() -> Receiver<Instant>) {
        let before = runtimes.hops();
        let began = act().recv().expect("it begins");
        let ended = ended.recv().expect("it ends");
        thread::sleep(AFTERWARDS);
        let after = runtimes.hops();
        self.micros.push((ended.at - began).as_secs_f64() * 1e6);
        self.wake_ups.push((after.wake_ups - before.wake_ups) as f64);
        self.polls.push((after.polls - before.polls) as f64);
    }
}

/// A lock that is held here and wanted there.
struct Wanted {
    here: RedisManager,
    there: RedisManager,
    inside: Sender<Happened>,
}

impl Wanted {
    /// Takes the lock here, and waits until somebody there waits for it.
    fn prepare(&self, runtimes: &Runtimes) -> WriteGuard {
        let held = runtimes.here.block_on(self.here.write("wake").into_future()).expect("granted");
        let (waiting, inside) = (self.there.clone(), self.inside.clone());
        runtimes.there.spawn(async move {
            let guard = waiting.write("wake").await.expect("granted");
            let at = Instant::now();
            inside.send(Happened { at, _guard: Some(guard) }).expect("somebody listens");
        });
        while runtimes.here.block_on(self.here.inspect("wake")).expect("inspected").waiters.is_empty() {}
        // Its second question, after it has subscribed, is over too.
        thread::sleep(Duration::from_millis(3));
        held
    }
}

fn release(runtimes: &Runtimes, held: WriteGuard) -> Receiver<Instant> {
    let (begins, began) = mpsc::channel();
    runtimes.here.spawn(async move {
        begins.send(Instant::now()).expect("somebody listens");
        held.release().await.expect("released");
    });
    began
}

fn publish(runtimes: &Runtimes, connection: &MultiplexedConnection, publish: &str) -> Receiver<Instant> {
    let (begins, began) = mpsc::channel();
    let (mut connection, publish) = (connection.clone(), publish.to_owned());
    runtimes.here.spawn(async move {
        begins.send(Instant::now()).expect("somebody listens");
        let mut command = redis::cmd("EVALSHA");
        command
            .arg(publish)
            .arg(1)
            .arg(CHANNEL)
            .arg("now")
            .query_async::<i64>(&mut connection)
            .await
            .expect("published");
    });
    began
}

/// One task there that reads what is pushed, and says when.
fn subscribe(runtimes: &Runtimes, node: &Node, pushed: Sender<Happened>) {
    let mut stream = TcpStream::connect(node.addr()).expect("a connection");
    stream.write_all(format!("SSUBSCRIBE {CHANNEL}\r\n").as_bytes()).expect("sent");
    // The confirmation: one push, which fits.
    assert!(stream.read(&mut [0; 256]).expect("confirmed") > 0);
    stream.set_nonblocking(true).expect("a live socket");
    runtimes.there.spawn(async move {
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("a live socket");
        stream.flush().await.expect("nothing to flush");
        let mut bytes = [0; 256];
        while stream.read(&mut bytes).await.is_ok_and(|read| read > 0) {
            if pushed.send(Happened { at: Instant::now(), _guard: None }).is_err() {
                return;
            }
        }
    });
}

pub(crate) fn measure(effort: Effort) {
    let node = start_node();
    let runtimes = Runtimes::new();
    let connect =
        |runtime: &Runtime| runtime.block_on(RedisManager::connect(Topology::node(node.url()))).expect("a manager");
    let (inside, entered) = mpsc::channel();
    let wanted = Wanted { here: connect(&runtimes.here), there: connect(&runtimes.there), inside };
    let (pushed, told) = mpsc::channel();
    subscribe(&runtimes, &node, pushed);
    let connection = runtimes.here.block_on(async {
        let mut connection = bare_connection(&node.url()).await;
        redis::cmd("SCRIPT").arg("LOAD").arg(PUBLISH).query_async::<()>(&mut connection).await.expect("loaded");
        connection
    });
    let script = digest(PUBLISH);
    for (pause_ms, bound) in PAUSES_MS {
        let (mut own, mut bare) = (Samples::default(), Samples::default());
        for round in 0..=effort.of(401, 101, 2) * 20 / (20 + pause_ms.min(20)) {
            let held = wanted.prepare(&runtimes);
            thread::sleep(Duration::from_millis(pause_ms));
            own.measure(&runtimes, &entered, || release(&runtimes, held));
            thread::sleep(Duration::from_millis(pause_ms));
            bare.measure(&runtimes, &told, || publish(&runtimes, &connection, &script));
            if round == 0 {
                (own, bare) = Default::default(); // warm
            }
        }
        tell_pause(effort, pause_ms, bound, own, bare);
    }
}

fn tell_pause(effort: Effort, pause_ms: u64, bound: f64, mut own: Samples, mut bare: Samples) {
    if own.micros.is_empty() {
        return;
    }
    let (ours, push) = (median(&mut own.micros), median(&mut bare.micros));
    let what = format!("wake-up in another process after {pause_ms} ms");
    let sides = format!("p50 {ours:.0} us against {push:.0} us");
    tell(effort, &format!("{what} / a bare pushed message"), &sides, ours / push, Target::AtMost(bound));
    let mean = |counts: &[f64]| counts.iter().sum::<f64>() / counts.len() as f64;
    for (kind, own, bare) in
        [("thread wake-ups", &own.wake_ups, &bare.wake_ups), ("task polls", &own.polls, &bare.polls)]
    {
        let (own, bare) = (mean(own), mean(bare));
        if bare > 0.0 {
            let sides = format!("{own:.1} against {bare:.1}, means");
            tell(effort, &format!("{what}, {kind}"), &sides, own - bare, Target::AtMost(0.0));
        }
    }
}
