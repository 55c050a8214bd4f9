//! Background work beside panics, ends of runtimes, and wakers that look at its queues.

use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize};
use std::task::{Context, Wake as Waking, Waker};

use tokio::runtime::Runtime;
use tokio::time::sleep;
use tracing::subscriber::NoSubscriber;
use tracing::{Dispatch, span};

use super::*;
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::acquire::{Patience, acquire};
use crate::engine::{Engine, Held};
use crate::lock::hold::HoldState;
use crate::store::Mode;
use crate::store::memory::{MemoryScheme, Store};
use crate::testing::staged::Staged;

const LEASE: Duration = Duration::from_secs(3);

fn staged() -> Arc<Staged> {
    Arc::new(Staged::new(MemoryScheme::new(Arc::new(Store::new()))))
}

fn engine_on(scheme: &Arc<Staged>) -> Arc<Engine> {
    Arc::new(Engine::new(Arc::<Staged>::clone(scheme), Options::default()))
}

async fn take(engine: &Arc<Engine>, name: &str, max_hold: Duration) -> Held {
    let overrides = Overrides { lease: Some(LEASE), max_hold: Some(max_hold), ..Overrides::default() };
    let terms = Terms::new(engine.options(), overrides).expect("valid");
    let taken = acquire(engine, engine.key(name).expect("valid"), Mode::Write, terms, Patience::Wait).await;
    taken.expect("answered").expect("granted")
}

const LONG: Duration = Duration::from_secs(3600);

/// Makes `tracing` ask all subscribers about each event. It asks once, and remembers the answer. While there is one
/// subscriber, it asks the one of the thread that comes to the event first. That thread may belong to another test,
/// which has none. Two more subscribers, which want nothing and live as long as the process, make it ask all.
fn asks_all_subscribers() {
    static OTHERS: OnceLock<[Dispatch; 2]> = OnceLock::new();
    OTHERS.get_or_init(|| [(); 2].map(|()| Dispatch::new(NoSubscriber::new())));
}

/// A subscriber that panics at every event.
struct Panics(Arc<AtomicUsize>);

impl tracing::Subscriber for Panics {
    fn enabled(&self, _: &tracing::Metadata<'_>) -> bool {
        true
    }

    fn new_span(&self, _: &span::Attributes<'_>) -> span::Id {
        span::Id::from_u64(1)
    }

    fn record(&self, _: &span::Id, _: &span::Record<'_>) {}

    fn record_follows_from(&self, _: &span::Id, _: &span::Id) {}

    fn event(&self, _: &tracing::Event<'_>) {
        self.0.fetch_add(1, Ordering::SeqCst);
        panic!("a subscriber of a test");
    }

    fn enter(&self, _: &span::Id) {}

    fn exit(&self, _: &span::Id) {}
}

#[tokio::test(start_paused = true)]
async fn subscriber_that_panics_keeps_nobody_from_being_renewed() {
    let scheme = staged();
    let engine = engine_on(&scheme);
    let (forced, kept) = (take(&engine, "forced", LONG).await, take(&engine, "kept", LONG).await);
    let key = engine.key("forced").expect("valid");
    let view = scheme.memory.inspect(&key).await.expect("memory answers").value;
    scheme.memory.force(&key, &view).await.expect("memory answers");
    let told = Arc::<AtomicUsize>::default();
    asks_all_subscribers();
    let panics = tracing::subscriber::set_default(Panics(Arc::clone(&told)));
    sleep(LEASE * 3).await;
    drop(panics);
    assert!(matches!(forced.state(), HoldState::Lost(_)), "{:?}", forced.state());
    assert_eq!((kept.state(), told.load(Ordering::SeqCst)), (HoldState::Held, 1));
}

#[tokio::test(start_paused = true)]
async fn driver_begins_anew_after_a_panic() {
    let scheme = staged();
    let engine = engine_on(&scheme);
    let held = take(&engine, "cfg", LONG).await;
    scheme.next_renewals_panic();
    sleep(LEASE * 3).await;
    assert_eq!(held.state(), HoldState::Held);
}

#[test]
fn nothing_waits_for_a_home_that_has_ended() {
    let (home, user) = (Runtime::new().expect("a runtime"), Runtime::new().expect("a runtime"));
    let scheme = user.block_on(async { staged() });
    let options = Options { background: Some(home.handle().clone()), ..Options::default() };
    let engine = Arc::new(Engine::new(scheme, options));
    let releases = Arc::downgrade(&engine.releases);
    let held = user.block_on(take(&engine, "cfg", LONG));
    drop(home);
    user.block_on(async move {
        drop(held);
        drop(engine);
    });
    assert!(releases.upgrade().is_none(), "a release waits for a driver for ever");
}

/// Waker that notes whether the queues of the background are unlocked at the wake-up.
struct LooksAt(Arc<BackgroundWork>, AtomicBool);

impl Waking for LooksAt {
    fn wake(self: Arc<Self>) {
        let Self(work, is_free) = &*self;
        is_free.store(work.queues.try_lock().is_some(), Ordering::SeqCst);
    }
}

#[tokio::test(start_paused = true)]
async fn waker_of_a_hold_that_is_over_in_its_line_runs_under_no_lock() {
    let scheme = staged();
    let engine = engine_on(&scheme);
    let held = take(&engine, "cfg", LEASE * 2).await;
    let work = &engine.background.work;
    let looks = Arc::new(LooksAt(Arc::clone(work), AtomicBool::new(false)));
    let watch = held.watch();
    let mut ended = Box::pin(watch.ended());
    let waker = Waker::from(Arc::clone(&looks));
    assert!(ended.as_mut().poll(&mut Context::from_waker(&waker)).is_pending());
    // The clock stands: the driver sleeps.
    let now = work.clock.now();
    assert!(work.take_due(now.after(LEASE / 2)), "it is to be renewed");
    assert!(work.next_batches(now.after(LEASE * 3)).is_empty(), "it is over");
    assert!(looks.1.load(Ordering::SeqCst), "the waker was not called, or under the lock of the lines");
}

#[test]
fn few_too_many_go_along_and_long_lines_go_in_larger_chunks() {
    let sizes = [1, MIN_BATCH, MIN_BATCH + 1, MIN_BATCH * 2, MIN_BATCH * 16, MAX_BATCH * 100].map(batch_size);
    assert_eq!(sizes, [1, MIN_BATCH, MIN_BATCH + 1, MIN_BATCH, MIN_BATCH * 2, MAX_BATCH]);
}
