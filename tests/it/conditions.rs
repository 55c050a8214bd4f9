//! Servers that answer but have a problem, and servers that are healthy again. The log and `health` show both, without
//! a request of a caller.

use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use redis_rwlock::{NodeFinding, QuorumManager, Refusal, RwLockManager, Topology};
use tokio::runtime::Handle;
use tracing::Level;

use crate::errors::assert_refused;
use crate::record::{Recorder, manager_here};
use crate::servers::{ask, software};
use crate::wait::{Outcome, bounded, pair, until, works};

async fn idle_process_finds_its_server_again() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let recorder = Recorder::at(Level::INFO);
    let manager = manager_here(node.url());
    works(&manager, "cfg").await;
    node.kill();
    // The test asks, because no lost release and no waiter does.
    until("the log line", async || {
        assert!(!manager.health().await.expect("asked").is_ready());
        recorder.count("does not answer") == 1
    })
    .await;
    node.restart().expect("the server starts");
    // No caller asks for anything now. The end of the outage comes by itself, in the log as in the gauge.
    until("the log line about the end", async || recorder.count("answers again") == 1).await;
    assert_eq!(recorder.count("connected to"), 1, "{:#?}", recorder.lines());
}

#[tokio::test]
async fn server_is_found_again_by_a_process_that_uses_none() {
    bounded(idle_process_finds_its_server_again()).await;
}

async fn replaced_primary_is_found_again() {
    let cluster = Cluster::builder(Server::Valkey91).replicas(1).start().expect("the cluster starts");
    let dies = cluster.primary_of_slot(cluster.keyslot("{cfg}"));
    let stays = cluster.primaries().into_iter().find(|node| node.addr() != dies.addr()).expect("another one");
    let recorder = Recorder::at(Level::INFO);
    // The user does not name the node that dies, and it owns nothing afterwards, so the manager forgets it.
    let manager = manager_here(Topology::cluster([stays.url()]));
    works(&manager, "cfg").await;
    dies.kill();
    until("the failover is over", async || pair(&manager, "cfg").await.is_ok()).await;
    let back = format!("{} answers again", dies.addr());
    assert_eq!((recorder.count("does not answer"), recorder.count(&back)), (1, 0), "{:#?}", recorder.lines());
    dies.restart().expect("the server starts");
    until("the log line about the end", async || recorder.count(&back) == 1).await;
    assert_eq!(recorder.count("connected to"), 1, "{:#?}", recorder.lines());
}

#[tokio::test]
async fn primary_that_was_replaced_and_is_back_is_unusable_no_more() {
    bounded(replaced_primary_is_found_again()).await;
}

async fn full_memory_is_told_once_and_its_end(user: Option<&str>) {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let rights = [
        "on",
        ">secret",
        "~rwlock:{*",
        "+eval",
        "+evalsha",
        "+time",
        "+hmget",
        "+hget",
        "+hset",
        "+hdel",
        "+pexpireat",
    ];
    node.acl_set_user("locks", &rights).expect("a user");
    let recorder = Recorder::at(Level::INFO);
    let url =
        user.map_or_else(|| node.url(), |user| node.url().replace("redis://", &format!("redis://{user}:secret@")));
    let manager = manager_here(url);
    works(&manager, "cfg").await;
    assert!(manager.health().await.expect("asked").is_ready());
    ask(&node, &["CONFIG", "SET", "maxmemory", "1"]);
    for _ in 0..3 {
        let error = manager.try_write("cfg").await.expect_err("there is no memory");
        assert_refused(&error, Refusal::OutOfMemory);
    }
    assert_eq!(recorder.count("memory is full"), 1, "{:#?}", recorder.lines());
    let health = manager.health().await.expect("asked");
    assert!(!health.is_ready(), "{health:?}");
    let NodeFinding::MemoryFull { used, maxmemory } = &health.nodes[0].findings[0] else { panic!("{health:?}") };
    assert_eq!((used.is_some(), *maxmemory), (user.is_none(), user.is_none().then_some(1)));
    ask(&node, &["CONFIG", "SET", "maxmemory", "0"]);
    if user.is_none() {
        until("the log line about the end", async || recorder.count("has recovered: its memory") == 1).await;
        assert!(manager.health().await.expect("asked").is_ready());
    }
    assert_eq!(recorder.count("memory is full"), 1, "{:#?}", recorder.lines());
}

#[tokio::test]
async fn full_memory_changes_log_and_readiness() {
    bounded(full_memory_is_told_once_and_its_end(None)).await;
}

#[tokio::test]
async fn full_memory_is_known_from_refusals_where_info_is_not_allowed() {
    bounded(full_memory_is_told_once_and_its_end(Some("locks"))).await;
}

#[tokio::test]
async fn policy_that_evicts_is_told_at_the_first_connection() {
    bounded(async {
        let node = Node::start(Server::Valkey91).expect("the server starts");
        ask(&node, &["CONFIG", "SET", "maxmemory-policy", "volatile-lru"]);
        let recorder = Recorder::at(Level::INFO);
        let manager = manager_here(node.url());
        works(&manager, "cfg").await;
        until("the log line", async || recorder.count("maxmemory-policy is volatile-lru") == 1).await;
        let health = manager.health().await.expect("asked");
        assert!(health.is_ready(), "locks are granted");
        assert_eq!(health.nodes[0].findings, [NodeFinding::Evicts { policy: "volatile-lru".to_owned() }]);
        ask(&node, &["CONFIG", "SET", "maxmemory-policy", "noeviction"]);
        assert!(manager.health().await.expect("asked").nodes[0].findings.is_empty());
        assert_eq!(recorder.count("has recovered: its policy"), 1);
    })
    .await;
}

#[tokio::test]
async fn clock_that_is_off_is_told_by_answers() {
    bounded(async {
        let nodes: Vec<Node> =
            (0..3).map(|_| Node::builder(Server::Redis70).clock().start().expect("the server starts")).collect();
        nodes[1].clock().step_forward(Duration::from_secs(3));
        let recorder = Recorder::at(Level::INFO);
        let builder = QuorumManager::builder(nodes.iter().map(Node::url)).restarts_are_delayed();
        let manager = builder.background_on(Handle::current()).build().expect("valid");
        works(&manager, "cfg").await;
        let told = format!("{} answers, but its clock is", nodes[1].addr());
        until("the log line", async || recorder.count(&told) == 1).await;
        assert_eq!(recorder.count("its clock is"), 1, "{:#?}", recorder.lines());
        assert_eq!(recorder.count("connected to"), 1, "{:#?}", recorder.lines());
        let health = manager.health().await.expect("asked");
        let off: Vec<_> =
            health.nodes.iter().filter(|node| !node.findings.is_empty()).map(|node| &node.address).collect();
        assert_eq!(off, [&nodes[1].addr().to_string()], "{health:?}");
    })
    .await;
}

#[tokio::test]
async fn line_at_the_start_names_server_version_and_durability_and_no_secret() -> Outcome {
    let node = Node::builder(Server::Redis70).password("sesame").start()?;
    let recorder = Recorder::at(Level::INFO);
    let manager = manager_here(node.url());
    pair(&manager, "cfg").await?;
    pair(&manager, "cfg").await?;
    let lines = recorder.lines();
    let line = lines.iter().find(|line| line.contains("connected to")).expect("a line");
    let (name, version) = software(&node);
    for part in [&node.addr().to_string(), &format!("{name} {version}"), "durability Primary"] {
        assert!(line.contains(part), "{part}: {line}");
    }
    assert!(!line.contains("sesame"), "{line}");
    assert_eq!(recorder.count("connected to"), 1, "{lines:#?}");
    Ok(())
}
