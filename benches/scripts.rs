//! What the scripts of the hash scheme cost the server, beside those of the first layout (`benches/baseline`), two lock-shaped
//! scripts and two that do nothing, in one run on one server: they take turns, and the medians and their ratios are told.
//!
//! What is told is the CPU time of the server's process (`INFO cpu`) for each call: what an owner of servers pays, with
//! reading the request and writing the answer. Beside it stands what the server itself counts for the script
//! (`INFO commandstats`), a part of that. Requests come in batches, so that the server has something to do all the time;
//! for the uncontended pairs they also come one by one, where most of the time goes into the network.
//!
//! `SCRIPTS_REPEAT` is how often (9), `SCRIPTS_LEASE_MS` the lease (10,000).

#[path = "../lua/scripts.rs"]
mod scripts;

use cluster_testenv::{Client, Node, Reply, Server};

/// Calls of one kind between two looks at the server's statistics.
const CALLS: usize = 300;
const MANAGER: &str = "0123456789abcdef0123456789abcde";
/// What a lock script cannot do without.
const SHAPE: &str = "#!lua
redis.call('TIME')
redis.call('HMGET', KEYS[1], 'a', 'b', 'c')
redis.call('HSET', KEYS[1], 'a', ARGV[1])
redis.call('PEXPIRE', KEYS[1], 100000)
return 1";

/// What no script can do without.
const NO_OP: &str = "#!lua
return 1";

const OLD_QUEUE: &str = include_str!("baseline/queue.lua");

/// The digests of one set of scripts.
struct Set {
    acquire: String,
    leave: String,
    renew: String,
    /// The limits of published clients, as these scripts take them.
    limits: &'static [&'static str],
    lease_ms: String,
}

struct Bench {
    client: Client,
    locks: usize,
}

/// Microseconds for each call: of the server's process, and in the script.
#[derive(Clone, Copy)]
struct Cost {
    process: f64,
    script: f64,
}

/// How requests come.
#[derive(Clone, Copy, PartialEq)]
enum Pace {
    /// All at once.
    Batch,
    /// Each when the one before it is answered.
    OneByOne,
}

/// A call: script, key and arguments.
type Command = Vec<String>;

fn id(n: usize) -> String {
    format!("{MANAGER}{:x}.{n}.service", n % 16)
}

impl Set {
    fn acquire(&self, key: &str, n: usize, mode: &str, patience_ms: u64) -> Command {
        let patience_ms = patience_ms.to_string();
        let id = id(n);
        let args = ["9000000000000", &id, mode, &self.lease_ms, &patience_ms, "64"];
        let head = ["EVALSHA", &self.acquire, "1", key];
        head.into_iter().chain(args).chain(self.limits.iter().copied()).map(str::to_owned).collect()
    }

    fn leave(&self, key: &str, n: usize) -> Command {
        let id = id(n);
        let head = ["EVALSHA", &self.leave, "1", key, &id];
        head.into_iter().chain(self.limits.iter().copied()).map(str::to_owned).collect()
    }

    fn renew(&self, key: &str, n: usize) -> Command {
        ["EVALSHA", &self.renew, "1", key, &id(n), &self.lease_ms].map(str::to_owned).to_vec()
    }
}

impl Bench {
    fn load(&mut self, text: &str) -> String {
        let reply = self.client.command(&["SCRIPT", "LOAD", text]).and_then(Reply::into_result).expect("it compiles");
        reply.text().expect("a digest").into_owned()
    }

    fn run(&mut self, commands: &[Command], pace: Pace) {
        let at_once = if pace == Pace::Batch { commands.len() } else { 1 };
        for batch in commands.chunks(at_once.max(1)) {
            for reply in self.client.pipeline(batch).expect("the server answers") {
                assert!(reply.error().is_none(), "{reply:?}");
            }
        }
    }

    fn info(&mut self, section: &str) -> String {
        let info = self.client.command(&["INFO", section]).expect("an answer");
        info.text().expect("a text").into_owned()
    }

    /// What the server's process has used, in microseconds.
    fn cpu_us(&mut self) -> f64 {
        let info = self.info("cpu");
        let seconds = |field: &str| {
            let line = info.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
            line.and_then(|line| line.trim().parse::<f64>().ok()).expect("a number")
        };
        (seconds("used_cpu_user") + seconds("used_cpu_sys")) * 1e6
    }

    /// What each of these calls costs.
    fn measure(&mut self, commands: &[Command], pace: Pace) -> Cost {
        self.client.command(&["CONFIG", "RESETSTAT"]).expect("done");
        let before = self.cpu_us();
        self.run(commands, pace);
        let process = self.cpu_us() - before;
        let info = self.info("commandstats");
        let line = info.lines().find_map(|line| line.strip_prefix("cmdstat_evalsha:")).expect("counted");
        let us = line.split(',').find_map(|part| part.strip_prefix("usec=")).and_then(|us| us.parse::<f64>().ok());
        let calls = commands.len() as f64;
        Cost { process: process / calls, script: us.expect("a number") / calls }
    }

    /// A script with the arguments of the lock-shaped one.
    fn other(&mut self, digest: &str, pace: Pace) -> Cost {
        let key = self.key();
        let call: Command = ["EVALSHA", digest, "1", &key, "x"].map(str::to_owned).to_vec();
        self.measure(&vec![call; CALLS], pace)
    }

    fn key(&mut self) -> String {
        self.locks += 1;
        format!("rwlock:{{{}}}:lock", self.locks)
    }

    /// What `case` makes to be measured, on a lock of its own, which it has prepared.
    fn case(&mut self, case: Case, set: &Set, pace: Pace) -> Cost {
        let key = self.key();
        let (prepare, calls): (Vec<Command>, Vec<Command>) = match case {
            Case::Pair(mode) => {
                let pair = |n| [set.acquire(&key, n, mode, 0), set.leave(&key, n)];
                (Vec::new(), (0..CALLS / 2).flat_map(pair).collect())
            }
            Case::Refused => {
                (vec![set.acquire(&key, 1, "w", 0)], (0..CALLS).map(|_| set.acquire(&key, 2, "w", 0)).collect())
            }
            Case::Heartbeat => {
                let waits = set.acquire(&key, 2, "w", 60_000);
                (vec![set.acquire(&key, 1, "w", 0), waits.clone()], vec![waits; CALLS])
            }
            Case::Repeat => {
                let readers = (0..5).map(|n| set.acquire(&key, n, "r", 0)).collect();
                (readers, vec![set.acquire(&key, 1, "r", 0); CALLS])
            }
            Case::Join(others) => {
                let keys: Vec<_> = (0..CALLS / 5).map(|_| self.key()).collect();
                let readers = keys.iter().flat_map(|key| (0..others).map(|n| set.acquire(key, n, "r", 0)));
                (readers.collect(), keys.iter().map(|key| set.acquire(key, 99, "r", 0)).collect())
            }
            Case::HandOver => {
                let pair = |n| [set.acquire(&key, n + 1, "w", 60_000), set.leave(&key, n)];
                (vec![set.acquire(&key, 0, "w", 0)], (0..CALLS / 2).flat_map(pair).collect())
            }
            Case::Mixed => self.mixed(set, &key),
        };
        self.run(&prepare, Pace::Batch);
        self.measure(&calls, pace)
    }

    /// Returns what prepares the locks of a mixed load, and its requests. Of each 20 requests, 12 are uncontended pairs,
    /// four are joins beside five readers and their releases, two queue a writer and hand the lock over, and two renew.
    fn mixed(&mut self, set: &Set, free: &str) -> (Vec<Command>, Vec<Command>) {
        let [read, queued, held] = [(); 3].map(|()| self.key());
        let mut prepare = vec![set.acquire(&queued, 0, "w", 0), set.acquire(&held, 0, "w", 0)];
        prepare.extend((1..6).map(|n| set.acquire(&read, n, "r", 0)));
        let requests = (0..CALLS / 20).flat_map(|n| {
            let modes = ["w", "r"].into_iter().cycle().take(6);
            let pairs = modes.flat_map(|mode| [set.acquire(free, n, mode, 0), set.leave(free, n)]);
            let joins = (6..8).flat_map(|n| [set.acquire(&read, n, "r", 0), set.leave(&read, n)]);
            let hand_over = [set.acquire(&queued, n + 1, "w", 60_000), set.leave(&queued, n)];
            let renewals = [set.renew(&held, 0), set.renew(&read, 1)];
            pairs.chain(joins).chain(hand_over).chain(renewals).collect::<Vec<_>>()
        });
        (prepare, requests.collect())
    }
}

#[derive(Clone, Copy)]
enum Case {
    /// An acquisition and its release, of a free lock.
    Pair(&'static str),
    /// By a writer.
    Refused,
    /// Behind a writer.
    Heartbeat,
    /// Of a reader beside four.
    Repeat,
    /// Beside so many readers.
    Join(usize),
    /// From a writer to a writer that has come meanwhile.
    HandOver,
    /// Like the load of a service.
    Mixed,
}

const CASES: [(&str, Case, Pace); 11] = [
    ("write pair", Case::Pair("w"), Pace::Batch),
    ("read pair", Case::Pair("r"), Pace::Batch),
    ("write pair, one by one", Case::Pair("w"), Pace::OneByOne),
    ("read pair, one by one", Case::Pair("r"), Pace::OneByOne),
    ("refused by a writer", Case::Refused, Pace::Batch),
    ("heartbeat", Case::Heartbeat, Pace::Batch),
    ("repeat of a reader", Case::Repeat, Pace::Batch),
    ("join beside 5", Case::Join(5), Pace::Batch),
    ("join beside 15", Case::Join(15), Pace::Batch),
    ("queued and handed over", Case::HandOver, Pace::Batch),
    ("mixed load", Case::Mixed, Pace::Batch),
];

/// The medians of what the process uses and of what the script does.
fn median(costs: &[Cost]) -> Cost {
    let of = |part: fn(&Cost) -> f64| {
        let mut values: Vec<_> = costs.iter().map(part).collect();
        values.sort_by(f64::total_cmp);
        values[values.len() / 2]
    };
    Cost { process: of(|cost| cost.process), script: of(|cost| cost.script) }
}

/// The scripts that are compared, as one server has them.
struct Sides {
    no_op: String,
    shape: String,
    old: Set,
    new: Set,
}

impl Sides {
    fn load(bench: &mut Bench, lease_ms: &str) -> Self {
        let old = [
            include_str!("baseline/acquire.lua"),
            include_str!("baseline/leave.lua"),
            include_str!("baseline/renew.lua"),
        ];
        let [acquire, leave, renew] = old.map(|text| bench.load(&text.replace("--@queue", OLD_QUEUE)));
        let old = Set { acquire, leave, renew, limits: &["1000", "3000"], lease_ms: lease_ms.to_owned() };
        let new = [scripts::hash::ACQUIRE, scripts::hash::LEAVE, scripts::hash::RENEW];
        let [acquire, leave, renew] = new.map(|text| bench.load(text));
        let new = Set { acquire, leave, renew, limits: &["1000 3000"], lease_ms: lease_ms.to_owned() };
        Self { no_op: bench.load(NO_OP), shape: bench.load(SHAPE), old, new }
    }

    /// One row: each side of a case, in turns.
    fn compare(&self, bench: &mut Bench, (name, case, pace): (&str, Case, Pace), repeat: usize) {
        let mut costs: [Vec<Cost>; 4] = Default::default();
        for _ in 0..repeat {
            costs[0].push(bench.other(&self.no_op, pace));
            costs[1].push(bench.other(&self.shape, pace));
            costs[2].push(bench.case(case, &self.old, pace));
            costs[3].push(bench.case(case, &self.new, pace));
        }
        let [no_op, shape, old, new] = costs.each_ref().map(|costs| median(costs));
        print!("{name:<24}");
        for part in [|cost: Cost| cost.process, |cost: Cost| cost.script] {
            let [no_op, shape, old, new] = [no_op, shape, old, new].map(part);
            print!("{no_op:>8.1}{shape:>8.1}{old:>8.1}{new:>8.1}{:>8.2}{:>8.2} |", new / old, new / shape);
        }
        println!();
    }
}

fn main() {
    let setting = |name: &str| std::env::var(name).ok();
    let repeat = setting("SCRIPTS_REPEAT").and_then(|text| text.parse().ok()).unwrap_or(9);
    let lease_ms = setting("SCRIPTS_LEASE_MS").unwrap_or_else(|| "10000".to_owned());
    for server in [Server::Redis70, Server::Valkey91] {
        let node = Node::start(server).expect("the server starts");
        let mut bench = Bench { client: node.client().expect("the server answers"), locks: 0 };
        let sides = Sides::load(&mut bench, &lease_ms);
        println!("{server}: us of the server's CPU for each call | us in the script, as the server counts them");
        let columns: String =
            ["no-op", "shape", "old", "new", "new/old", "/shape"].map(|name| format!("{name:>8}")).concat();
        println!("{:<24}{columns} |{columns} |", "");
        for row in CASES {
            sides.compare(&mut bench, row, repeat);
        }
    }
}
