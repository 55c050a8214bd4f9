//! What errors tell people.

use std::time::Duration;

use cluster_testenv::{Node, Server};
use redis_rwlock::{ClusterManager, Error, RwLockManager};

/// Nothing listens there.
const NOWHERE: &str = "redis://127.0.0.1:1";

#[tokio::test]
async fn connecting_speaks_of_no_lock() {
    let node = Node::builder(Server::Redis70).password("right").start().expect("the server starts");
    let closed = format!("redis://:wrong@{}", node.addr());
    for url in [NOWHERE, &closed] {
        let builder = ClusterManager::builder(url).unreachable_after(Duration::from_millis(50));
        let message = builder.connect().await.expect_err("nobody lets us in").to_string();
        assert!(!message.contains("lock") && !message.contains("\"\""), "{message}");
    }
}

#[tokio::test]
async fn durations_are_rounded() {
    let builder = ClusterManager::builder(NOWHERE).unreachable_after(Duration::from_millis(50));
    let error = builder.build().expect("built").write("cfg").await.expect_err("nobody is there");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let message = error.to_string();
    let (_, span) = message.split_once("within ").expect("it says how long");
    let (span, _) = span.split_once(':').expect("and what to do");
    let number = span.trim_end_matches("ms");
    assert!(number.parse::<u64>().is_ok_and(|ms| ms >= 50), "{message}");
}
