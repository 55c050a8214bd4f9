//! Health of servers and managers, for health checks, dashboards and operators.

use std::fmt;
use std::time::Duration;

use crate::base::duration_text::DurationText;
use crate::base::topology::AddressSource;

/// Largest allowed difference between the clock of a single server and the clock of this machine. The limit may be
/// high, because no lock depends on this difference.
const MAX_LONE_SKEW: Duration = Duration::from_secs(1);

/// Counts of a manager at one moment; [`stats`](crate::RwLockManager::stats) returns them.
///
/// The first six fields count what exists now; the last two count events since the manager was built.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// let guards = (manager.read("cfg").await?, manager.read("cfg").await?);
/// let stats = manager.stats();
/// assert_eq!((stats.holds, stats.guards, stats.waiters), (1, 2, 0));
/// # drop(guards);
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Stats {
    /// Holds that servers have granted, and that this manager has neither released nor lost.
    pub holds: usize,
    /// Guards that share these holds. Nested guards count, and so do guards that a waiter has been given but has not
    /// yet received.
    pub guards: usize,
    /// Holds that no guard uses. The manager [caches](crate::Builder::cache_for) them for the next acquisition.
    pub cached_holds: usize,
    /// Acquisitions that wait for other acquisitions of this process, or for a server.
    pub waiters: usize,
    /// Holds in the state [`Unconfirmed`](crate::HoldState::Unconfirmed). The server has not answered their last
    /// renewal, and the manager repeats this renewal. A few such holds for a few seconds are normal. More of them, or a
    /// longer time, mean that a server does not answer.
    pub renewals_late: usize,
    /// Requests that were sent to servers and have no answer yet. Always 0 for a
    /// [`MemoryManager`](crate::MemoryManager).
    pub in_flight: usize,
    /// Connections that replaced a broken or silent connection.
    pub reconnects: u64,
    /// Number of times that the manager asked cluster members or Sentinels which server owns which hash slot. In a
    /// healthy cluster only [`health`](crate::RwLockManager::health) and [`locks`](crate::RwLockManager::locks) ask.
    pub map_refreshes: u64,
}

/// Counts of requests and connections between a lock scheme and its servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) in_flight: usize,
    pub(crate) reconnects: u64,
    pub(crate) map_refreshes: u64,
}

/// Health of the servers of a manager; [`health`](crate::RwLockManager::health) returns it.
///
/// # Examples
///
/// ```
/// # use std::time::Duration;
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let health = MemoryManager::new().health().await?;
/// assert!(health.is_ready());
/// if health.clock_spread().is_some_and(|spread| spread > Duration::from_millis(50)) {
///     eprintln!("the servers' clocks drift apart");
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug, Default)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct Health {
    /// Entries for all servers that the manager knows. For a single server, this is one entry. For a cluster, these are
    /// all members in its slot map. With Sentinels, these are the primary and the Sentinels.
    pub nodes: Vec<NodeHealth>,
    /// Number of servers that must be able to grant locks, so that the manager is ready. For a
    /// [`QuorumManager`](crate::QuorumManager), this number is a majority of the masters. `None` means all servers that
    /// store locks.
    pub needed: Option<usize>,
}

impl Health {
    /// Creates the health of these nodes. Adds a finding to each node whose clock differs from the other clocks by more
    /// than `max_skew`.
    pub(crate) fn new(mut nodes: Vec<NodeHealth>, needed: Option<usize>, max_skew: Duration) -> Self {
        let reading = |node: &NodeHealth| {
            let ahead_us = node.clock_ahead_ms?.saturating_mul(1000);
            // A server reads its clock at an unknown point of the round trip, so half of the round trip is uncertain.
            // The reading is rounded to milliseconds, so one more millisecond is uncertain.
            Some(ClockReading { ahead_us, uncertain_us: micros(node.round_trip.unwrap_or_default()) / 2 + 1000 })
        };
        let known = nodes.iter_mut().filter_map(|node| Some((reading(node)?, node)));
        let (readings, known): (Vec<_>, Vec<_>) = known.unzip();
        for (node, skew) in known.into_iter().zip(clock_skews(&readings, 0, max_skew)) {
            node.findings.extend(skew);
        }
        Self { nodes, needed }
    }

    /// Returns true if enough servers answer and can grant locks. The field [`needed`](Health::needed) says how many
    /// are enough. Replicas and Sentinels do not count, because they grant no locks. The result suits a readiness
    /// check.
    ///
    /// A server cannot grant locks while its [memory is full](NodeFinding::MemoryFull). A master cannot grant locks
    /// while it [may not vote yet](NodeHealth::votes_in).
    #[must_use]
    pub fn is_ready(&self) -> bool {
        // A server with an unknown role may be a primary, so it counts as one.
        let primaries = self.nodes.iter().filter(|node| matches!(node.role, NodeRole::Primary | NodeRole::Unknown));
        let (all, ready) = (primaries.clone().count(), primaries.filter(|node| node.can_grant()).count());
        all > 0 && ready >= self.needed.unwrap_or(all)
    }

    /// Returns the greatest difference between the clocks of two servers. Its error is at most half of the round trips
    /// to both. Returns `None` if fewer than two servers answer. The difference must stay below
    /// [`max_clock_skew`](crate::Builder::max_clock_skew), 100 ms by default.
    #[must_use]
    pub fn clock_spread(&self) -> Option<Duration> {
        let clocks: Vec<i64> = self.nodes.iter().filter_map(|node| node.clock_ahead_ms).collect();
        let (first, last) = (clocks.iter().min()?, clocks.iter().max()?);
        (clocks.len() > 1).then(|| Duration::from_millis(last.abs_diff(*first)))
    }
}

/// Health of one server in [`Health`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeHealth {
    /// Address: `host:port`, or the path of a socket; `memory` for a [`MemoryManager`](crate::MemoryManager).
    pub address: String,
    /// Source of the address: the user, the cluster or a Sentinel.
    pub address_source: AddressSource,
    /// Role that the server reports. If the server does not answer, this is the role that other servers report for it.
    pub role: NodeRole,
    /// Name of the server software: `redis`, `valkey`, or another name that the server reports.
    pub server: Option<String>,
    /// Version of the server software, such as `7.0.15`.
    pub version: Option<String>,
    /// True if the server answered in time.
    pub is_reachable: bool,
    /// Time from one request to its answer, on an open connection.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::round_trip"))]
    pub round_trip: Option<Duration>,
    /// Milliseconds by which the server's clock is ahead of the clock of this machine. The value is negative if the
    /// server's clock is behind. Its error is at most half of the round trip. Locks do not depend on the clock of this
    /// machine. They depend on the difference between the clocks of the servers, see [`Health::clock_spread`].
    pub clock_ahead_ms: Option<i64>,
    /// True if the server's `maxmemory-policy` is `noeviction`. This policy is necessary if the server has a
    /// `maxmemory`. `None` if the ACL of the server does not permit the command `INFO` (`+info`).
    pub noeviction: Option<bool>,
    /// Time until this master of a [`QuorumManager`](crate::QuorumManager) may vote. A master may have lost its locks
    /// in a restart. So it may vote again only when it has run for longer than the longest lease. `None` if the master
    /// may vote, and for servers of other managers.
    #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::votes_in"))]
    pub votes_in: Option<Duration>,
    /// Reason why the server did not answer.
    pub problem: Option<String>,
    /// Defects of a server that answers. Examples are full memory, a wrong memory policy, and a wrong clock. The list
    /// is empty if no defect was found. Some defects cannot be found if the ACL does not permit the command `INFO`.
    /// Each finding is also logged, and counts in a metric.
    pub findings: Vec<NodeFinding>,
}

impl NodeHealth {
    /// Creates an entry for a server that has not answered yet.
    pub(crate) fn new_unknown(address: &str, role: NodeRole) -> Self {
        Self {
            address: address.to_owned(),
            address_source: AddressSource::User,
            role,
            server: None,
            version: None,
            is_reachable: false,
            round_trip: None,
            clock_ahead_ms: None,
            noeviction: None,
            votes_in: None,
            problem: None,
            findings: Vec::new(),
        }
    }

    fn can_grant(&self) -> bool {
        self.is_reachable && self.votes_in.is_none() && !self.findings.iter().any(NodeFinding::prevents_grants)
    }
}

/// Defect of a server that answers, see [`NodeHealth::findings`]. The [`Display`](fmt::Display) text of a finding says
/// how to repair the defect.
///
/// # Examples
///
/// ```
/// use redis_rwlock::{MemoryManager, RwLockManager};
///
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// for node in &manager.health().await?.nodes {
///     for finding in &node.findings {
///         eprintln!("{}: {finding}", node.address);
///     }
/// }
/// # Ok(())
/// # }
/// ```
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "snake_case"))]
#[non_exhaustive]
pub enum NodeFinding {
    /// The server uses more memory than its `maxmemory`. It refuses to grant locks, but it still renews and releases
    /// holds. If the ACL does not permit the command `INFO`, only such refusals show this defect. The finding then
    /// stays for a minute after the last refusal.
    MemoryFull {
        /// Bytes in use that count against `maxmemory`, if the ACL permits the command `INFO`.
        used: Option<u64>,
        /// Value of `maxmemory` in bytes, if the ACL permits the command `INFO`.
        maxmemory: Option<u64>,
    },
    /// The `maxmemory-policy` is not `noeviction`. When its memory is short, the server removes keys, and may remove
    /// locks that are held.
    Evicts {
        /// Memory policy of the server.
        policy: String,
    },
    /// The clock of this server differs too much from the clocks of the other servers. After a failover to or from this
    /// server, a lock may end too early or too late. A single server is compared with the clock of this machine.
    ClockSkew {
        /// Milliseconds by which the clock is ahead. The value is negative if the clock is behind.
        ahead_ms: i64,
        /// Greatest allowed difference. Between servers, it is [`max_clock_skew`](crate::Builder::max_clock_skew). For
        /// a single server, it is at least 1 s.
        #[cfg_attr(feature = "serde", serde(flatten, serialize_with = "crate::base::duration_text::json::limit"))]
        limit: Duration,
    },
}

impl NodeFinding {
    /// Returns true if the server refuses to grant locks because of this defect.
    ///
    /// ```
    /// use redis_rwlock::NodeFinding;
    ///
    /// fn pages_somebody(finding: &NodeFinding) -> bool {
    ///     finding.prevents_grants() || matches!(finding, NodeFinding::ClockSkew { .. })
    /// }
    /// ```
    #[must_use]
    pub fn prevents_grants(&self) -> bool {
        matches!(self, Self::MemoryFull { .. })
    }

    pub(crate) fn kind(&self) -> FindingKind {
        match self {
            Self::MemoryFull { .. } => FindingKind::Memory,
            Self::Evicts { .. } => FindingKind::Policy,
            Self::ClockSkew { .. } => FindingKind::Clock,
        }
    }
}

impl fmt::Display for NodeFinding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::MemoryFull { used: Some(used), maxmemory: Some(maxmemory) } => write!(
                f,
                "memory is full, {used} bytes of maxmemory {maxmemory}: it grants no locks; free memory or raise maxmemory"
            ),
            Self::MemoryFull { .. } => {
                f.write_str("memory is full: it grants no locks; free memory or raise maxmemory")
            }
            Self::Evicts { policy } => {
                write!(f, "maxmemory-policy is {policy}: it removes held locks when memory is short; set noeviction")
            }
            Self::ClockSkew { ahead_ms, limit } => {
                let (by, way) = (
                    DurationText(Duration::from_millis(ahead_ms.unsigned_abs())),
                    if *ahead_ms < 0 { "behind" } else { "ahead" },
                );
                write!(
                    f,
                    "its clock is {by} {way}, and at most {} is safe; run NTP on the servers",
                    DurationText(*limit)
                )
            }
        }
    }
}

/// Kind of a finding, with its name in logs and metrics.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
pub(crate) enum FindingKind {
    Memory,
    Policy,
    Clock,
}

impl FindingKind {
    pub(crate) const ALL: [Self; 3] = [Self::Memory, Self::Policy, Self::Clock];

    pub(crate) fn word(self) -> &'static str {
        match self {
            Self::Memory => "memory",
            Self::Policy => "policy",
            Self::Clock => "clock",
        }
    }
}

/// Reading of a server's clock: the microseconds by which the clock is ahead of a common base, and the largest error of
/// that value.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockReading {
    pub(crate) ahead_us: i64,
    pub(crate) uncertain_us: i64,
}

/// Compares each clock with the median of all clocks, and returns a finding for each clock that differs too much. For
/// an even number of clocks, the median is the middle clock that is nearer to this machine's clock `here_us`. A single
/// clock is compared with `here_us`.
pub(crate) fn clock_skews(readings: &[ClockReading], here_us: i64, max_skew: Duration) -> Vec<Option<NodeFinding>> {
    let mut sorted = readings.to_vec();
    sorted.sort_by_key(|reading| reading.ahead_us);
    let from_here = |reading: &ClockReading| reading.ahead_us.saturating_sub(here_us).saturating_abs();
    let (reference, limit) = match sorted.len() {
        0 | 1 => (ClockReading { ahead_us: here_us, uncertain_us: 0 }, max_skew.max(MAX_LONE_SKEW)),
        all => {
            let middle = [sorted[(all - 1) / 2], sorted[all / 2]];
            (if from_here(&middle[0]) <= from_here(&middle[1]) { middle[0] } else { middle[1] }, max_skew)
        }
    };
    let skew = |reading: &ClockReading| {
        let ahead_us = reading.ahead_us.saturating_sub(reference.ahead_us);
        let allowed = micros(limit).saturating_add(reading.uncertain_us).saturating_add(reference.uncertain_us);
        (ahead_us.saturating_abs() > allowed).then_some(NodeFinding::ClockSkew { ahead_ms: ahead_us / 1000, limit })
    };
    readings.iter().map(skew).collect()
}

pub(crate) fn micros(span: Duration) -> i64 {
    i64::try_from(span.as_micros()).unwrap_or(i64::MAX)
}

/// Role of a server, see [`Health`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum NodeRole {
    /// Primary: it stores locks.
    Primary,
    /// Replica: it follows a primary, and may become one.
    Replica,
    /// Sentinel: it knows which server is the primary.
    Sentinel,
    /// Unknown: no server has reported the role.
    Unknown,
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/health/tests.rs"]
mod tests;
