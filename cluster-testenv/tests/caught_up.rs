//! An environment is well when its replicas have what was written, not before.

use std::{thread, time::Duration};

use cluster_testenv::{Cluster, Node, Reply, Result, Sentinels, Server, wait_for};

const BOUND: Duration = Duration::from_secs(20);
/// Longer than a case takes: it ends when it is told to.
const PAUSE: Duration = Duration::from_secs(60);
/// Longer than anything stands still here, so that nothing fails over by itself.
const NO_FAILOVER: Duration = Duration::from_secs(15);
const SUPPORTED: [Server; 2] = [Server::Redis70, Server::Valkey91];

/// How often a server was asked how it is.
fn looks_at(node: &Node) -> i64 {
    let stats = node.command(&["INFO", "commandstats"]).unwrap();
    let stats = stats.text().unwrap().into_owned();
    let count = |line: &str| line.strip_prefix("cmdstat_role:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(count).unwrap_or(0)
}

/// A replica that is linked, answers, and does not carry out what its primary sends.
fn replica_that_lags_is_waited_for(primary: &Node, replica: &Node, key: &str, wait_ok: impl Fn() -> Result<()> + Sync) {
    replica.pause_writes(PAUSE).unwrap();
    assert!(primary.command(&["SET", key, "value"]).unwrap().is_ok());
    let asked = looks_at(primary);
    thread::scope(|scope| {
        let waiting = scope.spawn(&wait_ok);
        let looked_twice = || waiting.is_finished() || looks_at(primary) >= asked + 2;
        wait_for("two looks", BOUND, || looked_twice().then_some(())).unwrap();
        assert!(!waiting.is_finished(), "it is called well, and the replica lacks what was written");
        replica.unpause_writes().unwrap();
        waiting.join().unwrap().unwrap();
    });
    let found = replica.command(&["KEYS", key]).unwrap();
    assert_eq!(found.array().map(<[Reply]>::len), Some(1));
}

#[test]
fn cluster_waits_for_a_replica_that_lags() {
    for server in SUPPORTED {
        let cluster = Cluster::builder(server).node_timeout(NO_FAILOVER).start().unwrap();
        let primary = cluster.primary_of_slot(cluster.keyslot("a"));
        let replica = cluster.replicas_of(primary)[0];
        replica_that_lags_is_waited_for(primary, replica, "a", || cluster.wait_ok());
    }
}

#[test]
fn sentinels_wait_for_a_replica_that_lags() {
    for server in SUPPORTED {
        let sentinels = Sentinels::builder(server).down_after(NO_FAILOVER).start().unwrap();
        let replica = sentinels.replicas()[1];
        replica_that_lags_is_waited_for(sentinels.primary(), replica, "a", || sentinels.wait_ok());
    }
}
