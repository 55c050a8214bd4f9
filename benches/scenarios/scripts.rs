//! Server CPU of the scripts of the hash scheme, beside those of 42d087c (`benches/baseline`), a lock-shaped script and
//! one that does nothing. All take turns on one server, and the medians count.
//!
//! The CPU time is that of the server's process (`INFO cpu`) for each call: what an owner of servers pays, with reading
//! the request and writing the answer. Requests come in batches, so that the server has something to do all the time.
//! For uncontended pairs they also come one by one, where most of the time goes into the network.

use cluster_testenv::Client;

use crate::setup::Target::AtMost;
use crate::setup::scripts::hash;
use crate::setup::{
    Effort, LOCK_SHAPE, NO_OP, TIMESTAMP_CLIENTS, evalsha, load, lock_key, median, send, server, server_cpu_us,
    start_node, tell,
};

/// Calls of one kind between two looks at the server's CPU time.
const CALLS: usize = 300;
/// Scripts of 42d087c.
const OLD_ACQUIRE: &str = include_str!("../baseline/acquire.lua");
const OLD_LEAVE: &str = include_str!("../baseline/leave.lua");
const OLD_QUEUE: &str = include_str!("../baseline/queue.lua");

#[derive(Clone, Copy)]
enum Case {
    /// An acquisition and its release, of a free lock.
    Pair(&'static str),
    /// A writer that is refused by a writer.
    Refused,
    /// The heartbeat of a writer behind a writer.
    Heartbeat,
    /// The repeat of a reader beside four.
    Repeat,
    /// A reader beside this number of readers.
    Join(usize),
    /// A writer releases to a writer that has come meanwhile.
    HandOver,
}

/// Side that a case is compared with, and the target.
#[derive(Clone, Copy)]
enum Judge {
    Shape(f64),
    Before(f64),
    None,
}

/// Cases, the number of requests that come at once, and what is judged.
const CASES: [(&str, Case, usize, Judge); 10] = [
    ("write pair in batches", Case::Pair("w"), CALLS, Judge::Shape(1.4)),
    ("read pair in batches", Case::Pair("r"), CALLS, Judge::Shape(1.7)),
    ("write pair, one by one", Case::Pair("w"), 1, Judge::None),
    ("read pair, one by one", Case::Pair("r"), 1, Judge::None),
    ("refused by a writer", Case::Refused, CALLS, Judge::Before(0.6)),
    ("heartbeat", Case::Heartbeat, CALLS, Judge::Before(0.7)),
    ("repeat of a reader", Case::Repeat, CALLS, Judge::Before(0.6)),
    ("join beside 5", Case::Join(5), CALLS, Judge::Before(0.9)),
    ("join beside 15", Case::Join(15), CALLS, Judge::Before(0.7)),
    ("queued and handed over", Case::HandOver, CALLS, Judge::None),
];

type Command = Vec<String>;

/// Digests of one set of scripts.
struct Set {
    acquire: String,
    leave: String,
    /// Limits of timestamp clients, as these scripts take them.
    limits: &'static [&'static str],
}

impl Set {
    fn acquire(&self, key: &str, n: usize, mode: &str, patience_ms: &str) -> Command {
        let id = id(n);
        let call = ["9000000000000", &id, mode, "10000", patience_ms, "64"];
        evalsha(&self.acquire, &[key], &[&call, self.limits].concat())
    }

    fn leave(&self, key: &str, n: usize) -> Command {
        evalsha(&self.leave, &[key], &[&[&*id(n)], self.limits].concat())
    }
}

fn id(n: usize) -> String {
    format!("0123456789abcdef0123456789abcde{:x}.{n}.service", n % 16)
}

struct Bench {
    client: Client,
    locks: usize,
}

impl Bench {
    fn key(&mut self) -> String {
        self.locks += 1;
        lock_key(self.locks)
    }

    /// Returns the microseconds of the server for each call.
    fn measure(&mut self, commands: &[Command], at_once: usize) -> f64 {
        let before = server_cpu_us(&mut self.client);
        send(&mut self.client, commands, at_once);
        (server_cpu_us(&mut self.client) - before) / commands.len() as f64
    }

    /// Measures a script with the arguments of the lock-shaped one.
    fn other(&mut self, digest: &str, at_once: usize) -> f64 {
        let call = evalsha(digest, &[&self.key()], &["x", "100000"]);
        self.measure(&vec![call; CALLS], at_once)
    }

    /// Prepares a lock, and measures a case.
    fn case(&mut self, case: Case, set: &Set, at_once: usize) -> f64 {
        let key = self.key();
        let (prepare, calls): (Vec<Command>, Vec<Command>) = match case {
            Case::Pair(mode) => {
                let pair = |n| [set.acquire(&key, n, mode, "0"), set.leave(&key, n)];
                (Vec::new(), (0..CALLS / 2).flat_map(pair).collect())
            }
            Case::Refused => (vec![set.acquire(&key, 1, "w", "0")], vec![set.acquire(&key, 2, "w", "0"); CALLS]),
            Case::Heartbeat => {
                let waits = set.acquire(&key, 2, "w", "60000");
                (vec![set.acquire(&key, 1, "w", "0"), waits.clone()], vec![waits; CALLS])
            }
            Case::Repeat => {
                let readers = (0..5).map(|n| set.acquire(&key, n, "r", "0")).collect();
                (readers, vec![set.acquire(&key, 1, "r", "0"); CALLS])
            }
            Case::Join(others) => {
                let keys: Vec<_> = (0..CALLS / 5).map(|_| self.key()).collect();
                let readers = keys.iter().flat_map(|key| (0..others).map(|n| set.acquire(key, n, "r", "0")));
                (readers.collect(), keys.iter().map(|key| set.acquire(key, 99, "r", "0")).collect())
            }
            Case::HandOver => {
                let pair = |n| [set.acquire(&key, n + 1, "w", "60000"), set.leave(&key, n)];
                (vec![set.acquire(&key, 0, "w", "0")], (0..CALLS / 2).flat_map(pair).collect())
            }
        };
        send(&mut self.client, &prepare, CALLS);
        self.measure(&calls, at_once)
    }
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    let mut bench = Bench { client: node.client().expect("the server answers"), locks: 0 };
    let [no_op, shape] = [NO_OP, LOCK_SHAPE].map(|text| load(&mut bench.client, text));
    let mut set = |texts: [String; 2], limits| {
        let [acquire, leave] = texts.map(|text| load(&mut bench.client, &text));
        Set { acquire, leave, limits }
    };
    let old = [OLD_ACQUIRE, OLD_LEAVE].map(|text| text.replace("--@queue", OLD_QUEUE));
    let old = set(old, &["1000", "3000"]);
    let new = set([hash::ACQUIRE, hash::LEAVE].map(str::to_owned), &[TIMESTAMP_CLIENTS]);
    for (name, case, at_once, judge) in CASES {
        let mut costs = [const { Vec::new() }; 4];
        for _ in 0..effort.of(31, 9, 1) {
            costs[0].push(bench.other(&no_op, at_once));
            costs[1].push(bench.other(&shape, at_once));
            costs[2].push(bench.case(case, &old, at_once));
            costs[3].push(bench.case(case, &new, at_once));
        }
        let [no_op, shape, before, now] = costs.each_mut().map(|costs| median(costs));
        let sides = format!("{now:.1} us of {}, no-op {no_op:.1}, shape {shape:.1}, before {before:.1}", server());
        match judge {
            Judge::Shape(bound) => {
                tell(&format!("{name}, server CPU, now / a lock-shaped script"), &sides, now / shape, AtMost(bound));
            }
            Judge::Before(bound) => {
                tell(&format!("{name}, server CPU, now / 42d087c"), &sides, now / before, AtMost(bound));
            }
            Judge::None => println!("row: {name}, server CPU: {sides}"),
        }
    }
}
