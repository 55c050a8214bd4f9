//! Giving holds back: releases, cancelled acquisitions, and what a dropped guard leaves behind.
//!
//! A release tells the server until it has an answer or the server's lease is surely over. If a copy of the
//! acquisition may still be on its way, it tells the server again after that copy's limit: otherwise the copy would
//! come to life after its own cancellation and last a full lease. In the background the [outbox](crate::engine::outbox)
//! carries them, so a guard that is dropped needs no runtime. Where it has one, the first copy may go [there](at_hand).

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

/// Time between the loss of a guard at `max_hold` and the release of its hold. The holder's task hears of the loss before another
/// one is let in.
pub(super) const HEAD_START: Duration = Duration::from_millis(50);

/// Who tells the server about releases, in the background where needed.
#[derive(Debug)]
pub(crate) struct Releases {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    clock: Clock,
    /// Where the next primary may not know of a release that this one carried out.
    replay: Option<ReleaseReplay>,
    waiting: Mutex<WaitingReleases>,
    wake: Arc<Wake>,
    at_hand: InlineReleases,
    /// Acquisitions and releases that the server may yet have to be told of.
    unsettled: AtomicUsize,
    /// The releases among them.
    departing: AtomicUsize,
    /// Releases that came to their end, by an answer or with the lease.
    ended: AtomicU64,
    settled: Notify,
    /// The manager and all its guards are gone: what is left to be told is the last.
    stopped: AtomicBool,
    /// A test stops the next departure between the change of its hold and the count of its release.
    #[cfg(test)]
    pub(super) interruption: Mutex<Option<Interruption>>,
}

/// Says that a departure has come to its stop, and waits for the word to go on.
#[cfg(test)]
pub(super) type Interruption = (std::sync::mpsc::Sender<()>, std::sync::mpsc::Receiver<()>);

/// Releases that nobody carries yet.
#[derive(Debug, Default)]
struct WaitingReleases {
    now: VecDeque<ReleaseTask>,
    /// Until a pause is over.
    later: BTreeMap<DueNumber, ReleaseTask>,
    /// Nobody carries anything any more.
    is_abandoned: bool,
}

/// When something is due, and a number of its own.
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
            at_hand: InlineReleases::new(response_timeout),
            unsettled: AtomicUsize::new(0),
            departing: AtomicUsize::new(0),
            ended: AtomicU64::new(0),
            settled: Notify::new(),
            stopped: AtomicBool::new(false),
            #[cfg(test)]
            interruption: Mutex::default(),
        }
    }

    /// Tells the server once.
    pub(crate) async fn send_once(self: &Arc<Self>, release: &Release) -> Attempt<ReleaseReply> {
        if self.replay.is_none() {
            return self.scheme.release(&release.key, &release.id).await;
        }
        let route = self.scheme.route(&release.key);
        let answer = self.scheme.release(&release.key, &release.id).await?;
        self.carried_out(release, &route, self.clock.now());
        Ok(answer)
    }

    /// A node has carried a release out, which its successor may not know of.
    fn carried_out(self: &Arc<Self>, release: &Release, route: &Route, now: Moment) {
        let Some(recent) = &self.replay else {
            return;
        };
        recent.remember(route.clone(), release, now);
        if self.scheme.route(&release.key) != *route {
            // Whoever looks for what has moved may have done so just before this was there.
            self.resend_moved();
        }
    }

    /// Whoever owns a lock after a change is told of the releases that its predecessor carried out of late, the latest first.
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

    /// When there is something to carry.
    pub(super) fn next(&self, now: Moment) -> Moment {
        let waiting = self.waiting.lock();
        let later = waiting.later.first_key_value().map_or(Moment::NEVER, |((at, _), _)| *at);
        if !waiting.now.is_empty() {
            return Moment::from_nanos(0);
        }
        drop(waiting);
        later.min(self.at_hand.next()).min(self.replay.as_ref().map_or(Moment::NEVER, |recent| recent.forget(now)))
    }

    /// What is to be carried now.
    pub(super) fn take_due(&self, now: Moment) -> VecDeque<ReleaseTask> {
        let mut waiting = self.waiting.lock();
        let mut due = std::mem::take(&mut waiting.now);
        while let Some(first) = waiting.later.first_entry().filter(|first| first.key().0 <= now) {
            due.push_back(first.remove());
        }
        drop(waiting);
        due.extend(self.at_hand.take_due(now));
        due
    }

    /// The outbox has waited so long for an answer.
    pub(super) fn answers_take(&self, span: Duration) {
        self.at_hand.answers_take(span);
    }

    /// A copy of a release has come to its end.
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

    /// It was not answered, and is told again after a pause.
    pub(super) fn again(&self, mut job: ReleaseTask, now: Moment) {
        let pause = job.backoff.pause();
        self.later(job, now.after(pause));
    }

    fn later(&self, job: ReleaseTask, at: Moment) {
        let place = (at, self.wake.next_number());
        self.put(job, |waiting, job| drop(waiting.later.insert(place, job)));
        self.wake.at(at);
    }

    /// Takes a release over. Without a driver that still runs, the lease ends it.
    pub(crate) fn in_background(self: &Arc<Self>, release: Release, hold: Option<Arc<Hold>>) {
        self.carry(ReleaseTask::new(self, release, hold));
    }

    fn carry(&self, job: ReleaseTask) {
        self.put(job, |waiting, job| waiting.now.push_back(job));
        self.wake.at(Moment::from_nanos(0));
    }

    /// Where nobody carries it, it would wait for ever, and keep all this in memory.
    fn put(&self, job: ReleaseTask, put: impl FnOnce(&mut WaitingReleases, ReleaseTask)) {
        let mut waiting = self.waiting.lock();
        if waiting.is_abandoned {
            drop(waiting);
            drop(job);
        } else {
            put(&mut waiting, job);
        }
    }

    /// The same for a hold that is over, and for what it may have been converted into.
    pub(crate) fn give_back(self: &Arc<Self>, hold: &Hold, waited_for: Option<Arc<Hold>>, now: Moment) {
        let (release, conversion) = Release::all_of(hold, now);
        self.in_background(release, waited_for);
        if let Some(release) = conversion {
            self.in_background(release, None);
        }
    }

    /// The same for a hold whose guards were told just now that they are lost: the server hears of it a head start later, and local
    /// waiters wait for that. It counts at once.
    pub(crate) fn give_back_later(self: &Arc<Self>, hold: &Arc<Hold>) {
        let now = self.clock.now();
        let (release, conversion) = Release::all_of(hold, now);
        let then = now.after(HEAD_START);
        self.later(ReleaseTask::new(self, release, Some(Arc::clone(hold))), then);
        if let Some(release) = conversion {
            self.later(ReleaseTask::new(self, release, None), then);
        }
    }

    /// The same for a hold whose last guard was dropped here.
    pub(crate) fn give_back_from_here(self: &Arc<Self>, hold: &Arc<Hold>, now: Moment) {
        let (release, conversion) = Release::all_of(hold, now);
        inline::tell(self, ReleaseTask::new(self, release, Some(Arc::clone(hold))), now);
        if let Some(release) = conversion {
            self.in_background(release, None);
        }
    }

    /// Takes back a request that nobody waits for any more, and that may yet be on its way.
    ///
    /// It went out on a connection of this runtime, and what is sent there behind it arrives behind it. On another connection the
    /// release could arrive first and find nothing; then the request would leave a hold or a place in the queue until the release is
    /// repeated, which is when no copy can arrive any more.
    pub(crate) fn take_back_from_here(self: &Arc<Self>, release: Release, now: Moment) {
        inline::tell(self, ReleaseTask::new(self, release, None), now);
    }

    /// Nothing more is given back.
    pub(super) fn stop(&self) {
        self.stopped.store(true, Ordering::SeqCst);
    }

    pub(super) fn is_stopped(&self) -> bool {
        self.stopped.load(Ordering::SeqCst)
    }

    /// Nobody carries what waits any more: leases end it.
    pub(super) fn abandon(&self) {
        let abandoned = std::mem::replace(
            &mut *self.waiting.lock(),
            WaitingReleases { is_abandoned: true, ..WaitingReleases::default() },
        );
        drop(abandoned);
        self.at_hand.abandon();
    }

    /// Local waiters need not wait for a server that does not answer.
    pub(crate) fn unblock(&self, hold: &Hold) {
        catch_panic(|| self.table.on_end(hold));
    }

    /// Counts as under way until it is dropped. An operation that ends a hold takes it before the hold changes: otherwise `close`
    /// could find neither the hold nor its release.
    pub(crate) fn unsettled(self: &Arc<Self>) -> Unsettled {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        Unsettled(Arc::clone(self))
    }

    /// The same for an attempt, which its cell keeps.
    pub(crate) fn keeps_open(self: &Arc<Self>) -> OpenOperation {
        self.unsettled.fetch_add(1, Ordering::SeqCst);
        OpenOperation::counted_by(Arc::<Self>::clone(self))
    }

    /// Marks the moment between the change of a hold and the count of its release, at which a test may stop the operation.
    #[inline]
    pub(super) fn has_changed_hold(&self) {
        #[cfg(test)]
        {
            let interruption = self.interruption.lock().take();
            if let Some((stops, goes_on)) = interruption {
                stops.send(()).expect("the test waits for it");
                goes_on.recv().expect("the test lets it go on");
            }
        }
    }

    /// Whether the server has yet to be told of a release.
    pub(crate) fn is_releasing(&self) -> bool {
        self.departing.load(Ordering::SeqCst) > 0
    }

    /// Number of releases that have come to their end so far.
    pub(crate) fn ended(&self) -> u64 {
        self.ended.load(Ordering::Relaxed)
    }

    /// Returns when the server knows of all releases so far, or has forgotten them.
    pub(crate) async fn await_resolved(&self) {
        self.until_none(&self.unsettled).await;
    }

    /// Returns when the server knows of all releases that no caller waits for, or has forgotten them. Acquisitions may go on.
    pub(crate) async fn flushed(&self) {
        self.until_none(&self.departing).await;
    }

    async fn until_none(&self, count: &AtomicUsize) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if count.load(Ordering::SeqCst) == 0 {
                return;
            }
            settled.await;
        }
    }
}

/// Whether a server that refuses a release so will go on to do so.
fn is_final(refusal: Refusal) -> bool {
    matches!(refusal, Refusal::Forbidden | Refusal::ForeignKey | Refusal::UnsupportedServer | Refusal::OtherTopology)
}

/// A release that is to be told until the server knows, or has forgotten.
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

    /// The hold that local waiters wait for, to be taken once.
    pub(super) fn take_hold(&mut self) -> Option<Arc<Hold>> {
        self.underway.hold.take()
    }
}

/// A release in the background. Dropped at any point, it leaves the table and the count right.
#[derive(Debug)]
struct UnderwayRelease {
    hold: Option<Arc<Hold>>,
    /// Given up after the hold.
    unsettled: Unsettled,
}

/// Something that the server may yet have to be told.
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
                // The drivers end with the last one, and may not be who has told it.
                releases.wake.all();
            }
        }
    }
}
