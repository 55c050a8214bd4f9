//! Locks that stay taken for a time at least. A process that dies at any step, a future that is dropped at any wait, and
//! late copies of requests leave a rest only where one is owed.

use super::*;

const NAME: &str = "nightly";
/// Longer than a run, so that a rest is still there at its end.
const AT_LEAST: Duration = Duration::from_secs(300);
/// Time of the work under the lock.
const JOB: Duration = Duration::from_millis(50);
/// Time after which requests are lost no more.
const HEALED_AFTER: Duration = Duration::from_secs(20);

/// State of the lock when the acquisition begins.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Before {
    Free,
    /// Another process holds the lock, so the grant comes by a notification.
    Held,
    /// The process has cached a hold of the lock.
    Cached,
}

/// Fault of the process that acquires.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fault {
    None,
    /// The process dies after this many milliseconds.
    Dies(u64),
    /// The future of the acquisition is dropped at this wait.
    Dropped(u32),
    /// The future of the acquisition is dropped after this many milliseconds.
    DroppedAfter(u64),
    /// The acquisition has this limit, in milliseconds.
    Limit(u64),
    /// The manager is closed after this many milliseconds.
    Closed(u64),
}

#[derive(Debug)]
struct Outcome {
    is_handed_out: bool,
    /// Times of the server's clock in the renewals that were sent.
    armed: BTreeSet<u64>,
    is_left: bool,
}

/// Returns the times in the arming renewals of this process.
fn armed(history: &History) -> BTreeSet<u64> {
    let sent = history.events.iter().filter_map(|event| match &event.what {
        What::Sent { process: 0, op: Op::Renew { rest_until_ms, .. }, .. } => *rest_until_ms,
        _ => None,
    });
    sent.collect()
}

async fn work(guard: crate::Result<WriteGuard>, handed_out: &AtomicBool, seed: u64) {
    let Ok(guard) = guard else { return };
    handed_out.store(true, Ordering::SeqCst);
    sleep(JOB).await;
    if seed.is_multiple_of(2) {
        drop(guard);
    } else {
        drop(guard.release().await);
    }
}

fn play(seed: u64, profile: Profile, before: Before, fault: Fault) -> Outcome {
    let profile = Profile { caches: before == Before::Cached, ..profile };
    paused_runtime().block_on(async {
        let world = World::new(seed, profile, None);
        let (address, other) = (Address::new(0), Address::new(1));
        let manager = SimManager::with(&world, &address, world.profile.short_options());
        let other = SimManager::with(&world, &other, world.profile.short_options());
        match before {
            Before::Free => {}
            Before::Held => {
                let held = other.write(NAME).await;
                drop(tokio::spawn(async move {
                    sleep(JOB).await;
                    drop(held);
                }));
            }
            Before::Cached => drop(manager.write(NAME).await),
        }
        let handed_out = Arc::new(AtomicBool::new(false));
        let acquires = manager.write(NAME).at_least(AT_LEAST);
        let acquires = match fault {
            Fault::Limit(ms) => acquires.wait_timeout(Duration::from_millis(ms)),
            _ => acquires,
        };
        let (acquiring, is_out) = (acquires.into_future(), Arc::clone(&handed_out));
        let job = async move {
            match fault {
                Fault::Dropped(waits) => {
                    if let Some(guard) = CutAt::new(waits, acquiring).await {
                        work(guard, &is_out, seed).await;
                    }
                }
                Fault::DroppedAfter(ms) => {
                    if let Ok(guard) = tokio::time::timeout(Duration::from_millis(ms), acquiring).await {
                        work(guard, &is_out, seed).await;
                    }
                }
                _ => work(acquiring.await, &is_out, seed).await,
            }
        };
        let job = tokio::spawn(Pausable::new(&address.gate, job));
        match fault {
            Fault::Dies(after_ms) => {
                sleep_ms(after_ms).await;
                address.gate.crash();
            }
            Fault::Closed(after_ms) => {
                sleep_ms(after_ms).await;
                drop(manager.close().await);
            }
            Fault::None | Fault::Dropped(_) | Fault::DroppedAfter(_) | Fault::Limit(_) => {}
        }
        sleep(HEALED_AFTER).await;
        world.heals();
        sleep(HEALED_AFTER * 2).await;
        job.abort();
        let is_left = world.holds().iter().any(|(_, held)| held.id.process == 0);
        let armed = armed(&world.take_history());
        Outcome { is_handed_out: handed_out.load(Ordering::SeqCst), armed, is_left }
    })
}

/// Asserts what every run must keep, and returns its outcome.
fn judged(seed: u64, profile: Profile, before: Before, fault: Fault) -> Outcome {
    let outcome = play(seed, profile, before, fault);
    let what = || format!("seed {seed}, {}, {before:?}, {fault:?}: {outcome:?}", profile.name);
    let may_stay = outcome.is_handed_out || matches!(fault, Fault::Dies(_)) && !outcome.armed.is_empty();
    assert!(!outcome.is_left || may_stay, "a rest of nobody: {}", what());
    assert!(outcome.is_left || !outcome.is_handed_out, "no rest: {}", what());
    assert!(!outcome.is_handed_out || !outcome.armed.is_empty(), "a guard before the arming: {}", what());
    outcome
}

const BEFORE: [Before; 3] = [Before::Free, Before::Held, Before::Cached];

/// Plays all faults of a kind over several seeds. Returns the outcomes.
fn all(profile: Profile, seeds: u64, faults: impl Iterator<Item = Fault> + Clone) -> Vec<Outcome> {
    let runs = (0..seeds).flat_map(|seed| BEFORE.map(|before| (seed, before)));
    runs.flat_map(|(seed, before)| faults.clone().map(move |fault| judged(seed, profile, before, fault))).collect()
}

#[test]
fn job_leaves_a_rest_with_one_time_whatever_is_lost_or_comes_twice() {
    for profile in [CALM, LOSSY, COPIES] {
        for outcome in all(profile, seeds_of_build(200), [Fault::None].into_iter()) {
            // With lost answers a hold may be lost before its guard, and the next one has a time of its own.
            assert!(profile.name != CALM.name || outcome.is_handed_out && outcome.armed.len() == 1, "{outcome:?}");
        }
    }
}

#[test]
fn future_that_is_dropped_at_any_wait_leaves_no_rest() {
    for profile in [CALM, COPIES] {
        let times = (1..14).chain(50..70).map(Fault::DroppedAfter);
        let outcomes = all(profile, seeds_of_build(120), (0..16).map(Fault::Dropped).chain(times));
        assert_one(&outcomes, "after the arming", |outcome| !outcome.armed.is_empty() && !outcome.is_handed_out);
        assert_one(&outcomes, "before it", |outcome| outcome.armed.is_empty());
        assert_one(&outcomes, "after the guard", |outcome| outcome.is_handed_out);
    }
}

#[test]
fn process_that_dies_leaves_a_rest_only_from_its_arming_on() {
    for profile in [CALM, COPIES] {
        let times = (0..14).chain((14..140).step_by(9)).map(Fault::Dies);
        let outcomes = all(profile, seeds_of_build(120), times);
        let dies = |outcome: &Outcome| (!outcome.is_handed_out).then_some((!outcome.armed.is_empty(), outcome.is_left));
        assert_one(&outcomes, "before the arming", |outcome| dies(outcome) == Some((false, false)));
        assert_one(&outcomes, "after the arming", |outcome| dies(outcome) == Some((true, true)));
        assert_one(&outcomes, "with its guard", |outcome| outcome.is_handed_out);
    }
}

#[test]
fn acquisition_that_ends_at_its_limit_leaves_no_rest() {
    let outcomes = all(COPIES, seeds_of_build(120), [1, 4, 40, 52, 60].into_iter().map(Fault::Limit));
    assert_one(&outcomes, "after the arming", |outcome| !outcome.armed.is_empty() && !outcome.is_handed_out);
}

#[test]
fn close_leaves_a_rest_of_each_guard_and_of_nothing_else() {
    let outcomes = all(COPIES, seeds_of_build(120), [0, 2, 5, 9, 30, 60, 90].into_iter().map(Fault::Closed));
    assert_one(&outcomes, "after the arming", |outcome| !outcome.armed.is_empty() && !outcome.is_handed_out);
    assert_one(&outcomes, "with its guard", |outcome| outcome.is_handed_out);
}

// --- Cron jobs.

const MINUTE: Duration = Duration::from_secs(60);
const MINUTES: u32 = 10;
/// Clocks of the machines: each starts the job of a minute so much later.
const BEHIND: [Duration; 3] = [Duration::ZERO, Duration::from_secs(7), Duration::from_secs(20)];

/// Minutes in which the job ran, and minutes in which a machine got an error.
#[derive(Debug, Default)]
struct Log {
    runs: Vec<u32>,
    errors: BTreeSet<u32>,
}

async fn crontab(manager: SimManager, behind: Duration, at_least: Duration, log: Arc<Mutex<Log>>) {
    let began = tokio::time::Instant::now();
    for minute in 0..MINUTES {
        tokio::time::sleep_until(began + MINUTE * minute + behind).await;
        match manager.write(NAME).at_least(at_least).try_now().await {
            Ok(Some(guard)) => {
                log.lock().runs.push(minute);
                sleep(JOB).await;
                drop(guard);
            }
            Ok(None) => {}
            Err(_) => drop(log.lock().errors.insert(minute)),
        }
    }
}

/// Runs the crontab lines. In each minute, a primary fails over if the profile has failovers.
fn ten_minutes(seed: u64, profile: Profile, at_least: Duration) -> Log {
    let log = Arc::<Mutex<Log>>::default();
    paused_runtime().block_on(async {
        let world = World::new(seed, profile, None);
        let machines: Vec<_> = (0_u32..)
            .zip(BEHIND)
            .map(|(process, behind)| {
                let manager = SimManager::with(&world, &Address::new(process), world.profile.short_options());
                tokio::spawn(crontab(manager, behind, at_least, Arc::clone(&log)))
            })
            .collect();
        if profile.stale > 0 {
            drop(tokio::spawn(Arc::clone(&world).replicate()));
            let world = Arc::clone(&world);
            drop(tokio::spawn(async move {
                loop {
                    let wait_ms = world.draw(|rng| rng.u64(1..60_000));
                    sleep_ms(wait_ms).await;
                    world.falls_back();
                }
            }));
        }
        for machine in machines {
            machine.await.expect("it ends");
        }
    });
    Arc::into_inner(log).expect("all machines have ended").into_inner()
}

const RECIPE: Duration = Duration::from_secs(30);

#[test]
fn job_on_several_machines_runs_once_each_minute() {
    for seed in 0..seeds_of_build(60) {
        let log = ten_minutes(seed, CALM, RECIPE);
        assert_eq!(log.runs, (0..MINUTES).collect::<Vec<_>>(), "seed {seed}");
        assert!(log.errors.is_empty(), "seed {seed}: {log:?}");
    }
}

#[test]
fn job_never_runs_twice_in_a_minute_and_is_skipped_only_with_an_error() {
    for profile in [LOSSY, COPIES, REPLICATED] {
        for seed in 0..seeds_of_build(60) {
            let log = ten_minutes(seed, profile, RECIPE);
            let once: BTreeSet<_> = log.runs.iter().copied().collect();
            assert_eq!(once.len(), log.runs.len(), "seed {seed}, {}: {log:?}", profile.name);
            let skipped = (0..MINUTES).find(|minute| !once.contains(minute) && !log.errors.contains(minute));
            assert_eq!(skipped, None, "seed {seed}, {}: {log:?}", profile.name);
        }
    }
}

#[test]
fn without_a_rest_the_job_runs_on_each_machine() {
    let log = ten_minutes(0, CALM, Duration::from_millis(1));
    assert_eq!(log.runs.len(), BEHIND.len() * MINUTES as usize, "{log:?}");
}
