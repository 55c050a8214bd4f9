//! Guards of a lock, and watches that report the end of a hold.

use std::fmt;
use std::time::Duration;

use crate::base::error::{LossReason, Result};
use crate::base::lease::FencingToken;
use crate::base::ticket::Ticket;
use crate::engine::Held;
use crate::engine::convert::{self, NotConverted};
use crate::engine::tickets;
use crate::face::ticket::DetachError;
use crate::lock::hold::{Ended, HoldState};
use crate::lock::watch::Watch;
use crate::store::Mode;

#[allow(private_interfaces)] // code outside of the crate cannot call these functions
mod sealed {
    use crate::engine::Held;
    use crate::store::Mode;

    pub trait Sealed {
        /// Mode of this guard's hold.
        const MODE: Mode;
        fn new(held: Held) -> Self;
        fn as_held(&self) -> &Held;
        fn into_held(self) -> Held;
    }
}
pub(crate) use sealed::Sealed;

/// Guard of a lock: [`ReadGuard`] or [`WriteGuard`].
pub trait Guard: Sealed + fmt::Debug + Send + Sync + 'static {}

macro_rules! guard {
    ($(#[$doc:meta])* $name:ident, $mode:expr) => {
        $(#[$doc])*
        #[must_use = "a guard that is dropped releases the lock"]
        pub struct $name(Held);

        #[allow(private_interfaces)]
        impl Sealed for $name {
            const MODE: Mode = $mode;

            fn new(held: Held) -> Self {
                Self(held)
            }

            fn as_held(&self) -> &Held {
                &self.0
            }

            fn into_held(self) -> Held {
                self.0
            }
        }

        impl Guard for $name {}

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.debug_tuple(stringify!($name)).field(&self.0).finish()
            }
        }

        impl $name {
            /// Returns the lock's name, as the caller gave it.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.hold().key().name()
            }

            /// Returns the fencing token of the hold. Send the token with each request to the resource that the lock
            /// protects. The resource can then reject late writes of earlier holders.
            #[must_use]
            pub fn fencing_token(&self) -> FencingToken {
                self.0.share_id().token
            }

            /// Returns the remaining local validity: how long the hold stays valid even if no server answers from now
            /// on. The local validity ends before the lease on the server. The difference is
            /// [`max_clock_skew`](crate::Builder::max_clock_skew) plus a margin for clocks that run at different
            /// speeds. Returns zero after the hold was lost.
            ///
            /// If the acquisition waited in the server's queue, the returned time is short at first, even with a long
            /// lease. With default options it is 2.83 s, because the server grants 3 s and the two margins are
            /// subtracted. About 1 s after the grant, the manager sends a renewal for the whole lease.
            /// [`confirmed`](Self::confirmed) sends that renewal at once and waits for its answer. Await `confirmed`
            /// before a step that takes longer.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.hold().remaining(self.0.share_id())
            }

            /// Returns the state of the hold by the local clock. Sends nothing.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.0.state()
            }

            /// Waits until the hold is lost, and returns the reason.
            ///
            /// The call does not depend on the network. Even if every packet is lost, the local validity ends before
            /// the server may grant the lock to another process.
            ///
            /// # Panics
            ///
            /// The future has a timer, so it needs a tokio runtime, and panics if it is polled outside of one.
            ///
            /// # Cancel safety
            ///
            /// Safe: dropping the future changes nothing, and the next call reports a loss that happened meanwhile.
            ///
            /// # Examples
            ///
            /// ```
            /// # use redis_rwlock::{MemoryManager, RwLockManager};
            /// # async fn work() {}
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> redis_rwlock::Result<()> {
            /// let manager = MemoryManager::new();
            /// let guard = manager.write("cfg").await?;
            /// tokio::select! {
            ///     () = work() => guard.release().await?,
            ///     reason = guard.lost() => eprintln!("stopped: {reason}"),
            /// }
            /// # Ok(())
            /// # }
            /// ```
            pub fn lost(&self) -> impl Future<Output = LossReason> + Send + Sync + use<'_> {
                self.0.lost()
            }

            /// Waits until the hold has the whole lease of its acquisition. This matters for a hold whose acquisition
            /// waited in the server's queue.
            ///
            /// Such a hold begins as a *claim*, which the server keeps for 3 s, or for the lease if the lease is
            /// shorter. The first renewal by this process extends the claim to the whole lease. `confirmed` sends this
            /// renewal at once and waits for the answer. The guard is valid from the start, so most work can begin
            /// before that. If the work needs more time than [`remaining`](Self::remaining) returns, await `confirmed`
            /// first. The call takes about one round trip.
            ///
            /// If the server has granted the whole lease already, the call sends nothing and returns at once. Examples are a
            /// hold that the server granted without a wait, and a hold that was already renewed. With
            /// [`QuorumManager`](crate::QuorumManager), [`TwoKeyManager`](crate::TwoKeyManager) and
            /// each [`Durability`](crate::Durability) except `Primary`, no hold begins as a claim. A hold with a [fixed
            /// lease](crate::Acquire::fixed_lease) can begin as a claim too. After `confirmed`, it still ends when its
            /// fixed lease is over.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if the hold ended before the server answered the renewal. If no
            /// server answers, the manager repeats the renewal until the local validity ends. Then the call fails with
            /// this error.
            ///
            /// [`Error::InvalidOption`](crate::Error::InvalidOption) if the call would have to wait, and is awaited
            /// outside of a tokio runtime. The guard keeps its hold.
            ///
            /// # Cancel safety
            ///
            /// Safe: the guard keeps the hold, and the renewal continues. A later call waits for the same answer.
            ///
            /// # Examples
            ///
            /// ```
            /// # use std::time::Duration;
            /// # use redis_rwlock::{MemoryManager, RwLockManager};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> redis_rwlock::Result<()> {
            /// let manager = MemoryManager::new();
            /// let before = manager.peer().write("cfg").await?;
            /// let (guard, released) = tokio::join!(manager.write("cfg").lease(Duration::from_secs(30)), before.release());
            /// let guard = guard?; // perhaps for 3 s only
            /// guard.confirmed().await?;
            /// assert!(guard.remaining() > Duration::from_secs(29));
            /// # released?;
            /// # guard.release().await
            /// # }
            /// ```
            pub async fn confirmed(&self) -> Result<()> {
                self.0.confirmed().await
            }

            /// Sets the [note](crate::Acquire::note) of the hold, and returns when the server has it. The note replaces the
            /// earlier one, and an empty note removes it. All guards that share the hold share its note.
            ///
            /// # Errors
            ///
            /// - [`Error::InvalidOption`](crate::Error::InvalidOption), before anything is sent: the note has more than
            ///   4096 bytes, or the locks of the manager have no room for notes.
            /// - [`Error::Lost`](crate::Error::Lost): the hold is over.
            /// - [`Error::Unreachable`](crate::Error::Unreachable) and [`Error::Refused`](crate::Error::Refused): the
            ///   server has not confirmed the note. The guard keeps its hold.
            ///
            /// # Cancel safety
            ///
            /// If the future was polled and is then dropped, the hold has the earlier note or the new one.
            ///
            /// # Examples
            ///
            /// ```
            /// # use redis_rwlock::{MemoryManager, RwLockManager};
            /// # #[tokio::main(flavor = "current_thread")]
            /// # async fn main() -> redis_rwlock::Result<()> {
            /// let manager = MemoryManager::new();
            /// let guard = manager.write("cfg").await?;
            /// guard.set_note("step 2 of 3").await?;
            /// assert_eq!(manager.inspect("cfg").await?.holders[0].note.as_deref(), Some("step 2 of 3"));
            /// # guard.release().await
            /// # }
            /// ```
            pub async fn set_note(&self, note: &str) -> Result<()> {
                self.0.set_note(note).await
            }

            /// Turns the guard into a [`Ticket`], with which one guard, in this process or another one, takes the hold
            /// over. No guard is inside until then, and the lock stays taken. No process renews the hold: without
            /// another guard, it ends after `valid_for`, which has the limits of a [`lease`](crate::Acquire::lease).
            ///
            /// The hold passes to the next guard in one step: no other holder is inside in between. A waiting writer
            /// does not keep a ticket of a reader out. The guard's token is not valid any more.
            ///
            /// # Errors
            ///
            /// Fails with a [`DetachError`], which contains the guard.
            ///
            /// - [`InvalidOption`](crate::Error::InvalidOption), before anything is sent: other guards share the hold,
            ///   such as nested ones or other readers of this process, or an [upgrade](crate::ReadGuard::try_upgrade) of the
            ///   guard is not answered. Or the guard has
            ///   [`at_least`](crate::Acquire::at_least), or `valid_for` is out of range, or the manager has
            ///   [`timestamp_keys`](crate::Builder::timestamp_keys), or is a
            ///   [`QuorumManager`](crate::QuorumManager) or a [`RedissonManager`](crate::RedissonManager). The guard is
            ///   as it was.
            /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before.
            /// - [`Unreachable`](crate::Error::Unreachable) and others: if no copy of the request can have been
            ///   executed, the guard is as it was. Otherwise its [`state`](Self::state) is `Lost(Gone)`, and the manager
            ///   releases what it may have left.
            ///
            /// # Cancel safety
            ///
            /// If the future was polled and is then dropped, the manager releases the hold in the background. A ticket
            /// that no caller got stays on the server only if no release reaches the server, and ends after
            /// `valid_for`.
            ///
            /// # Examples
            ///
            /// [`Ticket`] has an example.
            pub async fn detach(self, valid_for: Duration) -> Result<Ticket, DetachError<Self>> {
                detach_guard(self, valid_for).await
            }

            /// Returns a [`HoldWatch`], with which other tasks can see whether the hold is still valid. The watch can
            /// be cloned and sent to other tasks. It does not prevent the release of the lock.
            pub fn watch(&self) -> HoldWatch {
                HoldWatch { watch: self.0.watch() }
            }

            /// Releases the lock, and returns when the server has confirmed the release.
            ///
            /// `Ok` means that the hold was valid until its release. If other guards of this process share the hold,
            /// the call sends nothing and returns at once. Readers of one process share a hold, and so do nested
            /// guards. The call also sends nothing if the next writer of this process takes over the hold. It also
            /// sends nothing if the process [caches](crate::Builder::cache_for) the hold, which means to keep it
            /// without a guard.
            ///
            /// # Errors
            ///
            /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before the release, so others may have held
            ///   the lock. The call also returns this error if the first release request got no reply and the server
            ///   then has no record of the lock. In this case it is unknown whether the release succeeded or the hold
            ///   was lost before it.
            /// - [`Error::Unreachable`](crate::Error::Unreachable) and [`Error::Refused`](crate::Error::Refused): the
            ///   server has not confirmed the release. The manager retries the release in the background, and the lease
            ///   ends the hold in any case.
            ///
            /// # Cancel safety
            ///
            /// Safe: if the future is dropped, the manager releases the lock in the background, whether the future was
            /// polled or not.
            pub async fn release(self) -> Result<()> {
                self.0.release().await
            }
        }
    };
}

guard! {
    /// Guard of a shared hold. While the hold is valid, no writer holds the lock.
    ///
    /// The guard borrows nothing, so it can be stored, returned and sent to another task. Dropping the guard sends the
    /// release and does not wait for the answer; [`release`](ReadGuard::release) waits. The manager renews the hold as
    /// long as the guard exists, even after the manager was dropped.
    ///
    /// If the guard is dropped in a tokio runtime with a free connection, that runtime sends the release. Otherwise the
    /// background thread of the process sends the release. After a release by the runtime, the background thread sends
    /// the release again in two cases. The first is that the runtime ends. The second is that the runtime reads no
    /// answer within four times the usual answer time, for example because a long computation blocks its thread. This
    /// limit is at least 25 ms, and at most half a response timeout. Other processes may wait that long for the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{HoldState, MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let guard = manager.read("cfg").await?;
    /// println!("{} with token {}, for {:?}", guard.name(), guard.fencing_token(), guard.remaining());
    /// assert_eq!(guard.state(), HoldState::Held);
    /// let watch = guard.watch(); // for other tasks
    /// guard.release().await
    /// # }
    /// ```
    ReadGuard, Mode::Read
}

guard! {
    /// Guard of an exclusive hold. While the hold is valid, no other reader or writer holds the lock.
    ///
    /// The guard borrows nothing, so it can be stored, returned and sent to another task. Dropping the guard sends the
    /// release and does not wait for the answer; [`release`](WriteGuard::release) waits. The manager renews the hold as
    /// long as the guard exists, even after the manager was dropped.
    ///
    /// If the guard is dropped in a tokio runtime with a free connection, that runtime sends the release. Otherwise the
    /// background thread of the process sends the release. After a release by the runtime, the background thread sends
    /// the release again in two cases. The first is that the runtime ends. The second is that the runtime reads no
    /// answer within four times the usual answer time, for example because a long computation blocks its thread. This
    /// limit is at least 25 ms, and at most half a response timeout. Other processes may wait that long for the lock.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{HoldState, MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").await?;
    /// println!("{} with token {}, for {:?}", guard.name(), guard.fencing_token(), guard.remaining());
    /// assert_eq!(guard.state(), HoldState::Held);
    /// let watch = guard.watch(); // for other tasks
    /// guard.release().await
    /// # }
    /// ```
    WriteGuard, Mode::Write
}

/// Turns a guard of either mode into a ticket.
pub(crate) async fn detach_guard<G: Guard>(guard: G, valid_for: Duration) -> Result<Ticket, DetachError<G>> {
    // In a box, since most guards have no ticket, and the future has room for a whole conversion.
    let detached = Box::pin(tickets::detach(guard.into_held(), valid_for)).await;
    detached.map_err(|NotConverted { held, error }| DetachError::new(G::new(held), error))
}

impl WriteGuard {
    /// Releases the lock as [`release`](WriteGuard::release) does, but leaves no rest: other owners can acquire the
    /// lock at once, whatever [`at_least`](crate::Acquire::at_least) asked for. For work that failed, so that another
    /// machine may try it now.
    ///
    /// If the hold was lost before, its release may be on its way already, and then the lock rests.
    ///
    /// # Errors
    ///
    /// The errors of [`release`](WriteGuard::release).
    ///
    /// # Cancel safety
    ///
    /// Safe once the future was polled: the manager then releases the lock in the background, without a rest. If the
    /// future is dropped before that, the lock rests.
    ///
    /// # Examples
    ///
    /// ```
    /// # use std::time::Duration;
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # async fn send_report() -> Result<(), ()> { Err(()) }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("report").at_least(Duration::from_secs(60)).await?;
    /// match send_report().await {
    ///     Ok(()) => guard.release().await?,
    ///     Err(()) => guard.release_at_once().await?,
    /// }
    /// assert!(manager.peer().try_write("report").await?.is_some());
    /// # Ok(())
    /// # }
    /// ```
    pub async fn release_at_once(self) -> Result<()> {
        self.0.check_process()?;
        self.0.hold().forgo_rest();
        self.0.release().await
    }

    /// Converts the exclusive hold into a shared hold in one step, so that no writer can acquire the lock in between.
    /// Waiting readers of all processes acquire the lock at the same time. The token of the new read guard is greater
    /// than the token of this guard.
    ///
    /// If this guard is nested in another guard of its owner, the call only changes a counter and sends nothing.
    ///
    /// # Errors
    ///
    /// Fails with a [`DowngradeError`], which contains the guard. A guard with
    /// [`at_least`](crate::Acquire::at_least) is always refused, with
    /// [`InvalidOption`](crate::Error::InvalidOption), and so is every guard outside of a tokio runtime. The guard
    /// still has the exclusive hold, except in these cases:
    ///
    /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before the conversion.
    /// - [`Unreachable`](crate::Error::Unreachable) or [`NoQuorum`](crate::Error::NoQuorum): the server may have
    ///   executed the conversion without a reply, and then readers may have acquired the lock. In this case the
    ///   [`state`](WriteGuard::state) of the guard is `Lost(Expired)`, and the manager releases both the exclusive and
    ///   the shared hold.
    ///
    /// # Cancel safety
    ///
    /// If the future was polled and is then dropped, the manager releases both the old and the new hold in the
    /// background. Neither of them stays on the server for longer than one lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let writing = manager.write("cfg").await?;
    /// // … change the data, and then only read it …
    /// let reading = writing.downgrade().await?;
    /// assert!(manager.peer().try_read("cfg").await?.is_some());
    /// reading.release().await
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard, DowngradeError> {
        let refused = |NotConverted { held, error }| DowngradeError { guard: Self(held), error };
        convert::downgrade(self.0).await.map(ReadGuard).map_err(refused)
    }
}

impl ReadGuard {
    /// Converts the shared hold into an exclusive hold in one step. This succeeds only if the lock has no other reader
    /// and no waiting writer, in any process. Asks the server once. The token of the new write guard is greater than
    /// the token of this guard.
    ///
    /// The call never waits for other readers, since two readers that wait for each other's release would deadlock.
    /// After [`UpgradeConflict`](crate::Error::UpgradeConflict), release the guard and acquire the lock again for
    /// writing. In between, another writer may change the data.
    ///
    /// # Errors
    ///
    /// Fails with a [`TryUpgradeError`], which contains the guard. The guard still has the shared hold, unless the
    /// error is [`Error::Lost`](crate::Error::Lost). Outside of a tokio runtime, the error is
    /// [`InvalidOption`](crate::Error::InvalidOption).
    ///
    /// After [`Unreachable`](crate::Error::Unreachable) or [`NoQuorum`](crate::Error::NoQuorum), the server may have
    /// executed the conversion. Then the guard is [`Unconfirmed`](crate::HoldState::Unconfirmed) until the server
    /// answers the manager's next request. If that answer shows that the server has not executed the conversion, the
    /// guard has its shared hold as before. If the answer shows that the server has executed the conversion, the state
    /// of the guard is `Lost(Gone)`, and the manager releases the exclusive hold. No other writer acquires the lock
    /// before that answer. A second call of `try_upgrade` asks the server for the outcome, and succeeds if the server
    /// has executed the conversion.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for [`downgrade`](WriteGuard::downgrade).
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let reading = manager.read("cfg").await?;
    /// match reading.try_upgrade().await {
    ///     Ok(writing) => writing.release().await,
    ///     Err(refused) => refused.into_guard().release().await,
    /// }
    /// # }
    /// ```
    pub async fn try_upgrade(self) -> Result<WriteGuard, TryUpgradeError> {
        let refused = |NotConverted { held, error }| TryUpgradeError { guard: Self(held), error };
        convert::upgrade(self.0).await.map(WriteGuard).map_err(refused)
    }
}

macro_rules! conversion_error {
    ($(#[$doc:meta])* $name:ident, $guard:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            pub(super) guard: $guard,
            pub(super) error: $crate::base::error::Error,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error.fmt(f)
            }
        }

        impl std::error::Error for $name {
            /// Returns the source of the inner error instead of the inner error itself. The `Display` output of this
            /// error already has the text of the inner error, which would otherwise appear twice.
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(&self.error)
            }
        }

        impl $name {
            /// Returns the reason for which the conversion failed; see [`try_upgrade`](crate::ReadGuard::try_upgrade).
            #[must_use]
            pub fn error(&self) -> &$crate::base::error::Error {
                &self.error
            }

            /// Returns the guard that was to be converted, so that the caller can continue to use it.
            /// [`try_upgrade`](crate::ReadGuard::try_upgrade) has an example. Dropping the error instead drops the
            /// guard, which releases its hold.
            pub fn into_guard(self) -> $guard {
                self.guard
            }
        }

        impl From<$name> for $crate::base::error::Error {
            /// Drops the guard, which releases its hold.
            fn from(error: $name) -> Self {
                error.error
            }
        }
    };
}

pub(crate) use conversion_error;

conversion_error! {
    /// Error of [`WriteGuard::downgrade`], which contains the guard.
    DowngradeError, WriteGuard
}
conversion_error! {
    /// Error of [`ReadGuard::try_upgrade`], which contains the guard.
    TryUpgradeError, ReadGuard
}

/// Observer of a hold, which reports when the hold ends. The watch does not prevent the release of the hold. The method
/// [`watch`](WriteGuard::watch) of a guard returns a `HoldWatch`.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{Ended, MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// let guard = manager.write("cfg").await?;
/// let watch = guard.watch();
/// println!("a worker for {} sends token {}", watch.name(), watch.fencing_token());
/// let worker = tokio::spawn(async move { watch.ended().await });
/// guard.release().await?;
/// assert_eq!(worker.await.unwrap(), Ended::Released);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldWatch {
    watch: Watch,
}

impl HoldWatch {
    /// Returns the lock's name, as the caller gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        self.watch.hold().key().name()
    }

    /// Returns the fencing token of the hold, for requests to the resource that the lock protects.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.watch.token
    }

    /// Returns the state of the hold by the local clock. The state of a released hold stays [`HoldState::Held`]; to
    /// detect a release, use [`ended`](HoldWatch::ended).
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.watch.state()
    }

    /// Waits until the hold ends, by a release or by a loss.
    ///
    /// With a `CancellationToken` of `tokio_util`, the end of the hold can stop other tasks:
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// use tokio_util::sync::CancellationToken;
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// # let guard = manager.write("cfg").await?;
    /// let (watch, stop) = (guard.watch(), CancellationToken::new());
    /// let over = stop.clone().drop_guard();
    /// tokio::spawn(async move { drop((watch.ended().await, over)) });
    /// # guard.release().await?;
    /// stop.cancelled().await; // each worker waits for this
    /// # Ok(())
    /// # }
    /// ```
    ///
    /// # Panics
    ///
    /// The future has a timer, so it needs a tokio runtime, and panics if it is polled outside of one.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the next call reports an end that happened meanwhile.
    pub async fn ended(&self) -> Ended {
        self.watch.ended().await
    }
}

impl fmt::Debug for HoldWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoldWatch").field(&self.watch).finish()
    }
}
