//! Oracle. A real server and the specification in memory must give the same answers to random operations.
//!
//! A [`Record`] takes the server's time as an argument, so it gets the time that each real reply reports. Leases expire
//! in real time between the operations. Nevertheless answers agree to the millisecond, and tokens to the microsecond.
//! Answers may differ in one point. A refused writer learns the deadline of one of several readers, and the two sides
//! may choose different readers. Published messages must be equal, too.
//!
//! The comparison covers more settings, since both sides see the same times:
//!
//! * a server whose clock steps;
//! * a server that forgets the key when its expiry is over, and never earlier;
//! * clients of the timestamp scheme that use the same locks, and their answers;
//! * operations that may touch two records only.
//!
//! The oracle notices scripts that are changed in one place: `oracle/changes.rs` lists the changes.

mod answer;
mod changes;
mod listener;
mod operation;
mod pair;

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster_testenv::{Client, Cluster, Node, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{Config, TestError, TestRunner};
use tokio::runtime::Builder;

use crate::base::key::Key;
use crate::base::options::{Options, TimestampClients};
use crate::base::topology::Topology;
use crate::net::{Router, Script};
use crate::store::lua::{LuaScheme, Scripts};
use crate::store::memory::{Record, TimestampClientsMs};
use crate::store::{Acquired, AcquisitionId, Converted, Forced, Mode, Renewed, View, hash, scripts, two_key};
use listener::Listener;
use operation::{Face, Operation, mishap, operation, their_operation};
use pair::Pair;

pub(super) use pair::{grant_message, recall_message};

/// Comparisons on each server. On each push, those before the semicolon run on the oldest and on the newest one, and those
/// behind it on the newest.
macro_rules! on_each_server {
    ($($case:ident),+; $($once:ident),+ $(,)?) => {
        $(mod $case {
            on_each_server!(@ $case on_redis_7_0 Redis70);
            on_each_server!(@later $case);
        })+
        $(mod $once {
            on_each_server!(@ $once #[ignore = "runs in `.ci/all`"] on_redis_7_0 Redis70);
            on_each_server!(@later $once);
        })+
    };
    (@later $case:ident) => {
        on_each_server!(@ $case #[ignore = "runs in `.ci/all`"] on_redis_8_2 Redis82);
        on_each_server!(@ $case #[ignore = "runs in `.ci/all`"] on_valkey_8_1 Valkey81);
        on_each_server!(@ $case on_valkey_9_1 Valkey91);
    };
    (@ $case:ident $(#[$later:meta])? $name:ident $server:ident) => {
        #[test]
        $(#[$later])?
        fn $name() {
            super::$case(cluster_testenv::Server::$server);
        }
    };
}

on_each_server![
    hash_scheme, two_key_scheme;
    hash_with_timestamp_clients, hash_with_clock_steps, two_key_with_clock_steps, hash_on_a_cluster,
    hash_with_limits_of_two, hash_with_limits_of_two_and_timestamp_clients,
];

fn start(server: Server) -> Node {
    Node::start(server).expect("the server starts")
}

fn start_with_clock(server: Server) -> Node {
    Node::builder(server).clock().start().expect("the server starts")
}

fn hash_scheme(server: Server) {
    Setting::hash(&start(server), 256).agrees();
}

fn hash_on_a_cluster(server: Server) {
    let cluster = Cluster::builder(server).replicas(0).start().expect("the cluster starts");
    let listening_at = cluster.primaries();
    Setting { listening_at, ..Setting::new(Topology::cluster(cluster.urls()), Face::Hash, 128) }.agrees();
}

fn two_key_scheme(server: Server) {
    Setting::two_key(&start(server), 256).agrees();
}

fn hash_with_timestamp_clients(server: Server) {
    let node = start(server);
    Setting::hash(&node, 256).with_timestamp_clients(&node).agrees();
}

fn hash_with_clock_steps(server: Server) {
    let node = start_with_clock(server);
    Setting::hash(&node, 128).with_steps(&node).agrees();
}

fn two_key_with_clock_steps(server: Server) {
    let node = start_with_clock(server);
    Setting::two_key(&node, 128).with_steps(&node).agrees();
}

fn hash_with_limits_of_two(server: Server) {
    Setting::hash(&start(server), 256).limited_to_two().agrees();
}

fn hash_with_limits_of_two_and_timestamp_clients(server: Server) {
    let node = start(server);
    Setting::hash(&node, 256).limited_to_two().with_timestamp_clients(&node).agrees();
}

/// Scheme and topology to compare, and the faults during the comparison.
#[derive(Clone)]
struct Setting<'a> {
    topology: Topology,
    face: Face,
    cases: u32,
    /// Nodes on which published messages are received.
    listening_at: Vec<&'a Node>,
    /// Node on which clients of the timestamp scheme use the locks too.
    timestamp_clients: Option<&'a Node>,
    /// Node whose clock steps forwards and backwards, and whose keys are lost.
    steps: Option<&'a Node>,
    /// True if one operation touches two records at most.
    limited: bool,
    /// Replacements in the texts of the scripts.
    changes: Vec<(&'a str, &'a str)>,
}

/// Limits of the timestamp clients. They are so short that they pass within a few operations.
const TIMESTAMP_CLIENTS: TimestampClientsMs = TimestampClientsMs { read_ms: 4, write_ms: 7 };

impl<'a> Setting<'a> {
    fn new(topology: Topology, face: Face, cases: u32) -> Self {
        Self {
            topology,
            face,
            cases,
            listening_at: Vec::new(),
            timestamp_clients: None,
            steps: None,
            limited: false,
            changes: Vec::new(),
        }
    }

    fn hash(node: &'a Node, cases: u32) -> Self {
        Self { listening_at: vec![node], ..Self::new(Topology::node(node.url()), Face::Hash, cases) }
    }

    fn two_key(node: &Node, cases: u32) -> Self {
        Self::new(Topology::node(node.url()), Face::TwoKey, cases)
    }

    fn with_timestamp_clients(self, node: &'a Node) -> Self {
        Self { timestamp_clients: Some(node), ..self }
    }

    fn with_steps(self, node: &'a Node) -> Self {
        Self { steps: Some(node), ..self }
    }

    fn limited_to_two(self) -> Self {
        Self { limited: true, changes: TWO_RECORDS.to_vec(), ..self }
    }

    fn scheme(&self, router: Arc<Router>) -> LuaScheme {
        let TimestampClientsMs { read_ms, write_ms } = TIMESTAMP_CLIENTS;
        let [read, write] = [read_ms, write_ms].map(Duration::from_millis);
        let limits = TimestampClients::new(read, write);
        match self.face {
            Face::Hash if self.changes.is_empty() => hash::scheme(router, limits),
            Face::Hash => hash::scheme_of(altered(&self.changes), router, limits),
            Face::TwoKey => two_key::scheme(router),
        }
    }

    fn record(&self) -> Record {
        let record = if self.limited { Record::with_limit(2) } else { Record::default() };
        if self.timestamp_clients.is_some() { record.beside_timestamp_clients(TIMESTAMP_CLIENTS) } else { record }
    }

    /// Returns the kinds of answers and events that must all occur in the long run.
    fn kinds(&self) -> BTreeSet<&'static str> {
        let theirs = [
            "their read",
            "their read refused",
            "their write",
            "their write refused",
            "view with their read",
            "view with their write",
        ];
        let steps = ["key lost", "key expired"];
        let limited = ["a turn goes on", "view of some", "forced some"];
        let theirs = theirs.into_iter().filter(|_| self.timestamp_clients.is_some());
        let steps = steps.into_iter().filter(|_| self.steps.is_some());
        let limited = limited.into_iter().filter(|_| self.limited);
        self.face.kinds().into_iter().chain(theirs).chain(steps).chain(limited).collect()
    }

    fn operations(&self) -> impl Strategy<Value = Vec<Operation>> + use<> {
        let mut kinds = vec![(48, operation().boxed())];
        kinds.extend(self.timestamp_clients.map(|_| (24, their_operation().boxed())));
        kinds.extend(self.steps.map(|_| (8, mishap().boxed())));
        vec(Union::new_weighted(kinds), 1..60)
    }
}

/// Returns the scripts of the hash scheme with some texts replaced.
fn altered(changes: &[(&str, &str)]) -> &'static Scripts {
    use scripts::hash::{ACQUIRE, CONVERT, FORCE, INSPECT, LEAVE, NOTE, RENEW};
    let texts = [ACQUIRE, LEAVE, CONVERT, RENEW, INSPECT, FORCE, NOTE];
    for (from, _) in changes {
        assert!(texts.iter().any(|text| text.contains(from)), "{from} is in no script");
    }
    let alter = |text: &str| changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let [acquire, leave, convert, renew, inspect, force, note] = texts.map(|text| Script::new(alter(text).leak()));
    let (used, note, key_parts) = (None, Some(note), &["lock"][..]);
    Box::leak(Box::new(Scripts { acquire, leave, convert, renew, inspect, force, used, note, key_parts }))
}

/// Change after which one operation touches at most two records. The server also converts the hashes of a lock to
/// tables early.
const TWO_RECORDS: [(&str, &str); 2] = [("MAX_RECORDS = 96", "MAX_RECORDS = 2"), ("MIN_TABLE = 8", "MIN_TABLE = 3")];

/// Asserts that the oracle finds a difference between scripts with each of these changes and the specification. The rarest
/// change shows within a thousand histories on average. So a change that 20,000 histories do not show is not found at all.
fn assert_noticed(setting: &Setting<'_>, broken: &[(&str, &str)]) {
    for (from, to) in broken {
        let changes = [&setting.changes[..], &[(from, to)]].concat();
        let changed = Setting { changes, cases: 20_000, ..setting.clone() };
        println!("{from:?} becomes {to:?}");
        assert!(changed.disagreement(0).is_some(), "nobody notices {to:?} in the place of {from:?}");
    }
}

/// `.ci/all` runs most of the changes. So that it can, this runs on each push.
#[test]
fn each_change_applies_to_a_script() {
    for change in changes::ALL.into_iter().flatten() {
        altered(&[*change]);
    }
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn broken_stamps_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0).with_timestamp_clients(&node), &changes::STAMPS);
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn broken_notes_and_refusals_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0).with_timestamp_clients(&node), &changes::NOTES_AND_REFUSALS);
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn broken_marks_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0), &changes::MARKS);
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn broken_rests_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0), &changes::RESTS);
}

#[test]
fn broken_passes_to_the_same_side_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0), &changes::PASSES);
}

#[test]
#[ignore = "runs in `.ci/all`"]
fn broken_limits_are_noticed() {
    let node = start(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0).limited_to_two(), &changes::LIMITS);
}

#[test]
fn what_breaks_with_the_clock_is_noticed() {
    let node = start_with_clock(Server::Valkey91);
    assert_noticed(&Setting::hash(&node, 0).with_steps(&node), &changes::CLOCK);
}

/// Rounds of `cases` histories. The test fails if a kind of answer has not come after all rounds.
const MOST_ROUNDS: usize = 8;

/// Number of locks so far. Each lock has a name of its own.
static LOCKS: AtomicU64 = AtomicU64::new(0);

impl Setting<'_> {
    /// Runs random operations on both, and asserts that all answers agree and each kind of answer occurs.
    fn agrees(&self) {
        if let Some(reason) = self.disagreement(4 * self.cases) {
            panic!("{reason}");
        }
    }

    /// Returns the first history on which server and specification differ, shortened in at most `max_shrink_iters`
    /// steps.
    fn disagreement(&self, max_shrink_iters: u32) -> Option<String> {
        // A busy machine must not turn a slow answer into a failure.
        let options = Options { response_timeout: Duration::from_secs(20), ..Options::default() };
        let background = options.background_runtime(crate::base::clock::Clock::System);
        let router = Router::new(&self.topology, &options, &background).expect("a valid topology");
        let scheme = self.scheme(Arc::new(router));
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let seen = RefCell::new(BTreeSet::new());
        let config = Config { cases: self.cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
        // The histories are random, so rounds are repeated until each kind of answer has come.
        for _ in 0..MOST_ROUNDS {
            let outcome = TestRunner::new(config.clone()).run(&self.operations(), |operations| {
                if let Some(node) = self.steps {
                    node.clock().set_right();
                }
                let mut pair = Pair::new(self, &scheme, &format!("lock {}", LOCKS.fetch_add(1, Ordering::Relaxed)));
                let listener = Listener::new(&self.listening_at, &pair.key);
                assert_eq!(listener.is_none(), self.listening_at.is_empty());
                let agreed = pair.apply_all(&runtime, operations);
                seen.borrow_mut().extend(pair.seen_kinds.iter());
                agreed?;
                pair.compare_notifications(listener)
            });
            match outcome {
                Ok(()) if *seen.borrow() == self.kinds() => return None,
                Ok(()) => {}
                Err(TestError::Fail(reason, _)) => return Some(reason.to_string()),
                Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
            }
        }
        assert_eq!(seen.into_inner(), self.kinds(), "every kind of answer was given and compared");
        None
    }
}
