//! Events of a cell, and the work that an event postpones until the cell's mutex is free.

use std::ops::{Deref, DerefMut};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use smallvec::SmallVec;

use crate::base::clock::Clock;
use crate::base::events::{self, Loss};
use crate::base::key::Key;
use crate::base::lease::Moment;
use crate::base::metrics::Metrics;
use crate::base::panics::catch_panic;
use crate::base::process::Process;
use crate::base::recalls::Reception;
use crate::lock::cell::Woken;
use crate::lock::end::{End, Ended};
use crate::lock::side::WaiterId;

/// Settings that all locks of a manager share.
#[derive(Clone, Debug)]
pub(crate) struct Rules {
    pub(crate) clock: Clock,
    /// Process that owns the holds of the manager.
    pub(crate) process: Process,
    pub(crate) max_clock_skew: Duration,
    /// Longest time between the sending of a request and the moment at which a server may still carry it out.
    pub(crate) max_delay: Duration,
    /// Time after which a requester that was not polled is woken. After as long again it is stalled. A task that was asked to be
    /// the requester has half of this time.
    pub(crate) poll_within: Duration,
    /// Time after which a requester that was woken is stalled, while a try waits for its answer.
    pub(crate) try_within: Duration,
    /// Largest number of writers that use one hold one after the other. A hold is also not handed off any more once
    /// `handoff_span` has passed since its grant.
    pub(crate) max_handoffs: u64,
    pub(crate) handoff_span: Duration,
    pub(crate) metrics: Metrics,
    /// Number of holds of the manager that may be cached.
    pub(crate) cached: Arc<AtomicUsize>,
}

impl Rules {
    pub(super) fn count_cached(&self) {
        self.cached.fetch_add(1, Ordering::Relaxed);
        self.metrics.count_cached();
    }

    pub(super) fn cached_no_more(&self) {
        self.cached.fetch_sub(1, Ordering::Relaxed);
        self.metrics.cached_no_more();
    }
}

/// Event of a hold or of its cell: the inputs that the cell knows, and the signals of the event, which are tasks to wake,
/// and ends and losses to report.
#[derive(Debug)]
pub(super) struct Event<'a> {
    pub(super) now: Moment,
    pub(super) rules: &'a Rules,
    pub(super) heard: &'a Reception,
    signals: Few<Signal>,
}

impl Deref for Event<'_> {
    type Target = Rules;

    fn deref(&self) -> &Rules {
        self.rules
    }
}

/// Most events have at most one effect of a kind.
type Few<T> = SmallVec<[T; 1]>;

#[derive(Debug)]
enum Signal {
    Wake(WaiterId),
    WakeAll,
    /// End or change of a share.
    End(Arc<End>, Option<Ended>),
    /// Loss of a hold before its release.
    Lost(Box<Loss>),
    /// Loss of a cached hold, which no guard used.
    IdleLost(Box<Loss>),
}

impl<'a> Event<'a> {
    pub(super) fn new(now: Moment, rules: &'a Rules, heard: &'a Reception) -> Self {
        Self { now, rules, heard, signals: Few::new() }
    }

    /// Wakes one waiter.
    pub(super) fn wake(&mut self, waiter_id: WaiterId) {
        self.signals.push(Signal::Wake(waiter_id));
    }

    /// Wakes all tasks of the lock, because the server answers a copy for which waiters wait, or does not answer any more, or
    /// because the manager is closed. Waiters without a reason to end wait on.
    pub(super) fn wake_all(&mut self) {
        self.signals.push(Signal::WakeAll);
    }

    /// Reports a lost hold. Each loss gets a line in the log, whatever the cause.
    pub(super) fn add_loss(&mut self, loss: Loss) {
        self.signals.push(Signal::Lost(Box::new(loss)));
    }

    /// Reports the loss of a cached hold, which no guard used.
    pub(super) fn cached_lost(&mut self, loss: Loss) {
        self.signals.push(Signal::IdleLost(Box::new(loss)));
    }

    /// Records the end of a share and wakes its watchers.
    pub(super) fn add_end(&mut self, end: Arc<End>, ended: Ended) {
        self.signals.push(Signal::End(end, Some(ended)));
    }

    /// Wakes the watchers of a share, which then read its state again.
    pub(super) fn add_change(&mut self, end: Arc<End>) {
        self.signals.push(Signal::End(end, None));
    }
}

/// Tasks that an event wakes.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Wakes {
    Waiter(WaiterId),
    /// All waiters of the lock.
    All,
}

impl Signal {
    fn tell(&self, key: &Key, rules: &Rules) {
        match self {
            // The cell has taken the wakers of the tasks under its mutex.
            Self::Wake(_) | Self::WakeAll => {}
            Self::End(end, ended) => end.tell(*ended),
            Self::Lost(loss) => {
                rules.metrics.count_loss(loss.mode, loss.reason);
                events::log_loss(key.name(), loss);
            }
            Self::IdleLost(loss) => {
                rules.metrics.cached_lost();
                events::cached_lost(key.name(), loss);
            }
        }
    }
}

/// Hold that the deadline queue can schedule.
pub(super) trait InRenewalQueue {
    /// Returns the number of the hold in its cell.
    fn number(&self) -> u64;

    /// Returns true if the background will look at the hold by `at`, or if the hold needs no more looks.
    fn is_looked_at_by(&self, at: Moment) -> bool;
}

/// Event of a cell, with its effects on the holds of the cell. `H` is the type of the handle through which other code
/// uses a hold.
#[derive(Debug)]
pub(super) struct CellEvent<'a, H> {
    event: Event<'a>,
    /// Holds whose places in the deadline queue are too late.
    due: Few<Arc<H>>,
    /// Handles that the cell does not need any more. They are dropped after the mutex is released, because the drop of
    /// the last handle of a hold is another event of the cell.
    dropped: Few<Arc<H>>,
}

impl<'a, H> Deref for CellEvent<'a, H> {
    type Target = Event<'a>;

    fn deref(&self) -> &Event<'a> {
        &self.event
    }
}

impl<H> DerefMut for CellEvent<'_, H> {
    fn deref_mut(&mut self) -> &mut Self::Target {
        &mut self.event
    }
}

impl<'a, H> CellEvent<'a, H> {
    pub(super) fn new(now: Moment, rules: &'a Rules, heard: &'a Reception) -> Self {
        Self { event: Event::new(now, rules, heard), due: Few::new(), dropped: Few::new() }
    }

    pub(super) fn due(&mut self, hold: &Arc<H>) {
        self.due.push(Arc::clone(hold));
    }

    pub(super) fn drop_later(&mut self, hold: Option<Arc<H>>) {
        if let Some(hold) = hold {
            self.dropped.push(hold);
        }
    }

    /// Returns the waiters to wake, or all of them.
    pub(super) fn wakes(&self) -> impl Iterator<Item = Wakes> {
        self.signals.iter().filter_map(|signal| match signal {
            Signal::Wake(waiter_id) => Some(Wakes::Waiter(*waiter_id)),
            Signal::WakeAll => Some(Wakes::All),
            Signal::End(..) | Signal::Lost(_) | Signal::IdleLost(_) => None,
        })
    }

    #[cfg(all(test, feature = "_testing"))]
    pub(super) fn due_holds(&self) -> impl Iterator<Item = &Arc<H>> {
        self.due.iter()
    }

    /// Carries the effects out for the lock with this key. `woken` has the tasks to wake, and `schedule` puts a hold
    /// into the deadline queue again. The caller must hold no mutex, since a waker may run any code.
    #[inline]
    pub(super) fn carry_out(self, key: &Key, woken: Woken, schedule: impl FnOnce(Few<Arc<H>>)) {
        let Self { event: Event { rules, signals, .. }, due, dropped } = self;
        if signals.is_empty() && due.is_empty() && dropped.is_empty() && woken.is_empty() {
            // Most events have no effects. An empty list owns nothing, and its drop would take time.
            std::mem::forget((signals, due, dropped, woken));
            return;
        }
        Self::carry_out_some((signals, due, dropped), key, rules, woken, schedule);
    }

    fn carry_out_some(
        (signals, due, dropped): (Few<Signal>, Few<Arc<H>>, Few<Arc<H>>),
        key: &Key,
        rules: &Rules,
        woken: Woken,
        schedule: impl FnOnce(Few<Arc<H>>),
    ) {
        // If a waker panics, the other effects must still come. The panic hook has reported the panic already.
        woken.wake();
        signals.iter().for_each(|signal| {
            catch_panic(|| signal.tell(key, rules));
        });
        drop(dropped);
        if !due.is_empty() {
            schedule(due);
        }
    }
}

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/lock/effects/tests.rs"]
mod tests;
