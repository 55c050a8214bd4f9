//! Level of services that store each write before they answer it. A grant counts at an answer, and never by a
//! notification alone.

use cluster_testenv::{Matcher, Server};
use redis_rwlock::{Durability, HoldState};

use crate::fixture::{Kind, ServerFixture, Settings};
use crate::nodes::{hash_on, proxied};
use crate::router::field::on_own_servers;
use crate::wait::{Outcome, granted};
use crate::wire::{Script, is_held};

on_own_servers![grants_count_at_the_answer_and_nothing_waits_for_replicas, notified_grant_counts_when_it_is_answered];

fn of_the_server() -> Settings {
    Settings { durability: Durability::Server, ..Settings::default() }
}

async fn grants_count_at_the_answer_and_nothing_waits_for_replicas(server: Server) -> Outcome {
    let node = proxied(server);
    let f = hash_on(&node);
    let manager = f.manager_with(of_the_server()).await;
    let name = f.name();
    let guard = manager.write(&name).await?;
    assert_eq!(guard.state(), HoldState::Held);
    guard.downgrade().await?.release().await?;
    assert!(f.view(&name).await.is_free());
    assert!(node.proxy().requests_seen(Matcher::command("EVALSHA")) >= 3);
    assert_eq!(node.proxy().requests_seen(Matcher::command("WAIT")), 0);
    Ok(())
}

async fn notified_grant_counts_when_it_is_answered(server: Server) -> Outcome {
    let f = ServerFixture::proxied(Kind::HashNode, server);
    let (here, there, name) = (f.manager_with(of_the_server()).await, f.manager_with(of_the_server()).await, f.name());
    let guard = here.write(&name).await?;
    let waiting = f.queued(&name, there.write(&name)).await;
    // The waiter hears of its grant, and its next request is on its way to the service.
    let asks = f.proxy(&name).hold_request(f.requests(Script::Acquire, &name));
    guard.release().await?;
    is_held(&asks).await;
    assert!(!waiting.is_finished(), "the notification alone does not count");
    asks.release();
    let guard = granted(waiting).await;
    guard.release().await?;
    Ok(())
}
