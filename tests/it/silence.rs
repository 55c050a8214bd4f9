//! Servers that accept connections and do not answer. Their silence is no denial. A server that answers gets at least
//! one request.

use std::net::TcpListener;
use std::time::Duration;

use redis_rwlock::{Error, MemoryManager, RedisManager, RwLockManager, Topology};

/// A listener whose connections stay in its backlog: connected, and silent.
fn silent_server() -> (TcpListener, String) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    (listener, url)
}

#[tokio::test]
async fn silence_within_the_wait_timeout_is_no_denial() {
    let (_listener, url) = silent_server();
    let manager = RedisManager::builder(Topology::node(url)).build().expect("valid options");
    let error = manager.write("cfg").wait_timeout(Duration::from_millis(50)).await.expect_err("nobody answers");
    assert_matches!(error, Error::Unreachable { .. });
}

#[tokio::test]
async fn nesting_does_not_trip_over_a_guard_that_was_just_dropped() {
    let manager = MemoryManager::new();
    for _ in 0..100 {
        drop(manager.read("cfg").reentrant().await.expect("granted"));
        let write = manager.write("cfg").reentrant().await.expect("the read is over");
        write.release().await.expect("released");
    }
}
