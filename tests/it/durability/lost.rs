//! The reply to `WAIT` is lost: the primary has granted, and the manager does not know whether a replica has the grant.

use std::time::Duration;

use cluster_testenv::{HeldReply, Matcher, Proxy};
use redis_rwlock::{Error, Topology};

use super::{Field, LEASE, on_a_pair, settings};
use crate::fixture::{Manager, Settings};
use crate::wait::{granted, soon, spawn};
use crate::wire::{is_applied, is_held};

on_a_pair![
    grant_counts_only_when_it_was_asked_for_again_and_acknowledged,
    grant_is_given_back_when_nobody_can_be_asked_again,
    grant_of_who_dies_meanwhile_ends_with_its_lease,
];

/// Time that a primary waits for its replica. The replica answers at once here, and silence lasts twice as long.
const TIMEOUT: Duration = Duration::from_secs(1);
/// Lease that no case outlasts: a hold that is gone was given back.
const LONG_LEASE: Duration = Duration::from_secs(300);

/// Way in which a reply is lost.
#[derive(Clone, Copy, Debug)]
enum Lost {
    /// The connection breaks.
    Cut,
    /// The reply never comes, and the connection stays.
    Dropped,
}

impl Lost {
    fn befalls(self, reply: HeldReply) {
        match self {
            Self::Cut => reply.cut(),
            Self::Dropped => reply.drop_reply(),
        }
    }
}

impl Field {
    fn proxy(&self) -> &Proxy {
        self.pair.primary.proxy()
    }

    /// A manager past the proxy: it sees the servers whatever the proxy does.
    async fn bystander(&self) -> Manager {
        self.fixture.manager_elsewhere(Topology::node(format!("redis://{}", self.pair.primary.addr()))).await
    }
}

async fn grant_counts_only_when_it_was_asked_for_again_and_acknowledged(f: &Field) {
    let (manager, bystander) = (f.manager(TIMEOUT).await, f.bystander().await);
    f.loads_all_scripts(&manager).await;
    for lost in [Lost::Cut, Lost::Dropped] {
        let name = f.fixture.name();
        let reply = f.proxy().hold_reply(Matcher::command("WAIT"));
        let asking = spawn(manager.write(&name));
        is_applied(&reply).await;
        let again = f.proxy().hold_request(Matcher::command("EVALSHA").and(name.as_str()));
        // Armed before the request is repeated, because its `WAIT` may come together with it.
        let next_reply = f.proxy().hold_reply(Matcher::command("WAIT"));
        lost.befalls(reply);
        is_held(&again).await;
        again.release();
        is_applied(&next_reply).await;
        assert!(!asking.is_finished(), "{lost:?}: it counts without the word of a replica");
        assert_eq!(bystander.inspect(&name).await.expect("inspected").holders.len(), 1, "{lost:?}: one hold");
        next_reply.release();
        let guard = granted(asking).await;
        guard.release().await.expect("ours to the end");
        f.fixture.becomes_free(&name).await;
    }
}

async fn grant_is_given_back_when_nobody_can_be_asked_again(f: &Field) {
    let impatient = Settings { lease: LONG_LEASE, unreachable_after: TIMEOUT, ..settings(TIMEOUT) };
    let (manager, bystander) = (f.fixture.manager_with(impatient).await, f.bystander().await);
    f.loads_all_scripts(&manager).await;
    let name = f.fixture.name();
    let reply = f.proxy().hold_reply(Matcher::command("WAIT"));
    let asking = spawn(manager.write(&name));
    is_applied(&reply).await;
    f.proxy().refuse();
    f.proxy().cut();
    let error = soon("the answer", asking).await.expect("no panic").expect_err("no replica's word has come");
    assert_matches!(error, Error::Unreachable { .. });
    assert!(!bystander.inspect(&name).await.expect("inspected").is_free(), "nobody could give it back");
    f.proxy().heal();
    f.fixture.becomes_free(&name).await;
}

async fn grant_of_who_dies_meanwhile_ends_with_its_lease(f: &Field) {
    let mut process = f.fixture.process(Settings { lease: LEASE, ..settings(TIMEOUT) }).await;
    let (name, bystander) = (f.fixture.name(), f.bystander().await);
    f.loads_all_scripts(&bystander).await;
    let wanted = name.clone();
    let reply = f.proxy().hold_reply(Matcher::command("WAIT"));
    process.start(|manager| Box::pin(manager.write(&wanted).into_future()));
    is_applied(&reply).await;
    process.die().await;
    reply.cut();
    let view = bystander.inspect(&name).await.expect("inspected");
    assert!(view.holders.iter().all(|holder| holder.remaining <= LEASE), "{view:?}");
    f.fixture.becomes_free(&name).await;
}
