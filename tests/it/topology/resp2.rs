//! Servers and proxies that lack commands: `HELLO`, so that the manager speaks RESP2 with them, and sharded channels.

use std::time::{Duration, Instant};

use cluster_testenv::{Node, Server};
use redis_rwlock::{Error, Refusal, Topology};

use crate::errors::assert_refused;
use crate::fixture::{Fixture, Settings};
use crate::nodes::{follow, hash_on};
use crate::servers::{Missing, ask};
use crate::wait::{Outcome, granted, soon, spawn, until};

crate::fixture::on_two_threads![
    waiter_is_notified_in_resp2,
    waiter_is_notified_without_sharded_channels,
    cached_hold_is_recalled_in_resp2,
    health_names_a_server_without_hello,
    waiter_follows_the_primary_without_hello,
    wrong_password_is_refused_without_hello,
];

/// Time within which a waiter learns of a release by a notification. Without one it asks once a second.
const NOTIFIED: Duration = Duration::from_millis(700);

const SHARDED: [&str; 3] = ["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE"];

fn without(commands: &[&str]) -> Node {
    let node = Missing::start(commands);
    for command in commands {
        let refused = node.command(&[command, "3"]).expect("answered");
        assert!(refused.error().is_some_and(|error| error.contains("unknown command")), "{refused:?}");
    }
    node
}

fn without_hello() -> Node {
    without(&["HELLO"])
}

/// Starts a server without `HELLO` and without sharded channels.
fn without_both() -> Node {
    without(&[&SHARDED[..], &["HELLO"]].concat())
}

async fn waiter_is_notified_in_resp2() {
    waiter_is_notified(&without_hello(), "SHARDCHANNELS").await;
    waiter_is_notified(&without_both(), "CHANNELS").await;
}

async fn waiter_is_notified_without_sharded_channels() {
    waiter_is_notified(&without(&SHARDED), "CHANNELS").await;
}

/// `listed` is the question that lists the channels with subscribers.
async fn waiter_is_notified(node: &Node, listed: &str) {
    let fixture = Fixture::hash(Topology::node(format!("{}/3", node.url())));
    let (holder, waiter) = (fixture.manager().await, fixture.manager().await);
    for _ in 0..3 {
        let name = fixture.name();
        let held = holder.write(&name).await.expect("granted");
        let waiting = spawn(waiter.write(&name));
        fixture.until_waiting(1, &name).await;
        let channel = format!("{}*", fixture.hash_key(&name));
        let channels = || ask(node, &["PUBSUB", listed, &channel]).array().map_or(0, <[_]>::len);
        until("it listens", async || channels() == 1).await;
        let released = Instant::now();
        held.release().await.expect("ours");
        let granted = granted(waiting).await;
        assert!(released.elapsed() < NOTIFIED, "{:?}", released.elapsed());
        granted.release().await.expect("ours");
        assert!(fixture.view(&name).await.holders.is_empty());
    }
}

async fn cached_hold_is_recalled_in_resp2() {
    cached_hold_is_recalled(&without_hello()).await;
    cached_hold_is_recalled(&without_both()).await;
}

async fn cached_hold_is_recalled(node: &Node) {
    let fixture = hash_on(node);
    let caching = Settings { cache_for: Duration::from_secs(300), ..Settings::default() };
    let (first, second) = (fixture.manager_with(caching.clone()).await, fixture.manager_with(caching).await);
    let name = fixture.name();
    // The second hold is cached, because the recall channel is subscribed by then.
    until("a hold is cached", async || {
        first.write(&name).await.expect("granted").release().await.expect("ours");
        fixture.view(&name).await.holders.iter().any(|holder| holder.cached)
    })
    .await;
    let asked = Instant::now();
    let taken = granted(second.write(&name)).await;
    assert!(asked.elapsed() < NOTIFIED, "{:?}", asked.elapsed());
    taken.release().await.expect("ours");
}

async fn health_names_a_server_without_hello() {
    let node = without_hello();
    let health = hash_on(&node).manager().await.health().await.expect("asked");
    assert!(health.is_ready(), "{health:?}");
    let version = health.nodes[0].version.as_deref().unwrap_or_default();
    assert!(version.starts_with("7.0.") && health.nodes[0].server.as_deref() == Some("redis"), "{health:?}");
}

async fn waiter_follows_the_primary_without_hello() -> Outcome {
    let (node, primary) = (without_hello(), Node::start(Server::Redis70)?);
    let fixture = hash_on(&node);
    let settings = Settings { unreachable_after: Duration::from_secs(1), ..Settings::default() };
    let (holder, waiter) = (fixture.manager().await, fixture.manager_with(settings).await);
    let name = fixture.name();
    let held = holder.write(&name).await?;
    let waiting = spawn(waiter.write(&name));
    fixture.until_waiting(1, &name).await;
    follow(&node, &primary);
    let error = soon("its end", waiting).await?.expect_err("no primary is there");
    assert_matches!(error, Error::Refused { refusal: Refusal::ReadOnly, .. } | Error::Unreachable { .. });
    drop(held);
    Ok(())
}

async fn wrong_password_is_refused_without_hello() {
    let node = without_hello();
    let url = node.url().replace("s3cret", "wr0ng");
    let Err(error) = Fixture::hash(Topology::node(url)).connect(Settings::default()).await else { panic!("let in") };
    assert_refused(&error, Refusal::Unauthenticated);
    assert!(!error.to_string().contains("wr0ng"), "{error}");
}
