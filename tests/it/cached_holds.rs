//! Cached holds, and the processes that recall them.

use std::time::{Duration, Instant};

use redis_rwlock::{Error, HoldState, MemoryManager, Mode, QuorumManager, RedisManager, TwoKeyManager};

use crate::either::{AnyGuard, take};
use crate::fixture::{Fixture, Manager, RECALL_TIMEOUT, Settings};
use crate::wait::{BOUND, Outcome, soon, until};

mod cluster;
mod costs;
mod faults;
mod recalls;

/// Each case in memory and on the four server fixtures of the hash scheme.
macro_rules! with_cached_holds {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn memory() {
                let fixture = $crate::fixture::Fixture::memory();
                $crate::wait::bounded(super::$case(&fixture)).await;
            }

            $crate::fixture::on_hash!($case, shared);
        }
    )+};
}

with_cached_holds![
    name_that_is_used_again_stays_cached,
    writer_elsewhere_is_not_kept_waiting,
    reader_elsewhere_is_not_kept_waiting_by_a_cached_write_hold,
    try_is_granted_a_lock_that_is_cached_unused,
    try_is_refused_by_a_guard_and_disturbs_nobody,
    try_is_refused_where_no_holder_replies,
    second_try_in_a_process_is_refused_at_once,
    short_wait_is_granted_a_lock_that_is_cached_unused,
    short_wait_beside_a_guard_ends_and_leaves_nothing,
    other_side_in_the_same_process_is_not_kept_waiting,
    tokens_grow_from_writer_to_writer,
    cached_hold_that_is_unused_for_long_is_given_back,
    hold_stays_cached_while_its_node_answers,
    close_gives_cached_holds_back,
    last_handle_gives_cached_holds_back,
    force_ends_cached_holds_and_lets_nobody_in_again,
];

const CACHE_FOR: Duration = Duration::from_secs(60);
/// Time that is shorter than the first heartbeat of a waiter: a waiter that is in by then did not need one.
const BEFORE_A_HEARTBEAT: Duration = Duration::from_millis(900);

fn caching() -> Settings {
    Settings { cache_for: CACHE_FOR, ..Settings::default() }
}

/// A manager that caches a hold of a lock, another one, and the lock's name.
async fn scene_with_cached(f: &Fixture, mode: Mode) -> (Manager, Manager, String) {
    let (holder, other, name) = f.pair(caching()).await;
    cache_hold(&holder, &name, mode).await;
    (holder, other, name)
}

/// Uses the lock until its hold is cached. The future has no closure of its own, so it can be sent to any runtime.
async fn cache_hold(manager: &Manager, name: &str, mode: Mode) {
    let began = Instant::now();
    loop {
        take(manager, name, mode).await.release_unharmed().await;
        if manager.stats().cached_holds == 1 {
            return;
        }
        assert!(began.elapsed() < BOUND, "the hold does not stay");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

async fn name_that_is_used_again_stays_cached(f: &Fixture) -> Outcome {
    let ([manager], name) = f.scene_with(caching()).await;
    manager.read(&f.name()).await?.release().await?;
    assert_eq!(manager.stats().holds, 0, "a name that does not come back is given back");
    for mode in [Mode::Read, Mode::Write] {
        let name = format!("{name}-{mode}");
        cache_hold(&manager, &name, mode).await;
        let view = f.view(&name).await;
        assert_eq!(view.holders.len(), 1, "it is held: {view:?}");
        assert!(view.holders[0].cached, "and its process may not be inside: {view:?}");
        for _ in 0..20 {
            let guard = take(&manager, &name, mode).await;
            let own = manager.inspect(&name).await.expect("an answer").holders.remove(0);
            assert_eq!((own.guards, own.cached), (1, false), "somebody is inside");
            guard.release_unharmed().await;
            let own = manager.inspect(&name).await.expect("an answer").holders.remove(0);
            assert_eq!((own.guards, own.cached), (0, true));
            assert!(f.view(&name).await.holders[0].age >= view.holders[0].age, "by the same hold");
        }
        manager.write(&name).cache_for(Duration::ZERO).await?.release().await?;
        f.becomes_free(&name).await;
    }
    Ok(())
}

async fn not_kept_waiting(f: &Fixture, cached_side: Mode, wanted: Mode) {
    let (holder, other, name) = f.pair(caching()).await;
    for _ in 0..3 {
        cache_hold(&holder, &name, cached_side).await;
        let began = Instant::now();
        let guard = take(&other, &name, wanted).await;
        assert!(began.elapsed() < BEFORE_A_HEARTBEAT, "after {:?}", began.elapsed());
        until("it has been given up", async || holder.stats().holds == 0).await;
        guard.release_unharmed().await;
        // A waiter has recalled the hold before it was used again, so for a while it is not cached.
        for _ in 0..20 {
            take(&holder, &name, cached_side).await.release_unharmed().await;
        }
    }
}

async fn writer_elsewhere_is_not_kept_waiting(f: &Fixture) {
    not_kept_waiting(f, Mode::Read, Mode::Write).await;
    not_kept_waiting(f, Mode::Write, Mode::Write).await;
}

async fn reader_elsewhere_is_not_kept_waiting_by_a_cached_write_hold(f: &Fixture) {
    not_kept_waiting(f, Mode::Write, Mode::Read).await;
}

async fn try_is_granted_a_lock_that_is_cached_unused(f: &Fixture) {
    // A manager that caches holds recalls at once. Another one does so when the server answers that others may cache.
    for settings in [Settings::default(), caching()] {
        let (holder, _, name) = scene_with_cached(f, Mode::Read).await;
        let other = f.manager_with(settings).await;
        let guard = other.try_write(&name).await.expect("answered").expect("nobody is inside");
        until("it has been given up", async || holder.stats().holds == 0).await;
        guard.release().await.expect("released");
    }
}

async fn try_is_refused_by_a_guard_and_disturbs_nobody(f: &Fixture) -> Outcome {
    for settings in [Settings::default(), caching()] {
        let (holder, _, name) = scene_with_cached(f, Mode::Read).await;
        let other = f.manager_with(settings).await;
        let guard = holder.read(&name).await?;
        for _ in 0..5 {
            assert!(other.try_write(&name).await?.is_none(), "a guard is inside");
        }
        f.until_waiting(0, &name).await;
        let second = holder.read(&name).await.expect("the door is open");
        assert_eq!(f.view(&name).await.holders.len(), 1, "it shares the hold");
        assert_eq!(guard.state(), HoldState::Held);
        second.release().await?;
        guard.release().await?;
        assert_eq!(holder.stats().cached_holds, 1);
    }
    Ok(())
}

/// The recall timeout is longer here than a node may be silent.
async fn try_is_refused_where_no_holder_replies(f: &Fixture) -> Outcome {
    let (_holder, plain, name) = scene_with_cached(f, Mode::Read).await;
    let other = f.manager_with(caching()).await;
    // The reader joins the phase. A process whose hold may not be cached does not listen for recalls.
    let guard = plain.read(&name).await?;
    assert!(other.try_write(&name).await?.is_none(), "a guard is inside");
    // The background gives the try's place back. A release that comes before would grant the lock to it.
    f.until_waiting(0, &name).await;
    guard.release().await?;
    other.try_write(&name).await?.expect("nobody is inside").release().await?;
    Ok(())
}

/// The first try releases the process's cached hold and gets the lock. The second try finds the new hold at the server,
/// and its own process answers the recall.
async fn second_try_in_a_process_is_refused_at_once(f: &Fixture) {
    let (holder, _, name) = scene_with_cached(f, Mode::Read).await;
    let began = Instant::now();
    let (first, second) = tokio::join!(holder.try_write(&name), holder.try_write(&name));
    assert!(began.elapsed() < RECALL_TIMEOUT, "nobody had to wait for a word that does not come");
    let guards: Vec<_> = [first, second].into_iter().filter_map(|guard| guard.expect("answered")).collect();
    assert_eq!(guards.len(), 1, "one is inside");
    for guard in guards {
        guard.release().await.expect("released");
    }
}

/// Time limits that are shorter than a recall and a release take.
const SHORT: [Duration; 2] = [Duration::ZERO, Duration::from_millis(1)];

async fn short_wait_is_granted_a_lock_that_is_cached_unused(f: &Fixture) {
    for wait in SHORT {
        for (cached_side, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Write), (Mode::Write, Mode::Read)]
        {
            let (holder, other, name) = scene_with_cached(f, cached_side).await;
            let granted = match wanted {
                Mode::Read => other.read(&name).wait_timeout(wait).await.map(AnyGuard::Read),
                Mode::Write => other.write(&name).wait_timeout(wait).await.map(AnyGuard::Write),
            };
            let guard = granted.unwrap_or_else(|error| panic!("{wanted} beside a cached {cached_side}: {error}"));
            until("it has been given up", async || holder.stats().holds == 0).await;
            guard.release_unharmed().await;
        }
    }
}

async fn short_wait_beside_a_guard_ends_and_leaves_nothing(f: &Fixture) {
    for wait in SHORT {
        let (holder, other, name) = scene_with_cached(f, Mode::Read).await;
        let guard = holder.read(&name).await.expect("granted");
        let error = soon("the end", other.write(&name).wait_timeout(wait).into_future()).await;
        assert!(matches!(error, Err(Error::WaitTimeout { .. })), "a guard is inside: {error:?}");
        f.until_waiting(0, &name).await;
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.expect("released");
    }
}

async fn other_side_in_the_same_process_is_not_kept_waiting(f: &Fixture) {
    let ([manager], name) = f.scene_with(caching()).await;
    for (cached_side, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        cache_hold(&manager, &name, cached_side).await;
        let began = Instant::now();
        take(&manager, &name, wanted).await.release_unharmed().await;
        assert!(began.elapsed() < BEFORE_A_HEARTBEAT, "after {:?}", began.elapsed());
    }
}

async fn tokens_grow_from_writer_to_writer(f: &Fixture) -> Outcome {
    let (holder, other, name) = f.pair(caching()).await;
    let mut last = holder.write(&name).await?.fencing_token();
    // More grants than several blocks of tokens have, with another process in between.
    for n in 0..300 {
        let manager = if n % 100 == 99 { &other } else { &holder };
        let guard = manager.write(&name).await?;
        assert!(guard.fencing_token() > last, "{n}: {:?} after {last:?}", guard.fencing_token());
        last = guard.fencing_token();
        guard.release().await?;
    }
    Ok(())
}

async fn cached_hold_that_is_unused_for_long_is_given_back(f: &Fixture) {
    let settings = Settings { cache_for: Duration::from_millis(700), ..Settings::default() };
    let ([manager], name) = f.scene_with(settings).await;
    cache_hold(&manager, &name, Mode::Write).await;
    f.becomes_free(&name).await;
    // The server ends the hold before the process gets the answer.
    until("the process knows", async || manager.stats().holds == 0).await;
}

/// The hold stays cached for longer than the second for which an answer of the node counts.
async fn hold_stays_cached_while_its_node_answers(f: &Fixture) {
    let (manager, _, name) = scene_with_cached(f, Mode::Read).await;
    let age = async || f.view(&name).await.holders[0].age;
    for _ in 0..3 {
        let before = age().await;
        tokio::time::sleep(Duration::from_millis(900)).await;
        take(&manager, &name, Mode::Read).await.release_unharmed().await;
        assert!(age().await > before, "it is the same hold");
        assert_eq!(manager.stats().cached_holds, 1);
    }
}

async fn close_gives_cached_holds_back(f: &Fixture) {
    let (manager, other, name) = scene_with_cached(f, Mode::Write).await;
    manager.close().await.expect("all are given back");
    assert!(other.try_write(&name).await.expect("answered").is_some());
}

async fn last_handle_gives_cached_holds_back(f: &Fixture) {
    let (manager, _, name) = scene_with_cached(f, Mode::Write).await;
    drop(manager);
    f.becomes_free(&name).await;
}

async fn force_ends_cached_holds_and_lets_nobody_in_again(f: &Fixture) {
    let (holder, other, name) = f.pair(caching()).await;
    for mode in [Mode::Read, Mode::Write] {
        cache_hold(&holder, &name, mode).await;
        other.force_release(&name).await.expect("forced");
        until("it is given up", async || holder.stats().cached_holds == 0).await;
        soon("the next one", async { take(&holder, &name, mode).await.release_unharmed().await }).await;
    }
}

#[test]
fn where_nobody_can_call_the_option_is_refused() {
    let refused = |built: Result<(), Error>| match built {
        Err(Error::InvalidOption { option, reason, .. }) => assert_eq!(option, "cache_for", "{reason}"),
        other => panic!("{other:?}"),
    };
    let url = "redis://127.0.0.1:1";
    refused(TwoKeyManager::builder(redis_rwlock::Topology::node(url)).cache_for(CACHE_FOR).build().map(drop));
    refused(
        QuorumManager::builder([1, 2, 3].map(|port| format!("redis://127.0.0.1:{port}")))
            .cache_for(CACHE_FOR)
            .build()
            .map(drop),
    );
    let adopted = RedisManager::builder(redis_rwlock::Topology::node(url)).timestamp_keys("lock:*");
    refused(adopted.cache_for(CACHE_FOR).build().map(drop));
    MemoryManager::builder().cache_for(CACHE_FOR).build().map(drop).expect("it may");
}
