//! The oracle: random operations on a real server and on the specification in memory must be answered alike.
//!
//! A [`Record`] takes the server's time as an argument, so it is given the time that each real reply reports. Leases
//! expire in real time between the operations, and yet answers agree to the millisecond, tokens to the microsecond.
//! Answers may differ in one point: which of several readers it is whose deadline a refused writer is told.
//! What is published is compared too, word by word.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Client, Cluster, Node, Reply, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use tokio::runtime::{Builder, Runtime};

use crate::key::Key;
use crate::lease::ServerTime;
use crate::options::Options;
use crate::scheme::lua::LuaScheme;
use crate::scheme::memory::{News, Record};
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, IfTaken, Left, Mode, Renewal, Renewed, Scheme, Turned, View, hash,
    two_key,
};
use crate::topology::Topology;
use crate::transport::{self, Transport};

#[test]
fn hash_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    agrees(&Topology::node(node.url()), Face::Hash, &[&node], 256);
}

#[test]
fn hash_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    agrees(&Topology::node(node.url()), Face::Hash, &[&node], 256);
}

#[test]
fn hash_on_a_cluster() {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
    agrees(&Topology::cluster(cluster.urls()), Face::Hash, &cluster.primaries(), 128);
}

#[test]
fn two_key_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    agrees(&Topology::node(node.url()), Face::TwoKey, &[], 256);
}

#[test]
fn two_key_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    agrees(&Topology::node(node.url()), Face::TwoKey, &[], 256);
}

/// The scheme that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Face {
    Hash,
    /// It knows no queue and grants one token at a time.
    TwoKey,
}

impl Face {
    fn scheme(self, transport: Arc<dyn Transport>) -> LuaScheme {
        match self {
            Self::Hash => hash::scheme(transport, Options::default().published_limits),
            Self::TwoKey => two_key::scheme(transport),
        }
    }

    fn ask(self, who: usize, wish: Wish) -> Ask {
        let Wish { lease_ms, turns, patience_ms } = wish;
        let (turns, if_taken) = match (self, patience_ms) {
            (Self::Hash, Some(ms)) => (turns, IfTaken::Queue { patience: Duration::from_millis(ms) }),
            (Self::Hash, None) => (turns, IfTaken::Leave),
            (Self::TwoKey, _) => (1, IfTaken::Leave),
        };
        Ask { id: acquisition(who), mode: MODES[who], lease: Duration::from_millis(lease_ms), turns, if_taken }
    }

    /// What is answered in the long run.
    fn kinds(self) -> BTreeSet<&'static str> {
        let both = [
            "granted",
            "contended",
            "late",
            "held",
            "none",
            "none, by force",
            "renewed",
            "lost",
            "lost, by force",
            "view",
            "forced",
            "turned to read",
            "turned to write",
            "not turned",
            "turn lost",
            "turn lost, by force",
            "turn late",
        ];
        let hash = ["granted, a writer waits", "granted, several turns", "queued", "dequeued", "view with waiters"];
        both.into_iter().chain(hash.into_iter().filter(|_| self == Self::Hash)).collect()
    }
}

/// So many that read it takes for one to move into the gap that another leaves; and as many writers for the middle of a list.
const MODES: [Mode; 7] = [Mode::Read, Mode::Read, Mode::Read, Mode::Read, Mode::Write, Mode::Write, Mode::Write];
/// As long as a manager's name is, since the channel is cut out of the id.
const MANAGER: &str = "0123456789abcdef0123456789abcdef";

fn acquisition(who: usize) -> Acquisition {
    Acquisition::new(MANAGER, who as u64, "label")
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    lease_ms: u64,
    turns: u64,
    /// It waits in the queue.
    patience_ms: Option<u64>,
}

#[derive(Clone, Debug)]
enum Operation {
    Acquire {
        who: usize,
        wish: Wish,
    },
    /// The last moment at which it may be carried out is so far from the reply before it.
    AcquireUntil {
        who: usize,
        wish: Wish,
        limit_ms: i64,
    },
    Leave {
        who: usize,
    },
    Turn {
        old: usize,
        new: usize,
        wish: Wish,
    },
    TurnUntil {
        old: usize,
        new: usize,
        wish: Wish,
        limit_ms: i64,
    },
    /// In one batch.
    Renew(Vec<(usize, u64)>),
    Inspect,
    /// A look, then a force.
    Force,
    /// A force by the last look there was, whatever has happened since.
    ForceLate,
    Pause {
        ms: u64,
    },
}

fn operations() -> impl Strategy<Value = Vec<Operation>> {
    let who = || 0..MODES.len();
    // Some are over before the next operation or the one after, some while several follow, some never.
    let time_ms = || prop_oneof![4 => 1..=5_u64, 1 => 6..=30_u64, 3 => Just(10_000_u64)];
    let patience_ms = || prop_oneof![1 => Just(None), 3 => time_ms().prop_map(Some)];
    let turns = || prop_oneof![Just(1_u64), 2..=64_u64, Just(1000_u64)];
    let wish = || {
        let parts = (time_ms(), turns(), patience_ms());
        parts.prop_map(|(lease_ms, turns, patience_ms)| Wish { lease_ms, turns, patience_ms })
    };
    let limit_ms = || -2..=3_i64;
    let operation = prop_oneof![
        14 => (who(), wish()).prop_map(|(who, wish)| Operation::Acquire { who, wish }),
        3 => (who(), wish(), limit_ms())
            .prop_map(|(who, wish, limit_ms)| Operation::AcquireUntil { who, wish, limit_ms }),
        6 => who().prop_map(|who| Operation::Leave { who }),
        6 => (who(), who(), wish()).prop_map(|(old, new, wish)| Operation::Turn { old, new, wish }),
        1 => (who(), who(), wish(), limit_ms())
            .prop_map(|(old, new, wish, limit_ms)| Operation::TurnUntil { old, new, wish, limit_ms }),
        5 => vec((who(), time_ms()), 1..4).prop_map(Operation::Renew),
        3 => Just(Operation::Inspect),
        1 => Just(Operation::Force),
        1 => Just(Operation::ForceLate),
        3 => (1..=3_u64).prop_map(|ms| Operation::Pause { ms }),
    ];
    vec(operation, 1..60)
}

/// Hears what is published to the waiters of a lock.
struct Listener {
    hears: Client,
    speaks: Client,
    channel: String,
}

impl Listener {
    /// At whichever of the nodes has the channel; none if there are none.
    fn new(nodes: &[&Node], key: &Key) -> Option<Self> {
        let channel = key.part(&format!("wake:{MANAGER}"));
        let connect = |node: &&Node| node.client().expect("the server answers");
        let speaks = |mut client: Client| {
            let owned = client.command(&["SPUBLISH", &channel, ""]).expect("an answer").error().is_none();
            owned.then_some(client)
        };
        let (node, speaks) = nodes.iter().find_map(|node| Some((node, speaks(connect(node))?)))?;
        let mut hears = connect(node);
        hears.command(&["SSUBSCRIBE", &channel]).expect("subscribed");
        Some(Self { hears, speaks, channel })
    }

    /// All until now, in the order of their text.
    fn heard(mut self) -> Vec<String> {
        const END: &str = "no more";
        self.speaks.command(&["SPUBLISH", &self.channel, END]).expect("published");
        let mut heard = Vec::new();
        loop {
            let message = self.hears.receive().expect("a message");
            let text = message.array().and_then(|parts| parts.last()).and_then(Reply::text).expect("a text");
            if text == END {
                heard.sort();
                return heard;
            }
            heard.push(text.into_owned());
        }
    }
}

/// Sets random operations against both, `cases` times with a lock of its own.
fn agrees(topology: &Topology, face: Face, hears: &[&Node], cases: u32) {
    // However busy the machine is, an answer is waited for.
    let options = Options { response_timeout: Duration::from_secs(20), ..Options::default() };
    let scheme = face.scheme(transport::open(topology.clone(), &options).expect("a valid topology"));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let name = Cell::new(0);
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        name.set(name.get() + 1);
        let mut pair = Pair::new(&scheme, face, &format!("lock {}", name.get()));
        let listener = Listener::new(hears, &pair.key);
        assert_eq!(listener.is_none(), hears.is_empty());
        let agreed = pair.apply_all(&runtime, operations);
        seen.borrow_mut().extend(pair.answers.iter().map(Answer::kind));
        agreed?;
        pair.compare_news(listener)
    });
    match outcome {
        Ok(()) => {}
        // The reason tells the whole shortened history.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
    }
    assert_eq!(seen.into_inner(), face.kinds(), "every kind of answer was given and compared");
}

/// One lock on a server and in memory.
struct Pair<'a> {
    real: &'a LuaScheme,
    face: Face,
    key: Arc<Key>,
    record: Record,
    /// The server's time in the last reply.
    last: ServerTime,
    /// What the last look has shown.
    seen: View,
    answers: Vec<Answer>,
    /// What was to be published.
    news: Vec<String>,
    /// What was done and answered until now.
    history: String,
}

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    Acquired(Acquired),
    Left(Left),
    Turned(Mode, Turned),
    Renewed(Renewed),
    View(View),
    Forced(Vec<String>),
}

impl<'a> Pair<'a> {
    fn new(real: &'a LuaScheme, face: Face, name: &str) -> Self {
        Self {
            real,
            face,
            key: Arc::new(Key::new("oracle", name).expect("a valid name")),
            record: Record::default(),
            last: ServerTime::default(),
            seen: View::default(),
            answers: Vec::new(),
            news: Vec::new(),
            history: String::new(),
        }
    }

    fn apply_all(&mut self, runtime: &Runtime, operations: Vec<Operation>) -> TestCaseResult {
        runtime.block_on(async {
            // The first look says what the server's time is, the last one what all operations have left behind.
            self.apply(Operation::Inspect).await?;
            for operation in operations {
                self.apply(operation).await?;
            }
            self.apply(Operation::Inspect).await
        })
    }

    async fn apply(&mut self, operation: Operation) -> TestCaseResult {
        self.history.push_str(&format!("\n{operation:?}"));
        match operation {
            Operation::Acquire { who, wish } => {
                let ask = self.face.ask(who, wish);
                let real = self.real.acquire(&self.key, &ask).await;
                self.compare(Some(who), real, Answer::Acquired, |record, now| record.acquire(now, u64::MAX, &ask))
            }
            Operation::AcquireUntil { who, wish, limit_ms } => {
                let ask = self.face.ask(who, wish);
                let not_after_ms = self.last_ms().saturating_add_signed(limit_ms);
                let real = self.real.acquire_until(&self.key, &ask, not_after_ms).await;
                self.compare(Some(who), real, Answer::Acquired, |record, now| record.acquire(now, not_after_ms, &ask))
            }
            Operation::Leave { who } => {
                let id = acquisition(who);
                let real = self.real.leave(&self.key, &id).await;
                self.compare(Some(who), real, Answer::Left, |record, now| record.leave(now, &id))
            }
            Operation::Turn { old, new, wish } => {
                let (old, ask) = (acquisition(old), self.face.ask(new, wish));
                let real = self.real.turn(&self.key, &old, &ask).await;
                let answer = |turned| Answer::Turned(ask.mode, turned);
                self.compare(Some(new), real, answer, |record, now| record.turn(now, u64::MAX, &old, &ask))
            }
            Operation::TurnUntil { old, new, wish, limit_ms } => {
                let (old, ask) = (acquisition(old), self.face.ask(new, wish));
                let not_after_ms = self.last_ms().saturating_add_signed(limit_ms);
                let real = self.real.turn_until(&self.key, &old, &ask, not_after_ms).await;
                let answer = |turned| Answer::Turned(ask.mode, turned);
                self.compare(Some(new), real, answer, |record, now| record.turn(now, not_after_ms, &old, &ask))
            }
            Operation::Renew(holds) => self.renew(&holds).await,
            Operation::Inspect => self.look().await,
            Operation::Force => {
                self.look().await?;
                self.force().await
            }
            Operation::ForceLate => self.force().await,
            Operation::Pause { ms } => {
                tokio::time::sleep(Duration::from_millis(ms)).await;
                Ok(())
            }
        }
    }

    async fn look(&mut self) -> TestCaseResult {
        let real = self.real.inspect(&self.key).await;
        if let Ok(answer) = &real {
            self.seen = answer.value.clone();
        }
        self.compare(None, real, |view| Answer::View(sorted(view)), |record, now| record.inspect(now))
    }

    async fn force(&mut self) -> TestCaseResult {
        let real = self.real.force(&self.key, &self.seen).await;
        let seen = self.seen.token;
        let in_order = |mut ids: Vec<String>| {
            ids.sort();
            Answer::Forced(ids)
        };
        self.compare(None, real, in_order, |record, now| record.force(now, seen))
    }

    async fn renew(&mut self, holds: &[(usize, u64)]) -> TestCaseResult {
        let renewal = |&(who, lease_ms): &(usize, u64)| Renewal {
            key: Arc::clone(&self.key),
            id: acquisition(who),
            lease: Duration::from_millis(lease_ms),
        };
        let batch: Vec<_> = holds.iter().map(renewal).collect();
        let answers = self.real.renew(&self.real.route(&self.key), &batch).await;
        prop_assert_eq!(answers.len(), batch.len());
        for (real, Renewal { id, lease, .. }) in answers.into_iter().zip(&batch) {
            self.compare(None, real, Answer::Renewed, |record, now| record.renew(now, id, *lease))?;
        }
        Ok(())
    }

    fn last_ms(&self) -> u64 {
        self.last.as_micros() / 1000
    }

    /// What was published is what the specification has to tell.
    fn compare_news(mut self, listener: Option<Listener>) -> TestCaseResult {
        let Some(listener) = listener else {
            return Ok(());
        };
        self.news.sort();
        let heard = listener.heard();
        prop_assert!(heard == self.news, "heard {:?}, not {:?}; after:{}", heard, self.news, self.history);
        Ok(())
    }

    /// Does the same in memory, at the server's time. Whoever asks is not told of its grant twice.
    fn compare<T>(
        &mut self,
        asks: Option<usize>,
        real: Attempt<T>,
        answer: impl Fn(T) -> Answer,
        operation: impl FnOnce(&mut Record, ServerTime) -> T,
    ) -> TestCaseResult {
        let Answered { server, value, .. } =
            real.map_err(|failure| TestCaseError::fail(format!("{failure:?}; so far:{}", self.history)))?;
        self.last = server;
        let real = answer(value);
        let specified = answer(operation(&mut self.record, server));
        let live = self.record.inspect(server);
        let news = self.record.take_news().into_iter();
        let others = news.filter(|news| asks.is_none_or(|who| news.id != acquisition(who)));
        self.news.extend(others.map(|news| message(&news, server)));
        self.history.push_str(&format!("\n    at {} us: {real:?}", server.as_micros()));
        prop_assert!(
            real.agrees_with(&specified, &live),
            "the specification says {:?} beside {:?}; so far:{}",
            specified,
            live,
            self.history
        );
        self.answers.push(real);
        Ok(())
    }
}

/// As `lua/README.md` has it.
fn message(news: &News, server: ServerTime) -> String {
    let News { id, granted } = news;
    let deadline_ms = u128::from(server.as_micros() / 1000) + granted.remaining.as_millis();
    let (token, server_us) = (granted.token, server.as_micros());
    let waiting = u8::from(granted.writers_waiting);
    format!("{} {token} {} {deadline_ms} {server_us} {waiting}", id.as_str(), granted.turns)
}

fn sorted(mut view: View) -> View {
    view.holders.sort_by(|a, b| a.id.cmp(&b.id));
    // Within a millisecond any order will do.
    view.waiters.sort_by(|a, b| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
    view
}

impl Answer {
    fn kind(&self) -> &'static str {
        match self {
            Self::Acquired(Acquired::Granted(granted)) if granted.writers_waiting => "granted, a writer waits",
            Self::Acquired(Acquired::Granted(granted)) if granted.turns > 1 => "granted, several turns",
            Self::Acquired(Acquired::Granted(_)) => "granted",
            Self::Acquired(Acquired::Contended { .. }) => "contended",
            Self::Acquired(Acquired::Queued { .. }) => "queued",
            Self::Acquired(Acquired::Late) => "late",
            Self::Left(Left::Held) => "held",
            Self::Left(Left::Queued) => "dequeued",
            Self::Left(Left::None { forced: None }) => "none",
            Self::Left(Left::None { forced: Some(_) }) => "none, by force",
            Self::Turned(Mode::Read, Turned::Granted(_)) => "turned to read",
            Self::Turned(Mode::Write, Turned::Granted(_)) => "turned to write",
            Self::Turned(_, Turned::Refused) => "not turned",
            Self::Turned(_, Turned::Lost { forced: None }) => "turn lost",
            Self::Turned(_, Turned::Lost { forced: Some(_) }) => "turn lost, by force",
            Self::Turned(_, Turned::Late) => "turn late",
            Self::Renewed(Renewed::Renewed { .. }) => "renewed",
            Self::Renewed(Renewed::Lost { forced: None }) => "lost",
            Self::Renewed(Renewed::Lost { forced: Some(_) }) => "lost, by force",
            Self::View(view) if !view.waiters.is_empty() => "view with waiters",
            Self::View(_) => "view",
            Self::Forced(_) => "forced",
        }
    }

    /// `live` is who holds the lock now that this was answered.
    fn agrees_with(&self, specified: &Self, live: &View) -> bool {
        match (self, specified) {
            (Self::Acquired(Acquired::Contended { retry_in }), Self::Acquired(Acquired::Contended { .. }))
            | (Self::Acquired(Acquired::Queued { retry_in }), Self::Acquired(Acquired::Queued { .. })) => {
                live.holders.iter().any(|holder| holder.remaining == *retry_in)
            }
            _ => self == specified,
        }
    }
}
