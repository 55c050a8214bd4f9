//! Fixtures: managers and servers for cases, and the macros that run each case on all of them.

use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use cluster_testenv::{Node, Reply, Server};
use redis_rwlock::{
    Build, Builder, Durability, Error, LockView, MemoryManager, Mode, QuorumManager, RedisManager, RedissonManager,
    Reentry, Replicas, RwLockManager, TimestampClients, Topology, TwoKeyManager,
};
use tokio::runtime::{Handle, Runtime};
use tokio::task::JoinHandle;

use crate::either::{AnyGuard, take};
use crate::servers::{Missing, Pair, Servers, Voters, ask, portable_node, proxy_of_cluster};
use crate::wait::{self, BOUND, Ends, until};

/// A manager, as services have it.
pub type Manager = Arc<dyn RwLockManager>;

/// The lease of holds that a case lets run out.
pub const SHORT: Duration = Duration::from_millis(500);
/// The lease of holds that must be renewed though the machine is busy.
pub const RENEWED: Duration = Duration::from_millis(2000);

/// The options that cases change.
#[derive(Clone, Debug)]
pub struct Settings {
    pub lease: Duration,
    pub max_hold: Duration,
    pub wait_timeout: Option<Duration>,
    pub max_clock_skew: Duration,
    pub response_timeout: Duration,
    pub unreachable_after: Duration,
    pub reentry: Reentry,
    pub label: String,
    pub timestamp_clients: TimestampClients,
    /// Template of the locks' keys. For the hash scheme only.
    pub timestamp_keys: Option<String>,
    pub join_window: Duration,
    pub cache_for: Duration,
    pub max_handoffs: u64,
    pub max_waiters: usize,
    /// Durability of managers on servers. A fixture with a level of its own takes that instead.
    pub durability: Durability,
    /// Runtime for the background work. The thread of the process if `None`.
    pub background: Option<Handle>,
}

/// Time that fixtures with caching keep a hold: longer than any case.
const CACHE_FOR: Duration = Duration::from_secs(300);

impl Default for Settings {
    /// The crate's own defaults, but for a margin that suits servers on one machine.
    fn default() -> Self {
        Self {
            lease: Duration::from_secs(10),
            max_hold: Duration::from_secs(3600),
            wait_timeout: None,
            max_clock_skew: Duration::from_millis(5),
            response_timeout: Duration::from_millis(500),
            unreachable_after: Duration::from_secs(5),
            reentry: Reentry::Off,
            label: "case".to_owned(),
            cache_for: Duration::ZERO,
            join_window: Duration::from_millis(50),
            max_handoffs: 64,
            max_waiters: 100_000,
            durability: Durability::Primary,
            timestamp_clients: TimestampClients::default(),
            timestamp_keys: None,
            background: None,
        }
    }
}

/// Recall timeout in cases, because a busy machine gives cached holds up late.
pub const RECALL_TIMEOUT: Duration = Duration::from_secs(2);

impl Settings {
    pub fn lease(lease: Duration) -> Self {
        Self { lease, ..Self::default() }
    }

    pub fn label(label: &str) -> Self {
        Self { label: label.to_owned(), ..Self::default() }
    }

    fn apply<M: Build>(self, builder: Builder<M>) -> Builder<M> {
        let builder = builder
            .lease(self.lease)
            .max_hold(self.max_hold)
            .max_clock_skew(self.max_clock_skew)
            .response_timeout(self.response_timeout)
            .unreachable_after(self.unreachable_after)
            .reentry(self.reentry)
            .label(self.label)
            .join_window(self.join_window)
            .recall_timeout(RECALL_TIMEOUT)
            .max_handoffs(self.max_handoffs)
            .max_waiters(self.max_waiters)
            .timestamp_clients(self.timestamp_clients);
        let builder = match self.background {
            Some(runtime) => builder.background_on(runtime),
            None => builder,
        };
        match self.wait_timeout {
            Some(wait_timeout) => builder.wait_timeout(wait_timeout),
            None => builder,
        }
    }
}

/// Store of the locks.
#[derive(Clone)]
enum Backend {
    Memory(MemoryManager),
    TwoKey(Topology),
    Hash(Topology),
    /// The hash scheme, where a replica has to acknowledge each grant.
    Replicated(Topology),
    Quorum(Vec<String>),
    /// The format of Redisson, whose keys have no prefix.
    Redisson(Topology),
}

/// Time of a manager's first connection.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Connects {
    Now,
    AtFirstUse,
}

impl Backend {
    async fn manager(&self, prefix: &str, mut settings: Settings, connects: Connects) -> Result<Manager, Error> {
        async fn finish<M: Build>(
            builder: Builder<M>,
            settings: Settings,
            connects: Connects,
        ) -> Result<Manager, Error> {
            let builder = settings.apply(builder);
            Ok(match connects {
                Connects::Now => Arc::new(builder.connect().await?),
                Connects::AtFirstUse => Arc::new(builder.build()?),
            })
        }
        let (durability, cache_for) = (settings.durability, settings.cache_for);
        match self {
            Self::Memory(store) => {
                finish(store.peer_builder().cache_for(cache_for).key_prefix(prefix), settings, connects).await
            }
            Self::TwoKey(topology) => {
                let builder = TwoKeyManager::builder(topology.clone()).durability(durability);
                finish(builder.key_prefix(prefix), settings, connects).await
            }
            Self::Replicated(topology) => {
                // A busy machine answers late, and a manager does not repeat a request that has waited for replicas.
                if settings.response_timeout == Settings::default().response_timeout {
                    settings.response_timeout = Duration::from_secs(4);
                }
                let level = on_one_replica(settings.response_timeout / 2);
                let builder = RedisManager::builder(topology.clone()).durability(level).cache_for(cache_for);
                finish(builder.key_prefix(prefix), settings, connects).await
            }
            Self::Quorum(masters) => {
                // The masters were started just now, and would not vote yet.
                let builder = QuorumManager::builder(masters.clone()).restarts_are_delayed();
                finish(builder.key_prefix(prefix), settings, connects).await
            }
            Self::Redisson(topology) => {
                finish(RedissonManager::builder(topology.clone()).durability(durability), settings, connects).await
            }
            Self::Hash(topology) => {
                let builder = RedisManager::builder(topology.clone()).durability(durability).key_prefix(prefix);
                let builder = match &settings.timestamp_keys {
                    Some(template) => builder.timestamp_keys(template),
                    None => builder.cache_for(cache_for),
                };
                finish(builder, settings, connects).await
            }
        }
    }
}

/// Durability at which one replica has to acknowledge within `timeout`.
pub fn on_one_replica(timeout: Duration) -> Durability {
    Durability::Replicated { replicas: Replicas::At(1), timeout }
}

/// A place for locks that the case has to itself: managers made here see the same locks, those of other cases do not.
pub struct Fixture {
    backend: Backend,
    prefix: String,
    names: AtomicU64,
    /// Least time that managers cache a hold. A case can set a longer one.
    cache_for: Duration,
}

impl Fixture {
    pub fn memory() -> Self {
        Self::at(Backend::Memory(MemoryManager::new()))
    }

    /// A fixture in memory, with caching.
    pub fn cached_in_memory() -> Self {
        Self { cache_for: CACHE_FOR, ..Self::memory() }
    }

    /// The hash scheme on servers of the case's own.
    pub fn hash(topology: Topology) -> Self {
        Self::at(Backend::Hash(topology))
    }

    /// The two-key scheme on servers of the case's own.
    pub fn two_key(topology: Topology) -> Self {
        Self::at(Backend::TwoKey(topology))
    }

    /// A primary and a replica, which has to acknowledge each grant. Other cases use them at the same time.
    pub fn replicated(server: Server) -> Self {
        Self::at(Backend::Replicated(Topology::node(Pair::shared(server).primary.url())))
    }

    /// The hash scheme on a server that refuses the fast form of the scripts. Other cases use it at the same time.
    pub fn portable() -> Self {
        Self::at(Backend::Hash(Topology::node(portable_node().url())))
    }

    /// The two-key scheme on a server that refuses the fast form of the scripts.
    pub fn portable_two_key() -> Self {
        Self::at(Backend::TwoKey(Topology::node(portable_node().url())))
    }

    /// The hash scheme behind a proxy in front of a cluster. Other cases use it at the same time.
    pub fn behind_a_proxy() -> Self {
        Self::at(Backend::Hash(Topology::proxy(proxy_of_cluster().url())))
    }

    /// The hash scheme on a server that does not know these commands. Other cases use it at the same time.
    pub fn without(missing: Missing) -> Self {
        Self::at(Backend::Hash(Topology::node(missing.node().url())))
    }

    /// A quorum of five masters that other cases use at the same time.
    pub fn five_masters(server: Server) -> Self {
        Self::quorum_of(Voters::FiveOfFive.urls(server))
    }

    /// A quorum of five masters, two of which are dead. Other cases use it at the same time.
    pub fn three_of_five_masters(server: Server) -> Self {
        Self::quorum_of(Voters::ThreeOfFive.urls(server))
    }

    /// A quorum of masters of the case's own.
    pub fn quorum_of(masters: Vec<String>) -> Self {
        Self::at(Backend::Quorum(masters))
    }

    /// The format of Redisson on a node that other cases use at the same time.
    pub fn redisson(server: Server) -> Self {
        Self::at(Backend::Redisson(Topology::node(Servers::shared_node(server).primaries()[0].url())))
    }

    /// The format of Redisson on a cluster that other cases use at the same time.
    pub fn redisson_cluster(server: Server) -> Self {
        let servers = Servers::shared_cluster(server);
        Self::at(Backend::Redisson(Topology::cluster(servers.cluster().expect("a cluster").urls())))
    }

    fn at(backend: Backend) -> Self {
        static CASES: AtomicU64 = AtomicU64::new(0);
        let prefix = format!("case{}", CASES.fetch_add(1, Ordering::Relaxed));
        Self { backend, prefix, names: AtomicU64::new(0), cache_for: Duration::ZERO }
    }

    /// A name that no other lock has.
    pub fn name(&self) -> String {
        let name = format!("lock-{}", self.names.fetch_add(1, Ordering::Relaxed));
        if self.is_redisson() { format!("{}-{name}", self.prefix) } else { name }
    }

    /// The name of a lock's key in the hash scheme, as documented.
    pub fn hash_key(&self, name: &str) -> String {
        key_name(&self.prefix, name, "lock")
    }

    /// The channels of the managers that listen at a node for a lock, as documented.
    pub fn wake_channels(&self, node: &Node, name: &str) -> Vec<String> {
        wake_channels(node, &self.prefix, name)
    }

    /// The write key of a lock in the two-key scheme, as documented.
    pub fn write_key(&self, name: &str) -> String {
        key_name(&self.prefix, name, "write")
    }

    /// Prefix of the keys of this case.
    pub fn prefix(&self) -> &str {
        &self.prefix
    }

    /// A new manager, as another process would have.
    pub async fn manager(&self) -> Manager {
        self.manager_with(Settings::default()).await
    }

    pub async fn manager_with(&self, settings: Settings) -> Manager {
        self.connect(settings).await.expect("the manager connects")
    }

    /// A manager with these settings, another one with the usual ones, and the name of a lock that no case has used.
    pub async fn pair(&self, settings: Settings) -> (Manager, Manager, String) {
        (self.manager_with(settings).await, self.manager().await, self.name())
    }

    /// A manager of a process with this label.
    pub async fn manager_with_label(&self, label: &str) -> Manager {
        self.manager_with(Settings::label(label)).await
    }

    /// Managers of as many processes as asked for, and the name of a lock that no case has used.
    pub async fn scene<const N: usize>(&self) -> ([Manager; N], String) {
        self.scene_with(Settings::default()).await
    }

    pub async fn scene_with<const N: usize>(&self, settings: Settings) -> ([Manager; N], String) {
        self.scene_of(|_| settings.clone()).await
    }

    /// Builds a scene as [`Fixture::scene`] does, with the settings of the n-th manager.
    pub async fn scene_of<const N: usize>(&self, settings: impl Fn(usize) -> Settings) -> ([Manager; N], String) {
        let mut managers = Vec::new();
        for n in 0..N {
            managers.push(self.manager_with(settings(n)).await);
        }
        (managers.try_into().unwrap_or_else(|_| unreachable!("as many as asked for")), self.name())
    }

    pub async fn connect(&self, settings: Settings) -> Result<Manager, Error> {
        let settings = self.with_cache_for(settings);
        self.backend.manager(&self.prefix, settings, Connects::Now).await
    }

    /// Manager of the locks of this fixture that connects to another topology. For the two schemes on servers.
    pub async fn manager_elsewhere(&self, topology: Topology) -> Manager {
        let backend = match &self.backend {
            Backend::TwoKey(_) => Backend::TwoKey(topology),
            Backend::Hash(_) => Backend::Hash(topology),
            Backend::Redisson(_) => Backend::Redisson(topology),
            Backend::Memory(_) | Backend::Replicated(_) | Backend::Quorum(_) => panic!("it has its own servers"),
        };
        backend.manager(&self.prefix, Settings::default(), Connects::Now).await.expect("the manager connects")
    }

    /// A manager that has not connected yet.
    pub async fn lazy_manager(&self, settings: Settings) -> Manager {
        let settings = self.with_cache_for(settings);
        self.backend.manager(&self.prefix, settings, Connects::AtFirstUse).await.expect("the manager is built")
    }

    /// The future of [`Fixture::connect`], on its own.
    pub fn connecting(&self, settings: Settings) -> impl Future<Output = Result<Manager, Error>> + Send + 'static {
        let (backend, prefix, settings) = (self.backend.clone(), self.prefix.clone(), self.with_cache_for(settings));
        async move { backend.manager(&prefix, settings, Connects::Now).await }
    }

    /// A manager with a runtime of its own, on which all of its work runs: it can die alone.
    pub async fn process(&self, settings: Settings) -> Process {
        let runtime = Runtime::new().expect("a runtime starts");
        let background = Some(runtime.handle().clone());
        self.on_runtime(runtime, Settings { background, ..settings }).await
    }

    /// A manager that is used on a runtime of its own, which can end while the process goes on.
    pub async fn elsewhere(&self, settings: Settings) -> Process {
        self.on_runtime(Runtime::new().expect("a runtime starts"), settings).await
    }

    async fn on_runtime(&self, runtime: Runtime, settings: Settings) -> Process {
        let manager = runtime.spawn(self.connecting(settings)).await.expect("no panic").expect("the manager connects");
        Process { runtime: Some(runtime), manager }
    }

    /// True if a hold may be cached when its last guard has left.
    pub fn holds_stay(&self) -> bool {
        !self.cache_for.is_zero()
    }

    fn with_cache_for(&self, settings: Settings) -> Settings {
        Settings { cache_for: settings.cache_for.max(self.cache_for), ..settings }
    }

    pub fn is_proxied(&self) -> bool {
        matches!(&self.backend, Backend::Hash(topology) if format!("{topology:?}").starts_with("Proxy"))
    }

    /// True if the keys are the names, and each write grant has one token.
    pub fn is_redisson(&self) -> bool {
        matches!(self.backend, Backend::Redisson(_))
    }

    pub fn is_quorum(&self) -> bool {
        matches!(self.backend, Backend::Quorum(_))
    }

    /// View of the lock that another manager gets.
    pub async fn view(&self, name: &str) -> LockView {
        self.manager().await.inspect(name).await.expect("inspected")
    }

    /// Waits until this number of processes waits for the lock.
    pub async fn until_waiting(&self, waiters: usize, name: &str) {
        until("the queue is as long as expected", async || self.view(name).await.waiters.len() == waiters).await;
    }

    /// Starts an acquisition in a task, and returns when it is in the queue.
    pub async fn queued<A: IntoFuture<IntoFuture: Send + 'static, Output: Send + 'static>>(
        &self,
        name: &str,
        acquiring: A,
    ) -> JoinHandle<A::Output> {
        let before = self.view(name).await.waiters.len();
        let waiting = tokio::spawn(acquiring.into_future());
        until("it waits", async || self.view(name).await.waiters.len() > before).await;
        waiting
    }

    /// Waits until the lock has no holder and no waiter, and shows that it can be taken.
    pub async fn becomes_free(&self, name: &str) {
        let other = self.manager().await;
        if self.holds_stay() {
            // A cached hold is given up when another process wants the lock.
            let guard = crate::wait::granted(other.write(name)).await;
            guard.release().await.expect("released");
        }
        until("the lock is free", async || {
            let view = other.inspect(name).await.expect("inspected");
            view.is_free() && view.waiters.is_empty()
        })
        .await;
        // A try asks each master once, and of three live masters each vote counts. So this waits.
        let limit = Duration::from_secs(5);
        let guard = other.write(name).wait_timeout(limit).await.expect("a free lock can be taken");
        guard.release().await.expect("released");
    }
}

/// A manager as a process has it: its runtime can be shut down under it.
pub struct Process {
    runtime: Option<Runtime>,
    pub manager: Manager,
}

impl Process {
    /// Runs some work within the process.
    pub async fn run<T: Send + 'static>(&self, act: impl FnOnce(Manager) -> redis_rwlock::BoxFuture<'static, T>) -> T {
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime.spawn(act(Arc::clone(&self.manager))).await.expect("no panic")
    }

    /// Acquires a lock within the process.
    pub async fn take(&self, name: &str, mode: Mode) -> AnyGuard {
        let name = name.to_owned();
        self.run(move |manager| Box::pin(async move { take(&manager, &name, mode).await })).await
    }

    /// Starts to wait for a lock within the process, to write.
    pub fn start_to_write(&self, name: &str) {
        let name = name.to_owned();
        self.start(|manager| Box::pin(manager.write(&name).into_future()));
    }

    /// Starts the work in which the process dies. The work is not dropped, because a killed process takes nothing back.
    pub fn start<T: Send + 'static>(&self, act: impl FnOnce(Manager) -> redis_rwlock::BoxFuture<'static, T>) {
        let mut acting = ManuallyDrop::new(act(Arc::clone(&self.manager)));
        let runtime = self.runtime.as_ref().expect("it lives");
        runtime.spawn(async move { drop((*acting).as_mut().await) });
    }

    /// Ends the runtime with everything on it, as a crash would. A drop within it may still send something: see
    /// `start`.
    pub async fn die(&mut self) {
        let runtime = self.runtime.take().expect("it dies once");
        tokio::task::spawn_blocking(move || drop(runtime)).await.expect("no panic at shutdown");
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(runtime) = self.runtime.take() {
            runtime.shutdown_background();
        }
    }
}

/// Scheme and topology of a manager's locks.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    TwoKey,
    HashNode,
    HashCluster,
}

/// A fixture whose servers can be looked at.
pub struct ServerFixture {
    fixture: Fixture,
    pub kind: Kind,
    pub servers: Servers,
}

impl Deref for ServerFixture {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl ServerFixture {
    /// A fixture on servers that other cases use at the same time.
    pub fn shared(kind: Kind, server: Server) -> Self {
        Self::on(
            kind,
            match kind {
                Kind::TwoKey | Kind::HashNode => Servers::shared_node(server),
                Kind::HashCluster => Servers::shared_cluster(server),
            },
        )
    }

    /// A fixture on servers that other cases use at the same time, with caching.
    pub fn caching(kind: Kind, server: Server) -> Self {
        let shared = Self::shared(kind, server);
        Self { fixture: Fixture { cache_for: CACHE_FOR, ..shared.fixture }, ..shared }
    }

    /// A fixture on servers behind proxies, which other cases use at the same time.
    pub fn proxied(kind: Kind, server: Server) -> Self {
        Self::on(
            kind,
            match kind {
                Kind::TwoKey | Kind::HashNode => Servers::proxied_node(server),
                Kind::HashCluster => Servers::proxied_cluster(server),
            },
        )
    }

    /// A fixture on servers that no other case uses meanwhile.
    pub async fn alone(kind: Kind, server: Server) -> Self {
        Self::on(
            kind,
            match kind {
                Kind::TwoKey | Kind::HashNode => Servers::own_node(server),
                Kind::HashCluster => Servers::own_cluster(server).await,
            },
        )
    }

    fn on(kind: Kind, servers: Servers) -> Self {
        let topology = match servers.cluster() {
            Some(cluster) => Topology::cluster(cluster.urls()),
            None => Topology::node(servers.primaries()[0].url()),
        };
        let backend = match kind {
            Kind::TwoKey => Backend::TwoKey(topology),
            Kind::HashNode | Kind::HashCluster => Backend::Hash(topology),
        };
        Self { fixture: Fixture::at(backend), kind, servers }
    }

    /// The names of a lock's keys, as documented.
    pub fn keys_of(&self, name: &str) -> Vec<String> {
        let parts: &[&str] = match self.kind {
            Kind::TwoKey => &["read", "write"],
            Kind::HashNode | Kind::HashCluster => &["lock"],
        };
        parts.iter().map(|part| self.key_of(name, part)).collect()
    }

    pub fn key_of(&self, name: &str, part: &str) -> String {
        key_name(&self.prefix, name, part)
    }

    /// Sends one command to the owner of a key. The key follows the command's name.
    pub fn on_key(&self, command: &str, key: &str, rest: &[&str]) -> Reply {
        let words: Vec<&str> = [command, key].into_iter().chain(rest.iter().copied()).collect();
        ask(self.servers.owner_of(key), &words)
    }

    /// All keys of this case that are there, with their ttl in milliseconds.
    pub fn ttls(&self) -> Vec<(String, i64)> {
        let mut found = Vec::new();
        for node in self.servers.primaries() {
            for pattern in [format!("{}:*", self.prefix), format!("{}#*", self.prefix)] {
                let reply = ask(node, &["KEYS", &pattern]);
                for key in reply.array().expect("a list").iter().filter_map(Reply::text) {
                    let ttl_ms = ask(node, &["PTTL", &key]).int().expect("a number");
                    found.push((key.into_owned(), ttl_ms));
                }
            }
        }
        found
    }

    /// Number of calls of a command at the servers since they started, or since `CONFIG RESETSTAT`.
    pub fn calls_of(&self, command: &str) -> i64 {
        let line = format!("cmdstat_{command}:calls=");
        let count = |reply: &Reply| {
            let text = reply.text()?.into_owned();
            let rest = text.split_once(&line)?.1;
            rest.split(',').next()?.parse::<i64>().ok()
        };
        self.servers.everywhere(&["INFO", "commandstats"]).iter().filter_map(count).sum()
    }
}

/// The name of a key, as documented: a name with a hash tag keeps it, any other becomes the tag.
fn key_name(prefix: &str, name: &str, part: &str) -> String {
    if has_hash_tag(name) {
        return format!("{prefix}#{name}:{part}");
    }
    let tag = name.replace('%', "%25").replace('{', "%7B").replace('}', "%7D");
    format!("{prefix}:{{{tag}}}:{part}")
}

/// The channels of the managers that listen at a node for a lock, in either scheme: one each.
pub fn wake_channels(node: &Node, prefix: &str, name: &str) -> Vec<String> {
    let pattern = key_name(prefix, name, "*wake:*");
    let reply = ask(node, &["PUBSUB", "SHARDCHANNELS", &pattern]);
    let channels = reply.array().expect("a list").iter();
    channels.map(|channel| channel.text().expect("a name").into_owned()).collect()
}

pub fn has_hash_tag(name: &str) -> bool {
    let tag = name.split_once('{').and_then(|(_, rest)| rest.split_once('}'));
    tag.is_some_and(|(tag, _)| !tag.is_empty())
}

/// A case on server fixtures, which `$make` in its parentheses makes: for each the name of the test, the kind and the
/// server. With `later`, it runs with `.ci/all` only.
macro_rules! on_each {
    ($case:ident $make:tt, $($name:ident $kind:ident $server:ident $($later:ident)?),+ $(,)?) => {
        $($crate::fixture::on_one!(@ $make $($later)? $case, $name, $kind, $server);)+
    };
}

/// A case on the twelve server fixtures; `$make` makes the fixture. On each push, each kind of topology runs on a server of
/// its own. The rest runs with `.ci/all`.
macro_rules! on_servers {
    ($case:ident, $($make:tt)+) => {
        $crate::fixture::on_each!(
            $case ($($make)+),
            two_key_on_redis_7_0 TwoKey Redis70,
            two_key_on_redis_8_2 TwoKey Redis82 later,
            two_key_on_valkey_8_1 TwoKey Valkey81 later,
            two_key_on_valkey_9_1 TwoKey Valkey91 later,
        );
        $crate::fixture::on_hash!($case, $($make)+);
    };
}

/// A case on the eight server fixtures of the hash scheme, six of them with `.ci/all` only.
macro_rules! on_hash {
    ($case:ident, $($make:tt)+) => {
        $crate::fixture::on_each!(
            $case ($($make)+),
            hash_on_redis_7_0 HashNode Redis70 later,
            hash_on_redis_8_2 HashNode Redis82,
            hash_on_valkey_8_1 HashNode Valkey81 later,
            hash_on_valkey_9_1 HashNode Valkey91 later,
            hash_on_redis_7_0_cluster HashCluster Redis70 later,
            hash_on_redis_8_2_cluster HashCluster Redis82 later,
            hash_on_valkey_8_1_cluster HashCluster Valkey81 later,
            hash_on_valkey_9_1_cluster HashCluster Valkey91,
        );
    };
}

/// A case on both schemes with portable scripts, with `.ci/all` only.
macro_rules! on_portable {
    ($case:ident) => {
        $crate::fixture::on_this!(later $case, portable_hash, $crate::fixture::Fixture::portable());
        $crate::fixture::on_this!(later $case, portable_two_key, $crate::fixture::Fixture::portable_two_key());
    };
}

/// A case with servers that lack commands, and behind a proxy, with `.ci/all` only.
macro_rules! on_lacking {
    ($case:ident) => {
        $crate::fixture::on_this!(later $case, lacking_behind_a_proxy, $crate::fixture::Fixture::behind_a_proxy());
        $crate::fixture::on_this!(
            later $case, lacking_hello, $crate::fixture::Fixture::without($crate::servers::Missing::Hello)
        );
        $crate::fixture::on_this!(
            later $case, lacking_channels, $crate::fixture::Fixture::without($crate::servers::Missing::Channels)
        );
    };
}

/// A case on one node with either scheme, on each server. On each push, it runs once on each.
macro_rules! on_nodes {
    ($case:ident, $($make:tt)+) => {
        $crate::fixture::on_each!(
            $case ($($make)+),
            two_key_on_redis_7_0 TwoKey Redis70,
            two_key_on_redis_8_2 TwoKey Redis82 later,
            two_key_on_valkey_8_1 TwoKey Valkey81 later,
            two_key_on_valkey_9_1 TwoKey Valkey91,
            hash_on_redis_7_0 HashNode Redis70 later,
            hash_on_redis_8_2 HashNode Redis82,
            hash_on_valkey_8_1 HashNode Valkey81,
            hash_on_valkey_9_1 HashNode Valkey91 later,
        );
    };
}

/// A case on one fixture. With `later` before it, it runs with `.ci/all` only.
macro_rules! on_one {
    (@ ($make:ident $(. $await:ident)?) $($case:ident)+, $name:ident, $kind:ident, $server:ident) => {
        $crate::fixture::on_this!(
            $($case)+, $name, $($await)?
            $crate::fixture::ServerFixture::$make($crate::fixture::Kind::$kind, cluster_testenv::Server::$server)
        );
    };
    ($($case:ident)+, $name:ident, $kind:ident, $server:ident, $($make:tt)+) => {
        $crate::fixture::on_one!(@ ($($make)+) $($case)+, $name, $kind, $server);
    };
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = T> + 'a>>;

/// Runs a case on the fixture that `make` makes. Both are functions, because the compiler needs long for a future of its own
/// for each of the thousands of tests.
pub fn play<F, T: Ends>(make: fn() -> Boxed<'static, F>, case: for<'a> fn(&'a F) -> Boxed<'a, T>) {
    wait::run(BOUND * 2, 2, Box::pin(async move { case(&make().await).await }));
}

/// Names the fixtures of cases that only `.ci/all` compiles, so that they are checked on each push, and are not unused.
const _: () = {
    use Fixture as F;
    let _: [fn() -> F; 4] = [F::cached_in_memory, F::portable, F::portable_two_key, F::behind_a_proxy];
    let _: [fn(Server) -> F; 3] = [F::three_of_five_masters, F::replicated, F::redisson_cluster];
    let _: (fn(Missing) -> F, [Missing; 2]) = (F::without, [Missing::Hello, Missing::Channels]);
    let _: fn(Kind, Server) -> ServerFixture = ServerFixture::caching;
};

macro_rules! on_this {
    (later $case:ident, $($test:tt)+) => {
        $crate::fixture::on_this!(
            @ #[cfg(redis_rwlock_everywhere)] #[ignore = "runs in `.ci/all`"] $case, $($test)+
        );
    };
    (@ $(#[$later:meta])* $case:ident, $name:ident, await $fixture:expr) => {
        #[test]
        $(#[$later])*
        fn $name() {
            $crate::fixture::play(|| Box::pin($fixture), |fixture| Box::pin(super::$case(fixture)));
        }
    };
    (@ $(#[$later:meta])* $case:ident, $name:ident, $fixture:expr) => {
        $crate::fixture::on_this!(@ $(#[$later])* $case, $name, await std::future::ready($fixture));
    };
    ($($test:tt)+) => {
        $crate::fixture::on_this!(@ $($test)+);
    };
}

/// A case of the contract on masters, on a primary with a replica that acknowledges, and with cached holds. Only one of
/// these runs on each push.
macro_rules! on_quorum_and_levels {
    (@ $case:ident, $($name:ident $make:ident $server:ident $($later:ident)?),+ $(,)?) => {
        $($crate::fixture::on_this!(
            $($later)? $case, $name, $crate::fixture::Fixture::$make(cluster_testenv::Server::$server)
        );)+
    };
    ($case:ident) => {
        $crate::fixture::on_quorum_and_levels!(
            @ $case,
            five_masters_on_redis_7_0 five_masters Redis70 later,
            five_masters_on_redis_8_2 five_masters Redis82 later,
            five_masters_on_valkey_8_1 five_masters Valkey81,
            five_masters_on_valkey_9_1 five_masters Valkey91 later,
            three_of_five_masters_on_redis_7_0 three_of_five_masters Redis70 later,
            three_of_five_masters_on_redis_8_2 three_of_five_masters Redis82 later,
            three_of_five_masters_on_valkey_8_1 three_of_five_masters Valkey81 later,
            three_of_five_masters_on_valkey_9_1 three_of_five_masters Valkey91 later,
            replicated_on_redis_7_0 replicated Redis70 later,
            replicated_on_redis_8_2 replicated Redis82 later,
            replicated_on_valkey_8_1 replicated Valkey81 later,
            replicated_on_valkey_9_1 replicated Valkey91 later,
        );
        $crate::fixture::on_each!(
            $case (caching),
            cached_on_redis_7_0 HashNode Redis70 later,
            cached_on_redis_8_2 HashNode Redis82 later,
            cached_on_valkey_8_1 HashNode Valkey81 later,
            cached_on_valkey_9_1 HashNode Valkey91 later,
        );
    };
}

/// Each case on every fixture. On each push it runs in memory, on one node and on a cluster with the hash scheme, on one node
/// with two keys, on five masters, and on one node in the format of Redisson; all else runs with `.ci/all`.
macro_rules! on_every_fixture {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_own_formats!($case);
            $crate::fixture::on_redisson!($case);
        }
    )+};
}

/// Each case on every fixture but those in the format of Redisson.
macro_rules! on_every_own_format {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_own_formats!($case);
        }
    )+};
}

/// A case on every fixture but those in the format of Redisson.
macro_rules! on_own_formats {
    ($case:ident) => {
        $crate::fixture::on_this!($case, memory, $crate::fixture::Fixture::memory());
        $crate::fixture::on_this!(later $case, cached_in_memory, $crate::fixture::Fixture::cached_in_memory());
        $crate::fixture::on_servers!($case, shared);
        $crate::fixture::on_quorum_and_levels!($case);
        $crate::fixture::on_portable!($case);
        $crate::fixture::on_lacking!($case);
    };
}

/// A case in the format of Redisson, on a cluster with `.ci/all` only.
macro_rules! on_redisson {
    ($case:ident) => {
        $crate::fixture::on_this!($case, redisson, $crate::fixture::Fixture::redisson(cluster_testenv::Server::Redis82));
        $crate::fixture::on_this!(
            later $case, redisson_on_a_cluster,
            $crate::fixture::Fixture::redisson_cluster(cluster_testenv::Server::Valkey91)
        );
    };
}

/// Each case of the hash scheme on its server fixtures, shared with others.
macro_rules! hash_on_every_server {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_hash!($case, shared);
        }
    )+};
}

/// Each case where waiters have their order: on memory and on the server fixtures.
macro_rules! on_every_queue {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_this!($case, memory, $crate::fixture::Fixture::memory());
            $crate::fixture::on_servers!($case, shared);
            $crate::fixture::on_portable!($case);
        }
    )+};
}

/// Each case on the server fixtures, shared with others.
macro_rules! on_every_server {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_servers!($case, shared);
        }
    )+};
}

/// Each case on the server fixtures behind proxies, shared with others.
macro_rules! proxied_on_every_server {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_servers!($case, proxied);
        }
    )+};
}

/// Each case of the hash scheme on its server fixtures behind proxies, shared with others.
macro_rules! proxied_on_every_hash {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_hash!($case, proxied);
        }
    )+};
}

/// Each case on the server fixtures, alone with its servers.
macro_rules! alone_on_every_server {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            $crate::fixture::on_servers!($case, alone .await);
        }
    )+};
}

/// Cases that make all they need, each on a runtime with two threads.
macro_rules! on_two_threads {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            #[test]
            fn on_two_threads() {
                // Some cases start several servers, one after the other, and each of their waits has a bound of its own.
                $crate::wait::run($crate::wait::BOUND * 4, 2, Box::pin(super::$case()));
            }
        }
    )+};
}

/// A case that starts its own servers, as `fn(Server)`: a test for each server. On each push it runs on Valkey 9.1, and with
/// `old too` on Redis 7.0 as well, because the two differ in what it tests.
macro_rules! on_each_server {
    (old too $case:expr) => {
        $crate::fixture::on_each_server!(@ on_redis_7_0, Redis70, $crate::wait::BOUND * 2, $case);
        $crate::fixture::on_each_server!(@ but redis_7_0 $crate::wait::BOUND * 2, $case);
    };
    (within $bound:expr, $case:expr) => {
        $crate::fixture::on_each_server!(@ #[ignore = "runs in `.ci/all`"] on_redis_7_0, Redis70, $bound, $case);
        $crate::fixture::on_each_server!(@ but redis_7_0 $bound, $case);
    };
    (@ but redis_7_0 $bound:expr, $case:expr) => {
        $crate::fixture::on_each_server!(@ #[ignore = "runs in `.ci/all`"] on_redis_8_2, Redis82, $bound, $case);
        $crate::fixture::on_each_server!(@ #[ignore = "runs in `.ci/all`"] on_valkey_8_1, Valkey81, $bound, $case);
        $crate::fixture::on_each_server!(@ on_valkey_9_1, Valkey91, $bound, $case);
    };
    (@ $(#[$later:meta])? $name:ident, $server:ident, $bound:expr, $case:expr) => {
        #[test]
        $(#[$later])?
        fn $name() {
            $crate::wait::run($bound, 4, Box::pin(($case)(cluster_testenv::Server::$server)));
        }
    };
    ($case:expr) => {
        $crate::fixture::on_each_server!(within $crate::wait::BOUND * 2, $case);
    };
}

pub(crate) use {
    alone_on_every_server, hash_on_every_server, on_each, on_each_server, on_every_fixture, on_every_own_format,
    on_every_queue, on_every_server, on_hash, on_lacking, on_nodes, on_one, on_own_formats, on_portable,
    on_quorum_and_levels, on_redisson, on_servers, on_this, on_two_threads, proxied_on_every_hash,
    proxied_on_every_server,
};

/// The time of the servers, which run on the same machine.
pub fn now_us() -> u64 {
    let since_1970 = SystemTime::now().duration_since(UNIX_EPOCH).expect("after 1970");
    since_1970.as_micros().try_into().expect("some years are left")
}
