//! The trait [`RwLockManager`], the managers that implement it, and their [`Builder`].

use std::fmt;
use std::marker::PhantomData;
use std::sync::Arc;
use std::time::Duration;

use crate::base::clock::Clock;
use crate::base::deadlock::Cycle;
use crate::base::durability::Durability;
#[allow(unused_imports)] // only links in the documentation use this import
use crate::base::error::Error;
use crate::base::error::Result;
use crate::base::events;
use crate::base::health::{Health, Stats};
use crate::base::key::{Key, KeyTemplate, LockName};
use crate::base::options::{Options, TimestampClients};
use crate::base::reentry::Reentry;
use crate::base::ticket::Ticket;
use crate::base::topology::Topology;
use crate::engine::Engine;
use crate::engine::handles::Handles;
use crate::face::acquire::Acquire;
#[allow(unused_imports)] // only links in the documentation use `GroupGuard`
use crate::face::group::GroupGuard;
use crate::face::group::{AcquireAll, NamedLock};
use crate::face::guard::{Guard, ReadGuard, WriteGuard};
use crate::face::ticket::adopt;
use crate::net::Router;
use crate::store::memory::{MemoryConnection, MemoryScheme, Store};
use crate::store::view::{HolderView, LockView};
use crate::store::{BoxFuture, hash, two_key};

/// Defines setters of options. Each one stores its value under its own name, in what the method `$options` returns.
macro_rules! setters {
    ([$options:ident] $($(#[$doc:meta])* pub fn $option:ident(mut self, $value:ident: $type:ty);)*) => {
        $(
            $(#[$doc])*
            pub fn $option(mut self, $value: $type) -> Self {
                self.$options().$option = $value.into();
                self
            }
        )*
    };
}
pub(crate) use setters;

#[allow(private_interfaces)] // code outside of the crate cannot call these functions
mod sealed {
    use std::sync::Arc;

    use super::Deployment;
    use crate::base::error::Result;
    use crate::base::options::Options;
    use crate::engine::Engine;

    pub trait Sealed {
        fn engine(&self) -> &Arc<Engine>;
        /// Returns the handle of the engine for the lock whose name has this hash. An engine has several handles, so
        /// that threads that use different locks do not change the same reference counter.
        fn engine_of(&self, _hash: u64) -> &Arc<Engine> {
            self.engine()
        }
    }

    pub trait FromDeployment: Sized {
        fn from_deployment(place: Deployment, options: Options) -> Result<Self>;
    }
}
use sealed::FromDeployment;
pub(crate) use sealed::Sealed;

/// Servers, or memory of this process, that store the locks of a manager.
#[derive(Clone, Debug)]
enum Deployment {
    Servers(Topology),
    /// Independent masters, of which a majority must grant a lock.
    Masters(Masters),
    Memory(Arc<Store>),
}

/// Manager of read-write locks. Each name is one lock. Processes share a lock if their managers use the same servers
/// and the same key prefix.
///
/// The trait is object-safe. A service can take an `Arc<dyn RwLockManager>`, and its tests can pass a
/// [`MemoryManager`].
///
/// # Examples
///
/// ```
/// use std::sync::Arc;
/// use redis_rwlock::{MemoryManager, RwLockManager};
///
/// async fn reload(locks: &dyn RwLockManager) -> redis_rwlock::Result<()> {
///     let guard = locks.read("cfg").await?;
///     // … read the configuration, which no process writes now …
///     guard.release().await
/// }
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let locks: Arc<dyn RwLockManager> = Arc::new(MemoryManager::new());
/// reload(&*locks).await?;
/// let guard = locks.write("cfg").await?; // no other reader or writer
/// assert!(locks.try_read("cfg").await?.is_none());
/// assert!(locks.try_write("cfg").await?.is_none());
/// guard.release().await?;
/// locks.close().await // at the end of the program
/// # }
/// ```
pub trait RwLockManager: Sealed + fmt::Debug + Send + Sync + 'static {
    /// Acquires the lock `name` for reading, together with other readers.
    ///
    /// Returns an [`Acquire`], whose setters change the options of this acquisition. Awaiting the `Acquire` returns a
    /// [`ReadGuard`]; before that, nothing is sent. [Releasing](ReadGuard::release) or dropping the guard frees the
    /// lock.
    ///
    /// A reader waits while a writer holds the lock, in this process or in another. With [`RedisManager`] and
    /// [`MemoryManager`], a reader also waits behind a writer that already waits. So a writer gets the lock even if new
    /// readers come all the time. When the writer releases the lock, all waiting readers acquire it together. Readers
    /// of one process share a hold. For the time of [`join_window`](Builder::join_window), 50 ms by default, a new
    /// reader can join this hold although a writer of another process waits. With [`TwoKeyManager`] and
    /// [`QuorumManager`], acquisitions succeed in no fixed order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. If no server
    /// answers, the acquisition fails after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// A task that has a guard and acquires the same lock again can deadlock. Its second acquisition may wait behind a
    /// writer, and that writer waits for the first guard. [`Acquire::reentrant`] and [`Reentry`] let acquisitions nest.
    ///
    /// # Errors
    ///
    /// Awaiting the acquisition fails with:
    ///
    /// - [`WaitTimeout`](Error::WaitTimeout) if other owners held the lock for the whole `wait_timeout`;
    /// - [`Unreachable`](Error::Unreachable) if no server answered;
    /// - [`Refused`](Error::Refused) if a server refused the request;
    /// - [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if too few replicas or
    ///   masters confirmed the grant;
    /// - [`Closed`](Error::Closed) after [`close`](RwLockManager::close);
    /// - [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption), before anything is sent.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its place in the queue. The server may still execute a request that was already
    /// sent. So the manager cancels that request in the background. A hold or place of that request stays on the server
    /// for one lease at most.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let other = manager.peer(); // stands for another process
    /// let ours = manager.read("cfg").await?;
    /// let theirs = other.read("cfg").await?; // two readers at the same time
    /// assert!(manager.try_write("cfg").await?.is_none());
    /// theirs.release().await?;
    /// ours.release().await
    /// # }
    /// ```
    fn read(&self, name: &str) -> Acquire<ReadGuard> {
        acquire(self, name)
    }

    /// Acquires the lock `name` for writing, which excludes all other readers and writers.
    ///
    /// Returns an [`Acquire`], whose setters change the options of this acquisition. Awaiting the `Acquire` returns a
    /// [`WriteGuard`]; before that, nothing is sent. [Releasing](WriteGuard::release) or dropping the guard frees the
    /// lock.
    ///
    /// A writer waits until all readers and writers have released the lock, in this process and in others. With
    /// [`RedisManager`] and [`MemoryManager`], a waiting writer keeps new readers out. Processes get the lock for their
    /// writers in the order of their requests. A writer that releases the lock can hand its hold off to the next writer
    /// of its process, without a request. A series of such hand-offs ends after [`max_handoffs`](Builder::max_handoffs)
    /// writers, or after 5 ms. With [`TwoKeyManager`] and [`QuorumManager`], acquisitions succeed in no fixed order.
    ///
    /// The wait has no limit unless [`Acquire::wait_timeout`] or [`Builder::wait_timeout`] sets one. If no server
    /// answers, the acquisition fails after [`unreachable_after`](Builder::unreachable_after), 5 s by default.
    ///
    /// If a task has a guard and acquires the same lock for writing, the task waits for its own guard, which is a
    /// deadlock. [`Acquire::reentrant`] and [`Reentry`] let acquisitions nest. [`ReadGuard::try_upgrade`] converts a
    /// read hold into a write hold.
    ///
    /// # Errors
    ///
    /// Awaiting the acquisition fails with:
    ///
    /// - [`WaitTimeout`](Error::WaitTimeout) if other owners held the lock for the whole `wait_timeout`;
    /// - [`Unreachable`](Error::Unreachable) if no server answered;
    /// - [`Refused`](Error::Refused) if a server refused the request;
    /// - [`NotEnoughReplicas`](Error::NotEnoughReplicas) and [`NoQuorum`](Error::NoQuorum) if too few replicas or
    ///   masters confirmed the grant;
    /// - [`Closed`](Error::Closed) after [`close`](RwLockManager::close);
    /// - [`InvalidName`](Error::InvalidName) and [`InvalidOption`](Error::InvalidOption), before anything is sent;
    /// - [`UpgradeConflict`](Error::UpgradeConflict) if acquisitions nest, and the owner of the acquisition already has
    ///   a [`ReadGuard`] of the lock.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives up its place in the queue. The server may still execute a request that was already
    /// sent. So the manager cancels that request in the background. A hold or place of that request stays on the server
    /// for one lease at most.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let other = manager.peer(); // stands for another process
    /// let guard = manager.write("cfg").await?;
    /// assert!(other.try_read("cfg").await?.is_none()); // a writer excludes all others
    /// let token = guard.fencing_token(); // send the token with each write to the resource
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
    /// The errors of [`read`](RwLockManager::read). `Ok(None)` means that the lock is not available now.
    fn try_read(&self, name: &str) -> BoxFuture<'static, Result<Option<ReadGuard>>> {
        Box::pin(self.read(name).try_now())
    }

    /// Acquires the lock `name` for writing if it is available now. Equivalent to `write(name).try_now()`.
    ///
    /// # Errors
    ///
    /// The errors of [`write`](RwLockManager::write). `Ok(None)` means that the lock is not available now.
    fn try_write(&self, name: &str) -> BoxFuture<'static, Result<Option<WriteGuard>>> {
        Box::pin(self.write(name).try_now())
    }

    /// Acquires several locks in one step: all of them, or none. If all are available, this takes one round trip.
    ///
    /// Returns an [`AcquireAll`], whose setters change the options of this acquisition. Awaiting it returns one
    /// [`GroupGuard`] for all locks. The functions [`read`](crate::read) and [`write`](crate::write) name the locks. If
    /// a name comes twice, the guard has the lock in the stronger mode.
    ///
    /// While the acquisition waits for a lock, it holds only locks that come before it in a fixed order. So such calls
    /// cannot deadlock with each other; see [`AcquireAll`].
    ///
    /// # Errors
    ///
    /// Awaiting the acquisition fails with the errors that [`AcquireAll`] lists.
    ///
    /// # Cancel safety
    ///
    /// Dropping the future gives back everything in the background; see [`AcquireAll`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager, read, write};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.all(&[read("a"), write("b")]).await?;
    /// let token = guard.fencing_token("b");
    /// # assert!(token.is_some());
    /// guard.release().await
    /// # }
    /// ```
    fn all(&self, locks: &[NamedLock]) -> AcquireAll {
        AcquireAll::new(Arc::clone(self.engine()), locks)
    }

    /// Returns the holders and the waiters of the lock `name`, as the server has recorded them. Changes nothing.
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

    /// Ends every hold of the lock `name`, in all processes. This call is for operators.
    ///
    /// The call does not stop the work of the holders. They learn of the loss as
    /// [`LossReason::Forced`](crate::LossReason::Forced) at their next renewal. Fencing tokens continue to grow.
    ///
    /// The call first asks the server for the holders of the lock, and then ends only the holds of that answer. So the
    /// call does not end a hold that the server grants after that answer. This is true even if the second request
    /// arrives late, or is repeated after a lost reply.
    ///
    /// Returns the ended holds, as the first answer of the server showed them. The list is empty if the lock was free.
    /// The server reports the age and the remaining time of at most a hundred readers. In the list, these values are
    /// zero for further readers. If a reply was lost, the list may include holds that their own processes released in
    /// the meantime.
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
        let key = engine.key(name);
        Box::pin(async move {
            let key = key?;
            let ended = engine.force(&key).await?;
            log_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// Ends the holds that `view` shows, and does not end later holds. With this call, an operator can look at the
    /// holders with [`inspect`](RwLockManager::inspect) before ending them.
    /// [`force_release`](RwLockManager::force_release) does both in one call. `view` must come from a manager with the
    /// same servers and key prefix.
    ///
    /// A renewal does not make a new hold, so the call also ends a hold that was renewed after `view` was made. All
    /// readers that hold the lock at the same time share one *phase*, and the server can end only the whole phase. So
    /// the call also ends the holds of readers that joined the shown readers later, and returns these holds too. The
    /// returned list does not include holds of `view` that had already ended. If `view` shows a free lock, the call
    /// ends nothing.
    ///
    /// # Errors
    ///
    /// The errors of [`force_release`](RwLockManager::force_release).
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
    /// // … the operator looks at `view.holders`; meanwhile another process acquires the lock …
    /// stuck.release().await?;
    /// let next = manager.peer().write("cfg").await?;
    /// assert!(manager.force_release_shown(&view).await?.is_empty(), "nobody has looked at this hold");
    /// # drop(next);
    /// # Ok(())
    /// # }
    /// ```
    fn force_release_shown(&self, view: &LockView) -> BoxFuture<'static, Result<Vec<HolderView>>> {
        let engine = Arc::clone(self.engine());
        let (key, seen, is_free) = (engine.key(&view.name), view.seen.clone(), view.is_free());
        Box::pin(async move {
            let key = key?;
            // A free view needs no request, which would check the process.
            engine.process.check(key.name())?;
            if is_free {
                return Ok(Vec::new());
            }
            let ended = engine.force_shown(&key, &seen).await?;
            log_forced(&key, &ended);
            Ok(ended)
        })
    }

    /// Returns the sorted names of all locks that the servers know. This call is for operators;
    /// [`inspect`](RwLockManager::inspect) shows the details of one lock.
    ///
    /// The list has only locks whose keys have this manager's [`key_prefix`](Builder::key_prefix), or match its
    /// [`timestamp_keys`](Builder::timestamp_keys). A lock is in the list while a process holds it or waits for it, and
    /// for about a minute after that.
    ///
    /// The call scans all keys of every primary with `SCAN`, five hundred at a time. Between two steps, the server
    /// serves other requests. The scan takes one to four seconds for each million keys, including keys that are not
    /// locks. A lock may be missing in the list if it is created or removed during the scan, or if its hash slot moves
    /// to another server. Keys of slots that have left a server are not in the list. [`Topology::proxy`] has no list.
    ///
    /// The user as which the manager logs in to the server needs the right `+scan`. With this right, the user can see
    /// the names of all keys.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if any primary does not answer, because its locks would be missing in the
    /// list. [`Refused`](Error::Refused) if the user does not have the right, or the servers are behind a proxy.
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

    /// Takes over the hold of a [`Ticket`] of a reader. See [`adopt_write`](RwLockManager::adopt_write).
    ///
    /// A waiting writer does not keep the new guard out, because it is no new reader.
    ///
    /// # Errors
    ///
    /// The errors of [`adopt_write`](RwLockManager::adopt_write).
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for [`adopt_write`](RwLockManager::adopt_write).
    fn adopt_read(&self, ticket: Ticket) -> BoxFuture<'static, Result<ReadGuard>> {
        adopt(self.engine(), ticket, None)
    }

    /// Takes over the hold of a [`Ticket`] of a writer, which [`detach`](WriteGuard::detach) created in this process or
    /// another one. The new guard has the options of this manager, and a greater token than all guards before it. It
    /// does not wait: the lock is already taken for the ticket.
    ///
    /// A ticket works once. The manager needs the same servers and key prefix as the one that created the ticket. If
    /// acquisitions nest, the new guard is an outer one.
    ///
    /// # Errors
    ///
    /// - [`InvalidOption`](Error::InvalidOption), before anything is sent: the ticket is for the other mode, for
    ///   another lock, or from another version of this crate, or the manager has
    ///   [`timestamp_keys`](crate::Builder::timestamp_keys), or is a [`QuorumManager`] or a
    ///   [`RedissonManager`](crate::RedissonManager).
    /// - [`Lost`](Error::Lost): the ticket was used before, its time is over, or an operator ended the hold by force.
    /// - [`Unreachable`](Error::Unreachable) and others: if no copy of the request can have been executed, the ticket is
    ///   as it was. Otherwise it is used up, and the manager releases what the request may have left.
    ///
    /// # Cancel safety
    ///
    /// If the future was polled and is then dropped, the ticket is used up, and the manager releases the hold in the
    /// background.
    ///
    /// # Examples
    ///
    /// [`Ticket`] has an example.
    fn adopt_write(&self, ticket: Ticket) -> BoxFuture<'static, Result<WriteGuard>> {
        adopt(self.engine(), ticket, None)
    }

    /// Returns possible deadlocks: cycles of processes in which each one waits for a lock that the next one holds. This
    /// call is for operators.
    ///
    /// The call looks at all [`locks`](RwLockManager::locks), and at the waits within this process, which no server
    /// knows. If it finds a cycle, it looks again a second later, and returns the cycles whose holds and waits are the
    /// same. So it returns at once if there is no cycle. A cached hold that no guard uses is no part of a cycle. Servers
    /// do not know the waits within other processes.
    ///
    /// Among processes a cycle is only a *possible* deadlock, because a process may have several tasks. For this process,
    /// the call also knows its tasks: it returns the cycles among the tasks that acquired its guards.
    ///
    /// # Errors
    ///
    /// The errors of [`locks`](RwLockManager::locks), and [`InvalidOption`](Error::InvalidOption) from a
    /// [`QuorumManager`], whose masters have no waiters.
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
    /// # let manager = MemoryManager::new();
    /// for cycle in manager.deadlocks().await? {
    ///     eprintln!("{cycle}"); // possible deadlock: "web:1" waits to write "a" for 3.2s, held by "web:2" (…); …
    /// }
    /// # Ok(())
    /// # }
    /// ```
    fn deadlocks(&self) -> BoxFuture<'static, Result<Vec<Cycle>>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.deadlocks().await })
    }

    /// Asks every server of this manager for its health. This call is for health checks and operators.
    ///
    /// For each server, the report has the address and the round-trip time. The report also says whether the clock, the
    /// memory and the memory policy of the server are in order.
    ///
    /// The call never hangs. A server that has not answered within four
    /// [`response_timeout`](Builder::response_timeout)s (2 s by default) is reported as not
    /// [reachable](crate::NodeHealth::is_reachable). In a cluster, the call asks one server for the members, and then
    /// asks all members, including replicas. For that, it opens a connection to each member. So call `health` every few
    /// seconds at most, not for each request of the service.
    ///
    /// In addition to the rights that locks need, the server's user needs the right `+info`. Without this right,
    /// [`noeviction`](crate::NodeHealth::noeviction) is not known, and each call adds an entry to the `ACL LOG` of the
    /// server.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption) outside of a tokio runtime. A server that does not answer causes no
    /// error; the report shows it.
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

    /// Returns the counters of this manager, such as the numbers of holds, guards and waiters; see [`Stats`]. Sends
    /// nothing. The call takes longer if the manager has more holds.
    fn stats(&self) -> Stats {
        self.engine().stats()
    }

    /// Closes the manager. New and waiting acquisitions fail with [`Closed`](Error::Closed). All guards are lost, with
    /// the reason [`LossReason::Closed`](crate::LossReason::Closed). Only *after* that, the manager releases their
    /// holds.
    ///
    /// Returns when the server has confirmed the releases. If a server does not answer, `close` returns when the last
    /// lease is over by the local clock. If the future of an acquisition is neither polled nor dropped, `close` waits
    /// for this acquisition, but only for a few response timeouts. The acquisition is cancelled later, when its future
    /// is polled or dropped.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if no server confirmed the releases. The holds then end with their leases.
    ///
    /// # Cancel safety
    ///
    /// After the first poll of the future the manager is closed, even if the future is then dropped. The manager then
    /// sends the releases in the background.
    fn close(&self) -> BoxFuture<'static, Result<()>> {
        let engine = Arc::clone(self.engine());
        Box::pin(async move { engine.close().await })
    }

    /// Waits until the server has confirmed the release of each dropped guard. If the future of an acquisition was
    /// dropped after it had sent a request, the call also waits until the acquisition is cancelled. Guards and futures
    /// that are dropped during the call count too. The manager stays open. Existing guards keep their holds, waiting
    /// acquisitions continue, and a [cached hold](Builder::cache_for) stays cached.
    ///
    /// Call `flush` or [`close`](Self::close) at the end of a program. The manager sends the release of a dropped guard
    /// in the background, and a program may end before that. Then the lock stays held for the rest of the lease. The
    /// manager also cancels dropped acquisitions in the background. If the program ends before such a cancellation, the
    /// server may grant the lock to an acquisition that no longer exists. Such a grant lasts 3 s.
    ///
    /// The server may execute an unanswered request up to two [response timeouts](Builder::response_timeout) after it
    /// was sent. If the future of an acquisition with such a request was dropped, `flush` waits for that long.
    ///
    /// # Errors
    ///
    /// [`Unreachable`](Error::Unreachable) if no release finishes for a certain time. This time is
    /// [`unreachable_after`](Builder::unreachable_after), or four response timeouts plus
    /// [`max_clock_skew`](Builder::max_clock_skew) if that sum is longer. A release finishes when the server answers
    /// it, or when the lease of its hold ends. After this error, the manager continues to send the releases in the
    /// background. [`InvalidOption`](Error::InvalidOption) outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the manager continues to send the releases in the background.
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
    events::log_force(key.name(), &holders);
}

/// Creates an acquisition. It sends nothing before it is awaited.
fn acquire<G: Guard>(manager: &(impl Sealed + ?Sized), name: &str) -> Acquire<G> {
    let name = LockName::new(name);
    Acquire::new(Arc::clone(manager.engine_of(name.hash())), name)
}

#[allow(private_interfaces)]
impl<M: RwLockManager + ?Sized> Sealed for Arc<M> {
    fn engine(&self) -> &Arc<Engine> {
        (**self).engine()
    }

    fn engine_of(&self, hash: u64) -> &Arc<Engine> {
        (**self).engine_of(hash)
    }
}

impl<M: RwLockManager + ?Sized> RwLockManager for Arc<M> {}

macro_rules! manager {
    ($name:ident) => {
        #[allow(private_interfaces)]
        impl Sealed for $name {
            fn engine(&self) -> &Arc<Engine> {
                self.handles.any()
            }

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

macro_rules! on_servers {
    ($(#[$doc:meta])* $manager:ident) => {
        impl $manager {
            /// Connects with default options.
            ///
            /// # Errors
            ///
            /// The errors of [`Builder::connect`].
            pub async fn connect(topology: impl Into<Topology>) -> Result<Self> {
                Self::builder(topology).connect().await
            }

            /// Returns a [`Builder`] for a manager on these servers.
            $(#[$doc])*
            pub fn builder(topology: impl Into<Topology>) -> Builder<Self> {
                Builder::new(Deployment::Servers(topology.into()))
            }
        }
    };
}

/// Manager of locks on one node, behind Sentinel, or on a cluster. This is the recommended manager. The server stores
/// each lock as one hash under one key. This layout is the *hash scheme*.
///
/// The manager can share its locks with clients of the *timestamp scheme*. This scheme is a read-write lock from a
/// published article, which stores the times of its grants in a hash. The manager and these clients exclude each other
/// if they use the same key (`<prefix>:{name}:lock`), within the limits that `lua/README.md` states. With
/// [`timestamp_keys`](Builder::timestamp_keys), a service that already uses the timestamp scheme keeps its keys.
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
mod redisson;
use quorum::Masters;
pub use quorum::QuorumManager;
pub use redisson::RedissonManager;

/// Manager of locks on one node, or behind Sentinel, with a read key and a write key for each lock. This layout is the
/// *two-key scheme*. After a release, the server does not grant the lock to the next waiter, but notifies this waiter,
/// which must then ask again. If the notified waiter does not ask within 250 ms, the server notifies the waiter after
/// that one.
///
/// Do not use keys that clients of the published two-key scheme use. All readers of the published scheme store the same
/// value. So when one of them releases the lock, it removes all readers, including the readers of this manager. To
/// migrate from such clients, stop them and use new keys.
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

/// Manager of locks in the memory of this process, for tests of services. The locks behave as on a server.
///
/// The manager uses the clock of the tokio runtime, so in a test with a paused clock, leases end without real waiting.
/// [`disconnect`](MemoryManager::disconnect) and [`lose_all`](MemoryManager::lose_all) simulate faults of a server. So
/// a test can check how a service handles [`Unreachable`](Error::Unreachable),
/// [`HoldState::Unconfirmed`](crate::HoldState::Unconfirmed) and [`Lost`](Error::Lost).
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let here = MemoryManager::new();
/// let there = here.peer(); // stands for another process
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
    /// Connection to the store, which this manager shares with its clones.
    wire: Arc<MemoryConnection>,
}
manager!(MemoryManager);

on_servers!(RedisManager);
on_servers!(TwoKeyManager);

impl Default for MemoryManager {
    fn default() -> Self {
        Self::new()
    }
}

impl MemoryManager {
    /// Creates a manager with default options on a new, empty store.
    #[must_use]
    pub fn new() -> Self {
        Self::on(Arc::new(Store::new()), Options::default())
    }

    /// Returns a [`Builder`] for a manager on a new, empty store.
    pub fn builder() -> Builder<Self> {
        Builder::new(Deployment::Memory(Arc::new(Store::new())))
    }

    /// Creates another manager on the same store, with the same options. The new manager acts like the manager of a
    /// second process.
    #[must_use]
    pub fn peer(&self) -> Self {
        Self::on(Arc::clone(&self.store), self.engine().options().clone())
    }

    /// Returns a [`Builder`] for another manager on the same store.
    pub fn peer_builder(&self) -> Builder<Self> {
        Builder::new(Deployment::Memory(Arc::clone(&self.store)))
    }

    /// Disconnects this manager and its clones from the store, as a broken network would. Its
    /// [peers](MemoryManager::peer) stay connected.
    ///
    /// The store executes nothing until [`reconnect`](MemoryManager::reconnect). Acquisitions, releases and `inspect`
    /// fail with [`Unreachable`](Error::Unreachable) after [`unreachable_after`](Builder::unreachable_after). Holds
    /// become [`Unconfirmed`](crate::HoldState::Unconfirmed) at their next renewal, after a third of their lease. They
    /// are lost as [`Expired`](crate::LossReason::Expired) when their local validity ends. The source of each
    /// `Unreachable` error is a [`std::io::Error`]. A second call of `disconnect` has no further effect.
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{Error, HoldState, LossReason, MemoryManager, RwLockManager};
    ///
    /// # fn main() -> redis_rwlock::Result<()> {
    /// # tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().unwrap().block_on(async {
    /// // In a test: #[tokio::test(start_paused = true)], so that the clock jumps to the next timer.
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

    /// Connects this manager and its clones to the store again, after a [`disconnect`](MemoryManager::disconnect).
    /// Waiting acquisitions continue by themselves. The manager renews a hold that is still valid; a lost hold stays
    /// lost.
    pub fn reconnect(&self) {
        self.store.mend(&self.wire);
    }

    /// Deletes all locks of the store, which this manager shares with its peers. The effect is the same as after
    /// `FLUSHALL`, or after a restart of the server without its data.
    ///
    /// Other owners may acquire the locks at once. The former holders learn of the loss as
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

/// Manager that a [`Builder`] can build: one of the managers of this crate.
pub trait Build: RwLockManager + FromDeployment {}
impl<M: RwLockManager + FromDeployment> Build for M {}

/// Returns the router to the servers of a topology.
fn topology_router(topology: &Topology, options: &Options) -> Result<Arc<Router>> {
    Router::new(topology, options, &options.background_runtime(Clock::System)).map(Arc::new)
}

impl FromDeployment for RedisManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let topology = place.servers();
        if topology.is_proxied() {
            options.check_proxied()?;
        }
        let scheme = hash::scheme(topology_router(&topology, &options)?, options.timestamp_clients);
        Ok(Self { handles: Handles::new(Arc::new(scheme), options) })
    }
}

impl FromDeployment for TwoKeyManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let topology = place.servers();
        topology.check_single()?;
        options.check_not_cached(
            "`TwoKeyManager` has no recalls, so its holders do not learn of waiters: use `RedisManager`",
        )?;
        let scheme = two_key::scheme(topology_router(&topology, &options)?);
        Ok(Self { handles: Handles::new(Arc::new(scheme), options) })
    }
}

impl FromDeployment for MemoryManager {
    #[allow(private_interfaces)]
    fn from_deployment(place: Deployment, options: Options) -> Result<Self> {
        let Deployment::Memory(store) = place else { unreachable!("only its own builders build a memory manager") };
        Ok(Self::on(store, options))
    }
}

impl Deployment {
    fn servers(self) -> Topology {
        let Self::Servers(topology) = self else { unreachable!("only their own builders build other managers") };
        topology
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
/// All options, with their defaults, are in this example. A table in `docs/OPERATIONS.md` describes the effects of
/// smaller and larger values.
///
/// ```
/// # use std::time::Duration;
/// # use redis_rwlock::{Credentials, Durability, TimestampClients, QuorumManager, RedisManager, Reentry};
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
///     .label("host:4711") // the default has the name of this host and the id of this process
///     .join_window(Duration::from_millis(50))
///     .max_handoffs(64)
///     .cache_for(Duration::ZERO)
///     .max_cached(10_000)
///     .recall_timeout(Duration::from_millis(50))
///     .max_waiters(100_000)
///     .timestamp_clients(TimestampClients::default())
///     .durability(Durability::Primary); // a `QuorumManager` has no such option
/// let manager = builder.build()?; // `connect` fails unless a server answers
///
/// // Off by default, for a `RedisManager` only: the keys of clients of the timestamp scheme.
/// let adopting = RedisManager::builder("redis://127.0.0.1:6379").timestamp_keys("lock:*").build()?;
///
/// // Off by default, for a `QuorumManager` only: the operator delays restarts, and a file contains the password.
/// let masters = ["redis://10.0.0.1:6379", "redis://10.0.0.2:6379", "redis://10.0.0.3:6379"];
/// # let path = std::env::temp_dir().join(format!("redis-rwlock-options-doc-{}", std::process::id()));
/// # std::fs::write(&path, "secret").expect("written");
/// let quorum = QuorumManager::builder(masters).restarts_are_delayed().password_file(&path).build()?;
/// # std::fs::remove_file(&path).expect("removed");
/// // Or a service returns user and password.
/// let token = async || Ok(Credentials::new("locks", "token"));
/// let with_tokens = QuorumManager::builder(masters).credentials(token).build()?;
/// # drop((manager, adopting, quorum, with_tokens));
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
    /// Sets a template from which the manager builds the key of each lock. With the template, this manager can use the
    /// keys of existing clients of the timestamp scheme (see [`RedisManager`]). So a service can migrate from these
    /// clients process by process. By default there is no template, and the manager builds keys with
    /// [`key_prefix`](Builder::key_prefix). A template replaces that prefix.
    ///
    /// The template is a key with exactly one `*`. The name of the lock replaces the `*`: with `lock:*`, the lock `cfg`
    /// has the key `lock:cfg`. Further examples are `*` (the key is the name), `{shop}:*` and `lock:{*}`. Braces mark a
    /// hash tag, the part of a key from which a cluster computes the hash slot.
    ///
    /// Each lock needs a notification channel of its own, whose name is in the hash slot of the lock's key. An
    /// acquisition fails with [`InvalidName`](Error::InvalidName) if there is no such channel for its name, or if the
    /// channel belongs to another name too. So if the key has no hash tag, the name must not contain `}`. With the
    /// template `*`, a name in braces is invalid, because its channel belongs to another name too. If users of the
    /// service choose the names, use a template that matches only keys of locks.
    ///
    /// Describe the configuration of the existing clients with [`timestamp_clients`](Builder::timestamp_clients). No
    /// [`lease`](Builder::lease) of the manager or of an acquisition may be longer than their
    /// [`key_ttl`](TimestampClients::key_ttl) (10 s). The reason is that each grant of these clients sets the key to
    /// expire after that time. A hold of this manager then expires with the key.
    ///
    /// After some faults, such a client and this manager may hold a lock at the same time; `lua/README.md` lists these
    /// faults. So stop the clients of the timestamp scheme as soon as the migration is complete.
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
    /// // `manager.write("cfg")` and the clients of the timestamp scheme exclude each other on the key `lock:cfg`.
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
            /// Sets how many servers must have received a grant before it counts. Defaults to [`Durability::Primary`].
            ///
            /// At [`Durability::Replicated`], the manager sends the command `WAIT` after every grant, conversion and
            /// renewal, on the same connection. The manager uses a few separate connections for such requests, so that
            /// other requests do not wait behind a `WAIT`. A guard that shares an existing hold needs no `WAIT`,
            /// because the replicas have already acknowledged the hold. The same is true for a hand-off. Set the same
            /// level in all managers of a lock, and ask for all replicas that can be promoted:
            /// [`Replicas::All`](crate::Replicas::All).
            ///
            /// The server's user needs the rights `+wait` and `+info`. [`connect`](Builder::connect) needs `+info` to
            /// count the replicas, and fails if a primary has fewer replicas than this option requires.
            ///
            /// At [`Durability::Server`], the manager sends no `WAIT`, because the service itself stores each write
            /// durably before it answers.
            ///
            /// # Errors
            ///
            /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) for zero
            /// replicas, for `Server` together with `timestamp_keys`, and unless the timeout is at least 1 ms and at most half of the
            /// [`response_timeout`](Builder::response_timeout). Every call that sends a request may fail with [`NotEnoughReplicas`](Error::NotEnoughReplicas).
            ///
            /// # Examples
            ///
            /// ```no_run
            /// use std::time::Duration;
            #[doc = concat!("use redis_rwlock::{Durability, Replicas, RwLockManager, ", stringify!($manager), "};")]
            ///
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> redis_rwlock::Result<()> {
            /// let level = Durability::Replicated { replicas: Replicas::All, timeout: Duration::from_millis(100) };
            #[doc = concat!("let manager = ", stringify!($manager), "::builder(\"redis://127.0.0.1:6379\").durability(level).connect().await?;")]
            /// let guard = manager.write("cfg").await?; // all replicas have received the grant
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
durability!(RedissonManager);

impl<M: Build> Builder<M> {
    fn new(place: Deployment) -> Self {
        Self { deployment: place, options: Options::default(), manager: PhantomData }
    }

    fn options(&mut self) -> &mut Options {
        &mut self.options
    }

    setters! { [options]
    /// Sets how long the server keeps a hold without a renewal. Defaults to 10 s.
    ///
    /// The manager renews a hold each time a third of its lease has passed. A shorter lease frees locks sooner after a
    /// crash. With a longer lease, holds stay valid during longer outages of the server.
    pub fn lease(mut self, lease: Duration);

    /// Sets the longest time that a hold lasts, including all renewals. Defaults to 1 h, so that a forgotten guard does
    /// not keep its lock for ever.
    ///
    /// If `max_hold` is not longer than the lease, the manager never renews the hold. `Duration::MAX` means no limit.
    /// At the limit, the guard is lost at once, and the manager releases the hold 50 ms later; see
    /// [`Acquire::max_hold`]. A shorter limit ends forgotten holds sooner. A longer limit allows longer work.
    pub fn max_hold(mut self, max_hold: Duration);

    /// Sets how long acquisitions wait for other holders. Defaults to no limit.
    ///
    /// With a shorter limit, callers learn earlier that a lock is not available. With a longer limit, an acquisition
    /// succeeds even if other owners hold the lock for longer. At the limit, the acquisition cancels its place in the
    /// queue and then fails with [`WaitTimeout`](Error::WaitTimeout). The cancellation usually takes one round trip,
    /// and at most two [response timeouts](Builder::response_timeout). If another process keeps its hold of the lock
    /// without a guard ([`cache_for`](Builder::cache_for)), an acquisition waits for at least
    /// [`recall_timeout`](Builder::recall_timeout).
    pub fn wait_timeout(mut self, wait_timeout: Duration);

    /// Sets how long a call retries without an answer from any server before it fails with [`Error::Unreachable`].
    /// Defaults to 5 s.
    ///
    /// With a shorter time, a call reports an outage sooner. With a longer time, a call succeeds after a longer
    /// failover. The last retry may end later than this time: by one response timeout, or by up to four if it needs a
    /// new connection. `Duration::MAX` means retries without a limit; a [`wait_timeout`](Builder::wait_timeout) still
    /// applies.
    pub fn unreachable_after(mut self, unreachable_after: Duration);

    /// Sets how long the manager waits for the reply to a request. The manager does not rely on a reply that comes
    /// later. Defaults to 500 ms.
    ///
    /// On a cluster, set less than half of the server's option `cluster-node-timeout`. A shorter time detects a frozen
    /// node sooner. A longer time suits slower networks. The maximum is one minute. Choose leases that are longer than
    /// this time: otherwise the manager cannot repeat an unanswered renewal before the lease is over.
    ///
    /// Opening a new connection may take longer. The name resolution may take four response timeouts, the TCP
    /// connection one, and the TLS handshake two. Each of the first two requests on the connection may take one more.
    /// The same limits apply to a connection to a Sentinel. If a step takes too long, the error names this step.
    pub fn response_timeout(mut self, response_timeout: Duration);

    /// Sets the largest difference between the clocks of servers that may serve the same lock. Defaults to 100 ms.
    ///
    /// The manager subtracts this time from the lease of every hold, when it computes how long it may rely on the hold.
    /// With a smaller value, it relies on a hold for more of the lease. A larger value allows larger differences
    /// between clocks.
    pub fn max_clock_skew(mut self, max_clock_skew: Duration);

    /// Sets which acquisitions of one owner nest: those of a task, those of a named owner, or none. Defaults to
    /// [`Reentry::Off`], none.
    pub fn reentry(mut self, reentry: Reentry);

    /// Sets the prefix of all keys. Defaults to `rwlock`. Managers with different prefixes do not see each other's
    /// locks.
    pub fn key_prefix(mut self, key_prefix: impl Into<String>);
    }

    /// Sets the label with which [`inspect`](RwLockManager::inspect) shows the holds and waiters of this manager.
    /// Defaults to `host:pid`, the name of this host and the id of this process.
    pub fn label(mut self, label: impl Into<String>) -> Self {
        self.options.label = Some(label.into());
        self
    }

    setters! { [options]
    /// Describes the clients of the timestamp scheme (see [`RedisManager`]): how long they may hold a lock, and the ttl
    /// of its key. The values must match the configuration of those clients. [`TimestampClients`] describes the
    /// defaults and the effect of other values. Only [`RedisManager`] uses this option.
    pub fn timestamp_clients(mut self, limits: TimestampClients);

    /// Sets how long new readers of this process can join a read hold of the process without a request. The time counts
    /// from the last request that acquired or extended the hold. Defaults to 50 ms. With zero, the manager sends a
    /// request for each reader.
    ///
    /// A longer time saves requests. But during this time new readers can join although a writer of another process
    /// waits. That writer then waits until these readers have released their guards. With a shorter time, such a writer
    /// gets the lock sooner.
    pub fn join_window(mut self, join_window: Duration);

    /// Sets how many writers of this process may use a write hold one after the other before the process releases the
    /// lock for waiters of other processes. Accepts 1 to 64. Defaults to 64. A series of such hand-offs lasts 5 ms at
    /// most. [`TwoKeyManager`] and [`QuorumManager`] do not use this option.
    ///
    /// A larger number saves requests under contention, but waiters of other processes wait longer. With a smaller
    /// number, those waiters get the lock sooner.
    pub fn max_handoffs(mut self, hand_overs: u64);

    /// Sets how long this process keeps a hold without a guard (*caches* it) after the last guard of the hold was
    /// dropped. Defaults to zero, which means that the process releases the hold at once.
    ///
    /// While the hold is cached, the next acquisition of this process in the same mode sends nothing. A waiter of
    /// another process sends a *recall*, a message that asks this process to release the cached hold. So that waiter
    /// gets the lock two round trips later than a free lock. The manager renews cached holds. It caches only holds of
    /// locks that this process uses again and again. It does not cache the hold of a lock if other processes usually
    /// recall that hold before this process uses it again.
    ///
    /// With this option, some guarantees change; `docs/GUARANTEES.md` lists them. The most important change concerns a
    /// process that dies, hangs or ends without [`close`](RwLockManager::close). Even if this process had no guard
    /// left, its cached holds keep other processes out for the rest of the lease.
    ///
    /// So choose a lease that is not longer than other processes can wait in that case. Choose a `cache_for` that is
    /// longer than the usual time between two uses of the lock. A `cache_for` of less than one and a half leases saves
    /// few requests.
    ///
    /// # Errors
    ///
    /// [`build`](Builder::build) fails with [`InvalidOption`](Error::InvalidOption) if
    /// [`timestamp_keys`](Builder::timestamp_keys) is set too, because clients of the timestamp scheme cannot send
    /// recalls. `build` also fails for [`TwoKeyManager`] and [`QuorumManager`](crate::QuorumManager), because their
    /// waiters cannot send recalls either.
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
    pub fn cache_for(mut self, cache_for: Duration);

    /// Sets how many holds without a guard this manager may [cache](Builder::cache_for). Defaults to 10,000. At the
    /// limit, the manager releases the least recently used cached hold before it caches another hold.
    ///
    /// With a larger number, the cache saves more requests. With a smaller number, the manager renews fewer holds and
    /// needs less memory.
    pub fn max_cached(mut self, max_cached: usize);

    /// Sets how long `try_read`, `try_write` and `try_upgrade` wait for the reply to a recall. They send a recall if
    /// another process may [cache](Builder::cache_for) its hold of the lock. That process releases the hold, or replies
    /// that a guard uses the hold. Defaults to 50 ms. The maximum is one minute. If no other process may cache its
    /// hold, these calls do not wait.
    ///
    /// If another process may cache its hold, a waiting acquisition fails with
    /// [`WaitTimeout`](crate::Error::WaitTimeout) only after this time, even if its
    /// [`wait_timeout`](crate::Acquire::wait_timeout) is shorter. The time counts from the server's answer that reports
    /// such a hold. A waiting acquisition gets no reply if a guard uses the hold, and so it waits for this time in that
    /// case too.
    pub fn recall_timeout(mut self, recall_timeout: Duration);

    /// Sets how many acquisitions of this manager may be in progress at once. Defaults to 100,000. `usize::MAX` means
    /// no limit.
    ///
    /// An acquisition is in progress while it waits in this process or in a server's queue, and while a request of it
    /// has no answer. Calls of `try_*` count as well. An acquisition that gets a share of a hold of this process at
    /// once, without a request, does not count.
    ///
    /// At the limit, a further acquisition fails at once with [`TooManyWaiters`](Error::TooManyWaiters), and sends
    /// nothing. With a smaller limit, the manager rejects overload earlier and needs less memory. With a larger limit,
    /// more tasks can wait.
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
    pub fn max_waiters(mut self, max_waiters: usize);
    }

    /// Runs the background tasks of this manager on `runtime`, instead of the thread `redis-rwlock` of the process.
    /// These tasks end when the runtime ends. Tests use this option to simulate the death of a process.
    #[doc(hidden)]
    pub fn background_on(mut self, runtime: tokio::runtime::Handle) -> Self {
        self.options.background = Some(runtime);
        self
    }

    /// Builds the manager without network I/O. The manager connects at its first use. `build` reads the files of
    /// [`Tls`](crate::Tls) and of [`password_file`](crate::Topology::password_file).
    ///
    /// The futures of the manager must be awaited within a tokio runtime; otherwise they fail with
    /// [`InvalidOption`](Error::InvalidOption). The manager can be used on several runtimes, and continues to work when
    /// one of them ends. A thread named `redis-rwlock` renews holds and releases dropped guards, even after the end of
    /// these runtimes. A [`MemoryManager`] has no such thread. It does this work only while a runtime exists on which
    /// the manager was used.
    ///
    /// The manager belongs to the process that builds it. After a `fork`, the manager does not work in the child
    /// process and sends nothing. There, every call fails with [`Forked`](Error::Forked), and every guard is lost as
    /// [`LossReason::Forked`](crate::LossReason::Forked). So build the manager of a worker process after the fork.
    ///
    /// A program cannot detect that its virtual machine was restored from a snapshot. So after a restore, end the
    /// process before the network is available, and start it again.
    ///
    /// # Errors
    ///
    /// [`InvalidOption`](Error::InvalidOption).
    pub fn build(self) -> Result<M> {
        self.options.check()?;
        M::from_deployment(self.deployment, self.options)
    }

    /// Builds the manager, connects, and checks that the server can run this manager.
    ///
    /// # Errors
    ///
    /// - [`InvalidOption`](Error::InvalidOption);
    /// - [`Unreachable`](Error::Unreachable) if no server answered within
    ///   [`unreachable_after`](Builder::unreachable_after);
    /// - [`Refused`](Error::Refused) if a server is too old, has another topology than the builder, or refuses the
    ///   login or a command of the manager's user.
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
