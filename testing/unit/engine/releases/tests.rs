//! Inline releases, which the runtime of a dropped guard sends.

mod threads;

use std::sync::mpsc;
use std::task::{Context, Waker};
use std::thread;

use Mode::{Read, Write};
use tokio::runtime::{Builder, Runtime};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use super::inline::{MAX_INLINE, MIN_PATIENCE};
use super::*;
use crate::base::error::{Error, LossReason};
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::acquire::{Patience, acquire};
use crate::engine::{Engine, Held};
use crate::store::Mode;
use crate::store::memory::{MemoryScheme, Store};
use crate::testing::staged::{Fate, Staged};

/// Process with inline releases.
struct Stage {
    scheme: Arc<Staged>,
    engine: Arc<Engine>,
}

impl Stage {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        let scheme = Arc::new(Staged::new(MemoryScheme::new(Arc::new(Store::new()))));
        scheme.leaves_are_at_hand();
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), options));
        Self { scheme, engine }
    }

    async fn take(&self) -> Held {
        self.take_named(NAME).await
    }

    async fn take_named(&self, name: &str) -> Held {
        self.acquire(name, Write, Overrides::default()).await
    }

    async fn take_with(&self, mode: Mode, overrides: Overrides) -> Held {
        self.acquire(NAME, mode, overrides).await
    }

    async fn acquire(&self, name: &str, mode: Mode, overrides: Overrides) -> Held {
        let terms = Terms::new(self.engine.options(), overrides).expect("valid");
        let key = self.engine.key(name).expect("valid");
        acquire(&self.engine, key, mode, terms, Patience::Wait).await.expect("answered").expect("granted")
    }

    /// Returns a process that holds its lock.
    async fn with_guard() -> (Self, Held) {
        let stage = Self::new();
        let held = stage.take().await;
        (stage, held)
    }

    /// Drops the future of an acquisition that has sent its request.
    fn drops_an_acquisition(&self) {
        let mut asks = Box::pin(self.take());
        assert!(asks.as_mut().poll(&mut Context::from_waker(Waker::noop())).is_pending(), "nothing is answered");
    }

    /// Takes a lock and waits until its guard is lost at `max_hold`, long before the lease of the server is over.
    async fn lost_at_max_hold(&self) -> Held {
        let short = Overrides { max_hold: Some(SECOND), ..Overrides::default() };
        let held = self.take_with(Read, Overrides::default()).await;
        let short = self.take_with(Read, short).await;
        assert_eq!(held.hold().id(), short.hold().id(), "it joins a hold with a lease of 10 s");
        drop(held);
        assert_eq!(short.lost().await, LossReason::MaxHold);
        short
    }

    /// Returns another process of the same server.
    fn other(&self) -> Self {
        let scheme = Arc::new(Staged::new(self.scheme.memory.clone()));
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
        Self { scheme, engine }
    }

    /// Returns the number of holders on the server.
    async fn holders(&self) -> usize {
        self.holders_of(NAME).await
    }

    async fn holders_of(&self, name: &str) -> usize {
        let key = self.engine.key(name).expect("valid");
        self.scheme.memory.inspect(&key).await.expect("memory answers").value.holders.len()
    }

    /// Lets the next release be answered at a signal, and returns the signal.
    fn next_leave_waits(&self) -> oneshot::Sender<()> {
        let (word, heard) = oneshot::channel();
        self.scheme.next_leave(Fate::Answered(heard));
        word
    }

    /// Lets the next release reach no server and get no answer, as if its runtime had ended.
    fn next_leave_is_lost(&self) -> oneshot::Sender<()> {
        let (word, heard) = oneshot::channel();
        self.scheme.next_leave(Fate::Silent(heard));
        word
    }
}

const NAME: &str = "cfg";

fn send(signal: oneshot::Sender<()>) {
    signal.send(()).expect("an answer waits for it");
}

async fn send_after(span: Duration, signal: oneshot::Sender<()>) {
    sleep(span).await;
    send(signal);
}

fn runtime() -> Runtime {
    Builder::new_current_thread().enable_all().build().expect("a runtime")
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);
const LONG: Duration = Duration::from_secs(60);

#[tokio::test(start_paused = true)]
async fn server_knows_when_the_drop_is_over() {
    let (stage, held) = Stage::with_guard().await;
    let before = stage.scheme.scripts();
    drop(held);
    assert_eq!((stage.scheme.scripts() - before, stage.holders().await), (1, 0));
    sleep(stage.engine.options().response_timeout).await;
    assert_eq!(stage.scheme.scripts() - before, 1, "what was answered is not told again");
}

#[tokio::test(start_paused = true)]
async fn release_of_a_runtime_that_stands_still_is_told_from_elsewhere() {
    let (stage, held) = Stage::with_guard().await;
    let _never = stage.next_leave_is_lost();
    let began = Instant::now();
    drop(held);
    let mut next = Box::pin(stage.take());
    assert!(timeout(MIN_PATIENCE - MS, &mut next).await.is_err(), "it waits for the release");
    next.await.release().await.expect("ours");
    assert!(began.elapsed() <= MIN_PATIENCE + MS);
}

#[tokio::test(start_paused = true)]
async fn copy_that_somebody_else_tells_is_not_waited_for() {
    let (stage, held) = Stage::with_guard().await;
    let mut never = stage.next_leave_is_lost();
    drop(held);
    assert!(timeout(MIN_PATIENCE * 2, never.closed()).await.is_ok(), "its task goes on");
}

#[tokio::test(start_paused = true)]
async fn server_that_takes_its_time_is_told_once() {
    let stage = Stage::new();
    let slow = MIN_PATIENCE * 5;
    let (first, second) = (stage.take_named("first").await, stage.take_named("second").await);
    // The background sends this release, and learns how long an answer takes.
    let word = stage.next_leave_waits();
    thread::scope(|scope| drop(scope.spawn(move || drop(first))));
    send_after(slow, word).await;
    stage.engine.settled().await;
    let before = stage.scheme.scripts();
    let word = stage.next_leave_waits();
    drop(second);
    send_after(slow, word).await;
    stage.engine.settled().await;
    assert_eq!(stage.scheme.scripts() - before, 1);
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_is_told_again() {
    let (stage, held) = Stage::with_guard().await;
    stage.engine.releases.answers_take(LONG);
    let patience = stage.engine.releases.inline.patience();
    stage.scheme.next_leave(Fate::Cut);
    let (before, began) = (stage.scheme.scripts(), Instant::now());
    drop(held);
    assert_eq!(stage.holders().await, 1);
    stage.engine.settled().await;
    assert_eq!((stage.scheme.scripts() - before, stage.holders().await), (2, 0));
    let took = began.elapsed();
    assert!(took < patience, "{took:?}: that it failed was not noticed");
}

#[tokio::test(start_paused = true)]
async fn patience_follows_the_answers_within_its_limits() {
    let stage = Stage::new();
    let inline = &stage.engine.releases.inline;
    assert_eq!(inline.patience(), MIN_PATIENCE);
    inline.answers_take(MIN_PATIENCE);
    assert_eq!(inline.patience(), MIN_PATIENCE * 4);
    inline.answers_take(LONG);
    assert_eq!(inline.patience(), stage.engine.options().response_timeout / 2);
    // The background gets no more answers, and the server is fast again.
    drop(stage.take().await);
    assert_eq!(inline.patience(), MIN_PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn busy_runtime_is_not_taken_for_a_slow_server() {
    let (stage, held) = Stage::with_guard().await;
    let word = stage.next_leave_waits();
    drop(held);
    send_after(MIN_PATIENCE - MS, word).await;
    stage.engine.settled().await;
    assert_eq!(stage.engine.releases.inline.patience(), MIN_PATIENCE);
}

#[tokio::test(start_paused = true)]
async fn driver_ends_with_the_last_answer() {
    let (stage, held) = Stage::with_guard().await;
    stage.engine.releases.answers_take(LONG);
    let word = stage.next_leave_waits();
    drop(held);
    let releases = Arc::downgrade(&stage.engine.releases);
    drop(stage);
    send_after(MS, word).await;
    sleep(MS).await;
    assert!(releases.upgrade().is_none(), "a driver goes on");
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_answer_where_the_guard_was_dropped() {
    let (stage, held) = Stage::with_guard().await;
    let word = stage.next_leave_waits();
    drop(held);
    let mut closing = Box::pin(stage.engine.close());
    let early = timeout(MIN_PATIENCE / 2, &mut closing).await;
    assert!(early.is_err(), "it is not answered");
    send(word);
    closing.await.expect("closed");
    assert!(!stage.engine.releases.is_releasing());
}

#[tokio::test(start_paused = true)]
async fn of_many_at_once_only_so_many_go_out_one_by_one() {
    let stage = Stage::new();
    let names: Vec<_> = (0..MAX_INLINE + 36).map(|n| format!("cfg-{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(stage.take_named(name).await);
    }
    let words: Vec<_> = (0..MAX_INLINE).map(|_| stage.next_leave_waits()).collect();
    let before = stage.scheme.scripts();
    drop(held);
    assert_eq!(stage.scheme.scripts() - before, MAX_INLINE);
    words.into_iter().for_each(send);
    stage.engine.settled().await;
    assert_eq!(stage.scheme.scripts() - before, names.len(), "each is told once");
    // There is room again.
    let held = stage.take().await;
    drop(held);
    assert_eq!(stage.holders().await, 0);
}

#[tokio::test(start_paused = true)]
async fn runtime_that_stands_still_takes_no_room_from_others() {
    let stage = Stage::new();
    let mut nevers = Vec::new();
    for n in 0..MAX_INLINE {
        let held = stage.take_named(&format!("cfg-{n}")).await;
        nevers.push(stage.next_leave_is_lost());
        drop(held);
    }
    stage.engine.settled().await;
    let held = stage.take().await;
    drop(held);
    assert_eq!(stage.holders().await, 0);
}

#[test]
fn release_of_a_runtime_that_ends_is_told_from_elsewhere_at_once() {
    let (home, user) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    let response_timeout = 60 * SECOND;
    let background = Some(home.handle().clone());
    let stage = home.block_on(async { Stage::with(Options { background, response_timeout, ..Options::default() }) });
    stage.engine.releases.answers_take(response_timeout);
    let _never = user.block_on(async {
        let held = stage.take().await;
        let never = stage.next_leave_is_lost();
        drop(held);
        never
    });
    user.shutdown_background();
    let told = home.block_on(async { timeout(response_timeout / 4, stage.engine.settled()).await });
    assert!(told.is_ok(), "it waits for a runtime that has ended");
    assert_eq!(home.block_on(stage.holders()), 0);
}

#[test]
fn manager_that_is_dropped_at_once_leaves_nothing_in_memory() {
    // It ends the driver first.
    let runtime = runtime();
    let (releases, _never) = runtime.block_on(async {
        let stage = Stage::new();
        let held = stage.take().await;
        let never = stage.next_leave_is_lost();
        drop(held);
        (Arc::downgrade(&stage.engine.releases), never)
    });
    drop(runtime);
    assert!(releases.upgrade().is_none(), "a release waits for its runtime for ever");
}

/// Stops an operation on another thread after it has changed its hold, and closes the manager meanwhile.
fn close_waits_for(operation: impl FnOnce(Held) + Send + 'static) {
    let home = runtime();
    home.block_on(async {
        let stage = Stage::new();
        let held = stage.take().await;
        let ((stops, stopped), (go_on, goes_on)) = (mpsc::channel(), mpsc::channel());
        *stage.engine.releases.interruption.lock() = Some((stops, goes_on));
        let operating = thread::spawn(move || operation(held));
        stopped.recv().expect("it changes its hold");
        let mut close = Box::pin(stage.engine.close());
        let polled = close.as_mut().poll(&mut Context::from_waker(Waker::noop()));
        assert!(polled.is_pending(), "closed with a holder on the server: {polled:?}");
        go_on.send(()).expect("it waits for that");
        close.await.expect("the server knows");
        assert_eq!(stage.holders().await, 0);
        operating.join().expect("no panic");
    });
}

#[test]
fn close_waits_for_a_guard_that_is_being_dropped() {
    close_waits_for(drop);
}

#[test]
fn close_waits_for_a_guard_that_is_being_released() {
    close_waits_for(|held| {
        let elsewhere = runtime();
        elsewhere.block_on(held.release()).expect("ours to the end");
    });
}

#[tokio::test(start_paused = true)]
async fn close_tells_of_a_hold_that_was_lost_just_before() {
    let (stage, held) = Stage::with_guard().await;
    assert!(held.hold().lose(LossReason::MaxHold), "no driver has seen it yet");
    stage.engine.close().await.expect("the server knows");
    assert_eq!(stage.holders().await, 0);
}

#[tokio::test(start_paused = true)]
async fn flush_without_an_answer_is_an_error_in_time() {
    let (stage, held) = Stage::with_guard().await;
    for _ in 0..10_000 {
        stage.scheme.next_leave(Fate::Cut);
    }
    let began = Instant::now();
    drop(held);
    let error = stage.engine.flush().await.expect_err("no server answers");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let took = began.elapsed();
    let patience = stage.engine.options().unreachable_after;
    assert!(took >= patience && took < patience + SECOND, "{took:?}");
}

/// The answer to a release that went elsewhere is there before the request has arrived.
#[tokio::test(start_paused = true)]
async fn release_of_a_dropped_acquisition_does_not_overtake_its_request() {
    let stage = Stage::new();
    let (arrives, word) = oneshot::channel();
    stage.scheme.next_acquire(Fate::OnItsWay(word));
    stage.drops_an_acquisition();
    sleep(MIN_PATIENCE / 2).await;
    send(arrives);
    sleep(MS).await;
    assert_eq!(stage.holders().await, 0, "nobody has it, and it keeps others out");
    stage.engine.settled().await;
    assert_eq!(stage.holders().await, 0);
}

/// Between two answers there may be the whole time in which a copy can be late.
#[tokio::test(start_paused = true)]
async fn flush_waits_for_a_copy_that_may_be_late_for_longer_than_a_server_may_be_silent() {
    let (response_timeout, unreachable_after) = (4 * SECOND, 5 * SECOND);
    let stage = Stage::with(Options { response_timeout, unreachable_after, ..Options::default() });
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_acquire(Fate::Answered(answer));
    stage.drops_an_acquisition();
    let began = Instant::now();
    stage.engine.flush().await.expect("the server answers");
    assert!(began.elapsed() > unreachable_after, "a copy was under way");
    assert_eq!(stage.holders().await, 0);
}

/// A waiter of the same process, and one of another, both of which have waited since before the loss.
#[tokio::test(start_paused = true)]
async fn nobody_is_granted_a_lock_within_the_head_start_of_its_holder() {
    let stage = Stage::new();
    for waiter in [&stage, &stage.other()] {
        let lost = async { (stage.lost_at_max_hold().await, stage.engine.clock.now()) };
        let granted = async {
            sleep(MS).await;
            let held = waiter.take().await;
            let now = stage.engine.clock.now();
            held.release().await.expect("ours to the end");
            now
        };
        let ((_held, lost), granted) = tokio::join!(lost, granted);
        let waited = granted.since(lost);
        assert!(waited >= HEAD_START && waited < HEAD_START * 2, "{waited:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn flush_and_close_wait_for_the_end_of_a_head_start() {
    let stage = Stage::new();
    let _lost = stage.lost_at_max_hold().await;
    let began = Instant::now();
    stage.engine.flush().await.expect("the server answers");
    assert_eq!((stage.holders().await, began.elapsed() < HEAD_START * 2), (0, true));
    let _lost = stage.lost_at_max_hold().await;
    let began = Instant::now();
    stage.engine.close().await.expect("the server answers");
    assert_eq!((stage.holders().await, began.elapsed() < HEAD_START * 2), (0, true));
}

#[tokio::test(start_paused = true)]
async fn manager_that_is_dropped_within_a_head_start_gives_the_hold_back() {
    let stage = Stage::new();
    let held = stage.lost_at_max_hold().await;
    // By then a driver has found the loss. Before that, the drop of the guard would release the hold.
    sleep(MS).await;
    let (other, releases) = (stage.other(), Arc::downgrade(&stage.engine.releases));
    drop((held, stage));
    sleep(HEAD_START + MS).await;
    assert_eq!(other.holders().await, 0);
    sleep(MS).await;
    assert!(releases.upgrade().is_none(), "a driver goes on");
}

#[test]
fn hold_whose_runtime_ends_within_a_head_start_runs_out_with_its_lease() {
    let [user, next] = [(); 2].map(|()| runtime());
    // The hold is over for this process long before it is over on the server.
    let (lease, max_clock_skew) = (2 * SECOND, 900 * MS);
    let (stage, _held) = user.block_on(async {
        let stage = Stage::with(Options { max_clock_skew, ..Options::default() });
        let fixed = Overrides { lease: Some(lease), max_hold: Some(lease), ..Overrides::default() };
        let held = stage.take_with(Write, fixed).await;
        assert_eq!(held.lost().await, LossReason::MaxHold);
        (stage, held)
    });
    drop(user);
    next.block_on(async {
        assert_eq!(stage.holders().await, 1, "nobody is left to tell the server");
        let granted = timeout(lease, stage.other().take()).await;
        granted.expect("free with its lease").release().await.expect("ours to the end");
    });
}
