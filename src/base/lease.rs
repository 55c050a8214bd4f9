//! Arithmetic of leases: moments, validity, clock samples and fencing tokens. The functions of this module read no
//! clock and do not sleep.
//!
//! A hold is *valid* in this process for less time than the server keeps it. The validity counts from a moment before
//! the request is sent. Three margins shorten it: 1 % for different clock rates, 2 ms for timers and rounding, and
//! `max_clock_skew`. The last margin is necessary because the lock's slot may move to a server with another clock. So
//! local validity ends before any server can grant the lock to another holder.
//!
//! Source: the drift allowance of Redlock, and Gray and Cheriton, "Leases" (1989).

use std::fmt;
use std::hash::{Hash, Hasher};
use std::num::NonZeroU64;
use std::time::Duration;

/// Largest number of tokens that one grant reserves.
pub(crate) const MAX_TOKENS: u64 = 2_048;

/// Margin for the inaccuracy of timers, and for times that are rounded to milliseconds.
const GRAIN: Duration = Duration::from_millis(2);
/// Clock rates are assumed to differ by at most one part in this number.
const RATE_PARTS: u32 = 100;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Moment of the local clock, in nanoseconds since the clock's own origin.
///
/// The stored number is one greater and never zero, so an `Option` of a moment needs no more memory than a moment.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(crate) struct Moment(NonZeroU64);

/// Moments, tokens and times of a server have word sizes of their own. So a hasher can take them relative to a base, as the explorer does.
impl Hash for Moment {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_u128(self.0.get().into());
    }
}

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.as_nanos()).finish()
    }
}

impl Moment {
    /// Moment before all others.
    pub(crate) const START: Self = Self::from_nanos(0);
    /// Moment that no clock reaches.
    pub(crate) const NEVER: Self = Self(NonZeroU64::MAX);

    pub(crate) const fn from_nanos(nanos: u64) -> Self {
        Self(NonZeroU64::MIN.saturating_add(nanos))
    }

    pub(crate) fn as_nanos(self) -> u64 {
        self.0.get() - 1
    }

    /// Returns the moment that is `d` later. Returns [`Moment::NEVER`] if that moment is out of range.
    pub(crate) fn after(self, d: Duration) -> Self {
        let nanos = d.as_secs().saturating_mul(NANOS_PER_SEC).saturating_add(d.subsec_nanos().into());
        Self(self.0.saturating_add(nanos))
    }

    /// Returns the moment that lies `d` earlier, but no earlier moment than the first one.
    pub(crate) fn before(self, d: Duration) -> Self {
        Self::from_nanos(self.as_nanos().saturating_sub(u64::try_from(d.as_nanos()).unwrap_or(u64::MAX)))
    }

    /// Returns the moment in the middle between this one and `later`.
    pub(crate) fn halfway_to(self, later: Self) -> Self {
        let (from, to) = (self.as_nanos(), later.as_nanos());
        Self::from_nanos(from + to.saturating_sub(from) / 2)
    }

    /// Returns the time from `earlier` to this moment. Returns zero if `earlier` is not earlier.
    pub(crate) fn since(self, earlier: Self) -> Duration {
        Duration::from_nanos(self.as_nanos().saturating_sub(earlier.as_nanos()))
    }
}

/// Returns the local deadline of a grant. The grant was requested at `sent`, and the server keeps it for `remaining`.
pub(crate) fn valid_until(sent: Moment, remaining: Duration, max_clock_skew: Duration) -> Moment {
    sent.after(usable(remaining, max_clock_skew))
}

/// Returns the part of a lease that is left after the three margins.
pub(crate) fn usable(lease: Duration, max_clock_skew: Duration) -> Duration {
    lease.saturating_sub(lease / RATE_PARTS).saturating_sub(GRAIN).saturating_sub(max_clock_skew)
}

/// Returns the shortest remaining validity that a new guard must have. This is half of its lease, or three quarters of
/// the usable part of the lease if that is less. A late renewal leaves about as much.
pub(crate) fn start(lease: Duration, max_clock_skew: Duration) -> Duration {
    (lease / 2).min(usable(lease, max_clock_skew) * 3 / 4)
}

/// Returns a duration by the local clock. When it is over, `span` is certainly over by the server's clock, too.
pub(crate) fn surely_over(span: Duration, max_clock_skew: Duration) -> Duration {
    span.saturating_add(span / RATE_PARTS).saturating_add(GRAIN).saturating_add(max_clock_skew)
}

/// Returns the longest time between the sending of a request and its execution. Each request has a time limit by the
/// server's clock, one response timeout after the sending. The sender estimates the server's clock from a clock sample.
/// This estimate may be ahead by the round trip of the sample, which took at most another response timeout.
pub(crate) fn max_delay(response_timeout: Duration, max_clock_skew: Duration) -> Duration {
    surely_over(response_timeout.saturating_mul(2), max_clock_skew)
}

/// Time of the server's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct ServerTime(u64);

impl Hash for ServerTime {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_i128(self.0.into());
    }
}

impl ServerTime {
    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub(crate) fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds, rounded up, so that a time limit is not earlier than intended.
    pub(crate) fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the time rounded up to a millisecond.
    pub(crate) fn in_whole_millis_up(self) -> Self {
        Self(self.as_millis_up().saturating_mul(1000))
    }

    /// Returns the time rounded down to a millisecond, which is the precision of the scripts.
    pub(crate) fn in_whole_millis(self) -> Self {
        Self(self.0 / 1000 * 1000)
    }

    pub(crate) fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Clock sample: two readings of clocks from one answered request to one node. The request was sent at the local time
/// `sent`. Later, the server read its own clock as `server`.
#[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
pub(crate) struct ClockSample {
    pub(crate) sent: Moment,
    pub(crate) server: ServerTime,
}

impl ClockSample {
    /// Estimates the server's time at the local time `now`. The estimate may be ahead of the server's clock by one
    /// round trip and 1 % of the sample's age.
    pub(crate) fn server_time_at(&self, now: Moment) -> ServerTime {
        self.server.after(now.since(self.sent))
    }

    pub(crate) fn age_at(&self, now: Moment) -> Duration {
        now.since(self.sent)
    }
}

/// Number that grows with every phase of a lock, so that the protected resource can reject outdated holders.
///
/// Each phase of a lock has a greater token than all phases before it. A phase is the time for which one writer holds
/// the lock, or the time for which readers hold it together. These readers share a token. The resource must remember
/// the highest token that it has seen, and reject lower tokens, including those of readers. Then it also rejects a
/// holder that was paused until after the end of its lease. A lock with leases alone cannot stop such a holder.
///
/// Tokens are at most 2^53, so JSON and SQL `BIGINT` can store them. Consecutive phases may have tokens with gaps
/// between them. `try_from` converts a stored integer back into a token. The number 0 is lower than every token that a
/// server grants.
///
/// # Examples
///
/// ```
/// # use redis_rwlock::{MemoryManager, RwLockManager};
/// # #[tokio::main(flavor = "current_thread")]
/// # async fn main() -> redis_rwlock::Result<()> {
/// let manager = MemoryManager::new();
/// let first = manager.write("cfg").await?;
/// let older = first.fencing_token();
/// first.release().await?;
/// let newer = manager.write("cfg").await?.fencing_token();
/// assert!(newer > older);
/// let for_sql: i64 = newer.into();
/// let highest_seen = redis_rwlock::FencingToken::try_from(for_sql).expect("it was one");
/// assert!(older < highest_seen); // so the resource rejects it
/// # Ok(())
/// # }
/// ```
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(into = "u64", try_from = "u64"))]
pub struct FencingToken(u64);

impl Hash for FencingToken {
    fn hash<H: Hasher>(&self, state: &mut H) {
        state.write_i64(self.0.cast_signed());
    }
}

impl FencingToken {
    /// Greatest token. Scripts compute with doubles, which represent all integers up to this one exactly.
    const MAX: u64 = 1 << 53;
    /// Token that is lower than every granted token. It stands for a missing token. A recall message that cannot be read
    /// gets it too.
    pub(crate) const ZERO: Self = Self(0);

    /// Reads a token from a server's reply. Returns `None` if the number is out of range. No script of this crate sends
    /// such a number.
    pub(crate) fn from_wire(raw: u64) -> Option<Self> {
        (raw <= Self::MAX).then_some(Self(raw))
    }

    pub(crate) fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the token that is `turn` higher. A grant reserves several tokens, so that writers of this process can
    /// hand off its hold.
    pub(crate) fn plus(self, turn: u64) -> Self {
        Self(self.0 + turn)
    }
}

impl fmt::Display for FencingToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

impl From<FencingToken> for u64 {
    fn from(token: FencingToken) -> Self {
        token.0
    }
}

impl From<FencingToken> for i64 {
    fn from(token: FencingToken) -> Self {
        // The number fits, because each constructor checks that it is at most 2^53.
        token.0 as Self
    }
}

impl TryFrom<u64> for FencingToken {
    type Error = InvalidToken;

    /// Returns the token that was stored as this number.
    fn try_from(stored: u64) -> Result<Self, InvalidToken> {
        Self::from_wire(stored).ok_or(InvalidToken(i128::from(stored)))
    }
}

impl TryFrom<i64> for FencingToken {
    type Error = InvalidToken;

    /// Returns the token that was stored as this number.
    fn try_from(stored: i64) -> Result<Self, InvalidToken> {
        u64::try_from(stored).ok().and_then(Self::from_wire).ok_or(InvalidToken(i128::from(stored)))
    }
}

/// Error for a number that is not a [`FencingToken`], because it is negative or greater than 2^53.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no fencing token, a number from 0 to 2^53: find the program that wrote it in place of a token")]
pub struct InvalidToken(i128);

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/base/lease/tests.rs"]
mod tests;
