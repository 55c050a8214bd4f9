//! Background work of a manager: sends renewals and releases to the servers in batches. Each route has one queue.
//!
//! A *driver* is a task that does this work. A manager with servers has one driver, in the [background
//! runtime](crate::base::background_runtime). An in-memory manager has one driver on each runtime that uses it. These
//! drivers share the queues. So if one driver ends or is not polled, another driver continues its work. A panic of a
//! `tracing` subscriber or a waker does not end a driver.
//!
//! A driver takes due holds from the deadline queue ([`Renewals`]) and due releases from [`Releases`], and puts them
//! into the queue of their route. The renewals of a route are sorted by their deadlines, and are sent before its
//! releases. A batch is sent as one pipeline. After each batch of renewals, the driver waits for a short gap, so that
//! the node can serve other requests. The number of batches in progress is limited for each route. So a node that hangs
//! delays only its own requests, and a slow node gets no more requests than it can answer.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, FuturesUnordered};
use futures_util::{FutureExt, StreamExt};
use parking_lot::Mutex;
use tokio::runtime::{Handle, Id};
use tokio::task::AbortHandle;

use crate::base::attempt::{Attempt, BoxFuture, Failure, Route};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::backoff::Backoff;
use crate::base::clock::Clock;
use crate::base::deadline_queue::DeadlineQueue;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::base::single_task::{Running, SingleTask};
use crate::engine::releases::{ReleaseTask, Releases};
use crate::engine::renewals::{BATCH_WINDOW, DueRenewal, Renewals};
use crate::lock::hold::Hold;
use crate::lock::table::Table;
use crate::lock::wake::DriverId;
use crate::store::{ReleaseReply, Renewed, Scheme};

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/background/tests.rs"]
mod tests;

/// Largest number of requests in one batch. A node serves a whole batch before it serves other requests, so a large
/// batch delays them.
pub(super) const MAX_BATCH: usize = 128;
/// Smallest number of requests in one batch, if enough requests are due. A node needs 5 to 10 us for each request. So a
/// batch of this size delays other requests by little more than a round trip. With smaller batches there would be more
/// of them, and more of the other requests would be delayed. In addition, each batch wakes threads on both sides, which
/// costs as much as ten renewals.
const MIN_BATCH: usize = 32;
/// Gap after a batch of renewals, in which the node of the route serves other requests.
pub(super) const BATCH_GAP: Duration = Duration::from_millis(3);
/// Gap after a batch of the largest size. It is shorter because many renewals are due then, and a longer gap could let
/// leases expire.
const MIN_BATCH_GAP: Duration = Duration::from_millis(1);
/// Pause before a redirected renewal goes to another node. Two nodes may redirect a renewal to each other. Without the
/// pause, the renewal would go back and forth without a limit.
const REDIRECT_PAUSE: Duration = Duration::from_millis(10);
/// Largest number of batches of renewals in progress on one route.
const MAX_RENEWING: usize = 4;
/// Largest number of batches of releases in progress on one route.
const MAX_RELEASING: usize = 2;

/// Background work of one manager.
#[derive(Debug)]
pub(crate) struct Background {
    work: Arc<BackgroundWork>,
    background_runtime: BackgroundRuntime,
    /// Drivers on the runtimes that use an in-memory manager.
    drivers: Mutex<Vec<(Id, AbortHandle)>>,
}

/// State that drivers share.
#[derive(Debug)]
struct BackgroundWork {
    scheme: Arc<dyn Scheme>,
    clock: Clock,
    renewals: Arc<Renewals>,
    releases: Arc<Releases>,
    table: Arc<Table>,
    queues: Mutex<BTreeMap<Route, RouteQueue>>,
    /// Driver in the background runtime. An in-memory manager does not use this field.
    driver: SingleTask,
    /// Number of drivers that have not ended, including drivers that were not polled yet.
    drivers: AtomicUsize,
}

/// Queue of one route. Each hold in it is also in the deadline queue, at the end of its local validity. So a driver
/// notices if the hold is not renewed in time.
#[derive(Debug)]
struct RouteQueue {
    /// Holds to renew, by the ends of their local validity.
    holds: DeadlineQueue<Arc<Hold>>,
    releases: VecDeque<ReleaseTask>,
    /// Earliest moment for the next batch of renewals.
    next: Moment,
    /// Number of batches of renewals in progress.
    renewing: usize,
    releasing: usize,
    /// True if the last batch was not answered.
    is_silent: bool,
}

impl RouteQueue {
    fn new(now: Moment) -> Self {
        Self {
            holds: DeadlineQueue::default(),
            releases: VecDeque::new(),
            next: now,
            renewing: 0,
            releasing: 0,
            is_silent: false,
        }
    }

    fn is_done(&self, now: Moment) -> bool {
        let is_empty = self.holds.is_empty() && self.releases.is_empty();
        is_empty && self.renewing + self.releasing == 0 && self.next <= now
    }

    fn may_renew(&self) -> bool {
        !self.holds.is_empty() && self.renewing < MAX_RENEWING
    }

    /// Takes the holds of the next batch of renewals, and counts that batch as in progress.
    fn next_holds(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let most = batch_size(self.holds.len());
        self.next = now.after(if most < MAX_BATCH { BATCH_GAP } else { MIN_BATCH_GAP });
        self.renewing += 1;
        std::iter::from_fn(|| self.holds.pop_first()).take(most).collect()
    }

    fn next_releases(&mut self) -> Vec<ReleaseTask> {
        let most = batch_size(self.releases.len()).min(self.releases.len());
        self.releasing += 1;
        self.releases.drain(..most).collect()
    }
}

/// Returns the size of the next batch if `due` requests are due. Batches are small while the queue is short, because a
/// node serves a whole batch before other requests. If little more than `MIN_BATCH` requests are due, one batch takes
/// them all, because a second batch would be tiny.
fn batch_size(due: usize) -> usize {
    if due <= MIN_BATCH * 5 / 4 { due } else { (due / 8).clamp(MIN_BATCH, MAX_BATCH) }
}

impl Background {
    pub(crate) fn new(
        scheme: Arc<dyn Scheme>,
        background_runtime: BackgroundRuntime,
        renewals: Arc<Renewals>,
        releases: Arc<Releases>,
        table: Arc<Table>,
    ) -> Self {
        let work = BackgroundWork {
            clock: scheme.clock(),
            scheme,
            renewals,
            releases,
            table,
            queues: Mutex::default(),
            driver: SingleTask::default(),
            drivers: AtomicUsize::new(0),
        };
        Self { work: Arc::new(work), background_runtime, drivers: Mutex::default() }
    }

    /// Starts a driver if there is none. The driver of an in-memory manager runs on the current runtime. Code that
    /// creates background work must call this method.
    pub(crate) fn keep_running(&self) {
        match &self.background_runtime {
            BackgroundRuntime::Process | BackgroundRuntime::On(_) => {
                if let Some(running) = self.work.driver.begin() {
                    self.background_runtime.spawn(Driven::new(&self.work, Some(running)).run());
                }
            }
            BackgroundRuntime::Callers => {
                let Ok(runtime) = Handle::try_current() else {
                    return;
                };
                let mut drivers = self.drivers.lock();
                let id = runtime.id();
                if drivers.iter().any(|(on, driver)| *on == id && !driver.is_finished()) {
                    return;
                }
                drivers.retain(|(_, driver)| !driver.is_finished());
                let driver = process::spawn_on(&runtime, Driven::new(&self.work, None).run());
                drivers.push((id, driver.abort_handle()));
            }
        }
    }

    /// Stops the drivers. They end when no release is left to send. Holds that are still in the queues end with their
    /// leases.
    pub(crate) fn stop(&self) {
        self.work.releases.stop();
        if self.work.drivers.load(Ordering::SeqCst) > 0 {
            self.work.table.deadlines.wake.all();
        } else {
            // No driver is left to send the waiting releases. A waiting release refers to `Releases`, and `Releases`
            // contains it, so the cycle would keep both in memory.
            self.work.releases.abandon();
        }
    }
}

/// Count of one driver, from its creation to its end. If its runtime ends, the drop of this value still counts the end.
struct Driven {
    work: Arc<BackgroundWork>,
    running: Option<Running>,
}

impl Driven {
    fn new(work: &Arc<BackgroundWork>, running: Option<Running>) -> Self {
        work.drivers.fetch_add(1, Ordering::SeqCst);
        Self { work: Arc::clone(work), running }
    }

    async fn run(self) {
        let mut backoff = Backoff::new();
        // A panic drops the batches in progress, and this puts their requests back into the queues. So the driver can
        // start again.
        while AssertUnwindSafe(Arc::clone(&self.work).drive()).catch_unwind().await.is_err() {
            backoff.wait().await;
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let work = &self.work;
        drop(self.running.take());
        let is_last = work.drivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && work.releases.is_stopped() {
            // The runtime of the driver has ended before all releases were sent, and no other driver will start.
            work.releases.abandon();
        }
    }
}

impl BackgroundWork {
    /// Sends the queued requests. Returns when the background work is stopped and no release is left.
    async fn drive(self: Arc<Self>) {
        let wake = &self.table.deadlines.wake;
        let driver = Driver { work: Arc::clone(&self), id: wake.register() };
        let mut underway: FuturesUnordered<BoxFuture<'static, BatchAnswers>> = FuturesUnordered::new();
        let mut changes = self.scheme.changes().unwrap_or_else(never).chain(never());
        loop {
            let woken = wake.woken();
            tokio::pin!(woken);
            // The future is enabled before the queues are read. So it notices work that another task adds after that.
            woken.as_mut().enable();
            if self.releases.has_ended() {
                return;
            }
            let now = self.clock.now();
            wake.looks(driver.id, now);
            if self.take_due(now) {
                wake.others_of(driver.id);
            }
            for chunk in self.next_batches(now) {
                underway.push(Arc::clone(&self).send(chunk));
            }
            self.table.deadlines.look_for_stalled(now);
            let alarm = wake.sleeps(driver.id, self.next(now));
            // The order of the branches does not matter: each round handles all due work, whatever ended the wait.
            tokio::select! {
                biased;
                Some(answers) = underway.next() => self.take_answers(answers),
                () = woken => {}
                _ = changes.next() => self.releases.resend_moved(),
                () = self.clock.sleep_until(alarm) => {}
            }
        }
    }

    /// Puts due renewals and releases into the queues of their routes. Returns true if anything was due.
    fn take_due(&self, now: Moment) -> bool {
        let mut is_any = false;
        for hold in self.renewals.take_due(now) {
            is_any = true;
            if hold.join_batch(now.after(BATCH_WINDOW)) {
                let route = self.scheme.route(hold.key());
                let ends = hold.deadline();
                let mut queues = self.queues.lock();
                queues.entry(route).or_insert_with(|| RouteQueue::new(now)).holds.insert(ends, hold);
            }
        }
        for mut job in self.releases.take_due(now) {
            is_any = true;
            let route = job.route(&*self.scheme);
            let mut queues = self.queues.lock();
            let queue = queues.entry(route).or_insert_with(|| RouteQueue::new(now));
            // If the node does not answer, local waiters do not wait for this release.
            let hold = if queue.is_silent { job.take_hold() } else { None };
            queue.releases.push_back(job);
            while queue.releases.front().is_some_and(|oldest| oldest.is_superfluous(now)) {
                queue.releases.pop_front();
            }
            drop(queues);
            hold.iter().for_each(|hold| self.releases.unblock(hold));
        }
        is_any
    }

    /// Takes the batches that may be sent now.
    fn next_batches(&self, now: Moment) -> Vec<Batch> {
        let (mut renewals, mut releases) = (Vec::new(), Vec::new());
        let mut queues = self.queues.lock();
        for (route, queue) in &mut *queues {
            if queue.next <= now && queue.may_renew() {
                renewals.push((route.clone(), queue.next_holds(now)));
            }
            while !queue.releases.is_empty() && queue.releasing < MAX_RELEASING {
                releases.push(Batch { route: route.clone(), load: BatchTasks::Releases(queue.next_releases()) });
            }
        }
        queues.retain(|_, queue| !queue.is_done(now));
        drop(queues);
        // Runs without the mutex of the queues. If a hold turns out to be over, this wakes its watcher, and a waker may
        // run any code.
        let renewals = renewals.into_iter().filter_map(|(route, holds)| self.renewals_of(route, holds, now));
        renewals.chain(releases).collect()
    }

    /// Builds the batch that renews these holds. Returns `None` if no hold needs a renewal any more.
    fn renewals_of(&self, route: Route, holds: Vec<Arc<Hold>>, now: Moment) -> Option<Batch> {
        let mut chunk = Vec::with_capacity(holds.len());
        for hold in holds {
            // The slot of the lock has moved to another node. The renewal is due again, in the queue of the new route.
            if self.scheme.route(hold.key()) != route {
                hold.leave_batch(now);
            } else if let Some(lease) = catch_panic(|| hold.begin_renewal(now.after(BATCH_WINDOW), now)).flatten() {
                chunk.push(DueRenewal::new(hold, lease, now));
            }
        }
        let is_empty = chunk.is_empty();
        let chunk = Batch { route, load: BatchTasks::Renewals(chunk) };
        if is_empty {
            self.is_back(&chunk);
            return None;
        }
        Some(chunk)
    }

    /// Counts a batch as ended, so that another batch may be sent.
    fn is_back(&self, chunk: &Batch) {
        if let Some(queue) = self.queues.lock().get_mut(&chunk.route) {
            match chunk.load {
                BatchTasks::Renewals(_) => queue.renewing -= 1,
                BatchTasks::Releases(_) => queue.releasing -= 1,
            }
        }
    }

    /// Returns the next moment at which the driver has something to send.
    fn next(&self, now: Moment) -> Moment {
        let queues = self.queues.lock();
        let waiting = queues.values().filter(|queue| queue.may_renew());
        let chunk = waiting.map(|queue| queue.next.max(now)).min().unwrap_or(Moment::NEVER);
        drop(queues);
        chunk.min(self.table.deadlines.next()).min(self.releases.next(now))
    }

    /// Sends one batch. The deadline queue still contains its holds, at the ends of their local validity.
    fn send(self: Arc<Self>, chunk: Batch) -> BoxFuture<'static, BatchAnswers> {
        let scheme = Arc::clone(&self.scheme);
        let sent = SentBatch { work: self, chunk: Some(chunk) };
        Box::pin(async move {
            let Batch { route, load } = sent.batch();
            let answers = match load {
                BatchTasks::Renewals(chunk) => {
                    let batch: Vec<_> = chunk.iter().map(DueRenewal::renewal).collect();
                    BatchResults::Renewals(scheme.renew(route, &batch).await)
                }
                BatchTasks::Releases(jobs) => {
                    let batch: Vec<_> = jobs.iter().map(ReleaseTask::leave).collect();
                    BatchResults::Releases(scheme.release_all(route, &batch).await)
                }
            };
            sent.on_answer(answers)
        })
    }

    fn take_answers(&self, BatchAnswers { chunk, answered }: BatchAnswers) {
        let now = self.clock.now();
        let Batch { route, load } = chunk;
        match (load, answered) {
            (BatchTasks::Renewals(chunk), BatchResults::Renewals(attempts)) => {
                self.note_answers(&route, &attempts, now);
                for (due, attempt) in chunk.into_iter().zip(attempts) {
                    if matches!(attempt, Err(Failure::NotDone { .. })) && self.scheme.route(due.hold.key()) != route {
                        // The node has redirected the renewal to another node.
                        due.hold.leave_batch(now.after(REDIRECT_PAUSE));
                    } else {
                        self.renewals.on_answer(due, attempt, now);
                    }
                }
            }
            (BatchTasks::Releases(jobs), BatchResults::Releases(attempts)) => {
                self.note_answers(&route, &attempts, now);
                for (job, attempt) in jobs.into_iter().zip(attempts) {
                    self.releases.on_answer(job, &route, attempt, now);
                }
            }
            (BatchTasks::Renewals(_), BatchResults::Releases(_))
            | (BatchTasks::Releases(_), BatchResults::Renewals(_)) => {
                unreachable!("a chunk is answered by its own kind")
            }
        }
    }

    /// Notes whether the node of a route answers, and how long that takes. A driver is seldom busy, so it reads an answer
    /// soon after its arrival. If the node does not answer, local waiters no longer wait for the releases in its queue.
    fn note_answers<T>(&self, route: &Route, attempts: &[Attempt<T>], now: Moment) {
        let answer = attempts.iter().flatten().next();
        let mut holds = Vec::new();
        if let Some(queue) = self.queues.lock().get_mut(route) {
            queue.is_silent = answer.is_none();
            if queue.is_silent {
                holds.extend(queue.releases.iter_mut().filter_map(ReleaseTask::take_hold));
            }
        }
        // Runs without the mutex of the queues, because it wakes waiters.
        holds.iter().for_each(|hold| self.releases.unblock(hold));
        if let Some(answer) = answer {
            self.releases.answers_take(now.since(answer.sent));
        }
    }
}

fn never() -> BoxStream<'static, ()> {
    Box::pin(stream::pending())
}

/// Registration of a running driver. The drop of this value wakes the other drivers, which take over the work.
struct Driver {
    work: Arc<BackgroundWork>,
    id: DriverId,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.work.table.deadlines.wake.unregister(self.id);
        // The other drivers must read the queues at once, because only this driver may have been set to wake up at the
        // next deadline.
        self.work.table.deadlines.wake.all();
    }
}

/// Requests that are sent in one pipeline.
struct Batch {
    route: Route,
    load: BatchTasks,
}

enum BatchTasks {
    Renewals(Vec<DueRenewal>),
    Releases(Vec<ReleaseTask>),
}

enum BatchResults {
    Renewals(Vec<Attempt<Renewed>>),
    Releases(Vec<Attempt<ReleaseReply>>),
}

/// Answers to one batch.
struct BatchAnswers {
    chunk: Batch,
    answered: BatchResults,
}

/// Batch that was sent. If it is dropped before the answer comes, the drop puts the requests back into the queues. This
/// happens if the runtime of its driver ends. Another driver then sends the requests again.
struct SentBatch {
    work: Arc<BackgroundWork>,
    chunk: Option<Batch>,
}

impl SentBatch {
    fn batch(&self) -> &Batch {
        self.chunk.as_ref().expect("it is there until it is answered")
    }

    fn on_answer(mut self, answered: BatchResults) -> BatchAnswers {
        let chunk = self.chunk.take().expect("it is answered once");
        self.work.is_back(&chunk);
        BatchAnswers { chunk, answered }
    }
}

impl Drop for SentBatch {
    fn drop(&mut self) {
        let Some(chunk) = self.chunk.take() else {
            return;
        };
        self.work.is_back(&chunk);
        let now = self.work.clock.now();
        match chunk.load {
            // The server may have executed the requests already. A second execution does no harm, because renewals and
            // releases are idempotent.
            BatchTasks::Renewals(chunk) => chunk.iter().for_each(|due| due.hold.on_no_answer(now)),
            BatchTasks::Releases(jobs) => jobs.into_iter().for_each(|job| self.work.releases.again(job, now)),
        }
    }
}
