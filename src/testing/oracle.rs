//! The oracle: random operations on a real server and on the specification in memory must be answered alike.
//!
//! A [`Record`] takes the server's time as an argument, so it is given the time that each real reply reports. Leases
//! expire in real time between the operations, and yet answers agree to the millisecond, tokens to the microsecond.
//! Answers may differ in one point: which of several readers it is whose deadline a refused writer is told.
//! What is published is compared too, word by word.
//!
//! The same holds whatever the server's clock does, since both see the same times; when the server forgets the key, which is
//! taken from its own word, and never too early; beside clients of the published scheme, whose answers are compared as well;
//! and where one operation may touch two records only. Scripts that are broken in one place are told from sound ones.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster_testenv::{Client, Cluster, Node, NodeClock, Reply, Server};
use proptest::collection::vec;
use proptest::prelude::*;
use proptest::strategy::Union;
use proptest::test_runner::{Config, TestCaseResult, TestError, TestRunner};
use tokio::runtime::{Builder, Runtime};

use crate::key::Key;
use crate::lease::ServerTime;
use crate::options::{Options, PublishedLimits};
use crate::scheme::lua::{LuaScheme, Scripts};
use crate::scheme::memory::{News, PublishedLimitsMs, Record};
use crate::scheme::{
    Absence, AcquireRequest, Acquired, AcquisitionId, Answered, Attempt, Converted, Forced, Granted, IfTaken, Mode,
    ReleaseReply, Renewal, Renewed, Scheme, View, hash, scripts, two_key,
};
use crate::topology::Topology;
use crate::transport::{self, Script, Transport};

#[test]
fn hash_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]).agrees();
}

#[test]
fn hash_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]).agrees();
}

#[test]
fn hash_on_a_cluster() {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
    Setting::new(Topology::cluster(cluster.urls()), Face::Hash, 128).told_by(cluster.primaries()).agrees();
}

#[test]
fn two_key_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::TwoKey, 256).agrees();
}

#[test]
fn two_key_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::TwoKey, 256).agrees();
}

#[test]
fn hash_beside_published_clients_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]).beside_published(&node).agrees();
}

#[test]
fn hash_beside_published_clients_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]).beside_published(&node).agrees();
}

#[test]
fn hash_with_clock_steps_on_redis() {
    let node = Node::builder(Server::Redis70).clock().start().expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 128).told_by(vec![&node]).with_steps(&node).agrees();
}

#[test]
fn hash_with_clock_steps_on_valkey() {
    let node = Node::builder(Server::Valkey91).clock().start().expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 128).told_by(vec![&node]).with_steps(&node).agrees();
}

#[test]
fn two_key_with_clock_steps_on_redis() {
    let node = Node::builder(Server::Redis70).clock().start().expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::TwoKey, 128).with_steps(&node).agrees();
}

#[test]
fn two_key_with_clock_steps_on_valkey() {
    let node = Node::builder(Server::Valkey91).clock().start().expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::TwoKey, 128).with_steps(&node).agrees();
}

#[test]
fn hash_with_limits_of_two_on_redis() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]).limited_to_two().agrees();
}

#[test]
fn hash_with_limits_of_two_beside_published_clients_on_valkey() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    let setting = Setting::new(Topology::node(node.url()), Face::Hash, 256).told_by(vec![&node]);
    setting.limited_to_two().beside_published(&node).agrees();
}

/// What is compared, and what happens meanwhile.
struct Setting<'a> {
    topology: Topology,
    face: Face,
    cases: u32,
    /// On these it is heard what is published.
    hears: Vec<&'a Node>,
    /// Clients of the published scheme use the locks too, on this node.
    published: Option<&'a Node>,
    /// The clock of this node goes forwards and backwards, and keys are lost.
    steps: Option<&'a Node>,
    /// One operation touches two records at most.
    limited: bool,
    /// What is different in the scripts.
    changes: Vec<(&'a str, &'a str)>,
}

/// So short that they pass within a few operations.
const PUBLISHED: PublishedLimitsMs = PublishedLimitsMs { read_ms: 4, write_ms: 7 };

impl<'a> Setting<'a> {
    fn new(topology: Topology, face: Face, cases: u32) -> Self {
        Self {
            topology,
            face,
            cases,
            hears: Vec::new(),
            published: None,
            steps: None,
            limited: false,
            changes: Vec::new(),
        }
    }

    fn told_by(self, hears: Vec<&'a Node>) -> Self {
        Self { hears, ..self }
    }

    fn beside_published(self, node: &'a Node) -> Self {
        Self { published: Some(node), ..self }
    }

    fn with_steps(self, node: &'a Node) -> Self {
        Self { steps: Some(node), ..self }
    }

    fn limited_to_two(self) -> Self {
        Self { limited: true, changes: TWO_RECORDS.to_vec(), ..self }
    }

    fn scheme(&self, transport: Arc<dyn Transport>) -> LuaScheme {
        let PublishedLimitsMs { read_ms, write_ms } = PUBLISHED;
        let [read, write] = [read_ms, write_ms].map(Duration::from_millis);
        let limits = PublishedLimits::new(read, write);
        match self.face {
            Face::Hash if self.changes.is_empty() => hash::scheme(transport, limits),
            Face::Hash => hash::scheme_of(altered(&self.changes), transport, limits),
            Face::TwoKey => two_key::scheme(transport),
        }
    }

    fn record(&self) -> Record {
        let record = if self.limited { Record::bounded(2) } else { Record::default() };
        if self.published.is_some() { record.beside_published(PUBLISHED) } else { record }
    }

    /// What is answered and happens in the long run.
    fn kinds(&self) -> BTreeSet<&'static str> {
        let published = [
            "their read",
            "their read refused",
            "their write",
            "their write refused",
            "view with their read",
            "view with their write",
        ];
        let steps = ["key lost", "key expired"];
        let limited = ["a turn goes on", "view of some", "forced some"];
        let published = published.into_iter().filter(|_| self.published.is_some());
        let steps = steps.into_iter().filter(|_| self.steps.is_some());
        let limited = limited.into_iter().filter(|_| self.limited);
        self.face.kinds().into_iter().chain(published).chain(steps).chain(limited).collect()
    }

    fn operations(&self) -> impl Strategy<Value = Vec<Operation>> + use<> {
        let mut kinds = vec![(48, operation().boxed())];
        kinds.extend(self.published.map(|_| (24, their_operation().boxed())));
        kinds.extend(self.steps.map(|_| (8, mishap().boxed())));
        vec(Union::new_weighted(kinds), 1..60)
    }
}

/// The scripts of the hash scheme with other texts in some places.
fn altered(changes: &[(&str, &str)]) -> &'static Scripts {
    use scripts::hash::{ACQUIRE, CONVERT, FORCE, INSPECT, LEAVE, RENEW};
    let texts = [ACQUIRE, LEAVE, CONVERT, RENEW, INSPECT, FORCE];
    for (from, _) in changes {
        assert!(texts.iter().any(|text| text.contains(from)), "{from} is in no script");
    }
    let alter = |text: &str| changes.iter().fold(text.to_owned(), |text, (from, to)| text.replace(from, to));
    let [acquire, leave, convert, renew, inspect, force] = texts.map(|text| Script::new(alter(text).leak()));
    Box::leak(Box::new(Scripts { acquire, leave, convert, renew, inspect, force, key_parts: &["lock"] }))
}

/// One that touches at most two records. Its hashes become tables early, too.
const TWO_RECORDS: [(&str, &str); 2] = [("MOST_RECORDS = 96", "MOST_RECORDS = 2"), ("local FEW = 8", "local FEW = 3")];

/// Whether the oracle tells scripts with this change from the specification.
fn notices<'a>(setting: Setting<'a>, from: &'a str, to: &'a str) {
    let mut changes = setting.changes.clone();
    changes.push((from, to));
    let changed = Setting { changes, cases: 2_000, ..setting };
    assert!(changed.disagreement(0).is_some(), "nobody notices {to:?} in the place of {from:?}");
}

#[test]
fn broken_stamps_are_noticed() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    let changes = [
        // At its limit a stamp does not count.
        ("stamp_of(write) + write_limit_ms + 1", "stamp_of(write) + write_limit_ms"),
        ("foreign_read + read_limit_ms + 1 or 0", "foreign_read + read_limit_ms or 0"),
        // What ours hides is forgotten, or cut.
        ("covered = math.max(foreign_read, covered)", "covered = 0"),
        ("stamp = math.max(stamp, deadline_ms, covered)", "stamp = math.max(stamp, deadline_ms)"),
        ("if covered > 0 then set('read', covered) elseif", "if"),
        // Ours and theirs are not told apart.
        ("and read ~= stamp and stamp_of(read)", "and tonumber(read) ~= tonumber(stamp) and stamp_of(read)"),
        // Whoever was overrun is not told.
        ("not write and tonumber(own_since) >= tonumber(overrun)", "tonumber(own_since) >= tonumber(overrun)"),
        ("not ended and (write or tonumber(own_since) < overrun_ms)", "false"),
        ("overrun_ms, last = now_ms, math.max(server_us, last + 1)", ""),
        // Who was beside somebody else is forgotten with the first answer: at a newcomer, a repeat, a release, a renewal.
        ("      disown()\n      overrun_ms, last", "      overrun_ms, last"),
        ("  disown()\n  writer = nil", "  writer = nil"),
        ("    disown()\n    last = math.max(server_us, last + 1)", ""),
        (
            "  else -- another stamp, or none, is somebody else's: not ours to the end, and not ours to delete\n    disown()",
            "",
        ),
        ("if was_live and write then disown() end", ""),
        ("elseif tonumber(ends) > now_ms then -- another value, or none, is somebody else's\n    disown()", ""),
        ("if kind == 'r' and tonumber(own_ms) > now_ms and write then disown() end", ""),
        // More tokens than one when it is not known what was given away before.
        ("remembered == 0 and 1 or", "false or"),
        // The header of one reader says nothing of what was beside it.
        ("or covered + overrun_ms > 0", ""),
        ("if write or foreign or tonumber(sole_ends)", "if write or tonumber(sole_ends)"),
        ("not (queue or write) and start ..", "not queue and start .."),
        // A number that is no time is one.
        ("number <= 9007199254740000 and math.floor(number) or 0", "math.floor(number) or 0"),
    ];
    for (from, to) in changes {
        let setting = Setting::new(Topology::node(node.url()), Face::Hash, 0).beside_published(&node);
        notices(setting, from, to);
    }
}

#[test]
fn broken_limits_are_noticed() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    let changes = [
        // A writer enters before all are in whose turn it is.
        ("if in_turn == 0 and next_writer() and head_lives", "if next_writer() and head_lives"),
        // Nobody is told to go on.
        ("if call and call ~= id then", "if false then"),
        // More is looked at than may be.
        ("if records == 0 then\n      crowded = true", "if false then\n      crowded = true"),
    ];
    for (from, to) in changes {
        let setting = Setting::new(Topology::node(node.url()), Face::Hash, 0).told_by(vec![&node]);
        notices(setting.limited_to_two(), from, to);
    }
}

#[test]
fn what_breaks_with_the_clock_is_noticed() {
    let node = Node::builder(Server::Valkey91).clock().start().expect("the server starts");
    let changes = [
        // The key goes too early.
        ("RETENTION_MS, MOST_TURNS = 60000, 64", "RETENTION_MS, MOST_TURNS = 50000, 64"),
        // What was lost comes back.
        ("redis.call('HSET', key, 'R' .. id, '0 ' .. own_since)", ""),
        // A token that does not grow when the clock goes back.
        ("last = math.max(server_us, last + 1)", "last = server_us"),
    ];
    for (from, to) in changes {
        notices(Setting::new(Topology::node(node.url()), Face::Hash, 0).with_steps(&node), from, to);
    }
}

/// The scheme that is compared.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Face {
    Hash,
    /// It knows no queue and grants one token at a time.
    TwoKey,
}

impl Face {
    fn ask(self, who: usize, wish: Wish) -> AcquireRequest {
        let Wish { lease_ms, max_tokens, patience_ms } = wish;
        let (max_tokens, if_taken) = match (self, patience_ms) {
            (Self::Hash, Some(ms)) => (max_tokens, IfTaken::Queue { patience: Duration::from_millis(ms) }),
            (Self::Hash, None) => (max_tokens, IfTaken::Leave),
            (Self::TwoKey, _) => (1, IfTaken::Leave),
        };
        AcquireRequest {
            id: acquisition(who),
            mode: MODES[who],
            lease: Duration::from_millis(lease_ms),
            max_tokens,
            if_taken,
        }
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
        let hash = ["granted, a writer waits", "granted, several tokens", "queued", "dequeued", "view with waiters"];
        both.into_iter().chain(hash.into_iter().filter(|_| self == Self::Hash)).collect()
    }
}

/// So many that read it takes for one to move into the gap that another leaves; and as many writers for the middle of a list.
const MODES: [Mode; 7] = [Mode::Read, Mode::Read, Mode::Read, Mode::Read, Mode::Write, Mode::Write, Mode::Write];
/// As long as a manager's name is, since the channel is cut out of the id.
const MANAGER: &str = "0123456789abcdef0123456789abcdef";

fn acquisition(who: usize) -> AcquisitionId {
    AcquisitionId::new(MANAGER, who as u64, "label")
}

#[derive(Clone, Copy, Debug)]
struct Wish {
    lease_ms: u64,
    max_tokens: u64,
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
    Conversion {
        old: usize,
        new: usize,
        wish: Wish,
    },
    ConvertUntil {
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
    /// A client of the published scheme asks, whose clock is so far from the server's.
    TheirLock {
        mode: Mode,
        skew_ms: i64,
    },
    /// One of those that were granted leaves, for the first time or again.
    TheirUnlock {
        nth: usize,
    },
    /// The server's clock is set by so much.
    Step {
        ms: i64,
    },
    /// All keys of the lock are gone.
    Lose,
}

fn operation() -> impl Strategy<Value = Operation> {
    let who = || 0..MODES.len();
    // Some are over before the next operation or the one after, some while several follow, some never.
    let time_ms = || prop_oneof![4 => 1..=5_u64, 1 => 6..=30_u64, 3 => Just(10_000_u64)];
    let patience_ms = || prop_oneof![1 => Just(None), 3 => time_ms().prop_map(Some)];
    let max_tokens = || prop_oneof![Just(1_u64), 2..=64_u64, Just(1000_u64)];
    let wish = || {
        let parts = (time_ms(), max_tokens(), patience_ms());
        parts.prop_map(|(lease_ms, max_tokens, patience_ms)| Wish { lease_ms, max_tokens, patience_ms })
    };
    let limit_ms = || -2..=3_i64;
    prop_oneof![
        14 => (who(), wish()).prop_map(|(who, wish)| Operation::Acquire { who, wish }),
        3 => (who(), wish(), limit_ms())
            .prop_map(|(who, wish, limit_ms)| Operation::AcquireUntil { who, wish, limit_ms }),
        6 => who().prop_map(|who| Operation::Leave { who }),
        6 => (who(), who(), wish()).prop_map(|(old, new, wish)| Operation::Conversion { old, new, wish }),
        1 => (who(), who(), wish(), limit_ms())
            .prop_map(|(old, new, wish, limit_ms)| Operation::ConvertUntil { old, new, wish, limit_ms }),
        5 => vec((who(), time_ms()), 1..4).prop_map(Operation::Renew),
        3 => Just(Operation::Inspect),
        1 => Just(Operation::Force),
        1 => Just(Operation::ForceLate),
        3 => (1..=3_u64).prop_map(|ms| Operation::Pause { ms }),
    ]
}

fn their_operation() -> impl Strategy<Value = Operation> {
    let mode = prop_oneof![2 => Just(Mode::Read), 1 => Just(Mode::Write)];
    // Right, a little or more than a limit beside it, and where the stamps of our long leases are.
    let skew_ms = prop_oneof![
        4 => -2..=2_i64,
        2 => -20..=20_i64,
        1 => 9_990..=10_002_i64,
        1 => 10_003..=10_040_i64,
        // No time at all.
        1 => Just(10_000_000_000_000_000_i64),
    ];
    prop_oneof![
        3 => (mode, skew_ms).prop_map(|(mode, skew_ms)| Operation::TheirLock { mode, skew_ms }),
        2 => (0..4_usize).prop_map(|nth| Operation::TheirUnlock { nth }),
    ]
}

/// What no client does.
fn mishap() -> impl Strategy<Value = Operation> {
    let size_ms = prop_oneof![2 => 1..=5_i64, 2 => 6..=40_i64, 1 => 9_980..=10_020_i64, 2 => Just(71_000)];
    let ms = (size_ms, any::<bool>()).prop_map(|(ms, forward)| if forward { ms } else { -ms });
    prop_oneof![4 => ms.prop_map(|ms| Operation::Step { ms }), 1 => Just(Operation::Lose)]
}

/// Far enough.
const DAY_MS: i64 = 24 * 3600 * 1000;

/// Hears what is published to the waiters of a lock.
struct Listener {
    hears: Client,
    speaks: Client,
    channel: String,
}

impl Listener {
    /// At whichever of the nodes has the channel; none if there are none.
    fn new(nodes: &[&Node], key: &Key) -> Option<Self> {
        let channel = format!("{}:wake:{MANAGER}", key.channels("lock"));
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

/// How many locks there were, each with a name of its own.
static LOCKS: AtomicU64 = AtomicU64::new(0);

impl Setting<'_> {
    /// Sets random operations against both, and each kind of answer is given.
    fn agrees(&self) {
        if let Some(reason) = self.disagreement(4 * self.cases) {
            panic!("{reason}");
        }
    }

    /// The first history, shortened in so many steps, that real server and specification answer differently.
    fn disagreement(&self, max_shrink_iters: u32) -> Option<String> {
        // However busy the machine is, an answer is waited for.
        let options = Options { response_timeout: Duration::from_secs(20), ..Options::default() };
        let home = options.home(crate::clock::Clock::System);
        let transport = transport::open(&self.topology, &options, &home).expect("a valid topology");
        let scheme = self.scheme(transport);
        let runtime = Builder::new_current_thread().enable_all().build().expect("a runtime");
        let seen = RefCell::new(BTreeSet::new());
        let config = Config { cases: self.cases, failure_persistence: None, max_shrink_iters, ..Config::default() };
        let outcome = TestRunner::new(config).run(&self.operations(), |operations| {
            if let Some(node) = self.steps {
                node.clock().set_right();
            }
            let mut pair = Pair::new(self, &scheme, &format!("lock {}", LOCKS.fetch_add(1, Ordering::Relaxed)));
            let listener = Listener::new(&self.hears, &pair.key);
            assert_eq!(listener.is_none(), self.hears.is_empty());
            let agreed = pair.apply_all(&runtime, operations);
            seen.borrow_mut().extend(pair.seen_kinds.iter());
            agreed?;
            pair.compare_news(listener)
        });
        match outcome {
            Ok(()) => {
                assert_eq!(seen.into_inner(), self.kinds(), "every kind of answer was given and compared");
                None
            }
            Err(TestError::Fail(reason, _)) => Some(reason.to_string()),
            Err(TestError::Abort(reason)) => panic!("gave up: {reason}"),
        }
    }
}

/// One lock on a server and in memory.
struct Pair<'a> {
    real: &'a LuaScheme,
    face: Face,
    /// One operation may touch few records.
    limited: bool,
    key: Arc<Key>,
    record: Record,
    /// The server's time in the last reply.
    last: ServerTime,
    /// What the last look has shown.
    seen: View,
    seen_kinds: BTreeSet<&'static str>,
    /// What was to be published.
    news: Vec<String>,
    /// What was done and answered until now.
    history: String,
    /// Asks the server for what no answer says, where that is needed.
    raw: Option<Client>,
    clock: Option<&'a NodeClock>,
    /// The holds of published clients: their sides and stamps.
    theirs: Vec<(Mode, u64)>,
    /// When the server forgets the lock, as it says itself.
    expires_ms: Option<u64>,
    /// The highest token that was granted, and the highest before the last loss, since the clock went back.
    highest: u64,
    highest_lost: u64,
}

#[derive(Clone, PartialEq, Debug)]
enum Answer {
    Acquired(Acquired),
    ReleaseReply(ReleaseReply),
    Converted(Mode, Converted),
    Renewed(Renewed),
    View(View),
    Forced(Forced),
    Theirs(Mode, bool),
}

impl<'a> Pair<'a> {
    fn new(setting: &Setting<'a>, real: &'a LuaScheme, name: &str) -> Self {
        let raw = setting.published.or(setting.steps).map(|node| node.client().expect("the server answers"));
        Self {
            real,
            face: setting.face,
            limited: setting.limited,
            key: Arc::new(Key::new("oracle", name).expect("a valid name")),
            record: setting.record(),
            last: ServerTime::default(),
            seen: View::default(),
            seen_kinds: BTreeSet::new(),
            news: Vec::new(),
            history: String::new(),
            raw,
            clock: setting.steps.map(Node::clock),
            theirs: Vec::new(),
            expires_ms: None,
            highest: 0,
            highest_lost: 0,
        }
    }

    fn apply_all(&mut self, runtime: &Runtime, operations: Vec<Operation>) -> TestCaseResult {
        runtime.block_on(async {
            // The first look says what the server's time is, the last one what all operations have left behind.
            self.apply(Operation::Inspect).await?;
            for operation in operations {
                self.apply(operation).await?;
                self.look_behind()?;
            }
            self.apply(Operation::Inspect).await
        })
    }

    async fn apply(&mut self, operation: Operation) -> TestCaseResult {
        self.history.push_str(&format!("\n{operation:?}"));
        match operation {
            // What the client takes for the server's time is of no use then.
            Operation::Acquire { who, wish } if self.clock.is_some() => self.acquire_until(who, wish, DAY_MS).await,
            Operation::Conversion { old, new, wish } if self.clock.is_some() => {
                self.convert_until(old, new, wish, DAY_MS).await
            }
            Operation::Acquire { who, wish } => {
                let request = self.face.ask(who, wish);
                let real = self.real.acquire(&self.key, &request).await;
                self.compare(Some(who), real, Answer::Acquired, |record, now| record.acquire(now, u64::MAX, &request))
            }
            Operation::AcquireUntil { who, wish, limit_ms } => self.acquire_until(who, wish, limit_ms).await,
            Operation::Leave { who } => {
                let id = acquisition(who);
                let real = self.real.leave(&self.key, &id).await;
                self.compare(Some(who), real, Answer::ReleaseReply, |record, now| record.leave(now, &id))
            }
            Operation::Conversion { old, new, wish } => {
                let (old, request) = (acquisition(old), self.face.ask(new, wish));
                let real = self.real.convert(&self.key, &old, &request).await;
                let answer = |turned| Answer::Converted(request.mode, turned);
                self.compare(Some(new), real, answer, |record, now| record.convert(now, u64::MAX, &old, &request))
            }
            Operation::ConvertUntil { old, new, wish, limit_ms } => self.convert_until(old, new, wish, limit_ms).await,
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
            Operation::TheirLock { mode, skew_ms } => self.their_lock(mode, skew_ms),
            Operation::TheirUnlock { nth } => self.their_unlock(nth),
            Operation::Step { ms } => {
                let clock = self.clock.expect("a clock that can be set");
                let by = Duration::from_millis(ms.unsigned_abs());
                if ms > 0 {
                    clock.step_forward(by);
                } else {
                    self.sweep_two_keys();
                    clock.step_back(by);
                    (self.highest, self.highest_lost) = (0, 0);
                }
                Ok(())
            }
            Operation::Lose => {
                let keys = self.keys();
                let command: Vec<_> = ["DEL"].into_iter().chain(keys.iter().map(String::as_str)).collect();
                self.ask_raw(&command);
                self.forget("key lost");
                self.expires_ms = None;
                Ok(())
            }
        }
    }

    /// Dead records of the two-key scheme go with the next grant, or before. Here they go before the clock can make them live
    /// again, since the specification removes others.
    fn sweep_two_keys(&mut self) {
        if self.face == Face::TwoKey {
            const SWEEP: &str = "
                local time = redis.call('TIME')
                local now_us = time[1] * 1000000 + time[2]
                redis.call('ZREMRANGEBYSCORE', KEYS[1], 0, math.floor(now_us / 1000))
                local ends_ms = redis.call('PEXPIRETIME', KEYS[2]) -- the server removes it when this is past
                if ends_ms >= 0 and ends_ms <= math.floor(now_us / 1000) then redis.call('DEL', KEYS[2]) end
                return now_us";
            let keys = self.keys();
            let Reply::Int(now_us) = self.ask_raw(&["EVAL", SWEEP, "2", &keys[0], &keys[1]]) else {
                panic!("a number")
            };
            self.record.sweep(ServerTime::from_micros(now_us.unsigned_abs()));
        }
    }

    async fn acquire_until(&mut self, who: usize, wish: Wish, limit_ms: i64) -> TestCaseResult {
        let request = self.face.ask(who, wish);
        let not_after_ms = self.last_ms().saturating_add_signed(limit_ms);
        let real = self.real.acquire_until(&self.key, &request, not_after_ms).await;
        self.compare(Some(who), real, Answer::Acquired, |record, now| record.acquire(now, not_after_ms, &request))
    }

    async fn convert_until(&mut self, old: usize, new: usize, wish: Wish, limit_ms: i64) -> TestCaseResult {
        let (old, request) = (acquisition(old), self.face.ask(new, wish));
        let not_after_ms = self.last_ms().saturating_add_signed(limit_ms);
        let real = self.real.convert_until(&self.key, &old, &request, not_after_ms).await;
        let answer = |turned| Answer::Converted(request.mode, turned);
        self.compare(Some(new), real, answer, |record, now| record.convert(now, not_after_ms, &old, &request))
    }

    fn their_lock(&mut self, mode: Mode, skew_ms: i64) -> TestCaseResult {
        // Even, so that a large one is the number that Lua makes of it.
        let stamp_ms = self.last_ms().saturating_add_signed(skew_ms);
        let stamp_ms = if stamp_ms > 1 << 53 { stamp_ms & !1 } else { stamp_ms };
        let script = match mode {
            Mode::Read => include_str!("../../tests/lua/published/read_lock.lua"),
            Mode::Write => include_str!("../../tests/lua/published/write_lock.lua"),
        };
        let PublishedLimitsMs { read_ms, write_ms } = PUBLISHED;
        let [read, write, stamp] = [read_ms, write_ms, stamp_ms].map(|ms| ms.to_string());
        let reply = self.ask_raw(&["EVAL", script, "1", &self.keys()[0], "10000", &read, &write, &stamp]);
        let real = Answer::Theirs(mode, reply == Reply::Int(1));
        let specified = Answer::Theirs(mode, self.record.their_lock(mode, stamp_ms));
        if reply == Reply::Int(1) {
            self.theirs.insert(0, (mode, stamp_ms));
        }
        self.agree(self.last, real, specified)
    }

    fn their_unlock(&mut self, nth: usize) -> TestCaseResult {
        let Some(&(mode, stamp_ms)) = self.theirs.get(nth) else {
            return Ok(());
        };
        let script = match mode {
            Mode::Read => include_str!("../../tests/lua/published/read_unlock.lua"),
            Mode::Write => include_str!("../../tests/lua/published/write_unlock.lua"),
        };
        self.ask_raw(&["EVAL", script, "1", &self.keys()[0], &stamp_ms.to_string()]);
        self.record.their_unlock(mode, stamp_ms);
        self.history.push_str(&format!(" {mode} {stamp_ms}"));
        Ok(())
    }

    /// The keys that the lock consists of. The first remembers its tokens.
    fn keys(&self) -> Vec<String> {
        match self.face {
            Face::Hash => vec![self.key.part("lock")],
            Face::TwoKey => vec![self.key.part("read"), self.key.part("write")],
        }
    }

    fn ask_raw(&mut self, command: &[&str]) -> Reply {
        let raw = self.raw.as_mut().expect("a node to ask");
        raw.command(command).and_then(Reply::into_result).expect("an answer")
    }

    /// Takes from the server what no answer says: when it forgets the lock.
    fn look_behind(&mut self) -> TestCaseResult {
        if self.raw.is_none() {
            return Ok(());
        }
        let key = self.keys().remove(0);
        let Reply::Int(expires_ms) = self.ask_raw(&["PEXPIRETIME", &key]) else { panic!("a number") };
        prop_assert!(expires_ms != -1, "a key without a ttl; so far:{}", self.history);
        let expires_ms = u64::try_from(expires_ms).ok();
        if expires_ms.is_none() && self.expires_ms.is_some() && self.clock.is_some() {
            self.forget("key expired");
        }
        self.expires_ms = expires_ms;
        if let Some(expires_ms) = self.expires_ms.filter(|_| self.theirs.is_empty()) {
            let (holds, waiters) = (self.record.live_holds(self.last_ms()), self.record.live_waiters(self.last_ms()));
            let last_ms = holds.into_iter().chain(waiters).map(|(_, _, until_ms)| until_ms).max().unwrap_or(0);
            let retained = expires_ms >= last_ms + 60_000;
            prop_assert!(retained, "the key will be gone at {} ms; so far:{}", expires_ms, self.history);
        }
        Ok(())
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
        let seen = self.seen.clone();
        let in_order = |mut forced: Forced| {
            forced.ids.sort();
            Answer::Forced(forced)
        };
        self.compare(None, real, in_order, |record, now| record.force_seen(now, &seen))
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
        if self.expires_ms.take_if(|expires_ms| *expires_ms < server.as_micros() / 1000).is_some() {
            self.forget("key expired");
        }
        let real = answer(value);
        let specified = answer(operation(&mut self.record, server));
        let news = self.record.take_news();
        for News { granted, .. } in &news {
            self.outgrows(granted)?;
        }
        if let Answer::Acquired(Acquired::Granted(granted)) | Answer::Converted(_, Converted::Granted(granted)) = &real
        {
            self.outgrows(granted)?;
        }
        let is_other = |id: &AcquisitionId| asks.is_none_or(|who| *id != acquisition(who));
        let others = news.into_iter().filter(|news| is_other(&news.id));
        self.news.extend(others.map(|news| message(&news, server)));
        if let Some(next) = self.record.take_call() {
            self.seen_kinds.insert("a turn goes on");
            self.news.extend(is_other(&next).then(|| next.as_str().to_owned()));
        }
        self.agree(server, real, specified)
    }

    fn forget(&mut self, how: &'static str) {
        self.record.forget();
        // After a step back, tokens are ahead of the clock until it comes by.
        self.highest_lost = if self.highest <= self.last.as_micros() { self.highest } else { 0 };
        self.seen_kinds.insert(how);
        self.history.push_str(&format!("\n  {how}"));
    }

    /// Across a loss of the key, too, tokens grow, as long as the clock does.
    fn outgrows(&mut self, granted: &Granted) -> TestCaseResult {
        let token = granted.token.as_u64();
        prop_assert!(token > self.highest_lost, "a token not above one that was lost; so far:{}", self.history);
        self.highest = self.highest.max(token + granted.tokens - 1);
        Ok(())
    }

    fn agree(&mut self, server: ServerTime, real: Answer, specified: Answer) -> TestCaseResult {
        let live = self.record.inspect(server);
        let now_ms = server.as_micros() / 1000;
        let mut deadlines: Vec<_> = self.record.live_holds(now_ms).into_iter().map(|(_, _, ends_ms)| ends_ms).collect();
        // Too many dead ones to tell: whoever asks again soon finds fewer.
        deadlines.extend(self.limited.then_some(now_ms + 1));
        self.history.push_str(&format!("\n    at {} us: {real:?}", server.as_micros()));
        prop_assert!(
            real.agrees_with(&specified, now_ms, &deadlines),
            "the specification says {:?} beside {:?}; so far:{}",
            specified,
            live,
            self.history
        );
        self.seen_kinds.extend(real.kinds());
        Ok(())
    }
}

/// As `lua/README.md` has it.
fn message(news: &News, server: ServerTime) -> String {
    let News { id, granted } = news;
    let deadline_ms = u128::from(server.as_micros() / 1000) + granted.remaining.as_millis();
    let (last, server_us) = (granted.token.as_u64() + granted.tokens - 1, server.as_micros());
    let waiting = u8::from(granted.writers_waiting);
    format!("{} {last} {} {deadline_ms} {server_us} {waiting}", id.as_str(), granted.tokens)
}

fn sorted(mut view: View) -> View {
    view.holders.sort_by(|a, b| a.id.cmp(&b.id));
    // Within a millisecond any order will do.
    view.waiters.sort_by(|a, b| (a.since_ms, &a.id).cmp(&(b.since_ms, &b.id)));
    view
}

impl Answer {
    fn kinds(&self) -> Vec<&'static str> {
        let mut kinds = vec![self.kind()];
        if let Self::View(view) = self {
            kinds.extend(view.foreign_read_ms.map(|_| "view with their read"));
            kinds.extend(view.foreign_write_ms.map(|_| "view with their write"));
            kinds.extend((view.more_holders + view.more_waiters > 0).then_some("view of some"));
        }
        kinds
    }

    fn kind(&self) -> &'static str {
        match self {
            Self::Acquired(Acquired::Granted(granted)) if granted.writers_waiting => "granted, a writer waits",
            Self::Acquired(Acquired::Granted(granted)) if granted.tokens > 1 => "granted, several tokens",
            Self::Acquired(Acquired::Granted(_)) => "granted",
            Self::Acquired(Acquired::Contended { .. }) => "contended",
            Self::Acquired(Acquired::Queued { .. }) => "queued",
            Self::Acquired(Acquired::Late) => "late",
            Self::ReleaseReply(ReleaseReply::Held) => "held",
            Self::ReleaseReply(ReleaseReply::Queued) => "dequeued",
            Self::ReleaseReply(ReleaseReply::None(Absence { forced: None, .. })) => "none",
            Self::ReleaseReply(ReleaseReply::None(Absence { forced: Some(_), .. })) => "none, by force",
            Self::Converted(Mode::Read, Converted::Granted(_)) => "turned to read",
            Self::Converted(Mode::Write, Converted::Granted(_)) => "turned to write",
            Self::Converted(_, Converted::Refused) => "not turned",
            Self::Converted(_, Converted::Lost { forced: None }) => "turn lost",
            Self::Converted(_, Converted::Lost { forced: Some(_) }) => "turn lost, by force",
            Self::Converted(_, Converted::Late) => "turn late",
            Self::Renewed(Renewed::Renewed { .. }) => "renewed",
            Self::Renewed(Renewed::Lost { forced: None }) => "lost",
            Self::Renewed(Renewed::Lost { forced: Some(_) }) => "lost, by force",
            Self::View(view) if !view.waiters.is_empty() => "view with waiters",
            Self::View(_) => "view",
            Self::Forced(Forced { more: true, .. }) => "forced some",
            Self::Forced(_) => "forced",
            Self::Theirs(Mode::Read, true) => "their read",
            Self::Theirs(Mode::Read, false) => "their read refused",
            Self::Theirs(Mode::Write, true) => "their write",
            Self::Theirs(Mode::Write, false) => "their write refused",
        }
    }

    /// `live` are the deadlines of those who hold the lock now that this was answered.
    fn agrees_with(&self, specified: &Self, now_ms: u64, live: &[u64]) -> bool {
        match (self, specified) {
            (Self::Acquired(Acquired::Contended { retry_in }), Self::Acquired(Acquired::Contended { .. }))
            | (Self::Acquired(Acquired::Queued { retry_in }), Self::Acquired(Acquired::Queued { .. })) => {
                self == specified || live.iter().any(|ends_ms| Duration::from_millis(ends_ms - now_ms) == *retry_in)
            }
            _ => self == specified,
        }
    }
}
