//! Refusals, and the holder that a refusal names without a further request.

use std::time::Duration;

use redis_rwlock::{Denied, DenyingHolder, MemoryManager, Mode, RwLockManager};

use crate::fixture::{Fixture, RECALL_TIMEOUT, ServerFixture, Settings, on_every_fixture};
use crate::wait::{Outcome, begin, granted, until};

on_every_fixture![
    refusal_names_the_writer,
    refusal_names_one_of_the_readers,
    refusal_within_the_process_names_its_own_hold,
    limit_ends_with_the_holder,
    waiter_behind_another_one_of_its_process_has_the_refusal_of_that_one,
];

mod refusal_costs_no_further_script {
    crate::fixture::on_hash!(refusal_costs_no_further_script, alone.await);
}

const LEASE: Duration = Duration::from_secs(30);

fn holder(denied: Denied) -> DenyingHolder {
    denied.holder.unwrap_or_else(|| panic!("the refusal names no holder"))
}

async fn refusal_names_the_writer(f: &Fixture) -> Outcome {
    let (writer, other, name) = f.pair(Settings::label("billing-1")).await;
    let guard = writer.write(&name).lease(LEASE).await?;
    let denials = [
        other.write(&name).try_or_denied().await?.expect_err("a writer is inside"),
        other.read(&name).try_or_denied().await?.expect_err("a writer is inside"),
    ];
    for denied in denials {
        assert!(!denied.others_wait && denied.more_holders == 0 && denied.age < LEASE / 2, "{denied:?}");
        assert!(denied.to_string().starts_with("held by \"billing-1\" (write"), "{denied}");
        let holder = holder(denied);
        assert_eq!((&*holder.label, holder.mode, holder.is_ours), ("billing-1", Mode::Write, false));
        // The format of Redisson has the time of no grant.
        assert_eq!(holder.age.is_none(), f.is_redisson(), "{holder:?}");
        assert!(holder.age.is_none_or(|age| age < LEASE / 2), "{holder:?}");
        assert!(holder.remaining > LEASE / 2 && holder.remaining <= LEASE, "{holder:?}");
        assert!(!holder.cached || f.holds_stay(), "{holder:?}");
    }
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}

async fn refusal_names_one_of_the_readers(f: &Fixture) -> Outcome {
    let name = f.name();
    let (a, b) = (f.manager_with_label("a").await, f.manager_with_label("b").await);
    let guards = [a.read(&name).lease(LEASE).await?, b.read(&name).lease(LEASE).await?];
    let denied = f.manager().await.write(&name).try_or_denied().await?.expect_err("readers are inside");
    // Masters of a quorum may name different readers.
    if denied.holder.is_some() || !f.is_quorum() {
        let named = holder(denied.clone());
        assert!(["a", "b"].contains(&&*named.label) && named.mode == Mode::Read && !named.is_ours, "{named:?}");
        assert!(named.remaining > LEASE / 2 && named.age.is_none_or(|age| age < LEASE / 2), "{named:?}");
        // Two keys do not tell the age of a reader, nor how many there are. The format of Redisson tells only how many.
        assert_eq!(denied.more_holders, usize::from(named.age.is_some() || f.is_redisson()), "{denied:?}");
    }
    for guard in guards {
        guard.release().await?;
    }
    Ok(())
}

async fn refusal_within_the_process_names_its_own_hold(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::label("alone")).await;
    let guard = manager.write(&name).lease(LEASE).await?;
    let denied = manager.read(&name).try_or_denied().await?.expect_err("a guard is here");
    let holder = holder(denied);
    assert_eq!((&*holder.label, holder.mode, holder.is_ours), ("alone", Mode::Write, true));
    assert!(holder.remaining > LEASE / 2 && holder.age.is_some_and(|age| age < LEASE / 2), "{holder:?}");
    let error = manager.write(&name).wait_timeout(Duration::from_millis(20)).await.expect_err("a guard is here");
    assert!(error.denial().and_then(|denied| denied.holder.as_ref()).is_some_and(|holder| holder.is_ours), "{error:?}");
    guard.release().await?;
    Ok(())
}

async fn limit_ends_with_the_holder(f: &Fixture) {
    let (reader, other, name) = f.pair(Settings::label("reporting")).await;
    let guard = reader.read(&name).lease(LEASE).await.expect("granted");
    for limit in [Duration::ZERO, Duration::from_millis(60)] {
        let error = other.write(&name).wait_timeout(limit).await.expect_err("a reader is inside");
        let denied = error.denial().expect("of a wait");
        assert!(error.to_string().contains("held by \"reporting\" (read"), "{error}");
        assert_eq!(holder(denied.clone()).label, "reporting");
    }
    guard.release().await.expect("released");
    f.becomes_free(&name).await;
}

async fn waiter_behind_another_one_of_its_process_has_the_refusal_of_that_one(f: &Fixture) -> Outcome {
    let (writer, other, name) = f.pair(Settings::label("writer")).await;
    let guard = writer.write(&name).await?;
    let first = begin(other.read(&name));
    let first = tokio::spawn(first);
    // A reader that comes later waits here, and asks nothing.
    let mut named = None;
    until("the refusal of the first one is known", async || {
        let error = other.read(&name).wait_timeout(Duration::from_millis(20)).await.expect_err("a writer is inside");
        named = error.denial().and_then(|denied| denied.holder.clone());
        named.is_some()
    })
    .await;
    assert_eq!(named.map(|holder| (holder.label, holder.is_ours)), Some(("writer".to_owned(), false)));
    guard.release().await?;
    granted(first).await.release().await?;
    Ok(())
}

async fn refusal_costs_no_further_script(f: &ServerFixture) -> Outcome {
    let (holder, other, name) = f.pair(Settings::label("holder")).await;
    let guard = holder.write(&name).lease(LEASE).await?;
    let scripts = || f.calls_of("evalsha") + f.calls_of("eval");
    // The first requests load the scripts.
    drop(other.read(&name).wait_timeout(Duration::ZERO).await);
    let before = scripts();
    let denied = other.write(&name).try_or_denied().await?.expect_err("a writer is inside");
    assert_eq!((denied.holder.map(|holder| holder.label).as_deref(), scripts() - before), (Some("holder"), 1));
    // Each script of a waiter looks at the ttl, and a script that shows the lock does not.
    let looks = || scripts() - f.calls_of("pexpireat");
    let before = looks();
    let error = other.read(&name).wait_timeout(Duration::from_millis(50)).await.expect_err("a writer is inside");
    assert!(error.to_string().contains("\"holder\""), "{error}");
    assert_eq!(looks() - before, 0, "the requests of the wait, and no look");
    guard.release().await?;
    Ok(())
}

/// The clock stands still but for the waits of this case, and a process asks once a second for all its waiters.
#[tokio::test(start_paused = true)]
async fn refusal_of_another_waiter_is_told_with_its_age() -> Outcome {
    let store = MemoryManager::new();
    let (writer, other) = (store.peer(), store.peer());
    let guard = writer.write("cfg").await?;
    let first = tokio::spawn(other.read("cfg").into_future());
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = other.read("cfg").wait_timeout(Duration::from_millis(500)).await.expect_err("a writer is inside");
    let denied = error.denial().expect("of a wait").clone();
    assert!((590..=610).contains(&denied.age.as_millis()), "the first waiter was refused at the start: {denied:?}");
    assert!(holder(denied).age.is_some_and(|age| age < Duration::from_millis(10)), "as the refusal said");
    guard.release().await?;
    first.await??.release().await?;
    Ok(())
}

crate::fixture::on_two_threads![
    holder_that_has_said_that_a_guard_is_inside_is_not_shown_as_cached,
    holder_that_may_only_cache_its_hold_is_shown_as_such,
];

/// A manager in memory that caches its hold of a lock, and one whose recalls wait so long.
async fn cached_in_memory(recall_timeout: Duration) -> (MemoryManager, MemoryManager) {
    let store = MemoryManager::new();
    let caching = store.peer_builder().label("caching").cache_for(Duration::from_secs(300)).build().expect("valid");
    let other = store.peer_builder().recall_timeout(recall_timeout).build().expect("valid");
    // Only a lock that is used again is worth caching.
    until("the hold stays", async || {
        caching.write("cfg").await.expect("granted").release().await.expect("released");
        caching.stats().cached_holds == 1
    })
    .await;
    (caching, other)
}

async fn holder_that_has_said_that_a_guard_is_inside_is_not_shown_as_cached() -> Outcome {
    let (caching, other) = cached_in_memory(RECALL_TIMEOUT).await;
    let guard = caching.write("cfg").await.expect("its cached hold");
    let denied = other.write("cfg").try_or_denied().await?.expect_err("a guard is inside");
    assert!(!holder(denied).cached);
    guard.release().await?;
    Ok(())
}

/// The holder's process does not hear the recall, so it does not say that no guard is inside.
async fn holder_that_may_only_cache_its_hold_is_shown_as_such() -> Outcome {
    let (caching, other) = cached_in_memory(RECALL_TIMEOUT / 10).await;
    caching.disconnect();
    let denied = other.write("cfg").try_or_denied().await?.expect_err("its hold stays");
    assert!(denied.to_string().starts_with("held by \"caching\" (write, perhaps only cached"), "{denied}");
    assert!(holder(denied).cached);
    Ok(())
}
