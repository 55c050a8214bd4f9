//! A task acquires and releases a lock that no other task wants: time that the crate adds to round trips and scripts.
//! The rows take turns operation by operation, so any other load of the machine affects all of them alike.

use std::time::{Duration, Instant};

use cluster_testenv::Node;
use redis_rwlock::RedisManager;
use tokio::runtime::Builder;

use crate::setup::Target::AtMost;
use crate::setup::{Bare, CommandStats, Effort, foreign_id, manager, p50_us, pair, start_node, tell, tell_ratio};

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
    for turn in 0..turns + turns / 10 {
        for step in 0..ROWS {
            // Forwards and backwards by turns, so that no row always follows the same other.
            let row = if turn.is_multiple_of(2) { step } else { ROWS - 1 - step };
            let took = rows.measure(row).await;
            if turn >= turns / 10 {
                samples[row].push(took);
            }
        }
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
    for (name, mut builder) in [
        ("multi-thread runtime", Builder::new_multi_thread()),
        ("current-thread runtime", Builder::new_current_thread()),
    ] {
        let runtime = builder.enable_all().build().expect("a runtime");
        let ours = runtime.block_on(manager(&node));
        let rows = Rows { ours: ours.clone(), bare: runtime.block_on(Bare::connect(&node)) };
        // A task of the runtime, as services have them.
        let measured = runtime.spawn(p50s(rows, effort.of(10_000, 3_000, 10)));
        let [own, floor0, floor1, shaped] = runtime.block_on(measured).expect("measured");
        for (floor, what, bound) in [(floor0, "floor0", 1.35), (floor1, "floor1", 1.10)] {
            tell_ratio(&format!("uncontended, {name}, ours / {what}"), [own, floor], "us", AtMost(bound));
        }
        println!("row: {name}, two lock-shaped scripts / floor0: {:.3}", shaped / floor0);
        runtime.block_on(count_commands(&ours, &node, effort.of(1000, 1000, 10)));
    }
}
