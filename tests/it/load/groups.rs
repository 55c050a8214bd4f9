//! Requests of an acquisition of several locks, counted by the server.

use std::time::Duration;

use cluster_testenv::{Node, Reply, Server};
use redis_rwlock::{Topology, read, write};

use super::LONG;
use crate::fixture::{Fixture, Settings, on_one_replica};
use crate::servers::{Pair, ask};
use crate::wait::bounded;

/// Returns the numbers of reads from and writes to sockets that the server has counted.
fn socket_calls(node: &Node) -> (u64, u64) {
    let Reply::Bulk(stats) = ask(node, &["INFO", "stats"]) else { panic!("the server answers with a text") };
    let stats = String::from_utf8(stats).expect("text");
    let count = |field: &str| {
        let line = stats.lines().find_map(|line| line.strip_prefix(field)).expect("the server counts that");
        line.trim().parse().expect("a number")
    };
    (count("total_reads_processed:"), count("total_writes_processed:"))
}

/// Three free locks take one write and one read of the manager's socket, and so does their release.
#[tokio::test]
async fn free_locks_of_a_group_take_one_write_and_one_read_of_the_socket() {
    bounded(async {
        let node = Node::builder(Server::Redis70).start().expect("the server starts");
        let fixture = Fixture::hash(Topology::node(node.url()));
        let manager = fixture.manager_with(Settings::lease(LONG)).await;
        let group = [write("a"), read("b"), write("c")];
        // The connection and the scripts are there afterwards.
        manager.all(&group).await.expect("free").release().await.expect("ours to the end");
        let look_alone = {
            let before = socket_calls(&node);
            let after = socket_calls(&node);
            (after.0 - before.0, after.1 - before.1)
        };
        let before = socket_calls(&node);
        let guard = manager.all(&group).await.expect("free");
        let after = socket_calls(&node);
        let calls = (after.0 - before.0 - look_alone.0, after.1 - before.1 - look_alone.1);
        assert_eq!(calls, (1, 1), "the server read once and wrote once");
        let before = socket_calls(&node);
        guard.release().await.expect("ours to the end");
        let after = socket_calls(&node);
        let calls = (after.0 - before.0 - look_alone.0, after.1 - before.1 - look_alone.1);
        assert_eq!(calls, (1, 1), "the server read once and wrote once");
    })
    .await;
}

/// Returns how often the server has executed the command.
fn calls_of(node: &Node, command: &str) -> u64 {
    let Reply::Bulk(stats) = ask(node, &["INFO", "commandstats"]) else { panic!("the server answers with a text") };
    let (stats, line) = (String::from_utf8(stats).expect("text"), format!("cmdstat_{command}:calls="));
    let calls = stats.lines().find_map(|stat| stat.strip_prefix(&line)).and_then(|rest| rest.split(',').next());
    calls.map_or(0, |calls| calls.parse().expect("a number"))
}

/// Where replicas must acknowledge grants, three free locks take one pipeline with one `WAIT`, on several threads too.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn free_locks_of_a_group_share_one_wait_for_the_replicas() {
    const ROUNDS: u64 = 50;
    bounded(async {
        let pair = Pair::proxied(Server::Redis70);
        let (node, fixture) = (&pair.primary, Fixture::hash(Topology::node(pair.primary.url())));
        let (durability, response_timeout) = (on_one_replica(Duration::from_secs(5)), Duration::from_secs(10));
        let manager = fixture.manager_with(Settings { durability, response_timeout, ..Settings::lease(LONG) }).await;
        let group = [write("a"), read("b"), write("c")];
        // The connections and the scripts are there afterwards.
        manager.all(&group).await.expect("free").release().await.expect("ours to the end");
        let (waits, scripts) = (calls_of(node, "wait"), calls_of(node, "evalsha"));
        for _ in 0..ROUNDS {
            manager.all(&group).await.expect("free").release().await.expect("ours to the end");
        }
        assert_eq!(calls_of(node, "evalsha") - scripts, 6 * ROUNDS, "three locks come and go in each round");
        assert_eq!(calls_of(node, "wait") - waits, ROUNDS);
    })
    .await;
}
