//! The builder of an acquisition, and the future it becomes.

use std::fmt;
use std::marker::PhantomData;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use crate::engine::acquire::{self, Patience};
use crate::engine::{Engine, Held};
use crate::error::{Error, Result};
use crate::events;
use crate::guard::Guard;
#[allow(unused_imports)] // for the documentation
use crate::guard::WriteGuard;
use crate::key::LockName;
use crate::lock::hold::{Hold, ShareId};
use crate::meter;
use crate::options::{Overrides, Terms};
use crate::process::Process;
use crate::reentry::{OwnerId, Reentry};
use crate::scheme::{BoxFuture, Mode};

/// An acquisition that is being put together. Awaited, it takes the lock; before that nothing is sent.
///
/// Bad names and options surface when it is awaited.
///
/// # Cancel safety
///
/// Dropping the future at any point gives up the place in the queue, to the next waiter of this process if there is one, and
/// takes back in the background what it may have left on the server. Nothing stays there longer than one lease.
///
/// An acquisition that ends with [`WaitTimeout`](crate::Error::WaitTimeout) has left nothing when it returns, unless the error
/// says `confirmed: false`.
///
/// A future that is neither polled nor dropped keeps its turn in this process, as with tokio's locks: those behind it wait for
/// it. Other processes do not: the server forgets a waiter that is not heard of.
///
/// # Errors
///
/// [`WaitTimeout`](crate::Error::WaitTimeout) if others held the lock for the whole
/// [`wait_timeout`](Acquire::wait_timeout) (with `try_now` only if a place that it took could not be taken back in time),
/// [`Unreachable`](crate::Error::Unreachable) if no server answered,
/// [`Refused`](crate::Error::Refused) if one said no, [`InvalidName`](crate::Error::InvalidName) and
/// [`InvalidOption`](crate::Error::InvalidOption) before anything was sent (also outside of a tokio runtime),
/// [`UpgradeConflict`](crate::Error::UpgradeConflict) for a nested write in a read, [`Closed`](crate::Error::Closed),
/// [`TooManyWaiters`](crate::Error::TooManyWaiters) beyond [`max_waiters`](crate::Builder::max_waiters),
/// [`Forked`](crate::Error::Forked) in a copy of the process that built the manager.
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
/// assert!(manager.read("cfg").try_now().await?.is_none()); // asked once: somebody writes
/// guard.release().await?;
///
/// // Nested: within this task, or of an owner with a name.
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

/// What is to be taken, and how.
struct Request {
    name: LockName,
    overrides: Overrides,
}

impl<G: Guard> Acquire<G> {
    pub(crate) fn new(engine: Arc<Engine>, name: LockName) -> Self {
        Self { engine, request: Request { name, overrides: Overrides::default() }, guard: PhantomData }
    }

    /// How long the server keeps the hold without hearing from us. Defaults to the manager's, 10 s.
    ///
    /// It is renewed at a third. A shorter lease frees the lock sooner after a crash; a longer one outlasts longer
    /// outages of the server.
    ///
    /// A guard starts with at least half of it, where the clock margin leaves as much: whoever goes on with a hold of its process
    /// that has less waits for the answer to a renewal first. Three start with what they have: whoever is told that it
    /// was granted the lock while it waited, which is 3 s or the lease at first; a nested guard; and one for which an answer
    /// with all of its lease was long on its way, which `try_read` and `try_write` take as it comes. The first of these has all of
    /// its lease when [`confirmed`](WriteGuard::confirmed) returns.
    pub fn lease(mut self, lease: Duration) -> Self {
        self.request.overrides.lease = Some(lease);
        self
    }

    /// When the hold is over whatever happens. Defaults to the manager's, 1 h. Up to the lease it is a fixed lease,
    /// which is never renewed.
    ///
    /// The guard is lost by then at the latest, and the server lets others in 50 ms behind that, or when its lease is over: a task
    /// that waits for [`lost`](WriteGuard::lost) hears of it first. A process that ends within these 50 ms, without
    /// [`flush`](crate::RwLockManager::flush) or [`close`](crate::RwLockManager::close), leaves the hold on the server until its lease is over.
    pub fn max_hold(mut self, max_hold: Duration) -> Self {
        self.request.overrides.max_hold = Some(max_hold);
        self
    }

    /// A lease that is never renewed: the lock is free again after this time, whatever becomes of this process. The same as
    /// `lease(lease).max_hold(lease)`.
    ///
    /// For work that is known to be short, and for holders that nobody watches.
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

    /// How long to wait for others. Defaults to the manager's: contention has no limit.
    ///
    /// The server is asked at least once, and its first answer is waited for as long as an answer is believed: zero asks
    /// once.
    ///
    /// At the limit the acquisition takes its place in the queue back, which takes one round trip, or two if a request is under way.
    /// [`WaitTimeout`](crate::Error::WaitTimeout) comes then, at the latest two
    /// [response timeouts](crate::Builder::response_timeout) after the limit.
    ///
    /// At a lock whose holder elsewhere may keep it without being inside ([`idle_hold`](crate::Builder::idle_hold)), it counts as
    /// [`try_wait`](crate::Builder::try_wait) at least, from the answer that tells so: time to give the lock up.
    pub fn wait_timeout(mut self, wait_timeout: Duration) -> Self {
        self.request.overrides.wait_timeout = Some(wait_timeout);
        self
    }

    /// For how long the hold stays when its last guard has gone: shorter than the manager's
    /// [`idle_hold`](crate::Builder::idle_hold), which bounds it; zero gives it back at once. The last acquisition decides.
    pub fn idle_hold(mut self, idle_hold: Duration) -> Self {
        self.request.overrides.idle_hold = Some(idle_hold);
        self
    }

    /// Counts as nested if this task (outside of tasks: this thread) holds the lock already; see [`Reentry`].
    pub fn reentrant(self) -> Self {
        self.reentry(Reentry::PerTask)
    }

    /// Counts as nested if this owner holds the lock already; see [`Reentry`].
    pub fn owner(self, owner: OwnerId) -> Self {
        self.reentry(Reentry::Named(owner))
    }

    /// Whether it nests, whatever the manager's [`reentry`](crate::Builder::reentry) says.
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
    pub fn reentry(mut self, reentry: Reentry) -> Self {
        self.request.overrides.reentry = Some(reentry);
        self
    }

    /// Asks once: `None` if others hold the lock, or wait for it in this process. Ends within two response timeouts.
    ///
    /// # Errors
    ///
    /// As for the acquisition itself, but for `WaitTimeout`.
    ///
    /// # Cancel safety
    ///
    /// As for the acquisition itself.
    pub async fn try_now(self) -> Result<Option<G>> {
        self.engine.process.check(self.request.name.as_str())?;
        if is_observed() {
            return self.request.take_observed(self.engine, Patience::AskOnce).await;
        }
        self.request.take(self.engine, Patience::AskOnce)?.await
    }

    /// Takes the lock, does the work, and gives the lock back.
    ///
    /// The work gets the guard, for its [fencing token](WriteGuard::fencing_token). If the hold is lost meanwhile, the work is
    /// dropped where it stands, before anybody else can be inside. Only what it does at its next await can be stopped so: a
    /// computation that never awaits is not, nor is a task that it has spawned.
    ///
    /// `Ok` means that the work ended while the hold could be trusted. That the release has no answer then is no error: the
    /// background goes on with it, and the lease ends the hold in any case.
    ///
    /// The future can be sent to another thread where the work's can. For work that fails, let it return a `Result`.
    ///
    /// # Errors
    ///
    /// [`Lost`](Error::Lost): the work was dropped, or the server says at the release that it has not known the hold to the end.
    /// Others may have been inside meanwhile. All others are those of the acquisition: the work was not begun.
    ///
    /// # Cancel safety
    ///
    /// Dropped while it waits for the lock, as for the acquisition itself. Dropped later, it drops the work first and then hands
    /// the release to the background.
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
            let lost = guard.held().lost();
            let work = work(&guard);
            tokio::select! {
                // The loss first: what was done beside others is not to be told as done.
                biased;
                reason = lost => Err(reason),
                done = work => Ok(done),
            }
        };
        let lock = guard.held().hold().key().shared_name();
        match outcome {
            Ok(done) => match guard.into_held().release().await {
                Err(lost @ (Error::Lost { .. } | Error::Forked { .. })) => Err(lost),
                // Not told yet, or refused: the work was done in time all the same.
                Ok(()) | Err(_) => Ok(done),
            },
            Err(reason) => Err(Error::Lost { lock, reason }),
        }
    }
}

impl Request {
    /// A share of a hold that this process has already, if it is to be had without a word to the server.
    #[inline]
    fn join(&self, engine: &Engine, mode: Mode) -> Option<(Arc<Hold>, ShareId)> {
        if mode == Mode::Write && !engine.options().may_hold_idle() {
            return None;
        }
        let terms = Terms::new(engine.options(), self.overrides).ok()?;
        acquire::join(engine, &self.name, mode, &terms)
    }

    fn take_observed<G: Guard>(self, engine: Arc<Engine>, patience: Patience) -> BoxFuture<'static, Result<Option<G>>> {
        let (name, observer) = (self.name.as_str().to_owned(), Arc::clone(&engine));
        Box::pin(async move { observed(&observer, &name, async move { self.take(engine, patience)?.await }).await })
    }

    /// The way to the lock. What was needed to set out stays behind: many may wait, each with the room of its future.
    fn take<G: Guard>(
        self,
        engine: Arc<Engine>,
        patience: Patience,
    ) -> Result<impl Future<Output = Result<Option<G>>> + Send + 'static> {
        let key = engine.key(self.name.as_str())?;
        let terms = Terms::new(engine.options(), self.overrides)?;
        Ok(async move {
            let taken = pin!(acquire::acquire(&engine, Arc::clone(&key), G::MODE, terms, patience));
            Ok(engine.process.here(key.name(), taken).await?.map(G::new))
        })
    }
}

/// Whether anybody wants to know what becomes of acquisitions: mostly not.
#[inline]
fn is_observed() -> bool {
    meter::IS_ON || events::spans_are_wanted()
}

/// Counts an acquisition, and shows it to those who trace. The hold's span begins where the guard is handed out, not within
/// the acquisition's.
async fn observed<G: Guard>(
    engine: &Engine,
    name: &str,
    acquiring: impl Future<Output = Result<Option<G>>> + Send,
) -> Result<Option<G>> {
    let underway = engine.table.meter().begins(G::MODE, engine.clock);
    let outcome = events::within(name, G::MODE, acquiring, Option::is_some).await;
    if let Ok(Some(guard)) = &outcome {
        guard.held().hold().begin_span();
    }
    underway.ended(events::word_for_outcome(&outcome, Option::is_some));
    outcome
}

impl<G: Guard> IntoFuture for Acquire<G> {
    type Output = Result<G>;
    type IntoFuture = Acquiring<G>;

    #[inline]
    fn into_future(self) -> Acquiring<G> {
        Acquiring { engine: Some(self.engine), step: Step::New(self.request) }
    }
}

impl<G: Guard> fmt::Debug for Acquire<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Acquire")
            .field("lock", &self.request.name.as_str())
            .field("mode", &G::MODE)
            .field("options", &self.request.overrides)
            .finish_non_exhaustive()
    }
}

/// The future of an acquisition; see [`Acquire`].
#[must_use = "futures do nothing unless they are polled"]
pub struct Acquiring<G: Guard> {
    /// Absent once it is under way, or over.
    engine: Option<Arc<Engine>>,
    step: Step<G>,
}

enum Step<G: Guard> {
    /// Not polled yet: a reader that joins a hold of its process is done at once, and needs no allocation for it.
    New(Request),
    Underway {
        process: Process,
        future: BoxFuture<'static, Result<Option<G>>>,
    },
    Done,
}

impl<G: Guard> Acquiring<G> {
    /// It is not to be had at once.
    fn set_out(&mut self, engine: Arc<Engine>) -> Result<()> {
        if let Step::New(request) = std::mem::replace(&mut self.step, Step::Done) {
            let process = engine.process.clone();
            process.check(request.name.as_str())?;
            let future = match is_observed() {
                true => request.take_observed(engine, Patience::Wait),
                false => Box::pin(request.take(engine, Patience::Wait)?),
            };
            self.step = Step::Underway { process, future };
        }
        Ok(())
    }
}

impl<G: Guard> Future for Acquiring<G> {
    type Output = Result<G>;

    #[inline]
    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        if let Some(engine) = self.engine.take()
            && let Step::New(request) = &self.step
        {
            // Here what is asked for stays where it is.
            if let Some((hold, share_id)) = request.join(&engine, G::MODE) {
                engine.table.meter().joined();
                return Poll::Ready(Ok(G::new(Held::of(engine, hold, share_id))));
            }
            self.set_out(engine)?;
        }
        match &mut self.step {
            Step::Underway { future, .. } => future.as_mut().poll(cx).map_ok(|guard| match guard {
                Some(guard) => guard,
                None => unreachable!("only a caller that asks once is told no"),
            }),
            Step::New(_) | Step::Done => panic!("polled after its end"),
        }
    }
}

impl<G: Guard> Drop for Acquiring<G> {
    /// A copy takes nothing back: the acquisition is the other process's.
    fn drop(&mut self) {
        if let Step::Underway { process, .. } = &self.step
            && !process.is_current()
        {
            std::mem::forget(std::mem::replace(&mut self.step, Step::Done));
        }
    }
}

impl<G: Guard> fmt::Debug for Acquiring<G> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Acquiring")
    }
}
