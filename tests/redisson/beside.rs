//! A client of Redisson and a manager of this crate, on one lock.

use std::time::Duration;

use redis_rwlock::RwLockManager;

use crate::java::Version;
use crate::places::Place;

const WAITS: Duration = Duration::from_millis(300);

/// Runs a case with each version of Redisson, on a node and on a cluster.
macro_rules! beside {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use crate::java::Version;
            use crate::places::Place;

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v4_on_a_node() {
                super::run(super::$case(&Place::node(Version::V4)));
            }

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v3_on_a_node() {
                super::run(super::$case(&Place::node(Version::V3)));
            }

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v4_on_a_cluster() {
                super::run(super::$case(&Place::cluster(Version::V4)));
            }

            #[test]
            #[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
            fn v3_on_a_cluster() {
                super::run(super::$case(&Place::cluster(Version::V3)));
            }
        }
    )+};
}

beside![writers_wait_for_each_other];

fn run(case: impl Future<Output = ()>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    let bounded = async { tokio::time::timeout(Duration::from_secs(120), case).await.expect("the case ends") };
    runtime.expect("a runtime starts").block_on(bounded);
}

async fn writers_wait_for_each_other(place: &Place) {
    let (rust, java) = (place.manager().await, place.java().await);
    let mut one = java.actor("one").await;

    one.ok("lock w cfg").await;
    assert!(rust.try_write("cfg").await.expect("answered").is_none());
    assert!(rust.try_read("cfg").await.expect("answered").is_none());
    let waiting = tokio::spawn(rust.write("cfg").into_future());
    tokio::time::sleep(WAITS).await;
    assert!(!waiting.is_finished());
    let released = std::time::Instant::now();
    one.ok("unlock w cfg").await;
    let guard = waiting.await.expect("no panic").expect("granted");
    println!("java wakes rust after {:?}", released.elapsed());

    assert_eq!(one.ask("try w cfg 0").await, "false");
    one.begin("lock w cfg").await;
    assert_eq!(one.answer_within(WAITS).await, None);
    let released = std::time::Instant::now();
    guard.release().await.expect("ours to the end");
    assert_eq!(one.answer().await, "ok");
    println!("rust wakes java after {:?}", released.elapsed());
    one.ok("unlock w cfg").await;
    assert_eq!(place.fields_of("cfg"), []);
}
