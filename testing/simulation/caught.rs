//! Tests that each checker catches its mutants.

use std::collections::{BTreeMap, BTreeSet};

use super::cached::alone;
use super::mutants::{self, Mutant};
use super::profile::{CUT_OFF, FORCED, FORGETFUL, LONG, Profile};
use super::{checkers, run};

/// Returns true if a run breaks the promise.
pub fn breaks(seed: u64, profile: Profile, mutant: Option<Mutant>, promise: &str) -> bool {
    checkers::check(&run(seed, profile, mutant)).iter().any(|violation| violation.promise == promise)
}

/// Asserts that the checker of a promise catches the mutant.
pub fn caught(profile_of: impl Fn(u64) -> Profile, mutant: Mutant, promise: &str) {
    caught_from(0, profile_of, mutant, promise);
}

/// Does the same, and begins with the seed `first`, which has caught the mutant. So a rare catch costs one run, until the
/// code changes what the seed does.
fn caught_from(first: u64, profile_of: impl Fn(u64) -> Profile, mutant: Mutant, promise: &str) {
    const SEEDS: u64 = 60;
    let catches = |seed: &u64| breaks(*seed, profile_of(*seed), Some(mutant), promise);
    let caught_by = (first..SEEDS).chain(0..first).find(catches);
    assert!(caught_by.is_some(), "nobody notices {mutant:?} in {SEEDS} seeds");
    println!("{mutant:?} is caught by seed {caught_by:?}");
}

#[test]
#[ignore = "tells how soon each checker notices each mutant"]
fn mutants_by_checker() {
    for mutant in mutants::ALL.iter().copied() {
        let mut seen = BTreeMap::<&str, (u64, usize)>::new();
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
    ($($name:ident: $mutant:ident is caught by $promise:literal in $profile_of:expr $(, seed $first:literal)?;)*) => {
        $(
            #[test]
            fn $name() {
                caught_from(0 $(+ $first)?, $profile_of, Mutant::$mutant, $promise);
            }
        )*
    };
}

mutants! {
    writer_beside_readers: WriterBesideReaders is caught by "1 exclusion" in Profile::of_seed;
    grant_not_recorded: GrantNotRecorded is caught by "1 exclusion" in Profile::of_seed;
    deadline_from_reply: DeadlineFromReply is caught by "1 validity" in Profile::of_seed, seed 15;
    late_grant_believed: LateGrantBelieved is caught by "1 validity" in Profile::of_seed, seed 5;
    plain_tokens: PlainTokens is caught by "2 tokens" in Profile::of_seed, seed 4;
    token_for_each_reader: TokenForEachReader is caught by "2 tokens" in Profile::of_seed;
    release_of_anybody: ReleaseOfAnybody is caught by "3 ends of holds" in Profile::of_seed;
    renewal_recreates: RenewalRecreates is caught by "3 ends of holds" in Profile::of_seed;
    renewal_shortens: RenewalShortens is caught by "3 ends of holds" in Profile::of_seed;
    lost_at_once: LostAtOnce is caught by "3 ends of guards" in Profile::of_seed;
    retry_counts_twice: RetryCountsTwice is caught by "4 idempotence" in Profile::of_seed;
    force_ends_newer: ForceEndsNewer is caught by "4 idempotence" in Profile::of_seed, seed 24;
    limit_ignored: LimitIgnored is caught by "4 idempotence" in Profile::of_seed;
    renewal_outlives_guard: RenewalOutlivesGuard is caught by "5 leftovers" in Profile::of_seed;
    slow_heartbeat: SlowHeartbeat is caught by "7 heartbeat" in Profile::of_seed;
    silence_is_denial: SilenceIsDenial is caught by "denial" in Profile::of_seed;
    slow_renewal: SlowRenewal is caught by "8 renewal" in Profile::of_seed;
    gives_up_soon: GivesUpSoon is caught by "8 unreachable" in Profile::of_seed;
    gives_up_late: GivesUpLate is caught by "8 unreachable" in Profile::of_seed, seed 5;
    waits_for_ever: WaitsForEver is caught by "service" in Profile::of_seed;
    never_forgets: NeverForgets is caught by "9 tidiness" in Profile::of_seed;
    out_of_order: OutOfOrder is caught by "6 local order" in Profile::of_seed;
    unseen_writer: UnseenWriter is caught by "6 local phases" in Profile::of_seed, seed 27;
    reader_passes_writer: ReaderPassesWriter is caught by "6 bypass" in Profile::of_seed;
    newest_first: NewestFirst is caught by "6 queue" in Profile::of_seed;
    cancelled_stays: CancelledStays is caught by "5 ghosts" in Profile::of_seed;
    full_lease_unclaimed: FullLeaseUnclaimed is caught by "5 dead waiters" in Profile::of_seed;
    notification_to_another: NotificationToAnother is caught by "1 validity" in Profile::of_seed;
    stale_notification: StaleNotification is caught by "1 validity" in Profile::of_seed;
    downgrade_lets_writer_in: DowngradeLetsWriterIn is caught by "1 exclusion" in Profile::of_seed;
    upgrade_beside_readers: UpgradeBesideReaders is caught by "1 exclusion" in Profile::of_seed;
    leaves_once: LeavesOnce is caught by "5 ghosts" in Profile::of_seed;
    shares_for_ever: SharesForEver is caught by "6 sharing" in Profile::of_seed, seed 4;
    over_budget: OverBudget is caught by "6 budget" in Profile::of_seed;
    renews_short: RenewsShort is caught by "3 leases of guards" in Profile::of_seed;
    no_writer_waits: NoWriterWaits is caught by "6 waited for" in Profile::of_seed;
    loss_is_silence: LossIsSilence is caught by "3 answered losses" in Profile::of_seed, seed 5;
    force_not_told: ForceNotTold is caught by "3 forced" in Profile::of_seed, seed 5;
    repeat_extends_nothing: RepeatExtendsNothing is caught by "3 ends of holds" in Profile::of_seed;
    renewal_extends_nothing: RenewalExtendsNothing is caught by "3 ends of holds" in Profile::of_seed;
    ignores_notifications: IgnoresNotifications is caught by "7 hand-over" in Profile::of_seed;
    never_subscribes: NeverSubscribes is caught by "7 subscription" in Profile::of_seed;
    looks_at_half: LooksAtHalf is caught by "inspect" in Profile::of_seed;
    no_pause: NoPause is caught by "10 asks" in Profile::of_seed;
    forgets_force: ForgetsForce is caught by "3 forced" in Profile::of_seed, seed 5;
    keeps_the_dead: KeepsTheDead is caught by "5 leftovers" in Profile::of_seed, seed 2;
    refusal_is_loss: RefusalIsLoss is caught by "3 lost conversions" in Profile::of_seed;
    silent_conversion_is_loss: SilentConversionIsLoss is caught by "4 reasons of conversions" in Profile::of_seed, seed 4;
    tokens_of_nobody: TokensOfNobody is caught by "2 tokens" in alone;
    forgets_tokens: ForgetsTokens is caught by "cached: tokens" in alone;
    joins_after_recall: JoinsAfterRecall is caught by "6 sharing" in Profile::caching, seed 12;
    ignores_recalls: IgnoresRecalls is caught by "cached: given up" in Profile::caching;
    caches_unconfirmed: CachesUnconfirmed is caught by "6 budget" in Profile::caching;
    live_again_at_once: LiveAgainAtOnce is caught by "6 sharing" in alone;
    ignores_break: IgnoresBreak is caught by "6 sharing" in alone, seed 3;
    no_age: NoAge is caught by "6 sharing" in alone;
    other_node: OtherNode is caught by "6 budget" in alone;
    leaves_under_guard: LeavesUnderGuard is caught by "1 validity" in Profile::caching;
    cached_unrenewed: CachedUnrenewed is caught by "cached: validity" in Profile::caching, seed 3;
    no_recallable_flag: NoRecallableFlag is caught by "cached: recalls" in Profile::caching;
    recalls_once: RecallsOnce is caught by "cached: recalls" in Profile::caching;
    recall_per_waiter: RecallPerWaiter is caught by "cached: recalls" in Profile::caching;
    renewal_mute: RenewalMute is caught by "6 waited for" in Profile::caching;
    force_without_recall: ForceWithoutRecall is caught by "cached: recalls" in Profile::caching, seed 5;
    force_misses_tokens: ForceMissesTokens is caught by "cached: force" in |_| FORCED;
    try_stays_queued: TryStaysQueued is caught by "5 ghosts" in Profile::caching, seed 28;
    forgetful_votes: ForgetfulVotes is caught by "1 exclusion" in |_| FORGETFUL, seed 47;
    releases_where_granted: ReleasesWhereGranted is caught by "9 tidiness" in |_| LONG;
    minority_renews: MinorityRenews is caught by "1 exclusion" in |_| CUT_OFF;
    not_undone: NotUndone is caught by "9 tidiness" in |_| LONG;
}
