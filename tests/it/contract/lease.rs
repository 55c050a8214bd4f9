//! How long a hold lasts, and how its holder learns that it is over.

use std::sync::{Arc, OnceLock};
use std::task::{Context, Wake, Waker};
use std::time::{Duration, Instant};

use futures_util::FutureExt;
use redis_rwlock::{Ended, Error, HoldState, LossReason, Mode};

use crate::either::take;
use crate::fixture::{Fixture, RENEWED, SHORT, Settings, on_every_fixture, on_every_own_format};
use crate::wait::{Outcome, granted, soon, stays_pending, until};

on_every_fixture![
    renewal_keeps_holds_past_several_leases,
    dead_reader_is_gone_at_its_own_lease,
    dead_writer_is_gone_with_its_lease,
    loss_is_told_before_anybody_else_is_let_in,
    holder_hears_of_max_hold_a_head_start_before_another_one_is_granted,
    lost_stays_silent_without_a_loss,
    watch_tells_release_from_loss,
    leaked_guard_ends_with_its_longest_time,
    fixed_lease_is_not_renewed,
    late_release_is_an_error_and_hurts_nobody,
    remaining_is_within_the_lease,
    confirmed_after_a_wait_has_the_whole_lease,
    confirmed_without_a_wait_asks_nobody,
    confirmed_with_a_fixed_lease_still_ends,
    confirmed_tells_a_loss,
];

// Leases in the format of Redisson are shorter.
on_every_own_format![long_lease_survives_a_neighbours_short_renewals];

const HOUR: Duration = Duration::from_secs(3600);

async fn renewal_keeps_holds_past_several_leases(f: &Fixture) -> Outcome {
    let manager = f.manager_with(Settings::lease(RENEWED)).await;
    let (written, read) = (f.name(), f.name());
    let writer = manager.write(&written).await?;
    let reader = manager.read(&read).await?;
    // Time itself is what is waited for.
    tokio::time::sleep(RENEWED * 5 / 2).await;
    assert_eq!(writer.state(), HoldState::Held);
    assert_eq!(reader.state(), HoldState::Held);
    let other = f.manager().await;
    for name in [&written, &read] {
        assert!(other.try_write(name).await?.is_none());
    }
    writer.release().await?;
    reader.release().await?;
    Ok(())
}

async fn long_lease_survives_a_neighbours_short_renewals(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let patient = manager.read(&name).lease(HOUR).max_hold(2 * HOUR).await?;
    let mut neighbour = f.process(Settings { label: "neighbour".to_owned(), ..Settings::lease(SHORT) }).await;
    let left = neighbour.take(&name, Mode::Read).await;
    until("a renewal of the neighbour", async || {
        let view = f.view(&name).await;
        view.holders.iter().any(|holder| holder.label == "neighbour" && holder.age > SHORT)
    })
    .await;
    // It dies, so that no release of its mends what its renewals may have done.
    neighbour.die().await;
    until("the neighbour is gone", async || f.view(&name).await.holders.len() < 2).await;
    let view = f.view(&name).await;
    assert_eq!(view.holders.len(), 1);
    assert!(view.holders[0].remaining > HOUR - Duration::from_secs(60), "{view:?}");
    assert_eq!(patient.state(), HoldState::Held);
    assert!(f.manager().await.try_write(&name).await?.is_none());
    patient.release().await?;
    drop(left);
    Ok(())
}

async fn dead_reader_is_gone_at_its_own_lease(f: &Fixture) -> Outcome {
    let name = f.name();
    let living = f.manager_with(Settings { label: "living".to_owned(), ..Settings::lease(RENEWED) }).await;
    let guard = living.read(&name).await?;
    let mut dead = f.process(Settings { label: "dead".to_owned(), ..Settings::lease(SHORT) }).await;
    let left = dead.take(&name, Mode::Read).await;
    dead.die().await;
    let died = Instant::now();
    until("the dead reader is gone", async || {
        let view = f.view(&name).await;
        view.holders.iter().all(|holder| holder.label == "living")
    })
    .await;
    // It was renewed before it died at the latest.
    assert!(died.elapsed() < SHORT + Duration::from_secs(2), "gone after {:?}", died.elapsed());
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await?;
    f.becomes_free(&name).await;
    drop(left);
    Ok(())
}

async fn dead_writer_is_gone_with_its_lease(f: &Fixture) {
    let name = f.name();
    let mut dead = f.process(Settings::lease(SHORT)).await;
    let left = dead.take(&name, Mode::Write).await;
    dead.die().await;
    let heir = granted(f.manager().await.write(&name)).await;
    assert_eq!(left.state(), HoldState::Lost(LossReason::Expired), "the clock told it without a runtime");
    assert!(heir.fencing_token() > left.token());
    drop(left);
    assert_eq!(heir.state(), HoldState::Held);
    heir.release().await.expect("released");
}

async fn loss_is_told_before_anybody_else_is_let_in(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    let fixed = a.write(&name).lease(SHORT).max_hold(SHORT).await?;
    let watch = fixed.watch();
    let told = tokio::spawn(async move { fixed.lost().await });
    let heir = granted(b.write(&name)).await;
    // No moment lies between: the state is asked after the grant, and by the local clock alone.
    assert_eq!(watch.state(), HoldState::Lost(LossReason::MaxHold));
    assert_eq!(soon("the word of the loss", told).await?, LossReason::MaxHold);
    heir.release().await?;
    Ok(())
}

async fn holder_hears_of_max_hold_a_head_start_before_another_one_is_granted(f: &Fixture) {
    const HEAD_START: Duration = Duration::from_millis(50);
    // The server would keep the hold for longer than that.
    let margin = Settings { max_clock_skew: SHORT, ..Settings::default() };
    let (a, b, name) = f.pair(margin).await;
    let fixed = a.write(&name).fixed_lease(SHORT * 3).await.expect("granted");
    let watch = fixed.watch();
    let (mut ended, woken) = (Box::pin(watch.ended()), Arc::<FirstWake>::default());
    let waker = Waker::from(Arc::clone(&woken));
    assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    let heir = granted(b.write(&name)).await;
    let granted = Instant::now();
    assert_eq!(ended.now_or_never(), Some(Ended::Lost(LossReason::MaxHold)));
    let woken = woken.0.get().expect("the holder is woken first");
    assert!(granted.duration_since(*woken) >= HEAD_START, "{:?}", granted.duration_since(*woken));
    heir.release().await.expect("released");
}

/// Moment of the first wake-up, which comes where the loss is told: the thread of a busy task plays no part in it.
#[derive(Default)]
struct FirstWake(OnceLock<Instant>);

impl Wake for FirstWake {
    fn wake(self: Arc<Self>) {
        self.0.get_or_init(Instant::now);
    }
}

async fn lost_stays_silent_without_a_loss(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let outer = manager.write(&name).reentrant().await?;
    let inner = manager.write(&name).reentrant().await?;
    let watch = inner.watch();
    let mut lost = Box::pin(outer.lost());
    inner.release().await?;
    stays_pending("word of a loss", &mut lost).await;
    drop(lost);
    outer.release().await?;
    assert_eq!(soon("the end", watch.ended()).await, Ended::Released);
    assert_eq!(watch.state(), HoldState::Held, "a hold that was released was never lost");
    Ok(())
}

async fn watch_tells_release_from_loss(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let released = manager.write(&name).await?;
    let watch = released.watch();
    let mut ended = Box::pin(watch.ended());
    stays_pending("the end of a hold", &mut ended).await;
    released.release().await?;
    assert_eq!(soon("the end", ended).await, Ended::Released);

    let dropped = manager.read(&name).await?;
    let watch = dropped.watch();
    drop(dropped);
    assert_eq!(soon("the end", watch.ended()).await, Ended::Released);

    let lost = manager.write(&name).lease(SHORT).max_hold(SHORT).await?;
    let watch = lost.watch();
    let elsewhere = watch.clone();
    let told = tokio::spawn(async move { elsewhere.ended().await });
    assert_eq!(soon("the end", watch.ended()).await, Ended::Lost(LossReason::MaxHold));
    assert_eq!(soon("the end", told).await?, Ended::Lost(LossReason::MaxHold));
    assert_eq!((watch.name(), watch.fencing_token()), (&*name, lost.fencing_token()));
    drop(lost);
    assert_eq!(watch.ended().await, Ended::Lost(LossReason::MaxHold), "an end is final");
    Ok(())
}

async fn leaked_guard_ends_with_its_longest_time(f: &Fixture) {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let longest = RENEWED * 4 / 3;
    let leaked = manager.read(&name).max_hold(longest).await.expect("granted");
    let (watch, granted) = (leaked.watch(), Instant::now());
    std::mem::forget(leaked);
    assert_eq!(soon("the end", watch.ended()).await, Ended::Lost(LossReason::MaxHold));
    assert!(granted.elapsed() > RENEWED, "it was renewed before: {:?}", granted.elapsed());
    f.becomes_free(&name).await;
}

async fn fixed_lease_is_not_renewed(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let asked = Instant::now();
    let guard = manager.read(&name).lease(Duration::from_secs(30)).max_hold(SHORT).await.expect("granted");
    let view = f.view(&name).await;
    assert!(view.holders[0].remaining <= SHORT, "the server is asked for no more than the longest time: {view:?}");
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::MaxHold);
    assert!(asked.elapsed() > SHORT / 2 && asked.elapsed() < SHORT + Duration::from_secs(2), "{:?}", asked.elapsed());
    assert_eq!(guard.remaining(), Duration::ZERO);
    f.becomes_free(&name).await;
}

async fn late_release_is_an_error_and_hurts_nobody(f: &Fixture) {
    let (a, b, name) = (f.manager().await, f.manager_with_label("heir").await, f.name());
    let late = a.write(&name).lease(SHORT).max_hold(SHORT).await.expect("granted");
    let heir = granted(b.write(&name)).await;
    let released = late.release().await;
    assert_matches!(released, Err(Error::Lost { lock, reason: LossReason::MaxHold, .. }) if **lock == *name);
    let view = f.view(&name).await;
    assert_eq!((view.holders.len(), &*view.holders[0].label, view.holders[0].mode), (1, "heir", Mode::Write));
    heir.release().await.expect("ours to the end");
}

async fn remaining_is_within_the_lease(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).lease(Duration::from_secs(20)).await.expect("granted");
    let (local, view) = (guard.remaining(), f.view(&name).await);
    assert!(local < Duration::from_secs(20) && local > Duration::from_secs(10), "{local:?}");
    let later = guard.remaining();
    assert!(later <= local && later < view.holders[0].remaining + Duration::from_millis(1), "{later:?} {view:?}");
    guard.release().await.expect("released");
}

async fn confirmed_after_a_wait_has_the_whole_lease(f: &Fixture) -> Outcome {
    // Ten claims.
    let lease = Duration::from_secs(30);
    let (a, b, name) = (f.manager().await, f.manager_with(Settings::lease(lease)).await, f.name());
    for mode in [Mode::Write, Mode::Read] {
        let before = a.write(&name).await?;
        let mut waits = Box::pin(take(&b, &name, mode));
        stays_pending("a grant while it is held", &mut waits).await;
        before.release().await?;
        let guard = soon("the grant", waits).await;
        soon("its confirmation", guard.confirmed()).await?;
        let (here, there) = (guard.remaining(), f.view(&name).await.holders[0].remaining);
        assert!(here > lease * 2 / 3 && there > lease * 2 / 3, "{mode}: {here:?} here, {there:?} there");
        guard.release_unharmed().await;
    }
    Ok(())
}

async fn confirmed_without_a_wait_asks_nobody(f: &Fixture) -> Outcome {
    let (manager, name, shared) = (f.manager().await, f.name(), f.name());
    let outer = manager.write(&name).reentrant().await?;
    let inner = manager.read(&name).reentrant().await?;
    let first = manager.read(&shared).await?;
    let second = manager.read(&shared).await?;
    let at_once = "no answer is waited for";
    outer.confirmed().now_or_never().expect(at_once)?;
    let readers = [inner, first, second];
    for reader in &readers {
        reader.confirmed().now_or_never().expect(at_once)?;
    }
    outer.release().await?;
    for reader in readers {
        reader.release().await?;
    }
    Ok(())
}

async fn confirmed_with_a_fixed_lease_still_ends(f: &Fixture) -> Outcome {
    let ([a, b], name) = f.scene().await;
    // One is longer than a claim, one is shorter.
    for lease in [Duration::from_secs(20), RENEWED] {
        let before = a.write(&name).await?;
        let mut waits = Box::pin(b.write(&name).fixed_lease(lease).into_future());
        stays_pending("a grant while it is held", &mut waits).await;
        before.release().await?;
        let guard = granted(waits).await;
        soon("its confirmation", guard.confirmed()).await?;
        let remaining = guard.remaining();
        assert!(remaining <= lease && remaining > lease / 3, "{lease:?}: {remaining:?}");
        if lease == RENEWED {
            assert_eq!(soon("the loss", guard.lost()).await, LossReason::MaxHold);
        } else {
            guard.release().await?;
        }
        f.becomes_free(&name).await;
    }
    Ok(())
}

async fn confirmed_tells_a_loss(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).fixed_lease(SHORT).await.expect("granted");
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::MaxHold);
    let confirmed = guard.confirmed().await;
    assert_matches!(confirmed, Err(Error::Lost { lock, reason: LossReason::MaxHold, .. }) if **lock == *name);
}
