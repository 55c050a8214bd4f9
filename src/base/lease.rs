//! Arithmetic of leases: moments, validity, clock samples, fencing tokens. The code here reads no clock and does not
//! sleep.
//!
//! A hold is *valid* in this process for less time than the server keeps it. The validity counts from a moment before
//! the request is sent. Three margins are subtracted: 1 % for clock rates, 2 ms for timers and truncation, and
//! `max_clock_skew`. The last margin covers the clocks of other servers to which the slot may move. So local validity
//! ends before any server can grant the lock to another holder.
//!
//! Source: the drift allowance of Redlock, and Gray and Cheriton, "Leases" (1989).

use std::fmt;
use std::num::NonZeroU64;
use std::time::Duration;

/// Largest number of tokens that one grant reserves.
pub(crate) const MAX_TOKENS: u64 = 64;

/// Margin for timers and millisecond truncation.
const GRAIN: Duration = Duration::from_millis(2);
/// Clock rates are assumed to differ by at most one part in this number.
const RATE_PARTS: u32 = 100;
const NANOS_PER_SEC: u64 = 1_000_000_000;

/// Moment of the local clock, in nanoseconds since the clock's own origin.
///
/// Stored as the number plus one, so that an `Option` of a moment needs no more memory.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(crate) struct Moment(NonZeroU64);

impl fmt::Debug for Moment {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("Moment").field(&self.as_nanos()).finish()
    }
}

impl Moment {
    /// Moment after all moments that a clock can reach.
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

/// Returns the part of a lease that remains after the margins.
pub(crate) fn usable(lease: Duration, max_clock_skew: Duration) -> Duration {
    lease.saturating_sub(lease / RATE_PARTS).saturating_sub(GRAIN).saturating_sub(max_clock_skew)
}

/// Returns the least validity that a new guard must have: half of its lease, which a late renewal leaves as well. If
/// little more than half remains after the margins, three quarters of that rest are enough.
pub(crate) fn start(lease: Duration, max_clock_skew: Duration) -> Duration {
    (lease / 2).min(usable(lease, max_clock_skew) * 3 / 4)
}

/// Returns a duration of the local clock after which `span` is certainly over by the server's clock.
pub(crate) fn surely_over(span: Duration, max_clock_skew: Duration) -> Duration {
    span.saturating_add(span / RATE_PARTS).saturating_add(GRAIN).saturating_add(max_clock_skew)
}

/// Returns the longest time after its sending at which a server may execute a request with a time limit. By a clock
/// sample, this limit is one response timeout after the sending. The sample may be ahead of the server by the round
/// trip of its answer. That round trip takes at most another response timeout.
pub(crate) fn max_delay(response_timeout: Duration, max_clock_skew: Duration) -> Duration {
    surely_over(response_timeout.saturating_mul(2), max_clock_skew)
}

/// Time of the server's clock, in microseconds since the Unix epoch.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Debug, Default)]
pub(crate) struct ServerTime(u64);

impl ServerTime {
    pub(crate) const fn from_micros(micros: u64) -> Self {
        Self(micros)
    }

    pub(crate) fn as_micros(self) -> u64 {
        self.0
    }

    /// Returns whole milliseconds, rounded up, so that a limit does not come earlier than intended.
    pub(crate) fn as_millis_up(self) -> u64 {
        self.0.div_ceil(1000)
    }

    /// Returns the time rounded down to a millisecond, which is the precision of the scripts.
    pub(crate) fn in_whole_millis(self) -> Self {
        Self(self.0 / 1000 * 1000)
    }

    pub(crate) fn after(self, d: Duration) -> Self {
        Self(self.0.saturating_add(u64::try_from(d.as_micros()).unwrap_or(u64::MAX)))
    }
}

/// Clock sample, from one answered request to one node. The request was sent at `sent`. The server read its clock after
/// that, as `server`.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) struct ClockSample {
    pub(crate) sent: Moment,
    pub(crate) server: ServerTime,
}

impl ClockSample {
    /// Returns the server's time at `now`. It may be ahead of the true time by one round trip and 1 % of the sample's
    /// age.
    pub(crate) fn server_time_at(&self, now: Moment) -> ServerTime {
        self.server.after(now.since(self.sent))
    }

    pub(crate) fn age_at(&self, now: Moment) -> Duration {
        now.since(self.sent)
    }
}

/// Number that grows with every phase of a lock. The resource that the lock protects can check it.
///
/// Each phase of a lock has a greater token than all phases before it. A phase is the time of one writer, or the time
/// of all readers that are inside together. These readers share a token. The resource must remember the highest token
/// that it has seen, and reject lower tokens, including those of readers. It is then safe even from a holder that was
/// paused past its lease. No lock with leases alone can stop such a holder.
///
/// Tokens are at most 2^53, so JSON and SQL `BIGINT` can store them. They are not consecutive. A resource that stores
/// tokens as integers converts them back with `try_from`. 0 is below every token that a server grants.
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
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Debug)]
#[cfg_attr(feature = "serde", derive(serde::Serialize, serde::Deserialize), serde(into = "u64", try_from = "u64"))]
pub struct FencingToken(u64);

impl FencingToken {
    /// Greatest token. A double represents all integers up to this one exactly.
    const MAX: u64 = 1 << 53;
    /// Token below every granted token, for a recall message that cannot be read.
    pub(crate) const LOWEST: Self = Self(0);
    /// Token below every granted token, for places where there is no token.
    pub(crate) const ZERO: Self = Self(0);

    /// Reads a token from a server's reply. Returns `None` if the number is out of range, which no script of this crate
    /// sends.
    pub(crate) fn from_wire(raw: u64) -> Option<Self> {
        (raw <= Self::MAX).then_some(Self(raw))
    }

    pub(crate) fn as_u64(self) -> u64 {
        self.0
    }

    /// Returns the token of a later writer of the same grant. The grant has reserved this token.
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
        // The constructor has checked that this is at most 2^53.
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

/// Number that is not a [`FencingToken`], because it is negative or above 2^53.
#[derive(Clone, Copy, PartialEq, Eq, Debug, thiserror::Error)]
#[error("{0} is no fencing token, a number from 0 to 2^53: find the program that wrote it in place of a token")]
pub struct InvalidToken(i128);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn validity_ends_before_the_servers_lease() {
        let sent = Moment::from_nanos(0);
        let valid = valid_until(sent, Duration::from_secs(10), Duration::from_millis(100));
        assert_eq!(valid.since(sent), Duration::from_millis(9798));
    }

    #[test]
    fn nothing_is_valid_when_the_margins_eat_the_lease() {
        let sent = Moment::from_nanos(7);
        let margin = Duration::from_millis(100);
        assert_eq!(valid_until(sent, Duration::from_millis(50), margin), sent);
    }

    #[test]
    fn absurd_spans_saturate() {
        assert_eq!(Moment::from_nanos(1).after(Duration::MAX), Moment::NEVER);
        assert_eq!(surely_over(Duration::MAX, Duration::MAX), Duration::MAX);
    }

    #[test]
    fn clock_sample_runs_with_the_local_clock() {
        let clock_sample =
            ClockSample { sent: Moment::from_nanos(1_000_000), server: ServerTime::from_micros(5_000_001) };
        let later = Moment::from_nanos(3_000_000);
        assert_eq!(clock_sample.server_time_at(later).as_micros(), 5_002_001);
        assert_eq!(clock_sample.server_time_at(later).as_millis_up(), 5_003);
    }

    #[test]
    fn tokens_beyond_a_double_are_not_believed() {
        assert!(FencingToken::from_wire(1 << 53).is_some());
        assert!(FencingToken::from_wire((1 << 53) + 1).is_none());
    }

    #[test]
    fn tokens_come_back_from_integers() {
        for stored in [0, 1, 1 << 53] {
            let token = FencingToken::try_from(stored).expect("in range");
            assert_eq!((u64::from(token), i64::from(token)), (stored, i64::try_from(stored).expect("small")));
            assert_eq!(FencingToken::try_from(i64::from(token)), Ok(token));
        }
        assert!(FencingToken::try_from((1_u64 << 53) + 1).is_err());
        assert!(FencingToken::try_from((1_i64 << 53) + 1).is_err());
        assert_eq!(FencingToken::try_from(u64::MAX), Err(InvalidToken(i128::from(u64::MAX))));
        let negative = FencingToken::try_from(-1_i64).expect_err("no token");
        assert!(negative.to_string().starts_with("-1 is no fencing token"), "{negative}");
    }
}
