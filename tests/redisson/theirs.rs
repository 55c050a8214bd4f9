//! The cases of Redisson's own test of its read-write lock that concern several threads, on a mixed pair. Times are shorter.
//!
//! | case of `RedissonReadWriteLockTest` | case here |
//! |---|---|
//! | `testReadLockExpiration` | [`reader_with_a_short_lease_does_not_shorten_a_long_one`] |
//! | `testReadLockExpirationRenewal` | [`many_readers_are_renewed`] |
//! | `testName` | [`name_with_a_hash_tag_is_one_lock`] |
//! | `testReadLockLeaseTimeoutDiffThreadsWRR` | [`readers_enter_when_the_lease_of_a_writer_is_over`] |
//! | `testReadLockLeaseTimeoutDiffThreadsRRW`, `testReadLockLeaseTimeout` | [`writer_enters_when_the_lease_of_the_last_reader_is_over`] |
//! | `testWriteRead` | [`crowd_of_readers_enters_at_once`] |
//! | `testWriteReadReentrancy`, `testWriteLock`, `testHoldCount`, `testReentrancy` | `beside::reentry_counts_on_either_side`, `beside::downgrade_lets_readers_in` |
//! | `testMultiRead` | `beside::readers_share_and_keep_writers_out` |
//! | `testForceUnlock` | `beside::force_ends_holds_of_the_other` |
//! | `testExpireRead`, `testExpireWrite` | `beside::lease_of_redisson_ends_by_itself` |
//! | `testAutoExpire` | `beside::process_that_is_killed_holds_for_its_lease` |
//! | `testIsLockedOtherThread`, `testIsHeldByCurrentThreadOtherThread` | [`each_side_sees_that_the_other_has_the_lock`] |
//! | `testUnlockFail` | [`nobody_releases_the_hold_of_the_other`] |
//! | `testInCluster` | all of them `v4_on_a_cluster` |
//! | `testConcurrency_SingleInstance`, `testConcurrencyLoop_MultiInstance`, `testConcurrency_MultiInstance` | `soak` |
//!
//! `testReadLockIsLocked`, `testWriteLockExpiration`, `testWR`, `testReadWriteTTL`, `testIsLocked`, `testIsHeldByCurrentThread`
//! and `testLockUnlock` are about one thread.

use std::time::{Duration, Instant};

use redis_rwlock::{HoldState, RwLockManager};

use crate::places::{Place, beside};
use crate::wait::{Outcome, spawn};

beside![
    reader_with_a_short_lease_does_not_shorten_a_long_one,
    many_readers_are_renewed,
    name_with_a_hash_tag_is_one_lock,
    readers_enter_when_the_lease_of_a_writer_is_over,
    writer_enters_when_the_lease_of_the_last_reader_is_over,
    crowd_of_readers_enters_at_once,
    each_side_sees_that_the_other_has_the_lock,
    nobody_releases_the_hold_of_the_other,
];

/// Time by which a busy machine may be late.
const LATE: Duration = Duration::from_millis(1_500);

async fn reader_with_a_short_lease_does_not_shorten_a_long_one(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let (long, short) = (Duration::from_secs(4), Duration::from_millis(900));
    let (began, ours) = (Instant::now(), rust.read("cfg").fixed_lease(long).await?);
    one.ok(&format!("lock r cfg {}", short.as_millis())).await;
    two.begin("lock w cfg").await;
    tokio::time::sleep(short * 8 / 10).await;
    one.ok("unlock r cfg").await;
    assert_eq!(two.answer_within(long * 6 / 10).await, None, "the long lease is not over");
    ours.release().await?;
    assert_eq!(two.answer().await, "ok");
    assert!(began.elapsed() < long + LATE);
    two.ok("unlock w cfg").await;
    // The other way round: theirs is long, and ours is over.
    let began = Instant::now();
    one.ok(&format!("lock r cfg {}", long.as_millis())).await;
    let ours = rust.read("cfg").fixed_lease(short).await?;
    let writer = spawn(rust.write("cfg"));
    drop(ours);
    tokio::time::sleep(long * 6 / 10).await;
    assert!(!writer.is_finished(), "the long lease is not over");
    let writer = writer.await??;
    assert!(began.elapsed() > long - Duration::from_millis(50) && began.elapsed() < long + LATE);
    writer.release().await?;
    Ok(())
}

async fn many_readers_are_renewed(place: &Place) -> Outcome {
    const EACH: usize = 10;
    let watchdog = Duration::from_secs(3);
    let java = place.java_with(watchdog).await;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for n in 0..EACH {
        let mut actor = java.actor(&format!("reader{n}")).await;
        actor.ok("lock r cfg").await;
        theirs.push(actor);
        let manager = place.builder().lock_watchdog_timeout(watchdog).connect().await?;
        ours.push(manager.read("cfg").await?);
    }
    tokio::time::sleep(watchdog * 2).await;
    for guard in ours {
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await?;
    }
    for mut actor in theirs {
        actor.ok("unlock r cfg").await;
    }
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn name_with_a_hash_tag_is_one_lock(place: &Place) -> Outcome {
    const NAME: &str = "{test}:abc:key";
    let (rust, mut one, _) = place.sides().await;
    for _ in 0..10 {
        let ours = rust.read(NAME).await?;
        one.ok(&format!("lock r {NAME}")).await;
        ours.release().await?;
        assert!(rust.try_write(NAME).await?.is_none());
        one.ok(&format!("unlock r {NAME}")).await;
    }
    one.ok(&format!("lock w {NAME}")).await;
    let waiting = spawn(rust.write(NAME));
    tokio::time::sleep(Duration::from_millis(200)).await;
    let released = Instant::now();
    one.ok(&format!("unlock w {NAME}")).await;
    let ours = waiting.await??;
    assert!(released.elapsed() < Duration::from_millis(700), "woken: {:?}", released.elapsed());
    one.begin(&format!("lock w {NAME}")).await;
    assert_eq!(one.answer_within(Duration::from_millis(200)).await, None);
    ours.release().await?;
    assert_eq!(one.answer().await, "ok");
    one.ok(&format!("unlock w {NAME}")).await;
    Ok(())
}

async fn readers_enter_when_the_lease_of_a_writer_is_over(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let lease = Duration::from_secs(2);
    for writer in ["java", "rust"] {
        let began = Instant::now();
        let forgotten = if writer == "java" {
            one.ok(&format!("lock w cfg {}", lease.as_millis())).await;
            None
        } else {
            Some(rust.write("cfg").fixed_lease(lease).await?)
        };
        two.begin("lock r cfg").await;
        let ours = place.manager().await.read("cfg").await?;
        assert_eq!(two.answer().await, "ok");
        assert!(began.elapsed() > lease - Duration::from_millis(50), "{writer}: {:?}", began.elapsed());
        assert!(began.elapsed() < lease + LATE, "{writer}: {:?}", began.elapsed());
        two.ok("unlock r cfg").await;
        ours.release().await?;
        drop(forgotten);
    }
    Ok(())
}

async fn writer_enters_when_the_lease_of_the_last_reader_is_over(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let lease = Duration::from_secs(3);
    for reader in ["java", "rust"] {
        let began = Instant::now();
        let forgotten = if reader == "java" {
            one.ok(&format!("lock r cfg {}", lease.as_millis())).await;
            None
        } else {
            Some(rust.read("cfg").fixed_lease(lease).await?)
        };
        // Others come and go, and do not lengthen that.
        tokio::time::sleep(lease / 2).await;
        two.ok(&format!("lock r cfg {}", lease.as_millis())).await;
        two.ok("unlock r cfg").await;
        rust.flush().await?;
        let other = place.manager().await;
        other.read("cfg").lease(lease).await?.release().await?;
        let writer = other.write("cfg").wait_timeout(lease * 2).await?;
        assert!(began.elapsed() > lease - Duration::from_millis(100), "{reader}: {:?}", began.elapsed());
        // A reader of ours that leaves does not shorten the time of the lock that it has lengthened.
        assert!(began.elapsed() < lease * 3 / 2 + LATE, "{reader}: {:?}", began.elapsed());
        writer.release().await?;
        drop(forgotten);
    }
    Ok(())
}

async fn crowd_of_readers_enters_at_once(place: &Place) -> Outcome {
    const EACH: usize = 10;
    let java = place.java().await;
    let mut writer = java.actor("writer").await;
    writer.ok("lock w cfg").await;
    let (mut theirs, mut ours) = (Vec::new(), Vec::new());
    for n in 0..EACH {
        let mut actor = java.actor(&format!("reader{n}")).await;
        actor.begin("lock r cfg").await;
        theirs.push(actor);
        ours.push(spawn(place.manager().await.read("cfg")));
    }
    tokio::time::sleep(Duration::from_secs(1)).await;
    let released = Instant::now();
    writer.ok("unlock w cfg").await;
    let mut guards = Vec::new();
    for waiting in ours {
        guards.push(waiting.await??);
    }
    for actor in &mut theirs {
        assert_eq!(actor.answer().await, "ok");
    }
    assert!(released.elapsed() < LATE, "{:?}", released.elapsed());
    for actor in &mut theirs {
        actor.ok("unlock r cfg").await;
    }
    for guard in guards {
        guard.release().await?;
    }
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn each_side_sees_that_the_other_has_the_lock(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    let ours = rust.read("cfg").await?;
    assert_eq!((one.ask("locked r cfg").await, one.ask("locked w cfg").await), ("true".into(), "false".into()));
    assert_eq!((one.ask("mine r cfg").await, one.ask("count r cfg").await), ("false".into(), "0".into()));
    ours.release().await?;
    let ours = rust.write("cfg").await?;
    assert_eq!((one.ask("locked r cfg").await, one.ask("locked w cfg").await), ("false".into(), "true".into()));
    assert_eq!(one.ask("mine w cfg").await, "false");
    ours.release().await?;
    assert_eq!((one.ask("locked r cfg").await, one.ask("locked w cfg").await), ("false".into(), "false".into()));
    one.ok("lock w cfg").await;
    assert!(!rust.inspect("cfg").await?.is_free());
    one.ok("unlock w cfg").await;
    assert!(rust.inspect("cfg").await?.is_free());
    Ok(())
}

async fn nobody_releases_the_hold_of_the_other(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    let ours = rust.read("cfg").await?;
    for mode in ["r", "w"] {
        one.is_refused(&format!("unlock {mode} cfg")).await;
    }
    ours.release().await?;
    let ours = rust.write("cfg").await?;
    for mode in ["r", "w"] {
        one.is_refused(&format!("unlock {mode} cfg")).await;
    }
    ours.release().await?;
    Ok(())
}
