//! When a router behind Sentinels asks them for the primary.

use std::time::Instant;

use parking_lot::Mutex;

use super::*;
use crate::net::fake::{answering, hello};

/// Time limit that is far longer than the answer of a Sentinel takes.
const BOUND: Duration = Duration::from_secs(30);
/// Shortest time between two questions in the test, in milliseconds.
const APART: u128 = 400;

#[tokio::test]
async fn primary_without_the_word_of_its_replicas_may_have_been_replaced() {
    let (host, asked) = (Arc::new(Mutex::new("10.0.0.1")), Arc::<AtomicUsize>::default());
    let (named, questions) = (Arc::clone(&host), Arc::clone(&asked));
    let sentinel = answering(move |_, words| match words[0].to_ascii_uppercase().as_str() {
        "HELLO" => hello("sentinel"),
        "SENTINEL" => {
            questions.fetch_add(1, Ordering::SeqCst);
            let host = *named.lock();
            format!("*2\r\n${}\r\n{host}\r\n$4\r\n6379\r\n", host.len())
        }
        _ => "+OK\r\n".to_owned(),
    });
    let topology = Topology::sentinel("main", [format!("redis://{}", sentinel.await)]);
    let background = BackgroundRuntime::On(tokio::runtime::Handle::current());
    let router = Router::new(&topology, &Options::default(), &background).expect("valid");
    let old = router.owner(0).await.expect("the Sentinel names it");
    assert_eq!(old.address(), "10.0.0.1:6379");
    *host.lock() = "10.0.0.2";
    let unreplicated = Fault::Unreplicated { asked: 1, acknowledged: 0 };
    let began = Instant::now();
    while router.owner(0).await.expect("it is known").address() == old.address() {
        assert!(began.elapsed() < BOUND, "nobody asks the Sentinel");
        router.judge(&old, Some(&unreplicated));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert_eq!(router.owner(0).await.expect("it is known").address(), "10.0.0.2:6379");

    // Many grants that fail ask no more often than one.
    let (before, began) = (asked.load(Ordering::SeqCst), Instant::now());
    for _ in 0..100 {
        router.judge(&old, Some(&unreplicated));
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    let more = asked.load(Ordering::SeqCst) - before;
    let most = 1 + began.elapsed().as_millis() / APART;
    assert!((1..=most).contains(&(more as u128)), "{more} questions, and not {most}");
}

#[test]
fn one_master_under_two_urls_is_refused() {
    let error = crate::QuorumManager::builder(["redis://a.example", "redis://:pw@A.example:6379", "redis://b.example"])
        .build()
        .expect_err("the first two are one server");
    assert!(matches!(&error, crate::Error::InvalidOption { option: "masters", .. }), "{error:?}");
    assert!(!error.to_string().contains("pw"), "{error}");
}
