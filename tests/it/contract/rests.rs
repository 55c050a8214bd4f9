//! Locks that stay taken for a time at least: what is left when the guard is gone, and who gets the lock then.

use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis_rwlock::{Error, LossReason, Mode, Reentry};

use crate::cancellation::each_cut;
use crate::fixture::{Fixture, Manager, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Outcome, Stalls, begin, granted, soon, until};

on_every_queue![
    released_lock_rests_for_everybody_until_its_time,
    whatever_ends_the_hold_leaves_a_rest,
    rest_of_a_dead_process_stays,
    force_ends_a_rest,
    cancelled_acquisition_leaves_no_rest,
    release_at_once_leaves_no_rest,
    guard_is_valid_for_its_lease_only,
    claim_of_a_waiter_is_armed_too,
    next_writer_of_the_process_waits_for_the_end_of_the_rest,
    job_on_three_machines_runs_once_a_minute,
];

// A quorum refuses it.
on_every_fixture![rest_is_kept_or_refused_before_anything_is_sent, hold_with_a_rest_neither_nests_nor_converts];

/// Longer than any case.
const LONG: Duration = Duration::from_secs(300);
const SHORT: Duration = Duration::from_millis(1_500);
/// A waiter looks after the end of a rest at least so often.
const LATE: Duration = Duration::from_secs(1);

async fn rests(f: &Fixture, name: &str) -> bool {
    let view = f.view(name).await;
    let resting: Vec<_> = view.holders.iter().map(|holder| holder.resting).collect();
    assert!(resting.len() < 2, "{view:?}");
    resting == [true]
}

async fn released_lock_rests_for_everybody_until_its_time(f: &Fixture) -> Outcome {
    let (manager, other, name) = f.pair(Settings::label("nightly")).await;
    let began = Instant::now();
    let guard = manager.write(&name).at_least(SHORT).await?;
    assert!(!rests(f, &name).await, "somebody is inside");
    guard.release().await?;
    for manager in [&manager, &other] {
        assert!(manager.try_write(&name).await?.is_none());
        assert!(manager.try_read(&name).await?.is_none());
    }
    let view = manager.inspect(&name).await?;
    let [holder] = &view.holders[..] else { panic!("{view:?}") };
    assert_eq!((&*holder.label, holder.mode, holder.is_ours, holder.guards), ("nightly", Mode::Write, true, 0));
    assert!(holder.resting && !holder.cached && holder.remaining <= SHORT + LATE, "{holder:?}");
    assert!(!other.inspect(&name).await?.holders[0].is_ours);
    let next = granted(other.write(&name)).await;
    // The servers of the cases and this process have one clock.
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    assert!(next.fencing_token() > view.last_token.expect("it has granted one"));
    next.release().await?;
    Ok(())
}

async fn whatever_ends_the_hold_leaves_a_rest(f: &Fixture) -> Outcome {
    let manager = f.manager().await;
    let [dropped, outlived, closed] = [f.name(), f.name(), f.name()];
    drop(manager.write(&dropped).at_least(LONG).await?);
    manager.flush().await?;
    assert!(rests(f, &dropped).await, "after a drop");
    let max_hold = Duration::from_millis(300);
    let guard = manager.write(&outlived).at_least(LONG).max_hold(max_hold).await?;
    assert_eq!(soon("the end of the longest time", guard.lost()).await, LossReason::MaxHold);
    manager.flush().await?;
    assert!(rests(f, &outlived).await, "after max_hold");
    let guard = manager.write(&closed).at_least(LONG).await?;
    manager.close().await?;
    assert_eq!(soon("the end by close", guard.lost()).await, LossReason::Closed);
    assert!(rests(f, &closed).await, "after close");
    Ok(())
}

async fn rest_of_a_dead_process_stays(f: &Fixture) {
    let (name, lease) = (f.name(), Duration::from_millis(500));
    let mut process = f.process(Settings::lease(lease)).await;
    let write = name.clone();
    let guard = process.run(|manager| Box::pin(async move { manager.write(&write).at_least(LONG).await })).await;
    process.die().await;
    // Time itself is what is waited for.
    tokio::time::sleep(lease * 3).await;
    let view = f.view(&name).await;
    assert_eq!(view.holders.len(), 1, "{view:?}");
    assert!(f.manager().await.try_write(&name).await.expect("answered").is_none());
    drop(guard);
}

async fn force_ends_a_rest(f: &Fixture) -> Outcome {
    let (manager, operator, name) = f.pair(Settings::label("nightly")).await;
    manager.write(&name).at_least(LONG).await?.release().await?;
    let ended = operator.force_release(&name).await?;
    let told: Vec<_> = ended.iter().map(|holder| (&*holder.label, holder.resting)).collect();
    assert_eq!(told, [("nightly", true)]);
    manager.try_write(&name).await?.expect("free at once").release().await?;
    Ok(())
}

async fn cancelled_acquisition_leaves_no_rest(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    each_cut(async |cut| {
        let guard = cut.of(manager.write(&name).at_least(LONG).into_future()).await.transpose()?;
        let is_granted = guard.is_some();
        match guard {
            Some(guard) => guard.release_at_once().await?,
            None => manager.flush().await?,
        }
        until("the lock is free", async || f.view(&name).await.is_free()).await;
        Ok(is_granted)
    })
    .await
}

async fn release_at_once_leaves_no_rest(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let guard = manager.write(&name).at_least(LONG).await?;
    guard.release_at_once().await?;
    other.try_write(&name).await?.expect("free at once").release().await?;
    Ok(())
}

async fn guard_is_valid_for_its_lease_only(f: &Fixture) {
    let (manager, name, lease) = (f.manager().await, f.name(), Duration::from_secs(5));
    let guard = manager.write(&name).lease(lease).at_least(LONG).await.expect("granted");
    assert!(guard.remaining() <= lease, "{:?}", guard.remaining());
    let view = f.view(&name).await;
    assert!(view.holders[0].remaining > LONG - Duration::from_secs(60), "{view:?}");
    guard.release_at_once().await.expect("ours to the end");
}

async fn claim_of_a_waiter_is_armed_too(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let before = other.write(&name).await?;
    let waits = f.queued(&name, manager.write(&name).at_least(LONG)).await;
    before.release().await?;
    let guard = granted(waits).await;
    assert!(guard.remaining() > Duration::from_secs(5), "it is confirmed: {:?}", guard.remaining());
    drop(guard);
    manager.flush().await?;
    assert!(rests(f, &name).await);
    Ok(())
}

async fn next_writer_of_the_process_waits_for_the_end_of_the_rest(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let began = Instant::now();
    let guard = manager.write(&name).at_least(SHORT).await?;
    let next = begin(manager.write(&name));
    guard.release().await?;
    let next = granted(next).await;
    assert!(began.elapsed() >= SHORT, "{:?}", began.elapsed());
    next.release().await?;
    Ok(())
}

/// Time that the clocks' difference and `at_least` leave of a minute.
const MAX_STALL: Duration = Duration::from_millis(150);

/// Runs the job of a machine whose clock is `behind`, with minutes of one second. Returns the minutes in which it ran.
async fn crontab(manager: Manager, name: String, began: Instant, behind: Duration) -> Vec<u32> {
    let (minute, at_least, mut runs) = (Duration::from_secs(1), Duration::from_millis(550), Vec::new());
    for count in 0..10 {
        tokio::time::sleep_until((began + minute * count + behind).into()).await;
        let job = manager.write(&name).at_least(at_least);
        if let Some(guard) = job.try_now().await.expect("answered") {
            runs.push(count);
            tokio::time::sleep(Duration::from_millis(10)).await;
            guard.release().await.expect("ours to the end");
        }
    }
    runs
}

async fn job_on_three_machines_runs_once_a_minute(f: &Fixture) {
    // A busy machine answers late.
    let settings = Settings { response_timeout: Duration::from_secs(4), ..Settings::default() };
    let (managers, name) = f.scene_with::<3>(settings).await;
    let (began, stalls) = (Instant::now() + Duration::from_millis(200), Stalls::begin());
    let machines = (0..).zip(managers);
    let jobs = machines.map(|(n, manager)| crontab(manager, name.clone(), began, Duration::from_millis(125) * n));
    let mut runs = join_all(jobs).await.concat();
    runs.sort_unstable();
    let stalled = stalls.end();
    println!("the job ran in {runs:?}; the machine stood still for {stalled:?}");
    // A machine that stands still starts the job of a minute in a later one.
    assert!(stalled > MAX_STALL || runs == (0..10).collect::<Vec<_>>(), "{runs:?}, and {stalled:?} are the machine's");
}

/// Takes the lock for a time at least, if the manager can keep a rest. Otherwise asserts that it refuses to.
async fn take(f: &Fixture, manager: &Manager, name: &str) -> Option<redis_rwlock::WriteGuard> {
    match manager.write(name).at_least(LONG).try_now().await {
        Ok(guard) => Some(guard.expect("free")),
        Err(Error::InvalidOption { option: "at_least", reason, .. }) => {
            assert!(reason.contains(if f.is_redisson() { "Redisson" } else { "masters" }), "{reason}");
            assert_eq!(f.view(name).await.last_token, None, "nothing was sent");
            None
        }
        Err(other) => panic!("{other:?}"),
    }
}

async fn rest_is_kept_or_refused_before_anything_is_sent(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    if let Some(guard) = take(f, &manager, &name).await {
        guard.release().await.expect("ours to the end");
        assert!(rests(f, &name).await);
    }
    for never in [Duration::ZERO, Duration::MAX] {
        let refused = manager.write(&name).at_least(never).await.expect_err("no such time");
        assert_matches!(refused, Error::InvalidOption { option: "at_least", .. });
    }
}

async fn hold_with_a_rest_neither_nests_nor_converts(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings { reentry: Reentry::PerTask, ..Settings::default() }).await;
    let outer = manager.write(&name).await?;
    let nested = manager.write(&name).at_least(LONG).await.expect_err("nested");
    assert_matches!(nested, Error::InvalidOption { option: "at_least", .. });
    outer.release().await?;
    let other = f.name();
    let Some(guard) = take(f, &manager, &other).await else { return Ok(()) };
    let refused = guard.downgrade().await.expect_err("it stays exclusive");
    assert_matches!(refused.error(), Error::InvalidOption { option: "at_least", .. });
    let inner = manager.read(&other).await?;
    refused.into_guard().release().await?;
    inner.release().await?;
    assert!(rests(f, &other).await, "after the last guard");
    Ok(())
}
