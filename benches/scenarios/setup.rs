//! Setup that the scenarios share: servers, managers, scripts without the crate, and the output of figures.

use std::fmt;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::{Client, Cluster, Node, Reply, Server};
use futures_util::StreamExt;
use futures_util::stream;
use redis::aio::{ConnectionLike, MultiplexedConnection};
use redis::{AsyncConnectionConfig, IntoConnectionInfo, Value};
use redis_rwlock::{Build, Builder, Error, RedisManager, RwLockManager, WriteGuard};
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio::runtime::{self, Runtime};
use tokio::task::JoinSet;

// The paths are written out, because `benches/peers` includes this file from another folder.
#[path = "setup/child.rs"]
pub(crate) mod child;
#[path = "setup/process.rs"]
pub(crate) mod process;

#[path = "../../lua/portable.rs"]
pub(crate) mod portable;
#[path = "../../lua/scripts.rs"]
pub(crate) mod scripts;

/// Response timeout of the managers.
const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);
/// Longer than any run, so that no hold is renewed unless renewals are measured.
pub(crate) const LONG_LEASE: Duration = Duration::from_secs(3600);
pub(crate) const TIMESTAMP_CLIENTS: &str = "1000 3000";
/// Work that every script does.
pub(crate) const NO_OP: &str = "#!lua\nreturn 1";
/// Work that every lock script does.
pub(crate) const LOCK_SHAPE: &str = "#!lua
redis.call('TIME')
redis.call('HMGET', KEYS[1], 'a', 'b', 'c')
redis.call('HSET', KEYS[1], 'a', ARGV[1])
redis.call('PEXPIRE', KEYS[1], ARGV[2])
return 1";
const SLOTS: usize = 16_384;
const PUBLISH: &str = "#!lua\nreturn redis.call('SPUBLISH', KEYS[1], ARGV[1])";

/// Returns the server that `BENCH_SERVER` names, else Redis 7.0.
pub(crate) fn server() -> Server {
    let named = std::env::var("BENCH_SERVER").ok();
    named.map_or(Server::Redis70, |name| name.parse().expect("BENCH_SERVER names a server"))
}

pub(crate) fn start_node() -> Node {
    Node::start(server()).expect("a server starts; cluster-testenv/install brings it")
}

pub(crate) fn start_proxied_node() -> Node {
    Node::builder(server()).proxied().start().expect("a server starts; cluster-testenv/install brings it")
}

/// Starts a primary and a replica that follows it.
pub(crate) fn start_pair(server: Server) -> [Node; 2] {
    let start = || Node::builder(server).arg("--repl-diskless-sync-delay", "0").start().expect("a server starts");
    let (primary, replica) = (start(), start());
    let (host, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]).expect("it follows");
    let mut client = primary.client().expect("connected");
    // The first may be answered by a replica that is still being filled.
    for _ in 0..3 {
        client.command(&["SET", "follows", ""]).expect("written");
        assert_eq!(client.command(&["WAIT", "1", "20000"]).ok().as_ref().and_then(Reply::int), Some(1));
    }
    [primary, replica]
}

pub(crate) fn runtime() -> Runtime {
    Runtime::new().expect("a runtime")
}

/// Returns both kinds of runtimes, with their names.
pub(crate) fn runtimes() -> [(&'static str, Runtime); 2] {
    [("multi-thread", runtime::Builder::new_multi_thread()), ("current-thread", runtime::Builder::new_current_thread())]
        .map(|(name, mut builder)| (name, builder.enable_all().build().expect("a runtime")))
}

/// Returns a slot of each primary, and a tag that makes a lock lie there. The slots are shared out in order.
pub(crate) fn tags(cluster: &Cluster, primaries: usize) -> Vec<(u16, String)> {
    let mut tags: Vec<Option<(u16, String)>> = vec![None; primaries];
    for tag in (0..).map(|n| format!("tag{n}")) {
        let slot = cluster.keyslot(&tag);
        let owner = (0..primaries).rfind(|owner| SLOTS * owner / primaries <= usize::from(slot));
        tags[owner.expect("the first begins at 0")].get_or_insert((slot, tag));
        if tags.iter().all(Option::is_some) {
            break;
        }
    }
    tags.into_iter().flatten().collect()
}

/// Connects a manager that renews nothing.
pub(crate) async fn connect<M: Build>(builder: Builder<M>) -> M {
    builder.lease(LONG_LEASE).max_hold(LONG_LEASE * 2).connect().await.expect("a manager")
}

/// Connects such a manager to a node.
pub(crate) async fn manager(node: &Node) -> RedisManager {
    connect(RedisManager::builder(node.url())).await
}

/// Connects a manager whose readers join for as long as any run lasts, and which renews nothing.
pub(crate) async fn joining_manager(node: &Node) -> RedisManager {
    let builder = RedisManager::builder(node.url()).join_window(LONG_LEASE).lease(LONG_LEASE);
    builder.max_hold(Duration::MAX).connect().await.expect("a manager")
}

/// Acquires a lock for writing and releases it. Returns the time that both took.
pub(crate) async fn pair(manager: &impl RwLockManager, name: &str) -> Duration {
    let began = Instant::now();
    manager.write(name).await.expect("granted").release().await.expect("released");
    began.elapsed()
}

/// Returns what something gave, and how long it took.
pub(crate) async fn timed<T>(act: impl IntoFuture<Output = T>) -> (T, Duration) {
    let began = Instant::now();
    let value = act.await;
    (value, began.elapsed())
}

/// Does something for each number, 16 at a time. The memory of more acquisitions in progress would count as the locks'.
pub(crate) async fn few_at_a_time<T, F: Future<Output = T>>(
    numbers: impl Iterator<Item = usize>,
    act: impl Fn(usize) -> F,
) -> Vec<T> {
    stream::iter(numbers).map(act).buffer_unordered(16).collect().await
}

/// Amount of measurements.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Effort {
    /// `cargo bench`.
    Full,
    /// `cargo bench … -- --quick`.
    Quick,
    /// `cargo test --benches`, or `-- --once`: enough to see that it runs.
    Once,
}

impl Effort {
    pub(crate) fn asked_for() -> Self {
        let asked = |option: &str| std::env::args().any(|argument| argument == option);
        match (asked("--bench") && !asked("--once"), asked("--quick")) {
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

/// Connects without the crate, with the settings of the crate.
pub(crate) async fn bare_connection(url: &str) -> MultiplexedConnection {
    let info = url.into_connection_info().expect("a URL");
    let tcp = info.tcp_settings().clone().set_nodelay(true);
    let client = redis::Client::open(info.set_tcp_settings(tcp)).expect("a client");
    let config = AsyncConnectionConfig::new()
        .set_connection_timeout(Some(RESPONSE_TIMEOUT))
        .set_response_timeout(Some(RESPONSE_TIMEOUT))
        .set_pipeline_buffer_size(1024);
    client.get_multiplexed_async_connection_with_config(&config).await.expect("a connection")
}

/// Returns the key of a lock of the hash scheme.
pub(crate) fn lock_key(name: impl fmt::Display) -> String {
    format!("rwlock:{{{name}}}:lock")
}

/// Returns the words of a call of a script.
pub(crate) fn evalsha(digest: &str, keys: &[&str], arguments: &[&str]) -> Vec<String> {
    let head = ["EVALSHA".to_owned(), digest.to_owned(), keys.len().to_string()];
    head.into_iter().chain(keys.iter().chain(arguments).map(|&word| word.to_owned())).collect()
}

/// Returns the digest by which a script is called.
pub(crate) fn digest(text: &str) -> String {
    redis::Script::new(text).get_hash().to_owned()
}

/// Loads a script, and returns its digest.
pub(crate) async fn load_script(connection: &mut MultiplexedConnection, text: &str) -> String {
    redis::cmd("SCRIPT").arg("LOAD").arg(text).query_async(connection).await.expect("it loads")
}

/// Returns an id as long as those of the crate.
pub(crate) fn foreign_id() -> String {
    static NEXT_ID: AtomicU64 = AtomicU64::new(1);
    let n = NEXT_ID.fetch_add(1, Ordering::Relaxed);
    format!("0123456789abcdef0123456789abcdef.{n}.localhost:12345")
}

/// Returns the id of a member of a crowd, which the server counts as a process.
pub(crate) fn member_id(member: usize) -> String {
    format!("0123456789abcdef0123456789abcdef.{member}.service")
}

/// Lets a task write each lock.
pub(crate) fn spawn_writes(
    manager: &RedisManager,
    names: impl IntoIterator<Item = String>,
) -> JoinSet<Result<WriteGuard, Error>> {
    let mut tasks = JoinSet::new();
    for name in names {
        let manager = manager.clone();
        tasks.spawn(async move { manager.write(&name).await });
    }
    tasks
}

/// Scripts called by their digests without the crate.
#[derive(Clone)]
pub(crate) struct Bare<C = MultiplexedConnection> {
    connection: C,
    acquire: String,
    leave: String,
    no_op: String,
    lock_shape: String,
    publish: String,
}

impl Bare {
    pub(crate) async fn connect(node: &Node) -> Self {
        let connection = bare_connection(&node.url()).await;
        Self::new(connection.clone(), &mut [connection]).await
    }
}

impl<C: ConnectionLike + Clone + Send> Bare<C> {
    /// Loads the scripts over each of `loaders`.
    pub(crate) async fn new(connection: C, loaders: &mut [MultiplexedConnection]) -> Self {
        let texts = [scripts::hash::ACQUIRE, scripts::hash::LEAVE, NO_OP, LOCK_SHAPE, PUBLISH];
        for loader in loaders {
            for text in texts {
                load_script(loader, text).await;
            }
        }
        let [acquire, leave, no_op, lock_shape, publish] = texts.map(digest);
        Self { connection, acquire, leave, no_op, lock_shape, publish }
    }

    pub(crate) async fn no_op(&mut self, key: &str) {
        call(&mut self.connection, &self.no_op, key, &[]).await;
    }

    pub(crate) async fn acquire(&mut self, key: &str, id: &str, mode: &str) {
        self.request(key, &[id, mode, "3600000", "0"], &[], b"granted").await;
    }

    /// Acquires a read hold that may be cached, so that a waiter recalls it.
    pub(crate) async fn acquire_recallable(&mut self, key: &str, id: &str) {
        self.request(key, &[id, "r", "3600000", "0"], &["k"], b"granted").await;
    }

    /// Takes a place in the queue, as a writer.
    pub(crate) async fn wait(&mut self, key: &str, id: &str) {
        self.request(key, &[id, "w", "3600000", "3600000"], &[], b"queued").await;
    }

    async fn request(&mut self, key: &str, arguments: &[&str], letters: &[&str], expected: &[u8]) {
        let arguments = [&["9000000000000"], arguments, &["1", TIMESTAMP_CLIENTS], letters].concat();
        let reply = call(&mut self.connection, &self.acquire, key, &arguments).await;
        assert!(begins_with(&reply, expected), "{reply:?}");
    }

    pub(crate) async fn leave(&mut self, key: &str, id: &str) {
        let reply = call(&mut self.connection, &self.leave, key, &[id, TIMESTAMP_CLIENTS]).await;
        assert!(begins_with(&reply, b"held"), "{reply:?}");
    }

    pub(crate) async fn acquire_and_leave(&mut self, key: &str, id: &str) {
        self.acquire(key, id, "w").await;
        self.leave(key, id).await;
    }

    pub(crate) async fn lock_shaped_pair(&mut self, key: &str) {
        for id in ["0123456789abcdef", "-"] {
            self.lock_shaped(key, id).await;
        }
    }

    pub(crate) async fn lock_shaped(&mut self, key: &str, id: &str) {
        call(&mut self.connection, &self.lock_shape, key, &[id, "3600000"]).await;
    }

    pub(crate) async fn two_no_ops(&mut self, key: &str) {
        self.no_op(key).await;
        self.no_op(key).await;
    }

    pub(crate) async fn publish(&mut self, channel: &str) {
        call(&mut self.connection, &self.publish, channel, &["now"]).await;
    }
}

async fn call(connection: &mut impl ConnectionLike, script: &str, key: &str, arguments: &[&str]) -> Value {
    let mut command = redis::cmd("EVALSHA");
    command.arg(script).arg(1).arg(key).arg(arguments);
    connection.req_packed_command(&command).await.and_then(Value::extract_error).expect("a reply")
}

fn begins_with(reply: &Value, code: &[u8]) -> bool {
    matches!(reply, Value::BulkString(text) if text.split(|byte| *byte == b' ').next() == Some(code))
}

/// Messages of a channel, read without the crate.
pub(crate) struct Messages(TcpStream);

impl Messages {
    pub(crate) async fn subscribe(url: &str, channel: &str) -> Self {
        let mut stream = TcpStream::connect(url.trim_start_matches("redis://")).await.expect("a connection");
        stream.set_nodelay(true).expect("a live socket");
        stream.write_all(format!("SSUBSCRIBE {channel}\r\n").as_bytes()).await.expect("sent");
        let mut messages = Self(stream);
        // The confirmation: one push, which fits.
        messages.next().await;
        messages
    }

    pub(crate) async fn next(&mut self) {
        assert!(self.is_next().await, "the server has closed the connection");
    }

    /// Waits for a message. Returns `false` when the server has gone.
    pub(crate) async fn is_next(&mut self) -> bool {
        self.0.read(&mut [0; 1024]).await.is_ok_and(|read| read > 0)
    }
}

/// Counts and costs of the commands of a server.
pub(crate) struct CommandStats(String);

impl CommandStats {
    pub(crate) fn of(node: &Node) -> Self {
        let reply = node.command(&["INFO", "commandstats"]).expect("an answer");
        Self(reply.text().expect("a text").into_owned())
    }

    pub(crate) fn reset(node: &Node) {
        assert!(node.command(&["CONFIG", "RESETSTAT"]).expect("an answer").is_ok());
    }

    fn field(&self, command: &str, field: &str) -> f64 {
        let line =
            self.0.lines().find_map(|line| line.strip_prefix("cmdstat_")?.strip_prefix(command)?.strip_prefix(':'));
        let mut fields = line.unwrap_or_default().split(',').filter_map(|pair| pair.split_once('='));
        fields.find(|(name, _)| *name == field).map_or(0.0, |(_, value)| value.parse().expect("a number"))
    }

    pub(crate) fn calls(&self, command: &str) -> u64 {
        self.field(command, "calls") as u64
    }

    pub(crate) fn micros(&self, command: &str) -> f64 {
        self.field(command, "usec")
    }

    pub(crate) fn commands(&self) -> impl Iterator<Item = &str> {
        self.0.lines().filter_map(|line| line.strip_prefix("cmdstat_")?.split(':').next())
    }
}

pub(crate) fn info(client: &mut Client, section: &str) -> String {
    client.command(&["INFO", section]).expect("an answer").text().expect("a text").into_owned()
}

/// Returns a number that `INFO` has.
pub(crate) fn info_number(text: &str, field: &str) -> f64 {
    let line = text.lines().find_map(|line| line.strip_prefix(field)?.strip_prefix(':'));
    line.and_then(|line| line.trim().parse().ok()).expect("a number")
}

/// Returns the CPU time of the server's process, in microseconds.
pub(crate) fn server_cpu_us(client: &mut Client) -> f64 {
    let info = info(client, "cpu");
    (info_number(&info, "used_cpu_user") + info_number(&info, "used_cpu_sys")) * 1e6
}

/// Sends commands in batches, and checks that no reply is an error.
pub(crate) fn send(client: &mut Client, commands: &[Vec<String>], at_once: usize) {
    for batch in commands.chunks(at_once) {
        for reply in client.pipeline(batch).expect("the server answers") {
            assert!(reply.error().is_none(), "{reply:?}");
        }
    }
}

/// Loads a script, and returns its digest.
pub(crate) fn load(client: &mut Client, text: &str) -> String {
    let reply = client.command(&["SCRIPT", "LOAD", text]).and_then(Reply::into_result).expect("it compiles");
    reply.text().expect("a digest").into_owned()
}

pub(crate) fn micros(time: Duration) -> f64 {
    time.as_secs_f64() * 1e6
}

/// Returns the value below which this share of the samples lie.
pub(crate) fn quantile(samples: &mut [Duration], share: f64) -> Duration {
    assert!(!samples.is_empty());
    samples.sort_unstable();
    samples[((samples.len() - 1) as f64 * share).round() as usize]
}

/// Returns the p50 in microseconds.
pub(crate) fn p50_us(samples: &mut [Duration]) -> f64 {
    micros(quantile(samples, 0.5))
}

pub(crate) fn median(samples: &mut [f64]) -> f64 {
    assert!(!samples.is_empty());
    samples.sort_unstable_by(f64::total_cmp);
    samples[samples.len() / 2]
}

/// Returns the row to measure next, again and again, and whether the sample counts. Odd turns go backwards, so that no
/// row always follows the same other. A tenth more turns come first, and only warm up.
pub(crate) fn in_turns(rows: usize, turns: usize) -> impl Iterator<Item = (usize, bool)> {
    let warm = turns / 10;
    (0..turns + warm).flat_map(move |turn| {
        (0..rows).map(move |step| (if turn.is_multiple_of(2) { step } else { rows - 1 - step }, turn >= warm))
    })
}

/// Both sides of a comparison, which take turns.
#[derive(Default)]
pub(crate) struct Sides {
    pub(crate) ours: Vec<f64>,
    pub(crate) others: Vec<f64>,
}

impl Sides {
    pub(crate) fn push(&mut self, ours: f64, others: f64) {
        self.ours.push(ours);
        self.others.push(others);
    }

    /// Returns the medians of both sides.
    pub(crate) fn medians(&self) -> [f64; 2] {
        [median(&mut self.ours.clone()), median(&mut self.others.clone())]
    }

    /// Prints the median of the ratios of all turns as a figure.
    pub(crate) fn tell(&self, what: &str, unit: &str, target: Target) {
        tell(what, &against(self.medians(), unit), self.ratio(), target);
    }

    /// Returns the median of the ratios of all turns.
    pub(crate) fn ratio(&self) -> f64 {
        median(&mut self.ours.iter().zip(&self.others).map(|(ours, others)| ours / others).collect::<Vec<_>>())
    }
}

fn against([ours, others]: [f64; 2], unit: &str) -> String {
    format!("{ours:.2} {unit} against {others:.2} {unit}")
}

/// Prints a figure that is the ratio of both sides.
pub(crate) fn tell_ratio(what: &str, sides: [f64; 2], unit: &str, target: Target) {
    tell(what, &against(sides, unit), sides[0] / sides[1], target);
}

/// Target of a figure.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Target {
    AtMost(f64),
    AtLeast(f64),
}

impl Target {
    pub(crate) fn is_met_by(self, value: f64) -> bool {
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

/// Prints a figure: its name, both sides, its value, and the verdict. `benches/targets` reads these lines.
pub(crate) fn tell(what: &str, sides: &str, value: f64, target: Target) {
    let verdict = match (Effort::asked_for(), target.is_met_by(value)) {
        (Effort::Once, _) => "not judged",
        (_, true) => "ok",
        (_, false) => "MISSED",
    };
    println!("figure: {what}: {sides}: {value:.3}, target {target}, {verdict}");
}
