//! Metrics of managers and their connections.

use std::sync::Arc;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, Ordering};

use metrics::{Gauge, Histogram, Unit};

use super::RenewalOutcome;
use crate::base::clock::Clock;
use crate::base::error::LossReason;
use crate::base::events::word_for;
use crate::base::health::FindingKind;
use crate::base::lease::Moment;
use crate::base::mode::Mode;

/// Outcomes of an acquisition, as values of the label `outcome`.
const OUTCOMES: [&str; 12] = [
    JOINED,
    GRANTED,
    "denied",
    "timeout",
    "unreachable",
    "no_quorum",
    "not_enough_replicas",
    "refused",
    "conflict",
    "invalid",
    "closed",
    DROPPED,
];
const JOINED: &str = "joined";
const GRANTED: &str = "granted";
/// Outcome of an acquisition whose future was dropped.
const DROPPED: &str = "dropped";

const REASONS: [LossReason; 5] =
    [LossReason::Expired, LossReason::Gone, LossReason::MaxHold, LossReason::Forced, LossReason::Closed];

/// Two values: one for readers and one for writers.
#[derive(Debug)]
struct PerMode<T>([T; 2]);

impl<T> PerMode<T> {
    fn new(make: impl Fn(&'static str) -> T) -> Self {
        Self(["read", "write"].map(make))
    }

    fn of(&self, mode: Mode) -> &T {
        &self.0[mode as usize]
    }
}

/// Metrics of one manager. All managers of a process add to the same metrics.
#[derive(Clone, Debug)]
pub(crate) struct Metrics(Arc<MetricHandles>);

#[derive(Debug)]
struct MetricHandles {
    acquisitions: PerMode<[metrics::Counter; OUTCOMES.len()]>,
    acquire_seconds: PerMode<Histogram>,
    hold_seconds: PerMode<Histogram>,
    losses: PerMode<[metrics::Counter; REASONS.len()]>,
    cached_losses: metrics::Counter,
    /// In the order of [`RenewalOutcome`].
    renewals: [metrics::Counter; 3],
    holds: PerMode<Gauge>,
    cached: Gauge,
    waiters: PerMode<Gauge>,
}

impl Default for Metrics {
    fn default() -> Self {
        describe();
        Self(Arc::new(MetricHandles {
            acquisitions: PerMode::new(|mode| {
                OUTCOMES
                    .map(|outcome| metrics::counter!("rwlock_acquisitions_total", "mode" => mode, "outcome" => outcome))
            }),
            acquire_seconds: PerMode::new(
                |mode| metrics::histogram!("rwlock_acquire_duration_seconds", "mode" => mode),
            ),
            hold_seconds: PerMode::new(|mode| metrics::histogram!("rwlock_hold_duration_seconds", "mode" => mode)),
            losses: PerMode::new(|mode| {
                REASONS.map(
                    |reason| metrics::counter!("rwlock_losses_total", "mode" => mode, "reason" => word_for(reason)),
                )
            }),
            cached_losses: metrics::counter!("rwlock_cached_losses_total"),
            renewals: ["renewed", "unanswered", "lost"]
                .map(|outcome| metrics::counter!("rwlock_renewals_total", "outcome" => outcome)),
            holds: PerMode::new(|mode| metrics::gauge!("rwlock_holds", "mode" => mode)),
            cached: metrics::gauge!("rwlock_cached_holds"),
            waiters: PerMode::new(|mode| metrics::gauge!("rwlock_waiters", "mode" => mode)),
        }))
    }
}

fn describe() {
    let seconds = Unit::Seconds;
    metrics::describe_histogram!(
        "rwlock_acquire_duration_seconds",
        seconds,
        "Time from the first poll of an acquisition to its guard"
    );
    metrics::describe_histogram!("rwlock_hold_duration_seconds", seconds, "Time from a grant to its release or loss");
    metrics::describe_counter!("rwlock_acquisitions_total", "Acquisitions, by their outcome");
    metrics::describe_counter!("rwlock_renewals_total", "Renewals, by their outcome");
    metrics::describe_counter!("rwlock_losses_total", "Holds that were lost before they were released, by the reason");
    metrics::describe_counter!("rwlock_cached_losses_total", "Cached holds that were lost while no guard used them");
    metrics::describe_gauge!("rwlock_holds", "Holds of this process");
    metrics::describe_gauge!("rwlock_cached_holds", "Holds that may be cached, whether a guard uses them now or not");
    metrics::describe_gauge!("rwlock_waiters", "Acquisitions that wait for the lock");
    metrics::describe_gauge!("rwlock_unusable_nodes", "Nodes that do not answer, or refuse connections");
    metrics::describe_gauge!("rwlock_node_findings", "Nodes that answer but have a defect, by the defect");
    metrics::describe_counter!("rwlock_reconnects_total", "Connections that replaced a broken or silent connection");
    metrics::describe_counter!("rwlock_unpublished_total", "Answers of scripts whose notification the server refused");
    metrics::describe_counter!("rwlock_map_refreshes_total", "Requests for the map of slots to servers");
}

impl Metrics {
    fn acquisition(&self, mode: Mode, outcome: &str) {
        if let Some(place) = OUTCOMES.iter().position(|known| *known == outcome) {
            self.0.acquisitions.of(mode)[place].increment(1);
        }
    }

    /// Counts an acquisition that joined a hold of this process at once, without waiting.
    pub(crate) fn count_join(&self, mode: Mode) {
        self.0.acquisitions.of(mode)[0].increment(1);
    }

    /// Starts to count an acquisition that does not finish at once.
    pub(crate) fn begin(&self, mode: Mode, clock: Clock) -> Underway {
        self.0.waiters.of(mode).increment(1.0);
        Underway { metrics: self.clone(), mode, clock, began: clock.now(), outcome: DROPPED }
    }

    pub(crate) fn count_loss(&self, mode: Mode, reason: LossReason) {
        if let Some(place) = REASONS.iter().position(|known| *known == reason) {
            self.0.losses.of(mode)[place].increment(1);
        }
    }

    /// Counts one more hold that may be cached.
    pub(crate) fn count_cached(&self) {
        self.0.cached.increment(1.0);
    }

    /// Counts the end of a hold that may be cached.
    pub(crate) fn cached_no_more(&self) {
        self.0.cached.decrement(1.0);
    }

    /// Counts the loss of a cached hold that no guard used.
    pub(crate) fn cached_lost(&self) {
        self.0.cached_losses.increment(1);
    }

    pub(crate) fn renewal(&self, outcome: RenewalOutcome) {
        self.0.renewals[outcome as usize].increment(1);
    }
}

/// Acquisition in progress. The drop of this value counts the outcome of the acquisition.
#[derive(Debug)]
pub(crate) struct Underway {
    metrics: Metrics,
    mode: Mode,
    clock: Clock,
    began: Moment,
    outcome: &'static str,
}

impl Underway {
    pub(crate) fn end(mut self, outcome: &'static str) {
        self.outcome = outcome;
    }
}

impl Drop for Underway {
    fn drop(&mut self) {
        let (handles, mode) = (&self.metrics.0, self.mode);
        handles.waiters.of(mode).decrement(1.0);
        self.metrics.acquisition(mode, self.outcome);
        if self.outcome == GRANTED {
            handles.acquire_seconds.of(mode).record(self.clock.now().since(self.began).as_secs_f64());
        }
    }
}

/// Hold, counted from its grant to its end.
#[derive(Debug, Default)]
pub(crate) struct Counted {
    began: OnceLock<(Metrics, Mode, Clock, Moment)>,
    is_over: AtomicBool,
}

impl Counted {
    pub(crate) fn begin(&self, metrics: &Metrics, mode: Mode, clock: Clock) {
        self.began.get_or_init(|| {
            metrics.0.holds.of(mode).increment(1.0);
            (metrics.clone(), mode, clock, clock.now())
        });
    }

    /// Counts the end once. A hold whose grant was not counted is not counted here either.
    pub(crate) fn end(&self) {
        // A loss, a release and the drop may come from several threads. The swap lets exactly one of them count.
        if let Some((metrics, mode, clock, began)) = self.began.get()
            && !self.is_over.swap(true, Ordering::AcqRel)
        {
            metrics.0.holds.of(*mode).decrement(1.0);
            metrics.0.hold_seconds.of(*mode).record(clock.now().since(*began).as_secs_f64());
        }
    }
}

impl Drop for Counted {
    fn drop(&mut self) {
        self.end();
    }
}

/// Counter of events on connections.
#[derive(Clone, Debug)]
pub(crate) struct Counter(metrics::Counter);

impl Counter {
    pub(crate) fn of(name: &'static str) -> Self {
        Self(metrics::counter!(name))
    }

    pub(crate) fn add_one(&self) {
        self.0.increment(1);
    }
}

/// Number of unusable nodes that one group of connections knows. All groups of a process add to the same metric.
#[derive(Debug)]
pub(crate) struct UnusableNodes(Gauge);

impl Default for UnusableNodes {
    fn default() -> Self {
        Self(metrics::gauge!("rwlock_unusable_nodes"))
    }
}

impl UnusableNodes {
    pub(crate) fn one_more(&self) {
        self.0.increment(1.0);
    }

    pub(crate) fn fewer(&self, nodes: usize) {
        self.0.decrement(nodes as f64);
    }
}

/// Number of defects of the nodes that one group of connections knows. All groups of a process add to the same metric.
#[derive(Debug)]
pub(crate) struct NodeFindings([Gauge; FindingKind::ALL.len()]);

impl Default for NodeFindings {
    fn default() -> Self {
        Self(FindingKind::ALL.map(|kind| metrics::gauge!("rwlock_node_findings", "finding" => kind.word())))
    }
}

impl NodeFindings {
    fn of(&self, kind: FindingKind) -> &Gauge {
        &self.0[kind as usize]
    }

    pub(crate) fn one_more(&self, kind: FindingKind) {
        self.of(kind).increment(1.0);
    }

    pub(crate) fn fewer(&self, kind: FindingKind) {
        self.of(kind).decrement(1.0);
    }
}
