use std::future::poll_fn;
use std::task::Poll;

use Mode::{Read, Write};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;
use crate::BoxFuture;
use crate::base::attempt::{Notification, Subscription};
use crate::base::error::{Error, Result};
use crate::base::key::LockName;
use crate::base::lease::FencingToken;
use crate::base::lease::MAX_TOKENS;
use crate::base::mode::Mode;
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::Held;
use crate::engine::acquire::{Patience, acquire, join};
use crate::lock::hold::HoldState;
use crate::store::memory::{MemoryScheme, Store};
use crate::testing::staged::{Fate, STRAY, Staged};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

async fn granted(acquisition: impl Future<Output = Result<Option<Held>>>) -> Held {
    acquisition.await.expect("answered").expect("granted")
}

async fn release(held: Held) {
    held.release().await.expect("ours to the end");
}

/// A process that caches its holds. The test counts its requests and decides about them.
struct Stage {
    store: Arc<Store>,
    scheme: Arc<Staged>,
    engine: Arc<Engine>,
    key: Arc<Key>,
}

impl Stage {
    fn new() -> Self {
        Self::on(Arc::new(Store::new()), Options::default())
    }

    fn on(store: Arc<Store>, options: Options) -> Self {
        let scheme = Arc::new(Staged::new(MemoryScheme::new(Arc::clone(&store))));
        scheme.leaves_are_at_hand();
        let options = Options { cache_for: 600 * SECOND, ..options };
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), options));
        let key = engine.key("cfg").expect("valid");
        Self { store, scheme, engine, key }
    }

    /// Returns a process with a cached hold.
    async fn idle_with(mode: Mode) -> Self {
        let stage = Self::new();
        stage.idles(mode).await;
        stage
    }

    /// Another process.
    fn other(&self) -> Self {
        Self::on(Arc::clone(&self.store), Options::default())
    }

    fn terms(&self) -> Terms {
        let overrides = Overrides { lease: Some(300 * SECOND), ..Overrides::default() };
        Terms::new(self.engine.options(), overrides).expect("valid")
    }

    fn asks(&self, mode: Mode, terms: Terms, patience: Patience) -> BoxFuture<'_, Result<Option<Held>>> {
        Box::pin(acquire(&self.engine, Arc::clone(&self.key), mode, terms, patience))
    }

    fn waits(&self, mode: Mode) -> BoxFuture<'_, Result<Option<Held>>> {
        self.asks(mode, self.terms(), Patience::Wait)
    }

    /// Acquires the lock, and waits for at most `limit`.
    fn waits_within(&self, mode: Mode, limit: Duration) -> BoxFuture<'_, Result<Option<Held>>> {
        self.asks(mode, Terms { wait_timeout: Some(limit), ..self.terms() }, Patience::Wait)
    }

    fn tries(&self, mode: Mode) -> BoxFuture<'_, Result<Option<Held>>> {
        self.asks(mode, self.terms(), Patience::AskOnce)
    }

    /// Acquires as a manager does: joins a hold of the process if it can, and asks the server otherwise.
    async fn take(&self, mode: Mode) -> Held {
        match self.joins(mode) {
            Some(held) => held,
            None => granted(self.waits(mode)).await,
        }
    }

    /// Joins a hold of the process, without a request to the server.
    fn joins(&self, mode: Mode) -> Option<Held> {
        let (hold, share_id) = join(&self.engine, &LockName::new("cfg"), mode, &self.terms())?;
        Some(Held::new(&self.engine, hold, share_id))
    }

    async fn uses(&self, mode: Mode) -> u64 {
        let held = self.take(mode).await;
        let token = held.share_id().token.as_u64();
        release(held).await;
        token
    }

    /// Uses the lock until its hold is cached. Tokens are microseconds of the server's clock that are over, so some have
    /// to pass before a writer gets more than one.
    async fn idles(&self, mode: Mode) {
        while self.idle() != Some(mode) {
            sleep(3 * MS).await;
            self.uses(mode).await;
        }
    }

    /// Mode of the process's cached hold, if there is one.
    fn idle(&self) -> Option<Mode> {
        self.engine.table.cached_holds().first().map(|(_, hold)| hold.mode())
    }

    /// Holders and waiters on the server.
    async fn there(&self) -> (usize, usize) {
        let view = self.scheme.memory.inspect(&self.key).await.expect("memory answers").value;
        (view.holders.len(), view.waiters.len())
    }

    async fn settles(&self) {
        sleep(STRAY * 4).await;
    }
}

async fn polled_once<T>(future: &mut BoxFuture<'_, T>) {
    poll_fn(|context| {
        assert!(future.as_mut().poll(context).is_pending(), "it waits");
        Poll::Ready(())
    })
    .await;
}

#[tokio::test(start_paused = true)]
async fn acquisition_of_the_other_mode_takes_two_scripts_and_those_of_the_same_mode_none() {
    let stage = Stage::idle_with(Read).await;
    let (before, mut last) = (stage.scheme.scripts(), 0);
    for writes in 1..=20 {
        sleep(3 * MS).await;
        let token = stage.uses(Write).await;
        assert!(token > last, "{token} after {last}");
        assert!(stage.uses(Write).await > token);
        last = token;
        for _ in 0..5 {
            assert!(stage.uses(Read).await >= last);
        }
        assert_eq!(stage.scheme.scripts() - before, 4 * writes);
    }
    assert_eq!((stage.idle(), stage.there().await), (Some(Read), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn writers_take_two_scripts_for_as_many_as_a_block_has_tokens() {
    let stage = Stage::idle_with(Write).await;
    let (before, mut last) = (stage.scheme.scripts(), 0);
    for _ in 0..20 * MAX_TOKENS {
        sleep(Duration::from_micros(10)).await;
        let token = stage.uses(Write).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    let scripts = stage.scheme.scripts() - before;
    assert!((39..=41).contains(&scripts), "{scripts} scripts");
}

#[tokio::test(start_paused = true)]
async fn writers_that_wait_for_one_another_take_no_more() {
    let stage = Stage::idle_with(Write).await;
    let before = stage.scheme.scripts();
    let mut held = stage.take(Write).await;
    for _ in 0..5 * MAX_TOKENS {
        let mut next = stage.waits(Write);
        polled_once(&mut next).await;
        sleep(Duration::from_micros(10)).await;
        release(held).await;
        held = granted(next).await;
    }
    let scripts = stage.scheme.scripts() - before;
    assert!((9..=11).contains(&scripts), "{scripts} scripts");
}

#[tokio::test(start_paused = true)]
async fn renewal_brings_new_tokens_before_the_block_is_used_up() {
    let stage = Stage::idle_with(Write).await;
    let acquired = stage.scheme.requests();
    for _ in 0..4 * MAX_TOKENS {
        // Half of a block lasts for longer than it takes to the next renewal.
        sleep(120 * MS).await;
        stage.uses(Write).await;
    }
    assert_eq!(stage.scheme.requests(), acquired);
}

/// An unused hold of the process never refuses a try, whether its release is sent before the try or later.
#[tokio::test(start_paused = true)]
async fn try_is_not_refused_by_a_cached_hold_of_its_own_process() {
    let stage = Stage::new();
    for (idle, wanted) in [(Read, Write), (Write, Read), (Write, Write)] {
        for delays_release in [false, true] {
            stage.idles(idle).await;
            let (signal, heard) = oneshot::channel();
            if delays_release {
                stage.scheme.next_leave(Fate::Silent(heard));
            }
            let tries = stage.tries(wanted);
            let release_arrives = async {
                sleep(5 * MS).await;
                drop(signal);
            };
            let (held, ()) = tokio::join!(tries, release_arrives);
            release(held.expect("answered").expect("no guard is inside")).await;
        }
    }
}

/// A stage with a cached read hold, beside a reader of another process.
async fn stage_beside_a_reader() -> (Stage, Held) {
    let stage = Stage::idle_with(Read).await;
    let reader = stage.other().take(Read).await;
    (stage, reader)
}

#[tokio::test(start_paused = true)]
async fn writer_that_finds_readers_elsewhere_gives_its_idle_hold_up_and_waits_for_them() {
    let (stage, reader) = stage_beside_a_reader().await;
    let mut writer = stage.waits(Write);
    tokio::select! {
        biased;
        _ = &mut writer => panic!("somebody reads"),
        () = stage.settles() => {}
    }
    assert_eq!((stage.idle(), stage.there().await), (None, (1, 1)));
    release(reader).await;
    let held = granted(writer).await;
    assert_eq!(stage.there().await, (1, 0));
    release(held).await;
}

#[tokio::test(start_paused = true)]
async fn try_that_finds_readers_elsewhere_is_refused() {
    let (stage, reader) = stage_beside_a_reader().await;
    assert!(stage.tries(Write).await.expect("answered").is_none());
    stage.settles().await;
    assert_eq!(stage.there().await, (1, 0), "nothing is left of it");
    release(reader).await;
    assert!(stage.tries(Write).await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn readers_of_a_process_that_wait_briefly_are_not_refused_by_an_idle_hold_elsewhere() {
    let stage = Stage::idle_with(Write).await;
    let other = stage.other();
    let asks = || other.waits_within(Read, Duration::ZERO);
    let (first, second) = tokio::join!(asks(), asks());
    assert!([first, second].into_iter().all(|read| read.expect("nobody is inside").is_some()));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_briefly_beside_a_guard_has_waited_for_the_word_and_leaves_nothing() {
    for limit in [0, 1, 70].map(Duration::from_millis) {
        let stage = Stage::idle_with(Write).await;
        let other = stage.other();
        let guard = stage.take(Write).await;
        let refused = other.waits_within(Write, limit).await.expect_err("a guard is inside");
        let Error::WaitTimeout { waited, .. } = refused else { panic!("{refused:?}") };
        let most = limit.max(other.engine.options().recall_timeout);
        assert!((most..most + STRAY).contains(&waited), "{waited:?} where {limit:?} was the limit");
        stage.settles().await;
        assert_eq!(stage.there().await, (1, 0));
        release(guard).await;
        assert_eq!(stage.idle(), None, "it was called");
    }
}

#[tokio::test(start_paused = true)]
async fn limit_counts_as_it_is_where_nobody_keeps_the_lock() {
    let stage = Stage::new();
    let other = stage.other();
    let guard = stage.take(Write).await;
    let refused = other.waits_within(Write, Duration::ZERO).await.expect_err("a guard is inside");
    let Error::WaitTimeout { waited, .. } = refused else { panic!("{refused:?}") };
    assert!(waited < 5 * MS, "{waited:?}");
    release(guard).await;
}

#[tokio::test(start_paused = true)]
async fn release_whose_answer_is_lost_is_sent_again() {
    for (idle, wanted) in [(Read, Write), (Write, Read)] {
        for fate in [Fate::Unheard, Fate::Cut] {
            let stage = Stage::idle_with(idle).await;
            stage.scheme.next_leave(fate);
            let held = stage.take(wanted).await;
            stage.settles().await;
            assert_eq!(stage.there().await, (1, 0));
            release(held).await;
        }
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_behind_the_release_of_a_cached_hold_leaves_nothing() {
    for (idle, wanted) in [(Read, Write), (Write, Read)] {
        let stage = Stage::idle_with(idle).await;
        let (_word, answer) = oneshot::channel();
        stage.scheme.next_acquire(Fate::Answered(answer));
        let mut asks = stage.waits(wanted);
        polled_once(&mut asks).await;
        drop(asks);
        stage.settles().await;
        assert_eq!(stage.there().await, (0, 0));
        assert!(stage.engine.is_idle());
    }
}

/// Publishes 1000 recalls of tries that no process makes, and returns how many of them the holder answers.
async fn answers_to_a_flood(stage: &Stage, subscription: &mut Subscription, token: FencingToken) -> usize {
    let now = stage.engine.clock.now();
    for n in 0..1000 {
        let tries = Some(format!("forger.{n}.x").into());
        stage.store.publish_recall(&stage.key, &Recall { token, tries }, now);
    }
    // The holder has answered by now: paused time passes only when no task has anything left to do.
    sleep(MS).await;
    std::iter::from_fn(|| subscription.notices.try_recv().ok())
        .filter(|notice| matches!(notice, Notification::Used { .. }))
        .count()
}

#[tokio::test(start_paused = true)]
async fn flood_of_calls_is_answered_as_often_as_is_allowed() {
    let stage = Stage::idle_with(Write).await;
    let held = stage.take(Write).await;
    let token = held.share_id().token;
    let mut subscription =
        stage.scheme.notifications().expect("memory has notifications").subscribe(&stage.key, "forger");
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 16, "a burst");
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 0, "all of it is used");
    sleep(SECOND).await;
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 16, "regained");
    // A genuine try gets its answer, too.
    sleep(SECOND).await;
    let refused = stage.other().tries(Write).await.expect("answered");
    assert!(refused.is_none() && held.state() == HoldState::Held);
    release(held).await;
}
