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
    Profile::of_kept(Scene::UsedAlone)
}

fn violations(seed: u64, profile: Profile, mutant: Option<Mutant>) -> Vec<Violation> {
    checkers::check(&run(seed, profile, mutant))
}

#[test]
fn promises_are_kept_where_holds_stay() {
    if let Some(report) = first_failure(seeds_or(150), Profile::kept) {
        panic!("{report}");
    }
}

#[test]
fn promises_are_kept_where_one_process_is_alone() {
    if let Some(report) = first_failure(0..5, alone) {
        panic!("{report}");
    }
}

#[test]
#[ignore = "tells what each checker says over many seeds where holds stay"]
fn census() {
    let mut seen = std::collections::BTreeMap::<_, (usize, u64, String)>::new();
    for seed in seeds_or(200) {
        let profile = Profile::kept(seed);
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
    let notices = |seed: &u64| {
        violations(*seed, profile_of(*seed), Some(mutant)).iter().any(|violation| violation.promise == promise)
    };
    let noticed = (0..SEEDS_OF_A_MUTANT).find(notices);
    println!("{mutant:?}: {noticed:?}");
    assert!(noticed.is_some(), "nobody notices {mutant:?} in {SEEDS_OF_A_MUTANT} seeds");
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
    forgets_tokens: ForgetsTokens is caught by "kept: tokens" in alone;
    joins_after_call: JoinsAfterCall is caught by "6 sharing" in Profile::kept;
    deaf_to_calls: DeafToCalls is caught by "kept: given up" in Profile::kept;
    keeps_unconfirmed: KeepsUnconfirmed is caught by "6 budget" in Profile::kept;
    stands_again_at_once: StandsAgainAtOnce is caught by "6 sharing" in alone;
    ignores_break: IgnoresBreak is caught by "6 sharing" in alone;
    no_age: NoAge is caught by "6 sharing" in alone;
    other_node: OtherNode is caught by "6 budget" in alone;
    leaves_under_guard: LeavesUnderGuard is caught by "1 validity" in Profile::kept;
    idle_unrenewed: IdleUnrenewed is caught by "kept: validity" in Profile::kept;
    no_mark: NoMark is caught by "kept: calls" in Profile::kept;
    calls_once: CallsOnce is caught by "kept: calls" in Profile::kept;
    call_per_waiter: CallPerWaiter is caught by "kept: calls" in Profile::kept;
    renewal_mute: RenewalMute is caught by "6 waited for" in Profile::kept;
    force_uncalled: ForceUncalled is caught by "kept: calls" in Profile::kept;
    force_misses_tokens: ForceMissesTokens is caught by "kept: force" in forced;
    try_stays: TryStays is caught by "5 ghosts" in Profile::kept;
}
