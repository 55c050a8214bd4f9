//! Tests a proxy that limits the scripts per second.

use std::{
    num::NonZeroU32,
    time::{Duration, Instant},
};

use cluster_testenv::{Client, Matcher, Node, Reply, Server};

const BOUND: Duration = Duration::from_secs(30);
/// Script that appends its argument to the list, and returns the list's length.
const APPEND: &str = "return redis.call('RPUSH', KEYS[1], ARGV[1])";

fn limited(per_second: u32) -> Node {
    let node = Node::builder(Server::Redis70).proxied().start().unwrap();
    node.proxy().limit_scripts(NonZeroU32::new(per_second).unwrap());
    node
}

fn client(node: &Node) -> Client {
    Client::connect_within(node.proxy().addr(), BOUND).unwrap()
}

fn append(text: &str) -> [&str; 5] {
    ["EVAL", APPEND, "1", "list", text]
}

fn came(node: &Node, count: usize) {
    node.proxy().wait_for_requests(Matcher::new(|request| request.is_script()), count, BOUND).unwrap();
}

#[test]
fn who_comes_last_is_served_last_on_whatever_connection() {
    let node = limited(1_000);
    let (mut busy, mut late) = (client(&node), client(&node));
    let began = Instant::now();
    (0..500).for_each(|_| busy.send(&append("a")).unwrap());
    came(&node, 500);
    late.command(&append("b")).unwrap();
    let took = began.elapsed();
    assert!(took >= Duration::from_millis(500), "behind 500 others it passed after {took:?}");
}

#[test]
fn others_wait_behind_a_script_on_its_connection_only() {
    let node = limited(1);
    let mut busy = client(&node);
    let began = Instant::now();
    busy.send(&append("a")).unwrap();
    busy.send(&append("b")).unwrap();
    busy.send(&["GET", "nothing"]).unwrap();
    node.proxy().wait_for_requests("nothing", 1, BOUND).unwrap();
    assert!(client(&node).command(&["GET", "nothing"]).unwrap().is_nil());
    let replies = [(); 3].map(|()| busy.receive().unwrap());
    assert_eq!(replies, [Reply::Int(1), Reply::Int(2), Reply::Nil]);
    let took = began.elapsed();
    assert!(took >= Duration::from_secs(1), "the second script and what follows it passed after {took:?}");
}

#[test]
fn what_was_cut_does_not_wait_and_nobody_waits_for_it() {
    let node = limited(1);
    let mut busy = client(&node);
    (0..1_000).for_each(|_| busy.send(&append("a")).unwrap());
    came(&node, 1_000);
    node.proxy().cut();
    assert_eq!((node.proxy().scripts_waiting(), node.proxy().connections_made()), (0, 1));
    client(&node).command(&append("b")).unwrap();
    assert_eq!((node.proxy().scripts_waiting(), node.proxy().connections_made()), (0, 2));
}
