//! Notices that come too late, twice, or not at all: they let nobody in who may not be, and nobody waits for them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Proxy, Reply, Server};
use redis_rwlock::{HoldState, RedisManager, RwLockManager};

use super::{HEARTBEAT, MACHINE};
use crate::fixture::Manager;
use crate::router::field::on_both_servers;
use crate::servers::ask;
use crate::wait::{soon, stays_pending, until};

on_both_servers![
    waiter_that_was_cut_off_beyond_its_claim_does_not_get_in_by_its_old_notice,
    waiter_whose_notice_is_held_back_gets_in_by_its_heartbeat,
    notice_that_is_told_again_lets_nobody_in,
];

const KEY: &str = "notices:{lock}:lock";
const NAME: &str = "lock";
/// Longer than anything is cut off.
const PATIENT: Duration = Duration::from_secs(30);
/// Two heartbeats and two response timeouts.
const CLAIM: Duration = Duration::from_secs(3);

/// A node, and the same behind a proxy.
struct Scene {
    node: Node,
    proxy: Proxy,
}

impl Scene {
    fn new(server: Server) -> Self {
        let node = Node::start(server).expect("the server starts");
        let proxy = Proxy::before(node.addr()).expect("a proxy");
        Self { node, proxy }
    }

    async fn near(&self, label: &str) -> Manager {
        let builder = RedisManager::builder(self.node.url()).key_prefix("notices").label(label);
        Arc::new(builder.clock_margin(Duration::from_millis(5)).connect().await.expect("connected"))
    }

    async fn far(&self, lease: Duration, response_timeout: Duration) -> Manager {
        let builder = RedisManager::builder(self.proxy.url()).key_prefix("notices").label("far").lease(lease);
        let builder = builder.response_timeout(response_timeout).unreachable_after(PATIENT);
        Arc::new(builder.clock_margin(Duration::from_millis(5)).connect().await.expect("connected"))
    }

    /// A word of one of the two headers: of who holds, of who waits.
    fn word(&self, header: &str, n: usize) -> String {
        let header = ask(&self.node, &["HGET", KEY, header]);
        header.text().and_then(|text| text.split(' ').nth(n).map(str::to_owned)).unwrap_or_default()
    }

    fn writer(&self) -> String {
        self.word("h", 5)
    }

    fn first_waiting_writer(&self) -> String {
        self.word("u", 6)
    }

    fn last_waiting_writer(&self) -> String {
        self.word("u", 7)
    }

    /// So many wait to write, the last of them with this label.
    async fn last_waits(&self, label: &str) {
        until("it waits", async || self.last_waiting_writer().ends_with(&format!(".{label}"))).await;
    }

    async fn subscribed(&self, count: usize) {
        until("it is subscribed", async || {
            let channels = ask(&self.node, &["PUBSUB", "SHARDCHANNELS"]);
            channels.array().is_some_and(|channels| channels.len() == count)
        })
        .await;
    }
}

async fn waiter_that_was_cut_off_beyond_its_claim_does_not_get_in_by_its_old_notice(server: Server) {
    let scene = Scene::new(server);
    let (holder, other) = (scene.near("holder").await, scene.near("other").await);
    let far = scene.far(Duration::from_secs(10), Duration::from_millis(500)).await;
    let held = holder.write(NAME).await.expect("granted");
    let mut waits = tokio::spawn(far.write(NAME).into_future());
    scene.last_waits("far").await;
    scene.subscribed(1).await;
    let next = tokio::spawn(other.write(NAME).into_future());
    scene.last_waits("other").await;
    scene.proxy.freeze();
    let released = Instant::now();
    held.release().await.expect("ours to the end");
    assert!(scene.writer().ends_with(".far"), "it has the lock, and a notice on its way");
    let writing = soon("the next", next).await.expect("no panic").expect("granted");
    println!("the next was in after {:?}", released.elapsed());
    assert!(released.elapsed() < CLAIM + HEARTBEAT + MACHINE, "{:?}", released.elapsed());
    scene.proxy.heal();
    // Longer than until it is heard of again.
    let looks = Instant::now();
    while looks.elapsed() < HEARTBEAT * 2 {
        stays_pending("a second write", &mut waits).await;
    }
    assert_eq!(writing.state(), HoldState::Held);
    let token = writing.fencing_token();
    writing.release().await.expect("ours to the end");
    let guard = soon("its turn", waits).await.expect("no panic").expect("granted");
    assert!(guard.fencing_token() > token);
    guard.release().await.expect("ours to the end");
}

/// The confirmation of its subscription is held, and with it all notices, longer than its claim.
async fn waiter_whose_notice_is_held_back_gets_in_by_its_heartbeat(server: Server) {
    const LEASE: Duration = Duration::from_secs(2);
    let scene = Scene::new(server);
    let (holder, other) = (scene.near("holder").await, scene.near("other").await);
    let far = scene.far(LEASE, PATIENT).await;
    let held = holder.write(NAME).await.expect("granted");
    let pushes = scene.proxy.hold_reply(Matcher::command("SSUBSCRIBE"));
    let waits = tokio::spawn(far.write(NAME).into_future());
    scene.last_waits("far").await;
    pushes.wait_applied(PATIENT).expect("it has subscribed");
    let released = Instant::now();
    held.release().await.expect("ours to the end");
    let guard = soon("its turn", waits).await.expect("no panic").expect("granted");
    println!("it was in after {:?}", released.elapsed());
    assert!(released.elapsed() < HEARTBEAT + MACHINE, "{:?}", released.elapsed());
    guard.release().await.expect("ours to the end");
    let writing = other.write(NAME).await.expect("granted");
    let mut waits = tokio::spawn(far.write(NAME).into_future());
    scene.last_waits("far").await;
    tokio::time::sleep(LEASE.saturating_sub(released.elapsed())).await;
    // Now the first grant is told.
    drop(pushes);
    let looks = Instant::now();
    while looks.elapsed() < HEARTBEAT {
        stays_pending("a second write", &mut waits).await;
    }
    let token = writing.fencing_token();
    writing.release().await.expect("ours to the end");
    let guard = soon("its turn", waits).await.expect("no panic").expect("granted");
    assert!(guard.fencing_token() > token);
    guard.release().await.expect("ours to the end");
}

async fn notice_that_is_told_again_lets_nobody_in(server: Server) {
    let scene = Scene::new(server);
    let (holder, waiter) = (scene.near("holder").await, scene.near("waiter").await);
    let held = holder.write(NAME).await.expect("granted");
    let waits = tokio::spawn(waiter.write(NAME).into_future());
    scene.last_waits("waiter").await;
    scene.subscribed(1).await;
    let channel = format!("{KEY}:wake:{}", &scene.first_waiting_writer()[..32]);
    let mut listener = scene.node.client().expect("connected");
    listener.command(&["SSUBSCRIBE", &channel]).expect("answered").into_result().expect("subscribed");
    held.release().await.expect("ours to the end");
    let guard = soon("its turn", waits).await.expect("no panic").expect("granted");
    let notice = listener.receive().expect("a notice");
    let notice = notice.array().and_then(|parts| parts.get(2)).and_then(Reply::text).expect("a text").into_owned();
    let tell_again = || assert!(ask(&scene.node, &["SPUBLISH", &channel, &notice]).int() >= Some(1));
    tell_again();
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await.expect("ours to the end");
    let writing = holder.write(NAME).await.expect("granted");
    let mut waits = tokio::spawn(waiter.write(NAME).into_future());
    scene.last_waits("waiter").await;
    for _ in 0..10 {
        tell_again();
        stays_pending("a second write", &mut waits).await;
    }
    let token = writing.fencing_token();
    writing.release().await.expect("ours to the end");
    let guard = soon("its turn", waits).await.expect("no panic").expect("granted");
    assert!(guard.fencing_token() > token);
    guard.release().await.expect("ours to the end");
}
