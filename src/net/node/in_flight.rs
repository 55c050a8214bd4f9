//! Limit for the requests in flight on one connection. The limit adapts to the speed of the server.
//!
//! A server executes the requests of a connection in the order of their arrival. A request that waits too long counts
//! as unanswered, and its caller sends it again. So without a limit, a server would get more requests the slower it is.
//!
//! The limit grows while requests are answered about as fast as the fastest request so far. It shrinks when answers are
//! late because their requests waited behind others. A caller without a permit waits in this process, which causes no
//! load on the server. Releases and renewals have a few permits of their own, so they do not wait behind acquisitions.
//! They may also take any other permit that is free.
//!
//! Source: delay-based congestion control, as in Brakmo and Peterson, "TCP Vegas" (1995), and LEDBAT (RFC 6817).

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::base::lease::Moment;

/// Largest value of the limit.
pub(in crate::net) const MAX_IN_FLIGHT: usize = 256;
/// Smallest value of the limit. A new connection begins with this value.
const MIN_IN_FLIGHT: usize = 16;
/// Number of additional permits, for requests with [`Precedence::Ahead`].
const AHEAD: usize = 16;

/// Precedence of a request that waits for a permit.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::net) enum Precedence {
    InTurn,
    /// Before the requests that acquire locks.
    Ahead,
}

/// In-flight limit of one connection, and its permits.
pub(super) struct InFlightLimit {
    /// Permits within the limit. Callers get them in the order in which they came. The semaphore is closed when the
    /// connection is given up.
    permits: Semaphore,
    ahead: Semaphore,
    /// Time from sending to answer of the fastest request so far, in nanoseconds.
    fastest: AtomicU64,
    /// Present value of the limit. It is usually the largest possible value, and then it cannot grow. It is atomic, so
    /// that this frequent check needs no lock.
    size: AtomicUsize,
    /// Number of permits that exist above the limit. As many of the permits that come back next are dropped.
    surplus: AtomicUsize,
    /// Time at which the limit was last reduced.
    shrunk: Mutex<Moment>,
    /// Number of permits that callers have given back so far.
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
            shrunk: Mutex::new(Moment::START),
            returned: AtomicU64::new(0),
            response_timeout,
        }
    }

    /// Takes a permit if one is free at once and no other caller waits for it.
    pub(super) fn try_take(&self) -> Option<Permit<'_>> {
        let permit = self.permits.try_acquire().ok()?;
        Some(Permit { space: self, permit: Some(permit), of: Precedence::InTurn })
    }

    /// Returns true if a caller would get a permit at once.
    pub(super) fn has_free_permit(&self) -> bool {
        self.permits.available_permits() > 0
    }

    /// Waits for a permit. Callers of the same precedence get permits in the order in which they came. Returns `None`
    /// if the connection is given up. Also returns `None` if no caller gave a permit back for `max_wait`, because all
    /// permits then belong to futures that no task polls.
    pub(super) async fn take(&self, of: Precedence, max_wait: Duration) -> Option<Permit<'_>> {
        let mut acquiring = pin!(self.acquire(of));
        loop {
            let returned = self.returned.load(Ordering::Relaxed);
            match tokio::time::timeout(max_wait, acquiring.as_mut()).await {
                Ok(permit) => return permit,
                Err(_) if self.returned.load(Ordering::Relaxed) == returned => return None,
                Err(_) => {}
            }
        }
    }

    /// Waits for a permit without a time limit. A request with [`Precedence::Ahead`] takes a permit of either kind.
    /// Otherwise it could be slower than the requests that it should overtake.
    async fn acquire(&self, precedence: Precedence) -> Option<Permit<'_>> {
        let (permit, of) = match precedence {
            Precedence::InTurn => (self.permits.acquire().await, Precedence::InTurn),
            Precedence::Ahead => tokio::select! {
                // The additional permits come first, so that the others stay free for acquisitions.
                biased;
                permit = self.ahead.acquire() => (permit, Precedence::Ahead),
                permit = self.permits.acquire() => (permit, Precedence::InTurn),
            },
        };
        permit.ok().map(|permit| Permit { space: self, permit: Some(permit), of })
    }

    /// Ends the wait of all callers without a permit, so that they use another connection.
    pub(super) fn close(&self) {
        self.permits.close();
        self.ahead.close();
    }

    /// Adapts the limit after a request that was sent at `sent`. At `now` the request was answered, or its response
    /// timeout ended.
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

    /// Halves the limit. Does nothing if the request was sent before the last reduction, because the requests of one
    /// queue must reduce the limit only once.
    fn shrinks(&self, sent: Moment, now: Moment) {
        let mut shrunk = self.shrunk.lock();
        let size = self.size.load(Ordering::Relaxed);
        let smaller = (size / 2).max(MIN_IN_FLIGHT);
        if sent < *shrunk || smaller == size {
            return;
        }
        *shrunk = now;
        // Permits that callers hold cannot be taken away. So the surplus is dropped when callers give permits back.
        self.size.store(smaller, Ordering::Relaxed);
        self.surplus.fetch_add(size - smaller, Ordering::Relaxed);
    }

    /// Raises the limit by one, if at least half of the permits are in use. If few are in use, the fast answers do not
    /// show that the server can take more requests.
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

    /// Reduces the surplus by one permit. Returns false if there was no surplus.
    fn one_too_many(&self) -> bool {
        let one_less = |surplus: usize| surplus.checked_sub(1);
        self.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }
}

/// Permission to have one request in flight on a connection.
pub(super) struct Permit<'a> {
    space: &'a InFlightLimit,
    permit: Option<SemaphorePermit<'a>>,
    /// Kind of the permit. A request with [`Precedence::Ahead`] may have a permit of the other kind.
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

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/net/node/in_flight.rs"]
mod tests;
