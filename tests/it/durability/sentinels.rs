//! Replicated grants behind Sentinels: after a failover the replicas of the new primary count.

use std::time::Duration;

use cluster_testenv::{Node, Sentinels, Server};
use redis_rwlock::{Durability, Error, HoldState, Replicas};
use tokio::task::block_in_place;

use super::settings;
use crate::fixture::{Fixture, Settings};
use crate::router::field::on_own_servers;
use crate::topology::behind_sentinels;
use crate::wait::{BOUND, Outcome, soon, until};

on_own_servers![replicas_of_the_new_primary_are_counted_after_a_failover];

/// Time that a primary waits for its replicas.
const TIMEOUT: Duration = Duration::from_secs(1);

fn of(replicas: u8) -> Settings {
    let durability = Durability::Replicated { replicas: Replicas::At(replicas), timeout: TIMEOUT };
    Settings { durability, unreachable_after: BOUND, lease: BOUND, ..settings(TIMEOUT) }
}

fn assert_one_of_two<T>(result: Result<T, Error>, primary: &Node) {
    let error = result.map(drop).expect_err("one is not enough");
    let Error::NotEnoughReplicas { asked: 2, acknowledged: 1, node: Some(node), .. } = &error else {
        panic!("{error:?}")
    };
    assert!(node.starts_with(&format!("{} (announced by the Sentinel at ", primary.addr())), "{error:?}");
}

async fn replicas_of_the_new_primary_are_counted_after_a_failover(server: Server) -> Outcome {
    let servers = Sentinels::start(server)?;
    let fixture = Fixture::hash(behind_sentinels(&servers));
    let too_many = fixture.connect(of(3)).await.map(drop).expect_err("there are two");
    assert_matches!(too_many, Error::NotEnoughReplicas { asked: 3, acknowledged: 2, .. });
    let (one, two) = (fixture.manager_with(of(1)).await, fixture.manager_with(of(2)).await);
    let [held, other] = [fixture.name(), fixture.name()];
    let guard = two.write(&held).await?;

    let old = servers.primary();
    old.kill();
    let new = block_in_place(|| servers.wait_for_failover_from(old)).expect("another primary");
    block_in_place(|| servers.wait_ok()).expect("the replica that is left follows");
    let granted = soon("the grant of the new primary", one.write(&other)).await;
    granted.expect("one replica is left").release().await?;
    assert!(one.try_write(&held).await?.is_none(), "whichever was promoted knows of it");
    assert_one_of_two(two.write(&other).await, new);
    assert_one_of_two(fixture.connect(of(2)).await, new);
    fixture.becomes_free(&other).await;

    old.restart()?;
    block_in_place(|| servers.wait_ok()).expect("both follow");
    two.write(&other).await.expect("two replicas again").release().await?;
    until("its renewals count again", async || guard.state() == HoldState::Held).await;
    guard.release().await?;
    Ok(())
}
