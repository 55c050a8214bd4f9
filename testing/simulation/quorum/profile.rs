//! What goes wrong in a run at several masters, and how often.

use std::time::Duration;

/// Chances are per mille for each message, counts are for each run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    pub(super) lost: u32,
    pub(super) slow: u32,
    /// Masters have faults so often, of these kinds.
    pub(super) faults: u32,
    pub(super) kinds: &'static [Kind],
    /// A fault takes so long at most.
    pub(super) takes: Duration,
    /// A process is cut off from some masters so often.
    pub(super) cuts: u32,
    /// An operator ends what it sees so often.
    pub(super) forces: u32,
    pub(super) lease: Duration,
    /// Only the same few masters have faults.
    pub(super) spares_a_majority: bool,
}

/// What happens to a master.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Kind {
    StandsStill,
    IsSlow,
    Dies,
    /// It dies and comes back without its data.
    Forgets,
}

/// Nothing goes wrong.
pub(super) const CALM: Profile = Profile {
    name: "calm",
    lost: 0,
    slow: 0,
    faults: 0,
    kinds: &[],
    takes: Duration::ZERO,
    cuts: 0,
    forces: 0,
    lease: Duration::from_secs(120),
    spares_a_majority: true,
};

/// A minority fails in every way, and nobody is to notice.
pub(super) const MINORITY: Profile = Profile {
    name: "minority",
    lost: 0,
    slow: 0,
    faults: 6,
    kinds: &[Kind::StandsStill, Kind::IsSlow, Kind::Dies, Kind::Forgets],
    takes: Duration::from_millis(2_500),
    lease: Duration::from_secs(1),
    ..CALM
};

/// Whatever can.
pub(super) const WILD: Profile =
    Profile { name: "wild", lost: 30, slow: 60, faults: 5, cuts: 3, spares_a_majority: false, ..MINORITY };

/// A minority forgets again and again what bare majorities have granted.
pub(super) const FORGETFUL: Profile = Profile {
    name: "forgetful",
    lost: 150,
    slow: 0,
    faults: 8,
    kinds: &[Kind::Forgets],
    takes: Duration::from_millis(150),
    cuts: 0,
    lease: Duration::from_secs(3),
    ..WILD
};

/// The same, and what is left behind is seen.
pub(super) const LONG: Profile = Profile { name: "long", lease: Duration::from_secs(120), ..WILD };

/// An operator is at work while holds are brought to masters that lack them.
pub(super) const FORCED: Profile = Profile { name: "forced", slow: 200, forces: 30, ..WILD };

/// Processes reach only some masters for longer than a lease, again and again, and nothing else goes wrong.
pub(super) const CUT_OFF: Profile =
    Profile { name: "cut off", lost: 0, slow: 0, faults: 0, kinds: &[], cuts: 12, ..WILD };

impl Profile {
    pub(super) fn of_seed(seed: u64) -> Self {
        [MINORITY, WILD, LONG, FORGETFUL, FORCED][usize::try_from(seed % 5).expect("small")]
    }
}
