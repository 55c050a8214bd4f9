//! Locks in this process's memory: the executable specification of what a scheme does, and the manager for users' tests.
//!
//! [`Record`] is pure: the server's time comes in as an argument, so that the oracle can feed it the times that a real
//! server reported and compare answer by answer.

use std::collections::{BTreeMap, HashMap, VecDeque};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::mpsc;

#[cfg(test)]
pub(crate) mod replica;

use crate::clock::Clock;
use crate::key::Key;
use crate::lease::{FencingToken, Moment, ServerTime};
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, BoxFuture, Failure, Granted, Holder, IfTaken, Left, Mode, Notice,
    Renewal, Renewed, Route, Scheme, Subscription, TOKENS_AHEAD_US, TURNS_MOST, Turned, View, Waiter,
};

/// How long an idle record remembers its last token, as on a server.
const RETENTION_MS: u64 = 60_000;
/// Fewer locks are not worth a look for idle ones.
const SWEEP_LEAST: usize = 64;

/// One lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The last token that was granted or reserved.
    token: u64,
    /// The last token that an operator has ended.
    forced: u64,
    writer: Option<Writer>,
    readers: BTreeMap<Box<str>, Hold>,
    /// First come, first served.
    waiting_writers: VecDeque<Waiting>,
    /// They enter together.
    waiting_readers: Vec<Waiting>,
    /// Who was granted since [`Record::take_news`].
    news: Vec<News>,
    /// When the record may be forgotten.
    forget_ms: u64,
}

#[derive(Clone, Debug)]
struct Writer {
    id: Acquisition,
    /// The first of its tokens; the last one is the record's.
    token: u64,
    hold: Hold,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    since_ms: u64,
    deadline_ms: u64,
}

impl Hold {
    fn new(now_ms: u64, lease: Duration) -> Self {
        Self { since_ms: now_ms, deadline_ms: now_ms + millis(lease) }
    }

    fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms.saturating_sub(now_ms))
    }

    fn extend(&mut self, lease: Duration, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(now_ms + millis(lease));
    }
}

#[derive(Clone, Debug)]
struct Waiting {
    /// As it was asked for last.
    ask: Ask,
    since_ms: u64,
    /// When it counts as dead unless it is heard of.
    until_ms: u64,
}

/// An acquisition that was granted while it waited.
#[derive(Clone, Debug)]
pub(crate) struct News {
    pub(crate) id: Acquisition,
    pub(crate) granted: Granted,
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 2)
}

/// How many tokens from `token` on a grant at `now_us` reserves.
fn block(token: u64, now_us: u64, turns: u64) -> u64 {
    (now_us + TOKENS_AHEAD_US).saturating_sub(token).clamp(1, turns.clamp(1, TURNS_MOST))
}

impl Record {
    /// Drops whoever is dead, and admits whoever is next. Every operation that takes something begins with this, every one
    /// that gives something up ends with it.
    fn settle(&mut self, now: ServerTime, after: Option<Mode>) {
        let now_ms = now.as_micros() / 1000;
        let writer_died = self.writer.take_if(|writer| writer.hold.deadline_ms <= now_ms).is_some();
        self.readers.retain(|_, hold| hold.deadline_ms > now_ms);
        self.waiting_writers.retain(|waiting| waiting.until_ms > now_ms);
        self.waiting_readers.retain(|waiting| waiting.until_ms > now_ms);
        self.admit(now, after.or(writer_died.then_some(Mode::Write)));
    }

    /// Lets the next phase begin if the lock is free, and readers join readers if no writer waits. After a writer all
    /// waiting readers enter, after readers the first waiting writer.
    fn admit(&mut self, now: ServerTime, after: Option<Mode>) {
        if self.writer.is_some() {
            return;
        }
        let readers_first = after == Some(Mode::Write) && !self.waiting_readers.is_empty();
        if self.waiting_writers.is_empty() || readers_first {
            for waiting in std::mem::take(&mut self.waiting_readers) {
                self.hand_over(now, &waiting.ask);
            }
        } else if self.readers.is_empty()
            && let Some(waiting) = self.waiting_writers.pop_front()
        {
            self.hand_over(now, &waiting.ask);
        }
    }

    /// Grants the lock to a waiter, which has yet to learn of it.
    fn hand_over(&mut self, now: ServerTime, ask: &Ask) {
        self.begin(now, ask, ask.claim());
        let granted = self.granted(now.as_micros() / 1000, &ask.id).expect("it was granted just now");
        self.news.push(News { id: ask.id.clone(), granted });
    }

    /// Records a hold that is not there yet.
    fn begin(&mut self, now: ServerTime, ask: &Ask, lease: Duration) {
        let now_us = now.as_micros();
        let hold = Hold::new(now_us / 1000, lease);
        let begins_phase = ask.mode == Mode::Write || self.readers.is_empty();
        let token = if begins_phase { (self.token + 1).max(now_us) } else { self.token };
        self.token = token;
        match ask.mode {
            Mode::Read => {
                self.readers.insert(ask.id.as_str().into(), hold);
            }
            Mode::Write => {
                self.token = token + block(token, now_us, ask.turns) - 1;
                self.writer = Some(Writer { id: ask.id.clone(), token, hold });
            }
        }
        self.remember(hold.deadline_ms);
    }

    fn remember(&mut self, until_ms: u64) {
        self.forget_ms = self.forget_ms.max(until_ms + RETENTION_MS);
    }

    fn hold_of(&mut self, id: &Acquisition) -> Option<&mut Hold> {
        match &mut self.writer {
            Some(writer) if writer.id == *id => Some(&mut writer.hold),
            _ => self.readers.get_mut(id.as_str()),
        }
    }

    /// The hold of `id`, as its owner is told.
    fn granted(&self, now_ms: u64, id: &Acquisition) -> Option<Granted> {
        let (token, turns, hold) = match &self.writer {
            Some(writer) if writer.id == *id => (writer.token, self.token - writer.token + 1, writer.hold),
            _ => (self.token, 1, *self.readers.get(id.as_str())?),
        };
        Some(Granted {
            token: FencingToken::from_wire(token).expect("server time is below 2^53"),
            turns,
            remaining: hold.remaining(now_ms),
            writers_waiting: !self.waiting_writers.is_empty(),
        })
    }

    pub(crate) fn acquire(&mut self, now: ServerTime, not_after_ms: u64, ask: &Ask) -> Acquired {
        let now_ms = now.as_micros() / 1000;
        if now_ms > not_after_ms {
            return Acquired::Late;
        }
        self.settle(now, None);
        if self.holds(ask) {
            self.extend(now_ms, ask);
        } else if self.may_enter(ask.mode) {
            self.begin(now, ask, ask.lease);
        } else {
            return self.refuse(now_ms, ask);
        }
        Acquired::Granted(self.granted(now_ms, &ask.id).expect("it holds the lock"))
    }

    /// Whether this is a repeat of an acquisition that holds the lock.
    fn holds(&self, ask: &Ask) -> bool {
        match ask.mode {
            Mode::Read => self.readers.contains_key(ask.id.as_str()),
            Mode::Write => self.writer.as_ref().is_some_and(|writer| writer.id == ask.id),
        }
    }

    fn extend(&mut self, now_ms: u64, ask: &Ask) {
        if let Some(hold) = self.hold_of(&ask.id) {
            hold.extend(ask.lease, now_ms);
            let deadline_ms = hold.deadline_ms;
            self.remember(deadline_ms);
        }
    }

    /// Whoever waits was admitted before, if that could be.
    fn may_enter(&self, mode: Mode) -> bool {
        let free_of_writers = self.writer.is_none() && self.waiting_writers.is_empty();
        match mode {
            Mode::Read => free_of_writers,
            Mode::Write => free_of_writers && self.readers.is_empty(),
        }
    }

    fn refuse(&mut self, now_ms: u64, ask: &Ask) -> Acquired {
        let writer_ms = self.writer.as_ref().map(|writer| writer.hold.deadline_ms);
        let free_ms = writer_ms.or_else(|| self.readers.values().map(|hold| hold.deadline_ms).min());
        let retry_in = Duration::from_millis(free_ms.unwrap_or(now_ms).saturating_sub(now_ms).max(1));
        match ask.if_taken {
            // An id that holds the lock, of the other side, does not wait for itself.
            IfTaken::Queue { patience } if self.hold_of(&ask.id).is_none() => {
                self.enqueue(now_ms, ask, patience);
                Acquired::Queued { retry_in }
            }
            IfTaken::Leave | IfTaken::Queue { .. } => Acquired::Contended { retry_in },
        }
    }

    /// Takes a place in the queue, or is heard of again and keeps it.
    fn enqueue(&mut self, now_ms: u64, ask: &Ask, patience: Duration) {
        let until_ms = now_ms + millis(patience);
        self.remember(until_ms);
        let place =
            self.waiting_writers.iter_mut().chain(&mut self.waiting_readers).find(|place| place.ask.id == ask.id);
        if let Some(place) = place {
            place.until_ms = place.until_ms.max(until_ms);
            // It waits for what it asked for first.
            place.ask = Ask { mode: place.ask.mode, ..ask.clone() };
            return;
        }
        let waiting = Waiting { ask: ask.clone(), since_ms: now_ms, until_ms };
        match ask.mode {
            Mode::Read => self.waiting_readers.push(waiting),
            Mode::Write => self.waiting_writers.push_back(waiting),
        }
    }

    /// Whoever leaves is not let in by that: it is gone before the next are admitted.
    pub(crate) fn leave(&mut self, now: ServerTime, id: &Acquisition) -> Left {
        let now_ms = now.as_micros() / 1000;
        let live = self.hold_of(id).is_some_and(|hold| hold.deadline_ms > now_ms);
        let after = self.end(id);
        let waited = self.cancel(now_ms, id);
        self.settle(now, after);
        if live {
            Left::Held
        } else if waited {
            Left::Queued
        } else {
            Left::None { forced: self.forced() }
        }
    }

    /// Removes the record of a hold, live or dead.
    fn end(&mut self, id: &Acquisition) -> Option<Mode> {
        if self.writer.take_if(|writer| writer.id == *id).is_some() {
            return Some(Mode::Write);
        }
        self.readers.remove(id.as_str()).map(|_| Mode::Read)
    }

    /// Whether it waited until now.
    fn cancel(&mut self, now_ms: u64, id: &Acquisition) -> bool {
        let live = |waiting: &Waiting| waiting.until_ms > now_ms;
        self.waiting_writers.retain(live);
        self.waiting_readers.retain(live);
        let living = self.waiting_writers.len() + self.waiting_readers.len();
        self.waiting_writers.retain(|waiting| waiting.ask.id != *id);
        self.waiting_readers.retain(|waiting| waiting.ask.id != *id);
        self.waiting_writers.len() + self.waiting_readers.len() < living
    }

    /// Does not settle: as long as the hold is live nobody can be admitted, but for readers behind a writer that died
    /// waiting, and those ask for themselves.
    pub(crate) fn renew(&mut self, now: ServerTime, id: &Acquisition, lease: Duration) -> Renewed {
        let now_ms = now.as_micros() / 1000;
        let forced = self.forced();
        let Some(hold) = self.hold_of(id).filter(|hold| hold.deadline_ms > now_ms) else {
            return Renewed::Lost { forced };
        };
        hold.extend(lease, now_ms);
        let hold = *hold;
        self.remember(hold.deadline_ms);
        Renewed::Renewed { remaining: hold.remaining(now_ms) }
    }

    pub(crate) fn turn(&mut self, now: ServerTime, not_after_ms: u64, old: &Acquisition, ask: &Ask) -> Turned {
        let now_ms = now.as_micros() / 1000;
        if now_ms > not_after_ms {
            return Turned::Late;
        }
        self.settle(now, None);
        if self.holds(ask) {
            self.extend(now_ms, ask);
        } else {
            match ask.mode {
                Mode::Read if self.writer.take_if(|writer| writer.id == *old).is_some() => {}
                Mode::Write if self.readers.contains_key(old.as_str()) => {
                    if self.readers.len() > 1 || !self.waiting_writers.is_empty() {
                        return Turned::Refused;
                    }
                    self.readers.clear();
                }
                Mode::Read | Mode::Write => return Turned::Lost { forced: self.forced() },
            }
            self.cancel(now_ms, &ask.id);
            self.begin(now, ask, ask.lease);
            self.admit(now, Some(Mode::Write));
        }
        Turned::Granted(self.granted(now_ms, &ask.id).expect("it holds the lock"))
    }

    /// Changes nothing: whoever is dead is not shown, and whoever could be admitted waits until somebody asks.
    pub(crate) fn inspect(&self, now: ServerTime) -> View {
        let now_ms = now.as_micros() / 1000;
        let show = |id: &str, mode, hold: &Hold| Holder {
            id: id.to_owned(),
            mode,
            since_ms: hold.since_ms,
            remaining: hold.remaining(now_ms),
        };
        let writer = self.writer.iter().map(|writer| show(writer.id.as_str(), Mode::Write, &writer.hold));
        let readers = self.readers.iter().map(|(id, hold)| show(id, Mode::Read, hold));
        let waiting = self.waiting_writers.iter().chain(&self.waiting_readers);
        let mut waiters: Vec<_> = waiting
            .filter(|waiting| waiting.until_ms > now_ms)
            .map(|Waiting { ask, since_ms, .. }| Waiter {
                id: ask.id.as_str().to_owned(),
                mode: ask.mode,
                since_ms: *since_ms,
            })
            .collect();
        waiters.sort_by_key(|waiter| waiter.since_ms);
        View {
            token: FencingToken::from_wire(self.token).filter(|_| self.token > 0),
            holders: writer.chain(readers).filter(|holder| !holder.remaining.is_zero()).collect(),
            waiters,
            foreign_write_ms: None,
            foreign_read_ms: None,
        }
    }

    /// Ends all holds that were seen: with a newer token there are others by now, and this copy is late. Whoever waits is
    /// next.
    pub(crate) fn force(&mut self, now: ServerTime, seen: Option<FencingToken>) -> Vec<String> {
        if self.token > seen.map_or(0, FencingToken::as_u64) {
            return Vec::new();
        }
        let now_ms = now.as_micros() / 1000;
        self.forced = self.token;
        let writer = self.writer.take();
        let after = if writer.is_some() { Mode::Write } else { Mode::Read };
        let writer = writer.map(|writer| (writer.id.as_str().to_owned(), writer.hold));
        let readers = std::mem::take(&mut self.readers).into_iter().map(|(id, hold)| (id.into(), hold));
        let holds = writer.into_iter().chain(readers);
        let ended = holds.filter(|(_, hold)| hold.deadline_ms > now_ms).map(|(id, _)| id).collect();
        self.settle(now, Some(after));
        ended
    }

    /// Who was granted while it waited, since the last time.
    pub(crate) fn take_news(&mut self) -> Vec<News> {
        std::mem::take(&mut self.news)
    }

    fn forced(&self) -> Option<FencingToken> {
        FencingToken::from_wire(self.forced).filter(|_| self.forced > 0)
    }
}

/// The locks that a [`MemoryManager`](crate::MemoryManager) and its peers share.
pub(crate) struct Store {
    clock: Clock,
    /// The server's time when the clock stood at `origin`.
    epoch: ServerTime,
    origin: Moment,
    locks: Mutex<Locks>,
}

#[derive(Default)]
struct Locks {
    by_base: HashMap<Box<str>, Lock>,
    /// How many there may be before the idle ones are looked for.
    sweep_at: usize,
}

impl Locks {
    fn get(&mut self, key: &Key, now: ServerTime) -> &mut Lock {
        if self.by_base.len() >= self.sweep_at && !self.by_base.contains_key(key.base()) {
            self.forget_idle(now);
        }
        self.by_base.entry(key.base().into()).or_default()
    }

    /// Forgets locks that nobody holds and nobody waits for, each time the store has doubled: constant work for each new one.
    fn forget_idle(&mut self, now: ServerTime) {
        let now_ms = now.as_micros() / 1000;
        self.by_base.retain(|_, lock| lock.record.forget_ms >= now_ms || lock.is_watched());
        self.sweep_at = (self.by_base.len() * 2).max(SWEEP_LEAST);
    }
}

#[derive(Default)]
struct Lock {
    record: Record,
    subscribers: Vec<mpsc::UnboundedSender<Notice>>,
}

impl Lock {
    fn is_watched(&self) -> bool {
        self.subscribers.iter().any(|subscriber| !subscriber.is_closed())
    }

    /// Tells everybody: waiters know their own.
    fn publish(&mut self, sent: Moment, server: ServerTime) {
        for News { id, granted } in self.record.take_news() {
            let answer = Answered { sent, server, value: granted };
            let notice = Notice::Granted { id: id.shared(), at: server, answer };
            self.subscribers.retain(|subscriber| subscriber.send(notice.clone()).is_ok());
        }
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        let clock = Clock::runtime();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self { clock, epoch: ServerTime::default().after(epoch), origin: clock.now(), locks: Mutex::default() }
    }

    fn server_time(&self) -> ServerTime {
        self.epoch.after(self.clock.now().since(self.origin))
    }

    /// Applies one operation to one lock, as a server does a script: at once and alone.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Answered<T> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        // Read under the lock, so that time does not run backwards between operations.
        let server = self.server_time();
        let lock = locks.get(key, server);
        let value = operation(&mut lock.record, server);
        lock.publish(sent, server);
        Answered { sent, server, value }
    }

    fn subscribe(&self, key: &Key) -> mpsc::UnboundedReceiver<Notice> {
        let (sender, notices) = mpsc::unbounded_channel();
        // The receiver is here: it cannot be closed.
        drop(sender.send(Notice::AskAgain));
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        lock.subscribers.retain(|subscriber| !subscriber.is_closed());
        lock.subscribers.push(sender);
        notices
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// The scheme over a [`Store`].
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    store: Arc<Store>,
}

impl Memory {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store }
    }

    fn now<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> BoxFuture<'static, Attempt<T>>
    where
        T: Send + 'static,
    {
        Box::pin(std::future::ready(Ok(self.store.apply(key, operation))))
    }
}

impl Scheme for Memory {
    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a Ask) -> BoxFuture<'a, Attempt<Acquired>> {
        // A call within the process cannot arrive late.
        Box::pin(async move { Ok(self.store.apply(key, |record, now| record.acquire(now, u64::MAX, ask))) })
    }

    fn leave<'a>(&'a self, key: &'a Key, id: &'a Acquisition) -> BoxFuture<'a, Attempt<Left>> {
        Box::pin(async move { Ok(self.store.apply(key, |record, now| record.leave(now, id))) })
    }

    fn turn<'a>(&'a self, key: &'a Key, old: &'a Acquisition, ask: &'a Ask) -> BoxFuture<'a, Attempt<Turned>> {
        Box::pin(async move { Ok(self.store.apply(key, |record, now| record.turn(now, u64::MAX, old, ask))) })
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let renew = |renewal: &Renewal| {
            let Renewal { key, id, lease } = renewal;
            Ok(self.store.apply(key, |record, now| record.renew(now, id, *lease)))
        };
        Box::pin(async move { batch.iter().map(renew).collect() })
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn route(&self, _: &Key) -> Route {
        Route("memory".into())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        self.now(key, |record, now| record.inspect(now))
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>> {
        self.now(key, |record, now| record.force(now, seen.token))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn subscribe(&self, key: &Key, _: &str) -> Option<Subscription> {
        Some(Subscription { notices: self.store.subscribe(key), _end: Box::new(()) })
    }

    fn subscribed(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }

    fn clock(&self) -> Clock {
        self.store.clock
    }
}
