//! Costs of waiting for the server, in scripts.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use futures_util::future::join_all;
use redis_rwlock::Mode;

use super::process::{Process, holds};
use super::{HEARTBEAT, patient, recorded, scripts};
use crate::either::take;
use crate::fixture::{ServerFixture, Settings};
use crate::wait::{soon, until};

/// Each case on one node and on a cluster of each kind of server, alone with them.
macro_rules! alone_on_every_hash {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_hash!($case, alone .await);
        }
    )+};
}

alone_on_every_hash![
    thousand_writers_drain_with_few_scripts,
    thousand_readers_and_writers_drain_with_few_scripts,
    idle_waiters_cost_a_heartbeat_of_their_process,
    readers_of_a_process_ask_once_in_a_share_window,
    joins_send_nothing,
];

const PROCESSES: usize = 4;
const TASKS: usize = 250;
/// Scripts of one hold: the wait in the queue, the renewal of the claim for the next guards, the release, and the
/// question whether more readers may join.
const SCRIPTS_PER_HOLD: usize = 4;

/// Makes the first contact, so that a case counts without it: loads the scripts, subscribes to the channel.
async fn warm_up(f: &ServerFixture, processes: &[Process], name: &str) {
    let other = f.manager().await;
    for mode in [Mode::Read, Mode::Write] {
        for process in processes {
            let held = take(&other, name, Mode::Write).await;
            let (manager, lock) = (Arc::clone(&process.manager), name.to_owned());
            let waiting = process.spawn(async move { take(&manager, &lock, mode).await.release_unharmed().await });
            until("it waits", async || recorded(f, name) == 1).await;
            held.release_unharmed().await;
            soon("its grant", waiting).await.expect("no panic");
        }
    }
}

/// Lets all tasks of all processes wait for a lock that is held. Then they have it one after the other.
async fn drain(f: &ServerFixture, mode_of: impl Fn(usize) -> Mode, waiters: usize) {
    let processes = Process::several(f, PROCESSES, &patient("")).await;
    let name = f.name();
    warm_up(f, &processes, &name).await;
    let held = take(&f.manager_with(patient("holder")).await, &name, Mode::Write).await;
    let started = Arc::<AtomicUsize>::default();
    let mut tasks = Vec::new();
    for process in &processes {
        for n in 0..TASKS {
            let (manager, name, started) = (Arc::clone(&process.manager), name.clone(), Arc::clone(&started));
            let mode = mode_of(n);
            tasks.push(process.spawn(async move {
                started.fetch_add(1, Ordering::SeqCst);
                let guard = take(&manager, &name, mode).await;
                tokio::task::yield_now().await;
                guard.release_unharmed().await;
            }));
        }
    }
    until("all wait", async || {
        started.load(Ordering::SeqCst) == PROCESSES * TASKS && recorded(f, &name) == PROCESSES * waiters
    })
    .await;
    let all_holds = || holds(&processes, &name, Mode::Write).len() + holds(&processes, &name, Mode::Read).len();
    let (holds_before, before, began) = (all_holds(), scripts(f), Instant::now());
    held.release_unharmed().await;
    for task in tasks {
        soon("the last grant", task).await.expect("no panic");
    }
    let took = began.elapsed();
    let (spent, held) = (usize::try_from(scripts(f) - before).expect("counted up"), all_holds() - holds_before);
    println!("{spent} scripts for {held} holds of {} tasks in {took:?}", PROCESSES * TASKS);
    // Long waits cost heartbeats.
    let heartbeats = PROCESSES * waiters * usize::try_from(took.as_secs()).expect("few") * 2;
    assert!(spent <= SCRIPTS_PER_HOLD * held + heartbeats, "{spent} scripts for {held} holds in {took:?}");
    // The lock goes from task to task within a process, even where the machine is busy.
    assert!(held < PROCESSES * TASKS / 2, "{held} holds for {} tasks", PROCESSES * TASKS);
}

async fn thousand_writers_drain_with_few_scripts(f: &ServerFixture) {
    drain(f, |_| Mode::Write, 1).await;
}

async fn thousand_readers_and_writers_drain_with_few_scripts(f: &ServerFixture) {
    drain(f, |n| if n % 2 == 0 { Mode::Read } else { Mode::Write }, 2).await;
}

async fn idle_waiters_cost_a_heartbeat_of_their_process(f: &ServerFixture) {
    const WATCHED: Duration = Duration::from_secs(4);
    let processes = Process::several(f, 2, &patient("")).await;
    let name = f.name();
    let held = take(&f.manager_with(patient("holder")).await, &name, Mode::Write).await;
    for mode in [Mode::Write, Mode::Read] {
        warm_up(f, &processes, &f.name()).await;
        let mut tasks = Vec::new();
        for process in &processes {
            for _ in 0..50 {
                let (manager, name) = (Arc::clone(&process.manager), name.clone());
                tasks.push(process.spawn(async move { take(&manager, &name, mode).await.release_unharmed().await }));
            }
        }
        until("they wait", async || recorded(f, &name) == processes.len()).await;
        // Lets the request pass that follows the subscription.
        tokio::time::sleep(HEARTBEAT * 3 / 2).await;
        let (before, began) = (scripts(f), Instant::now());
        tokio::time::sleep(WATCHED).await;
        let (spent, span) = (scripts(f) - before, began.elapsed());
        println!("{spent} scripts in {span:?} for two processes that wait to {mode}");
        let each = i64::try_from(span.as_secs()).expect("few");
        // One more may be under way, and one more follows each confirmation of the subscription, every five seconds.
        let most = 2 * (each + 2);
        assert!((2 * (each - 2)..=most).contains(&spent), "{spent} scripts in {span:?}");
        tasks.iter().for_each(tokio::task::JoinHandle::abort);
        drop(join_all(tasks).await);
        until("nobody waits", async || recorded(f, &name) == 0).await;
    }
    held.release_unharmed().await;
}

async fn readers_of_a_process_ask_once_in_a_share_window(f: &ServerFixture) {
    const WINDOW: Duration = Duration::from_millis(50);
    let ([manager], name) = f.scene_with(Settings { join_window: WINDOW, ..patient("reads") }).await;
    let (stop, reads) = (Arc::<AtomicBool>::default(), Arc::<AtomicUsize>::default());
    let inside = take(&manager, &name, Mode::Read).await;
    let (before, began) = (scripts(f), Instant::now());
    let tasks = (0..1000).map(|_| {
        let (manager, name) = (Arc::clone(&manager), name.clone());
        let (stop, reads) = (Arc::clone(&stop), Arc::clone(&reads));
        tokio::spawn(async move {
            while !stop.load(Ordering::SeqCst) {
                manager.read(&name).await.expect("granted").release().await.expect("ours to the end");
                reads.fetch_add(1, Ordering::SeqCst);
                tokio::task::yield_now().await;
            }
        })
    });
    let tasks: Vec<_> = tasks.collect();
    tokio::time::sleep(WINDOW * 20).await;
    stop.store(true, Ordering::SeqCst);
    for task in tasks {
        soon("the last read", task).await.expect("no panic");
    }
    let (spent, span) = (u128::try_from(scripts(f) - before).expect("counted up"), began.elapsed());
    let (windows, reads) = (span.as_millis() / WINDOW.as_millis(), reads.load(Ordering::SeqCst));
    println!("{spent} scripts in {windows} windows for {reads} reads");
    assert!(spent >= 2, "it asks again: {spent}");
    assert!(spent <= windows + 1, "{spent} scripts in {span:?}");
    assert!(reads > 1000, "{reads}");
    inside.release_unharmed().await;
}

async fn joins_send_nothing(f: &ServerFixture) {
    let endless = Settings { join_window: Duration::from_secs(300), ..patient("reads") };
    let ([manager], name) = f.scene_with(endless).await;
    let inside = take(&manager, &name, Mode::Read).await;
    let before = scripts(f);
    for _ in 0..1000 {
        manager.read(&name).await.expect("joined").release().await.expect("ours to the end");
    }
    assert_eq!(scripts(f), before);
    inside.release_unharmed().await;
}
