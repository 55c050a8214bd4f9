//! Many contenders for one lock, each of which gets the votes of some masters.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis_rwlock::RwLockManager;

use super::Field;

crate::fixture::on_two_threads![ten_contenders_are_all_served];

const CONTENDERS: usize = 10;
const LEASE: Duration = Duration::from_secs(10);
/// Time in which every contender gets the lock at least once.
const WINDOW: Duration = Duration::from_secs(5);

/// Number of grants of each contender in each window.
async fn contend(windows: u32) -> Vec<Vec<u32>> {
    let field = Field::start(5);
    let inside = Arc::new(AtomicU32::new(0));
    let began = Instant::now();
    let mut contenders = Vec::new();
    for _ in 0..CONTENDERS {
        let (manager, inside) = (field.manager(LEASE).await, Arc::clone(&inside));
        contenders.push(tokio::spawn(async move {
            let mut grants = vec![0; windows as usize];
            while began.elapsed() < WINDOW * windows {
                let guard = manager.write("cfg").await.expect("granted");
                assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                tokio::task::yield_now().await;
                inside.fetch_sub(1, Ordering::SeqCst);
                guard.release().await.expect("ours to the end");
                let window = (began.elapsed().as_nanos() / WINDOW.as_nanos()) as usize;
                if let Some(grants) = grants.get_mut(window) {
                    *grants += 1;
                }
            }
            grants
        }));
    }
    let contenders = join_all(contenders).await.into_iter();
    let grants: Vec<Vec<u32>> = contenders.map(|grants| grants.expect("no panic")).collect();
    (0..windows as usize).map(|window| grants.iter().map(|grants| grants[window]).collect()).collect()
}

async fn ten_contenders_are_all_served() {
    let grants = contend(1).await;
    assert!(grants[0].iter().all(|grants| *grants > 0), "{grants:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute; tells how the turns are divided"]
async fn ten_contenders_are_all_served_for_a_minute() {
    let grants = contend(12).await;
    for (window, grants) in grants.iter().enumerate() {
        let mut sorted = grants.clone();
        sorted.sort_unstable();
        let (least, median, most) = (sorted[0], sorted[CONTENDERS / 2], sorted[CONTENDERS - 1]);
        println!("{:>2} s: {least} / {median} / {most} turns", (window + 1) * 5);
    }
    assert!(grants.iter().flatten().all(|grants| *grants > 0), "{grants:?}");
}
