//! Waits with a limit, and futures that a case polls by hand.

use std::panic::Location;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::{Duration, Instant};

use parking_lot::Mutex;
use redis_rwlock::{Error, RwLockManager};
use tokio::task::{JoinError, JoinHandle};

/// Time limit that is far longer than anything a case waits for.
pub const BOUND: Duration = Duration::from_secs(20);
/// Pause between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Time that is far less than any renewal adds.
const MORE: Duration = Duration::from_millis(100);

/// Outcome of a case that passes its errors on.
pub type Outcome = Result<(), Failure>;

/// Error that a case did not expect, with the line that it came from.
pub struct Failure {
    at: &'static Location<'static>,
    error: String,
}

impl<E: std::error::Error> From<E> for Failure {
    #[track_caller]
    fn from(error: E) -> Self {
        Self { at: Location::caller(), error: format!("{error:?}") }
    }
}

impl std::fmt::Debug for Failure {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "{}: {}", self.at, self.error)
    }
}

/// What a case returns.
pub trait Ends {
    /// Panics if the case has failed.
    fn assert_passed(self);
}

impl Ends for () {
    fn assert_passed(self) {}
}

impl Ends for Outcome {
    fn assert_passed(self) {
        self.expect("no error");
    }
}

/// Runs a case on a runtime with some threads of its own. The case must not hang. It is boxed, so that the thousands of
/// tests share this code.
pub fn run<T: Ends>(within: Duration, threads: usize, case: Pin<Box<dyn Future<Output = T> + '_>>) {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(threads).enable_all().build();
    let bounded =
        async { tokio::time::timeout(within, case).await.expect("the case ends within its bound").assert_passed() };
    runtime.expect("a runtime starts").block_on(bounded);
}

/// Runs a case, which must not hang.
pub async fn bounded(case: impl Future<Output: Ends>) {
    tokio::time::timeout(BOUND * 2, case).await.expect("the case ends within its bound").assert_passed();
}

/// Waits until `condition` holds.
pub async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < BOUND, "{what} did not come true within {BOUND:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits until a hold is renewed: its deadline is later then than it is now.
pub async fn until_renewed(what: &str, remaining: impl Fn() -> Duration + Send + Sync) {
    let end = || Instant::now() + remaining();
    let before = end() + MORE;
    until(what, async || end() > before).await;
}

/// Waits for a future that must come to its end.
pub async fn soon<F: IntoFuture>(what: &str, future: F) -> F::Output {
    match tokio::time::timeout(BOUND, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {BOUND:?}"),
    }
}

/// Outcome of an acquisition, or of a task that acquires.
pub trait Acquired {
    type Guard;

    fn guard(self) -> Result<Self::Guard, Error>;
}

impl<G> Acquired for Result<G, Error> {
    type Guard = G;

    fn guard(self) -> Self {
        self
    }
}

impl<G> Acquired for Result<Result<G, Error>, JoinError> {
    type Guard = G;

    fn guard(self) -> Result<G, Error> {
        self.expect("no panic")
    }
}

/// Waits for the guard of an acquisition, or of a task that acquires. A failure names the line of the caller.
#[track_caller]
pub fn granted<A>(acquiring: A) -> impl Future<Output = <A::Output as Acquired>::Guard>
where
    A: IntoFuture<Output: Acquired>,
{
    let caller = Location::caller();
    async move {
        let acquired = soon(&format!("the grant at {caller}"), acquiring.into_future()).await;
        acquired.guard().unwrap_or_else(|error| panic!("no grant at {caller}: {error:?}"))
    }
}

/// Acquires a lock for writing and releases it.
pub async fn pair(manager: &dyn RwLockManager, name: &str) -> Result<(), Error> {
    manager.write(name).await?.release().await
}

/// Asserts that a lock can be acquired for writing and released.
pub async fn works(manager: &dyn RwLockManager, name: &str) {
    granted(pair(manager, name)).await;
}

/// Starts an acquisition in a task.
pub fn spawn<A: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>>(acquiring: A) -> JoinHandle<A::Output> {
    tokio::spawn(acquiring.into_future())
}

/// Polls a future once, which must not be ready yet.
pub fn start<F: Future + Unpin>(future: &mut F) {
    let mut context = Context::from_waker(Waker::noop());
    assert!(Pin::new(future).poll(&mut context).is_pending(), "the future is ready at its first poll");
}

/// Asserts that a future stays pending for a while. This synchronises nothing, so no case depends on its length.
pub async fn stays_pending<F: Future + Unpin>(what: &str, future: &mut F) {
    let early = tokio::time::timeout(Duration::from_millis(30), future).await;
    assert!(early.is_err(), "{what} happened");
}

/// Polls an acquisition once, which must not be granted yet.
pub fn begin<A: IntoFuture<IntoFuture: Unpin>>(acquiring: A) -> A::IntoFuture {
    let mut waiting = acquiring.into_future();
    start(&mut waiting);
    waiting
}

/// Polls an acquisition for a while, in which it must not be granted.
pub async fn begin_to_wait<A: IntoFuture<IntoFuture: Unpin>>(what: &str, acquiring: A) -> A::IntoFuture {
    let mut waiting = acquiring.into_future();
    stays_pending(what, &mut waiting).await;
    waiting
}

/// Measures the time for which a busy machine did not run this process.
pub struct Stalls {
    watching: JoinHandle<()>,
    nanos: Arc<AtomicU64>,
}

impl Stalls {
    /// Begins to measure.
    pub fn begin() -> Self {
        const TICK: Duration = Duration::from_millis(5);
        let nanos = Arc::<AtomicU64>::default();
        let counted = Arc::clone(&nanos);
        let watching = tokio::spawn(async move {
            loop {
                let began = Instant::now();
                tokio::time::sleep(TICK).await;
                // A timer is a millisecond late on a quiet machine, too.
                let late = began.elapsed().saturating_sub(TICK * 2);
                counted.fetch_add(u64::try_from(late.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
            }
        });
        Self { watching, nanos }
    }

    /// Ends the measurement, and returns what it found.
    pub fn end(self) -> Duration {
        self.watching.abort();
        Duration::from_nanos(self.nanos.load(Ordering::Relaxed))
    }
}

/// Moment at which a future is dropped that was polled often enough.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Dropped {
    /// Dropped at once after its last poll: its requests may not have left this process.
    AtOnce,
    /// Dropped at its next wake-up: the event that it waited for has come, and the future does not look at it.
    WhenWoken,
}

impl Dropped {
    pub const EITHER: [Self; 2] = [Self::AtOnce, Self::WhenWoken];
}

/// Polls a future at most `left` times, each time when it was woken, then drops it.
pub struct Polled<F> {
    future: Option<Pin<Box<F>>>,
    left: u32,
    dropped: Dropped,
    wakes: Arc<Wakes>,
}

/// Waker of one future. The task that polls it also wakes for other reasons, which do not count.
struct Wakes {
    woken: AtomicBool,
    task: Mutex<Waker>,
}

impl Wake for Wakes {
    fn wake(self: Arc<Self>) {
        self.woken.store(true, Ordering::SeqCst);
        self.task.lock().wake_by_ref();
    }
}

impl<F> Polled<F> {
    pub fn times(left: u32, future: F) -> Self {
        Self::then(left, Dropped::AtOnce, future)
    }

    pub fn then(left: u32, dropped: Dropped, future: F) -> Self {
        let wakes = Wakes { woken: AtomicBool::new(true), task: Mutex::new(Waker::noop().clone()) };
        Self { future: Some(Box::pin(future)), left, dropped, wakes: Arc::new(wakes) }
    }
}

impl<F: Future> Future for Polled<F> {
    /// `None` if it was dropped before its end.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        // Stored before the look at `woken`, so that no wake-up between the two is missed.
        self.wakes.task.lock().clone_from(context.waker());
        if !self.wakes.woken.swap(false, Ordering::SeqCst) {
            return Poll::Pending;
        }
        if self.left > 0 {
            self.left -= 1;
            let waker = Waker::from(Arc::clone(&self.wakes));
            let future = self.future.as_mut().expect("not polled after its end");
            let polled = future.as_mut().poll(&mut Context::from_waker(&waker));
            match polled {
                Poll::Ready(output) => {
                    self.future = None;
                    return Poll::Ready(Some(output));
                }
                Poll::Pending if self.left > 0 || self.dropped == Dropped::WhenWoken => return Poll::Pending,
                Poll::Pending => {}
            }
        }
        self.future = None;
        Poll::Ready(None)
    }
}
