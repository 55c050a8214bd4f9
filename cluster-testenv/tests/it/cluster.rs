//! Roles in a cluster, before and after faults. Each test has its own cluster, because it disturbs it.

use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server, wait_for};

/// Limit for a failover, ten times its usual duration.
const FAILOVER_BOUND: Duration = Duration::from_secs(25);
/// Node timeout with which a busy machine does not make a node look failed.
const NO_FAILOVER: Duration = Duration::from_secs(10);
const SUPPORTED: [Server; 2] = [Server::Redis82, Server::Valkey81];

fn wait_for_other_primary<'a>(cluster: &'a Cluster, slot: u16, old: &Node) -> &'a Node {
    wait_for("a new primary", FAILOVER_BOUND, || {
        let primary = cluster.primary_of_slot(slot);
        (primary.port() != old.port()).then_some(primary)
    })
    .unwrap()
}

fn ports(nodes: &[&Node]) -> Vec<u16> {
    nodes.iter().map(|node| node.port()).collect()
}

#[test]
fn roles_are_those_that_the_servers_report() {
    for server in SUPPORTED {
        let cluster = Cluster::builder(server).node_timeout(NO_FAILOVER).start().unwrap();
        assert_eq!((cluster.nodes().len(), cluster.urls().len()), (6, 6));
        let slot = cluster.keyslot("{user}:1");
        assert_eq!(slot, cluster.keyslot("user"));
        assert_eq!(slot, 5474, "the slot of `user` by the cluster specification");

        let primary = cluster.primary_of_slot(slot);
        assert!(primary.command(&["SET", "{user}:1", "value"]).unwrap().is_ok());
        for other in cluster.nodes().iter().filter(|node| node.port() != primary.port()) {
            let refused = other.command(&["SET", "{user}:1", "value"]).unwrap();
            assert_eq!(refused.error().unwrap(), format!("MOVED {slot} {}", primary.addr()));
        }

        assert_eq!(ports(&cluster.primaries()), ports(&cluster.nodes()[..3].iter().collect::<Vec<_>>()));
        for primary in cluster.primaries() {
            let replicas = cluster.replicas_of(primary);
            assert_eq!(replicas.len(), 1);
            let role = replicas[0].command(&["ROLE"]).unwrap();
            assert_eq!(role.array().unwrap()[0].text().unwrap(), "slave");
            assert_eq!(role.array().unwrap()[2].int(), Some(primary.port().into()));
            assert!(cluster.replicas_of(replicas[0]).is_empty());
        }
    }
}

#[test]
fn killed_primary_is_followed_by_its_replica_and_comes_back_as_one() {
    for server in SUPPORTED {
        let cluster = Cluster::start(server).unwrap();
        let slot = cluster.keyslot("a");
        let old = cluster.primary_of_slot(slot);
        let replica = cluster.replicas_of(old)[0];
        old.kill();
        let new = wait_for_other_primary(&cluster, slot, old);
        assert_eq!(new.port(), replica.port());
        // The other two nodes agree, and the slot can be written.
        cluster.wait_ok().unwrap();
        assert!(new.command(&["SET", "a", "1"]).unwrap().is_ok());

        old.restart().unwrap();
        wait_for("the old primary being a replica", FAILOVER_BOUND, || {
            (ports(&cluster.replicas_of(new)) == [old.port()]).then_some(())
        })
        .unwrap();
        cluster.wait_ok().unwrap();
        assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
    }
}

#[test]
fn paused_primary_that_wakes_after_a_failover_is_not_taken_for_the_owner() {
    for server in SUPPORTED {
        let cluster = Cluster::start(server).unwrap();
        let slot = cluster.keyslot("a");
        let old = cluster.primary_of_slot(slot);
        old.pause();
        let new = wait_for_other_primary(&cluster, slot, old);
        // For a moment the old primary still claims the slot, but its claim is the older one.
        old.resume();
        assert_eq!(cluster.primary_of_slot(slot).port(), new.port());
        cluster.wait_ok().unwrap();
        assert_eq!(ports(&cluster.replicas_of(new)), [old.port()]);
    }
}

#[test]
fn shape_and_arguments_are_those_that_were_asked_for() {
    let cluster = Cluster::builder(Server::Valkey91)
        .primaries(2)
        .replicas(2)
        .node_timeout(NO_FAILOVER)
        .arg("--maxmemory-policy", "noeviction")
        .start()
        .unwrap();
    assert_eq!(cluster.nodes().len(), 6);
    assert_eq!(cluster.primaries().len(), 2);
    for primary in cluster.primaries() {
        assert_eq!(cluster.replicas_of(primary).len(), 2);
    }
    for node in cluster.nodes() {
        for (name, value) in [("cluster-node-timeout", "10000"), ("maxmemory-policy", "noeviction")] {
            let answer = node.command(&["CONFIG", "GET", name]).unwrap();
            assert_eq!(answer.array().unwrap()[1].text().unwrap(), value);
        }
    }
}

#[test]
fn paused_or_dead_primary_without_a_replica_keeps_its_slots() {
    let cluster = Cluster::builder(Server::Redis70).primaries(2).replicas(0).start().unwrap();
    let [first, second] = cluster.nodes() else { panic!("there are two nodes") };
    assert!(cluster.replicas_of(first).is_empty());
    for hurt in [Node::pause, Node::kill] {
        hurt(first);
        assert_eq!(cluster.primary_of_slot(0).port(), first.port());
        assert_eq!(ports(&cluster.primaries()), ports(&[first, second]));
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
