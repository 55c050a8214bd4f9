//! A task acquires three free names on one node in one step and releases them, beside the same with one name. All requests
//! of a step take one round trip, so the rest is the work of two more scripts. Both take turns operation by operation.

use std::time::{Duration, Instant};

use redis_rwlock::{NamedLock, RedisManager, RwLockManager, write};
use tokio::runtime::Builder;

use crate::setup::Target::AtMost;
use crate::setup::{Effort, manager, p50_us, pair, start_node, tell_ratio};

const NAMES: [&str; 3] = ["first", "second", "third"];

/// Acquires all names for writing and releases them. Returns the time that both took.
async fn pair_of_all(manager: &RedisManager, names: &[NamedLock]) -> Duration {
    let began = Instant::now();
    manager.all(names).await.expect("granted").release().await.expect("released");
    began.elapsed()
}

/// Returns the p50 of three names and of one, in microseconds.
async fn p50s(manager: RedisManager, turns: usize) -> [f64; 2] {
    let names = NAMES.map(write);
    let (mut three, mut one) = (Vec::new(), Vec::new());
    for turn in 0..turns + turns / 10 {
        let took = match turn.is_multiple_of(2) {
            true => [pair_of_all(&manager, &names).await, pair(&manager, "bench").await],
            false => {
                let one = pair(&manager, "bench").await;
                [pair_of_all(&manager, &names).await, one]
            }
        };
        if turn >= turns / 10 {
            three.push(took[0]);
            one.push(took[1]);
        }
    }
    [three, one].map(|mut samples| p50_us(&mut samples))
}

pub(crate) fn run(effort: Effort) {
    let node = start_node();
    for (name, mut builder) in [
        ("multi-thread runtime", Builder::new_multi_thread()),
        ("current-thread runtime", Builder::new_current_thread()),
    ] {
        let runtime = builder.enable_all().build().expect("a runtime");
        let manager = runtime.block_on(manager(&node));
        // A task of the runtime, as services have them.
        let measured = runtime.spawn(p50s(manager, effort.of(10_000, 3_000, 10)));
        let p50s = runtime.block_on(measured).expect("measured");
        tell_ratio(&format!("three free names in one step, {name} / one name"), p50s, "us", AtMost(1.5));
    }
}
