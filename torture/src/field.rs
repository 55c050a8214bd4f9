//! Servers of a run, and their repair.

use super::*;

/// Node timeout that is longer than any pause here. So only an order causes a failover, and a busy machine does not.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);
/// Node timeout during an ordered failover. No node votes twice for successors of the same primary within two of these.
const TIMEOUT_OF_VOTERS: Duration = Duration::from_secs(3);
const MASTERS: usize = 5;
const ANSWERING: Duration = Duration::from_secs(10);

/// All servers.
#[derive(Debug)]
pub(crate) enum Field {
    Cluster(Cluster),
    Masters(Vec<Node>),
}

impl Field {
    /// Starts the servers, each with a proxy and its own clock. Each server writes files, so that a killed server comes
    /// back with its data.
    pub(crate) fn start(level: Level, server: Server) -> Result<Self> {
        // The file has an answered write, although the disk may not have it. This is enough, because only the process
        // is killed and the machine keeps running.
        let persistence = [("--appendonly", "yes"), ("--appendfsync", "no")];
        Ok(match level {
            Level::Primary | Level::Replicated => {
                let cluster = Cluster::builder(server).node_timeout(NODE_TIMEOUT).proxied().proxied_bus().clock();
                let cluster = persistence.into_iter().fold(cluster, |cluster, (name, value)| cluster.arg(name, value));
                Self::Cluster(cluster.start()?)
            }
            Level::Quorum => {
                let node = Node::builder(server).proxied().clock();
                let node = persistence.into_iter().fold(node, |node, (name, value)| node.arg(name, value));
                Self::Masters((0..MASTERS).map(|_| node.start()).collect::<Result<_, _>>()?)
            }
        })
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        match self {
            Self::Cluster(cluster) => cluster.nodes(),
            Self::Masters(nodes) => nodes,
        }
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.nodes().iter().map(Node::url).collect()
    }

    /// Returns the cluster.
    ///
    /// # Errors
    ///
    /// If the servers are independent masters.
    pub(crate) fn cluster(&self) -> Result<&Cluster> {
        match self {
            Self::Cluster(cluster) => Ok(cluster),
            Self::Masters(_) => Err("masters are no cluster".into()),
        }
    }

    /// Returns the servers that grant a lock.
    pub(crate) fn grantors(&self, lock: usize) -> Vec<&Node> {
        match self {
            Self::Cluster(cluster) => vec![cluster.primary_of_slot(cluster.keyslot(lock_name(lock)))],
            Self::Masters(nodes) => nodes.iter().collect(),
        }
    }

    /// Runs `order` with a node timeout that gives it the votes for a failover, until [`Field::heal`].
    ///
    /// # Errors
    ///
    /// The errors of `order`, and an error if there is no cluster.
    pub(crate) fn with_votes<'a>(
        &'a self,
        order: impl FnOnce(&'a Cluster) -> cluster_testenv::Result<&'a Node>,
    ) -> Result<&'a Node> {
        self.set_node_timeout(TIMEOUT_OF_VOTERS)?;
        Ok(order(self.cluster()?)?)
    }

    /// Allows all clients to run scripts.
    pub(crate) fn let_scripts_run(node: &Node) -> cluster_testenv::Result<()> {
        node.acl_set_user("default", &["+eval", "+evalsha"])
    }

    /// Separates all nodes of the cluster, until [`Field::heal`] or [`Field::join_nodes`].
    pub(crate) fn part_nodes(&self) {
        self.nodes().iter().for_each(|node| node.bus_proxy().freeze());
    }

    /// Reconnects the nodes of the cluster, which then learn of changes.
    pub(crate) fn join_nodes(&self) {
        self.nodes().iter().for_each(|node| node.bus_proxy().heal());
    }

    /// Waits until all running nodes know `primary` as a primary.
    pub(crate) fn wait_until_known(&self, primary: &Node) -> Result<()> {
        let address = format!(":{}@", primary.proxy().port());
        let knows = |node: &Node| {
            let nodes = node.command(&["CLUSTER", "NODES"])?.into_result()?;
            let nodes = nodes.text().unwrap_or_default();
            Ok::<_, cluster_testenv::Error>(
                nodes.lines().any(|line| line.contains(&address) && line.contains("master")),
            )
        };
        let running = self.nodes().iter().filter(|node| node.is_running());
        Ok(wait_for("news of a failover", ANSWERING, || {
            running.clone().all(|node| knows(node).unwrap_or(false)).then_some(())
        })?)
    }

    fn set_node_timeout(&self, timeout: Duration) -> Result<()> {
        let timeout_ms = timeout.as_millis().to_string();
        for node in self.nodes().iter().filter(|node| node.is_running()) {
            node.command(&["CONFIG", "SET", "cluster-node-timeout", &timeout_ms])?.into_result()?;
        }
        Ok(())
    }

    /// Repairs the remains of a fault, and waits until all servers are healthy. In a cluster, the replica of each
    /// primary then acknowledges writes.
    pub(crate) fn heal(&self) -> Result<()> {
        for node in self.nodes() {
            node.resume();
            node.proxy().heal();
            if !node.is_running() {
                node.restart()?;
            }
            let obeys = || node.set_memory_limit(0).and_then(|()| Self::let_scripts_run(node)).ok();
            wait_for(format!("{} answering", node.addr()), ANSWERING, obeys)?;
        }
        if let Self::Cluster(cluster) = self {
            self.join_nodes();
            self.set_node_timeout(NODE_TIMEOUT)?;
            cluster.wait_ok()?;
        }
        Ok(())
    }

    /// Returns the version that the server reports.
    pub(crate) fn version(&self) -> String {
        let info = self.nodes()[0].command(&["INFO", "server"]);
        let info = info.ok().and_then(|reply| reply.text().map(|text| text.into_owned())).unwrap_or_default();
        let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
        match field("valkey_version:") {
            Some(version) => format!("Valkey {version}"),
            None => format!("Redis {}", field("redis_version:").unwrap_or_default()),
        }
    }

    /// Returns the keys of the locks at one node.
    pub(crate) fn keys(&self, node: &Node) -> Result<Vec<Vec<u8>>> {
        let reply = node.command(&["KEYS", &format!("{PREFIX}*")])?.into_result()?;
        let keys = reply.array().unwrap_or_default().iter().filter_map(Reply::bytes);
        Ok(keys.map(<[u8]>::to_vec).collect())
    }

    /// Counts the keys without an expiry, which would stay forever.
    pub(crate) fn endless_keys(&self) -> Result<usize> {
        let mut endless = 0;
        for node in self.nodes() {
            for key in self.keys(node)? {
                let ttl = node.command(&[b"PTTL".as_slice(), &key])?;
                endless += usize::from(ttl.int() == Some(-1));
            }
        }
        Ok(endless)
    }

    /// Deletes all data of a lock at these nodes.
    pub(crate) fn delete(&self, lock: usize, nodes: &[&Node]) -> Result<()> {
        let name = format!("{{{}}}", lock_name(lock));
        for node in nodes {
            let keys = self.keys(node)?;
            let ours = keys.into_iter().filter(|key| String::from_utf8_lossy(key).contains(&name));
            for key in ours {
                node.command(&[b"DEL".as_slice(), &key])?.into_result()?;
            }
        }
        Ok(())
    }
}
