//! Outage of one node: the time from a request without an answer until the node answers again. An [`Outage`] keeps the
//! error that began the outage, counts the callers that wait for its end, and sets the pauses of the
//! [probe](super::probe).

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::backoff::{Backoff, Jitter};
use crate::base::error::{Refusal, Source};
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::single_task::SingleTask;
use crate::base::topology::AddressSource;
use crate::net::outages::{Outages, Trouble};

pub(super) struct Outage {
    node: Arc<str>,
    source: AddressSource,
    outages: Arc<Outages>,
    /// True during an outage: a request got no answer, and the node has not answered any request since.
    is_silent: AtomicBool,
    /// True if the probe has paused since the node last executed a request.
    was_probed: AtomicBool,
    state: Mutex<OutageState>,
    pub(super) probe_task: SingleTask,
    /// Wakes the waiting callers when the node answers again.
    pub(super) answered: Notify,
}

#[derive(Default)]
struct OutageState {
    /// Number of callers that wait for the end of the outage.
    waiting: usize,
    /// True if a caller began to wait since the probe task last checked this flag.
    is_wanted: bool,
    source: Option<Source>,
    /// Pauses between the probes of this outage. If one probe task ends and a later one begins, the pauses go on
    /// growing.
    backoff: Option<Backoff>,
}

impl Outage {
    pub(super) fn new(node: &Arc<str>, source: AddressSource, outages: Arc<Outages>) -> Self {
        Self {
            node: Arc::clone(node),
            source,
            outages,
            is_silent: AtomicBool::new(false),
            was_probed: AtomicBool::new(false),
            state: Mutex::default(),
            probe_task: SingleTask::default(),
            answered: Notify::new(),
        }
    }

    pub(super) fn is(&self) -> bool {
        self.is_silent.load(Ordering::Acquire)
    }

    /// Notes that the node executed a request. The pauses of the next outage then begin with the shortest.
    pub(super) fn is_over(&self) {
        if self.was_probed.load(Ordering::Relaxed) {
            self.was_probed.store(false, Ordering::Relaxed);
            self.state.lock().backoff = None;
        }
    }

    pub(super) fn pause(&self) -> Duration {
        self.was_probed.store(true, Ordering::Relaxed);
        self.state.lock().backoff.get_or_insert_with(Backoff::new).pause(Jitter::draw())
    }

    /// Begins an outage. The caller has checked that a request, sent at `sent`, got no answer or could not be sent, and
    /// that no later request was answered. The next caller that waits for the node starts a probe task.
    pub(super) fn begins(&self, source: Option<Source>, sent: Moment, now: Moment) {
        let mut state = self.state.lock();
        state.source.clone_from(&source);
        self.is_silent.store(true, Ordering::Release);
        let is_new = self.outages.begins(&self.node, Trouble::Silent, sent);
        // The log may call a user's subscriber of `tracing`, so the mutex is released first.
        drop(state);
        if is_new {
            catch_panic(|| events::node_unreachable(&self.node, &self.source, source.as_deref(), now.since(sent)));
        }
    }

    /// Returns the error that began the outage.
    pub(super) fn source(&self) -> Option<Source> {
        self.state.lock().source.clone()
    }

    /// Returns true if a caller waits for the node now, or began to wait since the last call of this function.
    pub(super) fn is_wanted(&self) -> bool {
        let mut state = self.state.lock();
        std::mem::take(&mut state.is_wanted) || state.waiting > 0
    }

    pub(super) fn is_waited_for(&self) -> bool {
        self.state.lock().waiting > 0
    }

    /// Notes that the node has answered a request of any caller.
    pub(super) fn ends(&self, now: Moment) {
        if self.is() {
            self.note_greeting(now);
        }
    }

    /// Notes that the server has accepted a new connection. Logs the end of the outage even if this value knows of no
    /// outage. This is necessary because the fleet may have forgotten the node during the outage and created this value
    /// later.
    pub(super) fn note_greeting(&self, now: Moment) {
        let since = self.on_answer(|| self.outages.ends(&self.node));
        if let Some(since) = since {
            catch_panic(|| events::node_back(&self.node, now.since(since)));
        }
    }

    /// Notes that the node answers, but refuses the connections of this process.
    pub(super) fn refuses(&self, refusal: Refusal, words: &str, now: Moment) {
        let is_new = self.on_answer(|| self.outages.begins(&self.node, Trouble::Refuses, now));
        if is_new {
            catch_panic(|| events::node_refuses(&self.node, &self.source, refusal, words));
        }
    }

    /// Ends the silence of the node, and wakes the callers that wait for it. `note` changes the list of outages.
    fn on_answer<T>(&self, note: impl FnOnce() -> T) -> T {
        let state = self.state.lock();
        self.is_silent.store(false, Ordering::Release);
        let noted = note();
        drop(state);
        self.answered.notify_waiters();
        noted
    }
}

/// Caller that waits for the end of an outage. The outage counts the caller until this value is dropped.
pub(super) struct Waits<'a>(&'a Outage);

impl<'a> Waits<'a> {
    pub(super) fn begin(outage: &'a Outage) -> Self {
        let mut state = outage.state.lock();
        state.waiting += 1;
        state.is_wanted = true;
        drop(state);
        Self(outage)
    }
}

impl Drop for Waits<'_> {
    fn drop(&mut self) {
        self.0.state.lock().waiting -= 1;
    }
}
