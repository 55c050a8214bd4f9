//! Nodes per cluster: primaries without replicas, which share the machine with the client.

use super::*;

/// Long enough that no busy server counts as failed.
const NODE_TIMEOUT: Duration = Duration::from_secs(30);

fn connections(clients: &mut [Client]) -> f64 {
    clients.iter_mut().map(|client| info_number(&info(client, "clients"), "connected_clients")).sum()
}

async fn took<T>(act: impl Future<Output = Result<T, Error>>) -> Result<Duration, Error> {
    let (outcome, took) = timed(act).await;
    outcome.map(|_| took)
}

fn ms(samples: &mut [Duration]) -> String {
    format!("{:.1}", quantile_us(samples, 0.5) / 1e3)
}

/// Measures at one cluster. Returns the reading, and the manager that has been used.
async fn measure(cluster: &Cluster, tags: &[(u16, String)], count: usize) -> Result<(Reading, RedisManager), Error> {
    let topology = || Topology::cluster(cluster.urls());
    let mut connects = Vec::new();
    for _ in 0..5 {
        connects.push(took(RedisManager::connect(topology())).await?);
    }
    let mut clients: Vec<Client> = cluster.nodes().iter().map(|node| node.client().expect("it answers")).collect();
    // The connections of the managers before are closed.
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = connections(&mut clients);
    let manager = connect(RedisManager::builder(topology())).await;
    let names: Vec<String> = tags.iter().map(|(_, tag)| format!("{{{tag}}}:lock")).collect();
    let (mut firsts, mut pairs, mut lists, mut healths) = (Vec::new(), Vec::new(), Vec::new(), Vec::new());
    for name in &names {
        firsts.push(pair(&manager, name).await);
    }
    for n in 0..count {
        pairs.push(pair(&manager, &names[n % names.len()]).await);
    }
    for _ in 0..10 {
        lists.push(took(manager.locks()).await?);
        healths.push(took(manager.health()).await?);
    }
    let connections = (connections(&mut clients) - before) / names.len() as f64;
    let cells = vec![
        ("p50", whole(quantile_us(&mut pairs, 0.5))),
        ("first pair on a node, us", whole(quantile_us(&mut firsts, 0.5))),
        ("connect, ms", ms(&mut connects)),
        ("connections to each node", format!("{connections:.1}")),
        ("ms for the list", ms(&mut lists)),
        ("health, ms", ms(&mut healths)),
    ];
    Ok((Reading { watched: quantile_us(&mut pairs, 0.99), cells, ..Reading::default() }, manager))
}

fn read(effort: Effort, count: usize) -> Result<Reading, String> {
    let began = Instant::now();
    let builder = Cluster::builder(server()).primaries(count).replicas(0).node_timeout(NODE_TIMEOUT);
    let cluster = builder.start().map_err(|error| format!("this machine does not form it: {error}"))?;
    let formed = began.elapsed();
    let (tags, runtime) = (tags(&cluster, count), runtime());
    let measured = runtime.block_on(measure(&cluster, &tags, effort.of(10_000, 3_000, 20)));
    let (mut reading, manager) = measured.map_err(|error| error.to_string())?;
    let (slot, tag) = &tags[0];
    cluster.migrate_slot(*slot, &cluster.nodes()[1]).map_err(|error| error.to_string())?;
    let moved = runtime.block_on(pair(&manager, &format!("{{{tag}}}:lock")));
    reading.cells.push(("pair after a slot moved, ms", ms(&mut [moved])));
    reading.cells.push(("formed in, s", format!("{:.1}", formed.as_secs_f64())));
    Ok(reading)
}

pub(crate) fn run(effort: Effort) {
    let loads = effort.of(&[3, 6, 12, 24, 48, 96][..], &[3, 12, 24], &[3]);
    climb(["primaries", "p99 of a pair, us"], loads, |count| read(effort, count));
}
