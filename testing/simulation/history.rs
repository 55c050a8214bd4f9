//! History of a run, with the observations of users, the messages, and the actions of the store. Checkers read nothing
//! else.

use super::*;

/// True time since the start of the run, in microseconds.
pub type Micros = u64;
/// Number of an engine. After a crash or `close`, the next engine of the same machine is another process.
pub type Process = u32;
/// Place of a server among all servers of the world.
pub type Place = usize;
pub type Lock = u8;
pub type Attempt = u32;
pub type Guard = u32;
pub type Request = u32;

/// Acquisition id without its random part, so that each run of a seed is the same.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Id {
    pub process: Process,
    pub n: u32,
}

impl Id {
    /// Reads `<manager>.<n>.<process>`.
    pub fn of(id: &str) -> Self {
        let mut parts = id.split('.').skip(1);
        let mut number = || parts.next().and_then(|part| part.parse().ok()).expect("an id of the simulation");
        let n = number();
        Self { process: number(), n }
    }
}

impl fmt::Debug for Id {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "p{}.{}", self.process, self.n)
    }
}

/// Hold on the server, or waiter in its queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Held {
    pub id: Id,
    pub mode: Mode,
    pub deadline_ms: u64,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} until {}", self.id, self.mode, self.deadline_ms)
    }
}

/// Request to the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Op {
    Acquire {
        id: Id,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: u64,
        /// Time for which the acquisition stays in the queue after its last request.
        waiter_ttl_ms: Option<u64>,
        /// True if the acquisition waits for a recall reply only.
        tries: bool,
        /// True if the hold may be cached.
        caches: bool,
        /// Lower bound for the token, at a master of a quorum.
        floor: Option<Floor>,
    },
    Conversion {
        old: Id,
        id: Id,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: u64,
        caches: bool,
    },
    Leave {
        id: Id,
    },
    Renew {
        id: Id,
        lease_ms: u64,
        caches: bool,
        /// Time of the server's clock until which the hold lasts at least.
        rest_until_ms: Option<u64>,
    },
    Inspect,
    /// Ends holds up to this token, and the writer that was seen.
    Force {
        seen: u64,
        writer: Option<Id>,
    },
    /// Request for the server's time.
    Time,
}

impl Op {
    pub fn is_acquisition(self) -> bool {
        matches!(self, Self::Acquire { .. })
    }

    pub fn is_renewal(self) -> bool {
        matches!(self, Self::Renew { .. })
    }

    pub fn is_leave(self) -> bool {
        matches!(self, Self::Leave { .. })
    }

    /// Returns true if the hold may be cached.
    pub fn caches(self) -> bool {
        matches!(
            self,
            Self::Acquire { caches: true, .. }
                | Self::Conversion { caches: true, .. }
                | Self::Renew { caches: true, .. }
        )
    }
}

/// Answer of the server.
#[derive(Clone, PartialEq, Eq, Debug)]
pub enum Reply {
    Granted {
        token: u64,
        tokens: u64,
        remaining_ms: u64,
        is_waited_for: bool,
    },
    Queued {
        retry_in_ms: u64,
    },
    Contended {
        retry_in_ms: u64,
    },
    /// Answer to a conversion.
    Refused,
    Late,
    Held,
    /// Answer to a release: the acquisition waited until now.
    Waited,
    /// Answer to a release: there was no such hold. `forced` is the token up to which an operator has ended holds.
    None {
        forced: u64,
    },
    Renewed {
        remaining_ms: u64,
        is_waited_for: bool,
        /// First of the tokens that the renewal brought, and their number.
        tokens: Option<(u64, u64)>,
    },
    Lost {
        forced: u64,
    },
    View(Shown),
    Forced(Vec<Id>),
    Time,
}

impl Reply {
    /// Returns true if a waiter is reported. `None` for an answer without a hold.
    pub fn is_waited_for(&self) -> Option<bool> {
        match self {
            Self::Granted { is_waited_for, .. } | Self::Renewed { is_waited_for, .. } => Some(*is_waited_for),
            _ => None,
        }
    }
}

/// Result of an inspection.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Shown {
    pub token: u64,
    /// Holders with their remaining lease.
    pub holders: Vec<(Id, Mode, u64)>,
    pub waiters: Vec<(Id, Mode)>,
}

/// Grant to a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct SentGrant {
    pub id: Id,
    pub token: u64,
    pub tokens: u64,
    pub deadline_ms: u64,
    pub is_waited_for: bool,
}

/// Recall, which reports a waiter for a lock with the recallable flag.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Recalled {
    pub token: u64,
    /// Id of the caller, if it only tries.
    pub tries: Option<Id>,
}

/// Event on the recall subscription of a process.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum RecallEvent {
    Recalled(Recalled),
    /// A recall was lost or takes long.
    Missed,
    /// The process has subscribed at this server. Holds of one lock may have several listeners.
    Subscribed {
        listener: u32,
        server: u32,
    },
    /// The server has answered the ping that was sent at this time.
    Ping(Micros),
    /// The subscription of this listener is over.
    Broken(u32),
}

/// State of a lock on the server.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub struct Seen {
    pub held: Vec<Held>,
    /// Writers first, each side in its order.
    pub queue: Vec<Held>,
    /// True if a waiter is recorded there, live or dead.
    pub anybody_recorded: bool,
    /// Last token. `forced` is the token up to which holds were ended by force.
    pub token: u64,
    pub forced: u64,
}

/// End of an acquisition that brought no guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum End {
    Busy,
    TimedOut,
    Unreachable,
    Closed,
    Conflict,
    /// No replica has the hold.
    Unreplicated,
    /// End of a conversion: neither hold may be relied on.
    Lost(LossReason),
    /// The future was dropped.
    Cut,
}

impl End {
    pub fn of(error: &Error) -> Self {
        match error {
            Error::WaitTimeout { .. } => Self::TimedOut,
            Error::Unreachable { .. } | Error::NoQuorum { .. } => Self::Unreachable,
            Error::Closed { .. } => Self::Closed,
            Error::UpgradeConflict { .. } => Self::Conflict,
            Error::NotEnoughReplicas { .. } => Self::Unreplicated,
            Error::Lost { reason, .. } => Self::Lost(*reason),
            other => panic!("no fault of the simulation leads to {other}"),
        }
    }
}

/// Manner in which a user gave up a guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Letting {
    Release,
    Drop,
    /// The guard was forgotten and is never dropped.
    Leak,
    /// The guard became a guard of the other side.
    Converted,
    /// The future was dropped during the conversion.
    CutConversion,
}

/// Outcome of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Released {
    Ours,
    Lost(LossReason),
    Unreachable,
    Cut,
}

/// Request of a user.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Wish {
    pub lock: Lock,
    pub mode: Mode,
    pub lease_ms: u64,
    pub max_hold_ms: u64,
    pub wait_ms: Option<u64>,
    pub once: bool,
    /// True if the owner may nest.
    pub reentrant: bool,
    /// Outer guard of the same owner, for a nested one.
    pub within: Option<Guard>,
    /// Guard to convert.
    pub converts: Option<Guard>,
}

impl Wish {
    /// Returns the wish for a plain hold without limits.
    pub fn new(lock: Lock, mode: Mode, lease_ms: u64) -> Self {
        let (within, converts) = (None, None);
        let max_hold_ms = 3_600_000;
        Self { lock, mode, lease_ms, max_hold_ms, wait_ms: None, once: false, reentrant: false, within, converts }
    }
}

#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // nearly all are of the large variant
pub enum What {
    Started {
        process: Process,
        response_timeout_ms: u64,
        unreachable_after_ms: u64,
        max_clock_skew_ms: u64,
        join_window_ms: u64,
        max_handoffs: u64,
        cache_for_ms: u64,
    },
    // Actions and observations of users.
    Asked {
        attempt: Attempt,
        process: Process,
        /// Runtime of the process that polls the future.
        runtime: u32,
        wish: Wish,
    },
    Granted {
        attempt: Attempt,
        guard: Guard,
        id: Id,
        token: u64,
        /// Remaining validity.
        remaining_us: u64,
    },
    Failed {
        attempt: Attempt,
        end: End,
    },
    /// State of a guard, as the guard and as the server report it.
    Sample {
        guard: Guard,
        valid: bool,
        /// True if the guard reports its last renewal as answered.
        confirmed: bool,
        remaining_us: Option<u64>,
        server_ms: Option<u64>,
    },
    LossSeen {
        guard: Guard,
        reason: LossReason,
    },
    LetGo {
        guard: Guard,
        how: Letting,
    },
    Released {
        guard: Guard,
        how: Released,
    },
    /// A user used the fenced resource.
    Fenced {
        guard: Guard,
        valid: bool,
        token: u64,
        accepted: bool,
    },
    /// A user entered or left the unfenced resource.
    Inside {
        guard: Guard,
        valid: bool,
    },
    Outside {
        guard: Guard,
        valid: bool,
    },
    Closing {
        process: Process,
    },
    ClosedNow {
        process: Process,
        told: bool,
    },
    // Messages.
    Sent {
        request: Request,
        process: Process,
        place: Place,
        lock: Lock,
        op: Op,
        /// Attempt whose future sent the request.
        attempt: Option<Attempt>,
        /// Number of the server that the process asks, in the order of their appearance.
        server: u32,
    },
    Applied {
        request: Request,
        copy: u32,
        place: Place,
        /// Number of primaries before this one.
        primary: u32,
        /// True if another primary was promoted, and this one does not know it yet.
        deposed: bool,
        lock: Lock,
        op: Op,
        reply: Reply,
        server_us: u64,
        forget_ms: u64,
        before: Seen,
        after: Seen,
        notifications: Vec<SentGrant>,
        recalled: Option<Recalled>,
    },
    /// A notification of a grant reached its process. The process counted from a clock sample, or had none to trust.
    Notified {
        process: Process,
        lock: Lock,
        id: Id,
        /// Send time of the clock sample, and the remaining lease from then on by the notification, in microseconds.
        clock_sample: Option<(Micros, u64)>,
    },
    Answered {
        request: Request,
        reply: Reply,
    },
    /// No answer came within the response timeout.
    Unanswered {
        request: Request,
    },
    /// The request certainly never arrived.
    NotDone {
        request: Request,
    },
    /// Each request touches so few records of other holders that a crowd takes several.
    SmallBatches,
    /// Every grant that counts is on a replica, so no hold is lost with a primary.
    Replicated,
    /// The servers are the masters of a quorum.
    Quorum {
        masters: usize,
        /// Majority of masters that have no fault. Empty if any master may have one.
        faultless: Vec<Place>,
        lease_ms: u64,
    },
    /// An operator asks a master to end these holds.
    ForceAsked {
        place: Place,
        ids: Vec<Id>,
    },
    /// The servers have reported to an operator that these holds are over.
    ForceDone {
        ids: Vec<Id>,
    },
    /// An event on the subscription of a process to recalls of a lock.
    RecallEvent {
        process: Process,
        lock: Lock,
        input: RecallEvent,
    },
    // Faults.
    /// The message takes long, there or back.
    Slow {
        request: Request,
    },
    RequestLost {
        request: Request,
        copy: u32,
    },
    ReplyLost {
        request: Request,
        copy: u32,
    },
    NotificationLost {
        process: Process,
        lock: Lock,
        /// True if the process has not subscribed.
        unsubscribed: bool,
    },
    NotificationLate {
        process: Process,
        lock: Lock,
        by_ms: u64,
    },
    Paused {
        process: Process,
        for_ms: u64,
    },
    Resumed {
        process: Process,
    },
    Crashed {
        process: Process,
    },
    /// A runtime is not driven: for this time, or until it ends.
    RuntimeStopped {
        process: Process,
        runtime: u32,
        for_ms: Option<u64>,
    },
    RuntimeGoesOn {
        process: Process,
        runtime: u32,
    },
    /// The tasks are dropped, and their guards are dropped or forgotten.
    RuntimeEnded {
        process: Process,
        runtime: u32,
        leaks: bool,
    },
    Down {
        place: Place,
        refuses: bool,
    },
    Up {
        place: Place,
    },
    /// The server lost all data.
    Emptied {
        place: Place,
    },
    /// The server stands still, with unread requests in its sockets.
    Frozen {
        place: Place,
    },
    /// The server goes on.
    Thawed {
        place: Place,
    },
    /// Messages to the server and from it take long, or no longer.
    SlowServer {
        place: Place,
        is_slow: bool,
    },
    /// No message gets through between a process and these servers, and none of the earlier ones. Without servers, all
    /// messages get through again.
    Cut {
        process: Process,
        places: Vec<Place>,
    },
    /// A replica took over from a primary that stands still. It lacks the last `behind_ms` milliseconds.
    Promoted {
        behind_ms: u64,
    },
    /// A process knows of the new primary.
    Rerouted {
        process: Process,
    },
    /// The old primary goes on, and does not know of the new one.
    Woken,
    /// The old primary learns that it is no primary any more.
    Demoted,
    /// A replica took over that lacks the last `behind_ms` milliseconds.
    Stale {
        behind_ms: u64,
    },
    Stepped {
        skew_ms: i64,
    },
    Healed,
    // End of the run, when all leases and retentions are over.
    NotIdle {
        process: Process,
    },
    Left {
        records: usize,
        subscribers: usize,
        holds: Vec<(Place, Held)>,
    },
    Over,
}

#[derive(Clone, PartialEq)]
pub struct Event {
    pub at: Micros,
    pub what: What,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}.{:06} {:?}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub struct History {
    pub events: Vec<Event>,
}

impl History {
    pub fn text(&self) -> String {
        self.around(0, usize::MAX)
    }

    /// Returns the text of the events around `index`.
    pub fn around(&self, index: usize, many: usize) -> String {
        let from = index.saturating_sub(many);
        let shown = self.events.iter().enumerate().skip(from).take(many.saturating_mul(2).saturating_add(1));
        shown
            .map(|(at, event)| {
                let mark = if at == index { "=>" } else { "  " };
                format!("{mark} {at:>5} {event:?}\n")
            })
            .collect()
    }
}
