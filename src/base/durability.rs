//! Copies of a grant on other machines that are necessary before it counts.

use std::fmt;
use std::num::NonZeroU8;
use std::time::Duration;

use crate::base::duration_text::DurationText;

/// Durability of a grant of a [`RedisManager`](crate::RedisManager) or [`TwoKeyManager`](crate::TwoKeyManager): the
/// failures that it must survive before it counts. Set with [`Builder::durability`](crate::Builder#method.durability).
///
/// A lock is as safe as the weakest level of all its users: set the same level in all managers of a lock.
/// [`Primary`](Self::Primary) is faster and needs no replicas; [`Replicated`](Self::Replicated) survives a failover,
/// and costs a wait for replicas with each grant and renewal.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The answer of the primary is enough. After a failover to a replica that has not received a grant, the grant is
    /// forgotten. Then two holders may overlap, and only the [`FencingToken`](crate::FencingToken) distinguishes them.
    #[default]
    Primary,
    /// A grant counts only if this many replicas have it, by the server's command `WAIT`. The same is true for
    /// everything on which a guard depends: the claim of a grant that came by a notification, a conversion, and each
    /// renewal.
    ///
    /// After a failover to a replica that had acknowledged, no two valid holds conflict. Set `replicas` to *all*
    /// replicas that can be promoted: a replica that has not acknowledged may be promoted as well, and does not know
    /// the grant. A grant without acknowledgement in time is released, and the caller gets
    /// [`Error::NotEnoughReplicas`](crate::Error::NotEnoughReplicas).
    ///
    /// A renewal without acknowledgement extends nothing. The guard is [`Unconfirmed`](crate::HoldState::Unconfirmed),
    /// the manager retries the renewal, and the guard is lost at its old deadline.
    Replicated {
        /// Number of replicas that must acknowledge. More replicas survive more failures, but a grant fails if
        /// fewer of them answer.
        replicas: NonZeroU8,
        /// Time for which the primary waits for the replicas: from 1 ms to half of the
        /// [`response_timeout`](crate::Builder::response_timeout), which limits the whole answer. A longer time suits
        /// slower replicas; a shorter one fails sooner.
        timeout: Duration,
    },
}

/// Writes the level in one line, for logs.
impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("Primary"),
            Self::Replicated { replicas, timeout } => {
                write!(f, "Replicated ({replicas} within {})", DurationText(*timeout))
            }
        }
    }
}

impl Durability {
    /// Returns the number of replicas that must acknowledge, and the milliseconds to wait for them.
    pub(crate) fn acknowledgement(self) -> Option<(NonZeroU8, u128)> {
        match self {
            Self::Primary => None,
            Self::Replicated { replicas, timeout } => Some((replicas, timeout.as_millis())),
        }
    }
}
