//! Owners that acquire a lock twice at the same time.

use std::time::Duration;

use redis_rwlock::{MemoryManager, OwnerId, RwLockManager};

use crate::record::Recorder;
use crate::wait::{Outcome, granted, soon, stays_pending, until};

fn warnings(recorder: &Recorder) -> Vec<String> {
    recorder.lines().into_iter().filter(|line| line.starts_with("WARN")).collect()
}

/// Waits for the warning of an acquisition that is polled meanwhile.
async fn warned(recorder: &Recorder, waiting: impl Future) {
    let told = until("a warning", async || !warnings(recorder).is_empty());
    tokio::select! {
        _ = waiting => panic!("the lock is held"),
        () = told => {}
    }
}

#[tokio::test(start_paused = true)]
async fn named_owner_that_asks_twice_at_once_waits_for_itself_and_is_told_why() -> Outcome {
    let recorder = Recorder::start();
    let (manager, owner) = (MemoryManager::new(), OwnerId::new());
    let mut first = manager.write("cfg").owner(owner).into_future();
    let mut second = manager.write("cfg").owner(owner).into_future();
    // Another owner holds the lock, so both wait in the queue.
    let stranger = manager.write("cfg").await?;
    stays_pending("the first", &mut first).await;
    stays_pending("the second", &mut second).await;
    // Longer than until the first look for the owner's own holds.
    let looked = tokio::time::timeout(Duration::from_secs(4), &mut second).await;
    assert!(looked.is_err() && warnings(&recorder).is_empty(), "the stranger holds the lock");
    stranger.release().await?;
    let guard = granted(first).await;
    warned(&recorder, &mut second).await;
    let [warning] = <[String; 1]>::try_from(warnings(&recorder)).expect("one warning");
    assert!(warning.contains("in progress at the same time") && !warning.contains("opt in"), "{warning}");
    // An acquisition that comes now nests. The one in the queue gets the lock when both are gone.
    let nested = soon("a nested one", manager.write("cfg").owner(owner).into_future()).await?;
    guard.release().await?;
    nested.release().await?;
    granted(second).await.release().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn task_that_waits_for_itself_is_told_of_the_opt_in() {
    let recorder = Recorder::start();
    let manager = MemoryManager::new();
    let outer = manager.write("cfg").await.expect("granted");
    warned(&recorder, manager.read("cfg").into_future()).await;
    let warnings = warnings(&recorder);
    assert!(warnings[0].contains("opt in with `.reentrant()`"), "{warnings:?}");
    outer.release().await.expect("released");
}
