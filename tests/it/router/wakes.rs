//! Notifications whose connection dies, or brings messages that no client asked for. Notifications wake waiters again
//! afterwards, and a waiter without them repeats its request.

use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Server};
use redis_rwlock::{Topology, WriteGuard};
use tokio::task::JoinHandle;

use super::field::on_own_servers;
use super::pretender::Pretender;
use crate::fixture::{Fixture, Manager, Settings};
use crate::nodes::proxied;
use crate::wait::{BOUND, Outcome, granted, spawn, until};

on_own_servers![
    killed_subscription_is_made_again,
    unsolicited_unsubscription_is_seen_through,
    waiter_without_wake_ups_asks_again,
];

/// Least pause between two requests of a waiter that has waited for a while.
const MIN_RETRY: Duration = Duration::from_millis(500);
const MAX_RETRY: Duration = Duration::from_millis(1500);
/// Requests before they come at this pace: the holder's, the waiter's first, and the one after it has subscribed.
const REQUESTS_UNTIL_THEN: usize = 3;
const WAITERS: usize = 8;

/// Settings with which only a release ends a hold.
fn long() -> Settings {
    Settings::lease(Duration::from_secs(60))
}

/// Locks that one manager holds, and that another waits for.
struct Wanted {
    guards: Vec<WriteGuard>,
    waiting: Vec<JoinHandle<redis_rwlock::Result<WriteGuard>>>,
    names: Vec<String>,
}

impl Wanted {
    async fn start(fixture: &Fixture, holder: &Manager, waiter: &Manager) -> Self {
        let mut wanted = Self { guards: Vec::new(), waiting: Vec::new(), names: Vec::new() };
        for _ in 0..WAITERS {
            let name = fixture.name();
            wanted.guards.push(holder.write(&name).await.expect("granted"));
            wanted.waiting.push(spawn(waiter.write(&name)));
            wanted.names.push(name);
        }
        wanted
    }

    /// Waits until each waiter's channel has one subscription on the server.
    async fn are_subscribed(&self, fixture: &Fixture, node: &Node) {
        for name in &self.names {
            until("a subscription of its own", async || fixture.wake_channels(node, name).len() == 1).await;
        }
    }

    /// Releases each lock right after a request of its waiter, so long before the next one.
    async fn wake_by_notification(self, fixture: &Fixture, proxied: &Node) {
        for ((guard, waiting), name) in self.guards.into_iter().zip(self.waiting).zip(self.names) {
            let asks = Matcher::command("EVALSHA").and(fixture.write_key(&name));
            let asked = || proxied.proxy().requests_seen(asks.clone());
            until("the pace of a long wait", async || asked() >= REQUESTS_UNTIL_THEN).await;
            let before = asked();
            until("a request of the waiter", async || asked() > before).await;
            let seen = Instant::now();
            let token = guard.fencing_token();
            guard.release().await.expect("ours to the end");
            let heir = granted(waiting).await;
            assert!(seen.elapsed() < MIN_RETRY, "granted {:?} after the waiter's last request", seen.elapsed());
            assert!(heir.fencing_token() > token);
            heir.release().await.expect("ours to the end");
        }
    }
}

async fn killed_subscription_is_made_again(server: Server) {
    let node = proxied(server);
    let fixture = Fixture::two_key(Topology::node(node.url()));
    let (holder, waiter) = (fixture.manager_with(long()).await, fixture.manager_with(long()).await);
    let wanted = Wanted::start(&fixture, &holder, &waiter).await;
    for _ in 0..3 {
        wanted.are_subscribed(&fixture, &node).await;
        assert_eq!(node.kill_subscribers().expect("killed"), 1, "one connection for all channels");
    }
    wanted.are_subscribed(&fixture, &node).await;
    wanted.wake_by_notification(&fixture, &node).await;
}

async fn unsolicited_unsubscription_is_seen_through(server: Server) {
    let node = proxied(server);
    let pretender = Pretender::before(node.proxy().addr());
    let fixture = Fixture::two_key(Topology::node(pretender.url()));
    let (holder, waiter) = (fixture.manager_with(long()).await, fixture.manager_with(long()).await);
    let wanted = Wanted::start(&fixture, &holder, &waiter).await;
    for name in &wanted.names[..3] {
        wanted.are_subscribed(&fixture, &node).await;
        let channel = &fixture.wake_channels(&node, name)[0];
        let again = Matcher::command("SSUBSCRIBE").and(channel.as_str());
        let before = node.proxy().requests_seen(again.clone());
        pretender.pushes(&format!(">3\r\n$12\r\nsunsubscribe\r\n${}\r\n{channel}\r\n:0\r\n", channel.len()));
        until("another subscription", async || node.proxy().requests_seen(again.clone()) > before).await;
    }
    wanted.are_subscribed(&fixture, &node).await;
    wanted.wake_by_notification(&fixture, &node).await;
}

async fn waiter_without_wake_ups_asks_again(server: Server) -> Outcome {
    let node = Node::start(server)?;
    node.acl_set_user("deaf", &["on", ">deaf", "~*", "+@all", "resetchannels"])?;
    let fixture = Fixture::two_key(Topology::node(format!("redis://deaf:deaf@{}", node.addr())));
    let (holder, waiter) = (fixture.manager_with(long()).await, fixture.manager_with(long()).await);
    let wanted = Wanted::start(&fixture, &holder, &waiter).await;
    let released = Instant::now();
    for guard in wanted.guards {
        guard.release().await?;
    }
    for waiting in wanted.waiting {
        let heir = granted(waiting).await;
        heir.release().await?;
    }
    // The rest is for a busy machine.
    assert!(released.elapsed() < MAX_RETRY + BOUND / 10, "{:?}", released.elapsed());
    Ok(())
}
