//! Scripts that lack a right half way: the manager assumes that they may have changed something.

use cluster_testenv::{Node, Server};
use redis_rwlock::{Error, HoldState, LossReason, Refusal, Topology};

use super::field::on_own_servers;
use crate::errors::assert_lost;
use crate::fixture::{Fixture, Manager};
use crate::servers::ask;
use crate::wait::until;

on_own_servers![
    grant_that_broke_off_is_taken_back_and_names_the_command,
    conversion_that_broke_off_leaves_no_hold_that_stands,
];

const USER: &str = "halfway";

/// A server on which the case's user may do everything.
async fn start(server: Server) -> (Node, Fixture, Manager) {
    let node = Node::start(server).expect("the server starts");
    node.acl_set_user(USER, &["on", ">secret", "~*", "&*", "+@all"]).expect("a user");
    let url = format!("redis://{USER}:secret@{}", node.addr());
    let fixture = Fixture::hash(Topology::node(url));
    let manager = fixture.manager().await;
    (node, fixture, manager)
}

fn is_refused_by_name(error: &Error) -> bool {
    match error {
        Error::Refused { refusal: Refusal::Forbidden, message, .. } => message.to_lowercase().contains("pexpireat"),
        _ => false,
    }
}

async fn nothing_is_recorded(node: &Node, key: &str) {
    until("nothing is left", async || ask(node, &["HGET", key, "h"]).is_nil()).await;
}

async fn grant_that_broke_off_is_taken_back_and_names_the_command(server: Server) {
    let (node, fixture, manager) = start(server).await;
    node.acl_set_user(USER, &["-pexpireat"]).expect("taken away");
    for is_writer in [true, false] {
        let name = fixture.name();
        let error = match is_writer {
            true => manager.write(&name).await.map(drop),
            false => manager.read(&name).await.map(drop),
        };
        let error = error.expect_err("a right is missing");
        assert!(is_refused_by_name(&error), "{error:?}");
        nothing_is_recorded(&node, &fixture.hash_key(&name)).await;
    }
}

async fn conversion_that_broke_off_leaves_no_hold_that_stands(server: Server) {
    let (node, fixture, manager) = start(server).await;
    let name = fixture.name();
    let writing = manager.write(&name).await.expect("granted");
    node.acl_set_user(USER, &["-pexpireat"]).expect("taken away");
    let Err(refused) = writing.downgrade().await else { panic!("a right is missing") };
    let error = refused.error().clone();
    let guard = refused.into_guard();
    assert_lost(&error, LossReason::Gone);
    // The server may have either hold, and the manager gives both back. So the guard is lost from here on.
    assert_eq!(guard.state(), HoldState::Lost(LossReason::Gone));
    nothing_is_recorded(&node, &fixture.hash_key(&name)).await;
}
