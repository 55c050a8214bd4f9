//! Several locks in one step: all of them or none, without deadlocks.

use std::time::Duration;

use redis_rwlock::{Error, read, write};

use crate::fixture::{Fixture, Settings, on_every_fixture};
use crate::wait::{BOUND, Outcome, granted};

on_every_fixture![
    group_holds_all_of_its_locks_or_none,
    group_that_waits_gets_its_locks_when_they_are_free,
    groups_that_want_each_others_locks_all_get_them,
];

async fn group_holds_all_of_its_locks_or_none(f: &Fixture) -> Outcome {
    let (manager, other) = (f.manager().await, f.manager().await);
    let [a, b, c] = [f.name(), f.name(), f.name()];
    let group = [write(&*a), read(&*b), write(&*c)];
    let guard = manager.all(&group).await.expect("all are free");
    assert!(other.try_read(&a).await?.is_none(), "the group writes");
    assert!(other.try_write(&b).await?.is_none(), "the group reads");
    let token = guard.fencing_token(&a).expect("a member");
    guard.release().await?;

    let reading = other.read(&c).await?;
    assert!(manager.all(&group).try_now().await?.is_none(), "one of them is taken");
    // Where holds are cached, a writer elsewhere recalls them first.
    let free = other.write(&a).wait_timeout(BOUND).await.expect("the group gave it back");
    assert!(free.fencing_token() > token);
    free.release().await?;
    let limited = manager.all(&group).wait_timeout(Duration::from_millis(50)).await;
    assert_matches!(limited, Err(Error::WaitTimeout { lock, confirmed: true, .. }) if **lock == *c);
    reading.release().await?;
    for name in [a, b, c] {
        f.becomes_free(&name).await;
    }
    Ok(())
}

async fn group_that_waits_gets_its_locks_when_they_are_free(f: &Fixture) -> Outcome {
    let (manager, other) = (f.manager_with(Settings::lease(Duration::from_secs(2))).await, f.manager().await);
    let [a, b] = [f.name(), f.name()];
    let blocking = other.write(&b).await?;
    let group = tokio::spawn(manager.all(&[write(&*b), write(&*a)]).into_future());
    // Longer than a lease: what the group holds is renewed.
    tokio::time::sleep(Duration::from_secs(3)).await;
    assert!(!group.is_finished());
    blocking.release().await?;
    let guard = granted(group).await;
    guard.confirmed().await?;
    assert!(guard.remaining() > Duration::from_millis(900), "{:?}", guard.remaining());
    drop(guard);
    for name in [a, b] {
        f.becomes_free(&name).await;
    }
    Ok(())
}

async fn groups_that_want_each_others_locks_all_get_them(f: &Fixture) {
    let [a, b, c] = [f.name(), f.name(), f.name()];
    let mut workers = Vec::new();
    for number in 0..4 {
        let manager = f.manager().await;
        let mut group = vec![write(&*a), read(&*b), write(&*c)];
        group.rotate_left(number % 3);
        group.truncate(2 + number % 2);
        workers.push(tokio::spawn(async move {
            for _ in 0..10 {
                let guard = manager.all(&group).await.expect("granted in the end");
                tokio::task::yield_now().await;
                guard.release().await.expect("ours to the end");
            }
        }));
    }
    for worker in workers {
        tokio::time::timeout(BOUND, worker).await.expect("no deadlock").expect("no panic");
    }
    for name in [a, b, c] {
        f.becomes_free(&name).await;
    }
}
