//! Giving holds back: releases, cancelled acquisitions, and what a dropped guard leaves behind.
//!
//! A departure tells the server until it has an answer or the server's lease is surely over. If a copy of the
//! acquisition may still be on its way, it tells the server again after that copy's limit: otherwise the copy would
//! come to life after its own cancellation and last a full lease.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::clock::Clock;
use crate::hold::Hold;
use crate::key::Key;
use crate::lease::Moment;
use crate::scheme::{Acquisition, Attempt, Failure, Left, Scheme};
use crate::table::Table;

/// Pause between tries to tell a server that does not answer.
const RETRY_PAUSE: Duration = Duration::from_millis(100);

/// Who tells the server about departures, in the background where needed.
#[derive(Debug)]
pub(crate) struct Departures {
    scheme: Arc<dyn Scheme>,
    table: Arc<Table>,
    clock: Clock,
    runtime: Mutex<Option<Handle>>,
    pending: AtomicUsize,
    settled: Notify,
}

/// One acquisition that is to end on the server.
#[derive(Debug)]
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
}

impl Departures {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, table: Arc<Table>) -> Self {
        let clock = scheme.clock();
        Self { scheme, table, clock, runtime: Mutex::default(), pending: AtomicUsize::new(0), settled: Notify::new() }
    }

    /// Background work runs here from now on.
    pub(crate) fn run_on(&self, runtime: Handle) {
        *self.runtime.lock() = Some(runtime);
    }

    /// Tells the server once.
    pub(crate) async fn tell(&self, departure: &Departure) -> Attempt<Left> {
        self.scheme.leave(&departure.key, &departure.id).await
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

    /// Returns when the server knows of all departures so far, or has forgotten them.
    pub(crate) async fn settled(&self) {
        loop {
            let settled = self.settled.notified();
            tokio::pin!(settled);
            settled.as_mut().enable();
            if self.pending.load(Ordering::Acquire) == 0 {
                return;
            }
            settled.await;
        }
    }
}

/// A departure in the background. Dropped at any point, it leaves the table and the count right.
struct Underway {
    departures: Arc<Departures>,
    hold: Option<Arc<Hold>>,
}

impl Underway {
    fn new(departures: &Arc<Departures>, hold: Option<Arc<Hold>>) -> Self {
        departures.pending.fetch_add(1, Ordering::AcqRel);
        Self { departures: Arc::clone(departures), hold }
    }

    /// Local waiters need not wait for a server that does not answer.
    fn unblock_waiters(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.departures.table.ended(&hold);
        }
    }

    async fn see_off(mut self, departure: Departure) {
        let departures = Arc::clone(&self.departures);
        loop {
            let answer = departures.tell(&departure).await;
            self.unblock_waiters();
            let now = departures.clock.now();
            let stray_until = departure.stray_until.filter(|until| *until > now);
            match (answer, stray_until) {
                (Ok(_), None) => return,
                (Ok(_), Some(until)) => departures.clock.sleep_until(until).await,
                (Err(failure @ Failure::Refused { .. }), _) => {
                    tracing::debug!(lock = departure.key.name(), ?failure, "the server refuses a release");
                    return;
                }
                (Err(failure), _) if now >= departure.server_until => {
                    tracing::debug!(lock = departure.key.name(), ?failure, "gave up telling the server of a release");
                    return;
                }
                (Err(_), _) => tokio::time::sleep(RETRY_PAUSE).await,
            }
        }
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        self.unblock_waiters();
        if self.departures.pending.fetch_sub(1, Ordering::AcqRel) == 1 {
            self.departures.settled.notify_waiters();
        }
    }
}
