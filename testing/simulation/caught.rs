//! Tests that each checker catches its mutants.

use super::*;

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

/// Defines a test for each mutant, with the promise that it breaks in the runs of a profile. A seed has caught it.
macro_rules! mutants {
    ($($profile_of:expr => { $($name:ident: $mutant:ident by $promise:literal $(seed $first:literal)?;)* })*) => {
        $($(
            #[test]
            fn $name() {
                caught_from(0 $(+ $first)?, $profile_of, Mutant::$mutant, $promise);
            }
        )*)*
    };
}

mutants! {
    Profile::of_seed => {
        writer_beside_readers: WriterBesideReaders by "1 exclusion";
        grant_not_recorded: GrantNotRecorded by "1 exclusion";
        deadline_from_reply: DeadlineFromReply by "1 validity" seed 15;
        late_grant_believed: LateGrantBelieved by "1 validity" seed 5;
        plain_tokens: PlainTokens by "2 tokens" seed 4;
        token_for_each_reader: TokenForEachReader by "2 tokens";
        release_of_anybody: ReleaseOfAnybody by "3 ends of holds";
        renewal_recreates: RenewalRecreates by "3 ends of holds";
        renewal_shortens: RenewalShortens by "3 ends of holds";
        lost_at_once: LostAtOnce by "3 ends of guards";
        retry_counts_twice: RetryCountsTwice by "4 idempotence";
        force_ends_newer: ForceEndsNewer by "4 idempotence" seed 24;
        limit_ignored: LimitIgnored by "4 idempotence";
        renewal_outlives_guard: RenewalOutlivesGuard by "5 leftovers";
        slow_heartbeat: SlowHeartbeat by "7 heartbeat";
        silence_is_denial: SilenceIsDenial by "denial";
        slow_renewal: SlowRenewal by "8 renewal";
        gives_up_soon: GivesUpSoon by "8 unreachable";
        gives_up_late: GivesUpLate by "8 unreachable" seed 5;
        waits_for_ever: WaitsForEver by "service";
        never_forgets: NeverForgets by "9 tidiness";
        out_of_order: OutOfOrder by "6 local order";
        unseen_writer: UnseenWriter by "6 local phases" seed 27;
        reader_passes_writer: ReaderPassesWriter by "6 bypass";
        newest_first: NewestFirst by "6 queue";
        cancelled_stays: CancelledStays by "5 ghosts";
        full_lease_unclaimed: FullLeaseUnclaimed by "5 dead waiters";
        notification_to_another: NotificationToAnother by "1 validity";
        stale_notification: StaleNotification by "1 validity";
        downgrade_lets_writer_in: DowngradeLetsWriterIn by "1 exclusion";
        upgrade_beside_readers: UpgradeBesideReaders by "1 exclusion";
        leaves_once: LeavesOnce by "5 ghosts";
        shares_for_ever: SharesForEver by "6 sharing" seed 4;
        over_budget: OverBudget by "6 budget";
        renews_short: RenewsShort by "3 leases of guards";
        no_writer_waits: NoWriterWaits by "6 waited for";
        loss_is_silence: LossIsSilence by "3 answered losses" seed 5;
        force_not_told: ForceNotTold by "3 forced" seed 5;
        repeat_extends_nothing: RepeatExtendsNothing by "3 ends of holds";
        renewal_extends_nothing: RenewalExtendsNothing by "3 ends of holds";
        ignores_notifications: IgnoresNotifications by "7 hand-over";
        never_subscribes: NeverSubscribes by "7 subscription";
        looks_at_half: LooksAtHalf by "inspect";
        no_pause: NoPause by "10 asks";
        forgets_force: ForgetsForce by "3 forced" seed 5;
        keeps_the_dead: KeepsTheDead by "5 leftovers" seed 2;
        refusal_is_loss: RefusalIsLoss by "3 lost conversions";
        silent_conversion_is_loss: SilentConversionIsLoss by "4 reasons of conversions" seed 4;
    }
    alone => {
        tokens_of_nobody: TokensOfNobody by "2 tokens";
        forgets_tokens: ForgetsTokens by "cached: tokens";
        live_again_at_once: LiveAgainAtOnce by "6 sharing";
        ignores_break: IgnoresBreak by "6 sharing" seed 3;
        no_age: NoAge by "6 sharing";
        other_node: OtherNode by "6 budget";
    }
    Profile::caching => {
        joins_after_recall: JoinsAfterRecall by "6 sharing" seed 12;
        ignores_recalls: IgnoresRecalls by "cached: given up";
        caches_unconfirmed: CachesUnconfirmed by "6 budget";
        leaves_under_guard: LeavesUnderGuard by "1 validity";
        cached_unrenewed: CachedUnrenewed by "cached: validity" seed 3;
        no_recallable_flag: NoRecallableFlag by "cached: recalls";
        recalls_once: RecallsOnce by "cached: recalls";
        recall_per_waiter: RecallPerWaiter by "cached: recalls";
        renewal_mute: RenewalMute by "6 waited for";
        force_without_recall: ForceWithoutRecall by "cached: recalls" seed 5;
        try_stays_queued: TryStaysQueued by "5 ghosts" seed 28;
    }
    |_| FORCED => {
        force_misses_tokens: ForceMissesTokens by "cached: force";
    }
    |_| FORGETFUL => {
        forgetful_votes: ForgetfulVotes by "1 exclusion" seed 47;
    }
    |_| LONG => {
        releases_where_granted: ReleasesWhereGranted by "9 tidiness";
        not_undone: NotUndone by "9 tidiness";
    }
    |_| CUT_OFF => {
        minority_renews: MinorityRenews by "1 exclusion";
    }
}
