//! Streams to servers, as the operating system has them, that the library has greeted.

use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll};

use futures_util::future::select_ok;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{ConnectionAddr, RedisConnectionInfo, RedisError};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
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

    /// Authenticates and chooses the database.
    pub(super) async fn greeted(self, settings: &RedisConnectionInfo) -> Result<(Reader, Writer), RedisError> {
        match self {
            Self::Tcp(stream) => {
                let (reader, writer) = greet(settings, stream).await?.into_split();
                Ok((Box::new(reader), Writer::Tcp(writer)))
            }
            #[cfg(unix)]
            Self::Unix(stream) => {
                let (reader, writer) = greet(settings, stream).await?.into_split();
                Ok((Box::new(reader), Writer::Unix(writer)))
            }
        }
    }
}

/// The library says who we are, and gives the stream back. By then it has read all that the server had to say.
async fn greet<S>(settings: &RedisConnectionInfo, stream: S) -> Result<S, RedisError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
{
    let lender = Arc::new(Mutex::new(None));
    let lent = Lent { stream: Some(stream), lender: Arc::clone(&lender) };
    drop(MultiplexedConnection::new(settings, lent).await?);
    let back = lender.lock().take();
    back.ok_or_else(|| io::Error::other("the library has kept the stream").into())
}

/// Gives a stream back when it is dropped.
struct Lent<S> {
    stream: Option<S>,
    lender: Arc<Mutex<Option<S>>>,
}

impl<S> Drop for Lent<S> {
    fn drop(&mut self) {
        *self.lender.lock() = self.stream.take();
    }
}

impl<S: Unpin> Lent<S> {
    fn stream(self: Pin<&mut Self>) -> io::Result<Pin<&mut S>> {
        self.get_mut().stream.as_mut().map(Pin::new).ok_or_else(|| io::ErrorKind::NotConnected.into())
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Lent<S> {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Lent<S> {
    fn poll_write(self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        self.stream()?.poll_write(cx, bytes)
    }

    fn poll_flush(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_flush(cx)
    }

    fn poll_shutdown(self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.stream()?.poll_shutdown(cx)
    }
}
