//! The trait that services program against, and the managers that implement it.

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Clock;
use crate::base::durability::Durability;
#[allow(unused_imports)] // for the documentation
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::events;
use crate::base::health::{Health, Stats};
use crate::base::key::{Key, KeyTemplate, LockName};
use crate::base::options::{Options, TimestampClients};
use crate::base::reentry::Reentry;
use crate::base::topology::Topology;
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::face::acquire::Acquire;
use crate::face::guard::{Guard, ReadGuard, WriteGuard};
use crate::net;
use crate::store::memory::{MemoryConnection, MemoryScheme, Store};
use crate::store::view::{HolderView, LockView};
use crate::store::{BoxFuture, Scheme, hash, two_key};

mod sealed {
    use std::sync::Arc;

    use super::Deployment;
    use crate::base::error::Result;
    use crate::base::options::Options;
    use crate::engine::Engine;

    pub trait Sealed {
        #[allow(private_interfaces)] // callers outside of the crate cannot name or call it
        fn engine(&self) -> &Arc<Engine>;
        /// Returns the engine for the users of the lock whose name has this hash.
        #[allow(private_interfaces)]
        fn engine_of(&self, _hash: u64) -> &Arc<Engine> {
            self.engine()
        }
    }

    pub trait FromDeployment: Sized {
        #[allow(private_interfaces)] // callers outside of the crate cannot name or call it
        fn from_deployment(place: Deployment, options: Options) -> Result<Self>;
    }
}
use sealed::FromDeployment;
pub(crate) use sealed::Sealed;

/// Store of a manager's locks.
#[derive(Clone, Debug)]
enum Deployment {
    Servers(Topology),
    /// Independent masters, which vote.
    Masters(Masters),
    Memory(Arc<Store>),
}

/// Manager of read-write locks: one lock per name. All processes whose managers use the same servers and key prefix
/// share it.
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
    /// Returns an [`Acquire`], which takes options of this acquisition. Awaiting it returns a [`ReadGuard`]; before
    /// that, nothing is sent. [Releasing](ReadGuard::release) or dropping the guard frees the lock.
    ///
    /// A reader waits while a writer holds the lock, in this process or in another. With [`RedisManager`] and
    /// [`MemoryManager`] it also waits behind a writer that waits already. So readers that overlap all the time do not
    /// keep writers out. When the writer leaves, all waiting readers enter together. For
    /// [`join_window`](Builder::join_window), 50 ms, a reader can still join the readers of its own process.
    /// [`TwoKeyManager`] and [`QuorumManager`] promise no order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. Without an answer
    /// from any server it ends after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// A task that has a guard and acquires the same lock again can deadlock with itself, behind a writer that waits
    /// for the first guard. [`Acquire::reentrant`] and [`Reentry`] let acquisitions nest.
    ///
    /// # Errors
    ///
    /// Awaiting the acquisition fails with:
    ///
    /// - [`WaitTimeout`](Error::WaitTimeout) if others held the lock for the whole `wait_timeout`;
    /// - [`Unreachable`](Error::Unreachable) if no server answered;
    /// - [`Refused`](Error::Refused) if a server refused the request;
    /// - [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if a grant did not count;
    /// - [`Closed`](Error::Closed) after [`close`](RwLockManager::close);
    /// - [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption), before anything is sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue. The background cancels a request that the server may still
    /// execute. Whatever the request left on the server stays there for one lease at most.
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
    /// Returns an [`Acquire`], which takes options of this acquisition. Awaiting it returns a [`WriteGuard`]; before
    /// that, nothing is sent. [Releasing](WriteGuard::release) or dropping the guard frees the lock.
    ///
    /// A writer waits until all readers and writers have left, in this process and in others. With [`RedisManager`] and
    /// [`MemoryManager`] a waiting writer stops new readers, and writers are served in the order in which their
    /// processes came. A writer that leaves can hand the lock to the next writer of its process. It does so
    /// [`max_handoffs`](Builder::max_handoffs) times and for 5 ms at most. [`TwoKeyManager`] and
    /// [`QuorumManager`] promise no order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. Without an answer
    /// from any server it ends after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// A task that has a guard and acquires the same lock for writing deadlocks with itself. [`Acquire::reentrant`] and
    /// [`Reentry`] let acquisitions nest, and [`ReadGuard::try_upgrade`] makes a reader a writer.
    ///
    /// # Errors
    ///
    /// Awaiting the acquisition fails with:
    ///
    /// - [`WaitTimeout`](Error::WaitTimeout) if others held the lock for the whole `wait_timeout`;
    /// - [`Unreachable`](Error::Unreachable) if no server answered;
    /// - [`Refused`](Error::Refused) if a server refused the request;
    /// - [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if a grant did not count;
    /// - [`Closed`](Error::Closed) after [`close`](RwLockManager::close);
    /// - [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption), before anything is sent;
    /// - [`UpgradeConflict`](Error::UpgradeConflict) for a nested write in a read.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future loses the place in the queue. The background cancels a request that the server may still
    /// execute. Whatever the request left on the server stays there for one lease at most.
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

    /// Acquires the lock `name` for reading if it is available now. Equivalent to `read(name).try_now()`.
    ///
    /// # Errors
    ///
    /// The errors of [`read`](RwLockManager::read). If others hold the lock, the answer is `Ok(None)`, which is no
    /// error.
    fn try_read(&self, name: &str) -> BoxFuture<'static, Result<Option<ReadGuard>>> {
        Box::pin(self.read(name).try_now())
    }

    /// Acquires the lock `name` for writing if it is available now. Equivalent to `write(name).try_now()`.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](RwLockManager::write). If others hold the lock, the answer is `Ok(None)`, which is no
    /// error.
    fn try_write(&self, name: &str) -> BoxFuture<'static, Result<Option<WriteGuard>>> {
        Box::pin(self.write(name).try_now())
    }

    /// Shows which processes hold the lock `name`, as the server sees it. Changes nothing.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable), [`Refused`](Error::Refused), [`InvalidName`](Error::InvalidName).
    ///
    /// # Cancel safety
    ///
    /// Safe: a dropped future leaves nothing on the server.
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

    /// Ends every hold of the lock `name`, in all processes. For operators.
    ///
    /// The holders are still at work. They learn of the loss as [`LossReason::Forced`](crate::LossReason::Forced) at
    /// their next renewal. Fencing tokens continue to grow.
    ///
    /// The call first asks the server for the holders of the lock, and then ends those holds only. A process that is
    /// granted the lock after that question keeps it, also when a request is repeated after a lost answer, or arrives
    /// late.
    ///
    /// Returns the holds that it ended, as the server showed them before; nothing if the lock was free. The server
    /// shows at most a hundred readers with their age and remaining time; those values are zero for further readers. If
    /// an answer was lost on the way, the list includes holders that released by themselves at that moment.
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
            log_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// Ends the holds that `view` shows, and none that came later. For operators who look at the holders before they
    /// decide; [`force_release`](RwLockManager::force_release) does both at once. `view` is from a manager with the
    /// same servers and key prefix.
    ///
    /// A hold counts as shown for as long as it lasts, renewed or not. Readers share one phase, which ends as a whole.
    /// So readers that joined the shown readers later end with them, and the returned list has them too. The list does
    /// not have holds of `view` that ended by themselves. On a free lock nothing ends.
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
            log_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// Lists the names of all locks that the servers know, in order, each once. For operators:
    /// [`inspect`](RwLockManager::inspect) tells more of one lock.
    ///
    /// Known are the locks of this manager's [`key_prefix`](Builder::key_prefix), or of its
    /// [`timestamp_keys`](Builder::timestamp_keys). A lock is in the list while a process holds it or waits for it, and
    /// for about a minute after that.
    ///
    /// The call scans all keys of every primary with `SCAN`, five hundred at a time; between these steps the server
    /// works for others. With many other keys the scan takes about a second for each million. A lock that comes or goes
    /// during the scan, or whose slot moves, may be missing.
    ///
    /// The user needs the right `+scan`, which shows the user the names of all keys.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable), also if one of the primaries does not answer: the list never has gaps.
    /// [`Refused`](Error::Refused) without the right.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
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

    /// Asks every server of this manager for its health. For health checks and operators.
    ///
    /// The report names each server, its round-trip time, and whether its clock, its memory and its memory policy are
    /// in order.
    ///
    /// Never hangs: a server that has not answered within four [`response_timeout`](Builder::response_timeout)s (2 s by
    /// default) is not [reachable](crate::NodeHealth::is_reachable). In a cluster, one server names the members. Then
    /// all members, replicas too, are asked for their health, which costs a connection each. Ask every few seconds, not
    /// for each request.
    ///
    /// The right `+info` is the only one beyond those that locks need. Without it
    /// [`noeviction`](crate::NodeHealth::noeviction) is not known, and each question leaves a line in the server's
    /// `ACL LOG`.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) outside of a tokio runtime. Servers that do not answer are no error: the
    /// report says so.
    ///
    /// # Cancel safety
    ///
    /// Safe: the call changes nothing.
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

    /// Counts what this manager does at the moment; see [`Stats`]. Sends nothing, and visits each hold once.
    fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Closes the manager. New and waiting acquisitions fail with [`Closed`](Error::Closed), and guards are lost with
    /// [`LossReason::Closed`](crate::LossReason::Closed) *before* their holds are released.
    ///
    /// Returns when the server has confirmed the releases, at the latest when the last lease is over by the local
    /// clock. If the future of an acquisition is neither polled nor dropped, `close` waits for it for one response
    /// timeout. Such an acquisition cancels itself later.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if no server confirmed the releases: the holds then end with their leases.
    ///
    /// # Cancel safety
    ///
    /// A future that was polled once and then dropped leaves the manager closed. The background sends the releases.
    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.close().await })
    }

    /// Waits until everything that was dropped is released: guards, and acquisitions whose futures were dropped after
    /// their request was sent. The manager stays open: guards that exist stay held, and waiting acquisitions continue.
    /// A [cached hold](Builder::cache_for) stays cached. The call also waits for what is dropped during the call.
    ///
    /// The background sends the release of a dropped guard. A program that ends right after the drop may end before
    /// that. Then the lock stays held for the rest of its lease. A place in the queue that stays behind may be granted,
    /// for a claim of 3 s. So call this, or [`close`](Self::close), at the end of a program.
    ///
    /// The server may execute a request whose answer never came for two [response timeouts](Builder::response_timeout).
    /// If the future of such a request was dropped, this call waits for that long.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if no release finished, by an answer or with its lease, for
    /// [`unreachable_after`](Builder::unreachable_after). If four response timeouts and the clock skew are longer, the
    /// limit is those. The background continues to send the releases. [`InvalidOption`](Error::InvalidOption) outside
    /// of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the background continues to send the releases.
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

fn log_forced(key: &Key, ended: &[HolderView]) {
    let holders: Vec<&str> = ended.iter().map(|holder| &*holder.label).collect();
    events::forced(key.name(), &holders);
}

/// Creates an acquisition; nothing is sent before it is awaited.
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

/// Manager of the hash scheme: one key per lock, on one node or a cluster. The recommended manager.
///
/// Its holds exclude the clients of the timestamp scheme on the same key (`<prefix>:{name}:lock`), and these exclude
/// its holds, within the limits that `lua/README.md` states. With [`timestamp_keys`](Builder::timestamp_keys) a service
/// that runs that scheme keeps its keys.
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

/// Manager of the two-key scheme: a read key and a write key per lock, on one node. The server hands no lock over. It
/// notifies the next waiter, which asks again; if the waiter does not ask within a quarter of a second, the server goes
/// on to the one after it.
///
/// The manager cannot share keys with clients of the article's two-key scheme: all their readers write one value, so
/// any reader that leaves removes all readers, ours included. Migrate to this manager with new keys, and with the old
/// clients stopped.
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

/// Manager of locks in this process's memory: for tests of services, with the same behaviour as on a server.
///
/// Time is the runtime's, so a test with a paused clock can let leases run out at once.
/// [`disconnect`](MemoryManager::disconnect) and [`lose_all`](MemoryManager::lose_all) cause faults. With them a test
/// sees what a service does with [`Unreachable`](Error::Unreachable),
/// [`HoldState::Unconfirmed`](crate::HoldState::Unconfirmed) and [`Lost`](Error::Lost).
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
    /// Connection of this manager and its clones to the store.
    wire: Arc<MemoryConnection>,
}
manager!(MemoryManager);

impl RedisManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Returns a [`Builder`] for a manager of these servers.
    pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
        Builder::new(Deployment::Servers(topology.into()))
    }
}

impl TwoKeyManager {
    /// Connects with default options.
    ///
    /// # Errors
    ///
    /// The errors of [`Builder::connect`].
    pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
        Self::builder(topology).connect().await
    }

    /// Returns a [`Builder`] for a manager of these servers.
    pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
        Builder::new(Deployment::Servers(topology.into()))
    }
}

impl Default for MemoryManager {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryManager {
    /// Creates a manager on a store of its own, with default options.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::new(Store::new()), Options::default())
    }

    /// Returns a [`Builder`] for a manager on a store of its own.
    pub fn builder() -> Builder<Self> {
        Builder::new(Deployment::Memory(Arc::new(Store::new())))
    }

    /// Creates another manager on the same store and with the same options, as a second process would have.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store), self.engine().options().clone())
    }

    /// Returns a [`Builder`] for another manager on the same store.
    pub fn peer_builder(&self) -> Builder<Self> {
        Builder::new(Deployment::Memory(Arc::clone(&self.store)))
    }

    /// Disconnects this manager and its clones from the store, as a broken network would. Its peers stay connected.
    ///
    /// The store executes nothing until [`reconnect`](MemoryManager::reconnect). Acquisitions, releases and `inspect`
    /// end with [`Unreachable`](Error::Unreachable) after [`unreachable_after`](Builder::unreachable_after). Holds
    /// become [`Unconfirmed`](crate::HoldState::Unconfirmed) at their next renewal, after a third of their lease. They
    /// are lost as [`Expired`](crate::LossReason::Expired) at their local deadline. The source of the errors is an
    /// [`std::io::Error`]. A second call has no further effect.
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

    /// Ends a [`disconnect`](MemoryManager::disconnect). Waiting acquisitions continue by themselves. A hold whose
    /// local deadline has not passed is renewed; a lost hold stays lost.
    pub fn reconnect(&self) {
        self.store.mend(&self.wire);
    }

    /// Deletes all locks of the store, of this manager and its peers, like a server that restarts empty, or `FLUSHALL`.
    ///
    /// Others may acquire the locks at once. The holders learn of the loss as
    /// [`LossReason::Gone`](crate::LossReason::Gone) at their next renewal or at their release. Fencing tokens continue
    /// to grow.
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
        let scheme = MemoryScheme::new(Arc::clone(&store));
        let wire = Arc::clone(scheme.wire());
        Self { handles: Handles::new(Arc::new(scheme), options), store, wire }
    }
}

/// Managers of this crate, which a [`Builder`] builds.
pub trait Build: RwLockManager + FromDeployment {}
impl<M: RwLockManager + FromDeployment> Build for M {}

impl FromDeployment for RedisManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let home = options.background_runtime(Clock::System);
        let transport = net::open(&place.servers(), &options, &home)?;
        let scheme = hash::scheme(transport, options.timestamp_clients);
        Ok(Self { handles: Handles::new(Arc::new(scheme), options) })
    }
}

impl FromDeployment for TwoKeyManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let topology = place.servers();
        topology.check_single()?;
        options.check_not_cached(
            "the two-key scheme has no queue, so nobody would be told who waits: use `RedisManager`",
        )?;
        let home = options.background_runtime(Clock::System);
        let transport = net::open(&topology, &options, &home)?;
        let scheme: Arc<dyn Scheme> = Arc::new(two_key::scheme(transport));
        Ok(Self { handles: Handles::new(scheme, options) })
    }
}

impl FromDeployment for MemoryManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        match place {
            Deployment::Memory(store) => Ok(Self::on(store, options)),
            Deployment::Servers(_) | Deployment::Masters(_) => {
                unreachable!("only its own builders build a memory manager")
            }
        }
    }
}

impl Deployment {
    fn servers(self) -> Topology {
        match self {
            Self::Servers(topology) => topology,
            Self::Memory(_) | Self::Masters(_) => unreachable!("only their own builders build other managers"),
        }
    }
}

/// Options and servers of a manager before it is built.
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
/// # use redis_rwlock::{Durability, TimestampClients, QuorumManager, RedisManager, Reentry};
/// # fn main() -> redis_rwlock::Result<()> {
/// let builder = RedisManager::builder("redis://127.0.0.1:6379")
///     .lease(Duration::from_secs(10))
///     .max_hold(Duration::from_secs(3600))
///     .wait_timeout(Duration::MAX) // no limit
///     .unreachable_after(Duration::from_secs(5))
///     .response_timeout(Duration::from_millis(500))
///     .max_clock_skew(Duration::from_millis(100))
///     .reentry(Reentry::Off)
///     .key_prefix("rwlock")
///     .label("host:4711") // the default has this host and process
///     .join_window(Duration::from_millis(50))
///     .max_handoffs(64)
///     .cache_for(Duration::ZERO)
///     .max_cached(10_000)
///     .recall_timeout(Duration::from_millis(50))
///     .max_waiters(100_000)
///     .timestamp_clients(TimestampClients::default())
///     .durability(Durability::Primary); // not of a `QuorumManager`
/// let manager = builder.build()?; // `connect` fails unless a server answers
///
/// // Off unless it is called: the keys that clients of the published hash scheme use. Of a `RedisManager`.
/// let adopting = RedisManager::builder("redis://127.0.0.1:6379").timestamp_keys("lock:*").build()?;
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
    deployment: Deployment,
    options: Options,
    manager: PhantomData<fn() -> M>,
}

impl<M: Build> Clone for Builder<M> {
    fn clone(&self) -> Self {
        Self { deployment: self.deployment.clone(), options: self.options.clone(), manager: PhantomData }
    }
}

impl<M: Build> fmt::Debug for Builder<M> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Builder").field("place", &self.deployment).field("options", &self.options).finish()
    }
}

impl Builder<RedisManager> {
    /// Uses keys that clients of the timestamp scheme use already. So a service can change over to this crate process
    /// by process, without renaming its keys. No default: without this option, keys are made with
    /// [`key_prefix`](Builder::key_prefix), which this option replaces.
    ///
    /// The template is a key with exactly one `*` in the place of the name: `lock:*` for `lock:cfg`, `*` if the key is
    /// the name, `{shop}:*`, `lock:{*}`. (Patterns of `KEYS` and of ACL rules use `*` in the same way. To the server,
    /// braces are a hash tag.) The name replaces the `*` unchanged.
    ///
    /// A name is [`InvalidName`](Error::InvalidName) if it cannot have a channel in the slot of its key, or would share
    /// a channel with another name. So if the key has no hash tag, a name may have no `}`. With the template `*`, a
    /// name in braces has the channel of another name. If names come from outside, choose a template that matches
    /// nothing but locks.
    ///
    /// [`timestamp_clients`](Builder::timestamp_clients) says how the clients of the timestamp scheme are configured. No
    /// [`lease`](Builder::lease) may be longer than their [`key_ttl`](TimestampClients::key_ttl) (10 s), in the manager
    /// and per acquisition. Each of their grants sets the key to expire after that time, and our hold with it.
    ///
    /// `lua/README.md` lists the faults against which such clients cannot be protected. Run no more of them than the
    /// migration needs.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{RedisManager, Error, TimestampClients, RwLockManager, Topology};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let published = TimestampClients::new(Duration::from_secs(1), Duration::from_secs(3)).key_ttl(Duration::from_secs(8));
    /// let builder = || RedisManager::builder(Topology::node("redis://127.0.0.1:6379")).timestamp_clients(published);
    ///
    /// let manager = builder().timestamp_keys("lock:*").lease(Duration::from_secs(8)).build()?;
    /// // manager.write("cfg").await is excluded by the published clients on the key `lock:cfg`, and excludes them.
    /// let error = manager.write("}").await.expect_err("no channel is in the slot of the key `lock:}`");
    /// assert!(matches!(error, Error::InvalidName { .. }));
    ///
    /// let error = builder().timestamp_keys("lock:*").lease(Duration::from_secs(27)).build().expect_err("beyond their ttl");
    /// assert!(matches!(error, Error::InvalidOption { option: "lease", .. }));
    /// # Ok(())
    /// # }
    /// ```
    pub fn timestamp_keys(mut self, template: impl Into<String>) -> Self {
        self.options.timestamp_keys = Some(KeyTemplate::new(template.into()));
        self
    }
}

macro_rules! durability {
    ($manager:ident) => {
        impl Builder<$manager> {
            /// Sets what a grant must survive before it counts. Defaults to [`Durability::Primary`].
            ///
            /// At [`Durability::Replicated`] every grant, claim, conversion and renewal is followed by a `WAIT` on its
            /// connection. A few connections serve only such requests, so that other requests do not wait behind a
            /// `WAIT`. Local sharing and hand-off cost nothing more, since the replicas acknowledged the hold before.
            /// Set the same level in all managers of a lock, and require all replicas that can be promoted.
            ///
            /// The user needs the right `+wait`, and `+info` for [`connect`](Builder::connect), which refuses a primary
            /// with fewer replicas than this option requires.
            ///
            /// # Errors
            ///
            /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) unless the timeout is at
            /// least 1 ms and at most half of the [`response_timeout`](Builder::response_timeout). Every call that asks
            /// a server may fail with [`NotEnoughReplicas`](Error::NotEnoughReplicas).
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
    fn new(place: Deployment) -> Self {
        Self { deployment: place, options: Options::default(), manager: PhantomData }
    }

    /// Sets how long the server keeps a hold without a renewal. Defaults to 10 s.
    ///
    /// The manager renews a hold after a third of its lease. A shorter lease frees locks sooner after a crash; a longer
    /// lease survives longer outages.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.options.lease = lease;
        self
    }

    /// Sets the longest time that a hold lasts, renewed or not. Defaults to 1 h, so that a forgotten guard does not
    /// lock for ever.
    ///
    /// A `max_hold` that is no longer than the lease makes a fixed lease, which is never renewed. `Duration::MAX` is no
    /// limit. Guards are lost 50 ms before the server is asked to release the hold ([`Acquire::max_hold`]). A shorter
    /// limit ends forgotten holds sooner; a longer limit leaves time for longer work.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.options.max_hold = max_hold;
        self
    }

    /// Sets how long acquisitions wait for other holders. Defaults to no limit.
    ///
    /// A shorter limit gives up earlier under contention; a longer limit survives longer holds of others.
    /// [`WaitTimeout`](Error::WaitTimeout) comes after the place in the queue is cancelled: usually one round trip
    /// after the limit, at most two [response timeouts](Builder::response_timeout). For a hold that another process
    /// [caches](Builder::cache_for), acquisitions wait for [`recall_timeout`](Builder::recall_timeout) at least.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.options.wait_timeout = Some(wait_timeout);
        self
    }

    /// Sets how long to retry without an answer from any server before [`Error::Unreachable`]. Defaults to 5 s.
    ///
    /// A shorter time reports an outage sooner; a longer time survives longer failovers. The last try may take a
    /// response timeout more, and up to four if it needs a new connection. `Duration::MAX` never gives up; a
    /// [`wait_timeout`](Builder::wait_timeout) still counts.
    pub fn unreachable_after(mut self, unreachable_after: Duration) -> Self {
        self.options.unreachable_after = unreachable_after;
        self
    }

    /// Sets how long one request may take; the manager never trusts a later reply. Defaults to 500 ms.
    ///
    /// The value should be well under half of a cluster's node timeout. A shorter time detects a frozen node sooner; a
    /// longer time suits slower networks. The maximum is one minute. A hold whose lease is shorter than this cannot
    /// repeat an unanswered renewal.
    ///
    /// A new connection may take longer: four response timeouts for the name resolution, one for TCP, two for the TLS
    /// handshake. Each of the two answers of the greeting may take one more. Each step to a Sentinel has the same
    /// limits. An error names the step that took longer.
    pub fn response_timeout(mut self, response_timeout: Duration) -> Self {
        self.options.response_timeout = response_timeout;
        self
    }

    /// Sets how far the clocks of servers that may serve the same lock can be apart. Defaults to 100 ms.
    ///
    /// The manager subtracts it from every local validity. A smaller value leaves more of a lease; a larger value
    /// allows worse clocks.
    pub fn max_clock_skew(mut self, max_clock_skew: Duration) -> Self {
        self.options.max_clock_skew = max_clock_skew;
        self
    }

    /// Sets which acquisitions of one owner nest. Defaults to [`Reentry::Off`].
    pub fn reentry(mut self, reentry: Reentry) -> Self {
        self.options.reentry = reentry;
        self
    }

    /// Sets the prefix of all keys. Defaults to `rwlock`. Managers with different prefixes do not see each other's
    /// locks.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>) -> Self {
        self.options.key_prefix = key_prefix.into();
        self
    }

    /// Sets the label of this manager in [`inspect`](RwLockManager::inspect). Defaults to `host:pid`.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    /// Sets the limits with which clients of the timestamp scheme run: how long they may hold a lock, and the ttl of
    /// its key. The limits must match the configuration of those clients; [`TimestampClients`] has the defaults and the
    /// trade-off. Only [`RedisManager`] uses them.
    pub fn timestamp_clients(mut self, limits: TimestampClients) -> Self {
        self.options.timestamp_clients = limits;
        self
    }

    /// Sets how long further readers of this process join a read hold without a request, counted from the last request
    /// for it. Defaults to 50 ms; zero sends a request for each reader.
    ///
    /// A longer time saves requests. A writer that waits in another process waits so much longer, and also for the
    /// readers that joined. A shorter time lets such a writer in sooner.
    pub fn join_window(mut self, join_window: Duration) -> Self {
        self.options.join_window = join_window;
        self
    }

    /// Sets how many writers of this process may have a write hold one after the other before waiters elsewhere are
    /// served. Accepts 1 to 64; the default is 64. A series of hand-offs lasts 5 ms at most. [`TwoKeyManager`] does not
    /// use it.
    ///
    /// A larger number saves requests under contention, and lets waiters elsewhere wait longer; a smaller number is
    /// fairer to them.
    pub fn max_handoffs(mut self, hand_overs: u64) -> Self {
        self.options.max_handoffs = hand_overs;
        self
    }

    /// Sets how long this process caches a hold after its last guard was dropped. Defaults to zero: the process
    /// releases the hold at once.
    ///
    /// While the hold is cached, the next acquisition of this process in the same mode sends nothing. A waiter
    /// elsewhere recalls the lock, and gets it two round trips later than a free lock. The manager caches
    /// only holds of names that it uses again and again. It does not cache a name that others want before each new
    /// use. It renews cached holds.
    ///
    /// `docs/GUARANTEES.md` says which guarantees change. The main one: a process that dies, stops or ends without
    /// [`close`](RwLockManager::close) keeps others out for the rest of its lease, even if it had no guard left.
    ///
    /// Choose the lease by how long others may wait in that case. Choose this time by how soon the name is used again;
    /// below one and a half leases it brings little.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) on
    /// [`timestamp_keys`](Builder::timestamp_keys), whose other clients cannot recall. It also fails for
    /// [`TwoKeyManager`] and [`QuorumManager`](crate::QuorumManager), in which holders do not learn of waiters.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// use redis_rwlock::{MemoryManager, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::builder().cache_for(Duration::from_secs(30)).build()?;
    /// for _ in 0..1000 {
    ///     let guard = manager.read("cfg").await?; // asks the server twice, not a thousand times
    ///     guard.release().await?;
    /// }
    /// manager.close().await
    /// # }
    /// ```
    pub fn cache_for(mut self, cache_for: Duration) -> Self {
        self.options.cache_for = cache_for;
        self
    }

    /// Sets how many unused holds this manager may [cache](Builder::cache_for). Defaults to 10,000. Beyond that, the
    /// least recently used holds are released first.
    ///
    /// A larger number saves more requests; a smaller number renews fewer holds and needs less memory.
    pub fn max_cached(mut self, max_cached: usize) -> Self {
        self.options.max_cached = max_cached;
        self
    }

    /// Sets how long `try_read`, `try_write` and `try_upgrade` wait for the recall of a hold that another process
    /// [caches](Builder::cache_for). The other process gives the hold up, or replies that a guard uses it. Defaults to
    /// 50 ms; the maximum is one minute. If there is no such hold, they do not wait.
    ///
    /// A shorter [`wait_timeout`](crate::Acquire::wait_timeout) counts as this time on a lock that such a process
    /// holds, from the answer that says so. Waiting acquisitions do not learn that a guard uses the hold. Beside a
    /// guard, they end with [`WaitTimeout`](crate::Error::WaitTimeout) when this time is over.
    pub fn recall_timeout(mut self, recall_timeout: Duration) -> Self {
        self.options.recall_timeout = recall_timeout;
        self
    }

    /// Limits how many acquisitions of this manager may be in progress at once. Defaults to 100,000; `usize::MAX` is no
    /// limit.
    ///
    /// In progress are the acquisitions that wait, in this process or at a server, and those whose request was just
    /// sent. Calls of `try_*` count as well. Acquisitions that join or take over a hold of this process without a
    /// request do not count.
    ///
    /// A further acquisition fails at once with [`TooManyWaiters`](Error::TooManyWaiters), and nothing is sent. A
    /// smaller limit rejects overload earlier and bounds memory; a larger limit lets more tasks wait.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) for zero.
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

    /// Runs the background of this manager on this runtime, instead of the process's own thread. The background ends
    /// with the runtime. For tests that let a process die without ending one.
    #[doc(hidden)]
    pub fn background_on(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.options.background = Some(runtime);
        self
    }

    /// Builds the manager without network I/O; it connects at first use. It reads only the files of [`Tls`](crate::Tls)
    /// and of [`password_file`](crate::Topology::password_file).
    ///
    /// The manager needs a tokio runtime in every use; a call awaited outside of one fails with
    /// [`InvalidOption`](Error::InvalidOption). It works on several runtimes, and continues when one of them ends. A
    /// thread of the process, named `redis-rwlock`, renews holds and releases dropped guards, also after the end of
    /// these runtimes. A [`MemoryManager`] uses the time of the runtime, so its background works as long as one runtime
    /// runs on which it was used.
    ///
    /// The manager belongs to the process that builds it. In a copy of that process by `fork`, every call fails with
    /// [`Forked`](Error::Forked), and every guard is lost as [`LossReason::Forked`](crate::LossReason::Forked). The
    /// copy sends nothing. So a worker builds its manager after the fork.
    ///
    /// A program cannot detect that its virtual machine was restored from a snapshot. In a restored machine, end the
    /// process before the network comes up, and start it again.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption).
    pub fn build(self) -> Result<M> {
        self.options.check()?;
        M::from_deployment(self.deployment, self.options)
    }

    /// Builds the manager and checks that a server answers with which it can work.
    ///
    /// # Errors
    ///
    /// - [`InvalidOption`](Error::InvalidOption);
    /// - [`Unreachable`](Error::Unreachable) if no server answered within
    ///   [`unreachable_after`](Builder::unreachable_after);
    /// - [`Refused`](Error::Refused) if a server is too old, has another topology, or refuses this manager.
    ///
    /// # Cancel safety
    ///
    /// Safe: a dropped future leaves nothing on the server.
    pub async fn connect(self) -> Result<M> {
        let manager = self.build()?;
        manager.engine().ready().await?;
        Ok(manager)
    }
}
