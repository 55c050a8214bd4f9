//! Nested acquisitions: they count for their owner, and for nobody else.

use std::time::Duration;

use redis_rwlock::{Error, OwnerId, Reentry};

use crate::fixture::{Fixture, Settings, on_every_fixture};
use crate::wait::{Outcome, granted, soon, stays_pending};

on_every_fixture![
    nested_guards_count_for_their_task,
    nested_guards_count_for_a_named_owner,
    write_in_a_read_is_a_conflict_at_once,
    hold_ends_with_the_last_guard_in_any_order,
    hundred_levels_are_one_hold,
    other_owners_stay_outside,
    other_tasks_stay_outside,
    manager_can_make_nesting_its_default,
    nested_guards_share_token_and_name,
    opted_in_tasks_exclude_each_other,
];

const LIMIT: Duration = Duration::from_millis(40);

async fn nested_guards_count_for_their_task(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let first = manager.write(&name).reentrant().await?;
    let read_in_write = manager.read(&name).reentrant().await?;
    let write_in_write = manager.write(&name).reentrant().await?;
    assert_eq!(f.view(&name).await.holders.len(), 1);
    drop((read_in_write, write_in_write));
    assert!(other.try_read(&name).await?.is_none(), "the outer guard is left");
    first.release().await?;

    let first = manager.read(&name).reentrant().await?;
    let read_in_read = manager.read(&name).reentrant().await?;
    assert_eq!(f.view(&name).await.holders.len(), 1);
    read_in_read.release().await?;
    assert!(other.try_write(&name).await?.is_none(), "the outer guard is left");
    first.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn nested_guards_count_for_a_named_owner(f: &Fixture) -> Outcome {
    let (manager, name, owner) = (f.manager().await, f.name(), OwnerId::new());
    let first = manager.write(&name).owner(owner).await?;
    // Wherever it runs: an owner that is named is not tied to a task.
    let nested = tokio::spawn(manager.read(&name).owner(owner).into_future());
    let read_in_write = soon("the nested grant", nested).await??;
    let write_in_write = manager.write(&name).owner(owner).try_now().await?.expect("nested");
    assert_eq!(f.view(&name).await.holders.len(), 1);
    for outcome in [first.release().await, read_in_write.release().await, write_in_write.release().await] {
        outcome?;
    }
    let first = manager.read(&name).owner(owner).await?;
    let read_in_read = manager.read(&name).owner(owner).await?;
    assert_eq!(f.view(&name).await.holders.len(), 1);
    drop((first, read_in_read));
    f.becomes_free(&name).await;
    Ok(())
}

async fn write_in_a_read_is_a_conflict_at_once(f: &Fixture) -> Outcome {
    let (manager, name, owner) = (f.manager().await, f.name(), OwnerId::new());
    let reader = manager.read(&name).reentrant().await?;
    let error = manager.write(&name).reentrant().await.expect_err("it would wait for itself");
    assert_matches!(error, Error::UpgradeConflict { lock, .. } if **lock == *name);
    assert_matches!(manager.write(&name).reentrant().try_now().await, Err(Error::UpgradeConflict { .. }));
    reader.release().await?;

    let reader = manager.read(&name).owner(owner).await?;
    assert_matches!(manager.write(&name).owner(owner).await, Err(Error::UpgradeConflict { .. }));
    reader.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn hold_ends_with_the_last_guard_in_any_order(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let outer = manager.write(&name).reentrant().await?;
    let middle = manager.read(&name).reentrant().await?;
    let inner = manager.write(&name).reentrant().await?;
    outer.release().await?;
    assert!(other.try_read(&name).await?.is_none());
    inner.release().await?;
    assert!(other.try_read(&name).await?.is_none(), "a write hold until its last guard");
    middle.release().await?;
    other.try_write(&name).await?.expect("free at once").release().await?;
    Ok(())
}

async fn hundred_levels_are_one_hold(f: &Fixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let mut levels = vec![manager.write(&name).reentrant().await?];
    for _ in 1..100 {
        levels.push(manager.write(&name).reentrant().await?);
    }
    assert_eq!(f.view(&name).await.holders.len(), 1);
    let last = levels.swap_remove(37);
    for guard in levels {
        guard.release().await?;
    }
    assert!(other.try_read(&name).await?.is_none());
    last.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn other_owners_stay_outside(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let (one, other) = (OwnerId::new(), OwnerId::new());
    let guard = manager.write(&name).owner(one).await?;
    assert!(manager.write(&name).owner(other).try_now().await?.is_none());
    assert!(manager.read(&name).owner(other).try_now().await?.is_none());
    assert!(manager.read(&name).reentrant().try_now().await?.is_none());
    assert!(manager.read(&name).try_now().await?.is_none());
    // The owner of another manager is another process's.
    assert!(f.manager().await.write(&name).owner(one).try_now().await?.is_none());
    guard.release().await?;
    Ok(())
}

async fn other_tasks_stay_outside(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let guard = manager.write(&name).reentrant().await.expect("granted");
    let mut elsewhere = tokio::spawn(manager.write(&name).reentrant().into_future());
    stays_pending("another task's grant", &mut elsewhere).await;
    guard.release().await.expect("released");
    drop(granted(elsewhere).await);
    f.becomes_free(&name).await;
}

async fn manager_can_make_nesting_its_default(f: &Fixture) -> Outcome {
    let settings = Settings { reentry: Reentry::PerTask, ..Settings::default() };
    let ([manager], name) = f.scene_with(settings).await;
    let outer = manager.write(&name).await?;
    let inner = manager.try_read(&name).await?.expect("nested");
    drop(outer);
    inner.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn nested_guards_share_token_and_name(f: &Fixture) {
    let ([manager], name) = f.scene().await;
    let outer = manager.write(&name).reentrant().await.expect("granted");
    let inner = manager.read(&name).reentrant().await.expect("nested");
    assert_eq!(inner.fencing_token(), outer.fencing_token());
    assert_eq!((inner.name(), outer.name()), (&*name, &*name));
    drop((outer, inner));
    f.becomes_free(&name).await;
}

/// Opting in makes the acquisitions of one task nest: it does not let tasks in beside each other, nor those that wait.
async fn opted_in_tasks_exclude_each_other(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let holder = manager.read(&name).reentrant().await?;
    let waiter = tokio::spawn(manager.write(&name).reentrant().wait_timeout(LIMIT).into_future());
    let outcome = soon("the end of the wait", waiter).await?;
    assert_matches!(outcome, Err(Error::WaitTimeout { .. }));
    holder.release().await?;
    Ok(())
}
