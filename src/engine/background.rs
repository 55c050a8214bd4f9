//! What goes to the servers in the background: renewals and releases, side by side, in lines per route and in chunks.
//!
//! Drivers do the work: one task in the [home](crate::home), or one on each runtime that uses a manager in memory. What is
//! due is taken from the agenda of the holds ([`Renewals`]) and from the releases ([`Releases`]) and put into the line of its
//! route. Renewals stand there by their deadlines, ahead of releases. A chunk is one pipeline; there is a gap between two in
//! which the node serves others, and only so many are under way. So a node that hangs delays nobody else's, a server that is
//! slow is asked no faster than it answers, and many guards that are dropped are no tasks. The lines belong to all drivers: what
//! one leaves that ends, or stands still, the next one finds. No panic of a subscriber or a waker ends a driver.

use std::collections::{BTreeMap, VecDeque};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
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
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::process;
use crate::engine::releases::{ReleaseTask, Releases};
use crate::engine::renewals::{BATCH_WINDOW, DueRenewal, Renewals};
use crate::engine::wake::{DriverId, Wake};
use crate::lock::hold::Hold;
use crate::store::{ReleaseReply, Renewed, Scheme};

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/background/tests.rs"]
mod tests;

/// The most requests in one pipeline: larger ones would keep other callers of the node waiting.
pub(super) const MAX_BATCH: usize = 128;
/// A node takes 5 to 10 us for one of them, so one chunk delays others by little more than a round trip takes. With smaller ones
/// more of the others would meet one, and each costs both sides as much as ten renewals: threads are woken.
const MIN_BATCH: usize = 32;
/// Between two chunks of renewals for one route, in which its node serves others.
pub(super) const BATCH_GAP: Duration = Duration::from_millis(3);
/// The same behind one of the largest chunks: a line that grows all the same would outlast leases.
const MIN_BATCH_GAP: Duration = Duration::from_millis(1);
/// Before it is renewed elsewhere: two nodes that name each other would be asked as fast as they answer.
const REDIRECT_PAUSE: Duration = Duration::from_millis(10);
/// Chunks of renewals, and of releases, that may be under way on one route.
const MAX_RENEWING: usize = 4;
const MAX_RELEASING: usize = 2;

/// The background work of one manager.
#[derive(Debug)]
pub(crate) struct Background {
    work: Arc<BackgroundWork>,
    home: BackgroundRuntime,
    /// Those of the runtimes that use the manager.
    drivers: Mutex<Vec<(Id, AbortHandle)>>,
}

/// What drivers share.
#[derive(Debug)]
struct BackgroundWork {
    scheme: Arc<dyn Scheme>,
    clock: Clock,
    renewals: Arc<Renewals>,
    releases: Arc<Releases>,
    wake: Arc<Wake>,
    queues: Mutex<BTreeMap<Route, RouteQueue>>,
    /// Has a driver, where there is one for all.
    is_driven: AtomicBool,
    /// Those that have not ended, be they yet to begin.
    drivers: AtomicUsize,
}

/// What waits for its turn at one route. Meanwhile the agenda has each hold at its deadline, at which it is over.
#[derive(Debug)]
struct RouteQueue {
    /// By their local deadlines.
    holds: BTreeMap<(Moment, u64), Arc<Hold>>,
    releases: VecDeque<ReleaseTask>,
    /// When the next chunk of renewals may go.
    next: Moment,
    /// Chunks under way.
    renewing: usize,
    releasing: usize,
    /// The last chunk was not answered.
    is_silent: bool,
}

impl RouteQueue {
    fn new(now: Moment) -> Self {
        Self {
            holds: BTreeMap::new(),
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

    /// Those whose renewals are one chunk, which counts as under way.
    fn next_holds(&mut self, now: Moment) -> Vec<Arc<Hold>> {
        let most = batch_size(self.holds.len());
        self.next = now.after(if most < MAX_BATCH { BATCH_GAP } else { MIN_BATCH_GAP });
        self.renewing += 1;
        std::iter::from_fn(|| self.holds.pop_first()).take(most).map(|(_, hold)| hold).collect()
    }

    fn next_releases(&mut self) -> Vec<ReleaseTask> {
        let most = batch_size(self.releases.len()).min(self.releases.len());
        self.releasing += 1;
        self.releases.drain(..most).collect()
    }
}

/// The size of chunks: small ones as long as they keep up, since a node serves one to its end before anybody else. A few too many
/// go along.
fn batch_size(due: usize) -> usize {
    if due <= MIN_BATCH * 5 / 4 { due } else { (due / 8).clamp(MIN_BATCH, MAX_BATCH) }
}

impl Background {
    pub(crate) fn new(
        scheme: Arc<dyn Scheme>,
        home: BackgroundRuntime,
        renewals: Arc<Renewals>,
        releases: Arc<Releases>,
        wake: Arc<Wake>,
    ) -> Self {
        let work = BackgroundWork {
            clock: scheme.clock(),
            scheme,
            renewals,
            releases,
            wake,
            queues: Mutex::default(),
            is_driven: AtomicBool::new(false),
            drivers: AtomicUsize::new(0),
        };
        Self { work: Arc::new(work), home, drivers: Mutex::default() }
    }

    /// Sees to it that there is a driver: in the home, or on this runtime. To be called wherever there may be work.
    pub(crate) fn keep_running(&self) {
        match &self.home {
            BackgroundRuntime::Process | BackgroundRuntime::On(_) => {
                let is_driven = &self.work.is_driven;
                if !is_driven.load(Ordering::Relaxed) && !is_driven.swap(true, Ordering::AcqRel) {
                    self.home.spawn(Driven::new(&self.work).run());
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
                let driver = process::spawn_on(&runtime, Driven::new(&self.work).run());
                drivers.push((id, driver.abort_handle()));
            }
        }
    }

    /// The drivers end when nothing is left to be released, the holds with their leases.
    pub(crate) fn stop(&self) {
        self.work.releases.stop();
        if self.work.drivers.load(Ordering::SeqCst) > 0 {
            self.work.wake.all();
        } else {
            // Nobody is left to carry them. They hold on to the releases that have them.
            self.work.releases.abandon();
        }
    }
}

/// A driver from its start to its end, be it that of its runtime.
struct Driven(Arc<BackgroundWork>);

impl Driven {
    fn new(work: &Arc<BackgroundWork>) -> Self {
        work.drivers.fetch_add(1, Ordering::SeqCst);
        Self(Arc::clone(work))
    }

    async fn run(self) {
        let mut backoff = Backoff::new();
        // A panic that nothing shields from has ended what was under way, which has been put back.
        while AssertUnwindSafe(Arc::clone(&self.0).drive()).catch_unwind().await.is_err() {
            backoff.wait().await;
        }
    }
}

impl Drop for Driven {
    fn drop(&mut self) {
        let work = &self.0;
        work.is_driven.store(false, Ordering::Release);
        let is_last = work.drivers.fetch_sub(1, Ordering::SeqCst) == 1;
        if is_last && work.releases.is_stopped() {
            // Its runtime has ended before all was told, and nobody starts another one.
            work.releases.abandon();
        }
    }
}

impl BackgroundWork {
    /// A driver. Ends when it is stopped and nothing is left to be told.
    async fn drive(self: Arc<Self>) {
        let driver = Driver { work: Arc::clone(&self), id: self.wake.register() };
        let mut underway: FuturesUnordered<BoxFuture<'static, BatchAnswers>> = FuturesUnordered::new();
        let mut changes = self.scheme.changes().unwrap_or_else(never).chain(never());
        loop {
            let (woken, sooner) = (self.wake.woken(), self.renewals.stalled_sooner());
            tokio::pin!(woken, sooner);
            // Registered before the look, so nothing that is put in meanwhile is missed.
            woken.as_mut().enable();
            sooner.as_mut().enable();
            if self.releases.is_stopped() && !self.releases.is_releasing() {
                return;
            }
            let now = self.clock.now();
            self.wake.looks(driver.id, now);
            if self.take_due(now) {
                self.wake.others_of(driver.id);
            }
            for chunk in self.next_batches(now) {
                underway.push(Arc::clone(&self).send(chunk));
            }
            let alarm = self.renewals.look_for_stalled(now).min(self.next(now));
            let alarm = self.wake.sleeps(driver.id, alarm);
            // In any order: each round looks at all that is due, whatever ended the wait.
            tokio::select! {
                biased;
                Some(answers) = underway.next() => self.take_answers(answers),
                () = woken => {}
                () = sooner => {}
                _ = changes.next() => self.releases.resend_moved(),
                () = self.clock.sleep_until(alarm) => {}
            }
        }
    }

    /// Puts what is due into the line of its route. Whether there was anything.
    fn take_due(&self, now: Moment) -> bool {
        let mut is_any = false;
        for hold in self.renewals.take_due(now) {
            is_any = true;
            if hold.join_batch(now.after(BATCH_WINDOW)) {
                let route = self.scheme.route(hold.key());
                let place = (hold.deadline(), self.wake.next_number());
                let mut queues = self.queues.lock();
                let queue = queues.entry(route).or_insert_with(|| RouteQueue::new(now));
                queue.holds.insert(place, Arc::clone(&hold));
            }
            self.renewals.schedule(&hold, now);
        }
        for mut job in self.releases.take_due(now) {
            is_any = true;
            let route = self.scheme.route(job.key());
            let mut queues = self.queues.lock();
            let queue = queues.entry(route).or_insert_with(|| RouteQueue::new(now));
            let hold = if queue.is_silent { job.take_hold() } else { None };
            queue.releases.push_back(job);
            drop(queues);
            hold.iter().for_each(|hold| self.releases.unblock(hold));
        }
        is_any
    }

    /// What may go now.
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
        // With no lock of ours: whoever watches a hold that turns out to be over is woken.
        let renewals = renewals.into_iter().filter_map(|(route, holds)| self.renewals_of(route, holds, now));
        renewals.chain(releases).collect()
    }

    /// The chunk of these holds, if any of them is to be renewed.
    fn renewals_of(&self, route: Route, holds: Vec<Arc<Hold>>, now: Moment) -> Option<Batch> {
        let mut chunk = Vec::with_capacity(holds.len());
        for hold in holds {
            // Its slot has another owner since it came into the queue: there is another queue for it.
            if self.scheme.route(hold.key()) != route {
                hold.leave_batch(now);
                self.renewals.schedule(&hold, now);
                continue;
            }
            match catch_panic(|| hold.begin_renewal(now, now.after(BATCH_WINDOW))).flatten() {
                Some(lease) => chunk.push(DueRenewal::new(hold, lease)),
                // Over: it has changed while it was in the queue.
                None => self.renewals.schedule(&hold, now),
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

    /// There is room for another chunk.
    fn is_back(&self, chunk: &Batch) {
        if let Some(queue) = self.queues.lock().get_mut(&chunk.route) {
            match chunk.load {
                BatchTasks::Renewals(_) => queue.renewing -= 1,
                BatchTasks::Releases(_) => queue.releasing -= 1,
            }
        }
    }

    /// When there is something to do that nothing else tells of.
    fn next(&self, now: Moment) -> Moment {
        let queues = self.queues.lock();
        let waiting = queues.values().filter(|queue| queue.may_renew());
        let chunk = waiting.map(|queue| queue.next.max(now)).min().unwrap_or(Moment::NEVER);
        drop(queues);
        chunk.min(self.renewals.next()).min(self.releases.next(now))
    }

    /// Sends one chunk. The agenda has its holds at their deadlines, at which they are over, answered or not.
    fn send(self: Arc<Self>, chunk: Batch) -> BoxFuture<'static, BatchAnswers> {
        let scheme = Arc::clone(&self.scheme);
        let sent = SentBatch { work: self, chunk: Some(chunk) };
        Box::pin(async move {
            let route = sent.route();
            let answers = match sent.load() {
                BatchTasks::Renewals(chunk) => {
                    let batch: Vec<_> = chunk.iter().map(DueRenewal::renewal).collect();
                    BatchResults::Renewals(scheme.renew(&route, &batch).await)
                }
                BatchTasks::Releases(jobs) => {
                    let batch: Vec<_> = jobs.iter().map(ReleaseTask::leave).collect();
                    BatchResults::Releases(scheme.release_all(&route, &batch).await)
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
                self.has_answered(&route, attempts.iter().any(Result::is_ok));
                self.looks_how_long(&attempts, now);
                for (due, attempt) in chunk.into_iter().zip(attempts) {
                    if matches!(attempt, Err(Failure::NotDone { .. })) && self.scheme.route(due.hold.key()) != route {
                        // The node has said that another owns its slot.
                        due.hold.leave_batch(now.after(REDIRECT_PAUSE));
                        self.renewals.schedule(&due.hold, now);
                    } else {
                        self.renewals.on_answer(due, attempt, now);
                    }
                }
            }
            (BatchTasks::Releases(jobs), BatchResults::Releases(attempts)) => {
                self.has_answered(&route, attempts.iter().any(Result::is_ok));
                self.looks_how_long(&attempts, now);
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

    /// How long an answer takes shows here: a driver is seldom busy.
    fn looks_how_long<T>(&self, attempts: &[Attempt<T>], now: Moment) {
        if let Some(answer) = attempts.iter().flatten().next() {
            self.releases.answers_take(now.since(answer.sent));
        }
    }

    /// Local waiters do not wait for releases that stand in the line of a node that does not answer.
    fn has_answered(&self, route: &Route, is_heard: bool) {
        let mut holds = Vec::new();
        if let Some(queue) = self.queues.lock().get_mut(route) {
            queue.is_silent = !is_heard;
            if !is_heard {
                holds.extend(queue.releases.iter_mut().filter_map(ReleaseTask::take_hold));
            }
        }
        // With no lock of ours: waiters are woken.
        holds.iter().for_each(|hold| self.releases.unblock(hold));
    }
}

fn never() -> BoxStream<'static, ()> {
    Box::pin(stream::pending())
}

/// A driver that runs. Dropped, the others do without it.
struct Driver {
    work: Arc<BackgroundWork>,
    id: DriverId,
}

impl Drop for Driver {
    fn drop(&mut self) {
        self.work.wake.unregister(self.id);
        // What it would have looked at next.
        self.work.wake.all();
    }
}

/// What travels together.
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

/// The answers to one chunk.
struct BatchAnswers {
    chunk: Batch,
    answered: BatchResults,
}

/// A chunk that was sent. If its driver ends with its runtime before the answer is there, another one sends it again.
struct SentBatch {
    work: Arc<BackgroundWork>,
    chunk: Option<Batch>,
}

impl SentBatch {
    fn batch(&self) -> &Batch {
        self.chunk.as_ref().expect("it is there until it is answered")
    }

    fn route(&self) -> Route {
        self.batch().route.clone()
    }

    fn load(&self) -> &BatchTasks {
        &self.batch().load
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
            BatchTasks::Renewals(chunk) => chunk.iter().for_each(|due| self.work.renewals.on_no_answer(due, now)),
            BatchTasks::Releases(jobs) => jobs.into_iter().for_each(|job| self.work.releases.again(job, now)),
        }
    }
}
