//! Forms a cluster out of nodes that do not know the other nodes.

use std::time::Duration;

use crate::{Node, Result, topology::SLOTS, wait_for};

/// Limit for the news of a node, which travels within milliseconds.
const REPLICATE_BOUND: Duration = Duration::from_secs(20);

/// Assigns the slots to the first `primaries` nodes, introduces all nodes, and makes the others replicas, round robin.
pub(crate) fn form(nodes: &[Node], primaries: usize) -> Result<()> {
    let (primary_nodes, replica_nodes) = nodes.split_at(primaries);
    for (index, node) in primary_nodes.iter().enumerate() {
        let slots = SLOTS * index / primaries..SLOTS * (index + 1) / primaries;
        // The command that takes a range is missing in 6.2.
        let args: Vec<String> = ["CLUSTER", "ADDSLOTS"].map(str::to_owned).into_iter().chain(slots.map(text)).collect();
        node.command(&args)?.into_result()?;
    }
    // Nodes that all begin at epoch 0 would have to resolve the collisions one by one. The server allows this only
    // before they meet.
    for (index, node) in nodes.iter().enumerate() {
        node.command(&["CLUSTER", "SET-CONFIG-EPOCH", &text(index + 1)])?.into_result()?;
    }
    // Introduces every pair, because gossip takes longer.
    for (index, node) in nodes.iter().enumerate() {
        let mut client = node.client()?;
        for other in &nodes[index + 1..] {
            let (ip, port, bus_port) = (other.addr().ip(), other.client_port(), other.bus_port());
            client.command(&["CLUSTER", "MEET", &text(ip), &text(port), &text(bus_port)])?.into_result()?;
        }
    }
    for (index, replica) in replica_nodes.iter().enumerate() {
        replicate(replica, &primary_nodes[index % primaries])?;
    }
    Ok(())
}

/// Introduces a new node to all others, and makes it a replica.
pub(crate) fn join(new: &Node, nodes: &[Node], primary: &Node) -> Result<()> {
    let mut client = new.client()?;
    for other in nodes.iter().filter(|other| other.listed_port() != new.listed_port()) {
        let (ip, port, bus_port) = (other.addr().ip(), other.client_port(), other.bus_port());
        client.command(&["CLUSTER", "MEET", &text(ip), &text(port), &text(bus_port)])?.into_result()?;
    }
    replicate(new, primary)
}

/// Makes all nodes forget one that has gone. A node that has forgotten it already refuses, which is fine.
pub(crate) fn forget(nodes: &[Node], id: &str) -> Result<()> {
    for node in nodes {
        let reply = node.command(&["CLUSTER", "FORGET", id])?;
        if !reply.error().is_some_and(|text| text.contains("Unknown node")) {
            reply.into_result()?;
        }
    }
    Ok(())
}

/// Makes `replica` a replica of `primary`, as soon as it knows the primary.
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
