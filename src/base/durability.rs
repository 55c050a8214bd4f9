//! Durability of grants: the number of replicas that must have a grant before it counts.

use std::fmt;
use std::time::Duration;

use crate::base::duration_text::DurationText;

/// Failures of servers that a grant survives. A [`RedisManager`](crate::RedisManager) or a
/// [`TwoKeyManager`](crate::TwoKeyManager) has this option, and
/// [`Builder::durability`](crate::Builder#method.durability) sets it.
///
/// A lock is only as safe as the weakest level of all managers that use it. So set the same level in all of them.
/// [`Primary`](Self::Primary) is faster and needs no replicas. [`Replicated`](Self::Replicated) survives a failover,
/// but each grant and each renewal waits for replicas. [`Server`](Self::Server) is for services that answer a write
/// only after they have stored it durably.
///
/// # Examples
///
/// ```
/// use std::time::Duration;
///
/// use redis_rwlock::{Durability, Replicas};
///
/// let level = Durability::Replicated { replicas: Replicas::All, timeout: Duration::from_millis(100) };
/// assert_eq!(level.to_string(), "Replicated (all within 100ms)");
/// assert_eq!(Durability::Server.to_string(), "Server");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The answer of the primary is enough. If a failover promotes a replica that has not received a grant, this grant
    /// is lost. The lock may then have two holders at once, and only the [`FencingToken`](crate::FencingToken) tells
    /// which of them is the newer one.
    #[default]
    Primary,
    /// A grant counts only if these replicas have acknowledged it, as the server's command `WAIT` reports. The same is
    /// true for each conversion and each renewal, including the first renewal of a grant that came by a
    /// notification.
    ///
    /// After a failover to a replica that has acknowledged the grant, no two valid holds conflict. Set `replicas` to
    /// [`Replicas::All`], or to the number of *all* replicas that can be promoted. Otherwise a replica that has not received a grant may be
    /// promoted. If too few replicas acknowledge a grant in time, the manager releases it. The caller gets
    /// [`Error::NotEnoughReplicas`](crate::Error::NotEnoughReplicas).
    ///
    /// A renewal without enough acknowledgements does not extend the lease. The guard is then
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed), and the manager retries the renewal. The guard is lost at its
    /// old deadline.
    Replicated {
        /// Replicas that must acknowledge. More replicas let a grant survive more failures. But a grant fails if fewer
        /// replicas acknowledge it.
        replicas: Replicas,
        /// Time for which the primary waits for the replicas. The minimum is 1 ms. The maximum is half of the
        /// [`response_timeout`](crate::Builder::response_timeout), because that timeout limits the whole answer. A
        /// longer time allows slower replicas. A shorter time lets an acquisition fail sooner.
        timeout: Duration,
    },
    /// The answer of the server is enough, because the service answers a write only after it has stored the write where
    /// no failover loses it. Examples are Amazon MemoryDB, and ElastiCache with synchronous durability. **The crate
    /// cannot check this.** With any other server this level promises no more than [`Primary`](Self::Primary).
    ///
    /// The manager sends no `WAIT`. In contrast to `Primary`, a grant that came by a notification counts only after the
    /// server has answered a request, because a service may pass a message on before it has stored the write behind it.
    /// This costs one round trip. Locks with [`timestamp_keys`](crate::Builder::timestamp_keys) cannot have this level.
    Server,
}

/// Replicas that must acknowledge a grant at the level [`Durability::Replicated`].
///
/// # Examples
///
/// ```
/// use redis_rwlock::Replicas;
///
/// assert_eq!(Replicas::All.to_string(), "all");
/// assert_eq!(Replicas::At(2).to_string(), "2");
/// ```
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[non_exhaustive]
pub enum Replicas {
    /// All replicas of the primary. In a cluster, these are the replicas that the primary's cluster map names. Behind
    /// Sentinels, they are the replicas that the Sentinels name. On one node they are as many as were ever attached at
    /// the same time since [`connect`](crate::Builder::connect). Other replicas that are attached count as well. The
    /// number is never below one.
    ///
    /// While a named replica is not attached and in sync, no grant counts. So with this choice a failed replica stops
    /// the locks of its primary until it is back, or until the operator removes it (`CLUSTER FORGET`, `SENTINEL RESET`;
    /// on one node a new manager). After a failover the Sentinels name the old primary as a replica.
    ///
    /// The manager asks for the replicas at most once a second, while it sends grants. So a replica that attaches is
    /// required for grants that are sent a second later. The manager fixes the number before it sends a grant. The server's user needs
    /// the right `+info`, in a cluster also `+cluster|myid` and `+cluster|replicas`, and the user of the Sentinels
    /// needs `+sentinel|replicas`.
    All,
    /// This number of replicas, of any that follow the primary. Zero is refused; use [`Durability::Primary`] instead.
    At(u8),
}

/// Writes the replicas as they are in the text of a [`Durability`].
impl fmt::Display for Replicas {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::All => f.write_str("all"),
            Self::At(number) => number.fmt(f),
        }
    }
}

/// Writes the level in one line, for logs.
impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("Primary"),
            Self::Server => f.write_str("Server"),
            Self::Replicated { replicas, timeout } => {
                write!(f, "Replicated ({replicas} within {})", DurationText(*timeout))
            }
        }
    }
}

impl Durability {
    /// Returns the replicas that must acknowledge, and the milliseconds to wait for them.
    pub(crate) fn acknowledgement(self) -> Option<(Replicas, u128)> {
        match self {
            Self::Primary | Self::Server => None,
            Self::Replicated { replicas, timeout } => Some((replicas, timeout.as_millis())),
        }
    }

    /// Returns true if a grant counts as soon as its notification has come. At the other levels the replicas or the
    /// storage of the service may still lack it, and only an answer of the server shows that they have it.
    pub(crate) fn counts_notified_grants(self) -> bool {
        self == Self::Primary
    }
}
