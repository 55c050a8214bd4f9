//! Locks in this process's memory: the executable specification of what a scheme does, and the manager for users' tests.
//!
//! [`Record`] is pure: the server's time comes in as an argument, so that the oracle can feed it the times that a real
//! server reported and compare answer by answer.

use std::collections::{BTreeMap, HashMap};
use std::fmt;
use std::sync::Arc;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::watch;

use crate::clock::Clock;
use crate::key::Key;
use crate::lease::{FencingToken, Moment, ServerTime};
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, BoxFuture, Failure, Holder, Left, Mode, Renewal, Renewed, Route,
    Scheme, Subscription, View,
};

/// How long an idle record remembers its last token, as on a server.
const RETENTION_MS: u64 = 60_000;
/// Fewer locks are not worth a look for idle ones.
const SWEEP_LEAST: usize = 64;

/// One lock.
#[derive(Clone, Debug, Default)]
pub(crate) struct Record {
    /// The last token that was granted.
    token: u64,
    /// The last token that an operator has ended.
    forced: u64,
    writer: Option<(Acquisition, Hold)>,
    readers: BTreeMap<Box<str>, Hold>,
    /// When the record may be forgotten.
    forget_ms: u64,
}

#[derive(Clone, Copy, Debug)]
struct Hold {
    since_ms: u64,
    deadline_ms: u64,
}

impl Hold {
    fn remaining(&self, now_ms: u64) -> Duration {
        Duration::from_millis(self.deadline_ms.saturating_sub(now_ms))
    }

    fn extend(&mut self, lease: Duration, now_ms: u64) {
        self.deadline_ms = self.deadline_ms.max(now_ms + millis(lease));
    }
}

fn millis(d: Duration) -> u64 {
    u64::try_from(d.as_millis()).unwrap_or(u64::MAX / 2)
}

impl Record {
    /// Drops holders whose lease is over.
    fn settle(&mut self, now_ms: u64) {
        if self.writer.as_ref().is_some_and(|(_, hold)| hold.deadline_ms <= now_ms) {
            self.writer = None;
        }
        self.readers.retain(|_, hold| hold.deadline_ms > now_ms);
    }

    pub(crate) fn acquire(&mut self, now: ServerTime, not_after_ms: u64, ask: &Ask) -> Acquired {
        let now_ms = now.as_micros() / 1000;
        if now_ms > not_after_ms {
            return Acquired::Late;
        }
        self.settle(now_ms);
        if let Some(blocked_until_ms) = self.blocked_until(ask) {
            return Acquired::Contended {
                retry_in: Duration::from_millis(blocked_until_ms.saturating_sub(now_ms).max(1)),
            };
        }
        if self.begins_phase(ask) {
            self.token = (self.token + 1).max(now.as_micros());
        }
        let hold = self.grant(ask, now_ms);
        self.forget_ms = self.forget_ms.max(hold.deadline_ms + RETENTION_MS);
        Acquired::Granted {
            token: FencingToken::from_wire(self.token).expect("server time is below 2^53"),
            remaining: hold.remaining(now_ms),
        }
    }

    /// The first deadline that might let `ask` in, if it must wait.
    fn blocked_until(&self, ask: &Ask) -> Option<u64> {
        match &self.writer {
            Some((id, _)) if *id == ask.id && ask.mode == Mode::Write => None,
            Some((_, hold)) => Some(hold.deadline_ms),
            None if ask.mode == Mode::Write => self.readers.values().map(|hold| hold.deadline_ms).min(),
            None => None,
        }
    }

    /// A repeated write and a read beside live readers go on with the token that is there.
    fn begins_phase(&self, ask: &Ask) -> bool {
        match ask.mode {
            Mode::Read => self.readers.is_empty(),
            Mode::Write => self.writer.is_none(),
        }
    }

    fn grant(&mut self, ask: &Ask, now_ms: u64) -> Hold {
        let fresh = Hold { since_ms: now_ms, deadline_ms: now_ms };
        let hold = match ask.mode {
            Mode::Read => self.readers.entry(ask.id.as_str().into()).or_insert(fresh),
            Mode::Write => &mut self.writer.get_or_insert_with(|| (ask.id.clone(), fresh)).1,
        };
        hold.extend(ask.lease, now_ms);
        *hold
    }

    pub(crate) fn leave(&mut self, now: ServerTime, id: &Acquisition) -> Left {
        self.settle(now.as_micros() / 1000);
        let was_writer = self.writer.take_if(|(writer, _)| writer == id).is_some();
        let was_reader = self.readers.remove(id.as_str()).is_some();
        if was_writer || was_reader { Left::Held } else { Left::None { forced: self.forced() } }
    }

    pub(crate) fn renew(&mut self, now: ServerTime, id: &Acquisition, lease: Duration) -> Renewed {
        let now_ms = now.as_micros() / 1000;
        self.settle(now_ms);
        let hold = match &mut self.writer {
            Some((writer, hold)) if writer == id => Some(hold),
            _ => self.readers.get_mut(id.as_str()),
        };
        let Some(hold) = hold else {
            return Renewed::Lost { forced: self.forced() };
        };
        hold.extend(lease, now_ms);
        self.forget_ms = self.forget_ms.max(hold.deadline_ms + RETENTION_MS);
        Renewed::Renewed { remaining: hold.remaining(now_ms) }
    }

    pub(crate) fn inspect(&mut self, now: ServerTime) -> View {
        let now_ms = now.as_micros() / 1000;
        self.settle(now_ms);
        let show = |id: &str, mode, hold: &Hold| Holder {
            id: id.to_owned(),
            mode,
            since_ms: hold.since_ms,
            remaining: hold.remaining(now_ms),
        };
        let writer = self.writer.iter().map(|(id, hold)| show(id.as_str(), Mode::Write, hold));
        let readers = self.readers.iter().map(|(id, hold)| show(id, Mode::Read, hold));
        View {
            token: FencingToken::from_wire(self.token).filter(|_| self.token > 0),
            holders: writer.chain(readers).collect(),
            foreign_write_ms: None,
            foreign_read_ms: None,
        }
    }

    pub(crate) fn force(&mut self, now: ServerTime, seen: Option<FencingToken>) -> Vec<String> {
        if self.token > seen.map_or(0, FencingToken::as_u64) {
            return Vec::new(); // what was seen is over: this copy is late
        }
        self.settle(now.as_micros() / 1000);
        self.forced = self.token;
        let writer = self.writer.take().map(|(id, _)| id.as_str().to_owned());
        let readers = std::mem::take(&mut self.readers);
        writer.into_iter().chain(readers.into_keys().map(String::from)).collect()
    }

    fn forced(&self) -> Option<FencingToken> {
        FencingToken::from_wire(self.forced).filter(|_| self.forced > 0)
    }

    fn is_free(&self) -> bool {
        self.writer.is_none() && self.readers.is_empty()
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
        self.by_base.retain(|_, lock| lock.record.forget_ms >= now_ms || lock.wake.receiver_count() > 0);
        self.sweep_at = (self.by_base.len() * 2).max(SWEEP_LEAST);
    }
}

#[derive(Default)]
struct Lock {
    record: Record,
    wake: watch::Sender<()>,
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
        if lock.record.is_free() {
            lock.wake.send_replace(());
        }
        Answered { sent, server, value }
    }

    fn wake(&self, key: &Key) -> watch::Receiver<()> {
        self.locks.lock().get(key, self.server_time()).wake.subscribe()
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

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let renew = |renewal: &Renewal| {
            let Renewal { key, id, lease } = renewal;
            Ok(self.store.apply(key, |record, now| record.renew(now, id, *lease)))
        };
        Box::pin(async move { batch.iter().map(renew).collect() })
    }

    fn route(&self, _: &Key) -> Route {
        Route("memory".into())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        self.now(key, Record::inspect)
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>> {
        self.now(key, |record, now| record.force(now, seen.token))
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn subscribe(&self, key: &Key) -> Option<Subscription> {
        Some(Subscription { wake: self.store.wake(key), _end: Box::new(()) })
    }

    fn clock(&self) -> Clock {
        self.store.clock
    }
}
