//! Forms a cluster out of nodes that do not know the other nodes.

use std::time::Duration;

use crate::{Node, Result, topology::SLOTS, wait_for};

/// Limit for the time until other nodes know a new node. Usually this takes milliseconds.
const REPLICATE_BOUND: Duration = Duration::from_secs(20);

/// Assigns the slots to the first `primaries` nodes, and introduces all nodes to each other. Makes the other nodes
/// replicas, round robin.
pub fn form(nodes: &[Node], primaries: usize) -> Result<()> {
    let (primary_nodes, replica_nodes) = nodes.split_at(primaries);
    for (index, node) in primary_nodes.iter().enumerate() {
        let slots = SLOTS * index / primaries..SLOTS * (index + 1) / primaries;
        // Redis 6.2 does not have the command that takes a range.
        let args: Vec<String> = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots.map(text)).collect();
        node.ask(&args)?;
    }
    // Nodes that all begin at epoch 0 would have to resolve the collisions one by one. The server allows the setting of
    // an epoch only before the nodes meet.
    for (index, node) in nodes.iter().enumerate() {
        node.ask(&["CLUSTER", "SET-CONFIG-EPOCH", &text(index + 1)])?;
    }
    // Introduces every pair, because gossip takes longer.
    for (index, node) in nodes.iter().enumerate() {
        meet(node, nodes[index + 1..].iter())?;
    }
    for (index, replica) in replica_nodes.iter().enumerate() {
        replicate(replica, &primary_nodes[index % primaries])?;
    }
    Ok(())
}

/// Introduces a new node to all other nodes, and makes the new node a replica.
pub fn join(new: &Node, nodes: &[Node], primary: &Node) -> Result<()> {
    meet(new, nodes.iter().filter(|other| other.listed_port() != new.listed_port()))?;
    replicate(new, primary)
}

/// Makes all nodes forget a node that has ended. Ignores the refusal of a node that has forgotten it already.
pub fn forget(nodes: &[Node], id: &str) -> Result<()> {
    for node in nodes {
        let reply = node.command(&["CLUSTER", "FORGET", id])?;
        if !reply.error().is_some_and(|text| text.contains("Unknown node")) {
            reply.into_result()?;
        }
    }
    Ok(())
}

/// Introduces a node to others.
fn meet<'a>(node: &Node, others: impl Iterator<Item = &'a Node>) -> Result<()> {
    let mut client = node.client()?;
    for other in others {
        let (ip, port, bus_port) = (other.addr().ip(), other.client_port(), other.bus_port());
        client.command(&["CLUSTER", "MEET", &text(ip), &text(port), &text(bus_port)])?.into_result()?;
    }
    Ok(())
}

/// Makes `replica` a replica of `primary`, as soon as `replica` knows `primary`.
fn replicate(replica: &Node, primary: &Node) -> Result<()> {
    let id = primary.cluster_id()?;
    let what = format!("{} becoming a replica of {}", replica.addr(), primary.addr());
    wait_for(what, REPLICATE_BOUND, || match replica.command(&["CLUSTER", "REPLICATE", &id]) {
        Ok(reply) if reply.error().is_some_and(|text| text.contains("Unknown node")) => None,
        answer => Some(answer.and_then(crate::Reply::into_result)),
    })??;
    Ok(())
}

fn text(number: impl ToString) -> String {
    number.to_string()
}
