//! 2,000 waiters on locks of their own and 5,000 holds while no server answers: client CPU meanwhile, and the time
//! until all are served when the server comes back.

use cluster_testenv::Proxy;

use super::*;

/// Lease whose renewals come due within the outage, and it does not end before the outage does.
const LEASE: Duration = Duration::from_secs(20);
/// Waits last longer than the outage.
const PATIENCE: Duration = Duration::from_secs(120);
/// Scripts a second, before and after.
const RATE: NonZeroU32 = NonZeroU32::new(5_000).expect("not zero");
/// All are served within this or never.
const BOUND: Duration = Duration::from_secs(30);

/// Kind of outage.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Outage {
    /// The host answers that no process listens.
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

/// Returns whether the server has answered a renewal since it came back.
fn is_renewed(guard: &WriteGuard, outage: Instant) -> bool {
    guard.remaining() + outage.elapsed() > LEASE
}

async fn outage(effort: Effort, outage: Outage, waiters: usize, holds: usize) {
    let span = Duration::from_secs(effort.of(10, 10, 1));
    let node = start_proxied_node();
    let builder = RedisManager::builder(node.url()).lease(LEASE).unreachable_after(PATIENCE);
    let manager = builder.connect().await.expect("a manager");
    let guards = few_at_a_time(0..holds, async |n| manager.write(&format!("held-{n}")).await.expect("granted")).await;

    let (cpu, began, connections) = (client_time(), Instant::now(), node.proxy().connections_made());
    outage.begin(node.proxy());
    let mut tasks = spawn_writes(&manager, (0..waiters).map(|lock| format!("wanted-{lock}")));
    tokio::time::sleep(span).await;
    let share = 100.0 * (client_time() - cpu).div_duration_f64(began.elapsed());
    let connections = node.proxy().connections_made() - connections;
    let what = format!("{waiters} waiters and {holds} holds, {outage:?}");
    println!("row: {what}: {connections} connections in {span:?}, which only a silent server counts");
    tell(&format!("{what}, client's share of a core"), "percent", share, AtMost(5.0));

    let back = Instant::now();
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
    let sides = format!("waiters granted after {served:.2?}, holds renewed after {renewed:.2?}; seconds");
    tell(&format!("{what}, all served"), &sides, served.max(renewed).as_secs_f64(), AtMost(2.0));
    tell(&format!("{what}, waiters that failed and holds lost"), "", (failed + lost) as f64, AtMost(0.0));
}

pub(crate) fn run(effort: Effort) {
    let (waiters, holds) = effort.of((2_000, 5_000), (2_000, 5_000), (20, 20));
    for kind in [Outage::Refused, Outage::Silent] {
        let runtime = runtime();
        runtime.block_on(outage(effort, kind, waiters, holds));
        runtime.shutdown_background();
    }
}
