//! A slot that moves: a grant at the importing node counts when replicas of that node have it.

use cluster_testenv::{Matcher, Node, Server, SlotMigration};
use redis_rwlock::{Error, HoldState};

use super::{LEASE, SHORT_WAIT, settings};
use crate::fixture::Settings;
use crate::router::field::{Field, name_of, on_own_servers};
use crate::servers::ask;
use crate::wait::{Outcome, until_renewed};

on_own_servers![grant_behind_asking_counts_when_a_replica_of_the_importing_node_has_it];

/// Returns true if a node has a key, also of a slot that is not its own.
fn has(node: &Node, key: &str) -> bool {
    ask(node, &["KEYS", key]).array().is_some_and(|found| !found.is_empty())
}

async fn grant_behind_asking_counts_when_a_replica_of_the_importing_node_has_it(server: Server) -> Outcome {
    let f = Field::with_replicas(server);
    let manager = f.manager_with(Settings { lease: LEASE, ..settings(SHORT_WAIT) }).await;
    let [from, to] = [&f.cluster.nodes()[0], &f.cluster.nodes()[1]];
    let replica = f.cluster.replicas_of(to)[0];
    let tag = f.tag_at(from);
    let (slot, name) = (f.cluster.keyslot(&tag), name_of(&tag, 0));
    let key = f.hash_key(&name);
    let migration = SlotMigration::begin(&f.cluster, slot, to)?;

    replica.pause();
    let error = manager.write(&name).await.map(drop).expect_err("no replica of that node has it");
    let Error::NotEnoughReplicas { asked: 1, acknowledged: 0, node: Some(node), .. } = &error else {
        panic!("{error:?}")
    };
    assert_eq!(**node, to.proxy().addr().to_string(), "it was granted there");
    assert!(to.proxy().requests_seen(Matcher::command("ASKING")) >= 1, "the slot is not its own yet");
    f.becomes_free(&name).await;

    replica.resume();
    let guard = manager.write(&name).await?;
    assert!(has(to, &key) && has(replica, &key) && !has(from, &key), "where it goes, and on a replica");
    until_renewed("a renewal behind ASKING", || guard.remaining()).await;
    migration.finish()?;
    until_renewed("a renewal at the new owner", || guard.remaining()).await;
    assert_eq!(guard.state(), HoldState::Held);
    guard.release().await?;
    f.becomes_free(&name).await;
    Ok(())
}
