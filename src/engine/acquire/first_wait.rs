//! First wait of an acquisition in its process. Many tasks may wait for one lock, so a waiter is small. Its poll creates the
//! rest of the acquisition when the waiter is woken.

use std::pin::Pin;
use std::task::{Context, Poll, ready};

use super::limits::{GivesUp, Impatience};
use super::local::{LocalSignal, LocalWaiter, Looks};
use super::{AcquireOutcome, AfterGrant, StartedAcquire, run};
use crate::base::error::Result;

/// Acquisition that begins with a wait. Its poll is written by hand, because an `async` function has more room than its
/// variables need.
pub(super) struct FirstWait {
    waits: Option<Waiting>,
    /// Present after the wait.
    runs: Option<StartedAcquire>,
}

struct Waiting {
    waiter: LocalWaiter,
    looks: Looks,
    impatience: Option<Box<Impatience>>,
    after: Option<Box<AfterGrant>>,
}

/// End of the first wait in the process.
pub(super) enum FirstEnd {
    /// No wait, because the acquisition may send a request from the start.
    Leads,
    Signal(LocalSignal),
    GivesUp(GivesUp),
}

impl FirstWait {
    pub(super) fn new(waiter: LocalWaiter, after: Option<Box<AfterGrant>>) -> Self {
        let impatience = waiter.impatience(None);
        Self { waits: Some(Waiting { waiter, looks: Looks::new(), impatience, after }), runs: None }
    }
}

impl Waiting {
    fn poll_end(&mut self, cx: &mut Context<'_>) -> Poll<Result<FirstEnd>> {
        self.waiter.engine.process.check(self.waiter.key.name())?;
        // Looked at first, so that a grant counts even if the limit has passed too.
        if let Poll::Ready(signal) = self.waiter.poll_signal(&mut self.looks, cx) {
            return Poll::Ready(signal.map(FirstEnd::Signal));
        }
        // Read after the waiter is registered, because `close` wakes those that are.
        if self.waiter.engine.closing.is_closed() {
            return Poll::Ready(Ok(FirstEnd::GivesUp(GivesUp::at_close(self.waiter.engine.now()))));
        }
        let Some(impatience) = &mut self.impatience else { return Poll::Pending };
        let given_up = ready!(impatience.poll(cx));
        // Another thread may have woken this waiter since the look above, and then there was no answer to wait for.
        let signal = self.waiter.poll_signal(&mut self.looks, cx).map_ok(FirstEnd::Signal);
        if signal.is_ready() { signal } else { Poll::Ready(Ok(FirstEnd::GivesUp(given_up))) }
    }
}

impl Future for FirstWait {
    type Output = AcquireOutcome;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<AcquireOutcome> {
        if let Some(waits) = &mut self.waits {
            let end = ready!(waits.poll_end(cx));
            // Taken before an error is returned, so that the entry goes with it.
            if let Some(Waiting { waiter, after, .. }) = self.waits.take() {
                self.runs = Some(run(waiter, end?, after.map_or_else(AfterGrant::default, |after| *after)));
            }
        }
        self.runs.as_mut().expect("polled after its end").as_mut().poll(cx)
    }
}
