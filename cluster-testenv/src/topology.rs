//! Roles in a cluster, from the answers of its running nodes.

use std::{collections::BTreeSet, ops::RangeInclusive, time::Duration};

use crate::{Error, Node, Result, replication};

/// Number of slots of a cluster.
pub const SLOTS: usize = 16_384;

/// Limit for an answer. A running node answers in a millisecond. A partitioned or blocked node must not delay the
/// answers of the others for long.
const ANSWER_BOUND: Duration = Duration::from_secs(1);

/// Answers of all running nodes. Each node is asked once.
pub struct Topology<'a> {
    nodes: &'a [Node],
    views: Vec<View>,
    /// Error of a running node that did not answer.
    silence: Option<String>,
}

/// Cluster as one node sees it.
struct View {
    /// Port under which the nodes list this node, as everywhere in this file.
    port: u16,
    /// Answer to CLUSTER INFO.
    state: String,
    /// Answer to INFO replication.
    replication: String,
    members: Vec<Member>,
}

/// Line of CLUSTER NODES.
struct Member {
    id: String,
    port: u16,
    is_myself: bool,
    is_primary: bool,
    primary_id: String,
    config_epoch: u64,
    slots: Vec<RangeInclusive<u16>>,
}

impl<'a> Topology<'a> {
    /// Asks all running nodes.
    pub fn ask(nodes: &'a [Node]) -> Self {
        let mut topology = Self { nodes, views: Vec::new(), silence: None };
        for node in nodes.iter().filter(|node| node.is_running()) {
            match View::of(node) {
                Ok(view) => topology.views.push(view),
                Err(error) => topology.silence = Some(format!("{}: {error}", node.addr())),
            }
        }
        topology
    }

    /// Returns the port of the slot's owner. Nodes that do not know a change yet have old claims. The newest claim has
    /// the highest epoch.
    pub fn owner(&self, slot: u16) -> Option<u16> {
        let members = self.views.iter().flat_map(|view| &view.members);
        let claims = members.filter(|member| member.owns(slot));
        claims.max_by_key(|member| member.config_epoch).map(|member| member.port)
    }

    /// Ports of the nodes that own slots.
    pub fn primaries(&self) -> BTreeSet<u16> {
        (0..SLOTS as u16).filter_map(|slot| self.owner(slot)).collect()
    }

    /// Ports of a primary's replicas.
    pub fn replicas(&self, primary: u16) -> BTreeSet<u16> {
        let Some(primary_id) = self.member(primary).map(|member| member.id.as_str()) else {
            return BTreeSet::new();
        };
        let ports = self.nodes.iter().map(Node::listed_port);
        ports.filter(|port| self.member(*port).is_some_and(|member| member.primary_id == primary_id)).collect()
    }

    /// Returns the port of the primary of a node's shard, which may be the node's own.
    pub fn primary_of(&self, port: u16) -> u16 {
        let members = || self.views.iter().flat_map(|view| &view.members);
        let primary_id = self.member(port).map(|member| member.primary_id.as_str());
        members().find(|member| Some(member.id.as_str()) == primary_id).map_or(port, |primary| primary.port)
    }

    /// Returns true if every running primary, except the one at `primary`, knows the node at `replica` as its replica.
    pub fn voters_know(&self, replica: u16, primary: u16) -> bool {
        let is_known = |view: &View| {
            let member = |port| view.members.iter().find(|member| member.port == port);
            member(replica).zip(member(primary)).is_some_and(|(replica, primary)| replica.primary_id == primary.id)
        };
        let is_voter = |view: &&View| view.port != primary && view.myself().is_some_and(|myself| myself.is_primary);
        self.silence.is_none() && self.views.iter().filter(is_voter).all(is_known)
    }

    /// Returns the entry of a node from its own view, or else from the view of another node.
    fn member(&self, port: u16) -> Option<&Member> {
        let by_itself = self.views.iter().filter(|view| view.port == port);
        let views = by_itself.chain(&self.views);
        views.flat_map(|view| &view.members).find(|member| member.port == port)
    }

    /// Returns a fault of the cluster, if there is one.
    pub fn complaint(&self) -> Option<String> {
        if self.silence.is_some() {
            return self.silence.clone();
        }
        let known = format!("cluster_known_nodes:{}", self.nodes.len());
        let all_slots = format!("cluster_slots_ok:{SLOTS}");
        let wanted = ["cluster_state:ok", "cluster_slots_assigned:16384", &all_slots, &known];
        for view in &self.views {
            if let Some(missing) = wanted.iter().find(|line| !has_line(&view.state, line)) {
                return Some(format!("node {} does not say {missing}", view.port));
            }
            if view.ownership() != self.views[0].ownership() {
                return Some(format!("nodes {} and {} disagree on slots", view.port, self.views[0].port));
            }
            if !view.myself()?.is_primary && !has_line(&view.replication, "master_link_status:up") {
                return Some(format!("replica {} has no link to its primary", view.port));
            }
        }
        self.views.iter().find_map(|view| self.replication_complaint(view))
    }

    /// Returns a fault of the replication from the node of `view` to its running replicas, if there is one.
    fn replication_complaint(&self, view: &View) -> Option<String> {
        let myself = view.myself()?;
        let follows = |view: &&View| view.myself().is_some_and(|member| member.primary_id == myself.id);
        let node = |view: &View| self.nodes.iter().find(|node| node.listed_port() == view.port);
        let replicas: Vec<&Node> = self.views.iter().filter(follows).filter_map(node).collect();
        if replicas.is_empty() {
            return None;
        }
        replication::complaint(node(view)?, &replicas).unwrap_or_else(|error| Some(error.to_string()))
    }
}

impl View {
    fn of(node: &Node) -> Result<Self> {
        let mut client = node.client_within(ANSWER_BOUND)?;
        let mut ask = |command: [&str; 2]| {
            let reply = client.command(&command)?.into_result()?;
            let text = reply.text().ok_or_else(|| reply.unexpected())?;
            Ok::<_, Error>(text.into_owned())
        };
        let state = ask(["CLUSTER", "INFO"])?;
        let replication = ask(["INFO", "replication"])?;
        let members = ask(["CLUSTER", "NODES"])?;
        let members = members.lines().map(Member::parse).collect::<Result<Vec<_>>>()?;
        Ok(Self { port: node.listed_port(), state, replication, members })
    }

    fn myself(&self) -> Option<&Member> {
        self.members.iter().find(|member| member.is_myself)
    }

    /// Returns the owners and their slots, for comparison with another view.
    fn ownership(&self) -> Vec<(&str, &[RangeInclusive<u16>])> {
        let owners = self.members.iter().filter(|member| !member.slots.is_empty());
        let mut ownership: Vec<_> = owners.map(|member| (member.id.as_str(), member.slots.as_slice())).collect();
        ownership.sort_unstable_by_key(|(id, _)| *id);
        ownership
    }
}

impl Member {
    /// Parses `id ip:port@bus[,hostname] flags primary ping pong epoch link slot…`.
    fn parse(line: &str) -> Result<Self> {
        let read = || {
            let mut words = line.split(' ');
            let id = words.next()?.to_owned();
            let port = words.next()?.split('@').next()?.rsplit(':').next()?.parse().ok()?;
            let flags: Vec<&str> = words.next()?.split(',').collect();
            let primary_id = words.next()?.to_owned();
            let config_epoch = words.nth(2)?.parse().ok()?;
            // The slots follow the link's state. A migrating slot stands in brackets after the ranges of the owner.
            let slots = words.skip(1).filter(|word| !word.starts_with('['));
            Some(Self {
                id,
                port,
                is_myself: flags.contains(&"myself"),
                is_primary: flags.contains(&"master"),
                primary_id,
                config_epoch,
                slots: slots.map(parse_slots).collect::<Option<_>>()?,
            })
        };
        read().ok_or_else(|| Error::Unexpected(format!("line of CLUSTER NODES: {line:?}")))
    }

    fn owns(&self, slot: u16) -> bool {
        self.is_primary && self.slots.iter().any(|range| range.contains(&slot))
    }
}

/// Parses `0-5460` or `7`.
fn parse_slots(word: &str) -> Option<RangeInclusive<u16>> {
    let (first, last) = word.split_once('-').unwrap_or((word, word));
    Some(first.parse().ok()?..=last.parse().ok()?)
}

fn has_line(text: &str, wanted: &str) -> bool {
    text.lines().any(|line| line == wanted)
}
