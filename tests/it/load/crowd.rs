//! A crowd of local waiters is one waiter for the server.

use std::time::Instant;

use super::*;
use crate::wait::{Outcome, start};

crate::fixture::on_two_threads![
    local_waiters_behind_one_that_asks_come_and_go_without_a_script,
    waiters_of_many_locks_subscribe_once_each_on_one_connection
];

async fn local_waiters_behind_one_that_asks_come_and_go_without_a_script() {
    let (node, fixture) = proxied_node();
    let (holder, manager) = (fixture.manager().await, fixture.manager().await);
    warm(&manager).await;
    let held = holder.write("cfg").lease(LONG).await.expect("granted");
    let asks = tokio::spawn(manager.write("cfg").into_future());
    until("one waits at the server", async || !holder.inspect("cfg").await.expect("seen").waiters.is_empty()).await;
    let (proxy, calls, leaves) = (node.proxy(), Calls::new(), calls_of(scripts::hash::LEAVE));
    let (sent, began) = (calls.without_renewals(proxy), Instant::now());
    for _ in 0..5 {
        let mut waiters: Vec<_> = (0..2_000).map(|_| manager.write("cfg").into_future()).collect();
        waiters.iter_mut().for_each(start);
    }
    let asked = calls.without_renewals(proxy) - sent;
    // One request follows the subscription, and a heartbeat comes each second.
    let most = 2 + began.elapsed().as_secs() as usize;
    assert!(asked <= most, "{asked} scripts, and {most} are enough");
    let before = proxy.requests_seen(leaves.clone());
    asks.abort();
    until("nobody waits", async || holder.inspect("cfg").await.expect("seen").waiters.is_empty()).await;
    assert_eq!(proxy.requests_seen(leaves) - before, 1, "the one that asked takes its question back, once");
    held.release().await.expect("released");
}

async fn waiters_of_many_locks_subscribe_once_each_on_one_connection() -> Outcome {
    let (node, fixture) = proxied_node();
    let (holder, manager) = (fixture.manager().await, fixture.manager().await);
    warm(&holder).await;
    warm(&manager).await;
    let held = acquire_at_once(&holder, 500).join_all().await;
    let proxy = node.proxy();
    let (subscriptions, connections) = (Matcher::command("SSUBSCRIBE"), proxy.connections_made());
    let began = Instant::now();
    let mut waiters = acquire_at_once(&manager, 500);
    until("all subscribe", async || proxy.requests_seen(subscriptions.clone()) >= 500).await;
    drop(held);
    while let Some(granted) = waiters.join_next().await {
        granted??.release().await?;
    }
    // The manager subscribes to each channel again every five seconds.
    let most = 500 * (1 + began.elapsed().as_secs() as usize / 5);
    let seen = proxy.requests_seen(subscriptions);
    assert!((500..=most).contains(&seen), "{seen} subscriptions, and {most} are enough");
    assert_eq!(proxy.connections_made() - connections, 1, "all share one connection");
    Ok(())
}
