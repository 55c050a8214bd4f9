//! Faults of a run, and how often they happen.

use super::*;
use crate::base::durability::Replicas;
use crate::store::memory::RecordLimits;

/// Course of a run.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Story {
    /// Events by chance, drawn from the seed.
    Chance,
    /// Scripted [`scene`](super::scenes).
    Scene(Scene),
}

/// Chances per mille for each message, and counts for each run.
#[derive(Clone, Copy, Debug)]
pub struct Profile {
    pub name: &'static str,
    pub lost_request: u32,
    pub lost_reply: u32,
    /// Messages that travel for up to 2.5 s: beyond every response timeout, and out of order.
    pub slow: u32,
    /// Requests that are carried out twice, the second time later.
    pub copied: u32,
    pub notification_lost: u32,
    pub notification_late: u32,
    pub pauses: u32,
    pub crashes: u32,
    pub closes: u32,
    pub outages: u32,
    /// Restarts of the server without its data.
    pub empties: u32,
    /// Failovers to a replica that lacks the last writes.
    pub stale: u32,
    /// Failovers while the primary is frozen. Later it wakes up and answers for a while.
    pub splits: u32,
    /// Time within which a replica has to acknowledge a grant; zero where the primary's answer is enough.
    pub wait_ms: u64,
    pub steps: u32,
    /// Runtimes that use the manager of each process.
    pub runtimes: u32,
    /// Runtimes that are not driven for a while, or for good.
    pub runtime_stops: u32,
    pub runtime_ends: u32,
    /// Greatest difference of server clocks, in milliseconds.
    pub step_band_ms: i64,
    /// Force releases by operators, per mille of the actions of users.
    pub forces: u32,
    /// Time of the server for one request, in milliseconds; other requests wait meanwhile.
    pub service_ms: u64,
    /// Greatest number of requests in flight of a process.
    pub room: usize,
    /// Number of records of other holders that one request may touch, if lower than on a server.
    pub records: Option<usize>,
    /// Course of the run.
    pub story: Story,
    /// True if messages take no time.
    pub hot: bool,
    /// True if holds may be cached. Blocks of tokens are small then, so that they are used up.
    pub caches: bool,
    /// Number of servers. One of several numbers is drawn. If it is not one, a quorum of the servers decides.
    pub servers: &'static [usize],
    /// Way in which a quorum treats restarted masters; drawn if there is none.
    pub restarts: Option<Restarts>,
    /// Lease of all holds, if users do not choose it.
    pub lease: Option<Duration>,
    /// Faults of single masters, of these kinds, and the longest time of one.
    pub master_faults: u32,
    pub kinds: &'static [MasterFault],
    pub fault_takes: Duration,
    /// True if only a minority of the masters has faults. Then users must not notice any.
    pub spares_a_majority: bool,
    /// Times in which a process reaches only some masters, or none.
    pub cuts: u32,
    /// Greatest numbers of processes and of tasks in each, and the number of actions of each task.
    pub cast: (u32, u32, u32),
    /// Acquisitions with a wait limit, of three.
    pub limited: u32,
    /// Guards that are converted, of four.
    pub converts: u32,
    /// Time after the last fault within which every waiter is served. A waiter may have to wait for several leaked
    /// holds, one after the other.
    pub served_within: Duration,
    /// Time after the last user within which the servers must have removed what the users had.
    pub aftermath: Duration,
}

/// Fault of one master of a quorum.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum MasterFault {
    Freezes,
    IsSlow,
    Dies,
    /// The master dies and restarts without its data.
    Forgets,
}

pub const CALM: Profile = Profile {
    name: "calm",
    lost_request: 0,
    lost_reply: 0,
    slow: 0,
    copied: 0,
    notification_lost: 0,
    notification_late: 0,
    pauses: 0,
    crashes: 0,
    closes: 0,
    outages: 0,
    empties: 0,
    stale: 0,
    splits: 0,
    wait_ms: 0,
    steps: 0,
    runtimes: 1,
    runtime_stops: 0,
    runtime_ends: 0,
    step_band_ms: 90,
    forces: 0,
    service_ms: 0,
    room: 256,
    records: None,
    story: Story::Chance,
    hot: false,
    caches: false,
    servers: &[1],
    restarts: None,
    lease: None,
    master_faults: 0,
    kinds: &[],
    fault_takes: Duration::ZERO,
    spares_a_majority: false,
    cuts: 0,
    cast: (4, 4, 8),
    limited: 1,
    converts: 1,
    served_within: Duration::from_secs(120),
    // Longer than every lease, limit and retention.
    aftermath: Duration::from_secs(75),
};

pub const LOSSY: Profile = Profile {
    name: "lossy network",
    lost_request: 30,
    lost_reply: 40,
    slow: 60,
    copied: 60,
    notification_lost: 300,
    notification_late: 200,
    ..CALM
};

/// Network in which every second request has a late copy, and many answers are lost.
pub const COPIES: Profile = Profile { name: "copies", copied: 500, lost_reply: 100, slow: 200, ..LOSSY };

pub const DYING: Profile =
    Profile { name: "dying processes", slow: 20, notification_lost: 100, pauses: 4, crashes: 3, closes: 2, ..CALM };

const SERVER: Profile = Profile { name: "bad server", slow: 20, outages: 3, steps: 6, notification_lost: 100, ..CALM };

pub const LOSING: Profile =
    Profile { name: "lost data", lost_reply: 20, slow: 20, empties: 2, stale: 2, steps: 2, ..CALM };

pub const ALL: Profile = Profile {
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

/// Most answers are lost.
pub const UNHEARD: Profile = Profile { name: "unheard answers", lost_reply: 700, slow: 100, ..CALM };

/// Two primaries at once.
pub const SPLIT: Profile = Profile { name: "two primaries", slow: 20, lost_reply: 20, splits: 2, forces: 10, ..CALM };

/// A replica has to acknowledge grants, and takes over at the most difficult moments.
pub const REPLICATED: Profile = Profile {
    name: "replicated",
    slow: 20,
    lost_reply: 20,
    copied: 30,
    notification_lost: 50,
    pauses: 2,
    crashes: 1,
    outages: 1,
    stale: 4,
    splits: 3,
    wait_ms: 40,
    ..CALM
};

/// The server works at its limit. Requests wait for each other, some for longer than any process waits for an answer.
const BUSY: Profile = Profile { name: "busy server", service_ms: 8, notification_lost: 50, pauses: 1, ..CALM };

/// Small batches: two waiters are a crowd.
pub const SMALL_BATCHES: Profile = Profile { name: "small batches", records: Some(2), crashes: 1, forces: 10, ..LOSSY };

/// Several runtimes use one manager. Some are not driven for a while or for good, some end.
pub const RUNTIMES: Profile =
    Profile { name: "several runtimes", runtimes: 3, runtime_stops: 6, runtime_ends: 3, notification_lost: 50, ..CALM };

/// Profiles within the assumptions of the contract.
pub const PROFILES: [Profile; 9] = [CALM, LOSSY, DYING, SERVER, LOSING, ALL, SPLIT, BUSY, SMALL_BATCHES];

/// Tokens are taken as fast as possible, and then the data is lost.
pub const HOT: Profile = Profile { name: "hot lock", hot: true, ..Profile::of_scene(Scene::HotLock) };

/// A process sends more requests at once than the server can handle in a response timeout. The server is so slow that a
/// few dozen are enough.
pub const BURST: Profile = Profile { name: "burst", service_ms: 30, room: 4, ..Profile::of_scene(Scene::Burst) };

/// Operators are always at work, and messages are slow.
pub const FORCED: Profile = Profile { name: "forced", slow: 300, forces: 250, caches: true, ..CALM };

/// Server clocks differ far beyond the margin: exclusion is expected to break.
pub const WILD_CLOCKS: Profile = Profile { name: "wild clocks", steps: 30, step_band_ms: 8_000, ..CALM };

/// Several masters without faults. A lease is longer than the aftermath, so a hold that is left behind shows.
pub const QUORUM: Profile = Profile {
    name: "quorum",
    servers: &[3, 5],
    lease: Some(Duration::from_secs(120)),
    spares_a_majority: true,
    cast: (3, 2, 8),
    limited: 2,
    converts: 2,
    served_within: Duration::from_secs(60),
    aftermath: Duration::from_secs(10),
    ..CALM
};

/// A minority of the masters has faults of all kinds.
pub const MINORITY: Profile = Profile {
    name: "minority",
    master_faults: 12,
    kinds: &[MasterFault::Freezes, MasterFault::IsSlow, MasterFault::Dies, MasterFault::Forgets],
    fault_takes: Duration::from_millis(2_500),
    lease: Some(Duration::from_secs(1)),
    ..QUORUM
};

/// All masters and links have faults.
pub const WILD: Profile = Profile {
    name: "wild masters",
    lost_request: 30,
    lost_reply: 30,
    slow: 60,
    copied: 15,
    master_faults: 10,
    cuts: 6,
    spares_a_majority: false,
    ..MINORITY
};

/// A minority forgets again and again what bare majorities have granted.
pub const FORGETFUL: Profile = Profile {
    name: "forgetful masters",
    lost_request: 150,
    lost_reply: 150,
    slow: 0,
    copied: 75,
    master_faults: 16,
    kinds: &[MasterFault::Forgets],
    fault_takes: Duration::from_millis(150),
    cuts: 0,
    lease: Some(Duration::from_secs(3)),
    ..WILD
};

/// `WILD` with leases that outlast the faults. A master that has restarted does not vote before the longest lease is over.
pub const LONG: Profile =
    Profile { name: "long leases", lease: QUORUM.lease, served_within: Duration::from_secs(180), ..WILD };

/// Operators force holds while renewals bring these holds to masters that lack them.
pub const FORCED_MASTERS: Profile = Profile { name: "forced masters", slow: 200, forces: 400, ..WILD };

/// Processes reach only some masters for longer than a lease, again and again. There are no other faults.
pub const CUT_OFF: Profile = Profile {
    name: "cut off",
    lost_request: 0,
    lost_reply: 0,
    slow: 0,
    copied: 0,
    master_faults: 0,
    kinds: &[],
    cuts: 24,
    ..WILD
};

/// Profiles with several masters within the assumptions of the contract.
const QUORUMS: [Profile; 5] = [MINORITY, WILD, LONG, FORGETFUL, FORCED_MASTERS];

impl Profile {
    /// Returns the options of processes in a short story, which loses no time on long limits.
    pub fn short_options(&self) -> Options {
        Options {
            lease: Duration::from_secs(3),
            response_timeout: Duration::from_millis(200),
            unreachable_after: Duration::from_secs(2),
            cache_for: if self.caches { Duration::from_secs(60) } else { Duration::ZERO },
            durability: self.durability(),
            ..Options::default()
        }
    }

    pub fn durability(&self) -> Durability {
        match self.wait_ms {
            0 => Durability::Primary,
            ms => Durability::Replicated { replicas: Replicas::At(1), timeout: Duration::from_millis(ms) },
        }
    }

    /// Returns the profile of a scene without random faults.
    pub const fn of_scene(scene: Scene) -> Self {
        Self { name: "scene", story: Story::Scene(scene), ..CALM }
    }

    /// Returns the profile that `PROFILE` in the environment names, or that of the seed.
    pub fn chosen(seed: u64) -> Self {
        let name = std::env::var("PROFILE").unwrap_or_default();
        match name.as_str() {
            "caching" => return Self::caching(seed),
            "forced" => return FORCED,
            "caching alone" => return Self::caching_in(Scene::UsedAlone),
            _ => {}
        }
        let all = PROFILES.into_iter().chain(QUORUMS).chain([RUNTIMES, BURST, REPLICATED, CUT_OFF]);
        all.into_iter().find(|profile| profile.name == name).unwrap_or_else(|| Self::of_seed(seed))
    }

    pub fn limits(&self) -> RecordLimits {
        let most = RecordLimits::default();
        let tokens = if self.caches { 64 } else { most.tokens };
        RecordLimits { records: self.records.unwrap_or(most.records), tokens }
    }

    /// Returns the profile of a scene with cached holds.
    pub const fn caching_in(scene: Scene) -> Self {
        Self { caches: true, ..Self::of_scene(scene) }
    }

    /// Returns the profile of the seed, with cached holds.
    pub fn caching(seed: u64) -> Self {
        Self { caches: true, ..Self::of_seed(seed) }
    }

    /// Returns the profile of the seed with several masters.
    pub fn quorum(seed: u64) -> Self {
        QUORUMS[usize::try_from(seed % QUORUMS.len() as u64).expect("small")]
    }

    pub fn of_seed(seed: u64) -> Self {
        let pick = usize::try_from(seed % PROFILES.len() as u64).expect("small");
        PROFILES[pick]
    }
}
