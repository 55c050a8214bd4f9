//! Calls behind a full connection: limits of waiting end all the same, and a try gets an answer or an error.

use redis_rwlock::Error;

use super::*;
use crate::wait::soon;

crate::fixture::on_two_threads![
    wait_limit_ends_before_there_is_room,
    try_is_answered_in_its_order,
    try_learns_of_the_outage_while_it_waits_for_a_permit
];

const RESPONSE_TIMEOUT: Duration = Duration::from_millis(500);

/// A manager that waits for ever for a server, with as many acquisitions on their way as its proxy passes in ten
/// seconds.
async fn full() -> (Node, Manager, JoinSet<Result<WriteGuard, Error>>) {
    let (node, fixture) = proxied_node();
    let settings = Settings { response_timeout: RESPONSE_TIMEOUT, unreachable_after: LONG, ..Settings::lease(LONG) };
    let manager = fixture.manager_with(settings).await;
    warm(&manager).await;
    limit(node.proxy(), 100);
    let burst = acquire_at_once(&manager, 1_000);
    until("the connection is full", async || node.proxy().scripts_waiting() > 8).await;
    // A call that comes after this waits behind these.
    until("most of them wait for room", async || manager.stats().in_flight > 500).await;
    (node, manager, burst)
}

async fn wait_limit_ends_before_there_is_room() {
    let (_node, manager, mut burst) = full().await;
    let waiting = manager.write("late").wait_timeout(Duration::from_millis(300)).into_future();
    let error = soon("the end of the wait", waiting).await.expect_err("it had no room");
    assert!(matches!(error, Error::WaitTimeout { .. }), "the server answers others: {error:?}");
    while burst.try_join_next().is_some() {}
    assert!(burst.len() > 100, "{} are still in front of it", burst.len());
}

async fn try_is_answered_in_its_order() {
    let (node, manager, _burst) = full().await;
    let trying = tokio::spawn(async move { manager.try_write("late").await });
    // The try waits for a few response timeouts, in which others are answered.
    tokio::time::sleep(RESPONSE_TIMEOUT * 4).await;
    assert!(!trying.is_finished(), "it has no room yet");
    limit(node.proxy(), 5_000);
    let tried = soon("its turn", trying).await.expect("no panic").expect("the server answers");
    assert!(tried.is_some(), "the lock is free");
}

async fn try_learns_of_the_outage_while_it_waits_for_a_permit() {
    let (node, manager, mut burst) = full().await;
    let trying = tokio::spawn(async move { manager.try_write("late").await });
    node.proxy().black_hole();
    assert_matches!(soon("an end", trying).await.expect("no panic"), Err(Error::Unreachable { .. }));
    while let Some(ended) = burst.try_join_next() {
        drop(ended.expect("no panic").expect("it waits for ever or was granted"));
    }
    assert!(!burst.is_empty(), "others wait on");
}
