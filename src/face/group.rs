//! Acquisition of several locks in one step, and the guard of all of them.

use std::fmt;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::future::{join_all, select_all};

use crate::base::denied::Denied;
use crate::base::error::{Error, LossReason, Result};
use crate::base::events;
use crate::base::lease::FencingToken;
use crate::base::mode::Mode;
use crate::base::options::{Overrides, Terms};
use crate::base::process::Process;
use crate::base::reentry::{OwnerId, Reentry};
use crate::engine::acquire::Patience;
use crate::engine::group::{GroupRefusal, Wanted, acquire_all, with_one_write};
use crate::engine::{Engine, Held};
use crate::face::acquire::unless_lost;
use crate::face::manager::setters;
#[allow(unused_imports)] // only links in the documentation use these imports
use crate::face::{acquire::Acquire, guard::WriteGuard, manager::RwLockManager};
use crate::lock::hold::HoldState;
use crate::store::BoxFuture;

/// Largest number of names in one call of [`all`](RwLockManager::all).
const MAX_NAMES: usize = 256;

/// Name of a lock and a mode, for [`RwLockManager::all`]. The functions [`read`](fn@read) and [`write`](fn@write) create it.
///
/// # Examples
///
/// ```
/// let lock = redis_rwlock::write("account:1");
/// assert_eq!((lock.name(), lock.mode()), ("account:1", redis_rwlock::Mode::Write));
/// ```
#[derive(Clone, PartialEq, Eq, Hash, Debug)]
pub struct NamedLock {
    name: String,
    mode: Mode,
}

impl NamedLock {
    /// Returns the lock's name, as the caller gave it.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Returns the mode in which the caller wants the lock.
    #[must_use]
    pub fn mode(&self) -> Mode {
        self.mode
    }
}

/// Names a lock that [`RwLockManager::all`] acquires for reading.
#[must_use]
pub fn read(name: impl Into<String>) -> NamedLock {
    NamedLock { name: name.into(), mode: Mode::Read }
}

/// Names a lock that [`RwLockManager::all`] acquires for writing.
#[must_use]
pub fn write(name: impl Into<String>) -> NamedLock {
    NamedLock { name: name.into(), mode: Mode::Write }
}

/// Options of an acquisition of several locks; [`RwLockManager::all`] returns it. Awaiting the `AcquireAll` acquires
/// all locks or none of them; before that, nothing is sent.
///
/// # Order
///
/// The acquisition first asks for all locks at once. If all are available, this takes one round trip. Otherwise the
/// acquisition waits for one lock at a time, in the order of the bytes of their keys. While it waits, it holds only
/// locks that come earlier in this order. So calls of `all` cannot deadlock with each other, nor with holders that hold
/// only one lock and wait for no other. With [`RedisManager`](crate::RedisManager) and
/// [`MemoryManager`](crate::MemoryManager) the queues are fair, so each call gets its locks in the end. With
/// [`TwoKeyManager`](crate::TwoKeyManager) and [`QuorumManager`](crate::QuorumManager), acquisitions succeed in no
/// fixed order, so a call may wait for long while others come.
///
/// This does not cover an owner that already holds other locks when it calls `all`. The manager logs a warning if such
/// a call waits for a lock that comes before one that its owner holds.
///
/// # Time
///
/// The process renews the locks that it already holds while the acquisition waits for another one. For each lock,
/// [`max_hold`](AcquireAll::max_hold) counts from its own grant. A [`fixed_lease`](AcquireAll::fixed_lease) counts from
/// the moment at which all locks are held.
///
/// If a lock is lost while the acquisition waits for another one, the acquisition gives back all locks behind it, and
/// begins again at the lost one.
///
/// # Cancel safety
///
/// Dropping the future gives back the locks that it holds, and its place in a queue, in the background. What stays on
/// the server ends with its lease. If the future is not polled for 3 s, it loses the locks that it holds, and other
/// processes get them. Polled again, the acquisition acquires them anew.
///
/// # Errors
///
/// - [`WaitTimeout`](Error::WaitTimeout) names the lock for which the acquisition waited at the limit. Before it
///   returns this error, it gives back the locks that it holds. With `confirmed: false`, the server has not confirmed
///   in time that nothing is left.
/// - [`UpgradeConflict`](Error::UpgradeConflict) before anything is sent, if acquisitions nest, and the owner holds one
///   of the locks for reading that it wants for writing.
/// - [`InvalidOption`](Error::InvalidOption) also for more than 256 names.
/// - All other errors are those of [`Acquire`]. The acquisition then gives back the locks that it holds in the
///   background.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// use redis_rwlock::{MemoryManager, RwLockManager, read, write};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let locks = MemoryManager::new();
/// let guard = locks.all(&[write("account:1"), write("account:2"), read("rates")]).wait_timeout(Duration::from_secs(2)).await?;
/// let token = guard.fencing_token("account:1").expect("the group contains this name");
/// // … change both accounts, and send the token of each with its requests …
/// guard.release().await
/// # }
/// ```
#[must_use = "an acquisition does nothing unless it is awaited"]
pub struct AcquireAll {
    engine: Arc<Engine>,
    names: Vec<NamedLock>,
    overrides: Overrides,
}

impl AcquireAll {
    pub(crate) fn new(engine: Arc<Engine>, names: &[NamedLock]) -> Self {
        Self { engine, names: names.to_vec(), overrides: Overrides::default() }
    }

    fn overrides(&mut self) -> &mut Overrides {
        &mut self.overrides
    }

    setters! { [overrides]
    /// Sets how long the server keeps each hold without a renewal; see [`Acquire::lease`].
    pub fn lease(mut self, lease: Duration);

    /// Sets the longest time that each hold lasts, counted from its own grant; see [`Acquire::max_hold`].
    pub fn max_hold(mut self, max_hold: Duration);
    }

    /// Sets a lease that the manager does not renew after it holds all locks. Equivalent to
    /// `lease(lease).max_hold(lease)`. If the acquisition had to wait, one renewal of each lock sets this lease, and is
    /// answered before the guard is returned. See [`Acquire::fixed_lease`].
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.lease(lease).max_hold(lease)
    }

    setters! { [overrides]
    /// Sets how long the acquisition waits for other holders, for all locks together; see [`Acquire::wait_timeout`].
    pub fn wait_timeout(mut self, wait_timeout: Duration);

    /// Sets for how long this process caches each hold after its last guard was dropped; see [`Acquire::cache_for`].
    pub fn cache_for(mut self, cache_for: Duration);
    }

    /// Lets the acquisition nest in locks that this task holds already; see [`Acquire::reentrant`].
    pub fn reentrant(self) -> Self {
        self.reentry(Reentry::PerTask)
    }

    /// Lets the acquisition nest in locks that this owner holds already; see [`Acquire::owner`].
    pub fn owner(self, owner: OwnerId) -> Self {
        self.reentry(Reentry::Named(owner))
    }

    setters! { [overrides]
    /// Sets the owner of this acquisition; see [`Acquire::reentry`].
    pub fn reentry(mut self, reentry: Reentry);
    }

    /// Asks for each lock once. Returns `None` if one of them is not available, and then holds none of them. Returns
    /// within four response timeouts.
    ///
    /// Two such calls at the same time may refuse each other. A call may also be refused because of a lock that another
    /// call gives back a moment later.
    ///
    /// # Errors
    ///
    /// The errors of the acquisition itself; see [`AcquireAll`]. `WaitTimeout` means here only that the server did not
    /// confirm in time that the other locks are given back.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for the acquisition itself; see [`AcquireAll`].
    pub async fn try_now(self) -> Result<Option<GroupGuard>> {
        Ok(self.try_or_denied().await?.ok())
    }

    /// Asks for each lock once, as [`try_now`](AcquireAll::try_now) does. A refusal names the lock that was not
    /// available, and its holder. The manager sends no further request for that.
    ///
    /// # Errors
    ///
    /// The errors of [`try_now`](AcquireAll::try_now). The inner error is the refusal.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for the acquisition itself; see [`AcquireAll`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager, read, write};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::new();
    /// let guard = manager.write("b").await?;
    /// let denied = manager.peer().all(&[read("a"), write("b")]).try_or_denied().await?.expect_err("`b` is taken");
    /// assert_eq!(&*denied.lock, "b");
    /// # guard.release().await
    /// # }
    /// ```
    pub async fn try_or_denied(self) -> Result<Result<GroupGuard, GroupDenied>> {
        self.take(Patience::AskOnce).await
    }

    /// Acquires all locks, runs `work`, and releases the locks. If one of them is lost during the work, the future of
    /// `work` is dropped; see [`Acquire::run`].
    ///
    /// # Errors
    ///
    /// [`Lost`](Error::Lost) if a hold was lost, with the name of its lock. All other errors are those of the
    /// acquisition, and the work did not begin.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for [`Acquire::run`].
    pub async fn run<T>(self, work: impl AsyncFnOnce(&GroupGuard) -> T) -> Result<T> {
        let guard = self.into_future().await?;
        let outcome = {
            let lost = guard.lost();
            let work = work(&guard);
            tokio::select! {
                // The loss has priority: work that ended after the loss may have run while others held the lock.
                biased;
                lost = lost => Err(lost),
                done = work => Ok(done),
            }
        };
        match outcome {
            Ok(done) => unless_lost(done, guard.release().await),
            Err(lost) => Err(lost.into()),
        }
    }

    async fn take(self, patience: Patience) -> Result<Result<GroupGuard, GroupDenied>> {
        let Self { engine, names, overrides } = self;
        let terms = Terms::new(engine.options(), overrides)?;
        let (wanted, members) = in_order(&engine, &names)?;
        let metrics = engine.table.metrics();
        let underway: Vec<_> = wanted.iter().map(|wanted| metrics.begin(wanted.mode, engine.clock)).collect();
        let first = wanted.first().map(|wanted| wanted.key.shared_name()).unwrap_or_default();
        let acquiring = pin!(acquire_all(&engine, &wanted, terms, patience));
        let outcome = engine.process.here(&first, acquiring).await;
        if let Ok(Ok(held)) = &outcome {
            held.iter().for_each(|held| held.hold().begin_span());
        }
        let word = events::word_for_outcome(&outcome, Result::is_ok);
        underway.into_iter().for_each(|underway| underway.end(word));
        Ok(match outcome? {
            Ok(held) => Ok(GroupGuard { held, members }),
            Err(GroupRefusal { lock, denied }) => Err(GroupDenied { lock, denied: *denied }),
        })
    }
}

/// Returns each lock once, in the order in which groups wait for them, and the index of each name of the caller in that
/// order. If a name comes twice, the group has it in the stronger mode.
fn in_order(engine: &Engine, names: &[NamedLock]) -> Result<(Vec<Wanted>, Vec<usize>)> {
    if names.len() > MAX_NAMES {
        let reason = format!("{} names are too many; the limit is {MAX_NAMES}", names.len());
        return Err(Error::invalid("all", reason));
    }
    let mut wanted = Vec::with_capacity(names.len());
    for NamedLock { name, mode } in names {
        wanted.push(Wanted { key: engine.key(name)?, mode: *mode });
    }
    let mut sorted = wanted.clone();
    // A write comes before a read of the same lock, so it is the one that stays.
    sorted.sort_by(|one, other| {
        (one.key.base(), one.mode == Mode::Read).cmp(&(other.key.base(), other.mode == Mode::Read))
    });
    sorted.dedup_by(|later, first| later.key.base() == first.key.base());
    let index_of = |wanted: &Wanted| sorted.partition_point(|other| other.key.base() < wanted.key.base());
    let members = wanted.iter().map(index_of).collect();
    Ok((sorted, members))
}

impl IntoFuture for AcquireAll {
    type Output = Result<GroupGuard>;
    type IntoFuture = AcquiringAll;

    fn into_future(self) -> AcquiringAll {
        let process = self.engine.process.clone();
        AcquiringAll { process, future: Some(Box::pin(self.take(Patience::Wait))) }
    }
}

impl fmt::Debug for AcquireAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("AcquireAll")
            .field("locks", &self.names)
            .field("options", &self.overrides)
            .finish_non_exhaustive()
    }
}

/// Future of an acquisition of several locks; see [`AcquireAll`].
#[must_use = "futures do nothing unless they are polled"]
pub struct AcquiringAll {
    process: Process,
    /// `None` after the drop in a forked process.
    future: Option<BoxFuture<'static, Result<Result<GroupGuard, GroupDenied>>>>,
}

impl Future for AcquiringAll {
    type Output = Result<GroupGuard>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        match &mut self.future {
            Some(future) => future.as_mut().poll(cx).map_ok(|guard| match guard {
                Ok(guard) => guard,
                Err(_) => unreachable!("only a caller that asks once is told no"),
            }),
            None => unreachable!("it is polled after its drop"),
        }
    }
}

impl Drop for AcquiringAll {
    /// In a child process after `fork`, forgets the inner future instead of dropping it, because the acquisition
    /// belongs to the parent process.
    fn drop(&mut self) {
        if !self.process.is_current() {
            std::mem::forget(self.future.take());
        }
    }
}

impl fmt::Debug for AcquiringAll {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("AcquiringAll")
    }
}

/// Refusal of an acquisition of several locks: the first lock in the order of the keys that was not available.
/// [`AcquireAll::try_or_denied`] returns it.
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupDenied {
    /// Name of the lock.
    pub lock: Arc<str>,
    /// Reason for which the acquisition was kept out.
    pub denied: Denied,
}

impl fmt::Display for GroupDenied {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "lock {:?}: {}", self.lock, self.denied)
    }
}

/// Loss of one hold of a [`GroupGuard`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupLoss {
    /// Name of the lock.
    pub lock: Arc<str>,
    /// Reason of the loss.
    pub reason: LossReason,
}

impl fmt::Display for GroupLoss {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        Error::from(self.clone()).fmt(f)
    }
}

impl From<GroupLoss> for Error {
    fn from(GroupLoss { lock, reason }: GroupLoss) -> Self {
        Self::Lost { lock, reason }
    }
}

/// Guard of several locks, which [`RwLockManager::all`] acquires. Dropping the guard releases all locks in the
/// background; [`release`](GroupGuard::release) waits for the answers.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{HoldState, MemoryManager, RwLockManager, read, write};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let locks = MemoryManager::new();
/// let guard = locks.all(&[write("b"), read("a")]).await?;
/// let names: Vec<_> = guard.locks().map(|lock| lock.name).collect();
/// assert_eq!(names, ["b", "a"]); // in the order of the call
/// assert!(locks.peer().all(&[read("a"), read("b")]).try_now().await?.is_none()); // a writer holds `b`
/// guard.release().await
/// # }
/// ```
#[must_use = "a guard that is dropped releases the locks"]
pub struct GroupGuard {
    /// Shares in the order of the keys.
    held: Vec<Held>,
    /// Index of the share for each name, in the order of the call.
    members: Vec<usize>,
}

/// Lock of a [`GroupGuard`].
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub struct GroupLock<'a> {
    /// Lock's name, as the caller gave it.
    pub name: &'a str,
    /// Mode of the hold.
    pub mode: Mode,
    /// Fencing token of the hold.
    pub fencing_token: FencingToken,
}

impl GroupGuard {
    /// Returns the locks of the group in the order of the call. A name that the caller gave twice comes twice.
    pub fn locks(&self) -> impl Iterator<Item = GroupLock<'_>> {
        self.members.iter().map(|index| {
            let held = &self.held[*index];
            let hold = held.hold();
            GroupLock { name: hold.key().name(), mode: hold.mode(), fencing_token: held.share_id().token }
        })
    }

    /// Returns the fencing token for the lock `name`; see [`WriteGuard::fencing_token`]. Returns `None` if the group
    /// does not contain this name.
    #[must_use]
    pub fn fencing_token(&self, name: &str) -> Option<FencingToken> {
        let held = self.held.iter().find(|held| held.hold().key().name() == name)?;
        Some(held.share_id().token)
    }

    /// Returns the shortest remaining local validity of the holds; see [`WriteGuard::remaining`]. For a group without a
    /// lock it is the maximum.
    #[must_use]
    pub fn remaining(&self) -> Duration {
        self.held.iter().map(|held| held.hold().remaining(held.share_id())).min().unwrap_or(Duration::MAX)
    }

    /// Returns the state of the group by the local clock: lost if one of its holds is lost, else unconfirmed if one of
    /// them is. Sends nothing. See [`WriteGuard::state`].
    #[must_use]
    pub fn state(&self) -> HoldState {
        let mut worst = HoldState::Held;
        for held in &self.held {
            match held.state() {
                lost @ HoldState::Lost(_) => return lost,
                HoldState::Unconfirmed => worst = HoldState::Unconfirmed,
                HoldState::Held => {}
            }
        }
        worst
    }

    /// Waits until one of the holds is lost, and returns its lock and the reason. The manager renews the other holds
    /// until they are released. See [`WriteGuard::lost`].
    ///
    /// # Cancel safety
    ///
    /// Safe: dropping the future changes nothing, and the next call reports a loss that happened meanwhile.
    pub async fn lost(&self) -> GroupLoss {
        let lost = self.held.iter().map(|held| {
            Box::pin(async move { GroupLoss { reason: held.lost().await, lock: held.hold().key().shared_name() } })
        });
        let lost: Vec<_> = lost.collect();
        if lost.is_empty() { std::future::pending().await } else { select_all(lost).await.0 }
    }

    /// Waits until each hold has the whole lease of the acquisition; see [`WriteGuard::confirmed`].
    ///
    /// # Errors
    ///
    /// [`Error::Lost`] if a hold ended before the server answered its renewal. [`Error::InvalidOption`] if the call would have
    /// to wait, and is awaited outside of a tokio runtime.
    ///
    /// # Cancel safety
    ///
    /// Safe: the guard keeps the holds, and the renewals continue.
    pub async fn confirmed(&self) -> Result<()> {
        first_error(join_all(self.held.iter().map(Held::confirmed)).await)
    }

    /// Releases all locks, and returns when the servers have confirmed that.
    ///
    /// # Errors
    ///
    /// The errors of [`WriteGuard::release`]. If several releases fail, the error is the first
    /// [`Lost`](Error::Lost) in the order of the keys, or else the first error in this order.
    ///
    /// # Cancel safety
    ///
    /// Safe: if the future is dropped, the manager releases the locks in the background, whether the future was polled
    /// or not.
    pub async fn release(self) -> Result<()> {
        first_error(with_one_write(join_all(self.held.into_iter().map(Held::release))).await)
    }
}

/// Returns the first loss, or else the first error.
fn first_error(results: Vec<Result<()>>) -> Result<()> {
    let mut errors: Vec<_> = results.into_iter().filter_map(Result::err).collect();
    let lost = errors.iter().position(|error| matches!(error, Error::Lost { .. }));
    if errors.is_empty() { Ok(()) } else { Err(errors.swap_remove(lost.unwrap_or(0))) }
}

impl fmt::Debug for GroupGuard {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("GroupGuard").field(&self.held).finish()
    }
}
