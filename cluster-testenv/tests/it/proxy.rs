//! Tests the promises of a proxy, on every server where they may differ. No test waits for time to pass, except where
//! time is the promise.

use std::{
    collections::BTreeSet,
    time::{Duration, Instant},
};

use cluster_testenv::{Client, Cluster, Node, Reply, Server};

const BOUND: Duration = Duration::from_secs(10);

fn proxied() -> Node {
    Node::builder(Server::Redis70).proxied().start().unwrap()
}

/// Adds one to the number of the case, and returns it.
fn increment(client: &mut Client) -> i64 {
    client.command(&["INCR", "a"]).unwrap().int().unwrap()
}

/// Connects a client through the proxy.
fn client(node: &Node) -> Client {
    Client::connect_within(node.proxy().addr(), BOUND).unwrap()
}

#[test]
fn delay_makes_each_round_trip_longer_and_keeps_pipelines_whole() {
    let node = proxied();
    let mut client = client(&node);
    node.proxy().delay(Duration::from_millis(50));
    let started = Instant::now();
    let replies = client.pipeline(&[["INCR", "a"]; 100]).unwrap();
    let took = started.elapsed();
    assert!(replies.into_iter().eq((1..=100).map(Reply::Int)));
    assert!(took >= Duration::from_millis(100), "{took:?}");
    assert!(took < Duration::from_secs(5), "a delay each is not a delay of all: {took:?}");
    node.proxy().heal();
    assert_eq!(increment(&mut client), 101);
}

#[test]
fn black_hole_swallows_silently_and_new_connections_work_when_it_is_healed() {
    const SILENCE: Duration = Duration::from_millis(100);
    let node = proxied();
    let impatient = || Client::connect_within(node.proxy().addr(), SILENCE).unwrap();
    let mut old = impatient();
    node.proxy().black_hole();
    let mut new = impatient();
    let silent = |client: &mut Client| {
        client.send(&["INCR", "a"]).unwrap();
        assert!(client.receive().is_err());
    };
    silent(&mut old);
    silent(&mut new);
    node.proxy().heal();
    silent(&mut old);
    silent(&mut new);
    assert_eq!(increment(&mut client(&node)), 1, "none of the others arrived");
}

#[test]
fn cancelled_fault_does_not_happen() {
    let node = proxied();
    node.proxy().cut_after_apply("a").cancel();
    assert_eq!(increment(&mut client(&node)), 1);
}

#[test]
fn held_request_of_a_client_that_has_gone_still_arrives() {
    let node = proxied();
    let held = node.proxy().hold_request("a");
    let mut client = client(&node);
    client.send(&["INCR", "a"]).unwrap();
    held.wait_held(BOUND).unwrap();
    drop(client);
    held.release_and_wait(BOUND).unwrap();
    assert_eq!(increment(&mut node.client().unwrap()), 2);
}

#[test]
fn duplicated_request_is_applied_twice_and_answered_once() {
    let node = proxied();
    let mut client = client(&node);
    let fault = node.proxy().duplicate_request("a");
    assert_eq!(increment(&mut client), 1);
    fault.wait_applied(BOUND).unwrap();
    assert_eq!(increment(&mut client), 3);
    assert_eq!(node.proxy().requests_seen("a"), 2, "what the proxy sends is not what it has seen");
}

#[test]
fn oldest_fault_for_a_request_takes_it() {
    let node = proxied();
    let mut client = client(&node);
    let first = node.proxy().hold_reply("a");
    let second = node.proxy().hold_reply("a");
    client.send(&["INCR", "a"]).unwrap();
    first.wait_applied(BOUND).unwrap();
    assert!(second.wait_applied(Duration::from_millis(1)).is_err());
    client.send(&["INCR", "a"]).unwrap();
    second.wait_applied(BOUND).unwrap();
    // The second reply is behind the first, which is still held.
    second.release();
    first.release();
    assert_eq!([client.receive().unwrap(), client.receive().unwrap()], [Reply::Int(1), Reply::Int(2)]);
}

#[test]
fn clients_and_replicas_of_a_cluster_are_led_through_its_proxies() {
    for server in Server::ALL {
        let cluster = Cluster::builder(server).proxied().node_timeout(BOUND).start().unwrap();
        let slot = cluster.keyslot("a");
        let primary = cluster.primary_of_slot(slot);
        let other = cluster.primaries().into_iter().find(|node| node.port() != primary.port()).unwrap();
        let moved = other.command(&["GET", "a"]).unwrap();
        assert_eq!(moved.error().unwrap(), format!("MOVED {slot} {}", primary.proxy().addr()));
        assert!(cluster.urls().contains(&primary.proxy().url()));

        let slots = client(other).command(&["CLUSTER", "SLOTS"]).unwrap();
        let port = |node: &Reply| node.array().unwrap()[1].int().unwrap();
        let listed = slots.array().unwrap().iter().flat_map(|range| range.array().unwrap()[2..].iter().map(port));
        let proxies = cluster.nodes().iter().map(|node| i64::from(node.proxy().port()));
        assert_eq!(listed.collect::<BTreeSet<_>>(), proxies.collect());

        // The replica's link was there before any client's connection. So writes that the proxy stops do not arrive at
        // the replica.
        primary.proxy().freeze();
        assert!(primary.command(&["SET", "a", "1"]).unwrap().is_ok());
        let acknowledged = |timeout_ms| {
            let mut client = primary.client().unwrap();
            client.pipeline(&[vec!["SET", "a", "2"], vec!["WAIT", "1", timeout_ms]]).unwrap()[1].clone()
        };
        assert_eq!(acknowledged("100"), Reply::Int(0));
        primary.proxy().heal();
        assert_eq!(acknowledged("5000"), Reply::Int(1));
    }
}
