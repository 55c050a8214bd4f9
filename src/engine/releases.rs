//! Releases: of holds, of cancelled acquisitions, and of what a dropped guard leaves behind.
//!
//! A release is sent until it is answered or the server's lease is surely over. If a copy of the acquisition may still
//! be on its way, the release is sent again after that copy's limit. Otherwise the copy would acquire after its own
//! cancellation and last a full lease. The [background](crate::engine::outbox) sends releases, so a dropped guard needs
//! no runtime. Where it has one, the first copy may go [inline](inline).

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::Notify;

use crate::base::attempt::{Attempt, Failure, Route};
use crate::base::backoff::Backoff;
use crate::base::clock::Clock;
use crate::base::error::Refusal;
use crate::base::events;
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::panics::catch_panic;
use crate::engine::replay::ReleaseReplay;
use crate::engine::wake::Wake;
use crate::lock::hold::Hold;
use crate::lock::release::Release;
use crate::lock::side::{CountOperations, OpenOperation};
use crate::lock::table::Table;
use crate::store::{ReleaseReply, ReleaseRequest, Scheme};
use inline::InlineReleases;

mod inline;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/engine/releases/tests.rs"]
mod tests;

/// Time between the loss of a guard at `max_hold` and the release of its hold. The holder's task learns of the loss
/// before another holder is let in.
pub(super) const HEAD_START: Duration = Duration::from_millis(50);

/// Sender of releases, in the background where needed.
#[derive(Debug)]
pub(crate) struct Releases {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    clock: Clock,
    /// Release replay: present where the next primary may not know of a release that this one carried out.
    replay: Option<ReleaseReplay>,
    waiting: Mutex<WaitingReleases>,
    wake: Arc<Wake>,
    inline: InlineReleases,
    /// Number of acquisitions and releases that may yet have to be sent to the server.
    unsettled: AtomicUsize,
    /// Number of releases among them.
    departing: AtomicUsize,
    /// Number of releases that came to their end, by an answer or with the lease.
    ended: AtomicU64,
    settled: Notify,
    /// True when the manager and all its guards are gone: only the remaining releases are left to send.
    stopped: AtomicBool,
    /// Stop for the next release between the change of its hold and its count, for a test.
    #[cfg(all(test, feature = "_testing"))]
    pub(super) interruption: Mutex<Option<Interruption>>,
}

/// Reports that a release has come to its stop, and waits until the test lets it continue.
#[cfg(all(test, feature = "_testing"))]
pub(super) type Interruption = (std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

/// Releases that no driver has taken yet.
#[derive(Debug, Default)]
struct WaitingReleases {
    now: VecDeque<ReleaseTask>,
    /// Releases that wait for the end of a pause.
    later: BTreeMap<DueNumber, ReleaseTask>,
    /// True when no driver takes releases any more.
    is_abandoned: bool,
}

/// Deadline and a unique number.
type DueNumber = (Moment, u64);

impl Releases {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, table: Arc<Table>, wake: Arc<Wake>, response_timeout: Duration) -> Self {
        let clock = scheme.clock();
        let recent = scheme.changes().map(|_| ReleaseReplay::default());
        Self {
            scheme,
            table,
            clock,
            replay: recent,
            waiting: Mutex::default(),
            wake,
            inline: InlineReleases::new(response_timeout),
            unsettled: AtomicUsize::new(0),
            departing: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            settled: Notify::new(),
            stopped: AtomicBool::new(false),
            #[cfg(all(test, feature = "_testing"))]
            interruption: Mutex::default(),
        }
    }

    /// Sends a release once.
    pub(crate) async fn send_once(self: &Arc<Self>, release: &Release) -> Attempt<ReleaseReply> {
        if self.replay.is_none() {
            return self.scheme.release(&release.key, &release.id).await;
        }
        let route = self.scheme.route(&release.key);
        let answer = self.scheme.release(&release.key, &release.id).await?;
        self.carried_out(release, &route, self.clock.now());
        Ok(answer)
    }

    /// Notes a release that a node has carried out, which its successor may not know of.
    fn carried_out(self: &Arc<Self>, release: &Release, route: &Route, now: Moment) {
        let Some(recent) = &self.replay else {
            return;
        };
        recent.remember(route.clone(), release, now);
        if self.scheme.route(&release.key) != *route {
            // A search for moved locks may have run just before this entry was there.
            self.resend_moved();
        }
    }

    /// Sends recent releases again to the new owners of moved locks, which may not know of them. The latest goes first.
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

    /// Returns when there is a release to send.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let waiting = self.waiting.lock();
        let later = waiting.later.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
        if !waiting.now.is_empty() {
            return Moment::from_nanos(0);
        }
        drop(waiting);
        later.min(self.inline.next()).min(self.replay.as_ref().map_or(Moment::NEVER, |recent| recent.forget(now)))
    }

    /// Takes the releases that are due.
    pub(super) fn take_due(&self, now: Moment) -> VecDeque<ReleaseTask> {
        let mut waiting = self.waiting.lock();
        let mut due = std::mem::take(&mut waiting.now);
        while let Some(first) = waiting.later.first_entry().filter(|first| first.key().0 <= now) {
            due.push_back(first.remove());
        }
        drop(waiting);
        due.extend(self.inline.take_due(now));
        due
    }

    /// Notes how long an answer to the background took.
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
        let pause = job.backoff.pause();
        self.later(job, now.after(pause));
    }

    fn later(&self, job: ReleaseTask, at: Moment) {
        let place = (at, self.wake.next_number());
        self.put(job, |waiting, job| drop(waiting.later.insert(place, job)));
        self.wake.at(at);
    }

    /// Takes a release over. Without a running driver, the lease ends the hold.
    pub(crate) fn in_background(self: &Arc<Self>, release: Release, hold: Option<Arc<Hold>>) {
        self.carry(ReleaseTask::new(self, release, hold));
    }

    fn carry(&self, job: ReleaseTask) {
        self.put(job, |waiting, job| waiting.now.push_back(job));
        self.wake.at(Moment::from_nanos(0));
    }

    /// Stores a release, unless no driver is left to send it. It would wait for ever, and keep this structure in
    /// memory.
    fn put(&self, job: ReleaseTask, put: impl FnOnce(&mut WaitingReleases, ReleaseTask)) {
        let mut waiting = self.waiting.lock();
        if waiting.is_abandoned {
            drop(waiting);
            drop(job);
        } else {
            put(&mut waiting, job);
        }
    }

    /// Releases a hold that is over, and the one that it may have been converted into.
    pub(crate) fn give_back(self: &Arc<Self>, hold: &Hold, waited_for: Option<Arc<Hold>>, now: Moment) {
        let (release, conversion) = Release::all_of(hold, now);
        self.in_background(release, waited_for);
        if let Some(release) = conversion {
            self.in_background(release, None);
        }
    }

    /// Releases a hold a head start after its guards were notified of the loss. Local waiters wait for that. The
    /// release counts at once.
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

    /// Takes back a request that no task waits for any more, and that may yet be on its way.
    ///
    /// The request went out on a connection of this runtime, and a release on the same connection arrives behind it. On
    /// another connection the release could arrive first and find nothing. Then the request would leave a hold or a
    /// place in the queue until the release is repeated, when no copy can arrive any more.
    pub(crate) fn take_back_from_here(self: &Arc<Self>, release: Release, now: Moment) {
        inline::tell(self, ReleaseTask::new(self, release, None), now);
    }

    /// Announces that no new releases come.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Drops the waiting releases, since no driver is left: leases end their holds.
    pub(super) fn abandon(&self) {
        let abandoned = std::mem::replace(
            &mut *self.waiting.lock(),
            WaitingReleases { is_abandoned: true, ..WaitingReleases::default() },
        );
        drop(abandoned);
        self.inline.abandon();
    }

    /// Lets local waiters go on, which need not wait for a server that does not answer.
    pub(crate) fn unblock(&self, hold: &Hold) {
        catch_panic(|| self.table.on_end(hold));
    }

    /// Counts as under way until it is dropped. An operation that ends a hold takes this before the hold changes:
    /// otherwise `close` could find neither the hold nor its release.
    pub(crate) fn unsettled(self: &Arc<Self>) -> Unsettled {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        Unsettled(Arc::clone(self))
    }

    /// Counts an attempt as under way, in a value that its cell keeps.
    pub(crate) fn open_operation(self: &Arc<Self>) -> OpenOperation {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        OpenOperation::counted_by(Arc::<Self>::clone(self))
    }

    /// Marks the moment between the change of a hold and the count of its release. A test may stop the operation there.
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

    /// Returns true if a release has yet to be sent or answered.
    pub(crate) fn is_releasing(&self) -> bool {
        self.departing.load(Ordering::SeqCst) > 0
    }

    /// Number of releases that have come to their end so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns when the server knows of all releases so far, or has forgotten their holds.
    pub(crate) async fn await_resolved(&self) {
        self.until_none(&self.unsettled).await;
    }

    /// Returns when the server knows of all releases that no caller waits for, or has forgotten their holds.
    /// Acquisitions may continue.
    pub(crate) async fn flushed(&self) {
        self.until_none(&self.departing).await;
    }

    async fn until_none(&self, count: &AtomicUsize) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            // Registered before the look, so that the last release is not missed.
            settled.as_mut().enable();
            if count.load(Ordering::SeqCst) == 0 {
                return;
            }
            settled.await;
        }
    }
}

/// Returns true if a server that refuses a release for this reason will refuse it again.
fn is_final(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Forbidden | Refusal::ForeignKey | Refusal::UnsupportedServer | Refusal::OtherTopology)
}

/// Release that is sent until the server knows of it, or has forgotten the hold.
#[derive(Debug)]
pub(super) struct ReleaseTask {
    release: Release,
    backoff: Backoff,
    underway: UnderwayRelease,
}

impl ReleaseTask {
    fn new(releases: &Arc<Releases>, release: Release, hold: Option<Arc<Hold>>) -> Self {
        Self { release, backoff: Backoff::new(), underway: UnderwayRelease::new(releases, hold) }
    }

    pub(super) fn key(&self) -> &Key {
        &self.release.key
    }

    pub(super) fn leave(&self) -> ReleaseRequest {
        ReleaseRequest { key: Arc::clone(&self.release.key), id: self.release.id.clone() }
    }

    /// Takes the hold that local waiters wait for, once.
    pub(super) fn take_hold(&mut self) -> Option<Arc<Hold>> {
        self.underway.hold.take()
    }
}

/// Release under way in the background. Dropped at any point, it leaves the table and the counts right.
#[derive(Debug)]
struct UnderwayRelease {
    hold: Option<Arc<Hold>>,
    /// Dropped after the hold.
    unsettled: Unsettled,
}

/// Count of one acquisition or release that may yet have to be sent.
#[derive(Debug)]
pub(crate) struct Unsettled(Arc<Releases>);

impl CountOperations for Releases {
    fn on_end(&self) {
        if self.unsettled.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.settled.notify_waiters();
        }
    }
}

impl Drop for Unsettled {
    fn drop(&mut self) {
        self.0.on_end();
    }
}

impl UnderwayRelease {
    fn new(releases: &Arc<Releases>, hold: Option<Arc<Hold>>) -> Self {
        releases.departing.fetch_add(1, Ordering::SeqCst);
        Self { hold, unsettled: releases.unsettled() }
    }
}

impl Drop for UnderwayRelease {
    fn drop(&mut self) {
        let Unsettled(releases) = &self.unsettled;
        if let Some(hold) = self.hold.take() {
            releases.unblock(&hold);
        }
        releases.ended.fetch_add(1, Ordering::Relaxed);
        if releases.departing.fetch_sub(1, Ordering::SeqCst) == 1 {
            releases.settled.notify_waiters();
            if releases.is_stopped() {
                // The drivers end with the last release, and another task may have sent it.
                releases.wake.all();
            }
        }
    }
}
