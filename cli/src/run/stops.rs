//! Stops of the command, by Ctrl-Z, by SIGSTOP, or because another process group has the terminal. A stopped command
//! keeps the lock, so `run` reports the stop to the user.

use std::time::Duration;

use rustix::process::{self, Pid, Signal, WaitId, WaitIdOptions};
use tokio::time::Instant;

/// Pause between two lines about a command that stays stopped.
const REMINDER: Duration = Duration::from_secs(60);

/// Change of a child's state that the kernel reports.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(super) enum Change {
    Stopped(i32),
    Continued,
}

/// Returns the newest change of a child's state. Returns each change only once.
pub(super) fn change_of(child: Pid) -> Option<Change> {
    let options = WaitIdOptions::STOPPED | WaitIdOptions::CONTINUED | WaitIdOptions::NOHANG;
    let status = process::waitid(WaitId::Pid(child), options).ok()??;
    status.stopping_signal().map(Change::Stopped).or_else(|| status.continued().then_some(Change::Continued))
}

/// Stop that has not ended.
#[derive(Debug)]
pub(super) struct Stop {
    signal: i32,
    told: Option<Instant>,
}

impl Stop {
    pub(super) fn by(signal: i32) -> Self {
        Self { signal, told: None }
    }

    /// Returns true if the command has read from the terminal, or changed it, without having it.
    pub(super) fn is_for_terminal(&self) -> bool {
        [Signal::TTIN, Signal::TTOU].map(Signal::as_raw).contains(&self.signal)
    }

    /// Returns true if Ctrl-Z was the cause.
    pub(super) fn is_by_key(&self) -> bool {
        self.signal == Signal::TSTP.as_raw()
    }

    pub(super) fn was_told(&self) -> bool {
        self.told.is_some()
    }

    /// Returns the line for the user, at the first call and then once a minute.
    pub(super) fn next_line(&mut self) -> Option<String> {
        if self.told.is_some_and(|told| told.elapsed() < REMINDER) {
            return None;
        }
        self.told = Some(Instant::now());
        let signal = [
            (Signal::TTIN, "SIGTTIN"),
            (Signal::TTOU, "SIGTTOU"),
            (Signal::TSTP, "SIGTSTP"),
            (Signal::STOP, "SIGSTOP"),
        ]
        .iter()
        .find(|(signal, _)| signal.as_raw() == self.signal)
        .map_or_else(|| format!("signal {}", self.signal), |(_, name)| (*name).to_owned());
        Some(if self.is_for_terminal() {
            format!("stopped by {signal}, since it needs the terminal and is in the background: `fg` lets it go on")
        } else {
            format!("stopped by {signal}: SIGCONT lets it go on")
        })
    }
}
