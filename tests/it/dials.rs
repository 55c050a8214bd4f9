//! Connections serve all callers. A caller's short limit, an inspection or a dead connection does not delay the next
//! caller.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Server};
use redis_rwlock::{Error, LossReason, Topology};

use crate::errors::assert_lost;
use crate::fixture::{Fixture, Manager, Settings};
use crate::nodes::{hash_on, proxied};
use crate::servers::{SUPPORTED, ask};
use crate::wait::{Outcome, granted, soon, start, until};

crate::fixture::on_two_threads![
    password_that_the_server_does_not_ask_for_is_taken_alike_by_all,
    connection_that_its_first_caller_did_not_wait_for_serves_the_next,
    dead_connections_of_looks_are_not_tried_one_by_one,
    looks_that_are_under_way_do_not_keep_a_connection_from_being_made,
    release_that_was_never_sent_does_not_vouch_for_a_hold_that_is_gone
];

fn proxied_node() -> (Node, Fixture) {
    let node = proxied(Server::Redis70);
    let fixture = hash_on(&node);
    (node, fixture)
}

fn answering_within(response_timeout: Duration) -> Settings {
    Settings { response_timeout, unreachable_after: response_timeout, ..Settings::lease(Duration::from_secs(120)) }
}

/// Number of connections that a manager has made. Each says `HELLO` once.
fn dials(node: &Node) -> usize {
    node.proxy().requests_seen(Matcher::command("HELLO"))
}

/// Largest number of looks that may be under way at a time, each on a connection of its own.
const LOOKS: usize = 4;

/// Makes the connections of `LOOKS` looks, which are idle afterwards.
async fn look_at_once(manager: &Manager, node: &Node) {
    let held: Vec<_> = (0..LOOKS).map(|_| node.proxy().hold_reply(Matcher::command("EVALSHA"))).collect();
    let looks: Vec<_> = (0..LOOKS)
        .map(|n| {
            let manager = Arc::clone(manager);
            tokio::spawn(async move { manager.inspect(&format!("look-{n}")).await })
        })
        .collect();
    for held in &held {
        held.wait_applied(Duration::from_secs(10)).expect("the look has reached the server");
    }
    held.into_iter().for_each(|held| held.release());
    for look in looks {
        look.await.expect("no panic").expect("inspected");
    }
}

async fn connection_that_its_first_caller_did_not_wait_for_serves_the_next() {
    let (node, fixture) = proxied_node();
    let manager = fixture.lazy_manager(answering_within(Duration::from_secs(15))).await;
    let held = node.proxy().hold_reply(Matcher::command("HELLO"));
    let mut hasty = manager.try_write("hasty");
    start(&mut hasty);
    let waiting = tokio::spawn(hasty);
    until("the greeting has reached the server", async || held.wait_applied(Duration::ZERO).is_ok()).await;
    waiting.abort();
    assert!(waiting.await.expect_err("aborted").is_cancelled());
    held.release();
    let guard = granted(manager.write("next")).await;
    // One connection here, and one of the background, which takes back what the caller began.
    assert!(dials(&node) <= 2, "a caller that gave up took the connection with it");
    guard.release().await.expect("released");
}

async fn dead_connections_of_looks_are_not_tried_one_by_one() {
    let response_timeout = Duration::from_secs(2);
    let (node, fixture) = proxied_node();
    let manager = fixture
        .manager_with(Settings { unreachable_after: Duration::from_secs(30), ..answering_within(response_timeout) })
        .await;
    manager.inspect("warm").await.expect("the script is loaded");
    look_at_once(&manager, &node).await;
    node.proxy().black_hole();
    node.proxy().heal();
    let began = Instant::now();
    let guard = granted(manager.write("next")).await;
    // One response timeout for the shared connection, which is dead too, and one to spare.
    assert!(began.elapsed() < response_timeout * 2, "{:?}", began.elapsed());
    guard.release().await.expect("released");
    look_at_once(&manager, &node).await;
    node.proxy().black_hole();
    node.proxy().heal();
    let began = Instant::now();
    soon("the look", manager.inspect("next")).await.expect("inspected");
    assert!(began.elapsed() < response_timeout * 3, "{:?}", began.elapsed());
}

async fn looks_that_are_under_way_do_not_keep_a_connection_from_being_made() -> Outcome {
    let (node, fixture) = proxied_node();
    let manager = fixture.manager_with(answering_within(Duration::from_secs(60))).await;
    let text = ask(&node, &["CLIENT", "LIST", "TYPE", "normal"]).text().expect("text").into_owned();
    // The newest command of that connection is the last one of the greeting, or the question for the memory after
    // it.
    let is_shared = |line: &&str| line.contains("cmd=time") || line.contains("cmd=info");
    let shared = text.lines().find(is_shared).expect("the shared connection").to_owned();
    let shared = shared.split([' ', '=']).nth(1).expect("its id").to_owned();
    manager.inspect("warm").await.expect("the script is loaded");
    let held: Vec<_> = (0..LOOKS).map(|_| node.proxy().hold_reply(Matcher::command("EVALSHA"))).collect();
    let mut looks: Vec<_> = Vec::new();
    for n in 0..LOOKS {
        let manager = Arc::clone(&manager);
        looks.push(tokio::spawn(async move { manager.inspect(&format!("look-{n}")).await }));
    }
    for held in &held {
        held.wait_applied(Duration::from_secs(10)).expect("the look has reached the server");
    }
    let _ = ask(&node, &["CLIENT", "KILL", "ID", &shared]);
    let guard = granted(manager.write("next")).await;
    guard.release().await?;
    held.into_iter().for_each(|held| held.release());
    for look in looks {
        look.await??;
    }
    Ok(())
}

async fn release_that_was_never_sent_does_not_vouch_for_a_hold_that_is_gone() {
    let (node, fixture) = proxied_node();
    let manager = fixture.manager_with(answering_within(Duration::from_secs(5))).await;
    let guard = manager.write("cfg").await.expect("granted");
    node.proxy().refuse();
    node.proxy().cut();
    // The connection is known to be dead after this, and no other can be had. The release cannot leave this
    // process.
    let error = soon("the error", manager.write("other")).await.expect_err("refused");
    assert_matches!(error, Error::Unreachable { .. });
    let mut release = Box::pin(guard.release());
    start(&mut release);
    node.flush_all().expect("flushed");
    node.proxy().heal();
    let error = soon("the release", release).await.expect_err("the hold is gone");
    assert_lost(&error, LossReason::Gone);
}

/// The URL has a password, and the server has none. Every connection logs in alike, be it for a lock, a look or a list.
async fn password_that_the_server_does_not_ask_for_is_taken_alike_by_all() -> Outcome {
    for server in SUPPORTED {
        let node = Node::start(server)?;
        for login in ["redis://:secret@", "redis://default:secret@"] {
            let fixture = Fixture::hash(Topology::node(node.url().replace("redis://", login)));
            let manager = fixture.manager().await;
            let guard = manager.write("cfg").await?;
            assert!(manager.health().await.expect("looked at").is_ready());
            assert_eq!(manager.inspect("cfg").await?.holders.len(), 1);
            assert_eq!(manager.locks().await?.len(), 1);
            assert_eq!(manager.force_release("cfg").await?.len(), 1);
            soon("the loss", guard.lost()).await;
        }
    }
    Ok(())
}
