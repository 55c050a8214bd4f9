//! That a node does not answer: since when it is known, who waits for its word, and how long its [prober](super::prober) pauses.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;
use tokio::sync::futures::Notified;

use crate::backoff::Backoff;
use crate::error::{Refusal, Source};
use crate::events;
use crate::lease::Moment;
use crate::shield::shielded;
use crate::topology::AddressSource;
use crate::transport::outages::{Outages, Trouble};

pub(super) struct Silence {
    node: Arc<str>,
    /// Source of its address.
    source: AddressSource,
    outages: Arc<Outages>,
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
    pub(super) fn new(node: &Arc<str>, source: AddressSource, outages: Arc<Outages>) -> Self {
        Self {
            node: Arc::clone(node),
            source,
            outages,
            is_silent: AtomicBool::new(false),
            was_probed: AtomicBool::new(false),
            state: Mutex::default(),
            word: Notify::new(),
        }
    }

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

    pub(super) fn pause(&self) -> Duration {
        self.was_probed.store(true, Ordering::Relaxed);
        self.state.lock().backoff.get_or_insert_with(Backoff::new).pause()
    }

    /// What was sent then had no answer, nor had anybody else's request since, or it could not be sent. Whoever asks next has
    /// the node probed.
    pub(super) fn begins(&self, source: Option<Source>, sent: Moment, now: Moment) {
        let mut state = self.state.lock();
        state.source.clone_from(&source);
        self.is_silent.store(true, Ordering::Release);
        let is_news = self.outages.begins(&self.node, Trouble::Silent, sent);
        drop(state);
        if is_news {
            shielded(|| events::node_unreachable(&self.node, &self.source, source.as_deref(), now.since(sent)));
        }
    }

    /// What showed it.
    pub(super) fn source(&self) -> Option<Source> {
        self.state.lock().source.clone()
    }

    /// Its next word.
    pub(super) fn word(&self) -> Notified<'_> {
        self.word.notified()
    }

    /// `true` if nobody probes it yet: whoever is told so does from now on.
    pub(super) fn begins_probing(&self) -> bool {
        !std::mem::replace(&mut self.state.lock().is_probing, true)
    }

    pub(super) fn ends_probing(&self) {
        self.state.lock().is_probing = false;
    }

    /// Whether anybody would like to know.
    pub(super) fn is_wanted(&self) -> bool {
        let mut state = self.state.lock();
        std::mem::take(&mut state.is_wanted) || state.waiting > 0
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// It has answered somebody.
    pub(super) fn ends(&self, now: Moment) {
        if self.is() {
            self.greeted(now);
        }
    }

    /// The same of a new connection: what is known of the node may be from before it was forgotten.
    pub(super) fn greeted(&self, now: Moment) {
        let state = self.state.lock();
        self.is_silent.store(false, Ordering::Release);
        let since = self.outages.ends(&self.node);
        drop(state);
        self.word.notify_waiters();
        if let Some(since) = since {
            shielded(|| events::node_back(&self.node, now.since(since)));
        }
    }

    /// It speaks, and will not have us.
    pub(super) fn refuses(&self, refusal: Refusal, words: &str, now: Moment) {
        let state = self.state.lock();
        self.is_silent.store(false, Ordering::Release);
        let is_news = self.outages.begins(&self.node, Trouble::Refuses, now);
        drop(state);
        self.word.notify_waiters();
        if is_news {
            shielded(|| events::node_refuses(&self.node, &self.source, refusal, words));
        }
    }
}

/// One who waits.
pub(super) struct Waits<'a>(&'a Silence);

impl<'a> Waits<'a> {
    pub(super) fn begin(silence: &'a Silence) -> Self {
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
