//! Signals that `run` forwards.

use std::fs;
use std::future::poll_fn;
use std::io;
use std::task::Poll;

use rustix::process::{Pid, Signal};
use tokio::signal::unix::{self, SignalKind};

use super::orphans::Orphans;

/// Signals that go to the command's group.
const HANDED_ON: [Signal; 6] = [Signal::INT, Signal::TERM, Signal::HUP, Signal::QUIT, Signal::USR1, Signal::USR2];

/// Streams of signals. As soon as this value exists, none of these signals ends this process. Signals that were ignored
/// at the start stay ignored, in this process and in the command. `nohup` needs this, and so do shells for commands in
/// the background.
#[derive(Debug)]
pub(super) struct Signals {
    streams: Vec<(Signal, unix::Signal)>,
    ignored: Ignored,
    orphans: Orphans,
}

impl Signals {
    pub(super) fn listen() -> io::Result<Self> {
        let mut signals = Self { streams: Vec::new(), ignored: Ignored::at_start(), orphans: Orphans::default() };
        HANDED_ON.iter().try_for_each(|signal| signals.listen_to(*signal))?;
        // SIGCHLD gets a handler even if it was ignored. Without the handler, the runtime does not notice the end of a
        // child.
        signals.add(Signal::CHILD)?;
        Ok(signals)
    }

    /// Handles one more signal, unless it is ignored.
    pub(super) fn listen_to(&mut self, signal: Signal) -> io::Result<()> {
        if self.ignored.has(signal) { Ok(()) } else { self.add(signal) }
    }

    fn add(&mut self, signal: Signal) -> io::Result<()> {
        self.streams.push((signal, unix::signal(SignalKind::from_raw(signal.as_raw()))?));
        Ok(())
    }

    /// Excludes a child from the reaping of orphans, since another task waits for the child.
    pub(super) fn leave(&mut self, child: Pid) {
        self.orphans.leave(child);
    }

    /// Returns the next signal.
    ///
    /// # Cancel safety
    ///
    /// A dropped future loses no signal.
    pub(super) async fn next(&mut self) -> Signal {
        let signal = poll_fn(|context| {
            for (signal, stream) in &mut self.streams {
                if stream.poll_recv(context).is_ready() {
                    return Poll::Ready(*signal);
                }
            }
            Poll::Pending
        })
        .await;
        if signal == Signal::CHILD {
            self.orphans.reap();
        }
        signal
    }
}

/// Signals that this process ignored at its start, with one bit for each. Empty where the system does not list them.
#[derive(Clone, Copy, Debug)]
struct Ignored(u64);

impl Ignored {
    /// Reads the ignored signals. This must happen before the first handler is installed.
    fn at_start() -> Self {
        let status = fs::read_to_string("/proc/self/status").unwrap_or_default();
        let mask = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
        Self(mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()).unwrap_or(0))
    }

    fn has(self, signal: Signal) -> bool {
        u32::try_from(signal.as_raw() - 1).is_ok_and(|bit| self.0.checked_shr(bit).is_some_and(|rest| rest & 1 == 1))
    }
}
