//! What chance would take long to bring about, held in place by the paused clock.

use std::sync::Arc;
use std::time::Duration;

use super::masters::{Data, Field};
use super::profile::{CALM, Profile};
use super::{RESPONSE_TIMEOUT, Restarts, SimManager, Wrong, manager};
use crate::error::Error;
use crate::lock::hold::HoldState;
use crate::manager::RwLockManager;

/// Masters that are well, and a process.
fn stage(many: usize, restarts: Restarts) -> (Arc<Field>, SimManager) {
    let field = Field::of(many, fastrand::Rng::with_seed(1), CALM, None);
    let process = manager(&field, 0, restarts);
    (field, process)
}

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
    assert_eq!((reading.state(), field.holds().len()), (HoldState::Held, 2));
    reading.release().await.expect("two of three have it");
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
