//! Server that tests start and disturb.

use std::{
    fs, io,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::{
    Certificates, Client, Error, NodeClock, Proxy, Reply, Result, Server, TlsClients, guardian::Guardian,
    port::PortReservation, process::Process, wait_for,
};

/// Limit for the start of a server. It is far longer than any server needs, even on a busy machine.
const START_BOUND: Duration = Duration::from_secs(20);
/// Number of ports that a start tries. Another program can take a port only between the reservation of the port and the
/// server's start.
const START_ATTEMPTS: usize = 5;
/// Default name that servers use for this folder.
const APPEND_ONLY_DIR: &str = "appendonlydir";
const ADDRESS_IN_USE: &str = "Address already in use";

/// Server on its own port, without persistence.
///
/// The `Node` keeps the port until it is dropped, even while the server does not run.
#[derive(Debug)]
pub struct Node {
    server: Server,
    binary: PathBuf,
    args: Vec<String>,
    dir: PathBuf,
    password: Option<String>,
    port: PortReservation,
    tls: Option<NodeTls>,
    process: Mutex<Process>,
    proxy: Option<Proxy>,
    bus_proxy: Option<Proxy>,
    clock: Option<NodeClock>,
    /// Time of the last order to this node to start an election.
    stood_for_election: Mutex<Option<Instant>>,
    /// This is the last field, because Rust drops fields in order. So the guardian finds no server to end.
    _guardian: Arc<Guardian>,
}

/// Second port of a server that speaks TLS.
#[derive(Debug)]
struct NodeTls {
    port: PortReservation,
    certificates: Arc<Certificates>,
}

impl Node {
    /// Starts a server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], or the reason why the server did not start.
    pub fn start(server: Server) -> Result<Self> {
        Self::builder(server).start()
    }

    /// Returns a builder, which takes arguments before the start.
    pub fn builder(server: Server) -> NodeBuilder {
        NodeBuilder {
            server,
            args: Vec::new(),
            password: None,
            tls: None,
            is_proxied: false,
            is_bus_proxied: false,
            has_clock: false,
            sentinel_conf: None,
        }
    }

    /// Kind and version of the server.
    pub fn server(&self) -> Server {
        self.server
    }

    /// URL where clients find the server, `redis://127.0.0.1:PORT`.
    ///
    /// A node with a proxy has the proxy's port here. The scheme is `rediss` if the server speaks TLS. A server with a
    /// password has it in the URL: `redis://:PASSWORD@127.0.0.1:PORT`.
    pub fn url(&self) -> String {
        let scheme = if self.tls.is_some() { "rediss" } else { "redis" };
        let password = self.password().map(|password| format!(":{}@", percent_encoded(password))).unwrap_or_default();
        format!("{scheme}://{password}{}:{}", Ipv4Addr::LOCALHOST, self.client_port())
    }

    /// Certificates that clients need to speak TLS with the server.
    ///
    /// # Panics
    ///
    /// When the node was started without [`NodeBuilder::tls`] or another builder's `tls`.
    pub fn certificates(&self) -> &Certificates {
        &self.tls.as_ref().expect("the node was started with TLS").certificates
    }

    /// Proxy in front of the server.
    ///
    /// # Panics
    ///
    /// When the node was started without [`NodeBuilder::proxied`] or
    /// [`ClusterBuilder::proxied`](crate::ClusterBuilder::proxied).
    pub fn proxy(&self) -> &Proxy {
        self.proxy.as_ref().expect("the node was started with a proxy")
    }

    /// Proxy through which the other nodes of the cluster connect to this node. The connections of this node go through
    /// the proxies of the other nodes.
    ///
    /// # Panics
    ///
    /// When the cluster was started without [`ClusterBuilder::proxied_bus`](crate::ClusterBuilder::proxied_bus).
    pub fn bus_proxy(&self) -> &Proxy {
        self.bus_proxy.as_ref().expect("the cluster was started with proxies on its bus")
    }

    /// Time of day of the server.
    ///
    /// # Panics
    ///
    /// When the node was started without [`NodeBuilder::clock`].
    pub fn clock(&self) -> &NodeClock {
        self.clock.as_ref().expect("the node was started with a clock")
    }

    /// Address that the server listens on.
    pub fn addr(&self) -> SocketAddr {
        (Ipv4Addr::LOCALHOST, self.port()).into()
    }

    /// Port that the server listens on.
    pub fn port(&self) -> u16 {
        self.port.port()
    }

    pub(crate) fn password(&self) -> Option<&str> {
        self.password.as_deref()
    }

    /// Returns the node's id in its cluster.
    pub(crate) fn cluster_id(&self) -> Result<String> {
        let id = self.ask(&["CLUSTER", "MYID"])?;
        id.text().map(Into::into).ok_or_else(|| id.unexpected())
    }

    /// Folder with the files `ca.pem`, `client.pem` and `client.key`, for programs that cannot use
    /// [`Node::certificates`]. It is removed with the node.
    ///
    /// # Panics
    ///
    /// In the cases of [`Node::certificates`].
    pub fn certificates_dir(&self) -> &Path {
        assert!(self.tls.is_some(), "the node was started with TLS");
        &self.dir
    }

    pub(crate) fn stands_for_election(&self) {
        *self.election() = Some(Instant::now());
    }

    pub(crate) fn age_of_election(&self) -> Option<Duration> {
        self.election().map(|at| at.elapsed())
    }

    fn election(&self) -> MutexGuard<'_, Option<Instant>> {
        self.stood_for_election.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Port for the other nodes of a cluster.
    pub(crate) fn bus_port(&self) -> u16 {
        let own = || self.tls.as_ref().map_or(&self.port, |tls| &tls.port).bus_port();
        self.bus_proxy.as_ref().map_or_else(own, Proxy::port)
    }

    /// Port for clients.
    pub(crate) fn client_port(&self) -> u16 {
        self.proxy.as_ref().map_or(self.migration_port(), Proxy::port)
    }

    /// Port to which another node sends keys, and to which replicas and Sentinels connect. It requires TLS if the
    /// server speaks TLS.
    pub(crate) fn migration_port(&self) -> u16 {
        self.tls.as_ref().map_or(&self.port, |tls| &tls.port).port()
    }

    /// Port of this node in the answers of its cluster to a client without TLS, such as this library.
    pub(crate) fn listed_port(&self) -> u16 {
        if self.tls.is_some() { self.port() } else { self.client_port() }
    }

    /// Id of the server process. If the server does not run, the id of its last process.
    pub fn pid(&self) -> u32 {
        self.process().id()
    }

    /// Returns true if the server process runs and is not paused.
    #[must_use]
    pub fn is_running(&self) -> bool {
        self.process().is_running()
    }

    /// Kills the server with SIGKILL, and waits until the process has ended. Does nothing if the server has ended
    /// already.
    ///
    /// # Panics
    ///
    /// When the operating system refuses.
    pub fn kill(&self) {
        self.process().kill().expect("a server of our own can be killed");
        self.tell_proxy_down();
    }

    /// Pauses the server with SIGSTOP, and waits until the process is stopped. Does nothing if the server is paused or
    /// has ended.
    ///
    /// The kernel still accepts connections and commands for the server. The server answers them after
    /// [`Node::resume`].
    ///
    /// # Panics
    ///
    /// When the operating system refuses.
    pub fn pause(&self) {
        self.process().pause().expect("a server of our own can be stopped");
    }

    /// Continues a paused server with SIGCONT. Does nothing when it is not paused.
    ///
    /// # Panics
    ///
    /// When the operating system refuses.
    pub fn resume(&self) {
        self.process().resume().expect("a server of our own can be continued");
    }

    /// Kills the server if it runs, and starts it on the same port with the same arguments.
    ///
    /// The restarted server has no data, unless it was started with `--appendonly yes`. A cluster node still knows its
    /// cluster. Returns when the server answers.
    ///
    /// # Errors
    ///
    /// The reason why the server did not start.
    ///
    /// # Panics
    ///
    /// When the operating system refuses to kill it.
    pub fn restart(&self) -> Result<()> {
        self.restart_after(|| Ok(()))
    }

    /// Restarts as [`Node::restart`] does, but removes the file from which `--appendonly yes` would restore the data.
    ///
    /// # Errors
    ///
    /// The reason why the server did not start.
    ///
    /// # Panics
    ///
    /// When the operating system refuses to kill it.
    pub fn restart_empty(&self) -> Result<()> {
        let data = self.dir.join(APPEND_ONLY_DIR);
        self.restart_after(|| match fs::remove_dir_all(&data) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => {
                Err(Error::io(format!("removing {}", data.display()))(error))
            }
            _ => Ok(()),
        })
    }

    /// Restarts as [`Node::restart`] does, with the binary of another server.
    pub(crate) fn restart_as(&mut self, server: Server) -> Result<()> {
        self.binary = server.binary()?;
        self.server = server;
        self.restart()
    }

    fn restart_after(&self, change: impl FnOnce() -> Result<()>) -> Result<()> {
        {
            let mut process = self.process();
            process.kill().expect("a server of our own can be killed");
            self.tell_proxy_down();
            change()?;
            *process = spawn(&self.binary, &self.args, &self.dir, self.clock.as_ref())?;
        }
        self.wait_until_ready()
    }

    /// Opens a connection to the server, and authenticates with the password of [`NodeBuilder::password`].
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the server does not run.
    pub fn client(&self) -> Result<Client> {
        self.client_within(Client::TIMEOUT)
    }

    pub(crate) fn client_within(&self, timeout: Duration) -> Result<Client> {
        let mut client = Client::connect_within(self.addr(), timeout)?;
        if let Some(password) = &self.password {
            client.command(&["AUTH", password])?.into_result()?;
        }
        Ok(client)
    }

    /// Sends one command on a new connection and returns the reply, which may be an error reply.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`].
    pub fn command(&self, args: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.client()?.command(args)
    }

    /// Sends one command that the server has to carry out.
    pub(crate) fn ask(&self, args: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.command(args)?.into_result()
    }

    fn process(&self) -> MutexGuard<'_, Process> {
        // A panic in one test must not prevent the cleanup of another test.
        self.process.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Makes the proxy refuse connections, as the operating system does where no server listens.
    fn tell_proxy_down(&self) {
        if let Some(proxy) = &self.proxy {
            proxy.set_server_down(true).expect("a listener can always be closed");
        }
    }

    fn wait_until_ready(&self) -> Result<()> {
        self.wait_until_it_answers()?;
        self.proxy.as_ref().map_or(Ok(()), |proxy| proxy.set_server_down(false))
    }

    fn wait_until_it_answers(&self) -> Result<()> {
        let what = format!("{} on port {} answering", self.server, self.port());
        wait_for(what, START_BOUND, || {
            if self.process().has_ended() {
                return Some(Err(Error::NotStarted { server: self.server, log: self.end_of_log() }));
            }
            self.answers().then_some(Ok(()))
        })?
    }

    /// Returns true if the process that listens on the port is ours and ready.
    fn answers(&self) -> bool {
        let ours = format!("process_id:{}\r\n", self.pid());
        match self.command(&["INFO", "server"]) {
            Ok(Reply::Bulk(info)) => String::from_utf8_lossy(&info).contains(&ours),
            // A server that requires a password is ready as well.
            Ok(Reply::Error(text)) => text.starts_with("NOAUTH"),
            Ok(_) | Err(_) => false,
        }
    }

    fn end_of_log(&self) -> String {
        const LINES: usize = 8;
        let log = fs::read(Process::log_file(&self.dir)).unwrap_or_default();
        let log = String::from_utf8_lossy(&log);
        let lines: Vec<&str> = log.lines().filter(|line| !line.trim().is_empty()).collect();
        lines[lines.len().saturating_sub(LINES)..].join("\n")
    }
}

/// Node that has not started yet.
#[derive(Clone, Debug)]
#[must_use = "a builder starts nothing until `start`"]
pub struct NodeBuilder {
    server: Server,
    args: Vec<String>,
    password: Option<String>,
    tls: Option<(TlsClients, Arc<Certificates>)>,
    is_proxied: bool,
    is_bus_proxied: bool,
    has_clock: bool,
    sentinel_conf: Option<String>,
}

impl NodeBuilder {
    /// Adds a server argument, such as `("--maxmemory", "1mb")`. A later value replaces an earlier value.
    pub fn arg(mut self, name: impl Into<String>, value: impl Into<String>) -> Self {
        self.args.extend([name.into(), value.into()]);
        self
    }

    /// Takes a command such as `HELLO` from the server, which then answers as a server that does not know it.
    pub fn without_command(mut self, name: &str) -> Self {
        self.args.extend(["--rename-command".to_owned(), name.to_owned(), String::new()]);
        self
    }

    /// Makes the server a replica of `primary` from the start.
    pub(crate) fn replica_of(mut self, primary: &Node) -> Self {
        let (ip, port) = (primary.addr().ip(), primary.migration_port());
        self.args.extend(["--replicaof".to_owned(), ip.to_string(), port.to_string()]);
        self
    }

    /// Makes the server require a password, which [`Node::url`] contains. [`Node::client`] and [`Node::command`] send
    /// the password by themselves. As a replica the server sends the same password to its primary.
    pub fn password(mut self, password: impl Into<String>) -> Self {
        let password = password.into();
        self = self.arg("--requirepass", password.as_str()).arg("--masterauth", password.as_str());
        self.password = Some(password);
        self
    }

    /// Makes the server speak TLS on a second port, to which [`Node::url`] leads, with new certificates
    /// ([`Node::certificates`]). [`Node::addr`], [`Node::client`] and [`Node::command`] use the other port, without
    /// TLS.
    ///
    /// Among the servers that `install` provides, only Redis 7.0 can do this.
    pub fn tls(mut self, clients: TlsClients) -> Self {
        self.tls = Some((clients, Arc::new(Certificates::make())));
        self
    }

    /// Uses TLS if `other` does, with its certificates.
    pub(crate) fn tls_as(mut self, other: &Self) -> Self {
        self.tls.clone_from(&other.tls);
        self
    }

    /// Puts a [`Proxy`] in front of the server, to which [`Node::url`] leads. [`Node::addr`], [`Node::client`] and
    /// [`Node::command`] bypass it.
    pub fn proxied(mut self) -> Self {
        self.is_proxied = true;
        self
    }

    /// Puts a [`Proxy`] between this node and the other nodes of its cluster, [`Node::bus_proxy`].
    pub(crate) fn proxied_bus(mut self) -> Self {
        self.is_bus_proxied = true;
        self
    }

    /// Gives the server its own time of day, [`Node::clock`]. It is the machine's time until a test steps it.
    pub fn clock(mut self) -> Self {
        self.has_clock = true;
        self
    }

    /// Starts the server and waits until it answers.
    ///
    /// # Errors
    ///
    /// [`Error::NotInstalled`], or the reason why the server did not start.
    pub fn start(&self) -> Result<Node> {
        self.start_guarded(&Arc::new(Guardian::start()?))
    }

    /// Starts `count` servers at the same time, which share one guardian.
    pub(crate) fn start_many(&self, count: usize) -> Result<Vec<Node>> {
        let guardian = Arc::new(Guardian::start()?);
        start_all((0..count).map(|_| || self.start_guarded(&guardian)))
    }

    pub(crate) fn start_guarded(&self, guardian: &Arc<Guardian>) -> Result<Node> {
        let binary = self.server.binary()?;
        let mut attempt = 1;
        loop {
            match self.start_on(PortReservation::new()?, &binary, guardian) {
                Err(Error::NotStarted { log, .. }) if log.contains(ADDRESS_IN_USE) && attempt < START_ATTEMPTS => {
                    attempt += 1;
                }
                // Redis reports a wrong option, and Valkey reports the missing feature.
                Err(Error::NotStarted { log, .. }) if self.tls.is_some() && log.to_lowercase().contains("tls") => {
                    return Err(Error::Unsupported(format!(
                        "{} without TLS at {}: {log}",
                        self.server,
                        binary.display()
                    )));
                }
                outcome => return outcome,
            }
        }
    }

    /// Starts a Sentinel with this configuration, on a port that other Sentinels know already.
    pub(crate) fn start_sentinel(&self, port: PortReservation, conf: &str, guardian: &Arc<Guardian>) -> Result<Node> {
        let sentinel = Self { sentinel_conf: Some(conf.to_owned()), ..self.clone() };
        sentinel.start_on(port, &self.server.binary()?, guardian)
    }

    fn start_on(&self, port: PortReservation, binary: &Path, guardian: &Arc<Guardian>) -> Result<Node> {
        let dir = guardian.dir().join(port.port().to_string());
        fs::create_dir_all(&dir).map_err(Error::io(format!("making {}", dir.display())))?;
        let tls = self.tls.as_ref().map(|(_, certificates)| {
            let (port, certificates) = (PortReservation::new()?, Arc::clone(certificates));
            Ok::<_, Error>(NodeTls { port, certificates })
        });
        let tls = tls.transpose()?;
        let own = tls.as_ref().map_or(&port, |tls| &tls.port);
        let (client_port, bus_port) = (own.port(), own.bus_port());
        let before = |port: u16| Proxy::before((Ipv4Addr::LOCALHOST, port).into());
        let proxy = self.is_proxied.then(|| before(client_port)).transpose()?;
        let bus_proxy = self.is_bus_proxied.then(|| before(bus_port)).transpose()?;
        let mut args = match &self.sentinel_conf {
            Some(conf) => sentinel_args(port.port(), &dir, conf)?,
            None => self.all_args(port.port(), &dir),
        };
        if let Some((clients, certificates)) = &self.tls {
            args.extend(["--tls-port".to_owned(), client_port.to_string()]);
            args.extend(certificates.server_args(&dir, *clients)?);
        }
        if let Some(proxy) = &proxy {
            let announced = if tls.is_some() { "--cluster-announce-tls-port" } else { "--cluster-announce-port" };
            args.extend([announced.to_owned(), proxy.port().to_string()]);
        }
        if let Some(proxy) = &bus_proxy {
            args.extend(["--cluster-announce-bus-port".to_owned(), proxy.port().to_string()]);
        }
        let clock = if self.has_clock { Some(NodeClock::make(&dir)?) } else { None };
        let process = Mutex::new(spawn(binary, &args, &dir, clock.as_ref())?);
        let node = Node {
            server: self.server,
            binary: binary.to_owned(),
            args,
            dir,
            password: self.password.clone(),
            port,
            tls,
            process,
            proxy,
            bus_proxy,
            clock,
            stood_for_election: Mutex::default(),
            _guardian: Arc::clone(guardian),
        };
        node.wait_until_ready()?;
        Ok(node)
    }

    fn all_args(&self, port: u16, dir: &Path) -> Vec<String> {
        let own = [
            ("--port", port.to_string()),
            ("--bind", Ipv4Addr::LOCALHOST.to_string()),
            ("--dir", dir.display().to_string()),
            ("--save", String::new()),
            ("--appendonly", "no".to_owned()),
        ];
        let own = own.into_iter().flat_map(|(name, value)| [name.to_owned(), value]);
        own.chain(self.args.iter().cloned()).collect()
    }
}

/// Starts nodes at the same time.
pub(crate) fn start_all<F: FnOnce() -> Result<Node> + Send>(starts: impl Iterator<Item = F>) -> Result<Vec<Node>> {
    thread::scope(|scope| {
        let starts: Vec<_> = starts.map(|start| scope.spawn(start)).collect();
        starts.into_iter().map(|start| start.join().expect("starting a node does not panic")).collect()
    })
}

/// Writes the file in which a Sentinel keeps its state, and returns the arguments that name it.
fn sentinel_args(port: u16, dir: &Path, conf: &str) -> Result<Vec<String>> {
    let path = dir.join("sentinel.conf");
    let own = format!("port {port}\nbind {}\ndir {}\n", Ipv4Addr::LOCALHOST, quoted(&dir.display().to_string()));
    fs::write(&path, own + conf).map_err(Error::io(format!("writing {}", path.display())))?;
    Ok(vec![path.display().to_string(), "--sentinel".to_owned()])
}

/// Quotes a text as one word of a configuration file.
pub(crate) fn quoted(text: &str) -> String {
    format!("\"{}\"", text.replace('\\', "\\\\").replace('"', "\\\""))
}

fn spawn(binary: &Path, args: &[String], dir: &Path, clock: Option<&NodeClock>) -> Result<Process> {
    let variables = clock.map(NodeClock::variables);
    Process::start(binary, args, dir, variables.into_iter().flatten())
        .map_err(Error::io(format!("starting {}", binary.display())))
}

/// Encodes a text for a URL.
fn percent_encoded(text: &str) -> String {
    let encode = |byte: u8| if byte.is_ascii_alphanumeric() { char::from(byte).into() } else { format!("%{byte:02X}") };
    text.bytes().map(encode).collect()
}
