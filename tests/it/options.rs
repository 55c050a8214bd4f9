//! Options that cannot work: the builder refuses them, and the manager sends nothing.

use std::time::Duration;

use redis_rwlock::{
    Build, Builder, MemoryManager, RedisManager, RedissonManager, RwLockManager, Topology, TwoKeyManager, blocking,
};

use crate::errors::option_of;
use crate::fixture::{Fixture, Settings, on_every_fixture};
use crate::wait::Outcome;

on_every_fixture![lease_of_an_acquisition_is_checked, options_of_a_manager_are_checked];

async fn lease_of_an_acquisition_is_checked(f: &Fixture) {
    let settings = Settings { max_clock_skew: Duration::from_millis(100), ..Settings::default() };
    let ([manager], name) = f.scene_with(settings).await;
    for lease in [Duration::ZERO, Duration::from_millis(1), Duration::from_millis(150), Duration::MAX] {
        let error = manager.write(&name).lease(lease).await.expect_err("of no use");
        assert_eq!(option_of(&error), "lease", "{lease:?}");
        let error = manager.read(&name).lease(lease).try_now().await.expect_err("of no use");
        assert_eq!(option_of(&error), "lease", "{lease:?}");
    }
    let error = manager.write(&name).max_hold(Duration::from_millis(1)).await.expect_err("of no use");
    assert_eq!(option_of(&error), "max_hold");
    assert!(f.view(&name).await.is_free());
    let guard = manager.write(&name).max_hold(Duration::MAX).await.expect("no limit is a limit");
    guard.release().await.expect("released");
}

async fn options_of_a_manager_are_checked(f: &Fixture) {
    let ms = Duration::from_millis;
    let with = Settings::default;
    let cases = [
        ("lease", Settings { lease: ms(5), ..with() }),
        ("lease", Settings { lease: ms(500), max_clock_skew: ms(400), ..with() }),
        ("max_hold", Settings { max_hold: ms(1), ..with() }),
        ("label", Settings { label: String::new(), ..with() }),
        ("label", Settings { label: "two words".to_owned(), ..with() }),
        ("label", Settings { label: "line\n".to_owned(), ..with() }),
        ("label", Settings { label: "x".repeat(65), ..with() }),
        ("response_timeout", Settings { response_timeout: Duration::ZERO, ..with() }),
        ("response_timeout", Settings { response_timeout: Duration::MAX, ..with() }),
        ("unreachable_after", Settings { unreachable_after: Duration::ZERO, ..with() }),
        ("max_waiters", Settings { max_waiters: 0, ..with() }),
        ("lease", Settings { max_clock_skew: Duration::MAX, ..with() }),
        ("lease", Settings { lease: Duration::from_micros(999), max_clock_skew: Duration::ZERO, ..with() }),
        ("lease", Settings { lease: Duration::MAX, ..with() }),
    ];
    for (option, settings) in cases {
        let shown = format!("{settings:?}");
        let error = f.connect(settings).await.expect_err("of no use");
        assert_eq!(option_of(&error), option, "{shown}");
    }
}

fn refuses_bad_prefixes<M: Build>(builder: impl Fn() -> Builder<M>) {
    for prefix in ["", "a b", "a{b", "a}", "a#b", "ü", "a\0", &"x".repeat(65)] {
        let error = builder().key_prefix(prefix).build().expect_err("of no use");
        assert_eq!(option_of(&error), "key_prefix", "{prefix:?}");
    }
    builder().key_prefix("my-app:locks").build().expect("a good prefix");
}

#[test]
fn bad_prefixes_are_refused() {
    refuses_bad_prefixes(MemoryManager::builder);
    refuses_bad_prefixes(|| TwoKeyManager::builder("redis://127.0.0.1:1"));
    refuses_bad_prefixes(|| RedisManager::builder("redis://127.0.0.1:1"));
}

#[tokio::test]
async fn prefixes_keep_locks_apart() -> Outcome {
    let store = MemoryManager::new();
    let one = store.peer_builder().key_prefix("one").build()?;
    let other = store.peer_builder().key_prefix("other").build()?;
    let guard = one.write("cfg").await?;
    let apart = other.try_write("cfg").await?.expect("another prefix, another lock");
    drop((guard, apart));
    Ok(())
}

#[test]
fn bad_topologies_are_refused_without_their_passwords() {
    let secret = "hunter2";
    let urls = [format!("redis://:{secret}@[bad"), format!("nonsense:{secret}"), format!("http://u:{secret}@host")];
    for url in urls {
        let cluster = Topology::cluster([url.as_str()]);
        let errors = [
            TwoKeyManager::builder(url.as_str()).build().expect_err("no such URL"),
            RedisManager::builder(url.as_str()).build().expect_err("no such URL"),
            RedisManager::builder(cluster).build().expect_err("no such URL"),
            blocking::RedisManager::connect(url.as_str()).expect_err("no such URL"),
        ];
        for error in errors {
            assert_eq!(option_of(&error), "topology");
            let shown = format!("{error} {error:?}");
            assert!(!shown.contains(secret), "{shown}");
        }
    }
    let none: [&str; 0] = [];
    let error = RedisManager::builder(Topology::cluster(none)).build().expect_err("no node");
    assert_eq!(option_of(&error), "topology");
}

#[test]
fn watchdog_of_redisson_that_margins_eat_is_refused() {
    let build = |watchdog, skew| {
        let builder = RedissonManager::builder("redis://127.0.0.1:1").lease(Duration::from_secs(10));
        builder.lock_watchdog_timeout(watchdog).max_clock_skew(skew).build()
    };
    let (second, skew) = (Duration::from_secs(1), Duration::from_millis(600));
    let error = build(second, skew).expect_err("its guards would end before their first renewal");
    assert_eq!(option_of(&error), "lock_watchdog_timeout");
    build(second, Duration::from_millis(100)).expect("the margins leave enough");
    build(second * 2, skew).expect("the margins leave enough");
    build(second * 63_072_000, skew).expect("the lease is shorter than these two years");
}

#[test]
fn two_key_scheme_on_a_cluster_is_refused() {
    let builder = TwoKeyManager::builder(Topology::cluster(["redis://127.0.0.1:1"]));
    assert_eq!(option_of(&builder.build().expect_err("two keys need one node")), "topology");
}
