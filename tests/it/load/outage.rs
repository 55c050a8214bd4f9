//! Outages: while no server answers, one connection attempt serves all waiters.

use std::time::Instant;

use super::*;

crate::fixture::on_two_threads![silent_server_is_dialed_once_in_a_response_timeout_however_many_wait];

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

async fn silent_server_is_dialed_once_in_a_response_timeout_however_many_wait() {
    let (node, fixture) = proxied_node();
    let settings = Settings { unreachable_after: BOUND, response_timeout: RESPONSE_TIMEOUT, ..Settings::lease(LONG) };
    let manager = fixture.manager_with(settings).await;
    warm(&manager).await;
    let (proxy, calls) = (node.proxy(), Calls::new());
    let (began, connections) = (Instant::now(), proxy.connections_made());
    proxy.black_hole();
    let waiters = acquire_at_once(&manager, 500);
    until("some have been tried", async || proxy.connections_made() - connections >= 4).await;
    let made = proxy.connections_made() - connections;
    // The first connection may come at once, and one more may have begun.
    let most = 2 + (began.elapsed().as_millis() / RESPONSE_TIMEOUT.as_millis()) as u64;
    assert!(made <= most, "{made} connections, and {most} are enough");
    let sent = calls.without_renewals(proxy);
    proxy.heal();
    let granted: Vec<WriteGuard> =
        waiters.join_all().await.into_iter().map(|granted| granted.expect("the server is back")).collect();
    let sent = calls.without_renewals(proxy) - sent;
    drop(granted);
    assert!(sent <= 1_000, "{sent} scripts for 500 that were waiting");
}
