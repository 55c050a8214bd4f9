//! How much of what a server says yes to must be on other machines before it counts.

use std::fmt;
use std::num::NonZeroU8;
use std::time::Duration;

use crate::span::Span;

/// What a grant of a [`RedisManager`](crate::RedisManager) or [`TwoKeyManager`](crate::TwoKeyManager) has to outlive before it counts;
/// set by [`Builder::durability`](crate::Builder#method.durability).
///
/// A lock is as safe as the weakest level among those who use it: give all managers of a lock the same one.
#[derive(Clone, Copy, PartialEq, Eq, Debug, Default)]
#[non_exhaustive]
pub enum Durability {
    /// The primary's word is enough. A failover to a replica that has not heard of a grant forgets it: then two holders may
    /// overlap, and only the [`FencingToken`](crate::FencingToken) tells them apart.
    #[default]
    Primary,
    /// A grant counts only when so many replicas have it, by the server's command `WAIT`. So does all that a guard relies on:
    /// the claim of a grant that came by a notification, a conversion, and each renewal.
    ///
    /// After a failover to a replica that had acknowledged, no two valid holds conflict. Let `replicas` be *all* replicas that
    /// can be promoted: one that has not acknowledged may be promoted as well, and knows nothing of the grant. What is not
    /// acknowledged in time is given back, and the caller gets [`Error::NotEnoughReplicas`](crate::Error::NotEnoughReplicas).
    ///
    /// A renewal that is not acknowledged extends nothing: the guard is [`Unconfirmed`](crate::HoldState::Unconfirmed), the
    /// renewal is tried again, and the guard is lost at the deadline that it had.
    Replicated {
        /// How many replicas have to acknowledge.
        replicas: NonZeroU8,
        /// How long a primary waits for them: from 1 ms to half of the
        /// [`response_timeout`](crate::Builder::response_timeout), within which the whole answer has to be there.
        timeout: Duration,
    },
}

/// The level in one line, for logs.
impl fmt::Display for Durability {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Primary => f.write_str("Primary"),
            Self::Replicated { replicas, timeout } => write!(f, "Replicated ({replicas} within {})", Span(*timeout)),
        }
    }
}

impl Durability {
    /// How many replicas have to acknowledge, and for how many milliseconds they are waited for.
    pub(crate) fn acknowledgement(self) -> Option<(NonZeroU8, u128)> {
        match self {
            Self::Primary => None,
            Self::Replicated { replicas, timeout } => Some((replicas, timeout.as_millis())),
        }
    }
}
