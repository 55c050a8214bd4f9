//! The signals that `run` hands on.

use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::Signal;
use tokio::signal::unix::{self, SignalKind};

/// Signals that go to the command's group.
const HANDED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// From when it is made on, none of these ends this process.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new() };
        HANDED_ON.iter().chain(&[Signal::CHILD]).try_for_each(|signal| signals.listen_to(*signal))?;
        Ok(signals)
    }

    /// Listens to one more signal.
    pub(super) fn listen_to(&mut self, signal: Signal) -> io::Result<()> {
        self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(())
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
