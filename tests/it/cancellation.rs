//! Drops every public future after each of its polls. The server keeps no record then, and no other caller gets an
//! error or a delay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{Acquiring, Ended, Error, Guard, HoldState, LossReason};

use crate::fixture::{Fixture, SHORT, Settings, on_every_fixture};
use crate::wait::{Dropped, Outcome, Polled, granted, soon, until};

on_every_fixture![
    acquisition_dropped_after_each_poll,
    first_acquisition_dropped_after_each_poll,
    try_dropped_after_each_poll,
    waiter_elsewhere_dropped_after_each_poll,
    waiter_here_dropped_after_each_poll,
    waiter_dropped_while_the_lock_comes_free,
    leader_dropped_while_it_asks_passes_the_lead_on,
    denied_try_dropped_after_each_poll,
    release_dropped_after_each_poll,
    inspect_dropped_after_each_poll,
    force_release_dropped_after_each_poll,
    close_dropped_after_each_poll,
    connect_dropped_after_each_poll,
    future_of_a_loss_dropped_after_each_poll,
    future_of_the_end_dropped_after_each_poll,
    aborted_task_leaves_nothing,
];

/// Limit of polls: more than any future takes that does not wait for another holder.
const MOST: u32 = 60;
/// Polls of a future that waits for others.
const WAITING: u32 = 6;

/// Pause between two requests of a waiter in the server's queue.
const HEARTBEAT: Duration = Duration::from_secs(1);

/// Settings with a lease that no case outlasts: a hold that goes away has been given back.
fn patient() -> Settings {
    Settings::lease(Duration::from_secs(300))
}

/// Drops the future that `make` makes after 0, 1, 2 … polls until it ends by itself, and looks after each.
async fn after_each_poll<F: Future>(make: impl Fn() -> F, mut look: impl AsyncFnMut(u32)) {
    for dropped in Dropped::EITHER {
        let mut polls = 0;
        loop {
            let outcome = soon("the next poll", Polled::then(polls, dropped, make())).await;
            let ended = outcome.is_some();
            drop(outcome);
            look(polls).await;
            if ended {
                break;
            }
            polls += 1;
            assert!(polls < MOST, "the future did not end within {MOST} polls");
        }
    }
}

async fn acquisition_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    after_each_poll(|| manager.write(&name).into_future(), async |_| f.becomes_free(&name).await).await;
    after_each_poll(|| manager.read(&name).into_future(), async |_| f.becomes_free(&name).await).await;
    let nested = || manager.write(&name).reentrant().into_future();
    after_each_poll(nested, async |_| f.becomes_free(&name).await).await;
}

async fn first_acquisition_dropped_after_each_poll(f: &Fixture) {
    let name = f.name();
    let first = || async {
        let manager = f.lazy_manager(patient()).await;
        manager.write(&name).await
    };
    after_each_poll(first, async |_| f.becomes_free(&name).await).await;
}

async fn try_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    after_each_poll(|| manager.try_write(&name), async |_| f.becomes_free(&name).await).await;
    after_each_poll(|| manager.try_read(&name), async |_| f.becomes_free(&name).await).await;
    after_each_poll(|| manager.read(&name).try_now(), async |_| f.becomes_free(&name).await).await;
}

/// Drops waiters after each poll while another guard holds the lock.
async fn drops_waiters<G: Guard>(f: &Fixture, waiter: impl Fn() -> Acquiring<G>, name: &str) {
    for dropped in Dropped::EITHER {
        for polls in 0..WAITING {
            let began = Instant::now();
            let granted = soon("the next poll", Polled::then(polls, dropped, waiter())).await;
            assert!(granted.is_none(), "the lock is held: {granted:?}");
            assert_eq!(f.view(name).await.holders.len(), 1);
            if began.elapsed() > HEARTBEAT {
                // The waiter is in the queue: from here on each poll is the same.
                break;
            }
        }
    }
}

async fn waiter_elsewhere_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let (holder, waiter, name) = (f.manager().await, f.manager_with(patient()).await, f.name());
    let guard = holder.read(&name).await?;
    drops_waiters(f, || waiter.write(&name).into_future(), &name).await;
    guard.release().await?;
    f.becomes_free(&name).await;
    let guard = holder.write(&name).await?;
    drops_waiters(f, || waiter.read(&name).into_future(), &name).await;
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn waiter_here_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    for write in [true, false] {
        let guard = manager.write(&name).await?;
        // One poll and no wake-up are enough, because the waiter waits in this process.
        for polls in 0..2 {
            let dropped = if write {
                Polled::times(polls, manager.write(&name).into_future()).await.is_none()
            } else {
                Polled::times(polls, manager.read(&name).into_future()).await.is_none()
            };
            assert!(dropped, "the lock is held");
        }
        guard.release().await?;
        f.becomes_free(&name).await;
        // The waiter's place in the queue is gone too.
        manager.write(&name).try_now().await?.expect("free").release().await?;
    }
    Ok(())
}

async fn waiter_dropped_while_the_lock_comes_free(f: &Fixture) {
    let (holder, waiter, name) = (f.manager().await, f.manager_with(patient()).await, f.name());
    for other in [&holder, &waiter] {
        for dropped in Dropped::EITHER {
            for polls in 0..MOST {
                let guard = holder.write(&name).await.expect("granted");
                let waiting = Polled::then(polls, dropped, other.write(&name).into_future());
                let (released, granted) = tokio::join!(guard.release(), soon("the next poll", waiting));
                released.expect("released");
                let ended = granted.is_some();
                drop(granted);
                f.becomes_free(&name).await;
                if ended {
                    break;
                }
            }
        }
    }
}

async fn leader_dropped_while_it_asks_passes_the_lead_on(f: &Fixture) -> Outcome {
    let (holder, manager, name) = (f.manager().await, f.manager_with(patient()).await, f.name());
    let guard = holder.write(&name).await?;
    let first = tokio::spawn(manager.write(&name).into_future());
    let mut second = manager.read(&name).into_future();
    crate::wait::stays_pending("a grant", &mut second).await;
    first.abort();
    guard.release().await?;
    let guard = granted(second).await;
    drop(first.await);
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn denied_try_dropped_after_each_poll(f: &Fixture) {
    let (holder, other, name) = (f.manager().await, f.manager_with(patient()).await, f.name());
    let guard = holder.read(&name).await.expect("granted");
    let only_one = async |_| assert_eq!(f.view(&name).await.holders.len(), 1);
    after_each_poll(|| other.try_write(&name), only_one).await;
    guard.release().await.expect("released");
    f.becomes_free(&name).await;
}

async fn release_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    for dropped in Dropped::EITHER {
        for polls in 0..MOST {
            let writer = manager.write(&name).await.expect("granted");
            let outcome = soon("the next poll", Polled::then(polls, dropped, writer.release())).await;
            f.becomes_free(&name).await;
            let reader = manager.read(&name).await.expect("the way is free here too");
            drop(soon("the next poll", Polled::then(polls, dropped, reader.release())).await);
            f.becomes_free(&name).await;
            if let Some(outcome) = outcome {
                outcome.expect("released");
                break;
            }
            assert!(polls + 1 < MOST, "the release did not end within {MOST} polls");
        }
    }
}

async fn inspect_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    let guard = manager.write(&name).await.expect("granted");
    after_each_poll(|| manager.inspect(&name), async |_| assert_eq!(guard.state(), HoldState::Held)).await;
    guard.release().await.expect("ours to the end");
    f.becomes_free(&name).await;
}

async fn force_release_dropped_after_each_poll(f: &Fixture) {
    let (holder, operator, name) = (f.manager_with(patient()).await, f.manager().await, f.name());
    for dropped in Dropped::EITHER {
        for polls in 0..MOST {
            let guard = holder.write(&name).await.expect("granted");
            let forcing = Polled::then(polls, dropped, operator.force_release(&name));
            let ended = soon("the next poll", forcing).await.is_some();
            match guard.release().await {
                Ok(()) if ended && f.holds_stay() => {
                    // The hold was cached, by the local clock, because the process had not heard of the force. It
                    // learns of it now.
                    until("the hold is given up", async || holder.stats().cached_holds == 0).await;
                }
                Ok(()) => assert!(!ended, "a force that was seen through ends the hold"),
                Err(error) => assert!(matches!(error, Error::Lost { reason: LossReason::Forced, .. }), "{error:?}"),
            }
            f.becomes_free(&name).await;
            if ended {
                break;
            }
            assert!(polls + 1 < MOST, "the force did not end within {MOST} polls");
        }
    }
}

async fn close_dropped_after_each_poll(f: &Fixture) {
    for dropped in Dropped::EITHER {
        for polls in 0..MOST {
            let ([manager], name) = f.scene_with(patient()).await;
            let guard = manager.write(&name).await.expect("granted");
            let ended = soon("the next poll", Polled::then(polls, dropped, manager.close())).await.is_some();
            if polls == 0 {
                assert_eq!(guard.state(), HoldState::Held, "nothing happens before the first poll");
                guard.release().await.expect("ours to the end");
            } else {
                assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
                let error = manager.write(&name).await.expect_err("closed for good");
                assert_matches!(error, Error::Closed { .. });
            }
            f.becomes_free(&name).await;
            if ended {
                break;
            }
            assert!(polls + 1 < MOST, "the close did not end within {MOST} polls");
        }
    }
}

async fn connect_dropped_after_each_poll(f: &Fixture) {
    let name = f.name();
    after_each_poll(|| f.connecting(patient()), async |_| f.becomes_free(&name).await).await;
}

async fn future_of_a_loss_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).lease(SHORT).max_hold(SHORT).await.expect("granted");
    for polls in 0..2 {
        let told = Polled::times(polls, guard.lost()).await;
        assert!(told.is_none() || guard.state() == HoldState::Lost(LossReason::MaxHold), "{told:?}");
    }
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::MaxHold);
    for polls in [1, 2] {
        assert_eq!(Polled::times(polls, guard.lost()).await, Some(LossReason::MaxHold), "it is told again at once");
    }
    drop(guard);
    f.becomes_free(&name).await;
}

async fn future_of_the_end_dropped_after_each_poll(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    let guard = manager.write(&name).await.expect("granted");
    let watch = guard.watch();
    for polls in 0..2 {
        assert_eq!(Polled::times(polls, watch.ended()).await, None);
        assert_eq!(guard.state(), HoldState::Held);
    }
    guard.release().await.expect("ours to the end");
    for polls in [1, 2] {
        assert_eq!(Polled::times(polls, watch.ended()).await, Some(Ended::Released), "it is told again at once");
    }
    f.becomes_free(&name).await;
}

async fn aborted_task_leaves_nothing(f: &Fixture) {
    let ([manager], name) = f.scene_with(patient()).await;
    for _ in 0..10 {
        let task = tokio::spawn({
            let (manager, name) = (Arc::clone(&manager), name.clone());
            async move {
                loop {
                    let guard = manager.write(&name).await.expect("granted");
                    tokio::task::yield_now().await;
                    guard.release().await.expect("released");
                }
            }
        });
        crate::wait::until("the task is at work", async || f.view(&name).await.last_token.is_some()).await;
        task.abort();
        assert!(task.await.expect_err("it never ends by itself").is_cancelled());
        f.becomes_free(&name).await;
    }
}
