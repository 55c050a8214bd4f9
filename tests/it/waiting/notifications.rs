//! Notifications that come too late, twice, or not at all. They let no waiter in without a grant, and no waiter depends
//! on them.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Client, Matcher, Node, Proxy, Reply, Server};
use redis_rwlock::{HoldState, RedisManager, RwLockManager};

use super::{HEARTBEAT, MACHINE};
use crate::fixture::Manager;
use crate::router::field::{calls_of, on_own_servers};
use crate::servers::ask;
use crate::wait::{Outcome, granted, soon, spawn, stays_pending, until};

on_own_servers![
    waiter_that_was_cut_off_beyond_its_claim_does_not_get_in_by_its_old_notification,
    waiter_whose_notification_is_held_back_gets_in_by_its_heartbeat,
    notification_that_is_repeated_lets_nobody_in,
    forged_grant_beyond_the_clocks_lets_nobody_in,
    flood_of_notifications_costs_few_scripts_and_none_after_it,
    flood_of_recalls_is_answered_by_few_scripts,
];

const KEY: &str = "notices:{lock}:lock";
const NAME: &str = "lock";
/// Time limit that is longer than any interruption of a case.
const PATIENT: Duration = Duration::from_secs(30);
/// Time that a claim lasts: two heartbeats and two response timeouts.
const CLAIM: Duration = Duration::from_secs(3);

/// A node, with a proxy in front of it.
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
        Arc::new(builder.max_clock_skew(Duration::from_millis(5)).connect().await.expect("connected"))
    }

    async fn far(&self, lease: Duration, response_timeout: Duration) -> Manager {
        let builder = RedisManager::builder(self.proxy.url()).key_prefix("notices").label("far").lease(lease);
        let builder = builder.response_timeout(response_timeout).unreachable_after(PATIENT);
        Arc::new(builder.max_clock_skew(Duration::from_millis(5)).connect().await.expect("connected"))
    }

    /// Returns a word of one of the two headers: that of holders, or that of waiters.
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

    /// Waits until the last writer in the queue has this label.
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

async fn waiter_that_was_cut_off_beyond_its_claim_does_not_get_in_by_its_old_notification(server: Server) -> Outcome {
    let scene = Scene::new(server);
    let (holder, other) = (scene.near("holder").await, scene.near("other").await);
    let far = scene.far(Duration::from_secs(10), Duration::from_millis(500)).await;
    let held = holder.write(NAME).await?;
    let mut waits = spawn(far.write(NAME));
    scene.last_waits("far").await;
    scene.subscribed(1).await;
    let next = spawn(other.write(NAME));
    scene.last_waits("other").await;
    scene.proxy.freeze();
    let released = Instant::now();
    held.release().await?;
    assert!(scene.writer().ends_with(".far"), "it has the lock, and a notification on its way");
    let writing = granted(next).await;
    println!("the next was in after {:?}", released.elapsed());
    assert!(released.elapsed() < CLAIM + HEARTBEAT + MACHINE, "{:?}", released.elapsed());
    scene.proxy.heal();
    // Looks for longer than until the next heartbeat of the waiter.
    let looks = Instant::now();
    while looks.elapsed() < HEARTBEAT * 2 {
        stays_pending("a second write", &mut waits).await;
    }
    assert_eq!(writing.state(), HoldState::Held);
    let token = writing.fencing_token();
    writing.release().await?;
    let guard = granted(waits).await;
    assert!(guard.fencing_token() > token);
    guard.release().await?;
    Ok(())
}

/// The proxy holds the confirmation of the subscription for longer than the claim lasts, and so all notifications too.
async fn waiter_whose_notification_is_held_back_gets_in_by_its_heartbeat(server: Server) -> Outcome {
    const LEASE: Duration = Duration::from_secs(2);
    let scene = Scene::new(server);
    let (holder, other) = (scene.near("holder").await, scene.near("other").await);
    let far = scene.far(LEASE, PATIENT).await;
    let held = holder.write(NAME).await?;
    let pushes = scene.proxy.hold_reply(Matcher::command("SSUBSCRIBE"));
    let waits = spawn(far.write(NAME));
    scene.last_waits("far").await;
    pushes.wait_applied(PATIENT).expect("it has subscribed");
    let released = Instant::now();
    held.release().await?;
    let guard = granted(waits).await;
    println!("it was in after {:?}", released.elapsed());
    assert!(released.elapsed() < HEARTBEAT + MACHINE, "{:?}", released.elapsed());
    guard.release().await?;
    let writing = other.write(NAME).await?;
    let mut waits = spawn(far.write(NAME));
    scene.last_waits("far").await;
    tokio::time::sleep(LEASE.saturating_sub(released.elapsed())).await;
    // Now the notification of the first grant arrives.
    drop(pushes);
    let looks = Instant::now();
    while looks.elapsed() < HEARTBEAT {
        stays_pending("a second write", &mut waits).await;
    }
    let token = writing.fencing_token();
    writing.release().await?;
    let guard = granted(waits).await;
    assert!(guard.fencing_token() > token);
    guard.release().await?;
    Ok(())
}

async fn notification_that_is_repeated_lets_nobody_in(server: Server) -> Outcome {
    let scene = Scene::new(server);
    let (holder, waiter) = (scene.near("holder").await, scene.near("waiter").await);
    let held = holder.write(NAME).await?;
    let waits = spawn(waiter.write(NAME));
    scene.last_waits("waiter").await;
    scene.subscribed(1).await;
    let channel = format!("{KEY}:wake:{}", &scene.first_waiting_writer()[..32]);
    let mut listener = scene.node.client()?;
    listener.command(&["SSUBSCRIBE", &channel])?.into_result()?;
    held.release().await?;
    let guard = granted(waits).await;
    let notification = listener.receive().expect("a notification");
    let notification =
        notification.array().and_then(|parts| parts.get(2)).and_then(Reply::text).expect("a text").into_owned();
    let tell_again = || assert!(ask(&scene.node, &["SPUBLISH", &channel, &notification]).int() >= Some(1));
    tell_again();
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await?;
    let writing = holder.write(NAME).await?;
    let mut waits = spawn(waiter.write(NAME));
    scene.last_waits("waiter").await;
    for _ in 0..10 {
        tell_again();
        stays_pending("a second write", &mut waits).await;
    }
    let token = writing.fencing_token();
    writing.release().await?;
    let guard = granted(waits).await;
    assert!(guard.fencing_token() > token);
    guard.release().await?;
    Ok(())
}

/// Scripts that the server has run so far.
fn scripts(node: &Node) -> u64 {
    calls_of(node, "evalsha")
}

fn server_us(node: &Node) -> u64 {
    let time = ask(node, &["TIME"]);
    let words: Vec<u64> = time
        .array()
        .expect("two words")
        .iter()
        .map(|word| word.text().expect("text").parse().expect("number"))
        .collect();
    words[0] * 1_000_000 + words[1]
}

/// A user with no right but to publish.
fn publisher(node: &Node) -> Client {
    node.acl_set_user("publisher", &["on", ">secret", "resetkeys", "allchannels", "-@all", "+spublish"])
        .expect("known rights");
    let mut client = node.client().expect("connected");
    client.command(&["AUTH", "publisher", "secret"]).expect("answered").into_result().expect("the user is there");
    let refused = client.command(&["GET", KEY]).expect("answered").into_result();
    assert!(refused.is_err(), "it may publish only: {refused:?}");
    client
}

/// Token, deadline and time of a grant that is forged at this time: all in microseconds of the server.
type Forge = fn(u64) -> (u64, u64, u64);

/// Sends forged grants that name the waiter and claim more than a server's clock allows.
async fn forged_grant_beyond_the_clocks_lets_nobody_in(server: Server) -> Outcome {
    let scene = Scene::new(server);
    let (holder, waiter) = (scene.near("holder").await, scene.near("waiter").await);
    let held = holder.write(NAME).await?;
    let mut waits = spawn(waiter.write(NAME));
    scene.last_waits("waiter").await;
    scene.subscribed(1).await;
    let id = scene.first_waiting_writer();
    let channel = format!("{KEY}:wake:{}", &id[..32]);
    let mut publisher = publisher(&scene.node);
    const HOUR_US: u64 = 3_600_000_000;
    let forged: [Forge; 4] = [
        // A token that no later one is above.
        |now_us| (1 << 53, now_us + 2_000_000, now_us),
        |now_us| (now_us + 1_000_000, now_us + 2_000_000, now_us),
        // A hold for longer than its claim.
        |now_us| (now_us, now_us + HOUR_US, now_us),
        // A grant of a time to come, with all that goes with it.
        |now_us| (now_us + HOUR_US, now_us + HOUR_US + 2_000_000, now_us + HOUR_US),
    ];
    for forge in forged {
        let (token, deadline_us, at_us) = forge(server_us(&scene.node));
        let message = format!("{id} {token} 1 {} {at_us} 0", deadline_us / 1000);
        let before = scripts(&scene.node);
        let receivers = publisher.command(&["SPUBLISH", &channel, &message])?;
        assert_eq!(receivers.int(), Some(1), "the waiter is told: {receivers:?}");
        until("it has asked the server", async || scripts(&scene.node) > before).await;
        stays_pending("a second write", &mut waits).await;
    }
    assert_eq!(held.state(), HoldState::Held);
    let token = held.fencing_token();
    held.release().await?;
    let guard = granted(waits).await;
    assert!(guard.fencing_token() > token);
    assert!(u64::from(guard.fencing_token()) <= server_us(&scene.node), "no forged token counts");
    guard.release().await?;
    Ok(())
}

/// A flood of published messages makes the waiter ask the server a few times, and not once for each message.
async fn flood_of_notifications_costs_few_scripts_and_none_after_it(server: Server) -> Outcome {
    const MESSAGES: usize = 100_000;
    const PIPELINE: usize = 1_000;
    let scene = Scene::new(server);
    // A busy machine takes long for so many messages, and neither lease nor patience may end meanwhile.
    let [holder, waiter] = ["holder", "waiter"].map(|label| {
        let builder = RedisManager::builder(scene.node.url()).key_prefix("notices").label(label);
        builder.lease(PATIENT * 4).unreachable_after(PATIENT * 4).build().expect("built")
    });
    let held = holder.write(NAME).await?;
    let waits = spawn(waiter.write(NAME));
    scene.last_waits("waiter").await;
    scene.subscribed(1).await;
    let channel = format!("{KEY}:wake:{}", &scene.first_waiting_writer()[..32]);
    let before = scripts(&scene.node);
    let began = Instant::now();
    let script = format!("for _ = 1, {PIPELINE} do redis.call('SPUBLISH', KEYS[1], 'junk') end");
    for _ in 0..MESSAGES / PIPELINE {
        ask(&scene.node, &["EVAL", &script, "1", &channel]).into_result()?;
    }
    let (took, during) = (began.elapsed(), scripts(&scene.node) - before);
    // A burst, 200 a second, and what heartbeats and renewals cost.
    let most = |span: Duration| 32 + 210 * (span.as_secs() + 1);
    assert!(during <= most(took), "{during} scripts for {MESSAGES} messages in {took:?}");
    // Messages that are still on their way cause no faster requests. Then only heartbeats and renewals go on.
    until("it is calm again", async || {
        let (before, looks) = (scripts(&scene.node), Instant::now());
        tokio::time::sleep(HEARTBEAT * 2).await;
        scripts(&scene.node) - before <= 8 + 4 * looks.elapsed().as_secs()
    })
    .await;
    held.release().await?;
    let guard = granted(waits).await;
    guard.release().await?;
    let all = scripts(&scene.node) - before;
    println!("{during} scripts while {MESSAGES} messages came in {took:?}, {all} to the end");
    assert!(all <= most(began.elapsed()), "{all} scripts in {:?}", began.elapsed());
    Ok(())
}

/// Publishes recalls of tries that no process makes, for a lock in use. Each answer would cost a script.
async fn flood_of_recalls_is_answered_by_few_scripts(server: Server) -> Outcome {
    const MESSAGES: usize = 20_000;
    const PIPELINE: usize = 1_000;
    let scene = Scene::new(server);
    let builder = RedisManager::builder(scene.node.url()).key_prefix("notices").cache_for(PATIENT);
    let holder = builder.connect().await?;
    until("it is subscribed to recalls", async || {
        holder.write(NAME).await.expect("granted").release().await.expect("ours to the end");
        holder.stats().cached_holds == 1
    })
    .await;
    let guard = holder.write(NAME).await.expect("kept");
    let channel = format!("{KEY}:call");
    let token = u64::from(guard.fencing_token());
    let publish = |count: usize| {
        let script =
            format!("for n = 1, {count} do redis.call('SPUBLISH', KEYS[1], '{token} nobody.' .. n .. '.x') end");
        ask(&scene.node, &["EVAL", &script, "1", &channel]).into_result().expect("published");
    };
    let (before, began) = (scripts(&scene.node), Instant::now());
    publish(1);
    until("a try is answered", async || scripts(&scene.node) > before).await;
    (0..MESSAGES / PIPELINE).for_each(|_| publish(PIPELINE));
    // The pause is long enough for an answer to each recall.
    tokio::time::sleep(Duration::from_secs(2)).await;
    let (answers, took) = (scripts(&scene.node) - before, began.elapsed());
    println!("{answers} scripts for {MESSAGES} recalls in {took:?}");
    let most = 48 + 210 * (took.as_secs() + 1);
    assert!(answers <= most, "{answers} scripts for {MESSAGES} recalls in {took:?}");
    // A genuine recall is answered after the flood.
    let other = scene.near("other").await;
    assert!(soon("the answer", other.try_write(NAME)).await?.is_none());
    guard.release().await?;
    holder.close().await.expect("in time");
    Ok(())
}
