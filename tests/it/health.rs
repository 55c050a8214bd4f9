//! Health checks of servers in trouble, and the counters of such checks.

use std::collections::HashSet;
use std::net::TcpListener;
use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Node, Sentinels, Server};
use redis_rwlock::{Error, Health, MemoryManager, NodeRole, RedisManager, Refusal, RwLockManager, Topology};

use crate::errors::assert_refused;
use crate::servers::{ask, software};
use crate::topology::behind_sentinels;
use crate::wait::{Outcome, until};

crate::router::field::on_own_servers![server_and_its_memory_policy_are_told];
crate::fixture::on_two_threads![
    cluster_is_ready_without_a_replica_and_not_without_a_primary,
    sentinels_and_their_primary_are_told,
];

const RESPONSE_TIMEOUT: Duration = Duration::from_secs(1);

fn manager(topology: impl Into<Topology>) -> RedisManager {
    let builder = RedisManager::builder(topology).response_timeout(RESPONSE_TIMEOUT);
    builder.unreachable_after(Duration::from_secs(2)).build().expect("valid")
}

/// Checks the health, and asserts that this takes at most four response timeouts and what a busy machine adds.
async fn in_time(manager: &RedisManager) -> Health {
    let asked = Instant::now();
    let health = manager.health().await.expect("that nobody answers is no error");
    assert!(asked.elapsed() < RESPONSE_TIMEOUT * 4 + Duration::from_secs(2), "{:?}", asked.elapsed());
    health
}

fn problem(health: &Health) -> &str {
    assert!(!health.is_ready() && health.nodes.len() == 1 && !health.nodes[0].is_reachable, "{health:?}");
    health.nodes[0].problem.as_deref().expect("it says why")
}

#[tokio::test]
async fn nobody_there_is_told_and_why() {
    let health = in_time(&manager("redis://127.0.0.1:1")).await;
    assert_eq!(health.nodes[0].address, "127.0.0.1:1");
    assert!(problem(&health).contains("refused"), "{health:?}");
    let health = in_time(&manager(["redis://127.0.0.1:1", "redis://127.0.0.1:2"])).await;
    let roles: Vec<_> = health.nodes.iter().map(|node| (&*node.address, node.role)).collect();
    assert_eq!(roles, [("127.0.0.1:1", NodeRole::Unknown), ("127.0.0.1:2", NodeRole::Unknown)]);
    assert!(!health.is_ready());
}

#[tokio::test]
async fn silent_server_does_not_keep_the_answer() {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let health = in_time(&manager(&*url)).await;
    assert!(problem(&health).starts_with("greeting: no answer within"), "{health:?}");
    let urls = [&*url, "redis://127.0.0.1:1"];
    assert!(!in_time(&manager(urls)).await.is_ready());
    let frozen = Node::start(Server::Redis70).expect("the server starts");
    let manager = manager(&*frozen.url());
    assert!(in_time(&manager).await.is_ready());
    frozen.pause();
    assert!(!in_time(&manager).await.is_ready());
    frozen.resume();
    assert!(in_time(&manager).await.is_ready());
}

#[tokio::test]
async fn memory_manager_is_as_healthy_as_its_wire() {
    let manager = MemoryManager::new();
    manager.disconnect();
    let health = manager.health().await.expect("asked");
    assert!(!health.is_ready() && health.nodes[0].problem.is_some(), "{health:?}");
    manager.reconnect();
    assert!(manager.health().await.expect("asked").is_ready());
}

async fn server_and_its_memory_policy_are_told(server: Server) {
    let node = Node::start(server).expect("the server starts");
    let manager = manager(&*node.url());
    let health = in_time(&manager).await;
    let (told, (name, version)) = (&health.nodes[0], software(&node));
    assert_eq!((told.role, told.noeviction), (NodeRole::Primary, Some(true)));
    assert_eq!((told.server.as_deref(), told.version.as_deref()), (Some(&*name), Some(&*version)));
    ask(&node, &["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
    assert_eq!(in_time(&manager).await.nodes[0].noeviction, Some(false));
}

#[tokio::test]
async fn user_that_may_ask_little_is_told_little_and_nothing_wrong() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    node.acl_set_user("locks", &["on", ">secret", "~rwlock:{*", "+eval", "+evalsha", "+time"]).expect("a user");
    let manager = manager(node.url().replace("redis://", "redis://locks:secret@"));
    let health = in_time(&manager).await;
    assert!(health.is_ready(), "{health:?}");
    assert_eq!((health.nodes[0].role, health.nodes[0].noeviction), (NodeRole::Primary, None));
    let error = manager.locks().await.expect_err("it may not look through the keys");
    assert_refused(&error, Refusal::Forbidden);
    assert!(!error.to_string().contains("lock \""), "{error}");
}

async fn cluster_is_ready_without_a_replica_and_not_without_a_primary() {
    let cluster = Cluster::builder(Server::Valkey91).primaries(3).replicas(1).start().expect("the cluster starts");
    let manager = manager(Topology::cluster([cluster.urls()[0].clone()]));
    let count = |health: &Health, role| health.nodes.iter().filter(|node| node.role == role).count();
    // The members list a replica when they have heard of it.
    until("all members are known", async || {
        let health = in_time(&manager).await;
        (count(&health, NodeRole::Primary), count(&health, NodeRole::Replica)) == (3, 3)
    })
    .await;
    let health = in_time(&manager).await;
    assert!(health.is_ready() && health.nodes.iter().all(|node| node.is_reachable), "{health:?}");
    let addresses: HashSet<_> = health.nodes.iter().map(|node| node.address.clone()).collect();
    assert_eq!(addresses, cluster.nodes().iter().map(|node| node.addr().to_string()).collect());

    let primary = cluster.primaries()[0];
    let replica = cluster.replicas_of(primary)[0];
    replica.kill();
    let health = in_time(&manager).await;
    let lost = health.nodes.iter().find(|node| node.address == replica.addr().to_string()).expect("it is listed");
    assert!(health.is_ready() && !lost.is_reachable && lost.role == NodeRole::Replica, "{health:?}");

    primary.kill();
    assert!(!in_time(&manager).await.is_ready());
    let error = manager.locks().await.expect_err("there is no list with gaps");
    assert_matches!(error, Error::Unreachable { .. });
}

async fn sentinels_and_their_primary_are_told() {
    let servers = Sentinels::start(Server::Redis70).expect("the servers start");
    let manager = manager(behind_sentinels(&servers));
    let health = in_time(&manager).await;
    let role = |role| health.nodes.iter().filter(move |node| node.role == role && node.is_reachable).count();
    assert_eq!((role(NodeRole::Primary), role(NodeRole::Sentinel)), (1, servers.sentinels().len()), "{health:?}");
    assert!(health.is_ready());
    servers.sentinels()[0].kill();
    let health = in_time(&manager).await;
    assert!(health.is_ready() && health.nodes.iter().filter(|node| !node.is_reachable).count() == 1, "{health:?}");
}

#[tokio::test]
async fn counters_tell_of_lost_connections_and_late_renewals() -> Outcome {
    let node = Node::start(Server::Redis70)?;
    let manager = manager(&*node.url());
    let guard = manager.write("cfg").lease(Duration::from_secs(3)).await?;
    assert_eq!((manager.stats().reconnects, manager.stats().renewals_late, manager.stats().in_flight), (0, 0, 0));
    node.pause();
    until("a late renewal", async || manager.stats().renewals_late == 1).await;
    node.resume();
    until("an answer", async || manager.stats().renewals_late == 0).await;
    node.kill_clients()?;
    until("another connection", async || {
        drop(manager.try_read("other").await);
        manager.stats().reconnects > 0
    })
    .await;
    assert_eq!(manager.stats().map_refreshes, 0, "one node has no map");
    guard.release().await?;
    Ok(())
}
