use std::future::poll_fn;
use std::task::Poll;

use tokio::sync::oneshot;

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
        let options = Options { cache_for: Duration::from_secs(600), ..options };
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), options));
        let key = engine.key("cfg").expect("valid");
        Self { store, scheme, engine, key }
    }

    /// Another process.
    fn other(&self) -> Self {
        Self::on(Arc::clone(&self.store), Options::default())
    }

    fn terms(&self) -> Terms {
        let overrides = Overrides { lease: Some(Duration::from_secs(300)), ..Overrides::default() };
        Terms::new(self.engine.options(), overrides).expect("valid")
    }

    fn asks(&self, mode: Mode, patience: Patience) -> BoxFuture<'_, Result<Option<Held>>> {
        Box::pin(acquire(&self.engine, Arc::clone(&self.key), mode, self.terms(), patience))
    }

    /// Acquires the lock, and waits for at most `limit`.
    fn asks_within(&self, mode: Mode, limit: Duration) -> BoxFuture<'_, Result<Option<Held>>> {
        let terms = Terms { wait_timeout: Some(limit), ..self.terms() };
        Box::pin(acquire(&self.engine, Arc::clone(&self.key), mode, terms, Patience::Wait))
    }

    /// Acquires as a manager does: joins a hold of the process if it can, and asks the server otherwise.
    async fn take(&self, mode: Mode) -> Held {
        match self.joins(mode) {
            Some(held) => held,
            None => self.asks(mode, Patience::Wait).await.expect("answered").expect("granted"),
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
        held.release().await.expect("released");
        token
    }

    /// Uses the lock until its hold is cached.
    async fn idles(&self, mode: Mode) {
        while self.idle() != Some(mode) {
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
        tokio::time::sleep(STRAY * 4).await;
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
async fn writer_between_readers_takes_two_scripts_and_readers_none() {
    let stage = Stage::new();
    stage.idles(Mode::Read).await;
    let (before, mut last) = (stage.scheme.scripts(), 0);
    for writes in 1..=20 {
        let token = stage.uses(Mode::Write).await;
        assert!(token > last, "{token} after {last}");
        last = token;
        for _ in 0..5 {
            assert!(stage.uses(Mode::Read).await >= last);
        }
        assert_eq!(stage.scheme.scripts() - before, 2 * writes);
    }
    assert_eq!((stage.idle(), stage.there().await), (Some(Mode::Read), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn writers_take_one_script_for_as_many_as_a_block_has_tokens() {
    let stage = Stage::new();
    stage.idles(Mode::Write).await;
    let (before, mut last) = (stage.scheme.scripts(), 0);
    for _ in 0..20 * MAX_TOKENS {
        // Tokens are microseconds of the server's clock that are over, so some have to pass.
        tokio::time::sleep(Duration::from_micros(10)).await;
        let token = stage.uses(Mode::Write).await;
        assert!(token > last, "{token} after {last}");
        last = token;
    }
    let scripts = stage.scheme.scripts() - before;
    assert!((19..=20).contains(&scripts), "{scripts} scripts");
}

#[tokio::test(start_paused = true)]
async fn writers_that_wait_for_one_another_take_no_more() {
    let stage = Stage::new();
    stage.idles(Mode::Write).await;
    let before = stage.scheme.scripts();
    let mut held = stage.take(Mode::Write).await;
    for _ in 0..5 * MAX_TOKENS {
        let mut next = stage.asks(Mode::Write, Patience::Wait);
        polled_once(&mut next).await;
        // Tokens are microseconds of the server's clock that are over, so some have to pass.
        tokio::time::sleep(Duration::from_micros(10)).await;
        held.release().await.expect("released");
        let after = next.await.expect("answered").expect("granted");
        held = after;
    }
    let scripts = stage.scheme.scripts() - before;
    assert!((4..=6).contains(&scripts), "{scripts} scripts");
}

/// A stage with a cached read hold, beside a reader of another process.
async fn stage_beside_a_reader() -> (Stage, Held) {
    let stage = Stage::new();
    stage.idles(Mode::Read).await;
    let reader = stage.other().take(Mode::Read).await;
    (stage, reader)
}

#[tokio::test(start_paused = true)]
async fn writer_that_finds_readers_elsewhere_gives_its_idle_hold_up_and_waits_for_them() {
    let (stage, reader) = stage_beside_a_reader().await;
    let mut writer = stage.asks(Mode::Write, Patience::Wait);
    tokio::select! {
        biased;
        _ = &mut writer => panic!("somebody reads"),
        () = stage.settles() => {}
    }
    assert_eq!((stage.idle(), stage.there().await), (None, (1, 1)));
    reader.release().await.expect("released");
    let held = writer.await.expect("answered").expect("granted");
    assert_eq!(stage.there().await, (1, 0));
    held.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn try_that_finds_readers_elsewhere_is_refused() {
    let (stage, reader) = stage_beside_a_reader().await;
    assert!(stage.asks(Mode::Write, Patience::AskOnce).await.expect("answered").is_none());
    stage.settles().await;
    assert_eq!(stage.there().await, (1, 0), "nothing is left of it");
    reader.release().await.expect("released");
    assert!(stage.asks(Mode::Write, Patience::AskOnce).await.expect("answered").is_some());
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_briefly_is_not_refused_by_an_idle_hold_elsewhere() {
    for (idle, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Write), (Mode::Write, Mode::Read)] {
        let stage = Stage::new();
        let other = stage.other();
        stage.idles(idle).await;
        let held = other.asks_within(wanted, Duration::ZERO).await.expect("nobody is inside").expect("granted");
        held.release().await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn nor_are_those_behind_it_in_its_process() {
    let stage = Stage::new();
    let other = stage.other();
    stage.idles(Mode::Write).await;
    let asks = || other.asks_within(Mode::Read, Duration::ZERO);
    let (first, second) = tokio::join!(asks(), asks());
    assert!([first, second].into_iter().all(|read| read.expect("nobody is inside").is_some()));
}

#[tokio::test(start_paused = true)]
async fn whoever_waits_briefly_beside_a_guard_has_waited_for_the_word_and_leaves_nothing() {
    for limit in [0, 1, 70].map(Duration::from_millis) {
        let stage = Stage::new();
        let other = stage.other();
        stage.idles(Mode::Write).await;
        let guard = stage.take(Mode::Write).await;
        let refused = other.asks_within(Mode::Write, limit).await.expect_err("a guard is inside");
        let Error::WaitTimeout { waited, .. } = refused else { panic!("{refused:?}") };
        let most = limit.max(other.engine.options().recall_timeout);
        assert!((most..most + STRAY).contains(&waited), "{waited:?} where {limit:?} was the limit");
        stage.settles().await;
        assert_eq!(stage.there().await, (1, 0));
        guard.release().await.expect("released");
        assert_eq!(stage.idle(), None, "it was called");
    }
}

#[tokio::test(start_paused = true)]
async fn limit_counts_as_it_is_where_nobody_keeps_the_lock() {
    let stage = Stage::new();
    let other = stage.other();
    let guard = stage.take(Mode::Write).await;
    let refused = other.asks_within(Mode::Write, Duration::ZERO).await.expect_err("a guard is inside");
    let Error::WaitTimeout { waited, .. } = refused else { panic!("{refused:?}") };
    assert!(waited < Duration::from_millis(5), "{waited:?}");
    guard.release().await.expect("released");
}

#[tokio::test(start_paused = true)]
async fn answer_that_is_lost_is_asked_for_again() {
    for (idle, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let stage = Stage::new();
        stage.idles(idle).await;
        stage.scheme.next_conversion(Fate::Unheard);
        let held = stage.take(wanted).await;
        assert_eq!(stage.there().await, (1, 0));
        held.release().await.expect("released");
        assert_eq!(stage.idle(), Some(wanted));
    }
}

#[tokio::test(start_paused = true)]
async fn guard_of_a_hold_that_was_turned_begins_with_enough_however_long_that_took() {
    const LEASE: Duration = Duration::from_secs(60);
    for max_hold in [LEASE, LEASE * 10] {
        let stage = Stage::new();
        stage.idles(Mode::Write).await;
        let (word, answer) = oneshot::channel();
        stage.scheme.next_conversion(Fate::Answered(answer));
        let overrides = Overrides { lease: Some(LEASE), max_hold: Some(max_hold), ..Overrides::default() };
        let terms = Terms::new(stage.engine.options(), overrides).expect("valid");
        let asks = acquire(&stage.engine, Arc::clone(&stage.key), Mode::Read, terms, Patience::Wait);
        let answers = async {
            tokio::time::sleep(LEASE * 2 / 3).await;
            word.send(()).expect("it is waited for");
        };
        let (held, ()) = tokio::join!(asks, answers);
        let held = held.expect("answered").expect("granted");
        let left = held.hold().remaining(held.share_id());
        assert!(left >= LEASE / 2, "{left:?} are left");
        held.release().await.expect("released");
    }
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_while_its_hold_is_turned_leaves_nothing() {
    for (idle, wanted) in [(Mode::Read, Mode::Write), (Mode::Write, Mode::Read)] {
        let stage = Stage::new();
        stage.idles(idle).await;
        let (_word, answer) = oneshot::channel();
        stage.scheme.next_conversion(Fate::Answered(answer));
        let mut asks = stage.asks(wanted, Patience::Wait);
        polled_once(&mut asks).await;
        drop(asks);
        stage.settles().await;
        assert_eq!(stage.there().await, (0, 0));
        assert!(stage.engine.is_idle());
    }
}

/// A stage whose cached write hold has no token left, and the last token that it gave.
async fn stage_without_tokens() -> (Stage, u64) {
    without_tokens(Stage::new()).await
}

async fn without_tokens(stage: Stage) -> (Stage, u64) {
    stage.idles(Mode::Write).await;
    let mut last = stage.uses(Mode::Write).await;
    while let Some(held) = stage.joins(Mode::Write) {
        last = held.share_id().token.as_u64();
    }
    assert_eq!(stage.idle(), Some(Mode::Write));
    // Lets the server's clock go on, so that the next grant has another token.
    tokio::time::sleep(Duration::from_millis(1)).await;
    (stage, last)
}

#[tokio::test(start_paused = true)]
async fn whoever_is_dropped_while_it_asks_for_tokens_leaves_the_hold_to_the_next() {
    let (stage, last) = stage_without_tokens().await;
    let (_word, answer) = oneshot::channel();
    stage.scheme.next_renewals(answer);
    let mut asks = stage.asks(Mode::Write, Patience::Wait);
    polled_once(&mut asks).await;
    drop(asks);
    assert_eq!(stage.idle(), Some(Mode::Write));
    let token = stage.uses(Mode::Write).await;
    assert!(token > last, "{token} after {last}");
    assert_eq!((stage.idle(), stage.there().await), (Some(Mode::Write), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn writer_whose_hold_the_server_has_lost_gets_another_one_at_once() {
    for patience in [Patience::Wait, Patience::AskOnce] {
        let (stage, last) = stage_without_tokens().await;
        stage.store.lose_all();
        // The process sends a release all the same, in case the server still knows the hold. No caller waits for its
        // answer.
        let (_never, heard) = oneshot::channel();
        stage.scheme.next_leave(Fate::Silent(heard));
        let asks = tokio::time::timeout(Duration::from_millis(1), stage.asks(Mode::Write, patience));
        let held = asks.await.expect("at once").expect("answered").expect("nobody is inside");
        let token = held.share_id().token.as_u64();
        assert!(token > last, "{token} after {last}");
        stage.settles().await;
        assert_eq!(stage.there().await, (1, 0));
        held.release().await.expect("ours");
    }
}

#[tokio::test(start_paused = true)]
async fn tokens_of_which_nobody_hears_are_asked_for_again() {
    let (stage, last) = stage_without_tokens().await;
    stage.scheme.renewals_go_unheard(1);
    let token = stage.uses(Mode::Write).await;
    assert!(token > last, "{token} after {last}");
    assert_eq!((stage.idle(), stage.there().await), (Some(Mode::Write), (1, 0)));
}

#[tokio::test(start_paused = true)]
async fn writer_whose_question_for_tokens_is_never_answered_asks_for_another_hold() {
    let (stage, last) = stage_without_tokens().await;
    stage.scheme.renewals_go_unheard(usize::MAX);
    let held = stage.asks(Mode::Write, Patience::Wait).await.expect("answered").expect("nobody is inside");
    let token = held.share_id().token.as_u64();
    assert!(token > last, "{token} after {last}");
    stage.settles().await;
    assert_eq!(stage.there().await, (1, 0), "the one before is given back");
    stage.scheme.renewals_go_unheard(0);
    held.release().await.expect("ours");
}

#[tokio::test(start_paused = true)]
async fn writer_whom_nobody_answers_any_more_is_told_so() {
    let (stage, _) = stage_without_tokens().await;
    let (began, unreachable_after) = (stage.engine.clock.now(), stage.engine.options().unreachable_after);
    stage.scheme.renewals_go_unheard(usize::MAX);
    (0..200).for_each(|_| stage.scheme.next_acquire(Fate::Cut));
    let unreachable = stage.asks(Mode::Write, Patience::Wait).await.expect_err("nobody answers");
    assert!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable:?}");
    let waited = stage.engine.clock.now().since(began);
    assert!((unreachable_after..unreachable_after + STRAY * 2).contains(&waited), "{waited:?}");
    stage.settles().await;
    assert_eq!(stage.there().await, (0, 0), "nothing is left of it");
}

#[tokio::test(start_paused = true)]
async fn try_whose_question_for_tokens_is_never_answered_is_told_so_and_leaves_the_hold_to_the_next() {
    let (stage, last) = stage_without_tokens().await;
    let began = stage.engine.clock.now();
    stage.scheme.renewals_go_unheard(usize::MAX);
    let unreachable = stage.asks(Mode::Write, Patience::AskOnce).await.expect_err("nobody answers");
    assert!(matches!(unreachable, Error::Unreachable { .. }), "{unreachable:?}");
    let waited = stage.engine.clock.now().since(began);
    assert!(waited <= stage.engine.options().response_timeout * 2, "{waited:?}");
    assert_eq!(stage.idle(), Some(Mode::Write));
    stage.scheme.renewals_go_unheard(0);
    let token = stage.uses(Mode::Write).await;
    assert!(token > last, "{token} after {last}");
    assert_eq!((stage.idle(), stage.there().await), (Some(Mode::Write), (1, 0)));
}

/// A try finds no token left, and another process begins to wait meanwhile: the try is refused, and the waiter is
/// granted.
async fn tries_while_another_waits(begins: impl FnOnce(&Staged, oneshot::Receiver<()>)) {
    let (stage, _) = stage_without_tokens().await;
    let other = stage.other();
    let (word, waits_for_a_word) = oneshot::channel();
    begins(&stage.scheme, waits_for_a_word);
    let mut tries = stage.asks(Mode::Write, Patience::AskOnce);
    polled_once(&mut tries).await;
    let mut waits = other.asks(Mode::Write, Patience::Wait);
    polled_once(&mut waits).await;
    tokio::select! {
        biased;
        _ = &mut tries => panic!("it has no answer"),
        _ = &mut waits => panic!("the hold is not given back"),
        () = tokio::time::sleep(Duration::from_millis(1)) => {}
    }
    // The answer to the release never comes.
    let (_never, heard) = oneshot::channel();
    stage.scheme.next_leave(Fate::Answered(heard));
    word.send(()).expect("it asks");
    let began = stage.engine.clock.now();
    assert!(tries.await.expect("answered").is_none(), "somebody else is before it");
    let waited = stage.engine.clock.now().since(began);
    assert!(waited <= stage.engine.options().recall_timeout, "{waited:?}");
    let held = waits.await.expect("answered").expect("granted");
    stage.settles().await;
    assert_eq!(stage.there().await, (1, 0), "nothing is left of it");
    held.release().await.expect("ours");
}

#[tokio::test(start_paused = true)]
async fn try_that_asks_for_tokens_is_refused_by_the_answer_that_somebody_waits() {
    tries_while_another_waits(|scheme, word| scheme.next_renewals_come_late(word)).await;
}

#[tokio::test(start_paused = true)]
async fn try_that_asks_for_tokens_is_refused_where_somebody_calls_meanwhile() {
    tries_while_another_waits(|scheme, word| scheme.next_renewals(word)).await;
}

#[tokio::test(start_paused = true)]
async fn try_that_asks_for_tokens_for_too_long_waits_for_nobody_of_its_process() {
    let (response_timeout, unreachable_after) = (Duration::from_secs(20), Duration::from_secs(60));
    let patient = Options { response_timeout, unreachable_after, ..Options::default() };
    let (stage, _) = without_tokens(Stage::on(Arc::new(Store::new()), patient)).await;
    stage.scheme.renewals_go_unheard(usize::MAX);
    let mut tries = stage.asks(Mode::Write, Patience::AskOnce);
    polled_once(&mut tries).await;
    let mut waits = stage.asks(Mode::Write, Patience::Wait);
    polled_once(&mut waits).await;
    let (refused, granted) = tokio::join!(tokio::time::timeout(Duration::from_secs(10), tries), waits);
    assert!(refused.expect("it ends though the other one goes on").expect("answered").is_none(), "one is before it");
    stage.scheme.renewals_go_unheard(0);
    granted.expect("answered").expect("granted").release().await.expect("ours");
}

/// Publishes 1000 recalls of tries that no process makes, and returns how many of them the holder answers.
async fn answers_to_a_flood(stage: &Stage, subscription: &mut Subscription, token: FencingToken) -> usize {
    let now = stage.engine.clock.now();
    for n in 0..1000 {
        let tries = Some(format!("forger.{n}.x").into());
        stage.store.publish_recall(&stage.key, &Recall { token, tries }, now);
    }
    // The holder has answered by now: paused time passes only when no task has anything left to do.
    tokio::time::sleep(Duration::from_millis(1)).await;
    std::iter::from_fn(|| subscription.notices.try_recv().ok())
        .filter(|notice| matches!(notice, Notification::Used { .. }))
        .count()
}

#[tokio::test(start_paused = true)]
async fn flood_of_calls_is_answered_as_often_as_is_allowed() {
    let stage = Stage::new();
    stage.idles(Mode::Write).await;
    let held = stage.take(Mode::Write).await;
    let token = held.share_id().token;
    let mut subscription =
        stage.scheme.notifications().expect("memory has notifications").subscribe(&stage.key, "forger");
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 16, "a burst");
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 0, "all of it is used");
    tokio::time::sleep(Duration::from_secs(1)).await;
    assert_eq!(answers_to_a_flood(&stage, &mut subscription, token).await, 16, "regained");
    // A genuine try gets its answer, too.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let refused = stage.other().asks(Mode::Write, Patience::AskOnce).await.expect("answered");
    assert!(refused.is_none() && held.state() == HoldState::Held);
    held.release().await.expect("released");
}
