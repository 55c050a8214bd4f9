//! Simulation of the promises. The real engine runs over memory stores, with simulated networks, servers, processes and
//! users. All of them fail in every way that the contract allows. The seed determines the whole run, and all clocks are
//! paused.
//!
//! * A `profile` is the data of a run: the number of servers, how often each fault happens, and the users. With one
//!   server, the run has failovers, notifications and recalls. Three or five servers are the masters of a quorum.
//! * The `world` has the servers with their networks and clocks. A `machine` runs a process with its runtimes. The
//!   `workload` is what its users do. A `link` connects a process to a server.
//! * `trouble` causes faults by chance, and `scenes` play one fault each.
//! * The `history` records all events. `checkers` compare it with the promises. `mutants` are planted faults, and each
//!   is `caught` by its checker.
#![allow(unreachable_pub)] // the module is private to the tests

mod cached;
mod caught;
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
mod rests;
mod runtime;
mod scenes;
mod tickets;
mod trouble;
mod workload;
mod world;

use std::collections::{BTreeMap, BTreeSet, HashMap, HashSet};
use std::fmt;
use std::pin::Pin;
use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::task::{Context, Poll, Waker};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Notify, mpsc};
use tokio::time::{Instant, sleep};

use crate::base::attempt::{self, NodeId};
use crate::base::clock::Clock;
use crate::base::durability::Durability;
use crate::base::error::{Error, LossReason};
use crate::base::key::Key;
use crate::base::lease::{self, ClockSample, FencingToken, Moment, ServerTime};
use crate::base::options::Options;
use crate::base::recalls::Recalls;
use crate::base::reentry::OwnerId;
use crate::base::ticket::Ticket;
use crate::face::guard::{HoldWatch, WriteGuard};
use crate::face::manager::RwLockManager;
use crate::lock::hold::HoldState;
use crate::store::memory::{PendingRecall, Record};
use crate::store::quorum::{Quorum, Restarts};
use crate::store::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, BoxFuture, Converted, Floor, Forced, Granted, IfTaken,
    MasterScheme, Mode, Notification, ReleaseReply, Renewed, Scheme, View,
};
use cached::alone;
use caught::{breaks, caught};
use checkers::Violation;
use gate::{ActingFor, CutAt, Gate, Pausable};
use history::{
    Attempt, End, Event, Guard, Held, History, Id, Letting, Lock, Micros, Op, Place, Process, RecallEvent, Recalled,
    Released, Reply, Request, Seen, SentGrant, Shown, What, Wish,
};
use machine::Machine;
use mutants::Mutant;
use profile::{
    BURST, CALM, COPIES, CUT_OFF, DYING, FORCED, FORGETFUL, HOT, LONG, LOSING, LOSSY, MasterFault, Profile, QUORUM,
    REPLICATED, RUNTIMES, SPLIT, Story, UNHEARD, WILD_CLOCKS,
};
use runtime::{Hand, Runtime};
use scenes::Scene;
use trouble::{Cast, trouble};
use workload::{Actor, AnyGuard, SimManager, released, taking};
use world::{Address, Answer, Down, EPOCH_US, Parcel, World, ids_of, micros, millis};

/// Time after which a computation that blocks a runtime is over.
const BLOCKED: Duration = Duration::from_secs(21);

/// Returns a runtime whose clock is paused.
fn paused_runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build().expect("a runtime")
}

async fn sleep_ms(ms: u64) {
    sleep(Duration::from_millis(ms)).await;
}

/// Returns the history of a seed.
fn run(seed: u64, profile: Profile, mutant: Option<Mutant>) -> History {
    let runtime = paused_runtime();
    let (world, history) = runtime.block_on(async {
        let world = World::new(seed, profile, mutant);
        if profile.records.is_some() {
            world.record(What::SmallBatches);
        }
        if profile.wait_ms > 0 {
            world.record(What::Replicated);
        }
        match profile.story {
            Story::Chance => story(&world).await,
            Story::Scene(scene) => {
                scenes::play(&world, scene).await;
                sleep(profile.aftermath).await;
            }
        }
        world.record_left();
        world.record(What::Over);
        let history = world.take_history();
        (world, history)
    });
    drop(runtime);
    world.leaked.lock().clear();
    history
}

/// Runs the faults, the recovery, and the time until nothing is left.
async fn story(world: &Arc<World>) {
    if !world.is_quorum() {
        drop(tokio::spawn(Arc::clone(world).replicate()));
    }
    let (most, _, things) = world.profile.cast;
    let many = world.draw(|rng| rng.u32(2..=most));
    let mut cast = Cast { next: many, machines: Vec::new(), gone: Vec::new(), faults: Vec::new() };
    for process in 0..many {
        cast.machines.push(Machine::start(world, process, things));
    }
    trouble(world, &mut cast).await;
    world.heals();
    let all = async {
        // Longer than a runtime is blocked by a computation.
        if world.profile.runtime_stops > 0 {
            sleep(BLOCKED).await;
            cast.machines.iter().for_each(Machine::end_stopped_runtimes);
        }
        for machine in cast.machines.iter_mut().chain(&mut cast.gone) {
            machine.join().await;
        }
    };
    // If a waiter is not served by then, the history shows it.
    tokio::time::timeout(world.profile.served_within, all).await.ok();
    sleep(world.profile.aftermath).await;
    for machine in cast.machines.iter().chain(&cast.gone) {
        let process = machine.address.process;
        if !machine.address.gate.is_dead() && !machine.manager.engine.is_idle() {
            world.record(What::NotIdle { process });
        }
    }
}

/// Panics with the report of a run that breaks promises.
fn assert_unbroken(run: (u64, Profile), history: &History, violations: &[Violation]) {
    if let Some(report) = report(run, history, violations) {
        panic!("{report}");
    }
}

/// Reports the first violation of a run with the events around it.
fn report((seed, profile): (u64, Profile), history: &History, violations: &[Violation]) -> Option<String> {
    let first = violations.first()?;
    let all: String = violations.iter().take(10).map(|violation| format!("  {violation}\n")).collect();
    // `replay` finds a profile by its name, and this one has the name of the profile without caching.
    let replayed = if profile.caches { "caching" } else { profile.name };
    Some(format!(
        "seed {seed} ({}) breaks promises:\n{all}replay: PROFILE='{replayed}' SEED={seed} cargo test --lib simulation::replay -- --nocapture --ignored\n{}",
        profile.name,
        history.around(first.at, 12),
    ))
}

/// Runs seeds on two threads. Panics with the first failure in the order of seeds.
fn assert_promises_hold(seeds: std::ops::Range<u64>, profile_of: impl Fn(u64) -> Profile + Sync) {
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
    if let Some((_, report)) = found.into_inner() {
        panic!("{report}");
    }
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

/// Returns the number of seeds for this build: all, or a twentieth. An unoptimised build takes eight times as long for a
/// seed. `.ci/run` runs such a build, and `.ci/all` runs both.
const fn seeds_of_build(all: u64) -> u64 {
    if cfg!(redis_rwlock_optimised) { all } else { all / 20 }
}

#[test]
fn promises_hold() {
    assert_promises_hold(seeds_or(seeds_of_build(2_000)), Profile::of_seed);
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
    assert_unbroken((seed, profile), &history, &checkers::check(&history));
    println!("{} events, nothing broken", history.events.len());
}

/// Asserts that a run is the same in another thread.
fn assert_same(seed: u64, profile: Profile) {
    let first = run(seed, profile, None).text();
    let other = std::thread::spawn(move || run(seed, profile, None).text());
    let again = other.join().expect("it runs");
    if first != again {
        let differ = first.lines().zip(again.lines()).find(|(a, b)| a != b);
        panic!("seed {seed} differs: {differ:#?}");
    }
    assert!(first.lines().count() > 100, "something happened");
}

#[test]
fn same_seed_same_history() {
    for seed in 0..seeds_of_build(100) {
        assert_same(seed, Profile::of_seed(seed));
    }
}

/// Asserts that one of the outcomes is as described.
fn assert_one<O: std::fmt::Debug>(outcomes: &[O], what: &str, is_so: impl Fn(&O) -> bool) {
    assert!(outcomes.iter().any(is_so), "{what}");
}

/// Returns the variety of a run: the first word of each event, and of the answers and ends in it.
fn kinds(history: &History) -> BTreeSet<String> {
    let mut wishes = std::collections::BTreeMap::new();
    let mut labels = |what: &What| match what {
        What::Asked { attempt, wish, .. } => {
            wishes.insert(*attempt, *wish);
            "Asked".to_owned()
        }
        What::Granted { attempt, .. } if wishes[attempt].converts.is_some() => {
            format!("Converted to {}", wishes[attempt].mode)
        }
        What::Applied { op, reply, .. } => format!("{} {}", first_token_of(op), first_token_of(reply)),
        What::Failed { end, .. } => format!("Failed {end:?}"),
        What::LossSeen { reason, .. } => format!("LossSeen {reason:?}"),
        What::Released { how, .. } => format!("Released {how:?}"),
        What::LetGo { how, .. } => format!("LetGo {how:?}"),
        other => first_token_of(other),
    };
    history.events.iter().map(|event| labels(&event.what)).collect()
}

/// Asserts that the runs of the first seeds have all these kinds of events.
fn assert_all_happen<const N: usize>(seeds: u64, profile_of: fn(u64) -> Profile, expected: [&str; N]) {
    let seen: BTreeSet<_> = (0..seeds).flat_map(|seed| kinds(&run(seed, profile_of(seed), None))).collect();
    let missing: Vec<_> = expected.into_iter().filter(|kind| !seen.contains(*kind)).collect();
    assert!(missing.is_empty(), "never happens: {missing:?}, of {seen:?}");
}

fn first_token_of(of: &impl std::fmt::Debug) -> String {
    let text = format!("{of:?}");
    text.split(|c: char| !c.is_alphanumeric()).next().unwrap_or_default().to_owned()
}

/// Kinds of events that random runs have to show.
const KINDS: [&str; 58] = [
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

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn everything_happens() {
    assert_all_happen(300, Profile::of_seed, KINDS);
}

#[test]
fn exclusion_needs_clocks_within_the_margin() {
    let broken = (0..50).any(|seed| breaks(seed, WILD_CLOCKS, None, "1 exclusion"));
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
    assert_promises_hold(0..seeds_of_build(300), |_| RUNTIMES);
}

#[test]
fn runtimes_do_all_that_runtimes_do() {
    assert_same(7, RUNTIMES);
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
    caught(|_| scene, Mutant::ReleaseIsAlwaysFine, "4 release");
}

#[test]
fn what_goes_with_one_runtime_is_noticed() {
    caught(|_| RUNTIMES, Mutant::RenewsWithTheFirst, "11 holds");
    caught(|_| RUNTIMES, Mutant::ReleasesWithTheFirst, "11 releases");
    caught(|_| RUNTIMES, Mutant::NobodyLooksAfter, "11 releases");
    caught(|_| RUNTIMES, Mutant::AsksWithTheFirst, "11 waiters");
}

/// Conversions often end without an answer here, because most answers are lost.
#[test]
fn promises_hold_for_conversions_in_doubt() {
    assert_promises_hold(0..20, |_| UNHEARD);
    // With fewer lost answers, a hold is seldom lost during its conversion.
    caught(|_| UNHEARD, Mutant::ConvertedUnrenewed, "3 lost conversions");
    caught(|_| Profile::of_scene(Scene::UpgradeUnheard), Mutant::LeavesInDoubt, "1 validity");
    caught(|_| Profile::of_scene(Scene::UpgradeLost), Mutant::NoLateConversions, "4 conversions in doubt");
}

/// Background renewals and releases do not wait for acquisitions. Acquisitions wait only where the wait costs nothing.
#[test]
fn what_a_burst_takes_from_others_is_noticed() {
    caught(|_| BURST, Mutant::RoomForAll, "10 losses");
    caught(|_| BURST, Mutant::RenewsInTurn, "10 losses");
}

/// An answer that is too late for its limit seldom arrives in time, unless clocks jump.
#[test]
fn what_came_too_late_is_no_denial() {
    let breaks = |mutant, promise| (0..12).any(|seed| breaks(seed, WILD_CLOCKS, mutant, promise));
    for (mutant, promise) in
        [(Mutant::LateIsDenial, "denial"), (Mutant::LateConversionIsRefused, "denial of conversions")]
    {
        assert!(breaks(Some(mutant), promise), "nobody notices {mutant:?}");
        assert!(!breaks(None, promise), "{promise}");
    }
}

#[test]
fn tokens_of_a_hot_lock_grow_across_a_loss() {
    assert!(breaks(0, HOT, Some(Mutant::TokensAhead), "2 tokens"), "the lock is not hot enough");
    assert!(!breaks(0, HOT, None, "2 tokens"));
}
