//! A node that does not answer: one prober asks it again and again, the others wait for its word.
//!
//! However many callers wait, a silent node is asked by one of them all, with pauses that grow; the word that it answers
//! again wakes the rest. Nobody probes a node that nobody asks.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Weak};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use super::lines::Lines;
use crate::backoff::Backoff;
use crate::error::Source;
use crate::transport::fault::Fault;

#[derive(Default)]
pub(super) struct Silence {
    /// Since its last answer a request of ours had none.
    is_silent: AtomicBool,
    /// It was probed since it last did what it was asked.
    was_probed: AtomicBool,
    state: Mutex<State>,
    /// It answers again.
    word: Notify,
}

#[derive(Default)]
struct State {
    is_probing: bool,
    /// Who waits for its word.
    waiting: usize,
    /// Somebody has since the last probe.
    is_wanted: bool,
    source: Option<Source>,
    /// Of those who probe, one after the other.
    backoff: Option<Backoff>,
}

impl Silence {
    pub(super) fn is(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// It has done what it was asked: the next silence is another one.
    pub(super) fn is_over(&self) {
        if self.was_probed.load(Ordering::Relaxed) {
            self.was_probed.store(false, Ordering::Relaxed);
            self.state.lock().backoff = None;
        }
    }

    fn pause(&self) -> Duration {
        self.was_probed.store(true, Ordering::Relaxed);
        self.state.lock().backoff.get_or_insert_with(Backoff::new).pause()
    }

    /// It has answered somebody.
    pub(super) fn ends(&self) {
        if self.is() {
            self.is_silent.store(false, Ordering::Release);
            self.word.notify_waiters();
        }
    }
}

/// One who waits.
struct Waits<'a>(&'a Silence);

impl<'a> Waits<'a> {
    fn begin(silence: &'a Silence) -> Self {
        let mut state = silence.state.lock();
        state.waiting += 1;
        state.is_wanted = true;
        drop(state);
        Self(silence)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}

impl Lines {
    /// A request had no answer, and nobody else's since it was sent. Whoever asks next has it probed.
    pub(super) fn falls_silent(&self, source: Option<Source>) {
        self.silence.state.lock().source = source;
        self.silence.is_silent.store(true, Ordering::Release);
    }

    /// Returns at once, unless the node is silent: then when it answers again. Not after a response timeout, with which whoever
    /// waits has to decide.
    pub(super) async fn word(self: &Arc<Self>) -> Result<(), Fault> {
        if !self.silence.is() {
            return Ok(());
        }
        let word = self.silence.word.notified();
        tokio::pin!(word);
        word.as_mut().enable();
        let _waits = Waits::begin(&self.silence);
        if !self.silence.is() {
            return Ok(());
        }
        self.probe();
        let in_time = tokio::time::timeout(self.limits.response_timeout, word).await;
        in_time.map_err(|_| Fault::NotSent(self.silence.state.lock().source.clone()))
    }

    fn probe(self: &Arc<Self>) {
        if std::mem::replace(&mut self.silence.state.lock().is_probing, true) {
            return;
        }
        let prober = Prober { lines: Arc::downgrade(self) };
        self.home.spawn(prober.run());
    }

    /// Whether anybody would like to know.
    fn is_wanted(&self) -> bool {
        let mut state = self.silence.state.lock();
        std::mem::take(&mut state.is_wanted) || state.waiting > 0
    }
}

/// The one who asks.
struct Prober {
    lines: Weak<Lines>,
}

impl Prober {
    async fn run(self) {
        while let Some(lines) = self.lines.upgrade() {
            if !lines.silence.is() || !lines.is_wanted() {
                return self.ends(&lines);
            }
            // The connection that is there may be dead without our knowing, and would take a response timeout to show it.
            if let Some(live) = lines.current() {
                lines.give_up(&live);
            }
            // One that greets us speaks, and so does one that refuses us: that ends the silence.
            if matches!(lines.live().await, Ok(_) | Err(Fault::Refused { .. } | Fault::Broken { .. })) {
                return self.ends(&lines);
            }
            let pause = lines.silence.pause();
            drop(lines);
            tokio::time::sleep(pause).await;
        }
    }

    fn ends(self, lines: &Arc<Lines>) {
        drop(self);
        let is_wanted = lines.silence.state.lock().waiting > 0;
        // Somebody came who found this one still there.
        if is_wanted && lines.silence.is() {
            lines.probe();
        }
    }
}

/// Begins no other: a runtime that has ended drops it as soon as it begins, and there would be no end to it.
impl Drop for Prober {
    fn drop(&mut self) {
        if let Some(lines) = self.lines.upgrade() {
            lines.silence.state.lock().is_probing = false;
        }
    }
}
