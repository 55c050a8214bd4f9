//! Drives the table against a scheme: acquisitions from the first attempt to the grant, and holds to their end.
//!
//! An acquisition waits for its turn in this process, then asks the server until it is granted. Between two answers of
//! "contended" it pauses, with jitter, no longer than the first deadline that might free the lock; schemes that publish
//! releases cut the pause short. An attempt without an answer is repeated under the same id, which counts once however
//! many copies arrive. Whatever future is dropped, what it may have left on the server is taken back in the background.

use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;
use tokio::runtime::Handle;
use tokio::sync::Notify;
use tokio::task::JoinHandle;

use crate::clock::Clock;
use crate::departure::{Departure, Departures, Pending};
use crate::error::{Error, LossReason, Result, Source};
use crate::hold::{self, Grant, Hold, Next, Parting};
use crate::key::Key;
use crate::lease::{self, FencingToken, Moment};
use crate::options::{Options, Terms};
use crate::reentry::{OwnerId, Reentry};
use crate::renewal::Renewals;
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, Failure, Left, Mode, Scheme, Subscription, View, loss_reason,
};
use crate::table::{Place, Table};

/// First and longest pause between two attempts at a lock that others hold.
const RETRY_FIRST: Duration = Duration::from_millis(4);
const RETRY_LONGEST: Duration = Duration::from_millis(128);
/// The same where releases are published: the pause is only the safety net.
const RETRY_LONGEST_WOKEN: Duration = Duration::from_secs(1);
/// Pause after an attempt without an answer.
const SILENCE_PAUSE: Duration = Duration::from_millis(20);
/// A waiter that holds the lock itself is told so after this time.
const SELF_WAIT_WARNING: Duration = Duration::from_secs(3);

/// What a manager is made of, below its face.
pub(crate) struct Engine {
    scheme: Arc<dyn Scheme>,
    options: Options,
    clock: Clock,
    /// 128 random bits.
    manager_id: String,
    next_acquisition: AtomicU64,
    table: Arc<Table>,
    departures: Arc<Departures>,
    renewals: Arc<Renewals>,
    task: Mutex<Option<JoinHandle<()>>>,
    closing: Closing,
}

#[derive(Debug, Default)]
struct Closing {
    closed: AtomicBool,
    notify: Notify,
}

impl Closing {
    async fn closed(&self) {
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

/// How an acquisition treats a lock that others hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Wait,
    /// One answer is enough.
    AskOnce,
}

/// What copies of an acquisition may have left, or may yet leave, on the server.
#[derive(Clone, Copy, Debug, Default)]
struct Trail {
    /// A copy is being sent or waited for.
    in_flight: bool,
    /// An unanswered copy may arrive until then.
    stray_until: Option<Moment>,
    /// An answered one has left a hold, or may have.
    granted: bool,
}

/// One acquisition on its way: what the steps need, and what is to be taken back if it is dropped.
struct Pursuit<'a> {
    engine: &'a Engine,
    key: Arc<Key>,
    mode: Mode,
    terms: Terms,
    owner: OwnerId,
    ask: Ask,
    place: Option<Place>,
    /// What is known of the copies that were sent.
    trail: Trail,
    /// When the last answer came, else when it began.
    answered: Moment,
    /// When the copy was sent that was answered.
    sent: Moment,
    last_failure: Option<Source>,
    /// Present until it has begun.
    first: Option<Arc<FirstAttempt>>,
    /// As long as something of this may be on the server or on its way there. Given up after what is taken back has been
    /// counted.
    pending: Option<Pending>,
}

/// Whether the first attempt of an acquisition is over. Until then a limit cannot tell a denial from a silence.
#[derive(Debug, Default)]
struct FirstAttempt {
    underway: AtomicBool,
    over: Notify,
}

impl FirstAttempt {
    fn ends(&self) {
        self.underway.store(false, Ordering::Release);
        self.over.notify_one();
    }

    /// Returns at once before and after the first attempt.
    async fn over(&self) {
        while self.underway.load(Ordering::Acquire) {
            self.over.notified().await;
        }
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

    /// Takes the lock. `None` only if the caller wants one answer and that was no.
    pub(crate) async fn acquire(
        self: &Arc<Self>,
        key: Arc<Key>,
        mode: Mode,
        terms: Terms,
        patience: Patience,
    ) -> Result<Option<Arc<Hold>>> {
        self.check_open(&key)?;
        in_runtime()?;
        self.keep_running();
        if let Some(owner) = terms.reentry.owner()
            && let Some(hold) = self.join_own(&key, owner, mode)?
        {
            return Ok(Some(hold));
        }
        let place = match patience {
            Patience::Wait => self.table.enter(&key, mode),
            Patience::AskOnce => match self.table.try_enter(&key, mode) {
                Some(place) => place,
                None => return Ok(None),
            },
        };
        let began = self.clock.now();
        let mut pursuit = Pursuit::new(self, key, mode, terms, place, began);
        let limit = terms.wait_timeout.map_or(Moment::NEVER, |limit| began.after(limit));
        let first = terms.wait_timeout.map(|_| Arc::clone(pursuit.first.insert(Arc::default())));
        // Biased: a grant that is there counts, whatever else is due. Dropping the pursuit takes back what it left.
        let timed_out = tokio::select! {
            biased;
            result = pursuit.run(patience) => return self.hand_out(&pursuit.key, result?),
            () = self.closing.closed() => false,
            () = self.limit(limit, first) => true,
        };
        let lock = pursuit.key.shared_name();
        if !timed_out {
            return Err(Error::Closed { lock });
        }
        let waited = self.clock.now().since(began);
        let source = pursuit.last_failure.take();
        if source.is_some() || self.table.silent_since(&pursuit.key).is_some() {
            return Err(Error::Unreachable { lock, waited, source });
        }
        Err(Error::WaitTimeout { lock, waited })
    }

    /// Returns when the wait is over: at the limit, but not before the first attempt has shown what there is to wait for.
    async fn limit(&self, limit: Moment, first: Option<Arc<FirstAttempt>>) {
        self.clock.sleep_until(limit).await;
        if let Some(first) = first {
            first.over().await;
        }
    }

    /// A grant that crossed with `close` is given back: `close` has listed its holds already.
    fn hand_out(&self, key: &Key, hold: Option<Arc<Hold>>) -> Result<Option<Arc<Hold>>> {
        let checked = self.check_open(key);
        if let (Err(_), Some(hold)) = (&checked, &hold)
            && hold.lose(LossReason::Closed)
        {
            self.see_off(hold);
        }
        checked.map(|()| hold)
    }

    /// Nests in a hold of the same owner, if it has one.
    fn join_own(&self, key: &Key, owner: OwnerId, mode: Mode) -> Result<Option<Arc<Hold>>> {
        let Some(hold) = self.table.held_by(key, owner) else {
            return Ok(None);
        };
        if hold.mode() == Mode::Read && mode == Mode::Write {
            return Err(Error::UpgradeConflict { lock: key.shared_name() });
        }
        Ok(hold.join().then_some(hold))
    }

    fn check_open(&self, key: &Key) -> Result<()> {
        if self.closing.closed.load(Ordering::SeqCst) {
            return Err(Error::Closed { lock: key.shared_name() });
        }
        Ok(())
    }

    /// Starts the renewal task, again if the runtime it ran on has ended.
    fn keep_running(&self) {
        let mut task = self.task.lock();
        if task.as_ref().is_none_or(JoinHandle::is_finished) {
            let runtime = Handle::current();
            self.departures.run_on(runtime.clone());
            *task = Some(runtime.spawn(Arc::clone(&self.renewals).run()));
        }
    }

    fn next_id(&self) -> Acquisition {
        let n = self.next_acquisition.fetch_add(1, Ordering::Relaxed);
        Acquisition::new(&self.manager_id, n, &self.options.label)
    }

    /// A guard lets go and waits for the server's word.
    pub(crate) async fn release(&self, hold: &Arc<Hold>) -> Result<()> {
        let lost = |reason| Error::Lost { lock: hold.key().shared_name(), reason };
        in_runtime().inspect_err(|_| self.release_in_background(hold))?;
        let began = self.clock.now();
        match hold.part(began) {
            Parting::Shared => return Ok(()),
            Parting::Lost(reason) => return Err(lost(reason)),
            Parting::Last => {}
        }
        self.renewals.forget(hold);
        let _pending = self.departures.pending();
        // Dropped, or without an answer: the background goes on.
        let mut goes_on = GoesOn { engine: self, hold: Some(hold) };
        let departure = Departure::of(hold);
        let mut doubt = false;
        loop {
            let failure = match self.departures.tell(&departure).await {
                Ok(answer) => {
                    if departure.stray_until.is_none_or(|until| until <= self.clock.now()) {
                        goes_on.hold = None;
                        self.table.ended(hold);
                    }
                    return match answer.value {
                        Left::Held => Ok(()),
                        Left::None { forced } => self.judge_absence(hold, forced, doubt).map_err(lost),
                    };
                }
                Err(failure) => failure,
            };
            doubt |= !matches!(failure, Failure::NotDone { .. });
            let waited = self.clock.now().since(began);
            if let Some(error) = self.final_error(hold.key(), failure, waited) {
                return Err(error);
            }
            tokio::time::sleep(SILENCE_PAUSE).await;
        }
    }

    /// The server does not know a hold that was to be released. If an earlier copy of the release went unanswered, that
    /// copy has most likely done it, and the hold was ours as long as the local clock vouches for it.
    fn judge_absence(&self, hold: &Hold, forced: Option<FencingToken>, doubt: bool) -> Result<(), LossReason> {
        match loss_reason(hold.token(), forced) {
            LossReason::Gone if doubt && self.clock.now() < hold.deadline() => Ok(()),
            reason => Err(reason),
        }
    }

    /// A guard was dropped.
    pub(crate) fn release_in_background(&self, hold: &Arc<Hold>) {
        match hold.part(self.clock.now()) {
            Parting::Shared | Parting::Lost(_) => {}
            Parting::Last => self.see_off(hold),
        }
    }

    fn see_off(&self, hold: &Arc<Hold>) {
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
        for hold in self.table.holders(key) {
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
    fn final_error(&self, key: &Key, failure: Failure, waited: Duration) -> Option<Error> {
        let lock = key.shared_name();
        match failure {
            Failure::Refused { refusal, message } => Some(Error::Refused { lock, refusal, message }),
            Failure::Unknown { source, .. } | Failure::NotDone { source } => {
                (waited >= self.options.unreachable_after).then_some(Error::Unreachable { lock, waited, source })
            }
        }
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
        for hold in self.table.all_holders() {
            latest = latest.max(hold.deadline());
            if hold.lose(LossReason::Closed) {
                self.see_off(&hold);
            }
        }
        let waits_until = latest.max(self.clock.now().after(self.options.response_timeout));
        tokio::select! {
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

impl<'a> Pursuit<'a> {
    fn new(engine: &'a Engine, key: Arc<Key>, mode: Mode, terms: Terms, place: Place, began: Moment) -> Self {
        Self {
            ask: Ask { id: engine.next_id(), mode, lease: terms.lease.min(terms.max_hold) },
            engine,
            key,
            mode,
            terms,
            owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
            place: Some(place),
            trail: Trail::default(),
            answered: began,
            sent: began,
            last_failure: None,
            first: None,
            pending: None,
        }
    }

    async fn run(&mut self, patience: Patience) -> Result<Option<Arc<Hold>>> {
        if !self.place.as_ref().is_none_or(Place::has_turn) {
            Box::pin(self.turn()).await?;
        }
        let mut pause = RETRY_FIRST;
        let mut subscription: Option<Option<Subscription>> = None;
        loop {
            // Counted before the look, so that `close` either is seen here or waits for this attempt.
            self.pending.get_or_insert_with(|| self.engine.departures.pending());
            self.engine.check_open(&self.key)?;
            let first = self.first.take();
            if let Some(first) = &first {
                first.underway.store(true, Ordering::Release);
            }
            let attempt = self.attempt().await;
            if let Some(first) = first {
                first.ends();
            }
            match attempt {
                Ok(Acquired::Granted { token, remaining }) => {
                    if let Some(hold) = self.granted(token, remaining) {
                        return Ok(Some(hold));
                    }
                    let source: Source = Arc::new(TooLate);
                    self.unanswered(Failure::NotDone { source: Some(source) }).await?;
                }
                Ok(Acquired::Contended { .. }) if patience == Patience::AskOnce => return Ok(None),
                Ok(Acquired::Contended { retry_in }) => {
                    match &mut subscription {
                        Some(subscription) => self.pause(&mut pause, retry_in, subscription.as_mut()).await,
                        // Asks again at once: a release between the answer and the subscription woke nobody.
                        None => subscription = Some(self.engine.scheme.subscribe(&self.key)),
                    }
                }
                // The answer brought the server's time along: the next one has a better limit.
                Ok(Acquired::Late) => tokio::time::sleep(SILENCE_PAUSE).await,
                Err(failure) => self.unanswered(failure).await?,
            }
        }
    }

    /// Waits in this process for the turn. Ends early when the server is silent to those before.
    async fn turn(&mut self) -> Result<()> {
        let mut next_look = self.engine.clock.now().after(SELF_WAIT_WARNING);
        let Some(place) = &mut self.place else {
            return Ok(());
        };
        let mut warned = false;
        loop {
            tokio::select! {
                biased;
                () = place.turn() => {
                    self.answered = self.engine.clock.now();
                    return Ok(());
                }
                () = self.engine.clock.sleep_until(next_look) => {}
            }
            let now = self.engine.clock.now();
            let silent_since = self.engine.table.silent_since(&self.key).map(|since| since.max(self.answered));
            if let Some(since) = silent_since
                && now.since(since) >= self.engine.options.unreachable_after
            {
                let (lock, waited) = (self.key.shared_name(), now.since(since));
                return Err(Error::Unreachable { lock, waited, source: None });
            }
            if !warned && self.engine.table.held_by(&self.key, self.owner).is_some() {
                warned = true;
                warn_of_self(self.key.name(), self.terms.reentry);
            }
            next_look = now.after(Duration::from_secs(1));
        }
    }

    async fn attempt(&mut self) -> Result<Acquired, Failure> {
        let engine = self.engine;
        // If this future dies at the next await, a copy is under way.
        self.trail.in_flight = true;
        let attempt = engine.scheme.acquire(&self.key, &self.ask).await;
        self.trail.in_flight = false;
        let now = engine.clock.now();
        self.trail.stray_until = self.trail.stray_until.filter(|until| *until > now);
        match attempt {
            Ok(answer) => {
                self.trail.granted = matches!(answer.value, Acquired::Granted { .. });
                self.sent = answer.sent;
                // A grant that is over when it comes is as good as silence.
                if !self.trail.granted || self.is_worth_having(&answer, now) {
                    self.answered = now;
                }
                self.last_failure = None;
                // A grant becomes a hold, which says the same.
                if let Some(place) = &self.place
                    && !self.trail.granted
                {
                    place.silent_since(None);
                }
                if !self.trail.granted && self.trail.stray_until.is_none() {
                    self.pending = None;
                }
                Ok(answer.value)
            }
            Err(failure) => {
                match &failure {
                    Failure::Unknown { stray_until, .. } => {
                        self.trail.stray_until = self.trail.stray_until.max(Some(*stray_until));
                    }
                    // A script can be refused half way, where a right is missing for one of its commands.
                    Failure::Refused { .. } => self.trail.granted = true,
                    Failure::NotDone { .. } => {}
                }
                Err(failure)
            }
        }
    }

    fn is_worth_having(&self, answer: &Answered<Acquired>, now: Moment) -> bool {
        let Acquired::Granted { remaining, .. } = answer.value else {
            return false;
        };
        let valid = lease::valid_until(answer.sent, remaining, self.engine.options.clock_margin);
        valid > now
    }

    /// Makes the grant a hold, if there is enough left of it.
    fn granted(&mut self, token: FencingToken, remaining: Duration) -> Option<Arc<Hold>> {
        let engine = self.engine;
        let grant = Grant { sent: self.sent, remaining };
        let terms = hold::Terms {
            key: Arc::clone(&self.key),
            id: self.ask.id.clone(),
            mode: self.mode,
            owner: self.owner,
            lease: self.terms.lease,
            ends: self.sent.after(self.terms.max_hold),
        };
        let hold = Hold::new(terms, token, grant, self.trail.stray_until, engine.clock, engine.options.clock_margin);
        if !matches!(hold.next(engine.clock.now()), Next::At(_)) {
            // The answer was too long on its way. The old id is given back, and a new one asks again.
            if let Some(place) = &self.place {
                place.silent_since(None);
            }
            self.take_back();
            self.ask.id = engine.next_id();
            return None;
        }
        self.trail = Trail::default();
        let hold = Arc::new(hold);
        if let Some(place) = self.place.take() {
            place.granted(&hold);
        }
        // The table has it: `close` finds it there.
        self.pending = None;
        engine.renewals.watch(&hold, self.answered);
        tracing::debug!(lock = self.key.name(), mode = %self.mode, token = token.as_u64(), "granted");
        Some(hold)
    }

    async fn unanswered(&mut self, failure: Failure) -> Result<()> {
        let now = self.engine.clock.now();
        if let Some(place) = &self.place {
            place.silent_since(Some(self.answered));
        }
        if let Failure::Unknown { source, .. } | Failure::NotDone { source } = &failure {
            self.last_failure = Some(source.clone().unwrap_or_else(|| Arc::new(Silence)));
        }
        tracing::debug!(lock = self.key.name(), ?failure, "an attempt was not answered");
        match self.engine.final_error(&self.key, failure, now.since(self.answered)) {
            Some(error) => Err(error),
            None => {
                tokio::time::sleep(SILENCE_PAUSE).await;
                Ok(())
            }
        }
    }

    async fn pause(&self, pause: &mut Duration, retry_in: Duration, subscription: Option<&mut Subscription>) {
        let longest = match subscription {
            Some(_) => RETRY_LONGEST_WOKEN,
            None => RETRY_LONGEST,
        };
        let jittered = pause.mul_f64(0.5 + fastrand::f64());
        *pause = (*pause * 2).min(longest);
        // A little after the deadline that may free it, or the attempt would come just too early.
        let nap = jittered.min(retry_in + Duration::from_millis(1));
        match subscription {
            Some(subscription) => {
                // The sender is gone only with the store: then the nap is all there is.
                let woken = async {
                    if subscription.wake.changed().await.is_err() {
                        std::future::pending::<()>().await;
                    }
                };
                tokio::select! {
                    () = woken => {}
                    () = tokio::time::sleep(nap) => {}
                }
            }
            None => tokio::time::sleep(nap).await,
        }
    }

    /// Takes back what this acquisition may have left on the server.
    fn take_back(&mut self) {
        let trail = std::mem::take(&mut self.trail);
        let now = self.engine.clock.now();
        let mut stray_until = trail.stray_until;
        if trail.in_flight {
            let options = &self.engine.options;
            let limit = lease::stray_span(options.response_timeout, options.clock_margin);
            stray_until = stray_until.max(Some(now.after(limit)));
        }
        if stray_until.is_none() && !trail.granted {
            return;
        }
        let covers = lease::surely_over(self.ask.lease, self.engine.options.clock_margin);
        let departure = Departure {
            key: Arc::clone(&self.key),
            id: self.ask.id.clone(),
            server_until: stray_until.unwrap_or(now).max(now).after(covers),
            stray_until,
        };
        self.engine.departures.in_background(departure, None);
    }
}

impl Drop for Pursuit<'_> {
    fn drop(&mut self) {
        self.take_back();
    }
}

/// Timers and sockets are a runtime's; without one they panic.
fn in_runtime() -> Result<()> {
    let missing = |_| Error::InvalidOption {
        option: "runtime",
        reason: "this must be awaited within a tokio runtime; plain threads use `redis_rwlock::blocking`".to_owned(),
    };
    Handle::try_current().map(drop).map_err(missing)
}

/// An acquisition waits for a guard of its own owner. With the opt-in, that guard came while it was in the queue already.
fn warn_of_self(lock: &str, reentry: Reentry) {
    if reentry == Reentry::Off {
        tracing::warn!(
            lock,
            "this task waits for a lock that it holds itself; nested acquisitions must opt in with `.reentrant()`"
        );
    } else {
        tracing::warn!(
            lock,
            "this owner waits for a lock that it holds itself: it asked twice at the same time, and an acquisition nests only \
             in a guard that is there when it is first polled; await one before the other"
        );
    }
}

/// The round trip took longer than the grant was worth.
#[derive(Debug, thiserror::Error)]
#[error("the answer came when its lease was over")]
struct TooLate;

/// Nothing came back.
#[derive(Debug, thiserror::Error)]
#[error("no answer within the response timeout")]
struct Silence;

/// 128 random bits in hexadecimal.
fn random_id() -> String {
    let mut bytes = [0; 16];
    if getrandom::fill(&mut bytes).is_err() {
        // Without the system's randomness: the process-wide generator, which is seeded per process and thread.
        fastrand::fill(&mut bytes);
    }
    bytes.iter().map(|byte| format!("{byte:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hold::HoldState;
    use crate::options::Overrides;
    use crate::scheme::memory::{Memory, Store};

    #[tokio::test]
    async fn close_finds_holds_that_the_renewal_task_has_in_hand() {
        let engine = Arc::new(Engine::new(Arc::new(Memory::new(Arc::new(Store::new()))), Options::default()));
        let key = engine.key("cfg").expect("valid");
        let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
        let hold = engine.acquire(key, Mode::Write, terms, Patience::Wait).await.expect("answered").expect("granted");
        engine.renewals.forget(&hold); // as the task takes what is due from its agenda
        engine.close().await.expect("closed");
        assert_eq!(hold.state(), HoldState::Lost(LossReason::Closed));
    }
}
