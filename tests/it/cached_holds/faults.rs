//! Faults of recalls, connections and runtimes while holds are cached. Cases measure the time that they cost a waiter
//! elsewhere. They also show that no hold stays cached when its process would miss a recall.

use std::ops::Deref;
use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Server};
use redis_rwlock::{Mode, Topology};
use tokio::task::block_in_place;

use super::{cache_hold, caching};
use crate::callers::runtimes::{Elsewhere, Then};
use crate::either::take;
use crate::fixture::{Fixture, Manager, ServerFixture, Settings, hash_on_every_server, proxied_on_every_hash};
use crate::router::field::on_own_servers;
use crate::wait::{BOUND, granted, soon, until};
use crate::waiting::{HEARTBEAT, MACHINE};

proxied_on_every_hash![
    lost_recall_costs_a_heartbeat,
    recalls_that_are_all_lost_cost_a_renewal,
    lost_recall_reply_costs_a_try_its_wait,
];

hash_on_every_server![hold_of_a_runtime_that_ends_or_is_blocked_is_given_up];

on_own_servers![
    silent_link_costs_no_more_than_its_next_ping,
    no_guard_enters_a_second_after_the_last_answer,
    killed_subscription_ends_cached_holds,
    waiter_that_may_not_publish_costs_a_renewal,
    waiter_that_may_not_publish_keeps_no_other_from_recalling,
];

const MODES: [Mode; 2] = [Mode::Read, Mode::Write];
/// Lease of holds that need no renewal while a case runs.
const LONG: Duration = Duration::from_secs(30);
/// Time in which a waiter is in by a heartbeat at the latest, with an allowance.
pub const SOON: Duration = HEARTBEAT.saturating_add(MACHINE).saturating_add(Duration::from_millis(500));
/// Lease of holds in cases that wait for a renewal.
pub const LEASE: Duration = Duration::from_secs(6);
/// Time until a renewal is over: 0.375 of the lease, a response timeout, and an allowance. It is shorter than the
/// lease.
pub const RENEWAL: Duration = Duration::from_millis(2250 + 500).saturating_add(MACHINE);
/// Time for which the last answer of a node counts.
const FRESH: Duration = Duration::from_secs(1);

pub fn caching_for(lease: Duration) -> Settings {
    Settings { lease, ..caching() }
}

/// Asserts that a writer elsewhere is granted the lock within `bound`.
pub async fn writer_is_in_within(bound: Duration, other: &Manager, name: &str) {
    let began = Instant::now();
    take(other, name, Mode::Write).await.release_unharmed().await;
    assert!(began.elapsed() < bound, "after {:?}", began.elapsed());
}

/// Name of the channel of a lock's recalls.
fn recalls_of(f: &Fixture, name: &str) -> String {
    f.hash_key(name) + ":call"
}

/// A manager that caches a hold of a lock, and another one.
async fn scene_with_cached(f: &Fixture, lease: Duration, mode: Mode) -> (Manager, Manager, String) {
    let (holder, other, name) = f.pair(caching_for(lease)).await;
    cache_hold(&holder, &name, mode).await;
    (holder, other, name)
}

async fn lost_recall_costs_a_heartbeat(f: &ServerFixture) {
    for mode in MODES {
        let (_holder, other, name) = scene_with_cached(f, LONG, mode).await;
        f.proxy(&name).lose_messages(recalls_of(f, &name), 1);
        writer_is_in_within(SOON, &other, &name).await;
        assert_eq!(f.proxy(&name).messages_lost(recalls_of(f, &name)), 1);
    }
}

async fn recalls_that_are_all_lost_cost_a_renewal(f: &ServerFixture) {
    for mode in MODES {
        let (_holder, other, name) = scene_with_cached(f, LEASE, mode).await;
        f.proxy(&name).lose_messages(recalls_of(f, &name), usize::MAX);
        writer_is_in_within(RENEWAL, &other, &name).await;
        assert!(f.proxy(&name).messages_lost(recalls_of(f, &name)) >= 1, "it has called");
    }
}

async fn lost_recall_reply_costs_a_try_its_wait(f: &ServerFixture) {
    for settings in [Settings::default(), caching()] {
        let (holder, other, name) = (f.manager_with(caching_for(LONG)).await, f.manager_with(settings).await, f.name());
        let replies = f.hash_key(&name) + ":wake:";
        // The first try subscribes.
        for lost in [0, usize::MAX] {
            cache_hold(&holder, &name, Mode::Read).await;
            f.proxy(&name).lose_messages(replies.clone(), lost);
            let guard = other.write(&name).cache_for(Duration::ZERO).try_now().await.expect("answered");
            guard.expect("nobody is inside").release().await.expect("released");
        }
        assert!(f.proxy(&name).messages_lost(replies) >= 1, "it was told");
    }
}

/// A node behind a proxy, for one case alone. Some managers go past the proxy.
struct Alone {
    fixture: Fixture,
    node: Node,
}

impl Deref for Alone {
    type Target = Fixture;

    fn deref(&self) -> &Fixture {
        &self.fixture
    }
}

impl Alone {
    fn start(server: Server) -> Self {
        let node = Node::builder(server).proxied().start().expect("the server starts");
        Self { fixture: Fixture::hash(Topology::node(node.url())), node }
    }

    async fn past_the_proxy(&self) -> Manager {
        self.manager_elsewhere(Topology::node(format!("redis://{}", self.node.addr()))).await
    }

    /// A manager of a user without the right to publish: the command is missing, or all channels.
    async fn without_publishing(&self, without: &str) -> Manager {
        let rights = ["on", ">secret", "~*", "&*", "+@all", without];
        self.node.acl_set_user("mute", &["reset"]).expect("a user");
        self.node.acl_set_user("mute", &rights).expect("the server knows all rights");
        self.manager_elsewhere(Topology::node(format!("redis://mute:secret@{}", self.node.addr()))).await
    }
}

/// The subscriptions' connection falls silent, and the main connection works.
async fn silent_link_costs_no_more_than_its_next_ping(server: Server) {
    let f = Alone::start(server);
    for mode in MODES {
        let (holder, _, name) = scene_with_cached(&f, LONG, mode).await;
        let other = f.past_the_proxy().await;
        let subscriptions = Matcher::command("SSUBSCRIBE").and(recalls_of(&f, &name));
        let subscribed = f.node.proxy().requests_seen(subscriptions.clone());
        let held_ping = f.node.proxy().hold_reply(Matcher::command("PING"));
        block_in_place(|| held_ping.wait_applied(BOUND)).expect("the link asks whether its node is there");
        writer_is_in_within(SOON, &other, &name).await;
        cache_hold(&holder, &name, mode).await;
        assert!(f.node.proxy().requests_seen(subscriptions) > subscribed, "it was the link that fell silent");
    }
}

async fn no_guard_enters_a_second_after_the_last_answer(server: Server) {
    let f = Alone::start(server);
    for mode in MODES {
        let (holder, _, name) = scene_with_cached(&f, LEASE, mode).await;
        let other = f.past_the_proxy().await;
        f.node.proxy().black_hole();
        let silent_since = Instant::now();
        let waiting = tokio::spawn(other.write(&name).into_future());
        while silent_since.elapsed() < FRESH * 2 {
            let asked = silent_since.elapsed();
            let is_in = tokio::time::timeout(Duration::from_millis(50), take(&holder, &name, mode)).await.is_ok();
            assert!(!is_in || asked < FRESH, "a guard that was asked for {asked:?} after the last word");
        }
        let guard = granted(waiting).await;
        assert!(silent_since.elapsed() < LEASE + HEARTBEAT + MACHINE, "after {:?}", silent_since.elapsed());
        guard.release().await.expect("ours to the end");
        f.node.proxy().heal();
        until("holds stay again", async || {
            let guard = soon("an answer", holder.read(&name).into_future()).await;
            drop(guard);
            holder.stats().cached_holds == 1
        })
        .await;
    }
}

async fn killed_subscription_ends_cached_holds(server: Server) {
    let f = Alone::start(server);
    for mode in MODES {
        let (holder, other, name) = scene_with_cached(&f, LONG, mode).await;
        assert!(f.node.kill_subscribers().expect("killed") >= 1);
        until("it is given up, though no waiter recalls", async || holder.stats().holds == 0).await;
        cache_hold(&holder, &name, mode).await;
        assert!(f.node.kill_subscribers().expect("killed") >= 1);
        writer_is_in_within(SOON, &other, &name).await;
    }
}

/// Rules that take the right to publish from a user.
const MUTE: [&str; 2] = ["-spublish", "resetchannels"];

async fn waiter_that_may_not_publish_costs_a_renewal(server: Server) {
    let f = Alone::start(server);
    for (mode, without) in MODES.into_iter().flat_map(|mode| MUTE.map(|without| (mode, without))) {
        let (_holder, _, name) = scene_with_cached(&f, LEASE, mode).await;
        let mute = f.without_publishing(without).await;

        let calls = recalls_of(&f, &name);
        f.node.proxy().lose_messages(calls.clone(), usize::MAX);
        writer_is_in_within(RENEWAL, &mute, &name).await;
        assert_eq!(f.node.proxy().messages_lost(calls), 0, "it may not call");
    }
}

/// A recall that the server refused does not count as one, so other waiters still recall.
async fn waiter_that_may_not_publish_keeps_no_other_from_recalling(server: Server) {
    let f = Alone::start(server);
    for (mode, without) in MODES.into_iter().zip(MUTE) {
        let (_holder, _, name) = scene_with_cached(&f, LONG, mode).await;
        let mute = f.without_publishing(without).await;
        let other = f.past_the_proxy().await;

        let waits = name.clone();
        let waiting = tokio::spawn(async move { take(&mute, &waits, Mode::Write).await.release_unharmed().await });
        f.until_waiting(1, &name).await;
        writer_is_in_within(SOON, &other, &name).await;
        soon("the end of the one before", waiting).await.expect("no panic");
    }
}

async fn hold_of_a_runtime_that_ends_or_is_blocked_is_given_up(f: &ServerFixture) {
    let other = f.manager().await;
    for mode in MODES {
        let (mut ends, name) = (f.elsewhere(caching_for(LONG)).await, f.name());
        let used = name.clone();
        ends.run(|manager| Box::pin(async move { cache_hold(&manager, &used, mode).await })).await;
        ends.die().await;
        writer_is_in_within(SOON, &other, &name).await;
        for then in [Then::Stands, Then::IsBlocked] {
            let ([manager], name) = f.scene_with(caching_for(LONG)).await;
            let (holder, used) = (Arc::clone(&manager), name.clone());
            let (runtime, ()) = Elsewhere::after(then, async move { cache_hold(&holder, &used, mode).await }).await;
            writer_is_in_within(SOON, &other, &name).await;
            // The same holds after another use of the lock.
            cache_hold(&manager, &name, mode).await;
            drop(runtime);
            writer_is_in_within(SOON, &other, &name).await;
        }
    }
}
