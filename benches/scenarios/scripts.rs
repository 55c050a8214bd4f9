//! Server CPU of the scripts of the hash scheme, beside those of 42d087c (`benches/baseline`), a lock-shaped script and
//! one that does nothing. Pairs also run in the portable form. All take turns on one server, and the medians count.
//!
//! The CPU time is that of the server's process (`INFO cpu`) for each call: what an owner of servers pays, with reading
//! the request and writing the answer. Requests come in batches, so that the server has something to do all the time.
//! For uncontended pairs they also come one by one, where most of the time goes into the network.

use super::*;
use crate::setup::portable::portable;

/// Calls of one kind between two looks at the server's CPU time.
const CALLS: usize = 300;
/// Scripts of 42d087c.
const OLD_ACQUIRE: &str = include_str!("../baseline/acquire.lua");
const OLD_LEAVE: &str = include_str!("../baseline/leave.lua");
const OLD_RENEW: &str = include_str!("../baseline/renew.lua");
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
    /// Like the load of a service.
    Mixed,
}

/// Side that a case is compared with, and the target.
#[derive(Clone, Copy)]
enum Judge {
    Shape(f64),
    Before(f64),
    None,
}

/// Cases, the number of requests that come at once, and what is judged.
const CASES: [(&str, Case, usize, Judge); 11] = [
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
    ("mixed load", Case::Mixed, CALLS, Judge::None),
];

type Command = Vec<String>;

/// Digests of one set of scripts.
struct Set {
    acquire: String,
    leave: String,
    renew: String,
    /// Limits of timestamp clients, as these scripts take them.
    limits: &'static [&'static str],
}

impl Set {
    fn load(client: &mut Client, texts: [impl AsRef<str>; 3], limits: &'static [&'static str]) -> Self {
        let [acquire, leave, renew] = texts.map(|text| load(client, text.as_ref()));
        Self { acquire, leave, renew, limits }
    }

    fn acquire(&self, key: &str, n: usize, mode: &str, patience_ms: &str) -> Command {
        let call = ["EVALSHA", &self.acquire, "1", key, "9000000000000", &id(n), mode, "10000", patience_ms, "64"];
        call.iter().chain(self.limits).map(|&word| word.to_owned()).collect()
    }

    fn leave(&self, key: &str, n: usize) -> Command {
        ["EVALSHA", &self.leave, "1", key, &id(n)].iter().chain(self.limits).map(|&word| word.to_owned()).collect()
    }

    fn renew(&self, key: &str, n: usize) -> Command {
        ["EVALSHA", &self.renew, "1", key, &id(n), "10000"].map(str::to_owned).to_vec()
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
        format!("rwlock:{{{}}}:lock", self.locks)
    }

    /// Returns the microseconds of the server for each call.
    fn measure(&mut self, commands: &[Command], at_once: usize) -> f64 {
        let before = server_cpu_us(&mut self.client);
        send(&mut self.client, commands, at_once);
        (server_cpu_us(&mut self.client) - before) / commands.len() as f64
    }

    /// Measures a script with the arguments of the lock-shaped one.
    fn other(&mut self, digest: &str, at_once: usize) -> f64 {
        let call = ["EVALSHA", digest, "1", &self.key(), "x", "100000"].map(str::to_owned).to_vec();
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
            Case::Mixed => self.mixed(set, &key),
        };
        send(&mut self.client, &prepare, CALLS);
        self.measure(&calls, at_once)
    }

    /// Returns what prepares the locks of a mixed load, and its requests. Of each 20 requests, 12 are uncontended pairs,
    /// four are joins beside five readers and their releases, two queue a writer and hand the lock over, and two renew.
    fn mixed(&mut self, set: &Set, free: &str) -> (Vec<Command>, Vec<Command>) {
        let [read, queued, held] = [(); 3].map(|()| self.key());
        let mut prepare = vec![set.acquire(&queued, 0, "w", "0"), set.acquire(&held, 0, "w", "0")];
        prepare.extend((1..6).map(|n| set.acquire(&read, n, "r", "0")));
        let requests = (0..CALLS / 20).flat_map(|n| {
            let modes = ["w", "r"].into_iter().cycle().take(6);
            let pairs = modes.flat_map(|mode| [set.acquire(free, n, mode, "0"), set.leave(free, n)]);
            let joins = (6..8).flat_map(|n| [set.acquire(&read, n, "r", "0"), set.leave(&read, n)]);
            let hand_over = [set.acquire(&queued, n + 1, "w", "60000"), set.leave(&queued, n)];
            let renewals = [set.renew(&held, 0), set.renew(&read, 1)];
            pairs.chain(joins).chain(hand_over).chain(renewals).collect::<Vec<_>>()
        });
        (prepare, requests.collect())
    }
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    let mut bench = Bench { client: node.client().expect("the server answers"), locks: 0 };
    let [no_op, shape] = [NO_OP, LOCK_SHAPE].map(|text| load(&mut bench.client, text));
    let old = [OLD_ACQUIRE, OLD_LEAVE, OLD_RENEW].map(|text| text.replace("--@queue", OLD_QUEUE));
    let old = Set::load(&mut bench.client, old, &["1000", "3000"]);
    let texts = [hash::ACQUIRE, hash::LEAVE, hash::RENEW];
    let new = Set::load(&mut bench.client, texts, &[TIMESTAMP_CLIENTS]);
    let portable = Set::load(&mut bench.client, texts.map(portable), &[TIMESTAMP_CLIENTS]);
    for (name, case, at_once, judge) in CASES {
        let mut costs = [const { Vec::new() }; 5];
        for _ in 0..effort.of(31, 9, 1) {
            costs[0].push(bench.other(&no_op, at_once));
            costs[1].push(bench.other(&shape, at_once));
            costs[2].push(bench.case(case, &old, at_once));
            costs[3].push(bench.case(case, &new, at_once));
            costs[4].push(bench.case(case, &portable, at_once));
        }
        let [no_op, shape, before, now, portable] = costs.each_mut().map(|costs| median(costs));
        let sides = format!("{now:.1} us of {}, no-op {no_op:.1}, shape {shape:.1}, before {before:.1}", server());
        if let Case::Pair(_) = case {
            let sides = format!("{portable:.1} us of {}, fast form {now:.1}", server());
            tell(&format!("{name}, server CPU, portable form / fast form"), &sides, portable / now, AtMost(1.5));
        }
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
