//! Nodes of one case alone.

use cluster_testenv::{Client, Node, Server};
use redis_rwlock::Topology;

use crate::fixture::Fixture;
use crate::servers::ask;

/// Starts a node behind a proxy.
pub fn proxied(server: Server) -> Node {
    Node::builder(server).proxied().start().expect("the server starts")
}

/// The hash scheme on a node.
pub fn hash_on(node: &Node) -> Fixture {
    Fixture::hash(Topology::node(node.url()))
}

/// Makes a node the replica of another.
pub fn follow(replica: &Node, primary: &Node) {
    let (ip, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    ask(replica, &["REPLICAOF", &ip, &port]);
}

/// Returns `master` or `slave`.
pub fn role_of(node: &Node) -> String {
    ask(node, &["ROLE"]).array().and_then(|role| role[0].text()).expect("a role").into_owned()
}

/// Connects to a replica of a cluster, for reads.
pub fn reader_of(replica: &Node) -> Client {
    let mut client = replica.client().expect("connected");
    client.command(&["READONLY"]).expect("answered").into_result().expect("it may be read");
    client
}
