//! What goes wrong in a run, and how often.

/// Chances are per mille for each message, counts are for each run.
#[derive(Clone, Copy, Debug)]
pub(super) struct Profile {
    pub(super) name: &'static str,
    pub(super) lost_request: u32,
    pub(super) lost_reply: u32,
    /// On its way for up to 2.5 s: beyond every response timeout, and out of order.
    pub(super) slow: u32,
    /// Carried out twice, the second time later.
    pub(super) copied: u32,
    pub(super) notice_lost: u32,
    pub(super) notice_late: u32,
    pub(super) pauses: u32,
    pub(super) crashes: u32,
    pub(super) closes: u32,
    pub(super) outages: u32,
    /// The server starts again without its data.
    pub(super) empties: u32,
    /// A replica takes over that has not heard of the last writes.
    pub(super) stale: u32,
    pub(super) steps: u32,
    /// How far apart server clocks may be, in milliseconds.
    pub(super) step_band_ms: i64,
    /// Operators at work, per mille of what users do.
    pub(super) forces: u32,
}

const CALM: Profile = Profile {
    name: "calm",
    lost_request: 0,
    lost_reply: 0,
    slow: 0,
    copied: 0,
    notice_lost: 0,
    notice_late: 0,
    pauses: 0,
    crashes: 0,
    closes: 0,
    outages: 0,
    empties: 0,
    stale: 0,
    steps: 0,
    step_band_ms: 90,
    forces: 0,
};

const LOSSY: Profile = Profile {
    name: "lossy network",
    lost_request: 30,
    lost_reply: 40,
    slow: 60,
    copied: 60,
    notice_lost: 300,
    notice_late: 200,
    ..CALM
};

const DYING: Profile =
    Profile { name: "dying processes", slow: 20, notice_lost: 100, pauses: 4, crashes: 3, closes: 2, ..CALM };

const SERVER: Profile = Profile { name: "bad server", slow: 20, outages: 3, steps: 6, notice_lost: 100, ..CALM };

const LOSING: Profile = Profile { name: "lost data", lost_reply: 20, slow: 20, empties: 2, stale: 2, steps: 2, ..CALM };

const ALL: Profile = Profile {
    name: "everything",
    pauses: 3,
    crashes: 2,
    closes: 1,
    outages: 2,
    empties: 1,
    stale: 1,
    steps: 3,
    forces: 40,
    ..LOSSY
};

/// Within what the contract assumes.
pub(super) const PROFILES: [Profile; 6] = [CALM, LOSSY, DYING, SERVER, LOSING, ALL];

/// Server clocks far beyond the margin: exclusion is expected to break.
pub(super) const WILD_CLOCKS: Profile = Profile { name: "wild clocks", steps: 30, step_band_ms: 8_000, ..CALM };

impl Profile {
    pub(super) fn of_seed(seed: u64) -> Self {
        let pick = usize::try_from(seed % PROFILES.len() as u64).expect("small");
        PROFILES[pick]
    }
}
