//! A memory between which and its clients a test stands: copies of requests are lost, or their answers wait.

use std::collections::VecDeque;
use std::time::Duration;

use futures_util::stream::BoxStream;
use parking_lot::Mutex;
use tokio::sync::oneshot;

use super::memory::Memory;
use super::{
    Acquired, Acquisition, Ask, Attempt, BoxFuture, Failure, Left, Renewal, Renewed, Route, Scheme, Subscription,
    Turned, View,
};
use crate::clock::Clock;
use crate::key::Key;
use crate::lease::Moment;

/// How long a lost copy may yet arrive.
pub(crate) const STRAY: Duration = Duration::from_secs(1);

/// What becomes of one request.
#[derive(Debug)]
pub(crate) enum Fate {
    /// It is not carried out, as far as anybody knows: its connection is cut.
    Cut,
    /// It is carried out, and the answer waits for a word.
    Answered(oneshot::Receiver<()>),
    /// It was not carried out, and that is known.
    NotDone,
}

/// The scheme. What the test has no fate for is carried out at once.
#[derive(Debug)]
pub(crate) struct Staged {
    pub(crate) memory: Memory,
    acquires: Mutex<VecDeque<Fate>>,
    turns: Mutex<VecDeque<Fate>>,
    leaves: Mutex<VecDeque<Fate>>,
    /// What was asked for, cut requests included.
    asked: Mutex<Vec<Ask>>,
    /// Answers to renewals wait for these.
    words: Mutex<VecDeque<oneshot::Receiver<()>>>,
    /// Which renewals came together, and when.
    chunks: Mutex<Vec<(Moment, Vec<Acquisition>)>>,
}

impl Staged {
    pub(crate) fn new(memory: Memory) -> Self {
        Self {
            memory,
            acquires: Mutex::default(),
            turns: Mutex::default(),
            leaves: Mutex::default(),
            asked: Mutex::default(),
            words: Mutex::default(),
            chunks: Mutex::default(),
        }
    }

    pub(crate) fn next_acquire(&self, fate: Fate) {
        self.acquires.lock().push_back(fate);
    }

    pub(crate) fn next_turn(&self, fate: Fate) {
        self.turns.lock().push_back(fate);
    }

    pub(crate) fn next_leave(&self, fate: Fate) {
        self.leaves.lock().push_back(fate);
    }

    pub(crate) fn last_ask(&self) -> Ask {
        self.asked.lock().last().expect("somebody has asked").clone()
    }

    /// The next renewals are carried out, and their answers wait for a word.
    pub(crate) fn next_renewals(&self, word: oneshot::Receiver<()>) {
        self.words.lock().push_back(word);
    }

    pub(crate) fn chunks(&self) -> Vec<(Moment, Vec<Acquisition>)> {
        self.chunks.lock().clone()
    }

    async fn meet<T>(
        &self,
        fate: Option<Fate>,
        act: impl Future<Output = Result<T, Failure>> + Send,
    ) -> Result<T, Failure> {
        match fate {
            None => act.await,
            Some(Fate::Cut) => {
                Err(Failure::Unknown { stray_until: self.memory.clock().now().after(STRAY), source: None })
            }
            Some(Fate::Answered(word)) => {
                let answer = act.await;
                drop(word.await);
                answer
            }
            Some(Fate::NotDone) => Err(Failure::NotDone { source: None }),
        }
    }
}

impl Scheme for Staged {
    fn acquire<'a>(&'a self, key: &'a Key, ask: &'a Ask) -> BoxFuture<'a, Attempt<Acquired>> {
        self.asked.lock().push(ask.clone());
        let fate = self.acquires.lock().pop_front();
        Box::pin(self.meet(fate, self.memory.acquire(key, ask)))
    }

    fn leave<'a>(&'a self, key: &'a Key, id: &'a Acquisition) -> BoxFuture<'a, Attempt<Left>> {
        let fate = self.leaves.lock().pop_front();
        Box::pin(self.meet(fate, self.memory.leave(key, id)))
    }

    fn turn<'a>(&'a self, key: &'a Key, old: &'a Acquisition, ask: &'a Ask) -> BoxFuture<'a, Attempt<Turned>> {
        self.asked.lock().push(ask.clone());
        let fate = self.turns.lock().pop_front();
        Box::pin(self.meet(fate, self.memory.turn(key, old, ask)))
    }

    fn renew<'a>(&'a self, route: &'a Route, batch: &'a [Renewal]) -> BoxFuture<'a, Vec<Attempt<Renewed>>> {
        let ids = batch.iter().map(|renewal| renewal.id.clone()).collect();
        self.chunks.lock().push((self.memory.clock().now(), ids));
        let word = self.words.lock().pop_front();
        Box::pin(async move {
            let answers = self.memory.renew(route, batch).await;
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

    fn force<'a>(&'a self, key: &'a Key, seen: &'a View) -> BoxFuture<'a, Attempt<Vec<String>>> {
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

    fn clock(&self) -> Clock {
        self.memory.clock()
    }
}
