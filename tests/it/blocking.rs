//! Locks for plain threads: the blocking managers.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::Server;
use redis_rwlock::blocking::{Blocking, MemoryManager, ReadGuard, TryUpgradeError, WriteGuard};
use redis_rwlock::{
    Build, Error, HoldState, LossReason, Mode, OwnerId, RedisManager, Reentry, RwLockManager, TwoKeyManager,
};

use crate::fixture::{Kind, ServerFixture};
use crate::wait::BOUND;

/// Each case on memory and on a node with either scheme on each server, with the means to make managers that share locks.
macro_rules! for_threads {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn memory() {
                let first = redis_rwlock::blocking::MemoryManager::new().expect("a thread starts");
                super::$case(&|| first.peer().expect("a thread starts"));
            }

            #[test]
            fn hash_on_redis_8_2() {
                super::$case(&super::on_hash(cluster_testenv::Server::Redis82));
            }

            #[test]
            fn two_key_on_valkey_9_1() {
                super::$case(&super::on_two_key(cluster_testenv::Server::Valkey91));
            }

            for_threads!(@later $case hash_on_redis_7_0 on_hash Redis70);
            for_threads!(@later $case hash_on_valkey_8_1 on_hash Valkey81);
            for_threads!(@later $case hash_on_valkey_9_1 on_hash Valkey91);
            for_threads!(@later $case two_key_on_redis_7_0 on_two_key Redis70);
            for_threads!(@later $case two_key_on_redis_8_2 on_two_key Redis82);
            for_threads!(@later $case two_key_on_valkey_8_1 on_two_key Valkey81);
        }
    )+};
    (@later $case:ident $name:ident $make:ident $server:ident) => {
        #[test]
        #[ignore = "runs in `.ci/all`"]
        fn $name() {
            super::$case(&super::$make(cluster_testenv::Server::$server));
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

fn prefix() -> String {
    static CASES: AtomicU64 = AtomicU64::new(0);
    format!("threads{}", CASES.fetch_add(1, Ordering::Relaxed))
}

fn on_hash(server: Server) -> impl Fn() -> Blocking<RedisManager> {
    let (url, prefix) = (url_of(server), prefix());
    move || {
        let builder = RedisManager::builder(url.as_str()).key_prefix(prefix.as_str());
        Blocking::connect_with(builder).expect("the manager connects")
    }
}

fn on_two_key(server: Server) -> impl Fn() -> Blocking<TwoKeyManager> {
    let (url, prefix) = (url_of(server), prefix());
    move || {
        let builder = TwoKeyManager::builder(url.as_str()).key_prefix(prefix.as_str());
        Blocking::connect_with(builder).expect("the manager connects")
    }
}

fn url_of(server: Server) -> String {
    ServerFixture::shared(Kind::HashNode, server).servers.primaries()[0].url()
}

/// Blocks until nobody holds the lock.
fn becomes_free<M: Build>(manager: &Blocking<M>, name: &str) {
    let started = Instant::now();
    while !manager.inspect(name).expect("inspected").is_free() {
        assert!(started.elapsed() < BOUND, "{name} is held for ever");
        std::thread::sleep(Duration::from_millis(5));
    }
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

fn writer_excludes_other_processes<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (a, b) = (make(), make());
    let guard = a.write("cfg").wait().expect("granted");
    assert!(b.try_read("cfg").expect("answered").is_none());
    assert!(b.try_write("cfg").expect("answered").is_none());
    guard.release().expect("released");
    let first = b.try_read("cfg").expect("answered").expect("free at once");
    let second = a.try_read("cfg").expect("answered").expect("readers share");
    first.release().expect("released");
    second.release().expect("released");
}

fn acquisitions_of_a_thread_nest_by_default<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let outer = manager.write("cfg").wait().expect("granted");
    let read_in_write = manager.read("cfg").wait().expect("nested");
    let write_in_write = manager.write("cfg").wait().expect("nested");
    assert_eq!(manager.inspect("cfg").expect("inspected").holders.len(), 1);
    drop((read_in_write, write_in_write));
    assert!(make().try_read("cfg").expect("answered").is_none());
    outer.release().expect("released");
    let outer = manager.read("cfg").wait().expect("granted");
    let read_in_read = manager.try_read("cfg").expect("answered").expect("nested");
    assert_eq!(manager.inspect("cfg").expect("inspected").holders.len(), 1);
    read_in_read.release().expect("released");
    outer.release().expect("released");
    assert!(manager.inspect("cfg").expect("inspected").is_free());
}

fn other_threads_stay_outside<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let guard = manager.write("cfg").wait().expect("granted");
    std::thread::scope(|scope| {
        let elsewhere = scope.spawn(|| {
            assert!(manager.try_write("cfg").expect("answered").is_none());
            assert!(manager.try_read("cfg").expect("answered").is_none());
            let limit = Duration::from_millis(40);
            let error = manager.read("cfg").wait_timeout(limit).wait().expect_err("another thread holds it");
            assert_matches!(error, Error::WaitTimeout { .. });
        });
        elsewhere.join().expect("no panic");
    });
    guard.release().expect("released");
}

fn write_in_a_read_is_a_conflict_at_once<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let reader = manager.read("cfg").wait().expect("granted");
    let error = manager.write("cfg").wait().expect_err("it would wait for itself");
    assert_matches!(error, Error::UpgradeConflict { .. });
    reader.release().expect("untouched");
}

fn nesting_can_be_switched_off<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let guard = manager.write("cfg").reentry(Reentry::Off).wait().expect("granted");
    assert!(manager.write("cfg").reentry(Reentry::Off).try_now().expect("answered").is_none());
    guard.release().expect("released");
}

fn nesting_can_have_an_owner<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, job) = (make(), Reentry::Named(OwnerId::new()));
    let guard = manager.write("cfg").reentry(job).wait().expect("granted");
    std::thread::scope(|scope| {
        let helper = scope.spawn(|| {
            let nested = manager.read("cfg").reentry(job).try_now().expect("answered").expect("the same owner");
            nested.release().expect("only counts");
        });
        helper.join().expect("no panic");
    });
    assert!(manager.try_write("cfg").expect("answered").is_none(), "the thread is another owner");
    guard.release().expect("released");
}

fn waiting_thread_gets_in_after_a_release<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, other) = (make(), make());
    for waiter in [&manager, &other] {
        let guard = manager.write("cfg").wait().expect("granted");
        std::thread::scope(|scope| {
            let waiting = scope.spawn(|| {
                let guard = waiter.write("cfg").wait_timeout(BOUND).wait().expect("granted");
                guard.release().expect("released");
            });
            guard.release().expect("released");
            waiting.join().expect("no panic");
        });
    }
}

/// Cases in memory and on a server, which grants the lock to a waiter of its queue.
mod confirmed_after_a_wait_has_the_whole_lease {
    #[test]
    fn memory() {
        let first = redis_rwlock::blocking::MemoryManager::new().expect("a thread starts");
        super::has_the_whole_lease_after_a_wait(&|| first.peer().expect("a thread starts"));
    }

    #[test]
    fn hash_on_redis_8_2() {
        super::has_the_whole_lease_after_a_wait(&super::on_hash(cluster_testenv::Server::Redis82));
    }
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
        let since = Instant::now();
        while manager.inspect("cfg").expect("inspected").waiters.is_empty() {
            assert!(since.elapsed() < BOUND, "nobody waits");
            std::thread::yield_now();
        }
        before.release().expect("released");
        waiting.join().expect("no panic");
    });
}

fn confirmed_tells_a_loss<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, operator) = (make(), make());
    let guard = manager.write("cfg").fixed_lease(Duration::from_secs(1)).wait().expect("granted");
    operator.force_release("cfg").expect("forced");
    let since = Instant::now();
    while guard.state() == HoldState::Held {
        assert!(since.elapsed() < BOUND, "it is not lost");
        std::thread::yield_now();
    }
    let error = guard.confirmed().expect_err("it is over");
    assert_matches!(error, Error::Lost { .. });
}

fn guard_tells_what_the_asynchronous_one_tells<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let manager = make();
    let guard = manager.write("cfg").lease(Duration::from_secs(7)).max_hold(Duration::from_secs(60)).wait();
    let guard = guard.expect("granted");
    assert_eq!((guard.name(), guard.state()), ("cfg", HoldState::Held));
    assert!(guard.remaining() < Duration::from_secs(7));
    let token = guard.fencing_token();
    assert_eq!(guard.watch().fencing_token(), token);
    assert!(format!("{guard:?}").contains("cfg"));
    guard.release().expect("released");
    let next = manager.read("cfg").wait().expect("granted");
    assert!(next.fencing_token() > token);
}

fn force_and_inspect_work<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, operator) = (make(), make());
    let guard = manager.read("cfg").wait().expect("granted");
    assert_eq!(operator.inspect("cfg").expect("inspected").holders[0].mode, Mode::Read);
    operator.force_release("cfg").expect("forced");
    let heir = operator.try_write("cfg").expect("answered").expect("free at once");
    let error = guard.release().expect_err("it was ended");
    assert_matches!(error, Error::Lost { reason: LossReason::Forced, .. });
    heir.release().expect("ours to the end");
}

fn close_frees_all_holds<M: Build>(make: &dyn Fn() -> Blocking<M>) {
    let (manager, other) = (make(), make());
    let guard = manager.write("cfg").wait().expect("granted");
    manager.close().expect("closed");
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Closed));
    other.try_write("cfg").expect("answered").expect("free at once").release().expect("released");
    let error = manager.read("cfg").wait().expect_err("closed for good");
    assert_matches!(error, Error::Closed { .. });
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
fn services_manager_is_used_from_plain_threads() {
    let inner = redis_rwlock::MemoryManager::new();
    let peer = inner.peer();
    let shared: Arc<dyn RwLockManager> = Arc::new(inner);
    let manager = Blocking::over(Arc::clone(&shared)).expect("a thread starts");
    let other = Blocking::over(peer).expect("a thread starts");
    let outer = manager.write("cfg").wait().expect("granted");
    let inner = manager.write("cfg").reentrant().wait().expect("nested in this thread");
    assert!(other.try_read("cfg").expect("answered").is_none());
    assert_eq!((shared.stats().holds, manager.stats().guards), (1, 2));
    assert_eq!(manager.locks().expect("listed"), ["cfg"]);
    assert!(manager.health().expect("asked").is_ready());
    outer.release().expect("nested");
    inner.release().expect("ours to the end");
    other.write("cfg").fixed_lease(Duration::from_secs(3)).wait().expect("granted").release().expect("released");
}

#[test]
fn work_is_done_under_the_lock_and_told_when_it_was_lost() {
    let manager = MemoryManager::new().expect("a thread starts");
    let other = manager.peer().expect("a thread starts");
    let inside = manager.write("cfg").run(|_| other.try_read("cfg").expect("answered").is_none());
    assert!(inside.expect("done"));
    assert!(manager.inspect("cfg").expect("inspected").is_free());
    let error = manager.write("cfg").run(|_| other.lose_all()).expect_err("nobody knows it");
    assert_matches!(error, Error::Lost { reason: LossReason::Gone, .. });
    let ended = manager.write("cfg").run(|_| other.force_release("cfg").expect("forced").len());
    assert_matches!(ended, Err(Error::Lost { reason: LossReason::Forced, .. }));
}

#[test]
fn refused_conversions_are_typed_and_give_the_guard_back() {
    let manager = MemoryManager::new().expect("a thread starts");
    let other = manager.peer().expect("a thread starts");
    let theirs = other.read("cfg").wait().expect("granted");
    let ours = manager.read("cfg").wait().expect("granted");
    let refused: TryUpgradeError = ours.try_upgrade().expect_err("another reads");
    assert!(matches!(refused.error(), Error::UpgradeConflict { .. }), "{refused}");
    assert_eq!(refused.to_string(), refused.error().to_string());
    let ours = refused.into_guard();
    theirs.release().expect("released");
    let ours = ours.try_upgrade().expect("alone").downgrade().expect("no error");
    manager.lose_all();
    let lost: Error = ours.try_upgrade().expect_err("nobody knows it").into();
    assert_matches!(lost, Error::Lost { reason: LossReason::Gone, .. });
}
