//! What a caller has while it holds a lock.

use std::fmt;
use std::time::Duration;

use crate::engine::Held;
use crate::engine::convert::{self, NotConverted};
use crate::error::{LossReason, Result};
use crate::lease::FencingToken;
use crate::lock::hold::{Ended, HoldState};
use crate::lock::watch::Watch;
use crate::scheme::Mode;

mod sealed {
    use crate::engine::Held;
    use crate::scheme::Mode;

    pub trait Sealed {
        /// The side of the lock that this guard stands for.
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

/// A guard of either side: [`ReadGuard`] or [`WriteGuard`].
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
            /// The lock's name, as it was asked for.
            #[must_use]
            pub fn name(&self) -> &str {
                self.0.hold().key().name()
            }

            /// The number to hand to the resource behind the lock, so that it can reject late comers.
            #[must_use]
            pub fn fencing_token(&self) -> FencingToken {
                self.0.share_id().token
            }

            /// How long the hold may be trusted if the server is not heard from again: the local deadline, which comes
            /// before the server's by the clock margin and more. Zero once it is lost.
            ///
            /// After a wait this is short at first, however long the lease is: 2.83 s with default options, which is the claim of
            /// 3 s less the margins. A renewal for the whole lease follows about 1 s later. [`confirmed`](Self::confirmed) sends it
            /// at once and waits for its answer: await that before a step that takes longer.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.hold().remaining(self.0.share_id())
            }

            /// How the hold stands by the local clock; asks nobody.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.0.state()
            }

            /// Waits until the hold cannot be trusted any more, and tells why. Never returns on release.
            ///
            /// Needs no network: the local deadline ends it even if every packet is lost, and before the server may let
            /// anybody else in.
            ///
            /// # Cancel safety
            ///
            /// Safe: dropping the future changes nothing, and a loss that happened meanwhile is told at the next call.
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

            /// Waits until the server has answered the first renewal of a hold that was granted while its acquisition waited.
            /// From then on the hold lasts for the whole lease that it was asked for.
            ///
            /// Such a hold begins as a claim: the server keeps it for 3 s or the lease, whichever is shorter, until it hears from
            /// this process. The guard is valid all the same, so most work can begin at once. Work that needs more than
            /// [`remaining`](Self::remaining) says awaits this first; it takes about one round trip.
            ///
            /// Returns at once, and asks nobody, for every other hold: one that was not waited for, one that has been renewed,
            /// a nested guard or another reader of such a hold. With [`QuorumManager`](crate::QuorumManager),
            /// [`TwoKeyManager`](crate::TwoKeyManager) and [`Durability::Replicated`](crate::Durability) no hold begins as a
            /// claim. A [fixed lease](crate::Acquire::fixed_lease) is confirmed like any other, and still ends at its time.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost): the hold ended before the answer came. A server that does not answer ends it
            /// so by the local deadline, since the renewal is repeated until then.
            ///
            /// # Cancel safety
            ///
            /// Safe: the guard keeps the hold, and the renewal that was begun goes on. A later call waits for the same answer.
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

            /// A view of the hold for worker tasks: it can be cloned and sent, and keeps nothing locked.
            pub fn watch(&self) -> HoldWatch {
                HoldWatch { watch: self.0.watch() }
            }

            /// Gives the lock back and returns when the server knows.
            ///
            /// `Ok` means that the hold was ours to the end. Nothing is sent, and it returns at once, as long as other
            /// guards of this process share the hold (those of a reentrant owner, or other readers), and when the next
            /// writer of this process goes on with it.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost): the hold had ended before, so others may have been inside. Also when a
            /// first copy of the release went unanswered and the server has lost the lock: which came first nobody can tell.
            /// [`Error::Unreachable`](crate::Error::Unreachable) and [`Error::Refused`](crate::Error::Refused): the
            /// server was not told yet; the background goes on telling it, and the lease ends the hold in any case.
            ///
            /// # Cancel safety
            ///
            /// Safe: once polled, a dropped future leaves the release to the background. Dropped before its first poll it
            /// is a dropped guard, which does the same.
            pub async fn release(self) -> Result<()> {
                self.0.release().await
            }
        }
    };
}

guard! {
    /// A shared hold: no writer is inside while it is valid.
    ///
    /// Owned, so it can be stored, returned and sent to another task. Dropping it tells the server and does not wait for its word;
    /// [`release`](ReadGuard::release) does. It keeps what renews it, so it may outlive its manager.
    ///
    /// The runtime of the drop sends the release, if it has a connection with room; else a thread of the process does. That thread
    /// also tells the server if the runtime ends meanwhile, or reads no answer for four times the usual answer time (25 ms at
    /// least, half a response timeout at most). Others may wait so long where a computation follows on the drop.
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
    /// The exclusive hold: nobody else is inside while it is valid.
    ///
    /// Owned, so it can be stored, returned and sent to another task. Dropping it tells the server and does not wait for its word;
    /// [`release`](WriteGuard::release) does. It keeps what renews it, so it may outlive its manager.
    ///
    /// The runtime of the drop sends the release, if it has a connection with room; else a thread of the process does. That thread
    /// also tells the server if the runtime ends meanwhile, or reads no answer for four times the usual answer time (25 ms at
    /// least, half a response timeout at most). Others may wait so long where a computation follows on the drop.
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
    /// Gives up the exclusive hold for a shared one, in one step: no writer is let in between. Readers that wait, here or
    /// elsewhere, enter with it. The read guard has a token of its own, greater than this one's.
    ///
    /// Nested in another guard of its owner it only counts, and nothing is sent.
    ///
    /// # Errors
    ///
    /// A [`DowngradeError`] with the guard in it. It is still the exclusive hold, unless its [`state`](WriteGuard::state) says
    /// otherwise: with [`Error::Lost`](crate::Error::Lost) the hold had ended before; with
    /// [`Unreachable`](crate::Error::Unreachable) (or [`NoQuorum`](crate::Error::NoQuorum)) it is `Lost(Expired)` if the server may have done it, since readers may be in
    /// then. Both holds are given back.
    ///
    /// # Cancel safety
    ///
    /// Dropped once it was polled, it gives up both holds, in the background; nothing stays longer than one lease.
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
    /// Makes the shared hold the exclusive one, in one step, if nobody else reads and no writer waits, here or elsewhere.
    /// Asks once. The write guard has a token of its own, greater than this one's.
    ///
    /// Two readers that waited for each other would wait for ever, so nobody waits: with
    /// [`UpgradeConflict`](crate::Error::UpgradeConflict), release the guard and take the lock anew to write. What was read
    /// may have changed by then.
    ///
    /// # Errors
    ///
    /// A [`TryUpgradeError`] with the guard in it, which still reads, unless the error is [`Error::Lost`](crate::Error::Lost).
    /// After [`Unreachable`](crate::Error::Unreachable) (or [`NoQuorum`](crate::Error::NoQuorum)) the server may have done it. Then the guard is
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed) until the server answers: it is held as before, or `Lost(Gone)` if the
    /// server has made it the exclusive hold, which is given back. Nobody writes meanwhile. `try_upgrade` once more asks what
    /// came of it, and has the exclusive hold if it is there.
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
            error: $crate::error::Error,
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.error.fmt(f)
            }
        }

        impl std::error::Error for $name {
            /// What is below the error, which is told by itself.
            fn source(&self) -> Option<&(dyn std::error::Error + 'static)> {
                std::error::Error::source(&self.error)
            }
        }

        impl $name {
            /// What went wrong. Beside the error there is the guard: see [`try_upgrade`](crate::ReadGuard::try_upgrade).
            #[must_use]
            pub fn error(&self) -> &$crate::error::Error {
                &self.error
            }

            /// The guard as it was, as in the example of [`try_upgrade`](crate::ReadGuard::try_upgrade). Dropped with this error, it is
            /// released.
            pub fn into_guard(self) -> $guard {
                self.guard
            }
        }

        impl From<$name> for $crate::error::Error {
            /// Drops the guard, which releases it.
            fn from(error: $name) -> Self {
                error.error
            }
        }
    };
}

pub(crate) use conversion_error;

conversion_error! {
    /// Why [`WriteGuard::downgrade`] failed, and the guard.
    DowngradeError, WriteGuard
}
conversion_error! {
    /// Why [`ReadGuard::try_upgrade`] failed, and the guard.
    TryUpgradeError, ReadGuard
}

/// Watches a hold without taking part in it.
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
    /// The lock's name, as it was asked for.
    #[must_use]
    pub fn name(&self) -> &str {
        self.watch.hold().key().name()
    }

    /// The number to hand to the resource behind the lock.
    #[must_use]
    pub fn fencing_token(&self) -> FencingToken {
        self.watch.token
    }

    /// How the hold stands by the local clock. A hold that was released stays [`HoldState::Held`]; see
    /// [`ended`](HoldWatch::ended).
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.watch.state()
    }

    /// Waits until the hold is over, one way or the other.
    ///
    /// Whatever stops by a token of `tokio_util` stops with the hold:
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
    /// Safe: dropping the future changes nothing, and an end that came meanwhile is told at the next call.
    pub async fn ended(&self) -> Ended {
        self.watch.ended().await
    }
}

impl fmt::Debug for HoldWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoldWatch").field(&self.watch).finish()
    }
}
