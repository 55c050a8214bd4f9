//! Credentials of a provider: they change while managers hold locks, and no hold is lost by that.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Matcher, Node, Sentinels, Server};
use parking_lot::{Condvar, Mutex};
use redis_rwlock::{
    Builder, Credentials, Error, HoldState, QuorumManager, RedisManager, Refusal, RwLockManager, Topology,
};
use tokio::runtime::Handle;
use tracing::Level;

use super::{behind_sentinels, option_of, patient, shown, works};
use crate::errors::assert_refused;
use crate::nodes::proxied;
use crate::record::Recorder;
use crate::servers::ask;
use crate::wait::{Outcome, bounded, granted, soon, spawn, until, until_renewed};

crate::fixture::on_two_threads![sentinels_keep_the_passwords_of_their_urls,];

/// Log line about a provider that fails.
const KEPT: &str = "a secret cannot be read again";
/// Log line about credentials that a server refuses on an open connection.
const REFUSED: &str = "refuses new credentials";
/// Lease of the holds that rotations must not end. It bears that several connections in a row are cut before they bring
/// a renewal on a busy machine.
const LEASE: Duration = Duration::from_secs(4);
/// Rights of each user of the cases.
const RIGHTS: [&str; 4] = ["on", "~*", "&*", "+@all"];

type Answer = Result<Credentials, Box<dyn std::error::Error + Send + Sync>>;

/// Service that issues credentials. Clones are the same service.
#[derive(Clone)]
struct Tokens(Arc<TokensState>);

struct TokensState {
    issued: Mutex<Credentials>,
    mood: Mutex<Mood>,
    /// Signal for calls that block their thread.
    mood_changed: Condvar,
    calls: AtomicUsize,
    under_way: AtomicUsize,
    most_at_a_time: AtomicUsize,
}

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Mood {
    Issues,
    Fails,
    Panics,
    IsEmpty,
    Blocks,
    Hangs,
}

/// Ends the calls that block when the case ends, also when it fails. Otherwise its runtime would wait for their threads.
struct Unblocks(Tokens);

impl Drop for Unblocks {
    fn drop(&mut self) {
        self.0.be(Mood::Issues);
    }
}

/// Call that is under way.
struct Call<'a>(&'a TokensState);

impl Drop for Call<'_> {
    fn drop(&mut self) {
        self.0.under_way.fetch_sub(1, Ordering::SeqCst);
    }
}

impl Tokens {
    fn new(credentials: Credentials) -> Self {
        Self(Arc::new(TokensState {
            issued: Mutex::new(credentials),
            mood: Mutex::new(Mood::Issues),
            mood_changed: Condvar::new(),
            calls: AtomicUsize::new(0),
            under_way: AtomicUsize::new(0),
            most_at_a_time: AtomicUsize::new(0),
        }))
    }

    fn provider(&self) -> impl AsyncFn() -> Answer + Send + Sync + 'static + use<> {
        let tokens = self.clone();
        async move || tokens.issue().await
    }

    async fn issue(&self) -> Answer {
        self.0.calls.fetch_add(1, Ordering::SeqCst);
        let at_a_time = self.0.under_way.fetch_add(1, Ordering::SeqCst) + 1;
        self.0.most_at_a_time.fetch_max(at_a_time, Ordering::SeqCst);
        let _call = Call(&self.0);
        let mood = *self.0.mood.lock();
        match mood {
            Mood::Issues => Ok(self.0.issued.lock().clone()),
            Mood::Fails => Err("the service is down".into()),
            Mood::Panics => panic!("as the case wants it"),
            Mood::IsEmpty => Ok(Credentials::new("locks", "")),
            Mood::Hangs => std::future::pending().await,
            Mood::Blocks => {
                let mut mood = self.0.mood.lock();
                while *mood == Mood::Blocks {
                    self.0.mood_changed.wait(&mut mood);
                }
                Ok(self.0.issued.lock().clone())
            }
        }
    }

    fn set(&self, credentials: Credentials) {
        *self.0.issued.lock() = credentials;
    }

    fn be(&self, mood: Mood) {
        *self.0.mood.lock() = mood;
        self.0.mood_changed.notify_all();
    }

    fn calls(&self) -> usize {
        self.0.calls.load(Ordering::SeqCst)
    }

    /// Waits until no manager has the provider any more.
    async fn until_dropped(&self) {
        until("the end of all tasks", async || Arc::strong_count(&self.0) == 1).await;
    }
}

fn add_user(nodes: &[&Node], user: &str, secret: &str) {
    let password = format!(">{secret}");
    let rules = [&RIGHTS[..], &[&*password]].concat();
    nodes.iter().for_each(|node| node.acl_set_user(user, &rules).expect("made"));
}

fn cut(nodes: &[&Node], user: &str) {
    nodes.iter().for_each(|node| drop(ask(node, &["CLIENT", "KILL", "USER", user])));
}

/// Returns the users of all connections to a node.
fn users_of(node: &Node) -> Vec<String> {
    let clients = ask(node, &["CLIENT", "LIST"]).text().expect("a list").into_owned();
    let user = |line: &str| line.split(' ').find_map(|word| word.strip_prefix("user=")).map(str::to_owned);
    clients.lines().filter_map(user).collect()
}

/// Change of the credentials, again and again.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
enum Change {
    /// The user gets a new password. Its connections stay.
    Password,
    /// The server cuts all connections of the user from time to time, too.
    PasswordAndCuts,
    /// The next user takes over, and the last one is deleted with its connections.
    User,
}

#[derive(Clone, Copy)]
struct Pace {
    rotation: Duration,
    cut: Duration,
    rotations: u32,
}

const IN_SHORT: Pace = Pace { rotation: Duration::from_millis(200), cut: Duration::from_millis(500), rotations: 10 };
const AT_FULL_LENGTH: Pace = Pace { rotation: Duration::from_secs(2), cut: Duration::from_secs(5), rotations: 10 };

/// Servers whose credentials rotate, and the way to them.
struct Place<'a> {
    nodes: Vec<&'a Node>,
    topology: Topology,
}

impl Place<'_> {
    fn rotate(&self, tokens: &Tokens, change: Change, n: u32, pace: Pace) {
        let (old, new) = (format!("s3cret-{}", n - 1), format!("s3cret-{n}"));
        let user = match change {
            Change::User => format!("locks-{n}"),
            Change::Password | Change::PasswordAndCuts => "locks-0".to_owned(),
        };
        add_user(&self.nodes, &user, &new);
        tokens.set(Credentials::new(&user, new).valid_for(pace.rotation));
        for node in &self.nodes {
            match change {
                Change::User => drop(ask(node, &["ACL", "DELUSER", &format!("locks-{}", n - 1)])),
                _ => node.acl_set_user(&user, &[&format!("<{old}")]).expect("removed"),
            }
        }
        let cuts = |n: u32| (pace.rotation * n).as_millis() / pace.cut.as_millis();
        if change == Change::PasswordAndCuts && cuts(n) > cuts(n - 1) {
            cut(&self.nodes, &user);
        }
    }

    /// Holds locks through the rotations, while others are acquired and released by two managers.
    async fn keeps_all_holds(&self, change: Change, pace: Pace) {
        add_user(&self.nodes, "locks-0", "s3cret-0");
        let tokens = Tokens::new(Credentials::new("locks-0", "s3cret-0").valid_for(pace.rotation));
        let topology = || self.topology.clone().credentials(tokens.provider());
        let builder = || patient(RedisManager::builder(topology())).lease(LEASE);
        let manager = builder().connect().await.expect("connects");
        let other = builder().connect().await.expect("connects");
        let operator = RedisManager::connect(self.topology.clone()).await.expect("connects");
        let mut held = Vec::new();
        for n in 0..6 {
            held.push(manager.write(&format!("held-{n}")).await.expect("granted"));
        }
        let (stop, count) = (Arc::<AtomicBool>::default(), Arc::<AtomicU64>::default());
        let load = |manager: &RedisManager, name: &str| {
            let (manager, name) = (manager.clone(), name.to_owned());
            let (stop, count) = (Arc::clone(&stop), Arc::clone(&count));
            tokio::spawn(async move {
                while !stop.load(Ordering::SeqCst) {
                    let guard = manager.write(&name).await.expect("granted");
                    guard.release().await.expect("ours to the end");
                    count.fetch_add(1, Ordering::SeqCst);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
            })
        };
        // Two managers want the first lock, so its waiters need notifications.
        let load = [load(&manager, "busy"), load(&other, "busy"), load(&manager, "own"), load(&other, "another")];
        for n in 1..=pace.rotations {
            let before = count.load(Ordering::SeqCst);
            self.rotate(&tokens, change, n, pace);
            tokio::time::sleep(pace.rotation).await;
            until("an acquisition", async || count.load(Ordering::SeqCst) > before).await;
        }
        stop.store(true, Ordering::SeqCst);
        for load in load {
            soon("the end of the load", load).await.expect("no failure");
        }
        for guard in held {
            // The last rotation may have cut the answer to a renewal off. The renewal is repeated.
            until("an answer to the last renewal", async || guard.state() != HoldState::Unconfirmed).await;
            assert_eq!(guard.state(), HoldState::Held, "{change:?}: {}", guard.name());
            let name = guard.name().to_owned();
            assert!(!operator.inspect(&name).await.expect("answered").is_free(), "{change:?}: {name}");
            guard.release().await.expect("ours to the end");
            assert!(operator.inspect(&name).await.expect("answered").is_free(), "{change:?}: {name}");
        }
        let at_a_time = tokens.0.most_at_a_time.load(Ordering::SeqCst);
        assert!(at_a_time <= 2, "{at_a_time} calls at a time for two managers");
        assert!(tokens.calls() > 10, "{}", tokens.calls());
        drop((manager, other));
        tokens.until_dropped().await;
        for node in &self.nodes {
            drop(ask(node, &["ACL", "DELUSER", "locks-0"]));
        }
    }

    async fn keeps_all_holds_through_each_change(&self, pace: Pace) {
        for change in [Change::Password, Change::PasswordAndCuts, Change::User] {
            self.keeps_all_holds(change, pace).await;
        }
    }
}

async fn one_node(pace: Pace) {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    let place = Place { nodes: vec![&node], topology: Topology::node(node.url()) };
    place.keeps_all_holds_through_each_change(pace).await;
}

async fn cluster(pace: Pace) {
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
    let place = Place { nodes: cluster.nodes().iter().collect(), topology: Topology::cluster(cluster.urls()) };
    place.keeps_all_holds_through_each_change(pace).await;
}

async fn sentinel(pace: Pace) {
    let servers = Sentinels::start(Server::Redis70).expect("they start");
    let topology = behind_sentinels(&servers);
    let place = Place { nodes: servers.nodes().iter().collect(), topology };
    place.keeps_all_holds_through_each_change(pace).await;
}

#[cfg(feature = "tls")]
async fn with_tls(pace: Pace) {
    let node = Node::builder(Server::Redis70).tls(cluster_testenv::TlsClients::Optional).start().expect("it starts");
    let tls = redis_rwlock::Tls::new().ca_pem(node.certificates().ca_pem());
    let place = Place { nodes: vec![&node], topology: Topology::node(node.url()).tls(tls) };
    place.keeps_all_holds_through_each_change(pace).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_is_lost_through_rotations_on_one_node() {
    one_node(IN_SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_is_lost_through_rotations_on_a_cluster() {
    cluster(IN_SHORT).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_is_lost_through_rotations_behind_sentinels() {
    sentinel(IN_SHORT).await;
}

#[cfg(feature = "tls")]
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_hold_is_lost_through_rotations_with_tls() {
    with_tls(IN_SHORT).await;
}

/// Rotations every 2 s, and cuts every 5 s.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "takes a minute for each place, and runs in `.ci/all`"]
async fn no_hold_is_lost_through_rotations_at_full_length() {
    one_node(AT_FULL_LENGTH).await;
    cluster(AT_FULL_LENGTH).await;
    sentinel(AT_FULL_LENGTH).await;
    #[cfg(feature = "tls")]
    with_tls(AT_FULL_LENGTH).await;
}

fn builder(node: &Node, tokens: &Tokens) -> Builder<RedisManager> {
    let topology = Topology::node(node.url()).credentials(tokens.provider());
    patient(RedisManager::builder(topology)).background_on(Handle::current())
}

/// Starts a server with a proxy, and the service that issues the credentials of its user.
fn server_and_tokens(credentials: Credentials) -> (Node, Tokens) {
    let node = proxied(Server::Redis70);
    add_user(&[&node], "locks", "s3cret");
    (node, Tokens::new(credentials))
}

#[tokio::test]
async fn open_connections_of_each_kind_log_in_with_new_credentials() {
    let (node, tokens) = server_and_tokens(Credentials::new("locks", "s3cret").valid_for(Duration::from_millis(1500)));
    bounded(async {
        let manager = builder(&node, &tokens).connect().await.expect("connects");
        let other = builder(&node, &tokens).connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        // The waiter has a connection for notifications, and the look has one of its own.
        let waiting = spawn(other.write("held"));
        let has_waiter = async || !manager.inspect("held").await.expect("answered").waiters.is_empty();
        until("the waiter is queued", has_waiter).await;
        let count = || users_of(&node).iter().filter(|user| *user == "locks").count();
        assert!(count() >= 4, "two shared connections, a link, and one for looks: {:?}", users_of(&node));
        let (before, made) = (count(), node.proxy().connections_made());

        add_user(&[&node], "heir", "s3cret");
        tokens.set(Credentials::new("heir", "s3cret"));
        until("the login of each connection", async || count() == 0).await;
        drop(ask(&node, &["ACL", "DELUSER", "locks"]));
        let heirs = users_of(&node).iter().filter(|user| *user == "heir").count();
        assert_eq!((heirs, node.proxy().connections_made()), (before, made), "each connection stays");
        guard.release().await.expect("ours to the end");
        granted(waiting).await.release().await.expect("ours");
        assert_eq!(node.proxy().connections_made(), made, "{:?}", users_of(&node));
    })
    .await;
}

/// Cuts the connections, and uses a lock within a time that no mood of the service makes longer.
async fn works_after_a_cut(manager: &RedisManager, node: &Node) {
    let began = Instant::now();
    cut(&[node], "locks");
    works(manager, "cfg").await;
    assert!(began.elapsed() < Duration::from_secs(5), "{:?}", began.elapsed());
}

/// Cuts the connections until a dial has asked the service. Dials within 100 ms share one answer.
async fn until_asked(manager: &RedisManager, node: &Node, tokens: &Tokens) {
    let calls = tokens.calls();
    until("a call of the provider", async || {
        works_after_a_cut(manager, node).await;
        tokens.calls() > calls
    })
    .await;
}

#[tokio::test]
async fn failing_provider_delays_a_dial_and_the_last_credentials_count() {
    let recorder = Recorder::at(Level::WARN);
    let kept = || recorder.count(KEPT);
    let (node, tokens) = server_and_tokens(Credentials::new("locks", "s3cret"));
    bounded(async {
        let _unblocks = Unblocks(tokens.clone());
        let manager = builder(&node, &tokens).connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        // A call that hangs lasts longer than the case, so it comes last.
        let moods = [Mood::Fails, Mood::Panics, Mood::IsEmpty, Mood::Blocks, Mood::Hangs];
        for (n, mood) in (1..).zip(moods) {
            tokens.be(mood);
            until_asked(&manager, &node, &tokens).await;
            match mood {
                // The call does not end, so there is no other.
                Mood::Blocks | Mood::Hangs => works_after_a_cut(&manager, &node).await,
                _ => until_asked(&manager, &node, &tokens).await,
            }
            assert_eq!(kept(), n, "{mood:?} is logged once: {:?}", recorder.lines());
            if mood != Mood::Hangs {
                tokens.be(Mood::Issues);
                until_asked(&manager, &node, &tokens).await;
            }
        }
        assert_eq!((guard.state(), tokens.0.most_at_a_time.load(Ordering::SeqCst)), (HoldState::Held, 1));
        guard.release().await.expect("ours to the end");
    })
    .await;
    assert!(!format!("{:?}", recorder.lines()).contains("s3cret"), "{:?}", recorder.lines());
    // The manager is dropped, and with it the call that hangs.
    tokens.until_dropped().await;
}

#[tokio::test]
async fn without_credentials_connecting_ends_with_the_reason() {
    let (node, tokens) = server_and_tokens(Credentials::new("locks", "s3cret"));
    for (mood, reason) in [(Mood::Fails, "the service is down"), (Mood::Hangs, "has not answered within")] {
        tokens.be(mood);
        let impatient = builder(&node, &tokens).unreachable_after(Duration::from_millis(300));
        let error = soon("the error", impatient.connect()).await.map(drop).expect_err("no credentials");
        assert!(matches!(error, Error::Unreachable { .. }) && shown(&error).contains(reason), "{}", shown(&error));
    }
    tokens.be(Mood::Fails);
    let manager = builder(&node, &tokens).build().expect("built");
    let waiting = spawn(manager.write("cfg"));
    until("some calls", async || tokens.calls() > 3).await;
    tokens.be(Mood::Issues);
    granted(waiting).await.release().await.expect("ours to the end");
}

#[tokio::test]
async fn refused_credentials_are_asked_for_once_more() {
    let (node, tokens) = server_and_tokens(Credentials::new("locks", "s3cret"));
    // The credentials change between the answer of the provider and the login.
    let (calls, right) = (Arc::<AtomicUsize>::default(), tokens.clone());
    let first_is_old = {
        let calls = Arc::clone(&calls);
        async move || match calls.fetch_add(1, Ordering::SeqCst) {
            0 => Ok(Credentials::new("locks", "0ld-s3cret")),
            _ => right.issue().await,
        }
    };
    let topology = Topology::node(node.url()).credentials(first_is_old);
    let connecting = patient(RedisManager::builder(topology)).connect();
    works(&soon("the connection", connecting).await.expect("connects"), "cfg").await;

    // The provider has nothing better, so the refusal reaches the caller.
    tokens.set(Credentials::new("locks", "wr0ng"));
    let asked = tokens.calls();
    let connecting = builder(&node, &tokens).connect();
    let error = soon("the refusal", connecting).await.map(drop).expect_err("it may not connect");
    assert_refused(&error, Refusal::Unauthenticated);
    assert!(!shown(&error).contains("wr0ng"), "{error:?}");
    assert!(tokens.calls() >= asked + 2, "{}", tokens.calls() - asked);
}

#[tokio::test]
async fn refused_login_on_open_connections_ends_no_hold() {
    let recorder = Recorder::at(Level::WARN);
    let refused = || recorder.count(REFUSED);
    let logins = |node: &Node| node.proxy().requests_seen(Matcher::command("AUTH"));
    let valid_for = Duration::from_millis(250);
    let (node, tokens) = server_and_tokens(Credentials::new("locks", "s3cret").valid_for(valid_for));
    bounded(async {
        let manager = builder(&node, &tokens).lease(Duration::from_millis(1500)).connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        manager.inspect("held").await.expect("answered");
        let made = node.proxy().connections_made();
        tokens.set(Credentials::new("locks", "wr0ng").valid_for(valid_for));
        until("a login on each of two connections", async || logins(&node) >= 2 && refused() > 0).await;
        until_renewed("a renewal", || guard.remaining()).await;
        works(&manager, "cfg").await;
        assert_eq!((guard.state(), refused()), (HoldState::Held, 1), "{:?}", recorder.lines());

        // The right ones are accepted, so the next refusal is news.
        let before = logins(&node);
        tokens.set(Credentials::new("locks", "s3cret").valid_for(valid_for));
        until("a login on each of two connections", async || logins(&node) >= before + 2).await;
        tokens.set(Credentials::new("locks", "wr0ng-too").valid_for(valid_for));
        until("another refusal", async || refused() == 2).await;
        assert_eq!((guard.state(), node.proxy().connections_made()), (HoldState::Held, made));
        guard.release().await.expect("ours to the end");
    })
    .await;
    assert!(!format!("{:?}", recorder.lines()).contains("wr0ng"), "{:?}", recorder.lines());
}

/// A service may issue another token at each call, and the server may know none of them.
#[tokio::test]
async fn provider_with_other_credentials_at_each_call_is_not_asked_without_end() {
    let (node, _) = server_and_tokens(Credentials::new("locks", "s3cret"));
    let calls = Arc::<AtomicUsize>::default();
    let counted = Arc::clone(&calls);
    let provider = async move || {
        Ok(match counted.fetch_add(1, Ordering::SeqCst) {
            0 => Credentials::new("locks", "s3cret").valid_for(Duration::from_millis(250)),
            call => Credentials::new("locks", format!("wr0ng-{call}")),
        })
    };
    let topology = Topology::node(node.url()).credentials(provider);
    let manager = patient(RedisManager::builder(topology)).background_on(Handle::current()).connect();
    let manager = soon("the connection", manager).await.expect("connects");
    until("a refused login", async || node.proxy().requests_seen(Matcher::command("AUTH")) > 0).await;
    // Without a limit, each refusal would cause the next call, ten times a second.
    tokio::time::sleep(Duration::from_secs(2)).await;
    assert!(calls.load(Ordering::SeqCst) < 8, "{} calls", calls.load(Ordering::SeqCst));
    works(&manager, "cfg").await;
}

#[tokio::test]
async fn masters_of_a_quorum_share_one_provider() {
    let masters: Vec<Node> = (0..3).map(|_| Node::start(Server::Redis70).expect("the server starts")).collect();
    let nodes: Vec<&Node> = masters.iter().collect();
    add_user(&nodes, "locks", "s3cret-1");
    let tokens = Tokens::new(Credentials::new("locks", "s3cret-1"));
    let builder = || QuorumManager::builder(masters.iter().map(Node::url)).credentials(tokens.provider());
    bounded(async {
        let built = patient(builder()).restarts_are_delayed().lease(Duration::from_secs(20));
        let manager = built.connect().await.expect("connects");
        let guard = manager.write("held").await.expect("granted");
        add_user(&nodes, "locks", "s3cret-2");
        tokens.set(Credentials::new("locks", "s3cret-2"));
        nodes.iter().for_each(|node| node.acl_set_user("locks", &["<s3cret-1"]).expect("removed"));
        cut(&nodes, "locks");
        works(&manager, "cfg").await;
        until_renewed("a renewal with the new ones", || guard.remaining()).await;
        assert_eq!(guard.state(), HoldState::Held);
        guard.release().await.expect("ours to the end");
        assert!(masters.iter().all(|node| users_of(node).iter().any(|user| user == "locks")));
        assert_eq!(tokens.0.most_at_a_time.load(Ordering::SeqCst), 1);
    })
    .await;
    let with_file = builder().password_file("/run/secrets/none");
    assert_eq!(option_of(&with_file.build().map(drop).expect_err("two sources")), "credentials");
}

/// The primary gets the credentials of the provider, and the Sentinels get those of their URLs.
async fn sentinels_keep_the_passwords_of_their_urls() -> Outcome {
    let servers = Sentinels::builder(Server::Redis70).password("s3cret").start()?;
    let primary = servers.primary();
    for sentinel in servers.sentinels() {
        ask(sentinel, &["ACL", "SETUSER", "default", "resetpass", ">watch"]);
    }
    let nodes: Vec<&Node> = servers.nodes().iter().collect();
    add_user(&nodes, "locks", "t0ken");
    let tokens = Tokens::new(Credentials::new("locks", "t0ken"));
    let urls = servers.urls();
    let hosts = urls.iter().map(|url| url.rsplit_once(['@', '/']).expect("a host").1);
    let topology = Topology::sentinel(servers.primary_name(), hosts.map(|host| format!("redis://:watch@{host}")));
    let topology = topology.credentials(tokens.provider());
    let manager = soon("the connection", patient(RedisManager::builder(topology)).connect()).await?;
    works(&manager, "cfg").await;
    assert!(users_of(primary).iter().any(|user| user == "locks"));
    let health = manager.health().await?;
    assert!(health.nodes.iter().all(|node| node.is_reachable), "each Sentinel has let us in: {health:?}");
    Ok(())
}

#[test]
fn second_source_of_credentials_is_refused_when_the_manager_is_built() {
    let tokens = Tokens::new(Credentials::new("locks", "s3cret"));
    let sentinels = || Topology::sentinel("main", ["redis://:watch@127.0.0.1:1"]).credentials(tokens.provider());
    RedisManager::builder(sentinels()).build().expect("the password is for the Sentinel");
    for topology in [
        Topology::node("redis://:s3cret@127.0.0.1:1"),
        Topology::node("redis://locks@127.0.0.1:1"),
        Topology::cluster(["redis://127.0.0.1:1", "redis://:s3cret@127.0.0.1:2"]),
        Topology::node("redis://127.0.0.1:1").password_file("/run/secrets/none"),
        sentinels().primary_credentials("locks", "s3cret"),
        sentinels().primary_credentials("locks", ""),
        sentinels().password_file("/run/secrets/none"),
    ] {
        let topology = topology.credentials(tokens.provider());
        let error = RedisManager::builder(topology.clone()).build().map(drop).expect_err("two sources");
        assert_eq!(option_of(&error), "credentials", "{error:?}");
        assert!(!format!("{topology:?} {}", shown(&error)).contains("s3cret"), "{error:?}");
    }
    assert_eq!(tokens.calls(), 0, "the provider is asked when a connection is made");
}

/// Providers that exist for the `redis` crate.
mod streams {
    use std::pin::Pin;

    use futures_util::stream::{self, BoxStream};
    use futures_util::{Stream, StreamExt};
    use redis::{BasicAuth, ErrorKind, RedisError, RedisResult, StreamingCredentialsProvider};
    use tokio::sync::watch;

    use super::*;

    /// Item of the stream. `None` ends each stream.
    type Item = Option<Result<(&'static str, &'static str), &'static str>>;

    /// Service whose streams begin with its newest item, if it has one.
    struct Service(watch::Sender<Option<Item>>);

    impl StreamingCredentialsProvider for Service {
        fn subscribe(&self) -> Pin<Box<dyn Stream<Item = RedisResult<BasicAuth>> + Send + 'static>> {
            let mut items = self.0.subscribe();
            items.mark_changed();
            let next = async |mut items: watch::Receiver<Option<Item>>| loop {
                items.changed().await.ok()?;
                let item = *items.borrow_and_update();
                let Some(item) = item else { continue };
                let answer = match item? {
                    Ok((user, secret)) => Ok(BasicAuth::new(user.to_owned(), secret.to_owned())),
                    Err(error) => Err(RedisError::from((ErrorKind::AuthenticationFailed, error))),
                };
                return Some((answer, items));
            };
            let stream: BoxStream<'static, RedisResult<BasicAuth>> = stream::unfold(items, next).boxed();
            stream
        }
    }

    #[tokio::test]
    async fn each_item_of_a_stream_is_sent_at_once() {
        let recorder = Recorder::at(Level::WARN);
        let kept = || recorder.count(KEPT);
        let node = proxied(Server::Redis70);
        add_user(&[&node], "locks", "s3cret");
        let service = Arc::new(Service(watch::Sender::new(None)));
        let provider: Arc<dyn StreamingCredentialsProvider> = Arc::clone(&service) as _;
        let topology = Topology::node(node.url()).streaming_credentials(provider);
        let builder = || patient(RedisManager::builder(topology.clone())).background_on(Handle::current());
        let impatient = builder().unreachable_after(Duration::from_millis(300)).connect();
        let error = soon("the error", impatient).await.map(drop).expect_err("no item");
        assert!(shown(&error).contains("has not answered within"), "{}", shown(&error));
        bounded(async {
            service.0.send_replace(Some(Some(Ok(("locks", "s3cret")))));
            let manager = builder().connect().await.expect("connects");
            let guard = manager.write("held").await.expect("granted");
            let count = |name: &str| users_of(&node).iter().filter(|user| *user == name).count();
            let (before, made) = (count("locks"), node.proxy().connections_made());
            for (old, new) in [("locks", "heir"), ("heir", "other")] {
                add_user(&[&node], new, "s3cret");
                service.0.send_replace(Some(Some(Ok((new, "s3cret")))));
                until("the login of each connection", async || count(new) == before).await;
                drop(ask(&node, &["ACL", "DELUSER", old]));
            }
            works(&manager, "cfg").await;
            assert_eq!(node.proxy().connections_made(), made, "each connection stays");

            // The log has an error and the end of the stream once, and the last item stays in use.
            for item in [Some(Err("the service is down")), None] {
                service.0.send_replace(Some(item));
                until("the log has the failure", async || kept() == 1).await;
                cut(&[&node], "other");
                works(&manager, "cfg").await;
            }
            add_user(&[&node], "last", "s3cret");
            service.0.send_replace(Some(Some(Ok(("last", "s3cret")))));
            until("the login after another subscription", async || count("other") == 0 && count("last") > 0).await;
            assert_eq!((guard.state(), kept()), (HoldState::Held, 1), "{:?}", recorder.lines());
            guard.release().await.expect("ours to the end");
        })
        .await;
        drop(topology);
        until("the end of all tasks", async || Arc::strong_count(&service) == 1 && service.0.receiver_count() == 0)
            .await;
        assert!(!format!("{:?}", recorder.lines()).contains("s3cret"));
    }
}
