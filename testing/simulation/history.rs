//! What happened in a run: what users saw, what travelled, what the store did. Checkers read nothing else.

use std::fmt;

use crate::base::error::{Error, LossReason};
use crate::store::Mode;

/// True time since the start of the run, in microseconds.
pub(super) type Micros = u64;
/// One engine; after a crash or `close` the next one of the same machine is another process.
pub(super) type Process = u32;
pub(super) type Lock = u8;
pub(super) type Attempt = u32;
pub(super) type Guard = u32;
pub(super) type Request = u32;

/// An acquisition's id without its random part, so that a run is the same each time.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Id {
    pub(super) process: Process,
    pub(super) n: u32,
}

impl Id {
    /// Reads `<manager>.<n>.<process>`.
    pub(super) fn of(id: &str) -> Self {
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

/// A hold on the server, or a waiter in its queue.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(super) struct Held {
    pub(super) id: Id,
    pub(super) mode: Mode,
    pub(super) deadline_ms: u64,
}

impl fmt::Debug for Held {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:?} {} until {}", self.id, self.mode, self.deadline_ms)
    }
}

/// What is asked of the server.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Op {
    Acquire {
        id: Id,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: u64,
        /// How long it waits in the queue without being heard of.
        patience_ms: Option<u64>,
        /// It waits for a word only.
        tries: bool,
        /// Its hold may stay.
        keeps: bool,
    },
    Conversion {
        old: Id,
        id: Id,
        mode: Mode,
        lease_ms: u64,
        not_after_ms: u64,
        keeps: bool,
    },
    Leave {
        id: Id,
    },
    Renew {
        id: Id,
        lease_ms: u64,
        keeps: bool,
    },
    Inspect,
    /// Up to this token, and the writer that was seen.
    Force {
        seen: u64,
        writer: Option<Id>,
    },
    /// What its clock says.
    Time,
}

/// What it answers.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) enum Reply {
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
    /// Of a turn.
    Refused,
    Late,
    Held,
    /// Of a leave: it waited until now.
    Waited,
    /// There was none, and how far an operator has ended holds.
    None {
        forced: u64,
    },
    Renewed {
        remaining_ms: u64,
        is_waited_for: bool,
        /// The first of the tokens that it brought, and how many.
        tokens: Option<(u64, u64)>,
    },
    Lost {
        forced: u64,
    },
    View(Shown),
    Forced(Vec<Id>),
    Time,
}

/// What a look shows.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Shown {
    pub(super) token: u64,
    /// With what is left of each.
    pub(super) holders: Vec<(Id, Mode, u64)>,
    pub(super) waiters: Vec<(Id, Mode)>,
}

/// A grant to a waiter.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct News {
    pub(super) id: Id,
    pub(super) token: u64,
    pub(super) tokens: u64,
    pub(super) deadline_ms: u64,
    pub(super) is_waited_for: bool,
}

/// That somebody waits for a lock that may be kept.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Called {
    pub(super) token: u64,
    /// Who only tries names itself.
    pub(super) tries: Option<Id>,
}

/// What a process hears of those who call, or does not.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Heard {
    Call(Called),
    /// A call was lost, or takes long.
    Missed,
    /// It has subscribed at this server.
    Subscribed(u32),
    /// That server has answered what was sent then.
    Ping(Micros),
    /// It is not subscribed any more.
    Broken,
}

/// What the server has of a lock.
#[derive(Clone, PartialEq, Eq, Debug, Default)]
pub(super) struct Seen {
    pub(super) held: Vec<Held>,
    /// The writers first, each side in its order.
    pub(super) queue: Vec<Held>,
    /// Somebody is recorded there, live or dead.
    pub(super) anybody_recorded: bool,
    /// The last token, and up to which holds were ended by force.
    pub(super) token: u64,
    pub(super) forced: u64,
}

/// How an acquisition ended that brought no guard.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum End {
    Busy,
    TimedOut,
    Unreachable,
    Closed,
    Conflict,
    /// No replica has it.
    Unreplicated,
    /// Of a turn: neither hold is to be relied on.
    Lost(LossReason),
    /// Its future was dropped.
    Cut,
}

impl End {
    pub(super) fn of(error: &Error) -> Self {
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

/// How a guard let go.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Letting {
    Release,
    Drop,
    /// Forgotten: nobody will ever let go.
    Leak,
    /// It became a guard of the other side.
    Converted,
    /// Its future was dropped while it was to become one.
    CutConversion,
}

/// What came of a release.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Released {
    Ours,
    Lost(LossReason),
    Unreachable,
    Cut,
}

/// What a user asks for.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) struct Wish {
    pub(super) lock: Lock,
    pub(super) mode: Mode,
    pub(super) lease_ms: u64,
    pub(super) max_hold_ms: u64,
    pub(super) wait_ms: Option<u64>,
    pub(super) once: bool,
    /// An owner that may nest.
    pub(super) reentrant: bool,
    /// Within this guard of the same owner.
    pub(super) within: Option<Guard>,
    /// To turn this guard.
    pub(super) converts: Option<Guard>,
}

#[derive(Clone, PartialEq, Debug)]
#[allow(clippy::large_enum_variant)] // nearly all are of the large one
pub(super) enum What {
    Started {
        process: Process,
        response_timeout_ms: u64,
        unreachable_after_ms: u64,
        max_clock_skew_ms: u64,
        join_window_ms: u64,
        max_handoffs: u64,
        cache_for_ms: u64,
    },
    // What users do and see.
    Asked {
        attempt: Attempt,
        process: Process,
        /// Of its process, on which the future is polled.
        runtime: u32,
        wish: Wish,
    },
    Granted {
        attempt: Attempt,
        guard: Guard,
        id: Id,
        token: u64,
        /// What it has left.
        remaining_us: u64,
    },
    Failed {
        attempt: Attempt,
        end: End,
    },
    /// How a guard stands, by its own word and by the server's.
    Sample {
        guard: Guard,
        valid: bool,
        /// It says that its last renewal was answered.
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
    /// The fenced resource was used.
    Fenced {
        guard: Guard,
        valid: bool,
        token: u64,
        accepted: bool,
    },
    /// The unfenced resource was entered or left.
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
    // What travels.
    Sent {
        request: Request,
        process: Process,
        lock: Lock,
        op: Op,
        /// Whose future sent it.
        attempt: Option<Attempt>,
        /// Which of the servers, one after the other, its process asks.
        server: u32,
    },
    Applied {
        request: Request,
        copy: u32,
        /// How many primaries there were before this one.
        primary: u32,
        /// Another one was promoted, and this one does not know it yet.
        deposed: bool,
        lock: Lock,
        op: Op,
        reply: Reply,
        server_us: u64,
        forget_ms: u64,
        before: Seen,
        after: Seen,
        news: Vec<News>,
        called: Option<Called>,
    },
    /// A notice of a grant reached its process, which has counted from an anchor or had none to trust.
    Noticed {
        process: Process,
        lock: Lock,
        id: Id,
        /// When the anchor was sent, and what is left from then on by the notice, in microseconds.
        anchor: Option<(Micros, u64)>,
    },
    Answered {
        request: Request,
        reply: Reply,
    },
    /// No answer within the response timeout.
    Unanswered {
        request: Request,
    },
    /// It certainly never arrived.
    NotDone {
        request: Request,
    },
    /// A request touches so few records of others that a crowd takes several.
    Crowded,
    /// What counts is on a replica: no hold is lost with a primary.
    Replicated,
    /// What a process hears of a lock that it keeps.
    Hears {
        process: Process,
        lock: Lock,
        heard: Heard,
    },
    // Faults.
    /// It takes long, there or back.
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
    NoticeLost {
        process: Process,
        lock: Lock,
        /// Its process has not subscribed.
        unheard: bool,
    },
    NoticeLate {
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
    /// Nobody drives a runtime: for so long, or until it ends.
    RuntimeStopped {
        process: Process,
        runtime: u32,
        for_ms: Option<u64>,
    },
    RuntimeGoesOn {
        process: Process,
        runtime: u32,
    },
    /// Its tasks are dropped, and their guards with them, or forgotten.
    RuntimeEnded {
        process: Process,
        runtime: u32,
        leaks: bool,
    },
    Down {
        refuses: bool,
    },
    Up,
    /// The server lost everything.
    Emptied,
    /// The primary stands still, with what lies in its sockets.
    Frozen,
    /// A replica took over from a primary that stands still, and had not heard of the last so many milliseconds.
    Promoted {
        behind_ms: u64,
    },
    /// A process knows of the new primary.
    Rerouted {
        process: Process,
    },
    /// The old primary goes on, and knows of nothing.
    Woken,
    /// It learns that it is none.
    Demoted,
    /// A replica took over that had not heard of the last so many milliseconds.
    Stale {
        behind_ms: u64,
    },
    Stepped {
        skew_ms: i64,
    },
    Healed,
    // At the end, when all leases and retentions are over.
    NotIdle {
        process: Process,
    },
    ReleaseReply {
        records: usize,
        subscribers: usize,
    },
    Over,
}

#[derive(Clone, PartialEq)]
pub(super) struct Event {
    pub(super) at: Micros,
    pub(super) what: What,
}

impl fmt::Debug for Event {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:>4}.{:06} {:?}", self.at / 1_000_000, self.at % 1_000_000, self.what)
    }
}

#[derive(Clone, PartialEq, Debug, Default)]
pub(super) struct History {
    pub(super) events: Vec<Event>,
}

impl History {
    pub(super) fn text(&self) -> String {
        self.around(0, usize::MAX)
    }

    /// The events next to the one at `index`.
    pub(super) fn around(&self, index: usize, many: usize) -> String {
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
