//! A primary that Sentinels move. Each case has servers of its own.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Node, Reply, Sentinels, Server};
use redis_rwlock::{Build, Builder, Error, HoldState, RedisManager, Refusal, RwLockManager, Topology, TwoKeyManager};
use tokio::sync::Barrier;

use super::{FOR_EVER, behind_sentinels, finds_nobody, patient, refused, works};
use crate::errors::assert_refused;
use crate::fixture::Manager;
use crate::nodes::role_of;
use crate::servers::ask;
use crate::wait::{Outcome, granted, soon, spawn, until, until_renewed};

crate::fixture::on_two_threads![
    name_that_no_sentinel_knows_is_refused,
    most_sentinels_are_believed,
    password_and_database_are_those_of_the_first_url,
    primary_with_another_user_and_password_than_the_sentinels,
    primary_that_moves_to_another_address_is_followed,
];

/// Lease that outlasts a failover whose first election fails, from any moment between two renewals. The next election
/// comes 5 s later.
const LEASE: Duration = Duration::from_secs(20);
const CASE: Duration = Duration::from_secs(120);

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Scheme {
    Hash,
    TwoKey,
}

impl Scheme {
    const BOTH: [Self; 2] = [Self::Hash, Self::TwoKey];

    async fn connect(self, topology: &Topology, label: &str) -> Manager {
        self.connect_within(Duration::from_millis(500), topology, label).await
    }

    async fn connect_within(self, response_timeout: Duration, topology: &Topology, label: &str) -> Manager {
        async fn finish<M: Build>(builder: Builder<M>, response_timeout: Duration, label: &str) -> Manager {
            let builder = builder.lease(LEASE).max_clock_skew(Duration::from_millis(100)).unreachable_after(FOR_EVER);
            Arc::new(builder.response_timeout(response_timeout).label(label).connect().await.expect("connects"))
        }
        let topology = topology.clone();
        match self {
            Self::Hash => finish(RedisManager::builder(topology).key_prefix("hash"), response_timeout, label).await,
            Self::TwoKey => finish(TwoKeyManager::builder(topology).key_prefix("two"), response_timeout, label).await,
        }
    }

    /// Key of a lock with a writer.
    fn key(self, name: &str) -> String {
        match self {
            Self::Hash => format!("hash:{{{name}}}:lock"),
            Self::TwoKey => format!("two:{{{name}}}:write"),
        }
    }
}

/// Event that befalls the primary.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Fate {
    Replaced,
    Killed,
    Paused,
}

impl Fate {
    /// Brings the event about, and returns the new primary.
    fn befalls(self, servers: &Sentinels) -> &Node {
        let old = servers.primary();
        match self {
            Self::Replaced => return servers.failover().expect("another primary"),
            Self::Killed => old.kill(),
            Self::Paused => old.pause(),
        }
        servers.wait_for_failover_from(old).expect("another primary")
    }
}

/// Does work that blocks, while the managers' tasks go on.
fn meanwhile<T>(work: impl FnOnce() -> T) -> T {
    tokio::task::block_in_place(work)
}

async fn replicated(servers: &Sentinels, key: &str) {
    until("the copies of a hold", async || {
        servers.replicas().into_iter().all(|replica| ask(replica, &["EXISTS", key]) == Reply::Int(1))
    })
    .await;
}

fn has(node: &Node, key: &str) -> bool {
    ask(node, &["EXISTS", key]) == Reply::Int(1)
}

/// A replicated hold lives on at the new primary, is renewed and released there, and a waiter gets in after it.
async fn hold_survives(scheme: Scheme, servers: &Sentinels, failover: &Barrier) {
    let (holder, other) = (
        scheme.connect(&behind_sentinels(servers), "holder").await,
        scheme.connect(&behind_sentinels(servers), "other").await,
    );
    let guard = holder.write("cfg").await.expect("granted");
    replicated(servers, &scheme.key("cfg")).await;
    assert!(other.try_write("cfg").await.expect("answered").is_none(), "it is held");
    let waiting = spawn(other.write("cfg"));
    failover.wait().await; // begins
    failover.wait().await; // is over

    until_renewed("a renewal at the new primary", || guard.remaining()).await;
    assert_eq!(guard.state(), HoldState::Held, "{scheme:?}");
    assert!(!waiting.is_finished(), "{scheme:?}: nobody enters beside it");
    let token = guard.fencing_token();
    guard.release().await.expect("ours to the end, and the new primary knows");
    let heir = granted(waiting).await;
    assert!(heir.fencing_token() > token, "{scheme:?}");
    assert!(has(servers.primary(), &scheme.key("cfg")), "{scheme:?}: at the new primary");
    heir.release().await.expect("ours to the end");
}

async fn holds_survive(server: Server, what: Fate) {
    let servers = Sentinels::start(server).expect("they start");
    let failover = Barrier::new(3);
    let befalls = async {
        failover.wait().await;
        meanwhile(|| what.befalls(&servers));
        failover.wait().await;
    };
    let [hash, two_key] = Scheme::BOTH.map(|scheme| hold_survives(scheme, &servers, &failover));
    tokio::join!(befalls, hash, two_key);
}

macro_rules! survives {
    ($($name:ident: $fate:ident;)+) => {$(
        mod $name {
            use super::{CASE, Fate, holds_survive};

            crate::fixture::on_each_server!(within CASE, |server| holds_survive(server, Fate::$fate));
        }
    )+};
}

survives! {
    holds_survive_an_ordered_failover: Replaced;
    holds_survive_a_killed_primary: Killed;
    holds_survive_a_frozen_primary: Paused;
}

/// A frozen primary wakes and answers. Managers do not believe it: another server has its role, and that one's answer
/// counts.
async fn late_answers_change_nothing(scheme: Scheme, servers: &Sentinels, wakes: &Barrier) {
    let topology = behind_sentinels(servers);
    // A try ends after twice the response timeout, and the idle manager dials Sentinels and the new primary within one.
    let idle = scheme.connect_within(Duration::from_secs(5), &topology, "idle").await;
    let busy = scheme.connect(&topology, "asker").await;
    // Both have a connection to the primary that is about to freeze.
    works(&*busy, "warm").await;
    works(&*idle, "warm").await;
    wakes.wait().await; // it freezes
    wakes.wait().await; // it is frozen
    // The request goes into the sockets of the frozen primary, and then to its successor.
    let guard = granted(busy.write("cfg")).await;
    let token = guard.fencing_token();
    wakes.wait().await; // it wakes
    wakes.wait().await; // it has become a replica

    // The idle manager still knows the old primary, which is read-only now.
    assert!(soon("the answer", idle.try_write("cfg")).await.expect("answered").is_none(), "{scheme:?}: it is held");
    let view = idle.inspect("cfg").await.expect("shown");
    let holders: Vec<&str> = view.holders.iter().map(|holder| holder.label.as_str()).collect();
    assert_eq!(holders, ["asker"], "{scheme:?}");
    assert_eq!((guard.state(), guard.fencing_token()), (HoldState::Held, token), "{scheme:?}");
    guard.release().await.expect("ours to the end");
    let heir = granted(idle.write("cfg")).await;
    assert!(heir.fencing_token() > token, "{scheme:?}");
    heir.release().await.expect("ours to the end");
}

async fn woken_primary_changes_nothing(server: Server) {
    let servers = Sentinels::start(server).expect("they start");
    let wakes = Barrier::new(3);
    let old = servers.primary();
    let freezes_and_wakes = async {
        wakes.wait().await;
        old.pause();
        wakes.wait().await;
        wakes.wait().await;
        old.resume();
        meanwhile(|| servers.wait_ok()).expect("all is well");
        assert_eq!(role_of(old), "slave", "another is primary");
        wakes.wait().await;
    };
    let [hash, two_key] = Scheme::BOTH.map(|scheme| late_answers_change_nothing(scheme, &servers, &wakes));
    tokio::join!(freezes_and_wakes, hash, two_key);
}

mod woken_primary_changes_nothing {
    use super::{CASE, woken_primary_changes_nothing};

    crate::fixture::on_each_server!(within CASE, woken_primary_changes_nothing);
}

fn hash(topology: &Topology) -> Builder<RedisManager> {
    patient(RedisManager::builder(topology.clone()))
}

/// Errors of a manager that connects now, and of one that connects at first use.
async fn refusals(topology: &Topology) -> [Error; 2] {
    let manager = hash(topology).build().expect("built");
    let later = soon("the refusal", manager.write("cfg")).await.expect_err("no");
    [refused(hash(topology)).await, later]
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn some_sentinels_are_enough() -> Outcome {
    let servers = Sentinels::start(Server::Redis70)?;
    let [one, two, three] = <[String; 3]>::try_from(servers.urls()).expect("three");
    let nobody = "redis://127.0.0.1:1".to_owned();
    let name = servers.primary_name();
    let with_a_wrong_url = Topology::sentinel(name, [nobody.clone(), two.clone(), three.clone()]);
    works(&hash(&with_a_wrong_url).connect().await.expect("two are right"), "cfg").await;
    let one_alone = Topology::sentinel(name, [nobody.clone(), nobody, three.clone()]);
    works(&hash(&one_alone).connect().await.expect("one is right"), "cfg").await;

    let all = Topology::sentinel(name, [one, two, three]);
    let early = hash(&all).connect().await?;
    works(&early, "cfg").await;
    servers.sentinels()[0].pause();
    works(&hash(&all).connect().await.expect("one is silent"), "cfg").await;
    // Two of three Sentinels can still order a failover, and announce it.
    let old = servers.primary();
    old.kill();
    meanwhile(|| servers.wait_for_failover_from(old)).expect("another primary");
    let waiting = granted(early.write("cfg")).await;
    waiting.release().await?;
    Ok(())
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn without_sentinels_connected_managers_go_on_and_others_are_told_in_time() {
    let servers = Sentinels::start(Server::Redis70).expect("they start");
    let topology = behind_sentinels(&servers);
    let early = hash(&topology).unreachable_after(Duration::from_secs(8)).connect().await.expect("connects");
    works(&early, "cfg").await;
    servers.sentinels().iter().for_each(Node::pause);
    works(&early, "cfg").await;
    finds_nobody(|| hash(&topology)).await;
    servers.sentinels().iter().for_each(Node::kill);
    works(&early, "cfg").await;
    finds_nobody(|| hash(&topology)).await;
    servers.nodes().iter().for_each(Node::kill);
    let error = soon("the end of the wait", early.write("cfg")).await.expect_err("nobody is left");
    assert_matches!(error, Error::Unreachable { .. });
}

async fn name_that_no_sentinel_knows_is_refused() {
    let servers = Sentinels::start(Server::Redis70).expect("they start");
    for error in refusals(&Topology::sentinel("nemo", servers.urls())).await {
        assert_refused(&error, Refusal::OtherTopology);
        assert!(error.to_string().contains("nemo"), "{error}");
    }
}

async fn most_sentinels_are_believed() -> Outcome {
    let (most, few) = tokio::join!(start_aside(), start_aside());
    let [_, two, three] = <[String; 3]>::try_from(most.urls()).expect("three");
    let urls = [few.urls()[0].clone(), two, three];
    for round in 0..10 {
        let manager = hash(&Topology::sentinel(most.primary_name(), urls.clone()));
        let manager = manager.connect().await?;
        let guard = manager.write(&format!("cfg{round}")).await?;
        let key = format!("rwlock:{{cfg{round}}}:lock");
        assert!(has(most.primary(), &key) && !has(few.primary(), &key), "{round}");
        guard.release().await?;
    }
    Ok(())
}

async fn start_aside() -> Sentinels {
    let start = tokio::task::spawn_blocking(|| Sentinels::start(Server::Redis70));
    start.await.expect("no panic").expect("they start")
}

/// Password with letters that a URL has to escape.
const PASSWORD: &str = "p@ss w:/?#%é";
const IN_URL: &str = "p%40ss%20w%3A%2F%3F%23%25%C3%A9";

async fn password_and_database_are_those_of_the_first_url() -> Outcome {
    let servers = Sentinels::builder(Server::Redis70).password(PASSWORD).start()?;
    let urls = |password: &str| {
        let with_password = |url: String| url.replace("redis://", &format!("redis://:{password}@")) + "/3";
        Topology::sentinel(servers.primary_name(), servers.urls().into_iter().map(with_password))
    };
    for scheme in Scheme::BOTH {
        let manager = scheme.connect(&urls(IN_URL), "case").await;
        let guard = manager.write("cfg").await?;
        for (database, exists) in [("0", 0), ("3", 1)] {
            let mut client = servers.primary().client()?;
            client.command(&["SELECT", database])?.into_result().expect("selected");
            let found = client.command(&["EXISTS", &scheme.key("cfg")])?;
            assert_eq!(found, Reply::Int(exists), "{scheme:?} {database}");
        }
        guard.release().await?;
    }
    let unauthenticated = |error: &Error| matches!(error, Error::Refused { refusal: Refusal::Unauthenticated, .. });
    for error in refusals(&urls("wrong")).await.iter().chain(&refusals(&behind_sentinels(&servers)).await) {
        assert!(unauthenticated(error), "the servers want a password: {error:?}");
    }
    // The Sentinels ask all clients for the password from now on.
    for sentinel in servers.sentinels() {
        ask(sentinel, &["ACL", "SETUSER", "default", "resetpass", &format!(">{PASSWORD}")]);
    }
    works(&*Scheme::Hash.connect(&urls(IN_URL), "case").await, "cfg").await;
    for error in refusals(&urls("wrong")).await.iter().chain(&refusals(&behind_sentinels(&servers)).await) {
        assert!(unauthenticated(error), "the Sentinels want a password: {error:?}");
    }
    Ok(())
}

async fn primary_with_another_user_and_password_than_the_sentinels() -> Outcome {
    let servers = Sentinels::builder(Server::Redis70).password(PASSWORD).start()?;
    for node in servers.nodes() {
        ask(node, &["ACL", "SETUSER", "locks", "on", ">of locks", "~*", "&*", "+@all"]);
    }
    // Asked now, while the Sentinels still answer clients without a password.
    let primary = servers.primary();
    for sentinel in servers.sentinels() {
        ask(sentinel, &["ACL", "SETUSER", "default", "resetpass", ">watch"]);
    }
    let with_watch = |url: String| url.replace("redis://", "redis://:watch@") + "/3";
    let urls = Topology::sentinel(servers.primary_name(), servers.urls().into_iter().map(with_watch));
    // These credentials need no escapes, and they replace those of the URLs.
    for (user, password) in [("", PASSWORD), ("default", PASSWORD), ("locks", "of locks")] {
        let topology = urls.clone().primary_credentials(user, password);
        for scheme in Scheme::BOTH {
            let manager = scheme.connect(&topology, "case").await;
            let guard = manager.write("cfg").await?;
            let mut client = primary.client()?;
            client.command(&["SELECT", "3"])?.into_result().expect("selected");
            let found = client.command(&["EXISTS", &scheme.key("cfg")])?;
            assert_eq!(found, Reply::Int(1), "{scheme:?}: the database is that of the first URL");
            let seen = ask(primary, &["CLIENT", "LIST"]).text().expect("a text").into_owned();
            assert!(user != "locks" || seen.contains("user=locks "), "{seen}");
            guard.release().await?;
        }
    }
    let unauthenticated = |error: &Error| matches!(error, Error::Refused { refusal: Refusal::Unauthenticated, .. });
    for wrong in [urls.clone(), urls.clone().primary_credentials("locks", "watch")] {
        for error in refusals(&wrong).await {
            assert!(unauthenticated(&error), "{error:?}");
            assert!(!format!("{error} {error:?} {wrong:?}").contains("watch"), "{error:?}");
        }
    }
    for strange in [Topology::node("redis://127.0.0.1:1"), Topology::cluster(["redis://127.0.0.1:1"])] {
        let error = hash(&strange.primary_credentials("locks", "secret")).build().expect_err("no Sentinel");
        assert_matches!(error, Error::InvalidOption { option: "primary_credentials", .. });
    }
    Ok(())
}

async fn primary_that_moves_to_another_address_is_followed() -> Outcome {
    let servers = Sentinels::start(Server::Redis70)?;
    let elsewhere = Node::start(Server::Redis70)?;
    let mut managers = Vec::new();
    for scheme in Scheme::BOTH {
        let manager = scheme.connect(&behind_sentinels(&servers), "case").await;
        works(&*manager, "warm").await;
        managers.push((scheme, manager));
    }
    let old = servers.primary();
    let port = elsewhere.port().to_string();
    for sentinel in servers.sentinels() {
        // The Sentinels announce names instead of addresses then.
        for option in ["resolve-hostnames", "announce-hostnames"] {
            ask(sentinel, &["SENTINEL", "CONFIG", "SET", option, "yes"]);
        }
        ask(sentinel, &["SENTINEL", "REMOVE", servers.primary_name()]);
        ask(sentinel, &["SENTINEL", "MONITOR", servers.primary_name(), "localhost", &port, "2"]);
    }
    ask(old, &["REPLICAOF", "localhost", &port]);
    for (scheme, manager) in managers {
        let guard = granted(manager.write("cfg")).await;
        assert!(has(&elsewhere, &scheme.key("cfg")), "{scheme:?}");
        let other = scheme.connect(&behind_sentinels(&servers), "other").await;
        assert!(other.try_read("cfg").await?.is_none(), "{scheme:?}: it is held");
        guard.release().await?;
    }
    Ok(())
}
