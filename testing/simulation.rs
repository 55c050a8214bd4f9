//! Simulation of the promises. The real engine runs over a memory store, with a simulated network, server, processes
//! and users. All of them fail in every way that the contract allows. The seed determines the whole run, and all clocks
//! are paused.
//!
//! `history` records the events, `checkers` compare them with the promises, and `mutants` show that the checkers notice
//! faults.

mod cached;
mod checkers;
mod gate;
mod history;
mod known;
mod link;
mod machine;
mod mutants;
mod profile;
mod quorum;
mod replicated;
mod runtime;
mod scenes;
mod workload;
mod world;

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use checkers::Violation;
use history::{History, Process, What};
use machine::Machine;
use mutants::Mutant;
use profile::{BURST, HOT, Profile, RUNTIMES, Story, UNHEARD, WILD_CLOCKS};
use scenes::Scene;
use workload::Leaked;
use world::{Down, World};

/// Time during which faults happen.
const TROUBLE: Duration = Duration::from_secs(12);
/// Time after the last fault within which every waiter is served. A waiter may have to wait for several leaked holds,
/// one after the other.
const TIME_LIMIT: Duration = Duration::from_secs(120);
/// Time that is longer than every lease, limit and retention.
const AFTERMATH: Duration = Duration::from_secs(75);
/// Number of runs with several runtimes.
const SEEDS_OF_RUNTIMES: u64 = 100;
/// Time after which a computation that blocks a runtime is over.
const BLOCKED: Duration = Duration::from_secs(21);
/// Actions of each task.
const THINGS: u32 = 8;

/// Returns the history of a seed.
fn run(seed: u64, profile: Profile, mutant: Option<Mutant>) -> History {
    // The engine's jitter comes from the generator of the thread.
    fastrand::seed(seed);
    let runtime =
        tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime");
    let leaked = Leaked::default();
    let history = runtime.block_on(async {
        let world = World::new(seed, profile, mutant);
        if profile.records.is_some() {
            world.record(What::SmallBatches);
        }
        if profile.wait_ms > 0 {
            world.record(What::Replicated);
        }
        match profile.story {
            Story::Chance => story(&world, &leaked).await,
            Story::Scene(scene) => {
                scenes::play(&world, &leaked, scene).await;
                tokio::time::sleep(AFTERMATH).await;
            }
        }
        let (records, subscribers) = (world.store.left_at(world.server_time()), world.subscribers());
        world.record(What::ReleaseReply { records, subscribers });
        world.record(What::Over);
        world.take_history()
    });
    drop(runtime);
    leaked.lock().clear();
    history
}

/// Runs the faults, the recovery, and the time until nothing is left.
async fn story(world: &Arc<World>, leaked: &Leaked) {
    drop(tokio::spawn(Arc::clone(world).replicate()));
    let many = world.draw(|rng| rng.u32(2..=4));
    let mut cast = Cast { next: many, machines: Vec::new(), gone: Vec::new() };
    for process in 0..many {
        cast.machines.push(Machine::start(world, leaked, process, THINGS));
    }
    let trouble = trouble(world, leaked, &mut cast);
    trouble.await;
    world.heals();
    let all = async {
        // Longer than a runtime is blocked by a computation.
        if world.profile.runtime_stops > 0 {
            tokio::time::sleep(BLOCKED).await;
            cast.machines.iter().for_each(Machine::end_stopped_runtimes);
        }
        for machine in cast.machines.iter_mut().chain(&mut cast.gone) {
            machine.join().await;
        }
    };
    // If a waiter is not served by then, the history shows it.
    tokio::time::timeout(TIME_LIMIT, all).await.ok();
    tokio::time::sleep(AFTERMATH).await;
    for machine in cast.machines.iter().chain(&cast.gone) {
        let process = machine.address.process;
        if !machine.address.gate.is_dead() && !machine.manager.engine.is_idle() {
            world.record(What::NotIdle { process });
        }
    }
}

/// Machines of a run.
struct Cast {
    next: u32,
    machines: Vec<Machine>,
    gone: Vec<Machine>,
}

#[derive(Clone, Copy, Debug)]
enum Trouble {
    Pause,
    Crash,
    Close,
    Outage,
    Empty,
    Stale,
    Split,
    Step,
    RuntimeStops,
    RuntimeEnds,
}

/// Causes all faults except those of messages. The seed determines their order and their times.
async fn trouble(world: &Arc<World>, leaked: &Leaked, cast: &mut Cast) {
    let profile = world.profile;
    let mut plan = Vec::new();
    let kinds = [
        (Trouble::Pause, profile.pauses),
        (Trouble::Crash, profile.crashes),
        (Trouble::Close, profile.closes),
        (Trouble::Outage, profile.outages),
        (Trouble::Empty, profile.empties),
        (Trouble::Stale, profile.stale),
        (Trouble::Split, profile.splits),
        (Trouble::Step, profile.steps),
        (Trouble::RuntimeStops, profile.runtime_stops),
        (Trouble::RuntimeEnds, profile.runtime_ends),
    ];
    // A profile without runtime faults must draw no random numbers for them. Otherwise its runs would change.
    let runtimes = profile.runtime_stops + profile.runtime_ends > 0;
    for (kind, most) in kinds {
        if matches!(kind, Trouble::RuntimeStops | Trouble::RuntimeEnds) && !runtimes {
            continue;
        }
        for _ in 0..world.draw(|rng| rng.u32(0..=most)) {
            plan.push((world.draw(|rng| rng.u64(0..world::millis(TROUBLE))), kind));
        }
    }
    plan.sort_by_key(|(at, _)| *at);
    let began = world.now() / 1000;
    for (at, kind) in plan {
        let now = world.now() / 1000;
        tokio::time::sleep(Duration::from_millis((began + at).saturating_sub(now))).await;
        happens(world, leaked, cast, kind).await;
    }
    let now = world.now() / 1000;
    tokio::time::sleep(TROUBLE.saturating_sub(Duration::from_millis(now - began))).await;
}

async fn happens(world: &Arc<World>, leaked: &Leaked, cast: &mut Cast, kind: Trouble) {
    let victim = world.draw(|rng| rng.usize(0..cast.machines.len()));
    match kind {
        Trouble::Pause => {
            let long = world.draw(|rng| rng.bool());
            let for_ms = world.draw(|rng| if long { rng.u64(1..12_000) } else { rng.u64(1..1_000) });
            cast.machines[victim].pause(for_ms);
        }
        Trouble::Crash | Trouble::Close => {
            let heir = Machine::start(world, leaked, cast.next, THINGS / 2);
            cast.next += 1;
            let mut old = std::mem::replace(&mut cast.machines[victim], heir);
            if matches!(kind, Trouble::Crash) {
                old.crash()
            } else {
                old.close()
            }
            cast.gone.push(old);
        }
        Trouble::Outage => outage(world, |_| {}).await,
        Trouble::Empty => outage(world, World::empties).await,
        Trouble::Stale => outage(world, World::falls_back).await,
        Trouble::Split => split(world).await,
        Trouble::Step => world.steps_clock(profile_band(world)),
        Trouble::RuntimeStops => {
            let (pick, how_long) = world.draw(|rng| (rng.usize(0..8), rng.u32(0..4)));
            let for_ms = match how_long {
                0 => Some(world.draw(|rng| rng.u64(1..1_000))),
                1 => Some(world.draw(|rng| rng.u64(1_000..12_000))),
                // A task of the runtime computes.
                2 => Some(20_000),
                _ => None,
            };
            cast.machines[victim].stop_runtime(pick, for_ms);
        }
        Trouble::RuntimeEnds => {
            let (pick, leaks) = world.draw(|rng| (rng.usize(0..8), rng.u32(0..4) == 0));
            cast.machines[victim].end_runtime(pick, leaks, THINGS / 2);
        }
    }
}

fn profile_band(world: &World) -> i64 {
    world.profile.step_band_ms
}

/// Takes the server away for longer than clocks can differ. Another server may come in its place.
async fn outage(world: &Arc<World>, change: impl FnOnce(&World)) {
    let is_silent = world.draw(|rng| rng.bool());
    world.goes_down(if is_silent { Down::Silent } else { Down::Refusing });
    let long = world.draw(|rng| rng.u32(0..4) == 0);
    let for_ms = world.draw(|rng| if long { rng.u64(2_000..8_000) } else { rng.u64(120..1_500) });
    tokio::time::sleep(Duration::from_millis(for_ms)).await;
    change(world);
    world.comes_up();
}

#[derive(Clone, Copy, Debug)]
enum Step {
    Reroute(Process),
    Wake,
    Demote,
}

/// Splits the primaries. The primary freezes, a replica takes over, and processes learn of it one after the other. Then
/// the old primary wakes up. For milliseconds or seconds it answers the requests in its sockets, and the processes that
/// still ask it.
async fn split(world: &Arc<World>) {
    world.freezes();
    let for_ms = world.draw(|rng| rng.u64(200..1_500));
    tokio::time::sleep(Duration::from_millis(for_ms)).await;
    world.promotes();
    let wakes = world.draw(|rng| rng.u64(0..2_000));
    let long = world.draw(|rng| rng.bool());
    let awake = world.draw(|rng| if long { rng.u64(200..4_000) } else { rng.u64(2..12) });
    let mut steps = vec![(wakes, Step::Wake), (wakes + awake, Step::Demote)];
    for process in world.behind() {
        // The old primary refuses a process that still asks it later, and the process looks for another primary.
        let learns_after = world.draw(|rng| rng.u64(0..wakes + awake + 100));
        steps.push((learns_after, Step::Reroute(process)));
    }
    steps.sort_by_key(|(at, _)| *at);
    let began = world.now() / 1000;
    for (at, step) in steps {
        let now = world.now() / 1000;
        tokio::time::sleep(Duration::from_millis((began + at).saturating_sub(now))).await;
        match step {
            Step::Reroute(process) => world.reroutes(process),
            Step::Wake => world.wakes(),
            Step::Demote => world.demotes(),
        }
    }
}

/// Reports the first violation of a run with the events around it.
fn report((seed, profile): (u64, Profile), history: &History, violations: &[Violation]) -> Option<String> {
    let first = violations.first()?;
    let all: String = violations.iter().take(10).map(|violation| format!("  {violation}\n")).collect();
    Some(format!(
        "seed {seed} ({}) breaks promises:\n{all}replay: PROFILE='{}' SEED={seed} cargo test --lib simulation::replay -- --nocapture --ignored\n{}",
        profile.name,
        profile.name,
        history.around(first.at, 12),
    ))
}

/// Runs seeds on two threads. Returns the first failure in the order of seeds.
fn first_failure(seeds: std::ops::Range<u64>, profile_of: impl Fn(u64) -> Profile + Sync) -> Option<String> {
    let next = AtomicU64::new(seeds.start);
    let found = parking_lot::Mutex::new(None::<(u64, String)>);
    std::thread::scope(|scope| {
        for _ in 0..2 {
            scope.spawn(|| {
                loop {
                    let seed = next.fetch_add(1, Ordering::Relaxed);
                    if seed >= seeds.end || found.lock().is_some() {
                        return;
                    }
                    let profile = profile_of(seed);
                    let history = run(seed, profile, None);
                    let violations = checkers::check(&history);
                    if let Some(report) = report((seed, profile), &history, &violations) {
                        *found.lock() = Some((seed, report));
                    }
                }
            });
        }
    });
    found.into_inner().map(|(_, report)| report)
}

/// Returns the seeds that `SEEDS` asks for: `2000` means the first 2000, `2000..4000` a range. The default is the first
/// `many`.
fn seeds_or(many: u64) -> std::ops::Range<u64> {
    let Ok(asked) = std::env::var("SEEDS") else {
        return 0..many;
    };
    let number = |text: &str| text.parse().expect("SEEDS is `2000` or `2000..4000`");
    asked.split_once("..").map_or_else(|| 0..number(&asked), |(first, end)| number(first)..number(end))
}

/// Number of seeds, for unoptimised and optimised builds. A seed takes eight times as long in an unoptimised build. CI
/// runs both.
const SEEDS: u64 = if cfg!(debug_assertions) { 500 } else { 2_000 };

#[test]
fn promises_hold() {
    if let Some(report) = first_failure(seeds_or(SEEDS), Profile::of_seed) {
        panic!("{report}");
    }
}

#[test]
#[ignore = "replays one seed: SEED=123 cargo test --lib simulation::replay -- --nocapture --ignored"]
fn replay() {
    let seed = std::env::var("SEED").expect("SEED says which one").parse().expect("a number");
    let profile = Profile::chosen(seed);
    let history = run(seed, profile, None);
    if std::env::var("WHOLE").is_ok() {
        println!("{}", history.text());
    }
    let violations = checkers::check(&history);
    if let Some(report) = report((seed, profile), &history, &violations) {
        panic!("{report}");
    }
    println!("{} events, nothing broken", history.events.len());
}

#[test]
fn same_seed_same_history() {
    for seed in 0..30 {
        let first = run(seed, Profile::of_seed(seed), None).text();
        let other = std::thread::spawn(move || run(seed, Profile::of_seed(seed), None).text());
        let again = other.join().expect("it runs");
        if first != again {
            let differ = first.lines().zip(again.lines()).find(|(a, b)| a != b);
            panic!("seed {seed} differs: {differ:#?}");
        }
        assert!(first.lines().count() > 100, "something happened");
    }
}

/// Returns the variety of a run: the first word of each event, and of the answers and ends in it.
fn kinds(history: &History) -> BTreeSet<String> {
    let labels = |what: &What| match what {
        What::Applied { op, reply, .. } => format!("{} {}", first_token_of(op), first_token_of(reply)),
        What::Failed { end, .. } => format!("Failed {end:?}"),
        What::LossSeen { reason, .. } => format!("LossSeen {reason:?}"),
        What::Released { how, .. } => format!("Released {how:?}"),
        What::LetGo { how, .. } => format!("LetGo {how:?}"),
        other => first_token_of(other),
    };
    history.events.iter().map(|event| labels(&event.what)).collect()
}

fn first_token_of(of: &impl std::fmt::Debug) -> String {
    let text = format!("{of:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

#[test]
fn everything_happens() {
    let seen: BTreeSet<_> = (0..300).flat_map(|seed| kinds(&run(seed, Profile::of_seed(seed), None))).collect();
    let expected = [
        "Acquire Granted",
        "Acquire Contended",
        "Acquire Queued",
        "Acquire Late",
        "Leave Held",
        "Leave None",
        "Leave Waited",
        "Conversion Granted",
        "Conversion Refused",
        "Conversion Lost",
        "Conversion Late",
        "Renew Renewed",
        "Renew Lost",
        "Inspect View",
        "Force Forced",
        "Failed Busy",
        "Failed TimedOut",
        "Failed Unreachable",
        "Failed Closed",
        "Failed Conflict",
        "Failed Cut",
        "Failed Lost(Expired)",
        "Failed Lost(MaxHold)",
        "LossSeen Expired",
        "LossSeen Gone",
        "LossSeen MaxHold",
        "LossSeen Forced",
        "LossSeen Closed",
        "Released Ours",
        "Released Lost(Expired)",
        "Released Unreachable",
        "Released Cut",
        "LetGo Leak",
        "LetGo Drop",
        "LetGo Converted",
        "LetGo CutConversion",
        "Fenced",
        "RequestLost",
        "ReplyLost",
        "NotificationLost",
        "NotificationLate",
        "Notified",
        "Paused",
        "Resumed",
        "Crashed",
        "Down",
        "Up",
        "Emptied",
        "Stale",
        "Frozen",
        "Promoted",
        "Rerouted",
        "Woken",
        "Demoted",
        "Stepped",
        "ClosedNow",
        "NotDone",
        "Unanswered",
    ];
    let missing: Vec<_> = expected.into_iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "never happens: {missing:?}");
}

#[test]
fn exclusion_needs_clocks_within_the_margin() {
    let broken = (0..50).any(|seed| {
        checkers::check(&run(seed, WILD_CLOCKS, None)).iter().any(|violation| violation.promise == "1 exclusion")
    });
    assert!(broken, "steps of seconds break exclusion, or the steps do not happen");
}

#[test]
#[ignore = "tells what each checker says over many seeds"]
fn census() {
    let mut seen = std::collections::BTreeMap::<_, (usize, u64, String)>::new();
    for seed in seeds_or(200) {
        let history = run(seed, Profile::chosen(seed), None);
        for violation in checkers::check(&history) {
            if std::env::var("TELL").is_ok_and(|tell| violation.promise.starts_with(&tell)) {
                println!("{seed} {} {violation}", Profile::chosen(seed).name);
            }
            let of = (violation.promise, Profile::chosen(seed).name);
            let entry = seen.entry(of).or_insert((0, seed, violation.to_string()));
            entry.0 += 1;
        }
    }
    println!("{seen:#?}");
}

/// Stops and ends runtimes of a process: the other runtimes lose nothing.
#[test]
fn promises_hold_with_several_runtimes() {
    if let Some(report) = first_failure(0..SEEDS_OF_RUNTIMES, |_| RUNTIMES) {
        panic!("{report}");
    }
}

#[test]
fn runtimes_do_all_that_runtimes_do() {
    let (first, again) = (run(7, RUNTIMES, None).text(), run(7, RUNTIMES, None).text());
    assert!(first == again, "the same seed differs");
    let all = (0..20).flat_map(|seed| run(seed, RUNTIMES, None).events).collect::<Vec<_>>();
    let happens = |what: fn(&What) -> bool| all.iter().any(|event| what(&event.what));
    assert!(happens(|what| matches!(what, What::RuntimeStopped { for_ms: Some(20_000), .. })));
    assert!(happens(|what| matches!(what, What::RuntimeStopped { for_ms: None, .. })));
    assert!(happens(|what| matches!(what, What::RuntimeGoesOn { .. })));
    assert!(happens(|what| matches!(what, What::RuntimeEnded { leaks: true, .. })));
    assert!(happens(|what| matches!(what, What::RuntimeEnded { leaks: false, .. })));
}

/// A process mostly learns of the end of a hold before its release, so random runs seldom show this case.
#[test]
fn release_is_not_always_fine() {
    let scene = Profile::of_scene(Scene::ReleaseOfALostHold);
    assert_eq!(checkers::check(&run(0, scene, None)), []);
    caught_with(|_| scene, Mutant::ReleaseIsAlwaysFine, "4 release");
}

#[test]
fn what_goes_with_one_runtime_is_noticed() {
    caught_with(|_| RUNTIMES, Mutant::RenewsWithTheFirst, "11 holds");
    caught_with(|_| RUNTIMES, Mutant::ReleasesWithTheFirst, "11 releases");
    caught_with(|_| RUNTIMES, Mutant::NobodyLooksAfter, "11 releases");
    caught_with(|_| RUNTIMES, Mutant::AsksWithTheFirst, "11 waiters");
}

/// Conversions often end without an answer here, because most answers are lost.
#[test]
fn promises_hold_for_conversions_in_doubt() {
    if let Some(report) = first_failure(0..20, |_| UNHEARD) {
        panic!("{report}");
    }
    // With fewer lost answers, a hold is seldom lost during its conversion.
    caught_with(|_| UNHEARD, Mutant::ConvertedUnrenewed, "3 lost conversions");
    caught_with(|_| Profile::of_scene(Scene::UpgradeUnheard), Mutant::LeavesInDoubt, "1 validity");
    caught_with(|_| Profile::of_scene(Scene::UpgradeLost), Mutant::NoLateConversions, "4 conversions in doubt");
}

/// Background renewals and releases do not wait for acquisitions. Acquisitions wait only where the wait costs nothing.
#[test]
fn what_a_burst_takes_from_others_is_noticed() {
    caught_with(|_| BURST, Mutant::RoomForAll, "10 losses");
    caught_with(|_| BURST, Mutant::RenewsInTurn, "10 losses");
}

/// An answer that is too late for its limit seldom arrives in time, unless clocks jump.
#[test]
fn what_came_too_late_is_no_denial() {
    let breaks = |mutant, promise| {
        (0..30).any(|seed| {
            checkers::check(&run(seed, WILD_CLOCKS, mutant)).iter().any(|violation| violation.promise == promise)
        })
    };
    for (mutant, promise) in
        [(Mutant::LateIsDenial, "denial"), (Mutant::LateConversionIsRefused, "denial of conversions")]
    {
        assert!(breaks(Some(mutant), promise), "nobody notices {mutant:?}");
        assert!(!breaks(None, promise), "{promise}");
    }
}

#[test]
fn tokens_of_a_hot_lock_grow_across_a_loss() {
    let breaks =
        |mutant| checkers::check(&run(0, HOT, mutant)).into_iter().any(|violation| violation.promise == "2 tokens");
    assert!(breaks(Some(Mutant::TokensAhead)), "the lock is not hot enough");
    assert!(!breaks(None));
}

/// Asserts that the checker of a promise catches the mutant.
fn caught(mutant: Mutant, promise: &str) {
    caught_with(Profile::of_seed, mutant, promise);
}

fn caught_with(profile_of: impl Fn(u64) -> Profile, mutant: Mutant, promise: &str) {
    const SEEDS: u64 = 60;
    for seed in 0..SEEDS {
        let history = run(seed, profile_of(seed), Some(mutant));
        if checkers::check(&history).iter().any(|violation| violation.promise == promise) {
            return;
        }
    }
    panic!("nobody notices {mutant:?} in {SEEDS} seeds");
}

#[test]
#[ignore = "tells how soon each checker notices each mutant"]
fn mutants_by_checker() {
    for mutant in mutants::ALL {
        let mut seen = std::collections::BTreeMap::<&str, (u64, usize)>::new();
        for seed in 0..60 {
            let history = run(seed, Profile::chosen(seed), Some(mutant));
            let promises: BTreeSet<_> =
                checkers::check(&history).into_iter().map(|violation| violation.promise).collect();
            for promise in promises {
                seen.entry(promise).or_insert((seed, 0)).1 += 1;
            }
        }
        println!("{mutant:?}: {seen:?}");
    }
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident is caught by $promise:literal;)*) => {
        mod mutants_are_caught {
            use super::{Mutant, caught};
            $(
                #[test]
                fn $name() {
                    caught(Mutant::$mutant, $promise);
                }
            )*
        }
    };
}

mutants! {
    writer_beside_readers: WriterBesideReaders is caught by "1 exclusion";
    grant_not_recorded: GrantNotRecorded is caught by "1 exclusion";
    deadline_from_reply: DeadlineFromReply is caught by "1 validity";
    late_grant_believed: LateGrantBelieved is caught by "1 validity";
    plain_tokens: PlainTokens is caught by "2 tokens";
    token_for_each_reader: TokenForEachReader is caught by "2 tokens";
    release_of_anybody: ReleaseOfAnybody is caught by "3 ends of holds";
    renewal_recreates: RenewalRecreates is caught by "3 ends of holds";
    renewal_shortens: RenewalShortens is caught by "3 ends of holds";
    lost_at_once: LostAtOnce is caught by "3 ends of guards";
    retry_counts_twice: RetryCountsTwice is caught by "4 idempotence";
    force_ends_newer: ForceEndsNewer is caught by "4 idempotence";
    limit_ignored: LimitIgnored is caught by "4 idempotence";
    renewal_outlives_guard: RenewalOutlivesGuard is caught by "5 leftovers";
    slow_heartbeat: SlowHeartbeat is caught by "7 heartbeat";
    silence_is_denial: SilenceIsDenial is caught by "denial";
    slow_renewal: SlowRenewal is caught by "8 renewal";
    gives_up_soon: GivesUpSoon is caught by "8 unreachable";
    gives_up_late: GivesUpLate is caught by "8 unreachable";
    waits_for_ever: WaitsForEver is caught by "service";
    never_forgets: NeverForgets is caught by "9 tidiness";
    out_of_order: OutOfOrder is caught by "6 local order";
    unseen_writer: UnseenWriter is caught by "6 local phases";
    reader_passes_writer: ReaderPassesWriter is caught by "6 bypass";
    newest_first: NewestFirst is caught by "6 queue";
    cancelled_stays: CancelledStays is caught by "5 ghosts";
    full_lease_unclaimed: FullLeaseUnclaimed is caught by "5 dead waiters";
    notification_to_another: NotificationToAnother is caught by "1 validity";
    stale_notification: StaleNotification is caught by "1 validity";
    downgrade_lets_writer_in: DowngradeLetsWriterIn is caught by "1 exclusion";
    upgrade_beside_readers: UpgradeBesideReaders is caught by "1 exclusion";
    leaves_once: LeavesOnce is caught by "5 ghosts";
    shares_for_ever: SharesForEver is caught by "6 sharing";
    over_budget: OverBudget is caught by "6 budget";
    renews_short: RenewsShort is caught by "3 leases of guards";
    no_writer_waits: NoWriterWaits is caught by "6 waited for";
    loss_is_silence: LossIsSilence is caught by "3 answered losses";
    force_not_told: ForceNotTold is caught by "3 forced";
    repeat_extends_nothing: RepeatExtendsNothing is caught by "3 ends of holds";
    renewal_extends_nothing: RenewalExtendsNothing is caught by "3 ends of holds";
    ignores_notifications: IgnoresNotifications is caught by "7 hand-over";
    never_subscribes: NeverSubscribes is caught by "7 subscription";
    looks_at_half: LooksAtHalf is caught by "inspect";
    no_pause: NoPause is caught by "10 asks";
    forgets_force: ForgetsForce is caught by "3 forced";
    keeps_the_dead: KeepsTheDead is caught by "5 leftovers";
    refusal_is_loss: RefusalIsLoss is caught by "3 lost conversions";
    silent_conversion_is_loss: SilentConversionIsLoss is caught by "4 reasons of conversions";
}
