//! Tests that an environment is ready only when its replicas have all writes.

use std::{thread, time::Duration};

use cluster_testenv::{Cluster, Node, Reply, Result, Sentinels, Server, wait_for};

const BOUND: Duration = Duration::from_secs(20);
/// Pause that is longer than a case, which ends it early.
const PAUSE: Duration = Duration::from_secs(60);
/// Node timeout that is longer than any pause here, so that no failover happens by itself.
const NO_FAILOVER: Duration = Duration::from_secs(15);
const SUPPORTED: [Server; 2] = [Server::Redis70, Server::Valkey81];

/// Returns how often the server answered a look at its state.
fn looks_at(node: &Node) -> i64 {
    let stats = node.command(&["INFO", "commandstats"]).unwrap();
    let stats = stats.text().unwrap().into_owned();
    let count = |line: &str| line.strip_prefix("cmdstat_role:calls=")?.split(',').next()?.parse().ok();
    stats.lines().find_map(count).unwrap_or(0)
}

/// Tests a replica that is linked and answers, but does not carry out its primary's writes.
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
