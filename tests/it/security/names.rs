//! Names, prefixes and labels that were chosen to reach the lock of another user.

use std::collections::HashMap;
use std::sync::Arc;

use cluster_testenv::{Reply, Server};
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, TestRunner};
use redis_rwlock::{Error, RedisManager, RwLockManager, TwoKeyManager};

use crate::fixture::{Kind, Manager, ServerFixture, Settings};
use crate::servers::ask;
use crate::wait::Outcome;

crate::fixture::on_two_threads![
    no_two_locks_share_a_key_of_hash,
    no_two_locks_share_a_key_of_two_key,
    scripts_are_constants,
];

/// Texts that mean something to the server, the protocol, the scripts or the keys.
pub fn hostile() -> impl Strategy<Value = String> {
    let pieces = prop_oneof![
        Just("\0"),
        Just("\r\n"),
        Just("*1\r\n$8\r\nFLUSHALL\r\n"),
        Just("$-1\r\n"),
        Just("{"),
        Just("}"),
        Just("{}"),
        Just("{a}"),
        Just(" "),
        Just("@"),
        Just("#"),
        Just("%"),
        Just("%7B"),
        Just(":"),
        Just(":lock"),
        Just(":read"),
        Just(":write"),
        Just(":wake"),
        Just("rwlock"),
        Just("#token"),
        Just("#forced"),
        Just("') redis.call('FLUSHALL') --"),
        Just("]]"),
        Just("\\"),
        Just("'"),
        Just("a"),
        Just("b"),
        Just("🔒"),
    ];
    let few = proptest::collection::vec(pieces.clone(), 1..6).prop_map(|pieces| pieces.concat());
    let long = pieces.prop_map(|piece| piece.repeat(1024 / piece.len()));
    prop_oneof![4 => few, 1 => long, 2 => "(?s).{1,12}"]
}

fn hostile_prefix() -> impl Strategy<Value = String> {
    "[a-b:@%$*'\\[\\]]{1,6}|rwlock(:a)?(:lock|:b)?"
}

fn runner(cases: u32) -> TestRunner {
    TestRunner::new(Config { cases, failure_persistence: None, ..Config::default() })
}

/// Takes a lock with a prefix and a name, and returns the keys that the server has then.
async fn held_keys(f: &ServerFixture, prefix: &str, name: &str) -> Vec<String> {
    let node = f.servers.primaries()[0];
    let url = node.url();
    let manager: Manager = match f.kind {
        Kind::TwoKey => Arc::new(TwoKeyManager::builder(url).key_prefix(prefix).build().expect("a good prefix")),
        Kind::HashNode | Kind::HashCluster => {
            Arc::new(RedisManager::builder(url).key_prefix(prefix).build().expect("a good prefix"))
        }
    };
    let guard = manager.try_read(name).await.expect("answered").expect("granted");
    let reply = ask(node, &["KEYS", "*"]);
    let keys = reply.array().expect("a list").iter().filter_map(Reply::text).map(|key| key.into_owned()).collect();
    guard.release().await.expect("released");
    ask(node, &["FLUSHALL"]);
    keys
}

/// Names of up to two pieces of which keys are made, under prefixes of such pieces.
fn close_pairs() -> Vec<(String, String)> {
    let pieces = ["", "{", "}", "%", "%7B", "%7D", "%25", "a", ":", ":lock", "{a}"];
    let mut names: Vec<String> = pieces.iter().flat_map(|one| pieces.map(|other| format!("{one}{other}"))).collect();
    names.retain(|name| !name.is_empty());
    names.sort();
    names.dedup();
    ["a", "a:", "a:lock"]
        .iter()
        .flat_map(|prefix| names.iter().map(|name| (prefix.to_string(), name.clone())))
        .collect()
}

/// Collects the keys of many locks on a server without other users. Two locks that shared a key would map it to both.
async fn no_two_locks_share_a_key(kind: Kind, server: Server) {
    let f = ServerFixture::alone(kind, server).await;
    let mut owners: HashMap<String, (String, String)> = HashMap::new();
    let mut runner = runner(256);
    let any =
        std::iter::repeat_with(|| (hostile_prefix(), hostile()).new_tree(&mut runner).expect("a value").current());
    for pair in close_pairs().into_iter().chain(any.take(256)) {
        let keys = held_keys(&f, &pair.0, &pair.1).await;
        assert_eq!(keys.len(), 1, "a read hold is one key: {keys:?} of {pair:?}");
        for key in keys {
            let begins = [format!("{}:{{", pair.0), format!("{}#", pair.0)];
            assert!(begins.iter().any(|begin| key.starts_with(begin)), "{key:?} of {pair:?}");
            let owner = owners.entry(key.clone()).or_insert_with(|| pair.clone());
            assert_eq!(*owner, pair, "both have {key:?}");
        }
    }
    assert!(owners.len() > 300, "{} different locks", owners.len());
}

async fn no_two_locks_share_a_key_of_hash() {
    no_two_locks_share_a_key(Kind::HashNode, Server::Redis70).await;
}

async fn no_two_locks_share_a_key_of_two_key() {
    no_two_locks_share_a_key(Kind::TwoKey, Server::Valkey91).await;
}

/// Checks that managers send the files as scripts, with any names: the server finds them by the digests of the files.
async fn scripts_are_constants() -> Outcome {
    let f = ServerFixture::alone(Kind::HashNode, Server::Redis70).await;
    let node = f.servers.primaries()[0];
    let mut runner = runner(64);
    for _ in 0..64 {
        let name = hostile().new_tree(&mut runner).expect("a value").current();
        let manager = f.manager().await;
        let guard = manager.try_write(&name).await?.expect("granted");
        assert!(manager.try_read(&name).await?.is_none());
        assert_eq!(manager.inspect(&name).await?.name, name);
        guard.release().await?;
        manager.force_release(&name).await?;
    }
    let memory = ask(node, &["INFO", "memory"]).text().expect("text").into_owned();
    let scripts = memory.lines().find_map(|line| line.strip_prefix("number_of_cached_scripts:"));
    assert_eq!(scripts, Some("5"), "rights, acquire, leave, inspect, force");
    Ok(())
}

/// A label is one field of an id. `inspect` shows it as the user gave it, or the builder refuses it.
#[tokio::test]
async fn label_is_shown_as_it_was_given_or_refused() {
    for f in fixtures() {
        let mut runner = runner(64);
        for _ in 0..64 {
            let label = hostile().new_tree(&mut runner).expect("a value").current();
            shows_label(&f, &label).await;
        }
        for label in ["x.1.other", "a.b.c", "@x", "#token", "{", "'", "0", "-1", "0000000000000000.7.root"] {
            shows_label(&f, label).await;
        }
    }
}

fn fixtures() -> Vec<ServerFixture> {
    [Kind::TwoKey, Kind::HashNode].map(|kind| ServerFixture::shared(kind, Server::Valkey91)).into()
}

async fn shows_label(f: &ServerFixture, label: &str) {
    let may_be = label.len() <= 64 && !label.chars().any(|c| c.is_whitespace() || c.is_control());
    let manager = match f.connect(Settings::label(label)).await {
        Ok(manager) => manager,
        Err(Error::InvalidOption { option: "label", .. }) if !may_be => return,
        Err(error) => panic!("{label:?}: {error:?}"),
    };
    assert!(may_be, "{label:?}");
    let (name, other) = (f.name(), f.manager_with(Settings::label("bystander")).await);
    let (guard, beside) = (manager.read(&name).await.expect("granted"), other.read(&name).await.expect("granted"));
    let mut labels: Vec<String> = f.view(&name).await.holders.into_iter().map(|holder| holder.label).collect();
    labels.sort();
    let mut expected = [label.to_owned(), "bystander".to_owned()];
    expected.sort();
    assert_eq!(labels, expected, "two holders, each under its own name");
    guard.release().await.expect("released");
    assert_eq!(f.view(&name).await.holders.len(), 1, "the other one stays");
    beside.release().await.expect("ours to the end");
}
