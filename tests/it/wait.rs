//! Waiting with a bound, and polling by hand.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::{Duration, Instant};

/// Far longer than anything takes that a case waits for.
pub(crate) const BOUND: Duration = Duration::from_secs(20);
/// Between two looks at a condition.
const LOOK: Duration = Duration::from_millis(5);

/// Runs a case, which must not hang.
pub(crate) async fn bounded(case: impl Future<Output = ()>) {
    tokio::time::timeout(BOUND * 2, case).await.expect("the case ends within its bound");
}

/// Waits until `condition` holds.
pub(crate) async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let started = Instant::now();
    while !condition().await {
        assert!(started.elapsed() < BOUND, "{what} did not come true within {BOUND:?}");
        tokio::time::sleep(LOOK).await;
    }
}

/// Waits for a future that must come to its end.
pub(crate) async fn soon<T>(what: &str, future: impl Future<Output = T>) -> T {
    match tokio::time::timeout(BOUND, future).await {
        Ok(output) => output,
        Err(_) => panic!("{what} did not happen within {BOUND:?}"),
    }
}

/// Polls a future once, which must not be ready yet.
pub(crate) fn start<F: Future + Unpin>(future: &mut F) {
    let mut context = Context::from_waker(std::task::Waker::noop());
    assert!(Pin::new(future).poll(&mut context).is_pending(), "the future is ready at its first poll");
}

/// Asserts that a future stays pending for a while. A look, not a synchronisation: nothing depends on its length.
pub(crate) async fn stays_pending<F: Future + Unpin>(what: &str, future: &mut F) {
    let early = tokio::time::timeout(Duration::from_millis(30), future).await;
    assert!(early.is_err(), "{what} happened");
}

/// Polls a future at most `left` times, each time when it was woken, then drops it.
pub(crate) struct Polled<F> {
    future: Option<Pin<Box<F>>>,
    left: u32,
}

impl<F> Polled<F> {
    pub(crate) fn times(left: u32, future: F) -> Self {
        Self { future: Some(Box::pin(future)), left }
    }
}

impl<F: Future> Future for Polled<F> {
    /// `None` if it was dropped before its end.
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<Self::Output> {
        if self.left == 0 {
            self.future = None;
            return Poll::Ready(None);
        }
        self.left -= 1;
        let future = self.future.as_mut().expect("not polled after its end");
        let polled = future.as_mut().poll(context);
        match polled {
            Poll::Ready(output) => {
                self.future = None;
                Poll::Ready(Some(output))
            }
            Poll::Pending if self.left == 0 => {
                self.future = None;
                Poll::Ready(None)
            }
            Poll::Pending => Poll::Pending,
        }
    }
}
