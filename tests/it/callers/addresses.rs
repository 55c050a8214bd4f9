//! Addresses without a lock server. Texts that are no URLs:
//! `options::bad_topologies_are_refused_without_their_passwords`.

use std::error::Error as _;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener};
use std::time::{Duration, Instant};

use redis_rwlock::{Error, RedisManager, RwLockManager, Topology, TwoKeyManager};

use crate::wait::soon;

const UNREACHABLE_AFTER: Duration = Duration::from_millis(300);

/// Asserts that a manager fails as unreachable, at connect and at first use, and that this does not take long.
async fn is_unreachable(topology: Topology) {
    let single = || TwoKeyManager::builder(topology.clone()).unreachable_after(UNREACHABLE_AFTER);
    let hash = || RedisManager::builder(topology.clone()).unreachable_after(UNREACHABLE_AFTER);
    let asked = Instant::now();
    let errors = [
        soon("the word", single().connect()).await.expect_err("no server is there"),
        soon("the word", hash().connect()).await.expect_err("no server is there"),
        soon("the word", hash().build().expect("built").write("cfg").into_future()).await.expect_err("nor here"),
        soon("the word", hash().build().expect("built").inspect("cfg")).await.expect_err("nor here"),
    ];
    // Each call takes its patience and a last try: a response timeout for the connection, and one for the answer.
    let most = (UNREACHABLE_AFTER + 2 * Duration::from_millis(500)) * 4 + Duration::from_secs(2);
    assert!(asked.elapsed() < most, "{:?}", asked.elapsed());
    for error in errors {
        assert_matches!(error, Error::Unreachable { .. });
        assert!(error.source().is_some(), "it says what went wrong: {error:?}");
    }
}

#[tokio::test]
async fn nobody_listens() {
    is_unreachable(Topology::node("redis://127.0.0.1:1")).await;
}

#[tokio::test]
async fn host_has_no_address() {
    is_unreachable(Topology::node("redis://no-such-host.invalid:6379")).await;
}

/// Answers every request as a web server would, until the test is over.
fn web_server() -> SocketAddr {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let address = listener.local_addr().expect("bound");
    std::thread::spawn(move || {
        for mut client in listener.incoming().flatten() {
            std::thread::spawn(move || {
                let mut request = [0; 1024];
                while client.read(&mut request).is_ok_and(|length| length > 0) {
                    if client.write_all(b"HTTP/1.1 400 Bad Request\r\ncontent-length: 0\r\n\r\n").is_err() {
                        break;
                    }
                }
            });
        }
    });
    address
}

#[tokio::test]
async fn server_speaks_something_else() {
    is_unreachable(Topology::node(format!("redis://{}", web_server()))).await;
}

#[test]
fn port_that_is_left_out_is_the_usual_one() {
    let manager = RedisManager::builder("redis://127.0.0.1").build().expect("built");
    assert!(format!("{manager:?}").contains("127.0.0.1:6379"), "{manager:?}");
}

#[test]
fn port_that_is_none_is_refused() {
    for url in ["redis://127.0.0.1:99999", "redis://127.0.0.1:port", "redis://", ""] {
        let error = RedisManager::builder(url).build().expect_err("no such port");
        assert!(matches!(error, Error::InvalidOption { option: "topology", .. }), "{url}: {error:?}");
    }
}
