//! Options of an acquisition, and the future that acquires the lock.

use std::fmt;
use std::marker::PhantomData;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::base::denied::Denied;
use crate::base::error::{Error, Result};
use crate::base::events;
use crate::base::key::LockName;
use crate::base::metrics;
use crate::base::options::{Overrides, Terms};
use crate::base::process::Process;
use crate::base::reentry::{OwnerId, Reentry};
use crate::engine::acquire::{self, AcquireOutcome, Patience, StartedAcquire};
use crate::engine::{Engine, Held};
use crate::face::guard::Guard;
#[allow(unused_imports)] // only links in the documentation use this import
use crate::face::guard::WriteGuard;
use crate::face::manager::setters;
use crate::lock::hold::{Hold, ShareId};
use crate::store::Mode;

/// Options of an acquisition. Awaiting the `Acquire` acquires the lock; before that, nothing is sent.
///
/// An invalid name or option is reported only when the `Acquire` is awaited.
///
/// # Cancel safety
///
/// Dropping the future at any point gives up its place in the queue. If another task of this process waits for the same
/// lock in the same mode, that task gets the place. Otherwise a background task of the manager removes the place, or
/// the hold that the server has granted in the meantime. If that task cannot reach the server, the place or hold ends
/// there after one lease at most.
///
/// After the error [`WaitTimeout`](crate::Error::WaitTimeout), neither a place nor a hold of the acquisition is left on
/// the server. With `confirmed: false` in this error, the server has not confirmed that.
///
/// A future that is neither polled nor dropped delays other acquisitions for a limited time only. If another task of this
/// process waits for the lock in the same mode, that task goes on with the request after 2.5 s at most. Otherwise the
/// place in the server's queue ends, because no heartbeat comes. A hold that is granted or handed to the future ends after
/// three seconds, or after one lease if the future is not polled before its first request is answered. When a task polls
/// the future, it waits again.
///
/// # Errors
///
/// - [`WaitTimeout`](crate::Error::WaitTimeout) if other owners held the lock for the whole
///   [`wait_timeout`](Acquire::wait_timeout). [`try_now`](Acquire::try_now) returns this error only if the server did
///   not confirm in time that the place in the queue is removed.
/// - [`Unreachable`](crate::Error::Unreachable) if no server answered.
/// - [`Refused`](crate::Error::Refused) if a server refused the request.
/// - [`InvalidName`](crate::Error::InvalidName) and [`InvalidOption`](crate::Error::InvalidOption) before anything is
///   sent. An acquisition that is awaited outside of a tokio runtime also fails with `InvalidOption`.
/// - [`UpgradeConflict`](crate::Error::UpgradeConflict) if acquisitions nest, and the owner of this acquisition for
///   writing already has a [`ReadGuard`](crate::ReadGuard) of the lock.
/// - [`Closed`](crate::Error::Closed) after the manager was closed.
/// - [`TooManyWaiters`](crate::Error::TooManyWaiters) if [`max_waiters`](crate::Builder::max_waiters) acquisitions of
///   the manager are in progress already.
/// - [`Forked`](crate::Error::Forked) in a process that `fork` made from the process that built the manager.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
/// # use redis_rwlock::{MemoryManager, OwnerId, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// # let manager = MemoryManager::new();
/// let guard = manager
///     .write("cfg")
///     .lease(Duration::from_secs(5))
///     .max_hold(Duration::from_secs(60))
///     .wait_timeout(Duration::from_secs(2))
///     .await?;
/// assert!(guard.remaining() < Duration::from_secs(5));
/// assert!(manager.read("cfg").try_now().await?.is_none()); // `None`, because a writer holds the lock
/// guard.release().await?;
///
/// // Nested acquisitions of this task, and of an owner with an id.
/// let outer = manager.write("cfg").reentrant().await?;
/// let inner = manager.read("cfg").reentrant().await?;
/// # drop((outer, inner));
/// let job = OwnerId::new();
/// let outer = manager.write("jobs").owner(job).await?;
/// let inner = manager.read("jobs").owner(job).await?;
/// # drop((outer, inner));
/// # Ok(())
/// # }
/// ```
#[must_use = "an acquisition does nothing unless it is awaited"]
pub struct Acquire<G: Guard> {
    engine: Arc<Engine>,
    request: Request,
    guard: PhantomData<fn() -> G>,
}

/// Name and options of an acquisition.
struct Request {
    name: LockName,
    /// Present if an option was set.
    overrides: Option<Box<Overrides>>,
    note: Option<Arc<str>>,
}

impl<G: Guard> Acquire<G> {
    pub(crate) fn new(engine: Arc<Engine>, name: LockName) -> Self {
        Self { engine, request: Request { name, overrides: None, note: None }, guard: PhantomData }
    }

    fn overrides(&mut self) -> &mut Overrides {
        self.request.overrides.get_or_insert_default()
    }

    setters! { [overrides]
    /// Sets how long the server keeps the hold without a renewal. Defaults to the lease of the manager, which is 10 s
    /// unless [`Builder::lease`](crate::Builder::lease) changes it.
    ///
    /// The manager renews the hold each time a third of its lease has passed. A shorter lease frees the lock sooner
    /// after a crash of this process. A longer lease survives longer outages of the server.
    ///
    /// A new guard has at least half of its lease left, unless the margin
    /// [`max_clock_skew`](crate::Builder::max_clock_skew) takes more than half. If the acquisition gets a share of an
    /// existing hold with less time left, it first waits until the server has renewed the hold. Three kinds of guards
    /// may start with less time, namely with the time that their hold has left:
    ///
    /// - A guard whose acquisition waited in the server's queue. Its hold starts with 3 s, or with the lease if the
    ///   lease is shorter. The hold has its whole lease when [`confirmed`](WriteGuard::confirmed) returns.
    /// - A nested guard.
    /// - A guard of `try_read` or `try_write`, if the server's answer came late.
    pub fn lease(mut self, lease: Duration);

    /// Sets the longest time that the hold lasts, including all renewals. Defaults to the manager's `max_hold`, 1 h. If
    /// `max_hold` is not longer than the lease, the manager never renews the hold.
    ///
    /// The guard is lost after this time at the latest. The manager releases the hold 50 ms later, unless the lease
    /// ends first. So a task that waits for [`lost`](WriteGuard::lost) learns of the end before other processes can
    /// acquire the lock. If the process ends within these 50 ms without a call of
    /// [`flush`](crate::RwLockManager::flush) or [`close`](crate::RwLockManager::close), the hold stays on the server
    /// until its lease is over.
    ///
    /// A shorter limit ends a forgotten hold sooner. A longer limit allows longer work.
    pub fn max_hold(mut self, max_hold: Duration);
    }

    /// Sets a lease that the manager never renews. The lock is free again after this time, even if this process dies.
    /// Equivalent to `lease(lease).max_hold(lease)`.
    ///
    /// Use a fixed lease for work that is known to be short, or for holders that nothing supervises. A shorter lease
    /// frees the lock sooner. A longer lease leaves more time for slow work.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let guard = manager.write("cfg").fixed_lease(Duration::from_secs(3)).await?;
    /// assert!(guard.remaining() <= Duration::from_secs(3));
    /// # guard.release().await
    /// # }
    /// ```
    pub fn fixed_lease(self, lease: Duration) -> Self {
        self.lease(lease).max_hold(lease)
    }

    setters! { [overrides]
    /// Sets how long the acquisition waits for other holders. Defaults to the limit of the manager
    /// ([`Builder::wait_timeout`](crate::Builder::wait_timeout)), which defaults to no limit.
    ///
    /// The acquisition sends at least one request, even with a limit of zero, and waits up to one response timeout for
    /// the first answer. With a longer limit, the acquisition succeeds even if other owners hold the lock for longer.
    /// With a shorter limit, the caller learns earlier that the lock is not available.
    ///
    /// At the limit, the acquisition cancels its place in the queue and then fails with
    /// [`WaitTimeout`](crate::Error::WaitTimeout). The cancellation takes one round trip, or two if a request of the
    /// acquisition has no answer yet. It takes two [response timeouts](crate::Builder::response_timeout) at most.
    ///
    /// Another process may have a cached hold of the lock, which it keeps without a guard
    /// ([`cache_for`](crate::Builder::cache_for)). That process needs time to release the hold. So if the server's
    /// answer reports such a hold, the acquisition waits after that answer for at least
    /// [`recall_timeout`](crate::Builder::recall_timeout), even beyond the limit.
    pub fn wait_timeout(mut self, wait_timeout: Duration);

    /// Sets for how long this process keeps the hold without a guard (*caches* it) after its last guard was dropped.
    /// The manager's [`cache_for`](crate::Builder::cache_for) is the upper limit. Zero releases the hold at once. If
    /// several acquisitions share a hold, the manager uses the value of the last acquisition.
    ///
    /// A longer time saves requests if this process uses the lock again. After a shorter time, the lock is free for
    /// other processes. Until then, they must first recall the hold, which means to ask this process to release it.
    pub fn cache_for(mut self, cache_for: Duration);
    }

    /// Sets a note for people: what the holder does, such as `deploy 4711`. [`inspect`](crate::RwLockManager::inspect)
    /// and the program `redis-rwlock` show it. At most 4096 bytes; defaults to no note.
    ///
    /// A hold on the server has one note, and the last one counts. So a reader that joins the hold of its process
    /// replaces the note there. [`set_note`](WriteGuard::set_note) changes the note later. A conversion keeps it. If the
    /// hold goes to another guard of the process, by a hand-off or from the [cache](crate::Builder::cache_for), and that
    /// guard has no note, the manager removes the note.
    ///
    /// The note is set after the grant and before the guard is returned, by one more request. If this request fails, the
    /// acquisition fails, and the manager releases the hold. A failover can lose a note.
    ///
    /// Only [`RedisManager`](crate::RedisManager) and [`MemoryManager`](crate::MemoryManager) have notes, and not with
    /// [`timestamp_keys`](crate::Builder::timestamp_keys). Elsewhere, the acquisition fails with
    /// [`InvalidOption`](crate::Error::InvalidOption) before anything is sent.
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let guard = manager.write("production").note("deploy 4711").await?;
    /// let view = manager.peer().inspect("production").await?;
    /// assert_eq!(view.holders[0].note.as_deref(), Some("deploy 4711"));
    /// guard.set_note("deploy 4711, migrating").await?;
    /// # guard.release().await
    /// # }
    /// ```
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.request.note = Some(note.into().into());
        self
    }

    /// Lets the acquisition nest if this task holds the lock already; see [`Reentry`]. Outside of tokio tasks, the
    /// thread counts as the task.
    pub fn reentrant(self) -> Self {
        self.reentry(Reentry::PerTask)
    }

    /// Lets the acquisition nest if this owner holds the lock already; see [`Reentry`].
    pub fn owner(self, owner: OwnerId) -> Self {
        self.reentry(Reentry::Named(owner))
    }

    setters! { [overrides]
    /// Sets the owner of this acquisition: its task, a named owner, or none. An acquisition nests if its owner already
    /// has a guard of the lock. Replaces the manager's [`reentry`](crate::Builder::reentry).
    ///
    /// # Examples
    ///
    /// ```
    /// use redis_rwlock::{MemoryManager, Reentry, RwLockManager};
    ///
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// let manager = MemoryManager::builder().reentry(Reentry::PerTask).build()?;
    /// let outer = manager.write("cfg").await?;
    /// let inner = manager.write("cfg").reentry(Reentry::Off).try_now().await?;
    /// assert!(inner.is_none());
    /// # outer.release().await
    /// # }
    /// ```
    pub fn reentry(mut self, reentry: Reentry);
    }

    /// Asks the server once. Returns `None` if other owners hold the lock, or if other tasks of this process already
    /// wait for it. Returns within two response timeouts. If a request of it got no answer, and the server answers again,
    /// it also waits until the server can execute no copy of this request.
    ///
    /// # Errors
    ///
    /// The errors of the acquisition itself; see [`Acquire`]. `WaitTimeout` means here only that the server did not
    /// confirm in time that the place in the queue is removed.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for the acquisition itself; see [`Acquire`].
    pub async fn try_now(self) -> Result<Option<G>> {
        Ok(self.request.ask_once(self.engine, G::MODE).await?.ok().map(G::new))
    }

    /// Asks the server once, as [`try_now`](Acquire::try_now) does. A refusal names the holder of the lock. The manager
    /// takes the name from the server's answer, and sends no further request.
    ///
    /// # Errors
    ///
    /// The errors of [`try_now`](Acquire::try_now). The inner error is the refusal.
    ///
    /// # Cancel safety
    ///
    /// The same rules hold as for the acquisition itself; see [`Acquire`].
    ///
    /// # Examples
    ///
    /// ```
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// match manager.write("cfg").try_or_denied().await? {
    ///     Ok(guard) => guard.release().await?,
    ///     Err(denied) => println!("cfg is taken: {denied}"), // held by "web:12" (read, for 3.2s, 8.1s left)
    /// }
    /// # Ok(())
    /// # }
    /// ```
    pub async fn try_or_denied(self) -> Result<Result<G, Denied>> {
        Ok(self.request.ask_once(self.engine, G::MODE).await?.map(G::new).map_err(|denied| *denied))
    }

    /// Acquires the lock, runs `work`, and releases the lock.
    ///
    /// `work` gets a reference to the guard, so it can read the [fencing token](WriteGuard::fencing_token). If the hold
    /// is lost during the work, the future of `work` is dropped before another process can acquire the lock. Dropping a
    /// future stops its code only at an `await`. So a computation without an `await` continues, and a task that the
    /// work has spawned continues too.
    ///
    /// `Ok` means that the work ended while the hold was valid. A release without an answer is not an error of `run`.
    /// The background retries the release, and the lease ends the hold in any case.
    ///
    /// The future is `Send` if the future of `work` is. Work that can fail returns a `Result` as its value.
    ///
    /// # Errors
    ///
    /// [`Lost`](Error::Lost) if the hold was lost and the work was dropped, or if the server no longer knew the hold
    /// when it was released. In both cases, others may have held the lock during the work. All other errors are those
    /// of the acquisition, and the work did not begin.
    ///
    /// # Cancel safety
    ///
    /// Before the lock is acquired, dropping the future has the same effect as dropping the acquisition. After that,
    /// dropping the future first drops the work. Then the manager releases the hold in the background.
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # use redis_rwlock::{FencingToken, MemoryManager, RwLockManager};
    /// # async fn store(_: &str, token: FencingToken) -> u64 { token.into() }
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let written = manager
    ///     .write("cfg")
    ///     .wait_timeout(Duration::from_secs(2))
    ///     .run(async |guard| store("new value", guard.fencing_token()).await)
    ///     .await?;
    /// # assert!(written > 0);
    /// # Ok(())
    /// # }
    /// ```
    pub async fn run<T>(self, work: impl AsyncFnOnce(&G) -> T) -> Result<T> {
        let guard = self.into_future().await?;
        let outcome = {
            let lost = guard.as_held().lost();
            let work = work(&guard);
            tokio::select! {
                // The loss has priority: work that ended after the loss may have run while others held the lock.
                biased;
                reason = lost => Err(reason),
                done = work => Ok(done),
            }
        };
        let held = guard.into_held();
        match outcome {
            Ok(done) => unless_lost(done, held.release().await),
            Err(reason) => Err(held.hold().key().loss(reason)),
        }
    }
}

/// Returns the result of work, unless the release has found that the hold was lost during the work. A release without an
/// answer, or a refused release, is no error here, because the work ended while the hold was valid.
pub(super) fn unless_lost<T>(done: T, released: Result<()>) -> Result<T> {
    match released {
        Err(lost @ (Error::Lost { .. } | Error::Forked { .. })) => Err(lost),
        Ok(()) | Err(_) => Ok(done),
    }
}

impl Acquire<WriteGuard> {
    setters! { [overrides]
    /// Sets how long the lock stays taken on the server, counted from the grant. If the guard is released earlier, the
    /// lock *rests* until that time: no process can acquire it, and this process keeps no guard, renewal or task for
    /// it. [`inspect`](crate::RwLockManager::inspect) shows the rest as a holder with
    /// [`resting`](crate::HolderView::resting). There is no rest by default.
    ///
    /// Use it for work that several machines start at about the same time and that only one of them may do, such as
    /// cron jobs: with [`try_now`](Acquire::try_now), and with a time that is longer than the difference between the
    /// machines' clocks. Without the rest, a machine whose clock is behind would find the lock free again after a short
    /// job, and do the work a second time. Choose a time that is shorter than the period of the job minus that
    /// difference. The rest may last longer than asked by a round trip and
    /// [`max_clock_skew`](crate::Builder::max_clock_skew), and never less.
    ///
    /// The acquisition sends one more request, a renewal that names the time, and succeeds when the server has answered
    /// it. From then on the lock stays taken whatever ends the hold: a release, the drop of the guard,
    /// [`max_hold`](Acquire::max_hold), [`close`](crate::RwLockManager::close), or the death of this process. It also
    /// survives a failover, as far as the [`Durability`](crate::Durability) of the manager does. A cancelled or failed
    /// acquisition leaves no rest; but if the process dies after it has sent that renewal, the lock stays taken until
    /// the time. The guard itself is valid no longer than without the option, since its validity counts the lease only.
    ///
    /// [`release_at_once`](WriteGuard::release_at_once) leaves no rest, and
    /// [`force_release`](crate::RwLockManager::force_release) ends one. A waiter acquires the lock at most one second
    /// after the end of the rest. The hold is never [cached](Acquire::cache_for), and the next writer of this process
    /// waits as others do.
    ///
    /// # Errors
    ///
    /// The acquisition fails with [`InvalidOption`](Error::InvalidOption) before anything is sent in these cases: the
    /// time is zero or longer than a year; the manager is a [`QuorumManager`](crate::QuorumManager) or uses
    /// [`timestamp_keys`](crate::Builder::timestamp_keys), which cannot keep a rest; or the acquisition nests in a hold
    /// of its owner. A guard with this option cannot be [downgraded](WriteGuard::downgrade).
    ///
    /// # Examples
    ///
    /// ```
    /// use std::time::Duration;
    /// # use redis_rwlock::{MemoryManager, RwLockManager};
    /// # async fn send_report() {}
    /// # #[tokio::main(flavor = "current_thread")]
    /// # async fn main() -> redis_rwlock::Result<()> {
    /// # let manager = MemoryManager::new();
    /// let job = manager.write("report").at_least(Duration::from_secs(30));
    /// if let Some(guard) = job.try_now().await? {
    ///     send_report().await;
    ///     guard.release().await?; // the lock stays taken for the rest of the 30 s
    /// }
    /// assert!(manager.try_write("report").await?.is_none());
    /// assert!(manager.inspect("report").await?.holders[0].resting);
    /// # Ok(())
    /// # }
    /// ```
    pub fn at_least(mut self, at_least: Duration);
    }
}

impl Request {
    /// Returns a share of a hold that this process already has, if the share needs no request.
    #[inline]
    fn join(&self, engine: &Engine, mode: Mode) -> Option<(Arc<Hold>, ShareId)> {
        // Here a writer can only get a cached hold, and without the option `cache_for` there is none. Nested
        // acquisitions and hand-offs need a future, which `start` returns.
        if mode == Mode::Write && !engine.options().may_cache() || self.note.is_some() {
            return None;
        }
        let overrides = self.overrides.as_deref().copied().unwrap_or_default();
        // A hold that is to rest needs a request before its guard is handed out.
        if overrides.at_least.is_some() {
            return None;
        }
        let terms = Terms::new(engine.options(), overrides).ok()?;
        acquire::join(engine, &self.name, mode, &terms)
    }

    async fn ask_once(self, engine: Arc<Engine>, mode: Mode) -> AcquireOutcome {
        engine.process.check(self.name.as_str())?;
        self.start(&engine, mode, Patience::AskOnce)?.await
    }

    /// Starts the acquisition. If an observer wants metrics or spans, the returned future starts it.
    fn start(self, engine: &Arc<Engine>, mode: Mode, patience: Patience) -> Result<StartedAcquire> {
        if !metrics::IS_ON && !events::spans_are_wanted() {
            return self.start_unobserved(engine, mode, patience);
        }
        let (engine, name) = (Arc::clone(engine), self.name.as_str().to_owned());
        Ok(Box::pin(async move {
            let acquiring = async { self.start_unobserved(&engine, mode, patience)?.await };
            observed(&engine, &name, mode, acquiring).await
        }))
    }

    fn start_unobserved(self, engine: &Arc<Engine>, mode: Mode, patience: Patience) -> Result<StartedAcquire> {
        let key = engine.key(self.name.as_str())?;
        let terms = Terms::new(engine.options(), self.overrides.as_deref().copied().unwrap_or_default())?;
        let note = self.note;
        note.as_deref().map_or(Ok(()), |note| engine.check_note(note))?;
        acquire::start(engine, &key, mode, &terms, patience, note)
    }
}

/// Counts an acquisition and runs it within its tracing span. The span of the hold begins after the span of the
/// acquisition has ended. So the parent of the hold's span is the span of the caller.
async fn observed(
    engine: &Engine,
    name: &str,
    mode: Mode,
    acquiring: impl Future<Output = AcquireOutcome> + Send,
) -> AcquireOutcome {
    let underway = engine.table.metrics().begin(mode, engine.clock);
    let outcome = events::within(name, mode, acquiring, Result::is_ok).await;
    if let Ok(Ok(held)) = &outcome {
        held.hold().begin_span();
    }
    underway.end(events::word_for_outcome(&outcome, Result::is_ok));
    outcome
}

impl<G: Guard> IntoFuture for Acquire<G> {
    type Output = Result<G>;
    type IntoFuture = Acquiring<G>;

    #[inline]
    fn into_future(self) -> Acquiring<G> {
        Acquiring { engine: Some(self.engine), step: AcquireStep::New(self.request), guard: PhantomData }
    }
}

impl<G: Guard> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("lock", &self.request.name.as_str())
            .field("mode", &G::MODE)
            .field("options", &self.request.overrides.as_deref().copied().unwrap_or_default())
            .finish_non_exhaustive()
    }
}

/// Future of an acquisition; see [`Acquire`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Acquiring<G: Guard> {
    /// Engine until the acquisition starts; `None` while it runs and after its end.
    engine: Option<Arc<Engine>>,
    step: AcquireStep,
    guard: PhantomData<fn() -> G>,
}

enum AcquireStep {
    /// State before the first poll. A reader that joins a hold of its process is ready at the first poll, without an
    /// allocation.
    New(Request),
    Underway {
        process: Process,
        future: StartedAcquire,
    },
    Done,
}

impl<G: Guard> Acquiring<G> {
    /// Starts an acquisition that could not join a hold at its first poll.
    fn set_out(&mut self, engine: &Arc<Engine>) -> Result<()> {
        // If this method fails, the step stays `Done`, because the future returns the error and has then ended.
        if let AcquireStep::New(request) = std::mem::replace(&mut self.step, AcquireStep::Done) {
            let process = engine.process.clone();
            process.check(request.name.as_str())?;
            let future = request.start(engine, G::MODE, Patience::Wait)?;
            self.step = AcquireStep::Underway { process, future };
        }
        Ok(())
    }
}

impl<G: Guard> Future for Acquiring<G> {
    type Output = Result<G>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(engine) = self.engine.take()
            && let AcquireStep::New(request) = &self.step
        {
            // Borrows the request, since moving it would cost time on the fastest path.
            if let Some((hold, share_id)) = request.join(&engine, G::MODE) {
                engine.table.metrics().count_join(G::MODE);
                engine.drop_old_note(&hold);
                return Poll::Ready(Ok(G::new(Held::of(engine, hold, share_id))));
            }
            self.set_out(&engine)?;
        }
        match &mut self.step {
            AcquireStep::Underway { future, .. } => future.as_mut().poll(cx).map_ok(|outcome| match outcome {
                Ok(held) => G::new(held),
                Err(_) => unreachable!("only a caller that asks once is refused"),
            }),
            AcquireStep::New(_) | AcquireStep::Done => panic!("polled after its end"),
        }
    }
}

impl<G: Guard> Drop for Acquiring<G> {
    /// In a child process after `fork`, forgets the inner future instead of dropping it. Dropping it would cancel the
    /// acquisition, but the acquisition belongs to the parent process.
    fn drop(&mut self) {
        if let AcquireStep::Underway { process, .. } = &self.step
            && !process.is_current()
        {
            std::mem::forget(std::mem::replace(&mut self.step, AcquireStep::Done));
        }
    }
}

impl<G: Guard> fmt::Debug for Acquiring<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquiring")
    }
}
