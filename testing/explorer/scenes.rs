//! Scenes of processes, and the faults of processes and servers that they find.

mod caching;

use std::time::Instant;

use super::{Blunder, Caching, Explored, Fault, Faults, Invariant, Scene};

const NONE: Faults = Faults {
    losses: 0,
    copies: 0,
    delays: 0,
    deaths: 0,
    conversions: 0,
    lapses: 0,
    wipes: 0,
    breaks: 0,
    forces: 0,
    sleeps: 0,
};
const LOSS: Faults = Faults { losses: 1, ..NONE };
const COPY: Faults = Faults { copies: 1, ..NONE };
const DELAY: Faults = Faults { delays: 1, ..NONE };
const DEATH: Faults = Faults { deaths: 1, ..NONE };
const CONVERSION: Faults = Faults { conversions: 1, ..NONE };
const LAPSES: Faults = Faults { lapses: 2, ..NONE };
const WIPE: Faults = Faults { wipes: 1, ..NONE };
const FORCE: Faults = Faults { forces: 1, ..NONE };
const SLEEP: Faults = Faults { sleeps: 1, ..NONE };

/// Adds the death of one process and the conversion of one hold.
const fn dying_and_converting(faults: Faults) -> Faults {
    Faults { deaths: 1, conversions: 1, ..faults }
}

impl Faults {
    /// Returns these faults and the others.
    const fn beside(&self, other: &Self) -> Self {
        Self {
            losses: self.losses + other.losses,
            copies: self.copies + other.copies,
            delays: self.delays + other.delays,
            deaths: self.deaths + other.deaths,
            conversions: self.conversions + other.conversions,
            lapses: self.lapses + other.lapses,
            wipes: self.wipes + other.wipes,
            breaks: self.breaks + other.breaks,
            forces: self.forces + other.forces,
            sleeps: self.sleeps + other.sleeps,
        }
    }
}

/// Returns a scene of processes with tasks that run at the same time. Each task has one acquisition.
const fn concurrent(processes: usize, tasks: usize, faults: Faults) -> Scene {
    let (records, caching) = (None, Caching::Nothing);
    Scene { processes, tasks, each: 1, has_tries: false, records, faults, caching, is_mute: false }
}

/// Returns a scene of processes with one task each, which has several acquisitions one after the other.
const fn serial(processes: usize, each: usize, faults: Faults) -> Scene {
    Scene { each, ..concurrent(processes, 1, faults) }
}

impl Scene {
    const fn trying(self) -> Self {
        Self { has_tries: true, ..self }
    }

    const fn limited(self, records: usize) -> Self {
        Self { records: Some(records), ..self }
    }

    const fn caching(self, caching: Caching) -> Self {
        Self { caching, ..self }
    }

    const fn mute(self) -> Self {
        Self { is_mute: true, ..self }
    }

    /// Asserts that no state breaks an invariant, and returns the number of states.
    fn states(&self) -> usize {
        let began = Instant::now();
        let Explored { states, processes, steps, depth, found } = self.explored(None, None);
        let took = began.elapsed();
        println!("{states} states, {processes} of a process, {steps} steps, {depth} deep, {took:?}: {self:?}");
        assert!(found.is_none(), "{self:?}: {found:?}");
        states
    }

    /// Asserts that no state breaks an invariant, and that the scene has not shrunk.
    fn holds(&self, least: usize) {
        let states = self.states();
        assert!(states >= least, "{states} states instead of {least} and more: {self:?} has shrunk");
    }

    /// Asserts that the exploration finds the planted fault by this invariant, with a path of this many steps.
    fn finds(&self, fault: Option<Fault>, blunder: Option<Blunder>, invariant: Invariant, steps: usize) {
        let what = format!("{fault:?} {blunder:?}");
        let found = self.explored(fault, blunder).found.unwrap_or_else(|| panic!("{what} is not found"));
        println!("{what}: {found:?}");
        assert_eq!((found.invariant, found.way.len()), (invariant, steps), "{what}: {found:?}");
    }
}

#[test]
fn small_scenes_with_concurrent_tasks_hold() {
    concurrent(2, 1, NONE).trying().holds(196);
    concurrent(1, 2, NONE).trying().holds(279);
    concurrent(2, 2, NONE).holds(9_900);
    concurrent(1, 2, SLEEP).holds(310);
    concurrent(1, 3, SLEEP).holds(4_600);
}

#[test]
fn small_scenes_of_acquisitions_one_after_the_other_hold() {
    serial(2, 2, dying_and_converting(NONE)).trying().holds(5_400);
    serial(2, 1, LOSS).trying().holds(7_000);
    serial(2, 1, COPY).trying().holds(2_000);
    serial(2, 1, DELAY).trying().holds(10_000);
    serial(2, 2, WIPE).holds(6_300);
    serial(3, 1, LAPSES).holds(8_000);
    serial(4, 1, NONE).limited(1).holds(4_900);
    serial(2, 1, FORCE).trying().holds(2_900);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn concurrent_tasks_hold() {
    concurrent(2, 2, NONE).trying().holds(37_300);
    concurrent(2, 2, Faults { deaths: 1, ..LOSS }).holds(828_000);
    concurrent(2, 2, Faults { deaths: 1, ..COPY }).holds(298_000);
    concurrent(2, 2, Faults { deaths: 1, ..DELAY }).holds(1_310_000);
    concurrent(2, 2, dying_and_converting(NONE)).holds(62_300);
    concurrent(2, 2, Faults { lapses: 1, ..CONVERSION }).holds(189_000);
    concurrent(2, 2, FORCE).holds(236_000);
    concurrent(2, 2, Faults { sleeps: 1, ..DELAY }).holds(6_800_000);
}

/// A task that is asleep is a future that nobody polls.
#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn tasks_that_are_not_polled_hold() {
    concurrent(2, 2, SLEEP).holds(88_900);
    serial(2, 2, SLEEP).trying().holds(4_300);
    serial(2, 2, Faults { sleeps: 1, ..LOSS }).holds(140_000);
    serial(2, 2, Faults { sleeps: 1, ..DELAY }).holds(220_000);
    serial(2, 2, Faults { sleeps: 1, ..COPY }).holds(46_000);
    serial(2, 2, dying_and_converting(SLEEP)).holds(17_100);
}

/// The largest take a quarter of an hour each on a slow processor.
#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn three_concurrent_tasks_and_three_processes_of_two_hold() {
    concurrent(2, 3, DEATH).holds(1_280_000);
    concurrent(2, 3, CONVERSION).holds(4_070_000);
    concurrent(2, 3, SLEEP).holds(16_500_000);
    concurrent(2, 3, COPY).holds(27_300_000);
    concurrent(3, 2, NONE).holds(1_270_000);
    concurrent(3, 2, SLEEP).holds(12_100_000);
    concurrent(3, 2, COPY).holds(27_100_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn two_processes_of_three_acquisitions_hold() {
    serial(2, 3, dying_and_converting(LOSS)).holds(957_000);
    serial(2, 3, dying_and_converting(COPY)).trying().holds(421_000);
    serial(2, 3, dying_and_converting(DELAY)).holds(1_330_000);
    serial(2, 3, dying_and_converting(LAPSES)).trying().holds(287_000);
    serial(2, 3, dying_and_converting(LOSS)).limited(2).holds(970_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn three_processes_of_two_acquisitions_hold() {
    serial(3, 2, dying_and_converting(LOSS)).holds(8_310_000);
    serial(3, 2, dying_and_converting(COPY)).holds(2_290_000);
    serial(3, 2, Faults { deaths: 1, ..DELAY }).holds(2_210_000);
    serial(3, 2, Faults { conversions: 1, ..DELAY }).holds(5_320_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn processes_with_bounded_operations_hold() {
    serial(4, 1, NONE).trying().limited(1).holds(41_000);
    serial(4, 1, Faults { losses: 1, deaths: 1, ..NONE }).limited(1).holds(779_000);
    serial(4, 1, Faults { losses: 1, deaths: 1, ..NONE }).limited(2).holds(758_000);
    serial(3, 2, LOSS).limited(1).holds(887_000);
    serial(3, 2, dying_and_converting(NONE)).trying().limited(2).holds(199_000);
    serial(2, 3, dying_and_converting(DELAY)).limited(1).holds(1_360_000);
}

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn processes_with_several_faults_at_once_hold() {
    concurrent(2, 1, Faults { losses: 1, ..DELAY }).holds(93_000);
    serial(2, 1, Faults { losses: 1, copies: 1, delays: 1, deaths: 1, ..NONE }).trying().holds(2_020_000);
    serial(2, 2, Faults { losses: 1, delays: 1, ..NONE }).holds(1_820_000);
    serial(2, 2, Faults { losses: 2, conversions: 1, ..NONE }).holds(4_120_000);
    serial(2, 2, Faults { wipes: 1, losses: 1, deaths: 1, conversions: 1, ..NONE }).holds(2_240_000);
    serial(2, 2, Faults { forces: 1, conversions: 1, ..NONE }).holds(45_000);
}

/// All kinds of faults that need no subscription.
const KINDS: [Faults; 9] = [LOSS, COPY, DELAY, DEATH, CONVERSION, Faults { lapses: 1, ..NONE }, WIPE, FORCE, SLEEP];

#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn each_pair_of_faults_holds() {
    let pairs = KINDS.iter().enumerate().flat_map(|(at, one)| KINDS[at + 1..].iter().map(|other| one.beside(other)));
    let states: usize = pairs.map(|pair| serial(2, 1, pair).trying().states()).sum();
    assert!(states >= 1_110_000, "{states} states in all: a scene has shrunk");
}

/// Asserts that each fault is found in the smallest scene that has it, with the length of its shortest path.
fn find_faults<const N: usize>(planted: [(Fault, Scene, Invariant, usize); N]) {
    for (fault, scene, invariant, steps) in planted {
        scene.finds(Some(fault), None, invariant, steps);
    }
}

#[test]
fn each_fault_of_a_server_is_found_by_processes() {
    find_faults([
        (Fault::WriterBesideReaders, serial(2, 1, NONE), Invariant::Exclusion, 2),
        (Fault::ReaderPassesWaitingWriter, serial(3, 1, NONE), Invariant::WriterPassed, 3),
        (Fault::WriterPhaseForgotten, serial(3, 1, NONE), Invariant::WriterPassed, 4),
        (Fault::LastWriterForgotten, serial(3, 1, NONE), Invariant::ReadersBatch, 4),
        (Fault::BatchForgotten, serial(4, 1, NONE).limited(1), Invariant::ReadersBatch, 6),
        (Fault::NewestWriterFirst, serial(3, 1, NONE), Invariant::WritersInOrder, 4),
        (Fault::HeartbeatLosesPlace, serial(3, 1, NONE), Invariant::WriterPassed, 4),
        (Fault::LateIsCarriedOut, serial(2, 1, COPY), Invariant::Limit, 4),
        (Fault::ReleaseByLock, serial(2, 1, NONE), Invariant::HoldStands, 4),
        (Fault::CancelLeavesPlace, serial(2, 1, NONE), Invariant::Leftovers, 3),
        (Fault::NotificationForAnother, serial(3, 1, NONE), Invariant::WritersInOrder, 4),
        (Fault::WritersWaitingUntold, serial(3, 1, NONE), Invariant::WaitedFor, 4),
        (Fault::TokensAhead, serial(2, 2, WIPE), Invariant::Tokens, 3),
        (Fault::TokensReused, serial(2, 2, WIPE), Invariant::Tokens, 3),
        (Fault::RepeatBeginsAnew, serial(2, 1, LOSS), Invariant::Tokens, 3),
        (Fault::WaiterGetsWholeLease, serial(2, 1, NONE), Invariant::Claim, 3),
        (Fault::RenewalRecreates, serial(2, 1, FORCE), Invariant::HoldStands, 4),
        (Fault::RenewalShortens, serial(2, 1, LAPSES), Invariant::HoldStands, 4),
        (Fault::UpgradeBesideReaders, serial(2, 2, CONVERSION), Invariant::Exclusion, 3),
        (Fault::DeadReaderStays, serial(2, 1, DEATH), Invariant::Progress, 3),
        (Fault::KeyForgotten, serial(2, 1, NONE), Invariant::Remembered, 2),
    ]);
}

const CONVERTING_LATE: Faults = Faults { conversions: 1, ..DELAY };

/// Asserts that each blunder is found in the smallest scene that has it, with the length of its shortest path.
fn find_blunders<const N: usize>(planted: [(Blunder, Scene, Invariant, usize); N]) {
    for (blunder, scene, invariant, steps) in planted {
        scene.finds(None, Some(blunder), invariant, steps);
    }
}

#[test]
fn each_blunder_of_a_process_is_found() {
    find_blunders([
        (Blunder::OutlivesItsLease, serial(2, 1, NONE), Invariant::Exclusion, 5),
        (Blunder::ForgetsAbandoned, serial(2, 1, DELAY), Invariant::Leftovers, 3),
        (Blunder::LeavesOnce, serial(2, 1, DELAY), Invariant::Leftovers, 3),
        (Blunder::LateForgetsRecord, serial(2, 1, DELAY), Invariant::Leftovers, 4),
        (Blunder::KeepsRequest, serial(2, 1, NONE), Invariant::Leftovers, 3),
        (Blunder::LeavesUntold, serial(2, 1, NONE), Invariant::Leftovers, 2),
        (Blunder::ConfirmsAtOnce, serial(2, 1, LOSS), Invariant::Leftovers, 3),
        (Blunder::ConfirmsWhatItFound, serial(2, 1, DELAY), Invariant::Leftovers, 5),
        (Blunder::ConfirmsTooSoon, serial(2, 1, DELAY), Invariant::Leftovers, 4),
        (Blunder::AsksAnew, serial(2, 1, NONE), Invariant::Leftovers, 3),
        (Blunder::NeverAsksAgain, serial(2, 1, LOSS), Invariant::Progress, 3),
        (Blunder::KeepsConverted, serial(2, 2, CONVERSION), Invariant::Exclusion, 2),
        (Blunder::ForgetsNewHold, serial(1, 1, CONVERTING_LATE), Invariant::Leftovers, 3),
        (Blunder::NeverLooksForStalled, concurrent(1, 2, Faults { delays: 1, ..SLEEP }), Invariant::Progress, 3),
    ]);
}

/// The shortest paths of these are long, so that the search visits many states before it finds them.
#[test]
#[cfg_attr(not(redis_rwlock_optimised), ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn each_blunder_of_a_process_with_a_long_path_is_found() {
    find_blunders([
        (Blunder::CountsFromAnswer, serial(2, 1, Faults { losses: 1, ..DELAY }), Invariant::Exclusion, 6),
        (Blunder::TakesGrantsThatAreOver, serial(2, 2, Faults { lapses: 2, ..DELAY }), Invariant::Tokens, 7),
        (Blunder::ConfirmsWhenAnswered, serial(2, 1, Faults { delays: 2, ..NONE }), Invariant::Leftovers, 7),
        (Blunder::BelievesRefusalBeforeStrays, serial(2, 2, CONVERTING_LATE), Invariant::Leftovers, 7),
        (Blunder::TakesGrantFromBefore, serial(2, 2, Faults { forces: 1, ..DELAY }), Invariant::Tokens, 9),
    ]);
}
