//! The servers that a turn has for itself.

use std::time::Duration;

use cluster_testenv::{Cluster, Masters, Node, Reply, Server};

#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Place {
    Node,
    /// A primary and its replica.
    Pair,
    /// So many primaries, without replicas.
    Cluster(usize),
    /// Five that know nothing of each other.
    Masters,
}

const MASTERS: usize = 5;

pub(crate) struct Servers {
    kept: Kept,
    /// How many of the nodes are primaries; they come first.
    primaries: usize,
}

enum Kept {
    Nodes(Vec<Node>),
    Masters(Masters),
    Cluster(Cluster),
}

impl Servers {
    pub(crate) fn start(place: Place, server: Server) -> Self {
        let hint = "a server starts; cluster-testenv/install brings it";
        match place {
            Place::Node => Self { kept: Kept::Nodes(vec![Node::start(server).expect(hint)]), primaries: 1 },
            Place::Pair => Self { kept: Kept::Nodes(pair(server)), primaries: 1 },
            Place::Masters => {
                Self { kept: Kept::Masters(Masters::start(server, MASTERS).expect(hint)), primaries: MASTERS }
            }
            Place::Cluster(primaries) => {
                // A busy machine is no reason to call a node failed.
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
        }
    }

    pub(crate) fn primaries(&self) -> &[Node] {
        &self.nodes()[..self.primaries]
    }

    pub(crate) fn urls(&self) -> Vec<String> {
        self.primaries().iter().map(Node::url).collect()
    }
}

fn pair(server: Server) -> Vec<Node> {
    let start = || Node::builder(server).arg("--repl-diskless-sync-delay", "0").start().expect("a server starts");
    let (primary, replica) = (start(), start());
    let (host, port) = (primary.addr().ip().to_string(), primary.port().to_string());
    replica.command(&["REPLICAOF", &host, &port]).expect("it follows");
    let mut client = primary.client().expect("connected");
    // The first may be answered by a replica that is still being filled.
    for _ in 0..3 {
        client.command(&["SET", "follows", ""]).expect("written");
        assert_eq!(client.command(&["WAIT", "1", "20000"]).ok().as_ref().and_then(Reply::int), Some(1));
    }
    vec![primary, replica]
}
