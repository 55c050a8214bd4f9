//! The two halves of an encrypted stream.
//!
//! Its session has one state for both directions, so they share it behind a mutex. It is held while bytes are encrypted or decrypted
//! and handed to the socket, and never while something is waited for.

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
    /// Number of bytes of a piece that the session has taken, and of which some have not gone out.
    taken: usize,
}

/// Reads what the server says.
pub(super) struct Half(Arc<Mutex<Session>>);

/// Encrypts what is said to the server. Dropping it sends nothing: the socket may be that of the process which this is a copy of.
pub(in crate::transport::node) struct Writer(Arc<Mutex<Session>>);

pub(super) fn split(stream: TlsStream<TcpStream>) -> (Half, Writer) {
    let session = Arc::new(Mutex::new(Session { stream, taken: 0 }));
    (Half(Arc::clone(&session)), Writer(session))
}

impl Writer {
    /// Writes all of a piece, or none that counts: then it is to be offered again from its beginning. What the session has taken
    /// and the socket has not would otherwise go out only with the next piece, of which there may be none.
    pub(super) fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        let session = &mut *self.0.lock();
        // A full socket is waited for by the driver, with a waker of its own.
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

    /// Ready when the socket may have room again.
    pub(super) fn poll_writable(&self, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        self.0.lock().stream.get_ref().0.poll_write_ready(cx)
    }
}

impl AsyncRead for Half {
    fn poll_read(self: Pin<&mut Self>, cx: &mut Context<'_>, into: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.0.lock().stream).poll_read(cx, into));
        Poll::Ready(match read {
            // A server that closes without a farewell cuts no answer short unnoticed: answers say how long they are.
            Err(error) if error.kind() == io::ErrorKind::UnexpectedEof => Ok(()),
            read => read,
        })
    }
}
