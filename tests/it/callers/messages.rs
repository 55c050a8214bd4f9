//! Messages of errors.

use std::error::Error as StdError;
use std::io;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Sentinels, Server, TlsClients};
use redis_rwlock::{Build, Builder, Error, RedisManager, Refusal, RwLockManager, Topology};

/// Address at which no server listens.
const NOWHERE: &str = "redis://127.0.0.1:1";

#[tokio::test]
async fn connecting_speaks_of_no_lock() {
    let node = Node::builder(Server::Redis70).password("right").start().expect("the server starts");
    let closed = format!("redis://:wrong@{}", node.addr());
    for url in [NOWHERE, &closed] {
        let builder = RedisManager::builder(url).unreachable_after(Duration::from_millis(50));
        let message = builder.connect().await.expect_err("nobody lets us in").to_string();
        assert!(!message.contains("lock") && !message.contains("\"\""), "{message}");
    }
}

#[tokio::test]
async fn durations_are_rounded() {
    let builder = RedisManager::builder(NOWHERE).unreachable_after(Duration::from_millis(50));
    let error = builder.build().expect("built").write("cfg").await.expect_err("nobody is there");
    assert_matches!(error, Error::Unreachable { .. });
    let message = error.to_string();
    let (_, span) = message.split_once("within ").expect("it says how long");
    let (span, _) = span.split_once(':').expect("and what to do");
    let number = span.trim_end_matches("ms");
    assert!(number.parse::<u64>().is_ok_and(|ms| ms >= 50), "{message}");
}

fn impatient<M: Build>(builder: Builder<M>) -> Builder<M> {
    builder.unreachable_after(Duration::from_millis(500))
}

async fn connects_not(topology: impl Into<Topology>) -> Error {
    impatient(RedisManager::builder(topology)).connect().await.expect_err("it cannot be used so")
}

/// Messages of an error and of its sources. Asserts that no message contains one of a source below it.
fn chain(error: &Error) -> Vec<String> {
    let mut told = vec![error.to_string()];
    let mut below = error.source();
    while let Some(cause) = below {
        told.push(cause.to_string());
        below = cause.source();
    }
    for (n, cause) in told.iter().enumerate().skip(1) {
        assert!(told[..n].iter().all(|above| !above.contains(cause)), "{told:#?}");
    }
    told
}

/// Error of each of four writers of one lock, of which one asks the server and the others wait for its answer.
async fn errors_of_four_writers(limit: Option<Duration>) -> Vec<Error> {
    let manager = RedisManager::builder(NOWHERE).unreachable_after(Duration::from_millis(300)).build().expect("built");
    let write = || async {
        let acquire = manager.write("cfg");
        match limit {
            Some(limit) => acquire.wait_timeout(limit).await,
            None => acquire.await,
        }
    };
    let writers = (0..4).map(|_| async { write().await.expect_err("nobody is there") });
    futures_util::future::join_all(writers).await
}

#[tokio::test]
async fn each_waiter_is_told_the_node_and_the_cause() {
    for limit in [None, Some(Duration::from_millis(100))] {
        for error in errors_of_four_writers(limit).await {
            assert_matches!(error, Error::Unreachable { node: Some(node), .. } if &**node == "127.0.0.1:1");
            let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>()).expect("the system's");
            assert_eq!(cause.kind(), io::ErrorKind::ConnectionRefused);
        }
    }
}

#[tokio::test]
async fn node_is_named_and_the_cause_is_an_io_error() {
    let nobody = "127.0.0.1:1";
    let topologies = [Topology::node(NOWHERE), Topology::cluster([NOWHERE]), Topology::sentinel("main", [NOWHERE])];
    for topology in topologies {
        let manager = impatient(RedisManager::builder(topology.clone())).build().expect("built");
        let (connected, written, read, inspected, listed) = tokio::join!(
            connects_not(topology),
            manager.write("cfg").into_future(),
            manager.try_read("other"),
            manager.inspect("cfg"),
            manager.locks(),
        );
        let outcomes = [written.map(drop), read.map(drop), inspected.map(drop), listed.map(drop)];
        let errors = outcomes.into_iter().map(|outcome| outcome.expect_err("nobody is there")).chain([connected]);
        for error in errors {
            assert_matches!(error, Error::Unreachable { node: Some(node), .. } if &**node == nobody);
            assert_eq!(error.to_string().matches(nobody).count(), 1, "{error}");
            let cause = error.source().and_then(|cause| cause.downcast_ref::<io::Error>());
            assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused), "{error:?}");
            assert_eq!(chain(&error).len(), 2, "{error:?}");
        }
    }
}

#[tokio::test]
async fn silent_node_is_named() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let manager = impatient(RedisManager::builder(node.url())).connect().await.expect("connects");
    node.pause();
    for _ in 0..2 {
        let error = manager.write("cfg").await.expect_err("it is silent");
        let address = node.addr().to_string();
        assert_matches!(error, Error::Unreachable { node: Some(node), .. } if **node == *address);
        assert!(chain(&error)[1..].iter().all(|cause| !cause.contains(&address)), "{error:?}");
    }
    node.resume();
}

fn assert_advises(error: &Error, node: &str, advice: &str) {
    let told = error.to_string();
    assert!(told.contains(node) && told.contains(advice), "{told}");
    assert!(chain(error).len() <= 3, "{:?}", chain(error));
    if let Error::Refused { refusal, .. } = error {
        assert_eq!(*refusal, Refusal::OtherTopology, "{told}");
    }
}

/// Asserts that the topology is refused with this advice. A refusal comes at once, whatever the patience is.
async fn is_refused(topology: impl Into<Topology>, node: &str, advice: &str) {
    let error = RedisManager::connect(topology).await.expect_err("it cannot be used so");
    assert_advises(&error, node, advice);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn wrong_topologies_are_put_right() {
    let servers = Sentinels::start(Server::Redis70).expect("the servers start");
    let (sentinel, node) = (servers.sentinels()[0].url(), servers.primary());
    let sentinel_address = servers.sentinels()[0].addr().to_string();
    is_refused(Topology::sentinel("nobody", [sentinel.clone()]), &sentinel_address, "SENTINEL MASTERS").await;
    is_refused(Topology::node(sentinel), &sentinel_address, "`Topology::sentinel`").await;
    let address = node.addr().to_string();
    is_refused(Topology::sentinel("main", [node.url()]), &address, "no Sentinel").await;
    is_refused(Topology::cluster([node.url()]), &address, "`Topology::node`").await;
    let cluster = Cluster::builder(Server::Redis70).start().expect("the cluster starts");
    let member = &cluster.nodes()[0];
    is_refused(Topology::node(member.url()), &member.addr().to_string(), "`Topology::cluster`").await;
}

#[tokio::test]
async fn tls_on_one_side_only_is_advised() {
    let plain = Node::start(Server::Redis70).expect("the server starts");
    let error = connects_not(plain.url().replace("redis://", "rediss://")).await;
    assert_advises(&error, &plain.addr().to_string(), "or use `redis://`");
    let secure = Node::builder(Server::Redis70).tls(TlsClients::Optional).start().expect("the server starts");
    let error = connects_not(secure.url().replace("rediss://", "redis://")).await;
    assert_advises(&error, secure.url().trim_start_matches("rediss://"), "`rediss://`");
}
