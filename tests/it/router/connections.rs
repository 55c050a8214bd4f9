//! Connections of one node that die under requests: no other shard notices, every caller gets its outcome.

use std::sync::Arc;
use std::time::Duration;

use cluster_testenv::{Matcher, Server};
use tokio::task::JoinSet;

use super::field::{Field, Load, Witness, name_of, on_own_servers};
use crate::fixture::Settings;

on_own_servers![others_go_on_while_one_node_is_silent_and_cut, connections_are_killed_under_load_again_and_again];

const TASKS: usize = 256;
const ROUNDS: usize = 4;

/// Settings with which only a cut wakes a caller of a silent node.
fn patient() -> Settings {
    Settings {
        response_timeout: Duration::from_secs(15),
        unreachable_after: Duration::from_secs(30),
        ..Settings::lease(Duration::from_secs(60))
    }
}

async fn others_go_on_while_one_node_is_silent_and_cut(server: Server) {
    let field = Field::primaries(server);
    let manager = field.manager_with(patient()).await;
    let tags = field.tags();
    for tag in &tags {
        manager.write(&name_of(tag, TASKS)).await.expect("granted").release().await.expect("released");
    }
    let hurt = field.owner(&tags[0]);
    // The proxy holds the reply to the first script, and so all later ones on the shared connection.
    let held = hurt.proxy().hold_reply(Matcher::command("EVALSHA"));
    let (mut stuck, mut others) = (JoinSet::new(), JoinSet::new());
    for n in 0..TASKS {
        let (manager, name) = (Arc::clone(&manager), name_of(&tags[n % tags.len()], n));
        let tasks = if n % tags.len() == 0 { &mut stuck } else { &mut others };
        tasks.spawn(async move {
            let lock = Witness::default();
            for _ in 0..ROUNDS {
                lock.use_once(&manager, &name).await?;
            }
            Ok::<(), redis_rwlock::Error>(())
        });
    }
    held.wait_applied(Duration::from_secs(10)).expect("a request has reached the node");
    let mut done = 0;
    while let Some(ended) = others.join_next().await {
        ended.expect("no panic").expect("nothing is wrong with its shard");
        done += ROUNDS;
    }
    assert_eq!(done, ROUNDS * (0..TASKS).filter(|n| n % tags.len() != 0).count(), "on shards that nothing happened to");
    assert!(stuck.try_join_next().is_none(), "the node's replies are held back all the while");
    held.cut();
    hurt.proxy().cut();
    while let Some(ended) = stuck.join_next().await {
        ended.expect("no panic").expect("the retry finds its own hold, or takes it");
    }
    field.nothing_is_left((0..TASKS).step_by(tags.len()).map(|n| name_of(&tags[0], n))).await;
}

async fn connections_are_killed_under_load_again_and_again(server: Server) {
    const KILLS: usize = 12;
    let field = Field::primaries(server);
    let managers = [field.manager().await, field.manager().await];
    let tags = field.tags();
    let hurt = field.owner(&tags[0]);
    let names: Vec<String> = (0..TASKS / 4).map(|n| name_of(&tags[n % tags.len()], n)).collect();
    let load = Load::start(&managers, names.clone(), TASKS);
    for kill in 0..KILLS {
        load.goes_on("each lock changes hands", 1).await;
        match kill % 2 {
            0 => hurt.proxy().cut(),
            _ => assert!(hurt.kill_clients().expect("killed") > 0, "nobody was connected"),
        }
    }
    load.goes_on("each lock changes hands after the last kill", 1).await;
    load.end().await;
    field.nothing_is_left(names).await;
}
