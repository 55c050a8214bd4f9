//! A task acquires and releases a lock that no other task wants: time that the crate adds to round trips and scripts.
//! The rows take turns operation by operation, so any other load of the machine affects all of them alike.

use redis_rwlock::{NamedLock, write};

use super::*;

/// Key of the bare calls, beside that of the crate.
const KEY: &str = "rwlock:{bench}:bare";
const ROWS: usize = 4;

struct Rows {
    ours: RedisManager,
    bare: Bare,
}

impl Rows {
    async fn measure(&mut self, row: usize) -> Duration {
        let began = Instant::now();
        match row {
            0 => return pair(&self.ours, "bench").await,
            1 => self.bare.two_no_ops(KEY).await,
            2 => self.bare.acquire_and_leave(KEY, &foreign_id()).await,
            _ => self.bare.lock_shaped_pair("rwlock:{bench}:shaped").await,
        }
        began.elapsed()
    }
}

/// Returns the p50 of each row, in microseconds.
async fn p50s(mut rows: Rows, turns: usize) -> [f64; ROWS] {
    let mut samples = [const { Vec::new() }; ROWS];
    for (row, counts) in in_turns(ROWS, turns) {
        let took = rows.measure(row).await;
        samples[row].extend(counts.then_some(took));
    }
    samples.map(|mut samples| p50_us(&mut samples))
}

/// Counts the commands of acquisitions and releases, by the server.
async fn count_commands(manager: &RedisManager, node: &Node, rounds: usize) {
    CommandStats::reset(node);
    for _ in 0..rounds {
        pair(manager, "bench").await;
    }
    let stats = CommandStats::of(node);
    let known = ["time", "hmget", "hset", "hdel", "pexpireat", "evalsha", "config|resetstat"];
    let alien: Vec<&str> = stats.commands().filter(|name| !known.contains(name)).collect();
    assert!(alien.is_empty(), "nothing else is sent: {alien:?}");
    // Each script asks for the time once. A question of the crate for the time would be one more.
    assert_eq!(stats.calls("time"), stats.calls("evalsha"), "scripts ask for the time, nobody else does");
    let sides = format!("{} commands for {rounds} acquisitions and releases", stats.calls("evalsha"));
    let each = stats.calls("evalsha") as f64 / (2 * rounds) as f64;
    tell("uncontended, commands per acquisition or release", &sides, each, AtMost(1.0));
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    for (name, runtime) in runtimes() {
        let ours = runtime.block_on(manager(&node));
        let rows = Rows { ours: ours.clone(), bare: runtime.block_on(Bare::connect(&node)) };
        // A task of the runtime, as services have them.
        let measured = runtime.spawn(p50s(rows, effort.of(10_000, 3_000, 10)));
        let [own, floor0, floor1, shaped] = runtime.block_on(measured).expect("measured");
        for (floor, what, bound) in [(floor0, "floor0", 1.35), (floor1, "floor1", 1.10)] {
            tell_ratio(&format!("uncontended, {name} runtime, ours / {what}"), [own, floor], "us", AtMost(bound));
        }
        println!("row: {name} runtime, two lock-shaped scripts / floor0: {:.3}", shaped / floor0);
        runtime.block_on(count_commands(&ours, &node, effort.of(1000, 1000, 10)));
    }
}

const NAMES: [&str; 3] = ["first", "second", "third"];

/// Acquires all names for writing and releases them. Returns the time that both took.
async fn pair_of_all(manager: &RedisManager, names: &[NamedLock]) -> Duration {
    let began = Instant::now();
    manager.all(names).await.expect("granted").release().await.expect("released");
    began.elapsed()
}

/// Returns the p50 of three names and of one, in microseconds.
async fn p50s_of_names(manager: RedisManager, turns: usize) -> [f64; 2] {
    let names = NAMES.map(write);
    let mut samples = [const { Vec::new() }; 2];
    for (row, counts) in in_turns(2, turns) {
        let took = if row == 0 { pair_of_all(&manager, &names).await } else { pair(&manager, "bench").await };
        samples[row].extend(counts.then_some(took));
    }
    samples.map(|mut samples| p50_us(&mut samples))
}

/// A task acquires three free names on one node in one step and releases them, beside the same with one name. All requests
/// of a step take one round trip, so the rest is the work of two more scripts.
pub(crate) fn run_groups(effort: Effort) {
    let node = start_node();
    for (name, runtime) in runtimes() {
        let manager = runtime.block_on(manager(&node));
        // A task of the runtime, as services have them.
        let measured = runtime.spawn(p50s_of_names(manager, effort.of(10_000, 3_000, 10)));
        let p50s = runtime.block_on(measured).expect("measured");
        tell_ratio(&format!("three free names in one step, {name} runtime / one name"), p50s, "us", AtMost(1.5));
    }
}
