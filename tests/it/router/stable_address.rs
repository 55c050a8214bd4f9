//! An address that leads to another server after a failover: a virtual address, a Service, the endpoint of a managed
//! primary. The old primary lives on as a replica, and keeps its connections, whether it answers on them or not.

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Proxy, Server};
use redis_rwlock::{Durability, HoldState, Replicas, Topology, WriteGuard};
use tokio::task::JoinHandle;

use super::field::on_own_servers;
use crate::fixture::{Fixture, Manager, Settings, on_one_replica};
use crate::nodes::follow;
use crate::servers::{ask, wait_until_followed};
use crate::wait::{Outcome, Stalls, granted, soon, spawn, until, until_renewed};

on_own_servers![
    everything_moves_to_the_new_primary,
    everything_moves_where_a_replica_has_to_know,
    idle_manager_moves_where_all_replicas_have_to_know,
    replica_that_stands_still_is_left_too,
    waiter_that_nobody_wakes_moves_too
];

/// Two servers, of which one follows the other, and their common address.
struct Pair {
    old: Node,
    new: Node,
    address: Proxy,
}

impl Pair {
    fn start(server: Server) -> Self {
        let (old, new) = (Node::start(server).expect("it starts"), Node::start(server).expect("it starts"));
        ask(&old, &["CONFIG", "SET", "repl-diskless-sync-delay", "0"]);
        follow(&new, &old);
        // The link of the replica is up before the primary counts its acknowledgements.
        wait_until_followed(&old);
        let address = Proxy::before(old.addr()).expect("a proxy");
        Self { old, new, address }
    }

    fn fixture(&self) -> Fixture {
        Fixture::hash(Topology::node(self.address.url()))
    }

    /// Lets the replica take over with all data. Returns the first moment at which the new primary could answer.
    async fn fail_over(&self) -> Instant {
        until("all data", async || offset(&self.new) == offset(&self.old)).await;
        let connections = self.address.connections();
        self.address.lead_to(self.new.addr());
        assert_eq!(self.address.connections(), connections, "the old primary keeps them");
        ask(&self.new, &["REPLICAOF", "NO", "ONE"]);
        let promoted = Instant::now();
        follow(&self.old, &self.new);
        promoted
    }
}

fn offset(node: &Node) -> Option<String> {
    let info = ask(node, &["INFO", "replication"]).text().expect("text").into_owned();
    info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).map(|offset| offset.trim().to_owned())
}

/// Starts an acquisition in a task, and returns when it is in the queue.
async fn queued(looks: &Manager, waits: &Manager, name: &str) -> JoinHandle<redis_rwlock::Result<WriteGuard>> {
    let waiting = spawn(waits.write(name));
    until("its place in the queue", async || looks.inspect(name).await.expect("inspected").waiters.len() == 1).await;
    waiting
}

async fn everything_moves_to_the_new_primary(server: Server) {
    everything_moves(server, Settings::lease(Duration::from_secs(3))).await;
}

/// `WAIT` also goes to the old primary, which answers with an error of its own.
async fn everything_moves_where_a_replica_has_to_know(server: Server) {
    let (response_timeout, durability) = (Duration::from_secs(4), on_one_replica(Duration::from_secs(2)));
    let unreachable_after = Duration::from_secs(15);
    let lease = Settings::lease(Duration::from_secs(7));
    everything_moves(server, Settings { response_timeout, durability, unreachable_after, ..lease }).await;
}

/// The question for the replicas is the first to reach the old primary, which is a replica by then.
async fn idle_manager_moves_where_all_replicas_have_to_know(server: Server) -> Outcome {
    let (pair, response_timeout) = (Pair::start(server), Duration::from_secs(4));
    let durability = Durability::Replicated { replicas: Replicas::All, timeout: Duration::from_secs(2) };
    let settings = Settings { response_timeout, durability, ..Settings::default() };
    let (fixture, name) = (pair.fixture(), "cfg");
    let manager = fixture.manager_with(settings).await;
    manager.write(name).await?.release().await?;
    pair.fail_over().await;
    wait_until_followed(&pair.new);
    // The manager asks for the replicas again when its last answer is a second old.
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let guard = soon("the grant", manager.write(name)).await.expect("granted by the new primary");
    assert_eq!(fixture.view(name).await.holders.len(), 1);
    guard.release().await?;
    Ok(())
}

/// Checks guards, waiters, releases, looks and notifications after a failover behind one address.
async fn everything_moves(server: Server, settings: Settings) {
    let pair = Pair::start(server);
    let fixture = pair.fixture();
    let (manager, other) = (fixture.manager_with(settings.clone()).await, fixture.manager_with(settings).await);
    let (held, busy) = (fixture.name(), fixture.name());
    let guard = manager.write(&held).await.expect("granted");
    let holder = manager.write(&busy).await.expect("granted");
    let waiting = queued(&manager, &other, &busy).await;
    pair.fail_over().await;
    for _ in 0..3 {
        until_renewed("a renewal", || guard.remaining()).await;
        assert_eq!(guard.state(), HoldState::Held);
    }
    holder.release().await.expect("ours to the end");
    let granted = granted(waiting).await;
    assert!(granted.fencing_token() > guard.fencing_token(), "tokens go on");
    granted.release().await.expect("ours to the end");
    assert_eq!(manager.inspect(&held).await.expect("inspected").holders.len(), 1, "a look finds the new one");
    other.force_release(&held).await.expect("forced");
    soon("the loss", guard.lost()).await;
    // Notifications come from the new primary after this.
    let listening = |node: &Node| ask(node, &["PUBSUB", "SHARDCHANNELS"]).array().expect("channels").len();
    until("subscriptions at the new primary", async || listening(&pair.new) > 0).await;
    let fresh = manager.write(&fixture.name()).await.expect("granted");
    fresh.release().await.expect("ours to the end");
}

/// The old primary follows the new one and then stands still. It keeps its connections, and does not say that it is a
/// replica.
async fn replica_that_stands_still_is_left_too(server: Server) -> Outcome {
    let pair = Pair::start(server);
    let fixture = pair.fixture();
    let (manager, other) = (fixture.manager().await, fixture.manager().await);
    let (held, busy) = (fixture.name(), fixture.name());
    let guard = manager.write(&held).lease(Duration::from_secs(6)).await?;
    let holder = manager.write(&busy).await?;
    let waiting = queued(&manager, &other, &busy).await;
    pair.fail_over().await;
    pair.old.pause();
    for _ in 0..2 {
        until_renewed("a renewal", || guard.remaining()).await;
        assert_eq!(guard.state(), HoldState::Held);
    }
    holder.release().await?;
    let granted = granted(waiting).await;
    assert!(granted.fencing_token() > guard.fencing_token(), "tokens go on");
    granted.release().await?;
    guard.release().await?;
    pair.old.resume();
    Ok(())
}

/// The lock is free at the new primary, and no notification tells the waiter.
async fn waiter_that_nobody_wakes_moves_too(server: Server) {
    let pair = Pair::start(server);
    let fixture = pair.fixture();
    let other = fixture.manager().await;
    let name = fixture.name();
    let holder = fixture.manager().await.write(&name).await.expect("granted");
    let waiting = queued(&other, &other, &name).await;
    // The failover comes just after a heartbeat. The next heartbeat, a second later, is too late.
    let heartbeats = || pair.address.requests_seen("EVALSHA");
    let before = heartbeats();
    until("a heartbeat", async || heartbeats() > before).await;
    let stalls = Stalls::begin();
    let promoted = pair.fail_over().await;
    ask(&pair.new, &["DEL", &fixture.hash_key(&name)]);
    let granted = granted(waiting).await;
    let (took, stalled) = (promoted.elapsed(), stalls.end());
    println!("granted {took:?} after the new primary could answer, of which the machine stood still for {stalled:?}");
    assert!(took.saturating_sub(stalled) < Duration::from_secs(1), "{took:?}, of which {stalled:?} are the machine's");
    drop((holder, granted));
}
