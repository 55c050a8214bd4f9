//! A memory between which and its clients a test stands: copies of requests are lost, or their answers wait.

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
use crate::base::health::{NodeHealth, Traffic};
use crate::base::key::{Key, Listing};
use crate::base::lease::{Moment, ServerTime};
use crate::base::recalls::Recalls;
use crate::store::memory::MemoryScheme;
use crate::store::{
    AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, BoxFuture, Converted, Failure, Forced, ReleaseReply,
    ReleaseRequest, RenewalRequest, Renewed, Route, Scheme, ServerContact, Subscription, View,
};

/// How long a lost copy may yet arrive.
pub(crate) const STRAY: Duration = Duration::from_secs(1);

/// What becomes of one request.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It is not carried out, as far as anybody knows: its connection is cut.
    Cut,
    /// It is carried out, and the answer waits for a word.
    Answered(oneshot::Receiver<()>),
    /// The same, but that shows only at a word.
    Silent(oneshot::Receiver<()>),
    /// It is carried out, and its connection is cut.
    Unheard,
    /// It was not carried out, and that is known.
    NotDone,
    /// Carries the request out, and at a word answers that no replica has it.
    Unreplicated(oneshot::Receiver<()>),
    /// The server says this, and carries nothing out. For acquisitions only.
    Says(Acquired),
    /// Arrives at a word, whatever becomes of its sender, and before all that its runtime sends behind it. For acquisitions only.
    OnItsWay(oneshot::Receiver<()>),
}

/// The scheme. What the test has no fate for is carried out at once.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) memory: MemoryScheme,
    acquires: Mutex<VecDeque<Fate>>,
    conversions: Mutex<VecDeque<Fate>>,
    leaves: Mutex<VecDeque<Fate>>,
    /// Connection of the runtime that acquires: whatever has it is on its way, and the others wait behind.
    connection: Arc<tokio::sync::Mutex<()>>,
    /// What was asked for, cut requests included.
    asked: Mutex<Vec<AcquireRequest>>,
    /// Answers to renewals wait for these.
    words: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// Renewals are carried out at these.
    starts: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// So many times more the answers to renewals are lost.
    unheard: AtomicUsize,
    /// Which renewals came together, and when.
    chunks: Mutex<Vec<(Moment, Vec<AcquisitionId>)>>,
    /// The next of them is none that anybody expects.
    panics: AtomicBool,
    scripts: AtomicUsize,
    /// The server answers, whatever it says.
    serves: AtomicBool,
    /// Releases go out where guards are dropped.
    leaves_at_hand: AtomicBool,
}

impl Staged {
    pub(crate) fn new(memory: MemoryScheme) -> Self {
        Self {
            memory,
            acquires: Mutex::default(),
            conversions: Mutex::default(),
            leaves: Mutex::default(),
            connection: Arc::default(),
            asked: Mutex::default(),
            words: Mutex::default(),
            chunks: Mutex::default(),
            scripts: AtomicUsize::new(0),
            serves: AtomicBool::new(false),
            starts: Mutex::default(),
            unheard: AtomicUsize::new(0),
            panics: AtomicBool::new(false),
            leaves_at_hand: AtomicBool::new(false),
        }
    }

    pub(crate) fn next_acquire(&self, fate: Fate) {
        self.acquires.lock().push_back(fate);
    }

    pub(crate) fn next_conversion(&self, fate: Fate) {
        self.conversions.lock().push_back(fate);
    }

    pub(crate) fn next_leave(&self, fate: Fate) {
        self.leaves.lock().push_back(fate);
    }

    /// From now on, releases go out where guards are dropped.
    pub(crate) fn leaves_are_at_hand(&self) {
        self.leaves_at_hand.store(true, Ordering::SeqCst);
    }

    pub(crate) fn last_request(&self) -> AcquireRequest {
        self.asked.lock().last().expect("somebody has asked").clone()
    }

    /// How many acquisitions were asked for.
    pub(crate) fn requests(&self) -> usize {
        self.asked.lock().len()
    }

    /// How many scripts there were: acquisitions, releases, conversions and renewals.
    pub(crate) fn scripts(&self) -> usize {
        self.scripts.load(Ordering::SeqCst)
    }

    /// The next renewals are carried out, and their answers wait for a word.
    pub(crate) fn next_renewals(&self, word: oneshot::Receiver<()>) {
        self.words.lock().push_back(word);
    }

    /// The next renewals are carried out at a word.
    pub(crate) fn next_renewals_come_late(&self, word: oneshot::Receiver<()>) {
        self.starts.lock().push_back(word);
    }

    /// So many times renewals are carried out, and nobody hears of it.
    pub(crate) fn renewals_go_unheard(&self, times: usize) {
        self.unheard.store(times, Ordering::SeqCst);
    }

    pub(crate) fn next_renewals_panic(&self) {
        self.panics.store(true, Ordering::SeqCst);
    }

    pub(crate) fn chunks(&self) -> Vec<(Moment, Vec<AcquisitionId>)> {
        self.chunks.lock().clone()
    }

    fn counts(&self, many: usize) {
        self.scripts.fetch_add(many, Ordering::SeqCst);
    }

    async fn meet<T>(
        &self,
        fate: Option<Fate>,
        act: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        match fate {
            None => act.await,
            Some(Fate::Cut) => {
                Err(Failure::Unknown { arrives_until: self.memory.clock().now().after(STRAY), source: None })
            }
            Some(Fate::Unheard) => {
                drop(act.await);
                Err(Failure::Unknown { arrives_until: self.memory.clock().now().after(STRAY), source: None })
            }
            Some(Fate::Silent(word)) => {
                drop(word.await);
                Err(Failure::Unknown { arrives_until: self.memory.clock().now().after(STRAY), source: None })
            }
            Some(Fate::Answered(word)) => {
                let answer = act.await;
                drop(word.await);
                answer
            }
            Some(Fate::Unreplicated(word)) => {
                drop(act.await);
                drop(word.await);
                Err(Failure::Unreplicated { asked: 1, acknowledged: 0, node: None })
            }
            Some(Fate::NotDone | Fate::Says(_) | Fate::OnItsWay(_)) => Err(Failure::NotDone { source: None }),
        }
    }

    /// Sends a request that goes on without its sender.
    async fn send(&self, key: &Key, request: &AcquireRequest, word: oneshot::Receiver<()>) -> Attempt<Acquired> {
        let connection = Arc::clone(&self.connection).lock_owned().await;
        let (memory, key, request) = (self.memory.clone(), key.clone(), request.clone());
        let carried_out = tokio::spawn(async move {
            drop(word.await);
            let answer = memory.acquire(&key, &request).await;
            drop(connection);
            answer
        });
        carried_out.await.unwrap_or(Err(Failure::NotDone { source: None }))
    }

    async fn leave_once(&self, key: &Key, id: &AcquisitionId) -> Attempt<ReleaseReply> {
        self.counts(1);
        let fate = self.leaves.lock().pop_front();
        self.meet(fate, self.memory.release(key, id)).await
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
        if let Some(Fate::OnItsWay(word)) = fate {
            return Box::pin(self.send(key, request, word));
        }
        Box::pin(self.meet(fate, self.memory.acquire(key, request)))
    }

    fn release<'a>(&'a self, key: &'a Key, id: &'a AcquisitionId) -> BoxFuture<'a, Attempt<ReleaseReply>> {
        Box::pin(async {
            drop(self.connection.lock().await);
            self.leave_once(key, id).await
        })
    }

    /// In the background, which has a connection of its own.
    fn release_all<'a>(
        &'a self,
        _: &'a Route,
        batch: &'a [ReleaseRequest],
    ) -> BoxFuture<'a, Vec<Attempt<ReleaseReply>>> {
        Box::pin(join_all(batch.iter().map(|leave| self.leave_once(&leave.key, &leave.id))))
    }

    fn can_send_inline(&self, _: &ReleaseRequest) -> bool {
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
        let ids = batch.iter().map(|renewal| renewal.id.clone()).collect();
        self.chunks.lock().push((self.memory.clock().now(), ids));
        assert!(!self.panics.swap(false, Ordering::SeqCst), "as the test wants it");
        let (start, word) = (self.starts.lock().pop_front(), self.words.lock().pop_front());
        let is_unheard = self.unheard.fetch_update(Ordering::SeqCst, Ordering::SeqCst, |left| left.checked_sub(1));
        Box::pin(async move {
            if let Some(start) = start {
                drop(start.await);
            }
            let answers = self.memory.renew(route, batch).await;
            if is_unheard.is_ok() {
                tokio::time::sleep(STRAY).await;
                let arrives_until = self.memory.clock().now();
                return answers.iter().map(|_| Err(Failure::Unknown { arrives_until, source: None })).collect();
            }
            if let Some(word) = word {
                drop(word.await);
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
        self.memory.force(key, seen)
    }

    fn ready(&self) -> BoxFuture<'_, Result<(), Failure>> {
        self.memory.ready()
    }

    fn subscribe(&self, key: &Key, manager: &str) -> Option<Subscription> {
        self.memory.subscribe(key, manager)
    }

    fn subscribed(&self, key: &Key, manager: &str) -> Option<Subscription> {
        self.memory.subscribed(key, manager)
    }

    fn listen(&self, key: &Key, calls: &Arc<Recalls>) -> bool {
        self.memory.listen(key, calls)
    }

    fn reply_in_use<'a>(&'a self, key: &'a Key, id: &'a str) -> BoxFuture<'a, Attempt<()>> {
        self.memory.reply_in_use(key, id)
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
