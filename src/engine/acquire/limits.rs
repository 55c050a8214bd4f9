//! Ends of a wait without a grant: the caller's limit, a server that does not answer, and `close`.

use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use super::Patience;
use super::local::LocalWaiter;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::engine::Engine;
use crate::lock::side::SideOutage;
use crate::lock::wait::FirstAnswer;
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
/// An acquisition that gives up waits for the end of an attempt that is under way.
#[derive(Debug, Default)]
pub(super) struct Attempts {
    /// More than one, because a share that was handed over may need a renewal during an attempt.
    underway: AtomicUsize,
    is_first_over: AtomicBool,
    has_stopped: AtomicBool,
    over: Notify,
}

/// An attempt that is under way. Its drop ends it.
pub(super) struct UnderwayAttempt(Arc<Attempts>);

impl Drop for UnderwayAttempt {
    fn drop(&mut self) {
        self.0.is_first_over.store(true, Ordering::Release);
        self.0.underway.fetch_sub(1, Ordering::Release);
        self.0.over.notify_one();
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

    /// Returns at once before and after the first attempt.
    async fn first_over(&self) {
        while self.is_underway() && !self.is_first_over.load(Ordering::Acquire) {
            self.over.notified().await;
        }
    }

    /// Lets no further attempt begin, and resolves when none is under way.
    async fn stop(&self) {
        self.has_stopped.store(true, Ordering::Release);
        while self.is_underway() {
            self.over.notified().await;
        }
    }
}

/// Resolves when the caller does not wait any longer. `None` for a caller that waits for as long as others hold the lock.
pub(super) type Impatience = Option<BoxFuture<'static, GivesUp>>;

impl LocalWaiter {
    /// Returns the end of the caller's patience. `attempts` are those of the acquisition, if it may send requests. A waiter that
    /// is woken begins to count anew, from the same moments.
    pub(super) fn impatience(&self, attempts: Option<Arc<Attempts>>) -> Impatience {
        let (began, limit, patience) = (self.began, self.limit, self.patience);
        if limit.is_none() && patience == Patience::Wait {
            return None;
        }
        let listening = self.entry.as_ref()?.awaited_first_answer();
        let (engine, key) = (Arc::clone(&self.engine), Arc::clone(&self.key));
        Some(Box::pin(async move {
            let engine = &engine;
            let silence = async {
                match patience {
                    Patience::Wait => std::future::pending().await,
                    Patience::AskOnce => silence_of(engine, &key, &listening, began).await,
                }
            };
            let why = tokio::select! {
                biased;
                end = silence => end,
                end = limit_of(engine, &key, &listening, limit, attempts.as_deref()) => end,
            };
            let at = engine.now();
            let counts_from = limit.max(listening.recall_until()).unwrap_or(at);
            let answer_by = counts_from.after(withdrawal_span(engine));
            GivesUp { why, at, outage: listening.outage(), answer_by }
        }))
    }
}

impl GivesUp {
    /// Returns the end of an acquisition whose manager is closed.
    pub(super) fn at_close(now: Moment) -> Self {
        Self { why: WaitEnd::Closed, at: now, outage: None, answer_by: now }
    }
}

/// Resolves when the caller does not wait any longer, or when the manager is closed.
pub(super) async fn given_up(engine: &Engine, impatience: &mut Impatience) -> GivesUp {
    let impatient = async {
        match impatience {
            Some(impatience) => impatience.await,
            None => std::future::pending().await,
        }
    };
    tokio::select! {
        biased;
        () = engine.closing.closed() => GivesUp::at_close(engine.now()),
        given_up = impatient => given_up,
    }
}

/// Resolves when the wait is over: at the limit, but not before the first attempt is over. This is the attempt of the
/// acquisition itself, or that of the leader of its side. An attempt may wait for a permit behind many others. Then the wait
/// is over twice the response timeout after the limit, and it is no outage if the node answers other requests. A cached hold
/// must not refuse the acquisition, so the process that caches it gets its time to release it.
async fn limit_of(
    engine: &Engine,
    key: &Key,
    listening: &FirstAnswer,
    limit: Option<Moment>,
    attempts: Option<&Attempts>,
) -> WaitEnd {
    let Some(limit) = limit else {
        return std::future::pending().await;
    };
    at(engine, limit).await;
    let shown = async {
        listening.first_answer().await;
        if let Some(attempts) = attempts {
            attempts.first_over().await;
        }
    };
    tokio::select! {
        biased;
        () = shown => {}
        () = at(engine, limit.after(engine.options().response_timeout * 2)) => match engine.scheme.contact(key) {
            ServerContact { served: Some(served), is_silent: false } if served >= limit => {}
            _ => return WaitEnd::Silence,
        },
    }
    if let Some(until) = listening.recall_until() {
        at(engine, until).await;
    }
    WaitEnd::Limit
}

/// Resolves when the node has answered no request for twice the response timeout, counted from `began`, or from the end of
/// the time that recalled holders have to reply.
async fn silence_of(engine: &Engine, key: &Key, listening: &FirstAnswer, began: Moment) -> WaitEnd {
    let patience = engine.options().response_timeout * 2;
    let mut until = began.after(patience);
    loop {
        at(engine, until).await;
        match engine.scheme.contact(key) {
            ServerContact { served: Some(served), is_silent: false } if served.after(patience) > until => {
                until = served.after(patience);
            }
            _ => match listening.recall_until() {
                Some(called) if called.after(patience) > until => until = called.after(patience),
                _ => return WaitEnd::Silence,
            },
        }
    }
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
    tokio::select! {
        biased;
        result = &mut run => Some(result),
        () = attempts.stop() => None,
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
