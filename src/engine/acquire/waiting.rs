//! Wait of an acquisition in its process. Many tasks may wait for one lock, so a waiter is small. Its poll creates the rest of the
//! acquisition when the waiter is woken.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::limits::{GivesUp, Impatience};
use super::local::{LocalSignal, LocalWaiter, Looks};
use super::{AcquireOutcome, AfterGrant, StartedAcquire, run};
use crate::base::error::Result;

/// Acquisition that begins with a wait. Its poll is written by hand, because an `async` function has more room than its
/// variables need.
pub(super) struct FirstWait {
    waits: Option<(LocalWaiter, Waiting, Option<Box<AfterGrant>>)>,
    /// Present after the wait.
    runs: Option<StartedAcquire>,
}

/// Wait for a signal, for the end of the caller's patience, or for `close`.
pub(super) struct Waiting {
    looks: Looks,
    impatience: Option<Box<Impatience>>,
}

/// End of a wait in the process.
pub(super) enum WaitOutcome {
    Signal(LocalSignal),
    /// In a box, since most acquisitions do not give up.
    GivesUp(Box<GivesUp>),
}

impl FirstWait {
    pub(super) fn new(waiter: LocalWaiter, after: Option<Box<AfterGrant>>) -> Self {
        let waiting = Waiting::new(&waiter);
        Self { waits: Some((waiter, waiting, after)), runs: None }
    }
}

impl Waiting {
    pub(super) fn new(waiter: &LocalWaiter) -> Self {
        Self { looks: Looks::new(), impatience: waiter.impatience() }
    }

    pub(super) fn poll_end(&mut self, waiter: &mut LocalWaiter, cx: &mut Context<'_>) -> Poll<Result<WaitOutcome>> {
        waiter.engine.process.check(waiter.key.name())?;
        // Looked at first, so that a grant counts even if the limit has passed too.
        if let Poll::Ready(signal) = waiter.poll_signal(&mut self.looks, cx) {
            return Poll::Ready(signal.map(WaitOutcome::Signal));
        }
        // Read after the waiter is registered, because `close` wakes those that are.
        if waiter.engine.closing.is_closed() {
            return Poll::Ready(Ok(WaitOutcome::GivesUp(Box::new(GivesUp::at_close(waiter.engine.now())))));
        }
        let Some(impatience) = &mut self.impatience else { return Poll::Pending };
        let given_up = ready!(impatience.poll(cx));
        // Another thread may have woken this waiter since the look above, and then there was no answer to wait for.
        let signal = waiter.poll_signal(&mut self.looks, cx).map_ok(WaitOutcome::Signal);
        if signal.is_ready() { signal } else { Poll::Ready(Ok(WaitOutcome::GivesUp(Box::new(given_up)))) }
    }
}

impl Future for FirstWait {
    type Output = AcquireOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<AcquireOutcome> {
        if let Some((waiter, waiting, _)) = &mut self.waits {
            let end = ready!(waiting.poll_end(waiter, cx));
            // Taken before an error is returned, so that the entry goes with it.
            if let Some((waiter, _, after)) = self.waits.take() {
                let after = after.map_or_else(AfterGrant::default, |after| *after);
                self.runs = Some(run(waiter, Some(end?), after));
            }
        }
        self.runs.as_mut().expect("polled after its end").as_mut().poll(cx)
    }
}
