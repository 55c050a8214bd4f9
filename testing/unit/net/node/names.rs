//! Names that a test gives to servers, and a manager at a name with two addresses.

use std::collections::BTreeMap;
use std::net::SocketAddr;
use std::time::{Duration, Instant};

use cluster_testenv::{Node as Server, Server as Version};
use parking_lot::Mutex;

use crate::base::topology::Topology;
use crate::{HoldState, RedisManager, RwLockManager};

/// Addresses of each `host:port`, and how long a look-up takes.
static NAMES: Mutex<BTreeMap<String, (Vec<SocketAddr>, Duration)>> = Mutex::new(BTreeMap::new());
/// Time limit that is far longer than anything a test waits for.
const BOUND: Duration = Duration::from_secs(30);

/// Gives a name addresses, which a look-up finds after a pause.
pub(super) fn set(name: &str, addresses: Vec<SocketAddr>, pause: Duration) {
    NAMES.lock().insert(name.to_owned(), (addresses, pause));
}

/// Returns what a test set for a name.
pub(super) fn resolve(name: &str) -> Option<(Vec<SocketAddr>, Duration)> {
    NAMES.lock().get(name).cloned()
}

/// Two servers with one name; the first is a replica of the second.
struct Pair {
    replica: Server,
    primary: Server,
    name: String,
}

impl Pair {
    async fn start(version: Version) -> Self {
        let start = || Server::builder(version).arg("--repl-diskless-sync-delay", "0").start().expect("it starts");
        let (replica, primary) = (start(), start());
        follow(&replica, &primary);
        until("a replica", async || info(&replica).contains("master_link_status:up")).await;
        let name = format!("pair-{}.test:{}", primary.port(), primary.port());
        set(&name, vec![replica.addr(), primary.addr()], Duration::ZERO);
        Self { replica, primary, name }
    }

    async fn manager(&self) -> RedisManager {
        let builder = RedisManager::builder(Topology::node(format!("redis://{}", self.name)));
        builder.lease(Duration::from_secs(3)).cache_for(Duration::ZERO).connect().await.expect("connected")
    }

    /// Makes the replica the primary, with all data, and the old primary its replica.
    async fn fail_over(&self) {
        until("all data", async || offset(&self.replica) == offset(&self.primary)).await;
        ask(&self.replica, &["REPLICAOF", "NO", "ONE"]);
        follow(&self.primary, &self.replica);
    }
}

fn ask(server: &Server, command: &[&str]) -> cluster_testenv::Reply {
    server.client().expect("connected").command(command).expect("answered")
}

fn follow(replica: &Server, primary: &Server) {
    let (ip, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    ask(replica, &["REPLICAOF", &ip, &port]);
}

fn info(server: &Server) -> String {
    ask(server, &["INFO", "replication"]).text().expect("a text").into_owned()
}

fn offset(server: &Server) -> Option<String> {
    let info = info(server);
    info.lines().find_map(|line| line.strip_prefix("master_repl_offset:")).map(|offset| offset.trim().to_owned())
}

fn channels(server: &Server) -> usize {
    ask(server, &["PUBSUB", "SHARDCHANNELS"]).array().expect("channels").len()
}

async fn until(what: &str, mut condition: impl AsyncFnMut() -> bool) {
    let began = Instant::now();
    while !condition().await {
        assert!(began.elapsed() < BOUND, "{what} did not come true within {BOUND:?}");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Exercises all that a manager does: grants, renewals, notifications, releases, and what operators ask.
async fn everything_works(pair: &Pair, primary: &Server, guard: &crate::WriteGuard, label: &str) {
    let (manager, other) = (pair.manager().await, pair.manager().await);
    for _ in 0..3 {
        let before = Instant::now() + guard.remaining() + Duration::from_millis(100);
        until("a renewal", async || Instant::now() + guard.remaining() > before).await;
        assert_eq!(guard.state(), HoldState::Held);
    }
    let busy = format!("busy-{label}");
    let holder = manager.write(&busy).await.expect("granted");
    let waiting = tokio::spawn({
        let (other, busy) = (other.clone(), busy.clone());
        async move { other.write(&busy).await }
    });
    until("a waiter", async || manager.inspect(&busy).await.expect("inspected").waiters.len() == 1).await;
    until("its subscription at the primary", async || channels(primary) > 0).await;
    holder.release().await.expect("ours to the end");
    let granted = tokio::time::timeout(BOUND, waiting).await.expect("woken").expect("no panic").expect("granted");
    granted.release().await.expect("ours to the end");
    assert!(manager.inspect(&busy).await.expect("inspected").is_free());
    let forced = manager.write(&busy).await.expect("granted");
    assert_eq!(other.force_release(&busy).await.expect("forced").len(), 1);
    tokio::time::timeout(BOUND, forced.lost()).await.expect("the loss is told");
}

async fn primary_is_used_whatever_comes_first(version: Version) {
    let pair = Pair::start(version).await;
    let manager = pair.manager().await;
    let guard = manager.write("kept").await.expect("granted");
    everything_works(&pair, &pair.primary, &guard, "first").await;
    // Now the first address is the primary's, and the second one keeps its connections.
    pair.fail_over().await;
    everything_works(&pair, &pair.replica, &guard, "second").await;
    guard.release().await.expect("ours to the end");
}

/// The kernel of a server that stands still accepts connections; the server keeps its connections and says nothing.
async fn primary_is_used_beside_a_replica_that_stands_still(version: Version) {
    let pair = Pair::start(version).await;
    pair.replica.pause();
    let manager = pair.manager().await;
    let guard = manager.write("kept").await.expect("granted");
    everything_works(&pair, &pair.primary, &guard, "before").await;
    pair.replica.resume();
    pair.fail_over().await;
    pair.primary.pause();
    everything_works(&pair, &pair.replica, &guard, "after").await;
    guard.release().await.expect("ours to the end");
    pair.primary.resume();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_is_used_beside_a_replica_that_stands_still_on_redis_7_0() {
    primary_is_used_beside_a_replica_that_stands_still(Version::Redis70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_is_used_beside_a_replica_that_stands_still_on_valkey_9_1() {
    primary_is_used_beside_a_replica_that_stands_still(Version::Valkey91).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_of_two_addresses_is_used_on_redis_7_0() {
    primary_is_used_whatever_comes_first(Version::Redis70).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn primary_of_two_addresses_is_used_on_valkey_9_1() {
    primary_is_used_whatever_comes_first(Version::Valkey91).await;
}
