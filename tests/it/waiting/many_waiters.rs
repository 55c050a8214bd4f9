//! Ten processes with twenty tasks each on three locks: a judge checks the visits of all of them together.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::Server;
use futures_util::future::join_all;
use redis_rwlock::Mode;

use super::process::{Process, holds, waits, writers_during};
use crate::either::take;
use crate::fixture::{Fixture, Kind, Manager, ServerFixture, Settings};
use crate::servers::SUPPORTED;

crate::fixture::on_two_threads![many_waiters_in_memory_are_served_in_phases,];

const PROCESSES: usize = 10;
const TASKS: usize = 20;
/// Longest time that a task has the lock.
const HOLD_FOR: Duration = Duration::from_millis(3);
const SHORT_RUN: Duration = Duration::from_secs(5);
const LONG_RUN: Duration = Duration::from_secs(60);

/// Time of one task inside a lock, by the clock that all tasks share.
#[derive(Clone, Debug)]
struct Visit {
    lock: usize,
    mode: Mode,
    token: u64,
    waited: Duration,
    entered: Instant,
    left: Instant,
}

/// Takes the locks in turns until it is stopped.
async fn task(manager: Manager, names: Arc<[String]>, stop: Arc<AtomicBool>) -> Vec<Visit> {
    let mut visits = Vec::new();
    while !stop.load(Ordering::SeqCst) {
        let lock = fastrand::usize(..names.len());
        let mode = if fastrand::u8(..3) == 0 { Mode::Write } else { Mode::Read };
        let asked = Instant::now();
        let guard = take(&manager, &names[lock], mode).await;
        let entered = Instant::now();
        tokio::time::sleep(HOLD_FOR.mul_f64(fastrand::f64())).await;
        let (left, token) = (Instant::now(), guard.token().into());
        guard.release().await.expect("ours to the end");
        visits.push(Visit { lock, mode, token, waited: entered - asked, entered, left });
    }
    visits
}

/// Runs all tasks, and returns their visits in order. Every task must have been inside.
async fn run(processes: &[Process], names: &Arc<[String]>, span: Duration) -> Vec<Visit> {
    let stop = Arc::<AtomicBool>::default();
    let mut tasks = Vec::new();
    for process in processes {
        for _ in 0..TASKS {
            tasks.push(process.spawn(task(Arc::clone(&process.manager), Arc::clone(names), Arc::clone(&stop))));
        }
    }
    tokio::time::sleep(span).await;
    stop.store(true, Ordering::SeqCst);
    let mut visits = Vec::new();
    for visited in join_all(tasks).await {
        let visited = visited.expect("no panic");
        assert!(!visited.is_empty(), "everybody is served");
        visits.extend(visited);
    }
    visits.sort_by_key(|visit| visit.entered);
    visits
}

/// Asserts that no task is beside a writer. A later reader has no smaller token, and a later writer has a greater one.
fn judge(visits: &[Visit]) {
    let (mut last_writer_left, mut last_left, mut last_token) = (None, None, 0);
    for visit in visits {
        let beside = if visit.mode == Mode::Write { last_left } else { last_writer_left };
        assert!(beside.is_none_or(|left| left <= visit.entered), "somebody is beside a writer: {visit:?}");
        let grows = if visit.mode == Mode::Write { visit.token > last_token } else { visit.token >= last_token };
        assert!(grows, "after token {last_token}: {visit:?}");
        last_token = visit.token;
        last_left = last_left.max(Some(visit.left));
        if visit.mode == Mode::Write {
            last_writer_left = last_writer_left.max(Some(visit.left));
        }
    }
}

/// Asserts that at most one process writes before a waiting reader, and each process at most once before a waiting
/// writer. Returns the number of waits, of readers and of writers.
fn judge_bypass(processes: &[Process], name: &str) -> [usize; 2] {
    let write_holds = holds(processes, name, Mode::Write);
    let readers = waits(processes, name, Mode::Read);
    for wait in &readers {
        let passed = writers_during(&write_holds, wait);
        assert!(passed.len() <= 1, "{name}: {passed:?} wrote before the reader of {wait:?}");
    }
    let writers = waits(processes, name, Mode::Write);
    for wait in &writers {
        let mut passed = writers_during(&write_holds, wait);
        passed.sort_unstable();
        assert!(passed.is_sorted_by(|one, next| one < next), "{name}: {passed:?} wrote before {wait:?}");
    }
    [readers.len(), writers.len()]
}

async fn many_waiters(f: &Fixture, span: Duration) -> Vec<Process> {
    let processes = Process::several(f, PROCESSES, &Settings::default()).await;
    let names: Arc<[String]> = [0; 3].map(|_| f.name()).into();
    let visits = run(&processes, &names, span).await;
    for lock in 0..names.len() {
        judge(&visits.iter().filter(|visit| visit.lock == lock).cloned().collect::<Vec<_>>());
    }
    let longest = |mode| visits.iter().filter(|visit| visit.mode == mode).map(|visit| visit.waited).max();
    let longest = [Mode::Read, Mode::Write].map(longest);
    println!("{} visits, the longest waits of a reader and a writer {longest:?}", visits.len());
    processes
}

async fn many_waiters_on(kind: Kind, server: Server, span: Duration) {
    let f = ServerFixture::shared(kind, server);
    let processes = many_waiters(&f, span).await;
    let mut names: Vec<String> = processes[0].told().into_iter().map(|told| told.lock).collect();
    names.sort_unstable();
    names.dedup();
    for name in names.iter().filter(|name| !name.is_empty()) {
        let [readers, writers] = judge_bypass(&processes, name);
        println!("{server}, {name}: {readers} waits of readers, {writers} of writers in the queue");
        assert!(readers > 0 && writers > 0, "there was a queue");
    }
    let handed_over = processes.iter().flat_map(Process::told).filter(|told| told.what == "handed off").count();
    println!("{handed_over} times the lock went to the next writer of a process");
}

async fn many_waiters_in_memory_are_served_in_phases() {
    drop(many_waiters(&Fixture::memory(), SHORT_RUN / 5).await);
}

mod many_waiters_on_a_cluster_are_served_in_phases {
    use super::{Kind, SHORT_RUN, many_waiters_on};

    crate::fixture::on_each_server!(|server| many_waiters_on(Kind::HashCluster, server, SHORT_RUN));
}

/// `cargo test --test it -- --ignored crowd_of_a_minute --nocapture` runs it, in two.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes two minutes; a few seconds of it run always"]
async fn many_waiters_of_a_minute_are_served_in_phases() {
    for server in SUPPORTED {
        many_waiters_on(Kind::HashCluster, server, LONG_RUN).await;
    }
}
