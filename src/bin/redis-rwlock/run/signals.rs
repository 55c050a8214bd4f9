//! The signals that `run` hands on.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// All but the last one go to the command's group.
const HEARD: [Signal; 7] =
    [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2, Signal::CHILD];

/// From when it is made on, none of these ends this process.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let stream = |signal: &Signal| Ok((*signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(Self { streams: HEARD.iter().map(stream).collect::<io::Result<_>>()? })
    }

    /// The next one. One that came is not forgotten if the future is dropped.
    pub(super) async fn next(&mut self) -> Signal {
        poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await
    }
}
