//! Locks for plain threads: the blocking managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::Server;
use redis_rwlock::blocking::{Blocking, MemoryManager, ReadGuard, TryUpgradeError, WriteGuard};
use redis_rwlock::{
    Build, Builder, Error, HoldState, LossReason, Mode, OwnerId, RedisManager, Reentry, RwLockManager, TwoKeyManager,
};

use crate::fixture::{Kind, ServerFixture};
use crate::wait::{BOUND, Outcome};

/// Each case on memory and on a node with either scheme on each server, with the means to make managers that share locks.
macro_rules! for_threads {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            for_threads!(@ $case memory in_memory());
            for_threads!(@ $case hash_on_redis_8_2 on_hash(Redis82));
            for_threads!(@ $case two_key_on_valkey_9_1 on_two_key(Valkey91));
            for_threads!(@later $case hash_on_redis_7_0 on_hash(Redis70));
            for_threads!(@later $case hash_on_valkey_8_1 on_hash(Valkey81));
            for_threads!(@later $case hash_on_valkey_9_1 on_hash(Valkey91));
            for_threads!(@later $case two_key_on_redis_7_0 on_two_key(Redis70));
            for_threads!(@later $case two_key_on_redis_8_2 on_two_key(Redis82));
            for_threads!(@later $case two_key_on_valkey_8_1 on_two_key(Valkey81));
        }
    )+};
    (@later $($test:tt)+) => {
        for_threads!(@ #[ignore = "runs in `.ci/all`"] $($test)+);
    };
    (@ $(#[$later:meta])? $case:ident $name:ident $make:ident($($server:ident)?)) => {
        #[test]
        $(#[$later])?
        fn $name() {
            $crate::wait::Ends::assert_passed(super::$case(&super::$make($(cluster_testenv::Server::$server)?)));
        }
    };
}

for_threads![
    writer_excludes_other_processes,
    acquisitions_of_a_thread_nest_by_default,
    other_threads_stay_outside,
    write_in_a_read_is_a_conflict_at_once,
    nesting_can_be_switched_off,
    nesting_can_have_an_owner,
    waiting_thread_gets_in_after_a_release,
    confirmed_tells_a_loss,
    guard_tells_what_the_asynchronous_one_tells,
    force_and_inspect_work,
    close_frees_all_holds,
    dropped_guard_and_manager_release_in_the_background,
];

fn in_memory() -> impl Fn() -> MemoryManager {
    let first = MemoryManager::new().expect("a thread starts");
    move || first.peer().expect("a thread starts")
}

fn prefix() -> String {
    static CASES: AtomicU64 = AtomicU64::new(0);
    format!("threads{}", CASES.fetch_add(1, Ordering::Relaxed))
}

fn on_hash(server: Server) -> impl Fn() -> Blocking<RedisManager> {
    let (url, prefix) = (url_of(server), prefix());
    move || connect(RedisManager::builder(&*url).key_prefix(&*prefix))
}

fn on_two_key(server: Server) -> impl Fn() -> Blocking<TwoKeyManager> {
    let (url, prefix) = (url_of(server), prefix());
    move || connect(TwoKeyManager::builder(&*url).key_prefix(&*prefix))
}

fn connect<M: Build>(builder: Builder<M>) -> Blocking<M> {
    Blocking::connect_with(builder).expect("the manager connects")
}

fn url_of(server: Server) -> String {
    ServerFixture::shared(Kind::HashNode, server).servers.primaries()[0].url()
}

/// Blocks until `condition` holds.
fn until(what: &str, condition: impl Fn() -> bool) {
    let started = Instant::now();
    while !condition() {
        assert!(started.elapsed() < BOUND, "{what} did not come true");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Blocks until nobody holds the lock.
fn becomes_free<M: Build>(manager: &Blocking<M>, name: &str) {
    until("the lock is free", || manager.inspect(name).expect("inspected").is_free());
}

/// Compiles only while neither guard is `Send`. Otherwise both implementations apply, and the call is ambiguous.
#[test]
fn guards_stay_in_their_thread() {
    trait AmbiguousIfSend<Which> {
        fn decided() {}
    }
    struct Sendable;
    impl<T: ?Sized> AmbiguousIfSend<()> for T {}
    impl<T: ?Sized + Send> AmbiguousIfSend<Sendable> for T {}
    <ReadGuard as AmbiguousIfSend<_>>::decided();
    <WriteGuard as AmbiguousIfSend<_>>::decided();
}

#[test]
fn managers_are_shared_between_threads() {
    fn shareable<T: Send + Sync + Clone + 'static>() {}
    shareable::<MemoryManager>();
    shareable::<Blocking<RedisManager>>();
}

fn writer_excludes_other_processes<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let (a, b) = (make(), make());
    let guard = a.write("cfg").wait()?;
    assert!(b.try_read("cfg")?.is_none());
    assert!(b.try_write("cfg")?.is_none());
    guard.release()?;
    let first = b.try_read("cfg")?.expect("free at once");
    let second = a.try_read("cfg")?.expect("readers share");
    first.release()?;
    second.release()?;
    Ok(())
}

fn acquisitions_of_a_thread_nest_by_default<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let manager = make();
    let outer = manager.write("cfg").wait()?;
    let read_in_write = manager.read("cfg").wait().expect("nested");
    let write_in_write = manager.write("cfg").wait().expect("nested");
    assert_eq!(manager.inspect("cfg")?.holders.len(), 1);
    drop((read_in_write, write_in_write));
    assert!(make().try_read("cfg")?.is_none());
    outer.release()?;
    let outer = manager.read("cfg").wait()?;
    let read_in_read = manager.try_read("cfg")?.expect("nested");
    assert_eq!(manager.inspect("cfg")?.holders.len(), 1);
    read_in_read.release()?;
    outer.release()?;
    assert!(manager.inspect("cfg")?.is_free());
    Ok(())
}

fn other_threads_stay_outside<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let guard = manager.write("cfg").wait().expect("granted");
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            assert!(manager.try_write("cfg").expect("answered").is_none());
            assert!(manager.try_read("cfg").expect("answered").is_none());
            let limit = Duration::from_millis(40);
            assert_matches!(manager.read("cfg").wait_timeout(limit).wait(), Err(Error::WaitTimeout { .. }));
        });
        elsewhere.join().expect("no panic");
    });
    guard.release().expect("released");
}

fn write_in_a_read_is_a_conflict_at_once<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let reader = manager.read("cfg").wait().expect("granted");
    assert_matches!(manager.write("cfg").wait(), Err(Error::UpgradeConflict { .. }));
    reader.release().expect("untouched");
}

fn nesting_can_be_switched_off<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let manager = make();
    let guard = manager.write("cfg").reentry(Reentry::Off).wait()?;
    assert!(manager.write("cfg").reentry(Reentry::Off).try_now()?.is_none());
    guard.release()?;
    Ok(())
}

fn nesting_can_have_an_owner<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let (manager, job) = (make(), Reentry::Named(OwnerId::new()));
    let guard = manager.write("cfg").reentry(job).wait()?;
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| {
            manager
                .read("cfg")
                .reentry(job)
                .try_now()
                .expect("answered")
                .expect("the same owner")
                .release()
                .expect("only counts");
        });
        helper.join().expect("no panic");
    });
    assert!(manager.try_write("cfg")?.is_none(), "the thread is another owner");
    guard.release()?;
    Ok(())
}

fn waiting_thread_gets_in_after_a_release<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, other) = (make(), make());
    for waiter in [&manager, &other] {
        let guard = manager.write("cfg").wait().expect("granted");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                waiter.write("cfg").wait_timeout(BOUND).wait().expect("granted").release().expect("released");
            });
            guard.release().expect("released");
            waiting.join().expect("no panic");
        });
    }
}

/// Cases in memory and on a server, which grants the lock to a waiter of its queue.
mod confirmed_after_a_wait_has_the_whole_lease {
    for_threads!(@ has_the_whole_lease_after_a_wait memory in_memory());
    for_threads!(@ has_the_whole_lease_after_a_wait hash_on_redis_8_2 on_hash(Redis82));
}

fn has_the_whole_lease_after_a_wait<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    // The lease is as long as ten claims.
    let (manager, other, lease) = (make(), make(), Duration::from_secs(30));
    let before = manager.write("cfg").wait().expect("granted");
    std::thread::scope(|scope| {
        let waiting = scope.spawn(|| {
            let guard = other.write("cfg").lease(lease).wait_timeout(BOUND).wait().expect("granted");
            guard.confirmed().expect("confirmed");
            let (here, there) = (guard.remaining(), other.inspect("cfg").expect("inspected").holders[0].remaining);
            assert!(here > lease * 2 / 3 && there > lease * 2 / 3, "{here:?} here, {there:?} there");
            guard.release().expect("released");
        });
        until("it waits", || !manager.inspect("cfg").expect("inspected").waiters.is_empty());
        before.release().expect("released");
        waiting.join().expect("no panic");
    });
}

fn confirmed_tells_a_loss<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, operator) = (make(), make());
    let guard = manager.write("cfg").fixed_lease(Duration::from_secs(1)).wait().expect("granted");
    operator.force_release("cfg").expect("forced");
    until("the loss", || guard.state() != HoldState::Held);
    assert_matches!(guard.confirmed(), Err(Error::Lost { .. }));
}

fn guard_tells_what_the_asynchronous_one_tells<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let manager = make();
    let guard = manager.write("cfg").lease(Duration::from_secs(7)).max_hold(Duration::from_secs(60)).wait();
    let guard = guard?;
    assert_eq!((guard.name(), guard.state()), ("cfg", HoldState::Held));
    assert!(guard.remaining() < Duration::from_secs(7));
    let token = guard.fencing_token();
    assert_eq!(guard.watch().fencing_token(), token);
    assert!(format!("{guard:?}").contains("cfg"));
    guard.release()?;
    let next = manager.read("cfg").wait()?;
    assert!(next.fencing_token() > token);
    Ok(())
}

fn force_and_inspect_work<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let (manager, operator) = (make(), make());
    let guard = manager.read("cfg").wait()?;
    assert_eq!(operator.inspect("cfg")?.holders[0].mode, Mode::Read);
    operator.force_release("cfg")?;
    let heir = operator.try_write("cfg")?.expect("free at once");
    assert_matches!(guard.release(), Err(Error::Lost { reason: LossReason::Forced, .. }));
    heir.release()?;
    Ok(())
}

fn close_frees_all_holds<M: Build>(make: &dyn Fn() -> Blocking<M>) -> Outcome {
    let (manager, other) = (make(), make());
    let guard = manager.write("cfg").wait()?;
    manager.close()?;
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
    other.try_write("cfg")?.expect("free at once").release()?;
    assert_matches!(manager.read("cfg").wait(), Err(Error::Closed { .. }));
    Ok(())
}

fn dropped_guard_and_manager_release_in_the_background<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let other = make();
    let manager = make();
    drop(manager.write("cfg").wait().expect("granted"));
    becomes_free(&other, "cfg");
    let guard = manager.write("cfg").wait().expect("granted");
    drop(manager);
    assert_eq!(guard.state(), HoldState::Held, "a guard keeps what it needs");
    drop(guard);
    becomes_free(&other, "cfg");
}

#[test]
fn threads_exclude_each_other() {
    const THREADS: u64 = 8;
    const ROUNDS: u64 = 20;
    let manager = MemoryManager::new().expect("a thread starts");
    let (counted, inside) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(0)));
    std::thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                for _ in 0..ROUNDS {
                    let guard = manager.write("cfg").wait().expect("granted");
                    assert_eq!(inside.fetch_add(1, Ordering::SeqCst), 0);
                    counted.fetch_add(1, Ordering::SeqCst);
                    inside.fetch_sub(1, Ordering::SeqCst);
                    guard.release().expect("released");
                }
            });
        }
    });
    assert_eq!(counted.load(Ordering::SeqCst), THREADS * ROUNDS);
}

#[test]
fn services_manager_is_used_from_plain_threads() -> Outcome {
    let inner = redis_rwlock::MemoryManager::new();
    let peer = inner.peer();
    let shared: Arc<dyn RwLockManager> = Arc::new(inner);
    let manager = Blocking::over(Arc::clone(&shared))?;
    let other = Blocking::over(peer)?;
    let outer = manager.write("cfg").wait()?;
    let inner = manager.write("cfg").reentrant().wait().expect("nested in this thread");
    assert!(other.try_read("cfg")?.is_none());
    assert_eq!((shared.stats().holds, manager.stats().guards), (1, 2));
    assert_eq!(manager.locks()?, ["cfg"]);
    assert!(manager.health()?.is_ready());
    outer.release().expect("nested");
    inner.release()?;
    other.write("cfg").fixed_lease(Duration::from_secs(3)).wait()?.release()?;
    Ok(())
}

#[test]
fn work_is_done_under_the_lock_and_told_when_it_was_lost() -> Outcome {
    let manager = MemoryManager::new()?;
    let other = manager.peer()?;
    let inside = manager.write("cfg").run(|_| other.try_read("cfg").expect("answered").is_none());
    assert!(inside.expect("done"));
    assert!(manager.inspect("cfg")?.is_free());
    assert_matches!(manager.write("cfg").run(|_| other.lose_all()), Err(Error::Lost { reason: LossReason::Gone, .. }));
    let ended = manager.write("cfg").run(|_| other.force_release("cfg").expect("forced").len());
    assert_matches!(ended, Err(Error::Lost { reason: LossReason::Forced, .. }));
    Ok(())
}

#[test]
fn refused_conversions_are_typed_and_give_the_guard_back() -> Outcome {
    let manager = MemoryManager::new()?;
    let other = manager.peer()?;
    let theirs = other.read("cfg").wait()?;
    let ours = manager.read("cfg").wait()?;
    let refused: TryUpgradeError = ours.try_upgrade().expect_err("another reads");
    assert_matches!(refused.error(), Error::UpgradeConflict { .. });
    assert_eq!(refused.to_string(), refused.error().to_string());
    let ours = refused.into_guard();
    theirs.release()?;
    let ours = ours.try_upgrade().expect("alone").downgrade().expect("no error");
    manager.lose_all();
    let lost: Error = ours.try_upgrade().expect_err("nobody knows it").into();
    assert_matches!(lost, Error::Lost { reason: LossReason::Gone, .. });
    Ok(())
}
