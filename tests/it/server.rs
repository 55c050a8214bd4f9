//! Keys on the servers, and the commands that managers send.

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Reply, Server};
use redis_rwlock::{Error, HoldState, LossReason, Mode, RedisManager, Refusal, RwLockManager, Topology, TwoKeyManager};

use crate::either::take;
use crate::fixture::{
    Kind, RENEWED, ServerFixture, Settings, alone_on_every_server, hash_on_every_server, on_every_server,
};
use crate::wait::{Outcome, granted, soon, until};

on_every_server![
    every_key_has_a_ttl_after_every_operation,
    lost_ttl_is_back_after_the_next_operation,
    foreign_value_is_a_clear_error_and_stays_untouched,
    tokens_grow_though_the_keys_are_gone,
    deleted_hold_is_lost_and_not_created_again,
    flushed_scripts_are_loaded_again_unnoticed,
];

alone_on_every_server![uncontended_lock_costs_one_command_each_way, many_holds_are_renewed_in_few_commands];

/// The longest lease in these cases.
const LEASE_MS: i64 = 10_000;
/// Longest time in milliseconds that a key of ours may stay beyond its longest lease.
const RETENTION_MS: i64 = 60_000;

fn assert_all_have_ttls(f: &ServerFixture, after: &str) {
    ttls_are_within(f, after, RETENTION_MS);
}

/// Asserts that all keys of the case have a ttl, at most `beyond_ms` longer than the lease.
fn ttls_are_within(f: &ServerFixture, after: &str, beyond_ms: i64) {
    for (key, ttl_ms) in f.ttls() {
        assert!(ttl_ms > 0, "after {after}: {key} has the ttl {ttl_ms}");
        assert!(ttl_ms <= LEASE_MS + beyond_ms, "after {after}: {key} has the ttl {ttl_ms}");
    }
}

async fn every_key_has_a_ttl_after_every_operation(f: &ServerFixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let writer = manager.write(&name).await?;
    assert!(!f.ttls().is_empty());
    assert_all_have_ttls(f, "a write");
    assert!(other.try_read(&name).await?.is_none());
    assert_all_have_ttls(f, "a denied read");
    writer.release().await?;
    assert_all_have_ttls(f, "the release of a write");
    let first = manager.read(&name).await?;
    assert_all_have_ttls(f, "a read");
    let second = other.read(&name).await?;
    assert_all_have_ttls(f, "a second read");
    assert!(other.try_write(&name).await?.is_none());
    assert_all_have_ttls(f, "a denied write");
    first.release().await?;
    assert_all_have_ttls(f, "the release of a read");
    second.release().await?;
    assert_all_have_ttls(f, "the release of the last read");
    let forced = manager.write(&name).await?;
    other.force_release(&name).await?;
    assert_all_have_ttls(f, "a force");
    other.inspect(&name).await?;
    assert_all_have_ttls(f, "a look");
    forced.release().await.expect_err("it was ended");
    assert_all_have_ttls(f, "a late release");
    let renewed = manager.write(&name).lease(RENEWED).await?;
    tokio::time::sleep(RENEWED).await;
    assert_eq!(renewed.state(), HoldState::Held);
    assert_all_have_ttls(f, "a renewal");
    Ok(())
}

/// Takes the ttl of all keys of a lock away.
fn persist(f: &ServerFixture, name: &str) {
    for key in f.keys_of(name) {
        f.on_key("PERSIST", &key, &[]);
    }
}

async fn lost_ttl_is_back_after_the_next_operation(f: &ServerFixture) -> Outcome {
    let ([manager, other], name) = f.scene().await;
    let writer = manager.write(&name).await?;
    persist(f, &name);
    assert!(other.try_write(&name).await?.is_none());
    // A denied request does not know the lease, so it sets a ttl that is long enough for any.
    ttls_are_within(f, "a denied write", 2 * RETENTION_MS);
    persist(f, &name);
    // The last release of a hash does not change its ttl.
    writer.release().await?;
    let reader = manager.read(&name).lease(RENEWED).await?;
    assert_all_have_ttls(f, "a read");
    persist(f, &name);
    let found = async || f.ttls().iter().all(|(_, ttl_ms)| *ttl_ms > 0);
    until("a renewal mends the ttl", found).await;
    persist(f, &name);
    reader.release().await?;
    let _writer = manager.write(&name).await?;
    assert_all_have_ttls(f, "a write after a release");
    Ok(())
}

async fn foreign_value_is_a_clear_error_and_stays_untouched(f: &ServerFixture) {
    let manager = f.manager().await;
    for own_key in 0..f.keys_of("").len() {
        let name = f.name();
        let key = &f.keys_of(&name)[own_key];
        f.on_key("LPUSH", key, &["theirs"]);
        let outcomes = [
            manager.read(&name).await.map(drop),
            manager.write(&name).await.map(drop),
            manager.try_read(&name).await.map(drop),
            manager.try_write(&name).await.map(drop),
            manager.inspect(&name).await.map(drop),
            manager.force_release(&name).await.map(drop),
        ];
        for (n, outcome) in outcomes.into_iter().enumerate() {
            let error = outcome.expect_err("not a lock");
            assert!(
                matches!(&error, Error::Refused { lock, refusal: Refusal::ForeignKey, .. } if **lock == *name),
                "operation {n} on {key}: {error:?}"
            );
        }
        assert_eq!(f.on_key("LRANGE", key, &["0", "-1"]), Reply::Array(vec![Reply::Bulk(b"theirs".to_vec())]));
        assert_eq!(f.on_key("PTTL", key, &[]), Reply::Int(-1));
        for other in f.keys_of(&name).iter().filter(|other| *other != key) {
            assert_eq!(f.on_key("EXISTS", other, &[]), Reply::Int(0));
        }
        f.on_key("DEL", key, &[]);
        manager.write(&name).await.expect("free again").release().await.expect("released");
    }
}

/// Deletes the keys of a lock, which are all that the servers know of it.
fn delete(f: &ServerFixture, name: &str) {
    for key in f.keys_of(name) {
        f.on_key("DEL", &key, &[]);
    }
}

async fn tokens_grow_though_the_keys_are_gone(f: &ServerFixture) -> Outcome {
    let ([manager], name) = f.scene().await;
    let mut last = None;
    for round in 0..6 {
        let guard = take(&manager, &name, [Mode::Write, Mode::Read][round % 2]).await;
        let token = Some(guard.token());
        assert!(last < token, "{last:?} {token:?}");
        last = token;
        guard.release().await?;
        delete(f, &name);
    }
    Ok(())
}

async fn deleted_hold_is_lost_and_not_created_again(f: &ServerFixture) {
    let manager = f.manager_with(Settings::lease(RENEWED)).await;
    for mode in [Mode::Write, Mode::Read] {
        let name = f.name();
        let guard = take(&manager, &name, mode).await;
        delete(f, &name);
        assert_eq!(soon("the loss", guard.lost()).await, LossReason::Gone);
        assert!(f.view(&name).await.is_free(), "a renewal re-created the hold");
        guard.release().await.expect_err("it was lost");
    }
}

async fn flushed_scripts_are_loaded_again_unnoticed(f: &ServerFixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let flush = || f.servers.everywhere(&["SCRIPT", "FLUSH"]);
    flush();
    let guard = manager.write(&name).await?;
    flush();
    assert!(f.manager().await.try_read(&name).await?.is_none());
    flush();
    assert_eq!(manager.inspect(&name).await?.holders.len(), 1);
    let granted = f.view(&name).await.holders[0].remaining;
    until("a renewal", async || {
        flush();
        f.view(&name).await.holders.iter().all(|holder| holder.age > RENEWED && holder.remaining <= granted)
    })
    .await;
    assert_eq!(guard.state(), HoldState::Held);
    flush();
    guard.release().await?;
    flush();
    manager.force_release(&name).await?;
    Ok(())
}

fn reset_counts(f: &ServerFixture) {
    f.servers.everywhere(&["CONFIG", "RESETSTAT"]);
}

async fn uncontended_lock_costs_one_command_each_way(f: &ServerFixture) -> Outcome {
    const ROUNDS: usize = 50;
    // A busy machine answers late; what is asked again then would be counted too.
    let settings = Settings { response_timeout: Duration::from_secs(5), ..Settings::default() };
    let ([manager], name) = f.scene_with(settings).await;
    // The first request of each kind loads its script.
    manager.write(&name).await?.release().await?;
    reset_counts(f);
    for round in 0..ROUNDS {
        take(&manager, &name, [Mode::Write, Mode::Read][round % 2]).await.release().await?;
    }
    assert_eq!((f.calls_of("evalsha"), f.calls_of("eval"), f.calls_of("ping")), (2 * ROUNDS as i64, 0, 0));
    reset_counts(f);
    let outer = manager.write(&name).reentrant().await?;
    for _ in 0..ROUNDS {
        manager.read(&name).reentrant().await?.release().await?;
    }
    outer.release().await?;
    assert_eq!(f.calls_of("evalsha"), 2, "nested acquisitions send nothing");
    Ok(())
}

async fn many_holds_are_renewed_in_few_commands(f: &ServerFixture) {
    const HOLDS: usize = 2000;
    let lease = Duration::from_secs(4);
    // A busy machine answers late; renewals that are repeated would be counted too.
    let settings = Settings { response_timeout: Duration::from_secs(2), ..Settings::lease(lease) };
    let manager = f.manager_with(settings).await;
    let names: Vec<String> = (0..HOLDS).map(|_| f.name()).collect();
    let taking = names.iter().map(|name| manager.write(name).into_future());
    let guards = futures_util::future::join_all(taking).await;
    let guards: Vec<_> = guards.into_iter().map(|guard| guard.expect("granted")).collect();
    reset_counts(f);
    let started = Instant::now();
    tokio::time::sleep(lease * 11 / 10).await;
    let calls = f.calls_of("evalsha") + f.calls_of("eval");
    // A renewal comes at a third of the lease, and at a quarter at the earliest.
    let most = started.elapsed().as_secs_f64() / (lease.as_secs_f64() / 4.0) + 1.0;
    let each = calls as f64 / HOLDS as f64;
    assert!(each >= 2.0 && each <= most, "{each} renewals per hold");
    let lost = guards.iter().filter(|guard| guard.state() != HoldState::Held).count();
    assert_eq!(lost, 0, "of {HOLDS} after {:?}", started.elapsed());
    // The next case counts the requests at the same cluster.
    drop(guards);
    manager.close().await.expect("all are given back");
}

async fn is_refused<T: std::fmt::Debug>(attempt: impl Future<Output = Result<T, Error>>, expected: Refusal) {
    let outcome = soon("the refusal", attempt).await;
    assert_matches!(outcome, Err(Error::Refused { refusal, .. }) if *refusal == expected);
}

#[tokio::test]
async fn old_servers_are_refused() {
    let node = Node::start(Server::Redis62).expect("the server starts");
    is_refused(TwoKeyManager::connect(node.url()), Refusal::UnsupportedServer).await;
    is_refused(RedisManager::connect(node.url()), Refusal::UnsupportedServer).await;
    // A manager that connects at first use reports the error then.
    let lazy = RedisManager::builder(node.url()).build().expect("built");
    is_refused(lazy.write("cfg").into_future(), Refusal::UnsupportedServer).await;
}

#[tokio::test]
async fn other_topologies_are_refused() {
    let cluster = ServerFixture::shared(Kind::HashCluster, Server::Redis70);
    let member = cluster.servers.primaries()[0].url();
    is_refused(TwoKeyManager::connect(&*member), Refusal::OtherTopology).await;
    is_refused(RedisManager::connect(&*member), Refusal::OtherTopology).await;
    let node = ServerFixture::shared(Kind::HashNode, Server::Redis70);
    let alone = Topology::cluster([node.servers.primaries()[0].url()]);
    is_refused(RedisManager::connect(alone), Refusal::OtherTopology).await;
}

#[tokio::test]
async fn wrong_passwords_are_refused_and_not_shown() -> Outcome {
    let (right, wrong) = ("c0rrect-horse", "wr0ng-horse");
    let node = Node::builder(Server::Redis70).arg("--requirepass", right).start()?;
    let address = node.addr();
    let with = |password: &str| format!("redis://:{password}@{address}");
    for url in [with(wrong), format!("redis://{address}")] {
        let error = RedisManager::connect(url.as_str()).await.expect_err("refused");
        let shown = format!("{error} {error:?} {:?}", RedisManager::builder(url.as_str()));
        assert!(matches!(error, Error::Refused { refusal: Refusal::Unauthenticated, .. }), "{shown}");
        assert!(!shown.contains(wrong), "{shown}");
        assert_matches!(
            TwoKeyManager::connect(url.as_str()).await,
            Err(Error::Refused { refusal: Refusal::Unauthenticated, .. })
        );
    }
    let manager = RedisManager::connect(with(right)).await?;
    let shown = format!("{manager:?}");
    assert!(!shown.contains(right), "{shown}");
    manager.write("cfg").await?.release().await?;
    Ok(())
}

hash_on_every_server![hand_over_to_another_process_costs_one_script];

/// The waiter starts by a notification. It sends no request, and claims the hold with a later renewal.
async fn hand_over_to_another_process_costs_one_script(f: &ServerFixture) -> Outcome {
    let f = ServerFixture::alone(f.kind, f.servers.primaries()[0].server()).await;
    let ([here, there], name) = f.scene().await;
    for round in 0..5 {
        let guard = here.write(&name).await?;
        let waits_since = Instant::now();
        let waiting = f.queued(&name, there.write(&name)).await;
        // At the first wait it subscribes, and repeats its request when the subscription is confirmed.
        let is_settled = async || {
            let before = f.calls_of("evalsha");
            tokio::time::sleep(Duration::from_millis(50)).await;
            f.calls_of("evalsha") == before
        };
        until("it has nothing more to ask", is_settled).await;
        reset_counts(&f);
        guard.release().await?;
        let guard = granted(waiting).await;
        let scripts = f.calls_of("evalsha");
        // A machine that stalls adds more: a heartbeat is due, or a renewal, which loads its script first.
        let stalls = i64::try_from(waits_since.elapsed().as_millis() / 800).expect("a short time");
        assert!((1..=1 + 3 * stalls).contains(&scripts), "round {round}: {scripts}");
        guard.release().await?;
    }
    Ok(())
}
