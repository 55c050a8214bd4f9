//! Servers that refuse the form of the scripts, or what scripts do. A proxy replaces each script that begins with `#!` by
//! one that the server refuses, so the server's own words refuse it.

use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use cluster_testenv::{Matcher, Node, Proxy, Reply, Server};
use redis_rwlock::{Durability, LossReason, RedisManager, Refusal, Replicas, RwLockManager, TwoKeyManager};
use tokio::runtime::Handle;
use tracing::Level;

use crate::errors::assert_refused;
use crate::nodes::proxied;
use crate::record::{Recorder, manager_here};
use crate::scripts;
use crate::servers::{Pair, ask};
use crate::wait::{bounded, granted, pair, spawn, until, works};

const SERVERS: [Server; 2] = [Server::Redis70, Server::Valkey91];
/// Script that no server accepts.
const REFUSED: [&str; 3] = ["EVAL", "#!none\nreturn 0", "0"];

/// Matches a script with its text in the fast form.
fn fast_text() -> Matcher {
    Matcher::command("EVAL").and(Matcher::new(|request| request.args()[1].starts_with(b"#!lua")))
}

/// Matches a script with its text in the portable form.
fn portable_text() -> Matcher {
    Matcher::command("EVAL").and(Matcher::new(|request| request.args()[1].starts_with(b"local unpack")))
}

/// Lets the server behind the proxy refuse the fast form.
pub fn refuse_fast_form(proxy: &Proxy) {
    proxy.replace_requests(fast_text(), &REFUSED);
}

/// Starts a server that does not know a command.
fn without(server: Server, command: &str) -> Node {
    // The directive has two words, but the builder adds arguments in pairs. A second directive makes their number even.
    let node = Node::builder(server).arg("--rename-command", command).arg("hidden", "--rename-command");
    node.arg("DEBUG", "hidden-too").start().expect("the server starts")
}

/// Hands the lock over from one manager to another.
async fn hand_over(from: &dyn RwLockManager, to: &dyn RwLockManager) {
    let guard = from.write("cfg").await.expect("granted");
    let waiting = spawn(to.write("cfg"));
    until("it waits", async || !from.inspect("cfg").await.expect("inspected").waiters.is_empty()).await;
    guard.release().await.expect("released");
    let guard = granted(waiting).await;
    guard.release().await.expect("released");
}

fn lines(recorder: &Recorder, what: &str) -> Vec<String> {
    recorder.lines().into_iter().filter(|line| line.contains(what)).collect()
}

fn is_loaded(node: &Node, text: &str) -> bool {
    let reply = ask(node, &["SCRIPT", "EXISTS", redis::Script::new(text).get_hash()]);
    reply.array().expect("a list") == [Reply::Int(1)]
}

#[tokio::test]
async fn scripts_are_portable_where_the_fast_form_is_refused() {
    for server in SERVERS {
        let node = proxied(server);
        refuse_fast_form(node.proxy());
        let recorder = Recorder::at(Level::INFO);
        let (first, second) = (manager_here(node.url()), manager_here(node.url()));
        bounded(async {
            works(&first, "cfg").await;
            let fast = node.proxy().requests_seen(fast_text());
            assert_eq!(fast, 1, "the server is asked for the other scripts in the portable form");
            assert!(node.proxy().requests_seen(portable_text()) >= 1);
            hand_over(&first, &second).await;
            assert!(!is_loaded(&node, scripts::hash::ACQUIRE), "{server}: the server has never seen the fast form");
            // The next connection asks again, and the log does not say it again.
            node.proxy().cut();
            until("a new connection", async || pair(&first, "cfg").await.is_ok()).await;
            assert!(node.proxy().requests_seen(fast_text()) > fast);
            let told = lines(&recorder, "gets portable scripts");
            assert_eq!(told.len(), 2, "{server}: once for each manager: {told:#?}");
            assert!(told[0].contains(&node.proxy().addr().to_string()), "{told:#?}");
            assert!(told[0].contains("none"), "with the server's words: {told:#?}");
        })
        .await;
    }
}

#[tokio::test]
async fn server_that_takes_the_fast_form_again_gets_it() {
    let node = proxied(Server::Redis70);
    let is_refused = Arc::new(AtomicBool::new(true));
    let refused = Arc::clone(&is_refused);
    let matcher = fast_text().and(Matcher::new(move |_| refused.load(Ordering::Relaxed)));
    node.proxy().replace_requests(matcher, &REFUSED);
    let manager = manager_here(node.url());
    bounded(async {
        works(&manager, "cfg").await;
        assert!(!is_loaded(&node, scripts::hash::ACQUIRE));
        is_refused.store(false, Ordering::Relaxed);
        node.proxy().cut();
        until("a new connection", async || pair(&manager, "cfg").await.is_ok()).await;
        assert!(is_loaded(&node, scripts::hash::ACQUIRE));
    })
    .await;
}

#[tokio::test]
async fn replicated_grants_work_in_portable_form() {
    let pair_of_servers = Pair::proxied(Server::Valkey91);
    let proxy = pair_of_servers.primary.proxy();
    refuse_fast_form(proxy);
    let durability = Durability::Replicated { replicas: Replicas::At(1), timeout: Duration::from_secs(1) };
    let manager = RedisManager::builder(pair_of_servers.primary.url()).durability(durability);
    let manager = manager.response_timeout(Duration::from_secs(4)).connect().await.expect("connected");
    bounded(async {
        let guard = manager.write("cfg").await.expect("granted");
        guard.confirmed().await.expect("renewed");
        guard.release().await.expect("released");
        assert!(proxy.requests_seen(portable_text()) >= 2);
    })
    .await;
}

#[tokio::test]
async fn server_without_scripts_is_refused_with_the_reason() {
    for command in ["EVALSHA", "EVAL"] {
        let node = without(Server::Redis70, command);
        let error = RedisManager::builder(node.url()).connect().await.expect_err("it runs no scripts");
        assert_refused(&error, Refusal::UnsupportedServer);
        let text = error.to_string();
        assert!(
            text.contains("it runs no scripts") && text.contains(&format!("unknown command '{command}'")),
            "{text}"
        );
        assert!(!text.contains("rwlock:"), "no arguments: {text}");
    }
}

#[tokio::test]
async fn server_that_refuses_both_forms_for_its_engine_is_refused_with_the_reason() {
    for server in SERVERS {
        let node = proxied(server);
        node.proxy().replace_requests(fast_text(), &REFUSED);
        node.proxy().replace_requests(portable_text(), &REFUSED);
        let error = RedisManager::builder(node.url()).connect().await.expect_err("it runs no scripts");
        assert_refused(&error, Refusal::UnsupportedServer);
        assert!(error.to_string().contains("it runs no scripts") && error.to_string().contains("engine"), "{error}");
    }
}

/// Portable scripts have no flag for full memory, so the server refuses the renewal.
#[tokio::test]
async fn portable_hold_ends_with_its_lease_at_full_memory() {
    let node = proxied(Server::Redis70);
    refuse_fast_form(node.proxy());
    let builder = RedisManager::builder(node.url()).lease(Duration::from_millis(1500));
    let manager = builder.response_timeout(Duration::from_secs(2)).connect().await.expect("connected");
    bounded(async {
        let guard = manager.write("cfg").await.expect("granted");
        let full = |limit| ask(&node, &["CONFIG", "SET", "maxmemory", limit]);
        full("1");
        let error = manager.write("other").await.expect_err("the memory is full");
        assert_refused(&error, Refusal::OutOfMemory);
        assert_eq!(guard.lost().await, LossReason::Expired);
        full("0");
        works(&manager, "cfg").await;
        // A release frees memory, so it works.
        let guard = manager.write("cfg").await.expect("granted");
        full("1");
        guard.release().await.expect("released");
        assert!(manager.inspect("cfg").await.expect("inspected").is_free());
    })
    .await;
}

#[tokio::test]
async fn scripts_publish_by_the_command_that_the_server_knows() {
    for server in SERVERS {
        let node = without(server, "SPUBLISH");
        let mut listener = node.client().expect("connected");
        listener.command(&["PSUBSCRIBE", "*wake*"]).expect("subscribed");
        bounded(hand_over(&manager_here(node.url()), &manager_here(node.url()))).await;
        let message = listener.receive().expect("a message");
        let words: Vec<_> = message.array().expect("a list").iter().filter_map(Reply::text).collect();
        assert!(words[0] == "pmessage" && words[2].starts_with("rwlock:{cfg}:lock:wake:"), "{server}: {words:?}");
    }
}

/// A user that may not publish is refused, and no script tries the other command for it.
#[tokio::test]
async fn refused_notifications_are_logged_and_counted() {
    for server in SERVERS {
        let node = Node::start(server).expect("the server starts");
        let rights = ["on", ">secret", "~*", "+@all", "-spublish", "allchannels"];
        ask(&node, &[&["ACL", "SETUSER", "mute"][..], &rights].concat());
        let recorder = Recorder::at(Level::WARN);
        let url = node.url().replace("redis://", "redis://mute:secret@");
        let (holder, waiter) = (manager_here(url), manager_here(node.url()));
        bounded(async {
            for _ in 0..2 {
                hand_over(&holder, &waiter).await;
            }
        })
        .await;
        let told = lines(&recorder, "refuses notifications of scripts");
        assert_eq!(told.len(), 1, "{server}: {told:#?}");
        assert!(told[0].contains(&node.addr().to_string()), "{told:#?}");
        let stats = ask(&node, &["INFO", "commandstats"]).text().expect("a text").into_owned();
        assert!(!stats.contains("cmdstat_publish:"), "{server} knows SPUBLISH: {stats}");
        // Managers whose user may publish log no warning.
        let before = recorder.lines().len();
        let (one, other) = (manager_here(node.url()), manager_here(node.url()));
        bounded(hand_over(&one, &other)).await;
        assert_eq!(recorder.lines().len(), before, "{:#?}", recorder.lines());
    }
}

/// Scripts of both schemes publish, so the log has a refusal of either.
#[tokio::test]
async fn refused_notification_of_two_keys_is_logged() {
    let node = Node::start(Server::Valkey91).expect("the server starts");
    ask(&node, &["ACL", "SETUSER", "mute", "on", ">secret", "~*", "+@all", "resetchannels"]);
    let recorder = Recorder::at(Level::WARN);
    let url = |user: &str| node.url().replace("redis://", user);
    let manager = |url: String| {
        let builder = TwoKeyManager::builder(url).response_timeout(Duration::from_secs(2));
        builder.background_on(Handle::current()).build().expect("valid")
    };
    bounded(hand_over(&manager(url("redis://mute:secret@")), &manager(node.url()))).await;
    let told: BTreeSet<_> = lines(&recorder, "refuses notifications of scripts").into_iter().collect();
    assert_eq!(told.len(), 1, "{told:#?}");
}
