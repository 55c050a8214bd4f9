//! A primary that becomes a replica after it has granted and before a replica has acknowledged.

use cluster_testenv::{Matcher, Server};
use redis_rwlock::{Error, HoldState, Refusal, Topology};
use tokio::task::block_in_place;

use super::{Field, LONG_WAIT, on_a_pair, settings};
use crate::errors::assert_refused;
use crate::nodes::{follow, role_of};
use crate::router::field::{self, name_of, on_own_servers};
use crate::scripts::hash::ACQUIRE;
use crate::servers::ask;
use crate::wait::{granted, soon, spawn, until};
use crate::wire::{arrives, is_held};

on_a_pair![grant_that_waits_for_a_replica_does_not_count, grant_that_is_still_to_wait_does_not_count];
on_own_servers![grant_counts_when_replicas_of_the_new_primary_have_it];

/// Parts the replica from the primary: it gets no more writes. Later it takes the primary's place.
fn part(f: &Field) {
    ask(&f.pair.replica, &["REPLICAOF", "NO", "ONE"]);
}

/// Asserts that the old primary refuses writes and that the new one knows no grant.
async fn nobody_is_inside(f: &Field, result: Result<redis_rwlock::WriteGuard, Error>, name: &str) {
    let error = result.map(drop).expect_err("no replica has it");
    assert_refused(&error, Refusal::ReadOnly);
    let promoted = f.fixture.manager_elsewhere(Topology::node(f.pair.replica.url())).await;
    let guard = promoted.try_write(name).await.expect("answered").expect("nobody is inside");
    guard.release().await.expect("ours to the end");
}

async fn grant_that_waits_for_a_replica_does_not_count(f: &Field) {
    let (manager, name) = (f.manager(LONG_WAIT).await, f.fixture.name());
    f.loads_all_scripts(&manager).await;
    part(f);
    let asking = spawn(manager.write(&name));
    super::waits_for_the_replica(f, &name).await;
    follow(&f.pair.primary, &f.pair.replica);
    nobody_is_inside(f, soon("the answer", asking).await.expect("no panic"), &name).await;
}

async fn grant_that_is_still_to_wait_does_not_count(f: &Field) {
    let (manager, name) = (f.manager(LONG_WAIT).await, f.fixture.name());
    f.loads_all_scripts(&manager).await;
    part(f);
    let wait = f.pair.primary.proxy().hold_request(Matcher::command("WAIT"));
    let asking = spawn(manager.write(&name));
    is_held(&wait).await;
    until("the primary has granted it", async || !f.fixture.view(&name).await.is_free()).await;
    follow(&f.pair.primary, &f.pair.replica);
    arrives(wait);
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
    let asking = spawn(manager.write(&name));
    is_held(&wait).await;
    until("the primary has granted it", async || !ask(old, &["HGET", &key, "h"]).is_nil()).await;
    let wait_of_the_new = new.proxy().hold_request(Matcher::command("WAIT"));
    let promoted = block_in_place(|| f.cluster.failover(old)).expect("another primary");
    assert_eq!(promoted.port(), new.port());
    // Before the old primary knows, it would count its replica, which has the grant and is the primary now.
    until("the old one knows", async || role_of(old) == "slave").await;
    arrives(wait);
    is_held(&wait_of_the_new).await;
    assert!(!asking.is_finished(), "it counts, and no replica has said so");
    wait_of_the_new.release();
    let guard = granted(asking).await;
    assert_eq!((guard.state(), f.view(&name).await.holders.len()), (HoldState::Held, 1));
    guard.release().await.expect("ours to the end");
    f.becomes_free(&name).await;
}
