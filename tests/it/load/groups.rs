//! Requests of an acquisition of several locks, counted by the server.

use std::time::Duration;

use cluster_testenv::{Node, Server};
use redis_rwlock::{Topology, read, write};

use super::LONG;
use crate::fixture::{Fixture, Settings, on_one_replica};
use crate::router::field::calls_of;
use crate::servers::{Pair, ask};
use crate::wait::bounded;

/// Returns the numbers of reads from and writes to sockets that the server has counted.
fn socket_calls(node: &Node) -> [u64; 2] {
    let stats = ask(node, &["INFO", "stats"]).text().expect("a text").into_owned();
    ["total_reads_processed:", "total_writes_processed:"].map(|field| {
        let line = stats.lines().find_map(|line| line.strip_prefix(field)).expect("the server counts that");
        line.trim().parse().expect("a number")
    })
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
        let look = socket_calls(&node);
        let before = socket_calls(&node);
        let guard = manager.all(&group).await.expect("free");
        let taken = socket_calls(&node);
        guard.release().await.expect("ours to the end");
        let released = socket_calls(&node);
        // Each look costs as much as the first one did.
        let calls = |since: [u64; 2], until: [u64; 2]| [0, 1].map(|n| until[n] - since[n] - (before[n] - look[n]));
        assert_eq!(calls(before, taken), [1, 1], "the server read once and wrote once");
        assert_eq!(calls(taken, released), [1, 1], "the server read once and wrote once");
    })
    .await;
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
