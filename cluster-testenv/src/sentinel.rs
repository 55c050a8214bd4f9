//! A primary with replicas, and the Sentinels that watch them.

use std::{sync::Arc, time::Duration};

use crate::{
    Certificates, Error, Node, NodeBuilder, Result, Server, TlsClients,
    guardian::Guardian,
    node::{quoted, start_all},
    port::{self, PortReservation},
    replication, wait_for,
};

/// The name that most documentation gives.
const NAME: &str = "mymaster";
const SENTINELS: usize = 3;
const QUORUM: usize = 2;
/// Far longer than forming, or a failover with any sensible `down_after`, takes.
const OK_BOUND: Duration = Duration::from_secs(30);
/// How often a Sentinel does things, instead of every 10 s, 1 s, 1 s and 2 s. A replica from which it has not heard for three
/// info or five ping periods is not good enough to be promoted: shorter ones are too short for a busy machine. After four
/// publish periods a Sentinel that has not heard of an ordered failover makes the new primary a replica again, and the one
/// that leads it asks only once a second whether the replica has become primary: 250 ms would be too short.
const PERIODS_MS: [(&str, &str); 4] =
    [("info-period", "300"), ("ping-period", "200"), ("ask-period", "100"), ("publish-period", "500")];

/// A primary, two replicas and three Sentinels, of which two must agree that the primary is down.
///
/// The primary changes while a test runs; every method that speaks of it asks the Sentinels anew. The Sentinels are quicker
/// than usual, which one that is restarted forgets. Pausing one for more than 2 s makes it refuse to act for 30 s.
#[derive(Debug)]
pub struct Sentinels {
    sentinels: Vec<Node>,
    nodes: Vec<Node>,
}

impl Sentinels {
    /// Starts everything and waits as [`Sentinels::wait_ok`] does. Needs Redis 7.0 or Valkey.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], [`Error::Unsupported`] for an older server, or what kept one of the servers from starting.
    pub fn start(server: Server) -> Result<Self> {
        Self::builder(server).start()
    }

    /// With other settings.
    pub fn builder(server: Server) -> SentinelsBuilder {
        // These only cost time when a replica joins: 5 s and up to 10 s.
        let node = Node::builder(server).arg("--repl-diskless-sync-delay", "0").arg("--repl-ping-replica-period", "1");
        SentinelsBuilder { server, node, password: None, down_after: Duration::from_secs(1) }
    }

    /// The URLs of the Sentinels.
    #[must_use]
    pub fn urls(&self) -> Vec<String> {
        self.sentinels.iter().map(Node::url).collect()
    }

    /// The Sentinels.
    #[must_use]
    pub fn sentinels(&self) -> &[Node] {
        &self.sentinels
    }

    /// The primary and the replicas: first the one that was primary in the beginning. The order never changes.
    #[must_use]
    pub fn nodes(&self) -> &[Node] {
        &self.nodes
    }

    /// What the Sentinels call the primary and its replicas.
    #[must_use]
    pub fn primary_name(&self) -> &str {
        NAME
    }

    /// What clients need to speak TLS with the Sentinels and with those that they watch.
    ///
    /// # Panics
    ///
    /// When they were started without [`SentinelsBuilder::tls`].
    #[must_use]
    pub fn certificates(&self) -> &Certificates {
        self.sentinels[0].certificates()
    }

    /// The primary by the newest word of the running Sentinels. One that is dead or paused stays it until a failover.
    ///
    /// # Panics
    ///
    /// When no Sentinel runs.
    #[must_use]
    pub fn primary(&self) -> &Node {
        let views = self.running_sentinels().filter_map(|sentinel| View::of(sentinel).ok());
        let newest = views.max_by_key(|view| view.config_epoch).expect("a Sentinel runs and answers");
        self.nodes.iter().find(|node| node.migration_port() == newest.port).expect("the primary is one of the nodes")
    }

    /// The nodes that are not the primary, dead and paused ones included.
    ///
    /// # Panics
    ///
    /// As [`Sentinels::primary`].
    #[must_use]
    pub fn replicas(&self) -> Vec<&Node> {
        let primary = self.primary().port();
        self.nodes.iter().filter(|node| node.port() != primary).collect()
    }

    /// Lets a Sentinel put a replica in the place of the primary, which need not be down. Returns the new primary when it
    /// is one and all running Sentinels call it so. A Sentinel that gives up, because it has not heard from the replicas just
    /// now, is told again.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`] when there is no new primary after 30 s.
    ///
    /// # Panics
    ///
    /// As [`Sentinels::primary`].
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

    /// Waits until the running Sentinels agree on another primary than `old`, which is to have been killed or paused, and
    /// returns it when it says so itself.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`] when they do not within 30 s.
    pub fn wait_for_failover_from(&self, old: &Node) -> Result<&Node> {
        wait_for("another primary", OK_BOUND, || self.primary_after(old.migration_port()))
    }

    /// Waits until all is well, at most 30 s: the running Sentinels agree on a primary that runs and is called nothing
    /// worse, know all nodes and each other and could order a failover; all running replicas follow the primary and have
    /// what it had written when it was asked.
    ///
    /// # Errors
    ///
    /// [`Error::NotInTime`], which says what is wrong.
    pub fn wait_ok(&self) -> Result<()> {
        let mut complaint = String::new();
        let ok = wait_for("", OK_BOUND, || match self.complaint() {
            Ok(None) => Some(()),
            Ok(Some(found)) => {
                complaint = found;
                None
            }
            Err(error) => {
                complaint = error.to_string();
                None
            }
        });
        ok.map_err(|_| Error::NotInTime { what: format!("healthy Sentinels ({complaint})"), bound: OK_BOUND })
    }

    /// The primary that all running Sentinels name instead of `old`, if it says so itself.
    fn primary_after(&self, old: u16) -> Option<&Node> {
        let views: Vec<View> = self.running_sentinels().map(View::of).collect::<Result<_>>().ok()?;
        let port = views.first()?.port;
        let is_agreed = port != old && views.iter().all(|view| view.port == port);
        let primary = self.nodes.iter().find(|node| node.migration_port() == port).filter(|_| is_agreed)?;
        primary.role().is_ok_and(|role| role == "master").then_some(primary)
    }

    fn complaint(&self) -> Result<Option<String>> {
        let mut primary = None;
        for sentinel in self.running_sentinels() {
            let view = View::of(sentinel)?;
            if let Some(complaint) = view.complaint(self.nodes.len() - 1) {
                return Ok(Some(format!("Sentinel {}: {complaint}", sentinel.port())));
            }
            sentinel.command(&["SENTINEL", "CKQUORUM", NAME])?.into_result()?;
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
            let info = replica.command(&["INFO", "replication"])?.into_result()?;
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

/// What a Sentinel says of the primary.
#[derive(Debug)]
struct View {
    port: u16,
    config_epoch: u64,
    flags: String,
    replicas: usize,
    other_sentinels: usize,
}

impl View {
    fn of(sentinel: &Node) -> Result<Self> {
        let reply = sentinel.command(&["SENTINEL", "MASTER", NAME])?.into_result()?;
        let field = |name: &str| {
            let mut pairs = reply.array()?.chunks(2);
            let pair = pairs.find(|pair| pair[0].text().is_some_and(|text| text == name))?;
            pair.get(1)?.text()
        };
        let read = || {
            Some(Self {
                port: field("port")?.parse().ok()?,
                config_epoch: field("config-epoch")?.parse().ok()?,
                flags: field("flags")?.into_owned(),
                replicas: field("num-slaves")?.parse().ok()?,
                other_sentinels: field("num-other-sentinels")?.parse().ok()?,
            })
        };
        read().ok_or_else(|| Error::Unexpected(format!("{reply:?}")))
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
    server: Server,
    node: NodeBuilder,
    password: Option<String>,
    down_after: Duration,
}

impl SentinelsBuilder {
    const REPLICAS: usize = 2;

    /// How long the primary may be silent before a Sentinel calls it down. Defaults to 1 s: shorter makes failovers
    /// quicker, longer keeps a busy machine from causing them.
    pub fn down_after(mut self, silence: Duration) -> Self {
        self.down_after = silence;
        self
    }

    /// Makes the primary and the replicas want a password, as [`NodeBuilder::password`] does. The Sentinels have it, and
    /// want none themselves.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        let password = password.into();
        self.node = self.node.password(password.as_str());
        self.password = Some(password);
        self
    }

    /// Makes all of them speak TLS, with clients and with each other, as [`NodeBuilder::tls`] does. They share one authority.
    pub fn tls(mut self, clients: TlsClients) -> Self {
        self.node = self.node.tls(clients);
        self
    }

    /// Adds an argument to the primary and the replicas, as [`NodeBuilder::arg`] does.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.node = self.node.arg(name, value);
        self
    }

    /// Starts everything and waits as [`Sentinels::wait_ok`] does.
    ///
    /// # Errors
    ///
    /// As [`Sentinels::start`].
    pub fn start(self) -> Result<Sentinels> {
        if self.server == Server::Redis62 {
            return Err(Error::Unsupported(format!("the Sentinel of {} cannot be made quick", self.server)));
        }
        let guardian = Arc::new(Guardian::start()?);
        let primary = self.node.start_guarded(&guardian)?;
        let replica = self.node.clone().replica_of(&primary);
        let replicas = start_all((0..Self::REPLICAS).map(|_| || replica.start_guarded(&guardian)))?;
        let nodes: Vec<Node> = std::iter::once(primary).chain(replicas).collect();
        let sentinels = Sentinels { sentinels: self.start_sentinels(&nodes, &guardian)?, nodes };
        for sentinel in &sentinels.sentinels {
            let periods = PERIODS_MS.into_iter().flat_map(|(name, period_ms)| [name, period_ms]);
            let command: Vec<&str> = ["SENTINEL", "DEBUG"].into_iter().chain(periods).collect();
            sentinel.command(&command)?.into_result()?;
        }
        sentinels.wait_ok()?;
        Ok(sentinels)
    }

    /// Each is told of all the others, which they would find out in 10 s; with TLS they correct the ports, which nobody knows yet.
    fn start_sentinels(&self, nodes: &[Node], guardian: &Arc<Guardian>) -> Result<Vec<Node>> {
        let ports = (0..SENTINELS).map(|_| PortReservation::new()).collect::<Result<Vec<_>>>()?;
        let known: Vec<(u16, String)> = ports.iter().map(|port| (port.port(), sentinel_id())).collect();
        let builder = Node::builder(self.server).tls_as(&self.node);
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
            // Also how long a failover that went wrong keeps the next one waiting, twice.
            format!("failover-timeout {NAME} 2500"),
        ];
        lines.extend(self.password.as_ref().map(|password| format!("auth-pass {NAME} {}", quoted(password))));
        lines.extend(replicas.iter().map(|replica| format!("known-replica {NAME} {}", word_of(replica))));
        lines.extend(sentinels.iter().map(|(port, id)| match *port == own_port {
            true => format!("myid {id}"),
            false => format!("known-sentinel {NAME} {} {port} {id}", primary.addr().ip()),
        }));
        lines.into_iter().map(|line| format!("sentinel {line}\n")).collect()
    }
}

/// Forty hexadecimal digits.
fn sentinel_id() -> String {
    format!("{:016x}{:016x}{:08x}", port::random(), port::random(), port::random() as u32)
}
