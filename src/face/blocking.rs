//! Blocking locks for threads without a tokio runtime.
//!
//! A blocking manager runs a small tokio runtime of its own, with one thread. Its guards stay in the thread that
//! acquired them, so acquisitions of one thread nest by default; see [`Reentry`].
//!
//! ```
//! use redis_rwlock::blocking::MemoryManager;
//!
//! # fn main() -> redis_rwlock::Result<()> {
//! let manager = MemoryManager::new()?;
//! let outer = manager.write("cfg").wait()?;
//! let inner = manager.read("cfg").wait()?; // nested, since the thread is the same
//! outer.release()?;
//! inner.release()?;
//! # Ok(())
//! # }
//! ```
//!
//! Options, errors and views have the same names as in the asynchronous interface. [`Blocking::over`] wraps an existing
//! manager, for example an `Arc<dyn RwLockManager>`.

use std::fmt;
use std::future::Future;
use std::io;
use std::marker::PhantomData;
use std::ops::Deref;
use std::sync::Arc;
use std::time::Duration;

use tokio::runtime::Runtime;

use crate::base::background_runtime::DetachedRuntime;
use crate::base::deadlock::Cycle;
use crate::base::denied::Denied;
use crate::base::error::{Error, Result};
use crate::base::health::{Health, Stats};
use crate::base::reentry::{OwnerId, Reentry};
use crate::base::ticket::Ticket;
use crate::base::topology::Topology;
use crate::engine::Engine;
use crate::face::acquire::unless_lost;
use crate::face::group::NamedLock;
use crate::face::guard::detach_guard;
use crate::face::guard::{Guard as AsyncGuard, conversion_error};
use crate::face::manager::{Build, Builder, RwLockManager};
use crate::face::ticket::{DetachError, adopt};
use crate::store::view::{HolderView, LockView};

/// Longest time for which the runtime of a dropped manager continues to send releases.
const LAST_RELEASES: Duration = Duration::from_secs(2);

/// [`RedisManager`](crate::RedisManager) for threads without a runtime.
pub type RedisManager = Blocking<crate::RedisManager>;
/// [`TwoKeyManager`](crate::TwoKeyManager) for threads without a runtime.
pub type TwoKeyManager = Blocking<crate::TwoKeyManager>;
/// [`QuorumManager`](crate::QuorumManager) for threads without a runtime.
pub type QuorumManager = Blocking<crate::QuorumManager>;
/// [`RedissonManager`](crate::RedissonManager) for threads without a runtime. Its use is that of [`RedisManager`].
pub type RedissonManager = Blocking<crate::RedissonManager>;
/// [`MemoryManager`](crate::MemoryManager) for threads without a runtime.
pub type MemoryManager = Blocking<crate::MemoryManager>;

/// Manager for threads without a tokio runtime. Clones share one manager.
///
/// # Panics
///
/// The methods block the thread. So they panic if asynchronous code calls them, like all blocking functions of tokio.
///
/// # Examples
///
/// ```
/// use redis_rwlock::blocking::{Blocking, MemoryManager};
///
/// # fn main() -> redis_rwlock::Result<()> {
/// let manager: MemoryManager = Blocking::build(redis_rwlock::MemoryManager::builder())?;
/// let guard = manager.write("cfg").wait()?;
/// let elsewhere = manager.peer()?;
/// assert!(elsewhere.try_read("cfg")?.is_none());
/// guard.release()?;
/// let reading = manager.read("cfg").wait()?;
/// assert!(elsewhere.try_write("cfg")?.is_none());
/// assert_eq!(manager.stats().guards, 1);
/// # drop(reading);
/// manager.close() // releases all remaining holds
/// # }
/// ```
#[derive(Clone)]
pub struct Blocking<M> {
    manager: M,
    background: Arc<BlockingRuntime>,
}

impl<M: fmt::Debug> fmt::Debug for Blocking<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Blocking").field(&self.manager).finish()
    }
}

/// Runtime that a manager shares with its guards.
struct BlockingRuntime {
    /// `None` only while this value is dropped, which happens when neither the manager nor one of its guards is left.
    runtime: Option<Runtime>,
    engine: Arc<Engine>,
}

impl BlockingRuntime {
    fn new(engine: Arc<Engine>) -> Result<Self> {
        let no_thread = |error: io::Error| {
            let reason =
                format!("no thread could be started: {error}; raise the limits of the process on threads and memory");
            Error::invalid("runtime", reason)
        };
        // Starts a thread that does nothing. If the process can start no thread, this step returns an error, whereas
        // tokio would panic.
        drop(std::thread::Builder::new().spawn(|| ()).map_err(no_thread)?.join());
        let runtime = tokio::runtime::Builder::new_multi_thread()
            .worker_threads(1)
            .thread_name("redis-rwlock")
            .enable_all()
            .build()
            .map_err(no_thread)?;
        Ok(Self { runtime: Some(runtime), engine })
    }

    fn block_on<F: Future>(&self, future: F) -> F::Output {
        match &self.runtime {
            Some(runtime) => runtime.block_on(future),
            None => unreachable!("the runtime is taken when nobody is left"),
        }
    }
}

impl Drop for BlockingRuntime {
    /// Returns at once. A new thread waits for the releases in progress, for a limited time, and then ends the runtime.
    fn drop(&mut self) {
        let Some(runtime) = self.runtime.take() else {
            return;
        };
        if self.engine.is_copied() {
            // This is a child process after `fork`, and the thread of the runtime exists only in the parent process.
            // Ending the runtime here would wait for that thread for ever.
            std::mem::forget(runtime);
            return;
        }
        let (engine, runtime) = (Arc::clone(&self.engine), DetachedRuntime::new(runtime));
        let last = std::thread::Builder::new().name("redis-rwlock-end".to_owned()).spawn(move || {
            // Holds that are not released before the timeout end with their leases.
            drop(runtime.block_on(async { tokio::time::timeout(LAST_RELEASES, engine.settled()).await }));
        });
        // If no thread could be started, the runtime ends here, and the remaining holds end with their leases.
        drop(last);
    }
}

/// Defines setters of options that the asynchronous acquisition has under the same names.
macro_rules! forwarded_setters {
    ($($(#[$doc:meta])* pub fn $option:ident(mut self, $value:ident: $type:ty);)*) => {
        $(
            $(#[$doc])*
            pub fn $option(mut self, $value: $type) -> Self {
                self.acquire = self.acquire.$option($value);
                self
            }
        )*
    };
}

impl<M: Build> Blocking<M> {
    /// Builds a manager from an asynchronous builder, without network I/O. The manager connects at its first use.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption), also if no thread could be started.
    pub fn build(builder: Builder<M>) -> Result<Self> {
        Self::over(builder.build()?)
    }

    /// Builds a manager, connects, and checks that the server can run this manager, as [`Builder::connect`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub fn connect_with(builder: Builder<M>) -> Result<Self> {
        let blocking = Self::build(builder)?;
        blocking.background.block_on(blocking.manager.engine().ready())?;
        Ok(blocking)
    }
}

macro_rules! on_servers {
    ($($manager:ident)*) => {$(
        impl $manager {
            /// Connects with default options.
            ///
            /// # Errors
            ///
            /// The errors of [`Builder::connect`].
            pub fn connect(topology: impl Into<Topology>) -> Result<Self> {
                Self::connect_with(crate::$manager::builder(topology))
            }
        }
    )*};
}
on_servers!(RedisManager TwoKeyManager RedissonManager);

impl QuorumManager {
    /// Connects to these masters with default options.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub fn connect<U: Into<String>>(masters: impl IntoIterator<Item = U>) -> Result<Self> {
        Self::connect_with(crate::QuorumManager::builder(masters))
    }
}

impl MemoryManager {
    /// Creates a manager with default options on a new, empty store in memory.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) if no thread could be started.
    pub fn new() -> Result<Self> {
        Self::build(crate::MemoryManager::builder())
    }

    /// Creates another manager on the same store, with the same options. The new manager acts like the manager of a
    /// second process.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) if no thread could be started.
    pub fn peer(&self) -> Result<Self> {
        Self::over(self.manager.peer())
    }

    /// Disconnects from the store; see [`MemoryManager::disconnect`](crate::MemoryManager::disconnect).
    pub fn disconnect(&self) {
        self.manager.disconnect();
    }

    /// Connects to the store again, after a [`disconnect`](crate::MemoryManager::disconnect); see
    /// [`MemoryManager::reconnect`](crate::MemoryManager::reconnect).
    pub fn reconnect(&self) {
        self.manager.reconnect();
    }

    /// Deletes all locks of the store; see [`MemoryManager::lose_all`](crate::MemoryManager::lose_all).
    pub fn lose_all(&self) {
        self.manager.lose_all();
    }
}

impl<M: RwLockManager> Blocking<M> {
    /// Wraps a manager for threads without a tokio runtime. Asynchronous code may use the same manager at the same
    /// time. Any manager can be wrapped, including an `Arc<dyn RwLockManager>`.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) if no thread could be started.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::sync::Arc;
    /// use redis_rwlock::blocking::Blocking;
    /// use redis_rwlock::{MemoryManager, RwLockManager};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let locks: Arc<dyn RwLockManager> = Arc::new(MemoryManager::new());
    /// let locks = Blocking::over(locks)?;
    /// let guard = locks.write("cfg").wait()?;
    /// guard.release()
    /// # }
    /// ```
    pub fn over(manager: M) -> Result<Self> {
        let background = Arc::new(BlockingRuntime::new(Arc::clone(manager.engine()))?);
        Ok(Self { manager, background })
    }

    /// Acquires the lock `name` for reading, together with other readers, as [`RwLockManager::read`] does.
    /// [`Acquire::wait`] waits for the lock. Acquisitions of one thread nest, unless [`Acquire::reentry`] sets another
    /// rule.
    pub fn read(&self, name: &str) -> Acquire<crate::ReadGuard> {
        self.acquire(self.manager.read(name))
    }

    /// Acquires the lock `name` for writing, as [`RwLockManager::write`] does. [`Acquire::wait`] waits for the lock.
    /// Acquisitions of one thread nest, unless [`Acquire::reentry`] sets another rule.
    pub fn write(&self, name: &str) -> Acquire<crate::WriteGuard> {
        self.acquire(self.manager.write(name))
    }

    fn acquire<G: AsyncGuard>(&self, acquire: crate::Acquire<G>) -> Acquire<G> {
        Acquire { acquire, reentry: None, background: Arc::clone(&self.background) }
    }

    /// Acquires the lock `name` for reading if it is available now.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::try_read`].
    pub fn try_read(&self, name: &str) -> Result<Option<ReadGuard>> {
        self.read(name).try_now()
    }

    /// Acquires the lock `name` for writing if it is available now.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::try_write`].
    pub fn try_write(&self, name: &str) -> Result<Option<WriteGuard>> {
        self.write(name).try_now()
    }

    /// Acquires several locks in one step: all of them, or none, as [`RwLockManager::all`] does. [`AcquireAll::wait`]
    /// waits for the locks. Acquisitions of one thread nest, unless [`AcquireAll::reentry`] sets another rule.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::blocking::MemoryManager;
    /// use redis_rwlock::{read, write};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new()?;
    /// let guard = manager.all(&[read("a"), write("b")]).wait()?;
    /// assert!(manager.peer()?.try_read("b")?.is_none());
    /// guard.release()
    /// # }
    /// ```
    pub fn all(&self, locks: &[NamedLock]) -> AcquireAll {
        AcquireAll { acquire: self.manager.all(locks), reentry: None, background: Arc::clone(&self.background) }
    }

    /// Returns the holders and the waiters of the lock `name`, as the server has recorded them.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::inspect`].
    pub fn inspect(&self, name: &str) -> Result<LockView> {
        self.background.block_on(self.manager.inspect(name))
    }

    /// Ends every hold of the lock `name`, in all processes, and returns the ended holds.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::force_release`].
    pub fn force_release(&self, name: &str) -> Result<Vec<HolderView>> {
        self.background.block_on(self.manager.force_release(name))
    }

    /// Ends the holds that `view` shows, and does not end later holds. Returns the ended holds.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::force_release_shown`].
    pub fn force_release_shown(&self, view: &LockView) -> Result<Vec<HolderView>> {
        self.background.block_on(self.manager.force_release_shown(view))
    }

    /// Returns the names of all locks of this manager that the servers know.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::locks`].
    pub fn locks(&self) -> Result<Vec<String>> {
        self.background.block_on(self.manager.locks())
    }

    /// Takes over the hold of a reader's ticket; see [`RwLockManager::adopt_read`]. This thread owns the guard.
    /// [`Guard::detach`] has an example.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::adopt_read`].
    pub fn adopt_read(&self, ticket: Ticket) -> Result<ReadGuard> {
        self.adopt(ticket)
    }

    /// Takes over the hold of a writer's ticket; see [`RwLockManager::adopt_write`]. This thread owns the guard.
    /// [`Guard::detach`] has an example.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::adopt_write`].
    pub fn adopt_write(&self, ticket: Ticket) -> Result<WriteGuard> {
        self.adopt(ticket)
    }

    fn adopt<G: AsyncGuard>(&self, ticket: Ticket) -> Result<Guard<G>> {
        let adopting = adopt(self.manager.engine(), ticket, Some(of_thread(None)));
        let guard = self.background.block_on(adopting)?;
        Ok(Guard { guard, background: Arc::clone(&self.background), thread: PhantomData })
    }

    /// Returns possible deadlocks; see [`RwLockManager::deadlocks`].
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::deadlocks`].
    pub fn deadlocks(&self) -> Result<Vec<Cycle>> {
        self.background.block_on(self.manager.deadlocks())
    }

    /// Asks every server of this manager for its health.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::health`].
    pub fn health(&self) -> Result<Health> {
        self.background.block_on(self.manager.health())
    }

    /// Returns the counters of this manager, such as the numbers of holds, guards and waiters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        self.manager.stats()
    }

    /// Closes the manager and releases all holds.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::close`].
    pub fn close(&self) -> Result<()> {
        self.background.block_on(self.manager.close())
    }

    /// Waits until the server has confirmed the release of each dropped guard. The manager stays open.
    ///
    /// # Errors
    ///
    /// The errors of [`RwLockManager::flush`].
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::MemoryManager;
    /// use redis_rwlock::blocking::Blocking;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = Blocking::over(MemoryManager::new())?;
    /// drop(manager.write("cfg").wait()?);
    /// manager.flush()?;
    /// assert!(manager.inspect("cfg")?.holders.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    pub fn flush(&self) -> Result<()> {
        self.background.block_on(self.manager.flush())
    }
}

/// Options of an acquisition; [`wait`](Acquire::wait) acquires the lock.
///
/// # Errors
///
/// The errors of the asynchronous [`Acquire`](crate::Acquire).
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redis_rwlock::{OwnerId, Reentry};
/// use redis_rwlock::blocking::MemoryManager;
///
/// # fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new()?;
/// let second = Duration::from_secs(1);
/// let guard = manager.write("cfg").lease(2 * second).max_hold(60 * second).wait_timeout(second).wait()?;
/// let nested = manager.read("cfg").reentrant().wait()?; // `reentrant` is the default here
/// assert!(manager.read("cfg").reentry(Reentry::Off).try_now()?.is_none());
/// assert!(manager.read("cfg").owner(OwnerId::new()).try_now()?.is_none());
/// # drop((guard, nested));
/// # Ok(())
/// # }
/// ```
#[must_use = "an acquisition does nothing unless it is waited for"]
pub struct Acquire<G: AsyncGuard> {
    acquire: crate::Acquire<G>,
    reentry: Option<Reentry>,
    background: Arc<BlockingRuntime>,
}

impl<G: AsyncGuard> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.acquire.fmt(f)
    }
}

impl<G: AsyncGuard> Acquire<G> {
    forwarded_setters! {
    /// Sets the lease, as [`Acquire::lease`](crate::Acquire::lease) does.
    pub fn lease(mut self, lease: Duration);

    /// Sets a note for people, as [`Acquire::note`](crate::Acquire::note) does.
    pub fn note(mut self, note: impl Into<String>);

    /// Sets the longest time that the hold lasts, as [`Acquire::max_hold`](crate::Acquire::max_hold) does.
    pub fn max_hold(mut self, max_hold: Duration);

    /// Sets how long to wait for other holders, as [`Acquire::wait_timeout`](crate::Acquire::wait_timeout) does.
    pub fn wait_timeout(mut self, wait_timeout: Duration);

    /// Sets a lease that is never renewed, as [`Acquire::fixed_lease`](crate::Acquire::fixed_lease) does.
    pub fn fixed_lease(mut self, lease: Duration);
    }

    /// Lets the acquisition nest if this thread holds the lock already. This is the default.
    pub fn reentrant(self) -> Self {
        self.reentry(Reentry::PerTask)
    }

    /// Lets the acquisition nest if this owner holds the lock already, as [`Acquire::owner`](crate::Acquire::owner)
    /// does.
    pub fn owner(self, owner: OwnerId) -> Self {
        self.reentry(Reentry::Named(owner))
    }

    /// Sets the owner of this acquisition: this thread, a named owner, or none. An acquisition nests if its owner
    /// already has a guard of the lock. Defaults to this thread, because in blocking code [`Reentry::PerTask`] means
    /// the thread.
    pub fn reentry(mut self, reentry: Reentry) -> Self {
        self.reentry = Some(reentry);
        self
    }

    /// Acquires the lock, runs `work`, and releases the lock.
    ///
    /// If the hold is lost, `run` cannot stop the work, because a thread cannot be stopped from outside. So long work
    /// must check the [`state`](crate::ReadGuard::state) of its guard from time to time.
    ///
    /// # Errors
    ///
    /// [`Lost`](Error::Lost) if the hold was lost before the end of the work, so others may have held the lock. All
    /// other errors are those of the acquisition, and the work did not begin.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new()?;
    /// let token = manager.write("cfg").run(|guard| guard.fencing_token())?;
    /// # let _ = token;
    /// # Ok(())
    /// # }
    /// ```
    pub fn run<T>(self, work: impl FnOnce(&Guard<G>) -> T) -> Result<T> {
        let guard = self.wait()?;
        let done = work(&guard);
        unless_lost(done, guard.release())
    }

    /// Waits for the lock and returns its guard.
    ///
    /// # Errors
    ///
    /// The errors of the asynchronous [`Acquire`](crate::Acquire).
    pub fn wait(self) -> Result<Guard<G>> {
        let (acquire, background) = self.terms();
        let guard = background.block_on(acquire.into_future())?;
        Ok(Guard { guard, background, thread: PhantomData })
    }

    /// Asks the server once. Returns `None` if other owners hold the lock, or if other threads or tasks of this process
    /// already wait for it.
    ///
    /// # Errors
    ///
    /// The errors of [`Acquire::try_now`](crate::Acquire::try_now).
    pub fn try_now(self) -> Result<Option<Guard<G>>> {
        let (acquire, background) = self.terms();
        let guard = background.block_on(acquire.try_now())?;
        Ok(guard.map(|guard| Guard { guard, background, thread: PhantomData }))
    }

    /// Asks the server once, as [`try_now`](Acquire::try_now) does. A refusal names the holder of the lock.
    ///
    /// # Errors
    ///
    /// The errors of [`Acquire::try_or_denied`](crate::Acquire::try_or_denied). The inner error is the refusal.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new()?;
    /// let guard = manager.write("cfg").wait()?;
    /// let denied = manager.peer()?.write("cfg").try_or_denied()?.expect_err("a writer holds the lock");
    /// assert!(denied.holder.is_some());
    /// # guard.release()
    /// # }
    /// ```
    pub fn try_or_denied(self) -> Result<Result<Guard<G>, Denied>> {
        let (acquire, background) = self.terms();
        let outcome = background.block_on(acquire.try_or_denied())?;
        Ok(outcome.map(|guard| Guard { guard, background, thread: PhantomData }))
    }

    fn terms(self) -> (crate::Acquire<G>, Arc<BlockingRuntime>) {
        (self.acquire.reentry(of_thread(self.reentry)), self.background)
    }
}

/// Returns this thread as the owner, unless the caller has set another rule. An explicit owner is needed because
/// [`Reentry::PerTask`] would use the current tokio task if there is one.
fn of_thread(reentry: Option<Reentry>) -> Reentry {
    match reentry {
        None | Some(Reentry::PerTask) => Reentry::Named(OwnerId::of_thread()),
        Some(other) => other,
    }
}

/// Options of an acquisition of several locks; [`wait`](AcquireAll::wait) acquires the locks.
///
/// # Errors
///
/// The errors of the asynchronous [`AcquireAll`](crate::AcquireAll).
#[must_use = "an acquisition does nothing unless it is waited for"]
pub struct AcquireAll {
    acquire: crate::AcquireAll,
    reentry: Option<Reentry>,
    background: Arc<BlockingRuntime>,
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.acquire.fmt(f)
    }
}

impl AcquireAll {
    forwarded_setters! {
    /// Sets the lease, as [`AcquireAll::lease`](crate::AcquireAll::lease) does.
    pub fn lease(mut self, lease: Duration);

    /// Sets the longest time of each hold, as [`AcquireAll::max_hold`](crate::AcquireAll::max_hold) does.
    pub fn max_hold(mut self, max_hold: Duration);

    /// Sets how long to wait for other holders, for all locks together, as
    /// [`AcquireAll::wait_timeout`](crate::AcquireAll::wait_timeout) does.
    pub fn wait_timeout(mut self, wait_timeout: Duration);

    /// Sets a lease that is never renewed, as [`AcquireAll::fixed_lease`](crate::AcquireAll::fixed_lease) does.
    pub fn fixed_lease(mut self, lease: Duration);
    }

    /// Sets the owner of this acquisition: this thread, a named owner, or none; see [`Acquire::reentry`].
    pub fn reentry(mut self, reentry: Reentry) -> Self {
        self.reentry = Some(reentry);
        self
    }

    /// Waits for all locks and returns their guard.
    ///
    /// # Errors
    ///
    /// The errors of the asynchronous [`AcquireAll`](crate::AcquireAll).
    pub fn wait(self) -> Result<GroupGuard> {
        let Self { acquire, reentry, background } = self;
        let guard = background.block_on(acquire.reentry(of_thread(reentry)).into_future())?;
        Ok(Guard { guard, background, thread: PhantomData })
    }

    /// Asks for each lock once. Returns `None` if one of them is not available, and then holds none of them.
    ///
    /// # Errors
    ///
    /// The errors of [`AcquireAll::try_now`](crate::AcquireAll::try_now).
    pub fn try_now(self) -> Result<Option<GroupGuard>> {
        let Self { acquire, reentry, background } = self;
        let guard = background.block_on(acquire.reentry(of_thread(reentry)).try_now())?;
        Ok(guard.map(|guard| Guard { guard, background, thread: PhantomData }))
    }
}

impl Acquire<crate::WriteGuard> {
    forwarded_setters! {
    /// Sets how long the lock stays taken on the server, as [`Acquire::at_least`](crate::Acquire::at_least) does. A
    /// nested acquisition fails with [`InvalidOption`](Error::InvalidOption).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new()?;
    /// manager.write("report").at_least(Duration::from_secs(30)).run(|_| ())?;
    /// assert!(manager.try_write("report")?.is_none());
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_least(mut self, at_least: Duration);
    }
}

/// Guard that stays in the thread that acquired it. The guard dereferences to the asynchronous guard.
///
/// Dropping the guard releases the lock in the background; [`release`](Guard::release) waits for the server's answer.
///
/// # Examples
///
/// ```
/// use redis_rwlock::HoldState;
/// use redis_rwlock::blocking::MemoryManager;
///
/// # fn main() -> redis_rwlock::Result<()> {
/// let guard = MemoryManager::new()?.write("cfg").wait()?;
/// println!("{} with token {}, for {:?}", guard.name(), guard.fencing_token(), guard.remaining());
/// assert_eq!(guard.state(), HoldState::Held);
/// guard.release()
/// # }
/// ```
#[must_use = "a guard that is dropped releases the lock"]
pub struct Guard<G> {
    // Declared before `background`, so that the guard is dropped first, because the runtime in `background` sends the
    // release of the guard.
    guard: G,
    background: Arc<BlockingRuntime>,
    thread: PhantomData<*const ()>,
}

/// [`ReadGuard`](crate::ReadGuard) for threads without a runtime.
pub type ReadGuard = Guard<crate::ReadGuard>;
/// [`WriteGuard`](crate::WriteGuard) for threads without a runtime.
pub type WriteGuard = Guard<crate::WriteGuard>;
/// [`GroupGuard`](crate::GroupGuard) for threads without a runtime.
pub type GroupGuard = Guard<crate::GroupGuard>;

impl Guard<crate::GroupGuard> {
    /// Blocks until each hold has the whole lease of the acquisition; see [`Guard::confirmed`].
    ///
    /// # Errors
    ///
    /// The errors of [`GroupGuard::confirmed`](crate::GroupGuard::confirmed).
    pub fn confirmed(&self) -> Result<()> {
        self.background.block_on(self.guard.confirmed())
    }

    /// Releases all locks and returns when the servers have confirmed that.
    ///
    /// # Errors
    ///
    /// The errors of [`GroupGuard::release`](crate::GroupGuard::release).
    pub fn release(self) -> Result<()> {
        self.background.block_on(self.guard.release())
    }
}

impl<G> Deref for Guard<G> {
    type Target = G;

    fn deref(&self) -> &G {
        &self.guard
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(f)
    }
}

impl<G: AsyncGuard> Guard<G> {
    /// Blocks until the hold has the whole lease of its acquisition. This takes about one round trip if the acquisition
    /// waited in the server's queue, because such a hold begins with a shorter time. Returns at once if the server has
    /// granted the whole lease already.
    ///
    /// # Errors
    ///
    /// The errors of [`ReadGuard::confirmed`](crate::ReadGuard::confirmed).
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let guard = MemoryManager::new()?.write("cfg").wait()?;
    /// guard.confirmed()?; // before a step that takes long
    /// guard.release()
    /// # }
    /// ```
    pub fn confirmed(&self) -> Result<()> {
        self.background.block_on(self.guard.as_held().confirmed())
    }

    /// Sets the note of the hold; see [`ReadGuard::set_note`](crate::ReadGuard::set_note).
    ///
    /// # Errors
    ///
    /// The errors of [`ReadGuard::set_note`](crate::ReadGuard::set_note).
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let guard = MemoryManager::new()?.write("cfg").note("step 1 of 3").wait()?;
    /// guard.set_note("step 2 of 3")?;
    /// guard.release()
    /// # }
    /// ```
    pub fn set_note(&self, note: &str) -> Result<()> {
        self.background.block_on(self.guard.as_held().set_note(note))
    }

    /// Releases the lock and returns when the server has confirmed the release.
    ///
    /// # Errors
    ///
    /// The errors of [`ReadGuard::release`](crate::ReadGuard::release).
    pub fn release(self) -> Result<()> {
        self.background.block_on(self.guard.into_held().release())
    }

    /// Turns the guard into a ticket, as [`WriteGuard::detach`](crate::WriteGuard::detach) does.
    ///
    /// # Errors
    ///
    /// A [`DetachError`], which contains the guard.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::blocking::MemoryManager;
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new()?;
    /// let ticket = manager.write("job:7").wait()?.detach(Duration::from_secs(60))?;
    /// let guard = manager.peer()?.adopt_write(ticket)?;
    /// guard.release()
    /// # }
    /// ```
    pub fn detach(self, valid_for: Duration) -> Result<Ticket, DetachError<Self>> {
        let Self { guard, background, thread } = self;
        let detached = background.block_on(detach_guard(guard, valid_for));
        detached.map_err(|refused| refused.map(|guard| Self { guard, background, thread }))
    }
}

impl Guard<crate::WriteGuard> {
    /// Releases the lock without a rest, as
    /// [`WriteGuard::release_at_once`](crate::WriteGuard::release_at_once) does.
    ///
    /// # Errors
    ///
    /// The errors of [`ReadGuard::release`](crate::ReadGuard::release).
    pub fn release_at_once(self) -> Result<()> {
        self.background.block_on(self.guard.release_at_once())
    }

    /// Converts the exclusive hold into a shared hold in one step; see
    /// [`WriteGuard::downgrade`](crate::WriteGuard::downgrade).
    ///
    /// # Errors
    ///
    /// A [`DowngradeError`], which contains the guard.
    pub fn downgrade(self) -> Result<ReadGuard, DowngradeError> {
        let Self { guard, background, thread } = self;
        match background.block_on(guard.downgrade()) {
            Ok(guard) => Ok(Guard { guard, background, thread }),
            Err(crate::DowngradeError { guard, error }) => {
                Err(DowngradeError { guard: Self { guard, background, thread }, error })
            }
        }
    }
}

impl Guard<crate::ReadGuard> {
    /// Converts the shared hold into an exclusive hold if the lock has no other reader and no waiting writer. Asks the
    /// server once; see [`ReadGuard::try_upgrade`](crate::ReadGuard::try_upgrade).
    ///
    /// # Errors
    ///
    /// A [`TryUpgradeError`], which contains the guard.
    pub fn try_upgrade(self) -> Result<WriteGuard, TryUpgradeError> {
        let Self { guard, background, thread } = self;
        match background.block_on(guard.try_upgrade()) {
            Ok(guard) => Ok(Guard { guard, background, thread }),
            Err(crate::TryUpgradeError { guard, error }) => {
                Err(TryUpgradeError { guard: Self { guard, background, thread }, error })
            }
        }
    }
}

conversion_error! {
    /// Error of [`downgrade`](Guard::downgrade), which contains the guard.
    DowngradeError, WriteGuard
}
conversion_error! {
    /// Error of [`try_upgrade`](Guard::try_upgrade), which contains the guard.
    TryUpgradeError, ReadGuard
}
