//! 256 tasks acquire and release locks of their own on one node: client CPU when the processor is the limit, beside
//! less and less that carries scripts to a server.
//!
//! `BENCH_BEFORE` names the worker of another revision, which `benches/before` builds. Then the client CPU of a pair is
//! compared with that revision, too, in processes that take turns.

mod minimal;
#[path = "../instructions/src/pairs.rs"]
pub(crate) mod pairs;

use std::process::Command;

use pairs::TASKS;

use super::*;

/// Code that carries the scripts of a pair.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Carrier {
    Ours,
    /// The scripts of the crate, called by their digests on a connection of the redis crate.
    Floor1,
    /// Two lock-shaped scripts, with few arguments and short answers.
    LockShaped,
    /// Two scripts that do nothing.
    NoOps,
    /// The scripts of the crate, on a connection without anything around.
    Minimal,
}

const CARRIERS: [Carrier; 5] = [Carrier::Ours, Carrier::Floor1, Carrier::LockShaped, Carrier::NoOps, Carrier::Minimal];

struct Carriers {
    manager: RedisManager,
    bare: Bare,
    minimal: minimal::Connection,
    digests: [String; 2],
}

impl Carriers {
    async fn run(&self, carrier: Carrier, each: usize) {
        if carrier == Carrier::Ours {
            return pairs::pairs(&self.manager, each).await;
        }
        let mut tasks = JoinSet::new();
        for task in 0..TASKS {
            let (mut bare, minimal, digests) = (self.bare.clone(), self.minimal.clone(), self.digests.clone());
            tasks.spawn(async move {
                let key = lock_key(format_args!("{carrier:?}-{task}"));
                for _ in 0..each {
                    match carrier {
                        Carrier::LockShaped => bare.lock_shaped_pair(&key).await,
                        Carrier::NoOps => bare.two_no_ops(&key).await,
                        Carrier::Minimal => minimal_pair(&minimal, &key, &digests).await,
                        Carrier::Floor1 | Carrier::Ours => bare.acquire_and_leave(&key, &foreign_id()).await,
                    }
                }
            });
        }
        tasks.join_all().await;
    }
}

async fn minimal_pair(minimal: &minimal::Connection, key: &str, [acquire, leave]: &[String; 2]) {
    let id = foreign_id();
    minimal.call(acquire, key, &["9000000000000", &id, "w", "3600000", "0", "1", TIMESTAMP_CLIENTS]).await;
    minimal.call(leave, key, &[&id, TIMESTAMP_CLIENTS]).await;
}

async fn measure(effort: Effort, carriers: &Carriers) {
    let (rounds, each) = effort.of((61, 40), (25, 40), (1, 2));
    let (mut rates, mut used) = (CARRIERS.map(|_| Vec::new()), CARRIERS.map(|_| Vec::new()));
    for round in 0..=rounds {
        for (n, carrier) in CARRIERS.into_iter().enumerate() {
            let (began, cpu, count) = (Instant::now(), processor_time(), (TASKS * each) as f64);
            carriers.run(carrier, each).await;
            // The first round only warms up.
            if round > 0 {
                rates[n].push(count / began.elapsed().as_secs_f64());
                used[n].push(micros(processor_time() - cpu) / count);
            }
        }
    }
    let [ours, others, ..] = rates;
    Sides { ours, others }.tell("throughput, 256 tasks, ours / floor1", "pairs/s", AtLeast(0.8));
    for (carrier, used) in CARRIERS.iter().zip(&mut used) {
        println!("row: client CPU of a pair, 256 tasks, {carrier:?}: {:.2} us", median(used));
    }
}

/// Compares the client CPU of a pair with that of another revision.
fn measure_beside(effort: Effort, node: &Node, before: &str) {
    let (rounds, each) = effort.of((31, 200), (15, 100), (1, 2));
    let url = node.url();
    let mut workers =
        [Worker::start_child(&["pairs", &url]), Worker::start(Command::new(before).args(["pairs", &url]))];
    let mut sides = Sides::default();
    for round in 0..=rounds {
        let [now, before] = workers.each_mut().map(|worker| {
            let cpu = time_of_threads(worker.pid());
            worker.ask(each);
            micros(time_of_threads(worker.pid()) - cpu) / (TASKS * each) as f64
        });
        if round > 0 {
            sides.push(now, before);
        }
    }
    sides.tell("client CPU of a pair, 256 tasks, now / before", "us", AtMost(0.75));
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    runtime().block_on(async {
        let manager = pairs::manager(&node.url()).await.expect("a manager");
        let minimal = minimal::Connection::connect(&node.url()).await;
        let digests = [hash::ACQUIRE, hash::LEAVE].map(digest);
        measure(effort, &Carriers { manager, bare: Bare::connect(&node).await, minimal, digests }).await;
    });
    match env::var("BENCH_BEFORE") {
        Ok(before) => measure_beside(effort, &node, &before),
        Err(_) => println!("row: nothing to compare with: BENCH_BEFORE names no other revision"),
    }
}
