//! A proxy in front of a cluster: one address, and each request goes to the server of its key.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, RoutingProxy, Server};
use redis_rwlock::{Durability, Error, RedisManager, Refusal, RwLockManager, Topology, TwoKeyManager};

use crate::errors::assert_refused;
use crate::fixture::{Fixture, on_one_replica};
use crate::wait::{Outcome, granted, spawn};

crate::fixture::on_two_threads![
    locks_of_all_slots_are_had_through_a_proxy,
    hold_survives_a_migration_of_its_slot_behind_a_proxy,
    what_a_proxy_cannot_do_is_refused_with_the_reason,
];

/// Names whose slots belong to the three primaries of a cluster.
const NAMES: [&str; 3] = ["a", "b", "c"];

fn start() -> (Cluster, RoutingProxy) {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
    let proxy = RoutingProxy::before(&cluster).expect("a proxy");
    (cluster, proxy)
}

async fn locks_of_all_slots_are_had_through_a_proxy() -> Outcome {
    let (cluster, proxy) = start();
    let owners: std::collections::BTreeSet<_> =
        NAMES.iter().map(|name| cluster.primary_of_slot(cluster.keyslot(name)).port()).collect();
    assert_eq!(owners.len(), 3, "the names are at different servers");
    let behind = Fixture::hash(Topology::proxy(proxy.url()));
    let direct = behind.manager_elsewhere(Topology::cluster(cluster.urls())).await;
    let manager = behind.manager().await;
    for name in NAMES {
        let held = manager.write(name).await?;
        assert!(direct.try_read(name).await?.is_none(), "it is the same lock");
        let began = Instant::now();
        let waiting = spawn(direct.write(name));
        behind.until_waiting(1, name).await;
        held.release().await?;
        let written = granted(waiting).await;
        // The other way round, no notification comes: the waiter asks once a second.
        let released = began.elapsed();
        let waiting = spawn(manager.read(name));
        behind.until_waiting(1, name).await;
        written.release().await?;
        let read = granted(waiting).await;
        assert!(began.elapsed() - released < Duration::from_secs(3), "{:?}", began.elapsed());
        read.release().await?;
        assert!(behind.view(name).await.holders.is_empty());
    }
    Ok(())
}

async fn hold_survives_a_migration_of_its_slot_behind_a_proxy() -> Outcome {
    let (cluster, proxy) = start();
    let fixture = Fixture::hash(Topology::proxy(proxy.url()));
    let manager = fixture.manager().await;
    let name = fixture.name();
    let held = manager.write(&name).await?;
    let slot = cluster.keyslot(fixture.hash_key(&name));
    let from = cluster.primary_of_slot(slot).port();
    let to = cluster.nodes().iter().find(|node| node.port() != from).expect("another node");
    cluster.migrate_slot(slot, to).expect("migrated");
    assert!(manager.try_write(&name).await?.is_none(), "it is held");
    held.release().await?;
    assert!(fixture.view(&name).await.holders.is_empty());
    Ok(())
}

async fn what_a_proxy_cannot_do_is_refused_with_the_reason() {
    let (_cluster, proxy) = start();
    let topology = || Topology::proxy(proxy.url());
    let refused = |built: Result<(), Error>, wanted: &str| match built {
        Err(Error::InvalidOption { option, reason, .. }) if option == wanted => {
            assert!(reason.contains("proxy"), "{reason}")
        }
        other => panic!("{wanted}: {other:?}"),
    };
    refused(TwoKeyManager::builder(topology()).build().map(drop), "topology");
    let cached = RedisManager::builder(topology()).cache_for(Duration::from_secs(1));
    refused(cached.build().map(drop), "cache_for");
    let replicated = RedisManager::builder(topology()).durability(on_one_replica(Duration::from_millis(100)));
    refused(replicated.build().map(drop), "durability");
    let mapped = topology().remap(|host, port| (host.to_owned(), port));
    refused(RedisManager::builder(mapped).build().map(drop), "remap");
    let manager = RedisManager::builder(topology()).durability(Durability::Primary).connect().await.expect("connected");
    let error = manager.locks().await.expect_err("it sees the keys of one server");
    assert_refused(&error, Refusal::OtherTopology);
    let health = manager.health().await.expect("asked");
    assert!(health.nodes.len() == 1 && health.nodes[0].is_reachable, "{health:?}");
}
