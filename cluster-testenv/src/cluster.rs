//! Cluster of servers, and the current roles of its nodes.

use std::time::Duration;

use crate::{
    Certificates, Node, NodeBuilder, Result, Server, TlsClients, formation,
    topology::Topology,
    wait::{wait_for, wait_until_well},
};

/// Limit for forming a cluster, and for a failover. Both are far shorter with any sensible node timeout.
const OK_BOUND: Duration = Duration::from_secs(30);

const NODE_TIMEOUT: &str = "--cluster-node-timeout";
/// Node timeout while the cluster forms. This delay costs no time, since a server waits for 2 s in any case before it
/// reports a new cluster as ok.
const FORMING_TIMEOUT_MS: &str = "1000";

/// Cluster of primaries and replicas, 3 + 3 by default.
///
/// Roles change while a test runs. So every method that returns a role asks the nodes again.
#[derive(Debug)]
pub struct Cluster {
    nodes: Vec<Node>,
    /// Builder for further nodes.
    node: NodeBuilder,
}

impl Cluster {
    /// Starts three primaries with one replica each, and waits as [`Cluster::wait_ok`] does.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`](crate::Error::NotInstalled), or the reason why the cluster did not start.
    pub fn start(server: Server) -> Result<Self> {
        Self::builder(server).start()
    }

    /// Returns a builder for a cluster of another shape.
    pub fn builder(server: Server) -> ClusterBuilder {
        let node = Node::builder(server)
            .arg("--cluster-enabled", "yes")
            // Without these arguments, a replica may refuse or delay a failover because its last data from the primary
            // is old.
            .arg("--cluster-replica-validity-factor", "0")
            .arg("--cluster-allow-replica-migration", "no")
            // The defaults only cost time when a replica joins: 5 s and up to 10 s.
            .arg("--repl-diskless-sync-delay", "0")
            .arg("--repl-ping-replica-period", "1");
        ClusterBuilder { node, primaries: 3, replicas_each: 1, node_timeout: Duration::from_secs(1) }
    }

    /// All nodes: first the initial primaries, then the initial replicas. The order never changes; [`Cluster::replace`]
    /// puts a new node in the place of an old one.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// URLs of [`Cluster::nodes`].
    pub fn urls(&self) -> Vec<String> {
        self.nodes.iter().map(Node::url).collect()
    }

    /// Certificates that clients need to speak TLS with any node.
    ///
    /// # Panics
    ///
    /// When the cluster was started without [`ClusterBuilder::tls`].
    pub fn certificates(&self) -> &Certificates {
        self.nodes[0].certificates()
    }

    /// Nodes that own slots, in the order of [`Cluster::nodes`].
    pub fn primaries(&self) -> Vec<&Node> {
        let ports = Topology::ask(&self.nodes).primaries();
        self.nodes.iter().filter(|node| ports.contains(&node.listed_port())).collect()
    }

    /// Returns the node that owns a slot, by the newest claim that any running node knows. A primary that is dead or
    /// paused still owns its slots until a failover.
    ///
    /// # Panics
    ///
    /// When no running node knows an owner.
    pub fn primary_of_slot(&self, slot: u16) -> &Node {
        let port = Topology::ask(&self.nodes).owner(slot);
        let node = port.and_then(|port| self.nodes.iter().find(|node| node.listed_port() == port));
        node.unwrap_or_else(|| panic!("no running node of the cluster knows who owns slot {slot}"))
    }

    /// Returns the replicas of a primary, dead and paused ones included, and none when the node is not a primary.
    pub fn replicas_of(&self, primary: &Node) -> Vec<&Node> {
        let ports = Topology::ask(&self.nodes).replicas(primary.listed_port());
        self.nodes.iter().filter(|node| ports.contains(&node.listed_port())).collect()
    }

    /// Returns the slot of a key, by CLUSTER KEYSLOT.
    ///
    /// # Panics
    ///
    /// When no node runs.
    pub fn keyslot(&self, key: impl AsRef<[u8]>) -> u16 {
        let command: [&[u8]; 3] = [b"CLUSTER", b"KEYSLOT", key.as_ref()];
        let ask = |node: &Node| node.command(&command).ok()?.int()?.try_into().ok();
        let mut running = self.nodes.iter().filter(|node| node.is_running());
        running.find_map(ask).expect("a node of the cluster runs and answers CLUSTER KEYSLOT")
    }

    /// Waits until the cluster is healthy again, at most 30 s.
    ///
    /// Every running node then reports the cluster as ok, knows all nodes, and agrees with the others on the owners of
    /// slots. Every running replica has a link to its primary, and has all writes up to the primary's answer.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`](crate::Error::NotInTime), which says what is wrong.
    pub fn wait_ok(&self) -> Result<()> {
        wait_until_well("a healthy cluster", OK_BOUND, || Topology::ask(&self.nodes).complaint())
    }

    /// Replaces a running node by a new one at a new address.
    ///
    /// The new node joins as a replica in the same shard, and takes over if the old node is a primary. Then the old
    /// node is killed, and all other nodes forget it. Waits as [`Cluster::wait_ok`] does.
    ///
    /// # Errors
    ///
    /// The reason why the new node did not start, join or take over.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn replace(&mut self, index: usize) -> Result<()> {
        let old_port = self.nodes[index].listed_port();
        let shard = Topology::ask(&self.nodes).primary_of(old_port);
        self.nodes.push(self.node.start()?);
        let new = &self.nodes[self.nodes.len() - 1];
        let primary = self.nodes.iter().find(|node| node.listed_port() == shard).expect("a shard has a primary");
        formation::join(new, &self.nodes, primary)?;
        self.wait_ok()?;
        if shard == old_port {
            self.failover_to(new, primary)?;
            self.wait_ok()?;
        }
        let old_id = self.nodes[index].cluster_id()?;
        self.nodes[index].kill();
        let new = self.nodes.pop().expect("it was pushed");
        drop(std::mem::replace(&mut self.nodes[index], new));
        formation::forget(&self.nodes, &old_id)?;
        self.wait_ok()
    }

    /// Gives a running node another server, as an operator does in a rolling upgrade.
    ///
    /// A primary first gives its role to its replica, as [`Cluster::failover`] does. Then the node starts anew with the
    /// binary of `server`, at the same address and with the same place in the cluster, and copies the data of its
    /// primary. Waits as [`Cluster::wait_ok`] does. [`Cluster::replace`] still starts servers of the first kind.
    ///
    /// # Errors
    ///
    /// The errors of [`Cluster::failover`], or the reason why the new server did not start or does not follow.
    ///
    /// # Panics
    ///
    /// When there is no such node.
    pub fn upgrade(&mut self, index: usize, server: Server) -> Result<()> {
        let old = &self.nodes[index];
        if old.is_primary()? {
            self.failover(old)?;
            // An old server cannot copy the data of a newer one, so the wait is not for a healthy cluster.
            wait_for("the old primary being a replica", OK_BOUND, || (!old.is_primary().ok()?).then_some(()))?;
        }
        self.nodes[index].restart_as(server)?;
        self.wait_ok()
    }

    fn set_node_timeout(&self, timeout_ms: &str) -> Result<()> {
        let name = NODE_TIMEOUT.trim_start_matches('-');
        for node in &self.nodes {
            node.ask(&["CONFIG", "SET", name, timeout_ms])?;
        }
        Ok(())
    }
}

/// Cluster that has not started yet.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing until `start`"]
pub struct ClusterBuilder {
    node: NodeBuilder,
    primaries: usize,
    replicas_each: usize,
    node_timeout: Duration,
}

impl ClusterBuilder {
    /// Sets the number of primaries that share the slots. Defaults to 3. With fewer than 3 no majority can vote for a
    /// failover.
    ///
    /// # Panics
    ///
    /// When it is zero.
    pub fn primaries(mut self, count: usize) -> Self {
        assert!(count > 0, "a cluster has at least one primary");
        self.primaries = count;
        self
    }

    /// Sets the number of replicas of each primary. Defaults to 1.
    pub fn replicas(mut self, each: usize) -> Self {
        self.replicas_each = each;
        self
    }

    /// Sets the time for which a node may be silent before the other nodes mark it as failed. Defaults to 1 s. A
    /// shorter time makes failovers quicker. A longer time prevents failovers on a busy machine.
    pub fn node_timeout(mut self, timeout: Duration) -> Self {
        self.node_timeout = timeout;
        self
    }

    /// Adds an argument to every node, as [`NodeBuilder::arg`] does.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.node = self.node.arg(name, value);
        self
    }

    /// Makes every node require a password from its clients and from other nodes, as [`NodeBuilder::password`] does.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.node = self.node.password(password);
        self
    }

    /// Makes all nodes speak TLS with clients and with other nodes, as [`NodeBuilder::tls`] does. They share one
    /// authority.
    pub fn tls(mut self, clients: TlsClients) -> Self {
        self.node = self.node.tls(clients);
        self
    }

    /// Puts a [`Proxy`](crate::Proxy) in front of every node ([`Node::proxy`]).
    ///
    /// The node announces the proxy's port to the others. [`Cluster::urls`], MOVED, ASK, CLUSTER SLOTS and the
    /// replicas' links lead to the proxy. The cluster bus bypasses it, so that no fault of a proxy alone makes a node
    /// fail. [`Node::addr`], [`Node::client`] and [`Node::command`] bypass it too.
    pub fn proxied(mut self) -> Self {
        self.node = self.node.proxied();
        self
    }

    /// Gives every node its own time of day, as [`NodeBuilder::clock`] does.
    pub fn clock(mut self) -> Self {
        self.node = self.node.clock();
        self
    }

    /// Puts a [`Proxy`](crate::Proxy) between every node and the nodes that connect to it ([`Node::bus_proxy`]). When
    /// all these proxies are frozen, no node receives messages of other nodes, but clients reach all nodes.
    pub fn proxied_bus(mut self) -> Self {
        self.node = self.node.proxied_bus();
        self
    }

    /// Starts the cluster and waits as [`Cluster::wait_ok`] does.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`](crate::Error::NotInstalled), or the reason why the cluster did not start.
    pub fn start(self) -> Result<Cluster> {
        let timeout_ms = self.node_timeout.as_millis().to_string();
        let node = self.node.arg(NODE_TIMEOUT, timeout_ms.as_str());
        let nodes = node.start_many(self.primaries * (1 + self.replicas_each))?;
        let cluster = Cluster { nodes, node: node.clone() };
        // A primary waits for up to a node timeout, at most 5 s, before it reports a new cluster as ok.
        cluster.set_node_timeout(FORMING_TIMEOUT_MS)?;
        formation::form(&cluster.nodes, self.primaries)?;
        cluster.wait_ok()?;
        cluster.set_node_timeout(&timeout_ms)?;
        Ok(cluster)
    }
}
