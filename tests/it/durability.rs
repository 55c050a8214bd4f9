//! Grants that count only after replicas have acknowledged them.

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server};
use redis_rwlock::{
    Durability, Error, HoldState, LossReason, RedisManager, Replicas, RwLockManager, Topology, TwoKeyManager,
};

use crate::fixture::{Fixture, Kind, ServerFixture, Settings, on_one_replica};
use crate::nodes::hash_on;
use crate::servers::{Pair, wait_until_followed};
use crate::wait::{Outcome, granted, soon, spawn, until};

mod all;
mod demoted;
mod lost;
mod migration;
mod sentinels;
mod services;
#[cfg(feature = "tls")]
mod tls;
mod writes;

/// Time that a primary waits for a replica that stands still, in cases that await the end of it.
const SHORT_WAIT: Duration = Duration::from_millis(500);
/// Lease of holds whose renewals a case waits for.
const LEASE: Duration = Duration::from_secs(3);
/// Time that a primary waits for a replica, in cases where something else happens meanwhile.
const LONG_WAIT: Duration = Duration::from_secs(15);

/// Each case with both schemes on each server, with a primary and a replica of its own. Three of them run on each push.
macro_rules! on_a_pair {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            use cluster_testenv::Server;
            use $crate::durability::Field;

            $crate::fixture::on_this!($case, hash_on_redis_7_0, Field::hash(Server::Redis70));
            $crate::fixture::on_this!(later $case, hash_on_redis_8_2, Field::hash(Server::Redis82));
            $crate::fixture::on_this!($case, hash_on_valkey_8_1, Field::hash(Server::Valkey81));
            $crate::fixture::on_this!(later $case, hash_on_valkey_9_1, Field::hash(Server::Valkey91));
            $crate::fixture::on_this!(later $case, two_key_on_redis_7_0, Field::two_key(Server::Redis70));
            $crate::fixture::on_this!(later $case, two_key_on_redis_8_2, Field::two_key(Server::Redis82));
            $crate::fixture::on_this!(later $case, two_key_on_valkey_8_1, Field::two_key(Server::Valkey81));
            $crate::fixture::on_this!($case, two_key_on_valkey_9_1, Field::two_key(Server::Valkey91));
        }
    )+};
}
use on_a_pair;

on_a_pair![
    grant_that_no_replica_has_is_void_and_given_back,
    grant_of_the_primary_alone_is_lost_with_it,
    renewal_that_no_replica_has_extends_nothing,
    renewal_counts_again_when_the_replica_is_back,
    claim_counts_when_a_replica_has_it,
    conversion_that_no_replica_has_loses_the_guard,
    nobody_waits_for_a_wait_of_others,
    dropped_future_leaves_nothing,
    lock_stays_taken_when_the_primary_is_lost,
];

struct Field {
    pair: Pair,
    fixture: Fixture,
}

impl Field {
    fn hash(server: Server) -> Self {
        Self::start(Kind::HashNode, server)
    }

    fn two_key(server: Server) -> Self {
        Self::start(Kind::TwoKey, server)
    }

    fn start(kind: Kind, server: Server) -> Self {
        let pair = Pair::proxied(server);
        let fixture = Self::at(kind, &pair.primary);
        Self { pair, fixture }
    }

    fn at(kind: Kind, node: &Node) -> Fixture {
        match kind {
            Kind::TwoKey => Fixture::two_key(Topology::node(node.url())),
            Kind::HashNode | Kind::HashCluster => hash_on(node),
        }
    }

    async fn manager(&self, timeout: Duration) -> crate::fixture::Manager {
        self.fixture.manager_with(settings(timeout)).await
    }

    /// Uses a lock once, which loads the scripts. So the next script succeeds at the first try, and the first `WAIT`
    /// is the one behind it.
    async fn loads_all_scripts(&self, manager: &crate::fixture::Manager) {
        manager.write(&self.fixture.name()).await.expect("granted").release().await.expect("ours to the end");
    }
}

fn settings(timeout: Duration) -> Settings {
    let response_timeout = (timeout * 2).max(Settings::default().response_timeout);
    Settings { durability: on_one_replica(timeout), response_timeout, ..Settings::default() }
}

fn assert_too_few<T: std::fmt::Debug>(result: Result<T, Error>, name: &str) {
    let error = result.expect_err("no replica has it");
    assert_matches!(error, Error::NotEnoughReplicas { lock, asked: 1, acknowledged: 0, node: Some(_), .. } if **lock == *name);
}

async fn grant_that_no_replica_has_is_void_and_given_back(f: &Field) -> Outcome {
    let (manager, name) = (f.manager(SHORT_WAIT).await, f.fixture.name());
    manager.write(&name).await?.release().await?;
    f.pair.replica.pause();
    let asked = Instant::now();
    assert_too_few(manager.write(&name).await, &name);
    assert!(asked.elapsed() >= SHORT_WAIT, "it was not waited for");
    f.fixture.becomes_free(&name).await;
    assert_too_few(manager.try_write(&name).await, &name);
    f.fixture.becomes_free(&name).await;
    assert_too_few(manager.read(&name).await, &name);
    f.fixture.becomes_free(&name).await;
    f.pair.replica.resume();
    wait_until_followed(&f.pair.primary);
    manager.write(&name).await?.release().await?;
    Ok(())
}

/// Failover loses a grant that only the primary has, and keeps one that a replica has acknowledged.
async fn grant_of_the_primary_alone_is_lost_with_it(f: &Field) -> Outcome {
    let (safe, fast) = (f.manager(SHORT_WAIT).await, f.fixture.manager().await);
    let (first, second) = (f.fixture.name(), f.fixture.name());
    let known = safe.write(&first).await?;
    // The replica gets no more writes, as behind a network that is split.
    crate::servers::ask(&f.pair.replica, &["REPLICAOF", "NO", "ONE"]);
    let unknown = fast.write(&second).await.expect("granted by the primary");
    let third = f.fixture.name();
    assert_too_few(safe.write(&third).await, &third);
    f.pair.primary.kill();
    let promoted = f.fixture.manager_elsewhere(Topology::node(f.pair.replica.url())).await;
    assert!(promoted.try_write(&first).await?.is_none(), "the replica knows what was acknowledged");
    assert_eq!(known.state(), HoldState::Held);
    let other = promoted.try_write(&second).await?.expect("the replica knows nothing of it");
    assert_eq!(unknown.state(), HoldState::Held, "two are inside, and that is what the level does not promise");
    assert!(other.fencing_token() > unknown.fencing_token());
    Ok(())
}

fn renewed() -> Settings {
    Settings { lease: LEASE, ..settings(SHORT_WAIT) }
}

async fn renewal_that_no_replica_has_extends_nothing(f: &Field) {
    let ([manager], name) = f.fixture.scene_with(renewed()).await;
    let guard = manager.write(&name).await.expect("granted");
    f.pair.replica.pause();
    let deadline = Instant::now() + guard.remaining();
    until("a renewal goes unacknowledged", async || guard.state() == HoldState::Unconfirmed).await;
    assert!(Instant::now() + guard.remaining() <= deadline + Duration::from_millis(1), "it has extended the hold");
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    assert!(Instant::now() >= deadline - Duration::from_millis(1), "it was over before its deadline");
    f.fixture.becomes_free(&name).await;
}

async fn renewal_counts_again_when_the_replica_is_back(f: &Field) {
    let ([manager], name) = f.fixture.scene_with(renewed()).await;
    let guard = manager.read(&name).await.expect("granted");
    f.pair.replica.pause();
    until("a renewal goes unacknowledged", async || guard.state() == HoldState::Unconfirmed).await;
    let before = guard.remaining();
    f.pair.replica.resume();
    until("it is renewed", async || guard.state() == HoldState::Held).await;
    assert!(guard.remaining() > before);
    guard.release().await.expect("ours to the end");
}

async fn claim_counts_when_a_replica_has_it(f: &Field) -> Outcome {
    let (here, there, name) = (f.manager(SHORT_WAIT).await, f.manager(SHORT_WAIT).await, f.fixture.name());
    for mode in ["first", "second"] {
        let guard = here.write(&name).await?;
        let waiting = f.fixture.queued(&name, there.write(&name)).await;
        if mode == "first" {
            guard.release().await?;
            let guard = granted(waiting).await;
            guard.release().await?;
        } else {
            f.pair.replica.pause();
            guard.release().await?;
            assert_too_few(soon("the answer", waiting).await?, &name);
        }
    }
    f.fixture.becomes_free(&name).await;
    Ok(())
}

async fn conversion_that_no_replica_has_loses_the_guard(f: &Field) {
    let (manager, written, read) = (f.manager(SHORT_WAIT).await, f.fixture.name(), f.fixture.name());
    let (writer, reader) =
        (manager.write(&written).await.expect("granted"), manager.read(&read).await.expect("granted"));
    let writer = writer.downgrade().await.expect("a replica follows").try_upgrade().await.expect("alone");
    f.pair.replica.pause();
    let failed = writer.downgrade().await.expect_err("no replica has it");
    assert_too_few::<()>(Err(failed.error().clone()), &written);
    assert_eq!(failed.into_guard().state(), HoldState::Lost(LossReason::Gone));
    let failed = reader.try_upgrade().await.expect_err("no replica has it");
    assert_too_few::<()>(Err(failed.error().clone()), &read);
    assert_eq!(failed.into_guard().state(), HoldState::Lost(LossReason::Gone));
    f.fixture.becomes_free(&written).await;
    f.fixture.becomes_free(&read).await;
}

/// Waits until the primary has granted the lock and waits for the replica. The first try may find the script not
/// loaded.
async fn waits_for_the_replica(f: &Field, name: &str) {
    let waits = async || f.pair.waiting() >= 1 && !f.fixture.view(name).await.is_free();
    until("the primary waits for the replica", waits).await;
}

async fn nobody_waits_for_a_wait_of_others(f: &Field) -> Outcome {
    let manager = f.manager(LONG_WAIT).await;
    let (held, asked, taken) = (f.fixture.name(), f.fixture.name(), f.fixture.name());
    let guard = manager.write(&held).await?;
    let _other = f.fixture.manager().await.write(&taken).await?;
    f.pair.replica.pause();
    let waiting = spawn(manager.write(&asked));
    waits_for_the_replica(f, &asked).await;
    guard.release().await?;
    assert!(manager.try_write(&taken).await?.is_none(), "a try at a lock that others hold is refused at once");
    manager.inspect(&held).await?;
    assert!(f.pair.waiting() >= 1 && !waiting.is_finished(), "the replica was waited for all the while");
    f.pair.replica.resume();
    let guard = granted(waiting).await;
    guard.release().await?;
    Ok(())
}

async fn dropped_future_leaves_nothing(f: &Field) {
    let (manager, name) = (f.manager(LONG_WAIT).await, f.fixture.name());
    f.pair.replica.pause();
    let waiting = spawn(manager.write(&name));
    waits_for_the_replica(f, &name).await;
    waiting.abort();
    f.fixture.becomes_free(&name).await;
}

/// The replica knows until when the locks stay taken, also where it has not learned of the release.
async fn lock_stays_taken_when_the_primary_is_lost(f: &Field) -> Outcome {
    const AT_LEAST: Duration = Duration::from_secs(300);
    let manager = f.manager(SHORT_WAIT).await;
    let [done, held, unheard] = [f.fixture.name(), f.fixture.name(), f.fixture.name()];
    let take = async |name: &str| manager.write(name).at_least(AT_LEAST).await.expect("granted");
    take(&done).await.release().await?;
    let (working, last) = (take(&held).await, take(&unheard).await);
    crate::servers::ask(&f.pair.replica, &["REPLICAOF", "NO", "ONE"]);
    last.release().await?;
    f.pair.primary.kill();
    let promoted = f.fixture.manager_elsewhere(Topology::node(f.pair.replica.url())).await;
    for name in [&done, &held, &unheard] {
        assert!(promoted.try_write(name).await?.is_none(), "it is taken");
        let view = promoted.inspect(name).await?;
        assert!(view.holders[0].remaining > AT_LEAST - Duration::from_secs(60), "{view:?}");
    }
    drop(working);
    Ok(())
}

fn two_replicas() -> Durability {
    Durability::Replicated { replicas: Replicas::At(2), timeout: Duration::from_millis(250) }
}

#[tokio::test]
async fn too_few_replicas_are_told_at_connect() {
    let pair = Pair::shared(Server::Valkey91);
    let (url, address) = (pair.primary.url(), pair.primary.addr().to_string());
    let one = on_one_replica(Duration::from_millis(250));
    RedisManager::builder(url.as_str()).durability(one).connect().await.expect("one follows");
    let hash = RedisManager::builder(url.as_str()).durability(two_replicas()).connect().await.map(drop);
    let two_key = TwoKeyManager::builder(url.as_str()).durability(two_replicas()).connect().await.map(drop);
    for connected in [hash, two_key] {
        let error = connected.expect_err("one is not enough");
        let Error::NotEnoughReplicas { lock, asked: 2, acknowledged: 1, node: Some(node), .. } = &error else {
            panic!("{error:?}")
        };
        assert_eq!((&**lock, &**node), ("", address.as_str()));
    }
    // A manager that connects at first use reports the error then.
    let lazy = RedisManager::builder(url.as_str()).durability(two_replicas()).build().expect("built");
    let error = lazy.write("too-few").await.expect_err("one is not enough");
    assert_matches!(error, Error::NotEnoughReplicas { asked: 2, acknowledged: 0..2, .. });
}

#[tokio::test]
async fn replicas_of_every_primary_of_a_cluster_count() -> Outcome {
    let f = ServerFixture::shared(Kind::HashCluster, Server::Valkey91);
    let manager = f.manager_with(settings(LONG_WAIT)).await;
    for _ in 0..3 {
        let guard = manager.write(&f.name()).await?;
        guard.downgrade().await?.release().await?;
    }
    let too_many = Settings { durability: two_replicas(), ..Settings::default() };
    let error = f.connect(too_many).await.map(drop).expect_err("each has one");
    assert_matches!(error, Error::NotEnoughReplicas { asked: 2, acknowledged: 1, .. });
    Ok(())
}

/// Clients of the timestamp scheme do not wait for the storage of a service, so no manager beside them may claim to.
#[tokio::test]
async fn level_of_services_is_refused_beside_clients_of_the_timestamp_scheme() {
    let builder = || RedisManager::builder("redis://127.0.0.1:1").durability(Durability::Server);
    builder().build().expect("alone it is allowed");
    let error = builder().timestamp_keys("lock:*").build().expect_err("refused");
    let Error::InvalidOption { option: "durability", reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.contains("timestamp"), "{reason}");
}

#[tokio::test]
async fn zero_replicas_are_refused() {
    let level = Durability::Replicated { replicas: Replicas::At(0), timeout: SHORT_WAIT };
    let error = RedisManager::builder("redis://127.0.0.1:1").durability(level).build().expect_err("refused");
    let Error::InvalidOption { option: "durability", reason, .. } = &error else { panic!("{error:?}") };
    assert!(reason.contains("Durability::Primary"), "{reason}");
}

#[tokio::test]
async fn waits_that_never_end_or_outlast_the_answer_are_refused() {
    for timeout in [Duration::ZERO, Duration::from_micros(900), Duration::from_millis(251)] {
        let built = RedisManager::builder("redis://127.0.0.1:1").durability(on_one_replica(timeout)).build();
        let error = built.expect_err("refused");
        assert_matches!(error, Error::InvalidOption { option: "durability", .. });
    }
}
