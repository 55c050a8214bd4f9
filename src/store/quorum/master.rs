//! One of the masters, and what it has yet to be told: grants that came to nothing, and releases that it did not answer.
//!
//! One task of the home sees to it, whatever the runtimes of callers do, for as long as there is something to tell or the
//! master is silent. While it is silent nobody else asks it anything.

use std::collections::BTreeMap;
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::attempt::{AcquisitionId, Attempt};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::backoff::Backoff;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::lease::{Moment, ServerTime};
use crate::store::{ReleaseReply, ReleaseRequest, Scheme};

/// So many are told in one pipeline.
const MAX_CHUNK: usize = 128;
/// So many are kept. What is beyond ends with its lease.
const MAX_DEBTS: usize = 8192;

/// An older one says little: clocks differ by 1 % of that.
const MAX_CLOCK_SAMPLE_AGE: Duration = Duration::from_secs(5);

pub(super) struct Master {
    pub(super) scheme: Arc<dyn Scheme>,
    clock: Clock,
    home: BackgroundRuntime,
    /// Its node serves all keys alike.
    any: Key,
    debts: Mutex<BTreeMap<(Moment, u64), Debt>>,
    number: AtomicU64,
    wake: Notify,
    is_tended: AtomicBool,
    /// Somebody would have asked it since its last probe.
    is_wanted: AtomicBool,
}

/// Something that it may have, and is to give up.
#[derive(Clone, Debug)]
pub(super) struct Debt {
    pub(super) key: Arc<Key>,
    pub(super) id: AcquisitionId,
    /// A copy of the request may arrive until then.
    pub(super) stray_until: Option<Moment>,
    /// By then it has forgotten it.
    pub(super) until: Moment,
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)
    }
}

impl Master {
    pub(super) fn new(scheme: Arc<dyn Scheme>, home: BackgroundRuntime, any: Key) -> Self {
        Self {
            clock: scheme.clock(),
            scheme,
            home,
            any,
            debts: Mutex::default(),
            number: AtomicU64::new(0),
            wake: Notify::new(),
            is_tended: AtomicBool::new(false),
            is_wanted: AtomicBool::new(false),
        }
    }

    /// Whether it is no use to ask it. If so, it is looked after until it answers again.
    pub(super) fn is_silent(self: &Arc<Self>) -> bool {
        let is_silent = self.scheme.contact(&self.any).is_silent;
        if is_silent {
            self.is_wanted.store(true, Ordering::SeqCst);
            self.tend();
            // It may sleep until something is due.
            self.wake.notify_one();
        }
        is_silent
    }

    /// What its clock says about now, if that is known well enough.
    pub(super) fn time_at(&self, now: Moment) -> Option<ServerTime> {
        let anchor = self.scheme.clock_sample()?;
        (anchor.age_at(now) <= MAX_CLOCK_SAMPLE_AGE).then(|| anchor.server_time_at(now))
    }

    /// Takes over what it is to be told, until it is or has forgotten it.
    pub(super) fn owe(self: &Arc<Self>, debt: Debt) {
        let now = self.clock.now();
        self.keep(debt, now);
        self.wake.notify_one();
        self.tend();
    }

    /// How much it is yet to be told.
    #[cfg(test)]
    pub(super) fn debts(&self) -> usize {
        self.debts.lock().len()
    }

    /// What it is to be told first.
    #[cfg(test)]
    pub(super) fn first_debt(&self) -> Debt {
        self.debts.lock().first_key_value().expect("there is one").1.clone()
    }

    fn keep(&self, debt: Debt, at: Moment) {
        let number = self.number.fetch_add(1, Ordering::Relaxed);
        let mut debts = self.debts.lock();
        if debts.len() >= MAX_DEBTS {
            debts.pop_first();
        }
        debts.insert((at, number), debt);
    }

    fn tend(self: &Arc<Self>) {
        if !self.is_tended.swap(true, Ordering::SeqCst) {
            let tender = Tender { master: Arc::clone(self), has_ended: false };
            self.home.spawn(tender.run());
        }
    }

    async fn see_to_it(&self) {
        let mut backoff = Backoff::new();
        loop {
            if self.scheme.contact(&self.any).is_silent {
                self.forget(self.clock.now());
                if !self.is_wanted.swap(false, Ordering::SeqCst) && self.debts.lock().is_empty() {
                    // Whoever wants it next has it probed.
                    self.is_tended.store(false, Ordering::SeqCst);
                    return;
                }
                // Its node has a prober, which goes on as long as somebody waits for its word.
                drop(self.scheme.ready().await);
                backoff.wait().await;
                continue;
            }
            let now = self.clock.now();
            let (due, next) = self.take_due(now);
            if !due.is_empty() {
                if self.tell(Due { master: self, debts: due }, &mut backoff).await {
                    backoff.reset();
                }
                continue;
            }
            let Some(next) = next else {
                if self.ends() {
                    return;
                }
                continue;
            };
            tokio::select! {
                biased;
                () = self.wake.notified() => {}
                () = self.clock.sleep_until(next) => {}
            }
        }
    }

    /// Ends the look-out if there is nothing left. What comes at the same time finds it either ended or going on.
    fn ends(&self) -> bool {
        self.is_tended.store(false, Ordering::SeqCst);
        let is_idle = self.debts.lock().is_empty() && !self.scheme.contact(&self.any).is_silent;
        is_idle || self.is_tended.swap(true, Ordering::SeqCst)
    }

    fn forget(&self, now: Moment) {
        self.debts.lock().retain(|_, debt| debt.until > now);
    }

    /// What is to be told now, and when there is more.
    fn take_due(&self, now: Moment) -> (Vec<Debt>, Option<Moment>) {
        let (mut debts, mut due) = (self.debts.lock(), Vec::new());
        while due.len() < MAX_CHUNK
            && let Some(first) = debts.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        (due, debts.first_key_value().map(|((at, _), _)| *at))
    }

    /// Whether any was answered.
    async fn tell(&self, mut due: Due<'_>, backoff: &mut Backoff) -> bool {
        let leave = |debt: &Debt| ReleaseRequest { key: Arc::clone(&debt.key), id: debt.id.clone() };
        let batch: Vec<_> = due.debts.iter().map(leave).collect();
        let attempts = self.scheme.release_all(&self.scheme.route(&self.any), &batch).await;
        let (now, is_heard) = (self.clock.now(), attempts.iter().any(Result::is_ok));
        let pause = if is_heard { Duration::ZERO } else { backoff.pause() };
        for (debt, attempt) in std::mem::take(&mut due.debts).into_iter().zip(attempts) {
            self.told(debt, &attempt, pause, now);
        }
        is_heard
    }

    fn told(&self, debt: Debt, attempt: &Attempt<ReleaseReply>, pause: Duration, now: Moment) {
        match (attempt, debt.stray_until) {
            // A copy may yet arrive behind this.
            (Ok(answer), Some(until)) if until > answer.sent => self.keep(debt, until),
            (Ok(_), _) => {}
            (Err(_), _) if now < debt.until => self.keep(debt, now.after(pause.max(Duration::from_millis(20)))),
            (Err(_), _) => {}
        }
    }
}

/// The task that sees to a master.
struct Tender {
    master: Arc<Master>,
    has_ended: bool,
}

impl Tender {
    async fn run(mut self) {
        self.master.see_to_it().await;
        self.has_ended = true;
    }
}

/// One that was dropped with its runtime, or has panicked, leaves its place to the next. It begins none itself: a runtime that has
/// ended would drop that as well, and there would be no end to it.
impl Drop for Tender {
    fn drop(&mut self) {
        if !self.has_ended {
            self.master.is_tended.store(false, Ordering::SeqCst);
        }
    }
}

/// What is being told. If nobody waits for the answer any more, it is kept.
struct Due<'a> {
    master: &'a Master,
    debts: Vec<Debt>,
}

impl Drop for Due<'_> {
    fn drop(&mut self) {
        let now = self.master.clock.now();
        self.debts.drain(..).for_each(|debt| self.master.keep(debt, now));
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/master/tests.rs"]
mod tests;
