//! Holds on a primary that dies, stands still or is replaced. A holder learns of a loss before the server can let
//! another in, and a hold that can be kept is kept.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster_testenv::{Node, Reply, Server};
use redis_rwlock::{HoldState, LossReason, WriteGuard};
use tokio::task::JoinSet;

use super::field::{Field, name_of, on_own_servers};
use crate::fixture::Settings;
use crate::nodes::reader_of;
use crate::servers::ask;
use crate::wait::{BOUND, Outcome, granted, soon, until};

on_own_servers![
    losses_on_a_killed_primary_are_told_before_its_leases_end,
    losses_on_a_paused_primary_are_told_before_its_leases_end,
    failover_shorter_than_a_lease_loses_nothing,
    pause_of_a_third_of_the_lease_loses_nothing,
    release_that_a_failover_lost_is_told_to_the_new_primary,
];

const HOLDS: usize = 64;
const LEASE: Duration = Duration::from_secs(6);

/// Settings with a wide margin: a busy machine does not use it up between a deadline and the look at the clock.
fn settings() -> Settings {
    Settings { max_clock_skew: Duration::from_millis(400), ..Settings::lease(LEASE) }
}

/// The time of the servers, which run on the same machine.
fn now_ms() -> u128 {
    SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970").as_millis()
}

/// Time at which the node lets others in, by its own clock: the third word of a writer's record.
fn deadline_ms(reply: &Reply) -> Option<u128> {
    reply.text()?.split(' ').nth(2)?.parse().ok()
}

/// A lock's name, and its guard.
type Held = (String, WriteGuard);

/// Locks that one manager holds, spread over all shards.
struct Holds {
    guards: Vec<Held>,
    tags: Vec<String>,
}

impl Holds {
    async fn take(field: &Field) -> Self {
        let manager = field.manager_with(settings()).await;
        let tags = field.tags();
        let mut guards = Vec::new();
        for n in 0..HOLDS {
            let name = name_of(&tags[n % tags.len()], n);
            let guard = manager.write(&name).await.expect("granted");
            guards.push((name, guard));
        }
        Self { guards, tags }
    }

    /// The primary of the first tag, which is the one that is hurt.
    fn hurt<'a>(&self, field: &'a Field) -> &'a Node {
        field.owner(&self.tags[0])
    }

    fn is_hurt(&self, name: &str) -> bool {
        name.starts_with(&format!("{{{}}}", self.tags[0]))
    }

    /// Splits the holds: those on the primary that is hurt, and the others.
    fn split(mut self) -> (Vec<Held>, Vec<Held>) {
        std::mem::take(&mut self.guards).into_iter().partition(|(name, _)| self.is_hurt(name))
    }

    /// Pauses writes on the node that is hurt, so that it renews nothing more. Returns its deadlines when its replica
    /// has them too: no other is let in before that, on whichever node the lock lives on.
    async fn last_deadlines_ms(&self, field: &Field) -> Vec<(String, u128)> {
        let node = self.hurt(field);
        node.pause_writes(BOUND * 10).expect("paused");
        let mut replica = reader_of(field.cluster.replicas_of(node)[0]);
        let mut deadlines_ms = Vec::new();
        for (name, _) in self.guards.iter().filter(|(name, _)| self.is_hurt(name)) {
            let key = field.hash_key(name);
            let promised = deadline_ms(&ask(node, &["HGET", &key, "h"])).expect("it is held");
            let read = |replica: &mut cluster_testenv::Client| replica.command(&["HGET", &key, "h"]).expect("answered");
            until("the replica has it", async || deadline_ms(&read(&mut replica)) == Some(promised)).await;
            deadlines_ms.push((name.clone(), promised));
        }
        deadlines_ms
    }
}

async fn losses_on_a_killed_primary_are_told_before_its_leases_end(server: Server) {
    losses_are_told_before_leases_end(server, Node::kill).await;
}

async fn losses_on_a_paused_primary_are_told_before_its_leases_end(server: Server) {
    losses_are_told_before_leases_end(server, Node::pause).await;
}

async fn losses_are_told_before_leases_end(server: Server, fault: impl Fn(&Node)) {
    let field = Field::with_replicas(server);
    let holds = Holds::take(&field).await;
    let hurt = holds.hurt(&field);
    let deadlines_ms = holds.last_deadlines_ms(&field).await;
    fault(hurt);
    let (affected, others) = holds.split();
    let mut losing = JoinSet::new();
    for (name, guard) in affected {
        losing.spawn(async move {
            let reason = guard.lost().await;
            (name, reason, now_ms(), guard.fencing_token())
        });
    }
    let mut tokens = Vec::new();
    while let Some(ended) = soon("word of all losses", losing.join_next()).await {
        let (name, reason, told_ms, token) = ended.expect("no panic");
        assert_eq!(reason, LossReason::Expired);
        let (_, until_ms) = deadlines_ms.iter().find(|(other, _)| *other == name).expect("it was looked at");
        assert!(told_ms < *until_ms, "{name}: told at {told_ms}, the server's lease ended at {until_ms}");
        tokens.push((name, token));
    }
    assert_eq!(tokens.len(), deadlines_ms.len());
    for (name, guard) in others {
        assert_eq!(guard.state(), HoldState::Held, "{name} lies on another shard");
        guard.release().await.expect("ours to the end");
    }
    field.cluster.failover_force(hurt).expect("a replica takes over");
    let other = field.manager().await;
    for (name, token) in tokens {
        let heir = granted(other.write(&name)).await;
        assert!(heir.fencing_token() > token);
        heir.release().await.expect("ours to the end");
    }
}

async fn failover_shorter_than_a_lease_loses_nothing(server: Server) {
    let field = Field::with_replicas(server);
    let holds = Holds::take(&field).await;
    let hurt = holds.hurt(&field);
    let deadlines_ms = holds.last_deadlines_ms(&field).await;
    hurt.kill();
    field.cluster.failover_force(hurt).expect("a replica takes over");
    let successor = holds.hurt(&field);
    for (name, before_ms) in deadlines_ms {
        let key = field.hash_key(&name);
        until("it is renewed where it is now", async || {
            deadline_ms(&ask(successor, &["HGET", &key, "h"])).is_some_and(|ms| ms > before_ms)
        })
        .await;
    }
    for (name, guard) in holds.guards {
        assert!(!matches!(guard.state(), HoldState::Lost(_)), "{name}: {:?}", guard.state());
        guard.release().await.expect("ours to the end");
    }
}

async fn pause_of_a_third_of_the_lease_loses_nothing(server: Server) {
    let field = Field::primaries(server);
    let holds = Holds::take(&field).await;
    let hurt = holds.hurt(&field);
    hurt.pause();
    tokio::time::sleep(LEASE / 3).await;
    hurt.resume();
    tokio::time::sleep(LEASE).await;
    let other = field.manager().await;
    for (name, guard) in holds.guards {
        assert_eq!(guard.state(), HoldState::Held, "{name}");
        assert!(other.try_write(&name).await.expect("answered").is_none());
        guard.release().await.expect("ours to the end");
    }
}

/// Stops the replica and closes its connection, so that no later write of the primary reaches it.
fn cut_off(replica: &Node, primary: &Node) {
    replica.pause();
    ask(primary, &["CLIENT", "KILL", "TYPE", "replica"]);
}

async fn release_that_a_failover_lost_is_told_to_the_new_primary(server: Server) -> Outcome {
    let field = Field::with_replicas(server);
    let tag = field.tag();
    let (primary, replica) = (field.owner(&tag), field.cluster.replicas_of(field.owner(&tag))[0]);
    let (lost, later) = (name_of(&tag, 0), name_of(&tag, 1));
    // The lease is longer than this case runs.
    let manager = field.manager_with(Settings::lease(BOUND * 10)).await;
    let guard = manager.write(&lost).await?;
    let key = field.hash_key(&lost);
    let mut reader = reader_of(replica);
    until("the replica has it", async || !reader.command(&["HGET", &key, "h"]).expect("answered").is_nil()).await;

    cut_off(replica, primary);
    guard.release().await?;
    primary.kill();
    replica.resume();
    let successor = field.cluster.failover_force(primary).expect("the replica takes over");
    assert!(!ask(successor, &["HGET", &key, "h"]).is_nil(), "it has not heard of the release");
    // A manager that sends a node nothing does not learn of its failure, so this one sends a request.
    manager.write(&later).await?.release().await?;
    field.nothing_is_left([lost, later]).await;
    Ok(())
}
