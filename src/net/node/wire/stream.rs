//! Streams to servers, with or without encryption.

use std::io;
use std::net::SocketAddr;
use std::path::Path;
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::tcp;
#[cfg(unix)]
use tokio::net::unix;
#[cfg(feature = "tls")]
use tokio_rustls::client::TlsStream;

#[cfg(feature = "tls")]
use super::encrypted;
use crate::net::tls::Connector;

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// Write half of a stream. All callers of a connection share it.
pub(super) enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
    #[cfg(feature = "tls")]
    Tls(encrypted::TlsWriter),
}

impl Writer {
    /// Writes as many bytes as the socket takes now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
            #[cfg(feature = "tls")]
            Self::Tls(half) => half.try_write(bytes),
        }
    }

    /// Returns ready when the socket may take bytes again.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(unix)]
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(feature = "tls")]
            Self::Tls(half) => half.poll_writable(cx),
        }
    }
}

/// Connected stream to a server that was not greeted yet.
pub(in crate::net::node) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
    #[cfg(feature = "tls")]
    Tls(Box<TlsStream<TcpStream>>),
}

impl Stream {
    /// Connects to all of these addresses at the same time, and returns the connection that is ready first.
    pub(in crate::net::node) async fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<(Self, SocketAddr)> {
        let connecting = addresses.iter().map(|address| Box::pin(TcpStream::connect(*address)));
        let (stream, _) = select_ok(connecting).await?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok((Self::Tcp(stream), peer))
    }

    /// Connects to a server on this machine, through the socket at this path.
    #[cfg(unix)]
    pub(in crate::net::node) async fn connect_path(path: &Path) -> io::Result<Self> {
        Ok(Self::Unix(UnixStream::connect(path).await?))
    }

    #[cfg(not(unix))]
    #[expect(clippy::unused_async, reason = "as where there are such sockets")]
    pub(in crate::net::node) async fn connect_path(path: &Path) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, path.display().to_string()))
    }

    /// Does the TLS handshake with the server. `host` is the host in the server's address.
    #[cfg(feature = "tls")]
    pub(in crate::net::node) async fn encrypt(self, connector: &Connector, host: &str) -> io::Result<Self> {
        match self {
            Self::Tcp(stream) => Ok(Self::Tls(Box::new(connector.connect(host, stream).await?))),
            other => Ok(other),
        }
    }

    #[cfg(not(feature = "tls"))]
    #[expect(clippy::unused_async, reason = "as with TLS")]
    pub(in crate::net::node) async fn encrypt(self, _: &Connector, host: &str) -> io::Result<Self> {
        Err(io::Error::new(io::ErrorKind::Unsupported, format!("TLS to {host} needs the cargo feature `tls`")))
    }

    pub(super) fn into_split(self) -> (Reader, Writer) {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Writer::Tcp(writer))
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                let (reader, writer) = stream.into_split();
                (Box::new(reader), Writer::Unix(writer))
            }
            #[cfg(feature = "tls")]
            Self::Tls(stream) => {
                let (reader, writer) = encrypted::split(*stream);
                (Box::new(reader), Writer::Tls(writer))
            }
        }
    }
}
