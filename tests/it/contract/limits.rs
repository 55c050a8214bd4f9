//! Overload of one manager: bounded, told at once, and without a request.

use redis_rwlock::{Error, HoldState};

use crate::fixture::{Fixture, Settings, on_every_fixture};
use crate::wait::{Outcome, granted, start};

on_every_fixture![acquisitions_beyond_the_limit_are_refused_and_others_keep_their_places];

fn is_refused<T>(acquired: Result<T, Error>) {
    let error = acquired.err();
    assert_matches!(error, Some(Error::TooManyWaiters { waiting: 2, max_waiters: 2, .. }));
}

/// Waiters of any lock count, until they are granted or dropped. Another manager has a limit of its own.
async fn acquisitions_beyond_the_limit_are_refused_and_others_keep_their_places(f: &Fixture) -> Outcome {
    let (manager, other) =
        (f.manager_with(Settings { max_waiters: 2, ..Settings::default() }).await, f.manager().await);
    let (name, free) = (f.name(), f.name());
    let held = manager.write(&name).await?;
    let mut waiting: Vec<_> = (0..2).map(|_| manager.write(&name).into_future()).collect();
    waiting.iter_mut().for_each(start);
    is_refused(manager.write(&free).await);
    is_refused(manager.read(&name).await);
    is_refused(manager.try_write(&free).await);
    is_refused(manager.try_read(&free).await);
    assert_eq!(held.state(), HoldState::Held);
    granted(other.write(&free)).await.release().await?;
    // One is dropped, and its place is free.
    drop(waiting.pop());
    granted(manager.write(&free)).await.release().await?;
    // The other one is granted.
    held.release().await?;
    granted(waiting.pop().expect("one is left")).await.release().await?;
    for _ in 0..3 {
        granted(manager.read(&free)).await.release().await?;
    }
    Ok(())
}
