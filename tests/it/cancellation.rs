//! Drops every public future after each of its polls. The server keeps no record then, and no other caller gets an
//! error or a delay.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{Ended, Error, HoldState, LossReason, Mode};

use crate::either::take;
use crate::fixture::{Fixture, SHORT, Settings, on_every_fixture};
use crate::wait::{Dropped, Failure, Outcome, Polled, begin_to_wait, granted, soon, until};

on_every_fixture![
    acquisition_dropped_after_each_poll,
    first_acquisition_dropped_after_each_poll,
    try_dropped_after_each_poll,
    waiter_elsewhere_dropped_after_each_poll,
    waiter_here_dropped_after_each_poll,
    waiter_dropped_while_the_lock_comes_free,
    requester_dropped_while_it_asks_leaves_the_request_to_the_next,
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

/// Moment at which a future is dropped.
#[derive(Clone, Copy, Debug)]
pub struct Cut {
    pub polls: u32,
    dropped: Dropped,
}

impl Cut {
    /// Polls the future until the cut. Returns its output if it ends before.
    pub async fn of<F: Future>(self, future: F) -> Option<F::Output> {
        soon("the next poll", Polled::then(self.polls, self.dropped, future)).await
    }
}

/// Runs a step with cuts after 0, 1, 2 … polls, until the step returns that its future has ended by itself.
pub async fn each_cut(mut step: impl AsyncFnMut(Cut) -> Result<bool, Failure>) -> Outcome {
    for dropped in Dropped::EITHER {
        let mut polls = 0;
        while !step(Cut { polls, dropped }).await? {
            polls += 1;
            assert!(polls < MOST, "the future did not end within {MOST} polls");
        }
    }
    Ok(())
}

/// Drops the future that `make` makes at each cut, and asserts that the lock becomes free.
async fn each_cut_leaves_nothing<F>(f: &Fixture, name: &str, make: impl Fn() -> F + Send + Sync) -> Outcome
where
    F: Future<Output: Send> + Send,
{
    each_cut(async |cut| {
        let ended = cut.of(make()).await.is_some();
        f.becomes_free(name).await;
        Ok(ended)
    })
    .await
}

async fn acquisition_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    each_cut_leaves_nothing(f, &name, || manager.write(&name).into_future()).await?;
    each_cut_leaves_nothing(f, &name, || manager.read(&name).into_future()).await?;
    each_cut_leaves_nothing(f, &name, || manager.write(&name).reentrant().into_future()).await
}

async fn first_acquisition_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let name = f.name();
    let first = || async { f.lazy_manager(patient()).await.write(&name).await };
    each_cut_leaves_nothing(f, &name, first).await
}

async fn try_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    each_cut_leaves_nothing(f, &name, || manager.try_write(&name)).await?;
    each_cut_leaves_nothing(f, &name, || manager.try_read(&name)).await?;
    each_cut_leaves_nothing(f, &name, || manager.read(&name).try_now()).await
}

async fn waiter_elsewhere_dropped_after_each_poll(f: &Fixture) {
    let (waiter, holder, name) = f.pair(patient()).await;
    for (held, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let guard = take(&holder, &name, held).await;
        for dropped in Dropped::EITHER {
            for polls in 0..WAITING {
                let began = Instant::now();
                let granted = Cut { polls, dropped }.of(take(&waiter, &name, wanted)).await;
                assert!(granted.is_none(), "the lock is held: {granted:?}");
                assert_eq!(f.view(&name).await.holders.len(), 1);
                if began.elapsed() > HEARTBEAT {
                    // The waiter is in the queue: from here on each poll is the same.
                    break;
                }
            }
        }
        guard.release_unharmed().await;
        f.becomes_free(&name).await;
    }
}

async fn waiter_here_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    for mode in [Mode::Write, Mode::Read] {
        let guard = manager.write(&name).await?;
        // One poll and no wake-up are enough, because the waiter waits in this process.
        for polls in 0..2 {
            assert!(Polled::times(polls, take(&manager, &name, mode)).await.is_none(), "the lock is held");
        }
        guard.release().await?;
        f.becomes_free(&name).await;
        // The waiter's place in the queue is gone too.
        manager.try_write(&name).await?.expect("free").release().await?;
    }
    Ok(())
}

async fn waiter_dropped_while_the_lock_comes_free(f: &Fixture) -> Outcome {
    let (waiter, holder, name) = f.pair(patient()).await;
    for other in [&holder, &waiter] {
        for dropped in Dropped::EITHER {
            for polls in 0..MOST {
                let guard = holder.write(&name).await?;
                let waiting = Cut { polls, dropped }.of(other.write(&name).into_future());
                let (released, granted) = tokio::join!(guard.release(), waiting);
                released?;
                let ended = granted.is_some();
                drop(granted);
                f.becomes_free(&name).await;
                if ended {
                    break;
                }
            }
        }
    }
    Ok(())
}

async fn requester_dropped_while_it_asks_leaves_the_request_to_the_next(f: &Fixture) -> Outcome {
    let (manager, holder, name) = f.pair(patient()).await;
    let guard = holder.write(&name).await?;
    let first = tokio::spawn(manager.write(&name).into_future());
    let second = begin_to_wait("a grant", manager.read(&name)).await;
    first.abort();
    guard.release().await?;
    let guard = granted(second).await;
    drop(first.await);
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn denied_try_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let (other, holder, name) = f.pair(patient()).await;
    let guard = holder.read(&name).await?;
    each_cut(async |cut| {
        let ended = cut.of(other.try_write(&name)).await.is_some();
        assert_eq!(f.view(&name).await.holders.len(), 1);
        Ok(ended)
    })
    .await?;
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn release_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    each_cut(async |cut| {
        let writer = manager.write(&name).await?;
        let outcome = cut.of(writer.release()).await;
        f.becomes_free(&name).await;
        let reader = manager.read(&name).await.expect("the way is free here too");
        drop(cut.of(reader.release()).await);
        f.becomes_free(&name).await;
        Ok(outcome.transpose()?.is_some())
    })
    .await
}

async fn inspect_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(patient()).await;
    let guard = manager.write(&name).await?;
    each_cut(async |cut| {
        let ended = cut.of(manager.inspect(&name)).await.is_some();
        assert_eq!(guard.state(), HoldState::Held);
        Ok(ended)
    })
    .await?;
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn force_release_dropped_after_each_poll(f: &Fixture) -> Outcome {
    let (holder, operator, name) = f.pair(patient()).await;
    each_cut(async |cut| {
        let guard = holder.write(&name).await?;
        let ended = cut.of(operator.force_release(&name)).await.is_some();
        match guard.release().await {
            Ok(()) if ended && f.holds_stay() => {
                // The hold was cached, by the local clock, because the process had not heard of the force. It
                // learns of it now.
                until("the hold is given up", async || holder.stats().cached_holds == 0).await;
            }
            Ok(()) => assert!(!ended, "a force that was seen through ends the hold"),
            Err(error) => assert_matches!(error, Error::Lost { reason: LossReason::Forced, .. }),
        }
        f.becomes_free(&name).await;
        Ok(ended)
    })
    .await
}

async fn close_dropped_after_each_poll(f: &Fixture) -> Outcome {
    each_cut(async |cut| {
        let ([manager], name) = f.scene_with(patient()).await;
        let guard = manager.write(&name).await?;
        let ended = cut.of(manager.close()).await.is_some();
        if cut.polls == 0 {
            assert_eq!(guard.state(), HoldState::Held, "nothing happens before the first poll");
            guard.release().await?;
        } else {
            assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
            assert_matches!(manager.write(&name).await, Err(Error::Closed { .. }));
        }
        f.becomes_free(&name).await;
        Ok(ended)
    })
    .await
}

async fn connect_dropped_after_each_poll(f: &Fixture) -> Outcome {
    each_cut_leaves_nothing(f, &f.name(), || f.connecting(patient())).await
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
        until("the task is at work", async || f.view(&name).await.last_token.is_some()).await;
        task.abort();
        assert!(task.await.expect_err("it never ends by itself").is_cancelled());
        f.becomes_free(&name).await;
    }
}
