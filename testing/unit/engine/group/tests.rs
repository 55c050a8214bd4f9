mod model;

use std::task::{Context, Waker};
use std::time::Duration;

use tokio::time::Instant;

use super::{Wanted, acquire_all};
use crate::base::mode::Mode;
use crate::base::options::{Overrides, Terms};
use crate::engine::acquire::Patience;
use crate::face::group::{AcquireAll, read, write};
use crate::face::manager::{MemoryManager, RwLockManager};
use crate::store::Scheme;
use crate::testing::staged::{Fate, StagedPair};
use crate::{BoxFuture, Error, GroupGuard, HoldState, LossReason, OwnerId, WriteGuard};

const SECOND: Duration = Duration::from_secs(1);

type Waiting = BoxFuture<'static, crate::Result<GroupGuard>>;

/// Polls an acquisition for this time, while it waits.
async fn drive(waiting: &mut Waiting, time: Duration) {
    assert!(tokio::time::timeout(time, waiting).await.is_err(), "the group waits");
}

fn two_processes() -> (MemoryManager, MemoryManager) {
    let manager = MemoryManager::new();
    let other = manager.peer();
    (manager, other)
}

/// Returns two processes. The second one writes at this lock.
async fn blocked_at(name: &str) -> (MemoryManager, MemoryManager, WriteGuard) {
    let (manager, other) = two_processes();
    let blocking = other.write(name).await.expect("free");
    (manager, other, blocking)
}

async fn release(guard: GroupGuard) {
    guard.release().await.expect("ours to the end");
}

/// Age of the only hold of a lock.
async fn age(manager: &MemoryManager, name: &str) -> Duration {
    manager.inspect(name).await.expect("memory answers").holders[0].age
}

/// Time that the server leaves the only hold of a lock.
async fn remaining(manager: &MemoryManager, name: &str) -> Duration {
    manager.inspect(name).await.expect("memory answers").holders[0].remaining
}

fn waiting(acquire: AcquireAll) -> Waiting {
    Box::pin(acquire.into_future())
}

/// Returns an acquisition that has waited for this time.
async fn driven(acquire: AcquireAll, time: Duration) -> Waiting {
    let mut waiting = waiting(acquire);
    drive(&mut waiting, time).await;
    waiting
}

/// Numbers of holders and waiters of each lock on the server.
async fn there<const N: usize>(manager: &MemoryManager, names: [&str; N]) -> [(usize, usize); N] {
    let mut counts = [(0, 0); N];
    for (count, name) in counts.iter_mut().zip(names) {
        let view = manager.inspect(name).await.expect("memory answers");
        *count = (view.holders.len(), view.waiters.len());
    }
    counts
}

#[tokio::test(start_paused = true)]
async fn group_waits_for_one_lock_and_holds_only_those_before_it() {
    let (manager, other, blocking) = blocked_at("b").await;
    let group = driven(manager.all(&[write("c"), write("b"), read("a")]), 30 * SECOND).await;
    assert_eq!(there(&other, ["a", "b", "c"]).await, [(1, 0), (1, 1), (0, 0)]);
    assert!(age(&other, "a").await > 29 * SECOND, "it is the same hold");
    blocking.release().await.expect("ours");
    let guard = group.await.expect("all are free");
    let names: Vec<_> = guard.locks().map(|lock| lock.name.to_owned()).collect();
    assert_eq!(names, ["c", "b", "a"]);
    assert!(guard.remaining() > 5 * SECOND, "{:?}", guard.remaining());
    assert_eq!(there(&other, ["a", "b", "c"]).await, [(1, 0); 3]);
    release(guard).await;
    assert_eq!(there(&other, ["a", "b", "c"]).await, [(0, 0); 3]);
}

#[tokio::test(start_paused = true)]
async fn group_that_nobody_polls_loses_what_it_holds_and_begins_again() {
    let (manager, other, blocking) = blocked_at("b").await;
    let mut group = driven(manager.all(&[write("a"), write("b")]), 5 * SECOND).await;
    tokio::time::sleep(4 * SECOND).await;
    let theirs = other.write("a").wait_timeout(SECOND).await.expect("the group gave it up");
    blocking.release().await.expect("ours");
    drive(&mut group, SECOND).await;
    assert_eq!(there(&other, ["a"]).await, [(1, 1)], "the group waits for its first lock again");
    theirs.release().await.expect("ours");
    release(group.await.expect("granted")).await;
    assert_eq!(there(&other, ["a", "b"]).await, [(0, 0); 2]);
}

#[tokio::test(start_paused = true)]
async fn member_that_is_lost_while_the_group_waits_is_acquired_again() {
    let (manager, other, blocking) = blocked_at("c").await;
    let mut group = driven(manager.all(&[write("a"), write("b"), write("c")]), SECOND).await;
    other.force_release("a").await.expect("memory answers");
    let theirs = other.write("a").await.expect("free now");
    drive(&mut group, 5 * SECOND).await;
    assert_eq!(there(&other, ["a", "b", "c"]).await, [(1, 1), (0, 0), (1, 0)], "nothing behind the lost one");
    blocking.release().await.expect("ours");
    theirs.release().await.expect("ours");
    let guard = group.await.expect("granted");
    assert_eq!(guard.state(), HoldState::Held);
    release(guard).await;
}

#[tokio::test(start_paused = true)]
async fn member_that_reaches_its_longest_time_is_given_back_while_the_group_waits() {
    let (manager, other, blocking) = blocked_at("b").await;
    let group = driven(manager.all(&[write("a"), write("b")]).max_hold(20 * SECOND), 50 * SECOND).await;
    let age = age(&other, "a").await;
    assert!(age < 20 * SECOND, "{age:?}");
    blocking.release().await.expect("ours");
    let guard = group.await.expect("granted");
    let lost = guard.lost().await;
    assert_eq!((&*lost.lock, lost.reason), ("a", LossReason::MaxHold));
}

#[tokio::test(start_paused = true)]
async fn limit_names_the_lock_and_leaves_nothing() {
    let (manager, other) = two_processes();
    let group = [write("a"), write("b"), read("c")];
    release(manager.all(&group).wait_timeout(Duration::ZERO).await.expect("free")).await;
    let _blocking = other.read("b").await.expect("free");
    for limit in [Duration::ZERO, 5 * SECOND] {
        let began = Instant::now();
        let error = manager.all(&group).wait_timeout(limit).await.expect_err("b is held");
        let Error::WaitTimeout { lock, waited, confirmed, .. } = error else { panic!("{error:?}") };
        assert_eq!((&*lock, confirmed), ("b", true));
        assert!(waited >= limit && began.elapsed() < limit + SECOND, "{waited:?}");
        assert_eq!(there(&other, ["a", "b", "c"]).await, [(0, 0), (1, 0), (0, 0)]);
    }
}

#[tokio::test(start_paused = true)]
async fn fixed_lease_counts_from_the_moment_at_which_all_are_held() {
    let (manager, other, blocking) = blocked_at("b").await;
    let group = driven(manager.all(&[write("a"), write("b")]).fixed_lease(8 * SECOND), 30 * SECOND).await;
    blocking.release().await.expect("ours");
    let guard = group.await.expect("granted");
    let left = guard.remaining();
    assert!(left > 7 * SECOND && left <= 8 * SECOND, "{left:?}");
    for name in ["a", "b"] {
        let remaining = remaining(&other, name).await;
        assert!(remaining > 7 * SECOND, "{name}: the server has the whole lease: {remaining:?}");
    }
    tokio::time::sleep(5 * SECOND).await;
    let remaining = remaining(&other, "a").await;
    assert!(remaining < 4 * SECOND, "nothing renews it: {remaining:?}");
    guard.lost().await;
}

#[tokio::test(start_paused = true)]
async fn dropped_group_leaves_nothing_wherever_it_is() {
    let (manager, other) = two_processes();
    for blocked in ["a", "b", "c"] {
        let blocking = other.write(blocked).await.expect("free");
        let group = driven(manager.all(&[write("a"), read("b"), write("c")]), SECOND).await;
        drop(group);
        manager.flush().await.expect("memory answers");
        blocking.release().await.expect("ours");
        assert_eq!(there(&other, ["a", "b", "c"]).await, [(0, 0); 3]);
    }
    let mut group = waiting(manager.all(&[write("a"), read("b")]));
    drop(group.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    drop(group);
    manager.flush().await.expect("memory answers");
    assert_eq!(there(&other, ["a", "b"]).await, [(0, 0); 2]);
}

#[tokio::test(start_paused = true)]
async fn silence_ends_the_wait_and_a_short_one_does_not() {
    let manager = MemoryManager::builder().unreachable_after(5 * SECOND).build().expect("valid");
    let other = manager.peer();
    manager.disconnect();
    let began = Instant::now();
    let error = manager.all(&[write("a"), write("b")]).await.expect_err("nobody answers");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    assert!(began.elapsed() >= 5 * SECOND && began.elapsed() < 8 * SECOND, "{:?}", began.elapsed());

    let group = driven(manager.all(&[write("a"), write("b")]), 3 * SECOND).await;
    manager.reconnect();
    release(group.await.expect("granted")).await;
    assert_eq!(there(&other, ["a", "b"]).await, [(0, 0); 2]);
}

#[tokio::test(start_paused = true)]
async fn name_that_comes_twice_has_the_stronger_mode_and_one_guard() {
    let manager = MemoryManager::new();
    let guard = manager.all(&[read("a"), read("b"), write("a")]).await.expect("free");
    assert_eq!(manager.stats().guards, 2);
    let locks: Vec<_> = guard.locks().map(|lock| (lock.name, lock.mode.to_string())).collect();
    assert_eq!(locks, [("a", "write".to_owned()), ("b", "read".to_owned()), ("a", "write".to_owned())]);
    release(guard).await;
    assert_eq!(manager.all(&[]).await.expect("nothing to wait for").locks().count(), 0);
}

#[tokio::test(start_paused = true)]
async fn own_locks_nest_and_a_read_that_would_become_a_write_is_refused_before_anything_is_sent() {
    let (manager, owner) = (MemoryManager::new(), OwnerId::new());
    let (z, b) =
        (manager.write("z").owner(owner).await.expect("free"), manager.read("b").owner(owner).await.expect("free"));
    let group = manager.all(&[write("a"), read("z"), read("b")]).owner(owner).await.expect("two of them nest");
    assert_eq!(there(&manager, ["a", "b", "z"]).await, [(1, 0); 3]);
    group.release().await.expect("ours");
    assert_eq!(there(&manager, ["a", "b", "z"]).await, [(0, 0), (1, 0), (1, 0)]);
    let error = manager.all(&[write("a"), write("b")]).owner(owner).await.expect_err("it reads b");
    assert!(matches!(&error, Error::UpgradeConflict { lock } if &**lock == "b"), "{error:?}");
    assert_eq!(there(&manager, ["a"]).await, [(0, 0)]);
    drop((z, b));
}

#[tokio::test(start_paused = true)]
async fn loss_names_its_lock_and_the_other_holds_stay() {
    let manager = MemoryManager::new();
    let guard = manager.all(&[write("a"), write("b")]).await.expect("free");
    manager.peer().force_release("b").await.expect("memory answers");
    let lost = guard.lost().await;
    assert_eq!((&*lost.lock, lost.reason), ("b", LossReason::Forced));
    tokio::time::sleep(30 * SECOND).await;
    assert_eq!(there(&manager, ["a", "b"]).await, [(1, 0), (0, 0)]);
    let error = guard.release().await.expect_err("one was lost");
    assert!(matches!(&error, Error::Lost { lock, .. } if &**lock == "b"), "{error:?}");
    assert_eq!(there(&manager, ["a"]).await, [(0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn too_many_names_and_bad_names_are_refused_before_anything_is_sent() {
    let manager = MemoryManager::new();
    let many: Vec<_> = (0..257).map(|number| write(number.to_string())).collect();
    let error = manager.all(&many).await.expect_err("too many");
    assert!(error.to_string().contains("the limit is 256"), "{error}");
    let error = manager.all(&[write("a"), write("")]).await.expect_err("no name");
    assert!(matches!(error, Error::InvalidName { .. }), "{error:?}");
    assert_eq!(there(&manager, ["a"]).await, [(0, 0)]);
}

#[tokio::test(start_paused = true)]
async fn limit_ends_a_group_whose_server_is_silent() {
    let manager = MemoryManager::builder().unreachable_after(Duration::MAX).build().expect("valid");
    manager.disconnect();
    let group = manager.all(&[write("a"), write("b")]).wait_timeout(SECOND).into_future();
    let ended = tokio::time::timeout(10 * SECOND, group).await.expect("the limit applies");
    assert!(matches!(ended, Err(Error::Unreachable { .. })), "{ended:?}");
}

#[tokio::test(start_paused = true)]
async fn group_that_gives_up_tells_whether_all_that_it_gave_back_is_gone() {
    let pair = StagedPair::new();
    let wanted = ["b", "c"].map(|name| Wanted { key: pair.engine.key(name).expect("valid"), mode: Mode::Write });
    let terms = StagedPair::terms(&pair.other);
    let blocking = acquire_all(&pair.other, &wanted[..1], terms, Patience::Wait).await.expect("answered");
    // The release of `c` does not arrive.
    pair.scheme.next_leave(Fate::Cut);
    let limit = Overrides { wait_timeout: Some(Duration::ZERO), ..Overrides::default() };
    let terms = Terms::new(pair.engine.options(), limit).expect("valid");
    let Err(Error::WaitTimeout { confirmed, .. }) = acquire_all(&pair.engine, &wanted, terms, Patience::Wait).await
    else {
        panic!("b is held")
    };
    let left = pair.scheme.memory.inspect(&wanted[1].key).await.expect("memory answers").value.holders.len();
    assert_eq!(confirmed, left == 0, "{left} holds are left");
    drop(blocking);
}
