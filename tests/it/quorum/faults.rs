//! Masters that are slow, silent or gone.

use std::time::{Duration, Instant};

use cluster_testenv::{Matcher, Node, Server};
use redis_rwlock::{Error, HoldState, RwLockManager};

use super::{Field, at, is_free, manager};
use crate::fixture::{RENEWED, now_us};
use crate::wait::{BOUND, Outcome, until};

crate::fixture::on_two_threads![
    grant_that_comes_after_the_decision_is_given_back,
    try_is_not_refused_because_of_an_earlier_try_of_its_manager,
    late_grant_of_a_hold_that_was_released_is_given_back,
    master_that_is_reached_late_gives_a_later_token,
    two_of_five_that_do_not_answer_delay_nobody,
    without_a_majority_there_is_no_quorum,
    release_reaches_a_master_that_was_silent_for_a_while
];

const LEASE: Duration = Duration::from_secs(10);

fn proxied(count: usize) -> Vec<Node> {
    let start = |_| Node::builder(Server::Valkey91).proxied().start().expect("the master starts");
    (0..count).map(start).collect()
}

fn urls(nodes: &[Node]) -> Vec<String> {
    nodes.iter().map(Node::url).collect()
}

/// A request to acquire a lock.
fn acquire_of(name: &str) -> Matcher {
    Matcher::containing(format!("{{{name}}}:read")).and(Matcher::new(|request| request.args().len() > 9))
}

async fn grant_that_comes_after_the_decision_is_given_back() -> Outcome {
    let nodes = proxied(3);
    let manager = manager(&urls(&nodes), LEASE).await;
    let mut others = Vec::new();
    for node in &nodes[..2] {
        others.push(at(&node.url()).await.write("cfg").await?);
    }
    let late = nodes[2].proxy().hold_request(acquire_of("cfg"));
    assert!(manager.try_write("cfg").await?.is_none(), "two of three say no");
    late.wait_held(BOUND)?;
    // The decision is made. No release was due at this master, because it had granted nothing.
    late.release_and_wait(BOUND).expect("it is carried out");
    let third = at(&nodes[2].url()).await;
    until("the late grant is given back", async || is_free(&third, "cfg").await).await;
    Ok(())
}

async fn try_is_not_refused_because_of_an_earlier_try_of_its_manager() -> Outcome {
    let nodes = proxied(3);
    let (holder, manager) = (manager(&urls(&nodes), LEASE).await, manager(&urls(&nodes), LEASE).await);
    let guard = holder.write("cfg").await?;
    // Both of the other masters have to say yes.
    nodes[0].kill();
    let late = nodes[2].proxy().hold_request(acquire_of("cfg"));
    assert!(manager.try_write("cfg").await?.is_none(), "one of two says no");
    late.wait_held(BOUND)?;
    guard.release().await?;
    let second = tokio::spawn(manager.try_write("cfg"));
    let there = at(&nodes[1].url()).await;
    until("the second try is asked for", async || !is_free(&there, "cfg").await).await;
    // The master grants the first try, which has failed. So it refuses the second one.
    late.release_and_wait(BOUND).expect("it is carried out");
    let guard = second.await??.expect("nobody holds the lock");
    guard.release().await?;
    Ok(())
}

async fn late_grant_of_a_hold_that_was_released_is_given_back() {
    let nodes = proxied(3);
    let manager = manager(&urls(&nodes), LEASE).await;
    let late = nodes[2].proxy().hold_request(acquire_of("cfg"));
    let guard = manager.write("cfg").await.expect("two of three say yes");
    late.wait_held(BOUND).expect("it was sent");
    guard.release().await.expect("two of three know");
    late.release_and_wait(BOUND).expect("it is carried out");
    let third = at(&nodes[2].url()).await;
    until("the late grant is given back", async || is_free(&third, "cfg").await).await;
}

async fn master_that_is_reached_late_gives_a_later_token() -> Outcome {
    let nodes = proxied(3);
    let manager = manager(&urls(&nodes), LEASE).await;
    let late = nodes[2].proxy().hold_request(acquire_of("cfg"));
    let guard = manager.write("cfg").await.expect("two of three say yes");
    late.wait_held(BOUND)?;
    let token = guard.fencing_token();
    until("the clock passes the token", async || now_us() > u64::from(token)).await;
    late.release_and_wait(BOUND).expect("it is carried out");
    let last = manager.inspect("cfg").await?.last_token.expect("there is one");
    assert!(last > token, "{last} is not above {token}");
    guard.release().await?;
    let next = manager.write("cfg").await?;
    assert!(next.fencing_token() > token, "tokens grow");
    Ok(())
}

async fn two_of_five_that_do_not_answer_delay_nobody() {
    for fault in [Node::pause as fn(&Node), |node| node.proxy().black_hole(), |node| node.proxy().refuse()] {
        let nodes = proxied(5);
        let (a, b) = (manager(&urls(&nodes), RENEWED).await, manager(&urls(&nodes), RENEWED).await);
        let held = a.write("kept").await.expect("granted");
        nodes[3..].iter().for_each(fault);
        let began = Instant::now();
        for round in 0..100 {
            let manager = if round % 2 == 0 { &a } else { &b };
            manager.write("cfg").await.expect("granted").release().await.expect("ours to the end");
        }
        // Each would cost a response timeout of 500 ms if the manager waited for the two masters.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        tokio::time::sleep(RENEWED * 2).await;
        assert_eq!(held.state(), HoldState::Held, "it is renewed by three");
        assert!(b.try_read("kept").await.expect("answered").is_none());
        held.release().await.expect("ours to the end");
        b.read("kept").await.expect("free").release().await.expect("ours to the end");
        nodes[3..].iter().for_each(Node::resume);
    }
}

async fn without_a_majority_there_is_no_quorum() -> Outcome {
    let field = Field::start(3);
    let manager = field.manager(RENEWED).await;
    let guard = manager.write("kept").await?;
    assert!(manager.health().await?.is_ready());
    field.nodes()[2].kill();
    assert!(manager.health().await?.is_ready(), "two of three answer");
    assert_eq!(guard.state(), HoldState::Held);
    field.nodes()[1].kill();
    let error = manager.write("cfg").await.expect_err("one of three answers");
    assert_matches!(error, Error::NoQuorum { masters: 3, needed: 2, .. });
    assert!(!manager.health().await?.is_ready());
    assert!(matches!(guard.state(), HoldState::Lost(_)), "{:?}", guard.state());
    // The grant of the one master was given back.
    let first = field.at(0).await;
    until("nothing is left", async || is_free(&first, "cfg").await).await;
    field.nodes()[1].restart()?;
    manager.write("cfg").await.expect("two of three").release().await?;
    Ok(())
}

async fn release_reaches_a_master_that_was_silent_for_a_while() {
    let nodes = proxied(3);
    let manager = manager(&urls(&nodes), Duration::from_secs(60)).await;
    let guard = manager.write("cfg").await.expect("granted");
    let third = at(&nodes[2].url()).await;
    until("all have it", async || !is_free(&third, "cfg").await).await;
    nodes[2].proxy().black_hole();
    guard.release().await.expect("two of three know");
    nodes[2].proxy().heal();
    // The release arrives long before the lease ends.
    until("it was told", async || is_free(&third, "cfg").await).await;
}
