//! Runs with cached holds. All other promises hold as in runs without them, even if recalls and subscriptions fail. A
//! process gives up a recalled hold in time.

use super::checkers::{self, Violation};
use super::mutants::Mutant;
use super::profile::{FORCED, Profile};
use super::scenes::Scene;
use super::{first_failure, run, seeds_or};

/// Returns the profile of one process alone with its cached holds, while the server is away for a while and is
/// replaced.
fn alone(_: u64) -> Profile {
    Profile::caching_in(Scene::UsedAlone)
}

fn violations(seed: u64, profile: Profile, mutant: Option<Mutant>) -> Vec<Violation> {
    checkers::check(&run(seed, profile, mutant))
}

#[test]
fn promises_hold_with_cached_holds() {
    if let Some(report) = first_failure(seeds_or(150), Profile::caching) {
        panic!("{report}");
    }
}

#[test]
fn promises_hold_where_one_process_is_alone() {
    if let Some(report) = first_failure(0..5, alone) {
        panic!("{report}");
    }
}

#[test]
#[ignore = "tells what each checker says over many seeds with cached holds"]
fn census() {
    let mut seen = std::collections::BTreeMap::<_, (usize, u64, String)>::new();
    for seed in seeds_or(200) {
        let profile = Profile::caching(seed);
        for violation in violations(seed, profile, None) {
            println!("{seed} {} {violation}", profile.name);
            seen.entry((violation.promise, profile.name)).or_insert((0, seed, violation.to_string())).0 += 1;
        }
    }
    println!("{seen:#?}");
}

/// Number of seeds within which each mutant is caught.
const SEEDS_OF_A_MUTANT: u64 = 60;

fn caught(profile_of: fn(u64) -> Profile, mutant: Mutant, promise: &str) {
    let finds = |seed: &u64| {
        violations(*seed, profile_of(*seed), Some(mutant)).iter().any(|violation| violation.promise == promise)
    };
    let found = (0..SEEDS_OF_A_MUTANT).find(finds);
    println!("{mutant:?}: {found:?}");
    assert!(found.is_some(), "nobody notices {mutant:?} in {SEEDS_OF_A_MUTANT} seeds");
}

fn forced(_: u64) -> Profile {
    FORCED
}

macro_rules! mutants {
    ($($name:ident: $mutant:ident is caught by $promise:literal in $profile_of:path;)*) => {
        mod mutants_are_caught {
            use super::*;
            $(
                #[test]
                fn $name() {
                    caught($profile_of, Mutant::$mutant, $promise);
                }
            )*
        }
    };
}

mutants! {
    tokens_of_nobody: TokensOfNobody is caught by "2 tokens" in alone;
    forgets_tokens: ForgetsTokens is caught by "cached: tokens" in alone;
    joins_after_recall: JoinsAfterRecall is caught by "6 sharing" in Profile::caching;
    ignores_recalls: IgnoresRecalls is caught by "cached: given up" in Profile::caching;
    caches_unconfirmed: CachesUnconfirmed is caught by "6 budget" in Profile::caching;
    live_again_at_once: LiveAgainAtOnce is caught by "6 sharing" in alone;
    ignores_break: IgnoresBreak is caught by "6 sharing" in alone;
    no_age: NoAge is caught by "6 sharing" in alone;
    other_node: OtherNode is caught by "6 budget" in alone;
    leaves_under_guard: LeavesUnderGuard is caught by "1 validity" in Profile::caching;
    cached_unrenewed: CachedUnrenewed is caught by "cached: validity" in Profile::caching;
    no_recallable_flag: NoRecallableFlag is caught by "cached: recalls" in Profile::caching;
    recalls_once: RecallsOnce is caught by "cached: recalls" in Profile::caching;
    recall_per_waiter: RecallPerWaiter is caught by "cached: recalls" in Profile::caching;
    renewal_mute: RenewalMute is caught by "6 waited for" in Profile::caching;
    force_without_recall: ForceWithoutRecall is caught by "cached: recalls" in Profile::caching;
    force_misses_tokens: ForceMissesTokens is caught by "cached: force" in forced;
    try_stays_queued: TryStaysQueued is caught by "5 ghosts" in Profile::caching;
}
