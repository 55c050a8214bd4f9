//! What becomes of a release that goes out where its guard is dropped.

use std::thread;

use tokio::sync::oneshot;

use super::at_hand::MOST_AT_HAND;
use super::*;
use crate::engine::acquire::{Patience, acquire};
use crate::engine::{Engine, Held};
use crate::options::{Options, Overrides, Terms};
use crate::scheme::Mode;
use crate::scheme::memory::{Memory, Store};
use crate::testing::staged::{Fate, Staged};

/// A process whose releases go out where its guards are dropped.
struct Stage {
    scheme: Arc<Staged>,
    engine: Arc<Engine>,
}

impl Stage {
    fn new() -> Self {
        let scheme = Arc::new(Staged::new(Memory::new(Arc::new(Store::new()))));
        scheme.leaves_are_at_hand();
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
        Self { scheme, engine }
    }

    async fn take(&self, name: &str) -> Held {
        let terms = Terms::new(self.engine.options(), Overrides::default()).expect("valid");
        let key = self.engine.key(name).expect("valid");
        acquire(&self.engine, key, Mode::Write, terms, Patience::Wait).await.expect("answered").expect("granted")
    }

    /// How many hold the lock, as the server has it.
    async fn holders(&self, name: &str) -> usize {
        let key = self.engine.key(name).expect("valid");
        self.scheme.memory.inspect(&key).await.expect("memory answers").value.holders.len()
    }

    fn patience(&self) -> Duration {
        self.engine.options().response_timeout / 2
    }
}

/// A copy that never arrives, as far as anybody hears.
fn lost_with_its_runtime(stage: &Stage) -> oneshot::Sender<()> {
    let (word, heard) = oneshot::channel();
    stage.scheme.next_leave(Fate::Silent(heard));
    word
}

#[tokio::test(start_paused = true)]
async fn server_knows_when_the_drop_is_over() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    let before = stage.scheme.scripts();
    drop(held);
    assert_eq!((stage.scheme.scripts() - before, stage.holders("cfg").await), (1, 0));
    tokio::time::sleep(stage.patience() * 3).await;
    assert_eq!(stage.scheme.scripts() - before, 1, "what was answered is not told again");
}

#[tokio::test(start_paused = true)]
async fn drop_outside_a_runtime_is_told_from_elsewhere() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    thread::scope(|scope| drop(scope.spawn(move || drop(held))));
    assert_eq!(stage.holders("cfg").await, 1);
    stage.engine.settled().await;
    assert_eq!(stage.holders("cfg").await, 0);
}

#[tokio::test(start_paused = true)]
async fn release_of_a_runtime_that_stands_still_is_told_from_elsewhere_after_half_a_response_timeout() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    let _never = lost_with_its_runtime(&stage);
    drop(held);
    tokio::time::sleep(stage.patience() - Duration::from_millis(1)).await;
    assert_eq!(stage.holders("cfg").await, 1);
    tokio::time::sleep(Duration::from_millis(2)).await;
    assert_eq!(stage.holders("cfg").await, 0);
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_in_the_process_waits_no_longer_than_that() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    let _never = lost_with_its_runtime(&stage);
    let began = stage.engine.clock.now();
    drop(held);
    stage.take("cfg").await.release().await.expect("ours");
    assert!(stage.engine.clock.now().since(began) <= stage.patience() + Duration::from_millis(1));
}

#[tokio::test(start_paused = true)]
async fn release_that_fails_is_told_again_without_that_wait() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    stage.scheme.next_leave(Fate::Cut);
    drop(held);
    assert_eq!(stage.holders("cfg").await, 1);
    tokio::time::sleep(stage.patience() / 2).await;
    assert_eq!(stage.holders("cfg").await, 0);
}

#[tokio::test(start_paused = true)]
async fn close_waits_for_the_answer_where_the_guard_was_dropped() {
    let stage = Stage::new();
    let held = stage.take("cfg").await;
    let (word, heard) = oneshot::channel();
    stage.scheme.next_leave(Fate::Answered(heard));
    drop(held);
    let mut closing = Box::pin(stage.engine.close());
    let early = tokio::time::timeout(stage.patience() / 2, &mut closing).await;
    assert!(early.is_err(), "it is not answered");
    word.send(()).expect("it waits for that");
    closing.await.expect("closed");
    assert!(!stage.engine.releases.is_releasing());
}

#[tokio::test(start_paused = true)]
async fn of_many_at_once_only_so_many_go_out_one_by_one() {
    let stage = Stage::new();
    let names: Vec<_> = (0..MOST_AT_HAND + 36).map(|n| format!("cfg-{n}")).collect();
    let mut held = Vec::new();
    for name in &names {
        held.push(stage.take(name).await);
    }
    let (words, heard): (Vec<_>, Vec<_>) = (0..MOST_AT_HAND).map(|_| oneshot::channel()).unzip();
    heard.into_iter().for_each(|heard| stage.scheme.next_leave(Fate::Answered(heard)));
    let before = stage.scheme.scripts();
    drop(held);
    assert_eq!(stage.scheme.scripts() - before, MOST_AT_HAND);
    words.into_iter().for_each(|word| word.send(()).expect("it waits for that"));
    stage.engine.settled().await;
    assert_eq!(stage.scheme.scripts() - before, names.len(), "each is told once");
    // There is room again.
    let held = stage.take("cfg").await;
    drop(held);
    assert_eq!(stage.holders("cfg").await, 0);
}

#[test]
fn manager_that_is_dropped_at_once_leaves_nothing_in_memory() {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let releases = runtime.block_on(async {
        let stage = Stage::new();
        let held = stage.take("cfg").await;
        let _never = lost_with_its_runtime(&stage);
        drop(held);
        Arc::downgrade(&stage.engine.releases)
    });
    drop(runtime);
    assert!(releases.upgrade().is_none(), "a release waits for its runtime for ever");
}
