//! Ends of a wait without a grant: the caller's limit, a server that does not answer, and `close`.

use std::future::poll_fn;
use std::ops::ControlFlow;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use super::Patience;
use super::local::LocalWaiter;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::engine::Engine;
use crate::lock::side::{Awaits, SideOutage};
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

/// Moments at which a caller that does not wait for ever looks whether it gives up.
pub(super) struct Impatience {
    engine: Arc<Engine>,
    key: Arc<Key>,
    side: WaiterSide,
    limit: Option<Moment>,
    /// End of the time for which a try bears that the node answers no request.
    silent_at: Moment,
    /// Outage of the side when the limit had passed and the side had had its first answer. A later failure is that of a copy
    /// under way at the limit. It leaves a request in doubt, and is no outage.
    at_limit: Option<Option<SideOutage>>,
    /// End of the wait, from the moment on at which the limit has passed and no copy is under way.
    ends_at: Option<Moment>,
    timer: Option<(Moment, BoxFuture<'static, ()>)>,
}

impl LocalWaiter {
    /// Returns the end of the caller's patience, or `None` for a caller that waits for as long as others hold the lock. A waiter
    /// that is woken begins to count anew, from the same moments.
    pub(super) fn impatience(&self) -> Option<Box<Impatience>> {
        let engine = Arc::clone(&self.engine);
        let silent_at = match self.patience {
            Patience::Wait => Moment::NEVER,
            Patience::AskOnce => self.entered.after(silence_span(&engine)),
        };
        if self.limit.is_none() && silent_at == Moment::NEVER {
            return None;
        }
        let (side, key) = (self.entry.as_ref()?.side(), Arc::clone(&self.key));
        let (limit, at_limit, ends_at, timer) = (self.limit, None, None, None);
        Some(Box::new(Impatience { engine, key, side, limit, silent_at, at_limit, ends_at, timer }))
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

    /// Ends the wait at the limit, but not while a copy of the side's request is under way, and not before the side has had its
    /// first answer. A copy may wait for a permit behind many others. Then the wait is over twice the response timeout after
    /// the limit, and it is no outage if the node answers other requests. A cached hold must not refuse the acquisition, so
    /// the process that caches it gets its time to release it.
    fn look_at_limit(&mut self, now: Moment) -> ControlFlow<WaitEnd, Moment> {
        let Some(limit) = self.limit else {
            return ControlFlow::Continue(Moment::NEVER);
        };
        if now < limit {
            return ControlFlow::Continue(limit);
        }
        let awaits = if self.ends_at.is_some() { Awaits::Nothing } else { self.side.awaits() };
        if awaits != Awaits::FirstAnswer {
            self.at_limit.get_or_insert_with(|| self.side.outage());
        }
        if awaits != Awaits::Nothing {
            let late = limit.after(silence_span(&self.engine));
            if now < late {
                return ControlFlow::Continue(late);
            }
            // After an answer, an outage would be known by now, unless the task that has sent the copy is not polled.
            if awaits == Awaits::FirstAnswer && self.last_served().is_none_or(|served| served < limit) {
                return ControlFlow::Break(WaitEnd::Silence);
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
        let outage = match why {
            // After an answer, the server is not silent any more.
            WaitEnd::Limit => self.at_limit.clone().flatten().filter(|_| self.side.outage().is_some()),
            WaitEnd::Silence | WaitEnd::Closed => self.side.outage(),
        };
        GivesUp { why, at, outage, answer_by: counts_from.after(withdrawal_span(&self.engine)) }
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

/// Resolves at this moment. For most callers it is `NEVER`, and then no timer is allocated.
pub(super) async fn at(engine: &Engine, moment: Moment) {
    if moment == Moment::NEVER {
        std::future::pending().await
    }
    Box::pin(engine.clock.sleep_until(moment)).await;
}
