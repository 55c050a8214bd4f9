//! Control over the polls of a virtual process's futures, for pauses, crashes and dropped futures.

use std::sync::atomic::AtomicU8;

use super::*;

const OPEN: u8 = 0;
const CLOSED: u8 = 1;
const DEAD: u8 = 2;

/// Gate that a process passes before every action. It is closed while the process is paused, and for ever after a
/// crash.
///
/// Tasks of users are wrapped in a [`Pausable`]. The engine spawns its own tasks, which go on during a pause. They
/// reach neither server nor users until the gate opens, because all their messages pass here too.
#[derive(Debug, Default)]
pub struct Gate {
    state: AtomicU8,
    opened: Notify,
}

impl Gate {
    pub fn close(&self) {
        self.state.compare_exchange(OPEN, CLOSED, Ordering::SeqCst, Ordering::SeqCst).ok();
    }

    pub fn open(&self) {
        self.state.compare_exchange(CLOSED, OPEN, Ordering::SeqCst, Ordering::SeqCst).ok();
        self.opened.notify_waiters();
    }

    pub fn crash(&self) {
        self.state.store(DEAD, Ordering::SeqCst);
    }

    pub fn is_open(&self) -> bool {
        self.state.load(Ordering::SeqCst) == OPEN
    }

    pub fn is_dead(&self) -> bool {
        self.state.load(Ordering::SeqCst) == DEAD
    }

    /// Returns when the process runs.
    pub async fn pass(&self) {
        while !self.is_open() {
            let opened = self.opened.notified();
            tokio::pin!(opened);
            opened.as_mut().enable();
            if !self.is_open() {
                opened.await;
            }
        }
    }
}

/// Future that is polled only while its process runs.
pub struct Pausable<F> {
    gate: Arc<Gate>,
    opening: Option<BoxFuture<'static, ()>>,
    inner: Pin<Box<F>>,
}

impl<F> Pausable<F> {
    pub fn new(gate: &Arc<Gate>, inner: F) -> Self {
        Self { gate: Arc::clone(gate), opening: None, inner: Box::pin(inner) }
    }
}

impl<F: Future> Future for Pausable<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        let this = &mut *self;
        if !this.gate.is_open() && this.opening.is_none() {
            let gate = Arc::clone(&this.gate);
            this.opening = Some(Box::pin(async move { gate.pass().await }));
        }
        if let Some(opening) = &mut this.opening {
            if opening.as_mut().poll(cx).is_pending() {
                return Poll::Pending;
            }
            this.opening = None;
        }
        this.inner.as_mut().poll(cx)
    }
}

/// Future that is dropped in place of its n-th wait. It returns `None` then.
pub struct CutAt<F> {
    inner: Option<Pin<Box<F>>>,
    waits: u32,
}

impl<F> CutAt<F> {
    pub fn new(waits: u32, inner: F) -> Self {
        Self { inner: Some(Box::pin(inner)), waits }
    }
}

impl<F: Future> Future for CutAt<F> {
    type Output = Option<F::Output>;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<Self::Output> {
        let Some(inner) = &mut self.inner else {
            return Poll::Ready(None);
        };
        if let Poll::Ready(output) = inner.as_mut().poll(cx) {
            return Poll::Ready(Some(output));
        }
        match self.waits.checked_sub(1) {
            Some(waits) => {
                self.waits = waits;
                Poll::Pending
            }
            None => {
                self.inner = None;
                Poll::Ready(None)
            }
        }
    }
}

/// Future whose requests are recorded as those of an attempt.
pub struct ActingFor<F> {
    world: Arc<World>,
    attempt: Attempt,
    inner: Pin<Box<F>>,
}

impl<F> ActingFor<F> {
    pub fn new(world: &Arc<World>, attempt: Attempt, inner: F) -> Self {
        Self { world: Arc::clone(world), attempt, inner: Box::pin(inner) }
    }
}

impl<F: Future> Future for ActingFor<F> {
    type Output = F::Output;

    fn poll(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<F::Output> {
        self.world.acts(Some(self.attempt));
        let output = self.inner.as_mut().poll(cx);
        self.world.acts(None);
        output
    }
}
