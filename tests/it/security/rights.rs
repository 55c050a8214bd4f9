//! Rights that `docs/OPERATIONS.md` lists: with them everything works, and each of them is needed.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use cluster_testenv::{Client, Cluster, Node, Reply, Sentinels, Server, SlotMigration};
use redis_rwlock::{
    Build, Builder, Durability, Error, HoldState, LossReason, RedisManager, Refusal, Replicas, RwLockManager, Topology,
    TwoKeyManager,
};

use crate::fixture::{Kind, Manager, RENEWED, ServerFixture, wake_channels};
use crate::record::Recorder;
use crate::router::field::on_own_servers;
use crate::servers::ask;
use crate::wait::{Outcome, granted, pair, soon, spawn, until, works};

const PASSWORD: &str = "secret";
const WAKE_UPS: &str = "All of them, for waiters";
/// Rights of managers whose grants replicas have to acknowledge.
const REPLICATED: &str = "Managers with `Durability::Replicated`";
const QUIET: &str = "Any manager, so that";
const QUIET_NEWER: &str = "The same on Redis 7.2";

/// Rules in the document, below the comment that begins with `heading`.
fn rules_of(heading: &str) -> Vec<&'static str> {
    let document = include_str!("../../../docs/OPERATIONS.md");
    let mut lines = document.lines().skip_while(|line| !line.starts_with(&format!("# {heading}")));
    assert!(lines.next().is_some(), "there is nothing for {heading}");
    let line = lines.next().expect("a line below the comment");
    let rules = line.strip_prefix("ACL SETUSER locks ").expect("a command that makes a user");
    rules.split(' ').collect()
}

fn without(missing: &str, rules: &[&'static str]) -> Vec<&'static str> {
    rules.iter().copied().filter(|rule| *rule != missing).collect()
}

fn heading_of(kind: Kind) -> &'static str {
    match kind {
        Kind::TwoKey => "TwoKeyManager:",
        Kind::HashNode => "RedisManager on one node",
        Kind::HashCluster => "RedisManager on a cluster",
    }
}

/// Servers with users that have some rights and no more.
impl ServerFixture {
    /// A new user with these rights, and the servers' topology for it.
    fn user(&self, rules: &[&str]) -> (String, Topology) {
        static USERS: AtomicU64 = AtomicU64::new(0);
        let name = format!("locks{}", USERS.fetch_add(1, Ordering::Relaxed));
        let with_user = |url: String| url.replace("redis://", &format!("redis://{name}:{PASSWORD}@"));
        let topology = match self.servers.cluster() {
            Some(cluster) => {
                cluster.acl_set_user(&name, rules).expect("the servers know all rights");
                Topology::cluster(cluster.urls().into_iter().map(with_user))
            }
            None => {
                let node = self.servers.primaries()[0];
                node.acl_set_user(&name, rules).expect("the server knows all rights");
                Topology::node(with_user(node.url()))
            }
        };
        (name, topology)
    }

    /// Topology of the servers, for a user with all rights.
    fn topology(&self) -> Topology {
        match self.servers.cluster() {
            Some(cluster) => Topology::cluster(cluster.urls()),
            None => Topology::node(self.servers.primaries()[0].url()),
        }
    }

    async fn connect_to(&self, topology: &Topology, prefix: &str) -> Result<Manager, Error> {
        async fn open<M: Build>(builder: Builder<M>, prefix: &str) -> Result<Manager, Error> {
            let builder = builder.key_prefix(prefix).max_clock_skew(Duration::from_millis(5));
            Ok(Arc::new(builder.connect().await?))
        }
        match self.kind {
            Kind::TwoKey => open(TwoKeyManager::builder(topology.clone()), prefix).await,
            Kind::HashNode | Kind::HashCluster => open(RedisManager::builder(topology.clone()), prefix).await,
        }
    }

    /// A manager that has not connected yet.
    fn build_for(&self, topology: &Topology, prefix: &str) -> Manager {
        fn open<M: Build>(builder: Builder<M>, prefix: &str) -> Manager {
            Arc::new(builder.key_prefix(prefix).max_clock_skew(Duration::from_millis(5)).build().expect("valid"))
        }
        match self.kind {
            Kind::TwoKey => open(TwoKeyManager::builder(topology.clone()), prefix),
            Kind::HashNode | Kind::HashCluster => open(RedisManager::builder(topology.clone()), prefix),
        }
    }

    /// Does everything that needs a right of its own. Returns the failures with their errors.
    async fn failures(&self, topology: &Topology) -> Vec<(&'static str, Error)> {
        self.servers.everywhere(&["SCRIPT", "FLUSH"]);
        let connected =
            async { Ok((self.connect_to(topology, "rwlock").await?, self.connect_to(topology, "rwlock").await?)) };
        let (a, b) = match soon("the connection", connected).await {
            Ok(both) => both,
            Err(error) => return vec![("connect", error)],
        };
        let observer = self.connect_to(&self.topology(), "rwlock").await.expect("everybody else may do everything");
        let mut failures = Vec::new();
        let mut note = |what, outcome: Result<(), Error>| failures.extend(outcome.err().map(|error| (what, error)));
        for form in ["plain", "{tag}:"] {
            note("write", soon("write", pair(&*a, &new_name(form))).await);
            note("read", soon("read", read_side_by_side(&a, &b, &new_name(form))).await);
            note("wait", soon("wait", wait(&a, &b, &observer, &new_name(form))).await);
            note("inspect", soon("inspect", inspect(&a, &new_name(form))).await);
            note("force", soon("force", force(&a, &b, &new_name(form))).await);
        }
        if self.kind == Kind::HashCluster {
            note("write in a slot that moves", soon("a moving slot", self.write_while_moving(&a)).await);
        }
        failures
    }

    async fn write_while_moving(&self, manager: &Manager) -> Result<(), Error> {
        let cluster = self.servers.cluster().expect("a cluster");
        let name = new_name("plain");
        let slot = cluster.keyslot(format!("rwlock:{{{name}}}:lock"));
        let from = cluster.primary_of_slot(slot).port();
        let to = cluster.primaries().into_iter().find(|node| node.port() != from).expect("another primary");
        let migration = SlotMigration::begin(cluster, slot, to).expect("it begins");
        let outcome = pair(&**manager, &name).await;
        migration.finish().expect("it ends");
        outcome
    }
}

fn new_name(form: &str) -> String {
    static NAMES: AtomicU64 = AtomicU64::new(0);
    format!("{form}{}", NAMES.fetch_add(1, Ordering::Relaxed))
}

async fn read_side_by_side(a: &Manager, b: &Manager, name: &str) -> Result<(), Error> {
    let (one, other) = (a.read(name).await?, b.read(name).await?);
    one.release().await?;
    other.release().await
}

/// Lets `b` wait for a lock of `a`. `observer` has all rights, and sees that the waiter is recorded before the release.
async fn wait(a: &Manager, b: &Manager, observer: &Manager, name: &str) -> Result<(), Error> {
    let guard = a.read(name).await?;
    assert!(b.try_write(name).await?.is_none(), "a writer beside a reader");
    let waiting = spawn(b.write(name));
    until("it waits, or is refused", async || {
        waiting.is_finished() || !observer.inspect(name).await.expect("inspected").waiters.is_empty()
    })
    .await;
    guard.release().await?;
    waiting.await.expect("no panic")?.release().await?;
    // The script records a waiter behind a writer in another way.
    let guard = a.write(name).await?;
    let waiting = spawn(b.read(name));
    until("it waits, or is refused", async || {
        waiting.is_finished() || !observer.inspect(name).await.expect("inspected").waiters.is_empty()
    })
    .await;
    guard.release().await?;
    waiting.await.expect("no panic")?.release().await
}

async fn inspect(manager: &Manager, name: &str) -> Result<(), Error> {
    let reader = manager.read(name).await?;
    assert_eq!(manager.inspect(name).await?.holders.len(), 1);
    reader.release().await?;
    let writer = manager.write(name).await?;
    assert_eq!(manager.inspect(name).await?.holders.len(), 1);
    writer.release().await
}

async fn force(a: &Manager, b: &Manager, name: &str) -> Result<(), Error> {
    let guard = a.read(name).await?;
    b.force_release(name).await?;
    match guard.release().await {
        Err(Error::Lost { reason: LossReason::Forced, .. }) => Ok(()),
        Err(error) => Err(error),
        Ok(()) => panic!("it was released by force"),
    }
}

fn is_forbidden(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal: Refusal::Forbidden, .. })
}

/// Returns true if a rule gives a right. Other rules make the user.
fn is_right(rule: &str) -> bool {
    rule.starts_with(['+', '~', '&'])
}

async fn listed_rights_are_enough(place: &ServerFixture) -> Outcome {
    let (_, topology) = place.user(&rules_of(heading_of(place.kind)));
    let failures = place.failures(&topology).await;
    assert!(failures.is_empty(), "{failures:?}");
    let manager = place.connect_to(&topology, "rwlock").await?;
    let guard = manager.write(&new_name("plain")).lease(RENEWED).await?;
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(guard.state(), HoldState::Held, "it is renewed");
    guard.release().await?;
    Ok(())
}

async fn each_listed_right_is_needed(place: &ServerFixture) {
    let rules = rules_of(heading_of(place.kind));
    for missing in rules.iter().filter(|rule| is_right(rule)) {
        let (_, topology) = place.user(&without(missing, &rules));
        let failures = place.failures(&topology).await;
        assert!(!failures.is_empty(), "nothing needs {missing}");
        for (what, error) in &failures {
            assert!(is_forbidden(error), "{what} without {missing}: {error:?}");
        }
        // Removes what scripts did half way without the right, before the next case.
        place.servers.everywhere(&["FLUSHALL"]);
    }
}

async fn other_prefixes_are_out_of_reach(place: &ServerFixture) {
    let rules = [heading_of(place.kind), WAKE_UPS].map(rules_of).concat();
    let (user, topology) = place.user(&rules);
    for prefix in ["other", "rwlock2", "rwlock:b"] {
        let error = place.connect_to(&topology, prefix).await.map(drop).expect_err("the rights are for other locks");
        assert!(is_forbidden(&error), "{prefix}: {error:?}");
        let manager = place.build_for(&topology, prefix);
        for name in ["cfg", "{tag}:1"] {
            let attempts = [
                manager.write(name).await.map(drop),
                manager.try_read(name).await.map(drop),
                manager.inspect(name).await.map(drop),
                manager.force_release(name).await.map(drop),
            ];
            for attempt in attempts {
                let error = attempt.expect_err("somebody else's lock");
                assert!(is_forbidden(&error), "{prefix} {name}: {error:?}");
            }
        }
    }
    let mut client = log_in(place.servers.owner_of("rwlock2:{cfg}:lock"), &user);
    let commands: [&[&str]; 6] = [
        &["SSUBSCRIBE", "rwlock2:{cfg}:wake"],
        &["SPUBLISH", "rwlock2:{cfg}:wake", "x"],
        &["SUBSCRIBE", "rwlock:{cfg}:wake"],
        &["KEYS", "*"],
        &["FLUSHALL"],
        &["CONFIG", "GET", "*"],
    ];
    for command in commands {
        assert_forbidden(&mut client, command);
    }
}

fn log_in(node: &Node, user: &str) -> Client {
    let mut client = node.client().expect("it takes clients");
    client.command(&["AUTH", user, PASSWORD]).expect("answered").into_result().expect("logged in");
    client
}

fn assert_forbidden(client: &mut Client, command: &[&str]) {
    let reply = client.command(command).expect("answered");
    assert!(reply.error().is_some_and(|error| error.starts_with("NOPERM")), "{command:?}: {reply:?}");
}

/// Each case with both schemes, on one node and on a cluster, on each server. Five of the twelve run on each push.
macro_rules! on_all {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use crate::fixture::{on_nodes, on_one};

            on_nodes!($case, alone .await);
            on_one!(later $case, hash_on_redis_7_0_cluster, HashCluster, Redis70, alone .await);
            on_one!(later $case, hash_on_redis_8_2_cluster, HashCluster, Redis82, alone .await);
            on_one!(later $case, hash_on_valkey_8_1_cluster, HashCluster, Valkey81, alone .await);
            on_one!($case, hash_on_valkey_9_1_cluster, HashCluster, Valkey91, alone .await);
        }
    )+};
}

on_all![
    listed_rights_are_enough,
    each_listed_right_is_needed,
    other_prefixes_are_out_of_reach,
    log_of_refusals_stays_empty_with_the_optional_rights,
    missing_right_is_told_at_connect,
];
on_own_servers![
    waiters_subscribe_only_with_the_right,
    adopted_keys_need_their_own_patterns,
    all_replicas_need_the_listed_rights,
    sentinels_need_one_right,
];

async fn waiters_subscribe_only_with_the_right(server: Server) -> Outcome {
    let place = ServerFixture::alone(Kind::TwoKey, server).await;
    let node = place.servers.primaries()[0];
    let with_wake_ups = [heading_of(Kind::TwoKey), WAKE_UPS].map(rules_of).concat();
    let (_, topology) = place.user(&with_wake_ups);
    assert!(place.failures(&topology).await.is_empty());
    let manager = place.connect_to(&topology, "rwlock").await?;
    let other = place.connect_to(&topology, "rwlock").await?;
    let guard = manager.write("woken").await?;
    let waiting = spawn(other.write("woken"));
    until("a subscription", async || wake_channels(node, "rwlock", "woken").len() == 1).await;
    guard.release().await?;
    granted(waiting).await.release().await?;
    // All works without any one of these rights, only later.
    for missing in rules_of(WAKE_UPS) {
        let failures = place.failures(&place.user(&without(missing, &with_wake_ups)).1).await;
        assert!(failures.is_empty(), "without {missing}: {failures:?}");
    }
    Ok(())
}

/// Checks the patterns that `timestamp_keys("lock:*")` needs, as the document says. All else is the same.
async fn adopted_keys_need_their_own_patterns(server: Server) -> Outcome {
    let place = ServerFixture::alone(Kind::HashCluster, server).await;
    let rules = [heading_of(place.kind), WAKE_UPS].map(rules_of).concat();
    let rights = rules.into_iter().filter(|rule| !rule.starts_with("~rwlock") && !rule.starts_with("&rwlock"));
    let keys = ["~lock:*", "&{lock:*", "&lock:*"];
    let (_, topology) = place.user(&rights.chain(keys).collect::<Vec<_>>());
    let connect = async || {
        let builder = RedisManager::builder(topology.clone()).timestamp_keys("lock:*");
        builder.max_clock_skew(Duration::from_millis(5)).connect().await.expect("connected")
    };
    let (manager, other) = (connect().await, connect().await);
    for (name, channels) in [("cfg", "{lock:cfg}:wake:*"), ("{user}:1", "lock:{user}:1:wake:*")] {
        let node = place.servers.owner_of(&format!("lock:{name}"));
        let guard = manager.write(name).await?;
        let waiting = spawn(other.write(name));
        until("a subscription", async || {
            let channels = ask(node, &["PUBSUB", "SHARDCHANNELS", channels]);
            channels.array().is_some_and(|channels| channels.len() == 1)
        })
        .await;
        guard.release().await?;
        granted(waiting).await.release().await?;
    }
    let elsewhere = place.build_for(&topology, "rwlock");
    assert!(is_forbidden(&elsewhere.write("cfg").await.expect_err("not a key of theirs")));
    Ok(())
}

/// Runs on one thread, so that the recorder sees the events of the subscribing task.
#[tokio::test]
async fn missing_right_to_subscribe_is_told_once() -> Outcome {
    let recorder = Recorder::start();
    let place = ServerFixture::alone(Kind::TwoKey, Server::Redis70).await;
    let (_, topology) = place.user(&rules_of(heading_of(Kind::TwoKey)));
    let manager = place.connect_to(&topology, "rwlock").await?;
    let other = place.connect_to(&topology, "rwlock").await?;
    let guard = manager.write("cfg").await?;
    let waiting = spawn(other.write("cfg"));
    let told = || recorder.count("refuses subscriptions");
    until("a warning", async || told() > 0).await;
    // The server refuses again and again meanwhile, which is logged at `debug`.
    let refusals = || recorder.count("refused a subscription");
    until("more refusals", async || refusals() > 1).await;
    assert_eq!(told(), 1);
    guard.release().await?;
    granted(waiting).await.release().await?;
    Ok(())
}

/// Commands that the servers refused to a user, by their logs.
fn refused_commands(place: &ServerFixture) -> BTreeSet<String> {
    let logs = place.servers.everywhere(&["ACL", "LOG"]);
    let entries = logs.iter().filter_map(Reply::array).flatten().filter_map(Reply::array);
    entries.filter_map(|entry| Some(entry.get(7)?.text()?.into_owned())).collect()
}

async fn log_of_refusals_stays_empty_with_the_optional_rights(place: &ServerFixture) {
    let mut rules = [heading_of(place.kind), WAKE_UPS].map(rules_of).concat();
    place.failures(&place.user(&rules).1).await;
    assert!(refused_commands(place).contains("info"), "{:?}", refused_commands(place));
    rules.extend(rules_of(QUIET));
    let newer = rules_of(QUIET_NEWER);
    let node = place.servers.primaries()[0];
    if node.has_command("client|setinfo").expect("answered") {
        rules.extend(newer);
    } else {
        assert!(node.acl_set_user("newer", &newer).is_err(), "it has no such command, and knows no right for it");
    }
    place.servers.everywhere(&["ACL", "LOG", "RESET"]);
    let failures = place.failures(&place.user(&rules).1).await;
    assert!(failures.is_empty(), "{failures:?}");
    assert_eq!(refused_commands(place), BTreeSet::new());
}

/// Connecting fails for a user without a right that a script needs, before there is any lock to lose.
async fn missing_right_is_told_at_connect(place: &ServerFixture) {
    let rules = rules_of(heading_of(place.kind));
    place.servers.everywhere(&["FLUSHALL"]);
    let commands = rules.iter().filter(|rule| rule.starts_with('+') && !rule.contains('|') && **rule != "+asking");
    for missing in commands {
        place.servers.everywhere(&["SCRIPT", "FLUSH"]);
        let error = place
            .connect_to(&place.user(&without(missing, &rules)).1, "rwlock")
            .await
            .map(drop)
            .expect_err("a right is missing");
        assert!(is_forbidden(&error), "without {missing}: {error:?}");
        let text = error.to_string();
        assert!(text.to_lowercase().contains(&missing[1..]), "it names no {missing}: {text}");
        assert!(text.contains("127.0.0.1:"), "it names no server: {text}");
    }
    let sizes = place.servers.everywhere(&["DBSIZE"]);
    assert!(sizes.iter().all(|size| size.int() == Some(0)), "it has changed something: {sizes:?}");
}

/// Sentinels refuse the primary's address to their default user, and the primary admits only our user.
async fn sentinels_need_one_right(server: Server) -> Outcome {
    let sentinels = Sentinels::start(server)?;
    for node in sentinels.nodes() {
        node.acl_set_user("locks", &rules_of(heading_of(Kind::HashNode))).expect("the server knows all rights");
    }
    let with_user = |url: String| url.replace("redis://", &format!("redis://locks:{PASSWORD}@"));
    let topology = || Topology::sentinel(sentinels.primary_name(), sentinels.urls().into_iter().map(with_user));
    let everybody_may_ask = RedisManager::connect(topology()).await?;
    pair(&everybody_may_ask, "cfg").await?;
    for sentinel in sentinels.sentinels() {
        sentinel.acl_set_user("default", &["-sentinel|get-master-addr-by-name"]).expect("a Sentinel has users");
        sentinel.acl_set_user("locks", &["on", &format!(">{PASSWORD}")]).expect("a Sentinel has users");
    }
    let error = soon("the refusal", RedisManager::connect(topology())).await.expect_err("it may not ask");
    assert!(is_forbidden(&error), "{error:?}");
    for sentinel in sentinels.sentinels() {
        sentinel.acl_set_user("locks", &rules_of("On each Sentinel")).expect("a Sentinel knows the right");
    }
    let manager = soon("the connection", RedisManager::connect(topology())).await.expect("it may ask");
    pair(&manager, "cfg").await?;

    // The Sentinels name the replicas only to a user with a right of its own.
    for node in sentinels.nodes() {
        node.acl_set_user("locks", &rules_of(REPLICATED)).expect("the server knows all rights");
    }
    let all = || soon("an answer", of_all_replicas(topology()).connect());
    let error = all().await.expect_err("it may not ask for replicas");
    assert!(is_forbidden(&error) && error.to_string().contains("sentinel|replicas"), "{error:?}");
    for sentinel in sentinels.sentinels() {
        let rules = rules_of("The same for managers with `Replicas::All`");
        sentinel.acl_set_user("locks", &rules).expect("it knows it");
    }
    pair(&all().await.expect("it may ask"), "cfg").await?;
    Ok(())
}

fn of_all_replicas(topology: Topology) -> Builder<RedisManager> {
    let timeout = Duration::from_secs(1);
    RedisManager::builder(topology)
        .response_timeout(timeout * 2)
        .durability(Durability::Replicated { replicas: Replicas::All, timeout })
}

/// A cluster names its replicas only to users with the rights that the document lists, and `connect` names a missing one.
async fn all_replicas_need_the_listed_rights(server: Server) {
    let cluster = Cluster::builder(server).primaries(1).start().expect("the cluster starts");
    let rules = [heading_of(Kind::HashCluster), WAKE_UPS, REPLICATED, "The same with `Replicas::All`, on a cluster"];
    let rules = rules.map(rules_of).concat();
    let with_user = |url: String| url.replace("redis://", &format!("redis://locks:{PASSWORD}@"));
    let connect = async |missing: &str| {
        let rules = [vec!["reset"], without(missing, &rules)].concat();
        cluster.acl_set_user("locks", &rules).expect("the servers know all rights");
        of_all_replicas(Topology::cluster(cluster.urls().into_iter().map(with_user))).connect().await
    };
    for missing in ["+wait", "+info", "+cluster|myid", "+cluster|replicas"] {
        let error = connect(missing).await.expect_err("a right is missing");
        assert!(is_forbidden(&error), "without {missing}: {error:?}");
        assert!(error.to_string().to_lowercase().contains(&missing[1..]), "without {missing}: {error}");
    }
    let manager = connect("none").await.expect("all rights are there");
    works(&manager, "cfg").await;
}
