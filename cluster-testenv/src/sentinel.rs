//! Primary with replicas, and the Sentinels that watch them.

use std::{sync::Arc, time::Duration};

use crate::{
    Certificates, Error, Node, NodeBuilder, Result, Server, TlsClients,
    guardian::Guardian,
    node::{quoted, start_all},
    port::{self, PortReservation},
    replication,
    wait::{wait_for, wait_until_well},
};

/// Name that most documentation uses.
const NAME: &str = "mymaster";
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// Limit for forming the environment, and for a failover. Both are far shorter with any sensible `down_after`.
const OK_BOUND: Duration = Duration::from_secs(30);
/// Shorter periods of a Sentinel, whose defaults are 10 s, 1 s, 1 s and 2 s.
///
/// A replica that has been silent for three info periods or five ping periods is not good enough to be promoted. So
/// periods shorter than these are too short for a busy machine.
///
/// A Sentinel may not know of an ordered failover yet. After four publish periods, it makes the new primary a replica
/// again. The leading Sentinel asks only once a second whether the replica has become primary, so a publish period of
/// 250 ms would be too short.
const PERIODS_MS: [(&str, &str); 4] =
    [("info-period", "300"), ("ping-period", "200"), ("ask-period", "100"), ("publish-period", "500")];

/// Primary, two replicas and three Sentinels, of which two must agree that the primary is down.
///
/// The primary changes while a test runs, so every method that returns the primary asks the Sentinels again. The
/// Sentinels are faster than by default. A restarted Sentinel does not have these settings. A pause of more than 2 s
/// makes a Sentinel refuse to act for 30 s.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Node>,
    nodes: Vec<Node>,
}

impl Sentinels {
    /// Starts all servers and waits as [`Sentinels::wait_ok`] does. Needs the command SENTINEL DEBUG.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], [`Error::Unsupported`] for a server without it, or the reason why one of the servers did
    /// not start.
    pub fn start(server: Server) -> Result<Self> {
        Self::builder(server).start()
    }

    /// Returns a builder for other settings.
    pub fn builder(server: Server) -> SentinelsBuilder {
        // The defaults only cost time when a replica joins: 5 s and up to 10 s.
        let node = Node::builder(server).arg("--repl-diskless-sync-delay", "0").arg("--repl-ping-replica-period", "1");
        SentinelsBuilder { node, down_after: Duration::from_secs(1) }
    }

    /// URLs of the Sentinels.
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Node::url).collect()
    }

    /// Sentinels.
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// Primary and replicas, the initial primary first. The order never changes.
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// Name of the primary and its replicas at the Sentinels.
    pub fn primary_name(&self) -> &str {
        NAME
    }

    /// Certificates that clients need to speak TLS with the Sentinels and with the servers that they watch.
    ///
    /// # Panics
    ///
    /// When the servers were started without [`SentinelsBuilder::tls`].
    pub fn certificates(&self) -> &Certificates {
        self.sentinels[0].certificates()
    }

    /// Returns the primary by the newest answer of the running Sentinels. A dead or paused primary stays the primary
    /// until a failover.
    ///
    /// # Panics
    ///
    /// When no Sentinel runs.
    pub fn primary(&self) -> &Node {
        let views = self.running_sentinels().filter_map(|sentinel| View::of(sentinel).ok());
        let newest = views.max_by_key(|view| view.config_epoch).expect("a Sentinel runs and answers");
        self.nodes.iter().find(|node| node.migration_port() == newest.port).expect("the primary is one of the nodes")
    }

    /// Returns the nodes that are not the primary, dead and paused ones included.
    ///
    /// # Panics
    ///
    /// In the cases of [`Sentinels::primary`].
    pub fn replicas(&self) -> Vec<&Node> {
        let primary = self.primary().port();
        self.nodes.iter().filter(|node| node.port() != primary).collect()
    }

    /// Orders a Sentinel to promote a replica in place of the primary, which need not be down.
    ///
    /// Returns the new primary when its role is primary and all running Sentinels name it. A Sentinel gives up if its
    /// data about the replicas is too old. The method then repeats the order.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`] when there is no new primary after 30 s.
    ///
    /// # Panics
    ///
    /// In the cases of [`Sentinels::primary`].
    pub fn failover(&self) -> Result<&Node> {
        let old = self.primary().migration_port();
        let sentinel = self.running_sentinels().next().expect("a Sentinel runs");
        let mut last_answer = None;
        let done = wait_for("", OK_BOUND, || {
            let view = View::of(sentinel).ok()?;
            if view.port == old && !view.flags.contains("failover_in_progress") {
                last_answer = Some(sentinel.command(&["SENTINEL", "FAILOVER", NAME]));
            }
            self.primary_after(old)
        });
        done.map_err(|_| Error::NotInTime { what: format!("the failover (answer: {last_answer:?})"), bound: OK_BOUND })
    }

    /// Waits until the running Sentinels agree on another primary than `old`, and returns it when its own role is
    /// primary. The caller has killed or paused `old` before.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`] if the Sentinels do not agree within 30 s.
    pub fn wait_for_failover_from(&self, old: &Node) -> Result<&Node> {
        wait_for("another primary", OK_BOUND, || self.primary_after(old.migration_port()))
    }

    /// Waits until all servers are healthy, at most 30 s.
    ///
    /// The running Sentinels then agree on a running primary without any flag of failure. They know all nodes and all
    /// Sentinels, and could order a failover. All running replicas follow the primary, and have all writes up to the
    /// primary's answer.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`], which says what is wrong.
    pub fn wait_ok(&self) -> Result<()> {
        let complaint = || self.complaint().unwrap_or_else(|error| Some(error.to_string()));
        wait_until_well("healthy Sentinels", OK_BOUND, complaint)
    }

    /// Returns the primary that all running Sentinels name instead of `old`, if its own role is primary.
    fn primary_after(&self, old: u16) -> Option<&Node> {
        let views: Vec<View> = self.running_sentinels().map(View::of).collect::<Result<_>>().ok()?;
        let port = views.first()?.port;
        let is_agreed = port != old && views.iter().all(|view| view.port == port);
        let primary = self.nodes.iter().find(|node| node.migration_port() == port).filter(|_| is_agreed)?;
        primary.is_primary().is_ok_and(|is_primary| is_primary).then_some(primary)
    }

    fn complaint(&self) -> Result<Option<String>> {
        let mut primary = None;
        for sentinel in self.running_sentinels() {
            let view = View::of(sentinel)?;
            if let Some(complaint) = view.complaint(self.nodes.len() - 1) {
                return Ok(Some(format!("Sentinel {}: {complaint}", sentinel.port())));
            }
            sentinel.ask(&["SENTINEL", "CKQUORUM", NAME])?;
            if *primary.get_or_insert(view.port) != view.port {
                return Ok(Some("the Sentinels do not agree on the primary".to_owned()));
            }
        }
        let primary = self.nodes.iter().find(|node| Some(node.migration_port()) == primary && node.is_running());
        let Some(primary) = primary else { return Ok(Some("the primary does not run".to_owned())) };
        let running = self.nodes.iter().filter(|node| node.is_running() && node.port() != primary.port());
        let link = format!("master_port:{}\r\nmaster_link_status:up", primary.migration_port());
        let mut replicas = Vec::new();
        for replica in running {
            let info = replica.ask(&["INFO", "replication"])?;
            if !info.text().unwrap_or_default().contains(&link) {
                return Ok(Some(format!("replica {} has no link to the primary", replica.port())));
            }
            replicas.push(replica);
        }
        replication::complaint(primary, &replicas)
    }

    fn running_sentinels(&self) -> impl Iterator<Item = &Node> {
        self.sentinels.iter().filter(|node| node.is_running())
    }
}

/// Answer of a Sentinel about the primary.
struct View {
    port: u16,
    config_epoch: u64,
    flags: String,
    replicas: usize,
    other_sentinels: usize,
}

impl View {
    fn of(sentinel: &Node) -> Result<Self> {
        let reply = sentinel.ask(&["SENTINEL", "MASTER", NAME])?;
        let read = || {
            Some(Self {
                port: reply.field("port")?.parse().ok()?,
                config_epoch: reply.field("config-epoch")?.parse().ok()?,
                flags: reply.field("flags")?.into_owned(),
                replicas: reply.field("num-slaves")?.parse().ok()?,
                other_sentinels: reply.field("num-other-sentinels")?.parse().ok()?,
            })
        };
        read().ok_or_else(|| reply.unexpected())
    }

    fn complaint(&self, replicas: usize) -> Option<String> {
        if self.flags != "master" {
            return Some(format!("the primary is {}", self.flags));
        }
        let is_whole = self.replicas == replicas && self.other_sentinels == SENTINELS - 1;
        (!is_whole).then(|| format!("knows {} replicas, {} Sentinels", self.replicas, self.other_sentinels))
    }
}

/// Sentinels that have not started yet.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing until `start`"]
pub struct SentinelsBuilder {
    node: NodeBuilder,
    down_after: Duration,
}

impl SentinelsBuilder {
    const REPLICAS: usize = 2;

    /// Sets the time for which the primary may be silent before a Sentinel marks it as down. Defaults to 1 s. A shorter
    /// time makes failovers quicker. A longer time prevents failovers on a busy machine.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Makes the primary and the replicas require a password, as [`NodeBuilder::password`] does. The Sentinels know
    /// this password, and require none themselves.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        self.node = self.node.password(password);
        self
    }

    /// Makes all servers speak TLS, with clients and among them, as [`NodeBuilder::tls`] does. They share one
    /// authority.
    pub fn tls(mut self, clients: TlsClients) -> Self {
        self.node = self.node.tls(clients);
        self
    }

    /// Adds an argument to the primary and the replicas, as [`NodeBuilder::arg`] does.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.node = self.node.arg(name, value);
        self
    }

    /// Starts all servers and waits as [`Sentinels::wait_ok`] does.
    ///
    /// # Errors
    ///
    /// The errors of [`Sentinels::start`].
    pub fn start(self) -> Result<Sentinels> {
        let guardian = Arc::new(Guardian::start()?);
        let primary = self.node.start_guarded(&guardian)?;
        let replica = self.node.clone().replica_of(&primary);
        let replicas = start_all((0..Self::REPLICAS).map(|_| || replica.start_guarded(&guardian)))?;
        let nodes: Vec<Node> = std::iter::once(primary).chain(replicas).collect();
        let sentinels = Sentinels { sentinels: self.start_sentinels(&nodes, &guardian)?, nodes };
        for sentinel in &sentinels.sentinels {
            if !sentinel.has_command("sentinel|debug")? {
                return Err(Error::Unsupported(format!("the Sentinel of {} cannot be made quick", sentinel.server())));
            }
            let periods = PERIODS_MS.into_iter().flat_map(|(name, period_ms)| [name, period_ms]);
            let command: Vec<&str> = ["SENTINEL", "DEBUG"].into_iter().chain(periods).collect();
            sentinel.ask(&command)?;
        }
        sentinels.wait_ok()?;
        Ok(sentinels)
    }

    /// Starts each Sentinel with a list of the other Sentinels. Without the list, it would find them only after 10 s.
    /// With TLS, the Sentinels correct the ports, which are not known before the start.
    fn start_sentinels(&self, nodes: &[Node], guardian: &Arc<Guardian>) -> Result<Vec<Node>> {
        let ports = (0..SENTINELS).map(|_| PortReservation::new()).collect::<Result<Vec<_>>>()?;
        let known: Vec<(u16, String)> = ports.iter().map(|port| (port.port(), sentinel_id())).collect();
        let builder = Node::builder(nodes[0].server()).tls_as(&self.node);
        start_all(ports.into_iter().map(|port| {
            let conf = self.conf(nodes, port.port(), &known);
            let builder = &builder;
            move || builder.start_sentinel(port, &conf, guardian)
        }))
    }

    fn conf(&self, nodes: &[Node], own_port: u16, sentinels: &[(u16, String)]) -> String {
        let (primary, replicas) = nodes.split_first().expect("there is a primary");
        let word_of = |node: &Node| format!("{} {}", node.addr().ip(), node.migration_port());
        let mut lines = vec![
            format!("monitor {NAME} {} {QUORUM}", word_of(primary)),
            format!("down-after-milliseconds {NAME} {}", self.down_after.as_millis()),
            // After a failed failover, the next failover waits for twice this time.
            format!("failover-timeout {NAME} 2500"),
        ];
        lines.extend(primary.password().map(|password| format!("auth-pass {NAME} {}", quoted(password))));
        lines.extend(replicas.iter().map(|replica| format!("known-replica {NAME} {}", word_of(replica))));
        lines.extend(sentinels.iter().map(|(port, id)| match *port == own_port {
            true => format!("myid {id}"),
            false => format!("known-sentinel {NAME} {} {port} {id}", primary.addr().ip()),
        }));
        lines.into_iter().map(|line| format!("sentinel {line}\n")).collect()
    }
}

/// Returns forty random hexadecimal digits.
fn sentinel_id() -> String {
    format!("{:016x}{:016x}{:08x}", port::random(), port::random(), port::random() as u32)
}
