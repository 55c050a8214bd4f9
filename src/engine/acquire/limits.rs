//! Ends of a wait without a grant: the caller's limit, a server that does not answer, and `close`.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Patience;
use super::local::LocalWaiter;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::engine::Engine;
use crate::lock::side::SideOutage;
use crate::lock::wait::WaiterSide;
use crate::store::{BoxFuture, ServerContact};

/// Why an acquisition ends without a grant.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum WaitEnd {
    Closed,
    /// The server did not answer in time.
    Silence,
    /// The caller's limit.
    Limit,
}

/// The end of an acquisition that is not granted in time.
#[derive(Debug)]
pub(super) struct GivesUp {
    pub(super) why: WaitEnd,
    pub(super) at: Moment,
    /// Present if the server did not answer the requests of this side of the lock then.
    pub(super) outage: Option<SideOutage>,
    /// Latest moment until which the caller waits for the first answer to its withdrawal. An answer may extend the wait.
    pub(super) answer_by: Moment,
}

/// Attempts of an acquisition with a limit. Before the first attempt is over, the limit cannot tell a refusal from an outage.
/// An acquisition that gives up waits for the end of an attempt that is under way. All of it happens in one task, which
/// polls the attempt first and looks then.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// More than one, because a share that was handed over may need a renewal during an attempt.
    underway: AtomicUsize,
    is_first_over: AtomicBool,
    has_stopped: AtomicBool,
}

/// An attempt that is under way. Its drop ends it.
pub(super) struct UnderwayAttempt(Arc<Attempts>);

impl Drop for UnderwayAttempt {
    fn drop(&mut self) {
        self.0.is_first_over.store(true, Ordering::Release);
        self.0.underway.fetch_sub(1, Ordering::Release);
    }
}

impl Attempts {
    pub(super) fn begin(self: Arc<Self>) -> UnderwayAttempt {
        self.underway.fetch_add(1, Ordering::Release);
        UnderwayAttempt(self)
    }

    pub(super) fn has_stopped(&self) -> bool {
        self.has_stopped.load(Ordering::Acquire)
    }

    fn is_underway(&self) -> bool {
        self.underway.load(Ordering::Acquire) > 0
    }

    fn is_first_underway(&self) -> bool {
        self.is_underway() && !self.is_first_over.load(Ordering::Acquire)
    }
}

/// Moments at which a caller that does not wait for ever looks whether it gives up.
pub(super) struct Impatience {
    engine: Arc<Engine>,
    key: Arc<Key>,
    side: WaiterSide,
    /// Attempts of the acquisition, if it may send requests.
    attempts: Option<Arc<Attempts>>,
    limit: Option<Moment>,
    /// End of the time for which a try bears that the node answers no request.
    silent_at: Moment,
    /// End of the wait, from the moment on at which the limit has passed and the first attempt is over.
    ends_at: Option<Moment>,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

impl LocalWaiter {
    /// Returns the end of the caller's patience, or `None` for a caller that waits for as long as others hold the lock. A waiter
    /// that is woken begins to count anew, from the same moments.
    pub(super) fn impatience(&self, attempts: Option<Arc<Attempts>>) -> Option<Box<Impatience>> {
        let engine = Arc::clone(&self.engine);
        let silent_at = match self.patience {
            Patience::Wait => Moment::NEVER,
            Patience::AskOnce => self.began.after(silence_span(&engine)),
        };
        if self.limit.is_none() && silent_at == Moment::NEVER {
            return None;
        }
        let (side, key) = (self.entry.as_ref()?.side(), Arc::clone(&self.key));
        let (limit, ends_at, timer) = (self.limit, None, None);
        Some(Box::new(Impatience { engine, key, side, attempts, limit, silent_at, ends_at, timer }))
    }
}

impl Impatience {
    /// Is ready when the caller does not wait any longer. The caller polls it whenever its task was woken, because an
    /// answer may bring the end forward.
    pub(super) fn poll(&mut self, cx: &mut Context<'_>) -> Poll<GivesUp> {
        loop {
            let now = self.engine.now();
            let at = match self.look(now) {
                ControlFlow::Break(why) => return Poll::Ready(self.given_up(why, now)),
                ControlFlow::Continue(at) => at,
            };
            if self.timer.as_ref().is_none_or(|(planned, _)| *planned != at) {
                self.timer = Some((at, Box::pin(self.engine.clock.sleep_until(at))));
            }
            if let Some((_, timer)) = &mut self.timer {
                ready!(timer.as_mut().poll(cx));
            }
            self.timer = None;
        }
    }

    /// Returns the reason for which the wait is over, or when to look next.
    fn look(&mut self, now: Moment) -> ControlFlow<WaitEnd, Moment> {
        self.look_for_silence(now)?;
        let limit = self.look_at_limit(now)?;
        ControlFlow::Continue(limit.min(self.silent_at))
    }

    /// Ends a try whose node has answered no request for twice the response timeout, counted from its start, or from the end
    /// of the time that recalled holders have to reply.
    fn look_for_silence(&mut self, now: Moment) -> ControlFlow<WaitEnd> {
        let span = silence_span(&self.engine);
        while self.silent_at <= now {
            let signs = [self.last_served(), self.side.recall_until()].map(|sign| sign.map(|sign| sign.after(span)));
            match signs.into_iter().flatten().find(|until| *until > self.silent_at) {
                Some(until) => self.silent_at = until,
                None => return ControlFlow::Break(WaitEnd::Silence),
            }
        }
        ControlFlow::Continue(())
    }

    /// Ends the wait at the limit, but not before the first attempt is over. This is the attempt of the acquisition itself, or
    /// that of the leader of its side. An attempt may wait for a permit behind many others. Then the wait is over twice the
    /// response timeout after the limit, and it is no outage if the node answers other requests. A cached hold must not
    /// refuse the acquisition, so the process that caches it gets its time to release it.
    fn look_at_limit(&mut self, now: Moment) -> ControlFlow<WaitEnd, Moment> {
        let Some(limit) = self.limit else {
            return ControlFlow::Continue(Moment::NEVER);
        };
        if now < limit {
            return ControlFlow::Continue(limit);
        }
        if self.ends_at.is_none() {
            let own = self.attempts.as_ref().is_some_and(|attempts| attempts.is_first_underway());
            if self.side.awaits_first_answer() || own {
                let late = limit.after(silence_span(&self.engine));
                if now < late {
                    return ControlFlow::Continue(late);
                }
                if self.last_served().is_none_or(|served| served < limit) {
                    return ControlFlow::Break(WaitEnd::Silence);
                }
            }
        }
        match *self.ends_at.get_or_insert_with(|| self.side.recall_until().unwrap_or(limit)) {
            ends_at if ends_at > now => ControlFlow::Continue(ends_at),
            _ => ControlFlow::Break(WaitEnd::Limit),
        }
    }

    /// Returns when the node last answered a request, unless it is silent.
    fn last_served(&self) -> Option<Moment> {
        let ServerContact { served, is_silent } = self.engine.scheme.contact(&self.key);
        served.filter(|_| !is_silent)
    }

    fn given_up(&self, why: WaitEnd, at: Moment) -> GivesUp {
        let counts_from = self.limit.max(self.side.recall_until()).unwrap_or(at);
        GivesUp { why, at, outage: self.side.outage(), answer_by: counts_from.after(withdrawal_span(&self.engine)) }
    }
}

impl GivesUp {
    /// Returns the end of an acquisition whose manager is closed.
    pub(super) fn at_close(now: Moment) -> Self {
        Self { why: WaitEnd::Closed, at: now, outage: None, answer_by: now }
    }
}

/// Resolves when the caller does not wait any longer, or when the manager is closed.
pub(super) async fn given_up(engine: &Engine, impatience: &mut Option<Box<Impatience>>) -> GivesUp {
    let impatient = poll_fn(|cx| impatience.as_mut().map_or(Poll::Pending, |impatience| impatience.poll(cx)));
    tokio::select! {
        biased;
        () = engine.closing.closed() => GivesUp::at_close(engine.now()),
        given_up = impatient => given_up,
    }
}

/// Time without an answer of the node after which a caller takes it for silent.
fn silence_span(engine: &Engine) -> Duration {
    engine.options().response_timeout * 2
}

/// Returns the longest time for which a caller that gives up waits for an answer to its withdrawal.
pub(super) fn withdrawal_span(engine: &Engine) -> Duration {
    engine.options().response_timeout * 2
}

/// Waits until the attempt that is under way is over, and returns its result if that ends the acquisition. No further
/// attempt begins.
pub(super) async fn heard_out<T>(
    engine: &Engine,
    mut run: Pin<&mut impl Future<Output = T>>,
    attempts: &Attempts,
    until: Moment,
) -> Option<T> {
    // After the first poll of `run`, since another thread may have made this waiter the leader meanwhile.
    let stopped = poll_fn(|_| {
        attempts.has_stopped.store(true, Ordering::Release);
        if attempts.is_underway() { Poll::Pending } else { Poll::Ready(()) }
    });
    tokio::select! {
        biased;
        result = &mut run => Some(result),
        () = stopped => None,
        () = at(engine, until) => None,
    }
}

/// Resolves at this moment. For most callers it is `NEVER`, and then no timer is allocated.
pub(super) async fn at(engine: &Engine, moment: Moment) {
    if moment == Moment::NEVER {
        std::future::pending().await
    }
    Box::pin(engine.clock.sleep_until(moment)).await;
}
