//! Durations that are of little use, and that are allowed all the same.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, HoldState, LossReason, RedisManager, RwLockManager};

use crate::fixture::{
    Fixture, RENEWED, SHORT, ServerFixture, Settings, alone_on_every_server, on_every_fixture, on_every_own_format,
};
use crate::wait::{Outcome, granted, soon};

on_every_fixture![wait_timeout_of_zero_asks_once];

// Leases in the format of Redisson are shorter, its listing is of the whole server, and it refuses some names.
on_every_own_format![endless_durations_work];

alone_on_every_server![response_timeout_beyond_the_lease_loses_a_hold_in_time];

async fn endless_durations_work(f: &Fixture) -> Outcome {
    let settings = Settings {
        lease: Duration::from_secs(365 * 24 * 3600),
        max_hold: Duration::MAX,
        wait_timeout: Some(Duration::MAX),
        unreachable_after: Duration::MAX,
        ..Settings::default()
    };
    let (manager, other, name) = (f.manager_with(settings.clone()).await, f.manager_with(settings).await, f.name());
    let guard = manager.write(&name).await?;
    assert!(guard.remaining() > Duration::from_secs(300 * 24 * 3600));
    let waiting = tokio::spawn(other.write(&name).into_future());
    assert!(other.try_read(&name).await?.is_none());
    guard.release().await?;
    granted(waiting).await.release().await?;
    soon("the end", manager.close()).await?;
    Ok(())
}

async fn wait_timeout_of_zero_asks_once(f: &Fixture) {
    let ([manager, other], name) = f.scene().await;
    let guard = manager.write(&name).wait_timeout(Duration::ZERO).await.expect("a free lock is granted");
    let error = soon("the denial", other.write(&name).wait_timeout(Duration::ZERO).into_future()).await;
    assert_matches!(error, Err(Error::WaitTimeout { .. }));
    guard.release().await.expect("released");
    f.becomes_free(&name).await;
}

/// The renewal of such a hold has one try. The hold is lost by the local clock, no later than with any other timeout.
async fn response_timeout_beyond_the_lease_loses_a_hold_in_time(f: &ServerFixture) {
    let settings = Settings { response_timeout: SHORT * 4, ..Settings::lease(RENEWED) };
    let ([manager], name) = f.scene_with(settings).await;
    let guard = manager.write(&name).await.expect("granted");
    assert_eq!(guard.state(), HoldState::Held);
    let paused = Instant::now();
    f.servers.pause();
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    let until_lost = paused.elapsed();
    f.servers.resume();
    assert!(until_lost < RENEWED + Duration::from_millis(200), "{until_lost:?}");
    drop(guard);
    f.becomes_free(&name).await;
}

/// No server listens at this address.
#[tokio::test]
async fn endless_unreachable_after_ends_with_the_wait() {
    let builder = RedisManager::builder("redis://127.0.0.1:1").unreachable_after(Duration::MAX);
    let manager = builder.wait_timeout(Duration::from_millis(100)).build().expect("built");
    assert_matches!(
        soon("the end of the wait", manager.write("cfg").into_future()).await,
        Err(Error::Unreachable { .. })
    );
}
