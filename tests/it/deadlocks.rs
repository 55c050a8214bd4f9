//! Possible deadlocks: rings of processes are named, and a busy service without a ring is not.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::Server;
use redis_rwlock::{Cycle, Error, Mode};
use tokio::task::JoinHandle;

use crate::either::take;
use crate::fixture::{Fixture, Kind, Manager, ServerFixture, Settings, on_every_fixture, on_every_queue};
use crate::wait::{Outcome, Stalls, soon, until};

on_every_queue![
    ring_of_three_processes_is_named_within_two_seconds,
    ring_through_a_local_wait_is_named,
    ring_of_the_tasks_of_one_process_is_named,
    ring_through_a_waiting_writer_is_named,
    ring_that_breaks_up_between_the_looks_is_not_named,
];

on_every_fixture![manager_that_records_no_waiters_is_refused];

/// A lease that outlasts each case.
fn patient(label: &str) -> Settings {
    Settings { lease: Duration::from_secs(300), ..Settings::label(label) }
}

/// Starts an acquisition in a task, and returns when its process waits.
async fn waits(f: &Fixture, manager: &Manager, name: &str, mode: Mode) -> JoinHandle<()> {
    let (manager_of_task, lock) = (Arc::clone(manager), name.to_owned());
    let before = f.view(name).await.waiters.len();
    let task = tokio::spawn(async move { drop(take(&manager_of_task, &lock, mode).await) });
    until("it waits", async || f.view(name).await.waiters.len() > before).await;
    task
}

/// Waiter, lock and holder of each wait of the only cycle, from the label `a` on.
fn told(cycles: &[Cycle]) -> Vec<[&str; 3]> {
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    let mut waits: Vec<_> = cycles[0].waits.iter().map(|wait| [&*wait.waiter, &*wait.lock, &*wait.holder]).collect();
    let first = (0..waits.len()).min_by_key(|n| waits[*n][0]);
    waits.rotate_left(first.unwrap_or_default());
    waits
}

async fn ring_of_three_processes_is_named_within_two_seconds(f: &Fixture) -> Outcome {
    let labels = ["a", "b", "c"];
    let names = labels.map(|_| f.name());
    let (mut managers, mut guards, mut tasks) = (Vec::new(), Vec::new(), Vec::new());
    for (label, name) in labels.iter().zip(&names) {
        let manager = f.manager_with(patient(label)).await;
        guards.push(manager.write(name).await?);
        managers.push(manager);
    }
    let looker = f.manager().await;
    assert_eq!(looker.deadlocks().await?, [], "nobody waits");
    for (n, manager) in managers.iter().enumerate() {
        tasks.push(waits(f, manager, &names[(n + 1) % 3], Mode::Write).await);
    }
    let began = Instant::now();
    let cycles = looker.deadlocks().await?;
    assert!(began.elapsed() < Duration::from_secs(2), "{:?}", began.elapsed());
    assert_eq!(told(&cycles), [["a", &names[1], "b"], ["b", &names[2], "c"], ["c", &names[0], "a"]]);
    for wait in &cycles[0].waits {
        assert!(wait.is_held && !wait.is_local && wait.waiting >= Duration::from_secs(1) && wait.age >= wait.waiting);
        assert_eq!((wait.mode, wait.holder_mode), (Mode::Write, Mode::Write));
    }
    assert!(cycles[0].to_string().starts_with("possible deadlock: \""), "{}", cycles[0]);
    // One of them gives up, so the others go on.
    tasks.remove(0).abort();
    drop(guards.remove(0));
    for (task, guard) in tasks.into_iter().zip(guards).rev() {
        soon("its turn", task).await?;
        guard.release().await?;
    }
    assert_eq!(looker.deadlocks().await?, []);
    Ok(())
}

/// Process `a` has two tasks. One holds the lock for which `b` waits, and waits for the other one, which waits for `b`.
async fn ring_through_a_local_wait_is_named(f: &Fixture) -> Outcome {
    let (first, inner, second) = (f.name(), f.name(), f.name());
    let (a, b) = (f.manager_with(patient("a")).await, f.manager_with(patient("b")).await);
    let guards = [a.write(&first).await?, a.write(&inner).await?, b.write(&second).await?];
    let local = tokio::spawn(a.write(&inner).into_future());
    until("it waits in its process", async || a.stats().waiters == 1).await;
    let tasks = [waits(f, &a, &second, Mode::Write).await, waits(f, &b, &first, Mode::Write).await];
    let cycles = f.manager().await.deadlocks().await?;
    assert_eq!(told(&cycles), [["a", &second, "b"], ["b", &first, "a"]]);
    drop((guards, local, tasks));
    Ok(())
}

/// No server knows of these waits: a writer does not ask while its own process holds the lock.
async fn ring_of_the_tasks_of_one_process_is_named(f: &Fixture) {
    let names = [f.name(), f.name()];
    let manager = f.manager_with(patient("a")).await;
    let mut tasks = Vec::new();
    for n in 0..2 {
        let (manager, own, other) = (Arc::clone(&manager), names[n].clone(), names[1 - n].clone());
        tasks.push(tokio::spawn(async move {
            let guard = manager.write(&own).await.expect("granted");
            while manager.stats().holds < 2 {
                tokio::task::yield_now().await;
            }
            drop((manager.write(&other).await, guard));
        }));
    }
    until("both wait", async || manager.stats().waiters == 2).await;
    let cycles = manager.deadlocks().await.expect("looked");
    assert_eq!(cycles.len(), 1, "{cycles:?}");
    assert!(cycles[0].waits.len() == 2 && cycles[0].waits.iter().all(|wait| wait.is_local), "{cycles:?}");
    assert!(cycles[0].to_string().contains("a task of the same process"), "{}", cycles[0]);
    assert_eq!(f.manager().await.deadlocks().await.expect("looked"), [], "other processes do not see it");
    tasks.into_iter().for_each(|task| task.abort());
}

/// A reader waits for a writer that only waits: the reader may not pass it.
async fn ring_through_a_waiting_writer_is_named(f: &Fixture) -> Outcome {
    let (read, written) = (f.name(), f.name());
    let settings = |label| Settings { join_window: Duration::ZERO, ..patient(label) };
    let (a, b) = (f.manager_with(settings("a")).await, f.manager_with(settings("b")).await);
    let c = f.manager_with(settings("c")).await;
    let guards = (a.read(&read).await?, b.write(&written).await?);
    let writer = waits(f, &c, &read, Mode::Write).await;
    let tasks = [writer, waits(f, &b, &read, Mode::Read).await, waits(f, &a, &written, Mode::Write).await];
    let cycles = f.manager().await.deadlocks().await?;
    assert_eq!(told(&cycles), [["a", &written, "b"], ["b", &read, "c"], ["c", &read, "a"]]);
    assert_eq!(cycles[0].waits.iter().filter(|wait| !wait.is_held).count(), 1, "{cycles:?}");
    assert!(cycles[0].to_string().contains("behind the waiter \"c\" (write"), "{}", cycles[0]);
    drop((guards, tasks));
    Ok(())
}

async fn ring_that_breaks_up_between_the_looks_is_not_named(f: &Fixture) -> Outcome {
    let names = [f.name(), f.name()];
    let (a, b) = (f.manager_with(patient("a")).await, f.manager_with(patient("b")).await);
    let guards = [a.write(&names[0]).await?, b.write(&names[1]).await?];
    let tasks = [waits(f, &a, &names[1], Mode::Write).await, waits(f, &b, &names[0], Mode::Write).await];
    let looker = f.manager().await;
    let looking = tokio::spawn(async move { looker.deadlocks().await });
    tokio::time::sleep(Duration::from_millis(500)).await;
    for guard in guards {
        guard.release().await?;
    }
    assert_eq!(soon("the second look", looking).await??, []);
    for task in tasks {
        soon("its turn", task).await?;
    }
    Ok(())
}

async fn manager_that_records_no_waiters_is_refused(f: &Fixture) {
    if f.is_proxied() {
        return; // nobody lists the locks behind a proxy
    }
    let is_refused = f.is_quorum() || f.is_redisson();
    match f.manager().await.deadlocks().await {
        Ok(_) => assert!(!is_refused),
        Err(error) => {
            assert!(is_refused && matches!(error, Error::InvalidOption { option: "deadlocks", .. }), "{error:?}");
            assert!(error.to_string().contains("no waiters"), "{error}");
        }
    }
}

/// The manager looks twice at a ring, a second apart, and both looks must show the same holds.
const BETWEEN_LOOKS: Duration = Duration::from_secs(1);

/// Tasks of four processes have one lock at a time, for less than half a second. No ring is named, unless the machine
/// stood still so long that a hold was there for both looks.
async fn nobody_is_named(f: &Fixture, names: usize, tasks: usize, span: Duration) {
    let locks: Arc<Vec<String>> = Arc::new((0..names).map(|_| f.name()).collect());
    let mut managers = Vec::new();
    for n in 0..4 {
        managers.push(f.manager_with(Settings::label(&format!("process-{n}"))).await);
    }
    let is_over = Arc::<AtomicBool>::default();
    let work = (0..tasks).map(|n| {
        let (manager, locks, is_over) = (Arc::clone(&managers[n % 4]), Arc::clone(&locks), Arc::clone(&is_over));
        tokio::spawn(async move {
            let mut longest = Duration::ZERO;
            while !is_over.load(Ordering::Relaxed) {
                // Most of them meet at a few locks, and all locks are in use at some time.
                let count = if fastrand::bool() { 8 } else { locks.len() };
                let (name, inside) = (&locks[fastrand::usize(..count)], Duration::from_millis(fastrand::u64(..450)));
                longest = longest.max(hold_once(&manager, name, inside).await);
            }
            longest
        })
    });
    let work: Vec<_> = work.collect();
    let (looker, began, mut rings, stalls) = (f.manager().await, Instant::now(), Vec::new(), Stalls::begin());
    while began.elapsed() < span {
        rings.extend(looker.deadlocks().await.expect("looked"));
    }
    is_over.store(true, Ordering::Relaxed);
    let mut longest = Duration::ZERO;
    for task in work {
        longest = longest.max(task.await.expect("no panic"));
    }
    let stalled = stalls.end();
    println!("the longest hold took {longest:?}; the machine stood still for {stalled:?}");
    // The guard of a process that stands still comes long after the grant.
    assert!(rings.is_empty() || longest + stalled >= BETWEEN_LOOKS, "holds of {longest:?}, {stalled:?}: {rings:?}");
}

/// Holds the lock for `inside` in one of the modes. Returns the time from the guard to the confirmed release.
async fn hold_once(manager: &Manager, name: &str, inside: Duration) -> Duration {
    let mode = if fastrand::bool() { Mode::Write } else { Mode::Read };
    let guard = take(manager, name, mode).await;
    let granted = Instant::now();
    tokio::time::sleep(inside).await;
    guard.release().await.expect("ours to the end");
    granted.elapsed()
}

/// Runs such a service on a node within a time limit.
fn nobody_is_named_within(limit: Duration, server: Server, names: usize, span: Duration) {
    let service = async {
        let f = ServerFixture::shared(Kind::HashNode, server);
        nobody_is_named(&f, names, 64, span).await;
    };
    crate::wait::run(limit, 4, Box::pin(service));
}

#[test]
fn busy_service_without_a_ring_is_not_named() {
    nobody_is_named_within(Duration::from_secs(40), Server::Valkey91, 100, Duration::from_secs(5));
}

#[test]
#[ignore = "takes a minute: see `.ci/all`"]
fn busy_service_with_a_thousand_locks_is_not_named_for_a_minute() {
    nobody_is_named_within(Duration::from_secs(120), Server::Redis82, 1_000, Duration::from_secs(60));
}
