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
        /// Side of the lock that this guard has.
        const MODE: Mode;
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn new(held: Held) -> Self;
        #[allow(private_interfaces)]
        fn held(&self) -> &Held;
        #[allow(private_interfaces)]
        fn into_held(self) -> Held;
    }
}
pub(crate) use sealed::Sealed;

/// Guard of either side: [`ReadGuard`] or [`WriteGuard`].
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
            fn held(&self) -> &Held {
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

            /// Returns the number to send to the resource behind the lock, so that the resource can reject late writes.
            #[must_use]
            pub fn fencing_token(&self) -> FencingToken {
                self.0.share_id().token
            }

            /// Returns how long the hold is valid if no server answers from now on. The hold is lost at the local
            /// deadline, which is earlier than the server's by the clock margin and more. Zero once the hold is lost.
            ///
            /// After a wait, this is short at first, however long the lease is: 2.83 s with default options, which is
            /// the claim of 3 s minus the margins. A renewal for the whole lease follows about 1 s later.
            /// [`confirmed`](Self::confirmed) sends that renewal at once and waits for its answer: await it before a
            /// step that takes longer.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.hold().remaining(self.0.share_id())
            }

            /// Returns the state of the hold by the local clock. Sends nothing.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.0.state()
            }

            /// Waits until the hold is lost, and returns the reason. Never returns after a release.
            ///
            /// Needs no network: even if every packet is lost, the local deadline ends the hold before the server may
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
            /// Such a hold begins as a claim: the server keeps it for 3 s or the lease, whichever is shorter, until
            /// this process sends a renewal. The guard is valid from the start, so most work can begin at once. Work
            /// that needs more time than [`remaining`](Self::remaining) returns awaits this first; it takes about one
            /// round trip.
            ///
            /// Returns at once, and sends nothing, for every other hold: a hold without a wait, a renewed hold, a
            /// nested guard, or a further reader of such a hold. With [`QuorumManager`](crate::QuorumManager),
            /// [`TwoKeyManager`](crate::TwoKeyManager) and [`Durability::Replicated`](crate::Durability) no hold begins
            /// as a claim. A [fixed lease](crate::Acquire::fixed_lease) is confirmed like any other, and still ends at
            /// its time.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost) if the hold ended before the answer came. A server that does not
            /// answer leads to this error at the local deadline, since the manager repeats the renewal until then.
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

            /// Returns a view of the hold for worker tasks. The view can be cloned and sent, and does not keep the
            /// lock.
            pub fn watch(&self) -> HoldWatch {
                HoldWatch { watch: self.0.watch() }
            }

            /// Releases the lock and returns when the server has confirmed it.
            ///
            /// `Ok` means that the hold was valid to its end. The call sends nothing, and returns at once, while other
            /// guards of this process share the hold: guards of a reentrant owner, or other readers. The same is true
            /// if the next writer of this process takes over the hold.
            ///
            /// # Errors
            ///
            /// - [`Error::Lost`](crate::Error::Lost): the hold had ended before, so others may have held the lock. The
            ///   same error comes if the first copy of the release was not answered and the server has lost the lock.
            ///   Then the order of the two events is unknown.
            /// - [`Error::Unreachable`](crate::Error::Unreachable) and [`Error::Refused`](crate::Error::Refused): the
            ///   server has not confirmed the release. The background retries it, and the lease ends the hold in any
            ///   case.
            ///
            /// # Cancel safety
            ///
            /// Safe: once polled, a dropped future leaves the release to the background. A future that is dropped
            /// before its first poll drops the guard, which has the same effect.
            pub async fn release(self) -> Result<()> {
                self.0.release().await
            }
        }
    };
}

guard! {
    /// Shared hold: while it is valid, no writer holds the lock.
    ///
    /// The guard is owned, so it can be stored, returned and sent to another task. Dropping it sends the release and
    /// does not wait for the answer; [`release`](ReadGuard::release) waits. The renewal of the hold continues as long
    /// as the guard exists, so the guard may outlive its manager.
    ///
    /// The runtime of the drop sends the release, if it has a connection with room; otherwise a thread of the process
    /// does. That thread also sends the release if the runtime ends before the answer, or reads no answer for four
    /// times the usual answer time. This limit is 25 ms at least, and half a response timeout at most. So if a long
    /// computation follows the drop, others may wait that long.
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
    /// Exclusive hold: while it is valid, no other reader or writer holds the lock.
    ///
    /// The guard is owned, so it can be stored, returned and sent to another task. Dropping it sends the release and
    /// does not wait for the answer; [`release`](WriteGuard::release) waits. The renewal of the hold continues as long
    /// as the guard exists, so the guard may outlive its manager.
    ///
    /// The runtime of the drop sends the release, if it has a connection with room; otherwise a thread of the process
    /// does. That thread also sends the release if the runtime ends before the answer, or reads no answer for four
    /// times the usual answer time. This limit is 25 ms at least, and half a response timeout at most. So if a long
    /// computation follows the drop, others may wait that long.
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
    /// Converts the exclusive hold into a shared one, in one step: no writer can enter in between. Readers that wait,
    /// in this process or in another, enter with it. The read guard has a token of its own, greater than the token of
    /// this guard.
    ///
    /// Nested in another guard of its owner, the call only changes a counter and sends nothing.
    ///
    /// # Errors
    ///
    /// A [`DowngradeError`] with the guard in it. The guard still has the exclusive hold, unless its
    /// [`state`](WriteGuard::state) says otherwise:
    ///
    /// - with [`Error::Lost`](crate::Error::Lost) the hold had ended before;
    /// - with [`Unreachable`](crate::Error::Unreachable) (or [`NoQuorum`](crate::Error::NoQuorum)) the state is
    ///   `Lost(Expired)` if the server may have executed the conversion, since readers may have entered then. Both
    ///   holds are released.
    ///
    /// # Cancel safety
    ///
    /// A future that was polled and then dropped gives up both holds in the background; nothing stays longer than one
    /// lease.
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
    /// Converts the shared hold into the exclusive one, in one step, if there is no other reader and no writer waits,
    /// in any process. Asks once. The write guard has a token of its own, greater than the token of this guard.
    ///
    /// The call never waits, since two readers that waited for each other would wait for ever. After
    /// [`UpgradeConflict`](crate::Error::UpgradeConflict), release the guard and acquire the lock again for writing.
    /// The data may have changed since the read.
    ///
    /// # Errors
    ///
    /// A [`TryUpgradeError`] with the guard in it, which still reads, unless the error is
    /// [`Error::Lost`](crate::Error::Lost).
    ///
    /// After [`Unreachable`](crate::Error::Unreachable) (or [`NoQuorum`](crate::Error::NoQuorum)) the server may have
    /// executed the conversion. Then the guard is [`Unconfirmed`](crate::HoldState::Unconfirmed) until the server
    /// answers. After the answer it is held as before, or it is `Lost(Gone)` if the server has made the hold exclusive;
    /// that hold is released. No writer enters before the answer. A second `try_upgrade` asks for the outcome, and
    /// returns the exclusive hold if the server has it.
    ///
    /// # Cancel safety
    ///
    /// The same as for [`downgrade`](WriteGuard::downgrade).
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
            /// Returns the source of the inner error, whose own text `Display` shows.
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(&self.error)
            }
        }

        impl $name {
            /// Returns the error of the conversion; [`into_guard`](Self::into_guard) returns the guard. See
            /// [`try_upgrade`](crate::ReadGuard::try_upgrade).
            #[must_use]
            pub fn error(&self) -> &$crate::base::error::Error {
                &self.error
            }

            /// Returns the guard that the conversion left, as in the example of
            /// [`try_upgrade`](crate::ReadGuard::try_upgrade). Dropping this error releases the guard.
            pub fn into_guard(self) -> $guard {
                self.guard
            }
        }

        impl From<$name> for $crate::base::error::Error {
            /// Drops the guard, which releases it.
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

/// Watches a hold without sharing it.
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
/// println!("a worker for {} brings token {} along", watch.name(), watch.fencing_token());
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

    /// Returns the number to send to the resource behind the lock.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.watch.token
    }

    /// Returns the state of the hold by the local clock. A released hold stays [`HoldState::Held`]; see
    /// [`ended`](HoldWatch::ended).
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.watch.state()
    }

    /// Waits until the hold is over, by a release or by a loss.
    ///
    /// A `tokio_util` token connects other tasks with the end of the hold:
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
    /// stop.cancelled().await; // in the workers
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
