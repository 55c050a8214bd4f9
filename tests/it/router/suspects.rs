//! Nodes that are silent, refuse connections, or own nothing any more: which nodes a manager asks then, and how often.

use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread;
use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Server};
use redis_rwlock::{Error, HoldState, RedisManager, RwLockManager, Topology};
use tokio::task::JoinSet;

use super::field::{Field, Load, name_of, on_own_servers};
use crate::fixture::{Fixture, Manager, RENEWED, Settings};
use crate::servers::ask;
use crate::wait::{Outcome, granted, soon, spawn, until};

on_own_servers![
    others_are_asked_about_a_silent_node_and_no_more_often_than_needed,
    slot_without_an_owner_is_asked_for_together,
    holds_and_waiters_follow_to_the_new_primary,
    connections_to_nodes_that_own_nothing_are_closed,
];
crate::fixture::on_two_threads![
    replaced_primary_is_never_asked_for_the_map,
    node_that_closes_all_connections_is_dialled_at_a_steady_rate,
];

const TASKS: usize = 256;
/// Least pause between two requests for the map while something is wrong with it.
const LOOK_AGAIN: Duration = Duration::from_millis(100);
/// Least pause between two dials of a node that cannot be reached.
const DIAL_PAUSE: Duration = Duration::from_millis(50);

fn impatient() -> Settings {
    Settings {
        response_timeout: Duration::from_millis(200),
        unreachable_after: Duration::from_secs(1),
        ..Settings::default()
    }
}

/// Starts `TASKS` tasks that ask for a lock of their own. Each learns within `bound` that the lock is unreachable.
async fn all_are_told_that_it_is_unreachable(manager: &Manager, tag: &str, bound: Duration) {
    let mut tasks = JoinSet::new();
    for n in 0..TASKS {
        let (manager, name) = (Arc::clone(manager), name_of(tag, n));
        tasks.spawn(async move {
            let asked = Instant::now();
            (manager.write(&name).await.map(drop), asked.elapsed())
        });
    }
    while let Some(ended) = tasks.join_next().await {
        let (outcome, waited) = ended.expect("no panic");
        let error = outcome.expect_err("nobody answers for it");
        assert_matches!(error, Error::Unreachable { .. });
        assert!(waited < bound, "told after {waited:?}");
    }
}

/// Longest wait for an unreachable lock: `unreachable_after`, and one failed try with a dial and the requests on it.
fn told_within(settings: &Settings) -> Duration {
    // The rest is for a busy machine.
    settings.unreachable_after + settings.response_timeout * 3 + Duration::from_secs(3)
}

async fn others_are_asked_about_a_silent_node_and_no_more_often_than_needed(server: Server) -> Outcome {
    let field = Field::primaries(server);
    let manager = field.manager_with(impatient()).await;
    let tags = field.tags();
    let silent = field.owner(&tags[0]);
    for tag in &tags {
        manager.write(&name_of(tag, 0)).await?.release().await?;
    }
    silent.pause();
    let (began, asked_before) = (Instant::now(), field.calls_of("cluster|slots"));
    all_are_told_that_it_is_unreachable(&manager, &tags[0], told_within(&impatient())).await;
    let asked = field.calls_of("cluster|slots") - asked_before;
    // The manager asks both other nodes at the same time. The environment asks them too, for the owners of slots.
    let most = (began.elapsed().as_millis() / LOOK_AGAIN.as_millis() + 2) as u64 * 2;
    assert!((1..=most).contains(&asked), "CLUSTER SLOTS {asked} times in {:?}", began.elapsed());
    for tag in &tags[1..] {
        let guard = granted(manager.write(&name_of(tag, 0))).await;
        guard.release().await?;
    }
    silent.resume();
    let guard = soon("the lock of the node that woke", manager.write(&name_of(&tags[0], 0))).await;
    guard.expect("granted").release().await?;
    field.nothing_is_left((0..TASKS).map(|n| name_of(&tags[0], n))).await;
    Ok(())
}

/// Replaces a primary that is cut off from the others. It still answers, knows only itself, and would say so as often
/// as it is asked. Newer servers tell each other which nodes to forget, so no test can cut one off like this.
async fn replaced_primary_is_never_asked_for_the_map() {
    let field = Field::with_replicas(Server::Redis70);
    let manager = field.manager_with(impatient()).await;
    let tags = field.tags();
    let take = async |tag: &str| {
        let guard = granted(manager.write(&name_of(tag, 0))).await;
        guard.release().await.expect("released");
    };
    for tag in &tags {
        take(tag).await;
    }
    let replaced = field.owner(&tags[0]);
    for node in field.cluster.nodes().iter().filter(|node| node.port() != replaced.port()) {
        let id = ask(node, &["CLUSTER", "MYID"]).text().expect("an id").into_owned();
        ask(replaced, &["CLUSTER", "FORGET", &id]);
    }
    let is_down = async || ask(replaced, &["CLUSTER", "INFO"]).text().is_some_and(|text| text.contains("state:fail"));
    until("it is alone", is_down).await;
    replaced.proxy().forget_requests();
    let heir = field.cluster.failover_force(replaced).expect("a replica takes over");
    let probe = format!("{{{}}}", tags[0]);
    until("the new primary works", async || heir.command(&["SET", &probe, "1"]).is_ok_and(|reply| reply.is_ok())).await;
    take(&tags[0]).await;
    // Cuts the new primary's connections, so that the manager asks for the map again and again.
    for _ in 0..20 {
        let before = field.calls_of("cluster|slots");
        until("another question", async || {
            heir.proxy().cut();
            take(&tags[0]).await;
            field.calls_of("cluster|slots") > before
        })
        .await;
    }
    assert_eq!(replaced.proxy().requests_seen(Matcher::command("CLUSTER")), 0, "it was asked");
}

async fn slot_without_an_owner_is_asked_for_together(server: Server) -> Outcome {
    let field = Field::primaries(server);
    let manager = field.manager_with(impatient()).await;
    let tag = field.tag();
    let (slot, owner) = (field.cluster.keyslot(&tag).to_string(), field.owner(&tag));
    manager.write(&name_of(&tag, 0)).await?.release().await?;
    for node in field.cluster.nodes() {
        node.command(&["CLUSTER", "DELSLOTS", &slot])?.into_result().expect("taken away");
    }
    let (began, asked_before) = (Instant::now(), field.calls_of("cluster|slots"));
    all_are_told_that_it_is_unreachable(&manager, &tag, told_within(&impatient())).await;
    let asked = field.calls_of("cluster|slots") - asked_before;
    // Up to three nodes are asked each time, by the refresh loop and by callers that need the slot.
    let most = (began.elapsed().as_millis() / LOOK_AGAIN.as_millis() + 2) as u64 * 6;
    assert!((1..=most).contains(&asked), "CLUSTER SLOTS {asked} times in {:?}", began.elapsed());
    let patient = field.manager().await;
    let waiting = spawn(patient.write(&name_of("elsewhere", 0)));
    owner.command(&["CLUSTER", "ADDSLOTS", &slot])?.into_result().expect("given back");
    drop(soon("the slot's owner", waiting).await?.expect("granted as soon as the cluster works"));
    let guard = soon("a lock of the slot", field.manager().await.write(&name_of(&tag, 0))).await;
    guard.expect("granted").release().await?;
    field.nothing_is_left((0..TASKS).map(|n| name_of(&tag, n))).await;
    Ok(())
}

async fn holds_and_waiters_follow_to_the_new_primary(server: Server) -> Outcome {
    let field = Field::with_replicas(server);
    let managers =
        [field.manager_with(Settings::lease(RENEWED)).await, field.manager_with(Settings::lease(RENEWED)).await];
    let tag = field.tag();
    let held = managers[0].write(&name_of(&tag, 99)).await?;
    let names: Vec<String> = (0..4).map(|n| name_of(&tag, n)).collect();
    let load = Load::start(&managers, names.clone(), 64);
    for when in ["there", "back"] {
        load.goes_on("before", 10).await;
        // The old primary agrees to this failover. No write is lost, so no two writers may be inside together.
        let new = field.cluster.failover(field.owner(&tag))?;
        new.proxy().forget_requests();
        load.goes_on(when, 10).await;
        tokio::time::sleep(RENEWED).await;
        assert_eq!(held.state(), HoldState::Held, "{when}");
        assert!(
            new.proxy().requests_seen(Matcher::containing(field.hash_key(&name_of(&tag, 99)))) > 0,
            "renewed there"
        );
        field.cluster.wait_ok().expect("well again");
    }
    held.release().await?;
    load.end().await;
    field.nothing_is_left(names).await;
    Ok(())
}

async fn connections_to_nodes_that_own_nothing_are_closed(server: Server) {
    let field = Field::with_replicas(server);
    let tags = field.tags();
    let (leaving, seed) = (field.owner(&tags[0]), field.owner(&tags[1]));
    // The manager knows the other nodes from the cluster only. It would keep the nodes that its user named.
    let fixture = Fixture::hash(Topology::cluster([seed.url()]));
    let manager = fixture.manager().await;
    let take = async || {
        let guard = manager.write(&name_of(&tags[0], 0)).await.expect("granted");
        guard.release().await.expect("released");
    };
    take().await;
    field.cluster.failover(leaving).expect("a replica takes over");
    field.cluster.wait_ok().expect("well again");
    // No replica follows the node any more, so connections through its proxy are the manager's.
    take().await;
    until("the connection to the former primary is closed", async || leaving.proxy().connections() == 0).await;
    take().await;
}

/// Starts a server that accepts connections and closes them. Returns its URL and the number of connections.
fn closing_server() -> (String, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
    let url = format!("redis://{}", listener.local_addr().expect("bound"));
    let accepted = Arc::new(AtomicUsize::new(0));
    let count = Arc::clone(&accepted);
    thread::spawn(move || {
        for stream in listener.incoming() {
            drop(stream);
            count.fetch_add(1, Ordering::SeqCst);
        }
    });
    (url, accepted)
}

async fn dials_are_few(topology: Topology, accepted: &AtomicUsize) {
    let settings = impatient();
    let builder = RedisManager::builder(topology).unreachable_after(settings.unreachable_after);
    let manager: Manager = Arc::new(builder.build().expect("valid options"));
    let began = Instant::now();
    all_are_told_that_it_is_unreachable(&manager, "tag", told_within(&Settings::default())).await;
    let (dials, took) = (accepted.load(Ordering::SeqCst), began.elapsed());
    let most = (took.as_millis() / DIAL_PAUSE.as_millis()) as usize + 2;
    assert!((2..=most).contains(&dials), "{dials} connections in {took:?}");
    drop(manager.close());
}

async fn node_that_closes_all_connections_is_dialled_at_a_steady_rate() {
    let (url, accepted) = closing_server();
    dials_are_few(Topology::node(url), &accepted).await;
    let (url, accepted) = closing_server();
    dials_are_few(Topology::cluster([url]), &accepted).await;
}
