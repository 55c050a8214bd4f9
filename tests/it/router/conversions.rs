//! Conversions without an answer: the caller learns no outcome that is not known, and no other holder is let in.

use std::time::Duration;

use cluster_testenv::{Matcher, Node, Server};
use redis_rwlock::{Error, HoldState, LossReason, Topology};

use super::field::on_own_servers;
use crate::fixture::{Fixture, Manager, Settings};
use crate::nodes::proxied;
use crate::scripts::{hash, two_key};
use crate::servers::ask;
use crate::wait::{Outcome, soon, until};
use crate::wire::{arrives, is_applied, is_held};

on_own_servers![
    upgrade_that_never_arrives_leaves_a_guard_in_doubt_that_stands,
    upgrade_whose_reply_never_comes_is_found_again_or_given_back,
    downgrade_that_nobody_answers_ends_the_guard,
];

/// A server behind a proxy, one of the schemes, and a manager that converts there and tries once.
struct Stage {
    node: Node,
    fixture: Fixture,
    manager: Manager,
    convert: Matcher,
}

impl Stage {
    async fn of_each_scheme(server: Server) -> [Self; 2] {
        let hash: (&str, fn(Topology) -> Fixture) = (hash::CONVERT, Fixture::hash);
        let two_key: (&str, fn(Topology) -> Fixture) = (two_key::CONVERT, Fixture::two_key);
        let mut stages = Vec::new();
        for (script, fixture) in [hash, two_key] {
            let node = proxied(server);
            ask(&node, &["SCRIPT", "LOAD", script]);
            let convert = Matcher::command("EVALSHA").and(redis::Script::new(script).get_hash().to_owned());
            let fixture = fixture(Topology::node(node.url()));
            let settings = Settings {
                // Each conversion is sent once: a server that is silent for a response timeout gets no second request.
                unreachable_after: Duration::from_millis(500),
                response_timeout: Duration::from_secs(1),
                ..Settings::default()
            };
            let manager = fixture.manager_with(settings).await;
            stages.push(Self { node, fixture, manager, convert });
        }
        stages.try_into().unwrap_or_else(|_| unreachable!("two schemes"))
    }
}

async fn upgrade_that_never_arrives_leaves_a_guard_in_doubt_that_stands(server: Server) -> Outcome {
    for Stage { node, fixture, manager, convert } in Stage::of_each_scheme(server).await {
        let name = fixture.name();
        let reading = manager.read(&name).await?;
        let held = node.proxy().hold_request(convert);
        let upgrading = tokio::spawn(reading.try_upgrade());
        is_held(&held).await;
        node.proxy().freeze();
        let Err(refused) = soon("an end", upgrading).await? else { panic!("nobody has answered") };
        assert!(matches!(refused.error(), Error::Unreachable { .. }), "{:?}", refused.error());
        let reading = refused.into_guard();
        assert_eq!(reading.state(), HoldState::Unconfirmed);
        node.proxy().heal();
        until("no copy can arrive any more", async || reading.state() == HoldState::Held).await;
        arrives(held);
        let other = fixture.manager().await;
        let beside = other.try_read(&name).await?.expect("nobody writes");
        beside.release().await?;
        reading.release().await?;
        fixture.becomes_free(&name).await;
    }
    Ok(())
}

async fn upgrade_whose_reply_never_comes_is_found_again_or_given_back(server: Server) -> Outcome {
    for Stage { node, fixture, manager, convert } in Stage::of_each_scheme(server).await {
        for asks_again in [true, false] {
            let name = fixture.name();
            let reading = manager.read(&name).await?;
            let held = node.proxy().hold_reply(convert.clone());
            let upgrading = tokio::spawn(reading.try_upgrade());
            is_applied(&held).await;
            node.proxy().freeze();
            let Err(refused) = soon("an end", upgrading).await? else { panic!("nobody has answered") };
            held.drop_reply();
            node.proxy().heal();
            assert!(matches!(refused.error(), Error::Unreachable { .. }), "{:?}", refused.error());
            let reading = refused.into_guard();
            if asks_again {
                let writing = reading.try_upgrade().await.expect("it was carried out");
                writing.release().await?;
            } else {
                assert_eq!(reading.lost().await, LossReason::Gone);
                drop(reading);
            }
            fixture.becomes_free(&name).await;
        }
    }
    Ok(())
}

async fn downgrade_that_nobody_answers_ends_the_guard(server: Server) {
    for Stage { node, fixture, manager, convert } in Stage::of_each_scheme(server).await {
        let name = fixture.name();
        let writing = manager.write(&name).await.expect("granted");
        let held = node.proxy().hold_reply(convert);
        let downgrading = tokio::spawn(writing.downgrade());
        is_applied(&held).await;
        node.proxy().freeze();
        let Err(refused) = soon("an end", downgrading).await.expect("no panic") else { panic!("nobody has answered") };
        held.drop_reply();
        node.proxy().heal();
        assert!(matches!(refused.error(), Error::Unreachable { .. }), "{:?}", refused.error());
        assert_eq!(refused.into_guard().state(), HoldState::Lost(LossReason::Expired), "readers may be in");
        fixture.becomes_free(&name).await;
    }
}
