//! Scenes in which holds may stay cached without a guard.

use super::server::Fault;
use super::watch::Invariant;
use super::world::{Budget, Caching, Slip};
use super::{CONVERSION, COPY, DEATH, DELAY, LOSS, NOTHING, Scene, WIPE, dying_and_converting, scene};

const BREAK: Budget = Budget { breaks: 1, ..NOTHING };
const FORCE: Budget = Budget { forces: 1, ..NOTHING };

/// Returns a scene in which all clients are subscribed to recalls.
const fn cached(clients: usize, each: usize, budget: Budget) -> Scene {
    scene(clients, each, budget).caching(Caching::Subscribed)
}

/// Returns a scene in which each client subscribes at any time.
const fn subscribing(clients: usize, each: usize, budget: Budget) -> Scene {
    scene(clients, each, budget).caching(Caching::Subscribing)
}

#[test]
fn small_scenes_with_cached_holds_hold() {
    cached(2, 2, NOTHING).trying().holds(39_000);
    cached(2, 2, NOTHING).mute().holds(4_900);
    cached(2, 2, CONVERSION).holds(11_600);
    cached(2, 1, LOSS).trying().holds(28_000);
    cached(2, 1, COPY).holds(6_900);
    cached(2, 1, DELAY).holds(16_000);
    cached(2, 1, WIPE).holds(2_700);
    cached(2, 1, DEATH).holds(1_050);
    cached(2, 1, FORCE).holds(4_800);
    cached(3, 1, NOTHING).holds(4_800);
    subscribing(2, 2, NOTHING).holds(18_600);
    subscribing(2, 1, BREAK).holds(7_200);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn several_acquisitions_of_clients_that_cache_holds_hold() {
    cached(2, 3, NOTHING).trying().holds(518_000);
    cached(3, 2, CONVERSION).holds(1_000_000);
    cached(3, 2, NOTHING).mute().holds(147_000);
    cached(3, 1, NOTHING).limited(1).trying().holds(30_000);
    subscribing(2, 3, NOTHING).holds(89_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn recalls_that_are_lost_or_doubled_hold() {
    cached(3, 1, LOSS).trying().holds(735_000);
    cached(3, 1, COPY).trying().holds(535_000);
    cached(2, 1, Budget { losses: 2, ..NOTHING }).holds(65_000);
    cached(2, 2, dying_and_converting(LOSS)).holds(483_000);
    cached(2, 1, Budget { losses: 1, delays: 1, ..NOTHING }).holds(221_000);
    cached(2, 1, Budget { copies: 1, delays: 1, ..NOTHING }).holds(179_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn recalls_that_are_late_hold() {
    cached(2, 2, DELAY).trying().holds(2_410_000);
    cached(3, 1, DELAY).trying().holds(1_360_000);
    cached(2, 2, dying_and_converting(DELAY)).holds(1_078_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn subscriptions_that_break_and_holds_that_are_forced_hold() {
    subscribing(2, 2, BREAK).trying().holds(518_000);
    subscribing(2, 1, Budget { delays: 1, ..BREAK }).trying().holds(888_000);
    cached(2, 1, Budget { losses: 1, ..BREAK }).trying().holds(219_000);
    cached(2, 2, FORCE).trying().holds(517_000);
    cached(2, 2, Budget { conversions: 1, ..FORCE }).holds(169_000);
    cached(3, 1, FORCE).holds(92_000);
    cached(2, 2, WIPE).holds(50_000);
    cached(2, 2, Budget { lapses: 1, ..NOTHING }).trying().holds(86_000);
}

#[test]
fn each_slip_of_clients_that_cache_holds_is_found() {
    for slip in Slip::KEEPING {
        let (scene, invariant, steps) = match slip {
            Slip::StaysWhenCalled => (cached(2, 1, NOTHING), Invariant::StandsAside, 3),
            Slip::ReliesUnconfirmed => (subscribing(2, 1, NOTHING), Invariant::StandsAside, 2),
            Slip::ReliesOnWhatItAskedBefore => (subscribing(2, 1, DELAY), Invariant::StandsAside, 4),
            Slip::ReliesAcrossBreak => (cached(2, 1, Budget { delays: 1, ..BREAK }), Invariant::StandsAside, 6),
            Slip::KeepsUnheard => (cached(2, 1, BREAK), Invariant::StandsAside, 3),
            Slip::ForgetsEarlyCall => (cached(2, 1, DELAY), Invariant::StandsAside, 4),
            Slip::BelievesOlderAnswer => (cached(2, 1, DELAY), Invariant::StandsAside, 5),
            Slip::IgnoresWhatARenewalTells => (cached(2, 1, NOTHING).mute(), Invariant::StandsAside, 2),
            Slip::GivesUpUnderGuard => (cached(2, 1, NOTHING), Invariant::Exclusion, 4),
            Slip::EntersWhatIsOver => (cached(2, 2, NOTHING), Invariant::Tokens, 7),
            Slip::ReusesToken => (cached(1, 3, NOTHING), Invariant::Tokens, 6),
            Slip::AnswersUsedWhenIdle => (cached(2, 1, NOTHING).trying(), Invariant::Used, 4),
            Slip::TryStays => (cached(2, 1, NOTHING).trying(), Invariant::Leftovers, 4),
            Slip::TakesGrantFromBefore => (cached(2, 2, FORCE), Invariant::Tokens, 12),
            _ => unreachable!("the slip belongs to clients that cache holds"),
        };
        scene.finds(None, Some(slip), invariant, steps);
    }
}

#[test]
fn each_fault_of_a_server_with_cached_holds_is_found() {
    for fault in Fault::CACHING {
        let (scene, invariant, steps) = match fault {
            Fault::FlagOutlives => (subscribing(2, 2, NOTHING), Invariant::Call, 6),
            Fault::FlagTooLate => (cached(2, 2, NOTHING), Invariant::Call, 2),
            Fault::NobodyRecalls => (cached(2, 1, NOTHING), Invariant::Call, 2),
            Fault::RecallsOnce => (cached(2, 1, NOTHING), Invariant::Call, 5),
            Fault::RecallsByOlderToken => (cached(2, 1, NOTHING), Invariant::Call, 2),
            Fault::TriesRecallUnnamed => (cached(2, 1, NOTHING).trying(), Invariant::Call, 2),
            Fault::TriesAreRefused => (cached(2, 1, NOTHING).trying(), Invariant::HoldStands, 2),
            Fault::RenewalTellsNothing => (cached(2, 1, NOTHING), Invariant::WaitedFor, 3),
            Fault::RenewalBringsOldTokens => (cached(1, 1, NOTHING), Invariant::Tokens, 2),
            Fault::RenewedTokensAhead => (cached(1, 1, NOTHING), Invariant::Tokens, 2),
            Fault::ForceMissesNewBlock => (cached(1, 1, FORCE), Invariant::Forced, 4),
            Fault::ForceRecallsNobody => (cached(1, 1, FORCE), Invariant::Call, 3),
            Fault::ConversionClearsFlag => (cached(2, 2, CONVERSION), Invariant::Call, 3),
            Fault::ConversionRecallsNobody => (cached(2, 2, CONVERSION), Invariant::Call, 3),
            _ => unreachable!("the fault belongs to servers with cached holds"),
        };
        scene.finds(Some(fault), None, invariant, steps);
    }
}
