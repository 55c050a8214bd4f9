//! Servers that stop answering or lose their data. Each case has servers of its own.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, HoldState, LossReason};

use crate::errors::assert_lost;
use crate::fixture::{RENEWED, ServerFixture, Settings, alone_on_every_server};
use crate::wait::{Outcome, granted, soon, until};

alone_on_every_server![
    local_clock_tells_a_loss_that_no_server_can,
    silent_server_is_unreachable_in_time,
    tokens_grow_across_a_flush,
];

fn impatient() -> Settings {
    Settings {
        response_timeout: Duration::from_millis(150),
        unreachable_after: Duration::from_millis(600),
        ..Settings::lease(RENEWED)
    }
}

async fn local_clock_tells_a_loss_that_no_server_can(f: &ServerFixture) {
    let ([manager], name) = f.scene_with(impatient()).await;
    let guard = manager.write(&name).await.expect("granted");
    let watch = guard.watch();
    let paused = Instant::now();
    f.servers.pause();
    let mut seen = vec![guard.state()];
    until("the loss", async || {
        let state = guard.state();
        if seen.last() != Some(&state) {
            seen.push(state);
        }
        matches!(state, HoldState::Lost(_))
    })
    .await;
    // The last renewal was sent before the pause, so its lease ends no later than one lease after it.
    assert!(paused.elapsed() < RENEWED + Duration::from_millis(200), "{:?}", paused.elapsed());
    assert_eq!(soon("word of the loss", guard.lost()).await, LossReason::Expired);
    assert_eq!(seen, [HoldState::Held, HoldState::Unconfirmed, HoldState::Lost(LossReason::Expired)]);
    f.servers.resume();
    let heir = granted(f.manager().await.write(&name)).await;
    assert_eq!(watch.state(), HoldState::Lost(LossReason::Expired), "once lost, lost");
    let error = guard.release().await.expect_err("it was lost");
    assert_lost(&error, LossReason::Expired);
    assert_eq!(watch.state(), HoldState::Lost(LossReason::Expired));
    heir.release().await.expect("ours to the end");
}

async fn silent_server_is_unreachable_in_time(f: &ServerFixture) {
    let (manager, name, held) = (f.manager_with(impatient()).await, f.name(), f.name());
    let guard = manager.write(&held).lease(Duration::from_secs(60)).await.expect("granted");
    f.servers.pause();
    let asked = Instant::now();
    let error = soon("the end of the wait", manager.write(&name)).await.expect_err("nobody answers");
    assert_matches!(error, Error::Unreachable { lock, .. } if **lock == *name);
    assert!(asked.elapsed() < Duration::from_secs(5), "{:?}", asked.elapsed());
    let error = soon("the answer", manager.try_read(&name)).await.expect_err("silence is no denial");
    assert_matches!(error, Error::Unreachable { .. });
    let error = soon("the answer", manager.inspect(&name)).await.expect_err("nobody answers");
    assert_matches!(error, Error::Unreachable { .. });
    assert_eq!(guard.state(), HoldState::Held, "a long lease outlasts the silence");
    let error = soon("the release", guard.release()).await.expect_err("the server was not told");
    assert_matches!(error, Error::Unreachable { .. });
    let error = soon("the refusal", f.connect(impatient())).await.expect_err("nobody answers");
    assert_matches!(error, Error::Unreachable { .. });
    f.servers.resume();
    f.becomes_free(&held).await;
    f.becomes_free(&name).await;
}

async fn tokens_grow_across_a_flush(f: &ServerFixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let before = manager.write(&name).await?;
    f.servers.everywhere(&["FLUSHALL"]);
    let other = f.manager().await;
    let after = other.write(&name).await?;
    assert!(after.fencing_token() > before.fencing_token());
    assert_eq!(soon("the loss", before.lost()).await, LossReason::Gone);
    before.release().await.expect_err("it was lost");
    after.release().await?;
    Ok(())
}
