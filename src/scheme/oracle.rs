//! The oracle: random operations on a real server and on the specification in memory must be answered alike.
//!
//! A [`Record`] takes the server's time as an argument, so it is given the time that each real reply reports. Leases
//! expire in real time between the operations, and yet answers agree to the millisecond, tokens to the microsecond.
//! Answers may differ in one point: which of several readers it is whose deadline a refused writer is told.

use std::cell::{Cell, RefCell};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use tokio::runtime::{Builder, Runtime};

use crate::key::Key;
use crate::lease::ServerTime;
use crate::options::Options;
use crate::scheme::lua::LuaScheme;
use crate::scheme::memory::Record;
use crate::scheme::{
    Acquired, Acquisition, Answered, Ask, Attempt, Left, Mode, Renewal, Renewed, Scheme, View, hash, two_key,
};
use crate::topology::Topology;
use crate::transport::{self, Transport};

#[test]
fn hash_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    agrees(&Topology::node(node.url()), hash_scheme, 256);
}

#[test]
fn hash_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    agrees(&Topology::node(node.url()), hash_scheme, 256);
}

#[test]
fn hash_on_a_cluster() {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
    agrees(&Topology::cluster(cluster.urls()), hash_scheme, 64);
}

#[test]
fn two_key_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    agrees(&Topology::node(node.url()), two_key::scheme, 256);
}

#[test]
fn two_key_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    agrees(&Topology::node(node.url()), two_key::scheme, 256);
}

fn hash_scheme(transport: Arc<dyn Transport>) -> LuaScheme {
    hash::scheme(transport, Options::default().published_limits)
}

/// Three that read: so many it takes for one to move into the gap that another leaves. And two that write.
const MODES: [Mode; 5] = [Mode::Read, Mode::Read, Mode::Read, Mode::Write, Mode::Write];

fn acquisition(who: usize) -> Acquisition {
    Acquisition::new("m", who as u64, "label")
}

#[derive(Clone, Debug)]
enum Operation {
    Acquire {
        who: usize,
        lease_ms: u64,
    },
    /// The last moment at which it may be carried out is so far from the reply before it.
    AcquireUntil {
        who: usize,
        lease_ms: u64,
        limit_ms: i64,
    },
    Leave {
        who: usize,
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
    let lease_ms = || prop_oneof![4 => 1..=5_u64, 1 => 6..=30_u64, 3 => Just(10_000_u64)];
    let operation = prop_oneof![
        10 => (who(), lease_ms()).prop_map(|(who, lease_ms)| Operation::Acquire { who, lease_ms }),
        3 => (who(), lease_ms(), -2..=3_i64)
            .prop_map(|(who, lease_ms, limit_ms)| Operation::AcquireUntil { who, lease_ms, limit_ms }),
        6 => who().prop_map(|who| Operation::Leave { who }),
        5 => vec((who(), lease_ms()), 1..4).prop_map(Operation::Renew),
        3 => Just(Operation::Inspect),
        1 => Just(Operation::Force),
        1 => Just(Operation::ForceLate),
        3 => (1..=3_u64).prop_map(|ms| Operation::Pause { ms }),
    ];
    vec(operation, 1..60)
}

/// Sets random operations against both, `cases` times with a lock of its own.
fn agrees(topology: &Topology, scheme: fn(Arc<dyn Transport>) -> LuaScheme, cases: u32) {
    // However busy the machine is, an answer is waited for.
    let options = Options { response_timeout: Duration::from_secs(20), ..Options::default() };
    let scheme = scheme(transport::open(topology.clone(), &options).expect("a valid topology"));
    let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
    let name = Cell::new(0);
    let seen = RefCell::new(BTreeSet::new());
    let config = Config { cases, failure_persistence: None, ..Config::default() };
    let outcome = TestRunner::new(config).run(&operations(), |operations| {
        name.set(name.get() + 1);
        let mut pair = Pair::new(&scheme, &format!("lock {}", name.get()));
        let agreed = pair.apply_all(&runtime, operations);
        seen.borrow_mut().extend(pair.answers.iter().map(Answer::kind));
        agreed
    });
    match outcome {
        Ok(()) => {}
        // The reason tells the whole shortened history.
        Err(TestError::Fail(reason, _)) => panic!("{reason}"),
        Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
    }
    assert_eq!(seen.into_inner(), Answer::KINDS.into(), "every kind of answer was given and compared");
}

/// One lock on a server and in memory.
struct Pair<'a> {
    real: &'a LuaScheme,
    key: Arc<Key>,
    record: Record,
    /// The server's time in the last reply.
    last: ServerTime,
    /// What the last look has shown.
    seen: View,
    answers: Vec<Answer>,
    /// What was done and answered until now.
    history: String,
}

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    Acquired(Acquired),
    Left(Left),
    Renewed(Renewed),
    View(View),
    Forced(Vec<String>),
}

impl<'a> Pair<'a> {
    fn new(real: &'a LuaScheme, name: &str) -> Self {
        Self {
            real,
            key: Arc::new(Key::new("oracle", name).expect("a valid name")),
            record: Record::default(),
            last: ServerTime::default(),
            seen: View::default(),
            answers: Vec::new(),
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
            Operation::Acquire { who, lease_ms } => {
                let ask = ask(who, lease_ms);
                let real = self.real.acquire(&self.key, &ask).await;
                self.compare(real, Answer::Acquired, |record, now| record.acquire(now, u64::MAX, &ask))
            }
            Operation::AcquireUntil { who, lease_ms, limit_ms } => {
                let ask = ask(who, lease_ms);
                let not_after_ms = (self.last.as_micros() / 1000).saturating_add_signed(limit_ms);
                let real = self.real.acquire_until(&self.key, &ask, not_after_ms).await;
                self.compare(real, Answer::Acquired, |record, now| record.acquire(now, not_after_ms, &ask))
            }
            Operation::Leave { who } => {
                let id = acquisition(who);
                let real = self.real.leave(&self.key, &id).await;
                self.compare(real, Answer::Left, |record, now| record.leave(now, &id))
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
        self.compare(real, |view| Answer::View(sorted(view)), |record, now| record.inspect(now))
    }

    async fn force(&mut self) -> TestCaseResult {
        let real = self.real.force(&self.key, &self.seen).await;
        let seen = self.seen.token;
        let in_order = |mut ids: Vec<String>| {
            ids.sort();
            Answer::Forced(ids)
        };
        self.compare(real, in_order, |record, now| record.force(now, seen))
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
            self.compare(real, Answer::Renewed, |record, now| record.renew(now, id, *lease))?;
        }
        Ok(())
    }

    /// Does the same in memory, at the server's time.
    fn compare<T>(
        &mut self,
        real: Attempt<T>,
        answer: impl Fn(T) -> Answer,
        operation: impl FnOnce(&mut Record, ServerTime) -> T,
    ) -> TestCaseResult {
        let Answered { server, value, .. } =
            real.map_err(|failure| TestCaseError::fail(format!("{failure:?}; so far:{}", self.history)))?;
        self.last = server;
        let live = self.record.inspect(server);
        let real = answer(value);
        let specified = answer(operation(&mut self.record, server));
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

fn ask(who: usize, lease_ms: u64) -> Ask {
    Ask {
        id: acquisition(who),
        mode: MODES[who],
        lease: Duration::from_millis(lease_ms),
        turns: 1,
        if_taken: crate::scheme::IfTaken::Leave,
    }
}

fn sorted(mut view: View) -> View {
    view.holders.sort_by(|a, b| a.id.cmp(&b.id));
    view
}

impl Answer {
    const KINDS: [&'static str; 11] = [
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
    ];

    fn kind(&self) -> &'static str {
        match self {
            Self::Acquired(Acquired::Granted(_)) => "granted",
            Self::Acquired(Acquired::Contended { .. } | Acquired::Queued { .. }) => "contended",
            Self::Acquired(Acquired::Late) => "late",
            Self::Left(Left::Held | Left::Queued) => "held",
            Self::Left(Left::None { forced: None }) => "none",
            Self::Left(Left::None { forced: Some(_) }) => "none, by force",
            Self::Renewed(Renewed::Renewed { .. }) => "renewed",
            Self::Renewed(Renewed::Lost { forced: None }) => "lost",
            Self::Renewed(Renewed::Lost { forced: Some(_) }) => "lost, by force",
            Self::View(_) => "view",
            Self::Forced(_) => "forced",
        }
    }

    /// `live` is who held the lock when this was answered.
    fn agrees_with(&self, specified: &Self, live: &View) -> bool {
        match (self, specified) {
            (Self::Acquired(Acquired::Contended { retry_in }), Self::Acquired(Acquired::Contended { .. })) => {
                live.holders.iter().any(|holder| holder.remaining == *retry_in)
            }
            _ => self == specified,
        }
    }
}
