//! Limit for requests in flight on one connection, adapted to the speed of the server.
//!
//! The server executes a request after all that were sent before it. A request that waits too long counts as
//! unanswered, and its caller sends it again. Without a limit, a slow server would therefore get more work the slower
//! it is.
//!
//! So the limit grows while answers come about as fast as the fastest one. It shrinks when requests wait behind others.
//! A caller without a permit waits in this process, which costs the server nothing. Releases and renewals have some
//! permits of their own, and do not wait behind acquisitions.
//!
//! Source: delay-based congestion control, as in Brakmo and Peterson, "TCP Vegas" (1995), and LEDBAT (RFC 6817).

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::base::lease::Moment;

/// Upper bound of the limit.
pub(in crate::net) const MAX_IN_FLIGHT: usize = 256;
/// Lower bound of the limit, and its first value.
const MIN_IN_FLIGHT: usize = 16;
/// Additional permits, for requests that go ahead of acquisitions.
const AHEAD: usize = 16;

/// Order between requests that wait for a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum Precedence {
    InTurn,
    /// Ahead of requests that acquire.
    Ahead,
}

/// Permits of one connection.
pub(super) struct InFlightLimit {
    /// Permits within the limit, first come, first served. Closed when the connection is given up.
    permits: Semaphore,
    ahead: Semaphore,
    /// Time of the fastest answer, in nanoseconds.
    fastest: AtomicU64,
    /// Present limit. It usually has its upper bound and cannot grow. Atomic, so that this check needs no lock.
    size: AtomicUsize,
    /// Number of permits above the limit. The next permits that come back are dropped instead.
    surplus: AtomicUsize,
    /// Time of the last reduction.
    shrunk: Mutex<Moment>,
    /// Number of permits given back so far.
    returned: AtomicU64,
    pub(super) response_timeout: Duration,
}

impl InFlightLimit {
    pub(super) fn new(response_timeout: Duration) -> Self {
        Self {
            permits: Semaphore::new(MIN_IN_FLIGHT),
            ahead: Semaphore::new(AHEAD),
            fastest: AtomicU64::new(u64::MAX),
            size: AtomicUsize::new(MIN_IN_FLIGHT),
            surplus: AtomicUsize::new(0),
            shrunk: Mutex::new(Moment::from_nanos(0)),
            returned: AtomicU64::new(0),
            response_timeout,
        }
    }

    /// Takes a permit, if one is free and no other caller waits for it.
    pub(super) fn try_take(&self) -> Option<Permit<'_>> {
        self.permits.try_acquire().ok().map(|permit| Permit {
            space: self,
            permit: Some(permit),
            of: Precedence::InTurn,
        })
    }

    /// Returns true if a caller would get a permit at once.
    pub(super) fn has_free_permit(&self) -> bool {
        self.permits.available_permits() > 0
    }

    /// Waits for a permit, first come, first served. Returns `None` if the connection was given up, or if no permit
    /// came back for `max_wait`. In the second case, futures that no task polls have all permits.
    pub(super) async fn take(&self, of: Precedence, max_wait: Duration) -> Option<Permit<'_>> {
        let permits = match of {
            Precedence::InTurn => &self.permits,
            Precedence::Ahead => &self.ahead,
        };
        let mut acquiring = pin!(permits.acquire());
        loop {
            let returned = self.returned.load(Ordering::Relaxed);
            match tokio::time::timeout(max_wait, acquiring.as_mut()).await {
                Ok(permit) => return permit.ok().map(|permit| Permit { space: self, permit: Some(permit), of }),
                Err(_) if self.returned.load(Ordering::Relaxed) == returned => return None,
                Err(_) => {}
            }
        }
    }

    /// Fails all callers that wait for a permit, so that they use another connection.
    pub(super) fn close(&self) {
        self.permits.close();
        self.ahead.close();
    }

    /// Notes that a request which was sent at `sent` was answered now, or counts as unanswered from now on.
    pub(super) fn is_back(&self, sent: Moment, now: Moment) {
        let took = u64::try_from(now.since(sent).as_nanos()).unwrap_or(u64::MAX);
        let fastest = self.fastest.load(Ordering::Relaxed);
        if took < fastest {
            self.fastest.store(took, Ordering::Relaxed);
        }
        let waited = Duration::from_nanos(took.saturating_sub(fastest));
        if waited > self.response_timeout / 4 {
            self.shrinks(sent, now);
        } else if self.size.load(Ordering::Relaxed) < MAX_IN_FLIGHT && waited < self.response_timeout / 8 {
            self.grows();
        }
    }

    /// Halves the limit. A request that was sent before the last reduction does not reduce it again.
    fn shrinks(&self, sent: Moment, now: Moment) {
        let mut shrunk = self.shrunk.lock();
        let size = self.size.load(Ordering::Relaxed);
        let smaller = (size / 2).max(MIN_IN_FLIGHT);
        if sent < *shrunk || smaller == size {
            return;
        }
        *shrunk = now;
        // Permits in use cannot be taken back, so they are dropped when they come back.
        self.size.store(smaller, Ordering::Relaxed);
        self.surplus.fetch_add(size - smaller, Ordering::Relaxed);
    }

    /// Raises the limit by one, if at least half of it is in use. An unused limit says nothing about the server.
    fn grows(&self) {
        let _one_at_a_time = self.shrunk.lock();
        let size = self.size.load(Ordering::Relaxed);
        if size >= MAX_IN_FLIGHT || self.permits.available_permits() > size / 2 {
            return;
        }
        self.size.store(size + 1, Ordering::Relaxed);
        if !self.one_too_many() {
            self.permits.add_permits(1);
        }
    }

    /// Reduces the surplus by one permit. Returns true if there was one.
    fn one_too_many(&self) -> bool {
        let one_less = |surplus: usize| surplus.checked_sub(1);
        self.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }
}

/// Permit for one request on a connection.
pub(super) struct Permit<'a> {
    space: &'a InFlightLimit,
    permit: Option<SemaphorePermit<'a>>,
    of: Precedence,
}

impl Drop for Permit<'_> {
    fn drop(&mut self) {
        self.space.returned.fetch_add(1, Ordering::Relaxed);
        if self.of == Precedence::InTurn
            && self.space.surplus.load(Ordering::Relaxed) > 0
            && self.space.one_too_many()
            && let Some(permit) = self.permit.take()
        {
            permit.forget();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const RESPONSE_TIMEOUT: Duration = Duration::from_millis(800);
    const START: Moment = Moment::from_nanos(0);

    /// Takes all permits and returns them, as if requests of the moment `sent` were answered after `took`.
    fn answered_after(space: &InFlightLimit, sent: Moment, took: Duration) -> usize {
        let permits: Vec<_> = std::iter::from_fn(|| space.try_take()).collect();
        permits.iter().for_each(|_| space.is_back(sent, sent.after(took)));
        permits.len()
    }

    fn grown() -> InFlightLimit {
        let space = InFlightLimit::new(RESPONSE_TIMEOUT);
        while answered_after(&space, START, RESPONSE_TIMEOUT / 10) < MAX_IN_FLIGHT {}
        space
    }

    #[test]
    fn room_grows_while_it_is_used_and_answers_are_fast() {
        assert_eq!(grown().size(), MAX_IN_FLIGHT);
        let idle = InFlightLimit::new(RESPONSE_TIMEOUT);
        for _ in 0..1_000 {
            drop(idle.try_take());
            idle.is_back(START, START);
        }
        assert_eq!(idle.size(), MIN_IN_FLIGHT, "nobody has tried more");
    }

    #[test]
    fn room_shrinks_when_answers_wait_for_others_and_not_for_the_way() {
        let space = grown();
        let later = START.after(RESPONSE_TIMEOUT);
        assert_eq!(answered_after(&space, later, RESPONSE_TIMEOUT), MAX_IN_FLIGHT);
        assert_eq!(space.size(), MAX_IN_FLIGHT / 2, "once for all of them");
        for n in 2..10 {
            answered_after(&space, START.after(RESPONSE_TIMEOUT * 2 * n), RESPONSE_TIMEOUT);
        }
        assert_eq!(answered_after(&space, later, Duration::ZERO), MIN_IN_FLIGHT);
        let far = InFlightLimit::new(RESPONSE_TIMEOUT);
        while answered_after(&far, START, RESPONSE_TIMEOUT / 2) < MAX_IN_FLIGHT {}
        assert_eq!(far.size(), MAX_IN_FLIGHT, "a long way is no queue");
    }
}
