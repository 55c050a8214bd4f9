//! Scenes at a quorum, which random runs would show rarely or never. The paused clock holds them in place.

use super::*;
use crate::store::Attempt;
use crate::testing::simulation::workload::quorum;

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(400);

const THREE: Profile = Profile { servers: &[3], restarts: Some(Restarts::Delayed), ..QUORUM };
/// Masters whose uptime the managers check.
const CHECKED: Profile = Profile { restarts: Some(Restarts::Checked), ..THREE };
const OF_ONE_SECOND: Profile = Profile { lease: Some(Duration::from_secs(1)), ..THREE };
/// Five masters. Holds are renewed every second.
const OF_THREE_SECONDS: Profile = Profile { servers: &[5], lease: Some(Duration::from_secs(3)), ..THREE };

/// Returns masters without faults, and a process.
fn stage(profile: Profile) -> (Arc<World>, SimManager) {
    let world = World::new(1, profile, None);
    let process = manager(&world, 0);
    (world, process)
}

fn options(world: &World) -> Options {
    let lease = world.profile.lease.expect("a lease for all holds");
    Options { lease, response_timeout: RESPONSE_TIMEOUT, ..Options::default() }
}

fn manager(world: &Arc<World>, process: Process) -> SimManager {
    SimManager::with(world, &Address::new(process), options(world))
}

fn dies(world: &World, place: Place) {
    world.goes_down(place, Down::Dead);
}

/// Content of a master after a restart.
#[derive(Clone, Copy)]
enum Data {
    Kept,
    Lost,
}

async fn comes_back(world: &Arc<World>, place: Place, with: Data) {
    dies(world, place);
    sleep_ms(100).await;
    if let Data::Lost = with {
        world.empties(place);
    }
    world.comes_up(place);
}

async fn use_once(process: &SimManager, name: &str) {
    process.write(name).await.expect("granted").release().await.expect("ours to the end");
}

/// Asserts that a fault shows in a scene with the mutant, and only with it.
async fn shown_by<F: Future<Output = bool>>(mutant: Mutant, scene: impl Fn(Option<Mutant>) -> F) {
    assert!(!scene(None).await);
    assert!(scene(Some(mutant)).await, "the scene does not show it");
}

/// Returns when the masters that were slow or away have answered.
async fn settled() {
    sleep_ms(3_000).await;
}

#[tokio::test(start_paused = true)]
async fn dropped_guards_are_given_back_in_few_requests() {
    let (world, process) = stage(Profile { servers: &[5], ..THREE });
    let mut guards = Vec::new();
    for n in 0..128 {
        guards.push(process.write(&format!("lock-{n}")).await.expect("granted"));
    }
    settled().await;
    assert_eq!(world.holds().len(), 5 * 128);
    let before = world.pipelines();
    drop(guards);
    settled().await;
    assert_eq!(world.holds(), []);
    let requests = world.pipelines() - before;
    assert!(requests <= 5 * 8, "{requests} requests for 128 holds");
}

/// The first master has the hold and may not vote for a writer yet, and the second one has forgotten the hold.
#[tokio::test(start_paused = true)]
async fn upgrade_that_is_for_a_young_master_to_decide_is_refused() {
    let (world, process) = stage(CHECKED);
    let reading = process.read("cfg").await.expect("granted");
    settled().await;
    comes_back(&world, 0, Data::Kept).await;
    comes_back(&world, 1, Data::Lost).await;
    let upgrading = tokio::time::timeout(Duration::from_secs(5), reading.try_upgrade());
    let refused = upgrading.await.expect("all answer").expect_err("one of three may say yes");
    assert!(matches!(refused.error(), Error::UpgradeConflict { .. }), "{refused:?}");
    let reading = refused.into_guard();
    settled().await;
    // A renewal has brought the hold back to the master that had forgotten it.
    assert_eq!((reading.state(), world.holds().len()), (HoldState::Held, 3));
    reading.release().await.expect("ours to the end");
}

/// Returns masters that answer, and have been up for less than the lease.
async fn stage_of_young_masters() -> (Arc<World>, SimManager) {
    let (world, process) = stage(CHECKED);
    use_once(&process, "cfg").await;
    for place in 0..3 {
        comes_back(&world, place, Data::Kept).await;
    }
    settled().await;
    (world, process)
}

#[tokio::test(start_paused = true)]
async fn try_at_masters_that_may_not_vote_yet_ends_after_two_response_timeouts() {
    let (_world, process) = stage_of_young_masters().await;
    let began = Instant::now();
    let error = process.try_write("cfg").await.expect_err("no master may vote");
    let took = began.elapsed();
    assert!(matches!(error, Error::NoQuorum { masters: 3, needed: 2, restarted: 3, .. }), "{error:?}");
    assert!(took <= RESPONSE_TIMEOUT * 2 + Duration::from_millis(50), "{took:?}");
}

#[tokio::test(start_paused = true)]
async fn each_waiter_hears_that_the_masters_may_not_vote_yet() {
    let (_world, process) = stage_of_young_masters().await;
    let waiters = (0..4).map(|_| async { process.write("cfg").await.expect_err("no master may vote") });
    for error in futures_util::future::join_all(waiters).await {
        assert!(matches!(error, Error::NoQuorum { restarted: 3, source: Some(_), .. }), "{error:?}");
    }
}

#[tokio::test(start_paused = true)]
async fn downgrade_counts_all_masters_that_have_the_hold() {
    let (world, process) = stage(CHECKED);
    let writing = process.write("cfg").await.expect("granted");
    settled().await;
    comes_back(&world, 0, Data::Kept).await;
    comes_back(&world, 1, Data::Lost).await;
    let converting = tokio::time::timeout(Duration::from_secs(5), writing.downgrade());
    let reading = converting.await.expect("all answer").expect("two of three have it");
    reading.release().await.expect("ours to the end");
    settled().await;
    assert_eq!(world.holds(), []);
}

/// A refused upgrade is repeated when no copy of its first attempt can be carried out any more. The release of the
/// first attempt is under way for longer.
#[tokio::test(start_paused = true)]
async fn upgrade_that_asks_again_is_not_ended_by_the_release_of_its_first_attempt() {
    let (world, process) = stage(THREE);
    let other = manager(&world, 1);
    let (reading, beside) = (process.read("cfg").await.expect("granted"), other.read("cfg").await.expect("granted"));
    settled().await;
    let each = |act: &dyn Fn(usize)| (0..3).for_each(act);
    let trouble = async {
        each(&|place| world.freezes(place));
        sleep(RESPONSE_TIMEOUT + Duration::from_millis(50)).await;
        each(&|place| world.thaws(place));
        sleep_ms(400).await;
        // The upgrade was refused, and copies of the first attempt may arrive for some milliseconds more.
        beside.release().await.expect("ours to the end");
        each(&|place| world.slows(place, true));
        sleep_ms(150).await;
        each(&|place| world.slows(place, false));
    };
    let (upgraded, ()) = tokio::join!(reading.try_upgrade(), trouble);
    let writing = upgraded.expect("nobody else reads any more");
    settled().await;
    assert_eq!(world.holds().len(), 3, "{:?}", world.holds());
    writing.release().await.expect("ours to the end");
}

/// Returns true if a holder relies on its grants when the next one enters. The answers to the grants took this time,
/// and then the holder was cut off.
async fn is_relied_on_too_long(answers_after: Duration, mutant: Option<Mutant>) -> bool {
    let world = World::new(1, OF_ONE_SECOND, mutant);
    let [first, next] = [0, 1].map(|process| manager(&world, process));
    for process in [&first, &next] {
        use_once(process, "connects").await;
    }
    for place in 0..3 {
        world.answers_after(place, answers_after);
    }
    let entering = tokio::time::timeout(Duration::from_secs(1), first.write("cfg"));
    let guard = entering.await.ok().and_then(Result::ok);
    world.cuts(0, &[0, 1, 2]);
    for place in 0..3 {
        world.answers_after(place, Duration::ZERO);
    }
    let _inside = next.write("cfg").await.expect("granted when the lease is over");
    guard.is_some_and(|guard| guard.state() == HoldState::Held)
}

/// Grants count from the time of their requests.
#[tokio::test(start_paused = true)]
async fn grants_that_took_long_last_for_what_is_left_of_them() {
    let most = RESPONSE_TIMEOUT - Duration::from_millis(50);
    shown_by(Mutant::DeadlineFromReply, |mutant| is_relied_on_too_long(most, mutant)).await;
}

#[tokio::test(start_paused = true)]
async fn grants_that_come_too_late_do_not_count() {
    let too_late = RESPONSE_TIMEOUT + Duration::from_millis(200);
    shown_by(Mutant::LateGrantBelieved, |mutant| is_relied_on_too_long(too_late, mutant)).await;
}

/// Returns the tokens of two holders of a lock, one after the other. Their majorities share only the master that had to
/// raise its token. The second holder does not reach the master whose clock is ahead. Neither has a clock sample
/// before.
async fn tokens_of_two_majorities(mutant: Option<Mutant>) -> [FencingToken; 2] {
    let world = World::new(1, THREE, mutant);
    [-40, -40, 40].into_iter().enumerate().for_each(|(place, ms)| world.is_ahead(place, ms));
    let [first, next] = [(0, 0), (1, 2)].map(|(process, unreached)| {
        world.cuts(process, &[unreached]);
        manager(&world, process)
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
    let [before, after] = tokens_of_two_majorities(Some(Mutant::TokenNotRaised)).await;
    assert!(before > after, "the scene does not show it: {before} before {after}");
}

/// The clock of a master is 74 years ahead, and the first master to answer varies. The clock moves no token, so no
/// token falls back when that master dies and the other masters lose their records.
#[tokio::test(start_paused = true)]
async fn tokens_do_not_follow_a_clock_that_is_years_ahead() {
    const YEARS_MS: i64 = 74 * 365 * 24 * 3_600_000;
    for (ahead, restarts) in [(0, Restarts::Delayed), (1, Restarts::Checked), (2, Restarts::Delayed)] {
        let (world, process) = stage(Profile { restarts: Some(restarts), ..THREE });
        world.is_ahead(ahead, YEARS_MS);
        let mut last = FencingToken::ZERO;
        for n in 0..20 {
            let guard = process.write("cfg").await.expect("granted");
            let token = guard.fencing_token();
            assert!(token > last && token.as_u64() < EPOCH_US + world.now() + 1_000_000, "{token} with {ahead} ahead");
            last = token;
            guard.release().await.expect("ours to the end");
            // Now and then this is longer than the greatest age of a clock sample.
            sleep_ms(if n % 5 == 4 { 10_000 } else { 1_000 }).await;
        }
        dies(&world, ahead);
        for place in 0..3 {
            world.empties(place);
        }
        let guard = process.write("cfg").await.expect("two are left");
        assert!(guard.fencing_token() > last, "{} after {last}", guard.fencing_token());
    }
}

/// Returns how long it takes to get a lock at three masters. The last one stands still, and no process knows that yet.
async fn time_to_get_beside_a_frozen_master(ahead_ms: i64) -> Duration {
    let (world, process) = stage(THREE);
    [ahead_ms, 0, 0].into_iter().enumerate().for_each(|(place, ms)| world.is_ahead(place, ms));
    // The answers make the clocks known.
    use_once(&process, "other").await;
    settled().await;
    world.freezes(2);
    let began = Instant::now();
    let _inside = process.write("cfg").await.expect("two are enough");
    began.elapsed()
}

/// An acquisition waits for a master that stands still only if the clock of another master is wrong, and then for one
/// response timeout.
#[tokio::test(start_paused = true)]
async fn clocks_within_the_margin_wait_for_no_master() {
    let right = time_to_get_beside_a_frozen_master(30).await;
    assert!(right < RESPONSE_TIMEOUT / 4, "{right:?}");
    let wrong = time_to_get_beside_a_frozen_master(3_600_000).await;
    assert!(wrong >= RESPONSE_TIMEOUT && wrong < RESPONSE_TIMEOUT * 2, "{wrong:?}");
}

/// Returns true if a holder relies on its hold when the next one enters. Since its last renewal, the holder has reached
/// only one of three masters.
async fn outlives_its_majority(mutant: Option<Mutant>) -> bool {
    let world = World::new(1, OF_ONE_SECOND, mutant);
    let [first, next] = [0, 1].map(|process| manager(&world, process));
    use_once(&next, "other").await;
    let guard = first.write("cfg").await.expect("granted");
    settled().await;
    assert_eq!((guard.state(), world.holds().len()), (HoldState::Held, 3), "it is renewed by all");
    world.cuts(0, &[1, 2]);
    let _inside = next.write("cfg").await.expect("granted when the lease is over at two of them");
    guard.state() == HoldState::Held
}

#[tokio::test(start_paused = true)]
async fn hold_that_a_minority_renews_is_lost_before_the_next_one_enters() {
    shown_by(Mutant::MinorityRenews, outlives_its_majority).await;
}

#[tokio::test(start_paused = true)]
async fn hold_that_three_of_five_have_granted_is_at_all_of_them_after_a_renewal() {
    let (world, process) = stage(OF_THREE_SECONDS);
    for place in [3, 4] {
        dies(&world, place);
    }
    let writing = process.write("cfg").await.expect("three are left");
    for place in [3, 4] {
        world.comes_up(place);
    }
    assert_eq!(world.holds().len(), 3);
    settled().await;
    assert_eq!(world.holds().len(), 5);
    // Of these masters, one has granted the hold, and one was away then.
    for place in [0, 3] {
        dies(&world, place);
    }
    sleep_ms(6_000).await;
    assert_eq!(writing.state(), HoldState::Held);
    for place in [0, 3] {
        world.comes_up(place);
    }
    writing.release().await.expect("ours to the end");
    settled().await;
    assert_eq!(world.holds(), []);
}

/// Masters that have restarted may keep the hold, though they may not vote for a new one.
#[tokio::test(start_paused = true)]
async fn hold_outlives_a_restart_without_data_of_each_master_in_turn() {
    for restarts in [Restarts::Checked, Restarts::Delayed] {
        let (world, process) = stage(Profile { restarts: Some(restarts), ..OF_THREE_SECONDS });
        let rival = manager(&world, 1);
        let writing = process.write("cfg").await.expect("granted");
        for place in 0..5 {
            comes_back(&world, place, Data::Lost).await;
            // One renewal finds that the master was away, another that it is back.
            sleep_ms(6_000).await;
            assert_eq!(world.holds().len(), 5, "{restarts:?}, after the restart of {place}");
        }
        assert_eq!(writing.state(), HoldState::Held);
        assert!(rival.try_write("cfg").await.expect("a majority answers").is_none());
        writing.release().await.expect("ours to the end");
    }
}

/// Returns a hold that three of five masters have. Its next renewal, in a second, brings it to the other two.
async fn hold_of_three(mutant: Option<Mutant>) -> (Arc<World>, Guarded, Operator) {
    let world = World::new(1, OF_THREE_SECONDS, mutant);
    let [process, rival] = [0, 2].map(|process| manager(&world, process));
    let operator =
        Operator { world: Arc::clone(&world), quorum: quorum(&world, &Address::new(OPERATOR), &options(&world)) };
    use_once(&rival, "other").await;
    operator.looks().await;
    let guard = process.write("cfg").await.expect("granted");
    sleep_ms(100).await;
    for place in [1, 2] {
        world.empties(place);
    }
    assert_eq!(world.holds().len(), 3);
    (world, Guarded { guard, _process: process, rival }, operator)
}

/// Holder, and a process that wants the lock.
struct Guarded {
    guard: WriteGuard,
    _process: SimManager,
    rival: SimManager,
}

const OPERATOR: Process = 1;

/// Returns true if a majority has a hold after the servers have reported its end to an operator.
fn is_undone(world: &World) -> bool {
    checkers::check(&world.take_history()).iter().any(|violation| violation.promise == "3 forced")
}

struct Operator {
    world: Arc<World>,
    quorum: Quorum,
}

impl Operator {
    fn key() -> Key {
        Key::new("rwlock", "cfg").expect("a name")
    }

    async fn looks(&self) -> View {
        self.quorum.inspect(&Self::key()).await.expect("a majority answers").value
    }

    /// Ends the holds that an operator has seen.
    async fn force(&self, seen: &View) -> Attempt<Forced> {
        let forced = self.quorum.force(&Self::key(), seen).await?;
        self.world.record(What::ForceDone { ids: ids_of(seen) });
        Ok(forced)
    }

    /// Ends the hold at a majority, of which one master has the hold.
    async fn forces(&self, seen: &View) {
        assert_eq!(seen.holders.len(), 1);
        self.world.cuts(OPERATOR, &[3, 4]);
        self.force(seen).await.expect("a majority has done it");
    }
}

/// Returns true if a hold is there again that a force has ended at a majority. The holder sends it to two masters that
/// carry the force out between their answer to a renewal and that request.
async fn comes_back_after_a_force(mutant: Option<Mutant>) -> bool {
    let (world, held, operator) = hold_of_three(mutant).await;
    let seen = operator.looks().await;
    for place in [1, 2] {
        world.answers_after(place, Duration::from_millis(200));
    }
    let before = world.pipelines();
    while world.pipelines() < before + 5 {
        sleep_ms(1).await;
    }
    // The renewal has arrived at all masters, and those that lack the hold answer late.
    sleep_ms(5).await;
    assert_eq!(world.holds().len(), 3);
    operator.forces(&seen).await;
    let is_back = is_undone(&world);
    settled().await;
    assert_eq!(held.guard.state(), HoldState::Lost(LossReason::Forced));
    is_back
}

#[tokio::test(start_paused = true)]
async fn hold_is_not_brought_to_masters_that_have_carried_a_force_out() {
    shown_by(Mutant::ForceForgotten, comes_back_after_a_force).await;
}

/// Returns true if a hold outlives a force that has seen it. Between the look and the force, a renewal brings it to two
/// masters.
async fn outlives_a_force(mutant: Option<Mutant>) -> bool {
    let (world, held, operator) = hold_of_three(mutant).await;
    let seen = operator.looks().await;
    // The next renewal would learn of the force and end the hold, so the force must be over before that.
    while world.holds().len() < 5 {
        sleep_ms(1).await;
    }
    operator.forces(&seen).await;
    let is_there = is_undone(&world);
    assert_eq!(held.rival.try_write("cfg").await.expect("a majority answers").is_none(), is_there);
    is_there
}

#[tokio::test(start_paused = true)]
async fn force_ends_what_was_brought_to_a_master_since_the_look() {
    shown_by(Mutant::ForceNamesTokens, outlives_a_force).await;
}

/// Returns the state of a hold that an operator has ended at one master, and the number of masters that have it. That
/// master answers after a majority has renewed the hold.
async fn after_a_force_at_one_master(mutant: Option<Mutant>) -> (HoldState, usize) {
    let (world, held, operator) = hold_of_three(mutant).await;
    // A renewal has brought the hold to all masters, and the force ends before the next one.
    sleep_ms(1_200).await;
    let seen = operator.looks().await;
    world.cuts(OPERATOR, &[1, 2, 3, 4]);
    operator.force(&seen).await.expect_err("one of five");
    assert_eq!(world.holds().len(), 4);
    world.answers_after(0, Duration::from_millis(200));
    settled().await;
    (held.guard.state(), world.holds().len())
}

#[tokio::test(start_paused = true)]
async fn hold_that_any_master_was_told_to_end_is_lost_and_given_back() {
    let lost = HoldState::Lost(LossReason::Forced);
    assert_eq!(after_a_force_at_one_master(None).await, (lost, 0));
    let unheard = after_a_force_at_one_master(Some(Mutant::ForceNotTold)).await;
    assert_eq!(unheard, (HoldState::Held, 4), "the scene does not show it");
}
