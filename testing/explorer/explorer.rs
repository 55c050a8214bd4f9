//! Exhaustive exploration of the specification. It visits every order of the steps of a few clients, of messages,
//! faults and ticks of time. It visits each state once.
//!
//! * `server` is a [`Record`](super::Record), and `world` has its clients and the faults of messages.
//! * `watch` is a second, independent model, which judges the answers.
//! * `search` visits all states, and `words` describes a path in text.
//! * `caching` has the scenes with cached holds.
//!
//! Some runs have planted faults of the server or of clients. They show which invariant finds each fault.
//!
//! Unoptimised builds explore small scenes. Large scenes need an optimised build, which `.ci/all` makes.

use std::time::Instant;

use super::RecordLimits;

mod caching;
mod concurrent;
mod search;
mod server;
mod small;
mod watch;
mod words;
mod world;

use search::{Explored, explore};
use server::{Fault, LEASE, PATIENCE, Server};
use watch::Invariant;
use world::{Budget, Caching, Rules, Slip};

/// Clients of a scene, and the faults that may happen.
#[derive(Clone, Copy, Debug)]
struct Scene {
    clients: usize,
    /// Number of acquisitions of each client, one after the other. A conversion counts as an acquisition.
    each: usize,
    /// True if there are also acquisitions that do not wait.
    has_tries: bool,
    /// Number of records that an operation of the server may touch, if it is limited.
    records: Option<usize>,
    budget: Budget,
    caching: Caching,
    /// True if the server may not publish recalls.
    is_mute: bool,
}

const NOTHING: Budget =
    Budget { losses: 0, copies: 0, delays: 0, deaths: 0, conversions: 0, lapses: 0, wipes: 0, breaks: 0, forces: 0 };
const LOSS: Budget = Budget { losses: 1, ..NOTHING };
const COPY: Budget = Budget { copies: 1, ..NOTHING };
const DELAY: Budget = Budget { delays: 1, ..NOTHING };
const DEATH: Budget = Budget { deaths: 1, ..NOTHING };
const CONVERSION: Budget = Budget { conversions: 1, ..NOTHING };
const LAPSES: Budget = Budget { lapses: 2, ..NOTHING };
const WIPE: Budget = Budget { wipes: 1, ..NOTHING };

/// Adds the death of one client and the conversion of one hold.
const fn dying_and_converting(budget: Budget) -> Budget {
    Budget { deaths: 1, conversions: 1, ..budget }
}

const fn scene(clients: usize, each: usize, budget: Budget) -> Scene {
    Scene { clients, each, has_tries: false, records: None, budget, caching: Caching::Nothing, is_mute: false }
}

impl Scene {
    const fn limited(self, records: usize) -> Self {
        Self { records: Some(records), ..self }
    }

    const fn caching(self, caching: Caching) -> Self {
        Self { caching, ..self }
    }

    const fn mute(self) -> Self {
        Self { is_mute: true, ..self }
    }

    const fn trying(self) -> Self {
        Self { has_tries: true, ..self }
    }

    fn is_limited(&self) -> bool {
        self.records.is_some()
    }

    /// Returns the number of ticks within which some waiter enters from any state. During these ticks a hold that was
    /// just renewed ends. A dead waiter that was granted the lock is passed over, and the next waiter asks again. With
    /// bounded operations, this waiter asks more than once.
    fn progress_ticks(&self) -> u8 {
        LEASE + PATIENCE + if self.is_limited() { 2 * PATIENCE } else { 1 }
    }

    fn explored(&self, fault: Option<Fault>, slip: Option<Slip>) -> Explored {
        let limits = self
            .records
            .map_or_else(RecordLimits::default, |records| RecordLimits { records, ..RecordLimits::default() });
        let server = Server::new(limits, fault);
        let server = if self.caching == Caching::Nothing { server } else { server.with_calling_tries() };
        explore(&Rules { scene: self, server, slip })
    }

    /// Asserts that no state breaks an invariant, and that the scene has not shrunk.
    fn holds(&self, least: usize) {
        let began = Instant::now();
        let Explored { states, steps, depth, found } = self.explored(None, None);
        println!("{states} states, {steps} steps, {depth} deep, {:?}: {self:?}", began.elapsed());
        assert!(found.is_none(), "{self:?}: {found:?}");
        assert!(states >= least, "{states} states instead of {least} and more: {self:?} has shrunk");
    }

    /// Asserts that the exploration finds the planted fault by this invariant, with a path of at most `steps` steps.
    fn finds(&self, fault: Option<Fault>, slip: Option<Slip>, invariant: Invariant, steps: usize) {
        let what = format!("{fault:?} {slip:?}");
        let found = self.explored(fault, slip).found.unwrap_or_else(|| panic!("{what} is not found"));
        println!("{what}: {found:?}");
        assert_eq!(found.invariant, invariant, "{what}: {found:?}");
        assert!(found.way.len() <= steps, "{what}: {found:?}");
    }
}

#[test]
fn small_scenes_hold() {
    scene(2, 2, dying_and_converting(NOTHING)).trying().holds(4_000);
    scene(2, 1, LOSS).trying().holds(2_700);
    scene(2, 1, COPY).trying().holds(1_800);
    scene(2, 1, DELAY).trying().holds(4_900);
    scene(2, 2, WIPE).holds(2_200);
    scene(3, 1, LAPSES).holds(2_000);
    scene(4, 1, NOTHING).limited(1).holds(5_200);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn two_clients_of_three_acquisitions_hold() {
    scene(2, 3, dying_and_converting(LOSS)).holds(420_000);
    scene(2, 3, dying_and_converting(COPY)).holds(360_000);
    scene(2, 3, dying_and_converting(DELAY)).holds(990_000);
    scene(2, 3, dying_and_converting(LAPSES)).trying().holds(75_000);
    scene(2, 3, dying_and_converting(LOSS)).limited(2).holds(420_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn three_clients_of_two_acquisitions_hold_with_a_loss_or_a_copy() {
    scene(3, 2, dying_and_converting(LOSS)).holds(3_300_000);
    scene(3, 2, dying_and_converting(COPY)).holds(2_700_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn three_clients_of_two_acquisitions_hold_with_a_late_message() {
    scene(3, 2, Budget { deaths: 1, ..DELAY }).holds(3_500_000);
    scene(3, 2, Budget { conversions: 1, ..DELAY }).holds(2_200_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn bounded_operations_hold() {
    scene(4, 1, Budget { losses: 1, deaths: 1, ..NOTHING }).limited(1).holds(430_000);
    scene(4, 1, Budget { losses: 1, deaths: 1, ..NOTHING }).limited(2).holds(380_000);
    scene(3, 2, Budget { losses: 1, ..NOTHING }).limited(1).holds(730_000);
    scene(3, 2, dying_and_converting(NOTHING)).limited(2).holds(82_000);
    scene(2, 3, dying_and_converting(DELAY)).limited(1).holds(1_080_000);
}

#[test]
#[cfg_attr(debug_assertions, ignore = "takes minutes unless it is optimised: see `.ci/all`")]
fn several_faults_at_once_hold() {
    scene(2, 1, Budget { losses: 1, copies: 1, delays: 1, deaths: 1, ..NOTHING }).trying().holds(590_000);
    scene(2, 2, Budget { losses: 1, delays: 1, ..NOTHING }).holds(930_000);
    scene(2, 2, Budget { losses: 2, conversions: 1, ..NOTHING }).holds(420_000);
    scene(2, 2, Budget { wipes: 1, losses: 1, deaths: 1, conversions: 1, ..NOTHING }).holds(180_000);
}

#[test]
fn each_fault_of_the_server_is_found() {
    for fault in Fault::ALL {
        let (scene, invariant, steps) = match fault {
            Fault::WriterBesideReaders => (scene(2, 1, NOTHING), Invariant::Exclusion, 2),
            Fault::ReaderPassesWaitingWriter => (scene(3, 1, NOTHING), Invariant::WriterPassed, 3),
            Fault::WriterPhaseForgotten => (scene(3, 1, NOTHING), Invariant::WriterPassed, 4),
            Fault::LastWriterForgotten => (scene(3, 1, NOTHING), Invariant::ReadersBatch, 4),
            Fault::BatchForgotten => (scene(4, 1, NOTHING).limited(1), Invariant::ReadersBatch, 6),
            Fault::NewestWriterFirst => (scene(3, 1, NOTHING), Invariant::WritersInOrder, 4),
            Fault::HeartbeatLosesPlace => (scene(3, 1, NOTHING), Invariant::WriterPassed, 5),
            Fault::LateIsCarriedOut => (scene(2, 1, COPY), Invariant::Limit, 4),
            Fault::ReleaseByLock => (scene(2, 1, NOTHING), Invariant::HoldStands, 4),
            Fault::CancelLeavesPlace => (scene(2, 1, NOTHING), Invariant::Leftovers, 3),
            Fault::NotificationForAnother => (scene(3, 1, NOTHING), Invariant::WritersInOrder, 4),
            Fault::WritersWaitingUntold => (scene(3, 1, NOTHING), Invariant::WaitedFor, 4),
            Fault::TokensAhead => (scene(2, 2, WIPE), Invariant::Tokens, 3),
            Fault::TokensReused => (scene(2, 2, WIPE), Invariant::Tokens, 3),
            Fault::RepeatBeginsAnew => (scene(2, 1, NOTHING), Invariant::Tokens, 5),
            Fault::WaiterGetsWholeLease => (scene(2, 1, NOTHING), Invariant::Claim, 3),
            Fault::RenewalRecreates => (scene(2, 1, DELAY), Invariant::HoldStands, 6),
            Fault::RenewalShortens => (scene(2, 1, NOTHING), Invariant::Tokens, 6),
            Fault::UpgradeBesideReaders => (scene(2, 2, CONVERSION), Invariant::Exclusion, 3),
            Fault::DeadReaderStays => (scene(2, 1, DEATH), Invariant::Progress, 2),
            Fault::KeyForgotten => (scene(2, 1, NOTHING), Invariant::Remembered, 2),
            _ => unreachable!("see `keeping`"),
        };
        scene.finds(Some(fault), None, invariant, steps);
    }
}

#[test]
fn each_slip_of_a_client_is_found() {
    let converting_late = Budget { delays: 1, ..CONVERSION };
    let late_twice = Budget { delays: 2, ..NOTHING };
    for slip in Slip::ALL {
        let (scene, invariant, steps) = match slip {
            Slip::CountsFromTheAnswer => (scene(2, 1, DELAY), Invariant::Exclusion, 6),
            Slip::TakesGrantsThatAreOver => (scene(2, 2, DELAY), Invariant::Exclusion, 8),
            Slip::OutlivesItsLease => (scene(2, 1, NOTHING), Invariant::Exclusion, 5),
            Slip::LeavesOnce => (scene(2, 1, DELAY), Invariant::Leftovers, 3),
            Slip::LateForgetsRecord => (scene(2, 1, DELAY), Invariant::Leftovers, 5),
            Slip::LeavesUntold => (scene(2, 1, NOTHING), Invariant::Leftovers, 2),
            Slip::ConfirmsAtOnce => (scene(2, 1, LOSS), Invariant::Leftovers, 2),
            Slip::ConfirmsWhatItFound => (scene(2, 1, DELAY), Invariant::Leftovers, 5),
            Slip::ConfirmsWhenAnswered => (scene(2, 1, late_twice), Invariant::Leftovers, 7),
            Slip::ConfirmsTooSoon => (scene(2, 1, DELAY), Invariant::Leftovers, 5),
            Slip::NeverAsksAgain => (scene(2, 1, LOSS), Invariant::Progress, 2),
            Slip::BelievesRefusalBeforeStrays => (scene(2, 2, converting_late), Invariant::Leftovers, 7),
            Slip::KeepsWhatItConverted => (scene(2, 2, CONVERSION), Invariant::Exclusion, 2),
            _ => unreachable!("see `keeping`"),
        };
        scene.finds(None, Some(slip), invariant, steps);
    }
}
