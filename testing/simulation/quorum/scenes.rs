//! What chance would take long to bring about, held in place by the paused clock.

use std::sync::Arc;
use std::time::Duration;

use super::masters::{Data, Field};
use super::profile::{CALM, Profile};
use super::{RESPONSE_TIMEOUT, Restarts, SimManager, Wrong, force, manager, quorum};
use crate::base::error::{Error, LossReason};
use crate::base::key::Key;
use crate::base::lease::FencingToken;
use crate::face::guard::WriteGuard;
use crate::face::manager::RwLockManager;
use crate::lock::hold::HoldState;
use crate::store::quorum::Quorum;
use crate::store::{Scheme, View};

/// Masters that are well, and a process.
fn stage(many: usize, restarts: Restarts) -> (Arc<Field>, SimManager) {
    stage_of(many, restarts, CALM)
}

fn stage_of(many: usize, restarts: Restarts, profile: Profile) -> (Arc<Field>, SimManager) {
    let field = Field::of(many, fastrand::Rng::with_seed(1), profile, None);
    let process = manager(&field, 0, restarts);
    (field, process)
}

/// Holds are renewed every second.
const OF_THREE_SECONDS: Profile = Profile { lease: Duration::from_secs(3), ..CALM };

async fn comes_back(field: &Field, place: usize, with: Data) {
    field.dies(place);
    tokio::time::sleep(Duration::from_millis(100)).await;
    field.restarts(place, with);
}

/// As soon as those that are slow or away have answered.
async fn settled() {
    tokio::time::sleep(Duration::from_secs(3)).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_guards_are_given_back_in_few_requests() {
    let (field, process) = stage(5, Restarts::Delayed);
    let mut guards = Vec::new();
    for n in 0..128 {
        guards.push(process.write(&format!("lock-{n}")).await.expect("granted"));
    }
    settled().await;
    assert_eq!(field.holds().len(), 5 * 128);
    let before = field.requests();
    drop(guards);
    settled().await;
    assert_eq!(field.holds(), Vec::<String>::new());
    let requests = field.requests() - before;
    assert!(requests <= 5 * 8, "{requests} requests for 128 holds");
}

/// One has forgotten the hold, and one that has it may not say yes to a writer.
#[tokio::test(start_paused = true)]
async fn upgrade_that_is_for_a_young_master_to_decide_is_refused() {
    let (field, process) = stage(3, Restarts::Checked);
    let reading = process.read("cfg").await.expect("granted");
    settled().await;
    comes_back(&field, 0, Data::Kept).await;
    comes_back(&field, 1, Data::Lost).await;
    let upgrading = tokio::time::timeout(Duration::from_secs(5), reading.try_upgrade());
    let refused = upgrading.await.expect("all answer").expect_err("one of three may say yes");
    assert!(matches!(refused.error(), Error::UpgradeConflict { .. }), "{refused:?}");
    let reading = refused.into_guard();
    settled().await;
    // The one that had forgotten it as well, by a renewal.
    assert_eq!((reading.state(), field.holds().len()), (HoldState::Held, 3));
    reading.release().await.expect("ours to the end");
}

/// All masters answer, and have been running for less than the lease.
async fn stage_of_young_masters() -> (Arc<Field>, SimManager) {
    let (field, process) = stage(3, Restarts::Checked);
    process.write("cfg").await.expect("granted").release().await.expect("ours to the end");
    for place in 0..3 {
        comes_back(&field, place, Data::Kept).await;
    }
    settled().await;
    (field, process)
}

#[tokio::test(start_paused = true)]
async fn try_at_masters_that_may_not_vote_yet_ends_after_two_response_timeouts() {
    let (field, process) = stage_of_young_masters().await;
    let began = field.now();
    let error = process.try_write("cfg").await.expect_err("no master may vote");
    let took = field.now() - began;
    assert!(matches!(error, Error::NoQuorum { masters: 3, needed: 2, restarted: 3, .. }), "{error:?}");
    assert!(took <= RESPONSE_TIMEOUT * 2 + Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn each_waiter_hears_that_the_masters_may_not_vote_yet() {
    let (_field, process) = stage_of_young_masters().await;
    let waiters = (0..4).map(|_| async { process.write("cfg").await.expect_err("no master may vote") });
    for error in futures_util::future::join_all(waiters).await {
        assert!(matches!(error, Error::NoQuorum { restarted: 3, source: Some(_), .. }), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn downgrade_counts_all_masters_that_have_the_hold() {
    let (field, process) = stage(3, Restarts::Checked);
    let writing = process.write("cfg").await.expect("granted");
    settled().await;
    comes_back(&field, 0, Data::Kept).await;
    comes_back(&field, 1, Data::Lost).await;
    let converting = tokio::time::timeout(Duration::from_secs(5), writing.downgrade());
    let reading = converting.await.expect("all answer").expect("two of three have it");
    reading.release().await.expect("ours to the end");
    settled().await;
    assert_eq!(field.holds(), Vec::<String>::new());
}

/// The copies of its first attempt may yet be carried out, so a refused upgrade asks again when they cannot any more. What gives
/// back the attempt before is on its way for longer.
#[tokio::test(start_paused = true)]
async fn upgrade_that_asks_again_is_not_ended_by_the_release_of_its_first_attempt() {
    let (field, process) = stage(3, Restarts::Delayed);
    let other = manager(&field, 1, Restarts::Delayed);
    let (reading, beside) = (process.read("cfg").await.expect("granted"), other.read("cfg").await.expect("granted"));
    settled().await;
    let each = |act: &dyn Fn(usize)| (0..3).for_each(act);
    let trouble = async {
        each(&|place| field.freezes(place));
        tokio::time::sleep(RESPONSE_TIMEOUT + Duration::from_millis(50)).await;
        each(&|place| field.goes_on(place));
        tokio::time::sleep(Duration::from_millis(400)).await;
        // It was refused, and the first attempt's copies may arrive for some milliseconds more.
        beside.release().await.expect("ours to the end");
        each(&|place| field.slows(place));
        tokio::time::sleep(Duration::from_millis(150)).await;
        each(&|place| field.speeds_up(place));
    };
    let (upgraded, ()) = tokio::join!(reading.try_upgrade(), trouble);
    let writing = upgraded.expect("nobody else reads any more");
    settled().await;
    assert_eq!(field.holds().len(), 3, "{:?}", field.holds());
    writing.release().await.expect("ours to the end");
}

/// Whether a holder whose grants took so long to answer, and who is cut off then, relies on them when the next one enters.
async fn is_relied_on_too_long(answers_after: Duration, wrong: Option<Wrong>) -> bool {
    let profile = Profile { lease: Duration::from_secs(1), ..CALM };
    let field = Field::of(3, fastrand::Rng::with_seed(1), profile, wrong);
    let [first, next] = [0, 1].map(|process| manager(&field, process, Restarts::Delayed));
    for process in [&first, &next] {
        process.write("connects").await.expect("granted").release().await.expect("ours to the end");
    }
    (0..3).for_each(|place| field.answers_after(place, answers_after));
    let entering = tokio::time::timeout(Duration::from_secs(1), first.write("cfg"));
    let guard = entering.await.ok().and_then(Result::ok);
    field.cuts(0, &[0, 1, 2]);
    (0..3).for_each(|place| field.answers_after(place, Duration::ZERO));
    let _inside = next.write("cfg").await.expect("granted when the lease is over");
    guard.is_some_and(|guard| guard.state() == HoldState::Held)
}

/// They count from when they were asked for.
#[tokio::test(start_paused = true)]
async fn grants_that_took_long_last_for_what_is_left_of_them() {
    let most = RESPONSE_TIMEOUT - Duration::from_millis(50);
    assert!(!is_relied_on_too_long(most, None).await);
    assert!(is_relied_on_too_long(most, Some(Wrong::LateCounts)).await, "the scene does not show it");
}

#[tokio::test(start_paused = true)]
async fn grants_that_come_too_late_do_not_count() {
    let too_late = RESPONSE_TIMEOUT + Duration::from_millis(200);
    assert!(!is_relied_on_too_long(too_late, None).await);
    assert!(is_relied_on_too_long(too_late, Some(Wrong::LateCounts)).await, "the scene does not show it");
}

/// The tokens of two who hold a lock one after the other, from majorities that share only the one master that had to raise its token:
/// the next one does not reach the master whose clock is ahead. Both know no clock before.
async fn tokens_of_two_majorities(wrong: Option<Wrong>) -> [FencingToken; 2] {
    let field = Field::of(3, fastrand::Rng::with_seed(1), CALM, wrong);
    [-40, -40, 40].into_iter().enumerate().for_each(|(place, ms)| field.is_ahead(place, ms));
    let [first, next] = [(0, 0), (1, 2)].map(|(process, unreached)| {
        field.cuts(process, &[unreached]);
        manager(&field, process, Restarts::Delayed)
    });
    let guard = first.write("cfg").await.expect("two are enough");
    let before = guard.fencing_token();
    guard.release().await.expect("ours to the end");
    let guard = next.write("cfg").await.expect("two are enough");
    [before, guard.fencing_token()]
}

#[tokio::test(start_paused = true)]
async fn tokens_grow_where_majorities_share_the_master_with_the_lower_one() {
    let [before, after] = tokens_of_two_majorities(None).await;
    assert!(before < after, "{before} before {after}");
    let [before, after] = tokens_of_two_majorities(Some(Wrong::TokenNotRaised)).await;
    assert!(before > after, "the scene does not show it: {before} before {after}");
}

/// One of three masters has a clock that is 74 years ahead, and the first to answer varies. It moves no token, so none falls back when
/// it is gone, and the records of the others with it.
#[tokio::test(start_paused = true)]
async fn tokens_do_not_follow_a_clock_that_is_years_ahead() {
    const YEARS_MS: i64 = 74 * 365 * 24 * 3_600_000;
    for (ahead, restarts) in [(0, Restarts::Delayed), (1, Restarts::Checked), (2, Restarts::Delayed)] {
        let (field, process) = stage(3, restarts);
        field.is_ahead(ahead, YEARS_MS);
        let mut last = FencingToken::ZERO;
        for n in 0..20 {
            let guard = process.write("cfg").await.expect("granted");
            let token = guard.fencing_token();
            assert!(token > last && token.as_u64() < field.true_time_us() + 1_000_000, "{token} with {ahead} ahead");
            last = token;
            guard.release().await.expect("ours to the end");
            // Long enough for the clocks to be forgotten, now and then.
            tokio::time::sleep(Duration::from_secs(if n % 5 == 4 { 10 } else { 1 })).await;
        }
        field.dies(ahead);
        (0..3).for_each(|place| field.forgets(place));
        let guard = process.write("cfg").await.expect("two are left");
        assert!(guard.fencing_token() > last, "{} after {last}", guard.fencing_token());
    }
}

/// Returns how long it takes to get a lock at three masters of which the last stands still, and nobody knows it yet.
async fn time_to_get_beside_a_frozen_master(ahead_ms: i64) -> Duration {
    let (field, process) = stage(3, Restarts::Delayed);
    [ahead_ms, 0, 0].into_iter().enumerate().for_each(|(place, ms)| field.is_ahead(place, ms));
    // The answers make the clocks known.
    process.write("other").await.expect("granted").release().await.expect("ours to the end");
    settled().await;
    field.freezes(2);
    let began = field.now();
    let _inside = process.write("cfg").await.expect("two are enough");
    field.now() - began
}

/// Whoever gets a lock waits for a master that stands still only where another one's clock is wrong, and for one response timeout.
#[tokio::test(start_paused = true)]
async fn clocks_within_the_margin_wait_for_no_master() {
    let right = time_to_get_beside_a_frozen_master(30).await;
    assert!(right < RESPONSE_TIMEOUT / 4, "{right:?}");
    let wrong = time_to_get_beside_a_frozen_master(3_600_000).await;
    assert!(wrong >= RESPONSE_TIMEOUT && wrong < RESPONSE_TIMEOUT * 2, "{wrong:?}");
}

/// Whether a holder that has reached one of three masters since its last renewal relies on its hold when the next one enters.
async fn outlives_its_majority(wrong: Option<Wrong>) -> bool {
    let profile = Profile { lease: Duration::from_secs(1), ..CALM };
    let field = Field::of(3, fastrand::Rng::with_seed(1), profile, wrong);
    let [first, next] = [0, 1].map(|process| manager(&field, process, Restarts::Delayed));
    next.write("other").await.expect("granted").release().await.expect("ours to the end");
    let guard = first.write("cfg").await.expect("granted");
    settled().await;
    assert_eq!((guard.state(), field.holds().len()), (HoldState::Held, 3), "it is renewed by all");
    field.cuts(0, &[1, 2]);
    let _inside = next.write("cfg").await.expect("granted when the lease is over at two of them");
    guard.state() == HoldState::Held
}

#[tokio::test(start_paused = true)]
async fn hold_that_a_minority_renews_is_lost_before_the_next_one_enters() {
    assert!(!outlives_its_majority(None).await);
    assert!(outlives_its_majority(Some(Wrong::MinorityRenews)).await, "the scene does not show it");
}

#[tokio::test(start_paused = true)]
async fn hold_that_three_of_five_have_granted_is_at_all_of_them_after_a_renewal() {
    let (field, process) = stage_of(5, Restarts::Delayed, OF_THREE_SECONDS);
    [3, 4].into_iter().for_each(|place| field.dies(place));
    let writing = process.write("cfg").await.expect("three are left");
    [3, 4].into_iter().for_each(|place| field.restarts(place, Data::Kept));
    assert_eq!(field.holds().len(), 3);
    settled().await;
    assert_eq!(field.holds().len(), 5);
    // One that has granted it, and another minority than the first one.
    [0, 3].into_iter().for_each(|place| field.dies(place));
    tokio::time::sleep(OF_THREE_SECONDS.lease * 2).await;
    assert_eq!(writing.state(), HoldState::Held);
    [0, 3].into_iter().for_each(|place| field.restarts(place, Data::Kept));
    writing.release().await.expect("ours to the end");
    settled().await;
    assert_eq!(field.holds(), Vec::<String>::new());
}

/// Those that are young may have the hold, though they may not vote for a new one.
#[tokio::test(start_paused = true)]
async fn hold_outlives_a_restart_without_data_of_each_master_in_turn() {
    for restarts in [Restarts::Checked, Restarts::Delayed] {
        let (field, process) = stage_of(5, restarts, OF_THREE_SECONDS);
        let rival = manager(&field, 1, restarts);
        let writing = process.write("cfg").await.expect("granted");
        for place in 0..5 {
            comes_back(&field, place, Data::Lost).await;
            // One renewal finds that it was away, another that it is back.
            tokio::time::sleep(OF_THREE_SECONDS.lease * 2).await;
            assert_eq!(field.holds().len(), 5, "{restarts:?}, after the restart of {place}");
        }
        assert_eq!(writing.state(), HoldState::Held);
        assert!(rival.try_write("cfg").await.expect("a majority answers").is_none());
        writing.release().await.expect("ours to the end");
    }
}

/// A hold that three of five have, who are connected with all. It is brought to the other two with its next renewal, in a second.
async fn hold_of_three(wrong: Option<Wrong>) -> (Arc<Field>, Guarded, Operator) {
    let field = Field::of(5, fastrand::Rng::with_seed(1), OF_THREE_SECONDS, wrong);
    let [process, rival] = [0, 2].map(|process| manager(&field, process, Restarts::Delayed));
    let operator = Operator { field: Arc::clone(&field), quorum: quorum(&field, OPERATOR, Restarts::Delayed) };
    rival.write("other").await.expect("granted").release().await.expect("ours to the end");
    operator.looks().await;
    let guard = process.write("cfg").await.expect("granted");
    tokio::time::sleep(Duration::from_millis(100)).await;
    [1, 2].into_iter().for_each(|place| field.forgets(place));
    assert_eq!(field.holds().len(), 3);
    (field, Guarded { guard, _process: process, rival }, operator)
}

/// A holder, and somebody who would like to be one.
struct Guarded {
    guard: WriteGuard,
    _process: SimManager,
    rival: SimManager,
}

const OPERATOR: u32 = 1;

struct Operator {
    field: Arc<Field>,
    quorum: Quorum,
}

impl Operator {
    fn key() -> Key {
        Key::new("rwlock", "cfg").expect("a name")
    }

    async fn looks(&self) -> View {
        self.quorum.inspect(&Self::key()).await.expect("a majority answers").value
    }

    /// It reaches a majority, of which one has the hold.
    async fn forces(&self, seen: &View) {
        assert_eq!(seen.holders.len(), 1);
        self.field.cuts(OPERATOR, &[3, 4]);
        force(&self.field, &self.quorum, &Self::key(), seen).await.expect("a majority has done it");
    }
}

/// Whether what a force has ended at a majority is there again, when it is brought to two masters that have carried the force out
/// between their answer to a renewal and that.
async fn comes_back_after_a_force(wrong: Option<Wrong>) -> bool {
    let (field, held, operator) = hold_of_three(wrong).await;
    let seen = operator.looks().await;
    [1, 2].into_iter().for_each(|place| field.answers_after(place, Duration::from_millis(200)));
    let before = field.requests();
    while field.requests() < before + 5 {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
    // It has arrived everywhere, and is answered late by those that lack the hold.
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(field.holds().len(), 3);
    operator.forces(&seen).await;
    let is_back = !field.undone().is_empty();
    settled().await;
    assert_eq!(held.guard.state(), HoldState::Lost(LossReason::Forced));
    is_back
}

#[tokio::test(start_paused = true)]
async fn hold_is_not_brought_to_masters_that_have_carried_a_force_out() {
    assert!(!comes_back_after_a_force(None).await);
    assert!(comes_back_after_a_force(Some(Wrong::ForceForgotten)).await, "the scene does not show it");
}

/// Whether a hold outlives a force that has seen it, when it was brought to two masters between the look and the force.
async fn outlives_a_force(wrong: Option<Wrong>) -> bool {
    let (field, held, operator) = hold_of_three(wrong).await;
    let seen = operator.looks().await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    assert_eq!(field.holds().len(), 5, "it was brought to all before the force");
    operator.forces(&seen).await;
    let is_there = !field.undone().is_empty();
    assert_eq!(held.rival.try_write("cfg").await.expect("a majority answers").is_none(), is_there);
    is_there
}

#[tokio::test(start_paused = true)]
async fn force_ends_what_was_brought_to_a_master_since_the_look() {
    assert!(!outlives_a_force(None).await);
    assert!(outlives_a_force(Some(Wrong::ForceNamesTokens)).await, "the scene does not show it");
}

/// What becomes of a hold that an operator has ended at one master, which says so when a majority has renewed the hold.
async fn after_a_force_at_one_master(wrong: Option<Wrong>) -> (HoldState, usize) {
    let (field, held, operator) = hold_of_three(wrong).await;
    tokio::time::sleep(Duration::from_millis(1_500)).await;
    let seen = operator.looks().await;
    field.cuts(OPERATOR, &[1, 2, 3, 4]);
    force(&field, &operator.quorum, &Operator::key(), &seen).await.expect_err("one of five");
    assert_eq!(field.holds().len(), 4);
    field.answers_after(0, Duration::from_millis(200));
    settled().await;
    (held.guard.state(), field.holds().len())
}

#[tokio::test(start_paused = true)]
async fn hold_that_any_master_was_told_to_end_is_lost_and_given_back() {
    let lost = HoldState::Lost(LossReason::Forced);
    assert_eq!(after_a_force_at_one_master(None).await, (lost, 0));
    let unheard = after_a_force_at_one_master(Some(Wrong::ForceNotHeard)).await;
    assert_eq!(unheard, (HoldState::Held, 4), "the scene does not show it");
}
