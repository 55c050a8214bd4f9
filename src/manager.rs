//! The trait that services program against, and the managers behind it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::clock::Clock;
use crate::durability::Durability;
use crate::engine::Engine;
use crate::engine::handles::Handles;
#[allow(unused_imports)] // for the documentation
use crate::error::Error;
use crate::error::Result;
use crate::events;
use crate::guard::{Guard, ReadGuard, WriteGuard};
use crate::health::{Health, Stats};
use crate::key::{Key, KeyTemplate, LockName};
use crate::options::{Options, PublishedLimits};
use crate::reentry::Reentry;
use crate::scheme::memory::{Memory, Store, Wire};
use crate::scheme::{BoxFuture, Scheme, hash, two_key};
use crate::topology::Topology;
use crate::transport;
use crate::view::{HolderView, LockView};

mod sealed {
    use std::sync::Arc;

    use super::Place;
    use crate::engine::Engine;
    use crate::error::Result;
    use crate::options::Options;

    pub trait Sealed {
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn engine(&self) -> &Arc<Engine>;
        /// The same, for the users of the lock whose name has this hash.
        #[allow(private_interfaces)]
        fn engine_of(&self, _hash: u64) -> &Arc<Engine> {
            self.engine()
        }
    }

    pub trait FromPlace: Sized {
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn from_place(place: Place, options: Options) -> Result<Self>;
    }
}
use sealed::FromPlace;
pub(crate) use sealed::Sealed;

/// Where a manager's locks are kept.
#[derive(Clone, Debug)]
enum Place {
    Servers(Topology),
    /// Independent of each other.
    Masters(Masters),
    Memory(Arc<Store>),
}

/// One read-write lock per name, shared by all processes whose managers use the same servers and key prefix.
///
/// Object-safe: services take an `Arc<dyn RwLockManager>`, and tests hand them a [`MemoryManager`].
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use redis_rwlock::{MemoryManager, RwLockManager};
///
/// async fn reload(locks: &dyn RwLockManager) -> redis_rwlock::Result<()> {
///     let guard = locks.read("cfg").await?;
///     // … read the configuration: nobody writes it now …
///     guard.release().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let locks: Arc<dyn RwLockManager> = Arc::new(MemoryManager::new());
/// reload(&*locks).await?;
/// let guard = locks.write("cfg").await?; // alone
/// assert!(locks.try_read("cfg").await?.is_none());
/// assert!(locks.try_write("cfg").await?.is_none());
/// guard.release().await?;
/// locks.close().await // at the end of the program
/// # }
/// ```
pub trait RwLockManager: Sealed + fmt::Debug + Send + Sync + 'static {
    /// Acquires the lock `name` for reading, together with other readers.
    ///
    /// Returns an [`Acquire`], which takes options of this acquisition; awaiting that returns a [`ReadGuard`], and before it is
    /// awaited nothing is sent. The lock is given back when the guard is [released](ReadGuard::release) or dropped.
    ///
    /// A reader waits while a writer is inside, in this process or in another. With [`RedisManager`] and [`MemoryManager`] it also
    /// waits behind a writer that waits already, so readers that overlap all the time do not keep writers out; when the writer
    /// leaves, all waiting readers enter together. For [`share_window`](Builder::share_window), 50 ms, a reader can still join the
    /// readers of its own process. [`TwoKeyManager`] and [`QuorumManager`] promise no order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. Without an answer from any server it
    /// ends after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// A task that has a guard and acquires the same lock again can wait for itself: behind a writer that waits for the first
    /// guard. [`Acquire::reentrant`] and [`Reentry`] let acquisitions nest.
    ///
    /// # Errors
    ///
    /// When it is awaited: [`WaitTimeout`](Error::WaitTimeout) if others held the lock for the whole `wait_timeout`,
    /// [`Unreachable`](Error::Unreachable) if no server answered, [`Refused`](Error::Refused) if one said no,
    /// [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if a grant did not count,
    /// [`Closed`](Error::Closed) after [`close`](RwLockManager::close), and before anything is sent
    /// [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption).
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue. A request that may still be carried out is taken back in the background;
    /// what it left on the server stays there for one lease at most.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let other = manager.peer(); // as another process has it
    /// let ours = manager.read("cfg").await?;
    /// let theirs = other.read("cfg").await?; // both are inside
    /// assert!(manager.try_write("cfg").await?.is_none());
    /// theirs.release().await?;
    /// ours.release().await
    /// # }
    /// ```
    fn read(&self, name: &str) -> Acquire<ReadGuard> {
        acquire(self, name)
    }

    /// Acquires the lock `name` for writing, alone.
    ///
    /// Returns an [`Acquire`], which takes options of this acquisition; awaiting that returns a [`WriteGuard`], and before it is
    /// awaited nothing is sent. The lock is given back when the guard is [released](WriteGuard::release) or dropped.
    ///
    /// A writer waits until all readers and writers have left, in this process and in others. With [`RedisManager`] and
    /// [`MemoryManager`] it stops new readers meanwhile, and writers are served in the order in which their processes came. A writer
    /// that leaves can hand the lock to the next one of its process, [`hand_over_budget`](Builder::hand_over_budget) times and for
    /// 5 ms at most. [`TwoKeyManager`] and [`QuorumManager`] promise no order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. Without an answer from any server it
    /// ends after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// A task that has a guard and acquires the same lock for writing waits for itself. [`Acquire::reentrant`] and [`Reentry`] let
    /// acquisitions nest, and [`ReadGuard::try_upgrade`] makes a reader a writer.
    ///
    /// # Errors
    ///
    /// When it is awaited: [`WaitTimeout`](Error::WaitTimeout) if others held the lock for the whole `wait_timeout`,
    /// [`Unreachable`](Error::Unreachable) if no server answered, [`Refused`](Error::Refused) if one said no,
    /// [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if a grant did not count,
    /// [`Closed`](Error::Closed) after [`close`](RwLockManager::close), and before anything is sent
    /// [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption); and
    /// [`UpgradeConflict`](Error::UpgradeConflict) for a nested write in a read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue. A request that may still be carried out is taken back in the background;
    /// what it left on the server stays there for one lease at most.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let other = manager.peer(); // as another process has it
    /// let guard = manager.write("cfg").await?;
    /// assert!(other.try_read("cfg").await?.is_none()); // nobody else is inside
    /// let token = guard.fencing_token(); // goes along with each write to what the lock protects
    /// guard.release().await?;
    /// assert!(other.write("cfg").await?.fencing_token() > token);
    /// # Ok(())
    /// # }
    /// ```
    fn write(&self, name: &str) -> Acquire<WriteGuard> {
        acquire(self, name)
    }

    /// Takes the lock `name` shared if that can be done now; the same as `read(name).try_now()`.
    ///
    /// # Errors
    ///
    /// As for [`read`](RwLockManager::read). That others hold the lock is `Ok(None)`.
    fn try_read(&self, name: &str) -> BoxFuture<'static, Result<Option<ReadGuard>>> {
        Box::pin(self.read(name).try_now())
    }

    /// Takes the lock `name` alone if that can be done now; the same as `write(name).try_now()`.
    ///
    /// # Errors
    ///
    /// As for [`write`](RwLockManager::write). That others hold the lock is `Ok(None)`.
    fn try_write(&self, name: &str) -> BoxFuture<'static, Result<Option<WriteGuard>>> {
        Box::pin(self.write(name).try_now())
    }

    /// Shows who holds the lock `name`, as the server sees it. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable), [`Refused`](Error::Refused), [`InvalidName`](Error::InvalidName).
    ///
    /// # Cancel safety
    ///
    /// Safe: it leaves nothing on the server.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, Mode, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").await?;
    /// let view = manager.inspect("cfg").await?;
    /// assert_eq!(view.holders[0].mode, Mode::Write);
    /// # guard.release().await
    /// # }
    /// ```
    fn inspect(&self, name: &str) -> BoxFuture<'static, Result<LockView>> {
        let engine = Arc::clone(self.engine());
        let key = engine.key(name);
        Box::pin(async move {
            let key = key?;
            engine.inspect(&key).await
        })
    }

    /// Ends every hold of the lock `name`, whoever has it. For operators: the holders are still at work, and learn of it
    /// as [`LossReason::Forced`](crate::LossReason::Forced) at their next renewal. Tokens go on growing.
    ///
    /// It looks who holds the lock and ends those. Who gets it after that look keeps it, also when a request is repeated
    /// because its answer was lost, or arrives late.
    ///
    /// Returns what it ended, as the look showed it: nothing if nobody held the lock. Of readers beyond the hundred that a look
    /// shows age and remaining time are not known, and zero. If an answer was lost on the way, those are listed too who let go
    /// by themselves in that moment.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable), [`Refused`](Error::Refused), [`InvalidName`](Error::InvalidName).
    ///
    /// # Cancel safety
    ///
    /// A dropped future may or may not have ended the holds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let stuck = manager.peer().write("cfg").await?;
    /// for holder in manager.force_release("cfg").await? {
    ///     println!("ended the {} hold of {}, {:?} old", holder.mode, holder.label, holder.age);
    /// }
    /// assert!(manager.try_write("cfg").await?.is_some());
    /// # drop(stuck);
    /// # Ok(())
    /// # }
    /// ```
    fn force_release(&self, name: &str) -> BoxFuture<'static, Result<Vec<HolderView>>> {
        let engine = Arc::clone(self.engine());
        let key: Result<Arc<Key>> = engine.key(name);
        Box::pin(async move {
            let key = key?;
            let ended = engine.force(&key).await?;
            tell_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// Ends the holds that `view` shows, and none that came later: [`force_release`](RwLockManager::force_release) for operators
    /// who look at the holders before they decide. `view` is of a manager with the same servers and key prefix.
    ///
    /// A hold counts as shown for as long as it lasts, renewed or not. Readers share one phase, which ends as a whole: readers that
    /// have joined the shown ones since end with them, and are among those returned. Holds that `view` shows and that have ended by
    /// themselves are not. Of a free lock nothing is ended.
    ///
    /// # Errors
    ///
    /// The errors of `force_release`.
    ///
    /// # Cancel safety
    ///
    /// A dropped future may or may not have ended the holds.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let stuck = manager.peer().write("cfg").await?;
    /// let view = manager.inspect("cfg").await?;
    /// // … the operator looks at `view.holders`, and meanwhile another process takes the lock …
    /// stuck.release().await?;
    /// let next = manager.peer().write("cfg").await?;
    /// assert!(manager.force_release_shown(&view).await?.is_empty(), "nobody has looked at this hold");
    /// # drop(next);
    /// # Ok(())
    /// # }
    /// ```
    fn force_release_shown(&self, view: &LockView) -> BoxFuture<'static, Result<Vec<HolderView>>> {
        let engine = Arc::clone(self.engine());
        let (key, seen): (Result<Arc<Key>>, _) = (engine.key(&view.name), view.seen.clone());
        let is_free = view.is_free();
        Box::pin(async move {
            let key = key?;
            if is_free {
                return Ok(Vec::new());
            }
            let ended = engine.force_shown(&key, &seen).await?;
            tell_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// The names of all locks of this manager's [`key_prefix`](Builder::key_prefix), or of its
    /// [`published_keys`](Builder::published_keys), that the servers know: those that are held or waited for now, and those that
    /// were within about the last minute. In order, each once. For operators: [`inspect`](RwLockManager::inspect) tells more of
    /// one.
    ///
    /// It looks through all keys of every primary, with `SCAN`, five hundred at a time, between which the server works for others.
    /// With many other keys that takes its time: a second for each million or so. A lock that comes or goes meanwhile, or whose
    /// slot moves, may be missing.
    ///
    /// The user needs the right `+scan`, with which it can see the names of all keys.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable), also if one of the primaries cannot be asked: there is no list with gaps.
    /// [`Refused`](Error::Refused) without the right.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").await?;
    /// for name in manager.locks().await? {
    ///     println!("{name}: {} inside", manager.inspect(&name).await?.holders.len());
    /// }
    /// # assert_eq!(manager.locks().await?, ["cfg"]);
    /// # guard.release().await
    /// # }
    /// ```
    fn locks(&self) -> BoxFuture<'static, Result<Vec<String>>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.names().await })
    }

    /// Asks every server that this manager knows how it is: who it is, how far away, whether its clock, its memory and its memory
    /// policy are as they should be. For health checks and operators.
    ///
    /// Never hangs: a server that has not answered within four [`response_timeout`](Builder::response_timeout)s (2 s by default)
    /// is not [reachable](crate::NodeHealth::is_reachable). Of a cluster one is asked who its members are, and all of them, replicas too,
    /// how they are, which costs a connection each. Ask every few seconds, not for each request.
    ///
    /// Of the rights only `+info` is beyond what locks need; without it
    /// [`noeviction`](crate::NodeHealth::noeviction) is not known, and each question leaves a line in the server's `ACL LOG`.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) outside of a tokio runtime. That no server answers is no error: it is what this
    /// tells.
    ///
    /// # Cancel safety
    ///
    /// Safe: it changes nothing.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let health = manager.health().await?;
    /// assert!(health.is_ready());
    /// for node in &health.nodes {
    ///     println!("{} {:?}: {:?}", node.address, node.role, node.round_trip);
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn health(&self) -> BoxFuture<'static, Result<Health>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.health().await })
    }

    /// What this manager is doing at the moment; see [`Stats`]. Asks nobody, and looks at each hold once.
    fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Ends the manager: new and waiting acquisitions fail with [`Closed`](Error::Closed), guards are lost with
    /// [`LossReason::Closed`](crate::LossReason::Closed) *before* their holds are given back. Returns when the server
    /// knows, at the latest when the last lease is over by the local clock. An acquisition that is under way and whose
    /// future is neither polled nor dropped is waited for as long as one response timeout; it takes itself back later.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if the server could not be told: the leases end the holds.
    ///
    /// # Cancel safety
    ///
    /// A dropped future leaves the manager closed, once it was polled, and the releases to the background.
    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.close().await })
    }

    /// Waits until everything that was dropped is released: guards, and acquisitions whose futures were dropped after they had asked
    /// the server. The manager goes on: guards that are there stay held, and acquisitions that wait go on. A hold that is
    /// [kept](Builder::idle_hold) stays kept.
    ///
    /// A drop is told to the servers in the background. A program that ends right after it may end first: then a lock stays held for
    /// the rest of its lease, and a place in the queue may be granted for a claim of 3 s. So let a program end with this, or with
    /// [`close`](Self::close). What is dropped while this waits is waited for as well.
    ///
    /// A request whose answer never came may be carried out for two [response timeouts](Builder::response_timeout); if its future was
    /// dropped, this waits for that long.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if no release came to its end, by an answer or with its lease, for
    /// [`unreachable_after`](Builder::unreachable_after), or for four response timeouts and the clock skew if that is longer. The
    /// background goes on. [`InvalidOption`](Error::InvalidOption) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the releases go on.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{MemoryManager, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// drop(manager.write("cfg").await?);
    /// manager.flush().await?;
    /// assert!(manager.inspect("cfg").await?.holders.is_empty());
    /// # Ok(())
    /// # }
    /// ```
    fn flush(&self) -> BoxFuture<'static, Result<()>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.flush().await })
    }
}

fn tell_forced(key: &Key, ended: &[HolderView]) {
    let holders: Vec<&str> = ended.iter().map(|holder| &*holder.label).collect();
    events::forced(key.name(), &holders);
}

/// An acquisition that has not begun.
fn acquire<G: Guard>(manager: &(impl Sealed + ?Sized), name: &str) -> Acquire<G> {
    let name = LockName::new(name);
    Acquire::new(Arc::clone(manager.engine_of(name.hash())), name)
}

impl<M: RwLockManager + ?Sized> Sealed for Arc<M> {
    #[allow(private_interfaces)]
    fn engine(&self) -> &Arc<Engine> {
        (**self).engine()
    }

    #[allow(private_interfaces)]
    fn engine_of(&self, hash: u64) -> &Arc<Engine> {
        (**self).engine_of(hash)
    }
}

impl<M: RwLockManager + ?Sized> RwLockManager for Arc<M> {}

macro_rules! manager {
    ($name:ident) => {
        impl Sealed for $name {
            #[allow(private_interfaces)]
            fn engine(&self) -> &Arc<Engine> {
                self.handles.any()
            }

            #[allow(private_interfaces)]
            fn engine_of(&self, hash: u64) -> &Arc<Engine> {
                self.handles.of(hash)
            }
        }

        impl RwLockManager for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(self.handles.any()).finish()
            }
        }
    };
}

/// The hash scheme: one key per lock, on one node or a cluster. The one to recommend.
///
/// A client of the published hash scheme on the same key (`<prefix>:{name}:lock`) is excluded by our holds and excludes
/// us, within the limits that `lua/README.md` states. [`published_keys`](Builder::published_keys) lets a service that runs
/// that scheme keep the keys it has.
///
/// # Examples
///
/// ```no_run
/// # use redis_rwlock::{RedisManager, RwLockManager, Topology};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = RedisManager::connect(Topology::cluster(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"])).await?;
/// let guard = manager.write("cfg").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct RedisManager {
    handles: Handles,
}
manager!(RedisManager);

mod quorum;
use quorum::Masters;
pub use quorum::QuorumManager;

/// The two-key scheme: a read key and a write key per lock, on one node. The server hands nothing over: whoever is next is told
/// to ask again, and is passed if it does not do so within a quarter of a second.
///
/// Keys of the published two-key scheme cannot be shared with its clients: all their readers have one value, so any one that
/// leaves removes all, ours included. Move to this by new keys, with the old clients stopped.
///
/// # Examples
///
/// ```no_run
/// # use redis_rwlock::{RwLockManager, TwoKeyManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = TwoKeyManager::connect("redis://127.0.0.1:6379").await?;
/// let guard = manager.read("cfg").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct TwoKeyManager {
    handles: Handles,
}
manager!(TwoKeyManager);

/// Locks in this process's memory: for tests of services, with the same behaviour as on a server.
///
/// Time is the runtime's, so a test with a paused clock can let leases run out at once. Faults are made by
/// [`disconnect`](MemoryManager::disconnect) and [`lose_all`](MemoryManager::lose_all), so a test can see what a service does with
/// [`Unreachable`](Error::Unreachable), [`HoldState::Unconfirmed`](crate::HoldState::Unconfirmed) and [`Lost`](Error::Lost).
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let here = MemoryManager::new();
/// let there = here.peer(); // as another process would be
/// let guard = here.write("cfg").await?;
/// assert!(there.try_read("cfg").await?.is_none());
/// guard.release().await?;
/// assert!(there.try_read("cfg").await?.is_some());
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct MemoryManager {
    handles: Handles,
    store: Arc<Store>,
    /// What connects it with the store.
    wire: Arc<Wire>,
}
manager!(MemoryManager);

impl RedisManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Begins to put a manager together; see [`Builder`].
    pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
        Builder::new(Place::Servers(topology.into()))
    }
}

impl TwoKeyManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Begins to put a manager together; see [`Builder`].
    pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
        Builder::new(Place::Servers(topology.into()))
    }
}

impl Default for MemoryManager {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryManager {
    /// A manager on a store of its own, with default options.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::new(Store::new()), Options::default())
    }

    /// Begins to put a manager on a store of its own together; see [`Builder`].
    pub fn builder() -> Builder<Self> {
        Builder::new(Place::Memory(Arc::new(Store::new())))
    }

    /// Another manager on the same store and with the same options, as a second process would have.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store), self.engine().options().clone())
    }

    /// Begins to put another manager on the same store together; see [`Builder`].
    pub fn peer_builder(&self) -> Builder<Self> {
        Builder::new(Place::Memory(Arc::clone(&self.store)))
    }

    /// Cuts this manager and its clones off from the locks, as a broken network would; its peers are not concerned.
    ///
    /// Nothing is carried out until [`reconnect`](MemoryManager::reconnect): acquisitions, releases and `inspect` end with
    /// [`Unreachable`](Error::Unreachable) after [`unreachable_after`](Builder::unreachable_after); holds become
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed) at their next renewal, after a third of their lease, and are lost as
    /// [`Expired`](crate::LossReason::Expired) at their local deadline. The source of the errors is an [`std::io::Error`]. Twice
    /// is as good as once.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Error, HoldState, LossReason, MemoryManager, RwLockManager};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// // #[tokio::test(start_paused = true)]: time goes by at once
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").await?;
    /// manager.disconnect();
    /// let error = manager.read("other").await.expect_err("nobody answers");
    /// assert!(matches!(error, Error::Unreachable { .. }));
    /// assert_eq!(guard.state(), HoldState::Unconfirmed);
    /// assert_eq!(guard.lost().await, LossReason::Expired);
    ///
    /// manager.reconnect();
    /// manager.read("other").await?.release().await
    /// # })
    /// # }
    /// ```
    pub fn disconnect(&self) {
        self.store.cut(&self.wire);
    }

    /// Ends a [`disconnect`](MemoryManager::disconnect). What waits goes on by itself. A hold whose local deadline has not come is
    /// renewed; one that was lost stays lost.
    pub fn reconnect(&self) {
        self.store.mend(&self.wire);
    }

    /// Makes the store forget all locks, of this manager and its peers, as a server that restarts empty or `FLUSHALL`.
    ///
    /// Others may take the locks at once. The holders learn of it as [`LossReason::Gone`](crate::LossReason::Gone) at their next
    /// renewal or at their release. Tokens go on growing.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Error, LossReason, MemoryManager, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").await?;
    /// manager.lose_all();
    /// let error = guard.release().await.expect_err("nobody knows it");
    /// assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn lose_all(&self) {
        self.store.lose_all();
    }

    fn on(store: Arc<Store>, options: Options) -> Self {
        let scheme = Memory::new(Arc::clone(&store));
        let wire = Arc::clone(scheme.wire());
        Self { handles: Handles::new(Arc::new(scheme), options), store, wire }
    }
}

/// What a [`Builder`] builds: one of this crate's managers.
pub trait Build: RwLockManager + FromPlace {}
impl<M: RwLockManager + FromPlace> Build for M {}

impl FromPlace for RedisManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        let home = options.home(Clock::System);
        let transport = transport::open(&place.servers(), &options, &home)?;
        let scheme = hash::scheme(transport, options.published_limits);
        Ok(Self { handles: Handles::new(Arc::new(scheme), options) })
    }
}

impl FromPlace for TwoKeyManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        let topology = place.servers();
        topology.check_single()?;
        options
            .check_not_idle("the two-key scheme has no queue, so nobody would be told who waits: use `RedisManager`")?;
        let home = options.home(Clock::System);
        let transport = transport::open(&topology, &options, &home)?;
        let scheme: Arc<dyn Scheme> = Arc::new(two_key::scheme(transport));
        Ok(Self { handles: Handles::new(scheme, options) })
    }
}

impl FromPlace for MemoryManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        match place {
            Place::Memory(store) => Ok(Self::on(store, options)),
            Place::Servers(_) | Place::Masters(_) => unreachable!("only its own builders build a memory manager"),
        }
    }
}

impl Place {
    fn servers(self) -> Topology {
        match self {
            Self::Servers(topology) => topology,
            Self::Memory(_) | Self::Masters(_) => unreachable!("only their own builders build other managers"),
        }
    }
}

/// A manager that is being put together.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redis_rwlock::{RedisManager, Topology};
///
/// # fn main() -> redis_rwlock::Result<()> {
/// let manager = RedisManager::builder(Topology::node("redis://127.0.0.1:6379"))
///     .lease(Duration::from_secs(5))
///     .label("billing-1")
///     .build()?; // connects at first use
/// # Ok(())
/// # }
/// ```
///
/// All options, with their defaults; `docs/OPERATIONS.md` has a table of what smaller and larger values cost:
///
/// ```
/// # use std::time::Duration;
/// # use redis_rwlock::{Durability, PublishedLimits, QuorumManager, RedisManager, Reentry};
/// # fn main() -> redis_rwlock::Result<()> {
/// let builder = RedisManager::builder("redis://127.0.0.1:6379")
///     .lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3600))
///     .wait_timeout(Duration::MAX) // no limit
///     .unreachable_after(Duration::from_secs(5))
///     .response_timeout(Duration::from_millis(500))
///     .clock_margin(Duration::from_millis(100))
///     .reentry(Reentry::Off)
///     .key_prefix("rwlock")
///     .label("host:4711") // the default has this host and process
///     .share_window(Duration::from_millis(50))
///     .hand_over_budget(64)
///     .idle_hold(Duration::ZERO)
///     .idle_holds_max(10_000)
///     .try_wait(Duration::from_millis(50))
///     .max_waiters(100_000)
///     .published_limits(PublishedLimits::default())
///     .durability(Durability::Primary); // not of a `QuorumManager`
/// let manager = builder.build()?; // `connect` fails unless a server answers
///
/// // Off unless it is called: the keys that clients of the published hash scheme use. Of a `RedisManager`.
/// let adopting = RedisManager::builder("redis://127.0.0.1:6379").published_keys("lock:*").build()?;
///
/// // Off unless they are called: masters that restart are kept down for a lease, and a file has their password. Of a
/// // `QuorumManager`.
/// let masters = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"];
/// # let path = std::env::temp_dir().join(format!("redis-rwlock-options-doc-{}", std::process::id()));
/// # std::fs::write(&path, "secret").expect("written");
/// let quorum = QuorumManager::builder(masters).restarts_are_delayed().password_file(&path).build()?;
/// # std::fs::remove_file(&path).expect("removed");
/// # drop((manager, adopting, quorum));
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<M: Build> {
    place: Place,
    options: Options,
    manager: PhantomData<fn() -> M>,
}

impl<M: Build> Clone for Builder<M> {
    fn clone(&self) -> Self {
        Self { place: self.place.clone(), options: self.options.clone(), manager: PhantomData }
    }
}

impl<M: Build> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("place", &self.place).field("options", &self.options).finish()
    }
}

impl Builder<RedisManager> {
    /// Uses the keys that clients of the published hash scheme use already, so that a service can change over to this crate
    /// process by process, without renaming. No default: keys are made with [`key_prefix`](Builder::key_prefix), which is
    /// not used with this.
    ///
    /// The template is a key with exactly one `*` in the place of the name: `lock:*` for `lock:cfg`, `*` where the key is the
    /// name, `{shop}:*`, `lock:{*}`. (A `*` stands there in the patterns of `KEYS` and ACL rules too; braces are a hash tag
    /// to the server.) The name is put in as it is. Names are [`InvalidName`](Error::InvalidName) that cannot have a
    /// channel in the key's slot, or would share one: where the key has no hash tag it may have no `}`, and with the template
    /// `*` a name in braces is another's channel. Choose a template that fits nothing but locks if names come from
    /// outside.
    ///
    /// What the published clients are set to is told by [`published_limits`](Builder::published_limits). No
    /// [`lease`](Builder::lease) may be longer than their
    /// [`key_ttl`](PublishedLimits::key_ttl) (10 s), here and per acquisition: each grant of theirs sets the key to expire
    /// after that time, our hold with it.
    ///
    /// What such clients cannot be protected against is listed in `lua/README.md`. Have no more of them than the change
    /// needs.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{RedisManager, Error, PublishedLimits, RwLockManager, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let published = PublishedLimits::new(Duration::from_secs(1), Duration::from_secs(3)).key_ttl(Duration::from_secs(8));
    /// let builder = || RedisManager::builder(Topology::node("redis://127.0.0.1:6379")).published_limits(published);
    ///
    /// let manager = builder().published_keys("lock:*").lease(Duration::from_secs(8)).build()?;
    /// // manager.write("cfg").await is excluded by the published clients on the key `lock:cfg`, and excludes them.
    /// let error = manager.write("}").await.expect_err("no channel is in the slot of the key `lock:}`");
    /// assert!(matches!(error, Error::InvalidName { .. }));
    ///
    /// let error = builder().published_keys("lock:*").lease(Duration::from_secs(27)).build().expect_err("beyond their ttl");
    /// assert!(matches!(error, Error::InvalidOption { option: "lease", .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn published_keys(mut self, template: impl Into<String>) -> Self {
        self.options.published_keys = Some(KeyTemplate::new(template.into()));
        self
    }
}

macro_rules! durability {
    ($manager:ident) => {
        impl Builder<$manager> {
            /// What a grant has to outlive before it counts. Defaults to [`Durability::Primary`].
            ///
            /// At [`Durability::Replicated`] every grant, claim, conversion and renewal is followed by a `WAIT` on the connection
            /// that carried it, one of a few that are kept for that, so that others' requests do not stand behind it. Local
            /// sharing and hand-over cost nothing more: what they share was acknowledged. Give all managers of a lock the same
            /// level, and ask for all replicas that can be promoted.
            ///
            /// The user needs the right `+wait`, and `+info` for [`connect`](Builder::connect), which refuses a primary with
            /// fewer replicas than are asked for.
            ///
            /// # Errors
            ///
            /// Of [`build`](Builder::build): [`InvalidOption`](Error::InvalidOption) unless the timeout is at least 1 ms and at most
            /// half of the [`response_timeout`](Builder::response_timeout). Of all that asks a server:
            /// [`NotEnoughReplicas`](Error::NotEnoughReplicas).
            ///
            /// # Examples
            ///
            /// ```no_run
            /// use std::num::NonZeroU8;
            /// use std::time::Duration;
            #[doc = concat!("use redis_rwlock::{Durability, RwLockManager, ", stringify!($manager), "};")]
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> redis_rwlock::Result<()> {
            /// let level = Durability::Replicated { replicas: NonZeroU8::MIN, timeout: Duration::from_millis(100) };
            #[doc = concat!("let manager = ", stringify!($manager), "::builder(\"redis://127.0.0.1:6379\").durability(level).connect().await?;")]
            /// let guard = manager.write("cfg").await?; // a replica knows that we are inside
            /// guard.release().await
            /// # }
            /// ```
            pub fn durability(mut self, durability: Durability) -> Self {
                self.options.durability = durability;
                self
            }
        }
    };
}
durability!(RedisManager);
durability!(TwoKeyManager);

impl<M: Build> Builder<M> {
    fn new(place: Place) -> Self {
        Self { place, options: Options::default(), manager: PhantomData }
    }

    /// How long the server keeps a hold without hearing from us. Defaults to 10 s.
    ///
    /// Renewed at a third. A shorter lease frees locks sooner after a crash; a longer one outlasts longer outages.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// When a hold is over whatever happens. Defaults to 1 h, so that a forgotten guard does not lock for ever.
    ///
    /// Up to the lease it makes a fixed lease, which is never renewed. `Duration::MAX` is no limit. Guards are lost 50 ms before the
    /// server is told ([`Acquire::max_hold`]).
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = max_hold;
        self
    }

    /// How long acquisitions wait for others. Defaults to no limit. [`WaitTimeout`](Error::WaitTimeout) comes when the place in the
    /// queue is taken back: usually one round trip, at most two [response timeouts](Builder::response_timeout) later. For a hold that [stays](Builder::idle_hold) elsewhere they wait for
    /// [`try_wait`](Builder::try_wait) at least.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.options.wait_timeout = Some(wait_timeout);
        self
    }

    /// How long to go on without an answer from any server before [`Error::Unreachable`]. Defaults to 5 s.
    ///
    /// Shorter tells callers sooner; longer rides out longer failovers. The last try may take a response timeout more, and up to
    /// four where it needs a new connection.
    /// `Duration::MAX` never gives up; a [`wait_timeout`](Builder::wait_timeout) still counts.
    pub fn unreachable_after(mut self, unreachable_after: Duration) -> Self {
        self.options.unreachable_after = unreachable_after;
        self
    }

    /// How long one request may take; a later reply is never believed. Defaults to 500 ms.
    ///
    /// Should stay well under half of a cluster's node timeout. Shorter notices a frozen node sooner; longer bears
    /// slower networks. A minute is the most. A hold whose lease is shorter cannot have an unanswered renewal repeated.
    ///
    /// Name resolution for a new connection may take four response timeouts, TCP one, the TLS handshake two, and each of the two answers
    /// of the greeting one; so does each step to a Sentinel. An error names the step that took longer.
    pub fn response_timeout(mut self, response_timeout: Duration) -> Self {
        self.options.response_timeout = response_timeout;
        self
    }

    /// How far the clocks of servers that may serve the same lock can be apart. Defaults to 100 ms.
    ///
    /// Taken off every validity. Smaller leaves more of a lease; larger bears worse clocks.
    pub fn clock_margin(mut self, clock_margin: Duration) -> Self {
        self.options.clock_margin = clock_margin;
        self
    }

    /// Whether acquisitions of one owner nest. Defaults to [`Reentry::Off`].
    pub fn reentry(mut self, reentry: Reentry) -> Self {
        self.options.reentry = reentry;
        self
    }

    /// What all keys begin with. Defaults to `rwlock`. Managers with different prefixes do not see each other's locks.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.options.key_prefix = key_prefix.into();
        self
    }

    /// What [`inspect`](RwLockManager::inspect) calls this manager. Defaults to `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// What clients of the published hash scheme are set to: how long they may hold a lock, and the ttl that they give its
    /// key. Used by [`RedisManager`] only.
    pub fn published_limits(mut self, limits: PublishedLimits) -> Self {
        self.options.published_limits = limits;
        self
    }

    /// For how long further readers of this process join a read hold without a word to the server, counted from when it
    /// was asked last. Defaults to 50 ms; zero asks for each one.
    ///
    /// Longer saves requests; a writer that waits elsewhere waits so much longer, and for the readers that were let in.
    pub fn share_window(mut self, share_window: Duration) -> Self {
        self.options.share_window = share_window;
        self
    }

    /// How many writers of this process may have a write hold one after the other before others get their turn: 1 to 64,
    /// which is the default, and for 5 ms at most. Not used by [`TwoKeyManager`].
    ///
    /// More saves requests under contention; waiters elsewhere wait so much longer.
    pub fn hand_over_budget(mut self, hand_overs: u64) -> Self {
        self.options.hand_over_budget = hand_overs;
        self
    }

    /// For how long a hold stays in this process when its last guard has gone, counted from that. Defaults to zero: it is given back
    /// at once.
    ///
    /// While it stays, the next acquisition of this process in the same mode sends nothing. Whoever waits elsewhere calls for the
    /// lock, and gets it two round trips later than if it had been free. A hold stays for names only that are used again and
    /// again, and that others do not want each time before they are. Holds that stay are renewed.
    ///
    /// What changes with it stands in `docs/GUARANTEES.md`. Above all: a process that dies, stands still or ends without
    /// [`close`](RwLockManager::close) keeps others out for what is left of its lease, also where no guard was left. Choose the
    /// lease by how long others may wait for that, and this by how long it takes until the name is used again; below a lease and a
    /// half it brings little.
    ///
    /// # Errors
    ///
    /// `build` answers [`InvalidOption`](Error::InvalidOption) on [`published_keys`](Builder::published_keys), whose other clients
    /// cannot call; and for [`TwoKeyManager`] and [`QuorumManager`](crate::QuorumManager), where nobody is told who waits.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{MemoryManager, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::builder().idle_hold(Duration::from_secs(30)).build()?;
    /// for _ in 0..1000 {
    ///     let guard = manager.read("cfg").await?; // asks the server twice, not a thousand times
    ///     guard.release().await?;
    /// }
    /// manager.close().await
    /// # }
    /// ```
    pub fn idle_hold(mut self, idle_hold: Duration) -> Self {
        self.options.idle_hold = idle_hold;
        self
    }

    /// How many holds may [stay](Builder::idle_hold) when nobody uses them any more. Defaults to 10,000. With more, those that were
    /// used longest ago are given back first.
    pub fn idle_holds_max(mut self, idle_holds_max: usize) -> Self {
        self.options.idle_holds_max = idle_holds_max;
        self
    }

    /// How long `try_read`, `try_write` and `try_upgrade` wait for the word of a process elsewhere whose hold [stays](Builder::idle_hold):
    /// it gives the hold up, or says that a guard is inside. Defaults to 50 ms, a minute at most. Without such a hold they wait for
    /// nobody.
    ///
    /// A shorter [`wait_timeout`](crate::Acquire::wait_timeout) counts as this at a lock that such a process has, from the answer
    /// that tells so. Whoever waits is not told that a guard is inside: beside one, it ends with
    /// [`WaitTimeout`](crate::Error::WaitTimeout) when this time is over.
    pub fn try_wait(mut self, try_wait: Duration) -> Self {
        self.options.try_wait = try_wait;
        self
    }

    /// Bounds the acquisitions of this manager that are under way at once: those that wait, here or at a server, and those that have
    /// just been sent. Defaults to 100,000; `usize::MAX` is no limit.
    ///
    /// A further acquisition fails at once with [`TooManyWaiters`](Error::TooManyWaiters), and nothing is sent; `try_*` count as well.
    /// Acquisitions that join or take over a hold of this process without a request do not count. A smaller limit turns overload away
    /// earlier and bounds memory; a larger one lets more tasks wait.
    ///
    /// # Errors
    ///
    /// Of [`build`](Builder::build): [`InvalidOption`](Error::InvalidOption) for zero.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Error, MemoryManager, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::builder().max_waiters(1).build()?;
    /// let guard = manager.write("cfg").await?;
    /// let (first, second) = tokio::join!(
    ///     async { tokio::time::timeout(std::time::Duration::from_millis(10), manager.write("cfg")).await.is_err() },
    ///     manager.write("other"),
    /// );
    /// assert!(first, "it waits for the guard");
    /// assert!(matches!(second, Err(Error::TooManyWaiters { waiting: 1, max_waiters: 1, .. })));
    /// guard.release().await
    /// # }
    /// ```
    pub fn max_waiters(mut self, max_waiters: usize) -> Self {
        self.options.max_waiters = max_waiters;
        self
    }

    /// For tests that let a process die without ending one: background work runs on this runtime and ends with it, instead of
    /// as long as the process runs.
    #[doc(hidden)]
    pub fn background_on(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.options.background = Some(runtime);
        self
    }

    /// Builds the manager without I/O but for the files of [`Tls`](crate::Tls) and of
    /// [`password_file`](crate::Topology::password_file); it connects at first use.
    ///
    /// The manager needs a tokio runtime whenever it is used: what is awaited outside of one is
    /// [`InvalidOption`](Error::InvalidOption). It may be used on several, and goes on when one ends: holds are renewed and
    /// dropped guards given back by a thread of the process, named `redis-rwlock`, whatever becomes of the runtimes. Those of a [`MemoryManager`], whose time is
    /// the runtime's, are so as long as one runs on which it was used.
    ///
    /// The manager belongs to the process that builds it. A copy of that process by `fork` gets [`Forked`](Error::Forked) from every
    /// call, finds every guard lost as [`LossReason::Forked`](crate::LossReason::Forked), and sends nothing: workers that are forked
    /// build their managers after the fork. Nothing can detect that a virtual machine was restored from a snapshot: end the process
    /// there before it has a network, and start it again.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption).
    pub fn build(self) -> Result<M> {
        self.options.check()?;
        M::from_place(self.place, self.options)
    }

    /// Builds the manager and makes sure that a server answers which it can work with.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption); [`Unreachable`](Error::Unreachable) if no server answered within
    /// [`unreachable_after`](Builder::unreachable_after); [`Refused`](Error::Refused) if one is too old, of another
    /// topology, or refuses us.
    ///
    /// # Cancel safety
    ///
    /// Safe: it leaves nothing on the server.
    pub async fn connect(self) -> Result<M> {
        let manager = self.build()?;
        manager.engine().ready().await?;
        Ok(manager)
    }
}
