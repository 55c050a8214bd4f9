//! Credentials that a provider of the user returns. The issuer asks the provider, keeps the newest credentials, and
//! tells open connections of new ones.
//!
//! A manager asks its provider in a single task, so no two calls run at the same time. A thread for blocking work carries out
//! each call. So a provider that blocks delays no renewal, and a provider that panics ends no task. The calls are
//! limited in time, and a dial waits for them even shorter. After that, the dial uses the last valid credentials.
//!
//! A provider of the `redis` crate returns a stream instead. A thread for blocking work waits for its items.
//!
//! The task and its call end when the manager is dropped. Only a provider that blocks its thread keeps this thread until
//! it returns.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::{oneshot, watch};
use tokio::task::AbortHandle;
use tokio::time::Instant;

use crate::base::background_runtime::BackgroundRuntime;
use crate::base::credentials::{Credentials, CredentialsFunction, Provider, ProviderAnswer};
use crate::base::events;
use crate::base::panics::catch_panic;
use crate::base::process;

/// Limit for the time of one call of the provider.
const MAX_CALL: Duration = Duration::from_secs(10);
/// Pause before the next subscription, if the stream of a provider has ended.
#[cfg(feature = "streaming-credentials")]
const SUBSCRIBE_PAUSE: Duration = Duration::from_secs(1);
/// Limit for the validity of credentials. A longer validity is never used up.
const MAX_VALIDITY: Duration = Duration::from_secs(365 * 86_400);
/// Least time between the beginnings of two calls. Dials in this time share one answer.
const MIN_PAUSE: Duration = Duration::from_millis(100);
/// Part of the validity after which the provider is asked again.
const FRESH_PART: f64 = 0.8;
/// Part of the validity between two calls, if the call at [`FRESH_PART`] failed.
const RETRY_PART: f64 = 0.05;

/// Credentials with their number. Each change of the user or of the secret has a higher number.
#[derive(Clone)]
pub(super) struct Issued {
    pub(super) number: u64,
    pub(super) credentials: Arc<Credentials>,
}

/// Asks one provider. The task that does so ends when this value is dropped.
pub(super) struct Issuer {
    shared: Arc<IssuerShared>,
    background_runtime: BackgroundRuntime,
    task: Mutex<Option<AbortHandle>>,
    /// True if the log has reported that a server refuses new credentials on an open connection. Cleared when a server
    /// accepts some.
    pub(super) is_refusal_told: AtomicBool,
}

/// State that the callers, the task and the connections share.
struct IssuerShared {
    provider: Provider,
    state: watch::Sender<IssuerState>,
    /// True if the log has reported the failure of the provider. Cleared by the next success.
    is_told: AtomicBool,
}

#[derive(Default)]
struct IssuerState {
    newest: Option<Issued>,
    /// Numbers of the last call that a caller wants, of the last call that began, and of the last call that ended.
    wanted: u64,
    begun: u64,
    ended: u64,
    /// Time at which the last call began.
    begun_at: Option<Instant>,
    /// Reason why the last call failed.
    failure: Option<String>,
}

impl IssuerState {
    fn is_running(&self) -> bool {
        self.begun > self.ended
    }

    /// Returns the newest credentials, if they are newer than the credentials with this number.
    fn newer_than(&self, number: u64) -> Option<Issued> {
        self.newest.clone().filter(|issued| issued.number > number)
    }
}

impl Issuer {
    pub(super) fn new(provider: &Provider, background_runtime: &BackgroundRuntime) -> Self {
        let (state, is_told) = (watch::Sender::default(), AtomicBool::new(false));
        Self {
            shared: Arc::new(IssuerShared { provider: provider.clone(), state, is_told }),
            background_runtime: background_runtime.clone(),
            task: Mutex::default(),
            is_refusal_told: AtomicBool::new(false),
        }
    }

    /// Returns the credentials for a new connection. Waits for the provider for at most `limit`, counted from the
    /// beginning of its call, and then returns the last valid credentials. If there are none, waits for twice the limit,
    /// and then returns the reason.
    pub(super) async fn for_dial(&self, limit: Duration) -> Result<Issued, String> {
        let now = Instant::now();
        let (call, deadline) = {
            let state = self.shared.state.borrow();
            let began = state.begun_at.filter(|_| state.is_running()).unwrap_or(now);
            let deadline = if state.newest.is_some() { began + limit } else { now + limit * 2 };
            // A dial needs the answer of the call that runs or has just begun, or of the next one.
            let is_recent =
                state.begun_at.is_some_and(|at| now.duration_since(at) < MIN_PAUSE) && state.failure.is_none();
            (if state.is_running() || is_recent { state.begun } else { state.begun + 1 }, deadline)
        };
        self.want(call);
        let is_answered = match &self.shared.provider {
            Provider::Function(_) => self.until(deadline, |state| state.ended >= call).await,
            #[cfg(feature = "streaming-credentials")]
            // The stream has an item if there are credentials, or a reason why there are none.
            Provider::Stream(_) => {
                self.until(deadline, |state| state.newest.is_some() || state.failure.is_some()).await
            }
        };
        if !is_answered {
            self.shared.tell_failure(&no_answer(limit));
        }
        let state = self.shared.state.borrow();
        state
            .newest
            .clone()
            .ok_or_else(|| state.failure.clone().filter(|_| is_answered).unwrap_or_else(|| no_answer(limit * 2)))
    }

    /// Asks the provider once more, because a server has refused the credentials with this number. Returns newer
    /// credentials, if the provider has some within twice the limit.
    pub(super) async fn after_refusal(&self, refused: u64, limit: Duration) -> Option<Issued> {
        let call = {
            let state = self.shared.state.borrow();
            if let Some(newer) = state.newer_than(refused) {
                return Some(newer);
            }
            // A call that runs already may have begun before the change that made the server refuse.
            state.begun + 1
        };
        self.want(call);
        let deadline = Instant::now() + limit * 2;
        self.until(deadline, |state| state.ended >= call || state.newer_than(refused).is_some()).await;
        self.shared.state.borrow().newer_than(refused)
    }

    /// Waits until there are newer credentials than those with this number.
    pub(super) async fn newer_than(&self, number: u64) -> Option<Issued> {
        let mut state = self.shared.state.subscribe();
        state.wait_for(|state| state.newer_than(number).is_some()).await.ok()?.newest.clone()
    }

    /// Waits until the condition holds, or until the deadline. Returns true if the condition holds.
    async fn until(&self, deadline: Instant, condition: impl FnMut(&IssuerState) -> bool + Send) -> bool {
        let mut state = self.shared.state.subscribe();
        let waiting = async { state.wait_for(condition).await.is_ok() };
        tokio::time::timeout_at(deadline, waiting).await.unwrap_or(false)
    }

    /// Notes that a caller wants the answer to this call. Starts the task if it does not run, for example because its
    /// runtime has ended.
    fn want(&self, call: u64) {
        self.shared.state.send_if_modified(|state| {
            let is_new = call > state.wanted;
            state.wanted = state.wanted.max(call);
            is_new
        });
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(AbortHandle::is_finished)
            && let Some(runtime) = self.background_runtime.runtime()
        {
            let asking = Arc::clone(&self.shared).run(runtime.clone());
            *task = Some(process::spawn_on(&runtime, asking).abort_handle());
        }
    }
}

impl Drop for Issuer {
    fn drop(&mut self) {
        if let Some(task) = self.task.get_mut() {
            task.abort();
        }
    }
}

impl IssuerShared {
    async fn run(self: Arc<Self>, runtime: Handle) {
        match &self.provider {
            Provider::Function(function) => self.ask(function, &runtime).await,
            #[cfg(feature = "streaming-credentials")]
            Provider::Stream(provider) => self.follow(provider, &runtime).await,
        }
    }

    /// Asks the provider when a caller wants it, and before the end of the validity.
    async fn ask(&self, function: &Arc<dyn CredentialsFunction>, runtime: &Handle) {
        // A call of an earlier task has no answer any more.
        self.state.send_modify(|state| state.ended = state.begun);
        let mut wanted = self.state.subscribe();
        let (mut refresh_at, mut validity) = (None, None);
        loop {
            tokio::select! {
                _ = wanted.wait_for(|state| state.wanted > state.begun) => {}
                () = sleep_until(refresh_at) => {}
            }
            let last = self.state.borrow().begun_at;
            sleep_until(last.map(|at| at + MIN_PAUSE).or_else(|| Some(Instant::now()))).await;
            self.state.send_modify(|state| {
                state.begun += 1;
                state.begun_at = Some(Instant::now());
            });
            let answer = call(Arc::clone(function), runtime).await;
            let part = if answer.is_ok() { FRESH_PART } else { RETRY_PART };
            validity = answer.as_ref().map_or(validity, Credentials::validity);
            refresh_at =
                validity.map(|validity| Instant::now() + validity.min(MAX_VALIDITY).mul_f64(part).max(MIN_PAUSE));
            self.take(answer);
        }
    }

    /// Takes the items of the provider's stream, and subscribes again if the stream ends.
    #[cfg(feature = "streaming-credentials")]
    async fn follow(&self, provider: &Arc<dyn redis::StreamingCredentialsProvider>, runtime: &Handle) {
        loop {
            let mut items = subscribe(Arc::clone(provider), runtime);
            while let Some(item) = items.recv().await {
                self.take(item);
            }
            self.take(Err("the stream of the provider of the credentials has ended".to_owned()));
            tokio::time::sleep(SUBSCRIBE_PAUSE).await;
        }
    }

    /// Stores the answer to a call, or an item of the stream, and logs what an operator has to know of it.
    fn take(&self, answer: Result<Credentials, String>) {
        let mut changed = None;
        let failure = answer.as_ref().err().cloned();
        self.state.send_modify(|state| {
            state.ended = state.begun;
            match answer {
                Ok(credentials) => {
                    state.failure = None;
                    self.is_told.store(false, Ordering::Relaxed);
                    let newest = state.newest.as_ref();
                    if newest.is_none_or(|newest| !newest.credentials.is_same_login(&credentials)) {
                        let number = newest.map_or(1, |newest| newest.number + 1);
                        changed = newest.map(|_| credentials.user().to_owned());
                        state.newest = Some(Issued { number, credentials: Arc::new(credentials) });
                    }
                }
                Err(error) => state.failure = Some(error),
            }
        });
        // The log may call a user's subscriber of `tracing`, so the state is unlocked first.
        catch_panic(|| changed.iter().for_each(|user| events::credentials_changed(user)));
        failure.iter().for_each(|failure| self.tell_failure(failure));
    }

    /// Logs a failure of the provider, unless the log has one since the last success. Without any credentials, the dial
    /// fails and reports the reason.
    fn tell_failure(&self, failure: &str) {
        let has_newest = self.state.borrow().newest.is_some();
        if has_newest && !self.is_told.swap(true, Ordering::Relaxed) {
            catch_panic(|| events::secret_kept(failure));
        }
    }
}

async fn sleep_until(at: Option<Instant>) {
    match at {
        Some(at) => tokio::time::sleep_until(at).await,
        None => std::future::pending().await,
    }
}

/// Calls the provider on a thread for blocking work. Ends early if this future is dropped.
async fn call(function: Arc<dyn CredentialsFunction>, runtime: &Handle) -> Result<Credentials, String> {
    let (mut tell, told) = oneshot::channel();
    let driver = runtime.clone();
    drop(runtime.spawn_blocking(move || {
        let answer = driver.block_on(async {
            tokio::select! {
                biased;
                () = tell.closed() => None,
                answer = tokio::time::timeout(MAX_CALL, function.call()) => Some(answer),
            }
        });
        // The result is ignored, because the task may have ended.
        drop(answer.map(|answer| tell.send(answer.map_or_else(|_| Err(no_answer(MAX_CALL)), check))));
    }));
    told.await.unwrap_or_else(|_| Err("the provider of the credentials has panicked".to_owned()))
}

/// Subscribes to a provider of the `redis` crate. A thread for blocking work waits for the items, until the stream ends or
/// the receiver is dropped.
#[cfg(feature = "streaming-credentials")]
fn subscribe(
    provider: Arc<dyn redis::StreamingCredentialsProvider>,
    runtime: &Handle,
) -> tokio::sync::mpsc::Receiver<Result<Credentials, String>> {
    use futures_util::StreamExt;

    let (items, received) = tokio::sync::mpsc::channel(1);
    let driver = runtime.clone();
    drop(runtime.spawn_blocking(move || {
        driver.block_on(async {
            let mut stream = provider.subscribe();
            while let Some(item) = tokio::select! {
                biased;
                () = items.closed() => None,
                item = stream.next() => item,
            } {
                let answer = item.map(|auth| Credentials::new(auth.username(), auth.password()));
                if items.send(check(answer.map_err(Into::into))).await.is_err() {
                    return;
                }
            }
        });
    }));
    received
}

fn no_answer(limit: Duration) -> String {
    format!("the provider of the credentials has not answered within {limit:?}")
}

fn check(answer: ProviderAnswer) -> Result<Credentials, String> {
    match answer {
        Ok(credentials) if credentials.secret().is_empty() => {
            Err("the provider of the credentials has returned an empty secret".to_owned())
        }
        Ok(credentials) => Ok(credentials),
        Err(error) => Err(format!("the provider of the credentials has failed: {error}")),
    }
}
