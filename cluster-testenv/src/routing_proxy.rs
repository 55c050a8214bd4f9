//! Proxy in front of a cluster, as managed services have it: one address, and each request goes to the server of its key.

use std::{
    collections::HashMap,
    io::{BufReader, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
};

use crate::{Client, Cluster, Error, Reply, Result};

/// Redirects that one request follows. Two nodes that name each other would send it round for ever.
const MAX_REDIRECTS: usize = 16;
/// Commands without a key. A server behind the proxy answers them.
const WITHOUT_KEY: [&str; 5] = ["PING", "TIME", "INFO", "COMMAND", "CLIENT"];

/// Proxy in front of a cluster. It speaks RESP2 and RESP3, says that it is a cluster, follows redirects itself, and knows
/// no command for subscriptions, for replicas, for the map, or for all keys.
#[derive(Debug)]
pub struct RoutingProxy {
    addr: SocketAddr,
    has_ended: Arc<AtomicBool>,
}

impl RoutingProxy {
    /// Starts a proxy on a free port. It finds all nodes through the nodes that the cluster has now.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the operating system refuses a port.
    pub fn before(cluster: &Cluster) -> Result<Self> {
        let nodes: Vec<_> = cluster.primaries().iter().map(|node| node.addr()).collect();
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).map_err(Error::io("listening as a proxy"))?;
        let addr = listener.local_addr().map_err(Error::io("listening as a proxy"))?;
        let has_ended = Arc::<AtomicBool>::default();
        let ended = Arc::clone(&has_ended);
        thread::spawn(move || {
            for client in listener.incoming().map_while(|client| client.ok()) {
                if ended.load(Ordering::SeqCst) {
                    return;
                }
                let nodes = nodes.clone();
                // The thread ends with its client.
                thread::spawn(move || Session::new(nodes).serve(&client));
            }
        });
        Ok(Self { addr, has_ended })
    }

    /// URL of the proxy.
    pub fn url(&self) -> String {
        format!("redis://{}", self.addr)
    }
}

impl Drop for RoutingProxy {
    fn drop(&mut self) {
        self.has_ended.store(true, Ordering::SeqCst);
        // Wakes the thread that accepts clients. If it has ended already, no thread needs to be woken.
        drop(TcpStream::connect(self.addr));
    }
}

/// Connections on behalf of one client.
struct Session {
    nodes: Vec<SocketAddr>,
    connections: HashMap<SocketAddr, Client>,
    /// Nodes that have answered requests for these keys.
    owners: HashMap<Vec<u8>, SocketAddr>,
}

impl Session {
    fn new(nodes: Vec<SocketAddr>) -> Self {
        Self { nodes, connections: HashMap::new(), owners: HashMap::new() }
    }

    /// Answers one request after the other, until the client or a node behind the proxy is gone.
    fn serve(mut self, client: &TcpStream) {
        let mut pass_on = || -> Result<()> {
            client.set_nodelay(true).map_err(Error::io("setting up a client"))?;
            let mut requests = BufReader::new(client);
            loop {
                let request = Reply::read(&mut requests)?;
                let parts = request.array().unwrap_or_default().iter().filter_map(Reply::bytes);
                let reply = self.answer(&parts.map(<[u8]>::to_vec).collect::<Vec<_>>())?;
                let mut writer = client;
                writer.write_all(&reply).map_err(Error::io("answering a client"))?;
            }
        };
        // Every session ends with an error, at the latest when the client leaves.
        drop(pass_on());
    }

    fn answer(&mut self, request: &[Vec<u8>]) -> Result<Vec<u8>> {
        let name = request.first().map(|name| String::from_utf8_lossy(name).to_uppercase()).unwrap_or_default();
        match (name.as_str(), request) {
            ("HELLO", _) => Ok(hello()),
            ("EVAL" | "EVALSHA", [_, _, count, key, ..]) if *count != b"0" => self.ask_owner(key, request),
            (name, _) if WITHOUT_KEY.contains(&name) => {
                let node = self.nodes[0];
                self.ask(node, request).map(|reply| reply.encode())
            }
            (name, _) => Ok(Reply::Error(format!("ERR unknown command '{name}'")).encode()),
        }
    }

    fn ask_owner(&mut self, key: &[u8], request: &[Vec<u8>]) -> Result<Vec<u8>> {
        let mut node = self.owners.get(key).copied().unwrap_or(self.nodes[0]);
        let mut reply = self.ask(node, request)?;
        for _ in 0..MAX_REDIRECTS {
            let words: Vec<_> = reply.error().unwrap_or_default().split(' ').map(str::to_owned).collect();
            reply = match words.as_slice() {
                [moved, _slot, to] if moved == "MOVED" => {
                    node = parse_addr(to)?;
                    self.ask(node, request)?
                }
                [ask, _slot, to] if ask == "ASK" => {
                    let importing = parse_addr(to)?;
                    self.ask(importing, &[b"ASKING".to_vec()])?;
                    self.ask(importing, request)?
                }
                _ => break,
            };
        }
        self.owners.insert(key.to_vec(), node);
        Ok(reply.encode())
    }

    fn ask(&mut self, node: SocketAddr, request: &[Vec<u8>]) -> Result<Reply> {
        let connection = match self.connections.remove(&node) {
            Some(connection) => connection,
            None => Client::connect(node)?,
        };
        self.connections.entry(node).or_insert(connection).command(request)
    }
}

fn parse_addr(text: &str) -> Result<SocketAddr> {
    text.parse().map_err(|_| Error::Unexpected(format!("{text:?} is no address")))
}

/// Returns the answer to `HELLO 3` of a proxy in front of a cluster.
fn hello() -> Vec<u8> {
    let fields = [("server", "redis"), ("version", "7.0.0"), ("mode", "cluster"), ("role", "master")];
    let fields = fields.map(|(name, value)| format!("${}\r\n{name}\r\n${}\r\n{value}\r\n", name.len(), value.len()));
    format!("%{}\r\n{}", fields.len() + 1, fields.concat() + "$5\r\nproto\r\n:3\r\n").into_bytes()
}
