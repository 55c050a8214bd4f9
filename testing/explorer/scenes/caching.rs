//! Scenes of processes that may cache their holds.

use super::*;

const BREAK: Faults = Faults { breaks: 1, ..NONE };

/// Returns a scene in which all processes are subscribed to recalls.
const fn cached(processes: usize, each: usize, faults: Faults) -> Scene {
    serial(processes, each, faults).caching(Caching::Subscribed)
}

/// Returns a scene in which each process subscribes at any time.
const fn subscribing(processes: usize, each: usize, faults: Faults) -> Scene {
    serial(processes, each, faults).caching(Caching::Subscribing)
}

#[test]
fn small_scenes_of_processes_that_cache_holds_hold() {
    cached(2, 2, NONE).mute().holds(5_730);
    cached(2, 1, COPY).holds(7_200);
    cached(2, 1, WIPE).holds(4_600);
    cached(2, 1, DEATH).trying().holds(2_370);
    cached(2, 1, FORCE).holds(6_860);
    cached(3, 1, NONE).holds(8_000);
    subscribing(2, 1, BREAK).holds(22_600);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn processes_that_cache_holds_hold_with_one_kind_of_fault() {
    cached(2, 2, DEATH).trying().holds(65_600);
    cached(2, 2, NONE).trying().mute().holds(11_800);
    cached(2, 2, CONVERSION).holds(91_700);
    cached(2, 1, LOSS).trying().holds(43_700);
    cached(2, 1, COPY).trying().holds(14_900);
    cached(2, 1, DELAY).holds(31_500);
    cached(3, 1, NONE).trying().holds(24_200);
    subscribing(2, 2, NONE).holds(38_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn several_acquisitions_of_processes_that_cache_holds_hold() {
    cached(2, 3, DEATH).trying().holds(702_000);
    cached(3, 2, CONVERSION).holds(8_350_000);
    cached(3, 2, NONE).mute().holds(192_000);
    cached(3, 1, NONE).limited(1).trying().holds(27_300);
    subscribing(2, 3, NONE).holds(202_000);
    concurrent(2, 2, NONE).caching(Caching::Subscribed).holds(159_000);
    cached(2, 2, SLEEP).trying().holds(228_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn recalls_of_processes_that_are_lost_or_doubled_hold() {
    cached(3, 1, LOSS).trying().holds(1_390_000);
    cached(3, 1, Faults { deaths: 1, ..COPY }).trying().holds(748_000);
    cached(2, 1, Faults { losses: 2, ..NONE }).holds(277_000);
    cached(2, 2, dying_and_converting(LOSS)).holds(8_030_000);
    cached(2, 1, Faults { losses: 1, delays: 1, ..NONE }).holds(745_000);
    cached(2, 1, Faults { copies: 1, delays: 1, ..NONE }).holds(314_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn recalls_of_processes_that_are_late_hold() {
    cached(2, 2, DELAY).trying().holds(3_430_000);
    cached(3, 1, DELAY).trying().holds(2_050_000);
    cached(2, 2, dying_and_converting(DELAY)).holds(11_400_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn subscriptions_of_processes_that_break_and_holds_that_are_forced_hold() {
    subscribing(2, 2, BREAK).trying().holds(1_140_000);
    subscribing(2, 1, Faults { delays: 1, ..BREAK }).trying().holds(2_830_000);
    cached(2, 1, Faults { losses: 1, ..BREAK }).trying().holds(664_000);
    cached(2, 2, FORCE).trying().holds(583_000);
    cached(2, 2, Faults { conversions: 1, ..FORCE }).holds(1_730_000);
    cached(3, 1, FORCE).holds(145_000);
    cached(2, 2, WIPE).holds(142_000);
    cached(2, 2, Faults { lapses: 1, ..NONE }).trying().holds(183_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn subscriptions_that_break_beside_each_other_fault_hold() {
    let states: usize = KINDS.iter().map(|fault| cached(2, 1, fault.beside(&BREAK)).trying().states()).sum();
    assert!(states >= 2_490_000, "{states} states in all: a scene has shrunk");
}

#[test]
fn each_blunder_of_a_process_that_caches_holds_is_found() {
    find_blunders([
        (Blunder::StaysWhenRecalled, cached(2, 1, NONE), Invariant::StandsAside, 3),
        (Blunder::ReliesUnconfirmed, subscribing(2, 1, NONE), Invariant::StandsAside, 2),
        (Blunder::ReliesOnWhatItAskedBefore, subscribing(2, 1, DELAY), Invariant::StandsAside, 4),
        (Blunder::ReliesAcrossBreak, cached(2, 1, Faults { delays: 1, ..BREAK }), Invariant::StandsAside, 6),
        (Blunder::KeepsUnheard, cached(2, 1, BREAK), Invariant::StandsAside, 4),
        (Blunder::ForgetsEarlyRecall, cached(2, 1, DELAY), Invariant::StandsAside, 4),
        (Blunder::BelievesOlderAnswer, cached(2, 1, DELAY), Invariant::StandsAside, 4),
        (Blunder::IgnoresWhatARenewalTells, cached(2, 1, NONE).mute(), Invariant::StandsAside, 2),
        (Blunder::GivesUpUnderGuard, cached(2, 1, NONE), Invariant::Exclusion, 4),
        (Blunder::EntersWhatIsOver, cached(2, 2, NONE), Invariant::Exclusion, 5),
        (Blunder::ReusesToken, cached(1, 3, NONE), Invariant::Tokens, 4),
        (Blunder::AnswersInUseWhenIdle, cached(2, 1, NONE).trying(), Invariant::Used, 4),
        (Blunder::TryStays, cached(2, 1, NONE).trying(), Invariant::Leftovers, 3),
    ]);
}

#[test]
fn each_fault_of_a_server_is_found_by_processes_that_cache_holds() {
    find_faults([
        (Fault::FlagOutlives, subscribing(2, 2, NONE), Invariant::Call, 5),
        (Fault::FlagTooLate, cached(2, 2, NONE), Invariant::Call, 2),
        (Fault::NobodyRecalls, cached(2, 1, NONE), Invariant::Call, 2),
        (Fault::RecallsOnce, cached(2, 1, NONE), Invariant::Call, 4),
        (Fault::RecallsByOlderToken, cached(2, 1, NONE), Invariant::Call, 2),
        (Fault::TriesRecallUnnamed, cached(2, 1, NONE).trying(), Invariant::Call, 2),
        (Fault::TriesAreRefused, cached(2, 1, NONE).trying(), Invariant::HoldStands, 2),
        (Fault::RenewalTellsNothing, cached(2, 1, NONE), Invariant::WaitedFor, 4),
        (Fault::RenewalBringsOldTokens, cached(1, 1, NONE), Invariant::Tokens, 2),
        (Fault::RenewedTokensAhead, cached(1, 1, NONE), Invariant::Tokens, 2),
        (Fault::ForceMissesNewBlock, cached(1, 1, FORCE), Invariant::Forced, 4),
        (Fault::ForceRecallsNobody, cached(1, 1, FORCE), Invariant::Call, 3),
        (Fault::ConversionClearsFlag, cached(2, 2, CONVERSION), Invariant::Call, 3),
        (Fault::ConversionRecallsNobody, cached(2, 2, CONVERSION), Invariant::Call, 3),
    ]);
}
