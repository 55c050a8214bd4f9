//! Log lines of an outage, as an operator sees them and as the documents show them.

use std::time::Duration;

use cluster_testenv::{Cluster, Node, Server};
use redis_rwlock::{Error, HoldState, MemoryManager, RedisManager, RwLockManager, Topology};
use tokio::runtime::Handle;
use tracing::Level;

use crate::fixture::{Fixture, Manager, Settings};
use crate::record::Recorder;
use crate::wait::{Outcome, bounded, granted, soon, until};

/// Lease that is long enough for a renewal in time on a busy machine.
const LEASE: Duration = Duration::from_secs(9);

/// A manager of a service. The recorder sees its background work, too.
async fn service(f: &Fixture) -> Manager {
    let background = Some(Handle::current());
    // A machine that stands still for a moment is no outage.
    let (response_timeout, unreachable_after) = (Duration::from_secs(2), Duration::from_secs(30));
    f.manager_with(Settings { background, response_timeout, unreachable_after, ..Settings::label("billing-1") }).await
}

/// Replaces what differs in each run by names: addresses, times and tokens.
fn masked(lines: &[String], nodes: &[(&Node, &str)]) -> String {
    let mut text = String::new();
    for line in lines {
        let mut line = line.clone();
        for (node, name) in nodes {
            line = line.replace(&node.addr().to_string(), name);
        }
        if let Some((before, version)) = line.split_once("version=\"") {
            let (version, behind) = version.split_once('"').expect("its end");
            line = format!("{before}version=VERSION{behind}").replace(version, "VERSION");
        }
        let words = line.split(' ').map(|word| match word.split_once('=') {
            Some((field, _)) if field.ends_with("_ms") => format!("{field}=MS"),
            Some(("token", _)) => "token=TOKEN".to_owned(),
            None if is_time(word.trim_end_matches(':')) => word.replace(|c: char| c != ':', "").replacen("", "TIME", 1),
            _ => word.to_owned(),
        });
        text += &words.collect::<Vec<_>>().join(" ");
        text.push('\n');
    }
    text
}

/// Returns true for a time such as `4.81s` or `512ms`.
fn is_time(word: &str) -> bool {
    let number = word.strip_suffix("ms").or_else(|| word.strip_suffix('s')).unwrap_or_default();
    !number.is_empty() && number.parse::<f64>().is_ok()
}

/// A holder dies while another process waits for its lock. Then the server is gone, and comes back empty.
async fn one_server(recorder: &Recorder, node: &Node) {
    let told = |what: &str| recorder.lines().iter().any(|line| line.contains(what));
    let f = Fixture::hash(Topology::node(node.url()));
    let mut dies = f.process(Settings { lease: Duration::from_secs(3), ..Settings::label("nightly-1") }).await;
    dies.run(|manager| Box::pin(async move { std::mem::forget(manager.write("orders").await.expect("granted")) }))
        .await;
    dies.die().await;
    let manager = service(&f).await;
    let waited = granted(manager.write("orders").lease(LEASE)).await;
    node.kill();
    let waiting = tokio::spawn(manager.write("invoices").into_future());
    until("the log line about the outage", async || told("does not answer")).await;
    node.restart_empty().expect("the server starts");
    let other = granted(waiting).await;
    until("the log line about the loss", async || told("lost the write hold")).await;
    assert!(matches!(waited.state(), HoldState::Lost(_)));
    drop(waited);
    manager.force_release("invoices").await.expect("forced");
    drop(other);
    manager.close().await.expect("closed");
}

/// A primary dies, and its replica takes over.
async fn failover(recorder: &Recorder, cluster: &Cluster, dies: &Node) {
    let f = Fixture::hash(Topology::cluster(cluster.urls()));
    let manager = service(&f).await;
    let guard = manager.write("cfg").lease(LEASE * 2).await.expect("granted");
    dies.kill();
    let waiting = tokio::spawn(manager.read("cfg").wait_timeout(Duration::from_secs(30)).into_future());
    until("the log line about the failover", async || recorder.lines().iter().any(|line| line.contains("is now")))
        .await;
    guard.release().await.expect("ours to the end");
    granted(waiting).await.release().await.expect("ours to the end");
    manager.close().await.expect("closed");
}

#[tokio::test]
async fn operator_sees_each_change_once() {
    let node = Node::start(Server::Redis70).expect("the server starts");
    let cluster = Cluster::builder(Server::Valkey91).replicas(1).start().expect("the cluster starts");
    let slot = cluster.keyslot("{cfg}");
    let dies = cluster.primary_of_slot(slot);
    let heir = cluster.replicas_of(dies)[0];
    let recorder = Recorder::at(Level::INFO);
    bounded(one_server(&recorder, &node)).await;
    bounded(failover(&recorder, &cluster, dies)).await;
    // The manager meets a member of the cluster by chance, so the line that names it differs.
    let lines: Vec<_> = recorder.lines().into_iter().filter(|line| !line.contains("servers=\"cluster")).collect();
    let seen = masked(&lines, &[(&node, "NODE"), (dies, "OLD"), (heir, "NEW")]);
    assert_eq!(seen, include_str!("logs/outage.txt"), "\n{seen}");
}

/// Names of locks are the user's, and may hold anything.
#[tokio::test(start_paused = true)]
async fn name_with_a_line_break_breaks_no_line() {
    let recorder = Recorder::start();
    let manager = MemoryManager::new();
    let name = "a\nb\u{1b}[2J";
    let guard = manager.write(name).max_hold(Duration::from_secs(3)).await.expect("granted");
    let waiting = tokio::spawn(manager.peer().write(name).into_future());
    soon("the loss", guard.lost()).await;
    let next = granted(waiting).await;
    manager.force_release(name).await.expect("forced");
    manager.disconnect();
    assert_matches!(manager.write(name).wait_timeout(Duration::from_secs(1)).await, Err(Error::Unreachable { .. }));
    drop(next);
    for what in ["lost the write hold", "waited", "by force", "not answered", "span rwlock.hold"] {
        // The recorder refuses control characters in each line.
        assert!(recorder.lines().iter().any(|line| line.contains(what)), "{what}: {:#?}", recorder.lines());
    }
}

#[tokio::test(start_paused = true)]
async fn conversion_that_ends_in_a_loss_is_told_once() {
    let recorder = Recorder::at(Level::WARN);
    let manager = MemoryManager::new();
    let guard = manager.write("cfg").await.expect("granted");
    manager.lose_all();
    let error = guard.downgrade().await.expect_err("the server does not know it");
    drop(error);
    tokio::time::sleep(Duration::from_secs(30)).await;
    let lines = recorder.lines();
    assert_eq!(lines.len(), 1, "{lines:#?}");
    assert!(
        lines[0].contains("lost the write hold of lock \"cfg\"") && lines[0].contains("reason=\"gone\""),
        "{lines:?}"
    );
}

/// Compares targets and lines of the documents with those of the source: each is in both.
#[test]
fn documents_name_every_target() {
    let (source, told) = (include_str!("../../src/base/events.rs"), include_str!("../../docs/LOGS.md"));
    let targets = |text: &str| -> Vec<String> {
        let mut all: Vec<_> = text.split("redis_rwlock::").skip(1).map(word).collect();
        all.sort();
        all.dedup();
        all
    };
    assert_eq!(targets(source), targets(told));
    for span in ["rwlock.acquire", "rwlock.hold"] {
        assert!(source.contains(span) && told.contains(span), "{span}");
    }
    for row in told.lines().filter(|line| line.starts_with("| `info`") || line.starts_with("| `warn`")) {
        let line = row.split('`').nth(3).expect("the line's text");
        let fixed = line.split(" … ").flat_map(|part| part.split('…')).map(str::trim);
        for part in fixed.filter(|part| !part.is_empty()) {
            assert!(source.contains(part), "nobody says {part:?}");
        }
    }
}

fn word(text: &str) -> String {
    text.chars().take_while(|c| c.is_ascii_alphanumeric() || *c == '_').collect()
}

#[tokio::test(start_paused = true)]
async fn spans_show_the_wait_and_the_hold() -> Outcome {
    let recorder = Recorder::at(Level::DEBUG);
    let manager = RedisManager::builder("redis://127.0.0.1:1").unreachable_after(Duration::from_millis(10));
    manager.build()?.write("cfg").await.expect_err("nobody listens");
    let memory = MemoryManager::new();
    memory.write("cfg").await?.release().await?;
    let lines = recorder.lines();
    let has = |what: &str| lines.iter().any(|line| line.contains(what));
    assert!(has("span rwlock.acquire lock=\"cfg\" mode=write"), "{lines:#?}");
    assert!(has("outcome=\"unreachable\"") && has("outcome=\"granted\""), "{lines:#?}");
    assert!(has("span rwlock.hold lock=\"cfg\" mode=write token=") && has("ended=\"released\""), "{lines:#?}");
    Ok(())
}
