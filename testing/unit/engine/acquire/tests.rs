mod arming;
mod withdrawal;

use std::sync::atomic::{AtomicBool, Ordering};

use tokio::sync::oneshot;
use tokio::time::{Instant, sleep, timeout};

use Mode::{Read, Write};

use super::*;
use crate::BoxFuture;
use crate::base::attempt::{AcquisitionId, NodeId};
use crate::base::key::LockName;
use crate::base::lease::{FencingToken, ServerTime};
use crate::base::options::{Options, Overrides};
use crate::lock::hold::{Grant, HoldState, Next};
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{Acquired, Answered, Granted, Notification, Scheme, View};
use crate::testing::staged::{Fate, STRAY, Staged};

/// Process with a scheme whose answers the test decides.
struct Stage {
    scheme: Arc<Staged>,
    engine: Arc<Engine>,
    key: Arc<Key>,
}

impl Stage {
    fn new() -> Self {
        Self::with(Options::default())
    }

    fn with(options: Options) -> Self {
        Self::on(&Arc::new(Store::new()), options)
    }

    fn on(store: &Arc<Store>, options: Options) -> Self {
        let scheme = Arc::new(Staged::new(MemoryScheme::new(Arc::clone(store))));
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), options));
        let key = engine.key("cfg").expect("valid");
        Self { scheme, engine, key }
    }

    /// Returns another process of the same server.
    fn other(&self) -> Self {
        let scheme = Arc::new(Staged::new(self.scheme.memory.clone()));
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
        Self { scheme, engine, key: Arc::clone(&self.key) }
    }

    fn asks(&self, mode: Mode, overrides: Overrides, patience: Patience) -> BoxFuture<'_, Result<Option<Held>>> {
        let terms = terms(&self.engine, overrides);
        Box::pin(acquire(&self.engine, Arc::clone(&self.key), mode, terms, patience))
    }

    fn waits(&self, mode: Mode) -> BoxFuture<'_, Result<Option<Held>>> {
        self.waits_with(mode, Overrides::default())
    }

    fn waits_with(&self, mode: Mode, overrides: Overrides) -> BoxFuture<'_, Result<Option<Held>>> {
        self.asks(mode, overrides, Patience::Wait)
    }

    fn tries(&self, mode: Mode) -> BoxFuture<'_, Result<Option<Held>>> {
        self.asks(mode, Overrides::default(), Patience::AskOnce)
    }

    async fn take(&self, mode: Mode) -> Held {
        granted(self.waits(mode)).await
    }

    async fn view(&self) -> View {
        self.scheme.memory.inspect(&self.key).await.expect("memory answers").value
    }

    /// Ends the holds as an operator does.
    async fn force(&self) {
        let seen = self.view().await;
        self.scheme.memory.force(&self.key, &seen).await.expect("memory answers");
    }

    /// Returns the numbers of holders and waiters on the server.
    async fn there(&self) -> (usize, usize) {
        let view = self.view().await;
        (view.holders.len(), view.waiters.len())
    }

    /// Returns these numbers when the process has nothing left to release.
    async fn there_in_the_end(&self) -> (usize, usize) {
        self.engine.settled().await;
        self.there().await
    }

    /// Delays the answer to the next acquisition until the signal, which it returns.
    fn next_answer_waits(&self) -> oneshot::Sender<()> {
        let (signal, answer) = oneshot::channel();
        self.scheme.next_acquire(Fate::Answered(answer));
        signal
    }

    /// Delays the answers to the next renewals until the signal, which it returns.
    fn next_renewals_wait(&self) -> oneshot::Sender<()> {
        let (signal, answer) = oneshot::channel();
        self.scheme.next_renewals(answer);
        signal
    }

    /// Gives the next release a fate that ends with the signal, which it returns.
    fn next_leave_waits(&self, fate: impl FnOnce(oneshot::Receiver<()>) -> Fate) -> oneshot::Sender<()> {
        let (signal, answer) = oneshot::channel();
        self.scheme.next_leave(fate(answer));
        signal
    }

    /// Lets a copy of the newest request arrive now.
    async fn copy_arrives(&self) -> Acquired {
        let request = self.scheme.last_request();
        self.scheme.memory.acquire(&self.key, &request).await.expect("memory answers").value
    }

    /// Lets a copy of the newest request arrive now. The server grants it.
    async fn copy_is_granted(&self) {
        let answer = self.copy_arrives().await;
        assert!(matches!(answer, Acquired::Granted(_)), "{answer:?}");
    }
}

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

/// Time that is longer than the join window.
const WINDOW_OVER: Duration = Duration::from_millis(60);

const LONG: Overrides = Overrides {
    lease: Some(Duration::from_secs(600)),
    wait_timeout: None,
    max_hold: None,
    reentry: None,
    cache_for: None,
    at_least: None,
};
const SHORT: Overrides = Overrides { lease: Some(SECOND), ..LONG };
const AT_ONCE: Overrides = Overrides { wait_timeout: Some(Duration::ZERO), lease: None, ..LONG };

fn terms(engine: &Engine, overrides: Overrides) -> Terms {
    Terms::new(engine.options(), overrides).expect("valid")
}

/// Polls a future for this time, while it waits.
async fn still_waits<T>(future: impl Future<Output = T>, time: Duration) {
    assert!(timeout(time, future).await.is_err(), "it waits");
}

async fn granted(acquisition: impl Future<Output = Result<Option<Held>>>) -> Held {
    acquisition.await.expect("answered").expect("granted")
}

/// Releases a hold that nobody has ended.
async fn release(held: Held) {
    held.release().await.expect("ours to the end");
}

fn send(signal: oneshot::Sender<()>) {
    signal.send(()).expect("an answer waits for it");
}

async fn send_after(time: Duration, signal: oneshot::Sender<()>) {
    sleep(time).await;
    send(signal);
}

fn start<T>(future: &mut BoxFuture<'_, T>) {
    let mut context = std::task::Context::from_waker(std::task::Waker::noop());
    assert!(future.as_mut().poll(&mut context).is_pending(), "it waits");
}

/// Returns a second acquisition that wants more than the rest of a short lease. The first guard has handed this hold
/// off to it.
async fn handed_with_little_left<'a>(stage: &'a Stage, wants: Overrides) -> BoxFuture<'a, Result<Option<Held>>> {
    // The server grants a lock without a record with one token, for one writer.
    release(stage.take(Write).await).await;
    sleep(MS).await;
    let first = granted(stage.waits_with(Write, SHORT)).await;
    let mut second = stage.waits_with(Write, wants);
    start(&mut second);
    drop(first);
    start(&mut second);
    second
}

#[tokio::test(start_paused = true)]
async fn guard_with_too_little_left_is_there_when_its_renewal_is_answered_and_a_limit_waits_for_that() {
    let stage = Stage::new();
    let word = stage.next_renewals_wait();
    let limit = 100 * MS;
    let mut second = handed_with_little_left(&stage, Overrides { wait_timeout: Some(limit), ..LONG }).await;
    sleep(limit * 2).await;
    start(&mut second);
    assert_eq!((stage.scheme.requests(), stage.scheme.chunks().len()), (2, 1), "it is renewed");
    send(word);
    let held = granted(second).await;
    assert!(remaining(&held) > 50 * SECOND, "{:?}", remaining(&held));
    release(held).await;
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiter_sends_the_renewal_that_it_needs_and_the_next_one_sends_it_again() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    stage.scheme.leaves_are_at_hand();
    let second = handed_with_little_left(&stage, LONG).await;
    assert_eq!(stage.scheme.chunks().len(), 1, "no other task has run");
    let mut third = stage.waits_with(Write, LONG);
    start(&mut third);
    drop(second);
    let held = granted(third).await;
    assert_eq!((stage.scheme.requests(), stage.scheme.chunks().len()), (2, 2), "it is the same hold");
    release(held).await;
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn renewal_of_a_waiter_that_nobody_polls_is_sent_by_the_background() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    stage.scheme.leaves_are_at_hand();
    let mut second = handed_with_little_left(&stage, LONG).await;
    sleep(60 * MS).await;
    assert_eq!(stage.scheme.chunks().len(), 2, "the first copy has no answer");
    let held = granted(second.as_mut()).await;
    assert!(remaining(&held) > 50 * SECOND, "{:?}", remaining(&held));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_dies_before_its_renewal_is_answered_passes_the_hold_on() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    let second = handed_with_little_left(&stage, LONG).await;
    let mut third = stage.waits_with(Write, SHORT);
    start(&mut third);
    drop(second);
    release(granted(third).await).await;
    assert_eq!(stage.scheme.requests(), 2, "it asks nobody");
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn waiter_whose_renewal_is_never_answered_asks_for_itself() {
    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    let began = Instant::now();
    let held = granted(handed_with_little_left(&stage, LONG).await).await;
    assert!(began.elapsed() < 2 * SECOND);
    assert_eq!(stage.scheme.requests(), 3);
    assert!(remaining(&held) > 50 * SECOND, "{:?}", remaining(&held));
    release(held).await;
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_a_repeat_does_not_outlive_the_hold() {
    let stage = Stage::new();
    let first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    stage.scheme.next_acquire(Fate::Cut);
    let second = stage.take(Read).await;
    assert_eq!(&stage.scheme.last_request().id, first.hold().id(), "it joins");
    release(first).await;
    release(second).await;
    stage.copy_is_granted().await;
    sleep(STRAY + 100 * MS).await;
    assert_eq!(stage.there().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn copy_that_arrives_before_the_release_is_answered_is_given_back_too() {
    for background in [false, true] {
        let stage = Stage::new();
        stage.scheme.next_acquire(Fate::Cut);
        let held = stage.take(Write).await;
        sleep(STRAY - 100 * MS).await;
        let word = stage.next_leave_waits(Fate::Answered);
        let late = async {
            sleep(MS).await; // the release was carried out
            stage.copy_is_granted().await;
            sleep(200 * MS).await;
            send(word);
        };
        if background {
            drop(held);
            late.await;
        } else {
            let (released, ()) = tokio::join!(held.release(), late);
            released.expect("released");
        }
        assert_eq!(stage.there_in_the_end().await, (0, 0), "background: {background}");
    }
}

#[tokio::test(start_paused = true)]
async fn copy_of_which_nothing_was_heard_is_taken_back_however_long_ago() {
    let stage = Stage::new();
    stage.scheme.next_acquire(Fate::Cut);
    let mut writing = stage.waits(Write);
    start(&mut writing);
    for _ in 0..200 {
        stage.scheme.next_acquire(Fate::NotDone);
    }
    // The server executed the copy nevertheless. After that, no node serves the lock for longer than the copy can be
    // late.
    stage.copy_is_granted().await;
    still_waits(&mut writing, STRAY * 2).await;
    drop(writing);
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn writer_of_the_same_process_does_not_wait_for_the_answer_to_a_release() {
    let stage = Stage::new();
    let held = stage.take(Write).await;
    sleep(10 * MS).await; // it is not handed over
    let mut next = stage.waits(Write);
    start(&mut next);
    for _ in 0..1000 {
        stage.scheme.next_leave(Fate::Cut);
    }
    let release = held.release();
    tokio::select! {
        released = release => panic!("nobody answers: {released:?}"),
        taken = next => panic!("the server has the other hold: {taken:?}"),
        () = sleep(SECOND) => assert_eq!(stage.there().await, (1, 1)),
    }
}

#[tokio::test(start_paused = true)]
async fn repeat_that_is_answered_is_no_reason_to_release_twice() {
    let stage = Stage::new();
    let first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    let second = stage.take(Read).await;
    assert_eq!(second.hold().until(stage.engine.clock.now()).arrives_until, None);
    drop(first);
}

#[tokio::test(start_paused = true)]
async fn time_limit_waits_for_the_first_answer_also_where_a_reader_wants_to_join() {
    let stage = Stage::new();
    let _first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    let word = stage.next_answer_waits();
    let (taken, ()) = tokio::join!(stage.waits_with(Read, AT_ONCE), send_after(5 * MS, word));
    assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
}

#[tokio::test(start_paused = true)]
async fn request_of_a_future_that_died_is_taken_back_by_a_reader_that_joins() {
    let stage = Stage::new();
    let _word = stage.next_answer_waits();
    let mut dies = stage.waits(Read);
    let mut next = stage.waits(Read);
    start(&mut dies);
    start(&mut next);
    drop(dies);
    let (once, joined) = tokio::join!(stage.tries(Read), granted(next));
    let once = once.expect("answered").expect("granted");
    assert_eq!(joined.hold().id(), once.hold().id());
    drop((joined, once));
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn what_was_handed_to_a_future_that_nobody_polls_is_soon_free_for_others() {
    let stage = Stage::new();
    let first = granted(stage.waits_with(Write, LONG)).await;
    let mut second = stage.waits_with(Write, LONG);
    start(&mut second);
    drop(first);
    timeout(5 * SECOND, stage.other().take(Write)).await.expect("within the claim");
    drop(second);
}

/// Returns the guard of another process, and a waiter behind it that is polled once.
async fn unpolled_behind_another(stage: &Stage, mode: Mode) -> (Held, BoxFuture<'_, Result<Option<Held>>>) {
    let foreign = stage.other().take(Write).await;
    let mut waits = stage.waits(mode);
    start(&mut waits);
    (foreign, waits)
}

/// The node answers nothing else meanwhile, so silence would look the same.
#[tokio::test(start_paused = true)]
async fn try_beside_a_waiter_that_nobody_polls_is_refused_in_time() {
    let stage = Stage::new();
    let (foreign, waits) = unpolled_behind_another(&stage, Read).await;
    sleep(30 * SECOND).await;
    assert!(stage.tries(Read).await.expect("answered").is_none());
    release(foreign).await;
    granted(waits).await;
}

/// The heartbeat of the first one is on its way, and nobody reads the answer.
#[tokio::test(start_paused = true)]
async fn limit_behind_a_waiter_that_nobody_polls_is_no_silence() {
    let stage = Stage::new();
    let (foreign, mut first) = unpolled_behind_another(&stage, Write).await;
    sleep(HEARTBEAT + 10 * MS).await;
    let _word = stage.next_answer_waits();
    start(&mut first);
    let limit = Overrides { wait_timeout: Some(100 * MS), ..Overrides::default() };
    let error = stage.waits_with(Write, limit).await.expect_err("it is held");
    assert!(matches!(error, Error::WaitTimeout { .. }), "{error:?}");
    release(foreign).await;
}

#[tokio::test(start_paused = true)]
async fn reader_without_patience_waits_for_the_answer_to_the_one_who_asks_before_it() {
    let stage = Stage::new();
    let word = stage.next_answer_waits();
    let first = stage.waits(Read);
    let second = stage.waits_with(Read, AT_ONCE);
    let (first, second, ()) = tokio::join!(first, second, send_after(5 * MS, word));
    first.expect("answered").expect("granted");
    second.expect("the lock is free for readers").expect("granted");
}

#[tokio::test(start_paused = true)]
async fn waiter_that_was_late_once_leaves_no_place_behind() {
    let stage = Stage::new();
    let foreign = stage.other().take(Write).await;
    let mut waits = stage.waits(Write);
    start(&mut waits);
    assert_eq!(stage.there().await, (1, 1), "it is queued");
    // The server's clock runs ahead of what this process knows of it, as a new primary's may.
    stage.scheme.next_acquire(Fate::Says(Acquired::Late));
    still_waits(&mut waits, HEARTBEAT + 5 * MS).await;
    drop(waits);
    assert_eq!(stage.there_in_the_end().await, (1, 0));
    drop(foreign);
}

#[tokio::test(start_paused = true)]
async fn reader_whose_repeat_was_late_joins_all_the_same() {
    let stage = Stage::new();
    let first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    stage.scheme.next_acquire(Fate::Says(Acquired::Late));
    let second = stage.take(Read).await;
    assert_eq!(second.hold().id(), first.hold().id(), "its process has two holds");
}

#[tokio::test(start_paused = true)]
async fn hold_that_the_server_does_not_know_by_the_answer_to_a_reader_is_lost() {
    let stage = Stage::new();
    let first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    stage.force().await;
    let foreign = stage.other().take(Write).await;
    // The renewal of the lost hold is not due for seconds, so no answer to it shows the loss.
    let once = stage.tries(Read).await.expect("answered");
    assert!(once.is_none(), "another one writes");
    assert_eq!(first.state(), HoldState::Lost(LossReason::Gone));
    drop(foreign);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_what_a_dropped_attempt_may_have_left() {
    let stage = Stage::new();
    let _word = stage.next_answer_waits();
    let mut dies = stage.waits(Write);
    start(&mut dies);
    drop(dies);
    stage.engine.close().await.expect("the server answers");
    assert_eq!(stage.there().await, (0, 0));
}

/// Waker that joins another lock of the same process.
struct Joins {
    engine: Arc<Engine>,
    joined: AtomicBool,
}

impl std::task::Wake for Joins {
    fn wake(self: Arc<Self>) {
        let terms = terms(&self.engine, Overrides::default());
        let joined = join(&self.engine, &LockName::new("another"), Read, &terms);
        self.joined.store(joined.is_some(), Ordering::SeqCst);
        drop(joined.map(|(hold, share_id)| Held::new(&self.engine, hold, share_id)));
    }
}

#[test]
fn waker_may_use_the_manager() {
    let (over, is_over) = std::sync::mpsc::channel();
    std::thread::spawn(move || {
        let mut runtime = tokio::runtime::Builder::new_current_thread();
        let runtime = runtime.enable_time().start_paused(true).build().expect("a runtime");
        let joined = runtime.block_on(async {
            let stage = Stage::new();
            let another = Stage { key: stage.engine.key("another").expect("valid"), ..stage.other() };
            let another = Stage { engine: Arc::clone(&stage.engine), ..another };
            release(stage.take(Write).await).await;
            // Lets some microseconds pass, so that the next grant has more than one token.
            sleep(MS).await;
            let held = stage.take(Write).await;
            let waker = Arc::new(Joins { engine: Arc::clone(&stage.engine), joined: AtomicBool::new(false) });
            let mut waits = stage.waits(Write);
            let _shared = another.take(Read).await;
            let task = std::task::Waker::from(Arc::clone(&waker));
            assert!(waits.as_mut().poll(&mut std::task::Context::from_waker(&task)).is_pending());
            drop(held);
            waker.joined.load(Ordering::SeqCst)
        });
        over.send(joined).expect("it is waited for");
    });
    let joined = is_over.recv_timeout(10 * SECOND).expect("it stands still");
    assert!(joined, "the waiter was handed the hold, and the waker joined another lock");
}

/// Returns the guard of one writer and the acquisition of a second one. Both waited for a writer of another process,
/// which has left.
async fn two_writers_in(stage: &Stage) -> (Held, BoxFuture<'_, Result<Option<Held>>>) {
    let foreign = stage.other().take(Write).await;
    let mut first = stage.waits(Write);
    let mut second = stage.waits(Write);
    start(&mut first);
    start(&mut second);
    // Lets some time pass, so that the next grant has more than one token. Tokens are microseconds of the server's
    // clock.
    sleep(MS).await;
    release(foreign).await;
    (granted(first).await, second)
}

#[tokio::test(start_paused = true)]
async fn hold_that_is_passed_on_while_its_renewal_is_out_goes_on_being_renewed() {
    let stage = Stage::new();
    let (first, second) = two_writers_in(&stage).await;
    let hold = Arc::clone(first.hold());
    // Does what the background does, with the answer between the hand-off and the acceptance.
    let now = stage.engine.clock.now();
    let asked = hold.begin_renewal(now.after(2 * SECOND), now).expect("a claim is due");
    drop(first);
    hold.on_renewed(Grant { sent: now, remaining: asked, asked, server: ServerTime::default() }, now);
    let second = granted(second).await;
    assert_eq!(second.hold().id(), hold.id());
    assert!(matches!(hold.next(now), Next::At(at) if at < hold.deadline()), "nobody renews it");
}

#[tokio::test(start_paused = true)]
async fn notified_grant_lasts_no_longer_than_a_claim() {
    let stage = Stage::new();
    let engine = &stage.engine;
    let terms = terms(engine, Overrides::default());
    let Ok(Entered::Waits(waiter)) = enter(engine, &stage.key, Write, &terms, Patience::Wait) else {
        panic!("the lock is free")
    };
    let now = engine.clock.now();
    let mut waiter = waiter;
    let requester = waiter.entry.as_mut().and_then(WaitEntry::take_requester).expect("the side was idle");
    let mut requesting = Requesting::new(engine, requester);
    let request = requesting.begin_attempt().expect("it asks");
    // An answer as after a jump of the server's clock.
    let remaining = 3600 * SECOND;
    let token = FencingToken::from_wire(1).expect("small");
    let value = Granted { token, tokens: 1, remaining, is_waited_for: false };
    let answer = Answered { sent: now, server: ServerTime::default(), node: NodeId::default(), value };
    let CopyOutcome::Granted(held) = requesting.on_notification(&request, &answer) else { panic!("granted") };
    assert!(held.hold().deadline() <= now.after(request.claim()));
}

/// Publishes `count` messages to a waiter, one after each of its steps. Half of them ask it to repeat its request, and
/// half forge a grant of its request.
fn flood(stage: &Stage, store: &Store, waiter: &mut BoxFuture<'_, Result<Option<Held>>>, count: usize) {
    for n in 0..count {
        let id = stage.scheme.last_request().id;
        let now = stage.engine.clock.now();
        let token = FencingToken::from_wire(1 << 53).expect("the largest");
        let value = Granted { token, tokens: 1, remaining: SECOND, is_waited_for: true };
        let at = store.server_time();
        let answer = Answered { sent: now, server: at, node: NodeId::default(), value };
        let forged = Notification::Granted { id: id.to_shared(), at, answer };
        store.publish_notification(&stage.key, id.as_str(), if n % 2 == 0 { &Notification::AskAgain } else { &forged });
        // The waiter reads the message, sends its request, and waits again.
        (0..3).for_each(|_| start(waiter));
    }
}

#[tokio::test(start_paused = true)]
async fn flood_of_notices_makes_a_waiter_ask_as_often_as_is_allowed() {
    let store = Arc::new(Store::new());
    let stage = Stage::on(&store, Options::default());
    let foreign = stage.other().take(Write).await;
    let mut waits = stage.waits(Write);
    start(&mut waits);
    let asked = |before: usize| stage.scheme.requests() - before;
    flood(&stage, &store, &mut waits, 1000);
    assert!((2..=1 + 16).contains(&asked(0)), "{} requests: its own and a burst", asked(0));
    let before = asked(0);
    for _ in 0..1000 {
        sleep(MS).await;
        flood(&stage, &store, &mut waits, 10);
    }
    assert!((190..=202).contains(&asked(before)), "{} requests in a second, with a heartbeat", asked(before));
    // All messages that are still in its channel are one reason for a request.
    (0..1000).for_each(|_| {
        store.publish_notification(&stage.key, stage.scheme.last_request().id.as_str(), &Notification::AskAgain)
    });
    let before = asked(0);
    for _ in 0..500 {
        sleep(MS).await;
        start(&mut waits);
    }
    assert!(asked(before) <= 2, "{} requests after the flood", asked(before));
    // The notification of its grant finds no room in the channel, so the waiter sends a request.
    (0..100).for_each(|_| {
        store.publish_notification(&stage.key, stage.scheme.last_request().id.as_str(), &Notification::AskAgain)
    });
    release(foreign).await;
    release(timeout(SECOND, granted(waits)).await.expect("in time")).await;
}

/// Answers every request of a try with `said`, with and without a flood of its channel. The try must end in time and
/// leave nothing.
async fn try_ends_where_the_server_says(said: Acquired) {
    for is_flooded in [false, true] {
        let store = Arc::new(Store::new());
        let stage = Stage::on(&store, Options::default());
        (0..10_000).for_each(|_| stage.scheme.next_acquire(Fate::Says(said.clone())));
        let began = Instant::now();
        let mut tries = stage.tries(Write);
        let ended = loop {
            tokio::select! {
                biased;
                ended = &mut tries => break ended,
                () = sleep(MS) => {}
            }
            if is_flooded {
                store.publish_notification(&stage.key, &stage.engine.manager_id, &Notification::AskAgain);
            }
            // The limit is two response timeouts and one pause.
            let took = began.elapsed();
            assert!(took < 1300 * MS, "{said:?} goes on, flooded: {is_flooded}");
        };
        match said {
            Acquired::Late => assert!(matches!(ended, Err(Error::Unreachable { source: Some(_), .. })), "nobody knows"),
            _ => assert!(ended.expect("it is no").is_none()),
        }
        drop(tries);
        sleep(MS).await;
        assert_eq!(stage.there().await, (0, 0));
    }
}

#[tokio::test(start_paused = true)]
async fn try_ends_at_a_server_to_which_all_requests_are_late() {
    try_ends_where_the_server_says(Acquired::Late).await;
}

/// Each request leaves grants without a vote at masters that may not vote, and the next request may meet their releases.
#[tokio::test(start_paused = true)]
async fn try_at_masters_that_may_not_vote_names_them_whatever_its_other_requests_meet() {
    let stage = Stage::new();
    for _ in 0..10_000 {
        stage.scheme.next_acquire(Fate::NoVotes);
        stage.scheme.next_acquire(Fate::Says(Acquired::Late));
    }
    let ended = stage.tries(Write).await;
    assert!(matches!(ended, Err(Error::NoQuorum { restarted: 3, .. })), "{:?}", ended.err());
}

#[tokio::test(start_paused = true)]
async fn try_ends_at_a_server_that_says_again_and_again_that_the_lock_is_kept() {
    try_ends_where_the_server_says(Acquired::Cached { retry_in: SECOND, holder: None }).await;
}

#[tokio::test(start_paused = true)]
async fn try_ends_at_a_server_that_queues_it_and_has_no_word_for_it() {
    try_ends_where_the_server_says(Acquired::Queued { retry_in: SECOND, is_cached: true, holder: None }).await;
}

/// Ten waiters wait behind a request that the replicas do not acknowledge. One waiter comes later, and one of the ten
/// is dropped.
#[tokio::test(start_paused = true)]
async fn waiters_hear_together_that_no_replica_has_the_grant() {
    for mode in [Read, Write] {
        let stage = Stage::new();
        let (word, answer) = oneshot::channel();
        stage.scheme.next_acquire(Fate::NotDone);
        stage.scheme.next_acquire(Fate::Unreplicated(answer));
        let mut asks: Vec<_> = (0..11).map(|_| stage.waits(mode)).collect();
        asks.iter_mut().for_each(start);
        sleep(50 * MS).await;
        start(&mut asks[0]);
        assert_eq!(stage.scheme.requests(), 2, "sent again, with all of them behind it");
        let mut late = stage.waits(mode);
        start(&mut late);
        drop(asks.pop());
        send(word);
        for asks in asks {
            let ended = timeout(Duration::ZERO, asks).await.expect("at once");
            assert!(matches!(ended, Err(Error::NotEnoughReplicas { asked: 1, acknowledged: 0, .. })));
        }
        assert_eq!(stage.scheme.requests(), 2, "once for all");
        // The failed request was not for the waiter that came later. The process has released the grant of that
        // request.
        release(late.await.expect("replicas are back").expect("granted")).await;
        assert_eq!(stage.scheme.requests(), 3);
        sleep(MS).await;
        assert_eq!(stage.there().await, (0, 0));
    }
}

/// The server's clock goes back, and the answer to a renewal reports nearly five minutes. Then the clock is right
/// again, and no further answer comes.
#[tokio::test(start_paused = true)]
async fn hold_is_over_with_its_lease_when_the_clock_of_the_server_went_back_and_forth() {
    let store = Arc::new(Store::new());
    let stage = Stage::on(&store, Options::default());
    let held = stage.take(Write).await;
    store.set_back(290 * SECOND);
    sleep(5 * SECOND).await;
    assert!(!stage.scheme.chunks().is_empty(), "it was renewed");
    let left = remaining(&held);
    assert!((5 * SECOND..=10 * SECOND).contains(&left), "{left:?}");
    store.set_back(Duration::ZERO);
    store.cut(stage.scheme.memory.wire());
    sleep(left).await;
    assert_eq!(held.state(), HoldState::Lost(LossReason::Expired));
}

#[tokio::test(start_paused = true)]
async fn waiter_that_goes_on_with_a_longer_request_has_what_that_was_granted() {
    let stage = Stage::new();
    stage.scheme.next_acquire(Fate::Unheard);
    let mut first = stage.waits_with(Write, LONG);
    start(&mut first);
    let mut second = stage.waits_with(Write, SHORT);
    start(&mut second);
    drop(first);
    let held = granted(second).await;
    assert_eq!(stage.scheme.requests(), 2, "both ask under one id");
    assert!(remaining(&held) > 500 * SECOND, "{:?}", remaining(&held));
}

#[tokio::test(start_paused = true)]
async fn close_finds_holds_that_the_renewal_task_has_in_hand() {
    let stage = Stage::new();
    let held = stage.take(Write).await;
    stage.engine.table.deadlines.forget(held.hold()); // as a driver takes it when it is due
    stage.engine.close().await.expect("closed");
    assert_eq!(held.state(), HoldState::Lost(LossReason::Closed));
}

#[tokio::test(start_paused = true)]
async fn requester_that_nobody_polls_keeps_the_lock_from_nobody_of_its_process() {
    let stage = Stage::new();
    let foreign = stage.other().take(Write).await;
    let mut asks = stage.waits(Write);
    start(&mut asks);
    assert_eq!(stage.there().await, (1, 1), "it is queued");
    let next = stage.waits(Write);
    release(foreign).await;
    // The server granted the lock to the acquisition that is not polled, and the next waiter claims it.
    let held = timeout(4 * SECOND, granted(next)).await.expect("in time");
    assert_eq!(stage.there().await, (1, 0), "the place was one");
    start(&mut asks);
    release(held).await;
    granted(asks).await;
}

#[tokio::test(start_paused = true)]
async fn answer_to_a_requester_that_stood_still_is_found_by_the_next() {
    let stage = Stage::new();
    let word = stage.next_answer_waits();
    let mut asks = stage.waits(Write);
    start(&mut asks);
    let next = stage.waits(Write);
    let held = timeout(4 * SECOND, granted(next)).await.expect("in time");
    send(word);
    start(&mut asks);
    assert_eq!(stage.there().await, (1, 0), "one of them has it");
    drop(asks);
    release(held).await;
    assert_eq!(stage.there_in_the_end().await, (0, 0));
}

#[tokio::test(start_paused = true)]
async fn requester_that_waits_long_for_an_answer_goes_on_asking() {
    let stage = Stage::new();
    let foreign = stage.other().take(Write).await;
    let asks = stage.waits(Write);
    let waits = stage.waits(Write);
    let (word, answer) = oneshot::channel();
    let slow = async {
        sleep(10 * MS).await;
        stage.scheme.next_acquire(Fate::Answered(answer));
        sleep(10 * SECOND).await;
        let requests = stage.scheme.requests();
        send(word);
        release(foreign).await;
        assert!(requests <= 3, "{requests} requests: somebody else asked too");
    };
    let (first, second, ()) = tokio::join!(
        async { granted(asks).await.release().await },
        async { granted(waits).await.release().await },
        slow
    );
    first.and(second).expect("released");
}

/// Future that counts its polls.
struct Counted<F> {
    future: std::pin::Pin<Box<F>>,
    polls: Arc<std::sync::atomic::AtomicUsize>,
}

impl<F: Future> Future for Counted<F> {
    type Output = F::Output;

    fn poll(mut self: std::pin::Pin<&mut Self>, context: &mut std::task::Context<'_>) -> std::task::Poll<F::Output> {
        self.polls.fetch_add(1, Ordering::Relaxed);
        self.future.as_mut().poll(context)
    }
}

/// Returns how often a future is polled within a minute.
async fn polls_in_a_minute<T>(future: impl Future<Output = T> + Send + 'static) -> usize {
    let polls = Arc::default();
    let counted = Counted { future: Box::pin(future), polls: Arc::clone(&polls) };
    let task = tokio::spawn(async move { drop(counted.await) });
    sleep(60 * SECOND).await;
    task.abort();
    polls.load(Ordering::Relaxed)
}

#[tokio::test(start_paused = true)]
async fn one_who_watches_is_woken_once_a_deadline_at_most() {
    let stage = Stage::new();
    let held = Arc::new(stage.take(Write).await);
    let watcher = Arc::clone(&held);
    let polls = polls_in_a_minute(async move { watcher.lost().await }).await;
    assert_eq!(held.state(), HoldState::Held, "it was renewed");
    assert!((2..=12).contains(&polls), "{polls} polls in a minute with leases of 10 s");
}

/// Returns an acquisition for writing that a task of its own can run.
fn task_of(stage: &Stage) -> impl Future<Output = Result<()>> + Send + 'static {
    let (engine, key) = (Arc::clone(&stage.engine), Arc::clone(&stage.key));
    let terms = terms(&engine, Overrides::default());
    async move { acquire(&engine, key, Write, terms, Patience::Wait).await.map(|_| ()) }
}

#[tokio::test(start_paused = true)]
async fn idle_waiter_looks_for_its_own_holds_only() {
    let stage = Stage::new();
    let held = stage.take(Write).await;
    let polls = polls_in_a_minute(task_of(&stage)).await;
    // At its start, and after 3, 6, 12, 24 and 48 seconds.
    assert!(polls <= 6, "{polls} polls in a minute");
    drop(held);
}

/// The server is silent from the twentieth second on.
#[tokio::test(start_paused = true)]
async fn waiter_is_woken_when_an_outage_begins_and_when_it_has_lasted_too_long() {
    let stage = Stage::new();
    let foreign = stage.other().take(Write).await;
    let first = tokio::spawn(task_of(&stage));
    let polls = Arc::default();
    let waiter = tokio::spawn(Counted { future: Box::pin(task_of(&stage)), polls: Arc::clone(&polls) });
    sleep(20 * SECOND).await;
    let silent = Instant::now();
    for _ in 0..1000 {
        stage.scheme.next_acquire(Fate::NotDone);
    }
    let error = waiter.await.expect("no panic").expect_err("no server answers");
    assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
    let patience = stage.engine.options().unreachable_after;
    // The last answer came up to a heartbeat before.
    let span = patience - HEARTBEAT..patience + HEARTBEAT;
    assert!(span.contains(&silent.elapsed()), "{:?}", silent.elapsed());
    // At its start, after 3, 6 and 12 seconds, when the outage begins, when it has lasted too long, and perhaps once more.
    assert!(polls.load(Ordering::Relaxed) <= 7, "{polls:?} polls");
    first.await.expect("no panic").expect_err("no server answers");
    drop(foreign);
}

/// A heartbeat fails, and the answer before it is older than the patience of an acquisition. The waiters wait for the answer
/// to one more copy.
#[tokio::test(start_paused = true)]
async fn one_failure_after_a_long_time_without_requests_ends_no_waiter() {
    let patience = 500 * MS;
    assert!(patience < HEARTBEAT);
    let stage = Stage::with(Options { unreachable_after: patience, ..Options::default() });
    let foreign = stage.other().take(Write).await;
    let waiters: Vec<_> = (0..5).map(|_| tokio::spawn(task_of(&stage))).collect();
    sleep(HEARTBEAT / 2).await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_acquire(Fate::NotDone);
    stage.scheme.next_acquire(Fate::Answered(answer));
    sleep(HEARTBEAT / 2 + patience / 5).await;
    send(word);
    sleep(HEARTBEAT * 3).await;
    release(foreign).await;
    for waiter in waiters {
        waiter.await.expect("no panic").expect("granted");
    }
}

#[tokio::test(start_paused = true)]
async fn time_without_an_answer_does_not_count_while_the_node_answers_others() {
    let stage = Stage::new();
    // From this answer on, the node answers other requests all the time.
    stage.scheme.next_acquire(Fate::Says(Acquired::Late));
    for _ in 0..1000 {
        stage.scheme.next_acquire(Fate::Cut);
    }
    let waiter = tokio::spawn(task_of(&stage));
    sleep(stage.engine.options().unreachable_after * 3).await;
    assert!(!waiter.is_finished(), "{:?}", waiter.await);
}

/// Returns a guard of this stage that was granted by a notification.
async fn granted_after_a_wait(stage: &Stage, mode: Mode) -> Held {
    granted_after_a_wait_with(stage, mode, Overrides::default()).await
}

async fn granted_after_a_wait_with(stage: &Stage, mode: Mode, overrides: Overrides) -> Held {
    let before = stage.other().take(Write).await;
    let mut waits = stage.waits_with(mode, overrides);
    start(&mut waits);
    release(before).await;
    let held = granted(waits).await;
    assert!(!held.is_confirmed(), "it was granted by a notification");
    held
}

fn remaining(held: &Held) -> Duration {
    held.hold().remaining(held.share_id())
}

#[tokio::test(start_paused = true)]
async fn confirmed_returns_with_the_answer_to_the_claim_and_the_hold_has_its_lease_then() {
    for mode in [Write, Read] {
        let stage = Stage::new();
        let word = stage.next_renewals_wait();
        let held = granted_after_a_wait(&stage, mode).await;
        assert_eq!(stage.scheme.chunks().len(), 0, "a hold that nobody has confirmed costs nothing");
        let (mut first, mut second) = (Box::pin(held.confirmed()), Box::pin(held.confirmed()));
        let early = timeout(100 * MS, async { tokio::join!(&mut first, &mut second) });
        assert!(early.await.is_err(), "the answer is out");
        assert_eq!(stage.scheme.chunks().len(), 1, "the claim was sent at once, and once");
        assert!(remaining(&held) < 3 * SECOND);
        // The drop of this future changes nothing.
        drop(second);
        send(word);
        let asked = Instant::now();
        first.await.expect("confirmed");
        held.confirmed().await.expect("still");
        assert!(asked.elapsed() < 5 * MS, "the answer woke it");
        assert!(remaining(&held) > 9 * SECOND, "{:?}", remaining(&held));
        assert_eq!(stage.scheme.chunks().len(), 1, "nothing else was sent");
    }
}

#[tokio::test(start_paused = true)]
async fn confirmed_is_sent_for_a_fixed_lease_that_the_claim_covers() {
    let stage = Stage::new();
    let lease = Some(SECOND);
    let fixed = Overrides { lease, max_hold: lease, ..Overrides::default() };
    let held = granted_after_a_wait_with(&stage, Write, fixed).await;
    held.confirmed().await.expect("confirmed");
    assert_eq!(stage.scheme.chunks().len(), 1);
    assert!(remaining(&held) <= SECOND);
    assert_eq!(held.lost().await, LossReason::MaxHold);
    assert_eq!(stage.scheme.chunks().len(), 1, "and it is not renewed");
}

#[tokio::test(start_paused = true)]
async fn confirmed_waits_for_the_repeat_of_a_claim_that_goes_unheard() {
    let stage = Stage::new();
    stage.scheme.renewals_go_unheard(1);
    let held = granted_after_a_wait(&stage, Write).await;
    held.confirmed().await.expect("confirmed");
    assert_eq!(stage.scheme.chunks().len(), 2);
    assert!(remaining(&held) > 9 * SECOND);
}

#[tokio::test(start_paused = true)]
async fn confirmed_ends_with_the_loss_of_the_hold() {
    let stage = Stage::new();
    stage.scheme.renewals_go_unheard(usize::MAX);
    let held = granted_after_a_wait(&stage, Write).await;
    let asked = Instant::now();
    let error = held.confirmed().await.expect_err("nobody answers");
    assert!(matches!(error, Error::Lost { reason: LossReason::Expired, .. }), "{error:?}");
    assert!(asked.elapsed() < 3 * SECOND, "when the claim is over");

    // The server answers at once that the hold is over.
    let stage = Stage::new();
    let held = granted_after_a_wait(&stage, Write).await;
    stage.force().await;
    let error = held.confirmed().await.expect_err("an operator has ended it");
    assert!(matches!(error, Error::Lost { reason: LossReason::Forced, .. }), "{error:?}");

    let stage = Stage::new();
    let _word = stage.next_renewals_wait();
    let held = granted_after_a_wait(&stage, Write).await;
    let (confirmed, closed) = tokio::join!(held.confirmed(), async {
        sleep(10 * MS).await;
        stage.engine.close().await
    });
    closed.expect("closed");
    let error = confirmed.expect_err("it is closed");
    assert!(matches!(error, Error::Lost { reason: LossReason::Closed, .. }), "{error:?}");
}

#[tokio::test(start_paused = true)]
async fn confirmed_returns_to_all_who_share_the_claim() {
    let stage = Stage::new();
    let before = stage.other().take(Write).await;
    let mut first = stage.waits(Read);
    let mut second = stage.waits(Read);
    start(&mut first);
    start(&mut second);
    release(before).await;
    let first = granted(first).await;
    let second = granted(second).await;
    assert_eq!(first.hold().id(), second.hold().id());
    let (one, other) = tokio::join!(first.confirmed(), second.confirmed());
    one.and(other).expect("confirmed");
    assert_eq!(stage.scheme.chunks().len(), 1);
    assert!(remaining(&first) > 9 * SECOND && remaining(&second) > 9 * SECOND);
}

/// The claim had enough time when it came, and has too little when the task is polled.
#[tokio::test(start_paused = true)]
async fn share_that_is_taken_late_gets_its_lease_first() {
    let stage = Stage::new();
    let before = stage.other().take(Write).await;
    let mut waits = stage.waits(Write);
    start(&mut waits);
    release(before).await;
    sleep(2700 * MS).await;
    let held = granted(waits).await;
    assert!(remaining(&held) > 9 * SECOND, "{:?}", remaining(&held));
}

/// A limit that has passed leaves time for the renewal.
#[tokio::test(start_paused = true)]
async fn share_that_is_taken_late_is_taken_after_the_limit_too() {
    let stage = Stage::new();
    let before = stage.other().take(Write).await;
    let limit = Some(SECOND);
    let mut waits = stage.waits_with(Write, Overrides { wait_timeout: limit, ..Overrides::default() });
    start(&mut waits);
    sleep(900 * MS).await;
    release(before).await;
    sleep(1600 * MS).await;
    let held = granted(waits).await;
    assert!(remaining(&held) > 9 * SECOND, "{:?}", remaining(&held));
}

#[tokio::test(start_paused = true)]
async fn reader_that_is_not_polled_while_it_asks_to_join_keeps_the_lock_for_a_short_time_only() {
    let stage = Stage::new();
    let first = stage.take(Read).await;
    sleep(WINDOW_OVER).await;
    let _word = stage.next_answer_waits();
    let mut stalls = stage.waits(Read);
    start(&mut stalls);
    drop(first);
    timeout(5 * SECOND, stage.other().take(Write)).await.expect("the share of the reader ends");
    drop(stalls);
}

#[tokio::test(start_paused = true)]
async fn limit_of_zero_waits_for_the_release_of_the_own_process() {
    let stage = Stage::new();
    stage.scheme.leaves_are_at_hand();
    let word = stage.next_leave_waits(Fate::Answered);
    drop(stage.take(Write).await);
    let limit = Overrides { wait_timeout: Some(Duration::ZERO), ..LONG };
    let mut waits = stage.waits_with(Write, limit);
    let early = timeout(5 * MS, &mut waits).await;
    assert!(early.is_err(), "the release is not answered: {early:?}");
    send(word);
    assert!(waits.await.expect("answered").is_some());
}
