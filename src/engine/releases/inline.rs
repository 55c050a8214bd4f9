//! The first copy of a release, where its guard is dropped, or the future of an acquisition.
//!
//! On a runtime that has a connection with room, that copy goes out there: it costs what a release costs that somebody waits for,
//! and no other thread has to send it. But the runtime may end, stand still or be busy with something else, and then nobody reads
//! the answer, or the copy is not even written. So the outbox tells the release as well, unless it was answered in time: at once
//! if the runtime ends, else after a multiple of the usual answer time. That time the outbox measures by its own answers, because a
//! runtime that is late would take its own delay for the server's; an answer that comes sooner shows that the server is fast again.

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

/// Releases of one manager that are under way so, at most. More at once go in chunks, which costs less; and should all of them be
/// late behind each other, no more than these are told twice.
pub(super) const MAX_INLINE: usize = 16;
/// In times of what an answer takes.
const PATIENCE: u32 = 4;
/// Each look that finds nothing to do wakes a thread, and on a machine with more work than processors any thread may stand still for
/// some milliseconds.
pub(super) const MIN_PATIENCE: Duration = Duration::from_millis(25);

/// The releases that are under way where their guards, or futures, were dropped.
#[derive(Debug)]
pub(super) struct InlineReleases {
    /// By when the outbox tells them.
    jobs: Mutex<DeadlineQueue<FirstCopy>>,
    /// In nanoseconds.
    patience: AtomicU64,
    most_patience: Duration,
}

#[derive(Debug)]
struct FirstCopy {
    job: ReleaseTask,
    /// Ended when the outbox tells: a runtime that goes on late would take the connection for dead.
    task: Option<AbortHandle>,
}

impl InlineReleases {
    pub(super) fn new(response_timeout: Duration) -> Self {
        let inline = Self { jobs: Mutex::default(), patience: AtomicU64::new(0), most_patience: response_timeout / 2 };
        inline.answers_take(Duration::ZERO);
        inline
    }

    /// The outbox has waited so long for its last answer.
    pub(super) fn answers_take(&self, span: Duration) {
        self.patience.store(self.patience_for(span), Ordering::Relaxed);
    }

    /// An answer has come that late at most.
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

    /// How long a runtime has for a release.
    pub(super) fn patience(&self) -> Duration {
        Duration::from_nanos(self.patience.load(Ordering::Relaxed))
    }

    pub(super) fn next(&self) -> Moment {
        self.jobs.lock().next()
    }

    /// What was not answered in time.
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

    /// The job again if there are enough.
    fn begins(&self, by: Moment, job: ReleaseTask) -> Result<Place, ReleaseTask> {
        let mut jobs = self.jobs.lock();
        if jobs.len() >= MAX_INLINE {
            return Err(job);
        }
        Ok(jobs.insert(by, FirstCopy { job, task: None }))
    }

    /// The task goes on with it, unless it was answered, or told by the outbox, in the meantime.
    fn has_task(&self, place: Place, task: AbortHandle) {
        let mut jobs = self.jobs.lock();
        if let Some(copy) = jobs.get_mut(place) {
            copy.task = Some(task);
            return;
        }
        drop(jobs);
        task.abort();
    }

    /// `None` if the outbox has it, or if it was answered.
    fn take(&self, place: Place) -> Option<ReleaseTask> {
        self.jobs.lock().remove(place).map(|copy| copy.job)
    }
}

/// Tells of it on this runtime, if that has a connection with room; else in the background.
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
    // The first poll sends it, or puts it to what the connection sends next. A panic is of no use to whoever drops a guard.
    let polled = catch_panic(|| told.as_mut().poll(&mut Context::from_waker(Waker::noop())));
    if polled.is_some_and(|polled| polled.is_pending()) {
        inline.has_task(place, process::spawn_on(&runtime, told).abort_handle());
    }
}

/// One release that is told where its guard was dropped.
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
    /// If it was not answered, its runtime has ended.
    fn drop(&mut self) {
        if let Some(job) = self.releases.inline.take(self.place) {
            self.releases.carry(job);
        }
    }
}
