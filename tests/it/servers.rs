//! Servers of this test binary. All cases that do no harm share one node and one cluster of each kind. The other cases
//! have servers of their own.

use std::sync::LazyLock;
use std::sync::OnceLock;
use std::time::Duration;

use cluster_testenv::{Cluster, Masters, Node, NodeBuilder, Reply, RoutingProxy, Server};
use tokio::sync::{Mutex, MutexGuard};

use crate::portable::refuse_fast_form;

/// Servers on which the crate works.
pub const SUPPORTED: [Server; 4] = [Server::Redis70, Server::Redis82, Server::Valkey81, Server::Valkey91];

/// Node timeout that is longer than any stall of a busy machine. No replica takes over where no case asks for it.
const NODE_TIMEOUT: Duration = Duration::from_secs(15);

/// Environments, one for each server, which the first case starts.
struct PerServer<T> {
    started: [OnceLock<T>; Server::ALL.len()],
    start: fn(Server) -> T,
}

impl<T> PerServer<T> {
    const fn new(start: fn(Server) -> T) -> Self {
        Self { started: [const { OnceLock::new() }; Server::ALL.len()], start }
    }

    fn of(&self, server: Server) -> &T {
        let place = Server::ALL.iter().position(|other| *other == server).expect("one of all");
        self.started[place].get_or_init(|| (self.start)(server))
    }
}

static NODES: PerServer<Node> = PerServer::new(start_node);
static CLUSTERS: PerServer<Cluster> = PerServer::new(start_cluster);
/// Clusters for cases that need one alone. They use it one after the other, because a cluster takes seconds to start.
static LONE_CLUSTERS: PerServer<Mutex<Cluster>> = PerServer::new(|server| Mutex::new(start_cluster(server)));
/// Nodes with a proxy in front, for cases that do something to single requests of their own locks.
static PROXIED_NODES: PerServer<Node> = PerServer::new(start_proxied_node);
static PROXIED_CLUSTERS: PerServer<Cluster> = PerServer::new(start_proxied_cluster);

fn start_node(server: Server) -> Node {
    Node::start(server).expect("the server starts")
}

fn start_cluster(server: Server) -> Cluster {
    Cluster::builder(server).node_timeout(NODE_TIMEOUT).start().expect("the cluster starts")
}

fn start_proxied_node(server: Server) -> Node {
    Node::builder(server).proxied().start().expect("the server starts")
}

fn start_proxied_cluster(server: Server) -> Cluster {
    let cluster = Cluster::builder(server).replicas(0).proxied().node_timeout(NODE_TIMEOUT);
    cluster.start().expect("the cluster starts")
}

/// Returns a node behind a proxy that lets it refuse the fast form of the scripts.
pub fn portable_node() -> &'static Node {
    static NODE: LazyLock<Node> = LazyLock::new(|| {
        let node = start_proxied_node(Server::Redis70);
        refuse_fast_form(node.proxy());
        node
    });
    &NODE
}

/// Commands that a server does not know.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Missing {
    Hello,
    /// Those of sharded channels, and `WAIT`.
    Channels,
}

impl Missing {
    pub fn commands(self) -> &'static [&'static str] {
        match self {
            Self::Hello => &["HELLO"],
            Self::Channels => &["SPUBLISH", "SSUBSCRIBE", "SUNSUBSCRIBE", "WAIT"],
        }
    }

    /// Starts a server without these commands, which needs a password.
    pub fn start(commands: &[&str]) -> Node {
        let builder = Node::builder(Server::Redis70).password("s3cret");
        let node = commands.iter().fold(builder, |builder, command| builder.without_command(command));
        node.start().expect("the server starts")
    }

    /// The server that all cases use.
    pub fn node(self) -> &'static Node {
        static NODES: [OnceLock<Node>; 2] = [OnceLock::new(), OnceLock::new()];
        NODES[self as usize].get_or_init(|| Self::start(self.commands()))
    }
}

/// A proxy in front of a cluster, which all cases use.
pub fn proxy_of_cluster() -> &'static RoutingProxy {
    static SERVERS: OnceLock<(Cluster, RoutingProxy)> = OnceLock::new();
    let start = || {
        let cluster = Cluster::builder(Server::Valkey91).replicas(0).start().expect("the cluster starts");
        let proxy = RoutingProxy::before(&cluster).expect("a proxy");
        (cluster, proxy)
    };
    &SERVERS.get_or_init(start).1
}

/// A primary, and a replica that follows it.
pub struct Pair {
    pub primary: Node,
    pub replica: Node,
}

impl Pair {
    pub fn shared(server: Server) -> &'static Self {
        static PAIRS: PerServer<Pair> = PerServer::new(Pair::start);
        PAIRS.of(server)
    }

    pub fn start(server: Server) -> Self {
        Self::of(Node::builder(server))
    }

    /// A pair with a proxy in front of each. The replica follows the primary past its proxy.
    pub fn proxied(server: Server) -> Self {
        Self::of(Node::builder(server).proxied())
    }

    fn of(builder: NodeBuilder) -> Self {
        let builder = builder.arg("--repl-diskless-sync-delay", "0");
        let node = || builder.start().expect("the server starts");
        let pair = Self { primary: node(), replica: node() };
        let (host, port) = (pair.primary.addr().ip().to_string(), pair.primary.port().to_string());
        ask(&pair.replica, &["REPLICAOF", &host, &port]);
        wait_until_followed(&pair.primary);
        pair
    }

    /// Number of clients that wait for the replica at this moment.
    pub fn waiting(&self) -> usize {
        waiting_at(&self.primary)
    }
}

/// Waits until the replica of a primary acknowledges new writes. A replica that was just attached acknowledges its first
/// copy, and gets the rest up to a second later.
pub fn wait_until_followed(primary: &Node) {
    wait_until_followed_by(primary, 1, "follows");
}

/// Waits until this number of replicas acknowledge new writes. `key` is a key of the primary.
pub fn wait_until_followed_by(primary: &Node, replicas: i64, key: &str) {
    let mut client = primary.client().expect("connected");
    for _ in 0..3 {
        // Valkey waits only for what this connection has written.
        let written = client.command(&["SET", key, "", "PX", "1"]).and_then(Reply::into_result);
        written.expect("written");
        let waited = client.command(&["WAIT", &replicas.to_string(), "20000"]).and_then(Reply::into_result);
        assert!(waited.expect("answered").int() >= Some(replicas), "not all replicas follow");
    }
}

/// Number of clients that wait for the replicas of a primary at this moment.
pub fn waiting_at(primary: &Node) -> usize {
    let info = ask(primary, &["INFO", "clients"]).text().expect("a text").into_owned();
    let blocked = info.lines().find_map(|line| line.strip_prefix("blocked_clients:"));
    blocked.and_then(|count| count.parse().ok()).expect("a number")
}

/// Number of five independent masters that are alive.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Voters {
    FiveOfFive,
    ThreeOfFive,
}

impl Voters {
    pub fn urls(self, server: Server) -> Vec<String> {
        static FIVE: PerServer<Masters> = PerServer::new(start_masters);
        static THREE: PerServer<Masters> = PerServer::new(|server| {
            let masters = start_masters(server);
            masters.nodes()[3..].iter().for_each(Node::kill);
            masters
        });
        match self {
            Self::FiveOfFive => FIVE.of(server).urls(),
            Self::ThreeOfFive => THREE.of(server).urls(),
        }
    }
}

fn start_masters(server: Server) -> Masters {
    Masters::start(server, 5).expect("the masters start")
}

/// Servers that a fixture's managers connect to.
pub enum Servers {
    Node(&'static Node),
    OwnNode(Box<Node>),
    Cluster(&'static Cluster),
    OwnCluster(MutexGuard<'static, Cluster>),
}

impl Servers {
    pub fn shared_node(server: Server) -> Self {
        Self::Node(NODES.of(server))
    }

    pub fn own_node(server: Server) -> Self {
        Self::OwnNode(Box::new(start_node(server)))
    }

    pub fn proxied_node(server: Server) -> Self {
        Self::Node(PROXIED_NODES.of(server))
    }

    pub fn proxied_cluster(server: Server) -> Self {
        Self::Cluster(PROXIED_CLUSTERS.of(server))
    }

    pub fn shared_cluster(server: Server) -> Self {
        Self::Cluster(CLUSTERS.of(server))
    }

    /// A cluster that no other case uses until this is dropped.
    pub async fn own_cluster(server: Server) -> Self {
        let cluster = LONE_CLUSTERS.of(server).lock().await;
        // The case before may have left the cluster in trouble.
        cluster.wait_ok().expect("the cluster is well again");
        Self::OwnCluster(cluster)
    }

    /// The cluster, if there is one.
    pub fn cluster(&self) -> Option<&Cluster> {
        match self {
            Self::Node(_) | Self::OwnNode(_) => None,
            Self::Cluster(cluster) => Some(cluster),
            Self::OwnCluster(cluster) => Some(cluster),
        }
    }

    fn node(&self) -> Option<&Node> {
        match self {
            Self::Node(node) => Some(node),
            Self::OwnNode(node) => Some(node),
            Self::Cluster(_) | Self::OwnCluster(_) => None,
        }
    }

    /// All nodes that own keys.
    pub fn primaries(&self) -> Vec<&Node> {
        match self.cluster() {
            Some(cluster) => cluster.primaries(),
            None => self.node().into_iter().collect(),
        }
    }

    fn all(&self) -> Vec<&Node> {
        match self.cluster() {
            Some(cluster) => cluster.nodes().iter().collect(),
            None => self.node().into_iter().collect(),
        }
    }

    /// The node that owns a key.
    pub fn owner_of(&self, key: &str) -> &Node {
        match self.cluster() {
            Some(cluster) => cluster.primary_of_slot(cluster.keyslot(key)),
            None => self.node().expect("a node where there is no cluster"),
        }
    }

    /// Sends one command to every node that owns keys.
    pub fn everywhere(&self, command: &[&str]) -> Vec<Reply> {
        self.primaries().into_iter().map(|node| ask(node, command)).collect()
    }

    /// Stops all servers, so that none answers any more.
    pub fn pause(&self) {
        self.all().into_iter().for_each(Node::pause);
    }

    pub fn resume(&self) {
        self.all().into_iter().for_each(Node::resume);
    }
}

impl Drop for Servers {
    /// Resumes a cluster of the case's own, so that the next case finds it awake.
    fn drop(&mut self) {
        if matches!(self, Self::OwnCluster(_)) {
            self.resume();
        }
    }
}

/// Name and version of the software, as the server itself tells them in `INFO`.
pub fn software(node: &Node) -> (String, String) {
    let info = ask(node, &["INFO", "server"]).text().expect("a text").into_owned();
    let field = |name: &str| info.lines().find_map(|line| line.strip_prefix(name).map(str::to_owned));
    // Servers that are not Redis name themselves, and have a line for the version of Redis as well.
    let name = field("server_name:").unwrap_or_else(|| "redis".to_owned());
    let version = field(&format!("{name}_version:")).expect("a version");
    (name, version)
}

/// Sends one command to one node, which must not refuse it.
pub fn ask(node: &Node, command: &[&str]) -> Reply {
    let reply = node.command(command).and_then(Reply::into_result);
    reply.unwrap_or_else(|error| panic!("{command:?}: {error}"))
}
