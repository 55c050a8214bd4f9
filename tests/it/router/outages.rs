//! Shards and clusters that are gone, and callers that try once.

use std::time::{Duration, Instant};

use cluster_testenv::{Cluster, Node, Sentinels, Server};
use redis_rwlock::{Error, HoldState, LossReason, Topology};

use super::field::{Field, name_of, on_own_servers};
use crate::fixture::{Fixture, Manager, ServerFixture, Settings, alone_on_every_server};
use crate::nodes::hash_on;
use crate::topology::behind_sentinels;
use crate::wait::{Outcome, soon, until, works};

on_own_servers![
    shard_that_is_gone_is_unreachable_and_the_others_work,
    cluster_without_a_majority_is_unreachable_until_it_is_well,
    cluster_that_is_gone_is_unreachable_and_found_again,
    try_now_at_a_killed_primary_ends_in_time,
];
alone_on_every_server![try_now_at_a_frozen_server_ends_in_time];

const UNREACHABLE_AFTER: Duration = Duration::from_millis(1500);
const LEASE: Duration = Duration::from_secs(4);
/// Allowance for a machine that is busy with other tests.
const LATE: Duration = Duration::from_secs(2);

fn impatient() -> Settings {
    Settings { unreachable_after: UNREACHABLE_AFTER, ..Settings::lease(LEASE) }
}

/// Asserts that an acquisition fails as unreachable: not before `UNREACHABLE_AFTER` is over, and not much later.
async fn is_unreachable(manager: &Manager, name: &str) {
    let asked = Instant::now();
    let error = soon("the error", manager.write(name)).await.expect_err("nobody can grant it");
    assert_matches!(error, Error::Unreachable { .. });
    let waited = asked.elapsed();
    let most = UNREACHABLE_AFTER + Settings::default().response_timeout * 2 + LATE;
    assert!(waited >= UNREACHABLE_AFTER && waited < most, "{waited:?}");
}

async fn works_again(manager: &Manager, name: &str) {
    until("it works again", async || match manager.try_write(name).await {
        Ok(guard) => guard.is_some(),
        Err(_) => false,
    })
    .await;
}

fn kill_and_restart_later<'a>(nodes: &[&'a Node]) -> Vec<&'a Node> {
    nodes.iter().for_each(|node| node.kill());
    nodes.to_vec()
}

async fn shard_that_is_gone_is_unreachable_and_the_others_work(server: Server) -> Outcome {
    let cluster = Cluster::builder(server).arg("--cluster-require-full-coverage", "no").start();
    let field = Field::on(cluster);
    let manager = field.manager_with(impatient()).await;
    let tags = field.tags();
    let (lost, held) = (name_of(&tags[0], 0), name_of(&tags[1], 0));
    let gone = manager.write(&lost).await?;
    let stays = manager.write(&held).await?;
    let primary = field.owner(&tags[0]);
    let shard = [field.cluster.replicas_of(primary), vec![primary]].concat();
    let shard = kill_and_restart_later(&shard);
    is_unreachable(&manager, &name_of(&tags[0], 1)).await;
    for tag in &tags[1..] {
        works(&*manager, &name_of(tag, 1)).await;
    }
    assert_eq!(soon("word of the loss", gone.lost()).await, LossReason::Expired);
    assert_eq!(stays.state(), HoldState::Held, "its shard is well");
    // This wait is longer than the other nodes need to give the shard up.
    is_unreachable(&manager, &name_of(&tags[0], 2)).await;
    for node in shard {
        node.restart()?;
    }
    works_again(&manager, &name_of(&tags[0], 3)).await;
    stays.release().await?;
    Ok(())
}

async fn cluster_without_a_majority_is_unreachable_until_it_is_well(server: Server) {
    let field = Field::on(Cluster::builder(server).replicas(0).start());
    let manager = field.manager_with(impatient()).await;
    let tags = field.tags();
    let name = name_of(&tags[0], 0);
    let gone = manager.write(&name).await.expect("granted");
    let owners: Vec<&Node> = tags[1..].iter().map(|tag| field.owner(tag)).collect();
    let dead = kill_and_restart_later(&owners);
    let remaining = field.owner(&tags[0]);
    until("the remaining one gives up", async || {
        let info = crate::servers::ask(remaining, &["CLUSTER", "INFO"]);
        info.text().is_some_and(|text| text.contains("cluster_state:fail"))
    })
    .await;
    let error = soon("the error", manager.write(&name_of(&tags[0], 1))).await.expect_err("it is down");
    let shown = format!("{error:?}");
    assert!(matches!(error, Error::Unreachable { .. }) && shown.contains("CLUSTERDOWN"), "{shown}");
    assert_eq!(soon("word of the loss", gone.lost()).await, LossReason::Expired);
    for node in dead {
        node.restart().expect("it starts again");
    }
    for tag in &tags {
        works_again(&manager, &name_of(tag, 2)).await;
    }
}

async fn cluster_that_is_gone_is_unreachable_and_found_again(server: Server) {
    let field = Field::on(Cluster::builder(server).replicas(0).start());
    let manager = field.manager_with(impatient()).await;
    let tags = field.tags();
    let gone = manager.write(&name_of(&tags[0], 0)).await.expect("granted");
    let nodes: Vec<&Node> = field.cluster.nodes().iter().collect();
    let dead = kill_and_restart_later(&nodes);
    for tag in &tags {
        is_unreachable(&manager, &name_of(tag, 1)).await;
    }
    assert_eq!(soon("word of the loss", gone.lost()).await, LossReason::Expired);
    for node in dead {
        node.restart().expect("it starts again");
    }
    for tag in &tags {
        works_again(&manager, &name_of(tag, 2)).await;
    }
}

/// Time limit of an answer to a try: longer than a stall of a busy machine, and far shorter than a waiter's patience.
const ANSWER: Duration = Duration::from_secs(1);

fn asking_once() -> Settings {
    Settings { response_timeout: ANSWER, unreachable_after: Duration::from_secs(30), ..Settings::default() }
}

async fn one_answer_is_not_waited_for(manager: &Manager, name: &str) {
    for is_writer in [true, false] {
        let asked = Instant::now();
        let error = match is_writer {
            true => soon("the error", manager.try_write(name)).await.map(drop),
            false => soon("the error", manager.try_read(name)).await.map(drop),
        };
        assert!(asked.elapsed() < ANSWER * 2 + LATE, "{:?}", asked.elapsed());
        assert_matches!(error, Err(Error::Unreachable { .. }));
    }
}

async fn try_now_at_a_killed_primary_ends_in_time(server: Server) -> Outcome {
    let field = Field::primaries(server);
    let manager = field.manager_with(asking_once()).await;
    let tag = field.tag();
    works(&*manager, &name_of(&tag, 0)).await;
    field.owner(&tag).kill();
    one_answer_is_not_waited_for(&manager, &name_of(&tag, 0)).await;

    let node = Node::start(server)?;
    for fixture in [hash_on(&node), Fixture::two_key(Topology::node(node.url()))] {
        let manager = fixture.manager_with(asking_once()).await;
        node.kill();
        one_answer_is_not_waited_for(&manager, "cfg").await;
        node.restart()?;
    }

    let sentinels = Sentinels::start(server)?;
    let fixture = Fixture::hash(behind_sentinels(&sentinels));
    let manager = fixture.manager_with(asking_once()).await;
    // No replica is left to take the primary's place.
    sentinels.replicas().into_iter().for_each(Node::kill);
    sentinels.primary().kill();
    one_answer_is_not_waited_for(&manager, "cfg").await;
    Ok(())
}

async fn try_now_at_a_frozen_server_ends_in_time(f: &ServerFixture) {
    let manager = f.manager_with(asking_once()).await;
    let name = f.name();
    works(&*manager, &name).await;
    let lazy = f.lazy_manager(asking_once()).await;
    f.servers.pause();
    one_answer_is_not_waited_for(&manager, &name).await;
    one_answer_is_not_waited_for(&lazy, &name).await;
    f.servers.resume();
}
