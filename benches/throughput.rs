//! 256 tasks take and give back locks of their own on one node: what our side costs when the processor is the limit, beside
//! less and less that carries scripts to a server.
//!
//! `BENCH_BEFORE` names another build of the worker (`benches/before REVISION` makes one): then its processor time for each
//! pair is told too, and how often a hundred clients hand one lock over, from processes that take turns.

#[path = "instructions/src/clients.rs"]
mod clients;
mod figures;
#[path = "instructions/src/pairs.rs"]
mod pairs;

use std::env;
use std::process::Command;
use std::time::{Duration, Instant};

use cluster_testenv::Node;
use criterion::{Criterion, criterion_group, criterion_main};
use figures::child::Worker;
use figures::process::processor_time;
use figures::smallest::Smallest;
use figures::{
    Bare, Effort, HASH_ACQUIRE, HASH_LEAVE, Target, bare_connection, digest, foreign_id, median, start_node, tell,
};
use pairs::TASKS;
use redis::aio::MultiplexedConnection;
use redis_rwlock::RedisManager;
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

/// Set for a process that takes and gives back locks when it is told to, to the server's URL.
const WORKER: &str = "THROUGHPUT_WORKER";
/// The same for one whose hundred clients want one lock.
const CLIENTS: &str = "THROUGHPUT_CLIENTS";

/// All tasks together do something so often.
async fn all_tasks<F: Future<Output = ()> + Send + 'static>(each: usize, task: impl Fn(usize, usize) -> F) {
    let mut tasks = JoinSet::new();
    for number in 0..TASKS {
        tasks.spawn(task(number, each));
    }
    tasks.join_all().await;
}

/// What carries a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    Ours,
    /// Our scripts, called by their digests on a connection of the redis crate.
    Floor1,
    /// Two scripts that do what a lock script cannot do without, with few arguments and short answers.
    LockShaped,
    /// Two scripts that do nothing.
    NoOps,
    /// Our scripts, over a hand-made connection without anything around.
    Smallest,
}

const CARRIERS: [Carrier; 5] = [Carrier::Ours, Carrier::Floor1, Carrier::LockShaped, Carrier::NoOps, Carrier::Smallest];

struct Carriers {
    manager: RedisManager,
    bare: Bare<MultiplexedConnection>,
    smallest: Smallest,
    acquire: String,
    leave: String,
}

impl Carriers {
    async fn new(node: &Node) -> Self {
        let connection = bare_connection(&node.url()).await;
        Self {
            manager: pairs::manager(&node.url()).await.expect("a manager"),
            bare: Bare::new(connection.clone(), &mut [connection]).await,
            smallest: Smallest::connect(&node.url()).await,
            acquire: digest(HASH_ACQUIRE),
            leave: digest(HASH_LEAVE),
        }
    }

    async fn run(&self, carrier: Carrier, each: usize) {
        match carrier {
            Carrier::Ours => pairs::pairs(&self.manager, each).await,
            Carrier::Smallest => all_tasks(each, |task, each| self.small_pairs(task, each)).await,
            bare => all_tasks(each, |task, each| bare_pairs(self.bare.clone(), bare, task, each)).await,
        }
    }

    fn small_pairs(&self, task: usize, each: usize) -> impl Future<Output = ()> + Send + use<> {
        let (smallest, acquire, leave) = (self.smallest.clone(), self.acquire.clone(), self.leave.clone());
        async move {
            let key = format!("rwlock:{{small-{task}}}:lock");
            for _ in 0..each {
                let id = foreign_id();
                let arguments = ["9000000000000", &id, "w", "3600000", "0", "1", "1000", "3000"];
                smallest.call(&acquire, &key, &arguments).await;
                smallest.call(&leave, &key, &[&id, "1000", "3000"]).await;
            }
        }
    }
}

async fn bare_pairs(mut bare: Bare<MultiplexedConnection>, carrier: Carrier, task: usize, each: usize) {
    let key = format!("rwlock:{{{carrier:?}-{task}}}:lock");
    for _ in 0..each {
        match carrier {
            Carrier::LockShaped => bare.lock_shaped_pair(&key).await,
            Carrier::NoOps => bare.two_no_ops(&key).await,
            _ => bare.acquire_and_leave(&key, &foreign_id()).await,
        }
    }
}

/// Pairs a second, and microseconds of this process for each; of all rounds.
#[derive(Default)]
struct Samples {
    rates: Vec<f64>,
    micros: Vec<f64>,
}

impl Samples {
    fn push(&mut self, pairs: f64, took: Duration, cpu: Duration) {
        self.rates.push(pairs / took.as_secs_f64());
        self.micros.push(cpu.as_secs_f64() * 1e6 / pairs);
    }
}

fn ratios(of: &[f64], to: &[f64]) -> Vec<f64> {
    of.iter().zip(to).map(|(of, to)| of / to).collect()
}

fn measure(effort: Effort, runtime: &Runtime, carriers: &Carriers) {
    let (rounds, each) = effort.of((61, 40), (25, 40), (1, 2));
    let mut samples: [Samples; CARRIERS.len()] = Default::default();
    runtime.block_on(async {
        for carrier in CARRIERS {
            carriers.run(carrier, each).await;
        }
        for _ in 0..rounds {
            for (carrier, samples) in CARRIERS.iter().zip(&mut samples) {
                let (began, cpu) = (Instant::now(), processor_time());
                carriers.run(*carrier, each).await;
                samples.push((TASKS * each) as f64, began.elapsed(), processor_time() - cpu);
            }
        }
    });
    let [ours, floor1, ..] = &mut samples;
    let mut faster = ratios(&ours.rates, &floor1.rates);
    let sides = format!(
        "medians {:.0}/s against {:.0}/s, acquisitions with their releases",
        median(&mut ours.rates),
        median(&mut floor1.rates)
    );
    tell(effort, "throughput, 256 tasks, ours / floor1", &sides, median(&mut faster), Target::AtLeast(0.8));
    for (carrier, other) in CARRIERS.iter().zip(&samples) {
        let (own, mut micros) = (&samples[0].micros, other.micros.clone());
        let mut ratios = ratios(own, &micros);
        println!(
            "row: client CPU of a pair, 256 tasks, {carrier:?}: {:.2} us; ours / this {:.3}",
            median(&mut micros),
            median(&mut ratios)
        );
    }
}

/// Our processor time for each pair beside that of another build, in processes that take turns.
fn beside_before(effort: Effort, node: &Node, before: &str) {
    let (rounds, each) = effort.of((31, 200), (15, 100), (1, 2));
    let mut workers = [
        Worker::start(Command::new(env::current_exe().expect("this program")).env(WORKER, node.url())),
        Worker::start(Command::new(before).args(["pairs", &node.url()])),
    ];
    let mut micros = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for (worker, micros) in workers.iter_mut().zip(&mut micros) {
            let cpu = worker.processor_time();
            worker.order(&each.to_string());
            if round > 0 {
                micros.push((worker.processor_time() - cpu).as_secs_f64() * 1e6 / (TASKS * each) as f64);
            }
        }
    }
    let [now, before] = &mut micros;
    let mut ratios = ratios(now, before);
    let sides = format!("{:.2} us against {:.2} us", median(now), median(before));
    tell(effort, "client CPU of a pair, 256 tasks, now / before", &sides, median(&mut ratios), Target::AtMost(0.75));
}

/// How often 100 clients hand one lock over, beside those of another build, in processes that take turns.
fn clients_beside_before(effort: Effort, node: &Node, before: &str) {
    let (rounds, span) =
        effort.of((15, Duration::from_secs(2)), (5, Duration::from_secs(2)), (1, Duration::from_millis(20)));
    let mut workers = [
        Worker::start(Command::new(env::current_exe().expect("this program")).env(CLIENTS, node.url())),
        Worker::start(Command::new(before).args(["clients", &node.url()])),
    ];
    let (mut rates, mut spreads) = ([Vec::new(), Vec::new()], Vec::new());
    for round in 0..=rounds {
        for (is_ours, (worker, rates)) in [true, false].into_iter().zip(workers.iter_mut().zip(&mut rates)) {
            let answer = worker.order(&span.as_millis().to_string());
            let counts: Vec<f64> = answer.split_whitespace().map(|count| count.parse().expect("a number")).collect();
            if round > 0 {
                rates.push(counts[0] / span.as_secs_f64());
            }
            if round > 0 && is_ours {
                spreads.push(counts[1] / counts[2].max(1.0));
            }
        }
    }
    let [now, before] = &mut rates;
    let mut ratios = ratios(now, before);
    let sides = format!("{:.0}/s against {:.0}/s", median(now), median(before));
    tell(effort, "hand-overs of 100 clients, now / before", &sides, median(&mut ratios), Target::AtLeast(1.4));
    tell(effort, "100 clients, most served / least served", "", median(&mut spreads), Target::AtMost(1.1));
}

fn bench(criterion: &mut Criterion) {
    if let Ok(url) = env::var(WORKER) {
        pairs::serve(&url);
        return;
    }
    if let Ok(url) = env::var(CLIENTS) {
        clients::serve(&url);
        return;
    }
    let effort = Effort::asked_for();
    let node = start_node();
    let runtime = Runtime::new().expect("a runtime");
    let carriers = runtime.block_on(Carriers::new(&node));
    measure(effort, &runtime, &carriers);
    match env::var("BENCH_BEFORE") {
        Ok(before) => {
            beside_before(effort, &node, &before);
            clients_beside_before(effort, &node, &before);
        }
        Err(_) => println!("row: nothing to compare with: BENCH_BEFORE names no other build"),
    }

    let mut group = criterion.benchmark_group("throughput");
    group.sample_size(10).warm_up_time(Duration::from_millis(500)).measurement_time(Duration::from_secs(2));
    group.throughput(criterion::Throughput::Elements(TASKS as u64));
    for carrier in [Carrier::Ours, Carrier::Floor1] {
        group.bench_function(format!("{carrier:?}"), |bencher| {
            bencher.iter_custom(|turns| {
                let began = Instant::now();
                runtime.block_on(carriers.run(carrier, turns as usize));
                began.elapsed()
            });
        });
    }
    group.finish();
}

criterion_group!(benches, bench);
criterion_main!(benches);
