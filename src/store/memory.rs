//! Locks in the memory of this process, for users' tests: a store of [`Record`]s and the scheme over it. The records
//! are the executable specification of a lock.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/explorer/explorer.rs"]
mod explore;
mod record;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/store/memory/replica.rs"]
pub(crate) mod replica;

pub(crate) use self::record::{CallBack, News, Record};
#[cfg(test)]
pub(crate) use self::record::{Limits, TimestampClientsMs};

use crate::base::attempt::{self, NodeId};
use crate::base::clock::Clock;
use crate::base::health::{NodeHealth, NodeRole, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{FencingToken, Moment, ServerTime};
use crate::base::process::Process;
use crate::base::recalls::{LiveSubscription, Liveness, Recall, Recalls};
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Floor, Forced,
    Notification, ReleaseReply, Renewal, Renewed, Route, Scheme, Subscription, View,
};

/// Smallest number of locks at which a search for idle ones is worth its cost.
const MIN_SWEEP: usize = 64;

/// The locks that a [`MemoryManager`](crate::MemoryManager) and its peers share.
pub(crate) struct Store {
    clock: Clock,
    /// Owner of the memory. Locks in a copied process would exclude no one elsewhere.
    process: Process,
    /// Server time when the clock stood at `origin`.
    epoch: ServerTime,
    origin: Moment,
    /// Microseconds by which the losses of all locks have set the clock forward.
    skipped_us: AtomicU64,
    /// Number of subscriptions to recalls that have been live so far.
    epochs: AtomicU64,
    locks: Mutex<Locks>,
}

#[derive(Default)]
struct Locks {
    by_base: HashMap<Box<str>, Lock>,
    /// Number of locks at which the next search for idle ones begins.
    sweep_at: usize,
}

impl Locks {
    fn get(&mut self, key: &Key, now: ServerTime) -> &mut Lock {
        if self.by_base.len() >= self.sweep_at && !self.by_base.contains_key(key.base()) {
            self.forget_idle(now);
        }
        self.by_base.entry(key.base().into()).or_default()
    }

    /// Forgets locks without holders and waiters, each time the store has doubled: constant work for each new lock.
    fn forget_idle(&mut self, now: ServerTime) {
        let now_ms = now.as_micros() / 1000;
        self.by_base.retain(|_, lock| lock.record.forget_ms >= now_ms || lock.is_watched());
        self.sweep_at = (self.by_base.len() * 2).max(MIN_SWEEP);
    }
}

#[derive(Default)]
struct Lock {
    record: Record,
    subscribers: Vec<Subscriber>,
    keepers: Vec<Keeper>,
}

/// Process that may cache a hold of the lock.
struct Keeper {
    wire: Arc<Wire>,
    calls: Weak<Recalls>,
}

/// Waiters of one manager.
struct Subscriber {
    manager: Box<str>,
    wire: Arc<Wire>,
    notices: mpsc::Sender<Notification>,
}

const CUT: &str = "`MemoryManager::disconnect` has cut this manager off";

/// Connection between one manager and the store. When it is cut, nothing gets through in either direction.
#[derive(Debug, Default)]
pub(crate) struct Wire {
    is_cut: AtomicBool,
}

impl Wire {
    pub(crate) fn is_cut(&self) -> bool {
        self.is_cut.load(Ordering::SeqCst)
    }

    fn check(&self) -> Result<(), Failure> {
        if !self.is_cut() {
            return Ok(());
        }
        Err(Failure::NotDone { source: Some(Arc::new(io::Error::new(io::ErrorKind::ConnectionRefused, CUT))) })
    }
}

impl Subscriber {
    /// Sends a notification, if there is room. Returns false if the subscriber has gone.
    fn is_told(&self, notice: &Notification) -> bool {
        !matches!(self.notices.try_send(notice.clone()), Err(TrySendError::Closed(_)))
    }
}

impl Lock {
    fn is_watched(&self) -> bool {
        self.subscribers.iter().any(|subscriber| !subscriber.notices.is_closed())
            || self.keepers.iter().any(|keeper| keeper.calls.strong_count() > 0)
    }

    /// Recall handlers of the lock that a recall reaches.
    fn keepers(&mut self) -> Vec<Arc<Recalls>> {
        self.keepers.retain(|keeper| keeper.calls.strong_count() > 0);
        let heard = self.keepers.iter().filter(|keeper| !keeper.wire.is_cut());
        heard.filter_map(|keeper| keeper.calls.upgrade()).collect()
    }

    /// Notifies the managers that an operation concerns. Returns the recalls, which the caller delivers after it has
    /// unlocked the store.
    fn publish(&mut self, sent: Moment, server: ServerTime) -> Vec<(Arc<Recalls>, Recall)> {
        for News { id, granted } in self.record.take_news() {
            let answer = Answered { sent, server, node: NodeId::default(), value: granted };
            self.tell(id.as_str(), &Notification::Granted { id: id.shared(), at: server, answer });
        }
        if let Some(id) = self.record.take_call() {
            self.tell(id.as_str(), &Notification::AskAgain);
        }
        let Some(CallBack { token, id }) = self.record.take_call_back() else {
            return Vec::new();
        };
        let call = Recall { token, tries: id.map(|id| id.shared()) };
        self.keepers().into_iter().map(|calls| (calls, call.clone())).collect()
    }

    /// Notifies the manager of this acquisition.
    fn tell(&mut self, id: &str, notice: &Notification) {
        self.subscribers.retain(|subscriber| {
            let Subscriber { manager, wire, .. } = subscriber;
            // An id begins with that of its manager. A cut subscriber misses the notification and stays.
            wire.is_cut() || !id.starts_with(&**manager) || subscriber.is_told(notice)
        });
    }
}

impl Store {
    pub(crate) fn new() -> Self {
        let clock = Clock::runtime();
        let epoch = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        Self {
            clock,
            process: Process::current(),
            epoch: ServerTime::default().after(epoch),
            origin: clock.now(),
            skipped_us: AtomicU64::new(0),
            epochs: AtomicU64::new(0),
            locks: Mutex::default(),
        }
    }

    pub(crate) fn server_time(&self) -> ServerTime {
        let shown = self.epoch.after(self.clock.now().since(self.origin));
        ServerTime::from_micros(shown.as_micros().wrapping_add(self.skipped_us.load(Ordering::SeqCst)))
    }

    /// Applies one operation to one lock, as a server runs a script: at once and alone.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Answered<T> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        // Read under the mutex, so that time does not run backwards between operations.
        let server = self.server_time();
        let lock = locks.get(key, server);
        let value = operation(&mut lock.record, server);
        let calls = lock.publish(sent, server);
        drop(locks);
        // Without the mutex: a handler of recalls may use the store again.
        calls.into_iter().for_each(|(keeper, call)| keeper.called(&call, self.clock.now()));
        Answered { sent, server, node: NodeId::default(), value }
    }

    fn subscribe(&self, key: &Key, manager: &str, wire: &Arc<Wire>) -> Subscription {
        let (sender, notices) = attempt::notifications();
        if !wire.is_cut() {
            // The receiver is in this function, so the channel is not closed.
            drop(sender.try_send(Notification::AskAgain));
        }
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        lock.subscribers.retain(|subscriber| !subscriber.notices.is_closed());
        lock.subscribers.push(Subscriber { manager: manager.into(), wire: Arc::clone(wire), notices: sender });
        Subscription { notices, _end: Box::new(()) }
    }

    fn tell_used(&self, key: &Key, id: &str) -> Answered<()> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        let server = self.server_time();
        locks.get(key, server).tell(id, &Notification::Used { id: id.into() });
        Answered { sent, server, node: NodeId::default(), value: () }
    }

    /// Passes recalls of the lock to `calls`, unless the manager is cut off.
    fn listen(&self, key: &Key, calls: &Arc<Recalls>, wire: &Arc<Wire>) {
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        // A handler does not unsubscribe: it is gone when its last owner is.
        lock.keepers.retain(|keeper| keeper.calls.strong_count() > 0);
        lock.keepers.push(Keeper { wire: Arc::clone(wire), calls: Arc::downgrade(calls) });
        if !wire.is_cut() {
            calls.on_confirmed(self.standing());
        }
    }

    /// Begins a live subscription.
    fn standing(&self) -> LiveSubscription {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        LiveSubscription { epoch, liveness: Arc::new(Liveness::until(NodeId::default(), Moment::NEVER)) }
    }

    /// Recall handlers of all locks that are cached over this wire.
    fn keepers_of(locks: &Locks, wire: &Wire) -> Vec<Arc<Recalls>> {
        let keepers = locks.by_base.values().flat_map(|lock| &lock.keepers);
        keepers.filter(|keeper| std::ptr::eq(&*keeper.wire, wire)).filter_map(|keeper| keeper.calls.upgrade()).collect()
    }

    /// Sets the server's clock back. With a `step` of zero it is right again.
    #[cfg(test)]
    pub(crate) fn set_back(&self, step: Duration) {
        let step = u64::try_from(step.as_micros()).expect("short");
        self.skipped_us.store(step.wrapping_neg(), Ordering::SeqCst);
    }

    /// Publishes a message to the waiters of a manager, which a user with the right to publish may have made up.
    #[cfg(test)]
    pub(crate) fn publish_notice(&self, key: &Key, id: &str, notice: &Notification) {
        self.locks.lock().get(key, self.server_time()).tell(id, notice);
    }

    /// Publishes a recall that a user with the right to publish may have made up.
    #[cfg(test)]
    pub(crate) fn publish_call(&self, key: &Key, call: &Recall, now: Moment) {
        let mut locks = self.locks.lock();
        let keepers = &locks.get(key, self.server_time()).keepers;
        let keepers: Vec<_> = keepers.iter().filter_map(|keeper| keeper.calls.upgrade()).collect();
        drop(locks);
        keepers.iter().for_each(|calls| calls.called(call, now));
    }

    /// Cuts a manager off.
    pub(crate) fn cut(&self, wire: &Wire) {
        // Under the mutex: an operation that is being published gets through as a whole or not at all.
        let locks = self.locks.lock();
        wire.is_cut.store(true, Ordering::SeqCst);
        let keepers = Self::keepers_of(&locks, wire);
        drop(locks);
        keepers.iter().filter(|calls| calls.on_lost()).for_each(|calls| calls.notify_break());
    }

    /// Connects the manager again. Its waiters may have missed a notification.
    pub(crate) fn mend(&self, wire: &Arc<Wire>) {
        let mut locks = self.locks.lock();
        wire.is_cut.store(false, Ordering::SeqCst);
        Self::keepers_of(&locks, wire).iter().for_each(|calls| calls.on_confirmed(self.standing()));
        for lock in locks.by_base.values_mut() {
            lock.subscribers.retain(|subscriber| {
                !Arc::ptr_eq(&subscriber.wire, wire) || subscriber.is_told(&Notification::AskAgain)
            });
        }
    }

    /// Names of the locks for which a server would have a key.
    fn names(&self, listing: &Listing) -> BTreeSet<String> {
        let locks = self.locks.lock();
        let now_ms = self.server_time().as_micros() / 1000;
        let known = locks.by_base.iter().filter(|(_, lock)| lock.record.forget_ms > now_ms);
        known.filter_map(|(base, _)| listing.name_of_base(base)).collect()
    }

    /// Forgets all locks, as a server that restarts empty. It notifies no manager.
    pub(crate) fn lose_all(&self) {
        let mut locks = self.locks.lock();
        let last_us = locks.by_base.values().map(|lock| lock.record.token).max().unwrap_or(0);
        for lock in locks.by_base.values_mut() {
            lock.record = Record::default();
        }
        // A restart takes time, which a paused clock does not show: no token is given twice.
        let behind_us = (last_us + 1).saturating_sub(self.server_time().as_micros());
        self.skipped_us.fetch_add(behind_us, Ordering::SeqCst);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// Scheme over a [`Store`].
#[derive(Clone, Debug)]
pub(crate) struct Memory {
    store: Arc<Store>,
    wire: Arc<Wire>,
}

impl Memory {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, wire: Arc::default() }
    }

    pub(crate) fn wire(&self) -> &Arc<Wire> {
        &self.wire
    }

    /// Applies one operation. A call within the process cannot arrive late.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Attempt<T> {
        self.wire.check()?;
        Ok(self.store.apply(key, operation))
    }
}

impl Scheme for Memory {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move { self.apply(key, |record, now| record.acquire(now, u64::MAX, request)) })
    }

    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        Box::pin(async move { self.apply(key, |record, now| record.acquire_above(now, u64::MAX, request, floor)) })
    }

    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async move { self.apply(key, |record, now| record.leave(now, id)) })
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        Box::pin(async move { self.apply(key, |record, now| record.convert(now, u64::MAX, old, request)) })
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let renew = |renewal: &Renewal| {
            let Renewal { key, id, lease, keeps, tokens } = renewal;
            self.apply(key, |record, now| {
                if *keeps { record.renew_kept(now, id, *lease, *tokens) } else { record.renew(now, id, *lease) }
            })
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
        Box::pin(async move { self.apply(key, |record, now| record.inspect(now)) })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move { self.apply(key, |record, now| record.force_seen(now, seen)) })
    }

    fn force_shown<'a>(
        &'a self,
        key: &'a Key,
        token: Option<FencingToken>,
        seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        Box::pin(async move { self.apply(key, |record, now| record.force_shown(now, token, seen)) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(self.wire.check()))
    }

    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription> {
        Some(self.store.subscribe(key, manager, &self.wire))
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        Box::pin(async move {
            self.wire.check()?;
            Ok(self.store.tell_used(key, id))
        })
    }

    fn subscribed(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }

    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool {
        self.store.listen(key, calls, &self.wire);
        true
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            self.wire.check()?;
            Ok(self.store.names(listing))
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        let mut node = NodeHealth::unknown("memory", NodeRole::Primary);
        node.is_reachable = !self.wire.is_cut();
        if node.is_reachable {
            (node.round_trip, node.clock_ahead_ms, node.noeviction) = (Some(Duration::ZERO), Some(0), Some(true));
        } else {
            node.problem = Some(CUT.to_owned());
        }
        Box::pin(std::future::ready(vec![node]))
    }

    fn traffic(&self) -> Traffic {
        Traffic::default()
    }

    fn clock(&self) -> Clock {
        self.store.clock
    }

    fn process(&self) -> Process {
        self.store.process.clone()
    }
}
