//! Inline releases: the runtime on which a guard, or the future of an acquisition, is dropped sends the first copy of
//! the release.
//!
//! A runtime does this if it has a connection with a free permit. Such a copy costs as much as a release for which a
//! caller waits, and no other thread has to send it. But the runtime may end, stand still, or be busy with other work.
//! Then no task reads the answer, or the copy is not even written. So the background sends the release too, unless the
//! first copy is answered in time. It sends it at once if the runtime ends, and otherwise after a multiple of the usual
//! answer time.
//!
//! The background measures the usual answer time by its own answers, because a late runtime would take its own delay
//! for that of the server. A faster answer to an inline release counts too, because it shows that the server is fast
//! again.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::task::{Context, Waker};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::task::AbortHandle;

use crate::base::deadline_queue::{DeadlineQueue, Place};
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::base::sync::Mutex;
use crate::engine::releases::{ReleaseTask, Releases};
use crate::store::ReleaseRequest;

/// Largest number of inline releases of one manager in progress. The background sends further ones in batches, which
/// costs less. If all answers are late, no more than this number of releases are sent twice.
pub(super) const MAX_INLINE: usize = 16;
/// Time that a runtime has for a release, as a multiple of the usual answer time.
const PATIENCE: u32 = 4;
/// Shortest time that a runtime has for a release. Each check that finds nothing to do wakes a thread. In addition, on
/// a machine with more work than processors, any thread may stand still for some milliseconds.
pub(super) const MIN_PATIENCE: Duration = Duration::from_millis(25);

/// Inline releases in progress.
#[derive(Debug)]
pub(super) struct InlineReleases {
    /// Releases, by the moments at which the background takes them over.
    jobs: Mutex<DeadlineQueue<FirstCopy>>,
    /// Time that a runtime has for a release, in nanoseconds.
    patience: AtomicU64,
    most_patience: Duration,
}

#[derive(Debug)]
struct FirstCopy {
    job: ReleaseTask,
    /// Task that waits for the answer. It is aborted when the background takes the release over, because a runtime that
    /// continues late would take the connection for dead.
    task: Option<AbortHandle>,
}

impl InlineReleases {
    pub(super) fn new(response_timeout: Duration) -> Self {
        let inline = Self { jobs: Mutex::default(), patience: AtomicU64::new(0), most_patience: response_timeout / 2 };
        inline.answers_take(Duration::ZERO);
        inline
    }

    /// Notes how long the background has waited for its last answer.
    pub(super) fn answers_take(&self, span: Duration) {
        self.patience.store(self.patience_for(span), Ordering::Relaxed);
    }

    /// Notes that an answer to an inline release came within this time.
    fn is_answered_within(&self, span: Duration) {
        let patience = self.patience_for(span);
        if patience < self.patience.load(Ordering::Relaxed) {
            self.patience.store(patience, Ordering::Relaxed);
        }
    }

    fn patience_for(&self, span: Duration) -> u64 {
        let patience = span.saturating_mul(PATIENCE).max(MIN_PATIENCE).min(self.most_patience);
        u64::try_from(patience.as_nanos()).unwrap_or(u64::MAX)
    }

    /// Returns the time that a runtime has for a release.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience.load(Ordering::Relaxed))
    }

    pub(super) fn next(&self) -> Moment {
        self.jobs.lock().next()
    }

    /// Takes the releases that were not answered in time, and aborts their tasks.
    pub(super) fn take_due(&self, now: Moment) -> Vec<ReleaseTask> {
        let due = self.jobs.lock().take_due(now);
        let ended = due.into_iter().map(|FirstCopy { job, task }| {
            if let Some(task) = task {
                task.abort();
            }
            job
        });
        ended.collect()
    }

    pub(super) fn abandon(&self) {
        let abandoned = std::mem::take(&mut *self.jobs.lock());
        drop(abandoned);
    }

    /// Stores a release whose first copy is sent now. Returns it as an error if there are too many already.
    fn begins(&self, by: Moment, job: ReleaseTask) -> Result<Place, ReleaseTask> {
        let mut jobs = self.jobs.lock();
        if jobs.len() >= MAX_INLINE {
            return Err(job);
        }
        Ok(jobs.insert(by, FirstCopy { job, task: None }))
    }

    /// Stores the task that waits for the answer. Aborts it if the release was answered, or taken over by the
    /// background, in the meantime.
    fn has_task(&self, place: Place, task: AbortHandle) {
        let mut jobs = self.jobs.lock();
        if let Some(copy) = jobs.get_mut(place) {
            copy.task = Some(task);
            return;
        }
        drop(jobs);
        task.abort();
    }

    /// Takes a release. Returns `None` if the background has taken it over, or if it was answered.
    fn take(&self, place: Place) -> Option<ReleaseTask> {
        self.jobs.lock().remove(place).map(|copy| copy.job)
    }
}

/// Sends the first copy of a release on this runtime, if it has a connection with a free permit. Otherwise passes the
/// release to the background.
pub(super) fn tell(releases: &Arc<Releases>, job: ReleaseTask, now: Moment) {
    let inline = &releases.inline;
    let leave = job.leave();
    let runtime = Handle::try_current().ok();
    let Some(runtime) = runtime.filter(|_| releases.scheme.can_send_inline(&leave)) else {
        return releases.carry(job);
    };
    let place = match inline.begins(now.after(inline.patience()), job) {
        Ok(place) => place,
        Err(job) => return releases.carry(job),
    };
    releases.table.deadlines.wake.at(place.at);
    let telling = InlineRelease { releases: Arc::clone(releases), place };
    let mut told = Box::pin(telling.run(leave, now));
    // The first poll writes the request, or adds it to those that the connection writes next. The drop of a guard must
    // not panic.
    let polled = catch_panic(|| told.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    if polled.is_some_and(|polled| polled.is_pending()) {
        inline.has_task(place, process::spawn_on(&runtime, told).abort_handle());
    }
}

/// First copy of one release, on the runtime where its guard was dropped.
struct InlineRelease {
    releases: Arc<Releases>,
    place: Place,
}

impl InlineRelease {
    async fn run(self, leave: ReleaseRequest, began: Moment) {
        let releases = &self.releases;
        let route = releases.scheme.route(&leave.key);
        let answer = releases.scheme.release(&leave).await;
        let now = releases.clock.now();
        if answer.is_ok() {
            releases.inline.is_answered_within(now.since(began));
        }
        if let Some(job) = releases.inline.take(self.place) {
            releases.on_answer(job, &route, answer, now);
        }
    }
}

impl Drop for InlineRelease {
    /// Passes a release without an answer to the background, because its runtime has ended.
    fn drop(&mut self) {
        if let Some(job) = self.releases.inline.take(self.place) {
            self.releases.carry(job);
        }
    }
}
