//! Addresses that servers announce and that this process cannot use: behind NAT, in containers, through tunnels.

use std::time::Duration;

use cluster_testenv::{Cluster, Node, Proxy, Reply, Sentinels, Server, SlotMigration};
use redis_rwlock::{AddressSource, Error, Health, RedisManager, RwLockManager, Topology};
use tracing::Level;

use super::{
    UNREACHABLE_AFTER, behind_sentinels, impatient, mentions, names_on_every_primary, option_of, patient, works,
};
use crate::record::Recorder;
use crate::servers::ask;
use crate::wait::{Outcome, soon, until};

crate::fixture::on_two_threads![remap_reaches_a_cluster_behind_nat_and_follows_its_redirects,];

/// Address of this machine at which no server listens.
const INSIDE: &str = "127.9.9.9";

/// A cluster whose members announce other addresses than those at which they can be reached.
async fn behind_nat() -> Cluster {
    let builder = Cluster::builder(Server::Redis70).replicas(0).node_timeout(Duration::from_secs(15));
    let cluster = builder.start().expect("the cluster starts");
    for node in cluster.nodes() {
        ask(node, &["CONFIG", "SET", "cluster-announce-hostname", INSIDE]);
        ask(node, &["CONFIG", "SET", "cluster-preferred-endpoint-type", "hostname"]);
    }
    for node in cluster.nodes() {
        let all = cluster.nodes().len();
        until("all members have heard of the names", async || {
            mentions(&ask(node, &["CLUSTER", "SLOTS"]), INSIDE) == all
        })
        .await;
    }
    cluster
}

fn from_outside(cluster: &Cluster) -> Topology {
    Topology::cluster([cluster.nodes()[0].url()])
}

fn to_the_outside(host: &str, port: u16) -> (String, u16) {
    (if host == INSIDE { "127.0.0.1".to_owned() } else { host.to_owned() }, port)
}

fn source_of(health: &Health, node: &Node) -> AddressSource {
    let address = node.addr().to_string();
    let entry = health.nodes.iter().find(|entry| entry.address == address).expect("it is listed");
    assert!(entry.is_reachable, "{entry:?}");
    entry.address_source.clone()
}

async fn remap_reaches_a_cluster_behind_nat_and_follows_its_redirects() -> Outcome {
    let cluster = behind_nat().await;
    let builder = || patient(RedisManager::builder(from_outside(&cluster).remap(to_the_outside)));
    let manager = soon("the connection", builder().connect()).await?;
    let names = names_on_every_primary(&cluster);
    for name in &names {
        works(&manager, name).await;
    }
    let health = manager.health().await?;
    assert!(health.is_ready() && health.nodes.len() == cluster.nodes().len(), "{health:?}");
    let [seed, others @ ..] = cluster.nodes() else { panic!("no nodes") };
    assert_eq!(source_of(&health, seed), AddressSource::User);
    for node in others {
        let words = source_of(&health, node).to_string();
        assert_eq!(words, format!("announced as {INSIDE}:{} by the cluster at {}", node.port(), seed.addr()));
    }
    // Both kinds of redirect name an inner address.
    let to = cluster.primary_of_slot(cluster.keyslot(&names[1]));
    let is_elsewhere = |name: &String| cluster.primary_of_slot(cluster.keyslot(name)).port() != to.port();
    // A lock that was never used has no key at the old node.
    let name = &(0..).map(|n| format!("moves{n}")).find(is_elsewhere).expect("there are others");
    let key = format!("rwlock:{{{name}}}:lock");
    let migration = SlotMigration::begin(&cluster, cluster.keyslot(&key), to).expect("it begins");
    let guard = soon("the grant", manager.write(name)).await.expect("granted while the slot migrates");
    assert_eq!(ask(to, &["CLUSTER", "COUNTKEYSINSLOT", &cluster.keyslot(&key).to_string()]), Reply::Int(1));
    migration.finish().expect("it ends");
    guard.release().await?;
    works(&manager, name).await;
    works(&soon("another connection", builder().connect()).await?, name).await;
    Ok(())
}

/// Only the member that was asked answers. A connection to that one alone grants no lock.
#[tokio::test]
async fn connect_fails_where_no_primary_can_be_reached_and_tells_who_announced_it() {
    let cluster = behind_nat().await;
    let recorder = Recorder::at(Level::WARN);
    let connecting = impatient(RedisManager::builder(from_outside(&cluster))).connect();
    let error = soon("the end of connecting", connecting).await.map(drop).expect_err("no primary can be reached");
    let by = format!("announced by the cluster at {}", cluster.nodes()[0].addr());
    let Error::Unreachable { node: Some(node), waited, .. } = &error else { panic!("{error:?}") };
    assert!(node.starts_with(INSIDE) && node.ends_with(&format!(" ({by})")), "{error:?}");
    assert!(*waited >= UNREACHABLE_AFTER, "{error:?}");
    assert!(error.to_string().contains(&by), "{error}");
    let lazy = impatient(RedisManager::builder(from_outside(&cluster))).build().expect("built");
    let error = soon("the end of the wait", lazy.write("cfg")).await.expect_err("nor at first use");
    assert!(error.to_string().contains(&by), "{error}");
    let health = lazy.health().await.expect("answered");
    assert!(!health.is_ready(), "{health:?}");
    for node in &health.nodes {
        assert!(!node.is_reachable && node.address.starts_with(INSIDE), "{node:?}");
        assert_eq!(node.address_source.to_string(), by);
    }
    let lines = recorder.lines();
    let told = lines.iter().filter(|line| line.contains(&format!("{INSIDE}:")) && line.contains("does not answer"));
    assert!(told.clone().count() > 0 && told.clone().all(|line| line.contains(&by)), "{lines:?}");
}

#[tokio::test]
async fn sentinels_name_a_primary_that_is_reached_elsewhere_or_not_at_all() -> Outcome {
    let servers = Sentinels::start(Server::Redis70)?;
    let primary = servers.primary().addr();
    let sentinels = || behind_sentinels(&servers);
    let tunnel = Proxy::before(primary).expect("the proxy starts");
    let (inside, outside) = (primary, tunnel.addr());
    let topology = sentinels().remap(move |host, port| match (host, port) == ("127.0.0.1", inside.port()) {
        true => (outside.ip().to_string(), outside.port()),
        false => (host.to_owned(), port),
    });
    let manager = soon("the connection", patient(RedisManager::builder(topology)).connect()).await?;
    works(&manager, "cfg").await;
    assert!(tunnel.connections_made() > 0, "by the tunnel");
    let health = manager.health().await?;
    let entry = health.nodes.iter().find(|node| node.address == outside.to_string()).expect("it is listed");
    let words = entry.address_source.to_string();
    assert!(words.starts_with(&format!("announced as {inside} by the Sentinel at 127.0.0.1:")), "{words}");
    assert!(health.nodes.iter().filter(|node| *node != entry).all(|node| node.address_source == AddressSource::User));

    let astray = sentinels().remap(|_, port| (INSIDE.to_owned(), port));
    let connecting = impatient(RedisManager::builder(astray)).connect();
    let error = soon("the end of connecting", connecting).await.map(drop).expect_err("nobody is there");
    let words = format!("{INSIDE}:{} (announced as {inside} by the Sentinel at 127.0.0.1:", inside.port());
    assert!(error.to_string().starts_with(&words), "{error}");
    Ok(())
}

#[test]
fn remap_of_a_single_node_is_refused() {
    let topology = Topology::node("redis://127.0.0.1:1").remap(to_the_outside);
    assert!(!format!("{topology:?}").contains("to_the_outside"));
    let error = RedisManager::builder(topology).build().map(drop).expect_err("it announces nothing");
    assert_eq!(option_of(&error), "remap");
}
