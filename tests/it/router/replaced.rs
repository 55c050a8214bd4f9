//! Clusters whose nodes are replaced. A manager finds its way while one member that it has seen is left, however long
//! it was idle. And a manager asks a healthy cluster for no map.

use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use redis_rwlock::{HoldState, Topology};

use super::field::{Field, name_of, on_own_servers};
use crate::fixture::{Fixture, Manager, Settings};
use crate::servers::ask;
use crate::wait::{Outcome, soon, stays_pending};

on_own_servers![idle_manager_finds_the_replicas_of_all_that_it_knew, healthy_cluster_is_not_asked_for_its_map];

/// Time limit of a case: the replacement of each of six nodes takes some seconds.
const BOUND: Duration = Duration::from_secs(240);

/// Takes a lock of each shard and gives it back.
async fn all_shards_work(cluster: &Cluster, field: &Field, manager: &Manager, round: usize) {
    for primary in cluster.primaries() {
        let name = name_of(&field.tag_at(primary), round);
        let guard = soon("a grant", manager.write(&name)).await.expect("its shard is well");
        guard.release().await.expect("ours to the end");
    }
}

async fn idle_manager_finds_the_replicas_of_all_that_it_knew(server: Server) {
    let field = Field::with_replicas(server);
    // The manager knows one URL only, and that node will be gone.
    let topology = Topology::cluster([field.cluster.nodes()[0].url()]);
    let fixture = Fixture::hash(topology);
    let manager = fixture.manager().await;
    let firsts: Vec<u16> = field.cluster.primaries().into_iter().map(Node::port).collect();
    let first = |port: &u16| field.cluster.nodes().iter().find(|node| node.port() == *port).expect("a node");
    for port in &firsts {
        field.cluster.failover(first(port)).expect("its replica takes over");
    }
    field.cluster.wait_ok().expect("all know");
    firsts.iter().for_each(|port| first(port).kill());
    all_shards_work(&field.cluster, &field, &manager, 0).await;
}

async fn healthy_cluster_is_not_asked_for_its_map(server: Server) -> Outcome {
    let field = Field::with_replicas(server);
    let (manager, other) = (field.manager().await, field.manager().await);
    let tags = field.tags();
    let mut guards = Vec::new();
    for tag in &tags {
        guards.push(manager.write(&name_of(tag, 0)).await?);
    }
    let names: Vec<String> = tags.iter().map(|tag| name_of(tag, 0)).collect();
    let mut waiting: Vec<_> = names.iter().map(|name| other.write(name).into_future()).collect();
    for waiting in &mut waiting {
        stays_pending("a grant beside a writer", waiting).await;
    }
    let waiting = tokio::spawn(futures_util::future::join_all(waiting));
    // Waits until all managers are connected and subscribed.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let before = field.calls_of("cluster|slots");
    // Watches for longer than the pause of any periodic task.
    tokio::time::sleep(Duration::from_secs(8)).await;
    assert_eq!(field.calls_of("cluster|slots"), before, "nothing was wrong, and the map was asked for");
    for guard in guards {
        guard.release().await?;
    }
    for granted in soon("all grants", waiting).await? {
        granted.expect("granted").release().await?;
    }
    Ok(())
}

async fn rolling_replacement_at_new_addresses_loses_nothing(server: Server) {
    let mut field = Field::on(Cluster::builder(server).node_timeout(Duration::from_secs(15)).start());
    let manager = field.manager_with(Settings::lease(Duration::from_secs(10))).await;
    let tag = field.tag();
    let held = name_of(&tag, 1000);
    let guard = manager.write(&held).await.expect("granted");
    let before: Vec<u16> = field.cluster.nodes().iter().map(Node::port).collect();
    for index in 0..before.len() {
        tokio::task::block_in_place(|| field.cluster.replace(index)).expect("replaced");
        assert!(!matches!(guard.state(), HoldState::Lost(_)), "after {index}: {:?}", guard.state());
    }
    assert!(field.cluster.nodes().iter().all(|node| !before.contains(&node.port())), "all are new");
    all_shards_work(&field.cluster, &field, &manager, 0).await;
    let writer = ask(field.owner(&tag), &["HGET", &field.hash_key(&held), "h"]);
    assert!(!writer.is_nil(), "the hold is where its shard is");
    guard.release().await.expect("ours to the end");
}

mod rolling_replacement_at_new_addresses_loses_nothing {
    use super::{BOUND, rolling_replacement_at_new_addresses_loses_nothing as case};

    crate::fixture::on_each_server!(within BOUND, case);
}
