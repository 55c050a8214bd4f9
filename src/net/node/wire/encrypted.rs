//! Read half and write half of an encrypted stream.
//!
//! A TLS session has one state for both directions, so the halves share the session behind a mutex. A task holds the
//! mutex while it encrypts or decrypts bytes and passes them to or from the socket. No task holds the mutex while it
//! waits.

use std::io;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, Waker, ready};

use parking_lot::Mutex;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::client::TlsStream;

struct Session {
    stream: TlsStream<TcpStream>,
    /// Number of bytes of the present piece that the session has taken. The session may not have passed all of them to
    /// the socket.
    taken: usize,
}

/// Read half, which decrypts.
pub(super) struct Half(Arc<Mutex<Session>>);

/// Write half, which encrypts. A drop of this value sends nothing, because after a `fork` the socket may belong to the
/// parent process.
pub(super) struct TlsWriter(Arc<Mutex<Session>>);

pub(super) fn split(stream: TlsStream<TcpStream>) -> (Half, TlsWriter) {
    let session = Arc::new(Mutex::new(Session { stream, taken: 0 }));
    (Half(Arc::clone(&session)), TlsWriter(session))
}

impl TlsWriter {
    /// Writes a whole piece, or returns `WouldBlock`. After `WouldBlock`, the caller must pass the same piece again,
    /// from its beginning.
    ///
    /// The session may take bytes before the socket takes them. If this function then reported success, the bytes would
    /// stay in the session until the next piece is written. That piece may never come.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let session = &mut *self.0.lock();
        // No waker is needed, because the driver waits with `poll_writable` while the socket is full.
        let cx = &mut Context::from_waker(Waker::noop());
        let mut stream = Pin::new(&mut session.stream);
        while let Some(rest) = bytes.get(session.taken..).filter(|rest| !rest.is_empty()) {
            let Poll::Ready(count) = stream.as_mut().poll_write(cx, rest)? else {
                return Err(io::ErrorKind::WouldBlock.into());
            };
            session.taken += count;
        }
        if stream.poll_flush(cx)?.is_pending() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        session.taken = 0;
        Ok(bytes.len())
    }

    /// Returns ready when the socket may take bytes again.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().stream.get_ref().0.poll_write_ready(cx)
    }
}

impl AsyncRead for Half {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.0.lock().stream).poll_read(cx, into));
        Poll::Ready(match read {
            // The server may close the connection without the close notification of TLS. That cannot hide a truncated
            // answer, because each answer states its length.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read,
        })
    }
}
