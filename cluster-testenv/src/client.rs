//! A small blocking RESP2 client.

use std::{
    io::{BufReader, Write},
    net::{SocketAddr, TcpStream},
    time::Duration,
};

use crate::{Error, Reply, Result};

/// Connection to one server. Each request waits for its answer, at most for the timeout.
///
/// After an error the connection may be in the middle of a reply, so open a new connection.
#[derive(Debug)]
pub struct Client {
    stream: BufReader<TcpStream>,
}

impl Client {
    /// Default limit for connecting, for sending and for each read.
    pub const TIMEOUT: Duration = Duration::from_secs(5);

    /// Connects to the server at `addr`.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when no server listens there.
    pub fn connect(addr: SocketAddr) -> Result<Self> {
        Self::connect_within(addr, Self::TIMEOUT)
    }

    /// Connects as [`Client::connect`] does, with its own `timeout` for connecting and for each later request.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when no server listens there, or the timeout is zero.
    pub fn connect_within(addr: SocketAddr, timeout: Duration) -> Result<Self> {
        let connect = || {
            let stream = TcpStream::connect_timeout(&addr, timeout)?;
            stream.set_nodelay(true)?;
            stream.set_read_timeout(Some(timeout))?;
            stream.set_write_timeout(Some(timeout))?;
            Ok(Self { stream: BufReader::new(stream) })
        };
        connect().map_err(Error::io(format!("connecting to {addr}")))
    }

    /// Sends one command and returns its reply, which may be an error reply.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the connection broke or the timeout ended, [`Error::Unexpected`] when it was closed.
    pub fn command(&mut self, args: &[impl AsRef<[u8]>]) -> Result<Reply> {
        self.send(args)?;
        self.receive()
    }

    /// Sends all commands at once and returns their replies in order.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`].
    pub fn pipeline<A: AsRef<[u8]>>(&mut self, commands: &[impl AsRef<[A]>]) -> Result<Vec<Reply>> {
        let mut wire = Vec::new();
        for args in commands {
            encode(args.as_ref(), &mut wire);
        }
        self.write(&wire)?;
        commands.iter().map(|_| self.receive()).collect()
    }

    /// Sends one command without waiting for its answer, which may come late or never.
    ///
    /// # Errors
    ///
    /// [`Error::Io`] when the connection broke.
    pub fn send(&mut self, args: &[impl AsRef<[u8]>]) -> Result<()> {
        let mut wire = Vec::new();
        encode(args, &mut wire);
        self.write(&wire)
    }

    /// Waits for the next reply, or the next message of a subscription.
    ///
    /// # Errors
    ///
    /// The errors of [`Client::command`].
    pub fn receive(&mut self) -> Result<Reply> {
        Reply::read(&mut self.stream)
    }

    fn write(&mut self, wire: &[u8]) -> Result<()> {
        self.stream.get_mut().write_all(wire).map_err(Error::io("sending a command"))
    }
}

pub(crate) fn encode(args: &[impl AsRef<[u8]>], wire: &mut Vec<u8>) {
    wire.extend_from_slice(format!("*{}\r\n", args.len()).as_bytes());
    for arg in args {
        let arg = arg.as_ref();
        wire.extend_from_slice(format!("${}\r\n", arg.len()).as_bytes());
        wire.extend_from_slice(arg);
        wire.extend_from_slice(b"\r\n");
    }
}
