//! Many want one lock, and divide the masters among them.

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis_rwlock::RwLockManager;

use super::Field;
use crate::wait::bounded;

const CONTENDERS: usize = 10;
const LEASE: Duration = Duration::from_secs(10);

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn ten_contenders_are_all_served() {
    bounded(async {
        let field = Field::start(5);
        let inside = Arc::new(AtomicU32::new(0));
        let ends = Instant::now() + Duration::from_secs(5);
        let mut contenders = Vec::new();
        for _ in 0..CONTENDERS {
            let (manager, inside) = (field.manager(LEASE).await, Arc::clone(&inside));
            contenders.push(tokio::spawn(async move {
                let mut turns = 0;
                while Instant::now() < ends {
                    let guard = manager.write("cfg").await.expect("granted");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0, "two are inside");
                    tokio::task::yield_now().await;
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().await.expect("ours to the end");
                    turns += 1;
                }
                turns
            }));
        }
        let turns: Vec<u32> = join_all(contenders).await.into_iter().map(|turns| turns.expect("no panic")).collect();
        assert!(turns.iter().all(|turns| *turns > 0), "{turns:?}");
        println!("turns of ten contenders in five seconds: {turns:?}");
    })
    .await;
}
