//! What a manager is made of below its face, and how holds end: released, taken back, closed, forced.
//!
//! Acquisitions are the business of `pursuit`, turns to the other side that of `turn`; both drive the same table, scheme,
//! renewal and departures, which are put together here.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::departure::{Departure, Departures};
use crate::error::{Error, LossReason, Result};
use crate::hold::{Hold, Parting, Sharing, Ticket};
use crate::key::Key;
use crate::lease::{self, FencingToken, Moment};
use crate::options::Options;
use crate::renewal::Renewals;
use crate::scheme::{Acquisition, Answered, Attempt, Failure, Left, Scheme, View, loss_reason};
use crate::table::Table;

/// Pause after an attempt without an answer.
pub(crate) const SILENCE_PAUSE: Duration = Duration::from_millis(20);
/// A hold is passed on between the writers of a process for so long at most.
const TURN_SPAN: Duration = Duration::from_millis(5);

/// What a manager is made of, below its face.
pub(crate) struct Engine {
    pub(crate) scheme: Arc<dyn Scheme>,
    options: Options,
    pub(crate) clock: Clock,
    /// 128 random bits.
    pub(crate) manager_id: String,
    next_acquisition: AtomicU64,
    pub(crate) table: Arc<Table>,
    pub(crate) departures: Arc<Departures>,
    pub(crate) renewals: Arc<Renewals>,
    task: Mutex<Option<JoinHandle<()>>>,
    pub(crate) closing: Closing,
}

#[derive(Debug, Default)]
pub(crate) struct Closing {
    closed: AtomicBool,
    notify: Notify,
}

impl Closing {
    pub(crate) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::SeqCst)
    }

    /// Returns when the manager is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            notified.as_mut().enable();
            if self.closed.load(Ordering::Acquire) {
                return;
            }
            notified.await;
        }
    }
}

impl std::fmt::Debug for Engine {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Engine")
            .field("scheme", &self.scheme)
            .field("label", &self.options.label)
            .finish_non_exhaustive()
    }
}

/// One guard's share in a hold; dropped, it hands the release to the background.
pub(crate) struct Held {
    engine: Arc<Engine>,
    hold: Arc<Hold>,
    ticket: Ticket,
    /// The share is given back already, or somebody else does it.
    parted: bool,
}

impl Held {
    pub(crate) fn new(engine: &Arc<Engine>, hold: Arc<Hold>, ticket: Ticket) -> Self {
        Self { engine: Arc::clone(engine), hold, ticket, parted: false }
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.engine
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.hold
    }

    pub(crate) fn ticket(&self) -> Ticket {
        self.ticket
    }

    /// Whoever calls this gives the share back.
    pub(crate) fn into_parts(mut self) -> (Arc<Engine>, Arc<Hold>, Ticket) {
        self.parted = true;
        (Arc::clone(&self.engine), Arc::clone(&self.hold), self.ticket)
    }

    /// Gives the share back and returns when the server knows, if it has to.
    pub(crate) async fn release(self) -> Result<()> {
        let (engine, hold, ticket) = self.into_parts();
        engine.release(&hold, ticket).await
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        if !self.parted {
            self.engine.release_in_background(&self.hold, self.ticket);
        }
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.hold.fmt(f)
    }
}

impl Engine {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, options: Options) -> Self {
        let table = Arc::new(Table::default());
        let departures = Arc::new(Departures::new(Arc::clone(&scheme), Arc::clone(&table)));
        let renewals = Arc::new(Renewals::new(Arc::clone(&scheme), Arc::clone(&table), Arc::clone(&departures)));
        Self {
            clock: scheme.clock(),
            scheme,
            options,
            manager_id: random_id(),
            next_acquisition: AtomicU64::new(1),
            table,
            departures,
            renewals,
            task: Mutex::default(),
            closing: Closing::default(),
        }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Checks a name and derives its keys.
    pub(crate) fn key(&self, name: &str) -> Result<Arc<Key>> {
        Key::new(&self.options.key_prefix, name).map(Arc::new)
    }

    pub(crate) fn check_open(&self, key: &Key) -> Result<()> {
        if self.closing.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed { lock: key.shared_name() });
        }
        Ok(())
    }

    /// Starts the task for renewals and what else comes up, again if the runtime it ran on has ended.
    pub(crate) fn keep_running(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let runtime = Handle::current();
            self.departures.run_on(runtime.clone());
            let (renewals, departures) = (Arc::clone(&self.renewals), Arc::clone(&self.departures));
            *task = Some(runtime.spawn(async move {
                tokio::select! {
                    () = renewals.run() => {}
                    () = departures.tell_successors() => {}
                }
            }));
        }
    }

    pub(crate) fn next_id(&self) -> Acquisition {
        let n = self.next_acquisition.fetch_add(1, Ordering::Relaxed);
        Acquisition::new(&self.manager_id, n, &self.options.label)
    }

    /// How long a copy that is sent now may yet be carried out.
    pub(crate) fn stray_span(&self) -> Duration {
        lease::stray_span(self.options.response_timeout, self.options.clock_margin)
    }

    /// How holds are shared within this process.
    pub(crate) fn sharing(&self) -> Sharing {
        Sharing { window: self.options.share_window, turns: self.options.hand_over_budget, turn_span: TURN_SPAN }
    }

    fn part(&self, hold: &Arc<Hold>, ticket: Ticket, now: Moment) -> Parting {
        let parting = self.table.part(hold, ticket, now, self.sharing());
        if let Parting::Passed(next) = parting {
            tracing::debug!(lock = hold.key().name(), token = next.token.as_u64(), "handed over");
        }
        parting
    }

    /// A guard lets go and waits for the server's word.
    async fn release(&self, hold: &Arc<Hold>, ticket: Ticket) -> Result<()> {
        let lost = |reason| Error::Lost { lock: hold.key().shared_name(), reason };
        in_runtime().inspect_err(|_| self.release_in_background(hold, ticket))?;
        let began = self.clock.now();
        match self.part(hold, ticket, began) {
            Parting::Shared | Parting::Passed(_) => return Ok(()),
            Parting::Lost(reason) => return Err(lost(reason)),
            Parting::LastLate(reason) => {
                self.see_off(hold);
                return Err(lost(reason));
            }
            Parting::Last => {}
        }
        self.renewals.forget(hold);
        let _pending = self.departures.pending();
        // Dropped, or without an answer: the background goes on.
        let mut goes_on = GoesOn { engine: self, hold: Some(hold) };
        let departure = Departure::of(hold);
        // When the server has surely forgotten the hold there is nothing left to tell it.
        let patience = self.options.unreachable_after.min(departure.server_until.since(began));
        let mut doubt = false;
        loop {
            let failure = match self.departures.tell(&departure).await {
                Ok(answer) => {
                    if departure.stray_after(answer.sent).is_none() {
                        goes_on.hold = None;
                        self.table.ended(hold);
                    }
                    return match answer.value {
                        Left::Held | Left::Queued => Ok(()),
                        Left::None { forced } => self.judge_absence(hold, ticket, forced, doubt).map_err(lost),
                    };
                }
                Err(failure) => failure,
            };
            doubt |= !matches!(failure, Failure::NotDone { .. });
            // Local waiters ask for themselves: they learn of the silence, too.
            self.table.ended(hold);
            let waited = self.clock.now().since(began);
            if let Some(error) = final_error(hold.key(), failure, waited, patience) {
                return Err(error);
            }
            tokio::time::sleep(SILENCE_PAUSE).await;
        }
    }

    /// The server does not know a hold that was to be released. If an earlier copy of the release went unanswered, that
    /// copy has most likely done it, and the hold was ours as long as the local clock vouches for it.
    fn judge_absence(
        &self,
        hold: &Hold,
        ticket: Ticket,
        forced: Option<FencingToken>,
        doubt: bool,
    ) -> Result<(), LossReason> {
        match loss_reason(ticket.token, forced) {
            LossReason::Gone if doubt && self.clock.now() < hold.deadline() => Ok(()),
            reason => Err(reason),
        }
    }

    /// A guard was dropped.
    fn release_in_background(&self, hold: &Arc<Hold>, ticket: Ticket) {
        match self.part(hold, ticket, self.clock.now()) {
            Parting::Shared | Parting::Passed(_) | Parting::Lost(_) => {}
            Parting::Last | Parting::LastLate(_) => self.see_off(hold),
        }
    }

    pub(crate) fn see_off(&self, hold: &Arc<Hold>) {
        self.renewals.forget(hold);
        if Handle::try_current().is_ok() {
            self.keep_running();
        }
        self.departures.in_background(Departure::of(hold), Some(Arc::clone(hold)));
    }

    pub(crate) async fn inspect(&self, key: &Key) -> Result<Answered<View>> {
        self.answered(key, || self.scheme.inspect(key)).await
    }

    /// Ends every hold that a look shows. A copy that comes again or late ends nothing newer, for which it names what was
    /// seen.
    pub(crate) async fn force(&self, key: &Key) -> Result<Vec<String>> {
        let seen = self.inspect(key).await?.value;
        let ended = self.answered(key, || self.scheme.force(key, &seen)).await?.value;
        // What was seen is over, though an earlier copy may have ended it.
        let seen = seen.holders.iter().map(|holder| &holder.id);
        let over: HashSet<&str> = seen.chain(&ended).map(String::as_str).collect();
        // Holds of this manager need not wait for their next renewal, nor do local waiters.
        for hold in self.table.holds(key) {
            if over.contains(hold.id().as_str()) {
                hold.lose(LossReason::Forced);
                self.table.ended(&hold);
            }
        }
        Ok(ended)
    }

    /// Succeeds when a server answers.
    pub(crate) async fn ready(&self) -> Result<()> {
        in_runtime()?;
        let began = self.clock.now();
        let nameless = Key::new("rwlock", "-")?;
        loop {
            let Err(failure) = self.scheme.ready().await else {
                return Ok(());
            };
            let waited = self.clock.now().since(began);
            if let Some(error) = self.final_error(&nameless, failure, waited) {
                return Err(without_lock(error));
            }
            tokio::time::sleep(SILENCE_PAUSE).await;
        }
    }

    /// Repeats an idempotent request until it is answered.
    async fn answered<T, F>(&self, key: &Key, mut attempt: impl FnMut() -> F) -> Result<Answered<T>>
    where
        F: Future<Output = Attempt<T>>,
    {
        in_runtime()?;
        let began = self.clock.now();
        loop {
            let failure = match attempt().await {
                Ok(answer) => return Ok(answer),
                Err(failure) => failure,
            };
            let waited = self.clock.now().since(began);
            if let Some(error) = self.final_error(key, failure, waited) {
                return Err(error);
            }
            tokio::time::sleep(SILENCE_PAUSE).await;
        }
    }

    /// The error to end with after a failed attempt, if it is time to end.
    pub(crate) fn final_error(&self, key: &Key, failure: Failure, waited: Duration) -> Option<Error> {
        final_error(key, failure, waited, self.options.unreachable_after)
    }

    /// Whether nothing is left of all acquisitions, holds and releases.
    #[cfg(test)]
    pub(crate) fn is_idle(&self) -> bool {
        self.table.is_idle() && self.renewals.is_idle() && !self.departures.is_departing()
    }

    /// Returns when no release is under way in the background.
    pub(crate) async fn settled(&self) {
        self.departures.settled().await;
    }

    /// No new holds; all that are there are lost to their guards first, then given back.
    pub(crate) async fn close(&self) -> Result<()> {
        in_runtime()?;
        // Sequentially consistent with `hand_out`: either it sees this, or the list below has its hold.
        self.closing.closed.store(true, Ordering::SeqCst);
        self.closing.notify.notify_waiters();
        let began = self.clock.now();
        let mut latest = began;
        // From the table, where a hold is from its grant to its end; the agenda lends them to the renewal task.
        for hold in self.table.all_holds() {
            latest = latest.max(hold.deadline());
            if hold.lose(LossReason::Closed) {
                self.see_off(&hold);
            }
        }
        let waits_until = latest.max(self.clock.now().after(self.options.response_timeout));
        tokio::select! {
            biased;
            () = self.departures.settled() => return Ok(()),
            () = self.clock.sleep_until(waits_until) => {}
        }
        if self.departures.is_departing() {
            return Err(Error::Unreachable { lock: "".into(), waited: waits_until.since(began), source: None });
        }
        // What is left are futures that nobody polls: they take themselves back when they are polled or dropped.
        Ok(())
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.renewals.stop();
    }
}

fn final_error(key: &Key, failure: Failure, waited: Duration, patience: Duration) -> Option<Error> {
    let lock = key.shared_name();
    match failure {
        Failure::Refused { refusal, message } => Some(Error::Refused { lock, refusal, message }),
        Failure::Unknown { source, .. } | Failure::NotDone { source } => {
            (waited >= patience).then_some(Error::Unreachable { lock, waited, source })
        }
    }
}

fn without_lock(error: Error) -> Error {
    match error {
        Error::Unreachable { waited, source, .. } => Error::Unreachable { lock: "".into(), waited, source },
        Error::Refused { refusal, message, .. } => Error::Refused { lock: "".into(), refusal, message },
        other => other,
    }
}

/// Hands a release to the background unless it was seen through.
struct GoesOn<'a> {
    engine: &'a Engine,
    hold: Option<&'a Arc<Hold>>,
}

impl Drop for GoesOn<'_> {
    fn drop(&mut self) {
        if let Some(hold) = self.hold.take() {
            self.engine.see_off(hold);
        }
    }
}

/// Timers and sockets are a runtime's; without one they panic.
pub(crate) fn in_runtime() -> Result<()> {
    let missing = |_| Error::InvalidOption {
        option: "runtime",
        reason: "this must be awaited within a tokio runtime; plain threads use `redis_rwlock::blocking`".to_owned(),
    };
    Handle::try_current().map(drop).map_err(missing)
}

/// 128 random bits in hexadecimal.
fn random_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's randomness: the process-wide generator, which is seeded per process and thread.
        fastrand::fill(&mut bytes);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
