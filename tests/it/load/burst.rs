//! Bursts of acquisitions and of dropped guards: a server that answers gets one request for each.

use std::sync::atomic::{AtomicUsize, Ordering};

use redis_rwlock::HoldState;

use super::*;

crate::fixture::on_two_threads![
    burst_that_is_answered_in_time_is_one_script_each,
    burst_far_beyond_the_response_timeout_is_one_script_each
];

/// Acquires `locks` locks at once and drops all guards at once, behind a proxy that lets `rate` scripts pass in a second.
/// Asserts that each lock took two scripts, with 1 % more at most. No connection is made, and an unrelated hold
/// stays held.
async fn burst(locks: usize, rate: u32, response_timeout: Duration) {
    let (node, fixture) = proxied_node();
    let manager = fixture.manager_with(Settings { response_timeout, ..Settings::default() }).await;
    warm(&manager).await;
    let unrelated = manager.write("unrelated").lease(Duration::from_secs(3)).await.expect("granted");
    let watch = unrelated.watch();
    let ended = tokio::spawn(async move { watch.ended().await });

    let (proxy, calls) = (node.proxy(), Calls::new());
    limit(proxy, rate);
    let (sent, connections) = (calls.without_renewals(proxy), proxy.connections_made());
    let granted = acquire_at_once(&manager, locks).join_all().await;
    let refused: Vec<_> = granted.iter().filter_map(|outcome| outcome.as_ref().err()).collect();
    assert_eq!(refused.len(), 0, "of {locks} acquisitions: {:?}", refused.first());
    assert_eq!(calls.without_renewals(proxy) - sent, locks, "each is one script");

    drop(granted);
    until("the releases are sent", async || calls.without_renewals(proxy) - sent >= 2 * locks).await;
    let looks = AtomicUsize::new(0);
    until("the last is released too", async || {
        looks.fetch_add(1, Ordering::Relaxed);
        manager.inspect(&format!("burst-{}", locks - 1)).await.expect("inspected").is_free()
    })
    .await;
    all_have_passed(proxy).await;
    // Each release is one script, and each look is one. A late machine may send a few releases twice.
    let more = calls.without_renewals(proxy) - sent - (2 * locks + looks.into_inner());
    assert!(more <= locks / 100, "{more} scripts more than needed");
    assert_eq!(proxy.connections_made(), connections, "connections");
    assert_eq!((unrelated.state(), ended.is_finished()), (HoldState::Held, false), "the unrelated hold");
}

/// All answers come within the response timeout.
async fn burst_that_is_answered_in_time_is_one_script_each() {
    burst(2_000, 5_000, BOUND).await;
}

/// All together take four times as long as an answer may take. The rate leaves the processors time for other tests.
async fn burst_far_beyond_the_response_timeout_is_one_script_each() {
    burst(10_000, 2_000, Duration::from_millis(1_250)).await;
}
