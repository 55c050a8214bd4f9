//! Number of replicas that must have a grant before it counts.

use std::fmt;
use std::num::NonZeroU8;
use std::time::Duration;

use crate::base::duration_text::DurationText;

/// Durability of a grant of a [`RedisManager`](crate::RedisManager) or [`TwoKeyManager`](crate::TwoKeyManager): the
/// failures that a grant survives once it counts. Set with [`Builder::durability`](crate::Builder#method.durability).
///
/// The weakest level of all its users decides how safe a lock is, so set the same level in all managers of a lock.
/// [`Primary`](Self::Primary) is faster and needs no replicas. [`Replicated`](Self::Replicated) survives a failover,
/// but each grant and each renewal waits for replicas.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The answer of the primary is enough. A failover to a replica that has not received a grant loses the grant. Then
    /// two holders may overlap, and only the [`FencingToken`](crate::FencingToken) distinguishes them.
    #[default]
    Primary,
    /// A grant counts only if this many replicas have acknowledged it, as the server's command `WAIT` reports. The same
    /// is true for all that a guard depends on: a conversion, each renewal, and the claim of a grant that came by a
    /// notification.
    ///
    /// After a failover to a replica that had acknowledged, no two valid holds conflict. Set `replicas` to *all*
    /// replicas that can be promoted. A replica that has not acknowledged a grant does not know it, and may be promoted
    /// as well. If too few replicas acknowledge a grant in time, the manager releases it. The caller gets
    /// [`Error::NotEnoughReplicas`](crate::Error::NotEnoughReplicas).
    ///
    /// A renewal without enough acknowledgements extends nothing. The guard is
    /// [`Unconfirmed`](crate::HoldState::Unconfirmed), and the manager retries the renewal. The guard is lost at its
    /// old deadline.
    Replicated {
        /// Number of replicas that must acknowledge. With more replicas, a grant survives more failures. But it fails
        /// if fewer replicas than this number answer.
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
