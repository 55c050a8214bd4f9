//! Masters that are slow, silent or gone.

use std::time::{Duration, Instant};

use cluster_testenv::{HeldRequest, Matcher, Node, Server};
use redis_rwlock::{Error, HoldState, Mode, RwLockManager};

use super::{Field, at, holders, manager, until_held_by};
use crate::fixture::{Manager, RENEWED, now_us};
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

/// Masters behind proxies, and a manager of them.
async fn proxied(count: usize) -> (Vec<Node>, Manager) {
    let start = |_| Node::builder(Server::Valkey91).proxied().start().expect("the master starts");
    let nodes: Vec<_> = (0..count).map(start).collect();
    let manager = another(&nodes, LEASE).await;
    (nodes, manager)
}

async fn another(nodes: &[Node], lease: Duration) -> Manager {
    manager(&nodes.iter().map(Node::url).collect::<Vec<_>>(), lease).await
}

/// Holds the next request to acquire the lock back at a master.
fn late_at(node: &Node) -> HeldRequest {
    let acquire = Matcher::containing("{cfg}:read").and(Matcher::new(|request| request.args().len() > 9));
    node.proxy().hold_request(acquire)
}

/// Lets a late request arrive, and waits until its grant is given back.
async fn is_given_back(late: HeldRequest, node: &Node) -> Outcome {
    late.release_and_wait(BOUND)?;
    until_held_by(&[at(node).await], "cfg", &[]).await;
    Ok(())
}

async fn grant_that_comes_after_the_decision_is_given_back() -> Outcome {
    let (nodes, manager) = proxied(3).await;
    let mut others = Vec::new();
    for node in &nodes[..2] {
        others.push(at(node).await.write("cfg").await?);
    }
    let late = late_at(&nodes[2]);
    assert!(manager.try_write("cfg").await?.is_none(), "two of three say no");
    late.wait_held(BOUND)?;
    // The decision is made. No release was due at this master, because it had granted nothing.
    is_given_back(late, &nodes[2]).await
}

async fn try_is_not_refused_because_of_an_earlier_try_of_its_manager() -> Outcome {
    let (nodes, holder) = proxied(3).await;
    let manager = another(&nodes, LEASE).await;
    let guard = holder.write("cfg").await?;
    // Both of the other masters have to say yes.
    nodes[0].kill();
    let late = late_at(&nodes[2]);
    assert!(manager.try_write("cfg").await?.is_none(), "one of two says no");
    late.wait_held(BOUND)?;
    guard.release().await?;
    let second = tokio::spawn(manager.try_write("cfg"));
    let there = at(&nodes[1]).await;
    until("the second try is asked for", async || !holders(&there, "cfg").await.is_empty()).await;
    // The master grants the first try, which has failed. So it refuses the second one.
    late.release_and_wait(BOUND)?;
    second.await??.expect("nobody holds the lock").release().await?;
    Ok(())
}

async fn late_grant_of_a_hold_that_was_released_is_given_back() -> Outcome {
    let (nodes, manager) = proxied(3).await;
    let late = late_at(&nodes[2]);
    let guard = manager.write("cfg").await?;
    late.wait_held(BOUND)?;
    guard.release().await?;
    is_given_back(late, &nodes[2]).await
}

async fn master_that_is_reached_late_gives_a_later_token() -> Outcome {
    let (nodes, manager) = proxied(3).await;
    let late = late_at(&nodes[2]);
    let guard = manager.write("cfg").await?;
    late.wait_held(BOUND)?;
    let token = guard.fencing_token();
    until("the clock passes the token", async || now_us() > u64::from(token)).await;
    late.release_and_wait(BOUND)?;
    let last = manager.inspect("cfg").await?.last_token.expect("there is one");
    assert!(last > token, "{last} is not above {token}");
    guard.release().await?;
    let next = manager.write("cfg").await?;
    assert!(next.fencing_token() > token, "tokens grow");
    Ok(())
}

async fn two_of_five_that_do_not_answer_delay_nobody() -> Outcome {
    for fault in [Node::pause as fn(&Node), |node| node.proxy().black_hole(), |node| node.proxy().refuse()] {
        let (nodes, b) = proxied(5).await;
        let a = another(&nodes, RENEWED).await;
        let held = a.write("kept").await?;
        nodes[3..].iter().for_each(fault);
        let began = Instant::now();
        for round in 0..100 {
            let manager = if round % 2 == 0 { &a } else { &b };
            manager.write("cfg").await?.release().await?;
        }
        // Each would cost a response timeout of 500 ms if the manager waited for the two masters.
        assert!(began.elapsed() < Duration::from_secs(10), "{:?}", began.elapsed());
        tokio::time::sleep(RENEWED * 2).await;
        assert_eq!(held.state(), HoldState::Held, "it is renewed by three");
        assert!(b.try_read("kept").await?.is_none());
        held.release().await?;
        b.read("kept").await?.release().await?;
        nodes[3..].iter().for_each(Node::resume);
    }
    Ok(())
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
    assert_matches!(manager.write("cfg").await, Err(Error::NoQuorum { masters: 3, needed: 2, .. }));
    assert!(!manager.health().await?.is_ready());
    assert!(matches!(guard.state(), HoldState::Lost(_)), "{:?}", guard.state());
    // The grant of the one master was given back.
    until_held_by(&[at(&field.nodes()[0]).await], "cfg", &[]).await;
    field.nodes()[1].restart()?;
    manager.write("cfg").await?.release().await?;
    Ok(())
}

async fn release_reaches_a_master_that_was_silent_for_a_while() -> Outcome {
    let (nodes, _) = proxied(3).await;
    let manager = another(&nodes, Duration::from_secs(60)).await;
    let guard = manager.write("cfg").await?;
    let third = [at(&nodes[2]).await];
    until_held_by(&third, "cfg", &[Mode::Write]).await;
    nodes[2].proxy().black_hole();
    guard.release().await.expect("two of three know");
    nodes[2].proxy().heal();
    // The release arrives long before the lease ends.
    until_held_by(&third, "cfg", &[]).await;
    Ok(())
}
