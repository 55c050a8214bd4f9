//! Parts of URLs: user, password, database, socket. No text shows a password.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Reply, Server};
use redis_rwlock::{Build, Builder, Error, LossReason, RedisManager, Refusal, RwLockManager, Topology, TwoKeyManager};

use super::{finds_nobody, names_on_every_primary, option_of, patient, refused, shown, works};
use crate::errors::assert_refused;
use crate::fixture::Manager;
use crate::record::Recorder;
use crate::servers::ask;
use crate::wait::{Outcome, granted, soon, spawn, until};

crate::fixture::on_two_threads![
    user_with_a_password_on_a_node,
    password_alone_on_a_node,
    user_and_password_of_the_first_url_go_to_all_nodes_of_a_cluster,
    database_of_the_url_is_where_the_keys_are,
    unix_socket_of_a_node,
    ipv6_addresses_of_a_node_and_of_a_cluster,
    protocol_of_the_url_changes_nothing,
    prefixes_on_one_server_do_not_see_each_other,
];

/// User with letters that a URL has to escape.
const USER: &str = "svc:locks@eu";
const USER_IN_URL: &str = "svc%3Alocks%40eu";
const PASSWORD: &str = "p@ss/w:?#%é";
const PASSWORD_IN_URL: &str = "p%40ss%2Fw%3A%3F%23%25%C3%A9";

fn hash(topology: impl Into<Topology>) -> Builder<RedisManager> {
    patient(RedisManager::builder(topology))
}

fn two_key(topology: impl Into<Topology>) -> Builder<TwoKeyManager> {
    patient(TwoKeyManager::builder(topology))
}

/// Managers of both schemes on one node, with the key of a written lock.
async fn both(url: &str) -> [(Manager, &'static str); 2] {
    async fn connect<M: Build>(builder: Builder<M>) -> Manager {
        Arc::new(builder.connect().await.expect("connects"))
    }
    [(connect(hash(url)).await, "rwlock:{cfg}:lock"), (connect(two_key(url)).await, "rwlock:{cfg}:write")]
}

fn is_unauthenticated(error: &Error) -> bool {
    matches!(error, Error::Refused { refusal: Refusal::Unauthenticated, .. })
}

/// The URL of a node for this user.
fn url_for(node: &Node, user_and_password: &str) -> String {
    format!("redis://{user_and_password}@{}", node.addr())
}

fn exists_in(node: &Node, database: &str, key: &str) -> bool {
    let mut client = node.client().expect("connects");
    client.command(&["SELECT", database]).expect("answered").into_result().expect("selected");
    client.command(&["EXISTS", key]).expect("answered") == Reply::Int(1)
}

fn rules() -> [String; 5] {
    ["on".to_owned(), format!(">{PASSWORD}"), "~rwlock*".to_owned(), "&rwlock*".to_owned(), "+@all".to_owned()]
}

async fn user_with_a_password_on_a_node() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    node.acl_set_user(USER, &rules().each_ref().map(String::as_str)).expect("a user");
    ask(&node, &["ACL", "SETUSER", "default", "-@all", "+ping", "+acl", "+info"]);
    for (manager, _) in both(&url_for(&node, &format!("{USER_IN_URL}:{PASSWORD_IN_URL}"))).await {
        works(&*manager, "cfg").await;
    }
    for wrong in [format!("{USER_IN_URL}:wrong"), format!("nobody:{PASSWORD_IN_URL}")] {
        let error = refused(hash(url_for(&node, &wrong))).await;
        assert!(is_unauthenticated(&error), "{wrong}: {error:?}");
    }
    // A URL without a user means `default`. That user needs no password here, and has next to no rights.
    refused(hash(url_for(&node, &format!(":{PASSWORD_IN_URL}")))).await;
}

async fn password_alone_on_a_node() {
    let node = Node::builder(Server::Valkey91).password(PASSWORD).start().expect("the server starts");
    for (manager, _) in both(&url_for(&node, &format!(":{PASSWORD_IN_URL}"))).await {
        works(&*manager, "cfg").await;
    }
    for wrong in [format!("redis://{}", node.addr()), url_for(&node, ":wrong"), url_for(&node, ":p%40ss")] {
        let error = refused(two_key(wrong)).await;
        assert!(is_unauthenticated(&error), "{error:?}");
    }
}

async fn user_and_password_of_the_first_url_go_to_all_nodes_of_a_cluster() -> Outcome {
    let cluster = Cluster::builder(Server::Redis70).node_timeout(Duration::from_secs(15)).start()?;
    cluster.acl_set_user(USER, &rules().each_ref().map(String::as_str))?;
    let seed = &cluster.nodes()[0];
    let manager = hash(Topology::cluster([url_for(seed, &format!("{USER_IN_URL}:{PASSWORD_IN_URL}"))]));
    let manager = manager.connect().await?;
    for name in names_on_every_primary(&cluster) {
        let guard = manager.write(&name).await?;
        let owner = cluster.primary_of_slot(cluster.keyslot(&name));
        let users = ask(owner, &["CLIENT", "LIST"]);
        assert!(users.text().expect("a text").contains(&format!("user={USER} ")), "{name}");
        guard.release().await?;
    }
    let wrong = Topology::cluster([url_for(seed, &format!("{USER_IN_URL}:wrong"))]);
    let error = refused(hash(wrong.clone())).await;
    assert!(is_unauthenticated(&error), "{error:?}");
    let lazy = hash(wrong).build()?;
    let error = soon("the refusal", lazy.write("cfg")).await.expect_err("no");
    assert!(is_unauthenticated(&error), "at first use as well: {error:?}");
    Ok(())
}

async fn database_of_the_url_is_where_the_keys_are() -> Outcome {
    let node = Node::start(Server::Redis70)?;
    let three = both(&format!("redis://{}/3", node.addr())).await;
    let none = both(&format!("redis://{}", node.addr())).await;
    for ((there, key), (here, _)) in three.iter().zip(&none) {
        let guard = there.write("cfg").await?;
        assert!(exists_in(&node, "3", key) && !exists_in(&node, "0", key), "{key}");
        let apart = here.try_write("cfg").await?.expect("another database, another lock");
        assert!(exists_in(&node, "0", key), "{key}");
        guard.release().await?;
        apart.release().await?;
    }
    let error = refused(hash(format!("redis://{}/9999", node.addr()))).await;
    assert_refused(&error, Refusal::Other);
    Ok(())
}

#[test]
fn databases_that_cannot_be_are_refused_before_anything_is_sent() {
    for (one, other) in [("", "1"), ("1", "0"), ("1", "15"), ("-1", "-1")] {
        let urls = [format!("redis://127.0.0.1:1/{one}"), format!("redis://127.0.0.1:2/{other}")];
        let error = hash(Topology::cluster(urls)).build().expect_err("all members are used with one");
        assert_eq!(option_of(&error), "topology", "{one} {other}");
        assert!(error.to_string().contains("database"), "{error}");
    }
    for (one, other) in [("", "0"), ("1", "1"), ("15", "15")] {
        let urls = [format!("redis://127.0.0.1:1/{one}"), format!("redis://127.0.0.1:2/{other}")];
        hash(Topology::cluster(urls)).build().expect("the members say whether they have it");
    }
    for url in ["redis://127.0.0.1:1/x", "redis://127.0.0.1:1/-1", "redis+unix:///nowhere?db=x"] {
        assert_eq!(option_of(&hash(url).build().expect_err("no database")), "topology", "{url}");
    }
}

mod members_of_a_cluster_say_whether_they_have_a_database {
    crate::fixture::on_each_server!(old too super::members_of_a_cluster_say_whether_they_have_a_database);
}

/// Not all servers can have several databases in a cluster.
async fn members_of_a_cluster_say_whether_they_have_a_database(server: Server) -> Outcome {
    const DATABASES: &str = "cluster-databases";
    let node = Node::start(server)?;
    let has_several = ask(&node, &["CONFIG", "GET", DATABASES]).array().is_some_and(|found| !found.is_empty());
    let builder = Cluster::builder(server).replicas(0).node_timeout(Duration::from_secs(15));
    let builder = if has_several { builder.arg(format!("--{DATABASES}"), "4") } else { builder };
    let cluster = builder.start()?;
    let in_database = |database: u8| {
        let urls: Vec<_> = cluster.nodes().iter().map(|node| format!("redis://{}/{database}", node.addr())).collect();
        hash(urls)
    };
    if has_several {
        let three = in_database(3).connect().await?;
        locks_are_in_database_three(&cluster, &three, &in_database(0).connect().await?).await;
        let error = refused(in_database(9)).await;
        assert_refused(&error, Refusal::Other);
    } else {
        let error = refused(in_database(3)).await;
        assert!(matches!(error, Error::Refused { .. }) && error.to_string().contains("SELECT"), "{error:?}");
    }
    Ok(())
}

async fn locks_are_in_database_three(cluster: &Cluster, three: &RedisManager, none: &RedisManager) {
    for name in names_on_every_primary(cluster) {
        let key = format!("rwlock:{{{name}}}:lock");
        let owner = cluster.primary_of_slot(cluster.keyslot(&key));
        let guard = three.write(&name).await.expect("granted");
        assert!(exists_in(owner, "3", &key) && !exists_in(owner, "0", &key), "{name}");
        assert!(three.try_write(&name).await.expect("answered").is_none(), "{name} is held");
        let apart = none.try_write(&name).await.expect("answered").expect("another database, another lock");
        guard.release().await.expect("ours to the end");
        apart.release().await.expect("ours to the end");
    }
}

async fn unix_socket_of_a_node() {
    let dir = std::env::temp_dir().join(format!("redis-rwlock-{}", std::process::id()));
    std::fs::create_dir_all(&dir).expect("a folder");
    let path = dir.join("server.sock").display().to_string();
    let node = Node::builder(Server::Redis70).password(PASSWORD).arg("--unixsocket", &*path).start().expect("starts");
    let url = format!("redis+unix://{path}?pass={PASSWORD_IN_URL}&db=3");
    for (manager, key) in both(&url).await {
        let guard = manager.write("cfg").await.expect("granted");
        assert!(exists_in(&node, "3", key), "{key}");
        guard.release().await.expect("ours to the end");
    }
    let error = refused(hash(format!("redis+unix://{path}?pass=wrong"))).await;
    assert!(is_unauthenticated(&error), "{error:?}");
    finds_nobody(|| hash(format!("redis+unix://{path}.not"))).await;
    let error = hash(Topology::cluster([url])).build().expect_err("members have ports");
    assert_eq!(option_of(&error), "topology");
    std::fs::remove_dir_all(&dir).expect("removed");
}

async fn ipv6_addresses_of_a_node_and_of_a_cluster() -> Outcome {
    let node = Node::start(Server::Redis70)?;
    ask(&node, &["CONFIG", "SET", "bind", "127.0.0.1 ::1"]);
    for (manager, _) in both(&format!("redis://[::1]:{}", node.port())).await {
        works(&*manager, "cfg").await;
    }
    // The cluster bus keeps its addresses, so the nodes lose each other when they use the new ones.
    let cluster = Cluster::builder(Server::Redis70).node_timeout(Duration::from_secs(90)).start()?;
    for node in cluster.nodes() {
        ask(node, &["CONFIG", "SET", "bind", "127.0.0.1 ::1"]);
        ask(node, &["CONFIG", "SET", "cluster-announce-ip", "::1"]);
    }
    until("word of the new addresses", async || {
        let slots = |node| format!("{:?}", ask(node, &["CLUSTER", "SLOTS"]));
        cluster.nodes().iter().all(|node| !slots(node).contains("127.0.0.1"))
    })
    .await;
    let names = names_on_every_primary(&cluster);
    let seed = format!("redis://[::1]:{}", cluster.nodes()[0].port());
    let manager = hash(Topology::cluster([seed])).connect().await?;
    for name in &names {
        works(&manager, name).await;
    }
    Ok(())
}

async fn protocol_of_the_url_changes_nothing() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    for (manager, _) in both(&format!("redis://{}?protocol=resp3", node.addr())).await {
        works(&*manager, "cfg").await;
    }
}

/// All topologies with this URL.
fn everywhere(url: &str) -> [Topology; 3] {
    [Topology::node(url), Topology::cluster([url]), Topology::sentinel("mymaster", [url])]
}

/// All texts of a manager that does not work.
async fn words_of(topology: Topology) -> String {
    let mut words = format!("{topology:?} {:?}", hash(topology.clone()));
    match hash(topology).unreachable_after(Duration::from_millis(200)).build() {
        Err(error) => words += &shown(&error),
        Ok(manager) => {
            let waiting = manager.write("cfg").into_future();
            words += &format!("{manager:?}");
            words += &shown(&soon("the end of the wait", waiting).await.expect_err("it does not work"));
            let asked = soon("the answer", manager.inspect("cfg")).await;
            words += &shown(&asked.expect_err("it does not work"));
            drop(manager.close().await);
        }
    }
    words
}

async fn prefixes_on_one_server_do_not_see_each_other() -> Outcome {
    let node = Node::start(Server::Redis70)?;
    let prefixes = ["a", "a:", "b", "a:b", "%", "%7B", "*", "[x]", "\\", "\"'", ":", "$(x)"];
    let mut guards = Vec::new();
    for prefix in prefixes {
        let manager = hash(node.url()).key_prefix(prefix).connect().await?;
        // Both forms of a key, and names that look like those under another prefix.
        for name in ["cfg", "{cfg}", "b:cfg", ":{cfg}"] {
            let guard = manager.try_write(name).await?;
            guards.push(guard.unwrap_or_else(|| panic!("{prefix:?} {name:?} is another's")));
            assert_eq!(manager.inspect(name).await?.holders.len(), 1, "{prefix:?} {name:?}");
        }
    }
    assert_eq!(ask(&node, &["DBSIZE"]), Reply::Int(guards.len() as i64), "one key each");
    for guard in guards {
        guard.release().await?;
    }
    let two = two_key(node.url()).key_prefix("a").connect().await?;
    let other = two_key(node.url()).key_prefix("b").connect().await?;
    let _guard = two.write("cfg").await?;
    works(&other, "cfg").await;
    Ok(())
}

#[tokio::test]
async fn nothing_tells_a_password() -> Outcome {
    let secret = "hunter2";
    let recorder = Recorder::of_all_crates();
    let node = Node::builder(Server::Redis70).password("another").start()?;
    let at = node.addr();
    let urls = [
        // Wrong passwords.
        format!("redis://:{secret}@{at}"),
        format!("redis://{secret}:{secret}@{at}/3"),
        // No server listens.
        format!("redis://:{secret}@127.0.0.1:1"),
        format!("redis://u:{secret}@[::1]:1"),
        format!("redis+unix:///no/such/socket?pass={secret}"),
        // Texts that are no URLs.
        format!("redis://:{secret}@[bad"),
        format!("redis://:{secret}@{at}/x"),
        format!("redis://u:1/{secret}@{at}"),
        format!("redis://u:{secret}/1@{at}"),
        format!("redis://{secret}#1@{at}"),
        format!("redis://{at}/?password={secret}&protocol=x"),
        format!("nonsense:{secret}"),
        format!("http://u:{secret}@{at}"),
        secret.to_owned(),
    ];
    for url in urls {
        for topology in everywhere(&url) {
            let words = words_of(topology).await;
            assert!(!words.contains(secret), "{url}: {words}");
        }
    }
    // This manager works, then loses a hold and its server.
    let url = format!("redis://:another@{at}");
    for (manager, _) in both(&url).await {
        let guard = manager.write("cfg").await?;
        let waiting = spawn(manager.write("other"));
        let taken = granted(waiting).await;
        manager.force_release("cfg").await?;
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Forced);
        node.pause();
        let short = hash(&*url).unreachable_after(Duration::from_millis(200)).build()?;
        let error = soon("the end of the wait", short.write("more")).await.expect_err("nobody");
        node.resume();
        let words = format!("{} {manager:?} {guard:?} {taken:?}", shown(&error));
        assert!(!words.contains("another"), "{words}");
        taken.release().await?;
    }
    let logged = recorder.lines().concat();
    assert!(logged.contains("ended the hold by force"), "events are seen: {logged}");
    assert!(!logged.contains(secret) && !logged.contains("another@"), "{logged}");
    Ok(())
}
