//! What a caller has while it holds a lock.

use std::fmt;
use std::sync::Arc;
use std::time::Duration;

use crate::engine::Engine;
use crate::error::{LossReason, Result};
use crate::hold::{Ended, Hold, HoldState};
use crate::lease::FencingToken;
use crate::scheme::Mode;

mod sealed {
    use super::Held;
    use crate::scheme::Mode;

    pub trait Sealed {
        /// The side of the lock that this guard stands for.
        const MODE: Mode;
        #[allow(private_interfaces)] // nobody outside can name or call it
        fn new(held: Held) -> Self;
        #[allow(private_interfaces)]
        fn into_held(self) -> Held;
    }
}
pub(crate) use sealed::Sealed;

/// A guard of either side: [`ReadGuard`] or [`WriteGuard`].
pub trait Guard: Sealed + fmt::Debug + Send + Sync + 'static {}

/// One guard's share in a hold; dropped, it hands the release to the background.
pub(crate) struct Held {
    engine: Arc<Engine>,
    /// Taken when the guard lets go.
    hold: Option<Arc<Hold>>,
}

impl Held {
    pub(crate) fn new(engine: Arc<Engine>, hold: Arc<Hold>) -> Self {
        Self { engine, hold: Some(hold) }
    }

    fn hold(&self) -> &Arc<Hold> {
        // Only `release` takes it, and consumes the guard.
        self.hold.as_ref().expect("a guard that is used has its hold")
    }

    pub(crate) async fn release(mut self) -> Result<()> {
        match self.hold.take() {
            Some(hold) => {
                let engine = Arc::clone(&self.engine);
                engine.release(&hold).await
            }
            None => Ok(()),
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.engine.release_in_background(&hold);
        }
    }
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.hold.fmt(f)
    }
}

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
                self.0.hold().token()
            }

            /// How long the hold may be trusted if the server is not heard from again: the local deadline, which comes
            /// before the server's by the clock margin and more. Zero once it is lost.
            #[must_use]
            pub fn remaining(&self) -> Duration {
                self.0.hold().remaining()
            }

            /// How the hold stands by the local clock; asks nobody.
            #[must_use]
            pub fn state(&self) -> HoldState {
                self.0.hold().state()
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
                let hold = self.0.hold();
                async move {
                    match hold.ended().await {
                        Ended::Lost(reason) => reason,
                        Ended::Released => std::future::pending().await,
                    }
                }
            }

            /// A view of the hold for worker tasks: it can be cloned and sent, and keeps nothing locked.
            pub fn watch(&self) -> HoldWatch {
                HoldWatch { hold: Arc::clone(self.0.hold()) }
            }

            /// Gives the lock back and returns when the server knows.
            ///
            /// `Ok` means that the hold was ours to the end. With other guards of a reentrant owner left, this one only
            /// stops counting and nothing is sent.
            ///
            /// # Errors
            ///
            /// [`Error::Lost`](crate::Error::Lost): the hold had ended before, so others may have been inside.
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
    /// Owned, so it can be stored, returned and sent to another task. Dropping it hands the release to the background;
    /// [`release`](ReadGuard::release) waits for the server's word. It keeps what renews it, so it may outlive its manager.
    ReadGuard, Mode::Read
}

guard! {
    /// The exclusive hold: nobody else is inside while it is valid.
    ///
    /// Owned, so it can be stored, returned and sent to another task. Dropping it hands the release to the background;
    /// [`release`](WriteGuard::release) waits for the server's word. It keeps what renews it, so it may outlive its manager.
    WriteGuard, Mode::Write
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
/// let worker = tokio::spawn(async move { watch.ended().await });
/// guard.release().await?;
/// assert_eq!(worker.await.unwrap(), Ended::Released);
/// # Ok(())
/// # }
/// ```
#[derive(Clone)]
pub struct HoldWatch {
    hold: Arc<Hold>,
}

impl HoldWatch {
    /// The lock's name, as it was asked for.
    #[must_use]
    pub fn name(&self) -> &str {
        self.hold.key().name()
    }

    /// The number to hand to the resource behind the lock.
    #[must_use]
    pub fn token(&self) -> FencingToken {
        self.hold.token()
    }

    /// How the hold stands by the local clock. A hold that was released stays [`HoldState::Held`]; see
    /// [`ended`](HoldWatch::ended).
    #[must_use]
    pub fn state(&self) -> HoldState {
        self.hold.state()
    }

    /// Waits until the hold is over, one way or the other.
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and an end that came meanwhile is told at the next call.
    pub async fn ended(&self) -> Ended {
        self.hold.ended().await
    }
}

impl fmt::Debug for HoldWatch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("HoldWatch").field(&self.hold).finish()
    }
}
