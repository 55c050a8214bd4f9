//! Acquisitions, from the first attempt to the grant.
//!
//! A reader joins a hold that its process has, if it may. Everybody else waits for a turn in this process, then asks the
//! server. Whoever cannot be granted there waits in the server's queue, repeats the question as a heartbeat, and starts as
//! soon as a notice says that it was granted; a scheme without a queue is asked again with jittered pauses. An attempt
//! without an answer is repeated under the same id, which counts once however many copies arrive. A future that is dropped
//! leaves what it has under way to the next waiter of its process; without one it is taken back in the background.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use tokio::sync::Notify;

use crate::departure::Departure;
use crate::engine::{Engine, Held, SILENCE_PAUSE, in_runtime};
use crate::error::{Error, LossReason, Result, Source};
use crate::hold::{self, Grant, Hold, Next, Ticket};
use crate::key::Key;
use crate::lease::{self, Moment};
use crate::options::Terms;
use crate::quest::{Notices, Quest, Trail};
use crate::reentry::{OwnerId, Reentry};
use crate::scheme::{Acquired, Answered, Ask, Attempt, Failure, Granted, IfTaken, Mode, Notice};
use crate::table::{Call, Leaving, Place, Want};

/// A waiter in the server's queue is heard of at least so often.
const HEARTBEAT: Duration = Duration::from_secs(1);
/// First and longest pause between two attempts at a lock that others hold, where there is no queue.
const RETRY_FIRST: Duration = Duration::from_millis(4);
const RETRY_LONGEST: Duration = Duration::from_millis(128);
/// The same where releases are published: the pause is only the safety net.
const RETRY_LONGEST_WOKEN: Duration = Duration::from_secs(1);
/// A waiter that holds the lock itself is told so after this time.
const SELF_WAIT_WARNING: Duration = Duration::from_secs(3);

/// How an acquisition treats a lock that others hold.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Patience {
    Wait,
    /// One answer is enough.
    AskOnce,
}

/// Whether the first attempt of an acquisition is over. Until then a limit cannot tell a denial from a silence.
#[derive(Debug, Default)]
struct FirstAttempt {
    underway: AtomicBool,
    over: Notify,
}

/// The first attempt. Dropped, it is over.
struct UnderwayFirst(Arc<FirstAttempt>);

impl Drop for UnderwayFirst {
    fn drop(&mut self) {
        self.0.underway.store(false, Ordering::Release);
        self.0.over.notify_one();
    }
}

impl FirstAttempt {
    fn begins(self: Arc<Self>) -> UnderwayFirst {
        self.underway.store(true, Ordering::Release);
        UnderwayFirst(self)
    }

    /// Returns at once before and after the first attempt.
    async fn over(&self) {
        while self.underway.load(Ordering::Acquire) {
            self.over.notified().await;
        }
    }
}

/// A share of a hold that this process has, if it may be joined without a word to the server.
pub(crate) fn join(engine: &Arc<Engine>, name: &str, terms: &Terms) -> Option<Held> {
    if terms.reentry.owner().is_some() || engine.closing.is_closed() {
        return None;
    }
    let want = Want { owner: OwnerId::current(), lease: terms.lease, max_hold: terms.max_hold };
    let (hold, ticket) = engine.table.join(name, want, engine.clock.now())?;
    Some(Held::new(engine, hold, ticket))
}

/// Takes the lock. `None` only if the caller wants one answer and that was no.
pub(crate) async fn acquire(
    engine: &Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    terms: Terms,
    patience: Patience,
) -> Result<Option<Held>> {
    engine.check_open(&key)?;
    in_runtime()?;
    engine.keep_running();
    let began = engine.clock.now();
    if let Some(owner) = terms.reentry.owner()
        && let Some(held) = join_own(engine, &key, owner, mode, began)?
    {
        return Ok(Some(held));
    }
    let want = Want {
        owner: terms.reentry.owner().unwrap_or_else(OwnerId::current),
        lease: terms.lease,
        max_hold: terms.max_hold,
    };
    if mode == Mode::Read
        && let Some((hold, ticket)) = engine.table.join(key.name(), want, began)
    {
        return Ok(Some(Held::new(engine, hold, ticket)));
    }
    let place = match patience {
        Patience::Wait => engine.table.enter(&key, mode, want),
        Patience::AskOnce => match engine.table.try_enter(&key, mode) {
            Some(place) => place,
            None => return Ok(None),
        },
    };
    let mut pursuit = Pursuit::new(engine, key, mode, want, place, began);
    pursuit.reentry = terms.reentry;
    let limit = terms.wait_timeout.map_or(Moment::NEVER, |limit| began.after(limit));
    let first = terms.wait_timeout.map(|_| Arc::clone(pursuit.first.insert(Arc::default())));
    // Biased: a grant that is there counts, whatever else is due. Dropping the pursuit takes back what it left.
    let timed_out = tokio::select! {
        biased;
        result = pursuit.run(patience) => return hand_out(engine, &pursuit.key, result?),
        () = engine.closing.closed() => false,
        () = limit_of(engine, limit, first) => true,
    };
    let lock = pursuit.key.shared_name();
    if !timed_out {
        return Err(Error::Closed { lock });
    }
    let waited = engine.clock.now().since(began);
    let source = pursuit.last_failure.take();
    if source.is_some() || engine.table.silent_since(&pursuit.key, mode).is_some() {
        return Err(Error::Unreachable { lock, waited, source });
    }
    Err(Error::WaitTimeout { lock, waited })
}

/// Nests in a hold of the same owner, if it has one.
fn join_own(engine: &Arc<Engine>, key: &Key, owner: OwnerId, mode: Mode, now: Moment) -> Result<Option<Held>> {
    let Some(hold) = engine.table.held_by(key, owner, now) else {
        return Ok(None);
    };
    if hold.mode() == Mode::Read && mode == Mode::Write {
        return Err(Error::UpgradeConflict { lock: key.shared_name() });
    }
    let ticket = hold.join_own(owner, now);
    Ok(ticket.map(|ticket| Held::new(engine, hold, ticket)))
}

/// Returns when the wait is over: at the limit, but not before the first attempt has shown what there is to wait for.
async fn limit_of(engine: &Engine, limit: Moment, first: Option<Arc<FirstAttempt>>) {
    engine.clock.sleep_until(limit).await;
    if let Some(first) = first {
        first.over().await;
    }
}

/// A grant that crossed with `close` is given back: `close` has listed its holds already.
fn hand_out(engine: &Engine, key: &Key, held: Option<Held>) -> Result<Option<Held>> {
    let checked = engine.check_open(key);
    if let (Err(_), Some(held)) = (&checked, &held)
        && held.hold().lose(LossReason::Closed)
    {
        engine.see_off(held.hold());
    }
    checked.map(|()| held)
}

/// One acquisition on its way: what the steps need, and what is to be taken back if it is dropped.
struct Pursuit<'a> {
    engine: &'a Arc<Engine>,
    key: Arc<Key>,
    mode: Mode,
    want: Want,
    reentry: Reentry,
    place: Option<Place>,
    /// What it has under way on the server; present once it has asked.
    quest: Option<Quest>,
    began: Moment,
    /// Of waiting for itself.
    warned: bool,
    /// When the last answer came, else when it began.
    answered: Moment,
    last_failure: Option<Source>,
    /// Present until it has begun.
    first: Option<Arc<FirstAttempt>>,
}

/// What an attempt at a hold that the process has already came to.
enum Recheck {
    Joined(Held),
    /// Not to be joined: the server is to be asked for another.
    Closed,
    /// No answer yet.
    Again,
}

impl<'a> Pursuit<'a> {
    fn new(engine: &'a Arc<Engine>, key: Arc<Key>, mode: Mode, want: Want, place: Place, began: Moment) -> Self {
        Self {
            engine,
            key,
            mode,
            want,
            reentry: Reentry::Off,
            place: Some(place),
            quest: None,
            began,
            warned: false,
            answered: began,
            last_failure: None,
            first: None,
        }
    }

    async fn run(&mut self, patience: Patience) -> Result<Option<Held>> {
        while !self.place.as_ref().is_none_or(Place::has_turn) {
            if let Some(held) = Box::pin(self.called()).await? {
                return Ok(Some(held));
            }
        }
        if let Some(held) = Box::pin(self.recheck_own(patience)).await? {
            return Ok(Some(held));
        }
        self.pursue(patience).await
    }

    /// Asks the server until it grants the lock.
    async fn pursue(&mut self, patience: Patience) -> Result<Option<Held>> {
        let (mut pause, mut queued) = (RETRY_FIRST, false);
        loop {
            let engine = self.engine;
            let quest = self.quest_mut(patience);
            // Counted before the look, so that `close` either is seen here or waits for this attempt.
            quest.pending.get_or_insert_with(|| engine.departures.pending());
            let ask = self.ask(patience);
            engine.check_open(&self.key)?;
            let answer = match self.limited_attempt(&ask).await {
                Ok(answer) => answer,
                Err(failure) => {
                    self.unanswered(failure).await?;
                    continue;
                }
            };
            match answer.value {
                Acquired::Granted(granted) => {
                    if let Some(held) = self.granted(&ask, answer.sent, granted) {
                        return Ok(Some(held));
                    }
                    let failure = self.too_late();
                    self.unanswered(failure).await?;
                }
                Acquired::Contended { .. } if patience == Patience::AskOnce => return Ok(None),
                Acquired::Contended { retry_in } => {
                    self.warn_of_self(engine.clock.now());
                    self.pause(&mut pause, retry_in).await;
                }
                Acquired::Queued { retry_in } => {
                    self.warn_of_self(engine.clock.now());
                    if !std::mem::replace(&mut queued, true) {
                        tracing::debug!(lock = self.key.name(), mode = %self.mode, "queued");
                    }
                    if let Some(answer) = self.notice(retry_in).await
                        && let Some(held) = self.notified(&ask, answer)
                    {
                        return Ok(Some(held));
                    }
                }
                // The answer brought the server's time along: the next one has a better limit.
                Acquired::Late => tokio::time::sleep(SILENCE_PAUSE).await,
            }
        }
    }

    fn ask(&mut self, patience: Patience) -> Ask {
        let heartbeat = self.heartbeat();
        let silence = self.engine.options().response_timeout;
        Ask {
            id: self.quest_mut(patience).id.clone(),
            mode: self.mode,
            lease: self.want.lease.min(self.want.max_hold),
            turns: self.engine.options().hand_over_budget,
            if_taken: match patience {
                Patience::AskOnce => IfTaken::Leave,
                // Two heartbeats may be lost.
                Patience::Wait => IfTaken::Queue { patience: (heartbeat + silence) * 2 },
            },
        }
    }

    /// A waiter with a short lease is granted for no longer than that, and has to learn of it in time.
    fn heartbeat(&self) -> Duration {
        HEARTBEAT.min(self.want.lease.min(self.want.max_hold) / 3)
    }

    /// Waits in this process until it is called: for its turn, or with a share that it has. Ends early when the server is
    /// silent to those before.
    async fn called(&mut self) -> Result<Option<Held>> {
        let mut next_look = self.engine.clock.now().after(SELF_WAIT_WARNING);
        loop {
            let Some(place) = &mut self.place else {
                return Ok(None);
            };
            tokio::select! {
                biased;
                call = place.called() => {
                    // A server that was silent to those before is so to this one: its patience does not begin again.
                    let silent_since = self.engine.table.silent_since(&self.key, self.mode);
                    let now = self.engine.clock.now();
                    self.answered = silent_since.map_or(now, |since| since.max(self.answered));
                    return Ok(match call {
                        Call::Turn => None,
                        Call::Handed(hold, ticket) => self.handed(hold, ticket),
                    });
                }
                () = self.engine.clock.sleep_until(next_look) => {}
            }
            let now = self.engine.clock.now();
            self.check_heard(now)?;
            self.warn_of_self(now);
            next_look = now.after(Duration::from_secs(1));
        }
    }

    /// A waiter that holds the lock itself would wait for ever: it is told so, once.
    fn warn_of_self(&mut self, now: Moment) {
        let due = !self.warned && now.since(self.began) >= SELF_WAIT_WARNING;
        if due && self.engine.table.held_by(&self.key, self.want.owner, now).is_some() {
            self.warned = true;
            warn_of_self(self.key.name(), self.reentry);
        }
    }

    /// Whether the server answers whoever of this process has the turn.
    fn check_heard(&self, now: Moment) -> Result<()> {
        let silent_since = self.engine.table.silent_since(&self.key, self.mode).map(|since| since.max(self.answered));
        match silent_since.map(|since| now.since(since)) {
            Some(waited) if waited >= self.engine.options().unreachable_after => {
                Err(Error::Unreachable { lock: self.key.shared_name(), waited, source: None })
            }
            _ => Ok(()),
        }
    }

    /// Takes a share that somebody of this process has handed it, if that is still worth having. Else it waits again.
    fn handed(&mut self, hold: Arc<Hold>, ticket: Ticket) -> Option<Held> {
        let now = self.engine.clock.now();
        let accepted = hold.accept(ticket, self.want.from(now), now);
        self.engine.renewals.look_again(&hold, now);
        let held = Held::new(self.engine, hold, ticket);
        if accepted {
            self.place = None;
            return Some(held);
        }
        self.place = Some(self.engine.table.enter(&self.key, self.mode, self.want));
        None
    }

    /// Joins a read hold that its process has, by asking the server whether a writer waits.
    async fn recheck_own(&mut self, patience: Patience) -> Result<Option<Held>> {
        if self.mode == Mode::Write {
            return Ok(None);
        }
        loop {
            let now = self.engine.clock.now();
            if let Some((hold, ticket)) = self.engine.table.join(self.key.name(), self.want, now) {
                return Ok(Some(self.joined(Held::new(self.engine, hold, ticket))));
            }
            let Some(hold) = self.engine.table.to_recheck(&self.key) else {
                return Ok(None);
            };
            let Some((ticket, lease)) = hold.begin_recheck(self.want.from(now), now) else {
                return Ok(None);
            };
            match self.recheck(Held::new(self.engine, hold, ticket), lease).await? {
                Recheck::Joined(held) => return Ok(Some(self.joined(held))),
                Recheck::Closed => return Ok(None),
                Recheck::Again if patience == Patience::AskOnce => return Ok(None),
                Recheck::Again => {}
            }
        }
    }

    /// It has a share of a hold that was granted before: whoever waits here to read may have one too.
    fn joined(&mut self, held: Held) -> Held {
        if let Some(place) = self.place.take() {
            // It needs nothing of its own.
            if let Some(quest) = place.take_quest() {
                self.take_back(quest);
            }
            place.granted(held.hold(), self.engine.clock.now());
        }
        held
    }

    async fn recheck(&mut self, held: Held, lease: Duration) -> Result<Recheck> {
        let engine = self.engine;
        let hold = &Arc::clone(held.hold());
        let ask = Ask { id: hold.id().clone(), mode: Mode::Read, lease, turns: 1, if_taken: IfTaken::Leave };
        let first = self.first.take().map(FirstAttempt::begins);
        let repeat = Repeat::begin(engine, hold);
        let attempt = engine.scheme.acquire(&self.key, &ask).await;
        repeat.answered(&attempt);
        drop(first);
        let now = engine.clock.now();
        let Answered { sent, value, .. } = match attempt {
            Ok(answer) => answer,
            Err(failure) => {
                drop(held);
                self.unanswered(failure).await?;
                return Ok(Recheck::Again);
            }
        };
        self.heard(now);
        match value {
            Acquired::Granted(Granted { token, remaining, writers_waiting, .. }) if token == hold.token() => {
                let share_until = (!writers_waiting).then(|| sent.after(engine.sharing().window));
                let live = hold.rechecked(Grant { sent, remaining, asked: lease }, share_until, now);
                engine.renewals.look_again(hold, now);
                // A writer waits: this one must not be let in, though it has extended the hold of the others.
                Ok(if live && !writers_waiting { Recheck::Joined(held) } else { Recheck::Closed })
            }
            Acquired::Granted(_) => {
                // It was lost, and this has begun another one under its id.
                if hold.lose(LossReason::Gone) {
                    engine.see_off(hold);
                }
                Ok(Recheck::Closed)
            }
            Acquired::Late => {
                // The answer brought the server's time along. Meanwhile it has no share.
                drop(held);
                tokio::time::sleep(SILENCE_PAUSE).await;
                Ok(Recheck::Again)
            }
            Acquired::Queued { .. } | Acquired::Contended { .. } => {
                // The server does not know it. The next renewal tells why.
                hold.doubt(now);
                engine.renewals.look_again(hold, now);
                Ok(Recheck::Closed)
            }
        }
    }

    /// What is under way for this side: what the one before left, or something new.
    fn quest_mut(&mut self, patience: Patience) -> &mut Quest {
        let Self { engine, key, place, quest, .. } = self;
        quest.get_or_insert_with(|| {
            if let Some(left) = place.as_ref().and_then(Place::take_quest) {
                return left;
            }
            let warm = match patience {
                Patience::Wait => engine.scheme.subscribed(key, &engine.manager_id),
                Patience::AskOnce => None,
            };
            Quest::new(engine.next_id(), warm.map_or(Notices::Unwanted, Notices::Subscribed))
        })
    }

    /// An attempt, the first of which a time limit waits for.
    async fn limited_attempt(&mut self, ask: &Ask) -> Result<Answered<Acquired>, Failure> {
        let first = self.first.take().map(FirstAttempt::begins);
        let attempt = self.attempt(ask).await;
        drop(first);
        attempt
    }

    async fn attempt(&mut self, ask: &Ask) -> Result<Answered<Acquired>, Failure> {
        let engine = self.engine;
        // If this future dies at the next await, a copy is under way.
        self.trail_mut().in_flight = true;
        let attempt = engine.scheme.acquire(&self.key, ask).await;
        let now = engine.clock.now();
        let trail = self.trail_mut();
        trail.in_flight = false;
        match &attempt {
            Ok(answer) => {
                // What arrived before this copy is in the answer.
                trail.stray_until = trail.stray_until.filter(|until| *until > answer.sent);
                self.attempt_answered(answer, now);
            }
            Err(Failure::Unknown { stray_until, .. }) => trail.stray_until = trail.stray_until.max(Some(*stray_until)),
            // A script can be refused half way, where a right is missing for one of its commands.
            Err(Failure::Refused { .. }) => trail.recorded = true,
            Err(Failure::NotDone { .. }) => {}
        }
        attempt
    }

    fn trail_mut(&mut self) -> &mut Trail {
        &mut self.quest.as_mut().expect("an attempt has a quest").trail
    }

    fn attempt_answered(&mut self, answer: &Answered<Acquired>, now: Moment) {
        let granted = matches!(answer.value, Acquired::Granted(_));
        if let Some(quest) = &mut self.quest {
            quest.answered_at = answer.server;
            quest.trail.recorded = matches!(answer.value, Acquired::Granted(_) | Acquired::Queued { .. });
            if quest.is_traceless() {
                quest.pending = None;
            }
        }
        // A grant that is over when it comes is as good as silence; one that is not becomes a hold, which says the same.
        if !granted {
            self.heard(now);
        } else if self.is_worth_having(answer, now) {
            self.answered = now;
        }
        self.last_failure = None;
    }

    /// The server answers.
    fn heard(&mut self, now: Moment) {
        self.answered = now;
        if let Some(place) = &self.place {
            place.silent_since(None);
        }
    }

    fn is_worth_having(&self, answer: &Answered<Acquired>, now: Moment) -> bool {
        let Acquired::Granted(Granted { remaining, .. }) = answer.value else {
            return false;
        };
        lease::valid_until(answer.sent, remaining, self.engine.options().clock_margin) > now
    }

    /// Makes a grant a hold, if there is enough left of it.
    fn granted(&mut self, ask: &Ask, sent: Moment, granted: Granted) -> Option<Held> {
        let grant = Grant { sent, remaining: granted.remaining, asked: ask.lease };
        let window = sent.after(self.engine.sharing().window);
        let held = self.begin(ask, granted, grant, self.want.from(sent), window)?;
        tracing::debug!(lock = self.key.name(), mode = %self.mode, token = held.ticket().token.as_u64(), "granted");
        Some(held)
    }

    /// The same for a grant that came as a notice. It is to be claimed by a renewal, and asked about before it is shared.
    fn notified(&mut self, ask: &Ask, answer: Answered<Granted>) -> Option<Held> {
        let Answered { sent, value: granted, .. } = answer;
        let now = self.engine.clock.now();
        // Counted from an earlier answer; should the server's clock have jumped since, a claim from now on is the most.
        let remaining = granted.remaining.min(now.since(sent) + ask.claim());
        let grant = Grant { sent, remaining, asked: ask.claim() };
        let held = self.begin(ask, granted, grant, self.want.from(now), sent)?;
        held.hold().to_be_claimed();
        tracing::debug!(lock = self.key.name(), mode = %self.mode, token = held.ticket().token.as_u64(), "granted by notice");
        Some(held)
    }

    fn begin(&mut self, ask: &Ask, granted: Granted, grant: Grant, share: hold::Share, window: Moment) -> Option<Held> {
        let engine = self.engine;
        let Granted { token, turns, writers_waiting, .. } = granted;
        let terms = hold::Terms { key: Arc::clone(&self.key), id: ask.id.clone(), mode: self.mode, token, turns };
        let stray_until = self.trail_mut().stray_until;
        let (hold, ticket) = Hold::new(terms, share, grant, stray_until, engine.clock, engine.options().clock_margin);
        let now = engine.clock.now();
        if !matches!(hold.next(now), Next::At(_)) {
            return None;
        }
        hold.share_until((!writers_waiting).then_some(window));
        let hold = Arc::new(hold);
        if let Some(place) = self.place.take() {
            place.granted(&hold, now);
        }
        // The table has it: `close` finds it there.
        self.quest = None;
        engine.renewals.watch(&hold, now);
        Some(Held::new(engine, hold, ticket))
    }

    /// The answer was too long on its way. The old id is given back, and a new one asks again.
    fn too_late(&mut self) -> Failure {
        if let Some(place) = &self.place {
            place.silent_since(None);
        }
        if let Some(quest) = self.quest.take() {
            self.take_back(quest);
        }
        Failure::NotDone { source: Some(Arc::new(TooLate)) }
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

    /// Waits in the server's queue until it is time to ask again, or until a notice says that there is no need to.
    async fn notice(&mut self, retry_in: Duration) -> Option<Answered<Granted>> {
        // A little after the deadline that may free it, or the attempt would come just too early.
        let nap = self.heartbeat().min(retry_in + Duration::from_millis(1));
        let asks_again = self.engine.clock.now().after(nap);
        let clock = self.engine.clock;
        let quest = self.subscribed();
        let Notices::Subscribed(subscription) = &mut quest.notices else {
            clock.sleep_until(asks_again).await;
            return None;
        };
        loop {
            tokio::select! {
                biased;
                notice = subscription.notices.recv() => match notice {
                    // Granted before it was queued again, it is over.
                    Some(Notice::Granted { id, at, answer }) if *id == *quest.id.as_str() && at >= quest.answered_at => {
                        return Some(answer);
                    }
                    // Another one's of this process.
                    Some(Notice::Granted { id, .. }) if *id != *quest.id.as_str() => {}
                    Some(Notice::Granted { .. } | Notice::AskAgain) => return None,
                    None => break,
                },
                () = clock.sleep_until(asks_again) => return None,
            }
        }
        quest.notices = Notices::Never;
        clock.sleep_until(asks_again).await;
        None
    }

    /// Waits where there is no queue.
    async fn pause(&mut self, pause: &mut Duration, retry_in: Duration) {
        let quest = self.subscribed();
        let longest = match quest.notices {
            Notices::Subscribed(_) => RETRY_LONGEST_WOKEN,
            Notices::Unwanted | Notices::Never => RETRY_LONGEST,
        };
        let jittered = pause.mul_f64(0.5 + fastrand::f64());
        // Half as long again with the most jitter, which is then the longest.
        *pause = (*pause * 2).min(longest * 2 / 3);
        let nap = jittered.min(retry_in + Duration::from_millis(1));
        match &mut quest.notices {
            Notices::Subscribed(subscription) => {
                // All that is there says the same.
                drop(tokio::time::timeout(nap, subscription.notices.recv()).await);
                while subscription.notices.try_recv().is_ok() {}
            }
            Notices::Unwanted | Notices::Never => tokio::time::sleep(nap).await,
        }
    }

    /// The quest, with notices if there are any.
    fn subscribed(&mut self) -> &mut Quest {
        let quest = self.quest.as_mut().expect("whoever waits has asked");
        if matches!(quest.notices, Notices::Unwanted) {
            let subscription = self.engine.scheme.subscribe(&self.key, &self.engine.manager_id);
            quest.notices = subscription.map_or(Notices::Never, Notices::Subscribed);
        }
        quest
    }

    /// Takes back what an acquisition may have left on the server.
    fn take_back(&self, quest: Quest) {
        if quest.is_traceless() {
            return;
        }
        let now = self.engine.clock.now();
        let in_flight_until = quest.trail.in_flight.then(|| now.after(self.engine.stray_span()));
        let stray_until = quest.trail.stray_until.max(in_flight_until);
        let covers = lease::surely_over(self.want.lease.min(self.want.max_hold), self.engine.options().clock_margin);
        let departure = Departure {
            key: Arc::clone(&self.key),
            id: quest.id.clone(),
            server_until: stray_until.unwrap_or(now).max(now).after(covers),
            stray_until,
        };
        self.engine.departures.in_background(departure, None);
        // `quest.pending` goes now: what was taken back has been counted.
    }
}

impl Drop for Pursuit<'_> {
    fn drop(&mut self) {
        if let Some(quest) = &mut self.quest
            && std::mem::take(&mut quest.trail.in_flight)
        {
            let until = self.engine.clock.now().after(self.engine.stray_span());
            quest.trail.stray_until = quest.trail.stray_until.max(Some(until));
        }
        let quest = self.quest.take();
        let Some(place) = self.place.take() else {
            if let Some(quest) = quest {
                self.take_back(quest);
            }
            return;
        };
        let Leaving { quest, handed } = place.leave(quest);
        if let Some(quest) = quest {
            self.take_back(quest);
        }
        if let Some((hold, ticket)) = handed {
            drop(Held::new(self.engine, hold, ticket));
        }
    }
}

/// A repeat of the acquisition of a hold, on its way. One that comes late would bring a hold back that is over.
struct Repeat<'a> {
    engine: &'a Engine,
    hold: &'a Hold,
    /// What becomes of it is known.
    known: bool,
}

impl<'a> Repeat<'a> {
    fn begin(engine: &'a Engine, hold: &'a Hold) -> Self {
        hold.recheck_begins(engine.clock.now().after(engine.stray_span()));
        Self { engine, hold, known: false }
    }

    fn answered<T>(mut self, attempt: &Attempt<T>) {
        self.known = true;
        self.hold.recheck_ends(match attempt {
            Err(Failure::Unknown { stray_until, .. }) => Some(*stray_until),
            Err(Failure::NotDone { .. } | Failure::Refused { .. }) | Ok(_) => None,
        });
    }
}

impl Drop for Repeat<'_> {
    fn drop(&mut self) {
        if !self.known {
            self.hold.recheck_ends(Some(self.engine.clock.now().after(self.engine.stray_span())));
        }
    }
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

#[cfg(test)]
mod tests {
    use tokio::sync::oneshot;

    use super::*;
    use crate::lease::{FencingToken, ServerTime};
    use crate::options::{Options, Overrides};
    use crate::scheme::Scheme;
    use crate::scheme::memory::{Memory, Store};
    use crate::scheme::staged::{Fate, STRAY, Staged};

    /// A process whose requests a test decides about.
    struct Stage {
        scheme: Arc<Staged>,
        engine: Arc<Engine>,
        key: Arc<Key>,
    }

    impl Stage {
        fn new() -> Self {
            let scheme = Arc::new(Staged::new(Memory::new(Arc::new(Store::new()))));
            let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
            let key = engine.key("cfg").expect("valid");
            Self { scheme, engine, key }
        }

        /// Another process.
        fn other(&self) -> Self {
            let scheme = Arc::new(Staged::new(self.scheme.memory.clone()));
            let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), Options::default()));
            Self { scheme, engine, key: Arc::clone(&self.key) }
        }

        fn asks(
            &self,
            mode: Mode,
            overrides: Overrides,
            patience: Patience,
        ) -> crate::BoxFuture<'_, Result<Option<Held>>> {
            let terms = Terms::new(self.engine.options(), overrides).expect("valid");
            Box::pin(acquire(&self.engine, Arc::clone(&self.key), mode, terms, patience))
        }

        async fn take(&self, mode: Mode) -> Held {
            self.asks(mode, Overrides::default(), Patience::Wait).await.expect("answered").expect("granted")
        }

        /// Holders and waiters on the server.
        async fn there(&self) -> (usize, usize) {
            let view = self.scheme.memory.inspect(&self.key).await.expect("memory answers").value;
            (view.holders.len(), view.waiters.len())
        }
    }

    /// Longer than readers may join without a word to the server.
    const WINDOW_OVER: Duration = Duration::from_millis(60);

    fn start<T>(future: &mut crate::BoxFuture<'_, T>) {
        let mut context = std::task::Context::from_waker(std::task::Waker::noop());
        assert!(future.as_mut().poll(&mut context).is_pending(), "it waits");
    }

    #[tokio::test(start_paused = true)]
    async fn late_copy_of_a_repeat_does_not_outlive_the_hold() {
        let stage = Stage::new();
        let first = stage.take(Mode::Read).await;
        tokio::time::sleep(WINDOW_OVER).await;
        stage.scheme.next_acquire(Fate::Cut);
        let second = stage.take(Mode::Read).await;
        let repeat = stage.scheme.last_ask();
        assert_eq!(&repeat.id, first.hold().id(), "it joins");
        first.release().await.expect("released");
        second.release().await.expect("released");
        let late = stage.scheme.memory.acquire(&stage.key, &repeat).await.expect("memory answers");
        assert!(matches!(late.value, Acquired::Granted(_)), "{late:?}");
        tokio::time::sleep(STRAY + Duration::from_millis(100)).await;
        assert_eq!(stage.there().await, (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn copy_that_arrives_before_the_release_is_answered_is_given_back_too() {
        for background in [false, true] {
            let stage = Stage::new();
            stage.scheme.next_acquire(Fate::Cut);
            let held = stage.take(Mode::Write).await;
            let ask = stage.scheme.last_ask();
            tokio::time::sleep(STRAY - Duration::from_millis(100)).await;
            let (word, answer) = oneshot::channel();
            stage.scheme.next_leave(Fate::Answered(answer));
            let late = async {
                tokio::time::sleep(Duration::from_millis(1)).await; // the release was carried out
                let late = stage.scheme.memory.acquire(&stage.key, &ask).await.expect("memory answers");
                assert!(matches!(late.value, Acquired::Granted(_)), "{late:?}");
                tokio::time::sleep(Duration::from_millis(200)).await;
                word.send(()).expect("it is waited for");
            };
            if background {
                drop(held);
                late.await;
            } else {
                let (released, ()) = tokio::join!(held.release(), late);
                released.expect("released");
            }
            stage.engine.settled().await;
            assert_eq!(stage.there().await, (0, 0), "background: {background}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn copy_of_which_nothing_was_heard_is_taken_back_however_long_ago() {
        let stage = Stage::new();
        stage.scheme.next_acquire(Fate::Cut);
        let mut writing = stage.asks(Mode::Write, Overrides::default(), Patience::Wait);
        start(&mut writing);
        for _ in 0..200 {
            stage.scheme.next_acquire(Fate::NotDone);
        }
        // The copy was carried out all the same; then no node serves the lock for longer than it could have been late.
        let ask = stage.scheme.last_ask();
        let carried_out = stage.scheme.memory.acquire(&stage.key, &ask).await.expect("memory answers");
        assert!(matches!(carried_out.value, Acquired::Granted(_)), "{carried_out:?}");
        assert!(tokio::time::timeout(STRAY * 2, &mut writing).await.is_err(), "it waits");
        drop(writing);
        stage.engine.settled().await;
        assert_eq!(stage.there().await, (0, 0));
    }

    #[tokio::test(start_paused = true)]
    async fn writer_of_the_same_process_does_not_wait_for_the_answer_to_a_release() {
        let stage = Stage::new();
        let held = stage.take(Mode::Write).await;
        tokio::time::sleep(Duration::from_millis(10)).await; // it is not handed over
        let mut next = stage.asks(Mode::Write, Overrides::default(), Patience::Wait);
        start(&mut next);
        for _ in 0..1000 {
            stage.scheme.next_leave(Fate::Cut);
        }
        let release = held.release();
        tokio::select! {
            released = release => panic!("nobody answers: {released:?}"),
            taken = next => panic!("the server has the other hold: {taken:?}"),
            () = tokio::time::sleep(Duration::from_secs(1)) => assert_eq!(stage.there().await, (1, 1)),
        }
    }

    #[tokio::test(start_paused = true)]
    async fn repeat_that_is_answered_is_no_reason_to_release_twice() {
        let stage = Stage::new();
        let first = stage.take(Mode::Read).await;
        tokio::time::sleep(WINDOW_OVER).await;
        let second = stage.take(Mode::Read).await;
        assert_eq!(second.hold().stray_until(), None);
        drop(first);
    }

    #[tokio::test(start_paused = true)]
    async fn time_limit_waits_for_the_first_answer_also_where_a_reader_wants_to_join() {
        let stage = Stage::new();
        let _first = stage.take(Mode::Read).await;
        tokio::time::sleep(WINDOW_OVER).await;
        let (word, answer) = oneshot::channel();
        stage.scheme.next_acquire(Fate::Answered(answer));
        let at_once = Overrides { wait_timeout: Some(Duration::ZERO), ..Overrides::default() };
        let answered = async {
            tokio::time::sleep(Duration::from_millis(5)).await;
            word.send(()).expect("it is waited for");
        };
        let (taken, ()) = tokio::join!(stage.asks(Mode::Read, at_once, Patience::Wait), answered);
        assert!(matches!(taken, Ok(Some(_))), "{taken:?}");
    }

    #[tokio::test(start_paused = true)]
    async fn quest_of_a_future_that_died_is_taken_back_by_a_reader_that_joins() {
        let stage = Stage::new();
        let (_word, answer) = oneshot::channel();
        stage.scheme.next_acquire(Fate::Answered(answer));
        let mut dies = stage.asks(Mode::Read, Overrides::default(), Patience::Wait);
        let mut next = stage.asks(Mode::Read, Overrides::default(), Patience::Wait);
        start(&mut dies);
        start(&mut next);
        drop(dies);
        let once = stage.asks(Mode::Read, Overrides::default(), Patience::AskOnce).await;
        let once = once.expect("answered").expect("granted");
        let joined = next.await.expect("answered").expect("joined");
        assert_eq!(joined.hold().id(), once.hold().id());
        drop((joined, once));
        stage.engine.settled().await;
        assert_eq!(stage.there().await, (0, 0));
    }

    /// Two writers of a process that waits for another one, when that has left.
    async fn two_writers_in(stage: &Stage) -> (Held, crate::BoxFuture<'_, Result<Option<Held>>>) {
        let foreign = stage.other().take(Mode::Write).await;
        let mut first = stage.asks(Mode::Write, Overrides::default(), Patience::Wait);
        let mut second = stage.asks(Mode::Write, Overrides::default(), Patience::Wait);
        start(&mut first);
        start(&mut second);
        foreign.release().await.expect("released");
        (first.await.expect("answered").expect("granted"), second)
    }

    #[tokio::test(start_paused = true)]
    async fn hold_that_was_granted_by_notice_is_passed_on() {
        let stage = Stage::new();
        let (first, second) = two_writers_in(&stage).await;
        let hold = Arc::clone(first.hold());
        drop(first);
        let second = second.await.expect("answered").expect("handed over");
        assert_eq!(second.hold().id(), hold.id());
    }

    #[tokio::test(start_paused = true)]
    async fn hold_that_is_passed_on_while_its_renewal_is_out_goes_on_being_renewed() {
        let stage = Stage::new();
        let (first, second) = two_writers_in(&stage).await;
        let hold = Arc::clone(first.hold());
        // As the renewal task does, with the answer between hand-over and acceptance.
        let now = stage.engine.clock.now();
        let asked = hold.begin_renewal(now, now.after(Duration::from_secs(2))).expect("a claim is due");
        drop(first);
        hold.renewed(Grant { sent: now, remaining: asked, asked }, now);
        let second = second.await.expect("answered").expect("handed over");
        assert_eq!(second.hold().id(), hold.id());
        assert!(matches!(hold.next(now), Next::At(at) if at < hold.deadline()), "nobody renews it");
    }

    #[tokio::test(start_paused = true)]
    async fn notified_grant_lasts_no_longer_than_a_claim() {
        let stage = Stage::new();
        let (engine, key) = (&stage.engine, Arc::clone(&stage.key));
        let want = Want { owner: OwnerId::new(), lease: Duration::from_secs(10), max_hold: Duration::from_secs(3600) };
        let place = engine.table.enter(&key, Mode::Write, want);
        let now = engine.clock.now();
        let mut pursuit = Pursuit::new(engine, key, Mode::Write, want, place, now);
        let ask = pursuit.ask(Patience::Wait);
        // As after a jump of the server's clock.
        let remaining = Duration::from_secs(3600);
        let token = FencingToken::from_wire(1).expect("small");
        let value = Granted { token, turns: 1, remaining, writers_waiting: false };
        let answer = Answered { sent: now, server: ServerTime::default(), value };
        let held = pursuit.notified(&ask, answer).expect("granted");
        assert!(held.hold().deadline() <= now.after(ask.claim()));
    }

    #[tokio::test]
    async fn close_finds_holds_that_the_renewal_task_has_in_hand() {
        let engine = Arc::new(Engine::new(Arc::new(Memory::new(Arc::new(Store::new()))), Options::default()));
        let key = engine.key("cfg").expect("valid");
        let terms = Terms::new(engine.options(), Overrides::default()).expect("valid");
        let held = acquire(&engine, key, Mode::Write, terms, Patience::Wait).await.expect("answered").expect("granted");
        engine.renewals.forget(held.hold()); // as the task takes what is due from its agenda
        engine.close().await.expect("closed");
        assert_eq!(held.hold().state_of(held.ticket()), hold::HoldState::Lost(LossReason::Closed));
    }
}
