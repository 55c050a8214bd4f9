use std::time::Duration;

use tokio::sync::oneshot;

use super::*;
use crate::engine::acquire::{Patience, acquire};
use crate::key::Key;
use crate::lock::hold::Accepted;
use crate::options::{Options, Overrides, Terms};
use crate::scheme::memory::{Memory, Store};
use crate::scheme::{Acquired, Converted, Scheme};
use crate::testing::staged::{Fate, STRAY, Staged};

/// A process whose requests a test decides about, and another one on the same store.
struct Stage {
    scheme: Arc<Staged>,
    engine: Arc<Engine>,
    other: Arc<Engine>,
    key: Arc<Key>,
}

impl Stage {
    fn new() -> Self {
        let memory = Memory::new(Arc::new(Store::new()));
        let scheme = Arc::new(Staged::new(memory.clone()));
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
        let other = Arc::new(Engine::new(Arc::new(memory), Options::default()));
        let key = engine.key("cfg").expect("valid");
        Self { scheme, engine, other, key }
    }

    async fn take(&self, engine: &Arc<Engine>, mode: Mode) -> Held {
        let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
        let taken = acquire(engine, Arc::clone(&self.key), mode, terms, Patience::Wait).await;
        taken.expect("answered").expect("granted")
    }

    async fn is_free(&self) -> bool {
        let view = self.scheme.memory.inspect(&self.key).await.expect("memory answers").value;
        view.holders.is_empty() && view.waiters.is_empty()
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_is_not_refused_as_long_as_a_copy_of_it_may_yet_be_carried_out() {
    let stage = Stage::new();
    let neighbour = stage.take(&stage.other, Mode::Read).await;
    let reading = stage.take(&stage.engine, Mode::Read).await;
    let old = reading.hold().id().clone();
    stage.scheme.next_conversion(Fate::Cut);
    let scheme = Arc::clone(&stage.scheme);
    let key = Arc::clone(&stage.key);
    let late_copy = async {
        tokio::time::sleep(STRAY / 2).await; // refused by then, since another one reads
        neighbour.release().await.expect("released");
        let late = scheme.memory.convert(&key, &old, &scheme.last_request()).await.expect("memory answers");
        assert!(matches!(late.value, Converted::Granted(_)), "{late:?}");
    };
    let (upgraded, ()) = tokio::join!(upgrade(reading), late_copy);
    tokio::time::sleep(STRAY).await;
    // Nobody may read here that the server does not know.
    let held = upgraded.unwrap_or_else(|refused| refused.held);
    let held_here = held.hold().state_of(held.share_id()) == HoldState::Held;
    let terms = Terms::new(stage.other.options(), Overrides::default()).expect("valid");
    let write = acquire(&stage.other, Arc::clone(&stage.key), Mode::Write, terms, Patience::AskOnce).await;
    let writer_is_in = write.expect("answered").is_some();
    assert!(!(held_here && writer_is_in), "both are inside");
    assert!(held_here, "the copy that came late was the upgrade");
}

#[tokio::test(start_paused = true)]
async fn guard_is_valid_for_no_longer_than_the_hold_that_it_may_have_been_turned_into() {
    let stage = Stage::new();
    let long = stage.take(&stage.engine, Mode::Write).await;
    let mut short = long.hold().share(long.share_id());
    short.lease = Duration::from_millis(600);
    let now = stage.engine.clock.now();
    let (accepted, due) = long.hold().accept(long.share_id(), short, now, now);
    assert!(matches!(accepted, Accepted::Taken), "as one that it was handed to");
    stage.engine.carry_out(due, now);
    let hold = Arc::clone(long.hold());
    // Carried out, but for all that is heard here.
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_conversion(Fate::Answered(answer));
    let other = async {
        let taken = stage.take(&stage.other, Mode::Write).await;
        assert!(!hold.is_valid(stage.engine.clock.now()), "two are inside");
        drop(taken);
    };
    tokio::select! {
        _ = downgrade(long) => panic!("nothing is answered"),
        () = other => {}
    }
}

#[tokio::test(start_paused = true)]
async fn hold_lives_on_while_it_is_open_whether_it_was_turned() {
    let stage = Stage::new();
    let _neighbour = stage.take(&stage.other, Mode::Read).await;
    // Shorter than a copy of the conversion may be on its way.
    let overrides = Overrides { lease: Some(Duration::from_millis(900)), ..Overrides::default() };
    let terms = Terms::new(stage.engine.options(), overrides).expect("valid");
    let reading = acquire(&stage.engine, Arc::clone(&stage.key), Mode::Read, terms, Patience::Wait).await;
    let reading = reading.expect("answered").expect("granted");
    stage.scheme.next_conversion(Fate::Cut);
    let Err(NotConverted { held, error }) = upgrade(reading).await else { panic!("another one reads") };
    assert!(matches!(error, Error::UpgradeConflict { .. }), "{error:?}");
    assert_eq!(held.hold().state_of(held.share_id()), HoldState::Held);
    held.release().await.expect("ours to the end");
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_an_acquisition_does_not_outlive_its_turn() {
    let stage = Stage::new();
    stage.scheme.next_acquire(Fate::Cut);
    let writing = stage.take(&stage.engine, Mode::Write).await;
    let request = stage.scheme.last_request();
    let Ok(reading) = downgrade(writing).await else { panic!("converted") };
    let late = stage.scheme.memory.acquire(&stage.key, &request).await.expect("memory answers");
    assert!(matches!(late.value, Acquired::Queued { .. }), "{late:?}");
    reading.release().await.expect("released");
    tokio::time::sleep(STRAY + Duration::from_millis(100)).await;
    assert!(stage.is_free().await, "a ghost waits or writes");
}

#[tokio::test(start_paused = true)]
async fn turn_that_crosses_with_close_is_given_back() {
    let stage = Stage::new();
    let writing = stage.take(&stage.engine, Mode::Write).await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_conversion(Fate::Answered(answer));
    let closing = async {
        tokio::task::yield_now().await;
        let (closed, _) = tokio::join!(stage.engine.close(), async { word.send(()) });
        closed.expect("closed");
    };
    let (converted, ()) = tokio::join!(downgrade(writing), closing);
    let error = converted.err().map(|refused| refused.error);
    assert!(matches!(error, Some(Error::Lost { reason: LossReason::Closed, .. })), "{error:?}");
    stage.engine.settled().await;
    assert!(stage.is_free().await, "close has left a hold");
}

#[tokio::test(start_paused = true)]
async fn guard_that_is_over_is_not_turned() {
    let stage = Stage::new();
    let longer = stage.take(&stage.engine, Mode::Read).await;
    let overrides = Overrides { max_hold: Some(Duration::from_secs(1)), ..Overrides::default() };
    let terms = Terms::new(stage.engine.options(), overrides).expect("valid");
    let read = acquire(&stage.engine, Arc::clone(&stage.key), Mode::Read, terms, Patience::Wait).await;
    let reading = read.expect("answered").expect("joined");
    longer.release().await.expect("released");
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let Err(refused) = upgrade(reading).await else { panic!("it was over") };
    assert!(matches!(refused.error, Error::Lost { reason: LossReason::MaxHold, .. }), "{:?}", refused.error);
}
