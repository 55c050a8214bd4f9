//! Answers that are none: "not now", "not me", and replies that belong to another caller.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};

use cluster_testenv::{Node, Sentinels, Server};
use redis_rwlock::{Credentials, Error, HoldState, Refusal, Topology};
use tokio::task::JoinSet;

use super::field::on_own_servers;
use super::pretender::Pretender;
use crate::errors::assert_refused;
use crate::fixture::{Fixture, RENEWED, Settings};
use crate::nodes::{follow, hash_on};
use crate::servers::ask;
use crate::topology::behind_sentinels;
use crate::wait::{Outcome, granted, soon, spawn, until, until_renewed};

on_own_servers![
    not_now_is_waited_out_or_told_in_time,
    read_only_server_is_a_refusal,
    reply_of_somebody_else_is_never_believed,
    connection_whose_login_has_ended_is_replaced,
    error_of_somebody_else_is_one_callers_refusal,
    hold_follows_the_primary_that_sentinels_name,
];

/// Lease that outlasts the time in which its renewals are refused.
const LEASE: Duration = Duration::from_secs(6);

/// A server, and a pretender in front of it that may answer in its stead.
fn start(server: Server) -> (Node, Pretender, Fixture) {
    let node = Node::start(server).expect("the server starts");
    let pretender = Pretender::before(node.addr());
    let fixture = Fixture::hash(Topology::node(pretender.url()));
    (node, pretender, fixture)
}

async fn not_now_is_waited_out_or_told_in_time(server: Server) -> Outcome {
    let (_node, pretender, fixture) = start(server);
    let unreachable_after = Duration::from_millis(600);
    let impatient = fixture.manager_with(Settings { unreachable_after, ..Settings::default() }).await;
    let patient = fixture.manager_with(Settings::lease(LEASE)).await;
    let held_name = fixture.name();
    let (held, key) = (patient.write(&held_name).await?, fixture.hash_key(&held_name));
    let answers = [
        "TRYAGAIN Multiple keys request during rehashing of slot",
        "CLUSTERDOWN The cluster is down",
        "ERR Script attempted to access a non local key in a cluster node script: d7be9d8e, on @user_script:12.",
        "LOADING Redis is loading the dataset in memory",
        "MASTERDOWN Link with MASTER is down and replica-serve-stale-data is set to 'no'.",
        "BUSY Redis is busy running a script. You can only call SCRIPT KILL or SHUTDOWN NOSAVE.",
        "NOSCRIPT No matching script. Please use EVAL.",
    ];
    for answer in answers {
        let name = fixture.name();
        pretender.refuses(answer);
        let waiting = spawn(patient.write(&name));
        let asked = Instant::now();
        let error = soon("the answer", impatient.write(&name)).await.expect_err("not now");
        assert!(matches!(error, Error::Unreachable { source: Some(_), .. }), "{answer}: {error:?}");
        // One attempt goes on for a response timeout. The rest is for a busy machine.
        let most = unreachable_after + Duration::from_millis(500) + Duration::from_secs(3);
        assert!(asked.elapsed() >= unreachable_after && asked.elapsed() < most, "{answer}: {:?}", asked.elapsed());
        until("a renewal that is refused", async || pretender.has_refused(&key)).await;
        pretender.tells_the_truth();
        let guard = granted(waiting).await;
        guard.release().await?;
        until_renewed("the renewal is waited out", || held.remaining()).await;
        assert_eq!(held.state(), HoldState::Held, "{answer}");
    }
    held.release().await?;
    Ok(())
}

async fn read_only_server_is_a_refusal(server: Server) -> Outcome {
    let primary = Node::start(server)?;
    let node = Node::start(server)?;
    let fixture = hash_on(&node);
    let manager = fixture.manager_with(Settings::lease(RENEWED)).await;
    let (name, held) = (fixture.name(), manager.write("kept").await?);
    follow(&node, &primary);
    let refused = async |acquiring: redis_rwlock::Result<()>| match acquiring {
        Err(Error::Refused { refusal: Refusal::ReadOnly, .. }) => {}
        other => panic!("{other:?}"),
    };
    refused(soon("the answer", manager.write(&name)).await.map(drop)).await;
    refused(soon("the answer", manager.try_read(&name)).await.map(drop)).await;
    ask(&node, &["REPLICAOF", "NO", "ONE"]);
    let guard = soon("a grant", manager.write(&name)).await.expect("it takes writes again");
    guard.release().await?;
    // The other server's data may have replaced the node's own. The manager renews or loses the hold, and does not
    // guess.
    until("the hold's fate", async || held.state() != HoldState::Unconfirmed).await;
    Ok(())
}

async fn reply_of_somebody_else_is_never_believed(server: Server) {
    const TASKS: usize = 32;
    let (node, pretender, fixture) = start(server);
    // One token a grant, so that the last one is the guard's.
    let manager = fixture.manager_with(Settings { max_handoffs: 1, ..Settings::default() }).await;
    let strangers = "*5\r\n$7\r\ngranted\r\n$7\r\nx.1.foe\r\n:1\r\n:1\r\n:10000\r\n";
    for extra in [strangers, ":1\r\n", "$-1\r\n", "+OK\r\n", "*0\r\n"] {
        let before = pretender.connections();
        pretender.inserts(extra);
        let mut tasks = JoinSet::new();
        for _ in 0..TASKS {
            let (manager, name) = (Arc::clone(&manager), fixture.name());
            let key = fixture.hash_key(&name);
            tasks.spawn(async move { (manager.write(&name).await, key) });
        }
        while let Some(ended) = tasks.join_next().await {
            let (guard, key) = ended.expect("no panic");
            let guard = guard.expect("asked again, and granted");
            let token = u64::from(guard.fencing_token()).to_string();
            assert_eq!(ask(&node, &["HGET", &key, "t"]).text().expect("a token"), token, "after {extra:?}");
            guard.release().await.expect("ours to the end");
        }
        // The background may have got the wrong reply: it repeats releases whose acquisition once had no answer.
        until("another connection than the one with a stranger's reply", async || pretender.connections() > before)
            .await;
    }
}

/// An error carries no id, so one caller takes it for its own. The grant that this caller leaves behind is given back.
async fn error_of_somebody_else_is_one_callers_refusal(server: Server) {
    let (_node, pretender, fixture) = start(server);
    let manager = fixture.manager().await;
    pretender.inserts("-ERR somebody else's\r\n");
    let (first, second) = (fixture.name(), fixture.name());
    match manager.write(&first).await {
        Err(error) => assert!(matches!(error, Error::Refused { refusal: Refusal::Other, .. }), "{error:?}"),
        // The manager may read the error together with the surplus answer behind it. Then it believes neither, and
        // asks again.
        Ok(guard) => guard.release().await.expect("ours to the end"),
    }
    let guard = granted(manager.write(&second)).await;
    guard.release().await.expect("released");
    fixture.becomes_free(&first).await;
}

/// Sentinels allow an old primary to go on for a while after another has taken its place, and its writes are lost then.
/// The lease here is longer than that.
async fn hold_follows_the_primary_that_sentinels_name(server: Server) -> Outcome {
    let sentinels = Sentinels::start(server)?;
    let fixture = Fixture::hash(behind_sentinels(&sentinels));
    let manager = fixture.manager_with(Settings::lease(RENEWED * 10)).await;
    let name = fixture.name();
    let key = fixture.hash_key(&name);
    let held = manager.write(&name).await?;
    let deadline_ms = |node: &Node| -> u64 {
        let reply = ask(node, &["HGET", &key, "h"]);
        reply.text().and_then(|text| text.split(' ').nth(2)?.parse().ok()).unwrap_or(0)
    };
    until("all replicas have the hold", async || sentinels.replicas().into_iter().all(|node| deadline_ms(node) > 0))
        .await;
    let old = sentinels.primary();
    let new = sentinels.failover()?;
    assert_ne!(new.port(), old.port());
    let before_ms = deadline_ms(new);
    sentinels.wait_ok().expect("the old one is a replica");
    // The old primary answers READONLY now.
    let guard = soon("a grant", manager.write(&fixture.name())).await.expect("the new one is found");
    guard.release().await?;
    until("it is renewed where it is now", async || deadline_ms(new) > before_ms).await;
    assert_eq!(held.state(), HoldState::Held);
    assert!(fixture.manager().await.try_write(&name).await?.is_none());
    held.release().await?;
    fixture.becomes_free(&name).await;
    Ok(())
}

/// A service may end the login of a connection and leave the connection open. Then a provider of credentials is asked
/// once more.
async fn connection_whose_login_has_ended_is_replaced(server: Server) -> Outcome {
    const NO_LOGIN: &str = "NOAUTH Authentication required.";
    let node = Node::start(server)?;
    let pretender = Pretender::before(node.addr());
    let calls = Arc::<AtomicUsize>::default();
    let topology = || {
        let counted = Arc::clone(&calls);
        Topology::node(pretender.url()).credentials(async move || {
            counted.fetch_add(1, Ordering::SeqCst);
            Ok(Credentials::new("default", "any"))
        })
    };
    let manager = Fixture::hash(topology()).manager_with(Settings::lease(Duration::from_secs(4))).await;
    manager.write("cfg").await?.release().await?;
    // On a connection that has just logged in, the answer has another cause.
    tokio::time::sleep(Duration::from_secs(1)).await;
    let (made, asked) = (pretender.connections(), calls.load(Ordering::SeqCst));
    pretender.refuses_once(NO_LOGIN);
    let guard = granted(manager.write("held")).await;
    assert!(pretender.connections() > made && calls.load(Ordering::SeqCst) > asked);

    // Connections for looks are replaced as well. The first look opens one.
    for _ in 0..2 {
        let made = pretender.connections();
        let view = soon("the view", manager.inspect("held")).await?;
        assert_eq!(view.holders.len(), 1);
        tokio::time::sleep(Duration::from_secs(1)).await;
        pretender.refuses_once(NO_LOGIN);
        soon("the view", manager.inspect("held")).await?;
        assert!(pretender.connections() > made);
    }

    // After some seconds of rest, the manager asks for the time first.
    let idle = Fixture::hash(topology()).manager_with(Settings::lease(Duration::from_secs(60))).await;
    idle.write("cfg").await?.release().await?;
    pretender.refuses_time_once(NO_LOGIN);
    until("a question for the time", async || {
        granted(idle.write("cfg")).await.release().await.expect("released");
        tokio::time::sleep(Duration::from_millis(5200)).await;
        !pretender.awaits_time()
    })
    .await;

    // The background replaces its connection, too. The renewals go on as soon as the server accepts logins.
    let made = pretender.connections();
    pretender.refuses(NO_LOGIN);
    until("another connection", async || pretender.connections() > made).await;
    let error = soon("the answer", manager.write("cfg")).await.expect_err("no connection helps");
    assert_refused(&error, Refusal::Unauthenticated);
    pretender.tells_the_truth();
    until_renewed("a renewal", || guard.remaining()).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await?;
    Ok(())
}
