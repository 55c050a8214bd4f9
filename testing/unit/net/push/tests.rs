//! Tests against real servers: every message arrives, from the right node and judged rightly, whatever happens to nodes
//! and connections.

mod limits;

use std::net::SocketAddr;
use std::task::{Context, Wake, Waker};

use cluster_testenv::{Cluster, Matcher, Node as Server, Sentinels, Server as Version, SlotMigration};

use super::*;
use crate::base::attempt::{Answered, Granted, NodeId};
use crate::base::background_runtime::BackgroundRuntime;
use crate::base::lease::{ClockSample, FencingToken, Moment, ServerTime};
use crate::base::options::Options;
use crate::base::recalls::{OnRecall, Recall};
use crate::base::topology::{Access, Tls};
use crate::net::address::parse_all;
use crate::net::fake;
use crate::net::fleet::{Fleet, SuspectReason};
use crate::net::node::Role;
use crate::net::pushed::Pushed;

/// Time limit that is far longer than anything a test waits for.
const BOUND: Duration = Duration::from_secs(30);
const HOUR: Duration = Duration::from_secs(3600);

/// Returns a pace at which all is kept for ever unless a test is about it.
fn pace() -> Pace {
    Pace { refresh: HOUR, linger: HOUR, max_clock_sample_age: HOUR, ..Pace::of(&Options::default()) }
}

/// Returns a background runtime that ends with the test.
fn background() -> BackgroundRuntime {
    Handle::try_current().map_or(BackgroundRuntime::Process, BackgroundRuntime::On)
}

/// Subscribes at this server.
fn single(server: SocketAddr, pace: Pace) -> (Push, Arc<Node>) {
    let node = fake::node_at(server, &Options::default(), Role::Standalone, background());
    (Push::new(SlotOwners::Single(Arc::clone(&node)), background(), pace), node)
}

/// Starts a server, and subscribes at it.
fn started(pace: Pace) -> (Server, Push, Arc<Node>) {
    let server = Server::start(Version::Redis70).expect("the server starts");
    let (push, node) = single(server.addr(), pace);
    (server, push, node)
}

/// Starts a server behind a proxy, and subscribes through the proxy.
fn proxied(pace: Pace) -> (Server, Push, Arc<Node>) {
    let server = Server::builder(Version::Redis70).proxied().start().expect("the server starts");
    let (push, node) = single(server.proxy().addr(), pace);
    (server, push, node)
}

/// Cluster, and what subscribes in it.
struct Stage {
    cluster: Cluster,
    push: Push,
    fleet: Arc<Fleet>,
}

impl Stage {
    /// Starts a cluster without replicas.
    async fn start(pace: Pace) -> Self {
        Self::of(Cluster::builder(Version::Redis70).replicas(0).start(), pace).await
    }

    async fn of(cluster: Result<Cluster, impl std::fmt::Debug>, pace: Pace) -> Self {
        let cluster = cluster.expect("the cluster starts");
        let options = Options { response_timeout: pace.response_timeout, ..Options::default() };
        let fleet = fake::fleet_at(&cluster.urls(), &options);
        assert!(fleet.ready().await.is_ok(), "the cluster answers");
        // A main connection made between a confirmation and a message would make the waiters ask once more.
        for primary in cluster.primaries() {
            let node = fleet.node(&primary.addr().to_string()).expect("an address");
            assert!(node.ready().await.is_ok(), "it answers");
        }
        let push = Push::new(SlotOwners::Many(Arc::clone(&fleet)), background(), pace);
        Self { cluster, push, fleet }
    }

    /// Returns two nodes.
    fn two_primaries(&self) -> (&Server, &Server) {
        (self.cluster.primaries()[0], self.cluster.primaries()[1])
    }

    /// Returns a node, and a channel whose slot it owns.
    fn owner_and_channel(&self) -> (&Server, String) {
        let owner = self.cluster.primaries()[0];
        (owner, self.channel_of(owner))
    }

    /// Returns a channel whose slot this node owns.
    fn channel_of(&self, owner: &Server) -> String {
        self.two_channels_of(owner).0
    }

    /// Returns two channels of different slots that this node owns.
    fn two_channels_of(&self, owner: &Server) -> (String, String) {
        let owned = |name: &String| self.cluster.primary_of_slot(self.cluster.keyslot(name)).port() == owner.port();
        let mut names = (0..).map(|number| format!("{{{number}}}")).filter(owned);
        let mut next = || names.next().expect("there are always more");
        (next(), next())
    }

    fn subscribe(&self, channel: &str) -> Waiter {
        Waiter::new(&self.push, self.cluster.keyslot(channel), channel)
    }

    async fn confirmed(&self, channel: &str) -> Waiter {
        self.subscribe(channel).confirmed().await
    }
}

/// Passes on a message, and the clock sample that would judge it.
fn read(message: &[u8], clock_sample: Option<ClockSample>) -> Notification {
    let clock_sample = clock_sample.unwrap_or(ClockSample { sent: Moment::NEVER, server: ServerTime::default() });
    let token = FencingToken::from_wire(1).expect("small");
    let value = Granted { token, tokens: 1, remaining: Duration::ZERO, is_waited_for: false };
    let answer = Answered { sent: clock_sample.sent, server: clock_sample.server, node: NodeId::default(), value };
    Notification::Granted { id: String::from_utf8_lossy(message).into(), at: clock_sample.server, answer }
}

/// Waiter that has subscribed to a channel.
struct Waiter {
    channel: String,
    subscription: Subscription,
}

impl Waiter {
    fn new(push: &Push, slot: u16, channel: &str) -> Self {
        Self { channel: channel.to_owned(), subscription: push.subscribe(slot, channel, read) }
    }

    async fn confirmed(mut self) -> Self {
        self.told_to_ask().await;
        self
    }

    async fn notification(&mut self) -> Notification {
        let notification = tokio::time::timeout(BOUND, self.subscription.notices.recv()).await;
        notification.expect("a notification comes in time").expect("the subscription goes on")
    }

    async fn told_to_ask(&mut self) {
        let notification = self.notification().await;
        assert!(matches!(notification, Notification::AskAgain), "{notification:?}");
    }

    /// Returns the clock sample of the next message, which must be this one.
    async fn message(&mut self, expected: &str) -> Option<ClockSample> {
        loop {
            if let Notification::Granted { id, answer, .. } = self.notification().await {
                assert_eq!(&*id, expected);
                let clock_sample = ClockSample { sent: answer.sent, server: answer.server };
                return (clock_sample.sent != Moment::NEVER).then_some(clock_sample);
            }
        }
    }

    /// Publishes a message to this waiter alone, and returns the clock sample with which it comes.
    async fn hears(&mut self, server: &Server, text: &str) -> Option<ClockSample> {
        assert_eq!(publish(server, &self.channel, text), 1);
        self.message(text).await
    }

    fn assert_silent(&mut self) {
        let notification = self.subscription.notices.try_recv();
        assert!(notification.is_err(), "{notification:?}");
    }
}

/// Subscribes at a single server, and waits for the confirmation.
async fn confirmed(push: &Push, channel: &str) -> Waiter {
    Waiter::new(push, 0, channel).confirmed().await
}

/// Publishes a message, and returns how many connections received it.
fn publish(server: &Server, channel: &str, text: &str) -> i64 {
    let reply = server.command(&["SPUBLISH", channel, text]).expect("it answers");
    reply.int().unwrap_or_else(|| panic!("{reply:?}"))
}

fn shard_channels(server: &Server) -> Vec<String> {
    let reply = server.command(&["PUBSUB", "SHARDCHANNELS"]).expect("it answers");
    let channels = reply.array().unwrap_or_default().iter().filter_map(|name| Some(name.text()?.into_owned()));
    let mut channels: Vec<_> = channels.collect();
    channels.sort();
    channels
}

/// Returns the ids of the connections that subscribe.
fn subscribers(server: &Server) -> Vec<String> {
    let reply = server.command(&["CLIENT", "LIST", "TYPE", "pubsub"]).expect("it answers");
    let list = reply.text().expect("a text").into_owned();
    list.lines().filter_map(|line| Some(line.split(' ').next()?.to_owned())).collect()
}

async fn until(what: &str, mut condition: impl FnMut() -> bool) {
    let began = Instant::now();
    while !condition() {
        assert!(began.elapsed() < BOUND, "{what} did not come true");
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
}

/// Waits in a thread of a test that must not hang. Returns true if the condition has come true.
fn comes_true(mut condition: impl FnMut() -> bool) -> bool {
    let began = Instant::now();
    while !condition() && began.elapsed() < BOUND {
        std::thread::sleep(Duration::from_millis(5));
    }
    condition()
}

fn tasks() -> usize {
    tokio::runtime::Handle::current().metrics().num_alive_tasks()
}

#[tokio::test]
async fn channels_are_subscribed_at_the_owners_of_their_slots_and_nowhere_else() {
    let stage = Stage::start(pace()).await;
    let primaries = stage.cluster.primaries();
    let channels: Vec<_> = primaries.iter().map(|primary| stage.channel_of(primary)).collect();
    let mut subscriptions = Vec::new();
    for channel in &channels[..2] {
        subscriptions.push(stage.confirmed(channel).await);
    }
    for ((primary, channel), subscription) in primaries.iter().zip(&channels).zip(&mut subscriptions) {
        assert_eq!(shard_channels(primary), [channel.as_str()]);
        subscription.hears(primary, channel).await;
    }
    assert!(shard_channels(primaries[2]).is_empty());
    assert_eq!(primaries.iter().map(|primary| subscribers(primary).len()).collect::<Vec<_>>(), [1, 1, 0]);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_killed_connection_is_replaced_and_waiters_ask_again() {
    let stage = Stage::start(pace()).await;
    let (owner, channel) = stage.owner_and_channel();
    let mut subscription = stage.confirmed(&channel).await;
    for round in ["first", "second", "third"] {
        assert_eq!(stage.cluster.kill_subscribers().expect("it kills"), 1);
        subscription.told_to_ask().await;
        subscription.hears(owner, round).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_moves_with_its_slot_and_others_stay_on_their_connection() {
    let stage = Stage::start(pace()).await;
    let (from, to) = stage.two_primaries();
    let (moving, stays) = stage.two_channels_of(from);
    let slot = stage.cluster.keyslot(&moving);
    let mut other = stage.confirmed(&stays).await;
    let connection = subscribers(from);

    let migration = SlotMigration::begin(&stage.cluster, slot, to).expect("it begins");
    // While a slot migrates, its channels still belong to the old owner.
    let mut subscription = stage.confirmed(&moving).await;
    subscription.hears(from, "before").await;
    subscription.assert_silent();
    migration.finish().expect("it ends");

    subscription.told_to_ask().await;
    subscription.hears(to, "after").await;
    until("the old owner has let go", || shard_channels(from) == [&*stays]).await;
    assert_eq!(publish(from, &stays, "all the time"), 1);
    assert_eq!(subscribers(from), connection);
    other.message("all the time").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_of_a_slot_that_has_moved_unnoticed_is_subscribed_where_it_is() {
    let stage = Stage::start(pace()).await;
    let (from, to) = stage.two_primaries();
    let channel = stage.channel_of(from);
    stage.cluster.migrate_slot(stage.cluster.keyslot(&channel), to).expect("it moves");
    let _subscription = stage.confirmed(&channel).await;
    assert_eq!(shard_channels(to), [&*channel]);
    until("the old owner has no subscriber", || subscribers(from).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_connection_whose_replies_have_shifted_is_replaced() {
    let cluster = Cluster::builder(Version::Redis70).replicas(0).proxied().start();
    // A silence would be another reason to replace the connection.
    let stage = Stage::of(cluster, Pace { response_timeout: HOUR, ..pace() }).await;
    let (from, to) = stage.two_primaries();
    let (moving, stays) = stage.two_channels_of(from);
    let slot = stage.cluster.keyslot(&moving);
    let mut moves = stage.confirmed(&moving).await;
    let connection = subscribers(from);

    // An unsolicited push that comes before the reply takes the place of the reply.
    let request = from.proxy().hold_request(Matcher::command("SSUBSCRIBE"));
    let mut other = stage.subscribe(&stays);
    request.wait_held(BOUND).expect("it is asked for");
    stage.cluster.migrate_slot(slot, to).expect("it moves");

    moves.told_to_ask().await;
    other.told_to_ask().await;
    request.release();
    assert_eq!(shard_channels(to), [&*moving]);
    until("the connection was replaced", || shard_channels(from) == [&*stays]).await;
    // The server lists a connection until it has read its end.
    until("the shifted one is gone", || subscribers(from).iter().all(|id| !connection.contains(id))).await;
    moves.hears(to, "after").await;
    other.hears(from, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_moves_with_a_slot_that_moves_at_once() {
    let stage = Stage::of(Cluster::builder(Version::Valkey91).replicas(0).start(), pace()).await;
    let (from, to) = stage.two_primaries();
    let channel = stage.channel_of(from);
    let slot = stage.cluster.keyslot(&channel);
    let mut subscription = stage.confirmed(&channel).await;
    stage.cluster.migrate_slot_atomically(slot, to).expect("it moves");
    subscription.told_to_ask().await;
    until("the new owner has it", || shard_channels(to) == [&*channel]).await;
    subscription.hears(to, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_that_its_server_gave_up_is_subscribed_again_when_it_is_taken_again() {
    let stage = Stage::start(pace()).await;
    let (owner, channel) = stage.owner_and_channel();
    let slot = stage.cluster.keyslot(&channel);
    let mut subscription = stage.confirmed(&channel).await;
    let order = |verb: &str| owner.command(&["CLUSTER", verb, &slot.to_string()]).expect("it answers").is_ok();
    assert!(order("DELSLOTS"));
    // No node owns the slot, so the subscription is refused.
    until("the loss is noticed", || stage.push.subscribe_if_live(&channel).is_none()).await;
    subscription.assert_silent();
    assert!(order("ADDSLOTS"));
    subscription.told_to_ask().await;
    subscription.hears(owner, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_follows_a_failover() {
    let stage = Stage::of(Cluster::start(Version::Redis70), Pace { refresh: Duration::from_secs(1), ..pace() }).await;
    let (owner, channel) = stage.owner_and_channel();
    let mut subscription = stage.confirmed(&channel).await;
    let successor = stage.cluster.failover(owner).expect("it fails over");
    until("the new owner has it", || shard_channels(successor) == [&*channel]).await;
    subscription.told_to_ask().await;
    subscription.hears(successor, "after").await;
    until("the old owner has let go", || subscribers(owner).is_empty()).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_of_a_killed_owner_finds_its_successor_without_any_other_call() {
    let stage = Stage::of(Cluster::start(Version::Redis70), pace()).await;
    let (owner, channel) = stage.owner_and_channel();
    let mut subscription = stage.confirmed(&channel).await;
    let replica = stage.cluster.replicas_of(owner)[0];
    owner.kill();
    subscription.told_to_ask().await;
    assert_eq!(shard_channels(replica), [&*channel]);
    subscription.hears(replica, "after").await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_follows_the_primary_behind_sentinels() {
    let sentinels = Sentinels::start(Version::Redis70).expect("the Sentinels start");
    let fleet = Fleet::behind_sentinels(
        sentinels.primary_name(),
        parse_all(&sentinels.urls(), &Tls::new()).expect("URLs"),
        &Access::default(),
        fake::setup_on(background(), &Options::default(), Role::Standalone),
    );
    let fleet = Arc::new(fleet.expect("Sentinels"));
    let pace = Pace { refresh: Duration::from_secs(1), ..pace() };
    let push = Push::new(SlotOwners::Many(Arc::clone(&fleet)), background(), pace);
    let old = sentinels.primary();
    // No caller has asked who the primary is.
    let mut subscription = Waiter::new(&push, 5, "channel").confirmed().await;
    subscription.hears(old, "before").await;
    let new = sentinels.failover().expect("it fails over");
    // Sentinels also close other connections to servers whose role has changed.
    let listed = |server: &Server| server.command(&["PUBSUB", "SHARDCHANNELS"]).ok()?.array().map(<[_]>::len);
    until("the new primary has it", || listed(new) == Some(1)).await;
    subscription.told_to_ask().await;
    subscription.hears(new, "after").await;
    until("the old one has not", || listed(old) == Some(0)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_frozen_node_delays_no_channel_of_another() {
    let cluster = Cluster::builder(Version::Redis70).replicas(0).node_timeout(HOUR).proxied().start();
    // No time limit ends the wait for the frozen node.
    let stage = Stage::of(cluster, Pace { response_timeout: HOUR, ..pace() }).await;
    let (frozen, other) = stage.two_primaries();
    let (late, early) = (stage.channel_of(frozen), stage.channel_of(other));
    frozen.proxy().freeze();
    let mut waits = stage.subscribe(&late);
    let mut subscription = stage.confirmed(&early).await;
    subscription.hears(other, "meanwhile").await;
    waits.assert_silent();
    frozen.proxy().heal();
    waits.told_to_ask().await;
    subscription.assert_silent();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_channel_under_steady_contention_is_subscribed_once() {
    let (server, push, _node) = proxied(pace());
    assert!(push.subscribe_if_live("a").is_none(), "nothing is subscribed");
    let hold = server.proxy().hold_reply(Matcher::command("SSUBSCRIBE"));
    let mut first = Waiter::new(&push, 0, "a");
    hold.wait_applied(BOUND).expect("it is asked for");
    assert!(push.subscribe_if_live("a").is_none(), "it is not confirmed");
    first.assert_silent();
    hold.release();
    first.told_to_ask().await;
    drop(first);
    for round in 0..20 {
        let mut next = push.subscribe_if_live("a").expect("it is confirmed");
        let text = round.to_string();
        assert_eq!(publish(&server, "a", &text), 1);
        let first = next.notices.recv().await;
        assert!(matches!(&first, Some(Notification::Granted { id, .. }) if **id == *text), "{first:?}");
        let mut asking = push.subscribe(0, "a", read);
        // The channel is confirmed already, so the notification comes at once.
        assert!(matches!(asking.notices.try_recv(), Ok(Notification::AskAgain)));
        assert!(next.notices.try_recv().is_err());
    }
    assert_eq!(server.proxy().requests_seen(Matcher::command("SSUBSCRIBE")), 1);
    assert_eq!(server.proxy().requests_seen(Matcher::command("SUNSUBSCRIBE")), 0);
    server.proxy().refuse();
    server.proxy().cut();
    until("the loss is noticed", || push.subscribe_if_live("a").is_none()).await;
}

#[tokio::test]
async fn the_oldest_of_too_many_channels_without_a_waiter_goes() {
    let (server, push, _node) = started(Pace { lingering_most: 2, ..pace() });
    let mut subscriptions = ["a", "b", "c", "d"].map(|channel| Waiter::new(&push, 0, channel));
    for subscription in &mut subscriptions {
        subscription.told_to_ask().await;
    }
    let [a, b, c, mut d] = subscriptions;
    drop(b);
    drop(a);
    // Used in between, so it is not the oldest any more.
    drop(push.subscribe_if_live("b").expect("it is confirmed"));
    drop(c);
    until("the oldest is gone", || shard_channels(&server) == ["b", "c", "d"]).await;
    assert!(push.subscribe_if_live("a").is_none());
    d.assert_silent();
    // Removed or not, the channel can be subscribed again.
    confirmed(&push, "a").await;
}

#[tokio::test]
async fn nothing_is_left_of_channels_that_nobody_needs() {
    let stage = Stage::start(Pace { linger: Duration::from_millis(300), ..pace() }).await;
    let primaries = stage.cluster.primaries();
    let baseline = tasks();
    for _ in 0..2 {
        let channels = primaries.iter().map(|primary| stage.channel_of(primary));
        let mut subscriptions: Vec<_> = channels.map(|channel| stage.subscribe(&channel)).collect();
        for subscription in &mut subscriptions {
            subscription.told_to_ask().await;
        }
        assert!(tasks() > baseline && stage.push.is_in_use());
        drop(subscriptions);
        until("tasks end", || tasks() <= baseline && !stage.push.is_in_use()).await;
        for primary in &primaries {
            until("the connection ends", || subscribers(primary).is_empty()).await;
            assert!(shard_channels(primary).is_empty());
        }
    }
}

#[tokio::test]
async fn many_channels_are_all_kept() {
    let (server, push, _node) = started(pace());
    let channels: Vec<_> = (0..500).map(|number| format!("channel {number:03}")).collect();
    let mut subscriptions: Vec<_> = channels.iter().map(|channel| Waiter::new(&push, 0, channel)).collect();
    for _ in 0..2 {
        for subscription in &mut subscriptions {
            subscription.told_to_ask().await;
        }
        assert_eq!(shard_channels(&server), channels);
        assert_eq!(server.kill_subscribers().expect("it kills"), 1);
    }
}

#[tokio::test]
async fn one_channel_goes_while_another_stays() {
    let (server, push, _node) = started(Pace { linger: Duration::from_millis(100), ..pace() });
    let (mut stays, goes) = (confirmed(&push, "stays").await, confirmed(&push, "goes").await);
    drop(goes);
    until("it is gone", || shard_channels(&server) == ["stays"]).await;
    stays.assert_silent();
}

#[tokio::test]
async fn dropping_it_ends_everything() {
    let server = Server::start(Version::Redis70).expect("the server starts");
    let baseline = tasks();
    let (push, _node) = single(server.addr(), pace());
    let mut subscription = confirmed(&push, "a").await;
    drop(push);
    assert!(subscription.subscription.notices.recv().await.is_none(), "its notifications end");
    until("tasks end", || tasks() == baseline).await;
    until("the connection ends", || subscribers(&server).is_empty()).await;
    drop(subscription);
}

#[test]
fn subscription_ends_with_the_runtime_that_serves_it_and_no_other_does() {
    let runtime = || tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    let (server, push, _node) = started(pace());
    let (ends, stays, stands) = (runtime(), runtime(), runtime());
    let subscribed = |on: &tokio::runtime::Runtime| on.block_on(confirmed(&push, "a"));
    let (mut ended, mut other, _not_driven) = (subscribed(&ends), subscribed(&stays), subscribed(&stands));
    drop(ends);
    assert!(push.subscribe_if_live("a").is_none(), "nobody reads a connection here");
    stays.block_on(async {
        let last = tokio::time::timeout(BOUND, ended.subscription.notices.recv()).await.expect("it ends at once");
        assert!(last.is_none(), "{last:?}");
        until("the server has noticed", || publish(&server, "a", "now") == 2).await;
        other.message("now").await;
        assert!(push.subscribe_if_live("a").is_some());
    });
    // A later runtime that reuses the number must not find the ended subscriptions.
    drop(subscribed(&runtime()));
}

#[tokio::test]
async fn a_server_that_refuses_is_asked_at_a_bounded_pace() {
    let (server, push, _node) = proxied(pace());
    server.acl_set_user("default", &["-ssubscribe"]).expect("it obeys");
    let began = Instant::now();
    let mut subscription = Waiter::new(&push, 0, "a");
    until("it is asked three times", || server.proxy().requests_seen(Matcher::command("SSUBSCRIBE")) >= 3).await;
    // Pauses of half a second and of a whole one.
    assert!(began.elapsed() >= Duration::from_millis(1500), "{:?}", began.elapsed());
    subscription.assert_silent();
    server.acl_set_user("default", &["+ssubscribe"]).expect("it obeys");
    subscription.told_to_ask().await;
}

#[tokio::test]
async fn everything_is_confirmed_again_at_times() {
    let (server, push, _node) = proxied(Pace { refresh: Duration::from_millis(50), ..pace() });
    let mut subscription = Waiter::new(&push, 0, "a");
    for _ in 0..5 {
        subscription.told_to_ask().await;
    }
    // A connection that has died unnoticed is found out.
    server.proxy().black_hole();
    until("the loss is noticed", || push.subscribe_if_live("a").is_none()).await;
    while subscription.subscription.notices.try_recv().is_ok() {}
    server.proxy().heal();
    subscription.told_to_ask().await;
}

/// Counts the breaks that are reported to it.
struct Counts(Arc<AtomicUsize>);

impl OnRecall for Counts {
    fn on_recall(&self, _: &Recall) {}
    fn on_break(&self) {
        self.0.fetch_add(1, Ordering::SeqCst);
    }
}

/// Listens for recalls on a channel, as long as the first value exists. The second one counts the breaks.
fn counting_listener(push: &Push, channel: &str) -> (Arc<Recalls>, Arc<AtomicUsize>) {
    let told = Arc::<AtomicUsize>::default();
    let calls = Arc::new(Recalls::new(Box::new(Counts(Arc::clone(&told)))));
    assert!(push.listen(0, channel, read, &calls), "there is a background runtime");
    (calls, told)
}

fn recall_listener(push: &Push, channel: &str) -> Arc<Recalls> {
    counting_listener(push, channel).0
}

#[tokio::test]
async fn recall_subscription_ends_when_no_hold_of_the_lock_is_cached() {
    let (server, push, _node) = started(Pace { linger: Duration::from_millis(100), ..pace() });
    let (remaining, left) = (recall_listener(&push, "kept"), recall_listener(&push, "left"));
    until("both are confirmed", || remaining.subscription().is_some() && left.subscription().is_some()).await;
    assert_eq!(shard_channels(&server), ["kept", "left"]);
    drop(left);
    until("one is gone", || shard_channels(&server) == ["kept"]).await;
    assert!(remaining.subscription().is_some());
    drop(remaining);
    until("both are gone", || !push.is_in_use()).await;
}

/// Returns the subscriptions of the only runtime that has any.
fn shared(push: &Push) -> Arc<PushShared> {
    let of = push.of.lock();
    Arc::clone(&of.first().expect("somebody subscribes").1)
}

/// Returns the only connection that subscribes.
fn origin(shared: &PushShared) -> Origin {
    let subscriptions = shared.subscriptions.lock();
    let (number, link) = subscriptions.links.iter().next().expect("a link");
    Origin { link: *number, connection: link.connection }
}

/// The task that reads a connection may still have pushes in hand when the link gives it up.
#[tokio::test]
async fn connection_that_was_given_up_confirms_nothing() {
    let (_server, push, _node) = started(pace());
    let remaining = recall_listener(&push, "kept");
    until("it is confirmed", || remaining.subscription().is_some()).await;
    let shared = shared(&push);
    let from = origin(&shared);
    shared.subscriptions.lock().unconfirm(from.link);
    shared.take(from, Pushed::Subscribed { channel: "kept" });
    assert!(remaining.subscription().is_none(), "nothing would be heard");
}

/// The pings of the first two connections get replies that answer no ping. Such a reply answers an earlier command, and
/// proves nothing about the time of the ping.
#[tokio::test]
async fn ping_that_is_answered_by_something_else_ends_the_connection() {
    let connections = Arc::<AtomicUsize>::default();
    let seen = Arc::clone(&connections);
    let answer = move |connection: usize, words: &[String]| {
        seen.fetch_max(connection + 1, Ordering::SeqCst);
        match (words[0].as_str(), connection) {
            ("HELLO", _) => fake::hello("standalone"),
            ("SSUBSCRIBE", _) => fake::push_of("ssubscribe", &words[1]),
            ("PING", 0) => "-MOVED 7 127.0.0.1:1\r\n".to_owned(),
            ("PING", 1) => "$4\r\nPONG\r\n".to_owned(),
            ("PING", _) => "+PONG\r\n".to_owned(),
            _ => "+OK\r\n".to_owned(),
        }
    };
    let (push, _node) = single(fake::answering(answer).await, pace());
    let (calls, told) = counting_listener(&push, "kept");
    until("it is told", || told.load(Ordering::SeqCst) > 0).await;
    until("it stands on the third", || connections.load(Ordering::SeqCst) == 3 && calls.subscription().is_some()).await;
}

/// Waker of a user.
struct Panics;

impl Wake for Panics {
    fn wake(self: Arc<Self>) {
        panic!("a waker that panics");
    }
}

#[tokio::test]
async fn waker_that_panics_keeps_nobody_else_from_being_told() {
    let (server, push, _node) = started(pace());
    let mut panics = confirmed(&push, "a").await;
    let mut other = confirmed(&push, "a").await;
    let connection = subscribers(&server);
    let waker = Waker::from(Arc::new(Panics));
    assert!(panics.subscription.notices.poll_recv(&mut Context::from_waker(&waker)).is_pending());
    for text in ["first", "second"] {
        other.hears(&server, text).await;
    }
    assert_eq!(subscribers(&server), connection, "the link goes on");
}

#[tokio::test]
async fn holder_of_a_cached_hold_learns_that_its_channel_moves() {
    let (_server, push, _node) = started(pace());
    let (calls, told) = counting_listener(&push, "kept");
    until("it is confirmed", || calls.subscription().is_some()).await;
    let shared = shared(&push);
    // As if the owner of its slot were not known any more: the keeper gives the channel a link anew.
    for channel in shared.subscriptions.lock().channels.values_mut() {
        channel.owner_link = None;
    }
    shared.strayed.notify_one();
    until("it is told", || told.load(Ordering::SeqCst) == 1).await;
}

#[tokio::test]
async fn no_more_linger_for_calls_than_may() {
    let (server, push, _node) = started(Pace { lingering_calls_most: 1, ..pace() });
    let listeners = ["a", "b", "c"].map(|channel| recall_listener(&push, channel));
    until("all are confirmed", || listeners.iter().all(|calls| calls.subscription().is_some())).await;
    drop(listeners);
    until("one is left", || shard_channels(&server).len() == 1).await;
    // The next listener for recalls finds it confirmed at once.
    let left = shard_channels(&server).remove(0);
    assert!(recall_listener(&push, &left).subscription().is_some());
}

#[tokio::test]
async fn names_that_never_come_back_do_not_pile_up_between_two_looks() {
    let (_server, push, _node) = started(Pace { lingering_calls_most: 1, ..pace() });
    for n in 0..5 * BURST {
        drop(recall_listener(&push, &format!("once-{n}")));
    }
    let channels = push.common.count.load(Ordering::Acquire);
    assert!(channels <= BURST + 2, "{channels}");
}

#[tokio::test]
async fn channel_of_recalls_is_subscribed_once() {
    let (server, push, _node) = proxied(Pace { refresh: Duration::from_millis(50), ..pace() });
    let (remaining, left) = (recall_listener(&push, "kept"), recall_listener(&push, "left"));
    until("both are confirmed", || shard_channels(&server) == ["kept", "left"]).await;
    drop(left);
    let mut subscription = Waiter::new(&push, 0, "a");
    for _ in 0..5 {
        subscription.told_to_ask().await;
    }
    for channel in ["kept", "left"] {
        let asked = server.proxy().requests_seen(Matcher::command("SSUBSCRIBE").and(Matcher::containing(channel)));
        assert_eq!(asked, 1, "{channel}");
    }
    drop(remaining);
}

#[tokio::test]
async fn a_message_is_judged_by_the_main_connection_to_its_node() {
    let (server, push, node) = started(pace());
    let mut subscription = confirmed(&push, "a").await;
    assert_eq!(subscription.hears(&server, "there is no main connection").await, None);
    node.ready().await.expect("it answers");
    assert_eq!(subscription.hears(&server, "the main connection is newer").await, None);
    subscription.told_to_ask().await;
    let clock_sample = subscription.hears(&server, "all is well").await.expect("a clock sample");
    assert_eq!(Some(clock_sample), node.clock_sample().map(|(_, clock_sample)| clock_sample));

    assert_eq!(server.kill_clients().expect("it kills"), 1);
    node.ask(&redis::cmd("TIME")).await.expect_err("the connection is gone");
    assert_eq!(subscription.hears(&server, "there is none any more").await, None);
    node.ready().await.expect("it answers");
    assert_eq!(subscription.hears(&server, "the other is newer").await, None);
    subscription.told_to_ask().await;
    let newer = subscription.hears(&server, "all is well again").await.expect("a clock sample");
    assert!(newer.sent > clock_sample.sent);

    // After a new connection of the link the old clock sample must not count either, until the link has had an answer.
    assert_eq!(server.kill_subscribers().expect("it kills"), 1);
    subscription.told_to_ask().await;
    subscription.assert_silent();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_message_right_behind_the_confirmation_is_judged_too() {
    let (server, push, node) = proxied(pace());
    node.ready().await.expect("it answers");
    let confirmation = server.proxy().hold_reply(Matcher::command("SSUBSCRIBE"));
    let mut subscription = Waiter::new(&push, 0, "a");
    confirmation.wait_applied(BOUND).expect("it is asked for");
    assert_eq!(publish(&server, "a", "first"), 1);
    confirmation.release();
    subscription.told_to_ask().await;
    assert!(subscription.message("first").await.is_some());
    assert_eq!(publish(&server, "a", "second"), 1);
    let second = subscription.notification().await;
    assert!(matches!(second, Notification::Granted { .. }), "nothing was missed in between: {second:?}");
}

#[tokio::test]
async fn clock_sample_that_is_too_old_is_none() {
    let (server, push, node) = started(Pace { max_clock_sample_age: Duration::ZERO, ..pace() });
    node.ready().await.expect("it answers");
    let mut subscription = confirmed(&push, "a").await;
    assert_eq!(subscription.hears(&server, "old").await, None);
}

#[tokio::test]
async fn suspect_node_has_no_clock_sample_and_its_channels_are_not_certain() {
    let cluster = Cluster::builder(Version::Redis70).replicas(0).proxied().start();
    let stage = Stage::of(cluster, Pace { response_timeout: BOUND, ..pace() }).await;
    let (owner, channel) = stage.owner_and_channel();
    let slot = stage.cluster.keyslot(&channel);
    let node = stage.fleet.owner(slot).await.expect("it is known");
    node.ready().await.expect("it answers");
    let mut subscription = stage.confirmed(&channel).await;
    assert!(subscription.hears(owner, "trusted").await.is_some());
    // The node stays suspect until this is answered.
    let held = owner.proxy().hold_request(Matcher::command("TIME"));
    stage.fleet.suspect(&node, SuspectReason::Silent);
    assert!(stage.push.subscribe_if_live(&channel).is_none());
    assert_eq!(subscription.hears(owner, "suspect").await, None);
    until("it is asked", || held.wait_held(Duration::from_millis(1)).is_ok()).await;
    held.release();
    until("it is trusted", || stage.push.subscribe_if_live(&channel).is_some()).await;
    assert!(subscription.hears(owner, "trusted").await.is_some());
}

/// Waker of a user that subscribes, and counts how often it could.
struct Subscribes {
    push: Push,
    woken: AtomicUsize,
}

impl Wake for Subscribes {
    fn wake(self: Arc<Self>) {
        drop(self.push.subscribe(0, "another", read));
        self.woken.fetch_add(1, Ordering::SeqCst);
    }
}

#[test]
fn waker_that_subscribes_when_it_is_told_does_not_hang() {
    let (server, push, _node) = started(pace());
    let runtime =
        tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build().expect("a runtime");
    let subscribes = Arc::new(Subscribes { push, woken: AtomicUsize::new(0) });
    let is_woken = |subscribes: &Subscribes, times| comes_true(|| subscribes.woken.load(Ordering::SeqCst) >= times);
    // A thread of its own: this one must not hang.
    let handle = runtime.handle().clone();
    let ends = std::thread::spawn(move || {
        let _entered = handle.enter();
        let waker = Waker::from(Arc::clone(&subscribes));
        let mut context = Context::from_waker(&waker);
        let mut subscription = subscribes.push.subscribe(0, "a", read);
        // First the confirmation, then a message, then the end.
        assert!(subscription.notices.poll_recv(&mut context).is_pending());
        assert!(is_woken(&subscribes, 1), "hangs at the confirmation");
        while subscription.notices.poll_recv(&mut context).is_ready() {}
        publish(&server, "a", "told");
        assert!(is_woken(&subscribes, 2), "hangs at a message");
        while subscription.notices.poll_recv(&mut context).is_ready() {}
        drop(subscription);
    });
    let has_ended = comes_true(|| ends.is_finished());
    runtime.shutdown_background();
    assert!(has_ended, "hangs");
    ends.join().expect("the wakers ran");
}

/// Value that subscribes when it is dropped.
struct Late(Arc<Push>);

impl Drop for Late {
    fn drop(&mut self) {
        drop(self.0.subscribe(0, "late", read));
    }
}

/// A runtime that shuts down drops a task within the call that spawns it.
#[test]
fn runtime_may_shut_down_under_a_subscription() {
    let (_server, push, _node) = started(pace());
    let push = Arc::new(push);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    let late = Late(Arc::clone(&push));
    let (started, starts) = std::sync::mpsc::channel();
    runtime.spawn(async move {
        started.send(()).expect("somebody listens");
        std::future::pending::<()>().await;
        drop(late);
    });
    starts.recv_timeout(BOUND).expect("it starts");
    let ends = std::thread::spawn(move || drop(runtime));
    assert!(comes_true(|| ends.is_finished()), "the runtime ends");
    ends.join().expect("it ends without a panic");
    let another = tokio::runtime::Runtime::new().expect("a runtime starts");
    another.block_on(confirmed(&push, "late"));
}

#[test]
fn subscribing_outside_of_a_runtime_panics_and_does_not_hang() {
    let (_server, push, _node) = started(pace());
    let push = Arc::new(push);
    let runtime = tokio::runtime::Runtime::new().expect("a runtime starts");
    // No call has started a keeper or a link yet.
    let subscribing = Arc::clone(&push);
    let outside = std::thread::spawn(move || drop(subscribing.subscribe(0, "outside", read)));
    assert!(comes_true(|| outside.is_finished()), "it hangs");
    assert!(outside.join().is_err());
    runtime.block_on(confirmed(&push, "outside"));
}
