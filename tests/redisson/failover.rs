//! Failovers that keep the data: each side keeps what it has, waits for the other, and is woken by it.

use std::time::Duration;

use redis_rwlock::{HoldState, RwLockManager};

use crate::java::Version;
use crate::places::{Place, Servers, command, run};
use crate::wait::spawn;

const WAITS: Duration = Duration::from_millis(300);

impl Place {
    /// Makes a replica the primary of the lock, after it has all data.
    fn fail_over(&self) {
        let mut client = self.server_of("cfg");
        // A server waits only for what its connection has written.
        command(&mut client, &["SET", "other{cfg}", "1", "PX", "1"]);
        assert!(command(&mut client, &["WAIT", "1", "10000"]).int() >= Some(1), "a replica follows");
        match &self.servers {
            Servers::Cluster(cluster) => {
                let primary = cluster.primary_of_slot(cluster.keyslot("cfg"));
                cluster.failover(primary).expect("failed over");
            }
            Servers::Sentinels(sentinels) => drop(sentinels.failover().expect("failed over")),
            Servers::Node(_) => unreachable!("a node has no replica"),
        }
    }
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn holds_and_waiters_survive_in_a_cluster() {
    run(holds_and_waiters_survive(Place::cluster(Version::V4)));
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn holds_and_waiters_survive_behind_sentinels() {
    run(holds_and_waiters_survive(Place::sentinels(Version::V4)));
}

#[test]
#[ignore = "needs a JDK and Maven: runs in `.ci/all`"]
fn holds_and_waiters_survive_in_a_cluster_beside_v3() {
    run(holds_and_waiters_survive(Place::cluster(Version::V3)));
}

async fn holds_and_waiters_survive(place: Place) {
    let (rust, mut one, _) = place.sides().await;
    let ours = rust.write("cfg").await.expect("granted");
    let token = ours.fencing_token();
    one.begin("lock w cfg").await;
    assert_eq!(one.answer_within(WAITS).await, None);
    place.fail_over();
    assert_eq!(one.answer_within(WAITS * 4).await, None, "the hold is on the new primary");
    assert_eq!(ours.state(), HoldState::Held);
    ours.release().await.expect("ours to the end");
    assert_eq!(one.answer().await, "ok");

    let waiting = spawn(rust.write("cfg"));
    tokio::time::sleep(WAITS).await;
    place.fail_over();
    tokio::time::sleep(WAITS * 4).await;
    assert!(!waiting.is_finished(), "the hold of Redisson is on the new primary");
    one.ok("unlock w cfg").await;
    let ours = waiting.await.expect("no panic").expect("granted");
    assert!(ours.fencing_token() > token, "the tokens are there too");
    ours.release().await.expect("ours to the end");
    assert_eq!(place.fields_of("cfg"), []);
}
