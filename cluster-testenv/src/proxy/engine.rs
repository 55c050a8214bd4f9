//! Thread of a proxy. Only this thread uses the proxy's sockets.
//!
//! Orders to the thread are closures. The thread runs them between two rounds, so an order has taken effect when its
//! sender goes on.

use std::{
    collections::BTreeMap,
    io::{self, Read, Write},
    net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream},
    os::{fd::AsFd, unix::net::UnixStream},
    sync::{
        Arc,
        mpsc::{self, Receiver, Sender},
    },
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    net::{AddressFamily, Shutdown, SocketFlags, SocketType, connect, shutdown, socket_with},
};

use super::{
    connection::{Connection, Fate, Peer},
    rules::{RuleId, Rules},
};
use crate::{Error, Result};

type Order = Box<dyn FnOnce(&mut State) + Send>;

/// Treatment of the bytes.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Mode {
    Passing,
    /// The proxy writes nothing to any peer.
    Frozen,
    /// The proxy reads all bytes and drops them.
    BlackHole,
}

/// Sender of orders to the thread.
#[derive(Clone, Debug)]
pub struct Remote {
    orders: Sender<Option<Order>>,
    waker: Arc<UnixStream>,
}

impl Remote {
    /// Lets the thread run `order`, and waits for the result. Returns `None` if the thread has ended.
    pub fn ask<T: Send + 'static>(&self, order: impl FnOnce(&mut State) -> T + Send + 'static) -> Option<T> {
        let (sender, receiver) = mpsc::sync_channel(1);
        // The receiver is missing only if the asking thread has ended.
        let answer = move |state: &mut State| drop(sender.send(order(state)));
        self.send(Some(Box::new(answer)));
        receiver.recv().ok()
    }

    fn send(&self, order: Option<Order>) {
        if self.orders.send(order).is_ok() {
            // This fails if so many wakes are pending that another wake makes no difference.
            drop((&*self.waker).write(&[0]));
        }
    }
}

/// Owner of the thread, which ends when this is dropped.
#[derive(Debug)]
pub struct Engine {
    remote: Remote,
    thread: Option<JoinHandle<()>>,
}

impl Engine {
    /// Starts a thread that listens on `port` for the server at `server`.
    pub fn start(port: u16, server: SocketAddr) -> Result<Self> {
        let mut state = State {
            port,
            server,
            listener: None,
            is_refusing: false,
            is_server_down: false,
            mode: Mode::Passing,
            delay: Duration::ZERO,
            rules: Rules::default(),
            connections: BTreeMap::new(),
            accepted_ever: 0,
        };
        state.listen()?;
        let (waker, wakes) = wake_pair().map_err(Error::io("making a socket pair"))?;
        let (orders, inbox) = mpsc::channel();
        let thread = thread::Builder::new().name(format!("proxy {port}"));
        let thread = thread.spawn(move || run(&mut state, &inbox, &wakes)).map_err(Error::io("starting a thread"))?;
        Ok(Self { remote: Remote { orders, waker: Arc::new(waker) }, thread: Some(thread) })
    }

    pub fn remote(&self) -> &Remote {
        &self.remote
    }
}

impl Drop for Engine {
    fn drop(&mut self) {
        self.remote.send(None);
        if let Some(thread) = self.thread.take() {
            // The thread has panicked only if a matcher did, and that panic was reported then.
            drop(thread.join());
        }
    }
}

fn wake_pair() -> io::Result<(UnixStream, UnixStream)> {
    let (waker, wakes) = UnixStream::pair()?;
    waker.set_nonblocking(true)?;
    wakes.set_nonblocking(true)?;
    Ok((waker, wakes))
}

fn run(state: &mut State, inbox: &Receiver<Option<Order>>, mut wakes: &UnixStream) {
    loop {
        state.write_all();
        let ready = state.wait(wakes);
        // There is no byte if another event woke the thread.
        drop(wakes.read(&mut [0; 1]));
        // Each order has a wake with its own byte, and one wake runs one order. So traffic goes on between orders, even
        // if a caller sends orders in a loop.
        if let Ok(order) = inbox.try_recv() {
            let Some(order) = order else { return };
            // Connections that clients opened before the order come first.
            state.accept_all();
            order(state);
        }
        for (id, peer) in ready {
            if let Some(connection) = state.connections.get_mut(&id) {
                connection.receive(peer, &mut state.rules, state.delay);
            }
        }
        state.accept_all();
    }
}

/// State of a proxy.
pub struct State {
    port: u16,
    server: SocketAddr,
    /// `None` while connections are refused.
    listener: Option<TcpListener>,
    is_refusing: bool,
    is_server_down: bool,
    mode: Mode,
    pub delay: Duration,
    pub rules: Rules,
    connections: BTreeMap<u64, Connection>,
    accepted_ever: u64,
}

impl State {
    pub fn set_mode(&mut self, mode: Mode) {
        self.mode = mode;
        if mode == Mode::BlackHole {
            self.connections.values_mut().for_each(Connection::lose);
            self.rules.limit.forget_waiting(Instant::now());
        }
    }

    pub fn set_refusing(&mut self, is_refusing: bool) -> Result<()> {
        self.is_refusing = is_refusing;
        self.listen()
    }

    /// Connects new connections to another server.
    pub fn lead_to(&mut self, server: SocketAddr) {
        self.server = server;
    }

    /// Refuses connections while the server is down.
    pub fn set_server_down(&mut self, is_down: bool) -> Result<()> {
        self.is_server_down = is_down;
        self.listen()
    }

    /// Resets all connections.
    pub fn cut(&mut self) {
        std::mem::take(&mut self.connections).into_values().for_each(Connection::reset);
        self.rules.limit.forget_waiting(Instant::now());
    }

    /// Resets the connection of a rule's request.
    pub fn cut_one(&mut self, id: RuleId) {
        let connections = &mut self.connections;
        if let Some(key) = connections.iter().find(|(_, connection)| connection.has(id)).map(|(key, _)| *key) {
            connections.remove(&key).into_iter().for_each(Connection::reset);
        }
    }

    /// Disarms a rule and forwards the bytes that it holds.
    pub fn release(&mut self, id: RuleId) {
        self.rules.disarm(id);
        self.connections.values_mut().for_each(|connection| connection.release(id));
    }

    /// Drops the reply that a rule holds.
    pub fn drop_reply(&mut self, id: RuleId) {
        self.rules.disarm(id);
        self.connections.values_mut().for_each(|connection| connection.drop_reply(id));
    }

    pub fn connections(&self) -> usize {
        self.connections.len()
    }

    pub fn connections_made(&self) -> u64 {
        self.accepted_ever
    }

    pub fn scripts_waiting(&self) -> usize {
        self.connections.values().map(Connection::scripts_waiting).sum()
    }

    /// Begins or ends listening, as the state requires.
    fn listen(&mut self) -> Result<()> {
        let wanted = !self.is_refusing && !self.is_server_down;
        if !wanted {
            if let Some(listener) = self.listener.take() {
                // Closing alone is not enough. A process that another thread starts at this moment has a copy of the
                // socket until it runs its program. Until then the kernel would go on accepting connections.
                shutdown(&listener, Shutdown::Both)
                    .map_err(|errno| Error::io(format!("closing port {}", self.port))(errno.into()))?;
            }
        } else if self.listener.is_none() {
            let listen = || {
                let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, self.port))?;
                listener.set_nonblocking(true)?;
                Ok(listener)
            };
            self.listener = Some(listen().map_err(Error::io(format!("listening on port {}", self.port)))?);
        }
        Ok(())
    }

    fn accept_all(&mut self) {
        while let Some(Ok((client, _))) = self.listener.as_ref().map(TcpListener::accept) {
            let prepared = client.set_nonblocking(true).and_then(|()| client.set_nodelay(true));
            let server = if self.mode == Mode::BlackHole { Ok(None) } else { connect_to(self.server).map(Some) };
            match prepared.and(server) {
                Ok(server) => {
                    self.accepted_ever += 1;
                    self.connections.insert(self.accepted_ever, Connection::new(client, server));
                }
                Err(_) => Connection::new(client, None).reset(),
            }
        }
    }

    fn write_all(&mut self) {
        let now = Instant::now();
        let mut ended = Vec::new();
        for (key, connection) in &mut self.connections {
            let fate = match self.mode {
                _ if connection.is_lost() => {
                    let is_over = self.mode != Mode::BlackHole && connection.is_abandoned();
                    if is_over { Fate::Reset } else { Fate::Lives }
                }
                Mode::Passing => connection.write(now),
                Mode::Frozen | Mode::BlackHole => Fate::Lives,
            };
            if fate != Fate::Lives {
                ended.push((*key, fate));
            }
        }
        for (key, fate) in ended {
            let connection = self.connections.remove(&key);
            connection.filter(|_| fate == Fate::Reset).into_iter().for_each(Connection::reset);
        }
    }

    /// Waits for an event, and returns the peers that have sent bytes.
    fn wait(&self, wakes: &UnixStream) -> Vec<(u64, Peer)> {
        let now = Instant::now();
        let is_frozen = self.mode != Mode::Passing;
        let mut whose = Vec::new();
        let mut fds = vec![PollFd::from_borrowed_fd(wakes.as_fd(), PollFlags::IN)];
        fds.extend(self.listener.as_ref().map(|listener| PollFd::new(listener, PollFlags::IN)));
        let first = fds.len();
        for (key, connection) in &self.connections {
            for peer in [Peer::Client, Peer::Server] {
                let (reads, writes) = connection.interest(peer, now, is_frozen);
                let mut flags = PollFlags::empty();
                flags.set(PollFlags::IN, reads);
                flags.set(PollFlags::OUT, writes);
                if let Some(stream) = connection.stream(peer).filter(|_| !flags.is_empty()) {
                    fds.push(PollFd::from_borrowed_fd(stream.as_fd(), flags));
                    whose.push((*key, peer, reads));
                }
            }
        }
        let dues = self.connections.values().filter_map(|connection| connection.next_due(now));
        let timeout = dues.min().filter(|_| !is_frozen).map(|due| due.saturating_duration_since(now));
        let timeout = timeout.and_then(|timeout| Timespec::try_from(timeout).ok());
        if poll(&mut fds, timeout.as_ref()).is_err() {
            return Vec::new();
        }
        let ready = whose.into_iter().zip(&fds[first..]);
        // Errors count as well, since the read reports them.
        let ready = ready.filter(|((.., reads), fd)| *reads && fd.revents() != PollFlags::empty());
        ready.map(|((key, peer, _), _)| (key, peer)).collect()
    }
}

/// Begins to connect without waiting for a server whose queue is full.
fn connect_to(server: SocketAddr) -> io::Result<TcpStream> {
    let family = if server.is_ipv4() { AddressFamily::INET } else { AddressFamily::INET6 };
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = socket_with(family, SocketType::STREAM, flags, None)?;
    match connect(&socket, &server) {
        Ok(()) | Err(rustix::io::Errno::INPROGRESS) => {}
        Err(error) => return Err(error.into()),
    }
    let stream = TcpStream::from(socket);
    stream.set_nodelay(true)?;
    Ok(stream)
}
