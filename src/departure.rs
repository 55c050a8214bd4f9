//! Giving holds back: releases, cancelled acquisitions, and what a dropped guard leaves behind.
//!
//! A departure tells the server until it has an answer or the server's lease is surely over. If a copy of the
//! acquisition may still be on its way, it tells the server again after that copy's limit: otherwise the copy would
//! come to life after its own cancellation and last a full lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::error::Refusal;
use crate::hold::Hold;
use crate::key::Key;
use crate::lease::Moment;
use crate::recent::Recent;
use crate::scheme::{Acquisition, Attempt, Failure, Left, Scheme};
use crate::table::Table;

/// Pause between tries to tell a server that does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// How many releases a new primary is told of at a time: others have much to say to it, too.
const TOLD_AT_ONCE: usize = 16;

/// Who tells the server about departures, in the background where needed.
#[derive(Debug)]
pub(crate) struct Departures {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    clock: Clock,
    /// Where the next primary may not know of a release that this one carried out.
    recent: Option<Recent>,
    /// Something was carried out while its lock got another owner.
    moved: Notify,
    runtime: Mutex<Option<Handle>>,
    /// Acquisitions, releases and departures that the server may yet have to be told of.
    pending: AtomicUsize,
    /// The departures among them.
    departing: AtomicUsize,
    settled: Notify,
}

/// One acquisition that is to end on the server.
#[derive(Clone, Debug)]
pub(crate) struct Departure {
    pub(crate) key: Arc<Key>,
    pub(crate) id: Acquisition,
    /// The server has forgotten it by then, whatever arrived.
    pub(crate) server_until: Moment,
    pub(crate) stray_until: Option<Moment>,
}

impl Departure {
    pub(crate) fn of(hold: &Hold) -> Self {
        Self {
            key: Arc::clone(hold.key()),
            id: hold.id().clone(),
            server_until: hold.server_until(),
            stray_until: hold.stray_until(),
        }
    }

    /// Until when a copy of the acquisition may arrive behind what was sent then: it may have before that was answered.
    pub(crate) fn stray_after(&self, sent: Moment) -> Option<Moment> {
        self.stray_until.filter(|until| *until > sent)
    }
}

impl Departures {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, table: Arc<Table>) -> Self {
        let clock = scheme.clock();
        let recent = scheme.changes().map(|_| Recent::default());
        Self {
            scheme,
            table,
            clock,
            recent,
            moved: Notify::new(),
            runtime: Mutex::default(),
            pending: AtomicUsize::new(0),
            departing: AtomicUsize::new(0),
            settled: Notify::new(),
        }
    }

    /// Background work runs here from now on.
    pub(crate) fn run_on(&self, runtime: Handle) {
        *self.runtime.lock() = Some(runtime);
    }

    /// Tells the server once.
    pub(crate) async fn tell(&self, departure: &Departure) -> Attempt<Left> {
        let Some(recent) = &self.recent else {
            return self.scheme.leave(&departure.key, &departure.id).await;
        };
        let route = self.scheme.route(&departure.key);
        let answer = self.scheme.leave(&departure.key, &departure.id).await?;
        let moved = self.scheme.route(&departure.key) != route;
        recent.remember(route, departure, self.clock.now());
        if moved {
            // Whoever looks for what has moved may have done so just before this was there.
            self.moved.notify_one();
        }
        Ok(answer)
    }

    /// Tells whoever owns a lock after a change of the releases that its predecessor carried out of late, the latest first.
    /// Never ends.
    pub(crate) async fn tell_successors(&self) {
        let (Some(recent), Some(changes)) = (&self.recent, self.scheme.changes()) else {
            return std::future::pending().await;
        };
        let mut changes = changes.fuse();
        let route = |departure: &Departure| self.scheme.route(&departure.key);
        let mut untold = recent.take_moved(route, self.clock.now());
        let mut telling = FuturesUnordered::new();
        loop {
            let more = untold.split_off(untold.len().saturating_sub(TOLD_AT_ONCE - telling.len()));
            telling.extend(more.into_iter().map(|departure| self.see_off(departure, || {})));
            tokio::select! {
                Some(()) = telling.next() => {}
                Some(()) = changes.next() => untold.extend(recent.take_moved(route, self.clock.now())),
                () = self.moved.notified() => untold.extend(recent.take_moved(route, self.clock.now())),
            }
        }
    }

    /// Tells the server until it knows, or has forgotten. Calls `tried` after each try.
    async fn see_off(&self, departure: Departure, mut tried: impl FnMut()) {
        loop {
            let answer = self.tell(&departure).await;
            tried();
            let now = self.clock.now();
            match answer {
                Ok(answer) => match departure.stray_after(answer.sent) {
                    None => return,
                    Some(until) => self.clock.sleep_until(until).await,
                },
                Err(Failure::Refused { refusal, message }) if is_final(refusal) => {
                    tracing::debug!(lock = departure.key.name(), message, "the server refuses a release");
                    return;
                }
                Err(failure) if now >= departure.server_until => {
                    tracing::debug!(lock = departure.key.name(), ?failure, "gave up telling the server of a release");
                    return;
                }
                Err(_) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }

    /// Takes a departure over. Without a runtime that still runs, the lease ends it.
    pub(crate) fn in_background(self: &Arc<Self>, departure: Departure, hold: Option<Arc<Hold>>) {
        let task = Underway::new(self, hold).see_off(departure);
        let runtime = self.runtime.lock().clone();
        // A runtime that has shut down drops the task, which gives the table its place back.
        if let Some(runtime) = runtime {
            drop(runtime.spawn(task));
        }
    }

    /// Counts as under way until it is dropped.
    pub(crate) fn pending(self: &Arc<Self>) -> Pending {
        self.pending.fetch_add(1, Ordering::SeqCst);
        Pending(Arc::clone(self))
    }

    /// Whether the server has yet to be told of a departure.
    pub(crate) fn is_departing(&self) -> bool {
        self.departing.load(Ordering::SeqCst) > 0
    }

    /// Returns when the server knows of all departures so far, or has forgotten them.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if self.pending.load(Ordering::SeqCst) == 0 {
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

/// A departure in the background. Dropped at any point, it leaves the table and the count right.
struct Underway {
    departures: Arc<Departures>,
    hold: Option<Arc<Hold>>,
    /// Given up after the hold.
    _pending: Pending,
}

/// Something that the server may yet have to be told.
#[derive(Debug)]
pub(crate) struct Pending(Arc<Departures>);

impl Drop for Pending {
    fn drop(&mut self) {
        if self.0.pending.fetch_sub(1, Ordering::SeqCst) == 1 {
            self.0.settled.notify_waiters();
        }
    }
}

impl Underway {
    fn new(departures: &Arc<Departures>, hold: Option<Arc<Hold>>) -> Self {
        departures.departing.fetch_add(1, Ordering::SeqCst);
        Self { departures: Arc::clone(departures), hold, _pending: departures.pending() }
    }

    /// Local waiters need not wait for a server that does not answer.
    fn unblock_waiters(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.departures.table.ended(&hold);
        }
    }

    async fn see_off(mut self, departure: Departure) {
        let departures = Arc::clone(&self.departures);
        departures.see_off(departure, || self.unblock_waiters()).await;
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.unblock_waiters();
        self.departures.departing.fetch_sub(1, Ordering::SeqCst);
    }
}
