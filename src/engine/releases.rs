//! Releases: requests that end a hold or a cancelled acquisition on the server.
//!
//! A release is repeated until it is answered or the lease is surely over on the server. An in-doubt copy of the
//! acquisition may arrive at the server after the release, and would acquire the lock for a full lease. So if such a
//! copy is possible, the release is sent once more after the time limit of the copy.
//!
//! The [background](crate::engine::background) sends releases, so a guard can be dropped outside of a runtime. Within a
//! runtime, the drop may send the first copy itself. This is an [inline](inline) release.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use tokio::sync::Notify;

use crate::base::attempt::{Attempt, Failure, Route};
use crate::base::backoff::{Backoff, Jitter};
use crate::base::clock::Clock;
use crate::base::deadline_queue::DeadlineQueue;
use crate::base::error::Refusal;
use crate::base::events;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::base::sync::{AtomicBool, AtomicU64, AtomicUsize, Mutex};
use crate::engine::replay::ReleaseReplay;
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::side::Pending;
use crate::lock::table::Table;
use crate::store::{MasterRelease, PendingAtMaster, ReleaseBackground, ReleaseReply, ReleaseRequest, Scheme};
use inline::InlineReleases;

mod inline;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/releases/tests.rs"]
mod tests;

/// Time between the loss of a guard at `max_hold` and the release of its hold. In this time, the task of the guard can
/// notice the loss before another holder enters.
pub(super) const HEAD_START: Duration = Duration::from_millis(50);

/// Releases of one manager that are in progress.
#[derive(Debug)]
pub(crate) struct Releases {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    clock: Clock,
    /// Release replay. It is present with a cluster and with Sentinels, because a new primary may lack a release that
    /// the old primary has executed.
    replay: Option<ReleaseReplay>,
    waiting: Mutex<WaitingReleases>,
    inline: InlineReleases,
    /// Number of acquisitions in progress, plus the number of releases that are not answered or that may still become
    /// necessary.
    unsettled: AtomicUsize,
    /// Number of releases that the background still has to send or to get answered.
    departing: AtomicUsize,
    /// Number of operations at single masters of a quorum, which are requests in flight and releases to repeat. `close`
    /// and `flush` do not wait for them, because a majority of the masters has decided without them.
    at_masters: AtomicUsize,
    /// Number of releases that have ended, because they were answered or the lease was over.
    ended: AtomicU64,
    settled: Notify,
    /// True after the manager and all its guards were dropped. The drivers then only send the remaining releases.
    stopped: AtomicBool,
    /// Interruption of the next release, for a test. The release stops after it has changed its hold and before it is
    /// counted.
    #[cfg(all(test, feature = "_testing"))]
    pub(super) interruption: Mutex<Option<Interruption>>,
}

/// Channels of an interruption. The first reports to the test that a release has stopped. The second waits until the
/// test lets the release continue.
#[cfg(all(test, feature = "_testing"))]
pub(super) type Interruption = (std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

/// Releases that no driver has taken yet.
#[derive(Debug, Default)]
struct WaitingReleases {
    now: VecDeque<ReleaseTask>,
    /// Releases that wait for the end of a pause.
    later: DeadlineQueue<ReleaseTask>,
    /// True when no driver will take releases any more.
    is_abandoned: bool,
}

impl Releases {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, table: Arc<Table>, response_timeout: Duration) -> Self {
        let clock = scheme.clock();
        let recent = scheme.changes().map(|_| ReleaseReplay::default());
        Self {
            scheme,
            table,
            clock,
            replay: recent,
            waiting: Mutex::default(),
            inline: InlineReleases::new(response_timeout),
            unsettled: AtomicUsize::new(0),
            departing: AtomicUsize::new(0),
            at_masters: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            settled: Notify::new(),
            stopped: AtomicBool::new(false),
            #[cfg(all(test, feature = "_testing"))]
            interruption: Mutex::default(),
        }
    }

    /// Sends a release once.
    pub(crate) async fn send_once(self: &Arc<Self>, release: &Release) -> Attempt<ReleaseReply> {
        let request = request_of(release);
        if self.replay.is_none() {
            return self.scheme.release(&request).await;
        }
        let route = self.scheme.route(&release.key);
        let answer = self.scheme.release(&request).await?;
        self.carried_out(release, &route, self.clock.now());
        Ok(answer)
    }

    /// Notes a release that a node has executed and that a new primary may lack.
    fn carried_out(self: &Arc<Self>, release: &Release, route: &Route, now: Moment) {
        let Some(recent) = &self.replay else {
            return;
        };
        recent.remember(route.clone(), release, now);
        if self.scheme.route(&release.key) != *route {
            // The route has changed, and `resend_moved` may have run just before this release was noted.
            self.resend_moved();
        }
    }

    /// Sends recent releases again if the route of their lock has changed, because the new primary may lack them. The
    /// latest release is sent first.
    pub(super) fn resend_moved(self: &Arc<Self>) {
        let Some(recent) = &self.replay else {
            return;
        };
        let mut moved = recent.take_moved(|release| self.scheme.route(&release.key), self.clock.now());
        if moved.is_empty() {
            return;
        }
        moved.reverse();
        for release in moved {
            self.in_background(release, None);
        }
    }

    /// Returns the next moment at which a release is due.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let waiting = self.waiting.lock();
        let later = waiting.later.next();
        if !waiting.now.is_empty() {
            return Moment::START;
        }
        drop(waiting);
        later.min(self.inline.next()).min(self.replay.as_ref().map_or(Moment::NEVER, |recent| recent.forget(now)))
    }

    /// Takes the releases that are due.
    pub(super) fn take_due(&self, now: Moment) -> VecDeque<ReleaseTask> {
        let mut waiting = self.waiting.lock();
        let mut due = std::mem::take(&mut waiting.now);
        due.extend(waiting.later.take_due(now));
        drop(waiting);
        due.extend(self.inline.take_due(now));
        due
    }

    /// Notes how long a node took to answer a batch of the background.
    pub(super) fn answers_take(&self, span: Duration) {
        self.inline.answers_take(span);
    }

    /// Applies the result of one copy of a release.
    pub(super) fn on_answer(
        self: &Arc<Self>,
        mut job: ReleaseTask,
        route: &Route,
        attempt: Attempt<ReleaseReply>,
        now: Moment,
    ) {
        if let Some(hold) = job.take_hold() {
            self.unblock(&hold);
        }
        let release = &job.release;
        match attempt {
            Ok(answer) => {
                self.carried_out(release, route, now);
                if let Some(until) = release.arrives_after(answer.sent) {
                    self.later(job, until);
                }
            }
            Err(Failure::Refused { refusal, message, .. } | Failure::Broken { refusal, message, .. })
                if is_final(refusal) =>
            {
                catch_panic(|| events::release_refused(release.key.name(), &message));
            }
            Err(failure) if now >= release.server_until => {
                catch_panic(|| events::release_given_up(release.key.name(), &failure));
            }
            Err(_) => self.again(job, now),
        }
    }

    /// Sends an unanswered release again after a pause.
    pub(super) fn again(&self, mut job: ReleaseTask, now: Moment) {
        let pause = job.backoff.pause(Jitter::draw());
        self.later(job, now.after(pause));
    }

    fn later(&self, job: ReleaseTask, at: Moment) {
        self.put(job, |waiting, job| {
            waiting.later.insert(at, job);
        });
        self.table.deadlines.wake.at(at);
    }

    /// Passes a release to the background. If no driver runs any more, the release is dropped, and the hold ends with
    /// its lease.
    pub(crate) fn in_background(self: &Arc<Self>, release: Release, hold: Option<Arc<Hold>>) {
        self.carry(ReleaseTask::new(self, release, hold));
    }

    fn carry(&self, job: ReleaseTask) {
        self.put(job, |waiting, job| waiting.now.push_back(job));
        self.table.deadlines.wake.at(Moment::START);
    }

    /// Stores a release in the waiting releases. If no driver is left to send the release, drops it instead. Otherwise
    /// it would wait for ever and keep this structure in memory.
    fn put(&self, job: ReleaseTask, put: impl FnOnce(&mut WaitingReleases, ReleaseTask)) {
        let mut waiting = self.waiting.lock();
        if waiting.is_abandoned {
            drop(waiting);
            drop(job);
        } else {
            put(&mut waiting, job);
        }
    }

    /// Releases a hold that is over. If a conversion of the hold is in doubt, also releases the hold that the
    /// conversion may have created. Local waiters wait for the release of `waited_for`.
    pub(crate) fn give_back(self: &Arc<Self>, hold: &Hold, waited_for: Option<Arc<Hold>>, now: Moment) {
        let (release, conversion) = Release::all_of(hold, now);
        self.in_background(release, waited_for);
        if let Some(release) = conversion {
            self.in_background(release, None);
        }
    }

    /// Releases a hold that was lost at `max_hold`, after a pause of [`HEAD_START`]. Local waiters wait for the
    /// release. The release is counted now and not after the pause, so that `close` and `flush` wait for it.
    pub(crate) fn give_back_later(self: &Arc<Self>, hold: &Arc<Hold>) {
        let now = self.clock.now();
        let (release, conversion) = Release::all_of(hold, now);
        let then = now.after(HEAD_START);
        self.later(ReleaseTask::new(self, release, Some(Arc::clone(hold))), then);
        if let Some(release) = conversion {
            self.later(ReleaseTask::new(self, release, None), then);
        }
    }

    /// Releases a hold whose last guard was dropped on this runtime.
    pub(crate) fn give_back_from_here(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) {
        let (release, conversion) = Release::all_of(hold, now);
        inline::tell(self, ReleaseTask::new(self, release, Some(Arc::clone(hold))), now);
        if let Some(release) = conversion {
            self.in_background(release, None);
        }
    }

    /// Releases an acquisition whose future was dropped, although the server may not have executed its request yet.
    ///
    /// The request was sent on a connection of the current runtime. A release on the same connection arrives after the
    /// request. On another connection, the release could arrive first and find nothing. The request would then create a
    /// hold or a place in the queue. They would stay until the release is repeated after the time limit of the request.
    pub(crate) fn take_back_from_here(self: &Arc<Self>, release: Release, now: Moment) {
        inline::tell(self, ReleaseTask::new(self, release, None), now);
    }

    /// Notes that no manager and no guard exists any more, so that no new release will come.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Drops the waiting releases, because no driver is left to send them. The holds end with their leases.
    pub(super) fn abandon(&self) {
        let abandoned = std::mem::replace(
            &mut *self.waiting.lock(),
            WaitingReleases { is_abandoned: true, ..WaitingReleases::default() },
        );
        drop(abandoned);
        self.inline.abandon();
    }

    /// Lets local waiters send their requests, without waiting longer for the release of `hold`.
    pub(crate) fn unblock(&self, hold: &Hold) {
        catch_panic(|| self.table.on_end(hold));
    }

    /// Counts an operation as in progress until the returned value is dropped. An operation that ends a hold calls this
    /// method before it changes the hold. Otherwise there would be a moment at which `close` finds neither the hold nor
    /// its release.
    pub(crate) fn begin_unsettled(self: &Arc<Self>) -> Unsettled {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        Unsettled(Some(Arc::clone(self)))
    }

    /// Returns the count of a request that has left its cell, if `close` waits for the request.
    pub(crate) fn unsettled_of(self: &Arc<Self>, pending: &mut Pending) -> Option<Unsettled> {
        std::mem::take(&mut pending.is_counted).then(|| Unsettled(Some(Arc::clone(self))))
    }

    /// Called between the change of a hold and the count of its release. Does nothing, unless a test interrupts the
    /// operation here.
    #[inline]
    pub(super) fn has_changed_hold(&self) {
        #[cfg(all(test, feature = "_testing"))]
        {
            let interruption = self.interruption.lock().take();
            if let Some((stops, goes_on)) = interruption {
                stops.send(()).expect("the test waits for it");
                goes_on.recv().expect("the test lets it go on");
            }
        }
    }

    /// Returns true if a release still has to be sent or answered.
    pub(crate) fn is_releasing(&self) -> bool {
        self.departing.load(Ordering::SeqCst) > 0
    }

    /// Returns true if the drivers have nothing left to do after [`stop`](Self::stop).
    pub(super) fn has_ended(&self) -> bool {
        self.is_stopped() && !self.is_releasing() && self.at_masters.load(Ordering::SeqCst) == 0
    }

    /// Returns the number of releases that have ended so far.
    pub(crate) fn ended_count(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Waits until no acquisition is in progress and no release is left to send.
    pub(crate) async fn await_resolved(&self) {
        self.until_none(&self.unsettled).await;
    }

    /// Waits until no release of the background is left to send. Acquisitions may still be in progress.
    pub(crate) async fn flushed(&self) {
        self.until_none(&self.departing).await;
    }

    async fn until_none(&self, count: &AtomicUsize) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // The future is enabled before the count is read. So it notices if the last release ends after that.
            settled.as_mut().enable();
            if count.load(Ordering::SeqCst) == 0 {
                return;
            }
            settled.await;
        }
    }
}

fn request_of(release: &Release) -> ReleaseRequest {
    ReleaseRequest { key: Arc::clone(&release.key), id: release.id.clone(), rest_until: release.rest_until }
}

/// Returns true if a server that refuses a release for this reason will refuse it again.
fn is_final(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Forbidden | Refusal::ForeignKey | Refusal::UnsupportedServer | Refusal::OtherTopology)
}

/// Release that the background repeats until it is answered or the lease is over.
#[derive(Debug)]
pub(super) struct ReleaseTask {
    release: Release,
    backoff: Backoff,
    scope: ReleaseScope,
}

/// Servers that get a release.
#[derive(Debug)]
enum ReleaseScope {
    /// All servers of the lock.
    Lock(UnderwayRelease),
    /// A single master of a quorum.
    Master { route: Route, pending: Box<dyn PendingAtMaster> },
}

impl ReleaseTask {
    fn new(releases: &Arc<Releases>, release: Release, hold: Option<Arc<Hold>>) -> Self {
        Self { release, backoff: Backoff::new(), scope: ReleaseScope::Lock(UnderwayRelease::new(releases, hold)) }
    }

    pub(super) fn route(&self, scheme: &dyn Scheme) -> Route {
        match &self.scope {
            ReleaseScope::Lock(_) => scheme.route(&self.release.key),
            ReleaseScope::Master { route, .. } => route.clone(),
        }
    }

    pub(super) fn leave(&self) -> ReleaseRequest {
        request_of(&self.release)
    }

    /// Takes the hold out of the task, if local waiters wait for its release. The first call returns the hold, and
    /// later calls return `None`.
    pub(super) fn take_hold(&mut self) -> Option<Arc<Hold>> {
        match &mut self.scope {
            ReleaseScope::Lock(underway) => underway.hold.take(),
            ReleaseScope::Master { .. } => None,
        }
    }

    /// Returns true if the background drops the release before it sends it: the hold at the master of a quorum is over,
    /// or more recent releases need the room.
    pub(super) fn is_superfluous(&self, now: Moment) -> bool {
        match &self.scope {
            ReleaseScope::Lock(_) => false,
            ReleaseScope::Master { pending, .. } => now >= self.release.server_until || pending.is_beyond_limit(),
        }
    }
}

impl ReleaseBackground for Releases {
    fn begin_at_master(&self) {
        self.at_masters.fetch_add(1, Ordering::SeqCst);
    }

    fn end_at_master(&self) {
        if self.at_masters.fetch_sub(1, Ordering::SeqCst) == 1 && self.is_stopped() {
            self.table.deadlines.wake.all();
        }
    }

    fn release_at_master(&self, release: MasterRelease) {
        let MasterRelease { route, key, id, server_until, arrives_until, pending } = release;
        let release = Release { key, id, server_until, arrives_until, rest_until: None };
        self.carry(ReleaseTask { release, backoff: Backoff::new(), scope: ReleaseScope::Master { route, pending } });
    }
}

/// Count of a release in the background. Its drop unblocks local waiters and counts the release as ended.
#[derive(Debug)]
struct UnderwayRelease {
    hold: Option<Arc<Hold>>,
    /// Declared after the hold, so it is dropped after the hold.
    unsettled: Unsettled,
}

/// Count of one acquisition or release in progress. Its drop counts the end.
#[derive(Debug)]
pub(crate) struct Unsettled(Option<Arc<Releases>>);

impl Unsettled {
    /// Leaves the count to the cell, which has the request that is counted. [`Releases::unsettled_of`] takes it back.
    pub(crate) fn leave_to_cell(mut self) {
        self.0 = None;
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        if let Some(releases) = &self.0
            && releases.unsettled.fetch_sub(1, Ordering::SeqCst) == 1
        {
            releases.settled.notify_waiters();
        }
    }
}

impl UnderwayRelease {
    fn new(releases: &Arc<Releases>, hold: Option<Arc<Hold>>) -> Self {
        releases.departing.fetch_add(1, Ordering::SeqCst);
        Self { hold, unsettled: releases.begin_unsettled() }
    }
}

impl Drop for UnderwayRelease {
    fn drop(&mut self) {
        let Unsettled(Some(releases)) = &self.unsettled else {
            return;
        };
        if let Some(hold) = self.hold.take() {
            releases.unblock(&hold);
        }
        releases.ended.fetch_add(1, Ordering::Relaxed);
        if releases.departing.fetch_sub(1, Ordering::SeqCst) == 1 {
            releases.settled.notify_waiters();
            if releases.is_stopped() {
                // The drivers end when the last release has ended. They may be asleep, because another task may have
                // sent this release, so they must be woken.
                releases.table.deadlines.wake.all();
            }
        }
    }
}
