//! From write to read and back in one step.

use std::time::Duration;

use redis_rwlock::{Ended, Error, HoldState, LossReason, Mode, ReadGuard, WriteGuard};

use crate::cancellation::each_cut;
use crate::fixture::{Fixture, RENEWED, SHORT, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Acquired, Outcome, begin_to_wait, granted, soon, stays_pending};

on_every_fixture![
    downgraded_guard_reads_on_and_lets_readers_in,
    upgraded_guard_is_alone,
    upgrade_beside_a_reader_is_a_conflict_and_reads_on,
    upgrade_is_refused_while_a_writer_waits_here,
    turned_holds_are_renewed,
    watch_of_a_turned_guard_says_released,
    turn_of_a_lost_guard_is_an_error_with_the_guard,
    nested_guards_only_count_when_they_turn,
    turn_dropped_at_any_poll_leaves_nothing,
];

on_every_queue![
    downgrade_lets_waiting_readers_in_before_waiting_writers,
    upgrade_is_refused_while_a_writer_waits_elsewhere
];

async fn downgraded_guard_reads_on_and_lets_readers_in(f: &Fixture) -> Outcome {
    let ([here, there], name) = f.scene().await;
    let writing = here.write(&name).await?;
    let token = writing.fencing_token();
    let reading = writing.downgrade().await?;
    assert!(reading.fencing_token() > token);
    assert_eq!(reading.state(), HoldState::Held);
    assert!(there.try_write(&name).await?.is_none());
    let beside = there.try_read(&name).await?.expect("readers share");
    assert_eq!(f.view(&name).await.holders.iter().filter(|holder| holder.mode == Mode::Read).count(), 2);
    reading.release().await?;
    beside.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn upgraded_guard_is_alone(f: &Fixture) -> Outcome {
    let ([here, there], name) = f.scene().await;
    let reading = here.read(&name).await?;
    let token = reading.fencing_token();
    let writing = reading.try_upgrade().await?;
    assert!(writing.fencing_token() > token);
    for manager in [&here, &there] {
        assert!(manager.try_read(&name).await?.is_none());
        assert!(manager.try_write(&name).await?.is_none());
    }
    writing.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn upgrade_beside_a_reader_is_a_conflict_and_reads_on(f: &Fixture) -> Outcome {
    let ([here, there], name) = f.scene().await;
    for other in [&here, &there] {
        let reading = here.read(&name).await?;
        let beside = other.read(&name).await?;
        let refused = reading.try_upgrade().await.expect_err("another reads");
        assert_matches!(refused.error(), Error::UpgradeConflict { lock, .. } if **lock == *name);
        let reading = refused.into_guard();
        assert_eq!(reading.state(), HoldState::Held);
        assert!(there.try_write(&name).await?.is_none());
        beside.release().await?;
        reading.try_upgrade().await.expect("the only reader now").release().await?;
    }
    f.becomes_free(&name).await;
    Ok(())
}

async fn is_refused_beside(waiting: impl Future<Output: Acquired<Guard = WriteGuard>>, reading: ReadGuard) -> Outcome {
    let refused = reading.try_upgrade().await.expect_err("a writer waits");
    assert_matches!(refused.error(), Error::UpgradeConflict { .. });
    refused.into_guard().release().await?;
    granted(waiting).await.release().await?;
    Ok(())
}

async fn upgrade_is_refused_while_a_writer_waits_here(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let reading = manager.read(&name).await?;
    let waiting = begin_to_wait("the write", manager.write(&name)).await;
    is_refused_beside(waiting, reading).await
}

async fn upgrade_is_refused_while_a_writer_waits_elsewhere(f: &Fixture) -> Outcome {
    let ([here, there], name) = f.scene().await;
    let reading = here.read(&name).await?;
    let waiting = f.queued(&name, there.write(&name)).await;
    is_refused_beside(waiting, reading).await
}

async fn downgrade_lets_waiting_readers_in_before_waiting_writers(f: &Fixture) -> Outcome {
    let ([a, b, c], name) = f.scene().await;
    let writing = a.write(&name).await?;
    let mut writer = begin_to_wait("the write", b.write(&name)).await;
    let reader = tokio::spawn(c.read(&name).into_future());
    let here = tokio::spawn(a.read(&name).into_future());
    f.until_waiting(3, &name).await;
    let reading = writing.downgrade().await?;
    let beside = granted(reader).await;
    let here = granted(here).await;
    assert_eq!(beside.fencing_token(), reading.fencing_token(), "one phase");
    stays_pending("the write", &mut writer).await;
    for guard in [reading, beside, here] {
        guard.release().await?;
    }
    granted(writer).await.release().await?;
    Ok(())
}

async fn turned_holds_are_renewed(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let reading = manager.write(&name).await?.downgrade().await?;
    tokio::time::sleep(RENEWED * 5 / 4).await;
    assert_eq!(reading.state(), HoldState::Held);
    let writing = reading.try_upgrade().await?;
    tokio::time::sleep(RENEWED * 5 / 4).await;
    assert_eq!(writing.state(), HoldState::Held);
    writing.release().await?;
    Ok(())
}

async fn watch_of_a_turned_guard_says_released(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let writing = manager.write(&name).await?;
    let watch = writing.watch();
    let reading = writing.downgrade().await?;
    assert_eq!(soon("the end", watch.ended()).await, Ended::Released);
    reading.release().await?;
    Ok(())
}

async fn turn_of_a_lost_guard_is_an_error_with_the_guard(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let writing = manager.write(&name).max_hold(SHORT).await?;
    assert_eq!(soon("the loss", writing.lost()).await, LossReason::MaxHold);
    let error = writing.downgrade().await.expect_err("it is over");
    assert_matches!(error.error(), Error::Lost { reason: LossReason::MaxHold, .. });
    drop(error.into_guard());
    f.becomes_free(&name).await;
    let reading = manager.read(&name).await?;
    f.manager().await.force_release(&name).await?;
    let error = reading.try_upgrade().await.expect_err("it is over");
    assert_matches!(error.error(), Error::Lost { reason: LossReason::Forced, .. });
    drop(error);
    f.becomes_free(&name).await;
    Ok(())
}

async fn nested_guards_only_count_when_they_turn(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let outer = manager.write(&name).reentrant().await?;
    let inner = manager.write(&name).reentrant().await?;
    let inner = inner.downgrade().await.expect("it only counts");
    assert!(f.manager().await.try_read(&name).await?.is_none(), "the outer one still writes");
    let inner = inner.try_upgrade().await.expect("nested in a write");
    outer.release().await.expect("not the last");
    inner.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

/// A lease beyond all bounds: what goes away has been given back.
async fn turn_dropped_at_any_poll_leaves_nothing(f: &Fixture) -> Outcome {
    let (manager, name) = (f.manager_with(Settings::lease(Duration::from_secs(300))).await, f.name());
    each_cut(async |cut| {
        let guard = manager.write(&name).await?;
        let is_converted = cut.of(Box::pin(guard.downgrade())).await.is_some();
        f.becomes_free(&name).await;
        Ok(is_converted)
    })
    .await?;
    each_cut(async |cut| {
        let guard = manager.read(&name).await?;
        let is_converted = cut.of(Box::pin(guard.try_upgrade())).await.is_some();
        f.becomes_free(&name).await;
        Ok(is_converted)
    })
    .await
}
