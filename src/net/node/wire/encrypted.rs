//! Read and write halves of an encrypted stream.
//!
//! A TLS session has one state for both directions, so the halves share it behind a mutex. A task holds the mutex while
//! it encrypts or decrypts bytes and hands them to the socket, and never while it waits.

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
    /// Number of bytes of the present piece that the session has taken. The socket may not have all of them.
    taken: usize,
}

/// Half that reads.
pub(super) struct Half(Arc<Mutex<Session>>);

/// Half that encrypts and writes. Dropping it sends nothing: after a fork the socket may belong to the parent process.
pub(in crate::net::node) struct Writer(Arc<Mutex<Session>>);

pub(super) fn split(stream: TlsStream<TcpStream>) -> (Half, Writer) {
    let session = Arc::new(Mutex::new(Session { stream, taken: 0 }));
    (Half(Arc::clone(&session)), Writer(session))
}

impl Writer {
    /// Writes all of a piece, or reports `WouldBlock`. After `WouldBlock`, the caller passes the same piece again, from
    /// its beginning.
    ///
    /// The session may take bytes before the socket does. If the write succeeded then, these bytes would go out only
    /// with the next piece, which may never come.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let session = &mut *self.0.lock();
        // Nothing to wake here: the driver waits for a full socket with its own waker.
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

    /// Resolves when the socket may take bytes again.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().stream.get_ref().0.poll_write_ready(cx)
    }
}

impl AsyncRead for Half {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.0.lock().stream).poll_read(cx, into));
        Poll::Ready(match read {
            // An end without the close notification of TLS hides no truncation, since answers state their length.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read,
        })
    }
}
