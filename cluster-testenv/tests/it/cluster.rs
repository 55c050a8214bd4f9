//! Roles in a cluster, before and after faults. Each test has its own cluster, because it disturbs it.

use std::time::Duration;

use cluster_testenv::{Cluster, Error, Node, Server, wait_for};

/// Limit for the news of a failover, far longer than it takes.
const BELIEVED_WITHIN: Duration = Duration::from_secs(10);
/// Node timeout that is longer than any pause here, so that no failover happens by itself.
const NO_FAILOVER: Duration = Duration::from_secs(10);
const SUPPORTED: [Server; 2] = [Server::Redis82, Server::Valkey91];

/// Fails over and back faster than the nodes forget their votes, while the replaced primary cannot learn of it.
#[test]
fn replica_that_was_elected_a_moment_ago_is_believed_by_all() {
    for server in SUPPORTED {
        let cluster = Cluster::builder(server).node_timeout(NO_FAILOVER).proxied().password("secret").start().unwrap();
        let slot = cluster.keyslot("a");
        for round in 0..4 {
            let old = cluster.primary_of_slot(slot);
            let other = cluster.primaries().into_iter().find(|node| node.port() != old.port()).unwrap();
            old.pause();
            let new = cluster.failover_force(old).unwrap();
            let moved = format!("MOVED {slot} {}", new.proxy().addr());
            let is_believed = || other.command(&["GET", "a"]).unwrap().error() == Some(moved.as_str());
            let what = format!("{server}, round {round}: belief in the new primary");
            wait_for(what, BELIEVED_WITHIN, || is_believed().then_some(())).unwrap();
            // For a moment the old primary still claims the slot, but its claim is the older one.
            old.resume();
            assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
            cluster.wait_ok().unwrap();
        }
        let last = cluster.primary_of_slot(slot);
        last.kill();
        let new = cluster.takeover(last).unwrap();
        assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());
        let error = cluster.failover(new).unwrap_err();
        assert!(matches!(error, Error::Unsupported(_)), "the only replica is dead: {error}");
    }
}

#[test]
fn paused_or_dead_primary_without_a_replica_keeps_its_slots() {
    let cluster = Cluster::builder(Server::Redis70).primaries(2).replicas(0).start().unwrap();
    let first = &cluster.nodes()[0];
    for hurt in [Node::pause, Node::kill] {
        hurt(first);
        assert_eq!(cluster.primary_of_slot(0).port(), first.port());
        assert_eq!(cluster.primaries().len(), 2);
    }
}

#[test]
fn primary_that_does_not_hear_of_its_successor_serves_beside_it() {
    for server in SUPPORTED {
        let cluster = Cluster::builder(server).node_timeout(NO_FAILOVER).proxied_bus().start().unwrap();
        let old = cluster.primary_of_slot(cluster.keyslot("a"));
        old.bus_proxy().freeze();
        old.pause();
        let new = cluster.failover_force(old).unwrap();
        cluster.nodes().iter().for_each(|node| node.bus_proxy().freeze());
        old.resume();
        for node in [old, new] {
            assert!(node.command(&["SET", "a", &node.port().to_string()]).unwrap().is_ok());
        }
        cluster.nodes().iter().for_each(|node| node.bus_proxy().heal());
        cluster.wait_ok().unwrap();
        assert_eq!(old.command(&["ROLE"]).unwrap().array().unwrap()[0].text().unwrap(), "slave");
        assert_eq!(new.command(&["GET", "a"]).unwrap().text().unwrap(), new.port().to_string());
    }
}
