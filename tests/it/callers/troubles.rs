//! Servers that answer and cannot do what they should. Each case is alone with its servers.

use std::time::{Duration, Instant};

use cluster_testenv::{Client, Node, Server};
use redis_rwlock::{Error, HoldState, LossReason, Refusal, Topology};

use crate::fixture::{Fixture, RENEWED, ServerFixture, Settings, alone_on_every_server};
use crate::router::field::on_own_servers;
use crate::servers::ask;
use crate::wait::{Outcome, begin_to_wait, granted, soon, until, until_renewed};

alone_on_every_server![full_memory_refuses_grants_and_nothing_else, paused_clients_are_waited_for];

/// Time limit of a refusal, which comes with the server's answer and does not wait for the patience.
const AT_ONCE: Duration = Duration::from_secs(2);

async fn refusal_of<T: std::fmt::Debug>(attempt: impl Future<Output = Result<T, Error>>) -> Refusal {
    match soon("the refusal", attempt).await {
        Err(Error::Refused { refusal, .. }) => refusal,
        other => panic!("{other:?}"),
    }
}

async fn refused_at_once<T: std::fmt::Debug>(attempt: impl Future<Output = Result<T, Error>>) -> Refusal {
    let asked = Instant::now();
    let refusal = refusal_of(attempt).await;
    assert!(asked.elapsed() < AT_ONCE, "{:?}", asked.elapsed());
    refusal
}

/// Servers without free memory, as long as this value lives.
struct FullMemory<'a>(&'a ServerFixture);

impl<'a> FullMemory<'a> {
    fn of(f: &'a ServerFixture) -> Self {
        f.servers.primaries().into_iter().for_each(|node| node.set_memory_limit(1).expect("set"));
        Self(f)
    }
}

impl Drop for FullMemory<'_> {
    fn drop(&mut self) {
        self.0.servers.primaries().into_iter().for_each(|node| node.set_memory_limit(0).expect("set"));
    }
}

async fn full_memory_refuses_grants_and_nothing_else(f: &ServerFixture) -> Outcome {
    let (manager, other) = (f.manager_with(Settings::lease(RENEWED)).await, f.manager().await);
    let (held, dropped, forced) = (f.name(), f.name(), f.name());
    let guard = manager.write(&held).await?;
    let to_drop = manager.read(&dropped).await?;
    let to_force = manager.write(&forced).await?;
    let waiting = begin_to_wait("a grant beside a writer", other.write(&held)).await;
    let full = FullMemory::of(f);
    assert_eq!(refused_at_once(waiting).await, Refusal::OutOfMemory);
    assert_eq!(refused_at_once(other.write(&f.name()).into_future()).await, Refusal::OutOfMemory);
    assert_eq!(refused_at_once(other.try_read(&f.name())).await, Refusal::OutOfMemory);
    tokio::time::sleep(RENEWED * 3 / 2).await;
    assert_eq!(guard.state(), HoldState::Held, "it is renewed");
    assert_eq!(other.inspect(&held).await?.holders.len(), 1, "and nothing of the waiter is there");
    other.force_release(&forced).await?;
    assert_eq!(soon("word of the force", to_force.lost()).await, LossReason::Forced);
    drop(to_drop);
    until("a release in the background", async || other.inspect(&dropped).await.expect("inspected").is_free()).await;
    guard.release().await?;
    assert!(other.inspect(&held).await?.is_free());
    drop(full);
    f.becomes_free(&held).await;
    Ok(())
}

async fn paused_clients_are_waited_for(f: &ServerFixture) -> Outcome {
    let ([manager], held) = f.scene().await;
    let guard = manager.write(&held).await?;
    for node in f.servers.primaries() {
        node.pause_clients(Duration::from_millis(900))?;
    }
    // The pause is longer than a response timeout, and shorter than the patience.
    granted(manager.write(&f.name())).await.release().await?;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await?;
    Ok(())
}

fn impatient() -> Settings {
    Settings {
        response_timeout: Duration::from_millis(200),
        unreachable_after: Duration::from_millis(600),
        ..Settings::default()
    }
}

/// The server answers BUSY to every client until the test ends the script.
async fn busy_server_is_unreachable_until_it_is_not(f: &ServerFixture) -> Outcome {
    let ([manager], held) = f.scene_with(impatient()).await;
    let guard = manager.write(&held).await?;
    let node = f.servers.primaries()[0];
    ask(node, &["CONFIG", "SET", "lua-time-limit", "50"]);
    let mut stuck = node.client().expect("it takes clients");
    stuck.send(&["EVAL", "while true do end", "0"]).expect("sent");
    until("a busy server", async || is_busy(node)).await;
    assert_matches!(
        soon("the end of patience", manager.write(&f.name()).into_future()).await,
        Err(Error::Unreachable { .. })
    );
    assert_eq!(guard.state(), HoldState::Held, "its lease is long");
    ask(node, &["SCRIPT", "KILL"]);
    manager.write(&f.name()).await?.release().await?;
    guard.release().await?;
    Ok(())
}

fn is_busy(node: &Node) -> bool {
    node.command(&["PING"]).is_ok_and(|reply| reply.error().is_some_and(|error| error.starts_with("BUSY")))
}

/// The server's last snapshot failed, so it refuses all writes.
async fn server_that_cannot_save_refuses_writes(f: &ServerFixture) {
    let ([manager], held) = f.scene_with(Settings::lease(RENEWED)).await;
    let guard = manager.write(&held).await.expect("granted");
    let node = f.servers.primaries()[0];
    stop_saving(node).await;
    assert_eq!(refused_at_once(manager.write(&f.name()).into_future()).await, Refusal::ReadOnly);
    assert_eq!(manager.inspect(&held).await.expect("inspected").holders.len(), 1, "reading goes on");
    assert_eq!(refused_at_once(manager.force_release(&held)).await, Refusal::ReadOnly);
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired, "it could not be renewed");
    ask(node, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "no"]);
    f.becomes_free(&held).await;
}

/// Takes the folder away that the server saves to.
async fn stop_saving(node: &Node) {
    let reply = ask(node, &["CONFIG", "GET", "dir"]);
    let dir = reply.array().and_then(|pair| pair.get(1)?.text()).expect("a folder").into_owned();
    std::fs::remove_dir_all(dir).expect("it is the test's own");
    ask(node, &["CONFIG", "SET", "save", "3600 1000000"]);
    ask(node, &["CONFIG", "SET", "stop-writes-on-bgsave-error", "yes"]);
    ask(node, &["BGSAVE"]);
    until("a snapshot that failed", async || {
        ask(node, &["INFO", "persistence"]).text().expect("text").contains("rdb_last_bgsave_status:err")
    })
    .await;
}

async fn restarted_empty_server_has_no_holds(f: &ServerFixture) -> Outcome {
    let ([manager], name) = f.scene_with(Settings::lease(RENEWED)).await;
    let guard = manager.write(&name).await?;
    f.servers.primaries()[0].restart()?;
    let heir = granted(f.manager().await.write(&name)).await;
    assert!(heir.fencing_token() > guard.fencing_token(), "the resource can tell them apart");
    let reason = soon("the loss", guard.lost()).await;
    assert_matches!(reason, LossReason::Gone | LossReason::Expired);
    guard.release().await.expect_err("it was lost");
    heir.release().await?;
    Ok(())
}

/// The manager uses a replica as a single node: grants are refused, and looks work.
async fn replica_refuses_grants(f: &ServerFixture) {
    let manager = f.manager().await;
    let primary = Node::start(f.servers.primaries()[0].server()).expect("the server starts");
    let (ip, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    let node = f.servers.primaries()[0];
    ask(node, &["REPLICAOF", &ip, &port]);
    let linked = || ask(node, &["INFO", "replication"]).text().expect("text").contains("master_link_status:up");
    until("a replica", async || linked()).await;
    let name = f.name();
    // The same address may lead to a primary soon.
    assert_eq!(refusal_of(manager.write(&name).into_future()).await, Refusal::ReadOnly);
    assert_eq!(refusal_of(manager.try_read(&name)).await, Refusal::ReadOnly);
    assert_eq!(refusal_of(manager.force_release(&name)).await, Refusal::ReadOnly);
    assert!(manager.inspect(&name).await.expect("a replica can be looked at").is_free());
    assert!(f.ttls().is_empty());
}

/// The server takes no new connections, and the proxy cuts the old one.
async fn full_house_lets_nobody_in(server: Server) -> Outcome {
    let node = Node::builder(server).proxied().start()?;
    let f = Fixture::hash(Topology::node(node.url()));
    // A late answer would close the connection, and the manager could make no other.
    let patient = f.manager_with(Settings { response_timeout: RENEWED, ..Settings::lease(RENEWED * 2) }).await;
    let guard = patient.write("held").await?;
    let mut own: Client = node.client()?;
    let full = node.refuse_clients()?;
    let error = soon("the end of patience", f.connect(impatient())).await.expect_err("nobody gets in");
    assert_matches!(error, Error::Unreachable { .. });
    assert!(std::error::Error::source(&error).is_some(), "it says what went wrong: {error:?}");
    assert!(error.to_string().contains("`maxclients`"), "it says what to do: {error}");
    until_renewed("a renewal: who is in goes on", || guard.remaining()).await;
    node.proxy().cut();
    assert_eq!(soon("the loss", guard.lost()).await, LossReason::Expired, "it could not be renewed");
    assert!(own.command(&["PING"]).is_ok());
    let waiting = tokio::spawn(patient.write("other").into_future());
    drop(full);
    granted(waiting).await.release().await?;
    drop(guard);
    granted(patient.write("held")).await.release().await?;
    Ok(())
}

on_own_servers![full_house_lets_nobody_in];

/// Each case on one node with either scheme, alone with it.
macro_rules! alone_on_every_node {
    ($($case:ident),+ $(,)?) => {$(
        mod $case {
            crate::fixture::on_nodes!($case, alone .await);
        }
    )+};
}

alone_on_every_node![
    busy_server_is_unreachable_until_it_is_not,
    server_that_cannot_save_refuses_writes,
    restarted_empty_server_has_no_holds,
    replica_refuses_grants,
];
