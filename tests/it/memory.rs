//! Faults that users' tests cause in memory.

use std::error::Error as _;
use std::io;
use std::time::Duration;

use redis_rwlock::{Error, HoldState, LossReason, MemoryManager, RwLockManager};

use crate::errors::assert_lost;
use crate::wait::{Outcome, granted, stays_pending};

#[tokio::test(start_paused = true)]
async fn disconnected_manager_reaches_nobody_and_says_why() {
    let manager = MemoryManager::new();
    manager.disconnect();
    manager.disconnect();
    for outcome in [
        manager.write("cfg").await.map(drop),
        manager.try_read("cfg").await.map(drop),
        manager.inspect("cfg").await.map(drop),
        manager.force_release("cfg").await.map(drop),
    ] {
        let error = outcome.expect_err("nobody answers");
        assert_matches!(error, Error::Unreachable { .. });
        let cause = error.source().and_then(|source| source.downcast_ref::<io::Error>());
        assert_eq!(cause.map(io::Error::kind), Some(io::ErrorKind::ConnectionRefused), "{error:?}");
    }
    let guard = manager.peer().write("cfg").await.expect("its peers are connected");
    guard.release().await.expect("released");
    MemoryManager::builder().connect().await.expect("other stores too");
}

#[tokio::test(start_paused = true)]
async fn hold_is_unconfirmed_and_then_lost_and_a_peer_has_it() -> Outcome {
    let manager = MemoryManager::new();
    let guard = manager.write("cfg").lease(Duration::from_secs(6)).await?;
    manager.disconnect();
    assert_eq!(guard.state(), HoldState::Held, "nobody has asked yet");
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert_eq!(guard.state(), HoldState::Unconfirmed);
    assert!(manager.peer().try_write("cfg").await?.is_none());
    assert_eq!(guard.lost().await, LossReason::Expired);
    let heir = manager.peer().write("cfg").await?;
    manager.reconnect();
    let error = guard.release().await.expect_err("it stays lost");
    assert_lost(&error, LossReason::Expired);
    heir.release().await?;
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn reconnected_hold_is_held_again() {
    let manager = MemoryManager::new();
    let guard = manager.write("cfg").lease(Duration::from_secs(9)).await.expect("granted");
    manager.disconnect();
    tokio::time::sleep(Duration::from_secs(4)).await;
    assert_eq!(guard.state(), HoldState::Unconfirmed);
    manager.reconnect();
    tokio::time::sleep(Duration::from_secs(20)).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn waiter_gets_no_notification_while_it_is_cut_off_and_is_let_in_after() -> Outcome {
    let here = MemoryManager::new();
    let there = here.peer();
    let guard = there.write("cfg").await?;
    let mut waiting = here.write("cfg").into_future();
    stays_pending("a grant beside a writer", &mut waiting).await;
    here.disconnect();
    guard.release().await?;
    stays_pending("word of the grant", &mut waiting).await;
    here.reconnect();
    let asked = tokio::time::Instant::now();
    granted(waiting).await.release().await?;
    assert!(asked.elapsed() < Duration::from_millis(500), "it is told to ask: {:?}", asked.elapsed());
    Ok(())
}

#[tokio::test(start_paused = true)]
async fn lost_store_knows_nobody_and_its_tokens_grow() -> Outcome {
    let here = MemoryManager::new();
    let there = here.peer();
    let guard = here.write("cfg").lease(Duration::from_secs(6)).await?;
    there.lose_all();
    let heir = there.try_write("cfg").await?.expect("nobody has it");
    assert!(heir.fencing_token() > guard.fencing_token());
    assert_eq!(guard.lost().await, LossReason::Gone);
    heir.release().await?;
    Ok(())
}
