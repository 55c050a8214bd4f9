//! The first copy of a release, where its guard is dropped.
//!
//! On a runtime that has a connection with room, it goes out before the drop is over: it costs what a release costs that somebody
//! waits for, and wakes no other thread. The outbox has the release all the same, half a response timeout later, and carries it
//! unless it was answered by then: that runtime may stand still, or end.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::task::{Context, Waker};

use tokio::runtime::Handle;

use crate::engine::releases::{Job, Place, Releases};
use crate::lease::Moment;
use crate::scheme::Leave;
use crate::shield::shielded;

/// Releases of one manager that go out where guards are dropped, at most. More at once go in chunks, which costs less.
pub(super) const MOST_AT_HAND: usize = 64;

/// The right to tell of one release on this runtime, which has a connection with room.
pub(super) struct AtHand {
    releases: Arc<Releases>,
    runtime: Handle,
}

impl AtHand {
    pub(super) fn of(releases: &Arc<Releases>, leave: &Leave) -> Option<Self> {
        let runtime = Handle::try_current().ok()?;
        if !releases.scheme.is_at_hand(leave) {
            return None;
        }
        let others = releases.at_hand.fetch_add(1, Ordering::Relaxed);
        // Dropped, it counts no more.
        let at_hand = Self { releases: Arc::clone(releases), runtime };
        (others < MOST_AT_HAND).then_some(at_hand)
    }

    pub(super) fn tell(self, job: Job, leave: Leave, now: Moment) {
        let runtime = self.runtime.clone();
        let place = self.releases.later(job, now.after(self.releases.patience));
        let mut telling = Box::pin(self.told(leave, place));
        // It is sent by the first poll. Whoever drops a guard, a destructor perhaps, has no use for a panic.
        let polled = shielded(|| telling.as_mut().poll(&mut Context::from_waker(Waker::noop())));
        if polled.is_some_and(|polled| polled.is_pending()) {
            drop(runtime.spawn(telling));
        }
    }

    async fn told(self, leave: Leave, place: Place) {
        let Self { releases, .. } = &self;
        let route = releases.scheme.route(&leave.key);
        let answer = releases.scheme.leave(&leave.key, &leave.id).await;
        let job = releases.waiting.lock().later.remove(&place);
        // Else the outbox has it by now, and waits for an answer of its own.
        if let Some(job) = job {
            releases.answered(job, &route, answer, releases.clock.now());
        }
    }
}

impl Drop for AtHand {
    fn drop(&mut self) {
        self.releases.at_hand.fetch_sub(1, Ordering::Relaxed);
    }
}
