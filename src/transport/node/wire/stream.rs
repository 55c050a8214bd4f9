//! Streams to servers, as the operating system has them.

use std::io;
use std::net::SocketAddr;
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use redis::ConnectionAddr;
use tokio::io::AsyncRead;
use tokio::net::TcpStream;
#[cfg(unix)]
use tokio::net::UnixStream;
use tokio::net::tcp;
#[cfg(unix)]
use tokio::net::unix;

pub(super) type Reader = Box<dyn AsyncRead + Send + Unpin>;

/// The half that can be written to by whoever has something to say.
pub(super) enum Writer {
    Tcp(tcp::OwnedWriteHalf),
    #[cfg(unix)]
    Unix(unix::OwnedWriteHalf),
}

impl Writer {
    /// Writes what there is room for now.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Self::Tcp(half) => half.try_write(bytes),
            #[cfg(unix)]
            Self::Unix(half) => half.try_write(bytes),
        }
    }

    /// Ready when there may be room again.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        match self {
            Self::Tcp(half) => half.as_ref().poll_write_ready(cx),
            #[cfg(unix)]
            Self::Unix(half) => half.as_ref().poll_write_ready(cx),
        }
    }
}

/// Whether we speak to such an address ourselves. What is encrypted is the library's.
pub(in crate::transport::node) fn is_possible(addr: &ConnectionAddr) -> bool {
    matches!(addr, ConnectionAddr::Tcp(..)) || (cfg!(unix) && matches!(addr, ConnectionAddr::Unix(_)))
}

/// A stream to a server that was not greeted yet.
pub(in crate::transport::node) enum Stream {
    Tcp(TcpStream),
    #[cfg(unix)]
    Unix(UnixStream),
}

impl Stream {
    /// Connects to the first of these addresses that answers.
    pub(in crate::transport::node) async fn connect_tcp(addresses: &[SocketAddr]) -> io::Result<(Self, SocketAddr)> {
        let connecting = addresses.iter().map(|address| Box::pin(TcpStream::connect(*address)));
        let (stream, _) = select_ok(connecting).await?;
        stream.set_nodelay(true)?;
        let peer = stream.peer_addr()?;
        Ok((Self::Tcp(stream), peer))
    }

    /// Connects to the socket of a server on this machine.
    pub(in crate::transport::node) async fn connect_path(address: &ConnectionAddr) -> io::Result<Self> {
        match address {
            #[cfg(unix)]
            ConnectionAddr::Unix(path) => Ok(Self::Unix(UnixStream::connect(path).await?)),
            other => Err(io::Error::new(io::ErrorKind::Unsupported, other.to_string())),
        }
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
        }
    }
}
