//! A client of Redisson and a manager of this crate, on one lock: what each does, the other obeys.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, LossReason, Mode, RwLockManager};

use crate::places::{Place, WATCHDOG, beside};
use crate::wait::{Outcome, spawn, until, works};

/// Time for which a case sees that somebody still waits. No case depends on its length.
const WAITS: Duration = Duration::from_millis(300);
/// Time that is far longer than a message takes, and shorter than the second after which a waiter asks by itself.
const WOKEN: Duration = Duration::from_millis(700);

beside![
    writers_wait_for_each_other,
    readers_share_and_keep_writers_out,
    waiting_readers_enter_together,
    reentry_counts_on_either_side,
    downgrade_lets_readers_in,
    upgrade_needs_a_sole_reader,
    lease_of_redisson_ends_by_itself,
    watchdog_of_redisson_keeps_its_lock,
    hold_outlives_renewals_that_cut_the_key,
    force_ends_holds_of_the_other,
    view_shows_holders_of_both,
    dead_reader_of_redisson_goes_with_the_last_live_one,
    process_that_is_killed_holds_for_its_lease,
];

async fn writers_wait_for_each_other(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;

    one.ok("lock w cfg").await;
    assert!(rust.try_write("cfg").await?.is_none());
    assert!(rust.try_read("cfg").await?.is_none());
    let waiting = spawn(rust.write("cfg"));
    tokio::time::sleep(WAITS).await;
    assert!(!waiting.is_finished());
    let released = Instant::now();
    one.ok("unlock w cfg").await;
    let guard = waiting.await??;
    assert!(released.elapsed() < WOKEN, "a message of Redisson wakes the manager: {:?}", released.elapsed());

    assert_eq!(one.ask("try w cfg 0").await, "false");
    assert_eq!(one.ask("try r cfg 0").await, "false");
    one.begin("lock w cfg").await;
    assert_eq!(one.answer_within(WAITS).await, None);
    let released = Instant::now();
    guard.release().await?;
    assert_eq!(one.answer().await, "ok");
    assert!(released.elapsed() < WOKEN, "a message of the manager wakes Redisson: {:?}", released.elapsed());
    one.ok("unlock w cfg").await;
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn readers_share_and_keep_writers_out(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let other = place.manager().await;
    for first in ["rust", "java"] {
        let ours = if first == "rust" {
            let ours = rust.read("cfg").await?;
            one.ok("lock r cfg").await;
            ours
        } else {
            one.ok("lock r cfg").await;
            rust.read("cfg").await?
        };
        let theirs = other.read("cfg").await?;
        assert_eq!(ours.fencing_token(), theirs.fencing_token(), "readers of this crate share a token");
        two.ok("lock r cfg").await;
        assert_eq!(two.ask("try w cfg 0").await, "false");
        assert!(rust.try_write("cfg").await?.is_none());
        // Whoever leaves last frees the lock, and wakes a writer of the other side.
        theirs.release().await?;
        two.ok("unlock r cfg").await;
        if first == "rust" {
            let waiting = spawn(other.write("cfg"));
            ours.release().await?;
            tokio::time::sleep(WAITS).await;
            assert!(!waiting.is_finished(), "a reader of Redisson is inside");
            let released = Instant::now();
            one.ok("unlock r cfg").await;
            let writer = waiting.await??;
            assert!(released.elapsed() < WOKEN, "{:?}", released.elapsed());
            writer.release().await?;
        } else {
            one.ok("unlock r cfg").await;
            two.begin("lock w cfg").await;
            assert_eq!(two.answer_within(WAITS).await, None, "a reader of this crate is inside");
            let released = Instant::now();
            ours.release().await?;
            assert_eq!(two.answer().await, "ok");
            assert!(released.elapsed() < WOKEN, "{:?}", released.elapsed());
            two.ok("unlock w cfg").await;
        }
    }
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn waiting_readers_enter_together(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let writer = rust.write("cfg").await?;
    one.begin("lock r cfg").await;
    two.begin("lock r cfg").await;
    let ours = spawn(place.manager().await.read("cfg"));
    assert_eq!(one.answer_within(WAITS).await, None);
    let released = Instant::now();
    writer.release().await?;
    let ours = ours.await??;
    assert_eq!((one.answer().await, two.answer().await), ("ok".to_owned(), "ok".to_owned()));
    assert!(released.elapsed() < WOKEN * 2, "{:?}", released.elapsed());
    one.ok("unlock r cfg").await;
    two.ok("unlock r cfg").await;
    ours.release().await?;
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn reentry_counts_on_either_side(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    one.ok("lock w cfg").await;
    one.ok("lock w cfg").await;
    one.ok("lock r cfg").await;
    one.ok("unlock w cfg").await;
    assert!(rust.try_read("cfg").await?.is_none(), "the writer is inside once more");
    one.ok("unlock r cfg").await;
    one.ok("unlock w cfg").await;

    let outer = rust.write("cfg").reentrant().await?;
    let inner = rust.write("cfg").reentrant().await?;
    let reads = rust.read("cfg").reentrant().await?;
    inner.release().await?;
    assert_eq!(one.ask("try r cfg 0").await, "false");
    reads.release().await?;
    outer.release().await?;

    for count in 1..=2 {
        one.ok("lock r cfg").await;
        assert_eq!(one.ask("count r cfg").await, count.to_string());
    }
    let ours = rust.read("cfg").await?;
    one.ok("unlock r cfg").await;
    ours.release().await?;
    assert!(rust.try_write("cfg").await?.is_none(), "a reader of Redisson is inside once more");
    one.ok("unlock r cfg").await;
    rust.try_write("cfg").await?.expect("free").release().await?;
    Ok(())
}

async fn downgrade_lets_readers_in(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    // Ours.
    let writer = rust.write("cfg").await?;
    let token = writer.fencing_token();
    one.begin("lock r cfg").await;
    assert_eq!(one.answer_within(WAITS).await, None);
    let (reader, began) = (writer.downgrade().await?, Instant::now());
    assert!(reader.fencing_token() > token);
    assert_eq!(one.answer().await, "ok");
    assert!(began.elapsed() < WOKEN, "the downgrade wakes readers of Redisson: {:?}", began.elapsed());
    assert_eq!(two.ask("try w cfg 0").await, "false");
    one.ok("unlock r cfg").await;
    reader.release().await?;
    // Theirs.
    one.ok("lock w cfg").await;
    one.ok("lock r cfg").await;
    one.ok("unlock w cfg").await;
    let ours = rust.try_read("cfg").await?.expect("the writer reads now");
    assert!(rust.try_write("cfg").await?.is_none());
    one.ok("unlock r cfg").await;
    ours.release().await?;
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn upgrade_needs_a_sole_reader(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    one.ok("lock r cfg").await;
    let reader = rust.read("cfg").await?;
    let refused = reader.try_upgrade().await.expect_err("a reader of Redisson is inside");
    let reader = refused.into_guard();
    one.ok("unlock r cfg").await;
    let writer = reader.try_upgrade().await.expect("the sole reader");
    assert_eq!(one.ask("try r cfg 0").await, "false");
    one.begin("lock r cfg").await;
    assert_eq!(one.answer_within(WAITS).await, None);
    writer.release().await?;
    assert_eq!(one.answer().await, "ok");
    one.ok("unlock r cfg").await;
    Ok(())
}

async fn lease_of_redisson_ends_by_itself(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    for mode in ["w", "r"] {
        let began = Instant::now();
        one.ok(&format!("lock {mode} cfg 1500")).await;
        let writer = rust.write("cfg").await?;
        assert!(began.elapsed() >= Duration::from_millis(1490), "{:?}", began.elapsed());
        assert!(began.elapsed() < Duration::from_millis(3500), "{:?}", began.elapsed());
        one.is_refused(&format!("unlock {mode} cfg")).await;
        writer.release().await?;
    }
    Ok(())
}

async fn watchdog_of_redisson_keeps_its_lock(place: &Place) -> Outcome {
    let rust = place.manager().await;
    let java = place.java_with(Duration::from_secs(3)).await;
    let mut one = java.actor("one").await;
    for mode in ["w", "r"] {
        one.ok(&format!("lock {mode} cfg")).await;
        let waiting = rust.write("cfg").wait_timeout(Duration::from_secs(6)).await;
        assert!(matches!(waiting, Err(Error::WaitTimeout { .. })), "renewed: {waiting:?}");
        one.ok(&format!("unlock {mode} cfg")).await;
        works(&rust, "cfg").await;
    }
    Ok(())
}

/// A watchdog of Redisson sets the time of the key to its own, which is shorter than our lease.
async fn hold_outlives_renewals_that_cut_the_key(place: &Place) -> Outcome {
    let watchdog = Duration::from_secs(3);
    let java = place.java_with(watchdog).await;
    let rust = place.builder().lock_watchdog_timeout(watchdog).lease(Duration::from_secs(60));
    let rust = rust.connect().await?;
    let mut one = java.actor("one").await;
    let ours = rust.read("cfg").await?;
    one.ok("lock r cfg").await;
    let began = Instant::now();
    while began.elapsed() < watchdog * 3 {
        assert!(ours.remaining() < watchdog, "no hold is believed for longer than Redisson lets it live");
        assert!(ours.state() == redis_rwlock::HoldState::Held, "after {:?}", began.elapsed());
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    one.ok("unlock r cfg").await;
    assert!(place.manager().await.try_write("cfg").await?.is_none());
    tokio::time::sleep(watchdog * 2).await;
    ours.release().await?;
    Ok(())
}

async fn force_ends_holds_of_the_other(place: &Place) -> Outcome {
    let (rust, mut one, mut two) = place.sides().await;
    let other = place.manager().await;
    // We end theirs, and wake their waiters.
    one.ok("lock w cfg").await;
    two.begin("lock w cfg").await;
    assert_eq!(two.answer_within(WAITS).await, None);
    let ended = rust.force_release("cfg").await?;
    assert_eq!((ended.len(), ended[0].mode), (1, Mode::Write));
    assert_eq!(two.answer().await, "ok");
    one.is_refused("unlock w cfg").await;
    two.ok("unlock w cfg").await;
    // They end ours: the guard learns of it at its next renewal, and its release ends nothing else.
    for mode in ["w", "r"] {
        let short = place.builder().lease(Duration::from_secs(1)).connect().await?;
        let waiting = other.write("cfg");
        let (ours, ours_too);
        if mode == "w" {
            (ours, ours_too) = (Some(short.write("cfg").await?), None);
        } else {
            (ours, ours_too) = (None, Some(short.read("cfg").await?));
        }
        let waiting = spawn(waiting);
        tokio::time::sleep(WAITS).await;
        assert_eq!(one.ask(&format!("force {mode} cfg")).await, "true");
        let next = waiting.await??;
        let reason = match (&ours, &ours_too) {
            (Some(guard), _) => guard.lost().await,
            (_, Some(guard)) => guard.lost().await,
            _ => unreachable!("one of them"),
        };
        assert_eq!(reason, LossReason::Gone);
        drop((ours, ours_too));
        short.flush().await?;
        assert_eq!(one.ask("try w cfg 0").await, "false", "the next one is inside");
        next.release().await?;
    }
    // A force of ours tells our own managers the reason.
    let ours = rust.write("cfg").await?;
    assert_eq!(other.force_release("cfg").await?.len(), 1);
    let lost = ours.release().await.expect_err("forced");
    assert!(matches!(lost, Error::Lost { reason: LossReason::Forced, .. }), "{lost:?}");
    assert_eq!(place.fields_of("cfg"), []);
    Ok(())
}

async fn view_shows_holders_of_both(place: &Place) -> Outcome {
    let rust = place.builder().label("me").connect().await?;
    let java = place.java().await;
    let (mut one, mut two) = (java.actor("one").await, java.actor("two").await);
    let ours = rust.read("cfg").await?;
    one.ok("lock r cfg").await;
    two.ok("lock r cfg 50000").await;
    let view = rust.inspect("cfg").await?;
    assert_eq!(view.holders.len(), 3);
    assert_eq!(view.last_token, Some(ours.fencing_token()));
    let me: Vec<_> = view.holders.iter().filter(|holder| holder.is_ours).collect();
    assert_eq!((me.len(), &*me[0].label, me[0].guards), (1, "me", 1));
    let left: Vec<_> = view.holders.iter().filter(|holder| !holder.is_ours).map(|holder| holder.remaining).collect();
    assert!(left.iter().any(|left| *left > Duration::from_secs(40)), "{left:?}");
    assert!(left.iter().any(|left| (WATCHDOG / 2..=WATCHDOG).contains(left)), "{left:?}");
    assert!(view.waiters.is_empty(), "the format has no waiters");
    assert_eq!(one.ask("locked r cfg").await, "true");
    assert_eq!(rust.locks().await?, ["cfg"]);
    one.ok("unlock r cfg").await;
    two.ok("unlock r cfg").await;
    ours.release().await?;
    one.ok("lock w cfg").await;
    let view = rust.inspect("cfg").await?;
    assert_eq!((view.holders.len(), view.holders[0].mode, view.holders[0].is_ours), (1, Mode::Write, false));
    one.ok("unlock w cfg").await;
    assert!(rust.inspect("cfg").await?.is_free());
    Ok(())
}

async fn dead_reader_of_redisson_goes_with_the_last_live_one(place: &Place) -> Outcome {
    let (rust, mut one, _) = place.sides().await;
    let ours = rust.read("cfg").await?;
    one.ok("lock r cfg 500").await;
    tokio::time::sleep(Duration::from_millis(600)).await;
    let waiting = spawn(rust.write("cfg"));
    tokio::time::sleep(WAITS).await;
    let released = Instant::now();
    ours.release().await?;
    let writer = waiting.await??;
    assert!(released.elapsed() < WOKEN, "{:?}", released.elapsed());
    writer.release().await?;
    Ok(())
}

async fn process_that_is_killed_holds_for_its_lease(place: &Place) -> Outcome {
    let rust = place.manager().await;
    for mode in ["w", "r"] {
        let java = place.java_with(Duration::from_secs(3)).await;
        let mut one = java.actor("one").await;
        one.ok(&format!("lock {mode} cfg")).await;
        java.kill().await;
        let killed = Instant::now();
        let writer = rust.write("cfg").await?;
        assert!(killed.elapsed() < Duration::from_millis(4500), "{:?}", killed.elapsed());
        writer.release().await?;
    }
    let java = place.java().await;
    let mut one = java.actor("one").await;
    for mode in ["w", "r"] {
        // A runtime that ends with all of its tasks is as good as a process that is killed.
        let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
        let builder = place.builder().lease(Duration::from_secs(2)).background_on(runtime.handle().clone());
        let acquired = runtime.spawn(async move {
            let manager = builder.connect().await.expect("connected");
            if mode == "w" {
                std::mem::forget(manager.write("cfg").await.expect("granted"));
            } else {
                std::mem::forget(manager.read("cfg").await.expect("granted"));
            }
            std::mem::forget(manager);
        });
        acquired.await?;
        runtime.shutdown_background();
        assert_eq!(one.ask("try w cfg 0").await, "false");
        let killed = Instant::now();
        assert_eq!(one.ask("try w cfg 10000").await, "true");
        assert!(killed.elapsed() < Duration::from_secs(5), "{:?}", killed.elapsed());
        one.ok("unlock w cfg").await;
    }
    until("nothing is left", async || place.fields_of("cfg").is_empty()).await;
    Ok(())
}
