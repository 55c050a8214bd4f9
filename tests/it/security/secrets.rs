//! Secrecy of passwords: no message, no `Debug` and no event shows one, whatever goes wrong.

use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use parking_lot::Mutex;
use redis_rwlock::{
    Build, Builder, Credentials, Error, HoldState, LossReason, RedisManager, Refusal, RwLockManager, Topology,
    TwoKeyManager,
};

use crate::errors::assert_refused;
use crate::nodes::proxied;
use crate::record::Recorder;
use crate::wait::{Outcome, soon, spawn, until};

const RIGHT: &str = "c0rrect-horse";
const CHANGED: &str = "chang3d-horse";
const WRONG: &str = "wr0ng-horse";

/// All texts that were shown. The cases search them for passwords.
struct Shown(String);

impl Shown {
    fn add(&mut self, what: &dyn Debug) {
        self.0.push_str(&format!("{what:?} {what:#?}\n"));
    }

    /// Adds an error with all its sources.
    fn add_error(&mut self, error: &Error) {
        self.add(error);
        let mut below = Some(error as &dyn std::error::Error);
        while let Some(error) = below {
            self.0.push_str(&format!("{error} {error:?}\n"));
            below = error.source();
        }
    }

    fn assert_clean(&self, recorder: &Recorder) {
        let events = recorder.lines();
        assert!(!events.is_empty(), "nothing was recorded");
        for secret in ["horse", "c0rrect", "chang3d", "wr0ng"] {
            assert!(!self.0.contains(secret), "{}", self.0);
            let told = events.iter().find(|event| event.contains(secret));
            assert!(told.is_none(), "{told:?}");
        }
    }
}

/// Patience with servers that answer, be it late, because the cases look at their answers.
const PATIENT: Duration = Duration::from_secs(10);
/// Patience with an address where no server answers.
const IMPATIENT: Duration = Duration::from_millis(300);

fn with<M: Build>(unreachable_after: Duration, builder: Builder<M>) -> Builder<M> {
    let builder = builder.unreachable_after(unreachable_after).response_timeout(Duration::from_secs(1));
    // The background runs on this thread, so that the recorder sees its events, too.
    let builder = builder.background_on(tokio::runtime::Handle::current());
    builder.lease(Duration::from_secs(3)).max_clock_skew(Duration::from_millis(5))
}

/// Connects, and takes a lock without having connected before; both must fail.
async fn fails(topology: &Topology, unreachable_after: Duration, shown: &mut Shown) -> Vec<Error> {
    shown.add(topology);
    let hash = || with(unreachable_after, RedisManager::builder(topology.clone()));
    shown.add(&hash());
    let lazy = hash().build().expect("built");
    shown.add(&lazy);
    let errors = vec![
        soon("an error", hash().connect()).await.expect_err("it fails"),
        soon("an error", lazy.write("cfg")).await.expect_err("it fails"),
        soon("an error", lazy.inspect("cfg")).await.expect_err("it fails"),
    ];
    errors.iter().for_each(|error| shown.add_error(error));
    errors
}

fn assert_unauthenticated(errors: &[Error]) {
    for error in errors {
        assert_refused(error, Refusal::Unauthenticated);
    }
}

fn url(user: &str, password: &str, address: impl std::fmt::Display) -> String {
    format!("redis://{user}:{password}@{address}")
}

/// Runs on one thread, so that the recorder sees the events of every task.
#[tokio::test]
async fn no_fault_tells_a_password() -> Outcome {
    let recorder = Recorder::start();
    let mut shown = Shown(String::new());
    let node = Node::builder(Server::Redis70).password(RIGHT).proxied().start()?;
    let address = node.proxy().addr();
    assert_unauthenticated(&fails(&url("", WRONG, address).into(), PATIENT, &mut shown).await);
    assert_unauthenticated(&fails(&url("nobody", WRONG, address).into(), PATIENT, &mut shown).await);
    fails(&url("", WRONG, "127.0.0.1:1").into(), IMPATIENT, &mut shown).await;
    fails(&url("user", WRONG, "no-such-host.invalid:1").into(), IMPATIENT, &mut shown).await;
    fails(&Topology::sentinel("main", [url("", WRONG, address)]), IMPATIENT, &mut shown).await;
    fails(&Topology::cluster([url("", RIGHT, address)]), IMPATIENT, &mut shown).await;

    // The password changes while the manager has a hold.
    let manager = with(PATIENT, RedisManager::builder(url("", RIGHT, address))).connect().await?;
    let waiter = with(PATIENT, TwoKeyManager::builder(url("", RIGHT, address))).connect().await?;
    let guard = manager.write("held").await?;
    let blocks = waiter.write("contended").await?;
    let mut waiting = spawn(waiter.write("contended"));
    node.acl_set_user("default", &["resetpass", &format!(">{CHANGED}")]).expect("changed");
    manager.write("other").await.expect("connections go on").release().await?;
    assert_eq!(guard.state(), HoldState::Held);
    node.proxy().cut();
    let error = soon("the refusal", manager.write("other")).await.expect_err("it may not connect");
    assert_unauthenticated(std::slice::from_ref(&error));
    shown.add_error(&error);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    shown.add(&guard);
    shown.add(&manager);
    drop(blocks);
    let error = soon("the waiter's end", &mut waiting).await?.expect_err("it may not connect");
    shown.add_error(&error);
    shown.add_error(&guard.release().await.expect_err("it was lost"));
    shown.assert_clean(&recorder);
    Ok(())
}

/// Redirects make connections to nodes that no URL names.
#[tokio::test]
async fn no_redirect_tells_a_password() -> Outcome {
    let recorder = Recorder::start();
    let mut shown = Shown(String::new());
    let cluster = Cluster::builder(Server::Valkey91).replicas(0).password(RIGHT).start()?;
    let addresses: Vec<_> = cluster.nodes().iter().map(Node::addr).collect();
    let cluster_with = |password: &str| Topology::cluster([url("", password, addresses[0])]);
    assert_unauthenticated(&fails(&cluster_with(WRONG), PATIENT, &mut shown).await);
    let manager = with(PATIENT, RedisManager::builder(cluster_with(RIGHT))).connect().await?;
    for n in 0..12 {
        manager.write(&format!("cfg{n}")).await?.release().await?;
    }
    // One node changes its password. The others redirect us to it, and it refuses us.
    let slot = cluster.keyslot("rwlock:{cfg0}:lock");
    let owner = cluster.primary_of_slot(slot);
    owner.acl_set_user("default", &["resetpass", &format!(">{CHANGED}")]).expect("changed");
    let manager = with(
        PATIENT,
        RedisManager::builder(Topology::cluster(
            addresses.iter().filter(|address| **address != owner.addr()).map(|address| url("", RIGHT, address)),
        )),
    );
    let manager = manager.connect().await?;
    let error = soon("the refusal", manager.write("cfg0")).await.expect_err("it may not connect");
    assert_unauthenticated(std::slice::from_ref(&error));
    shown.add_error(&error);
    shown.add(&manager);
    shown.assert_clean(&recorder);
    Ok(())
}

/// Secrets of a provider are as secret as those of a URL.
#[tokio::test]
async fn no_change_of_credentials_tells_a_secret() -> Outcome {
    let recorder = Recorder::start();
    let mut shown = Shown(String::new());
    let node = proxied(Server::Redis70);
    node.acl_set_user("locks", &["on", &format!(">{RIGHT}"), "~*", "&*", "+@all"]).expect("made");
    let with_secret = |secret| Some(Credentials::new("locks", secret).valid_for(Duration::from_millis(200)));
    let issued = Arc::new(Mutex::new(with_secret(WRONG)));
    let topology = |address: &dyn std::fmt::Display| {
        let issued = Arc::clone(&issued);
        let answer = async move || issued.lock().clone().ok_or_else(|| "the service is down".into());
        Topology::node(format!("redis://{address}")).credentials(answer)
    };
    let address = node.proxy().addr();
    shown.add(&with_secret(WRONG));
    assert_unauthenticated(&fails(&topology(&address), PATIENT, &mut shown).await);
    fails(&topology(&"127.0.0.1:1"), IMPATIENT, &mut shown).await;
    *issued.lock() = None;
    fails(&topology(&address), IMPATIENT, &mut shown).await;

    // First the provider fails, and then the server refuses new credentials, on open connections and on new ones.
    *issued.lock() = with_secret(RIGHT);
    let manager = with(PATIENT, RedisManager::builder(topology(&address))).connect().await?;
    let guard = manager.write("held").await?;
    *issued.lock() = None;
    let told = |what: &str| recorder.lines().iter().any(|line| line.contains(what));
    until("the log has the failure", async || told("the service is down")).await;
    *issued.lock() = with_secret(CHANGED);
    until("the log has the refusal", async || told("refuses new credentials")).await;
    assert_eq!(guard.state(), HoldState::Held);
    node.proxy().cut();
    let error = soon("the refusal", manager.write("other")).await.expect_err("it may not connect");
    assert_unauthenticated(std::slice::from_ref(&error));
    shown.add_error(&error);
    shown.add(&manager.health().await);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    shown.add(&guard);
    shown.add(&manager);
    shown.assert_clean(&recorder);
    Ok(())
}

#[tokio::test]
async fn rights_taken_away_end_holds_with_their_leases() -> Outcome {
    let node = Node::start(Server::Redis70)?;
    node.acl_set_user("locks", &["on", ">pw", "~*", "&*", "+@all"]).expect("made");
    let builder = with(PATIENT, RedisManager::builder(url("locks", "pw", node.addr())));
    let manager = builder.connect().await?;
    let guard = manager.write("held").await?;
    node.acl_set_user("locks", &["-hmget"]).expect("changed");
    let error = soon("the refusal", manager.write("other")).await.expect_err("it may not");
    assert_refused(&error, Refusal::Forbidden);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired);
    drop(guard);
    let other = RedisManager::connect(node.url()).await?;
    until("the end of the lease", async || other.inspect("held").await.expect("inspected").is_free()).await;
    Ok(())
}
