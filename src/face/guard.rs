//! Guards of a lock, and watches of its holds.

use std::fmt;
use std::time::Duration;

use crate::base::error::{LossReason, Result};
use crate::base::lease::FencingToken;
use crate::engine::Held;
use crate::engine::convert::{self, NotConverted};
use crate::lock::hold::{Ended, HoldState};
use crate::lock::watch::Watch;
use crate::store::Mode;

mod sealed {
    use crate::engine::Held;
    use crate::store::Mode;

    pub trait Sealed {
        /// Mode of this guard's hold.
        const MODE: Mode;
        #[allow(private_interfaces)] // callers outside of the crate cannot name or call it
        fn new(held: Held) -> Self;
        #[allow(private_interfaces)]
        fn as_held(&self) -> &Held;
        #[allow(private_interfaces)]
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

        impl Sealed for $name {
            const MODE: Mode = $mode;

            #[allow(private_interfaces)]
            fn new(held: Held) -> Self {
                Self(held)
            }

            #[allow(private_interfaces)]
            fn as_held(&self) -> &Held {
                &self.0
            }

            #[allow(private_interfaces)]
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

            /// Returns the fencing token of the hold. Send it with each request to the resource that the lock protects,
            /// so that the resource can reject late writes.
            #[must_use]
            pub fn fencing_token(&self) -> FencingToken {
                self.0.share_id().token
            }

            /// Returns the remaining local validity: how long the hold stays valid even if no server answers from now
            /// on. The local validity ends before the lease on the server, by
            /// [`max_clock_skew`](crate::Builder::max_clock_skew) and a margin for the rates of the clocks. Returns
            /// zero once the hold is lost.
            ///
            /// If the acquisition waited, the time is short at first, even with a long lease. With default options it
            /// is 2.83 s: the server grants 3 s, minus the margins. About 1 s later, the manager sends a renewal for
            /// the whole lease. [`confirmed`](Self::confirmed) sends that renewal at once and waits for its answer.
            /// Await `confirmed` before a step that takes longer.
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
            /// The call needs no network. Even if every packet is lost, the local validity ends before the server may
            /// let another process in.
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

            /// Waits until the server has answered the first renewal of a hold that was granted while its acquisition
            /// waited. After that, the hold has the whole lease of its acquisition.
            ///
            /// Such a hold begins as a *claim*. Until this process sends a renewal, the server keeps the claim for 3 s
            /// or the lease, whichever is shorter. The guard is valid from the start, so most work can begin at once.
            /// If the work needs more time than [`remaining`](Self::remaining) returns, await `confirmed` first. It
            /// takes about one round trip.
            ///
            /// For every other hold, the call sends nothing and returns at once. Examples are a hold without a wait and
            /// a hold that was already renewed. With [`QuorumManager`](crate::QuorumManager),
            /// [`TwoKeyManager`](crate::TwoKeyManager) and [`Durability::Replicated`](crate::Durability), no hold
            /// begins as a claim. A hold with a [fixed lease](crate::Acquire::fixed_lease) is confirmed like any other
            /// hold, and still ends at its time.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if the hold ended before the answer came. If no server answers, the
            /// manager repeats the renewal until the local validity ends, and then the call fails with this error.
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
            /// let guard = guard?;
            /// assert!(guard.remaining() < Duration::from_secs(3));
            /// guard.confirmed().await?;
            /// assert!(guard.remaining() > Duration::from_secs(29));
            /// # released?;
            /// # guard.release().await
            /// # }
            /// ```
            pub async fn confirmed(&self) -> Result<()> {
                self.0.confirmed().await
            }

            /// Returns a [`HoldWatch`] for worker tasks. It can be cloned and sent to other tasks, and does not keep
            /// the lock.
            pub fn watch(&self) -> HoldWatch {
                HoldWatch { watch: self.0.watch() }
            }

            /// Releases the lock, and returns when the server has confirmed the release.
            ///
            /// `Ok` means that the hold was valid to its end. If other guards of this process share the hold, the call
            /// sends nothing and returns at once. Such guards are nested guards and other readers. The call also sends
            /// nothing if the next writer of this process takes over the hold, or if the process
            /// [caches](crate::Builder::cache_for) it.
            ///
            /// # Errors
            ///
            /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before the release, so others may have held
            ///   the lock. The call also returns this error if the first release request got no reply and the server
            ///   has lost its record of the lock. Then it is unknown whether the release or the loss came first.
            /// - [`Error::Unreachable`](crate::Error::Unreachable) and [`Error::Refused`](crate::Error::Refused): the
            ///   server has not confirmed the release. The background retries the release, and the lease ends the hold
            ///   in any case.
            ///
            /// # Cancel safety
            ///
            /// Safe: if the future is dropped, the background releases the lock, whether the future was polled or not.
            pub async fn release(self) -> Result<()> {
                self.0.release().await
            }
        }
    };
}

guard! {
    /// Guard of a shared hold. While the hold is valid, no writer holds the lock.
    ///
    /// The guard is owned, so it can be stored, returned and sent to another task. Dropping the guard sends the release
    /// and does not wait for the answer; [`release`](ReadGuard::release) waits. The manager renews the hold as long as
    /// the guard exists, even after the manager was dropped.
    ///
    /// The runtime in which the guard is dropped sends the release, if a connection of that runtime can take it at
    /// once. Otherwise the background thread of the process sends it. The background thread also sends the release if
    /// the runtime ends, or reads no answer for four times the usual answer time. This limit is at least 25 ms, and at
    /// most half a response timeout. So if a long computation follows the drop, other processes may wait that long.
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
    /// The guard is owned, so it can be stored, returned and sent to another task. Dropping the guard sends the release
    /// and does not wait for the answer; [`release`](WriteGuard::release) waits. The manager renews the hold as long as
    /// the guard exists, even after the manager was dropped.
    ///
    /// The runtime in which the guard is dropped sends the release, if a connection of that runtime can take it at
    /// once. Otherwise the background thread of the process sends it. The background thread also sends the release if
    /// the runtime ends, or reads no answer for four times the usual answer time. This limit is at least 25 ms, and at
    /// most half a response timeout. So if a long computation follows the drop, other processes may wait that long.
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

impl WriteGuard {
    /// Converts the exclusive hold into a shared hold, in one step: no writer can enter in between. Waiting readers of
    /// this process and of other processes enter at the same time. The read guard has a token of its own, greater than
    /// the token of this guard.
    ///
    /// For a guard that is nested in another guard of its owner, the call only changes a counter and sends nothing.
    ///
    /// # Errors
    ///
    /// Fails with a [`DowngradeError`], which contains the guard. The guard still has the exclusive hold, except in
    /// these cases:
    ///
    /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before the conversion.
    /// - [`Unreachable`](crate::Error::Unreachable) or [`NoQuorum`](crate::Error::NoQuorum): if the server may have
    ///   executed the conversion, readers may have entered. Then the [`state`](WriteGuard::state) of the guard is
    ///   `Lost(Expired)`, and both holds are released.
    ///
    /// # Cancel safety
    ///
    /// If the future was polled and is then dropped, the background releases both holds, the old and the new. Neither
    /// of them stays on the server for longer than one lease.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let writing = manager.write("cfg").await?;
    /// // … change it, then go on reading what was written …
    /// let reading = writing.downgrade().await?;
    /// assert!(manager.peer().try_read("cfg").await?.is_some());
    /// reading.release().await
    /// # }
    /// ```
    pub async fn downgrade(self) -> Result<ReadGuard, DowngradeError> {
        match convert::downgrade(self.0).await {
            Ok(held) => Ok(ReadGuard(held)),
            Err(NotConverted { held, error }) => Err(DowngradeError { guard: Self(held), error }),
        }
    }
}

impl ReadGuard {
    /// Converts the shared hold into an exclusive hold, in one step, if no process has another reader or a waiting
    /// writer. Asks the server once. The write guard has a token of its own, greater than the token of this guard.
    ///
    /// The call never waits for other readers, since two readers that wait for each other's release would deadlock.
    /// After [`UpgradeConflict`](crate::Error::UpgradeConflict), release the guard and acquire the lock again for
    /// writing. Another writer may have changed the data in between.
    ///
    /// # Errors
    ///
    /// Fails with a [`TryUpgradeError`], which contains the guard. The guard still has the shared hold, unless the
    /// error is [`Error::Lost`](crate::Error::Lost).
    ///
    /// After [`Unreachable`](crate::Error::Unreachable) or [`NoQuorum`](crate::Error::NoQuorum), the server may have
    /// executed the conversion. Then the guard is [`Unconfirmed`](crate::HoldState::Unconfirmed) until the server
    /// answers the manager's next request. If the server has not executed the conversion, the guard is held as before.
    /// If the server has executed it, the guard is `Lost(Gone)`, and the manager releases the exclusive hold. No writer
    /// enters before that answer. A second `try_upgrade` asks for the outcome, and returns the exclusive hold if the
    /// server has made it.
    ///
    /// # Cancel safety
    ///
    /// As for [`downgrade`](WriteGuard::downgrade).
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
        match convert::upgrade(self.0).await {
            Ok(held) => Ok(WriteGuard(held)),
            Err(NotConverted { held, error }) => Err(TryUpgradeError { guard: Self(held), error }),
        }
    }
}

macro_rules! conversion_error {
    ($(#[$doc:meta])* $name:ident, $guard:ident) => {
        $(#[$doc])*
        #[derive(Debug)]
        pub struct $name {
            guard: $guard,
            error: $crate::base::error::Error,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error.fmt(f)
            }
        }

        impl std::error::Error for $name {
            /// Returns the source of the inner error. The text of the inner error is the `Display` output of this
            /// error.
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(&self.error)
            }
        }

        impl $name {
            /// Returns the error of the conversion. See [`try_upgrade`](crate::ReadGuard::try_upgrade).
            #[must_use]
            pub fn error(&self) -> &$crate::base::error::Error {
                &self.error
            }

            /// Returns the guard that the failed conversion left. [`try_upgrade`](crate::ReadGuard::try_upgrade) has an
            /// example. Dropping this error releases the guard.
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
    /// Error of [`WriteGuard::downgrade`], with the guard.
    DowngradeError, WriteGuard
}
conversion_error! {
    /// Error of [`ReadGuard::try_upgrade`], with the guard.
    TryUpgradeError, ReadGuard
}

/// Watches a hold without keeping it. [`watch`](WriteGuard::watch) of a guard returns it.
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

    /// Returns the state of the hold by the local clock. The state of a released hold stays [`HoldState::Held`];
    /// [`ended`](HoldWatch::ended) returns after a release, too.
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.watch.state()
    }

    /// Waits until the hold is over, by a release or by a loss.
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
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the next call reports an end that came meanwhile.
    pub async fn ended(&self) -> Ended {
        self.watch.ended().await
    }
}

impl fmt::Debug for HoldWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoldWatch").field(&self.watch).finish()
    }
}
