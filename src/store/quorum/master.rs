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

use super::leftovers::Leftover;
use crate::base::attempt::{AcquisitionId, Attempt};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::backoff::Backoff;
use crate::base::clock::Clock;
use crate::base::key::Key;
use crate::base::lease::{Moment, ServerTime};
use crate::store::{MasterScheme, ReleaseReply, ReleaseRequest};

/// So many are told in one pipeline.
const MAX_BATCH: usize = 128;
/// So many are kept. What is beyond ends with its lease.
const MAX_PENDING_RELEASES: usize = 8192;

/// An older one says little: clocks differ by 1 % of that.
const MAX_CLOCK_SAMPLE_AGE: Duration = Duration::from_secs(5);

pub(super) struct Master {
    pub(super) scheme: Arc<dyn MasterScheme>,
    clock: Clock,
    background_runtime: BackgroundRuntime,
    /// Its node serves all keys alike.
    any: Key,
    pending_releases: Mutex<BTreeMap<(Moment, u64), PendingRelease>>,
    next_number: AtomicU64,
    wake: Notify,
    has_task: AtomicBool,
    /// Somebody would have asked it since its last probe.
    is_asked_for: AtomicBool,
}

/// Something that it may have, and is to give up.
#[derive(Clone, Debug)]
pub(super) struct PendingRelease {
    pub(super) key: Arc<Key>,
    pub(super) id: AcquisitionId,
    /// A copy of the request may arrive until then.
    pub(super) arrives_until: Option<Moment>,
    /// By then it has forgotten it.
    pub(super) until: Moment,
    /// Counts while the release is pending, if the acquisition failed.
    pub(super) _leftover: Option<Leftover>,
}

impl fmt::Debug for Master {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.scheme.fmt(f)
    }
}

impl Master {
    pub(super) fn new(scheme: Arc<dyn MasterScheme>, home: BackgroundRuntime, any: Key) -> Self {
        Self {
            clock: scheme.clock(),
            scheme,
            background_runtime: home,
            any,
            pending_releases: Mutex::default(),
            next_number: AtomicU64::new(0),
            wake: Notify::new(),
            has_task: AtomicBool::new(false),
            is_asked_for: AtomicBool::new(false),
        }
    }

    /// Whether it is no use to ask it. If so, it is looked after until it answers again.
    pub(super) fn is_silent(self: &Arc<Self>) -> bool {
        let is_silent = self.scheme.contact(&self.any).is_silent;
        if is_silent {
            self.is_asked_for.store(true, Ordering::SeqCst);
            self.start_task();
            // It may sleep until something is due.
            self.wake.notify_one();
        }
        is_silent
    }

    /// What its clock says about now, if that is known well enough.
    pub(super) fn time_at(&self, now: Moment) -> Option<ServerTime> {
        let clock_sample = self.scheme.clock_sample()?;
        (clock_sample.age_at(now) <= MAX_CLOCK_SAMPLE_AGE).then(|| clock_sample.server_time_at(now))
    }

    /// Takes over what it is to be told, until it is or has forgotten it.
    pub(super) fn add_pending_release(self: &Arc<Self>, release: PendingRelease) {
        let now = self.clock.now();
        self.queue_release(release, now);
        self.wake.notify_one();
        self.start_task();
    }

    /// How much it is yet to be told.
    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn pending_releases(&self) -> usize {
        self.pending_releases.lock().len()
    }

    /// What it is to be told first.
    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn first_pending_release(&self) -> PendingRelease {
        self.pending_releases.lock().first_key_value().expect("there is one").1.clone()
    }

    fn queue_release(&self, release: PendingRelease, at: Moment) {
        let number = self.next_number.fetch_add(1, Ordering::Relaxed);
        let mut debts = self.pending_releases.lock();
        if debts.len() >= MAX_PENDING_RELEASES {
            debts.pop_first();
        }
        debts.insert((at, number), release);
    }

    fn start_task(self: &Arc<Self>) {
        if !self.has_task.swap(true, Ordering::SeqCst) {
            let tender = MasterTask { master: Arc::clone(self), has_ended: false };
            self.background_runtime.spawn(tender.run());
        }
    }

    async fn run_task(&self) {
        let mut backoff = Backoff::new();
        loop {
            if self.scheme.contact(&self.any).is_silent {
                self.forget_expired(self.clock.now());
                if !self.is_asked_for.swap(false, Ordering::SeqCst) && self.pending_releases.lock().is_empty() {
                    // Whoever wants it next has it probed.
                    self.has_task.store(false, Ordering::SeqCst);
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
                if self.send_due(DueReleases { master: self, releases: due }, &mut backoff).await {
                    backoff.reset();
                }
                continue;
            }
            let Some(next) = next else {
                if self.try_end() {
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
    fn try_end(&self) -> bool {
        self.has_task.store(false, Ordering::SeqCst);
        let is_idle = self.pending_releases.lock().is_empty() && !self.scheme.contact(&self.any).is_silent;
        is_idle || self.has_task.swap(true, Ordering::SeqCst)
    }

    fn forget_expired(&self, now: Moment) {
        self.pending_releases.lock().retain(|_, release| release.until > now);
    }

    /// What is to be told now, and when there is more.
    fn take_due(&self, now: Moment) -> (Vec<PendingRelease>, Option<Moment>) {
        let (mut debts, mut due) = (self.pending_releases.lock(), Vec::new());
        while due.len() < MAX_BATCH
            && let Some(first) = debts.first_entry()
            && first.key().0 <= now
        {
            due.push(first.remove());
        }
        (due, debts.first_key_value().map(|((at, _), _)| *at))
    }

    /// Whether any was answered.
    async fn send_due(&self, mut due: DueReleases<'_>, backoff: &mut Backoff) -> bool {
        let request =
            |release: &PendingRelease| ReleaseRequest { key: Arc::clone(&release.key), id: release.id.clone() };
        let batch: Vec<_> = due.releases.iter().map(request).collect();
        let attempts = self.scheme.release_all(&self.scheme.route(&self.any), &batch).await;
        let (now, is_heard) = (self.clock.now(), attempts.iter().any(Result::is_ok));
        let pause = if is_heard { Duration::ZERO } else { backoff.pause() };
        for (release, attempt) in std::mem::take(&mut due.releases).into_iter().zip(attempts) {
            self.on_answer(release, &attempt, pause, now);
        }
        is_heard
    }

    fn on_answer(&self, release: PendingRelease, attempt: &Attempt<ReleaseReply>, pause: Duration, now: Moment) {
        match (attempt, release.arrives_until) {
            // A copy may yet arrive behind this.
            (Ok(answer), Some(until)) if until > answer.sent => self.queue_release(release, until),
            (Ok(_), _) => {}
            (Err(_), _) if now < release.until => {
                self.queue_release(release, now.after(pause.max(Duration::from_millis(20))))
            }
            (Err(_), _) => {}
        }
    }
}

/// The task that sees to a master.
struct MasterTask {
    master: Arc<Master>,
    has_ended: bool,
}

impl MasterTask {
    async fn run(mut self) {
        self.master.run_task().await;
        self.has_ended = true;
    }
}

/// One that was dropped with its runtime, or has panicked, leaves its place to the next. It begins none itself: a runtime that has
/// ended would drop that as well, and there would be no end to it.
impl Drop for MasterTask {
    fn drop(&mut self) {
        if !self.has_ended {
            self.master.has_task.store(false, Ordering::SeqCst);
        }
    }
}

/// What is being told. If nobody waits for the answer any more, it is kept.
struct DueReleases<'a> {
    master: &'a Master,
    releases: Vec<PendingRelease>,
}

impl Drop for DueReleases<'_> {
    fn drop(&mut self) {
        let now = self.master.clock.now();
        self.releases.drain(..).for_each(|release| self.master.queue_release(release, now));
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../../testing/unit/store/quorum/master/tests.rs"]
mod tests;
