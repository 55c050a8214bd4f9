//! Memory scheme whose requests a test controls. The test can lose copies of a request, and can delay answers.
#![allow(unreachable_pub)] // the module is private to the tests

use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::Duration;

use futures_util::future::join_all;
use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use crate::base::attempt::NodeId;
use crate::base::clock::Clock;
use crate::base::error::NoMajority;
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{ClockSample, FencingToken, Moment, ServerTime};
use crate::base::mode::Mode;
use crate::base::options::{Options, Overrides, Terms};
use crate::engine::acquire::{Patience, acquire};
use crate::engine::{Engine, Held};
use crate::store::memory::{MemoryScheme, Store};
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Floor, Forced,
    MasterScheme, Note, Noted, NotifyingScheme, NotingScheme, RecallingScheme, ReleaseReply, ReleaseRequest,
    RenewalRequest, Renewed, Route, Scheme, ServerContact, View,
};

/// Time within which a lost copy may still arrive.
pub const STRAY: Duration = Duration::from_secs(1);

/// Moment that a test chooses.
type Signal = oneshot::Receiver<()>;

/// Fate of one request.
#[derive(Debug)]
pub enum Fate {
    /// The request is not carried out, and its connection is cut. The sender cannot know that it was not carried out.
    Cut,
    /// The request is carried out, and the answer waits for the signal.
    Answered(Signal),
    /// The request is not carried out, and its sender learns only at the signal that the outcome is unknown.
    Silent(Signal),
    /// The request is carried out, and its connection is cut.
    Unheard,
    /// The request is certainly not carried out, and the sender learns that.
    NotDone,
    /// No majority of masters may vote yet.
    NoVotes,
    /// The request is carried out, and the answer at the signal is that no replica has it.
    Unreplicated(Signal),
    /// The server sends this answer and carries nothing out. For acquisitions only.
    Says(Acquired),
    /// The request arrives at the signal, before all later requests of its runtime, even if its sender is gone. For
    /// acquisitions only.
    OnItsWay(Signal),
}

/// Scheme that carries a request out at once if the test has set no fate for the request.
#[derive(Debug)]
pub struct Staged {
    pub memory: MemoryScheme,
    acquires: Mutex<VecDeque<Fate>>,
    conversions: Mutex<VecDeque<Fate>>,
    leaves: Mutex<VecDeque<Fate>>,
    /// Connection of the runtime that acquires. One request at a time uses it, and the other requests wait.
    connection: Arc<tokio::sync::Mutex<()>>,
    /// Number of requested acquisitions, including those whose connection was cut.
    asked: Mutex<Vec<AcquireRequest>>,
    /// Signals for which answers to renewals wait.
    renewal_signals: Mutex<VecDeque<Signal>>,
    /// Signals for which notes wait, before they are sent.
    note_signals: Mutex<VecDeque<Signal>>,
    /// Number of further renewals whose answers are lost.
    unheard: AtomicUsize,
    /// Renewals that came in one batch, and the time of the batch.
    chunks: Mutex<Vec<(Moment, Vec<AcquisitionId>)>>,
    /// Times until which renewals and releases let a hold last or rest, in the order of these requests.
    rest_times: Mutex<Vec<ServerTime>>,
    /// True if the next renewal panics.
    panics: AtomicBool,
    scripts: AtomicUsize,
    /// True if the next force is answered, and lost with the server that has answered.
    loses_force: AtomicBool,
    /// True if the server answers at all.
    serves: AtomicBool,
    /// True if releases are inline, which means that the dropping thread sends them.
    leaves_at_hand: AtomicBool,
}

impl Staged {
    pub fn new(memory: MemoryScheme) -> Self {
        Self {
            memory,
            acquires: Mutex::default(),
            conversions: Mutex::default(),
            leaves: Mutex::default(),
            connection: Arc::default(),
            asked: Mutex::default(),
            renewal_signals: Mutex::default(),
            note_signals: Mutex::default(),
            chunks: Mutex::default(),
            rest_times: Mutex::default(),
            scripts: AtomicUsize::new(0),
            loses_force: AtomicBool::new(false),
            serves: AtomicBool::new(false),
            unheard: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
            leaves_at_hand: AtomicBool::new(false),
        }
    }

    pub fn next_acquire(&self, fate: Fate) {
        self.acquires.lock().push_back(fate);
    }

    pub fn next_conversion(&self, fate: Fate) {
        self.conversions.lock().push_back(fate);
    }

    pub fn next_leave(&self, fate: Fate) {
        self.leaves.lock().push_back(fate);
    }

    /// Makes releases, and renewals that waiters need, inline from now on.
    pub fn leaves_are_at_hand(&self) {
        self.leaves_at_hand.store(true, Ordering::SeqCst);
    }

    pub fn last_request(&self) -> AcquireRequest {
        self.asked.lock().last().expect("somebody has asked").clone()
    }

    /// Returns the number of acquisitions that were requested.
    pub fn requests(&self) -> usize {
        self.asked.lock().len()
    }

    /// Returns the number of scripts, which are acquisitions, releases, conversions and renewals.
    pub fn scripts(&self) -> usize {
        self.scripts.load(Ordering::SeqCst)
    }

    /// Carries the next renewals out, and delays their answers until the signal.
    pub fn next_renewals(&self, signal: Signal) {
        self.renewal_signals.lock().push_back(signal);
    }

    /// Delays the next note until the signal.
    pub fn next_note(&self, signal: Signal) {
        self.note_signals.lock().push_back(signal);
    }

    /// Carries the next renewals out and loses their answers, `times` times.
    pub fn renewals_go_unheard(&self, times: usize) {
        self.unheard.store(times, Ordering::SeqCst);
    }

    /// Answers the next force, and loses it with the server that has answered. The next server has the holds.
    pub fn next_force_is_lost(&self) {
        self.loses_force.store(true, Ordering::SeqCst);
    }

    pub fn next_renewals_panic(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    pub fn chunks(&self) -> Vec<(Moment, Vec<AcquisitionId>)> {
        self.chunks.lock().clone()
    }

    /// Returns the times that renewals and releases carried until which a hold lasts or rests.
    pub fn rest_times(&self) -> Vec<ServerTime> {
        self.rest_times.lock().clone()
    }

    fn counts(&self, many: usize) {
        self.scripts.fetch_add(many, Ordering::SeqCst);
    }

    fn unknown(&self) -> Failure {
        Failure::Unknown { arrives_until: self.memory.clock().now().after(STRAY), source: None }
    }

    async fn meet<T>(
        &self,
        fate: Option<Fate>,
        act: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        match fate {
            None => act.await,
            Some(Fate::Cut) => Err(self.unknown()),
            Some(Fate::Unheard) => {
                drop(act.await);
                Err(self.unknown())
            }
            Some(Fate::Silent(signal)) => {
                drop(signal.await);
                Err(self.unknown())
            }
            Some(Fate::Answered(signal)) => {
                let answer = act.await;
                drop(signal.await);
                answer
            }
            Some(Fate::Unreplicated(signal)) => {
                drop(act.await);
                drop(signal.await);
                Err(Failure::Unreplicated { asked: 1, acknowledged: 0, node: None })
            }
            Some(Fate::NoVotes) => {
                let no_majority = NoMajority { masters: 3, needed: 2, restarted: 3, causes: Vec::new() };
                Err(Failure::NotDone { source: Some(Arc::new(no_majority)) })
            }
            Some(Fate::NotDone | Fate::Says(_) | Fate::OnItsWay(_)) => Err(Failure::NotDone { source: None }),
        }
    }

    /// Sends a request that goes on without its sender.
    async fn send(&self, key: &Key, request: &AcquireRequest, signal: Signal) -> Attempt<Acquired> {
        let connection = Arc::clone(&self.connection).lock_owned().await;
        let (memory, key, request) = (self.memory.clone(), key.clone(), request.clone());
        let carried_out = tokio::spawn(async move {
            drop(signal.await);
            let answer = memory.acquire(&key, &request).await;
            drop(connection);
            answer
        });
        carried_out.await.unwrap_or(Err(Failure::NotDone { source: None }))
    }

    async fn leave_once(&self, request: &ReleaseRequest) -> Attempt<ReleaseReply> {
        self.counts(1);
        self.rest_times.lock().extend(request.rest_until);
        let fate = self.leaves.lock().pop_front();
        self.meet(fate, self.memory.release(request)).await
    }
}

impl Scheme for Staged {
    fn acquire<'a>(&'a self, key: &'a Key, request: &'a AcquireRequest) -> BoxFuture<'a, Attempt<Acquired>> {
        self.counts(1);
        self.asked.lock().push(request.clone());
        let fate = self.acquires.lock().pop_front();
        if let Some(Fate::Says(value)) = fate {
            self.serves.store(true, Ordering::SeqCst);
            let (sent, server) = (self.memory.clock().now(), ServerTime::default());
            return Box::pin(std::future::ready(Ok(Answered { sent, server, node: NodeId::default(), value })));
        }
        if let Some(Fate::OnItsWay(signal)) = fate {
            return Box::pin(self.send(key, request, signal));
        }
        Box::pin(self.meet(fate, self.memory.acquire(key, request)))
    }

    fn release<'a>(&'a self, request: &'a ReleaseRequest) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async {
            drop(self.connection.lock().await);
            self.leave_once(request).await
        })
    }

    /// Releases in the background, on a connection of its own.
    fn release_all<'a>(
        &'a self,
        _: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(join_all(batch.iter().map(|leave| self.leave_once(leave))))
    }

    fn can_send_inline(&self, _: &ReleaseRequest) -> bool {
        self.leaves_at_hand.load(Ordering::SeqCst)
    }

    fn can_renew_inline(&self, _: &Key) -> bool {
        self.leaves_at_hand.load(Ordering::SeqCst)
    }

    fn convert<'a>(
        &'a self,
        key: &'a Key,
        old: &'a AcquisitionId,
        request: &'a AcquireRequest,
    ) -> BoxFuture<'a, Attempt<Converted>> {
        self.counts(1);
        self.asked.lock().push(request.clone());
        let fate = self.conversions.lock().pop_front();
        Box::pin(self.meet(fate, self.memory.convert(key, old, request)))
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [RenewalRequest]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        self.counts(batch.len());
        self.rest_times.lock().extend(batch.iter().filter_map(|renewal| renewal.rest_until));
        let ids = batch.iter().map(|renewal| renewal.id.clone()).collect();
        self.chunks.lock().push((self.memory.clock().now(), ids));
        assert!(!self.panics.swap(false, Ordering::SeqCst), "as the test wants it");
        let signal = self.renewal_signals.lock().pop_front();
        let is_unheard = self.unheard.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        Box::pin(async move {
            let answers = self.memory.renew(route, batch).await;
            if is_unheard.is_ok() {
                tokio::time::sleep(STRAY).await;
                let arrives_until = self.memory.clock().now();
                return answers.iter().map(|_| Err(Failure::Unknown { arrives_until, source: None })).collect();
            }
            if let Some(signal) = signal {
                drop(signal.await);
            }
            answers
        })
    }

    fn changes(&self) -> Option<BoxStream<'static, ()>> {
        None
    }

    fn route(&self, key: &Key) -> Route {
        self.memory.route(key)
    }

    fn inspect<'a>(&'a self, key: &'a Key) -> BoxFuture<'a, Attempt<View>> {
        self.memory.inspect(key)
    }

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Forced>> {
        if self.loses_force.swap(false, Ordering::SeqCst) {
            let ids = seen.holders.iter().map(|holder| holder.id.clone()).collect();
            let (sent, server) = (self.memory.clock().now(), ServerTime::default());
            let answer = Answered { sent, server, node: NodeId::default(), value: Forced { ids, has_more: false } };
            return Box::pin(std::future::ready(Ok(answer)));
        }
        self.memory.force(key, seen)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.memory.ready()
    }

    fn notifications(&self) -> Option<&dyn NotifyingScheme> {
        self.memory.notifications()
    }

    fn notes(&self) -> Option<&dyn NotingScheme> {
        Some(self)
    }

    fn recalls(&self) -> Option<&dyn RecallingScheme> {
        self.memory.recalls()
    }

    fn check_rights<'a>(&'a self, key: &'a Key, more: &'a [&'a str]) -> BoxFuture<'a, Result<(), Failure>> {
        self.memory.check_rights(key, more)
    }

    fn names<'a>(&'a self, listing: &'a Listing) -> BoxFuture<'a, Result<BTreeSet<String>, Failure>> {
        self.memory.names(listing)
    }

    fn health(&self) -> BoxFuture<'_, Vec<NodeHealth>> {
        self.memory.health()
    }

    fn contact(&self, key: &Key) -> ServerContact {
        if self.serves.load(Ordering::SeqCst) {
            return ServerContact { served: Some(self.memory.clock().now()), is_silent: false };
        }
        self.memory.contact(key)
    }

    fn traffic(&self) -> Traffic {
        self.memory.traffic()
    }

    fn clock(&self) -> Clock {
        self.memory.clock()
    }
}

impl MasterScheme for Staged {
    fn acquire_above<'a>(
        &'a self,
        key: &'a Key,
        request: &'a AcquireRequest,
        floor: Floor,
    ) -> BoxFuture<'a, Attempt<Acquired>> {
        self.counts(1);
        let fate = self.acquires.lock().pop_front();
        Box::pin(self.meet(fate, self.memory.acquire_above(key, request, floor)))
    }

    fn force_shown<'a>(
        &'a self,
        key: &'a Key,
        token: Option<FencingToken>,
        seen: &'a View,
    ) -> BoxFuture<'a, Attempt<Forced>> {
        self.memory.force_shown(key, token, seen)
    }

    fn clock_sample(&self) -> Option<ClockSample> {
        self.memory.clock_sample()
    }

    fn up_since(&self) -> Option<Moment> {
        self.memory.up_since()
    }
}

/// A process whose requests have fates, and another one on the same store.
pub struct StagedPair {
    pub scheme: Arc<Staged>,
    pub engine: Arc<Engine>,
    pub other: Arc<Engine>,
    pub key: Arc<Key>,
}

impl StagedPair {
    pub fn new() -> Self {
        Self::with(Options::default())
    }

    /// A pair whose first process sends each request once.
    pub fn impatient() -> Self {
        Self::with(Options { unreachable_after: Duration::ZERO, ..Options::default() })
    }

    pub fn with(options: Options) -> Self {
        let memory = MemoryScheme::new(Arc::new(Store::new()));
        let scheme = Arc::new(Staged::new(memory.clone()));
        let engine = Arc::new(Engine::new(Arc::<Staged>::clone(&scheme), options));
        let other = Arc::new(Engine::new(Arc::new(memory), Options::default()));
        let key = engine.key("cfg").expect("valid");
        Self { scheme, engine, other, key }
    }

    pub fn terms(engine: &Engine) -> Terms {
        Terms::new(engine.options(), Overrides::default()).expect("valid")
    }

    /// Acquires the lock for one of the two processes.
    pub async fn take(&self, engine: &Arc<Engine>, mode: Mode) -> Held {
        let taken = acquire(engine, Arc::clone(&self.key), mode, Self::terms(engine), Patience::Wait).await;
        taken.expect("answered").expect("granted")
    }

    /// Returns the ids of the holds that the server has.
    pub async fn holders(&self) -> Vec<String> {
        let view = self.scheme.memory.inspect(&self.key).await.expect("memory answers").value;
        view.holders.into_iter().map(|holder| holder.id).collect()
    }

    /// Returns true if the other process gets the lock for writing. It releases the lock then.
    pub async fn others_may_write(&self) -> bool {
        let (key, terms) = (Arc::clone(&self.key), Self::terms(&self.other));
        match acquire(&self.other, key, Mode::Write, terms, Patience::AskOnce).await.expect("answered") {
            Some(held) => held.release().await.map(|()| true).expect("ours to the end"),
            None => false,
        }
    }
}

impl NotingScheme for Staged {
    fn set_note<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId, note: &'a Note) -> BoxFuture<'a, Attempt<Noted>> {
        Box::pin(async move {
            let signal = self.note_signals.lock().pop_front();
            if let Some(signal) = signal {
                drop(signal.await);
            }
            self.memory.notes().expect("memory has room").set_note(key, id, note).await
        })
    }
}
