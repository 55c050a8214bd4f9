//! Locks in the memory of this process, for users' tests. This module has a store of [`Record`]s and a scheme over this
//! store. The records are the executable specification of a lock.

use std::collections::{BTreeSet, HashMap};
use std::fmt;
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Weak};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use parking_lot::Mutex;
use tokio::sync::mpsc::{self, error::TrySendError};

#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/explorer/explorer.rs"]
mod explore;
mod record;
#[cfg(all(test, feature = "_testing"))]
#[path = "../../testing/unit/store/memory/replica.rs"]
pub(crate) mod replica;

pub(crate) use self::record::{GrantNotification, PendingRecall, Record};
#[cfg(all(test, feature = "_testing"))]
pub(crate) use self::record::{RecordLimits, TimestampClientsMs};

use crate::base::attempt::{self, NodeId};
use crate::base::clock::Clock;
use crate::base::health::{NodeHealth, NodeRole, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, Moment, ServerTime};
use crate::base::process::Process;
use crate::base::recalls::{LiveSubscription, Liveness, Recall, Recalls};
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxAttempt, BoxFuture, Converted, Failure, Floor,
    Forced, MasterScheme, Note, Noted, Notification, NotifyingScheme, NotingScheme, RecallingScheme, ReleaseReply,
    ReleaseRequest, RenewalRequest, Renewed, Route, Scheme, ServerContact, Subscription, View,
};

/// Number of locks below which the store does not search for idle locks.
const MIN_SWEEP: usize = 64;

/// Locks that a [`MemoryManager`](crate::MemoryManager) and its peers share.
pub(crate) struct Store {
    clock: Clock,
    /// Process that owns the memory. After a fork, the locks in the copied process would exclude no other process.
    process: Process,
    /// Server time at the moment at which the local clock showed `origin`.
    epoch: ServerTime,
    origin: Moment,
    /// Microseconds that are added to the server's clock. Each loss of all locks adds to them.
    skipped_us: AtomicU64,
    /// Number of live subscriptions to recalls that the store has created so far.
    epochs: AtomicU64,
    locks: Mutex<Locks>,
}

#[derive(Default)]
struct Locks {
    by_base: HashMap<Box<str>, StoredLock>,
    /// Number of locks at which the store next searches for idle locks.
    sweep_at: usize,
}

impl Locks {
    fn get(&mut self, key: &Key, now: ServerTime) -> &mut StoredLock {
        if self.by_base.len() >= self.sweep_at && !self.by_base.contains_key(key.base()) {
            self.forget_idle(now);
        }
        self.by_base.entry(key.base().into()).or_default()
    }

    /// Forgets locks without holders and waiters. The search runs each time the number of locks has doubled, so its
    /// cost for each new lock is constant.
    fn forget_idle(&mut self, now: ServerTime) {
        let now_ms = now.as_micros() / 1000;
        self.by_base.retain(|_, lock| lock.record.forget_ms >= now_ms || lock.is_watched());
        self.sweep_at = (self.by_base.len() * 2).max(MIN_SWEEP);
    }
}

#[derive(Default)]
struct StoredLock {
    record: Record,
    subscribers: Vec<Subscriber>,
    recall_listeners: Vec<RecallListener>,
}

/// Receiver of recalls, for one manager that may cache a hold of the lock.
struct RecallListener {
    connection: Arc<MemoryConnection>,
    recalls: Weak<Recalls>,
}

/// Subscription of one manager to the notifications for its waiters.
struct Subscriber {
    manager: Box<str>,
    connection: Arc<MemoryConnection>,
    notifications: mpsc::Sender<Notification>,
}

const CUT: &str = "`MemoryManager::disconnect` has cut this manager off";

/// Connection between one manager and the store. A cut connection carries nothing in either direction.
#[derive(Debug, Default)]
pub(crate) struct MemoryConnection {
    is_cut: AtomicBool,
}

impl MemoryConnection {
    fn is_cut(&self) -> bool {
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
    /// Sends a notification, if the channel has room for it. Returns false if the subscriber is gone.
    fn receives(&self, notice: &Notification) -> bool {
        !matches!(self.notifications.try_send(notice.clone()), Err(TrySendError::Closed(_)))
    }
}

impl StoredLock {
    fn is_watched(&self) -> bool {
        self.subscribers.iter().any(|subscriber| !subscriber.notifications.is_closed())
            || self.recall_listeners.iter().any(|listener| listener.recalls.strong_count() > 0)
    }

    /// Returns the recall handlers of the lock whose connections are not cut.
    fn recall_listeners(&mut self) -> Vec<Arc<Recalls>> {
        self.recall_listeners.retain(|listener| listener.recalls.strong_count() > 0);
        let connected = self.recall_listeners.iter().filter(|listener| !listener.connection.is_cut());
        connected.filter_map(|listener| listener.recalls.upgrade()).collect()
    }

    /// Sends the notifications of an operation. Returns the recalls, which the caller delivers after it has unlocked
    /// the store.
    fn publish(&mut self, sent: Moment, server: ServerTime) -> Vec<(Arc<Recalls>, Recall)> {
        for GrantNotification { id, granted } in self.record.take_notifications() {
            let answer = Answered { sent, server, node: NodeId::default(), value: granted };
            self.deliver(id.as_str(), &Notification::Granted { id: id.to_shared(), at: server, answer });
        }
        if let Some(id) = self.record.take_next_to_ask() {
            self.deliver(id.as_str(), &Notification::AskAgain);
        }
        let Some(PendingRecall { token, id }) = self.record.take_recall() else {
            return Vec::new();
        };
        let call = Recall { token, tries: id.map(|id| id.to_shared()) };
        self.recall_listeners().into_iter().map(|calls| (calls, call.clone())).collect()
    }

    /// Sends a notification to the manager of this acquisition.
    fn deliver(&mut self, id: &str, notice: &Notification) {
        self.subscribers.retain(|subscriber| {
            let Subscriber { manager, connection: wire, .. } = subscriber;
            // The id of an acquisition begins with the id of its manager. A subscriber whose connection is cut misses
            // the notification and stays subscribed.
            wire.is_cut() || !id.starts_with(&**manager) || subscriber.receives(notice)
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

    /// Applies one operation to one lock. As a script on a server, the operation runs alone.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Answered<T> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        // The clock is read under the mutex, so that time does not run backwards between operations.
        let server = self.server_time();
        let lock = locks.get(key, server);
        let value = operation(&mut lock.record, server);
        let calls = lock.publish(sent, server);
        drop(locks);
        // Delivered without the mutex, since a handler of recalls may use the store again.
        calls.into_iter().for_each(|(listener, call)| listener.on_recall(&call, self.clock.now()));
        Answered { sent, server, node: NodeId::default(), value }
    }

    fn subscribe(&self, key: &Key, manager: &str, wire: &Arc<MemoryConnection>) -> Subscription {
        let (sender, notices) = attempt::notifications();
        if !wire.is_cut() {
            // The receiver of the channel still exists in this function, so the channel is not closed.
            drop(sender.try_send(Notification::AskAgain));
        }
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        lock.subscribers.retain(|subscriber| !subscriber.notifications.is_closed());
        lock.subscribers.push(Subscriber {
            manager: manager.into(),
            connection: Arc::clone(wire),
            notifications: sender,
        });
        Subscription { notices, _end: Box::new(()) }
    }

    fn reply_in_use(&self, key: &Key, id: &str) -> Answered<()> {
        let sent = self.clock.now();
        let mut locks = self.locks.lock();
        let server = self.server_time();
        locks.get(key, server).deliver(id, &Notification::Used { id: id.into() });
        Answered { sent, server, node: NodeId::default(), value: () }
    }

    /// Passes recalls of the lock to `calls`, unless the manager is cut off.
    fn listen(&self, key: &Key, calls: &Arc<Recalls>, wire: &Arc<MemoryConnection>) {
        let mut locks = self.locks.lock();
        let lock = locks.get(key, self.server_time());
        // A recall handler does not unsubscribe. It is gone when its last owner has dropped it.
        lock.recall_listeners.retain(|listener| listener.recalls.strong_count() > 0);
        lock.recall_listeners.push(RecallListener { connection: Arc::clone(wire), recalls: Arc::downgrade(calls) });
        if !wire.is_cut() {
            calls.on_confirmed(self.subscription());
        }
    }

    /// Creates a live subscription.
    fn subscription(&self) -> LiveSubscription {
        let epoch = self.epochs.fetch_add(1, Ordering::Relaxed);
        LiveSubscription { epoch, liveness: Arc::new(Liveness::until(NodeId::default(), Moment::NEVER)) }
    }

    /// Returns the recall handlers of all locks that were registered over this connection.
    fn recall_listeners_of(locks: &Locks, wire: &MemoryConnection) -> Vec<Arc<Recalls>> {
        let listeners = locks.by_base.values().flat_map(|lock| &lock.recall_listeners);
        listeners
            .filter(|listener| std::ptr::eq(&*listener.connection, wire))
            .filter_map(|listener| listener.recalls.upgrade())
            .collect()
    }

    /// Cuts the connection of a manager.
    pub(crate) fn cut(&self, wire: &MemoryConnection) {
        // The connection is cut under the mutex. So all messages of an operation arrive, or none of them.
        let locks = self.locks.lock();
        wire.is_cut.store(true, Ordering::SeqCst);
        let listeners = Self::recall_listeners_of(&locks, wire);
        drop(locks);
        listeners.iter().filter(|calls| calls.on_lost()).for_each(|calls| calls.notify_break());
    }

    /// Connects the manager again. Its waiters repeat their requests, because they may have missed a notification.
    pub(crate) fn mend(&self, wire: &Arc<MemoryConnection>) {
        let mut locks = self.locks.lock();
        wire.is_cut.store(false, Ordering::SeqCst);
        Self::recall_listeners_of(&locks, wire).iter().for_each(|calls| calls.on_confirmed(self.subscription()));
        for lock in locks.by_base.values_mut() {
            lock.subscribers.retain(|subscriber| {
                !Arc::ptr_eq(&subscriber.connection, wire) || subscriber.receives(&Notification::AskAgain)
            });
        }
    }

    /// Returns the names of the locks for which a server would have a key.
    fn names(&self, listing: &Listing) -> BTreeSet<String> {
        let locks = self.locks.lock();
        let now_ms = self.server_time().as_micros() / 1000;
        let known = locks.by_base.iter().filter(|(_, lock)| lock.record.forget_ms > now_ms);
        known.filter_map(|(base, _)| listing.name_of_base(base)).collect()
    }

    /// Forgets all locks, as a server does that restarts without data. No manager is notified.
    pub(crate) fn lose_all(&self) {
        let mut locks = self.locks.lock();
        let last_us = locks.by_base.values().map(|lock| lock.record.token).max().unwrap_or(0);
        for lock in locks.by_base.values_mut() {
            lock.record = Record::default();
        }
        // A real restart takes time, but the clock of a test may be paused. The step forward prevents that a token is
        // granted twice.
        let behind_us = (last_us + 1).saturating_sub(self.server_time().as_micros());
        self.skipped_us.fetch_add(behind_us, Ordering::SeqCst);
    }
}

impl fmt::Debug for Store {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Store").finish_non_exhaustive()
    }
}

/// Scheme that uses the locks of a [`Store`].
#[derive(Clone, Debug)]
pub(crate) struct MemoryScheme {
    store: Arc<Store>,
    connection: Arc<MemoryConnection>,
}

impl MemoryScheme {
    pub(crate) fn new(store: Arc<Store>) -> Self {
        Self { store, connection: Arc::default() }
    }

    pub(crate) fn wire(&self) -> &Arc<MemoryConnection> {
        &self.connection
    }

    /// Applies one operation. The operation has no time limit, because a call within the process cannot arrive late.
    fn apply<T>(&self, key: &Key, operation: impl FnOnce(&mut Record, ServerTime) -> T) -> Attempt<T> {
        self.connection.check()?;
        Ok(self.store.apply(key, operation))
    }
}

impl Scheme for MemoryScheme {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxAttempt<'a, Acquired> {
        Box::pin(async move { self.apply(key, |record, now| record.acquire(now, u64::MAX, request)) })
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxAttempt<'a, ReleaseReply> {
        let ReleaseRequest { key, id, rest_until } = request;
        Box::pin(async move { self.apply(key, |record, now| record.release_until(now, id, *rest_until)) })
    }

    fn can_send_inline(&self, _: &ReleaseRequest) -> bool {
        // The store answers at once.
        true
    }

    fn can_renew_inline(&self, _: &Key) -> bool {
        true
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxAttempt<'a, Converted> {
        Box::pin(async move { self.apply(key, |record, now| record.convert(now, u64::MAX, old, request)) })
    }

    fn renew<'a>(&'a self, _: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let renew = |renewal: &RenewalRequest| {
            let RenewalRequest { key, id, lease, caches: keeps, tokens, rest_until } = renewal;
            self.apply(key, |record, now| {
                if *keeps {
                    record.renew_cached(now, id, *lease, *tokens)
                } else {
                    record.renew_until(now, id, *lease, *rest_until)
                }
            })
        };
        Box::pin(async move { batch.iter().map(renew).collect() })
    }

    fn route(&self, _: &Key) -> Route {
        Route("memory".into())
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxAttempt<'a, View> {
        Box::pin(async move { self.apply(key, |record, now| record.inspect(now)) })
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxAttempt<'a, Forced> {
        Box::pin(async move { self.apply(key, |record, now| record.force_seen(now, seen)) })
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        Box::pin(std::future::ready(self.connection.check()))
    }

    fn contact(&self, _: &Key) -> ServerContact {
        ServerContact::default()
    }

    fn check_rights<'a>(&'a self, _: &'a Key, _: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        Box::pin(std::future::ready(Ok(())))
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        Some(self)
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        Some(self)
    }

    fn notes(&self) -> Option<&dyn NotingScheme> {
        Some(self)
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        Box::pin(async move {
            self.connection.check()?;
            Ok(self.store.names(listing))
        })
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        let mut node = NodeHealth::new_unknown("memory", NodeRole::Primary);
        node.is_reachable = !self.connection.is_cut();
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

impl NotifyingScheme for MemoryScheme {
    fn subscribe(&self, key: &Key, manager: &str) -> Subscription {
        self.store.subscribe(key, manager, &self.connection)
    }

    fn subscribe_if_live(&self, _: &Key, _: &str) -> Option<Subscription> {
        None
    }
}

impl NotingScheme for MemoryScheme {
    fn set_note<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId, note: &'a Note) -> BoxAttempt<'a, Noted> {
        Box::pin(async move { self.apply(key, |record, now| record.set_note(now, id, note)) })
    }
}

impl RecallingScheme for MemoryScheme {
    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool {
        self.store.listen(key, calls, &self.connection);
        true
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxAttempt<'a, ()> {
        Box::pin(async move {
            self.connection.check()?;
            Ok(self.store.reply_in_use(key, id))
        })
    }
}

impl MasterScheme for MemoryScheme {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxAttempt<'a, Acquired> {
        Box::pin(async move { self.apply(key, |record, now| record.acquire_above(now, u64::MAX, request, floor)) })
    }

    fn force_shown<'a>(&'a self, key: &'a Key, token: Option<FencingToken>, seen: &'a View) -> BoxAttempt<'a, Forced> {
        Box::pin(async move { self.apply(key, |record, now| record.force_shown(now, token, seen)) })
    }

    fn clock_sample(&self) -> Option<ClockSample> {
        None
    }

    fn up_since(&self) -> Option<Moment> {
        None
    }
}
