//! A primary that becomes a replica after it has granted and before a replica has acknowledged.

use cluster_testenv::{Matcher, Server};
use redis_rwlock::{Error, HoldState, Refusal, Topology};
use tokio::task::block_in_place;

use super::{Field, LONG_WAIT, on_a_pair, settings};
use crate::router::field::{self, name_of, on_own_servers};
use crate::scripts::hash::ACQUIRE;
use crate::servers::ask;
use crate::wait::{BOUND, granted, soon, until};

on_a_pair![grant_that_waits_for_a_replica_does_not_count, grant_that_is_still_to_wait_does_not_count];
on_own_servers![grant_counts_when_replicas_of_the_new_primary_have_it];

/// Parts the replica from the primary: it gets no more writes. Later it takes the primary's place.
fn part(f: &Field) {
    ask(&f.pair.replica, &["REPLICAOF", "NO", "ONE"]);
}

fn demote(f: &Field) {
    let new = f.pair.replica.addr();
    ask(&f.pair.primary, &["REPLICAOF", &new.ip().to_string(), &new.port().to_string()]);
}

/// Asserts that the old primary refuses writes and that the new one knows no grant.
async fn nobody_is_inside(f: &Field, result: Result<redis_rwlock::WriteGuard, Error>, name: &str) {
    let error = result.map(drop).expect_err("no replica has it");
    assert_matches!(error, Error::Refused { refusal: Refusal::ReadOnly, .. });
    let promoted = f.fixture.manager_elsewhere(Topology::node(f.pair.replica.url())).await;
    let guard = promoted.try_write(name).await.expect("answered").expect("nobody is inside");
    guard.release().await.expect("ours to the end");
}

async fn grant_that_waits_for_a_replica_does_not_count(f: &Field) {
    let (manager, name) = (f.manager(LONG_WAIT).await, f.fixture.name());
    f.loads_all_scripts(&manager).await;
    part(f);
    let asking = tokio::spawn(manager.write(&name).into_future());
    super::waits_for_the_replica(f, &name).await;
    demote(f);
    nobody_is_inside(f, soon("the answer", asking).await.expect("no panic"), &name).await;
}

async fn grant_that_is_still_to_wait_does_not_count(f: &Field) {
    let (manager, name) = (f.manager(LONG_WAIT).await, f.fixture.name());
    f.loads_all_scripts(&manager).await;
    part(f);
    let wait = f.pair.primary.proxy().hold_request(Matcher::command("WAIT"));
    let asking = tokio::spawn(manager.write(&name).into_future());
    block_in_place(|| wait.wait_held(BOUND)).expect("it is to wait");
    until("the primary has granted it", async || !f.fixture.view(&name).await.is_free()).await;
    demote(f);
    block_in_place(|| wait.release_and_wait(BOUND)).expect("answered");
    nobody_is_inside(f, soon("the answer", asking).await.expect("no panic"), &name).await;
}

/// The manager finds the new primary and repeats its request there. The grant counts as always when a replica of it
/// answers.
async fn grant_counts_when_replicas_of_the_new_primary_have_it(server: Server) {
    let f = field::Field::with_replicas(server);
    let manager = f.manager_with(settings(LONG_WAIT)).await;
    let old = &f.cluster.nodes()[0];
    let new = f.cluster.replicas_of(old)[0];
    let name = name_of(&f.tag_at(old), 0);
    let key = f.hash_key(&name);
    for node in [old, new] {
        ask(node, &["SCRIPT", "LOAD", ACQUIRE]);
    }
    let wait = old.proxy().hold_request(Matcher::command("WAIT"));
    let asking = tokio::spawn(manager.write(&name).into_future());
    block_in_place(|| wait.wait_held(BOUND)).expect("it is to wait");
    until("the primary has granted it", async || !ask(old, &["HGET", &key, "h"]).is_nil()).await;
    let wait_of_the_new = new.proxy().hold_request(Matcher::command("WAIT"));
    let promoted = block_in_place(|| f.cluster.failover(old)).expect("another primary");
    assert_eq!(promoted.port(), new.port());
    // Before the old primary knows, it would count its replica, which has the grant and is the primary now.
    until("the old one knows", async || {
        ask(old, &["ROLE"]).array().and_then(|role| role[0].text()).as_deref() == Some("slave")
    })
    .await;
    block_in_place(|| wait.release_and_wait(BOUND)).expect("answered");
    block_in_place(|| wait_of_the_new.wait_held(BOUND)).expect("the new primary is to wait as well");
    assert!(!asking.is_finished(), "it counts, and no replica has said so");
    wait_of_the_new.release();
    let guard = granted(asking).await;
    assert_eq!((guard.state(), f.view(&name).await.holders.len()), (HoldState::Held, 1));
    guard.release().await.expect("ours to the end");
    f.becomes_free(&name).await;
}
