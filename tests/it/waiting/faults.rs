//! Faults of processes, connections and servers while others wait: the queue keeps its order, no other
//! gets in beside a writer, and a loss costs no more than a heartbeat.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server, SlotMigration};
use redis_rwlock::{HoldState, LossReason, Mode};
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::task::JoinHandle;

use super::{HEARTBEAT, MACHINE, patient, scene};
use crate::either::{AnyGuard, take};
use crate::fixture::{Fixture, Manager, ServerFixture, Settings, hash_on_every_server};
use crate::nodes::{reader_of, role_of};
use crate::router::field::{Field, Load, name_of, on_own_servers};
use crate::servers::ask;
use crate::wait::{Outcome, granted, soon, until};

hash_on_every_server![lock_of_a_waiter_that_died_goes_on_after_its_claim, waiter_that_died_long_ago_costs_nothing,];

on_own_servers![
    queue_moves_with_its_slot_step_by_step,
    queue_moves_with_its_slot_at_once,
    queue_outlives_a_failover,
    queue_outlives_a_forced_failover,
    queue_outlives_a_killed_primary,
    waiters_and_holder_outlive_the_loss_of_all_keys,
    waiters_outlive_forgotten_scripts,
    waiters_outlive_killed_subscriptions,
    killed_subscription_costs_a_heartbeat_at_most,
];

/// Lease of the holder, which learns of its loss by a renewal.
const LEASE: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Time that a waiter which was let in holds the lock until the server hears of it: two heartbeats and two response
/// timeouts.
const CLAIM: Duration = Duration::from_secs(3);

/// A process that waits to write, and dies.
async fn dies_waiting(f: &Fixture, name: &str) {
    let mut process = f.process(patient("dies")).await;
    let waiters = f.view(name).await.waiters.len();
    let written = name.to_owned();
    process.start(|manager| Box::pin(manager.write(&written).into_future()));
    until("it waits", async || f.view(name).await.waiters.len() > waiters).await;
    process.die().await;
}

async fn lock_of_a_waiter_that_died_goes_on_after_its_claim(f: &ServerFixture) -> Outcome {
    let ([holder, other], name) = scene(f).await;
    let held = holder.write(&name).await?;
    dies_waiting(f, &name).await;
    let next = f.queued(&name, other.write(&name)).await;
    let released = Instant::now();
    held.release().await?;
    assert_eq!(f.view(&name).await.holders[0].label, "dies", "it had died only now");
    granted(next).await.release().await?;
    assert!(released.elapsed() < CLAIM + HEARTBEAT + MACHINE, "{:?}", released.elapsed());
    Ok(())
}

async fn waiter_that_died_long_ago_costs_nothing(f: &ServerFixture) -> Outcome {
    let ([holder, other], name) = scene(f).await;
    let held = holder.write(&name).await?;
    dies_waiting(f, &name).await;
    let next = f.queued(&name, other.write(&name)).await;
    f.until_waiting(1, &name).await;
    let released = Instant::now();
    held.release().await?;
    granted(next).await.release().await?;
    assert!(released.elapsed() < MACHINE, "{:?}", released.elapsed());
    Ok(())
}

/// A lock that is held, and in its queue, in this order: a writer, a reader, another writer, each of a process of its
/// own.
struct Queue {
    name: String,
    held: AnyGuard,
    tasks: Vec<JoinHandle<()>>,
    served: UnboundedReceiver<(Mode, u64)>,
}

/// Order of the grants: waiting readers enter first when a writer leaves.
const ORDER: [Mode; 3] = [Mode::Read, Mode::Write, Mode::Write];

impl Queue {
    async fn start(f: &Field, tag: &str, lease: Duration) -> Self {
        let name = name_of(tag, 0);
        let held_name = name.clone();
        let holder = f.manager_with(Settings::lease(lease)).await;
        let held = take(&holder, &name, Mode::Write).await;
        let (tells, served) = unbounded_channel();
        let inside = Arc::<AtomicBool>::default();
        let mut tasks = Vec::new();
        for (n, mode) in [Mode::Write, Mode::Read, Mode::Write].into_iter().enumerate() {
            let waiter = f.manager_with(Settings::label(&format!("waiter-{n}"))).await;
            let (name, inside, tells) = (name.clone(), Arc::clone(&inside), tells.clone());
            tasks.push(tokio::spawn(async move {
                let guard = take(&waiter, &name, mode).await;
                assert!(!inside.swap(true, Ordering::SeqCst), "two are inside");
                tells.send((mode, guard.token().into())).expect("somebody listens");
                tokio::task::yield_now().await;
                inside.store(false, Ordering::SeqCst);
                guard.release().await.expect("ours to the end");
            }));
            until("it waits", async || f.view(&held_name).await.waiters.len() > n).await;
        }
        Self { name, held, tasks, served }
    }

    /// Asserts that all waiters are in the queue as before, now and after another heartbeat.
    async fn is_as_it_was(&self, f: &Field) {
        let look = async || f.view(&self.name).await.waiters.into_iter().map(|waiter| waiter.label).collect::<Vec<_>>();
        let whole = ["waiter-0", "waiter-1", "waiter-2"];
        assert_eq!(look().await, whole);
        tokio::time::sleep(HEARTBEAT * 3 / 2).await;
        assert_eq!(look().await, whole);
        assert_eq!(self.held.state(), HoldState::Held);
    }

    /// Waits until the replicas of the lock's node know all waiters.
    async fn is_replicated(&self, f: &Field, tag: &str) {
        let key = f.hash_key(&self.name);
        for replica in f.cluster.replicas_of(f.owner(tag)) {
            let mut replica = reader_of(replica);
            until("the replica has the queue", async || {
                let fields = replica.command(&["HKEYS", &key]).expect("answered");
                let fields = fields.array().expect("a list").iter();
                fields.filter(|field| field.bytes().is_some_and(|field| field.starts_with(b"U"))).count() == ORDER.len()
            })
            .await;
        }
    }

    /// Releases the hold, and asserts that all waiters get in one after the other.
    async fn drains(mut self, within: Duration) {
        let mut last = u64::from(self.held.token());
        let released = Instant::now();
        self.held.release().await.expect("ours to the end");
        for expected in ORDER {
            let (mode, token) = soon("the next", self.served.recv()).await.expect("three wait");
            assert_eq!(mode, expected);
            assert!(token > last, "{token} after {last}");
            last = token;
        }
        println!("drained in {:?}", released.elapsed());
        assert!(released.elapsed() < within, "{:?}", released.elapsed());
        for task in self.tasks {
            soon("the last release", task).await.expect("no panic");
        }
    }
}

/// Time in which the queue drains if no state is lost: each of the three grants costs a heartbeat at most.
const QUIET: Duration = HEARTBEAT.saturating_mul(3).saturating_add(MACHINE);

async fn queue_moves_with_its_slot_step_by_step(server: Server) -> Outcome {
    let f = Field::primaries(server);
    let tag = f.tag();
    let queue = Queue::start(&f, &tag, LEASE).await;
    let slot = f.cluster.keyslot(&tag);
    let migration = SlotMigration::begin(&f.cluster, slot, &f.cluster.nodes()[1])?;
    queue.is_as_it_was(&f).await;
    migration.move_keys()?;
    queue.is_as_it_was(&f).await;
    migration.finish()?;
    queue.is_as_it_was(&f).await;
    queue.drains(QUIET).await;
    Ok(())
}

/// Moves a slot at once. Where the servers cannot, they refuse the order, and the slot stays.
async fn queue_moves_with_its_slot_at_once(server: Server) {
    let f = Field::primaries(server);
    let can = f.cluster.can_migrate_atomically().expect("answered");
    let tag = f.tag();
    let queue = Queue::start(&f, &tag, LEASE).await;
    let slot = f.cluster.keyslot(&tag);
    let moves_to = |n: usize| {
        let moved = f.cluster.migrate_slot_atomically(slot, &f.cluster.nodes()[n]);
        assert_eq!(moved.is_ok(), can, "{moved:?}");
        let owner = if can { n } else { 0 };
        assert_eq!(f.owner(&tag).port(), f.cluster.nodes()[owner].port());
    };
    moves_to(1);
    queue.is_as_it_was(&f).await;
    moves_to(2);
    queue.drains(QUIET + RESPONSE_TIMEOUT * 2).await;
}

async fn queue_outlives(server: Server, fails_over: impl AsyncFn(&Field, &Node), within: Duration) {
    let f = Field::with_replicas(server);
    let tag = f.tag();
    let queue = Queue::start(&f, &tag, LEASE).await;
    queue.is_replicated(&f, &tag).await;
    fails_over(&f, f.owner(&tag)).await;
    queue.drains(within).await;
    f.nothing_is_left([name_of(&tag, 0)]).await;
}

/// Time in which the queue drains after a failover: each waiter and the holder may ask the old primary once more.
const FAILED_OVER: Duration = QUIET.saturating_add(RESPONSE_TIMEOUT.saturating_mul(4));

async fn queue_outlives_a_failover(server: Server) {
    let failover = async |f: &Field, primary: &Node| {
        f.cluster.failover(primary).expect("a replica takes over");
    };
    queue_outlives(server, failover, FAILED_OVER).await;
}

async fn queue_outlives_a_forced_failover(server: Server) {
    let failover = async |f: &Field, primary: &Node| {
        f.cluster.failover_force(primary).expect("a replica takes over");
        // The old primary answers until it hears of the failover, and its grants are lost then. Another durability
        // covers that.
        until("the old primary gives way", async || role_of(primary) == "slave").await;
    };
    queue_outlives(server, failover, FAILED_OVER).await;
}

async fn queue_outlives_a_killed_primary(server: Server) {
    let failover = async |f: &Field, primary: &Node| {
        primary.kill();
        f.cluster.failover_force(primary).expect("a replica takes over");
    };
    queue_outlives(server, failover, FAILED_OVER).await;
}

async fn waiters_and_holder_outlive_the_loss_of_all_keys(server: Server) {
    let f = Field::primaries(server);
    let tag = f.tag();
    // No lease ends meanwhile, so the waiters come back by their heartbeats alone.
    let mut queue = Queue::start(&f, &tag, LEASE).await;
    let flushed = Instant::now();
    f.cluster.flush_all().expect("flushed");
    // The waiters' heartbeats put them into a new queue, and one at a time is inside.
    let mut last = u64::from(queue.held.token());
    for _ in ORDER {
        let (_, token) = soon("the next", queue.served.recv()).await.expect("three wait");
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    println!("all were in {:?} after the loss", flushed.elapsed());
    assert!(flushed.elapsed() < QUIET, "{:?}", flushed.elapsed());
    assert_eq!(soon("the loss", queue.held.lost()).await, LossReason::Gone);
    for task in queue.tasks {
        soon("the last release", task).await.expect("no panic");
    }
    f.nothing_is_left([queue.name]).await;
}

/// Starts many tasks of three processes that wait for one lock.
async fn load(f: &Field, tag: &str) -> Load {
    let mut managers = Vec::<Manager>::new();
    for _ in 0..3 {
        managers.push(f.manager().await);
    }
    Load::start(&managers, [name_of(tag, 1)], 12)
}

async fn waiters_outlive_forgotten_scripts(server: Server) {
    let f = Field::primaries(server);
    let tag = f.tag();
    let load = load(&f, &tag).await;
    for _ in 0..100 {
        f.cluster.script_flush().expect("flushed");
        load.goes_on("after a flush", 3).await;
    }
    load.end().await;
}

async fn waiters_outlive_killed_subscriptions(server: Server) {
    let f = Field::primaries(server);
    let tag = f.tag();
    let load = load(&f, &tag).await;
    load.goes_on("in the beginning", 20).await;
    let (mut killed, mut longest) = (0, Duration::ZERO);
    for _ in 0..20 {
        killed += f.cluster.kill_subscribers().expect("killed");
        let began = Instant::now();
        load.goes_on("after a kill", 3).await;
        longest = longest.max(began.elapsed());
    }
    println!("{killed} subscribers were killed, the longest pause {longest:?}");
    assert!(killed >= 3, "there were some to kill: {killed}");
    assert!(longest < QUIET, "{longest:?}");
    load.end().await;
}

async fn killed_subscription_costs_a_heartbeat_at_most(server: Server) {
    let f = Field::primaries(server);
    let tag = f.tag();
    for _ in 0..5 {
        let queue = Queue::start(&f, &tag, LEASE).await;
        let owner = f.owner(&tag);
        until("all subscribe", async || {
            ask(owner, &["PUBSUB", "SHARDCHANNELS"]).array().is_some_and(|channels| channels.len() >= ORDER.len())
        })
        .await;
        f.cluster.kill_subscribers().expect("killed");
        queue.drains(QUIET).await;
    }
}
