//! A frozen primary that wakes after another has taken its place. It answers OK to the requests in its sockets, and no
//! manager believes it.

use std::sync::Arc;
use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Matcher, Server};
use futures_util::FutureExt;
use parking_lot::Mutex;
use redis_rwlock::{HoldState, HoldWatch, WriteGuard};
use tokio::task::block_in_place;

use super::field::{Field, name_of, on_own_servers};
use crate::fixture::{Manager, Settings};
use crate::nodes::{hash_on, proxied};
use crate::servers::{SUPPORTED, ask};
use crate::wait::{BOUND, Outcome, granted, soon, spawn, until};
use crate::wire::is_held;

on_own_servers![
    grant_that_comes_when_it_is_no_longer_true_is_not_believed,
    frozen_primary_is_left_for_the_one_that_took_its_place,
    woken_primary_is_not_believed,
];

const REPETITIONS: usize = 50;

/// The cheap form, fifty times. The server grants, and its reply hangs in the network. The grant is lost with the
/// server's data, as with a primary whose successor never had it, and another process takes the lock. Then the reply
/// comes. No server is frozen here, because only one thing matters: the reply is older than the response timeout.
async fn grant_that_comes_when_it_is_no_longer_true_is_not_believed(server: Server) -> Outcome {
    let node = proxied(server);
    let fixture = hash_on(&node);
    let quick = Settings { response_timeout: Duration::from_millis(60), ..Settings::label("late") };
    let (late, other) = (fixture.manager_with(quick).await, fixture.manager().await);
    // Both know the script from now on.
    other.write(&fixture.name()).await?.release().await?;
    for repetition in 0..REPETITIONS {
        let name = fixture.name();
        let key = fixture.hash_key(&name);
        let copies = Matcher::command("EVALSHA").and(key.as_str()).and(".late");
        let first = node.proxy().hold_reply(copies.clone());
        let asking = spawn(late.write(&name));
        block_in_place(|| first.wait_applied(BOUND)).expect("granted by the server");
        // The proxy holds the repeated request, so that it cannot be granted next.
        let second = node.proxy().hold_request(copies.clone());
        ask(&node, &["DEL", &key]);
        let guard = other.write(&name).await?;
        is_held(&second).await;
        first.release();
        second.release();
        // The next request goes out when the manager has read the second reply, which comes after the first one.
        let seen = node.proxy().requests_seen(copies.clone());
        until("more copies", async || node.proxy().requests_seen(copies.clone()) > seen).await;
        assert!(!asking.is_finished(), "repetition {repetition}: an old reply was believed");
        assert_eq!(guard.state(), HoldState::Held);
        let token = guard.fencing_token();
        guard.release().await?;
        let heir = granted(asking).await;
        assert!(heir.fencing_token() > token, "repetition {repetition}");
        heir.release().await?;
        node.proxy().forget_requests();
    }
    Ok(())
}

fn quick() -> Settings {
    Settings { response_timeout: Duration::from_millis(300), ..Settings::lease(Duration::from_secs(3)) }
}

/// A frozen primary seems to accept connections: its kernel does, for a process that stands still.
async fn frozen_primary_is_left_for_the_one_that_took_its_place(server: Server) -> Outcome {
    let cluster = Cluster::builder(server).node_timeout(Duration::from_secs(1)).start();
    let field = Field::on(cluster);
    let manager = field.manager_with(quick()).await;
    let tag = field.tag();
    manager.write(&name_of(&tag, 0)).await?.release().await?;
    let old = field.owner(&tag);
    old.pause();
    // The test orders no failover: the other primaries notice the failure and elect a replica.
    let guard = soon("a grant by the successor", async {
        loop {
            // The election may last longer than `unreachable_after`.
            if let Ok(guard) = manager.write(&name_of(&tag, 1)).await {
                break guard;
            }
        }
    })
    .await;
    assert!(!old.is_running(), "it still stands still");
    assert_ne!(field.owner(&tag).port(), old.port());
    guard.release().await.expect("the successor knows it");
    old.resume();
    manager.write(&name_of(&tag, 1)).await?.release().await?;
    Ok(())
}

/// Guards that were inside a lock, each by its own local clock: no two of them may be valid at once.
#[derive(Default)]
struct History(Mutex<Vec<HoldWatch>>);

impl History {
    /// Notes a new guard, and asserts that none of those before is still valid.
    fn enter(&self, guard: &WriteGuard) {
        let mut entered = self.0.lock();
        let valid = entered.iter().filter(|watch| is_valid(watch)).count();
        assert_eq!(valid, 0, "two are inside: {entered:?} and {guard:?}");
        assert!(entered.iter().all(|watch| watch.fencing_token() < guard.fencing_token()), "{entered:?} and {guard:?}");
        entered.push(guard.watch());
    }
}

/// Returns true if the hold is valid for its holder.
fn is_valid(watch: &HoldWatch) -> bool {
    watch.ended().now_or_never().is_none()
}

/// The dear form: a primary is stopped with an acquisition in its socket, a replica takes its place, the lock is taken
/// there, and the old one wakes. Returns whether it answered OK to what lay in its sockets.
async fn wake_an_old_primary(field: &Field, managers: &[Manager; 2], tag: &str, name: &str) -> bool {
    let old = field.owner(tag);
    let key = field.hash_key(&name.replace("-", "-witness-"));
    let mut stranger = old.client().expect("connected");
    let history = Arc::new(History::default());
    old.pause();
    stranger.send(&["SET", &key, "1"]).expect("it lies in the socket");
    // Both have a connection to it already, on which their acquisitions lie now.
    let contend = |manager: &Manager| {
        let (manager, name, history) = (Arc::clone(manager), name.to_owned(), Arc::clone(&history));
        // The first poll sends. It is made here, so that nothing is sent after the time that is counted below.
        let mut acquiring = Box::pin(manager.write(&name).into_future());
        assert!(acquiring.as_mut().now_or_never().is_none(), "nobody answers");
        tokio::spawn(async move {
            let guard = acquiring.await.expect("granted by the successor");
            history.enter(&guard);
            // Stays inside for longer than the old primary can take to learn of its fate.
            tokio::time::sleep(Duration::from_millis(300)).await;
            guard.release().await.expect("ours to the end");
        })
    };
    let contenders = managers.each_ref().map(contend);
    let sent = Instant::now();
    field.cluster.failover_force(old).expect("a replica takes over");
    // Waits until no manager believes a reply to the requests in the old primary's sockets.
    tokio::time::sleep(quick().response_timeout.saturating_sub(sent.elapsed())).await;
    old.resume();
    let answered_ok = stranger.receive().is_ok_and(|reply| reply.is_ok());
    for contender in contenders {
        soon("both to have been inside", contender).await.expect("one after the other");
    }
    answered_ok
}

async fn wake_old_primaries(server: Server, rounds: usize) -> usize {
    // A primary votes only once within two node timeouts for a replica of the same primary, so these must be short.
    let field = Field::on(Cluster::builder(server).node_timeout(Duration::from_secs(1)).start());
    let managers = [field.manager_with(quick()).await, field.manager_with(quick()).await];
    let tag = field.tag();
    let mut answered_ok = 0;
    for round in 0..rounds {
        for (n, manager) in managers.iter().enumerate() {
            let name = name_of(&tag, 1000 + n);
            manager.write(&name).await.expect("granted").release().await.expect("released");
        }
        let name = name_of(&tag, round);
        answered_ok += usize::from(wake_an_old_primary(&field, &managers, &tag, &name).await);
        field.cluster.wait_ok().expect("well again");
        field.nothing_is_left([name]).await;
    }
    answered_ok
}

async fn woken_primary_is_not_believed(server: Server) {
    wake_old_primaries(server, 3).await;
}

/// `cargo test --test it -- --ignored fifty` runs it, in some minutes.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
#[ignore = "takes minutes; three rounds of it run always"]
async fn fifty_woken_primaries_are_not_believed() {
    for server in SUPPORTED {
        let began = Instant::now();
        let answered_ok = wake_old_primaries(server, REPETITIONS).await;
        println!("{server}: {answered_ok} of {REPETITIONS} answered OK when they woke, in {:?}", began.elapsed());
    }
}
