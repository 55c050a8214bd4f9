//! Nodes per cluster: primaries without replicas, which share the machine with the client.

use std::time::{Duration, Instant};

use cluster_testenv::{Client, Cluster};
use redis_rwlock::{Error, RedisManager, RwLockManager, Topology};

use super::climb::{Reading, climb};
use super::probe::{quantile_us, whole};
use crate::setup::{Effort, connect, info, info_number, pair, runtime, server, tags, timed};

/// Long enough that no busy server counts as failed.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

fn connections(clients: &mut [Client]) -> f64 {
    clients.iter_mut().map(|client| info_number(&info(client, "clients"), "connected_clients")).sum()
}

async fn took<T>(act: impl Future<Output = Result<T, Error>>) -> Result<Duration, Error> {
    let (outcome, took) = timed(act).await;
    outcome.map(|_| took)
}

/// Times at one cluster.
#[derive(Default)]
struct Times {
    connects: Vec<Duration>,
    firsts: Vec<Duration>,
    pairs: Vec<Duration>,
    lists: Vec<Duration>,
    healths: Vec<Duration>,
    connections: f64,
}

async fn measure(cluster: &Cluster, tags: &[(u16, String)], pairs: usize) -> Result<(Times, RedisManager), Error> {
    let mut times = Times::default();
    let topology = || Topology::cluster(cluster.urls());
    for _ in 0..5 {
        times.connects.push(took(RedisManager::connect(topology())).await?);
    }
    let mut clients: Vec<Client> = cluster.nodes().iter().map(|node| node.client().expect("it answers")).collect();
    // The connections of the managers before are closed.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = connections(&mut clients);
    let manager = connect(RedisManager::builder(topology())).await;
    let names: Vec<String> = tags.iter().map(|(_, tag)| format!("{{{tag}}}:lock")).collect();
    for name in &names {
        times.firsts.push(pair(&manager, name).await);
    }
    for n in 0..pairs {
        times.pairs.push(pair(&manager, &names[n % names.len()]).await);
    }
    for _ in 0..10 {
        times.lists.push(took(manager.locks()).await?);
        times.healths.push(took(manager.health()).await?);
    }
    times.connections = (connections(&mut clients) - before) / names.len() as f64;
    Ok((times, manager))
}

fn read(effort: Effort, count: usize) -> Result<Reading, String> {
    let began = Instant::now();
    let builder = Cluster::builder(server()).primaries(count).replicas(0).node_timeout(NODE_TIMEOUT);
    let cluster = builder.start().map_err(|error| format!("this machine does not form it: {error}"))?;
    let formed = began.elapsed();
    let tags = tags(&cluster, count);
    let runtime = runtime();
    let pairs = effort.of(10_000, 3_000, 20);
    let (mut times, manager) = runtime.block_on(measure(&cluster, &tags, pairs)).map_err(|error| error.to_string())?;
    let (slot, tag) = &tags[0];
    cluster.migrate_slot(*slot, &cluster.nodes()[1]).map_err(|error| error.to_string())?;
    let moved = runtime.block_on(pair(&manager, &format!("{{{tag}}}:lock")));
    let ms = |samples: &mut Vec<Duration>| format!("{:.1}", quantile_us(samples, 0.5) / 1e3);
    Ok(Reading {
        watched: quantile_us(&mut times.pairs, 0.99),
        cells: vec![
            ("p50", whole(quantile_us(&mut times.pairs, 0.5))),
            ("first pair on a node, us", whole(quantile_us(&mut times.firsts, 0.5))),
            ("connect, ms", ms(&mut times.connects)),
            ("connections to each node", format!("{:.1}", times.connections)),
            ("ms for the list", ms(&mut times.lists)),
            ("health, ms", ms(&mut times.healths)),
            ("pair after a slot moved, ms", format!("{:.1}", moved.as_secs_f64() * 1e3)),
            ("formed in, s", format!("{:.1}", formed.as_secs_f64())),
        ],
        ..Reading::default()
    })
}

pub(super) fn run(effort: Effort) {
    let loads = effort.of(&[3, 6, 12, 24, 48, 96][..], &[3, 12, 24], &[3]);
    climb(["primaries", "p99 of a pair, us"], loads, |count| read(effort, count));
}
