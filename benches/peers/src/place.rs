//! Servers that a turn has for itself.

use cluster_testenv::{Cluster, Masters};

use super::*;

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Node,
    /// A primary and its replica.
    Pair,
    /// Cluster with this number of primaries, without replicas.
    Cluster(usize),
    /// Five independent masters.
    Masters,
    /// Five lock servers of dsync, which has servers of its own.
    LockServers,
}

const MASTERS: usize = 5;

pub(crate) struct Servers {
    kept: Kept,
    /// Number of primaries among the nodes. They come first.
    primaries: usize,
}

enum Kept {
    Nodes(Vec<Node>),
    Masters(Masters),
    Cluster(Cluster),
    LockServers(Vec<LockServer>),
}

impl Servers {
    pub(crate) fn start(place: Place, server: Server) -> Self {
        let hint = "a server starts; cluster-testenv/install brings it";
        match place {
            Place::Node => Self { kept: Kept::Nodes(vec![Node::start(server).expect(hint)]), primaries: 1 },
            Place::Pair => Self { kept: Kept::Nodes(start_pair(server).into()), primaries: 1 },
            Place::Masters => {
                Self { kept: Kept::Masters(Masters::start(server, MASTERS).expect(hint)), primaries: MASTERS }
            }
            Place::LockServers => {
                let servers = (0..MASTERS).map(|_| LockServer::start()).collect();
                Self { kept: Kept::LockServers(servers), primaries: 0 }
            }
            Place::Cluster(primaries) => {
                // The timeout is long, because the nodes must not count a node as failed when the machine is busy.
                let builder = Cluster::builder(server).node_timeout(Duration::from_secs(10));
                let cluster = builder.primaries(primaries).replicas(0).start().expect(hint);
                Self { kept: Kept::Cluster(cluster), primaries }
            }
        }
    }

    pub(crate) fn nodes(&self) -> &[Node] {
        match &self.kept {
            Kept::Nodes(nodes) => nodes,
            Kept::Masters(masters) => masters.nodes(),
            Kept::Cluster(cluster) => cluster.nodes(),
            Kept::LockServers(_) => &[],
        }
    }

    pub(crate) fn lock_servers(&self) -> &[LockServer] {
        match &self.kept {
            Kept::LockServers(servers) => servers,
            Kept::Nodes(_) | Kept::Masters(_) | Kept::Cluster(_) => &[],
        }
    }

    pub(crate) fn primaries(&self) -> &[Node] {
        &self.nodes()[..self.primaries]
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        let addresses = self.lock_servers().iter().map(LockServer::address).map(str::to_owned);
        self.primaries().iter().map(Node::url).chain(addresses).collect()
    }
}
