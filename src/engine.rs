//! Engine of a manager: acquires, renews, converts and releases the holds of this process.
//!
//! The state of a lock is in its [cell](crate::lock::cell). Four submodules change this state: `acquire`, `release`,
//! `renewals` and `convert`.
//!
//! Knows the layers `lock` and `base`, and the trait of the stores. Must not know how a store represents a lock, and
//! must use no connections and no scripts.

pub(crate) mod acquire;
mod background;
mod cache_policy;
mod caching;
pub(crate) mod convert;
mod deadlocks;
pub(crate) mod group;
pub(crate) mod handles;
mod note;
mod operate;
mod release;
pub(crate) mod releases;
mod renewals;
mod replay;
pub(crate) mod tickets;
mod tries;
mod waiters;

use std::ops::Deref;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use tokio::runtime::Handle;
use tokio::sync::Notify;

use crate::base::clock::Clock;
use crate::base::error::{Error, LossReason, Refusal, Result};
use crate::base::events::Limiter;
use crate::base::key::Key;
use crate::base::lease::{self, FencingToken, Moment};
use crate::base::metrics::Metrics;
use crate::base::options::Options;
use crate::base::process::Process;
use crate::base::sync::AtomicBool;
use crate::engine::background::Background;
use crate::engine::cache_policy::CachePolicy;
use crate::engine::caching::RecallContext;
use crate::engine::releases::Releases;
use crate::engine::renewals::Renewals;
use crate::engine::tries::Tries;
use crate::engine::waiters::WaiterLimit;
use crate::lock::effects::Rules;
use crate::lock::hold::{Ended, Hold, HoldState, Next, ShareId};
use crate::lock::table::Table;
use crate::lock::watch::Watch;
use crate::store::{AcquisitionId, Failure, Scheme, ServerContact};

/// Longest time for which the writers of a process may hand off one hold to each other while a waiter of another
/// process waits.
const HANDOFF_SPAN: Duration = Duration::from_millis(5);

/// Handle of the engine of a manager. An engine has several [handles](handles).
#[repr(align(64))] // the counter of one handle must not share a cache line with another counter
pub(crate) struct Engine {
    core: Arc<Core>,
}

impl Deref for Engine {
    type Target = Core;

    fn deref(&self) -> &Core {
        &self.core
    }
}

impl Drop for Engine {
    /// Leaks the state of the engine in a forked copy of the process, because to drop it would be unsafe there. To
    /// close a copied socket would remove the socket from the epoll instance that the copy shares with the original
    /// process. A mutex may have been locked at the moment of the copy.
    fn drop(&mut self) {
        if self.is_copied() {
            std::mem::forget(Arc::clone(&self.core));
        }
    }
}

/// State of an engine, which all its handles share.
pub(crate) struct Core {
    pub(crate) scheme: Arc<dyn Scheme>,
    options: Options,
    pub(crate) clock: Clock,
    /// Process in which the engine was built.
    pub(crate) process: Process,
    pub(crate) label: String,
    /// Random id of the manager, 128 bits in hexadecimal. It is the first part of each acquisition id.
    pub(crate) manager_id: String,
    next_acquisition: AtomicU64,
    next_note: AtomicU64,
    waiters: WaiterLimit,
    pub(crate) table: Arc<Table>,
    pub(crate) releases: Arc<Releases>,
    pub(crate) renewals: Arc<Renewals>,
    /// Policy that decides which holds are worth caching. It is present if the options allow cached holds.
    uses: Option<Arc<CachePolicy>>,
    recall_context: Arc<RecallContext>,
    background: Background,
    pub(crate) closing: Closing,
    /// Limit on log lines about unanswered attempts. `wait_lines` is the limit on log lines about long waits.
    attempt_lines: Limiter,
    wait_lines: Limiter,
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

    /// Waits until the manager is closed.
    pub(crate) async fn closed(&self) {
        loop {
            let notified = self.notify.notified();
            tokio::pin!(notified);
            // The future is enabled before the flag is read. So it notices if the manager is closed after that.
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
        f.debug_struct("Engine").field("scheme", &self.scheme).field("label", &self.label).finish_non_exhaustive()
    }
}

/// Share of one guard in a hold. The drop gives the share back, and does not wait for the server.
pub(crate) struct Held {
    /// `None` after `into_parts`. The caller of `into_parts` gives the share back.
    parts: Option<(Arc<Engine>, Arc<Hold>, ShareId)>,
}

impl Held {
    pub(crate) fn new(engine: &Arc<Engine>, hold: Arc<Hold>, share_id: ShareId) -> Self {
        Self::of(Arc::clone(engine), hold, share_id)
    }

    /// Builds the share, and takes over the caller's reference to the engine.
    #[inline]
    pub(crate) fn of(engine: Arc<Engine>, hold: Arc<Hold>, share_id: ShareId) -> Self {
        Self { parts: Some((engine, hold, share_id)) }
    }

    fn parts(&self) -> &(Arc<Engine>, Arc<Hold>, ShareId) {
        self.parts.as_ref().expect("taken only by whoever consumes it")
    }

    pub(crate) fn engine(&self) -> &Arc<Engine> {
        &self.parts().0
    }

    pub(crate) fn hold(&self) -> &Arc<Hold> {
        &self.parts().1
    }

    pub(crate) fn share_id(&self) -> ShareId {
        self.parts().2
    }

    /// Returns the parts. The caller must give the share back.
    pub(crate) fn into_parts(mut self) -> (Arc<Engine>, Arc<Hold>, ShareId) {
        self.parts.take().expect("taken only by whoever consumes it")
    }

    /// Gives the share back. If the hold ends with this share, waits until the server has confirmed the release.
    pub(crate) async fn release(self) -> Result<()> {
        self.check_process()?;
        let (engine, hold, share_id) = self.into_parts();
        let released = pin!(engine.release(&hold, share_id));
        engine.process.here(hold.key().name(), released).await
    }

    /// Fails if `fork` copied this guard into the current process.
    pub(crate) fn check_process(&self) -> Result<()> {
        let (engine, hold, _) = self.parts();
        engine.process.check(hold.key().name())
    }

    /// Returns this share with another token.
    fn with_token(mut self, token: FencingToken) -> Self {
        self.set_token(token);
        self
    }

    fn set_token(&mut self, token: FencingToken) {
        if let Some((_, _, share_id)) = &mut self.parts {
            share_id.token = token;
        }
    }

    pub(crate) fn state(&self) -> HoldState {
        self.hold().state_of(self.share_id())
    }

    /// Returns a watch of the share. The watch may outlive this value.
    pub(crate) fn watch(&self) -> Watch {
        let (_, hold, share_id) = self.parts();
        Watch::of(hold, *share_id)
    }

    /// Waits until the hold is lost. If the share is given back, waits for ever.
    pub(crate) async fn lost(&self) -> LossReason {
        match self.watch().ended().await {
            Ended::Lost(reason) => reason,
            Ended::Released => std::future::pending().await,
        }
    }

    /// Returns true if an answer of the server has granted the whole lease of the share. The answer to an acquisition
    /// does. A notification does not.
    fn is_confirmed(&self) -> bool {
        let (_, hold, share_id) = self.parts();
        hold.is_confirmed(&hold.share(*share_id))
    }

    /// Waits until an answer of the server has granted the whole lease of the share. A call that has to wait needs a runtime
    /// for its timer.
    pub(crate) async fn confirmed(&self) -> Result<()> {
        let (_, hold, _) = self.parts();
        self.check_process()?;
        match self.state() {
            HoldState::Lost(reason) => return Err(hold.key().loss(reason)),
            HoldState::Held | HoldState::Unconfirmed if self.is_confirmed() => return Ok(()),
            HoldState::Held | HoldState::Unconfirmed => in_runtime()?,
        }
        match self.watch().confirmed().await {
            Ok(()) => Ok(()),
            Err(Ended::Lost(reason)) => Err(hold.key().loss(reason)),
            Err(Ended::Released) => std::future::pending().await,
        }
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        let Some((engine, hold, share_id)) = &self.parts else {
            return;
        };
        if engine.is_copied() {
            // The hold belongs to the original process.
            std::mem::forget(self.parts.take());
            return;
        }
        engine.guard_dropped(hold, *share_id);
    }
}

impl std::fmt::Debug for Held {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        self.hold().fmt(f)
    }
}

impl Engine {
    pub(crate) fn new(scheme: Arc<dyn Scheme>, options: Options) -> Self {
        let (clock, manager_id, process) = (scheme.clock(), random_id(), scheme.process());
        let background_runtime = options.background_runtime(clock);
        let table = Arc::new(Table::new(rules(&options, clock, process.clone())));
        let releases = Releases::new(Arc::clone(&scheme), Arc::clone(&table), options.response_timeout);
        let releases = Arc::new(releases);
        if let Some(quorum) = scheme.quorum() {
            quorum.set_background(Arc::<Releases>::downgrade(&releases));
        }
        let uses = options.may_cache().then(|| CachePolicy::of(options.max_cached));
        let renewals = Arc::new(Renewals::new(Arc::clone(&table), Arc::clone(&releases), uses.clone()));
        let recall_context = RecallContext::new(&scheme, background_runtime.clone());
        let background = Background::new(
            Arc::clone(&scheme),
            background_runtime,
            Arc::clone(&renewals),
            Arc::clone(&releases),
            Arc::clone(&table),
        );
        let waiters = WaiterLimit::new(options.max_waiters);
        let core = Core {
            clock,
            scheme,
            process,
            label: options.label(),
            options,
            waiters,
            manager_id,
            next_acquisition: AtomicU64::new(1),
            next_note: AtomicU64::new(1),
            table,
            releases,
            renewals,
            uses,
            recall_context,
            background,
            closing: Closing::default(),
            attempt_lines: Limiter::default(),
            wait_lines: Limiter::default(),
        };
        Self { core: Arc::new(core) }
    }

    /// Creates another handle of the same engine.
    fn handle(&self) -> Self {
        Self { core: Arc::clone(&self.core) }
    }

    pub(crate) fn options(&self) -> &Options {
        &self.options
    }

    /// Checks a name and derives its keys.
    pub(crate) fn key(&self, name: &str) -> Result<Arc<Key>> {
        self.options.key(name).map(Arc::new)
    }

    /// Returns true if `fork` copied this engine into the current process. A copied engine must hold no lock and send
    /// nothing.
    #[inline]
    pub(crate) fn is_copied(&self) -> bool {
        !self.process.is_current()
    }

    pub(crate) fn check_open(&self, key: &Key) -> Result<()> {
        self.process.check(key.name())?;
        if self.closing.is_closed() {
            return Err(Error::Closed { lock: key.shared_name() });
        }
        Ok(())
    }

    /// Starts the driver of the background if it does not run.
    pub(crate) fn keep_running(&self) {
        self.background.keep_running();
    }

    pub(crate) fn next_id(&self) -> AcquisitionId {
        let n = self.next_acquisition.fetch_add(1, Ordering::Relaxed);
        AcquisitionId::new(&self.manager_id, n, &self.label)
    }

    /// Returns the longest time between the sending of a request and its execution by a server.
    pub(crate) fn max_delay(&self) -> Duration {
        request_delay(&self.options)
    }

    /// Starts the retries of a new request.
    fn tries(&self) -> Tries {
        Tries::new(self.now(), self.options.unreachable_after)
    }

    /// Waits until a server answers. Then checks that its ACL permits all commands that locks need.
    pub(crate) async fn ready(&self) -> Result<()> {
        self.of_manager(|| self.scheme.ready()).await?;
        self.check_rights().await
    }

    /// Fails if the server reports that its ACL does not permit a command that locks need, or that it runs no scripts.
    /// Ignores other failures, because the first request for a lock reports them.
    async fn check_rights(&self) -> Result<()> {
        let key = self.key("-")?;
        let more: &[&str] = if self.options.durability.acknowledgement().is_some() { &["WAIT"] } else { &[] };
        match self.scheme.check_rights(&key, more).await {
            Err(Failure::Refused {
                refusal: refusal @ (Refusal::Forbidden | Refusal::UnsupportedServer),
                node,
                message,
            }) => Err(Error::Refused { lock: "".into(), refusal, node, message }),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// Repeats a request that concerns no single lock until a server answers it.
    async fn of_manager<T, F>(&self, attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let nameless = Key::new("rwlock", "-")?;
        self.answered(&nameless, attempt).await.map_err(without_lock)
    }

    /// Repeats an idempotent request until a server answers it.
    async fn answered<T, F>(&self, key: &Key, mut attempt: impl FnMut() -> F) -> Result<T>
    where
        F: Future<Output = Result<T, Failure>>,
    {
        let answered = pin!(async {
            in_runtime()?;
            let mut tries = self.tries();
            loop {
                match attempt().await {
                    Ok(answer) => return Ok(answer),
                    Err(failure) => tries.on_failure(self, key, failure).await?,
                }
            }
        });
        self.process.here(key.name(), answered).await
    }

    /// Returns the start of the outage for a caller whose request began at `since` and failed with `failure`. The
    /// outage starts at `since`, or at the last answer of the node to any request if that is later. So the time during
    /// which the request waited for a permit does not count, as long as the node answered other requests.
    pub(crate) fn unheard_since(&self, key: &Key, failure: &Failure, since: Moment) -> Moment {
        let ServerContact { served, is_silent } = self.scheme.contact(key);
        // The node may refuse this request again and again while it answers other requests. Then these answers do not
        // count, because the retries would never end.
        let counts = is_silent || matches!(failure, Failure::Unknown { .. });
        served.filter(|_| counts).map_or(since, |served| served.max(since))
    }

    /// Returns true if no acquisition, hold or release is left.
    #[cfg(all(test, feature = "_testing"))]
    pub(crate) fn is_idle(&self) -> bool {
        self.table.is_idle() && self.table.deadlines.has_no_holds() && !self.releases.is_releasing()
    }

    /// Waits until no acquisition is in progress and no release is left to send.
    pub(crate) async fn settled(&self) {
        self.releases.await_resolved().await;
    }

    /// Waits until the servers have confirmed the releases of all dropped guards and acquisitions. Fails if no release
    /// ends for about `unreachable_after`.
    pub(crate) async fn flush(&self) -> Result<()> {
        let flushed = pin!(self.flush_here());
        self.process.here("", flushed).await
    }

    async fn flush_here(&self) -> Result<()> {
        in_runtime()?;
        let began = self.now();
        // A release of an in-doubt acquisition stays open for this time, because the server may still execute the
        // acquisition.
        let late = self.max_delay() + self.options.response_timeout * 2;
        let retry_for = self.options.unreachable_after.max(late);
        // A hold may be over although no driver has started its release yet. This call starts such releases, so that
        // the loop below waits for them.
        self.renewals.give_back_lost(began);
        loop {
            let (ended, now) = (self.releases.ended_count(), self.now());
            tokio::select! {
                biased;
                () = self.releases.flushed() => return Ok(()),
                () = self.clock.sleep_until(now.after(retry_for)) => {}
            }
            if self.releases.ended_count() == ended {
                return Err(Error::unreachable("".into(), self.now().since(began), None));
            }
        }
    }

    /// Closes the manager: refuses new acquisitions, marks all holds as lost to their guards, and releases these holds.
    pub(crate) async fn close(&self) -> Result<()> {
        let closed = pin!(self.close_here());
        self.process.here("", closed).await
    }

    async fn close_here(&self) -> Result<()> {
        in_runtime()?;
        // `SeqCst` orders this store and the load in `check_still_open`. Either the load sees the flag, or the list below
        // contains its hold.
        self.closing.closed.store(true, Ordering::SeqCst);
        self.closing.notify.notify_waiters();
        // For waiters in their first wait. Each registers its task before it reads the flag, so it is woken or sees the flag.
        self.table.wake_waiters();
        let began = self.now();
        let mut latest = began;
        // The table contains each hold from its grant to its end. The deadline queue does not, because drivers take
        // holds out of it for a while.
        for hold in self.table.all_holds() {
            latest = latest.max(hold.deadline());
            // A hold that was lost before is also released here, if no driver has started its release yet.
            if hold.lose(LossReason::Closed) || matches!(hold.due(), Next::Lost(_)) {
                self.release_in_background(&hold);
            }
        }
        // An attempt that ends now is released for the last time when no server can execute it any more. The answer to
        // this release takes some more time.
        let taken_back = self.max_delay() + self.options.response_timeout * 2;
        let waits_until = latest.max(self.now().after(taken_back));
        tokio::select! {
            biased;
            () = self.releases.await_resolved() => return Ok(()),
            () = self.clock.sleep_until(waits_until) => {}
        }
        if self.releases.is_releasing() {
            return Err(Error::unreachable("".into(), waits_until.since(began), None));
        }
        // Only acquisitions whose futures no task polls are left. Each of them ends when its future is polled or
        // dropped.
        Ok(())
    }
}

impl Core {
    #[inline]
    pub(crate) fn now(&self) -> Moment {
        self.clock.now()
    }
}

impl Drop for Core {
    fn drop(&mut self) {
        // No guard and no manager is left that could use the cached holds, so they are released.
        for (_, hold) in self.table.cached_holds() {
            hold.lose(LossReason::Closed);
            self.table.deadlines.forget(&hold);
            // This also removes the reference to the hold from its cell.
            self.releases.unblock(&hold);
            self.releases.give_back(&hold, None, self.now());
        }
        self.background.stop();
    }
}

fn rules(options: &Options, clock: Clock, process: Process) -> Rules {
    Rules {
        clock,
        process,
        max_clock_skew: options.max_clock_skew,
        max_delay: request_delay(options),
        // A requester that rests is polled at each heartbeat. One that waits for an answer is woken first.
        poll_within: acquire::HEARTBEAT * 5 / 4,
        // A try takes a server for silent after twice this time.
        try_within: options.response_timeout.min(acquire::HEARTBEAT / 2),
        max_handoffs: options.max_handoffs,
        handoff_span: HANDOFF_SPAN,
        metrics: Metrics::default(),
        cached: Arc::default(),
    }
}

fn request_delay(options: &Options) -> Duration {
    lease::max_delay(options.response_timeout, options.max_clock_skew)
}

fn without_lock(mut error: Error) -> Error {
    if let Error::Unreachable { lock, .. }
    | Error::NoQuorum { lock, .. }
    | Error::NotEnoughReplicas { lock, .. }
    | Error::Refused { lock, .. }
    | Error::Forked { lock, .. } = &mut error
    {
        *lock = "".into();
    }
    error
}

/// Returns an error outside of a tokio runtime, because timers and sockets would panic there.
pub(crate) fn in_runtime() -> Result<()> {
    let reason = "await the call within a tokio runtime, or use `redis_rwlock::blocking` in threads without one";
    Handle::try_current().map(drop).map_err(|_| Error::invalid("runtime", reason))
}

/// Returns 128 random bits in hexadecimal.
fn random_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // The system has no random numbers, so the generator of the thread is used. A forked process has a copy of this
        // generator. The process id makes the ids of the two processes differ.
        let process = u64::from(std::process::id()) << 32;
        fastrand::Rng::with_seed(fastrand::u64(..) ^ process).fill(&mut bytes);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}
