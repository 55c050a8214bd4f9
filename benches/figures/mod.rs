//! What the benches share: servers, bare calls to compare with, and how a figure is told.
#![allow(dead_code)] // each bench uses a part of it

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster_testenv::{Node, Reply, Server};
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, Client, Cmd, IntoConnectionInfo, RedisResult, Value};

/// Of our own connections too.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
const PIPELINE_BUFFER: usize = 1024;
/// Longer than any run, so that nothing is renewed unless renewals are what is measured.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(3600);

pub(crate) mod child;
pub(crate) mod process;
pub(crate) mod smallest;

#[path = "../../lua/scripts.rs"]
mod scripts;

pub(crate) const HASH_ACQUIRE: &str = scripts::hash::ACQUIRE;
pub(crate) const HASH_LEAVE: &str = scripts::hash::LEAVE;
pub(crate) const HASH_RENEW: &str = scripts::hash::RENEW;
const TIMESTAMP_CLIENTS: &str = "1000 3000";
const NOTHING: &str = "#!lua\nreturn 1";
/// What a lock script cannot do without.
const LOCK_SHAPE: &str = "#!lua
redis.call('TIME')
redis.call('HMGET', KEYS[1], 'a', 'b', 'c')
redis.call('HSET', KEYS[1], 'a', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";

/// The server that `BENCH_SERVER` names, else Redis 7.0.
pub(crate) fn server() -> Server {
    let named = std::env::var("BENCH_SERVER").ok();
    named.map_or(Server::Redis70, |name| name.parse().expect("BENCH_SERVER names a server"))
}

pub(crate) fn start_node() -> Node {
    Node::start(server()).expect("a server starts; cluster-testenv/install brings it")
}

/// A primary and its replica, which follows it.
pub(crate) fn start_pair() -> (Node, Node) {
    let start = || Node::builder(server()).arg("--repl-diskless-sync-delay", "0").start().expect("a server starts");
    let (primary, replica) = (start(), start());
    let (host, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]).expect("it follows");
    let mut client = primary.client().expect("connected");
    // The first may be answered by a replica that is still being filled.
    for _ in 0..3 {
        client.command(&["SET", "follows", ""]).expect("written");
        assert_eq!(client.command(&["WAIT", "1", "20000"]).ok().as_ref().and_then(Reply::int), Some(1));
    }
    (primary, replica)
}

/// How much is measured.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// `cargo bench`.
    Full,
    /// `cargo bench … -- --quick`.
    Quick,
    /// `cargo test --benches`: enough to see that it runs.
    Once,
}

impl Effort {
    pub(crate) fn asked_for() -> Self {
        let asked = |option: &str| std::env::args().any(|argument| argument == option);
        match (asked("--bench"), asked("--quick")) {
            (false, _) => Self::Once,
            (true, true) => Self::Quick,
            (true, false) => Self::Full,
        }
    }

    pub(crate) fn of<T>(self, full: T, quick: T, once: T) -> T {
        match self {
            Self::Full => full,
            Self::Quick => quick,
            Self::Once => once,
        }
    }
}

/// A connection as ours are, for what is called bare.
pub(crate) async fn bare_connection(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a URL");
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = Client::open(info.set_tcp_settings(tcp)).expect("a client");
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_pipeline_buffer_size(PIPELINE_BUFFER);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

/// Scripts called by their digests and nothing around: what a caller can have without a lock library.
#[derive(Clone)]
pub(crate) struct Bare<C> {
    connection: C,
    acquire: String,
    leave: String,
    nothing: String,
    lock_shape: String,
}

/// What a script is called by.
pub(crate) fn digest(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

static NEXT_ID: AtomicU64 = AtomicU64::new(1);

/// As long as our own.
pub(crate) fn foreign_id() -> String {
    let n = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    format!("0123456789abcdef0123456789abcdef.{n}.localhost:12345")
}

impl<C: ConnectionLike + Clone + Send> Bare<C> {
    /// Loads the scripts wherever `loaders` lead.
    pub(crate) async fn new(connection: C, loaders: &mut [MultiplexedConnection]) -> Self {
        for loader in loaders {
            for text in [HASH_ACQUIRE, HASH_LEAVE, NOTHING, LOCK_SHAPE] {
                redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async::<()>(loader).await.expect("a script loads");
            }
        }
        let [acquire, leave, nothing, lock_shape] = [HASH_ACQUIRE, HASH_LEAVE, NOTHING, LOCK_SHAPE].map(digest);
        Self { connection, acquire, leave, nothing, lock_shape }
    }

    async fn call(&mut self, command: &Cmd) -> Value {
        expect_reply(self.connection.req_packed_command(command).await)
    }

    pub(crate) async fn no_op(&mut self, key: &str) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.nothing).arg(1).arg(key);
        self.call(&command).await;
    }

    pub(crate) async fn acquire(&mut self, key: &str, id: &str, mode: &str) {
        self.ask(key, id, mode, Duration::ZERO, "").await;
    }

    /// Takes a read hold that may stay, so that who waits for the lock calls.
    pub(crate) async fn keep(&mut self, key: &str, id: &str) {
        self.ask(key, id, "r", Duration::ZERO, "k").await;
    }

    /// A writer takes a place in the queue.
    pub(crate) async fn wait(&mut self, key: &str, id: &str) {
        self.ask(key, id, "w", LONG_LEASE, "").await;
    }

    async fn ask(&mut self, key: &str, id: &str, mode: &str, patience: Duration, letters: &str) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.acquire).arg(1).arg(key);
        command.arg(9_000_000_000_000_u64).arg(id).arg(mode).arg(LONG_LEASE.as_millis() as u64);
        command.arg(patience.as_millis() as u64).arg(1).arg(TIMESTAMP_CLIENTS);
        if !letters.is_empty() {
            command.arg(letters);
        }
        let reply = self.call(&command).await;
        let expected: &[u8] = if patience.is_zero() { b"granted" } else { b"queued" };
        assert!(begins_with(&reply, expected), "{reply:?}");
    }

    pub(crate) async fn leave(&mut self, key: &str, id: &str) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.leave).arg(1).arg(key).arg(id).arg(TIMESTAMP_CLIENTS);
        let reply = self.call(&command).await;
        assert!(begins_with(&reply, b"held"), "{reply:?}");
    }

    pub(crate) async fn acquire_and_leave(&mut self, key: &str, id: &str) {
        self.acquire(key, id, "w").await;
        self.leave(key, id).await;
    }

    pub(crate) async fn lock_shaped_pair(&mut self, key: &str) {
        self.lock_shaped(key, "0123456789abcdef").await;
        self.lock_shaped(key, "-").await;
    }

    pub(crate) async fn lock_shaped(&mut self, key: &str, id: &str) {
        let mut command = redis::cmd("EVALSHA");
        command.arg(&self.lock_shape).arg(1).arg(key).arg(id).arg(LONG_LEASE.as_millis() as u64);
        self.call(&command).await;
    }

    pub(crate) async fn two_no_ops(&mut self, key: &str) {
        self.no_op(key).await;
        self.no_op(key).await;
    }
}

fn expect_reply(reply: RedisResult<Value>) -> Value {
    reply.and_then(Value::extract_error).expect("a reply")
}

fn begins_with(reply: &Value, code: &[u8]) -> bool {
    matches!(reply, Value::BulkString(text) if text.split(|byte| *byte == b' ').next() == Some(code))
}

/// How often commands were called on a server, and what they cost it.
#[derive(Clone, Debug)]
pub(crate) struct CommandStats(String);

impl CommandStats {
    pub(crate) fn of(node: &Node) -> Self {
        let reply = node.command(&["INFO", "commandstats"]).expect("an answer");
        Self(reply.text().expect("text").into_owned())
    }

    pub(crate) fn reset(node: &Node) {
        assert!(node.command(&["CONFIG", "RESETSTAT"]).expect("an answer").is_ok());
    }

    fn field(&self, command: &str, field: &str) -> f64 {
        let line =
            self.0.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':'));
        let fields = line.unwrap_or_default().split(',');
        fields
            .filter_map(|pair| pair.split_once('='))
            .find(|(name, _)| *name == field)
            .map_or(0.0, |(_, value)| value.parse().expect("a number"))
    }

    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.field(command, "calls") as u64
    }

    pub(crate) fn micros(&self, command: &str) -> f64 {
        self.field(command, "usec")
    }

    /// The commands that were called at all.
    pub(crate) fn commands(&self) -> impl Iterator<Item = &str> {
        self.0.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next())
    }
}

/// The value below which `share` of the samples lie.
pub(crate) fn quantile(samples: &mut [Duration], share: f64) -> Duration {
    assert!(!samples.is_empty());
    samples.sort_unstable();
    samples[((samples.len() - 1) as f64 * share).round() as usize]
}

pub(crate) fn median(samples: &mut [f64]) -> f64 {
    assert!(!samples.is_empty());
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// What a figure must keep to.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    fn is_met_by(self, value: f64) -> bool {
        match self {
            Self::AtMost(bound) => value <= bound,
            Self::AtLeast(bound) => value >= bound,
        }
    }
}

impl fmt::Display for Target {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::AtMost(bound) => write!(f, "at most {bound}"),
            Self::AtLeast(bound) => write!(f, "at least {bound}"),
        }
    }
}

/// Tells one figure: what was measured, both sides of it in words, its value and whether that is good enough.
pub(crate) fn tell(effort: Effort, what: &str, sides: &str, value: f64, target: Target) {
    let verdict = match (effort, target.is_met_by(value)) {
        (Effort::Once, _) => "not judged",
        (_, true) => "ok",
        (_, false) => "MISSED",
    };
    println!("figure: {what}: {sides}: {value:.3}, target {target}, {verdict}");
}
