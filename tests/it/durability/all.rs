//! Grants that all replicas have to acknowledge: the servers say how many these are.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Matcher, Node, Sentinels, Server};
use redis_rwlock::{Durability, Error, Replicas, Topology};
use tokio::task::block_in_place;

use super::{Field, on_a_pair};
use crate::fixture::{Fixture, Settings};
use crate::nodes::{follow, role_of};
use crate::router::field::on_own_servers;
use crate::servers::{ask, wait_until_followed_by};
use crate::topology::behind_sentinels;
use crate::wait::{BOUND, Outcome, granted, soon, spawn, until, works};
use crate::wire::{is_applied, is_held};

on_a_pair![
    replica_that_attaches_is_required_a_second_later,
    replica_that_is_gone_stays_required,
    grant_is_not_sent_before_the_replicas_are_known,
];
on_own_servers![
    replica_that_a_cluster_names_is_required_until_it_is_forgotten,
    no_grant_counts_where_a_cluster_has_no_replica_left,
    old_primary_is_required_behind_sentinels,
    silent_sentinels_lower_no_number,
    refusing_sentinel_beside_silent_ones_stops_no_grant,
];

/// Time that a primary waits for its replicas.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Age at which a manager asks for the replicas again.
const LOOK: Duration = Duration::from_secs(1);

fn all() -> Settings {
    let durability = Durability::Replicated { replicas: Replicas::All, timeout: TIMEOUT };
    Settings {
        durability,
        response_timeout: TIMEOUT * 2,
        unreachable_after: BOUND,
        lease: BOUND,
        ..Settings::default()
    }
}

/// Matches the `WAIT` for this number of replicas.
fn wait_for(replicas: u64) -> Matcher {
    Matcher::new(move |request| request.name() == "WAIT" && request.args()[1] == replicas.to_string().as_bytes())
}

fn assert_missing<T>(result: Result<T, Error>, of: u64, attached: u64) {
    let error = result.map(drop).expect_err("a replica lacks it");
    assert_matches!(error, Error::NotEnoughReplicas { asked, acknowledged, node: Some(_), .. } if (*asked, *acknowledged) == (of, attached));
}

/// Number of replicas that the primary counts.
fn online(primary: &Node) -> usize {
    let info = ask(primary, &["INFO", "replication"]).text().expect("a text").into_owned();
    info.lines().filter(|line| line.starts_with("slave") && line.contains("state=online")).count()
}

/// Waits until the primary counts this number of replicas, and each acknowledges new writes.
async fn follows(primary: &Node, replicas: u32) {
    block_in_place(|| wait_until_followed_by(primary, replicas.into(), "follows"));
    until("the primary counts them", async || online(primary) == replicas as usize).await;
}

async fn attach(f: &Field) -> Node {
    let builder = Node::builder(f.pair.primary.server()).arg("--repl-diskless-sync-delay", "0");
    let replica = builder.start().expect("the server starts");
    follow(&replica, &f.pair.primary);
    follows(&f.pair.primary, 2).await;
    replica
}

async fn replica_that_attaches_is_required_a_second_later(f: &Field) {
    let ([manager], name) = f.fixture.scene_with(all()).await;
    let proxy = f.pair.primary.proxy();
    works(&*manager, &name).await;
    assert!(proxy.requests_seen(wait_for(1)) >= 1, "one is attached");
    let second = attach(f).await;
    let attached = Instant::now();
    assert_eq!(proxy.requests_seen(wait_for(2)), 0);

    tokio::time::sleep_until((attached + LOOK).into()).await;
    proxy.forget_requests();
    works(&*manager, &name).await;
    assert!(proxy.requests_seen(wait_for(2)) >= 1 && proxy.requests_seen(wait_for(1)) == 0, "it is required now");
    second.pause();
    assert_missing(manager.write(&name).await, 2, 1);
    f.fixture.becomes_free(&name).await;
    second.resume();
    until("its acknowledgements count", async || {
        let guard = manager.try_write(&name).await;
        guard.is_ok_and(|guard| guard.is_some())
    })
    .await;

    // Many grants share one question.
    f.fixture.becomes_free(&name).await;
    let (asked, began) = (proxy.requests_seen(Matcher::command("INFO").and("replication")), Instant::now());
    for _ in 0..50 {
        works(&*manager, &name).await;
    }
    let asked = proxy.requests_seen(Matcher::command("INFO").and("replication")) - asked;
    assert!(asked <= usize::try_from(began.elapsed().as_secs()).expect("a few") + 1, "{asked} questions");
}

async fn replica_that_is_gone_stays_required(f: &Field) {
    let second = attach(f).await;
    let ([manager], name) = f.fixture.scene_with(all()).await;
    works(&*manager, &name).await;
    second.pause();
    let asked = Instant::now();
    assert_missing(manager.write(&name).await, 2, 1);
    assert!(asked.elapsed() >= TIMEOUT, "it was not waited for");
    f.fixture.becomes_free(&name).await;

    second.kill();
    until("the primary has lost it", async || online(&f.pair.primary) == 1).await;
    tokio::time::sleep(LOOK).await;
    assert_missing(manager.write(&name).await, 2, 1);
    f.fixture.becomes_free(&name).await;
    // A new manager has never seen two.
    works(&*f.fixture.manager_with(all()).await, &name).await;

    second.restart().expect("it starts");
    follow(&second, &f.pair.primary);
    follows(&f.pair.primary, 2).await;
    works(&*manager, &name).await;
}

async fn grant_is_not_sent_before_the_replicas_are_known(f: &Field) -> Outcome {
    let (manager, name, proxy) = (f.fixture.manager_with(all()).await, f.fixture.name(), f.pair.primary.proxy());
    let question = || Matcher::command("INFO").and("replication");
    f.loads_all_scripts(&manager).await;
    tokio::time::sleep(LOOK).await;
    let asks = proxy.hold_request(question());
    let asking = spawn(manager.write(&name));
    is_held(&asks).await;
    assert_eq!(proxy.requests_seen(Matcher::command("EVALSHA").and(name.as_str())), 0, "no number is known");
    asks.release();
    let guard = granted(asking).await;
    guard.release().await?;

    // An answer that never comes costs a response timeout, and the request is sent after the next one.
    tokio::time::sleep(LOOK).await;
    let answer = proxy.hold_reply(question());
    let asking = spawn(manager.write(&name));
    is_applied(&answer).await;
    answer.drop_reply();
    let guard = granted(asking).await;
    guard.release().await?;

    // An answer that is too old when it comes does not count. The manager asks again before it sends the request.
    tokio::time::sleep(LOOK).await;
    let scripts = || proxy.requests_seen(Matcher::command("EVALSHA").and(name.as_str()));
    let (answer, sent) = (proxy.hold_reply(question()), scripts());
    let asking = spawn(manager.write(&name));
    is_applied(&answer).await;
    tokio::time::sleep(LOOK).await;
    let asks = proxy.hold_request(question());
    answer.release();
    is_held(&asks).await;
    assert_eq!(scripts(), sent, "no number is known");
    asks.release();
    let guard = granted(asking).await;
    guard.release().await?;
    f.fixture.becomes_free(&name).await;
    Ok(())
}

async fn replica_that_a_cluster_names_is_required_until_it_is_forgotten(server: Server) {
    let builder = Cluster::builder(server).primaries(1).replicas(2).node_timeout(Duration::from_secs(2)).proxied();
    let cluster = builder.start().expect("the cluster starts");
    let primary = cluster.primaries()[0];
    let [lost, other] = cluster.replicas_of(primary)[..] else { panic!("two replicas") };
    let lost_id = ask(lost, &["CLUSTER", "MYID"]).text().expect("an id").into_owned();
    follows(primary, 2).await;
    let f = Fixture::hash(Topology::cluster(cluster.urls()));
    let ([manager], name) = f.scene_with(all()).await;
    works(&*manager, &name).await;
    assert!(primary.proxy().requests_seen(wait_for(2)) >= 1 && primary.proxy().requests_seen(wait_for(1)) == 0);

    lost.kill();
    let is_failed = async || {
        let nodes = ask(primary, &["CLUSTER", "NODES"]).text().expect("a text").into_owned();
        nodes.lines().any(|line| line.starts_with(&lost_id) && line.contains("slave,fail "))
    };
    until("the cluster knows that it failed", is_failed).await;
    tokio::time::sleep(LOOK).await;
    assert_missing(manager.write(&name).await, 2, 1);
    assert_missing(f.connect(all()).await, 2, 1);
    f.becomes_free(&name).await;

    for node in [primary, other] {
        ask(node, &["CLUSTER", "FORGET", &lost_id]);
    }
    tokio::time::sleep(LOOK).await;
    primary.proxy().forget_requests();
    works(&*manager, &name).await;
    assert!(primary.proxy().requests_seen(wait_for(1)) >= 1, "one is named");
}

async fn no_grant_counts_where_a_cluster_has_no_replica_left(server: Server) {
    let cluster = Cluster::builder(server).node_timeout(Duration::from_secs(2)).start().expect("the cluster starts");
    let f = Fixture::hash(Topology::cluster(cluster.urls()));
    let ([manager], name) = f.scene_with(all()).await;
    works(&*manager, &name).await;
    let old = cluster.primary_of_slot(cluster.keyslot(f.hash_key(&name)));
    let heir = cluster.replicas_of(old)[0];
    old.kill();
    until("the replica has taken over", async || role_of(heir) == "master").await;
    assert_missing(soon("an answer", manager.write(&name)).await, 1, 0);
    f.becomes_free(&name).await;
    old.restart().expect("it starts");
    let key = f.hash_key(&name).replace(":lock", ":follows");
    until("the old primary follows", async || online(heir) == 1).await;
    block_in_place(|| wait_until_followed_by(heir, 1, &key));
    works(&*manager, &name).await;
}

async fn old_primary_is_required_behind_sentinels(server: Server) -> Outcome {
    let servers = Sentinels::start(server)?;
    let f = Fixture::hash(behind_sentinels(&servers));
    let (manager, held, name) = (f.manager_with(all()).await, f.name(), f.name());
    let guard = manager.write(&held).await.expect("granted by both replicas");
    let old = servers.primary();
    old.kill();
    block_in_place(|| servers.wait_for_failover_from(old)).expect("another primary");
    block_in_place(|| servers.wait_ok()).expect("the replica that is left follows");
    assert_missing(soon("an answer", manager.write(&name)).await, 2, 1);
    assert_missing(f.connect(all()).await, 2, 1);
    f.becomes_free(&name).await;
    assert!(!f.view(&held).await.is_free(), "whichever was promoted knows the hold");

    old.restart()?;
    block_in_place(|| servers.wait_ok()).expect("both follow");
    works(&*manager, &name).await;
    guard.release().await?;
    Ok(())
}

/// A replica that fails while too few Sentinels answer stays required, since nothing says that it is gone for good.
async fn silent_sentinels_lower_no_number(server: Server) {
    let servers = Sentinels::start(server).expect("they start");
    let f = Fixture::hash(behind_sentinels(&servers));
    let ([manager], name) = f.scene_with(all()).await;
    works(&*manager, &name).await;
    let (primary, lost) = (servers.primary(), servers.replicas()[0]);
    servers.sentinels().iter().for_each(Node::kill);
    tokio::time::sleep(LOOK).await;
    works(&*manager, &name).await;
    lost.kill();
    until("the primary has lost it", async || online(primary) == 1).await;
    tokio::time::sleep(LOOK).await;
    assert_missing(soon("an answer", manager.write(&name)).await, 2, 1);
    // A manager that looks at the lock needs a Sentinel.
    servers.sentinels().iter().for_each(|sentinel| sentinel.restart().expect("it starts"));
    f.becomes_free(&name).await;
}

async fn refusing_sentinel_beside_silent_ones_stops_no_grant(server: Server) {
    let servers = Sentinels::start(server).expect("they start");
    let f = Fixture::hash(behind_sentinels(&servers));
    let ([manager], name) = f.scene_with(all()).await;
    works(&*manager, &name).await;
    let [refusing, silent @ ..] = servers.sentinels() else { panic!("it has Sentinels") };
    ask(refusing, &["SENTINEL", "REMOVE", servers.primary_name()]);
    silent.iter().for_each(Node::kill);
    tokio::time::sleep(LOOK).await;
    works(&*manager, &name).await;
    silent.iter().for_each(|sentinel| sentinel.restart().expect("it starts"));
    f.becomes_free(&name).await;
}
