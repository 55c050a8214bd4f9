//! The trait that services program against, and the managers behind it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::acquire::Acquire;
use crate::engine::Engine;
#[allow(unused_imports)] // for the documentation
use crate::error::Error;
use crate::error::Result;
use crate::guard::{ReadGuard, WriteGuard};
use crate::key::Key;
use crate::options::{Options, PublishedLimits};
use crate::reentry::Reentry;
use crate::scheme::memory::{Memory, Store};
use crate::scheme::{BoxFuture, Scheme, hash, two_key};
use crate::topology::Topology;
use crate::transport;
use crate::view::LockView;

mod sealed {
    use std::sync::Arc;

    use super::Place;
    use crate::engine::Engine;
    use crate::error::Result;
    use crate::options::Options;

    pub trait Sealed {
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn engine(&self) -> &Arc<Engine>;
    }

    pub trait FromPlace: Sized {
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn from_place(place: Place, options: Options) -> Result<Self>;
    }
}
use sealed::FromPlace;
pub(crate) use sealed::Sealed;

/// Where a manager's locks are kept.
#[derive(Debug)]
enum Place {
    Servers(Topology),
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
/// async fn reload(locks: Arc<dyn RwLockManager>) -> redis_rwlock::Result<()> {
///     let guard = locks.read("cfg").await?;
///     // … read the configuration: nobody writes it now …
///     guard.release().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// reload(Arc::new(MemoryManager::new())).await
/// # }
/// ```
pub trait RwLockManager: Sealed + fmt::Debug + Send + Sync + 'static {
    /// Takes the lock `name` shared with other readers, waiting for a writer to leave.
    fn read(&self, name: &str) -> Acquire<ReadGuard> {
        Acquire::new(Arc::clone(self.engine()), name)
    }

    /// Takes the lock `name` alone, waiting for all others to leave.
    fn write(&self, name: &str) -> Acquire<WriteGuard> {
        Acquire::new(Arc::clone(self.engine()), name)
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
            let answer = engine.inspect(&key).await?;
            Ok(LockView::new(key.name(), answer, engine.options().published_limits))
        })
    }

    /// Ends every hold of the lock `name`, whoever has it. For operators: the holders are still at work, and learn of it
    /// as [`LossReason::Forced`](crate::LossReason::Forced) at their next renewal. Tokens go on growing.
    ///
    /// It looks who holds the lock and ends those. Who gets it after that look keeps it, also when a request is repeated
    /// because its answer was lost, or arrives late.
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
    /// manager.force_release("cfg").await?;
    /// assert!(manager.try_write("cfg").await?.is_some());
    /// # drop(stuck);
    /// # Ok(())
    /// # }
    /// ```
    fn force_release(&self, name: &str) -> BoxFuture<'static, Result<()>> {
        let engine = Arc::clone(self.engine());
        let key: Result<Arc<Key>> = engine.key(name);
        Box::pin(async move {
            let key = key?;
            let ended = engine.force(&key).await?;
            tracing::warn!(lock = key.name(), holders = ?ended, "released by force");
            Ok(())
        })
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
}

impl<M: RwLockManager + ?Sized> Sealed for Arc<M> {
    #[allow(private_interfaces)]
    fn engine(&self) -> &Arc<Engine> {
        (**self).engine()
    }
}

impl<M: RwLockManager + ?Sized> RwLockManager for Arc<M> {}

macro_rules! manager {
    ($name:ident) => {
        impl Sealed for $name {
            #[allow(private_interfaces)]
            fn engine(&self) -> &Arc<Engine> {
                &self.engine
            }
        }

        impl RwLockManager for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.engine).finish()
            }
        }
    };
}

/// The hash scheme: one key per lock, on one node or a cluster. The one to recommend.
///
/// A client of the published hash scheme on the same key (`<prefix>:{name}:lock`) is excluded by our holds and excludes
/// us, within the limits that `lua/README.md` states.
///
/// # Examples
///
/// ```no_run
/// # use redis_rwlock::{ClusterManager, RwLockManager, Topology};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = ClusterManager::connect(Topology::cluster(["redis://127.0.0.1:7000", "redis://127.0.0.1:7001"])).await?;
/// let guard = manager.write("cfg").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct ClusterManager {
    engine: Arc<Engine>,
}
manager!(ClusterManager);

/// The two-key scheme: a read key and a write key per lock, on one node. Small, and unfair between processes.
///
/// # Examples
///
/// ```no_run
/// # use redis_rwlock::{RwLockManager, SingleNodeManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = SingleNodeManager::connect("redis://127.0.0.1:6379").await?;
/// let guard = manager.read("cfg").await?;
/// guard.release().await?;
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct SingleNodeManager {
    engine: Arc<Engine>,
}
manager!(SingleNodeManager);

/// Locks in this process's memory: for tests of services, with the same behaviour as on a server.
///
/// Time is the runtime's, so a test with a paused clock can let leases run out at once.
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
    engine: Arc<Engine>,
    store: Arc<Store>,
}
manager!(MemoryManager);

impl ClusterManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Begins to put a manager together.
    pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
        Builder::new(Place::Servers(topology.into()))
    }
}

impl SingleNodeManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// As [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Begins to put a manager together.
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

    /// Begins to put a manager on a store of its own together.
    pub fn builder() -> Builder<Self> {
        Builder::new(Place::Memory(Arc::new(Store::new())))
    }

    /// Another manager on the same store and with the same options, as a second process would have.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store), self.engine.options().clone())
    }

    /// Begins to put another manager on the same store together.
    pub fn peer_builder(&self) -> Builder<Self> {
        Builder::new(Place::Memory(Arc::clone(&self.store)))
    }

    fn on(store: Arc<Store>, options: Options) -> Self {
        let scheme = Memory::new(Arc::clone(&store));
        Self { engine: Arc::new(Engine::new(Arc::new(scheme), options)), store }
    }
}

/// What a [`Builder`] builds: one of this crate's managers.
pub trait Build: RwLockManager + FromPlace {}
impl<M: RwLockManager + FromPlace> Build for M {}

impl FromPlace for ClusterManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        let topology = place.servers();
        let transport = transport::open(topology, &options)?;
        let scheme = hash::scheme(transport, options.published_limits);
        let engine = Arc::new(Engine::new(Arc::new(scheme), options));
        Ok(Self { engine })
    }
}

impl FromPlace for SingleNodeManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        let topology = place.servers();
        topology.check_single()?;
        let transport = transport::open(topology, &options)?;
        let scheme: Arc<dyn Scheme> = Arc::new(two_key::scheme(transport));
        let engine = Arc::new(Engine::new(scheme, options));
        Ok(Self { engine })
    }
}

impl FromPlace for MemoryManager {
    #[allow(private_interfaces)]
    fn from_place(place: Place, options: Options) -> Result<Self> {
        match place {
            Place::Memory(store) => Ok(Self::on(store, options)),
            Place::Servers(_) => unreachable!("only its own builders build a memory manager"),
        }
    }
}

impl Place {
    fn servers(self) -> Topology {
        match self {
            Self::Servers(topology) => topology,
            Self::Memory(_) => unreachable!("only its own builders build a memory manager"),
        }
    }
}

/// A manager that is being put together.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redis_rwlock::{ClusterManager, Topology};
///
/// # fn main() -> redis_rwlock::Result<()> {
/// let manager = ClusterManager::builder(Topology::node("redis://127.0.0.1:6379"))
///     .lease(Duration::from_secs(5))
///     .label("billing-1")
///     .build()?; // connects at first use
/// # Ok(())
/// # }
/// ```
#[must_use = "a builder does nothing until it is built"]
pub struct Builder<M: Build> {
    place: Place,
    options: Options,
    manager: PhantomData<fn() -> M>,
}

impl<M: Build> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("place", &self.place).field("options", &self.options).finish()
    }
}

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
    /// Up to the lease it makes a fixed lease, which is never renewed. `Duration::MAX` is no limit.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = max_hold;
        self
    }

    /// How long acquisitions wait for others. Defaults to no limit.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.options.wait_timeout = Some(wait_timeout);
        self
    }

    /// How long to go on without an answer from any server before [`Error::Unreachable`]. Defaults to 5 s.
    ///
    /// Shorter tells callers sooner; longer rides out longer failovers. The last try may take a response timeout more.
    /// `Duration::MAX` never gives up; a [`wait_timeout`](Builder::wait_timeout) still counts.
    pub fn unreachable_after(mut self, unreachable_after: Duration) -> Self {
        self.options.unreachable_after = unreachable_after;
        self
    }

    /// How long one request may take; a later reply is never believed. Defaults to 500 ms.
    ///
    /// Should stay well under half of a cluster's node timeout. Shorter notices a frozen node sooner; longer bears
    /// slower networks. A minute is the most. A hold whose lease is shorter cannot have an unanswered renewal repeated.
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
        self.options.label = label.into();
        self
    }

    /// How long clients of the published hash scheme may hold a lock. Used by [`ClusterManager`] only.
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
    /// which is the default, and for 5 ms at most. Not used by [`SingleNodeManager`].
    ///
    /// More saves requests under contention; waiters elsewhere wait so much longer.
    pub fn hand_over_budget(mut self, turns: u64) -> Self {
        self.options.hand_over_budget = turns;
        self
    }

    /// Builds the manager without I/O; it connects at first use.
    ///
    /// The manager needs a tokio runtime whenever it is used: what is awaited outside of one is
    /// [`InvalidOption`](Error::InvalidOption). It works as long as that runs, and goes on in another one if it is used there.
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
