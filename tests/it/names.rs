//! Names of locks: the valid ones, and the slots of their keys.

use cluster_testenv::{Reply, Server};
use proptest::strategy::Strategy;
use proptest::test_runner::{Config, TestRunner};
use redis_rwlock::{Error, RedisManager, RwLockManager, Topology, TwoKeyManager};

use crate::fixture::{
    Fixture, Kind, Manager, ServerFixture, Settings, has_hash_tag, on_every_fixture, on_every_own_format,
};
use crate::security::names::hostile;
use crate::servers::ask;
use crate::wait::Outcome;

on_every_fixture![locks_with_a_hash_tag_are_different_locks, bad_names_are_refused,];

// Leases in the format of Redisson are shorter, its listing is of the whole server, and it refuses some names.
on_every_own_format![awkward_names_lock_and_release, similar_names_are_different_locks];

fn awkward_names() -> Vec<String> {
    let fixed = [
        "a{b", "na}me", "{}x", "{user}:1", "{", "}", "{}", "}{", "{{a}}", "a{}{b}", "%", "%7B", "#", "a:b", " ", "\n",
        "\r\n", "\0", "a\0b", "🔒", "{🔒}", "ключ", "*", "?[a]", "\u{7f}", "\"'\\",
    ];
    fixed.into_iter().map(str::to_owned).chain(["x".repeat(1024), "🔒".repeat(256), "{".repeat(1024)]).collect()
}

async fn awkward_names_lock_and_release(f: &Fixture) -> Outcome {
    let (a, b) = (f.manager().await, f.manager().await);
    for name in awkward_names() {
        let guard = a.write(&name).await?;
        assert_eq!(guard.name(), name);
        assert!(b.try_read(&name).await?.is_none(), "{name:?}");
        assert_eq!(b.inspect(&name).await?.name, name);
        guard.release().await?;
        let guard = b.try_read(&name).await?.expect("free at once");
        guard.release().await?;
        b.force_release(&name).await?;
    }
    Ok(())
}

async fn similar_names_are_different_locks(f: &Fixture) {
    let manager = f.manager().await;
    let mut guards = Vec::new();
    for name in awkward_names() {
        let guard = manager.write(&name).try_now().await.expect("answered");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another lock's")));
    }
    for guard in guards {
        guard.release().await.expect("released");
    }
}

async fn locks_with_a_hash_tag_are_different_locks(f: &Fixture) {
    let manager = f.manager().await;
    let mut guards = Vec::new();
    for name in ["{user}:1", "{user}:2", "user", "{user}", "{user}:lock", "user:lock", "{user}:1:lock"] {
        let guard = manager.write(name).try_now().await.expect("answered");
        guards.push(guard.unwrap_or_else(|| panic!("{name:?} is another lock's")));
    }
    drop(guards);
    f.becomes_free("{user}:1").await;
}

/// Names that are empty, or longer than 1 KiB.
fn bad_names() -> [String; 3] {
    [String::new(), "x".repeat(1025), "🔒".repeat(257)]
}

async fn refuses_bad_names(manager: &dyn RwLockManager) {
    for name in bad_names() {
        let outcomes = [
            manager.read(&name).await.map(drop),
            manager.write(&name).await.map(drop),
            manager.write(&name).reentrant().await.map(drop),
            manager.try_read(&name).await.map(drop),
            manager.try_write(&name).await.map(drop),
            manager.inspect(&name).await.map(drop),
            manager.force_release(&name).await.map(drop),
        ];
        for outcome in outcomes {
            let error = outcome.expect_err("no such lock");
            assert_matches!(error, Error::InvalidName { .. });
            assert!(error.to_string().len() < 512, "a name is quoted in part: {error}");
        }
    }
}

async fn bad_names_are_refused(f: &Fixture) {
    refuses_bad_names(&*f.manager().await).await;
}

/// The manager refuses the names before it sends anything: no server listens, so a request would be another error.
#[tokio::test]
async fn bad_names_are_refused_before_anything_is_sent() -> Outcome {
    let nowhere = || Topology::node("redis://127.0.0.1:1");
    refuses_bad_names(&TwoKeyManager::builder(nowhere()).build()?).await;
    refuses_bad_names(&RedisManager::builder(nowhere()).build()?).await;
    let cluster = Topology::cluster(["redis://127.0.0.1:1"]);
    refuses_bad_names(&RedisManager::builder(cluster).build()?).await;
    Ok(())
}

macro_rules! keys_share_their_slot {
    ($($(#[$when:meta])? $name:ident $server:ident;)+) => {$(
        #[test]
        $(#[$when])?
        fn $name() {
            super::keys_share_their_slot(cluster_testenv::Server::$server);
        }
    )+};
}

mod all_keys_of_a_lock_share_their_slot {
    keys_share_their_slot! {
        on_redis_7_0 Redis70;
        #[ignore = "runs in `.ci/all`"] on_redis_8_2 Redis82;
        #[ignore = "runs in `.ci/all`"] on_valkey_8_1 Valkey81;
        on_valkey_9_1 Valkey91;
    }
}

fn any_name() -> impl Strategy<Value = String> {
    proptest::prop_oneof![hostile(), "\\PC{1,30}", "[{}%#:ab\0🔒]{1,12}", "[a-z]{0,5}\\{[a-z}]{0,5}\\}[a-z{]{0,5}"]
}

fn keys_share_their_slot(server: Server) {
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let f = ServerFixture::shared(Kind::HashCluster, server);
    let manager = runtime.block_on(f.manager_with(Settings::default()));
    let mut runner = TestRunner::new(Config { cases: 200, failure_persistence: None, ..Config::default() });
    let checked = runner.run(&any_name(), |name| {
        runtime.block_on(key_lies_in_its_slot(&f, &manager, &name));
        Ok(())
    });
    checked.expect("every name");
    // A manager that computed another slot than the server's would have been redirected.
    for reply in f.servers.everywhere(&["INFO", "errorstats"]) {
        let errors = reply.text().expect("text").into_owned();
        assert!(!errors.contains("MOVED") && !errors.contains("CROSSSLOT"), "{errors}");
    }
}

/// Locks `name` and looks for its key where the server says that it must lie, and its other parts beside it.
async fn key_lies_in_its_slot(f: &ServerFixture, manager: &Manager, name: &str) {
    let cluster = f.servers.cluster().expect("a cluster");
    let [key] = <[String; 1]>::try_from(f.keys_of(name)).expect("one key");
    let slot = cluster.keyslot(&key);
    for part in ["read", "write", "wake"] {
        assert_eq!(cluster.keyslot(f.key_of(name, part)), slot, "{name:?} {part}");
    }
    if has_hash_tag(name) {
        assert_eq!(cluster.keyslot(name), slot, "the tag of {name:?} is kept");
    }
    let guard = manager.try_write(name).await.expect("answered").expect("granted");
    let found = ask(cluster.primary_of_slot(slot), &["EXISTS", &key]);
    assert_eq!(found, Reply::Int(1), "{name:?} at {key:?}");
    guard.release().await.expect("released");
}
