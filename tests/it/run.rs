//! Work under a lock that `run` acquires and releases. The loss of the hold drops the work.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use redis_rwlock::{Error, FencingToken, LossReason, MemoryManager, RwLockManager, WriteGuard};

use crate::errors::assert_lost;
use crate::wait::{Outcome, granted, soon, stays_pending};

/// Value that notes the drop of the work.
struct Dropped(Arc<AtomicBool>);

impl Drop for Dropped {
    fn drop(&mut self) {
        self.0.store(true, Ordering::SeqCst);
    }
}

fn is_send<T: Send>(future: T) -> T {
    future
}

async fn token_of(guard: &WriteGuard) -> FencingToken {
    tokio::task::yield_now().await;
    guard.fencing_token()
}

/// Compiles, which is the whole case: the future is `Send` if the work is.
#[tokio::test]
async fn work_can_be_sent_where_its_own_future_can() -> Outcome {
    let manager: Arc<dyn RwLockManager> = Arc::new(MemoryManager::new());
    let taken = is_send(manager.write("cfg").run(token_of)).await?;
    let text = String::from("borrowed");
    let closure = async |guard: &WriteGuard| {
        tokio::task::yield_now().await;
        (guard.fencing_token(), text.len())
    };
    let (next, len) = is_send(manager.write("cfg").run(closure)).await?;
    assert!(next > taken && len == 8);
    let spawned = tokio::spawn({
        let manager = Arc::clone(&manager);
        async move { manager.read("cfg").run(async |guard| guard.fencing_token()).await }
    });
    assert!(spawned.await?? > next);
    let apart = std::rc::Rc::new(());
    manager.write("cfg").run(async |_| drop(apart)).await.expect("nor need it be fit");
    Ok(())
}

#[tokio::test]
async fn work_has_the_lock_and_no_longer() {
    let manager = MemoryManager::new();
    let other = manager.peer();
    let taken = manager.write("cfg").run(async |_| other.try_read("cfg").await.expect("answered").is_some()).await;
    assert!(!taken.expect("done"));
    assert!(other.inspect("cfg").await.expect("inspected").is_free());
}

#[tokio::test]
async fn work_is_dropped_when_its_hold_is_lost() {
    let manager = MemoryManager::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let work = Dropped(Arc::clone(&dropped));
    let working = manager.write("cfg").run(async move |_| {
        let _work = work;
        std::future::pending::<()>().await;
    });
    let mut working = Box::pin(working);
    stays_pending("the end of the work", &mut working).await;
    manager.force_release("cfg").await.expect("forced");
    let error = soon("word of the loss", working).await.expect_err("it was lost");
    assert_matches!(error, Error::Lost { reason: LossReason::Forced, lock, .. } if &**lock == "cfg");
    assert!(dropped.load(Ordering::SeqCst));
}

/// Work that ends at the moment of its hold counts as lost: others may have been inside.
#[tokio::test(start_paused = true)]
async fn work_that_ends_after_its_hold_is_lost() {
    let manager = MemoryManager::new();
    let lease = Duration::from_secs(2);
    let working = manager.write("cfg").fixed_lease(lease).run(async |_| tokio::time::advance(lease).await);
    let error = working.await.expect_err("it was lost");
    assert_lost(&error, LossReason::MaxHold);
}

#[tokio::test]
async fn server_that_knows_nothing_of_the_hold_makes_it_lost() {
    let manager = MemoryManager::new();
    let operator = manager.peer();
    let working = manager.write("cfg").run(async |_| operator.force_release("cfg").await.expect("forced"));
    let error = working.await.expect_err("it was ended before its release");
    assert_lost(&error, LossReason::Forced);
}

#[tokio::test]
async fn dropped_run_drops_its_work_and_gives_the_lock_back() {
    let manager = MemoryManager::new();
    let dropped = Arc::new(AtomicBool::new(false));
    let work = Dropped(Arc::clone(&dropped));
    let mut working = Box::pin(manager.write("cfg").run(async move |_| {
        let _work = work;
        std::future::pending::<()>().await;
    }));
    stays_pending("the end of the work", &mut working).await;
    drop(working);
    assert!(dropped.load(Ordering::SeqCst));
    let guard = granted(manager.peer().write("cfg")).await;
    guard.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_is_never_renewed() -> Outcome {
    let manager = MemoryManager::new();
    let guard = manager.write("cfg").fixed_lease(Duration::from_secs(3)).await?;
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(guard.remaining() < Duration::from_secs(1), "{:?}", guard.remaining());
    assert_eq!(guard.lost().await, LossReason::MaxHold);
    assert!(manager.peer().try_write("cfg").await?.is_none(), "the server's own deadline is later");
    tokio::time::sleep(Duration::from_millis(500)).await;
    assert!(manager.peer().try_write("cfg").await?.is_some());
    Ok(())
}
