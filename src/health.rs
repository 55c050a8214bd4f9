//! How servers and managers are, for health checks, dashboards and operators.

use std::time::Duration;

/// What a manager is doing at one moment, as [`stats`](crate::RwLockManager::stats) tells it.
///
/// The first five are how many there are now, the others how many there have been since the manager was built.
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
    /// Holds that servers have granted and have not been told to forget.
    pub holds: usize,
    /// Guards that share them: those of tasks, nested ones each, and those on their way to a waiter.
    pub guards: usize,
    /// Those of the holds that nobody uses: they [stay](crate::Builder::idle_hold) for whoever comes next.
    pub idle_holds: usize,
    /// Acquisitions that wait for their turn in this process or for a server.
    pub waiters: usize,
    /// Holds that are [`Unconfirmed`](crate::HoldState::Unconfirmed): their last renewal has no answer, and is being repeated.
    /// More than a few, or for longer than seconds, mean that a server is silent.
    pub renewals_late: usize,
    /// Requests that were sent to servers and have no answer yet. Always 0 in memory.
    pub in_flight: usize,
    /// Connections that were made in place of one that broke or went silent.
    pub reconnects: u64,
    /// How often the members of a cluster, or the Sentinels, were asked who owns what. A healthy cluster
    /// is not asked but by [`health`](crate::RwLockManager::health) and [`locks`](crate::RwLockManager::locks).
    pub map_refreshes: u64,
}

/// What a scheme does with its servers.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
pub(crate) struct Traffic {
    pub(crate) in_flight: usize,
    pub(crate) reconnects: u64,
    pub(crate) map_refreshes: u64,
}

/// How the servers of a manager are, as [`health`](crate::RwLockManager::health) tells it.
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
    /// One entry for each server that the manager knows: the node; all members of the cluster that its map names; or the
    /// primary and the Sentinels.
    pub nodes: Vec<NodeHealth>,
    /// How many of those that take locks have to answer; `None` where that is all. A majority, of a
    /// [`QuorumManager`](crate::QuorumManager)'s.
    pub needed: Option<usize>,
}

impl Health {
    /// Whether every server that takes locks answers, or as many as are [needed](Health::needed). What a readiness check asks: replicas and Sentinels may be missing.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        let primaries = self.nodes.iter().filter(|node| matches!(node.role, NodeRole::Primary | NodeRole::Unknown));
        let (all, reachable) =
            primaries.fold((0, 0), |(all, reachable), node| (all + 1, reachable + usize::from(node.is_reachable)));
        all > 0 && reachable >= self.needed.unwrap_or(all)
    }

    /// The greatest difference between the clocks of two servers, give or take half of their round trips; `None` with fewer than
    /// two that answer. It must stay below [`clock_margin`](crate::Builder::clock_margin), 100 ms by default.
    #[must_use]
    pub fn clock_spread(&self) -> Option<Duration> {
        let clocks: Vec<i64> = self.nodes.iter().filter_map(|node| node.clock_ahead_ms).collect();
        let (first, last) = (clocks.iter().min()?, clocks.iter().max()?);
        (clocks.len() > 1).then(|| Duration::from_millis(last.abs_diff(*first)))
    }
}

/// How one server is, of those in [`Health`].
#[derive(Clone, PartialEq, Eq, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize))]
#[non_exhaustive]
pub struct NodeHealth {
    /// `host:port`, or the path of a socket; `memory` for a [`MemoryManager`](crate::MemoryManager).
    pub address: String,
    /// What it says it is; if it does not answer, what others say of it.
    pub role: NodeRole,
    /// `redis`, `valkey`, or what else it calls itself.
    pub server: Option<String>,
    /// Its version, as `7.0.15`.
    pub version: Option<String>,
    /// Whether it has answered, in time.
    pub is_reachable: bool,
    /// How long one request to it and back took, on a connection that was there.
    #[cfg_attr(feature = "serde", serde(serialize_with = "crate::span::serialize_if_any"))]
    pub round_trip: Option<Duration>,
    /// By how many milliseconds its clock is ahead of the clock of this machine, give or take half of the round trip. Negative if
    /// it is behind. Locks do not depend on this machine's clock, but on those of servers among each other: see
    /// [`Health::clock_spread`].
    pub clock_ahead_ms: Option<i64>,
    /// Whether its `maxmemory-policy` is `noeviction`, as it must be if it has a `maxmemory`. `None` if the user may not ask (the
    /// right is `+info`).
    pub noeviction: Option<bool>,
    /// What stood in the way of an answer.
    pub problem: Option<String>,
}

impl NodeHealth {
    /// Nothing is known yet.
    pub(crate) fn unknown(address: &str, role: NodeRole) -> Self {
        Self {
            address: address.to_owned(),
            role,
            server: None,
            version: None,
            is_reachable: false,
            round_trip: None,
            clock_ahead_ms: None,
            noeviction: None,
            problem: None,
        }
    }
}

/// What a server is to the others; see [`Health`].
#[derive(Clone, Copy, PartialEq, Eq, Debug, Hash)]
#[cfg_attr(feature = "serde", derive(serde::Serialize), serde(rename_all = "lowercase"))]
#[non_exhaustive]
pub enum NodeRole {
    /// It takes locks.
    Primary,
    /// It follows a primary, and may become one.
    Replica,
    /// It knows who is the primary.
    Sentinel,
    /// Nobody has said.
    Unknown,
}

#[cfg(test)]
mod tests {
    use super::*;

    fn node(role: NodeRole, is_reachable: bool, clock_ahead_ms: Option<i64>) -> NodeHealth {
        NodeHealth { is_reachable, clock_ahead_ms, ..NodeHealth::unknown("h:1", role) }
    }

    #[test]
    fn readiness_is_that_of_those_who_take_locks() {
        let ready = |nodes: &[NodeHealth]| Health { nodes: nodes.to_vec(), needed: None }.is_ready();
        let primary = node(NodeRole::Primary, true, None);
        assert!(ready(&[primary.clone(), node(NodeRole::Replica, false, None), node(NodeRole::Sentinel, false, None)]));
        assert!(!ready(&[primary.clone(), node(NodeRole::Primary, false, None)]));
        assert!(!ready(&[primary, node(NodeRole::Unknown, false, None)]));
        assert!(!ready(&[node(NodeRole::Replica, true, None)]), "there is nobody to take locks");
        assert!(!ready(&[]));
        let down = node(NodeRole::Primary, false, None);
        let masters = vec![node(NodeRole::Primary, true, None), node(NodeRole::Unknown, true, None), down.clone()];
        assert!(Health { nodes: masters.clone(), needed: Some(2) }.is_ready());
        assert!(!Health { nodes: [masters, vec![down]].concat(), needed: Some(3) }.is_ready());
    }

    #[test]
    fn clocks_are_compared_with_each_other() {
        let spread = |clocks: &[i64]| {
            let nodes = clocks.iter().map(|ahead| node(NodeRole::Primary, true, Some(*ahead)));
            Health { nodes: nodes.chain([node(NodeRole::Replica, false, None)]).collect(), needed: None }.clock_spread()
        };
        assert_eq!(spread(&[-200, 100, 0]), Some(Duration::from_millis(300)));
        assert_eq!(spread(&[5000, 5000]), Some(Duration::ZERO), "nobody compares with this machine");
        assert_eq!(spread(&[7]), None);
        assert_eq!(spread(&[]), None);
    }
}
