use std::time::Duration;

use Mode::{Read, Write};
use tokio::sync::oneshot;
use tokio::time::sleep;

use super::*;
use crate::base::attempt::AcquisitionId;
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::acquire::{Patience, acquire};
use crate::lock::hold::Accepted;
use crate::lock::side::WaiterId;
use crate::store::{Acquired, Converted, Scheme, View};
use crate::testing::staged::{Fate, STRAY, StagedPair};

const MS: Duration = Duration::from_millis(1);
const SECOND: Duration = Duration::from_secs(1);

const SHORT: Overrides = Overrides {
    lease: Some(SECOND),
    wait_timeout: None,
    max_hold: None,
    reentry: None,
    cache_for: None,
    at_least: None,
};

async fn release(held: Held) {
    held.release().await.expect("ours to the end");
}

impl StagedPair {
    async fn view(&self) -> View {
        self.scheme.memory.inspect(&self.key).await.expect("memory answers").value
    }

    async fn is_free(&self) -> bool {
        let view = self.view().await;
        view.holders.is_empty() && view.waiters.is_empty()
    }

    async fn is_free_when_settled(&self) -> bool {
        self.engine.settled().await;
        self.is_free().await
    }

    async fn read_with(&self, overrides: Overrides) -> Held {
        let terms = Terms::new(self.engine.options(), overrides).expect("valid");
        let read = acquire(&self.engine, Arc::clone(&self.key), Read, terms, Patience::Wait).await;
        read.expect("answered").expect("granted")
    }

    /// Returns a reader whose guard wants a shorter lease than its hold has.
    async fn short_reader(&self) -> Held {
        let longer = self.take(&self.engine, Read).await;
        let joined = self.read_with(SHORT).await;
        release(longer).await;
        joined
    }

    /// Lets a copy of a conversion arrive now. The server carries it out.
    async fn copy_is_converted(&self, old: &AcquisitionId, request: &AcquireRequest) {
        let late = self.scheme.memory.convert(&self.key, old, request).await.expect("memory answers");
        assert!(matches!(late.value, Converted::Granted(_)), "{late:?}");
    }

    /// Waits until another process may write.
    async fn others_write(&self) {
        while !self.others_may_write().await {
            sleep(MS).await;
        }
    }

    /// Returns a reader whose upgrade has met this fate and got no answer. The next renewal is answered when the test
    /// sends a signal.
    pub(in crate::engine) async fn reader_in_doubt(&self, fate: Fate) -> (Held, oneshot::Sender<()>) {
        let reading = self.take(&self.engine, Read).await;
        self.leaves_in_doubt(reading, fate).await
    }

    async fn leaves_in_doubt(&self, reading: Held, fate: Fate) -> (Held, oneshot::Sender<()>) {
        let (word, renewed) = oneshot::channel();
        self.scheme.next_renewals(renewed);
        self.scheme.next_conversion(fate);
        let Err(NotConverted { held, error }) = upgrade(reading).await else { panic!("nobody has answered") };
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(held.state(), HoldState::Unconfirmed);
        (held, word)
    }
}

#[tokio::test(start_paused = true)]
async fn guard_is_valid_for_no_longer_than_the_hold_that_it_may_have_been_turned_into() {
    let stage = StagedPair::new();
    let long = stage.take(&stage.engine, Write).await;
    let mut short = long.hold().share(long.share_id());
    short.lease = 600 * MS;
    let now = stage.engine.clock.now();
    let accepted = long.hold().accept(WaiterId::of(1), (long.share_id(), short), now, now);
    assert!(matches!(accepted, Accepted::Taken(_)), "as one that it was handed to");
    let hold = Arc::clone(long.hold());
    // The server converts, and the answer does not come before the test ends.
    let _word = stage.next_conversion_waits();
    let other = async {
        let taken = stage.take(&stage.other, Write).await;
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
    let stage = StagedPair::new();
    let _neighbour = stage.take(&stage.other, Read).await;
    // The lease is shorter than the time for which a copy of the conversion may be on its way.
    let reading = stage.read_with(Overrides { lease: Some(900 * MS), ..Overrides::default() }).await;
    stage.scheme.next_conversion(Fate::Cut);
    let Err(NotConverted { held, error }) = upgrade(reading).await else { panic!("another one reads") };
    assert!(matches!(error, Error::UpgradeConflict { .. }), "{error:?}");
    assert_eq!(held.state(), HoldState::Held);
    release(held).await;
}

#[tokio::test(start_paused = true)]
async fn late_copy_of_an_acquisition_does_not_outlive_its_turn() {
    let stage = StagedPair::new();
    stage.scheme.next_acquire(Fate::Cut);
    let writing = stage.take(&stage.engine, Write).await;
    let request = stage.scheme.last_request();
    let Ok(reading) = downgrade(writing).await else { panic!("converted") };
    let late = stage.scheme.memory.acquire(&stage.key, &request).await.expect("memory answers");
    assert!(matches!(late.value, Acquired::Queued { .. }), "{late:?}");
    release(reading).await;
    sleep(STRAY + 100 * MS).await;
    assert!(stage.is_free().await, "a ghost waits or writes");
}

#[tokio::test(start_paused = true)]
async fn turn_that_crosses_with_close_is_given_back() {
    let stage = StagedPair::new();
    let writing = stage.take(&stage.engine, Write).await;
    let word = stage.next_conversion_waits();
    let closing = async {
        tokio::task::yield_now().await;
        let (closed, _) = tokio::join!(stage.engine.close(), async { word.send(()) });
        closed.expect("closed");
    };
    let (converted, ()) = tokio::join!(downgrade(writing), closing);
    let error = converted.err().map(|refused| refused.error);
    assert!(matches!(error, Some(Error::Lost { reason: LossReason::Closed, .. })), "{error:?}");
    assert!(stage.is_free_when_settled().await, "close has left a hold");
}

#[tokio::test(start_paused = true)]
async fn guard_is_not_lost_while_its_upgrade_waits_for_those_who_keep_their_holds() {
    let stage = StagedPair::with(Options { recall_timeout: 4 * SECOND, ..Options::default() });
    let keeps = Options { cache_for: 60 * SECOND, ..Options::default() };
    let keeper = Arc::new(Engine::new(Arc::new(stage.scheme.memory.clone()), keeps));
    // A lock is cached from its second use on.
    release(stage.take(&keeper, Read).await).await;
    let inside = stage.take(&keeper, Read).await;
    let read = stage.short_reader().await;
    let (_word, never) = oneshot::channel();
    stage.scheme.next_renewals(never);
    let asked = tokio::time::Instant::now();
    let Err(refused) = upgrade(read).await else { panic!("another one reads") };
    assert!(matches!(refused.error, Error::UpgradeConflict { .. }), "{:?}", refused.error);
    assert!(asked.elapsed() >= 4 * SECOND, "nobody waited: nobody keeps the lock");
    assert_eq!(refused.held.state(), HoldState::Held);
    release(inside).await;
}

#[tokio::test(start_paused = true)]
async fn upgrade_that_never_arrives_leaves_a_reader_in_doubt_until_no_copy_can_arrive() {
    let stage = StagedPair::impatient();
    let (held, word) = stage.reader_in_doubt(Fate::Cut).await;
    word.send(()).expect("a renewal is out");
    sleep(STRAY / 2).await;
    assert_eq!(held.state(), HoldState::Unconfirmed, "a copy may yet be carried out");
    sleep(STRAY).await;
    assert_eq!(held.state(), HoldState::Held);
    let Ok(writing) = upgrade(held).await else { panic!("it reads alone") };
    release(writing).await;
    assert!(stage.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn upgrade_whose_answer_never_comes_is_lost_by_the_word_of_the_server_and_given_back() {
    let stage = StagedPair::impatient();
    let (held, word) = stage.reader_in_doubt(Fate::Unheard).await;
    let new = stage.scheme.last_request().id;
    sleep(STRAY / 2).await;
    assert_eq!(held.state(), HoldState::Unconfirmed);
    assert_eq!(stage.holders().await, [new.as_str()], "the reader counts on it");
    word.send(()).expect("a renewal is out");
    assert_eq!(held.lost().await, LossReason::Gone);
    assert!(stage.is_free_when_settled().await, "the guard is there, and nobody holds the lock");
}

#[tokio::test(start_paused = true)]
async fn copy_of_an_upgrade_that_comes_after_all_is_given_back_with_the_reader() {
    let stage = StagedPair::impatient();
    let (held, word) = stage.reader_in_doubt(Fate::Cut).await;
    word.send(()).expect("a renewal is out");
    sleep(STRAY / 2).await;
    stage.copy_is_converted(held.hold().id(), &stage.scheme.last_request()).await;
    let lost = held.lost();
    tokio::pin!(lost);
    tokio::select! {
        reason = &mut lost => assert_eq!(reason, LossReason::Gone),
        () = stage.others_write() => panic!("the guard is valid, and another one writes"),
    }
    assert!(stage.is_free_when_settled().await);
}

#[tokio::test(start_paused = true)]
async fn reader_in_doubt_is_valid_for_no_longer_than_both_holds() {
    let stage = StagedPair::impatient();
    // The old hold would last for longer.
    let (held, _word) = stage.leaves_in_doubt(stage.short_reader().await, Fate::Unheard).await;
    let reason = held.lost();
    tokio::pin!(reason);
    tokio::select! {
        reason = &mut reason => assert_eq!(reason, LossReason::Expired),
        () = stage.others_write() => panic!("two are inside"),
    }
}

#[tokio::test(start_paused = true)]
async fn upgrade_that_is_asked_for_again_finds_that_it_was_carried_out() {
    let stage = StagedPair::impatient();
    let (held, _word) = stage.reader_in_doubt(Fate::Unheard).await;
    let new = stage.scheme.last_request().id;
    let Ok(writing) = upgrade(held).await else { panic!("it was carried out") };
    assert_eq!((writing.hold().id(), writing.hold().mode()), (&new, Write));
    assert_eq!(writing.state(), HoldState::Held);
    release(writing).await;
    assert!(stage.is_free_when_settled().await);
}

#[tokio::test(start_paused = true)]
async fn released_or_dropped_in_doubt_it_leaves_nothing() {
    for end in ["released", "dropped"] {
        for fate in [Fate::Cut, Fate::Unheard] {
            let stage = StagedPair::impatient();
            let (held, _word) = stage.reader_in_doubt(fate).await;
            if end == "released" {
                release(held).await;
            } else {
                drop(held);
                sleep(50 * MS).await;
            }
            assert!(stage.is_free().await, "it was {end}");
        }
    }
}

/// The release of the read hold is delayed, and the release of the upgrade arrives before it.
#[tokio::test(start_paused = true)]
async fn copy_of_an_upgrade_that_comes_between_the_releases_is_given_back_as_well() {
    let stage = StagedPair::impatient();
    let (held, _word) = stage.reader_in_doubt(Fate::Cut).await;
    let (old, request) = (held.hold().id().clone(), stage.scheme.last_request());
    let (cut, word) = oneshot::channel();
    stage.scheme.next_leave(Fate::Silent(word));
    drop(held);
    sleep(STRAY / 2).await;
    stage.copy_is_converted(&old, &request).await;
    cut.send(()).expect("a release is out");
    sleep(STRAY).await;
    assert!(stage.is_free().await, "nobody has a guard");
}

#[tokio::test(start_paused = true)]
async fn release_in_doubt_that_is_dropped_leaves_nothing() {
    let stage = StagedPair::impatient();
    let (held, _word) = stage.reader_in_doubt(Fate::Unheard).await;
    let (word, answer) = oneshot::channel();
    stage.scheme.next_leave(Fate::Answered(answer));
    tokio::select! {
        _ = held.release() => panic!("nothing is answered"),
        () = sleep(MS) => {}
    }
    drop(word);
    assert!(stage.is_free_when_settled().await, "it was converted, and nobody has a guard");
}

/// The second try finds another reader, and a copy of the first one may still arrive after that reader has left.
#[tokio::test(start_paused = true)]
async fn upgrade_that_is_asked_for_again_is_not_refused_as_long_as_a_copy_of_the_first_try_may_arrive() {
    let stage = StagedPair::impatient();
    let neighbour = stage.take(&stage.other, Read).await;
    let (held, _word) = stage.reader_in_doubt(Fate::Cut).await;
    let (old, request) = (held.hold().id().clone(), stage.scheme.last_request());
    let late_copy = async {
        sleep(STRAY / 2).await;
        release(neighbour).await;
        stage.copy_is_converted(&old, &request).await;
    };
    let (upgraded, ()) = tokio::join!(upgrade(held), late_copy);
    let Ok(writing) = upgraded else { panic!("the copy that came late was the upgrade") };
    release(writing).await;
    assert!(stage.is_free().await);
}

#[tokio::test(start_paused = true)]
async fn closed_in_doubt_it_leaves_nothing() {
    let stage = StagedPair::impatient();
    let (held, _word) = stage.reader_in_doubt(Fate::Unheard).await;
    stage.engine.close().await.expect("closed");
    assert_eq!(held.state(), HoldState::Lost(LossReason::Closed));
    assert!(stage.is_free().await, "close has left a hold");
}

#[tokio::test(start_paused = true)]
async fn word_that_came_before_the_patience_was_over_counts() {
    let stage = StagedPair::with(Options { unreachable_after: 300 * MS, ..Options::default() });
    let reading = stage.take(&stage.engine, Read).await;
    stage.scheme.next_conversion(Fate::Unheard);
    for _ in 0..20 {
        stage.scheme.next_conversion(Fate::Cut);
    }
    let Err(NotConverted { held, error }) = upgrade(reading).await else { panic!("nobody has answered") };
    assert!(matches!(error, Error::Lost { reason: LossReason::Gone, .. }), "a renewal was answered: {error:?}");
    assert_eq!(held.state(), HoldState::Lost(LossReason::Gone));
    assert!(stage.is_free_when_settled().await);
}

#[tokio::test(start_paused = true)]
async fn writer_in_doubt_is_not_alone_any_more() {
    for fate in [Fate::Cut, Fate::Unheard] {
        let stage = StagedPair::impatient();
        let writing = stage.take(&stage.engine, Write).await;
        stage.scheme.next_conversion(fate);
        let Err(NotConverted { held, error }) = downgrade(writing).await else { panic!("nobody has answered") };
        assert!(matches!(error, Error::Unreachable { .. }), "{error:?}");
        assert_eq!(held.state(), HoldState::Lost(LossReason::Expired), "readers may be in");
        assert!(stage.is_free_when_settled().await);
    }
}
