//! How many requests are under way on one connection: as many as are answered soon.
//!
//! What is sent waits at the server for what was sent before it, and what waits there for too long counts as unanswered and is
//! sent again, so that a slow server would get the more to do the slower it is. So the room grows while answers come about as
//! fast as the fastest did, and shrinks when they wait for others. Whoever finds none waits here, where that costs nothing.
//! What gives a lock back does not wait behind all who want one: there is some room for these alone.
//! Source: delay-based congestion control, as in Brakmo and Peterson, "TCP Vegas" (1995), and LEDBAT (RFC 6817).

use std::pin::pin;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::lease::Moment;

/// Requests that may be under way on one connection, at most, and that wait for no room.
pub(in crate::transport) const MAX_IN_FLIGHT: usize = 256;
/// In the beginning, and whatever the server does.
const MIN_IN_FLIGHT: usize = 16;
/// Beside them, for what goes ahead.
const AHEAD: usize = 16;

/// Who waits for whom.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(in crate::transport) enum Precedence {
    InTurn,
    /// Of those who acquire.
    Ahead,
}

/// The room on one connection.
pub(super) struct Space {
    /// First come, first served. Closed when the connection is given up.
    permits: Semaphore,
    ahead: Semaphore,
    /// The fastest answer took so long, in nanoseconds.
    fastest: AtomicU64,
    /// How many there may be: mostly as many as can be, which is then all there is to know.
    size: AtomicUsize,
    /// How many too many there are, which go when they are given back.
    surplus: AtomicUsize,
    /// When it became smaller.
    shrunk: Mutex<Moment>,
    /// How many requests have given their room back.
    returned: AtomicU64,
    pub(super) response_timeout: Duration,
}

impl Space {
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

    /// Room for a request, if there is some and nobody waits for it.
    pub(super) fn try_take(&self) -> Option<Room<'_>> {
        self.permits.try_acquire().ok().map(|permit| Room { space: self, permit: Some(permit), of: Precedence::InTurn })
    }

    /// Whether somebody who asks now finds room at once.
    pub(super) fn has_room(&self) -> bool {
        self.permits.available_permits() > 0
    }

    /// Waits for room, first come, first served. `None` if the connection was given up, or if nobody gave any room back for so
    /// long: futures that nobody polls have it all.
    pub(super) async fn take(&self, of: Precedence, patience: Duration) -> Option<Room<'_>> {
        let permits = match of {
            Precedence::InTurn => &self.permits,
            Precedence::Ahead => &self.ahead,
        };
        let mut acquiring = pin!(permits.acquire());
        loop {
            let returned = self.returned.load(Ordering::Relaxed);
            match tokio::time::timeout(patience, acquiring.as_mut()).await {
                Ok(permit) => return permit.ok().map(|permit| Room { space: self, permit: Some(permit), of }),
                Err(_) if self.returned.load(Ordering::Relaxed) == returned => return None,
                Err(_) => {}
            }
        }
    }

    /// Whoever waits for room goes elsewhere.
    pub(super) fn close(&self) {
        self.permits.close();
        self.ahead.close();
    }

    /// What was sent then was answered now, or is taken for unanswered.
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

    /// Once for all that were sent before it shows.
    fn shrinks(&self, sent: Moment, now: Moment) {
        let mut shrunk = self.shrunk.lock();
        let size = self.size.load(Ordering::Relaxed);
        let smaller = (size / 2).max(MIN_IN_FLIGHT);
        if sent < *shrunk || smaller == size {
            return;
        }
        *shrunk = now;
        self.size.store(smaller, Ordering::Relaxed);
        self.surplus.fetch_add(size - smaller, Ordering::Relaxed);
    }

    /// Only if it is needed: what nobody has tried says nothing of the server.
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

    /// Whether there was one too many, which there is no more.
    fn one_too_many(&self) -> bool {
        let one_less = |surplus: usize| surplus.checked_sub(1);
        self.surplus.fetch_update(Ordering::Relaxed, Ordering::Relaxed, one_less).is_ok()
    }

    #[cfg(test)]
    pub(super) fn size(&self) -> usize {
        self.size.load(Ordering::Relaxed)
    }
}

/// Room for one request on a connection.
pub(super) struct Room<'a> {
    space: &'a Space,
    permit: Option<SemaphorePermit<'a>>,
    of: Precedence,
}

impl Drop for Room<'_> {
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

    /// All the room there is, given back when this has been answered after so long.
    fn answered_after(space: &Space, sent: Moment, took: Duration) -> usize {
        let rooms: Vec<_> = std::iter::from_fn(|| space.try_take()).collect();
        rooms.iter().for_each(|_| space.is_back(sent, sent.after(took)));
        rooms.len()
    }

    fn grown() -> Space {
        let space = Space::new(RESPONSE_TIMEOUT);
        while answered_after(&space, START, RESPONSE_TIMEOUT / 10) < MAX_IN_FLIGHT {}
        space
    }

    #[test]
    fn room_grows_while_it_is_used_and_answers_are_fast() {
        assert_eq!(grown().size(), MAX_IN_FLIGHT);
        let idle = Space::new(RESPONSE_TIMEOUT);
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
        let far = Space::new(RESPONSE_TIMEOUT);
        while answered_after(&far, START, RESPONSE_TIMEOUT / 2) < MAX_IN_FLIGHT {}
        assert_eq!(far.size(), MAX_IN_FLIGHT, "a long way is no queue");
    }
}
