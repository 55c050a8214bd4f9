//! A master that comes back empty has forgotten what it had granted.

use std::sync::Arc;
use std::time::{Duration, Instant};

use redis_rwlock::{Builder, Error, QuorumManager, RwLockManager};

use super::{Field, PREFIX};
use crate::fixture::Manager;
use crate::wait::until;

crate::fixture::on_two_threads![
    restarted_master_does_not_vote_before_what_it_forgot_is_over,
    restart_that_nobody_delays_lets_a_second_one_in,
    masters_that_may_not_vote_yet_are_not_ready_and_a_try_says_so_soon
];

/// Lease of all holds. Shorter ones could not show the delay, because uptimes are whole seconds.
const LEASE: Duration = Duration::from_secs(6);

async fn manager_of(field: &Field, with: impl Fn(Builder<QuorumManager>) -> Builder<QuorumManager> + Sync) -> Manager {
    let builder = QuorumManager::builder(field.masters.urls()).key_prefix(PREFIX).lease(LEASE);
    Arc::new(with(builder).connect().await.expect("a majority answers"))
}

/// Lets three of five masters grant a lock to one manager, and restarts one of them. Returns true if another manager is
/// granted the lock beside that.
async fn second_majority(with: impl Fn(Builder<QuorumManager>) -> Builder<QuorumManager> + Sync) -> bool {
    let field = Field::start(5);
    let (first, second) = (manager_of(&field, &with).await, manager_of(&field, &with).await);
    until("the masters may vote", async || first.try_read("other").await.is_ok_and(|guard| guard.is_some())).await;
    let there = field.at_each().await;
    let others = [there[3].write("cfg").await.expect("free"), there[4].write("cfg").await.expect("free")];
    // It ends before its lease, so it is not renewed. A renewal would take the lock at the two other masters as well.
    let guard = first.write("cfg").max_hold(LEASE - Duration::from_secs(1)).await.expect("three are free");
    for other in others {
        other.release().await.expect("released");
    }
    // Two of five masters have not granted the hold.
    assert!(second.try_write("cfg").await.expect("answered").is_none());
    field.nodes()[2].restart().expect("it comes back");
    assert!(guard.remaining() > Duration::ZERO, "it is valid still");
    let mut is_granted = false;
    while guard.remaining() > Duration::from_millis(500) && !is_granted {
        // While the restarted master cannot be reached, there is no majority either.
        let granted = second.try_write("cfg").await;
        // A try goes on for two response timeouts. A grant counts here only if it came while the first one was valid.
        is_granted = granted.is_ok_and(|guard| guard.is_some()) && guard.remaining() > Duration::ZERO;
        if guard.state() != redis_rwlock::HoldState::Held {
            break;
        }
        tokio::time::sleep(Duration::from_millis(20)).await;
    }
    is_granted
}

async fn restarted_master_does_not_vote_before_what_it_forgot_is_over() {
    assert!(!second_majority(|builder| builder).await, "it voted for another while the first one was valid");
}

/// Counter-check: without the delay, the case above sees a second majority.
async fn restart_that_nobody_delays_lets_a_second_one_in() {
    assert!(second_majority(Builder::restarts_are_delayed).await, "they were not delayed");
}

/// Lease that is far longer than the masters of a case have been running.
const LONG_LEASE: Duration = Duration::from_secs(120);

async fn masters_that_may_not_vote_yet_are_not_ready_and_a_try_says_so_soon() {
    let field = Field::start(3);
    let manager = manager_of(&field, |builder| builder.lease(LONG_LEASE)).await;
    let health = manager.health().await.expect("asked");
    let may_vote_later =
        |votes_in: Option<Duration>| votes_in.is_some_and(|left| left > LEASE && left <= LONG_LEASE * 2);
    assert!(!health.is_ready(), "{health:?}");
    assert!(health.nodes.iter().all(|node| node.is_reachable && may_vote_later(node.votes_in)), "{health:?}");

    let began = Instant::now();
    let error = manager.try_write("cfg").await.expect_err("no master may vote");
    // Two response timeouts are 1 s, and `unreachable_after` is 5 s.
    assert!(began.elapsed() < Duration::from_secs(3), "{:?}", began.elapsed());
    assert_matches!(error, Error::NoQuorum { masters: 3, restarted: 3, .. });
    assert!(error.to_string().contains("3 answered, but may vote only after"), "{error}");

    let delayed = manager_of(&field, |builder| builder.lease(LONG_LEASE).restarts_are_delayed()).await;
    assert!(delayed.health().await.expect("asked").is_ready(), "they vote at once");
}
