//! Costs of cached holds, counted at the server.

use std::time::Duration;

use cluster_testenv::{Matcher, Node, Server};
use futures_util::future::join_all;
use redis_rwlock::{Mode, Topology};

use super::{cache_hold, caching};
use crate::fixture::{Fixture, Settings};
use crate::router::field::on_own_servers;
use crate::wait::{Outcome, until};

on_own_servers![try_asks_and_recalls_at_once, max_cached_holds_stay_cached_though_they_are_used_in_turn];

fn scripts_of(node: &Node) -> usize {
    node.proxy().requests_seen(Matcher::new(|request| request.is_script()))
}

async fn try_asks_and_recalls_at_once(server: Server) -> Outcome {
    let node = Node::builder(server).proxied().start()?;
    let f = Fixture::hash(Topology::node(node.url()));
    // A busy machine answers late. Requests that the managers repeat then would be counted too.
    let patient = Settings { response_timeout: Duration::from_secs(5), lease: Duration::from_secs(60), ..caching() };
    let (holder, other, name) = (f.manager_with(patient.clone()).await, f.manager_with(patient).await, f.name());
    let beside = f.manager_elsewhere(Topology::node(format!("redis://{}", node.addr()))).await;
    for is_first in [true, false] {
        cache_hold(&holder, &name, Mode::Read).await;
        let inside = holder.read(&name).await?;
        node.proxy().forget_requests();
        assert!(other.try_write(&name).await?.is_none(), "a guard is inside");
        let nobody_waits = async || beside.inspect(&name).await.expect("answered").waiters.is_empty();
        until("its place is given back", nobody_waits).await;
        // The manager is not subscribed yet at the first try.
        assert!(is_first || scripts_of(&node) == 3, "the try, the word that it is used, the end of its place");
        inside.release().await?;
        node.proxy().forget_requests();
        let guard = other.write(&name).cache_for(Duration::ZERO).try_now().await?;
        let asked = scripts_of(&node);
        assert!(asked <= 3, "the try, the release, and perhaps its claim by now: {asked}");
        guard.expect("nobody is inside").release().await?;
    }
    Ok(())
}

async fn max_cached_holds_stay_cached_though_they_are_used_in_turn(server: Server) {
    const NAMES: usize = 2_000;
    let node = Node::start(server).expect("the server starts");
    let f = Fixture::hash(Topology::node(node.url()));
    let manager = f.manager_with(Settings { lease: Duration::from_secs(60), ..caching() }).await;
    let names: Vec<String> = (0..NAMES).map(|_| f.name()).collect();
    // The manager notes the first use of a name, and listens for recalls from the second on. Holds that it requests
    // while it listens may be cached.
    until("all stay", async || {
        for some in names.chunks(100) {
            let uses = some.iter().map(async |name| manager.read(name).await.expect("granted").release().await);
            for released in join_all(uses).await {
                released.expect("released");
            }
        }
        manager.stats().cached_holds == NAMES
    })
    .await;
}
