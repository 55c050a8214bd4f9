//! 2,000 waiters on locks of their own and 5,000 holds while no server answers: what they cost meanwhile, and how soon all are
//! served when it comes back.

use std::num::NonZeroU32;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Node, Proxy};
use redis_rwlock::{HoldState, RedisManager, RwLockManager, Topology, WriteGuard};
use tokio::runtime::Runtime;
use tokio::task::JoinSet;

use crate::figures::process::client_time;
use crate::figures::{Effort, Target, server, tell};
use crate::peak::Peak;

/// Its renewals come due within the outage, and it does not end before the outage does.
const LEASE: Duration = Duration::from_secs(20);
/// Whoever waits is to be served afterwards.
const PATIENCE: Duration = Duration::from_secs(120);
/// Scripts a second, before and after.
const RATE: NonZeroU32 = NonZeroU32::new(5_000).expect("not zero");
/// All are served within this or never.
const BOUND: Duration = Duration::from_secs(30);

/// How a server does not answer.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outage {
    /// Its host answers that nobody listens.
    Refused,
    /// Nothing comes back at all.
    Silent,
}

impl Outage {
    fn begin(self, proxy: &Proxy) {
        match self {
            Self::Refused => {
                proxy.refuse();
                proxy.cut();
            }
            Self::Silent => proxy.black_hole(),
        }
    }
}

async fn hold(manager: &RedisManager, count: usize) -> Vec<WriteGuard> {
    let mut tasks = JoinSet::new();
    let mut guards = Vec::with_capacity(count);
    for lock in 0..count {
        // Few at a time: a burst is not what is measured here.
        if tasks.len() >= 64
            && let Some(granted) = tasks.join_next().await
        {
            guards.push(granted.expect("it runs"));
        }
        let manager = manager.clone();
        tasks.spawn(async move { manager.write(&format!("held-{lock}")).await.expect("granted") });
    }
    guards.extend(tasks.join_all().await);
    guards
}

fn wait_for_locks(manager: &RedisManager, count: usize) -> JoinSet<Result<WriteGuard, redis_rwlock::Error>> {
    let mut tasks = JoinSet::new();
    for lock in 0..count {
        let manager = manager.clone();
        tasks.spawn(async move { manager.write(&format!("wanted-{lock}")).await });
    }
    tasks
}

/// Whether the server has been heard from since it came back.
fn is_renewed(guard: &WriteGuard, outage: Instant) -> bool {
    guard.remaining() + outage.elapsed() > LEASE
}

async fn outage(effort: Effort, outage: Outage, waiters: usize, holds: usize) {
    let span = Duration::from_secs(effort.of(10, 10, 1));
    let node = Node::builder(server()).proxied().start().expect("a server starts; cluster-testenv/install brings it");
    let node = Arc::new(node);
    let builder = RedisManager::builder(Topology::node(node.url())).lease(LEASE).unreachable_after(PATIENCE);
    let manager = builder.connect().await.expect("a manager");
    let guards = hold(&manager, holds).await;

    let (cpu, began, connections) = (client_time(), Instant::now(), node.proxy().connections_made());
    outage.begin(node.proxy());
    let mut tasks = wait_for_locks(&manager, waiters);
    tokio::time::sleep(span).await;
    let share = 100.0 * (client_time() - cpu).div_duration_f64(began.elapsed());
    let connections = node.proxy().connections_made() - connections;
    let what = format!("{waiters} waiters and {holds} holds, {outage:?}");
    println!("row: {what}: {connections} connections in {span:?}, which only a silent server counts");
    tell(effort, &format!("{what}, client's share of a core"), "percent", share, Target::AtMost(5.0));

    let (back, peak) = (Instant::now(), Peak::watch(&node));
    node.proxy().heal();
    node.proxy().limit_scripts(RATE);
    let (mut granted, mut failed) = (Vec::new(), 0);
    while let Some(outcome) = tasks.join_next().await {
        match outcome.expect("it runs") {
            Ok(guard) => granted.push(guard),
            Err(error) => {
                failed += 1;
                println!("row: a waiter failed: {error}");
            }
        }
    }
    let served = back.elapsed();
    while back.elapsed() < BOUND && !guards.iter().all(|guard| is_renewed(guard, began)) {
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let renewed = back.elapsed();
    let lost = guards.iter().filter(|guard| guard.state() != HoldState::Held).count();
    println!("row: {what}: at most {} scripts in front of the server at a time when it came back", peak.end());
    let sides = format!("waiters granted after {served:.2?}, holds renewed after {renewed:.2?}; seconds");
    let all = served.max(if holds == 0 { Duration::ZERO } else { renewed });
    tell(effort, &format!("{what}, all served"), &sides, all.as_secs_f64(), Target::AtMost(2.0));
    tell(
        effort,
        &format!("{what}, waiters that failed and holds lost"),
        "",
        (failed + lost) as f64,
        Target::AtMost(0.0),
    );
}

pub(crate) fn run(effort: Effort) {
    let loads = [(2_000, 5_000), (2_000, 0), (0, 5_000)];
    let loads = &loads[..effort.of(3, 1, 1)];
    for kind in [Outage::Refused, Outage::Silent] {
        for (waiters, holds) in loads {
            let (waiters, holds) = effort.of((*waiters, *holds), (*waiters, *holds), (20, 20));
            let runtime = Runtime::new().expect("a runtime");
            runtime.block_on(outage(effort, kind, waiters, holds));
            runtime.shutdown_background();
        }
    }
}
